"""What a command line does, told from its text alone: what it checks, writes and waits for."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache

from closeloop.process.shell import command_effects
from closeloop.process.shell.check_commands import (
    ToolAndTarget,
    quote_words,
    recognise_check,
    shorten_target,
)
from closeloop.process.shell.command_effects import (
    FILE_NAME,
    CommandEffects,
    ProgramEffect,
    is_poll,
    list_operands,
)
from closeloop.process.shell.command_splitting import ShellCommand, ShellWords, word_set
from closeloop.process.shell.command_wrappers import program_name, unwrap_commands
from closeloop.process.shell.edit_recovery import (
    EDITING_PROGRAMS,
    SCRIPT_RUNNERS,
    list_run_scripts,
    recover_edits,
)
from closeloop.process.shell.git_effects import git_effect
from closeloop.records.inspection import (
    CommandEffect,
)

# Package managers, task runners and formatters: what they change.

_PACKAGE_VALUES = word_set("-C --prefix --cwd --filter -F -w --workspace --directory --dir")
_PACKAGE_COMMANDS = word_set(
    "i install ci add uninstall remove rm un update up upgrade link unlink dedupe init create dlx "
    "import patch version"
)
_FIXING_TASK = re.compile(
    r"(?:^|[:_-])(?:fix|format|fmt|prettier|codegen|generate|gen|migrate|clean)(?:$|[:_-](?!check))"
)
_GO_COMMANDS = word_set("get install generate fmt fix")
_CARGO_COMMANDS = word_set("add remove install update new init fix")
_CHECK_ONLY_OPTIONS = word_set("--check --diff --check-only -c --list-different -d -l --dry-run -n")


def subcommand_effect(names: str) -> ProgramEffect:
    """It changes the workspace or the environment if its first word is one of these."""
    wanted = word_set(names)

    def effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
        named = list_operands(words, _PACKAGE_VALUES)
        if named and named[0] in wanted and "--dry-run" not in words:
            sheet.record_unnamed_change()

    return effect


def package_script_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    names = list_operands(words, _PACKAGE_VALUES)
    if names[:1] in (["run"], ["run-script"]):
        names = names[1:]
    elif not names and words[0].endswith("yarn") and len(words) == 1:
        sheet.record_unnamed_change()
    elif names and names[0] in _PACKAGE_COMMANDS:
        sheet.record_unnamed_change()
        return
    if names and _FIXING_TASK.search(names[0]):
        sheet.record_unnamed_change()


def task_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    if any(_FIXING_TASK.search(name) or name == "install" for name in list_operands(words)):
        sheet.record_unnamed_change()


def formatter_effect(*needed: str) -> ProgramEffect:
    """A formatter or fixer: it writes if told to, or unless told only to check."""
    wanted = frozenset(needed)

    def effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
        told = not wanted.isdisjoint(words) if wanted else _CHECK_ONLY_OPTIONS.isdisjoint(words)
        if told and "--version" not in words:
            sheet.record_writes(name for name in list_operands(words) if FILE_NAME.search(name))
            sheet.record_unnamed_change()

    return effect


def ruff_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    if "format" in words[1:2]:
        formatter_effect()(words, part, sheet)
    elif "--diff" not in words:
        formatter_effect("--fix", "--fix-only", "--unsafe-fixes")(words, part, sheet)


def go_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    named = list_operands(words, _PACKAGE_VALUES)
    if named and (
        named[0] in _GO_COMMANDS
        or (named[0] == "mod" and named[1:2] in (["tidy"], ["init"], ["edit"]))
    ):
        sheet.record_unnamed_change()


def cargo_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    sub = next((word for word in words[1:] if word[:1] not in "-+"), "")
    if sub in _CARGO_COMMANDS or ("--fix" in words or (sub == "fmt" and "--check" not in words)):
        sheet.record_unnamed_change()


# What each program does to the workspace.


def _find_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    if "-delete" in words:
        sheet.record_unnamed_change()
    for i, word in enumerate(words):
        if word in ("-exec", "-execdir", "-x") and i + 1 < len(words):
            name = posixpath.basename(words[i + 1])
            if name in PROGRAM_EFFECTS and name != "find":
                end = words.index(";", i) if ";" in words[i:] else len(words)
                PROGRAM_EFFECTS[name](words[i + 1 : end], part, sheet)
            return


def _cd_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    if len(words) > 1:
        sheet.enter_folder(words[1])


def _mktemp_effect(_words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    sheet.temporary = True


def _build_effect_table(rows: Mapping[str, ProgramEffect]) -> dict[str, ProgramEffect]:
    return {name: effect for names, effect in rows.items() for name in names.split()}


PROGRAM_EFFECTS: Mapping[str, ProgramEffect] = _build_effect_table(
    {
        "cat less more zcat tac": command_effects.show_effect,
        "head nl bat batcat strings xxd od hexdump": command_effects.show_part_effect,
        "tail": command_effects.tail_effect,
        "grep egrep fgrep rg ag ack zgrep": command_effects.grep_effect,
        "diff cmp colordiff Get-Content gc": command_effects.show_effect,
        "sed gsed": command_effects.sed_effect,
        "awk gawk mawk": command_effects.awk_effect,
        "perl": command_effects.perl_effect,
        "rm mv touch mkdir truncate rmdir unlink shred tee zip mkfifo": (
            command_effects.write_all_effect
        ),
        "cp ln install rsync": command_effects.write_last_effect,
        "chmod chown": command_effects.change_mode_effect,
        "patch apply_patch applypatch": command_effects.patch_effect,
        "git": git_effect,
        "pip pipx conda mamba gem apt apt-get apk yum dnf brew pacman choco": (
            subcommand_effect("install uninstall remove add upgrade create del")
        ),
        "uv poetry pdm rye pipenv hatch": subcommand_effect(
            "add remove sync lock install uninstall update init new venv fmt"
        ),
        "bundle": subcommand_effect("install update add"),
        "composer": subcommand_effect("install require update remove"),
        "go": go_effect,
        "dotnet": subcommand_effect("add new restore remove"),
        "mix": subcommand_effect("deps.get deps.update format new"),
        "dart flutter": subcommand_effect("pub create format"),
        "django-admin": subcommand_effect("startproject startapp"),
        "npm pnpm yarn bun": package_script_effect,
        "make gmake just task invoke inv rake mise": task_effect,
        "venv virtualenv ensurepip": lambda words, part, sheet: sheet.record_unnamed_change(),
        "7z 7za unrar": subcommand_effect("x e a"),
        "black isort rustfmt pyupgrade docformatter": formatter_effect(),
        "autopep8 autoflake yapf clang-format": formatter_effect("-i", "--in-place"),
        "gofmt goimports gofumpt shfmt": formatter_effect("-w"),
        "prettier": formatter_effect("--write", "-w"),
        "eslint stylelint standard xo oxlint": formatter_effect("--fix"),
        "biome": formatter_effect("--write", "--apply", "--fix"),
        "rubocop": formatter_effect("-a", "-A", "--auto-correct", "--autocorrect"),
        "terraform tofu": subcommand_effect("fmt init apply"),
        "ruff": ruff_effect,
        "cargo": cargo_effect,
        "python node nodejs ruby deno": command_effects.code_effect,
        "tar": command_effects.tar_effect,
        "unzip gunzip gzip bunzip2": command_effects.unpack_effect,
        "curl wget": command_effects.curl_effect,
        "dd": command_effects.dd_effect,
        "find fd fdfind": _find_effect,
        "cd pushd": _cd_effect,
        "mktemp": _mktemp_effect,
        "sleep Start-Sleep wait watch inotifywait ps pgrep pidof jobs top htop": (
            command_effects.wait_effect
        ),
        "uptime squeue sacct nvidia-smi lsof ss netstat": command_effects.wait_effect,
        "docker podman docker-compose podman-compose": command_effects.waiting_subcommand_effect(
            "ps", "logs", "inspect", "stats", "container ls", "wait", "top"
        ),
        "kubectl": command_effects.waiting_subcommand_effect(
            "get", "describe", "logs", "rollout status", "wait", "top"
        ),
        "gh": command_effects.waiting_subcommand_effect(
            "run watch", "run view", "run list", "pr checks", "pr status"
        ),
        "systemctl": command_effects.waiting_subcommand_effect("status", "is-active", "show"),
        "supervisorctl pm2": command_effects.waiting_subcommand_effect(
            "status", "list", "logs", "ls"
        ),
        "tmux": command_effects.waiting_subcommand_effect("capture-pane"),
        "nc": command_effects.nc_effect,
    }
)


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
    folder = ""
    for i, part in enumerate(parts):
        name = program_name(part.words[0])
        if name != ":":
            programs.append(name)
        check = recognise_check(name, part.words) or (
            _match_own_check(part.words, own) if own else None
        )
        if check is not None:
            folder = effects.directory
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
        if part.out or name in EDITING_PROGRAMS:
            effects.record_edits(recover_edits(parts, i, name))
        if name in SCRIPT_RUNNERS or part.words[0][:2] == "./":
            effects.runs += list_run_scripts(part, name)
    return CommandEffect(
        programs=tuple(programs),
        checks=_unique_names(targets.values()) if checks else (),
        target=" && ".join(targets),
        writes=effects.writes,
        written=_unique_names(effects.written) if effects.written else (),
        read=_unique_names(effects.read) if effects.read else (),
        restored=tuple(effects.restored),
        edits=tuple(effects.edits),
        runs=tuple(effects.runs),
        searches=not checks and _is_search(parts),
        waits=effects.waits and not checks and not effects.writes,
        masked=bool(checks) and _hides_exit_code(parts, checks, command),
        folder=folder if checks else effects.directory,
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
