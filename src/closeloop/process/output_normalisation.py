"""What stays of a text when it is printed again: volatile parts out, or only its shape."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_TEXT_CHARS = 20_000
"""Characters of a text that are compared: the last ones."""
MAX_TEST_ID_CHARS = 200
"""How far before a number its test's name may begin."""
MAX_MESSAGE_CHARS = 300
"""Characters of a message that are compared: the first ones."""
CUT_MARK = "…"
"""Ends a message that its tool cut short."""
ORIGIN_MARK = " ← "
"""Stands between a message and the line of the test that it comes from."""

# Every pattern is linear (repeats are possessive or bounded) and begins with one set of
# characters, which the engine looks for without trying the rest.
_VOLATILE_NUMBER = re.compile(
    r"\d(?<!\w\d)(?:"
    r"(?P<time>\d{3}[-/]\d\d[-/]\d\d(?!\d)"
    r"(?:[T ]\d\d?:\d\d(?::\d\d)?(?:[.,]\d++)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\d?:\d\d:\d\d(?:[.,]\d++)?(?!\d)"
    r"|\d*+(?:[.,]\d++)? ?"
    r"(?:[mµun]?s|secs?|seconds?|milliseconds?|mins?|minutes?|m|h|hours?)\b)"
    r"|(?P<share>\d*+(?:\.\d++)? ?%)"
    r"|(?P<address>(?<=0)x[0-9a-fA-F]++)"
    r"|(?P<hash>(?=[a-f\d]{6})[a-f\d]++\b(?:-[a-f\d]{4,12}\b){0,4}"
    r"|(?=[\d-]{0,20}[a-f])[a-f\d]{3,5}(?:-[a-f\d]{4,12}\b){1,4})"
    r")"
)
_NUMBERED_RESOURCE = re.compile(
    r"(\b(?:port|pid|process|goroutine|thread)[ =:]{1,2}|localhost:|\d\.\d{1,3}:"
    r"|thread '[^'\n]*+' \()\d++\b",
    re.IGNORECASE,
)
_RESOURCE_WORDS = ("port", "pid", "PID", "rocess", "goroutine", "hread", "localhost", "0.0.")
_HASH = re.compile(
    r"[a-f](?<!\w[a-f])(?=[a-f]*+\d)"
    r"(?:[a-f\d]{6,}+\b(?:-[a-f\d]{4,12}\b){0,4}|[a-f\d]{3,5}(?:-[a-f\d]{4,12}\b){1,4})"
)
_SHELL_JOB = re.compile(r"\[\d{1,6}\](?=\n|\Z)")
"""What a shell prints before all else of a command that it leaves running."""
_TEMPORARY_FOLDER = re.compile(
    r"(?:/private)?/var/folders(?:/[\w+-]++){2}/T\b"
    r"|/tmp/(?:pytest-of-[^/\s]++/pytest-\d++\b|tmp[._]?\w{6,12}+\b|cc\w{6}\b|go-build\d++\b)"
)
_BAR_CHARACTERS = "=-_*#~^.!─━⎯═█░▒▓"
_BAR_LINE = re.compile(rf"([{re.escape(_BAR_CHARACTERS)}])\1{{3,}}+")
_TERMINAL_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]*+\x07?|[@-Z\\-_])")

_VARIABLE_VALUE = re.compile(
    # Backticks quote code, which is not a value.
    r"(?<!\w)(?:'[^'\n]*+'|\"[^\"\n]*+\"|‘[^’\n]*+’)"
    r"|\b(?=[a-f]*+\d)[0-9a-f]{7,}+\b"
    r"|(?<![\w.])[-+]?(?:0x[0-9a-fA-F]++|\d[\d_]*+(?:\.\d++)?(?:e[-+]?\d++)?)"
    r"|\b(?:None|True|False|null|undefined|nan)\b"
    r"|(?:/private)?/(?:tmp|var/folders)/[^\s'\"`,;:)\]>]++"
)
_OPEN_QUOTE = re.compile(r"(?<!\w)['\"`‘][^'\"`’]*+\Z")
_VALUE_LIST = re.compile(r"#(?:, ?#)+")
_NAME_ERROR = re.compile(
    r"(?:Attribute|Name|Import|ModuleNotFound|UnboundLocal|Type|Reference|NoMethod)Error\b"
    r"|undefined |[Cc]annot find "
)
"""Messages whose quoted words are names, not values: another name is another failure."""
_QUOTED_NAME = re.compile(r"['\"‘](?!/tmp|/var|/private)[\w.$@/-]++['\"’]\Z")


def strip_terminal_codes(text: str) -> str:
    """The text as a terminal would show it: no escapes, and of overwritten lines the last."""
    if "\x1b" in text:
        text = _TERMINAL_ESCAPE.sub("", text)
    if "\r" in text:
        lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
        text = "\n".join(lines)
    return text


def normalise_output(text: str) -> str:
    """The text without what changes from run to run; digits inside test ids stay."""
    text = "\n".join(
        [
            " ".join(line.split())
            for line in strip_terminal_codes(text)[-MAX_TEXT_CHARS:].split("\n")
        ]
    )
    text = _HASH.sub(
        _volatile_placeholder, _VOLATILE_NUMBER.sub(_volatile_placeholder, text)
    ).replace("[ <share>", "[<share>")
    if job := _SHELL_JOB.match(text):
        text = f"[<job>]{text[job.end() :]}"
    if any(word in text for word in _RESOURCE_WORDS):
        text = _NUMBERED_RESOURCE.sub(r"\1<number>", text)
    if "/tmp/" in text or "/var/folders/" in text:  # noqa: S108
        text = _TEMPORARY_FOLDER.sub("<folder>", text)
    if any(bar * 4 in text for bar in _BAR_CHARACTERS):
        text = _BAR_LINE.sub(r"\1\1\1", text)
    return text[-MAX_TEXT_CHARS:]


def _volatile_placeholder(match: re.Match[str]) -> str:
    text, at = match.string, match.start()
    first = max(at - MAX_TEST_ID_CHARS, 0)
    begin = max(text.rfind(" ", first, at), text.rfind("\n", first, at), first - 1) + 1
    is_id = text.startswith("test_", begin) or text.find("::", begin, at) >= 0
    return match[0] if is_id else f"<{match.lastgroup or 'hash'}>"


@lru_cache(maxsize=4096)
def message_skeleton(message: str) -> str:
    """One message's shape: no numbers, no quoted values, nothing volatile."""
    line = message.strip()[:MAX_MESSAGE_CHARS]
    if "\n" in line:
        line = line[: line.index("\n")].rstrip()
    if line.startswith("AssertionError: assert "):
        # Some styles of pytest leave the type out.
        line = line[16:]
    is_cut = line.endswith(("...", CUT_MARK))
    if is_cut:
        line = line.rstrip("." + CUT_MARK)
        line = line[: line.rindex(" ")] if " " in line else line
    shape = _VARIABLE_VALUE.sub(
        _name_or_placeholder if _NAME_ERROR.search(line, 0, 60) else _value_placeholder, line
    )
    if is_cut:
        shape = _OPEN_QUOTE.sub("", shape)
    shape = " ".join(_VALUE_LIST.sub("#", shape).split())
    return shape + CUT_MARK if is_cut else shape


def _value_placeholder(match: re.Match[str]) -> str:
    return "''" if match[0][0] in "'\"‘" else "#"


def _name_or_placeholder(match: re.Match[str]) -> str:
    return match[0] if _QUOTED_NAME.match(match[0]) else _value_placeholder(match)


def is_same_message(one: str, other: str) -> bool:
    """Whether two messages say the same, as far as both say it: one may be cut, or unknown."""
    if one == other or not one or not other:
        return True
    first, _, origin = one.partition(ORIGIN_MARK)
    second, _, source = other.partition(ORIGIN_MARK)
    if origin and source and origin != source:
        return False
    if first == second:
        return True
    if first.endswith(CUT_MARK):
        return second.startswith(first[:-1])
    return second.endswith(CUT_MARK) and first.startswith(second[:-1])
