"""Split a shell line into the commands it is made of. Any text is a line; none is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from closeloop.records.record import Record

ShellWords = list[str]

MAX_LINE_CHARS = 20_000
"""Characters that are looked at, once the bodies of heredocs are cut out."""
MAX_DEPTH = 3
"""How far `$(… $(…))` and `bash -c "bash -c …"` are followed."""
_MAX_OPEN_HEREDOCS = 8
"""Heredocs without an end after which no more are looked for: each costs a look at all the text."""

# Every piece matches to its end or to the end of the text, without a way back: linear time.
_SINGLE_QUOTED = r"'[^']*+'?+"
_ESCAPED = r"\\[\s\S]?+"
_INNER = rf"""(?:[^()'"\\]++|{_SINGLE_QUOTED}|"(?:[^"\\]++|{_ESCAPED})*"?+|{_ESCAPED})"""
_DEEPER = rf"(?:{_INNER}|\((?:{_INNER}|\({_INNER}*+\)?)*\)?)*"
_SUBSTITUTED = rf"\$\({_DEEPER}\)?|`[^`]*+`?+"
_DOUBLE_QUOTED = rf"""\$?+"(?:[^"\\$`]++|{_ESCAPED}|{_SUBSTITUTED}|\$)*"?+"""
_VARIABLE = r"\$\{[^}]*+\}?+|\$"
_PLAIN_WORD = r"""[^\s'"\\;|&<>()`$]++"""
_SHELL_WORD = (
    rf"""(?:{_PLAIN_WORD}(?!['"\\`$])"""
    rf"|(?:{_PLAIN_WORD}|{_DOUBLE_QUOTED}|{_SINGLE_QUOTED}|{_ESCAPED}|{_SUBSTITUTED}|{_VARIABLE})+)"
)
_WHOLE_WORD = re.compile(_SHELL_WORD)
_SHELL_TOKEN = re.compile(
    # What has no word to tell begins with one of few signs, and most words do not.
    r"[^\S\n]*+(?:(?=[#\d<>&])"
    r"(?:#[^\n]*+|\d*+[<>]&(?:\d++|-)|(?:\d*+|&)>>?+[^\S\n]*+/dev/null(?![\w/]))"
    r"|(?:\d++(?=[<>]))?"
    rf"({_SHELL_WORD}|&&|\|[|&]?+|;;?+|&>>?+|&|<<<|<<-?+|<[>&]?+|>[>|&]?+|[()\n]))"
)
_QUOTED_PART = re.compile(
    rf"""'([^']*+)'?+|\$?+"((?:[^"\\]++|{_ESCAPED})*)"?+|\\([\s\S]?+)|([^'"\\$]++|\$)"""
)
_IN_DOUBLE = re.compile(r'\\([$`"\\])')
_SUBSTITUTION = re.compile(rf"\$\(({_DEEPER})\)?|`([^`]*+)`?+")
_HEREDOC = re.compile(r"""(?<!<)<<-?[ \t]*+(?:'([^'\n]+)'|"([^"\n]+)"|\\?([\w.-]+))""")
_COMMAND_ENDS = {
    "&&": "&&", "||": "||", "|": "|", "|&": "|", ";": ";", ";;": ";", "\n": ";", "&": "&",
    "(": "(", ")": ")",
}  # fmt: skip
_OUTPUT_OPERATORS = frozenset((">", ">>", ">|", "&>", "&>>", ">&", "<>"))
_OPERATORS = frozenset(_COMMAND_ENDS) | _OUTPUT_OPERATORS | {"<", "<<", "<<-", "<<<", "<&"}
# What may stand before a command, and whether the command's exit code is then still the line's.
_KEYWORDS = {
    "{": True, "}": True, "then": True, "else": True, "fi": True, "done": True, "esac": True,
    "do": False, "!": False, "if": False, "elif": False, "while": False, "until": False,
}  # fmt: skip
_SIMPLE_LINE = re.compile(r"[\w ./:=,@%+~^-]++")


def word_set(words: str) -> frozenset[str]:
    """Many words, written as one."""
    return frozenset(words.split())


class ShellCommand(Record):
    """One program and its words, quotes gone."""

    words: ShellWords
    end: str = ""
    """How it is joined to the next one: `&&`, `||`, `|`, `;`, `&`, or nothing at the end."""
    out: tuple[str, ...] = ()
    """Files that its output goes to."""
    appended: tuple[str, ...] = ()
    """Those among them that keep what they held."""
    given: tuple[str, ...] = ()
    """Files that it is fed."""
    body: str | None = None
    """The heredoc or here-string that it is fed."""
    loose: bool = False
    """Its exit code is not handed on: in `$(…)`, in a loop, in a condition."""


def split_commands(text: str, depth: int = 0) -> list[ShellCommand]:
    """The commands of a line, in order; those within `$(…)` before the one that uses them."""
    words = text[:MAX_LINE_CHARS].split() if _SIMPLE_LINE.fullmatch(text) else []
    if words and words[0] not in _KEYWORDS:
        return [ShellCommand(words=words)]
    text, bodies = _cut_heredocs(text) if "<<" in text else (text, [])
    text = text[:MAX_LINE_CHARS].replace("\\\n", " ").rstrip()
    nested = depth < MAX_DEPTH and _has_substitution(text)
    quoted = _has_quotes(text)
    tokens = iter(_SHELL_TOKEN.findall(text))
    commands: list[ShellCommand] = []
    words = []
    redirects: dict[str, Any] = {}
    for token in tokens:
        if token not in _OPERATORS:
            if nested and _has_substitution(token):
                commands.extend(_split_substitutions(token, depth))
            if token:
                words.append(unquote_word(token) if quoted else token)
            continue
        end = _COMMAND_ENDS.get(token)
        if end is None:
            target = next(tokens, "")
            end = _COMMAND_ENDS.get(target)
            if end is None:
                _apply_redirect(token, unquote_word(target), redirects, bodies)
                continue
        _close_command(commands, words, end, redirects)
        words, redirects = [], {}
    _close_command(commands, words, "", redirects)
    if commands and commands[-1].end not in ("", "&"):
        commands[-1] = replace(commands[-1], end="")
    return commands


def _apply_redirect(
    sign: str, name: str, fed: dict[str, Any], bodies: list[tuple[str, str]]
) -> None:
    if sign in _OUTPUT_OPERATORS:
        fed["out"] = (*fed.get("out", ()), name)
        if sign in (">>", "&>>"):
            fed["appended"] = (*fed.get("appended", ()), name)
    elif sign == "<":
        fed["given"] = (*fed.get("given", ()), name)
    elif sign == "<<<":
        fed["body"] = name
    elif bodies and bodies[0][0] == name:
        fed["body"] = bodies.pop(0)[1]


def _has_substitution(text: str) -> bool:
    return ("$(" in text or "`" in text) and text[0] != "'"


def _has_quotes(text: str) -> bool:
    return "'" in text or '"' in text or "\\" in text


def _split_substitutions(token: str, depth: int) -> Iterator[ShellCommand]:
    for plain, ticked in _SUBSTITUTION.findall(token):
        if plain[:1] == "(":
            continue  # a sum
        for part in split_commands(plain or ticked, depth + 1):
            yield replace(part, end=part.end or ";", loose=True)


def _close_command(
    found: list[ShellCommand], words: list[str], end: str, fed: dict[str, Any]
) -> None:
    loose = False
    while words and words[0] in _KEYWORDS:
        loose = not _KEYWORDS[words.pop(0)] or loose
    if words or fed:
        end = ";" if end in ("(", ")") else end
        found.append(ShellCommand(words=words or [":"], end=end, loose=loose, **fed))
    elif end in ("&&", "||", "|", "&") and found:
        # `(…) | tail`, `done | tail`: what joins the group joins its last command.
        found[-1] = replace(found[-1], end=end)


def is_one_word(text: str) -> bool:
    """Whether a text is a single word of the shell, quotes and all."""
    return _WHOLE_WORD.fullmatch(text) is not None


def unquote_word(token: str) -> str:
    """A word as its program gets it; variables stay as they are written."""
    if not _has_quotes(token):
        return token
    first, last = token[0], len(token) - 1
    if first == "'" and token.find("'", 1) == last:
        return token[1:-1]
    if first == '"' and token.find('"', 1) == last and "\\" not in token:
        return token[1:-1]
    parts = []
    for single, double, escaped, plain in _QUOTED_PART.findall(token):
        inner = _IN_DOUBLE.sub(_unescape_match, double) if "\\" in double else double
        parts.append(single or inner or escaped or plain)
    return "".join(parts)


def _unescape_match(sign: re.Match[str]) -> str:
    return sign[1]


def _cut_heredocs(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The text without what heredocs hold, and what they hold, with their tags."""
    kept_texts: list[str] = []
    bodies: list[tuple[str, str]] = []
    position = looked = misses = 0
    while misses < _MAX_OPEN_HEREDOCS and (heredoc := _HEREDOC.search(text, looked)):
        line = text.find("\n", heredoc.end())
        after = line
        while heredoc is not None and line >= 0:
            tag = heredoc[1] or heredoc[2] or heredoc[3]
            end = _heredoc_end(text, tag, after)
            if end < 0 and not (heredoc[1] or heredoc[2] or tag.isupper()):
                break  # no heredoc but a shift: `1 << n`
            end = len(text) if end < 0 else end
            bodies.append((tag, text[after + 1 : end]))
            after = min(end + 1 + len(tag), len(text))
            looked = heredoc.end()
            heredoc = _HEREDOC.search(text, looked, line)
        if after == line:
            looked, misses = max(looked, heredoc.end() if heredoc else 0), misses + 1
        else:
            kept_texts.append(text[position : line + 1])
            position = looked = after
    kept_texts.append(text[position:])
    return "".join(kept_texts), bodies


def _heredoc_end(text: str, tag: str, start: int) -> int:
    """Where a heredoc's body ends, looked for from the line feed before it; -1 for nowhere."""
    line = "\n" + tag
    while (start := text.find(line, start)) >= 0:
        after = start + len(line)
        if after == len(text) or not (text[after].isalnum() or text[after] in "_.-"):
            break
        start = after
    return start
