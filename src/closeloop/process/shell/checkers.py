"""Whether a command checks the work, and what it checks, whatever flags it is shown with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile

from closeloop.model.record import digest
from closeloop.process.shell.split import Words, wordset
from closeloop.process.shell.tools import TOOLS, Tool

Checked = tuple[str, str]
"""The tool, and the target."""

LONGEST_TARGET = 500
_TASK = re.compile(
    r"(?:^|[:_./-])(?:tests?|lint(?:er|ing)?|build|type-?checks?|types|checks?|compile|verify|ci|"
    r"e2e|unit|specs?|coverage|tsc|mypy|pytest|eslint|jest|vitest|validate|clippy|vet|smoke)"
    r"(?=$|[\d:_./-])"
)
_NO_TASK = re.compile(r"(?:^|[:_.-])(?:watch|dev|serve|start|clean|install)(?:$|[:_.-])")
_GOAL = re.compile(r"test|check|build|compile|verify|lint|assemble|package|install|detekt", re.I)
_TEST_NAME = re.compile(
    r"(?:^|[^a-z])(?:(?:run_?)?tests?|specs?|repro(?:duce|ducer|duction)?|verify|check)(?![a-z])",
    re.I,
)
_TEST_FOLDER = re.compile(r"(?:^|/)(?:tests?|specs?|__tests__)/")
_EDITING_NAME = re.compile(
    r"(?:fix|update|patch|apply|edit|gen(?:erate)?|create|add|write|make|modify|replace|insert|"
    r"convert|remove|rename|copy|setup|conftest)(?![a-z])",
    re.I,
)
_SOURCE = re.compile(r"\.(?:c|cc|cpp|cxx|m|mm|s|rs|java|kt|scala|cu|f90|hs|ml|swift)$", re.I)
_FORMAT_CHECK = re.compile(
    r"--?check(?:-formatted)?$|--verify-no-changes$|--set-exit-if-changed$|--dry-run$"
)
_NO_RUN = wordset(
    "--version --help -h -help help version --collect-only --co --markers --fixtures --listTests "
    "--list-tests --list --showconfig --show-config --print-config --show-settings --init"
)
_PLAIN_WORD = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_RUNNERS = wordset(
    "python node nodejs ruby php bash sh zsh dash ts-node tsx Rscript julia lua deno bun pwsh"
)
_SYNTAX = {
    "node": wordset("--check -c"),
    "php": wordset("-l --syntax-check"),
    "ruby": wordset("-c -wc"),
    "perl": wordset("-c -wc"),
    "bash": wordset("-n"),
    "sh": wordset("-n"),
    "zsh": wordset("-n"),
}
"""Options with which an interpreter only reads its file."""
_RUNNER_VALUES = wordset("-X -W -r --require --loader --import -I -o")
_NO_FILE = wordset("-c -e -p -s -lc --eval --print -")
_SCRIPT_ENDS = (".py", ".sh", ".js", ".mjs", ".cjs", ".ts", ".rb", ".ps1", ".bat")
_DJANGO = Tool(
    name="django",
    keep=frozenset(("-k", "--tag", "--exclude-tag")),
    drop=frozenset(("--settings", "-v", "--verbosity", "--parallel", "--shuffle")),
)
_SETUP = frozenset(("test", "build", "build_ext", "check"))
_SYSTEM = ("/usr/", "/bin/", "/opt/")


def checked(name: str, words: Words) -> Checked | None:
    """What a program with its words checks; None where it is no check."""
    tool = TOOLS.get(name)
    if tool is None:
        return _script(name, words)
    if not _NO_RUN.isdisjoint(words):
        return None
    options, names = _arguments(words[1:], tool)
    found = _KINDS[tool.kind](tool, words, names)
    if found is None:
        return _script(name, words)
    return tool.name, _target(found[0], options, found[1], tool)


def is_task(name: str) -> bool:
    """A project's own name for something that checks: `test:unit`, `lint`, `ci-build`."""
    return _TASK.search(name) is not None and _NO_TASK.search(name) is None


def told(words: Iterable[str]) -> str:
    """Words as a line that reads as the same words."""
    return " ".join([_quoted(word) for word in words])


def short(line: str) -> str:
    """A target; a very long one by its digest, which is as good to compare."""
    if len(line) <= LONGEST_TARGET:
        return line
    return f"{line[:LONGEST_TARGET].split(maxsplit=1)[0]} {digest(line)[:16]}"


def _quoted(word: str) -> str:
    return word if _PLAIN_WORD.fullmatch(word) else shlex.quote(word)


def _target(lead: Words, options: Words, names: Words, tool: Tool) -> str:
    kept = sorted({name for name in names if name not in tool.skip and not name.isdigit()})
    return " ".join([*lead, *sorted(set(options)), *map(_quoted, kept)])


def _arguments(words: Words, tool: Tool) -> tuple[Words, Words]:
    """The options that say what is checked, quoted, and the words that are no options."""
    options: Words = []
    names: Words = []
    i, count = 0, len(words)
    while i < count:
        word = words[i]
        i += 1
        if word[:1] != "-" or word == "-":
            if place := _place(word):
                names.append(place)
            continue
        head, equals, value = word.partition("=")
        if head in tool.keep:
            if not equals and i < count:
                value = words[i]
                i += 1
            options.append(_option(head, value))
        elif head in tool.flags:
            options.append(head)
        elif head in tool.drop:
            if not equals and i < count and words[i][:1] != "-":
                i += 1
        elif head[:2] in tool.keep and head[1] != "-":
            options.append(_option(head[:2], word[2:]))
    return options, names


def _option(head: str, value: str) -> str:
    if head[:2] in ("--", "-D"):
        return _quoted(f"{head}={value}")
    return f"{head} {_quoted(value)}"


def _place(word: str) -> str:
    """`./tests/` is `tests`; `.` is everything, as no word is, and `+nightly` is no place."""
    if word[:2] == "./" and word[2:3] != ".":
        word = word[2:].lstrip("/")
    if word[-1:] == "/" and len(word) > 1:
        word = word.rstrip("/") or "/"
    return "" if word == "." or word[:1] == "+" else word


Found = tuple[Words, Words] | None
"""The words that a target begins with, and those that say what is checked."""


def _plain(tool: Tool, words: Words, names: Words) -> Found:
    if tool.needs and tool.needs.isdisjoint(word.partition("=")[0] for word in words):
        return None
    if tool.subs is None:
        return [tool.name], names
    sub = tool.subs.get(names[0]) if names else None
    if sub is None:
        return None
    if sub not in ("fmt", "format"):
        return [tool.name, sub], names[1:]
    if any(map(_FORMAT_CHECK.match, words)):
        return [tool.name, sub, "--check"], names[1:]
    return None


def _formatter(tool: Tool, words: Words, names: Words) -> Found:
    return None if tool.needs.isdisjoint(words) else ([tool.name, "--check"], names)


def _goals(tool: Tool, _words: Words, names: Words) -> Found:
    names = [name for name in names if name != "clean"]
    return ([tool.name], names) if any(map(_GOAL.search, names)) else None


def _sources(tool: Tool, _words: Words, names: Words) -> Found:
    names = [name for name in names if _SOURCE.search(name)]
    return ([tool.name], names) if names else None


def _tasks(tool: Tool, _words: Words, names: Words) -> Found:
    names = [name for name in names if "=" not in name and name not in tool.skip]
    if names:
        return ([tool.name], names) if "all" in names or any(map(is_task, names)) else None
    return ([tool.name], names) if tool.name in ("make", "ninja", "rake", "scons") else None


def _scripts(tool: Tool, _words: Words, names: Words) -> Found:
    lead = [tool.name]
    if names[:1] == ["workspace"]:
        lead, names = [*lead, *map(_quoted, names[:2])], names[2:]
    run = names[0] if names and names[0] in ("run", "run-script", "task") else ""
    if run:
        names = names[1:]
    if not names or not is_task(names[0]) or (names[0] == "ci" and not run):
        return ([*lead, "test"], names[1:]) if not run and names[:1] == ["t"] else None
    if tool.name == "npm":
        if names[0] != "test" and not run:
            return None
        lead += [] if names[0] == "test" else ["run"]
    elif run and tool.name not in ("pnpm", "yarn", "composer"):
        lead.append(run)
    return [*lead, _quoted(names[0])], names[1:]


_KINDS: Mapping[str, Callable[[Tool, Words, Words], Found]] = {
    "plain": _plain,
    "formatter": _formatter,
    "goals": _goals,
    "sources": _sources,
    "tasks": _tasks,
    "scripts": _scripts,
}


def _script(name: str, words: Words) -> Checked | None:
    """A file that is named like a test, run by itself or by an interpreter."""
    options = takewhile(lambda word: word[:1] == "-", words[1:])
    if name in _SYNTAX and not _SYNTAX[name].isdisjoint(options):
        return "syntax", told([name, *sorted({_place(word) for word in words[1:]} - {""})])
    if name not in _RUNNERS:
        first = words[0]
        if ("/" in first and not first.startswith(_SYSTEM)) or first.endswith(_SCRIPT_ENDS):
            return _file(first, [first], words[1:])
        return None
    i, count = 1, len(words)
    while i < count:
        word = words[i]
        i += 1
        if word == "-m" and i < count:
            return _file(words[i].replace(".", "/"), [name, "-m", words[i]], words[i + 1 :])
        if word == "--test":
            return "node", told([name, "--test", *sorted({_place(word) for word in words[i:]})])
        if word in _NO_FILE:
            return None
        if word[:1] == "-":
            i += word in _RUNNER_VALUES
        elif word != "run":
            return _file(word, [name, _place(word)], words[i:])
    return None


def _file(path: str, lead: Words, rest: Words) -> Checked | None:
    name = path.rpartition("/")[2]
    if name == "runtests.py" or (name == "manage.py" and rest[:1] in (["test"], ["check"])):
        begin = [name] if name == "runtests.py" else [name, rest[0]]
        return "django", _target(begin, *_arguments(rest[len(begin) - 1 :], _DJANGO), _DJANGO)
    if name == "setup.py" and rest and rest[0] in _SETUP:
        return name, f"{name} {rest[0]}"
    if name == "artisan" and rest[:1] == ["test"]:
        return name, told([*lead, *(word for word in rest if word[:1] != "-")])
    if _EDITING_NAME.match(name) or not (_TEST_NAME.search(name) or _TEST_FOLDER.search(path)):
        return None
    return "script", told([*lead, *(word for word in rest if word[:1] != "-")])
