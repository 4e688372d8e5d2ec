"""The comment of a pull request: what it says, and what it does not let others say."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace

from closeloop.changes.report_formats import (
    MAX_COMMENT_BYTES,
    escape_code,
    escape_prose,
    fence_output,
    render_comment,
)
from closeloop.records.change import ChangeReport, FileChange, Risk, RiskFactor, ToolRun
from closeloop.records.finding import Unmeasured
from report_example import BAD, BLOBS, CHANGE, CLEAN, finding


def test_a_reviewer_reads_this():
    assert (
        render_comment(BAD, blobs="https://x.org/blob/b")
        == """\
<!-- closeloop:check -->
### ⛔ Blocked: 1 newly failing in test; 1 error; 1 warning; risk high

main..feature (2 files, +22 −13)

**Risk: high.** 12 % (8 % to 17 %) of changes of this size were reverted or fixed later, based on 900 changes.
- Removes the public function `parse_date`.
- Larger than 83 % of changes.

**Broken by this change**
- `tests/test_days.py::test_leap_year` (test)

**3 findings**

| where | rule | what |
| --- | --- | --- |
| [`tally/days.py:12`](https://x.org/blob/b/tally/days.py#L12) | **hallucinated-api** | `parse_day` does not exist in tally.days; did you mean `parse_date`? |
| [`tally/days.py:30`](https://x.org/blob/b/tally/days.py#L30) | needless-copy | `leap` is a copy of `is_leap` in tally/calendar.py:40. |

<details><summary>1 more finding</summary>

| where | rule | what |
| --- | --- | --- |
| [`tally/days.py:12`](https://x.org/blob/b/tally/days.py#L12) | odd-name | `DoIt` is not named like the rest. |

</details>

<details><summary>The repository's own tools</summary>

- test `pytest -q`: passed → failed (12 s)
- lint `ruff check .`: failed → failed (0 s; 1 failing before too)

</details>

<details><summary>Output of test</summary>

```text
E   assert 28 == 29
1 failed, 41 passed in 0.3s
```

</details>

<details><summary>Risk factors</summary>

- public API: 1 function removed ([`tally/days.py:12`](https://x.org/blob/b/tally/days.py#L12))
- surface: 35 lines

</details>

<details><summary>2 checks that could not run</summary>

- unknown-name: tally/odd.py cannot be parsed
- coverage: there is no coverage data

</details>

<sub>To run it on your machine: `closeloop check aaaaaaaaaaaa..bbbbbbbbbbbb`</sub>
"""  # noqa: E501
    )


def test_a_clean_change_gets_one_line():
    assert (
        render_comment(CLEAN)
        == """\
<!-- closeloop:check -->
✅ closeloop found no problems in main..feature (2 files, +22 −13), risk low.
"""
    )


def test_a_clean_change_still_says_that_something_could_not_be_looked_at():
    report = replace(CLEAN, unmeasured=(Unmeasured(rule="names", reason="no parser"),))
    assert "1 check that could not run" in render_comment(report)


@pytest.mark.parametrize(
    "report",
    [
        replace(CLEAN, verdict="warn"),
        replace(CLEAN, findings=(finding("x", severity="info"),)),
        replace(CLEAN, risk=Risk(level="medium", reasons=())),
    ],
)
def test_a_change_is_not_clean_with(report: ChangeReport):
    assert render_comment(report).count("\n") > 3


def test_commits_are_named_by_the_beginning_of_their_ids():
    text = render_comment(replace(CLEAN, title=f"{'a1' * 20}..{'b2' * 32}"))
    assert "in a1a1a1a1a1a1..b2b2b2b2b2b2 (" in text


def test_a_silenced_finding_is_not_told():
    assert "Known." not in render_comment(BAD)


# Size


def huge() -> ChangeReport:
    """More of everything than fits."""
    message = "ü`name`" * 60
    findings = [finding(f"{message} {n}", f"src/{n}.py:{n + 1}") for n in range(10_000)]
    return replace(
        BAD,
        findings=tuple(findings),
        reasons=tuple(f"{message} {n}" for n in range(300)),
        tools=(
            ToolRun(
                name="test",
                command="pytest " + "x" * 9_000,
                before="passed",
                after="failed",
                broke=tuple(f"tests/test_{n}.py::test" for n in range(20_000)),
                output="line of output\n" * 50_000,
            ),
        ),
        unmeasured=tuple(Unmeasured(rule=f"rule-{n}", reason=message) for n in range(5_000)),
    )


def test_a_huge_report_fits_and_keeps_what_matters_most():
    text = render_comment(huge(), blobs=BLOBS)
    assert len(text.encode()) <= MAX_COMMENT_BYTES + 100
    assert text.count("<details>") == text.count("</details>")
    assert "Blocked" in text
    assert "**Risk: high.**" in text
    assert "tests/test_0.py::test" in text
    assert "src/0.py:1" in text
    assert "closeloop check" in text
    assert re.search(r"… and \d+ more\.", text)
    assert "line of output" not in text


@given(st.integers(200, 20_000))
def test_any_limit_is_kept(limit: int):
    text = render_comment(BAD, blobs=BLOBS, limit=limit)
    assert len(text.encode()) <= limit + 100
    assert text.count("<details>") == text.count("</details>")


# What others wrote

HOSTILE = [
    "@ann please merge",
    "fixes #1, ann/tally#2, GH-3, !4 and ~bug",
    "![beacon](https://evil.example/x.png)",
    "<img src=https://evil.example/x.png> <script>alert(1)</script>",
    "[click](https://evil.example) <https://evil.example> https://evil.example www.evil.example",
    "</details><h1>Approved</h1>",
    "a | b | c",
    "`a | b`, `<img src=x>` and ``` and `` ` ``",
    "\\| \\` trailing \\",
    "`\\| a \\`",
    "first\n\n# heading\n\n- [x] item\n\n| a |\n| --- |",
    "<!-- closeloop:check --> --> <!--",
    "*bold* _it_ __init__ ~~gone~~ $x$ $$y$$ &lt;b&gt; &#64;ann",
    "1. one",
    "- one",
    "\x1b[31mred\x07 \u202eright to left\u2066",
    "~~~\n```\n````",
    "[ref]: https://evil.example",
    "",
    "`",
    "``",
    "#``1",
]


def everywhere(text: str) -> ChangeReport:
    """The text wherever somebody else's text can be."""
    return replace(
        BAD,
        title=text,
        reasons=(text,),
        change=replace(CHANGE, files=(FileChange(path=text or "x", status="added"),)),
        findings=(finding(text, f"{text}:3", rule=text), finding(text, None, severity="info")),
        tools=(
            ToolRun(
                name=text,
                command=text,
                after="failed",
                broke=(text,),
                already=(text,),
                output=f"x{text}",
                note=text,
                selected=text,
            ),
        ),
        risk=Risk(
            level="critical",
            reasons=(text,),
            factors=(RiskFactor(name=text, axis="impact", text=text, weight=1, places=(text,)),),
        ),
        unmeasured=(Unmeasured(rule=text, reason=text),),
    )


def shown(text: str) -> str:
    """As a host shows it: CommonMark with tables, bare addresses and HTML."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)


def check_harmless(text: str) -> None:
    page = render_comment(everywhere(text), blobs=BLOBS)
    tame = render_comment(everywhere("tame"), blobs=BLOBS)
    html = shown(page)
    tags = re.findall(r"<(/?[a-z!][a-z0-9-]*)", html)
    allowed = {"h3", "p", "ul", "li", "strong", "table", "thead", "tbody", "tr", "th", "td", "a"}
    allowed |= {"code", "pre", "details", "summary", "sub", "span", "!--"}
    assert {tag.strip("/") for tag in tags} <= allowed
    for tag in ("h3", "tr", "td", "li", "details", "/details", "ul", "table", "!--"):
        assert tags.count(tag) == re.findall(r"<(/?[a-z!][a-z0-9-]*)", shown(tame)).count(tag), tag
    assert all(link.startswith(BLOBS) for link in re.findall(r'href="([^"]*)"', html))
    outside = unescape(re.sub(r"<(code|pre|a)\b.*?</\1>", " ", html, flags=re.DOTALL))
    assert not re.search(r"@\w|#\d|GH-\d|!\d|://|www\.", outside)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_others_wrote_is_shown_and_does_nothing(text: str):
    check_harmless(text)


@given(st.text(st.sampled_from("ab1 `|\\<>!()[]*_~@#:/$&-\n\"'=.{}"), max_size=30))
def test_no_text_does_anything(text: str):
    check_harmless(text)


@given(st.text(max_size=40))
def test_a_code_span_shows_exactly_its_text(text: str):
    made = shown(f"| x |\n| --- |\n| {escape_code(text)} |")
    assert made.count("<td>") == 1
    assert made.count("<code>") == 1


def test_names_between_backticks_are_code():
    assert (
        escape_prose("`parse_day` is not in __init__")
        == "`parse_day` is not in &#95;&#95;init&#95;&#95;"
    )


def test_output_with_fences_stays_in_its_block():
    assert shown(fence_output("```\n<b>\n````")).count("<pre>") == 1
    assert "<b>" not in shown(fence_output("```\n<b>\n````"))
