"""What stays of a text when it is printed again: volatile parts out, or only its shape."""

from __future__ import annotations

import re
from functools import lru_cache

LONGEST = 20_000
"""Characters of a text that are compared: the last ones."""
LONGEST_ID = 200
"""How far before a number its test's name may begin."""
LONGEST_MESSAGE = 300
"""Characters of a message that are compared: the first ones."""
CUT = "…"
"""Ends a message that its tool cut short."""
ORIGIN = " ← "
"""Stands between a message and the line of the test that it comes from."""

# Every pattern is linear (repeats are possessive or bounded) and begins with one set of
# characters, which the engine looks for without trying the rest.
_NUMBER = re.compile(
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
_NUMBERED = re.compile(
    r"(\b(?:port|pid|process|goroutine|thread)[ =:]{1,2}|localhost:|\d\.\d{1,3}:"
    r"|thread '[^'\n]*+' \()\d++\b",
    re.IGNORECASE,
)
_NUMBERING = ("port", "pid", "PID", "rocess", "goroutine", "hread", "localhost", "0.0.")
_HASH = re.compile(
    r"[a-f](?<!\w[a-f])(?=[a-f]*+\d)"
    r"(?:[a-f\d]{6,}+\b(?:-[a-f\d]{4,12}\b){0,4}|[a-f\d]{3,5}(?:-[a-f\d]{4,12}\b){1,4})"
)
_JOB = re.compile(r"\[\d{1,6}\](?=\n|\Z)")
"""What a shell prints before all else of a command that it leaves running."""
_FOLDER = re.compile(
    r"(?:/private)?/var/folders(?:/[\w+-]++){2}/T\b"
    r"|/tmp/(?:pytest-of-[^/\s]++/pytest-\d++\b|tmp[._]?\w{6,12}+\b|cc\w{6}\b|go-build\d++\b)"
)
_BARS = "=-_*#~^.!─━⎯═█░▒▓"
_BAR = re.compile(rf"([{re.escape(_BARS)}])\1{{3,}}+")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]*+\x07?|[@-Z\\-_])")

_VALUE = re.compile(
    # Backticks quote code, which is not a value.
    r"(?<!\w)(?:'[^'\n]*+'|\"[^\"\n]*+\"|‘[^’\n]*+’)"
    r"|\b(?=[a-f]*+\d)[0-9a-f]{7,}+\b"
    r"|(?<![\w.])[-+]?(?:0x[0-9a-fA-F]++|\d[\d_]*+(?:\.\d++)?(?:e[-+]?\d++)?)"
    r"|\b(?:None|True|False|null|undefined|nan)\b"
    r"|(?:/private)?/(?:tmp|var/folders)/[^\s'\"`,;:)\]>]++"
)
_OPEN_QUOTE = re.compile(r"(?<!\w)['\"`‘][^'\"`’]*+\Z")
_LIST = re.compile(r"#(?:, ?#)+")
_ABOUT_NAMES = re.compile(
    r"(?:Attribute|Name|Import|ModuleNotFound|UnboundLocal|Type|Reference|NoMethod)Error\b"
    r"|undefined |[Cc]annot find "
)
"""Messages whose quoted words are names, not values: another name is another failure."""
_QUOTED_NAME = re.compile(r"['\"‘](?!/tmp|/var|/private)[\w.$@/-]++['\"’]\Z")


def plain(text: str) -> str:
    """The text as a terminal would show it: no escapes, and of overwritten lines the last."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\r" in text:
        lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
        text = "\n".join(lines)
    return text


def normalised(text: str) -> str:
    """The text without what changes from run to run; digits inside test ids stay."""
    text = "\n".join([" ".join(line.split()) for line in plain(text)[-LONGEST:].split("\n")])
    text = _HASH.sub(_stand_in, _NUMBER.sub(_stand_in, text)).replace("[ <share>", "[<share>")
    if job := _JOB.match(text):
        text = f"[<job>]{text[job.end() :]}"
    if any(word in text for word in _NUMBERING):
        text = _NUMBERED.sub(r"\1<number>", text)
    if "/tmp/" in text or "/var/folders/" in text:  # noqa: S108
        text = _FOLDER.sub("<folder>", text)
    if any(bar * 4 in text for bar in _BARS):
        text = _BAR.sub(r"\1\1\1", text)
    return text[-LONGEST:]


def _stand_in(match: re.Match[str]) -> str:
    text, at = match.string, match.start()
    first = max(at - LONGEST_ID, 0)
    begin = max(text.rfind(" ", first, at), text.rfind("\n", first, at), first - 1) + 1
    is_id = text.startswith("test_", begin) or text.find("::", begin, at) >= 0
    return match[0] if is_id else f"<{match.lastgroup or 'hash'}>"


@lru_cache(maxsize=4096)
def skeleton(message: str) -> str:
    """One message's shape: no numbers, no quoted values, nothing volatile."""
    line = message.strip()[:LONGEST_MESSAGE]
    if "\n" in line:
        line = line[: line.index("\n")].rstrip()
    if line.startswith("AssertionError: assert "):
        # Some styles of pytest leave the type out.
        line = line[16:]
    cut = line.endswith(("...", CUT))
    if cut:
        line = line.rstrip("." + CUT)
        line = line[: line.rindex(" ")] if " " in line else line
    shape = _VALUE.sub(_named if _ABOUT_NAMES.search(line, 0, 60) else _valued, line)
    if cut:
        shape = _OPEN_QUOTE.sub("", shape)
    shape = " ".join(_LIST.sub("#", shape).split())
    return shape + CUT if cut else shape


def _valued(match: re.Match[str]) -> str:
    return "''" if match[0][0] in "'\"‘" else "#"


def _named(match: re.Match[str]) -> str:
    return match[0] if _QUOTED_NAME.match(match[0]) else _valued(match)


def alike(one: str, other: str) -> bool:
    """Whether two messages say the same, as far as both say it: one may be cut, or unknown."""
    if one == other or not one or not other:
        return True
    first, _, origin = one.partition(ORIGIN)
    second, _, source = other.partition(ORIGIN)
    if origin and source and origin != source:
        return False
    if first == second:
        return True
    if first.endswith(CUT):
        return second.startswith(first[:-1])
    return second.endswith(CUT) and first.startswith(second[:-1])
