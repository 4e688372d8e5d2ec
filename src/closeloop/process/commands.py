"""What a command line does, told from its text alone: what it checks, writes, shows, awaits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import lru_cache

from closeloop.model.steps import Doing
from closeloop.process.shell.checkers import Checked, checked, short, told
from closeloop.process.shell.effects import EFFECTS
from closeloop.process.shell.sheet import Sheet
from closeloop.process.shell.split import Part, wordset
from closeloop.process.shell.waiting import polls
from closeloop.process.shell.wrappers import commands, program

_LONG, _MOST_CHECKS = 4000, 20
_SEARCHES = wordset(
    "grep egrep fgrep zgrep rg ag ack find fd fdfind locate which type command test [ [[ diff cmp "
    "colordiff pgrep findstr Select-String"
)
_FILTERS = wordset("head tail sort uniq wc cut sed awk tr cat less nl more column tac jq")
_QUIET = wordset("echo printf true : exit")
_NO_CHECKS = wordset("cd echo export set source . : true mkdir rm printf")


def doing_of(command: str, own: tuple[str, ...] = ()) -> Doing:
    """What the line does. `own` are the project's own commands that check the work."""
    # Long lines rarely come again, and would fill the memory.
    return _doing(command, own) if len(command) > _LONG else _known_doing(command, own)


def _doing(command: str, own: tuple[str, ...]) -> Doing:
    parts = commands(command)
    sheet = Sheet()
    programs: list[str] = []
    targets: dict[str, str] = {}
    checks: set[int] = set()
    for i, part in enumerate(parts):
        name = program(part.words[0])
        if name != ":":
            programs.append(name)
        found = checked(name, part.words) or (_owned(part.words, own) if own else None)
        if found is not None:
            checks.add(i)
            if len(targets) < _MOST_CHECKS:
                targets[short(found[1])] = found[0]
        elif part.out and part.end != "&":
            sheet.wrote(part.out)
        effect = EFFECTS.get(name)
        if effect is None:
            sheet.waits = sheet.waits or polls(part.words)
        elif not (name == "tee" and checks and parts[i - 1].end == "|"):
            effect(part.words, part, sheet)
    return Doing(
        programs=tuple(programs),
        checks=_once(targets.values()) if checks else (),
        target=" && ".join(targets),
        writes=sheet.writes,
        written=_once(sheet.written) if sheet.written else (),
        read=_once(sheet.read) if sheet.read else (),
        searches=not checks and _searches(parts),
        waits=sheet.waits and not checks and not sheet.writes,
        masked=bool(checks) and _masked(parts, checks, command),
    )


_known_doing = lru_cache(maxsize=1 << 15)(_doing)


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _owned(words: list[str], own: tuple[str, ...]) -> Checked | None:
    for known in _known(own):
        if words[: len(known)] == list(known):
            rest = [word for word in words[len(known) :] if word[:1] != "-"]
            return program(words[0]), told([*known, *rest])
    return None


@lru_cache(maxsize=64)
def _known(own: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """How the project's own checks begin, the longest first; what is a check anyway is left out."""
    known = {
        tuple(part.words)
        for line in own
        for part in commands(line)
        if (name := program(part.words[0])) not in _NO_CHECKS and checked(name, part.words) is None
    }
    return tuple(sorted(known, key=lambda words: (-len(words), words)))


def _searches(parts: Sequence[Part]) -> bool:
    """The program that decides the exit code looks for something."""
    for i in range(len(parts) - 1, -1, -1):
        part = parts[i]
        name = program(part.words[0])
        if name in _SEARCHES:
            return True
        if name == "git":
            return "grep" in part.words[1:3] or "--exit-code" in part.words
        piped = i > 0 and parts[i - 1].end == "|"
        if name not in _QUIET and not (name in _FILTERS and piped):
            return False
    return False


def _masked(parts: Sequence[Part], checks: Set[int], command: str) -> bool:
    """That the line's exit code is 0 does not say that all its checks passed."""
    last = parts[-1].words
    if last[0] == "exit" and last[1:] and last[1][:1] == "$":
        return False
    pipefail = "pipefail" in command
    strict = any(
        part.words[0] == "set" and any(word[:1] == "-" and "e" in word for word in part.words[1:])
        for part in parts
    )
    hidden = parts[-1].end == "&"
    for i in range(len(parts) - 1, -1, -1):
        end = parts[i].end if i + 1 < len(parts) else ""
        if end == "&" or (end == "|" and not pipefail) or (end == ";" and not strict):
            hidden = True
        elif end == "||":
            hidden = program(parts[i + 1].words[0]) not in ("exit", "false", "return")
        if i in checks and (hidden or parts[i].loose):
            return True
    return False
