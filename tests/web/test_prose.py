"""Markdown of people nobody vouches for: easier to read, and never more than text."""

from __future__ import annotations

import html
import re

import pytest
from dashboard_store import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.text.untrusted import make_visible
from closeloop.web.render import render_prose, render_sentence

OURS = re.compile(
    r"</?(?:p|ul|ol|li|pre|code|strong|br)(?: class=(?:'output'|'heading')| value=\"\d{1,4}\")?>"
)


@settings(deadline=None)
@given(
    st.text(max_size=300)
    | st.lists(
        st.sampled_from(
            ["<b>", "`", "**", "```", "\n", "- ", "1. ", "# ", "    ", "x", " ", "&", "'", '"']
        ),
        max_size=60,
    ).map("".join)
)
def test_nothing_but_our_own_tags_comes_out_and_no_word_is_lost(text: str) -> None:
    made = str(render_prose(text))
    left = OURS.sub("", made)
    assert "<" not in left
    assert ">" not in left
    words = re.findall(r"\w+", make_visible(text).replace("```", " "))
    told = re.findall(r"\w+", html.unescape(re.sub(r' value="(\d+)"', r">\1<", made)))
    missing = [word for word in words if word not in told and word not in html.unescape(left)]
    # The word after a fence names the language of the code, and is not shown.
    assert missing == [] or "```" in text


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("one\ntwo", "<p>one<br>two</p>"),
        (f"{'long ' * 14}\nand on", f"<p>{('long ' * 14).strip()} and on</p>"),
        ("- a\n- b `x`", "<ul><li>a</li><li>b <code>x</code></li></ul>"),
        ("3. c", '<ol><li value="3">c</li></ol>'),
        ("# Head", "<p class='heading'>Head</p>"),
        ("**bold**", "<p><strong>bold</strong></p>"),
        ("```py\na < b\n```", "<pre class='output'><code>a &lt; b</code></pre>"),
        ("```f(x)```\nand on", "<p><code>f(x)</code><br>and on</p>"),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
        ("<b>`<i>`", "<p>&lt;b&gt;<code>&lt;i&gt;</code></p>"),
        ("", ""),
    ],
)
def test_what_it_makes_of_a_text(text: str, made: str) -> None:
    assert render_prose(text) == made


def test_hostile_text_is_text() -> None:
    assert not re.search(r"<(?:script|img|svg|a)\b", render_prose(HOSTILE))


def test_a_long_text_is_quick() -> None:
    for text in ("`" * 50_000, "*" * 50_000, "- " * 25_000, "    \n" * 10_000, "```\n" * 12_000):
        assert len(render_prose(text)) < 1_000_000


def test_a_command_in_a_sentence_is_code_and_nothing_in_it_is_markup() -> None:
    assert render_sentence("Mine new ones with `closeloop mine`.") == (
        "Mine new ones with <code>closeloop mine</code>."
    )
    assert render_sentence("`<b>` & <i>") == "<code>&lt;b&gt;</code> &amp; &lt;i&gt;"
    assert render_sentence(None) == ""
