"""Text that agents and people wrote in Markdown, made easier to read and nothing more.

Paragraphs, lists, headings, code and bold. Every character of it is escaped; there is no HTML, no
image, and a link is its text with the address beside it, to be read and not to be followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

from closeloop.records.visible_text import make_visible

MAX_PROSE_CHARS = 50_000
MIN_WRAPPED_CHARS = 60
"""A line that ends before this was ended on purpose."""
_LIST_ITEM = re.compile(r"\s{0,12}(?:[-*+•]|(\d{1,4})[.)])\s+(.*)")
_HEADING_LINE = re.compile(r"#{1,6}\s+(.*)")
_INLINE_MARKUP = re.compile(r"`([^`\n]{1,500})`|\*\*([^*\n]{1,500})\*\*")
_LINE_BREAK = Markup("<br>")
_NUMBERED, _LISTED = Markup("<ol>{}</ol>"), Markup("<ul>{}</ul>")
_CODE, _BOLD = Markup("<code>{}</code>"), Markup("<strong>{}</strong>")


def render_prose(text: str | None) -> Markup:
    """The text as HTML of our own making."""
    visible_text = make_visible((text or "")[:MAX_PROSE_CHARS])
    return Markup("\n").join(_render_blocks(visible_text.split("\n")))


def _render_blocks(lines: list[str]) -> Iterator[Markup]:
    pending_lines: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.lstrip().startswith("```"):
            yield from _render_paragraphs(pending_lines)
            code, at = _read_fenced_code(lines, at)
            yield Markup("<pre class='output'><code>{}</code></pre>").format(code)
        elif heading := _HEADING_LINE.fullmatch(line):
            yield from _render_paragraphs(pending_lines)
            yield Markup("<p class='heading'>{}</p>").format(_render_inline(heading[1]))
        elif not line.strip():
            yield from _render_paragraphs(pending_lines)
        else:
            pending_lines.append(line)
    yield from _render_paragraphs(pending_lines)


def _read_fenced_code(lines: list[str], at: int) -> tuple[str, int]:
    """The lines of a block of code, and where the text goes on."""
    end = at
    while end < len(lines) and not lines[end].lstrip().startswith("```"):
        end += 1
    return "\n".join(lines[at:end]), end + 1


def _render_paragraphs(kept: list[str]) -> Iterator[Markup]:
    """What was kept of lines in a row: a list, indented code, or words."""
    lines, kept[:] = list(kept), []
    if lines and all(line.startswith(("    ", "\t")) for line in lines):
        yield Markup("<pre class='output'>{}</pre>").format("\n".join(lines))
        return
    words: list[str] = []
    items: list[tuple[str | None, list[str]]] = []
    for line in lines:
        if item := _LIST_ITEM.fullmatch(line):
            items.append((item[1], [item[2]]))
        elif items and line.startswith(" "):
            items[-1][1].append(line.strip())
        elif items:
            yield from _render_words_and_list(words, items)
            words, items = [line], []
        else:
            words.append(line)
    yield from _render_words_and_list(words, items)


def _render_words_and_list(
    words: list[str], items: list[tuple[str | None, list[str]]]
) -> Iterator[Markup]:
    if words:
        yield Markup("<p>{}</p>").format(_join_wrapped_lines(words))
    if items:
        item_htmls = (
            Markup("<li{}>{}</li>").format(
                Markup(' value="{}"').format(number) if number else "", _join_wrapped_lines(lines)
            )
            for number, lines in items
        )
        list_template = _NUMBERED if items[0][0] else _LISTED
        yield list_template.format(Markup("").join(item_htmls))


def _join_wrapped_lines(lines: list[str]) -> Markup:
    """Lines that were only wrapped run on; those that end early stay lines."""
    joined_html = Markup("")
    for place, line in enumerate(lines):
        joined_html += _render_inline(line.strip())
        if place + 1 < len(lines):
            joined_html += _LINE_BREAK if len(line) < MIN_WRAPPED_CHARS else Markup(" ")
    return joined_html


def _render_inline(line: str) -> Markup:
    inline_html, at = Markup(""), 0
    for markup_match in _INLINE_MARKUP.finditer(line):
        inline_html += escape(line[at : markup_match.start()])
        inline_html += (
            _CODE.format(markup_match[1]) if markup_match[1] else _BOLD.format(markup_match[2])
        )
        at = markup_match.end()
    return inline_html + escape(line[at:])
