"""The texts in code, without a parser: literals of most languages, joined, with their gaps."""

from __future__ import annotations

import re
from collections.abc import Iterator

MIN_TEXT_CHARS = 8
MIN_EDGE_CHARS = 4
"""Of a text that begins and ends within a template, what each end must have of it."""
_LITERAL = re.compile(
    r"(?P<long>\"{3}|'{3})|(?P<prefix>\b[rRbBuUfF]{1,2})?"
    r"(?:\"(?P<double>(?:[^\"\\\n]|\\.){0,1000})\"|'(?P<single>(?:[^'\\\n]|\\.){0,1000})'"
    r"|`(?P<back>[^`\n]{0,1000})`)"
)
"""On one line each: of what spans lines, a patch may have but the end."""
_JOINT = re.compile(r"\s*(?:\\\n\s*)?(?:(?:\+|\.\.)\s*)?", re.DOTALL)
_PLACEHOLDER = re.compile(
    r"\$\{[^{}]{0,200}\}|(?<!\{)\{[^{}\s][^{}]{0,200}\}|\{\}"
    r"|%(?:\(\w{1,60}\))?[-+# 0-9.*]{0,8}[sdrifgxXeEcqvwtTpo](?![A-Za-z])"
)
_KINDS = ("double", "single", "back")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_SIGNS = {"n": "\n", "t": "\t"}


def iter_literals(text: str) -> Iterator[str]:
    """The texts of a piece of code; those that stand side by side, or are added, as one."""
    joined, end = "", -1
    for found in _LITERAL.finditer(text):
        if found["long"]:
            continue
        body = next((found[name] for name in _KINDS if found[name] is not None), "")
        if "r" not in (found["prefix"] or "").lower() and found["back"] is None:
            body = _ESCAPE.sub(lambda sign: _ESCAPED_SIGNS.get(sign[1], sign[1]), body)
        if end >= 0 and _JOINT.fullmatch(text, end, found.start()):
            joined += body
        else:
            if joined:
                yield joined
            joined = body
        end = found.end()
    if joined:
        yield joined


def remove_strings(text: str) -> str:
    """Code without its texts: what stands in them is no name."""
    return _LITERAL.sub('""', text)


def split_fixed_parts(text: str) -> list[str]:
    """What a text has around the gaps that a program fills."""
    return [part.replace("{{", "{").replace("}}", "}") for part in _PLACEHOLDER.split(text)]


def find_message(wanted: str, template: str) -> str | None:
    """What of a test's text a program's template produces; None where it is none of it."""
    if is_message(wanted) and wanted in template:
        return wanted
    parts = split_fixed_parts(template)
    fixed = max(parts, key=len)
    if is_message(fixed) or (len("".join(parts)) >= MIN_TEXT_CHARS and " " in template.strip()):
        pattern = r"[^\n]{0,200}?".join(map(re.escape, parts))
        ending = r"[^\n]{0,200}" if len(parts) > 1 and not parts[-1] else ""
        if whole := re.search(f"{pattern}{ending}(?!\\w)", wanted):
            return whole[0].strip()
    return wanted if _spans_gap(wanted, parts) else None


def is_message(text: str) -> bool:
    """Whether a text reads like a message: a space in it, and some length."""
    return len(text.strip()) >= MIN_TEXT_CHARS and " " in text.strip()


def _spans_gap(wanted: str, parts: list[str]) -> bool:
    """Whether a text is a piece from the middle of a template, with a gap or more filled."""
    for first, part in enumerate(parts[:-1]):
        suffixes = (part[at:] for at in range(len(part)))
        head = next((one for one in suffixes if wanted.startswith(one)), "")
        place = len(head)
        for later in parts[first + 1 :] if place >= MIN_EDGE_CHARS else ():
            prefixes = (later[:end] for end in range(len(later), 0, -1))
            tail = next((one for one in prefixes if wanted.endswith(one, place)), "")
            if len(tail) >= MIN_EDGE_CHARS and len(head) + len(tail) >= MIN_TEXT_CHARS:
                return True
            place = wanted.find(later, place) + len(later)
            if place < len(later) + len(head):
                break
    return False
