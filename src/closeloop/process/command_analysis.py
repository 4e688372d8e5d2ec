"""Infers from a command line's text what it checks, writes and waits for."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from closeloop.process import command_effects
from closeloop.process.check_commands import (
    CHECK_TOOLS,
    MAX_DEPTH,
    ShellCommand,
    ShellWords,
    ToolAndTarget,
    is_check_task,
    is_one_word,
    match_inline_assertions,
    quote_words,
    recognise_check,
    shorten_target,
    split_commands,
    unquote_word,
    word_set,
)
from closeloop.process.command_effects import (
    FILE_NAME,
    CommandEffects,
    ProgramEffect,
    git_effect,
    is_poll,
    list_operands,
)
from closeloop.process.edit_recovery import (
    EDITING_PROGRAMS,
    SCRIPT_RUNNERS,
    list_run_scripts,
    recover_edits,
)
from closeloop.records.change import CommandEffect
from closeloop.records.record import Record

# The commands of a line without their wrappers: `sudo`, `uv run`, `bash -lc "…"`.


_MAX_WRAPPERS = 8
"""Maximum nesting of wrappers."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_VERSIONED_PROGRAM = re.compile(
    r"(python|pypy|pip|node|ruby|php|lua|gcc|g\+\+|clang|clang\+\+)[\d.-]+"
)
_WINDOWS_ENDING = re.compile(r"\.(?:exe|cmd|bat)$", re.I)
_WINDOWS_PROGRAM = re.compile(r"\.(?:exe|bat|cmd|ps1)", re.I)
_SPACE = re.compile(r"(\s+)")
_WINDOWS_PATH = re.compile(r"\\[\w.-]+\.(?:exe|bat|cmd|ps1)[\"']?$", re.I)
_MAX_LINE_CHARS = 4000
_SHELLS = word_set("bash sh zsh dash ksh fish su")
# Agents also record the words of `["bash", "-lc", "cd x && …"]` joined by spaces.
_JOINED_SHELL = re.compile(r"""\s*(?:\S*/)?(?:bash|sh|zsh)\s+-[a-z]*c\s+(?=[^\s'"$])""")

_QUOTED_SHELL = re.compile(r"""\s*(?:\S*/)?(?:bash|sh|zsh)\s+-[a-z]*c\s+(?=['"])""")


class WrapperProgram(Record):
    """A program that runs another one."""

    subs: frozenset[str] = frozenset()
    """Its first words that do so; empty if it always does."""
    values: frozenset[str] = frozenset()
    """Options followed by a value."""
    names: int = 0
    """Its own words before the other program: a duration, a container."""
    tasks: bool = False
    """Whether it may also run a task of the project."""
    modules: bool = False
    """Whether it runs what Python runs, including `-m`."""


_WRAPPER_TABLE = """
sudo doas: -u -g -h -p -C -D
time: -f -o
nice: -n
ionice: -c -n -p
nohup setsid exec builtin unbuffer chronic command bunx
rtk c8 nyc cross-env corepack arch firejail unshare
strace ltrace: -e -o -p -s
taskset: -c -p
env: -u -C -S --unset --chdir
stdbuf: -o -e -i
xvfb-run: -s -n -e -f -w --server-args --server-num
xargs: -n -P -I -d -L -s -a -E --max-procs --max-args
timeout gtimeout 1: -s -k --signal --kill-after
caffeinate: -t -w
npx: -p --package
uvx: --from --with --python -p
dotenv: -f -e -c -p
dotenvx op doppler infisical rbenv asdf pyenv volta jenv [run exec]: -f -c -p
mise [exec x]: -C
nvm direnv 1 [exec run]:
nix [develop shell]:
poetry pipenv uv pipx modules [run]: --with --python -p --extra --group --directory --project -C --env-file --package --no-group --only-group
hatch pdm rye pixi tasks [run]: -e --env -p --environment
fnm [exec]: --using
conda mamba micromamba [run]: -n -p --name --prefix --cwd
bundle [exec]:
npm [exec x]: -p --package -w
pnpm tasks [exec dlx]: --filter -F -C --dir
yarn tasks [exec dlx]: --cwd
bun [x]:
docker podman 1 [exec run]: -u -w -e -v -p --user --workdir --env --env-file --volume --name --entrypoint --network --platform --mount -m --cpus --memory
docker-compose podman-compose 1 [exec run]: -u -w -e -v -p -f --user --workdir --env --file --profile --project-name
kubectl 1 [exec]: -n -c --namespace --container --context
coverage modules [run]: --source --omit --include --rcfile --data-file
"""  # noqa: E501


def _build_wrappers() -> Iterator[tuple[str, WrapperProgram]]:
    for line in _WRAPPER_TABLE.strip().splitlines():
        program_column, _, values = line.partition(":")
        names, _, subs = program_column.partition("[")
        words = names.split()
        wrapper = WrapperProgram(
            subs=frozenset(subs.rstrip("]").split()),
            values=frozenset(values.split()),
            names=int("1" in words),
            tasks="tasks" in words,
            modules="modules" in words,
        )
        yield from ((word, wrapper) for word in words if word not in ("1", "tasks", "modules"))


WRAPPERS: Mapping[str, WrapperProgram] = dict(_build_wrappers())
_REST_RUNNERS = {"eval": "", "powershell": "-c", "pwsh": "-c", "cmd": "/c"}
"""Programs that run the rest of their words, from this option on."""
_INTERPRETERS = {"php", "node", "ruby"}
_OTHER_WRAPPERS = {"python", "py", "nix-shell", "ssh", *_INTERPRETERS}
_WRAPPING_PROGRAMS = frozenset(WRAPPERS) | _SHELLS | frozenset(_REST_RUNNERS) | _OTHER_WRAPPERS
_LEADING_WORDS = {"dotenv": ("run",), "rtk": ("test", "lint", "err")}
"""Words that may precede the program that they run."""
_SSH_VALUES = word_set("-i -p -o -l -F -J -L -R -D -E -c -m -b -S -W -w")


@lru_cache(maxsize=4096)
def program_name(word: str) -> str:
    """Return a program's name without folder, version and extension."""
    name = word.rpartition("/")[2] or word
    if "\\" in name:
        name = name.rpartition("\\")[2]
    if "." in name:
        name = _WINDOWS_ENDING.sub("", name)
    if (match := _VERSIONED_PROGRAM.fullmatch(name)) is not None:
        name = match[1]
    if "@" in name[1:]:
        name = name[0] + name[1:].partition("@")[0]
    return "python" if name == "pypy" else name


def unwrap_commands(text: str, depth: int = 0) -> list[ShellCommand]:
    """Return the commands of a line, each beginning with the program that does the work."""
    if text[:2] == '["':
        try:
            words = msgspec.json.decode(text[:1_000_000], type=list[str])
            return _unwrap_command(ShellCommand(words=words), depth) if words else []
        except (ValueError, RecursionError):
            pass
    if "\\" in text and len(text) < _MAX_LINE_CHARS and _WINDOWS_PROGRAM.search(text):
        text = "".join(map(_slash_path, _SPACE.split(text)))
    if (
        "sh" in text
        and depth < MAX_DEPTH
        and (joined_shell := _JOINED_SHELL.match(text)) is not None
    ):
        return unwrap_commands(text[joined_shell.end() :], depth + 1)
    if "<<" in text and depth < MAX_DEPTH and (quoted_shell := _QUOTED_SHELL.match(text)):
        # A heredoc within the quotes is the inner shell's.
        word = text[quoted_shell.end() :].strip()
        if is_one_word(word):
            return unwrap_commands(unquote_word(word), depth + 1)
    parts = []
    for part in split_commands(text):
        first = part.words[0]
        if "=" in first or program_name(first) in _WRAPPING_PROGRAMS:
            parts += _unwrap_command(part, depth)
        else:
            parts.append(part)
    return parts


def _slash_path(word: str) -> str:
    r"""Convert a Windows program, `.\venv\Scripts\pytest.exe`, to a path with slashes."""
    return word.replace("\\", "/") if _WINDOWS_PATH.search(word) else word


def _unwrap_command(part: ShellCommand, depth: int) -> list[ShellCommand]:
    words = part.words
    for _ in range(_MAX_WRAPPERS):
        first = 0
        while first < len(words) and _ASSIGNMENT.match(words[first]):
            first += 1
        words = words[first:] or [":"]
        name = program_name(words[0])
        if name not in _WRAPPING_PROGRAMS:
            break
        script = _shell_script(name, words, part.body) if depth < MAX_DEPTH else None
        if script is not None:
            return _splice_commands(unwrap_commands(script, depth + 1), part)
        if name in ("python", "py"):
            inner_words = _module_words(words)
        elif name in _INTERPRETERS:
            inner_words = _interpreted_tool(words)
        else:
            inner_words = _inner_words(name, words)
        if inner_words is None:
            break
        words = inner_words
    return [part if words is part.words else replace(part, words=words)]


def _splice_commands(inner: list[ShellCommand], part: ShellCommand) -> list[ShellCommand]:
    """Replace the wrapped part by its inner commands."""
    if not inner:
        return [replace(part, words=[":"])]
    last = inner[-1]
    inner[-1] = replace(last, end=part.end, out=last.out + part.out)
    return [replace(command, loose=True) for command in inner] if part.loose else inner


def _shell_script(name: str, words: ShellWords, body: str | None) -> str | None:
    """Return the line that a shell is given to run."""
    if name in _REST_RUNNERS:
        return _joined_script(words, _REST_RUNNERS[name])
    if name == "ssh":
        return _remote_script(words)
    if name == "nix-shell":
        return words[words.index("--run") + 1] if "--run" in words[:-1] else None
    if name not in _SHELLS:
        return None
    arguments = iter(words[1:])
    for word in arguments:
        if word[:1] != "-":
            if name != "su":
                return None
        elif word[-1] == "o":
            next(arguments, None)
        elif "c" in word and word[1] != "-":
            return next(arguments, None)
    return body


def _remote_script(words: ShellWords) -> str | None:
    """Return what runs on the other machine: all words after its name."""
    i = 1
    while i < len(words) and words[i][:1] == "-":
        i += 2 if words[i] in _SSH_VALUES else 1
    return " ".join(words[i + 1 :]) or None


def _joined_script(words: ShellWords, option: str) -> str | None:
    for i, word in enumerate(words if option else ()):
        if word.lower() in (option, "-command"):
            return " ".join(words[i + 1 :])
    return None if option else " ".join(words[1:])


def _module_words(words: ShellWords) -> ShellWords | None:
    """Return what `python -m` runs; a module inside a package is identified by its file."""
    i = 1
    while i < len(words) - 1 and words[i][:1] == "-":
        if words[i] == "-m":
            module = words[i + 1]
            return None if "." in module or module == "test" else words[i + 1 :]
        if words[i] == "-c":
            return None
        i += 2 if words[i] in ("-X", "-W") else 1
    return None


def _interpreted_tool(words: ShellWords) -> ShellWords | None:
    """Return the words from a known tool on that an interpreter runs: `php vendor/bin/phpunit`."""
    for i, word in enumerate(words[1:], 1):
        if word in ("-e", "-r", "-p", "--eval"):
            return None
        if word[:1] != "-" and "=" not in word:
            return words[i:] if program_name(word) in CHECK_TOOLS else None
    return None


def _inner_words(name: str, words: ShellWords) -> ShellWords | None:
    """Return the words from the inner program on; None if there is none."""
    wrapper = WRAPPERS.get(name)
    if words[1:2] == ["compose"]:
        return ["docker-compose", *words[2:]]
    if name == "uv" and words[1:2] == ["pip"]:
        return words[1:]
    if words[1:3] == ["tool", "run"]:
        return ["uvx", *words[3:]]
    if wrapper is None or (name == "command" and words[1:2] in (["-v"], ["-V"])):
        return None
    i = 1
    if wrapper.subs:
        i = _skip_options(words, i, wrapper)
        sub = words[i] if i < len(words) else ""
        if sub not in wrapper.subs:
            return words[i:] if wrapper.tasks and sub in CHECK_TOOLS else None
        i += 1
    for _ in range(wrapper.names + 1):
        i = _skip_options(words, i, wrapper) + 1
    inner_words = words[i - 1 :]
    if inner_words[:1] and inner_words[0] in _LEADING_WORDS.get(name, ()):
        inner_words = inner_words[_skip_options(inner_words, 1, wrapper) :]
    if not inner_words or (
        wrapper.tasks and is_check_task(inner_words[0]) and inner_words[0] not in CHECK_TOOLS
    ):
        return None
    return ["python", *inner_words] if name == "coverage" or inner_words[0] == "-m" else inner_words


def _skip_options(words: ShellWords, i: int, wrapper: WrapperProgram) -> int:
    """Return the position of the next word that is neither an option nor an assignment."""
    while i < len(words) and (words[i][:1] == "-" or _ASSIGNMENT.match(words[i])):
        if words[i] == "-m" and wrapper.modules:
            break
        i += 2 if words[i] in wrapper.values else 1
    return i


# Effects of a command line, by its text alone: what it checks, writes and waits for.
#
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
    """Return the effect of a program that changes something with one of these subcommands."""
    subcommands = word_set(names)

    def effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
        operands = list_operands(words, _PACKAGE_VALUES)
        if operands and operands[0] in subcommands and "--dry-run" not in words:
            effects.record_unnamed_change()

    return effect


def package_script_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    names = list_operands(words, _PACKAGE_VALUES)
    if names[:1] in (["run"], ["run-script"]):
        names = names[1:]
    elif not names and words[0].endswith("yarn") and len(words) == 1:
        effects.record_unnamed_change()
    elif names and names[0] in _PACKAGE_COMMANDS:
        effects.record_unnamed_change()
        return
    if names and _FIXING_TASK.search(names[0]):
        effects.record_unnamed_change()


def task_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    if any(_FIXING_TASK.search(name) or name == "install" for name in list_operands(words)):
        effects.record_unnamed_change()


def formatter_effect(*needed: str) -> ProgramEffect:
    """Return the effect of a formatter, which writes files.

    It needs one of these options; without any, it writes unless an option says to check only.
    """
    write_options = frozenset(needed)

    def effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
        writes = (
            not write_options.isdisjoint(words)
            if write_options
            else _CHECK_ONLY_OPTIONS.isdisjoint(words)
        )
        if writes and "--version" not in words:
            effects.record_writes(name for name in list_operands(words) if FILE_NAME.search(name))
            effects.record_unnamed_change()

    return effect


def ruff_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    if "format" in words[1:2]:
        formatter_effect()(words, part, effects)
    elif "--diff" not in words:
        formatter_effect("--fix", "--fix-only", "--unsafe-fixes")(words, part, effects)


def go_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    operands = list_operands(words, _PACKAGE_VALUES)
    if operands and (
        operands[0] in _GO_COMMANDS
        or (operands[0] == "mod" and operands[1:2] in (["tidy"], ["init"], ["edit"]))
    ):
        effects.record_unnamed_change()


def cargo_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    sub = next((word for word in words[1:] if word[:1] not in "-+"), "")
    if sub in _CARGO_COMMANDS or ("--fix" in words or (sub == "fmt" and "--check" not in words)):
        effects.record_unnamed_change()


# What each program does to the workspace.


def _find_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    if "-delete" in words:
        effects.record_unnamed_change()
    for i, word in enumerate(words):
        if word in ("-exec", "-execdir", "-x") and i + 1 < len(words):
            name = posixpath.basename(words[i + 1])
            if name in PROGRAM_EFFECTS and name != "find":
                end = words.index(";", i) if ";" in words[i:] else len(words)
                PROGRAM_EFFECTS[name](words[i + 1 : end], part, effects)
            return


def _cd_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    if len(words) > 1:
        effects.enter_folder(words[1])


def _mktemp_effect(_words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    effects.temporary = True


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
        "rm mv touch truncate rmdir unlink shred tee zip mkfifo sponge": (
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
        "venv virtualenv ensurepip": lambda words, part, effects: effects.record_unnamed_change(),
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
        "yq": command_effects.in_place_effect,
        "Set-Content Add-Content Out-File": command_effects.set_content_effect,
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


def analyse_command(command: str, project_checks: tuple[str, ...] = ()) -> CommandEffect:
    """Analyse a line. `project_checks` are the project's own check commands."""
    # Long lines rarely repeat, and would fill the cache.
    return (
        _analyse_line(command, project_checks)
        if len(command) > _LONG
        else _analyse_cached_line(command, project_checks)
    )


def _analyse_line(command: str, project_checks: tuple[str, ...]) -> CommandEffect:
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
        check = (
            recognise_check(name, part.words)
            or match_inline_assertions(name, part)
            or (_match_own_check(part.words, project_checks) if project_checks else None)
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
            edits = recover_edits(parts, i, name)
            effects.record_edits(edits)
            effects.record_writes(edit.path for edit in edits)
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


def _match_own_check(words: list[str], project_checks: tuple[str, ...]) -> ToolAndTarget | None:
    for prefix in _own_check_prefixes(project_checks):
        if words[: len(prefix)] == list(prefix):
            operands = [word for word in words[len(prefix) :] if word[:1] != "-"]
            return program_name(words[0]), quote_words([*prefix, *operands])
    return None


@lru_cache(maxsize=64)
def _own_check_prefixes(project_checks: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the prefixes of the project's own checks, longest first, without known checks."""
    prefixes = {
        tuple(part.words)
        for line in project_checks
        for part in unwrap_commands(line)
        if (name := program_name(part.words[0])) not in _NEVER_CHECKS
        and recognise_check(name, part.words) is None
    }
    return tuple(sorted(prefixes, key=lambda prefix: (-len(prefix), prefix)))


def _is_search(parts: Sequence[ShellCommand]) -> bool:
    """Whether the program that decides the exit code is a search."""
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
    """Whether exit code 0 of the line does not mean that all its checks passed."""
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
