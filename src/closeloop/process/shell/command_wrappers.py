"""The commands of a line without what only runs them: `sudo`, `uv run`, `bash -lc "…"`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from closeloop.process.shell.check_commands import is_check_task
from closeloop.process.shell.check_tools import CHECK_TOOLS
from closeloop.process.shell.command_splitting import (
    MAX_DEPTH,
    ShellCommand,
    ShellWords,
    is_one_word,
    split_commands,
    unquote_word,
    word_set,
)
from closeloop.records.record import Record

_MAX_WRAPPERS = 8
"""Wrappers around wrappers."""
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
    """Its first words that do so; empty where it always does."""
    values: frozenset[str] = frozenset()
    """Options followed by a value."""
    names: int = 0
    """Words of its own before the other program: a duration, a container."""
    tasks: bool = False
    """What it runs may also be a task of the project."""
    modules: bool = False
    """It runs what Python runs, `-m` among it."""


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
        left, _, values = line.partition(":")
        names, _, subs = left.partition("[")
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
_OTHER_WRAPPERS = {"python", "py", "nix-shell", "ssh"}
_WRAPPING_PROGRAMS = frozenset(WRAPPERS) | _SHELLS | frozenset(_REST_RUNNERS) | _OTHER_WRAPPERS
_LEADING_WORDS = {"dotenv": ("run",), "rtk": ("test", "lint", "err")}
"""What may stand before the program that they run."""
_SSH_VALUES = word_set("-i -p -o -l -F -J -L -R -D -E -c -m -b -S -W -w")


@lru_cache(maxsize=4096)
def program_name(word: str) -> str:
    """A program's name without its folder, version and ending."""
    name = word.rpartition("/")[2] or word
    if "\\" in name:
        name = name.rpartition("\\")[2]
    if "." in name:
        name = _WINDOWS_ENDING.sub("", name)
    if (known := _VERSIONED_PROGRAM.fullmatch(name)) is not None:
        name = known[1]
    if "@" in name[1:]:
        name = name[0] + name[1:].partition("@")[0]
    return "python" if name == "pypy" else name


def unwrap_commands(text: str, depth: int = 0) -> list[ShellCommand]:
    """The commands of a line, each with the program that does the work first."""
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
    """A program of Windows, `.\\venv\\Scripts\\pytest.exe`, as other shells write its path."""
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
        inner_words = (
            _module_words(words) if name in ("python", "py") else _inner_words(name, words)
        )
        if inner_words is None:
            break
        words = inner_words
    return [part if words is part.words else replace(part, words=words)]


def _splice_commands(inner: list[ShellCommand], part: ShellCommand) -> list[ShellCommand]:
    """What stands where the wrapped part stood."""
    if not inner:
        return [replace(part, words=[":"])]
    last = inner[-1]
    inner[-1] = replace(last, end=part.end, out=last.out + part.out)
    return [replace(one, loose=True) for one in inner] if part.loose else inner


def _shell_script(name: str, words: ShellWords, body: str | None) -> str | None:
    """The line that a shell is given to run."""
    if name in _REST_RUNNERS:
        return _joined_script(words, _REST_RUNNERS[name])
    if name == "ssh":
        return _remote_script(words)
    if name == "nix-shell":
        return words[words.index("--run") + 1] if "--run" in words[:-1] else None
    if name not in _SHELLS:
        return None
    rest = iter(words[1:])
    for word in rest:
        if word[:1] != "-":
            if name != "su":
                return None
        elif word[-1] == "o":
            next(rest, None)
        elif "c" in word and word[1] != "-":
            return next(rest, None)
    return body


def _remote_script(words: ShellWords) -> str | None:
    """What runs on the other machine: all words after its name."""
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
    """What `python -m` runs; a module within a package is left to be told apart by its file."""
    i = 1
    while i < len(words) - 1 and words[i][:1] == "-":
        if words[i] == "-m":
            module = words[i + 1]
            return None if "." in module or module == "test" else words[i + 1 :]
        if words[i] == "-c":
            return None
        i += 2 if words[i] in ("-X", "-W") else 1
    return None


def _inner_words(name: str, words: ShellWords) -> ShellWords | None:
    """The words from the inner program on; None where there is none."""
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
    rest = words[i - 1 :]
    if rest[:1] and rest[0] in _LEADING_WORDS.get(name, ()):
        rest = rest[_skip_options(rest, 1, wrapper) :]
    if not rest or (wrapper.tasks and is_check_task(rest[0]) and rest[0] not in CHECK_TOOLS):
        return None
    return ["python", *rest] if name == "coverage" or rest[0] == "-m" else rest


def _skip_options(words: ShellWords, i: int, wrapper: WrapperProgram) -> int:
    """The place of the next word that is neither an option nor an assignment."""
    while i < len(words) and (words[i][:1] == "-" or _ASSIGNMENT.match(words[i])):
        if words[i] == "-m" and wrapper.modules:
            break
        i += 2 if words[i] in wrapper.values else 1
    return i
