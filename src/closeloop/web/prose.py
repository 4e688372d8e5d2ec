"""Text that agents and people wrote in Markdown, made easier to read and nothing more.

Paragraphs, lists, headings, code and bold. Every character of it is escaped; there is no HTML, no
image, and a link is its text with the address beside it, to be read and not to be followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

from closeloop.model.visible import visible

LONGEST = 50_000
SHORT_LINE = 60
"""A line that ends before this was ended on purpose."""
_ITEM = re.compile(r"\s{0,12}(?:[-*+•]|(\d{1,4})[.)])\s+(.*)")
_HEADING = re.compile(r"#{1,6}\s+(.*)")
_INLINE = re.compile(r"`([^`\n]{1,500})`|\*\*([^*\n]{1,500})\*\*")
_BREAK = Markup("<br>")
_NUMBERED, _LISTED = Markup("<ol>{}</ol>"), Markup("<ul>{}</ul>")
_CODE, _BOLD = Markup("<code>{}</code>"), Markup("<strong>{}</strong>")


def prose(text: str | None) -> Markup:
    """The text as HTML of our own making."""
    shown = visible((text or "")[:LONGEST])
    return Markup("\n").join(_blocks(shown.split("\n")))


def _blocks(lines: list[str]) -> Iterator[Markup]:
    kept: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.lstrip().startswith("```"):
            yield from _paragraphs(kept)
            code, at = _fenced(lines, at)
            yield Markup("<pre class='output'><code>{}</code></pre>").format(code)
        elif heading := _HEADING.fullmatch(line):
            yield from _paragraphs(kept)
            yield Markup("<p class='heading'>{}</p>").format(_inline(heading[1]))
        elif not line.strip():
            yield from _paragraphs(kept)
        else:
            kept.append(line)
    yield from _paragraphs(kept)


def _fenced(lines: list[str], at: int) -> tuple[str, int]:
    """The lines of a block of code, and where the text goes on."""
    end = at
    while end < len(lines) and not lines[end].lstrip().startswith("```"):
        end += 1
    return "\n".join(lines[at:end]), end + 1


def _paragraphs(kept: list[str]) -> Iterator[Markup]:
    """What was kept of lines in a row: a list, indented code, or words."""
    lines, kept[:] = list(kept), []
    if lines and all(line.startswith(("    ", "\t")) for line in lines):
        yield Markup("<pre class='output'>{}</pre>").format("\n".join(lines))
        return
    words: list[str] = []
    items: list[tuple[str | None, list[str]]] = []
    for line in lines:
        if item := _ITEM.fullmatch(line):
            items.append((item[1], [item[2]]))
        elif items and line.startswith(" "):
            items[-1][1].append(line.strip())
        elif items:
            yield from _said(words, items)
            words, items = [line], []
        else:
            words.append(line)
    yield from _said(words, items)


def _said(words: list[str], items: list[tuple[str | None, list[str]]]) -> Iterator[Markup]:
    if words:
        yield Markup("<p>{}</p>").format(_joined(words))
    if items:
        told = (
            Markup("<li{}>{}</li>").format(
                Markup(' value="{}"').format(number) if number else "", _joined(lines)
            )
            for number, lines in items
        )
        listed = _NUMBERED if items[0][0] else _LISTED
        yield listed.format(Markup("").join(told))


def _joined(lines: list[str]) -> Markup:
    """Lines that were only wrapped run on; those that end early stay lines."""
    told = Markup("")
    for place, line in enumerate(lines):
        told += _inline(line.strip())
        if place + 1 < len(lines):
            told += _BREAK if len(line) < SHORT_LINE else Markup(" ")
    return told


def _inline(line: str) -> Markup:
    told, at = Markup(""), 0
    for found in _INLINE.finditer(line):
        told += escape(line[at : found.start()])
        told += _CODE.format(found[1]) if found[1] else _BOLD.format(found[2])
        at = found.end()
    return told + escape(line[at:])
