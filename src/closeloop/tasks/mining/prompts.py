"""What to ask for: the words of whoever asked for the work, without the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from closeloop.tasks.mining.code import sides
from closeloop.tasks.mining.leaks import without_leaks

FEWEST_WORDS = 4
LONGEST = 6_000
_TRAILER = re.compile(
    r"(?im)^\s*(?:(?:signed-off|co-authored|reviewed|acked|tested|reported|suggested)-by|change-id"
    r"|reviewed-on|git-svn-id|differential revision|cc|pr-url|refs?|see(?: also)?|bug)\s*:.*$"
)
_CLOSES = re.compile(
    r"(?i)[ \t,;:–-]{0,9}\(?(?:\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?|see(?: also)?|refs?"
    r"|references|related to|cf|per|from|in|pr|via|issues?|and)\b[ \t:.]{0,9}){0,4}"
    r"(?:\b[\w.-]{1,60}/[\w.-]{1,60})?(?:#|\bgh-|\bbpo-)\d+\b\)?"
)
_URL = re.compile(r"\(?<?https?://[^\s>)\]]+>?\)?")
_HASH = re.compile(r"(?i)\b(?:commit )?(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b")
_ROLE = re.compile(r"[:{](?:issue|pr|ghsa|gh|pull|user|commit)[:}]`[^`]{0,200}`\.?", re.IGNORECASE)
_REFERENCE = re.compile(
    r"(?::[a-z:]{1,30}:|\{[a-z:]{1,30}\})`~?\.?([^`<]{1,200}?)(?:\s*<[^>`]{1,200}>)?`"
)
_DIFF = re.compile(
    r"(?m)^(?:diff --git|index [0-9a-f]{7}|@@ -|\+\+\+ |--- [ab]/|[+-](?![-+ ])\S).*$"
)
_FENCED_DIFF = re.compile(r"```(?:diff|patch)\n.{0,20000}?```", re.DOTALL)
_PREFIX = re.compile(
    r"^(?:(?:fix|feat|perf|refactor|bugfix|feature|chore|test|docs?)(?:\([\w ,./-]*\))?!?: *"
    r"|\[[\w #./-]{1,30}\] *|:[a-z_]{2,30}: *|[^\w`\"'(\[{<@.]{1,3}(?=\w))",
    re.IGNORECASE,
)
_CHORE = re.compile(
    r"(?im)^\s*(?:[-*•]\s*)?(?:(?:add|update|fix|write|adjust|improve|more|also add|new)\w*\s+"
    r"(?:(?:a|an|the|some|more|unit|regression|missing|failing|new|for)\s+)*"
    r"(?:tests?|test cases?|changelog|change ?log|changes(?:\.rst|\.md)?|news(?:fragment)?|docs?"
    r"|documentation|docstrings?|typos?|lint\w*|pre-commit|coverage|type hints?|authors?)\b.{0,80}"
    r"|apply suggestions from code review.*|co-authored.*|merge (?:pull request|branch|remote).*"
    r"|\[pre-commit\.ci[^\]]{0,20}\].*|wip\b.*|review(?: comments| feedback)?\.?|fixup!?.*"
    r"|squash!?.*|---+|#\s.*|.{0,80}[\w.+-]{1,60}@[\w.-]{1,60}>?|for more information,? see:?"
    r"|(?:tests?|docs?|changelog|lint|format(?:ting)?|typos?)\.?)\s*$"
)
_HEADING = re.compile(r"\W*|Version [\d.]+|Unreleased|#.*|\W*\d.*")
_GAPS = re.compile(r"\n{3,}")


def clean(text: str) -> str:
    """A message without what only tells where the answer is: hashes, numbers, addresses, diffs."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")[: 4 * LONGEST]
    for pattern in (_FENCED_DIFF, _TRAILER, _DIFF, _ROLE, _URL, _CLOSES):
        text = pattern.sub("", text)
    text = _HASH.sub("an earlier commit", text)
    text = re.sub(r"(?<!`)``(?!`)", "`", _REFERENCE.sub(r"`\1`", text))
    lines = [re.sub(r"\s+([.,;:)])", r"\1", line).rstrip() for line in text.split("\n")]
    text = _CHORE.sub("", "\n".join(line for line in lines if not _is_debris(line)))
    return _GAPS.sub("\n\n", text).strip()[:LONGEST]


def without_steps(message: str) -> str:
    """Of a squashed pull request, what comes before the messages of its later commits."""
    paragraphs = re.split(r"\n\s*\n", message)
    steps = [number for number, text in enumerate(paragraphs) if re.fullmatch(r"\* .*", text)]
    if not steps or steps[0] == 0:
        return message
    end = steps[1] if len(steps) > 1 else len(paragraphs)
    return "\n\n".join(text for text in paragraphs[:end] if not text.startswith("* "))


def request(message: str, changelog: str = "") -> str:
    """What a message, and what the change log says of the same work, ask for."""
    subject, _, body = clean(without_steps(message)).partition("\n")
    subject = _sentence(_PREFIX.sub("", subject.strip()))
    told = [subject, _unwrapped(body.strip())]
    noted = _unwrapped(clean(changelog))
    if noted and not _says(" ".join(told), noted):
        told.append(_sentence(noted))
    return "\n\n".join(filter(None, told))


def changelog_of(patch: str) -> str:
    """The lines that a change adds to the change log, as prose."""
    lines = (re.sub(r"^\s*[-*•]\s+", "", line) for line in sides(patch).added)
    prose = (line for line in lines if not _HEADING.fullmatch(line))
    return "\n".join(line.strip() for line in prose)


def compose(
    message: str, source: str, tests: str, names: Sequence[str], texts: Sequence[str]
) -> str | None:
    """The whole request; None where too little is left of it once the answer is out.

    Names and texts are those that the tests look for: a colleague would be told them.
    """
    prompt = without_leaks(message, source, tests)
    if len(re.findall(r"[^\W\d_]{2,}", prompt)) < FEWEST_WORDS:
        return None
    unsaid = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", prompt)]
    if unsaid:
        prompt += f"\n\nNames to use: {', '.join(f'`{name}`' for name in unsaid)}."
    unheard = [text for text in texts if text not in prompt]
    if unheard:
        prompt += "\n\nMessages, word for word:\n" + "\n".join(f"- `{text}`" for text in unheard)
    return prompt


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+ ", text) else text


def _unwrapped(text: str) -> str:
    """Paragraphs of one line each; lists and code stay as they are."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.split("\n")
        shaped = any(re.match(r"\s{2,}|\s*([-*+>|]|\d+[.)])\s|```", line) for line in lines)
        found.append(paragraph if shaped else " ".join(line.strip() for line in lines))
    return "\n\n".join(filter(str.strip, found))


def _is_debris(line: str) -> bool:
    """What is left of a line once its reference is gone."""
    return (
        bool(line.strip())
        and re.fullmatch(
            r"(?i)\W*(?:(?:closes?|fix(?:es|ed)?|resolves?|see|refs?|issue|pr|and|gh)\W*)*", line
        )
        is not None
    )


def _says(text: str, noted: str) -> bool:
    """Whether a text already has most words of a note."""
    words = {word.lower() for word in re.findall(r"\w{4,}", noted)}
    known = {word.lower() for word in re.findall(r"\w{4,}", text)}
    return len(words - known) <= len(words) / 4
