"""Whether a command checks the work, and what it checks, whatever flags it is shown with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile

from closeloop.process.shell.check_tools import CHECK_TOOLS, ShellTool
from closeloop.process.shell.command_splitting import ShellWords, word_set
from closeloop.records.record import content_digest

ToolAndTarget = tuple[str, str]
"""The tool, and the target."""

MAX_TARGET_CHARS = 500
_CHECK_TASK = re.compile(
    r"(?:^|[:_./-])(?:tests?|lint(?:er|ing)?|build|type-?checks?|types|checks?|compile|verify|ci|"
    r"e2e|unit|specs?|coverage|tsc|mypy|pytest|eslint|jest|vitest|validate|clippy|vet|smoke)"
    r"(?=$|[\d:_./-])"
)
_NOT_CHECK_TASK = re.compile(r"(?:^|[:_.-])(?:watch|dev|serve|start|clean|install)(?:$|[:_.-])")
_CHECK_GOAL = re.compile(
    r"test|check|build|compile|verify|lint|assemble|package|install|detekt", re.I
)
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
_SOURCE_FILE = re.compile(r"\.(?:c|cc|cpp|cxx|m|mm|s|rs|java|kt|scala|cu|f90|hs|ml|swift)$", re.I)
_FORMAT_CHECK = re.compile(
    r"--?check(?:-formatted)?$|--verify-no-changes$|--set-exit-if-changed$|--dry-run$"
)
_NO_RUN_OPTIONS = word_set(
    "--version --help -h -help help version --collect-only --co --markers --fixtures --listTests "
    "--list-tests --list --showconfig --show-config --print-config --show-settings --init"
)
_PLAIN_WORD = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_RUNNERS = word_set(
    "python node nodejs ruby php bash sh zsh dash ts-node tsx Rscript julia lua deno bun pwsh"
)
_SYNTAX_OPTIONS = {
    "node": word_set("--check -c"),
    "php": word_set("-l --syntax-check"),
    "ruby": word_set("-c -wc"),
    "perl": word_set("-c -wc"),
    "bash": word_set("-n"),
    "sh": word_set("-n"),
    "zsh": word_set("-n"),
}
"""Options with which an interpreter only reads its file."""
_RUNNER_VALUES = word_set("-X -W -r --require --loader --import -I -o")
_NO_FILE_OPTIONS = word_set("-c -e -p -s -lc --eval --print -")
_SCRIPT_ENDS = (".py", ".sh", ".js", ".mjs", ".cjs", ".ts", ".rb", ".ps1", ".bat")
_DJANGO_TOOL = ShellTool(
    name="django",
    keep=frozenset(("-k", "--tag", "--exclude-tag")),
    drop=frozenset(("--settings", "-v", "--verbosity", "--parallel", "--shuffle")),
)
_SETUP_COMMANDS = frozenset(("test", "build", "build_ext", "check"))
_SYSTEM_FOLDERS = ("/usr/", "/bin/", "/opt/")


def recognise_check(name: str, words: ShellWords) -> ToolAndTarget | None:
    """What a program with its words checks; None where it is no check."""
    tool = CHECK_TOOLS.get(name)
    if tool is None:
        return _match_test_script(name, words)
    if not _NO_RUN_OPTIONS.isdisjoint(words):
        return None
    options, names = _parse_arguments(words[1:], tool)
    target_words = _TOOL_MATCHERS[tool.kind](tool, words, names)
    if target_words is None:
        return _match_test_script(name, words)
    return tool.name, _build_target(target_words[0], options, target_words[1], tool)


def is_check_task(name: str) -> bool:
    """A project's own name for something that checks: `test:unit`, `lint`, `ci-build`."""
    return _CHECK_TASK.search(name) is not None and _NOT_CHECK_TASK.search(name) is None


def quote_words(words: Iterable[str]) -> str:
    """Words as a line that reads as the same words."""
    return " ".join([_quote_word(word) for word in words])


def shorten_target(line: str) -> str:
    """A target; a very long one by its digest, which is as good to compare."""
    if len(line) <= MAX_TARGET_CHARS:
        return line
    return f"{line[:MAX_TARGET_CHARS].split(maxsplit=1)[0]} {content_digest(line)[:16]}"


def _quote_word(word: str) -> str:
    return word if _PLAIN_WORD.fullmatch(word) else shlex.quote(word)


def _build_target(lead: ShellWords, options: ShellWords, names: ShellWords, tool: ShellTool) -> str:
    kept = sorted({name for name in names if name not in tool.skip and not name.isdigit()})
    return " ".join([*lead, *sorted(set(options)), *map(_quote_word, kept)])


def _parse_arguments(words: ShellWords, tool: ShellTool) -> tuple[ShellWords, ShellWords]:
    """The options that say what is checked, quoted, and the words that are no options."""
    options: ShellWords = []
    names: ShellWords = []
    i, count = 0, len(words)
    while i < count:
        word = words[i]
        i += 1
        if word[:1] != "-" or word == "-":
            if place := _normalise_place(word):
                names.append(place)
            continue
        head, equals, value = word.partition("=")
        if head in tool.keep:
            if not equals and i < count:
                value = words[i]
                i += 1
            options.append(_format_option(head, value))
        elif head in tool.flags:
            options.append(head)
        elif head in tool.drop:
            if not equals and i < count and words[i][:1] != "-":
                i += 1
        elif head[:2] in tool.keep and head[1] != "-":
            options.append(_format_option(head[:2], word[2:]))
    return options, names


def _format_option(head: str, value: str) -> str:
    if head[:2] in ("--", "-D"):
        return _quote_word(f"{head}={value}")
    return f"{head} {_quote_word(value)}"


def _normalise_place(word: str) -> str:
    """`./tests/` is `tests`; `.` is everything, as no word is, and `+nightly` is no place."""
    if word[:2] == "./" and word[2:3] != ".":
        word = word[2:].lstrip("/")
    if word[-1:] == "/" and len(word) > 1:
        word = word.rstrip("/") or "/"
    return "" if word == "." or word[:1] == "+" else word


TargetWords = tuple[ShellWords, ShellWords] | None
"""The words that a target begins with, and those that say what is checked."""


def _match_plain(tool: ShellTool, words: ShellWords, names: ShellWords) -> TargetWords:
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


def _match_formatter(tool: ShellTool, words: ShellWords, names: ShellWords) -> TargetWords:
    return None if tool.needs.isdisjoint(words) else ([tool.name, "--check"], names)


def _match_goals(tool: ShellTool, _words: ShellWords, names: ShellWords) -> TargetWords:
    names = [name for name in names if name != "clean"]
    return ([tool.name], names) if any(map(_CHECK_GOAL.search, names)) else None


def _match_sources(tool: ShellTool, _words: ShellWords, names: ShellWords) -> TargetWords:
    names = [name for name in names if _SOURCE_FILE.search(name)]
    return ([tool.name], names) if names else None


def _match_tasks(tool: ShellTool, _words: ShellWords, names: ShellWords) -> TargetWords:
    names = [name for name in names if "=" not in name and name not in tool.skip]
    if names:
        return ([tool.name], names) if "all" in names or any(map(is_check_task, names)) else None
    return ([tool.name], names) if tool.name in ("make", "ninja", "rake", "scons") else None


def _match_scripts(tool: ShellTool, _words: ShellWords, names: ShellWords) -> TargetWords:
    lead = [tool.name]
    if names[:1] == ["workspace"]:
        lead, names = [*lead, *map(_quote_word, names[:2])], names[2:]
    run = names[0] if names and names[0] in ("run", "run-script", "task") else ""
    if run:
        names = names[1:]
    if not names or not is_check_task(names[0]) or (names[0] == "ci" and not run):
        return ([*lead, "test"], names[1:]) if not run and names[:1] == ["t"] else None
    if tool.name == "npm":
        if names[0] != "test" and not run:
            return None
        lead += [] if names[0] == "test" else ["run"]
    elif run and tool.name not in ("pnpm", "yarn", "composer"):
        lead.append(run)
    return [*lead, _quote_word(names[0])], names[1:]


_TOOL_MATCHERS: Mapping[str, Callable[[ShellTool, ShellWords, ShellWords], TargetWords]] = {
    "plain": _match_plain,
    "formatter": _match_formatter,
    "goals": _match_goals,
    "sources": _match_sources,
    "tasks": _match_tasks,
    "scripts": _match_scripts,
}


def _match_test_script(name: str, words: ShellWords) -> ToolAndTarget | None:
    """A file that is named like a test, run by itself or by an interpreter."""
    options = takewhile(lambda word: word[:1] == "-", words[1:])
    if name in _SYNTAX_OPTIONS and not _SYNTAX_OPTIONS[name].isdisjoint(options):
        return "syntax", quote_words(
            [name, *sorted({_normalise_place(word) for word in words[1:]} - {""})]
        )
    if name not in _RUNNERS:
        first = words[0]
        if ("/" in first and not first.startswith(_SYSTEM_FOLDERS)) or first.endswith(_SCRIPT_ENDS):
            return _match_test_file(first, [first], words[1:])
        return None
    i, count = 1, len(words)
    while i < count:
        word = words[i]
        i += 1
        if word == "-m" and i < count:
            return _match_test_file(
                words[i].replace(".", "/"), [name, "-m", words[i]], words[i + 1 :]
            )
        if word == "--test":
            return "node", quote_words(
                [name, "--test", *sorted({_normalise_place(word) for word in words[i:]})]
            )
        if word in _NO_FILE_OPTIONS:
            return None
        if word[:1] == "-":
            i += word in _RUNNER_VALUES
        elif word != "run":
            return _match_test_file(word, [name, _normalise_place(word)], words[i:])
    return None


def _match_test_file(path: str, lead: ShellWords, rest: ShellWords) -> ToolAndTarget | None:
    name = path.rpartition("/")[2]
    if name == "runtests.py" or (name == "manage.py" and rest[:1] in (["test"], ["check"])):
        begin = [name] if name == "runtests.py" else [name, rest[0]]
        return "django", _build_target(
            begin, *_parse_arguments(rest[len(begin) - 1 :], _DJANGO_TOOL), _DJANGO_TOOL
        )
    if name == "setup.py" and rest and rest[0] in _SETUP_COMMANDS:
        return name, f"{name} {rest[0]}"
    if name == "artisan" and rest[:1] == ["test"]:
        return name, quote_words([*lead, *(word for word in rest if word[:1] != "-")])
    if _EDITING_NAME.match(name) or not (_TEST_NAME.search(name) or _TEST_FOLDER.search(path)):
        return None
    return "script", quote_words([*lead, *(word for word in rest if word[:1] != "-")])
