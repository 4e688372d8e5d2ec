"""What a command line does, told from its text alone: what it checks, writes, shows, awaits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import lru_cache

from closeloop.process.shell.check_commands import (
    ToolAndTarget,
    quote_words,
    recognise_check,
    shorten_target,
)
from closeloop.process.shell.command_effects import CommandEffects
from closeloop.process.shell.command_splitting import ShellCommand, word_set
from closeloop.process.shell.command_wrappers import program_name, unwrap_commands
from closeloop.process.shell.program_effects import PROGRAM_EFFECTS
from closeloop.process.shell.waiting_programs import is_poll
from closeloop.records.trace_steps import CommandEffect

_LONG, _MOST_CHECKS = 4000, 20
_SEARCH_PROGRAMS = word_set(
    "grep egrep fgrep zgrep rg ag ack find fd fdfind locate which type command test [ [[ diff cmp "
    "colordiff pgrep findstr Select-String"
)
_FILTER_PROGRAMS = word_set("head tail sort uniq wc cut sed awk tr cat less nl more column tac jq")
_QUIET_PROGRAMS = word_set("echo printf true : exit")
_NEVER_CHECKS = word_set("cd echo export set source . : true mkdir rm printf")


def analyse_command(command: str, own: tuple[str, ...] = ()) -> CommandEffect:
    """What the line does. `own` are the project's own commands that check the work."""
    # Long lines rarely come again, and would fill the memory.
    return (
        _analyse_line(command, own) if len(command) > _LONG else _analyse_cached_line(command, own)
    )


def _analyse_line(command: str, own: tuple[str, ...]) -> CommandEffect:
    parts = unwrap_commands(command)
    effects = CommandEffects()
    programs: list[str] = []
    targets: dict[str, str] = {}
    checks: set[int] = set()
    for i, part in enumerate(parts):
        name = program_name(part.words[0])
        if name != ":":
            programs.append(name)
        check = recognise_check(name, part.words) or (
            _match_own_check(part.words, own) if own else None
        )
        if check is not None:
            checks.add(i)
            if len(targets) < _MOST_CHECKS:
                targets[shorten_target(check[1])] = check[0]
        elif part.out and part.end != "&":
            effects.record_writes(part.out)
        effect = PROGRAM_EFFECTS.get(name)
        if effect is None:
            effects.waits = effects.waits or is_poll(part.words)
        elif not (name == "tee" and checks and parts[i - 1].end == "|"):
            effect(part.words, part, effects)
    return CommandEffect(
        programs=tuple(programs),
        checks=_unique_names(targets.values()) if checks else (),
        target=" && ".join(targets),
        writes=effects.writes,
        written=_unique_names(effects.written) if effects.written else (),
        read=_unique_names(effects.read) if effects.read else (),
        searches=not checks and _is_search(parts),
        waits=effects.waits and not checks and not effects.writes,
        masked=bool(checks) and _hides_exit_code(parts, checks, command),
    )


_analyse_cached_line = lru_cache(maxsize=1 << 15)(_analyse_line)


def _unique_names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _match_own_check(words: list[str], own: tuple[str, ...]) -> ToolAndTarget | None:
    for known in _own_check_prefixes(own):
        if words[: len(known)] == list(known):
            rest = [word for word in words[len(known) :] if word[:1] != "-"]
            return program_name(words[0]), quote_words([*known, *rest])
    return None


@lru_cache(maxsize=64)
def _own_check_prefixes(own: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """How the project's own checks begin, the longest first; what is a check anyway is left out."""
    known = {
        tuple(part.words)
        for line in own
        for part in unwrap_commands(line)
        if (name := program_name(part.words[0])) not in _NEVER_CHECKS
        and recognise_check(name, part.words) is None
    }
    return tuple(sorted(known, key=lambda words: (-len(words), words)))


def _is_search(parts: Sequence[ShellCommand]) -> bool:
    """The program that decides the exit code looks for something."""
    for i in range(len(parts) - 1, -1, -1):
        part = parts[i]
        name = program_name(part.words[0])
        if name in _SEARCH_PROGRAMS:
            return True
        if name == "git":
            return "grep" in part.words[1:3] or "--exit-code" in part.words
        piped = i > 0 and parts[i - 1].end == "|"
        if name not in _QUIET_PROGRAMS and not (name in _FILTER_PROGRAMS and piped):
            return False
    return False


def _hides_exit_code(parts: Sequence[ShellCommand], checks: Set[int], command: str) -> bool:
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
            hidden = program_name(parts[i + 1].words[0]) not in ("exit", "false", "return")
        if i in checks and (hidden or parts[i].loose):
            return True
    return False
