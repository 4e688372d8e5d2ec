"""Whether a command is a check, and what it checks, independent of display flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise, takewhile
from typing import Any

from msgspec.structs import replace

from closeloop.records.record import Record, content_digest
from closeloop.text.wording import compile_lazily

# Split a shell line into its commands. Any text is accepted; nothing is run.


ShellWords = list[str]

MAX_LINE_CHARS = 20_000
"""Characters that are examined, after the bodies of heredocs are removed."""
MAX_DEPTH = 3
"""Depth to which `$(… $(…))` and `bash -c "bash -c …"` are followed."""
_MAX_OPEN_HEREDOCS = 8
"""After this many unterminated heredocs no more are sought: each scans the whole text."""

# Every piece matches to its end or to the end of the text, without backtracking: linear time.
_SINGLE_QUOTED = r"'[^']*+'?+"
_ESCAPED = r"\\[\s\S]?+"
_INNER = rf"""(?:[^()'"\\]++|{_SINGLE_QUOTED}|"(?:[^"\\]++|{_ESCAPED})*"?+|{_ESCAPED})"""
_DEEPER = rf"(?:{_INNER}|\((?:{_INNER}|\({_INNER}*+\)?)*\)?)*"
_SUBSTITUTED = rf"\$\({_DEEPER}\)?|`[^`]*+`?+"
_DOUBLE_QUOTED = rf"""\$?+"(?:[^"\\$`]++|{_ESCAPED}|{_SUBSTITUTED}|\$)*"?+"""
_VARIABLE = r"\$\{[^}]*+\}?+|\$"
_UNQUOTED_WORD = r"""[^\s'"\\;|&<>()`$]++"""
_SHELL_WORD = (
    rf"""(?:{_UNQUOTED_WORD}(?!['"\\`$])"""
    rf"|(?:{_UNQUOTED_WORD}|{_DOUBLE_QUOTED}|{_SINGLE_QUOTED}|{_ESCAPED}|{_SUBSTITUTED}|{_VARIABLE})+)"
)
_WHOLE_WORD = compile_lazily(_SHELL_WORD)
_SHELL_TOKEN = compile_lazily(
    # Tokens that are not words begin with one of a few characters; most words do not.
    r"[^\S\n]*+(?:(?=[#\d<>&])"
    r"(?:#[^\n]*+|\d*+[<>]&(?:\d++|-)|(?:\d*+|&)>>?+[^\S\n]*+/dev/null(?![\w/]))"
    r"|(?:\d++(?=[<>]))?"
    rf"({_SHELL_WORD}|&&|\|[|&]?+|;;?+|&>>?+|&|<<<|<<-?+|<[>&]?+|>[>|&]?+|[()\n]))"
)
_QUOTED_PART = compile_lazily(
    rf"""'([^']*+)'?+|\$?+"((?:[^"\\]++|{_ESCAPED})*)"?+|\\([\s\S]?+)|([^'"\\$]++|\$)"""
)
_IN_DOUBLE = compile_lazily(r'\\([$`"\\])')
_SUBSTITUTION = compile_lazily(rf"\$\(({_DEEPER})\)?|`([^`]*+)`?+")
_HEREDOC = compile_lazily(r"""(?<!<)<<-?[ \t]*+(?:'([^'\n]+)'|"([^"\n]+)"|\\?([\w.-]+))""")
_COMMAND_ENDS = {
    "&&": "&&", "||": "||", "|": "|", "|&": "|", ";": ";", ";;": ";", "\n": ";", "&": "&",
    "(": "(", ")": ")",
}  # fmt: skip
_OUTPUT_OPERATORS = frozenset((">", ">>", ">|", "&>", "&>>", ">&", "<>"))
_OPERATORS = frozenset(_COMMAND_ENDS) | _OUTPUT_OPERATORS | {"<", "<<", "<<-", "<<<", "<&"}
# What may precede a command, and whether the command's exit code is then still the line's.
_KEYWORDS = {
    "{": True, "}": True, "then": True, "else": True, "fi": True, "done": True, "esac": True,
    "do": False, "!": False, "if": False, "elif": False, "while": False, "until": False,
}  # fmt: skip
_SIMPLE_LINE = compile_lazily(r"[\w ./:=,@%+~^-]++")


def word_set(words: str) -> frozenset[str]:
    """Split words into a set."""
    return frozenset(words.split())


class ShellCommand(Record):
    """One program and its words, without quotes."""

    words: ShellWords
    end: str = ""
    """How it is joined to the next one: `&&`, `||`, `|`, `;`, `&`, or empty at the end."""
    out: tuple[str, ...] = ()
    """Files that its output is redirected to."""
    appended: tuple[str, ...] = ()
    """Those of them that are appended to."""
    inputs: tuple[str, ...] = ()
    """Files that it reads from redirection."""
    body: str | None = None
    """The heredoc or here-string that it reads."""
    loose: bool = False
    """Whether its exit code is not passed on: in `$(…)`, a loop or a condition."""


def split_commands(text: str, depth: int = 0) -> list[ShellCommand]:
    """Return the commands of a line in order; those in `$(…)` before the one that uses them."""
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
    operator: str, name: str, redirects: dict[str, Any], bodies: list[tuple[str, str]]
) -> None:
    if operator in _OUTPUT_OPERATORS:
        redirects["out"] = (*redirects.get("out", ()), name)
        if operator in (">>", "&>>"):
            redirects["appended"] = (*redirects.get("appended", ()), name)
    elif operator == "<":
        redirects["inputs"] = (*redirects.get("inputs", ()), name)
    elif operator == "<<<":
        redirects["body"] = name
    elif bodies and bodies[0][0] == name:
        redirects["body"] = bodies.pop(0)[1]


def _has_substitution(text: str) -> bool:
    return ("$(" in text or "`" in text) and text[0] != "'"


def _has_quotes(text: str) -> bool:
    return "'" in text or '"' in text or "\\" in text


def _split_substitutions(token: str, depth: int) -> Iterator[ShellCommand]:
    for script, ticked_script in _SUBSTITUTION.findall(token):
        if script[:1] == "(":
            continue  # shell arithmetic
        for part in split_commands(script or ticked_script, depth + 1):
            yield replace(part, end=part.end or ";", loose=True)


def _close_command(
    commands: list[ShellCommand], words: list[str], end: str, redirects: dict[str, Any]
) -> None:
    loose = False
    while words and words[0] in _KEYWORDS:
        loose = not _KEYWORDS[words.pop(0)] or loose
    if words or redirects:
        end = ";" if end in ("(", ")") else end
        commands.append(ShellCommand(words=words or [":"], end=end, loose=loose, **redirects))
    elif end in ("&&", "||", "|", "&") and commands:
        # `(…) | tail`, `done | tail`: what joins the group joins its last command.
        commands[-1] = replace(commands[-1], end=end)


def is_one_word(text: str) -> bool:
    """Whether a text is a single shell word, including quotes."""
    return _WHOLE_WORD.fullmatch(text) is not None


def unquote_word(token: str) -> str:
    """Return a word as its program receives it; variables stay as written."""
    if not _has_quotes(token):
        return token
    first, last = token[0], len(token) - 1
    if first == "'" and token.find("'", 1) == last:
        return token[1:-1]
    if first == '"' and token.find('"', 1) == last and "\\" not in token:
        return token[1:-1]
    parts = []
    for single, double, escaped, unquoted in _QUOTED_PART.findall(token):
        inner = _IN_DOUBLE.sub(_unescape_match, double) if "\\" in double else double
        parts.append(single or inner or escaped or unquoted)
    return "".join(parts)


def _unescape_match(match: re.Match[str]) -> str:
    return match[1]


def _cut_heredocs(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text without heredoc bodies, and the bodies with their tags."""
    kept_texts: list[str] = []
    bodies: list[tuple[str, str]] = []
    position = search_start = misses = 0
    while misses < _MAX_OPEN_HEREDOCS and (heredoc := _HEREDOC.search(text, search_start)):
        line = text.find("\n", heredoc.end())
        body_start = line
        while heredoc is not None and line >= 0:
            tag = heredoc[1] or heredoc[2] or heredoc[3]
            end = _heredoc_end(text, tag, body_start)
            if end < 0 and not (heredoc[1] or heredoc[2] or tag.isupper()):
                break  # no heredoc but a shift: `1 << n`
            end = len(text) if end < 0 else end
            bodies.append((tag, text[body_start + 1 : end]))
            body_start = min(end + 1 + len(tag), len(text))
            search_start = heredoc.end()
            heredoc = _HEREDOC.search(text, search_start, line)
        if body_start == line:
            search_start, misses = max(search_start, heredoc.end() if heredoc else 0), misses + 1
        else:
            kept_texts.append(text[position : line + 1])
            position = search_start = body_start
    kept_texts.append(text[position:])
    return "".join(kept_texts), bodies


def _heredoc_end(text: str, tag: str, start: int) -> int:
    """Return where a heredoc's body ends, searched from the preceding line feed; -1 if nowhere."""
    line = "\n" + tag
    while (start := text.find(line, start)) >= 0:
        after = start + len(line)
        if after == len(text) or not (text[after].isalnum() or text[after] in "_.-"):
            break
        start = after
    return start


# The tools that check the work, and which of their options select what is checked.


class ShellTool(Record):
    """A tool that tests, builds, lints or type-checks."""

    name: str
    kind: str = "plain"
    """`tasks` are named by the project and `scripts` too, `goals` by the build tool; `sources` must
    be among its words; a `formatter` checks only when told to."""
    keep: frozenset[str] = frozenset()
    """Options that select what is checked, kept with their value."""
    flags: frozenset[str] = frozenset()
    """Options without a value that select what is checked."""
    drop: frozenset[str] = frozenset()
    """Options that are dropped together with the next word."""
    needs: frozenset[str] = frozenset()
    """It only checks with one of these options."""
    subs: Mapping[str, str] | None = None
    """First words that make it a check, with their full names; None if it always is one."""
    skip: frozenset[str] = frozenset()
    """Words without meaning here."""


# `pytest=py.test` is another name of pytest; `test/t` a short form of a first word.
_TOOL_TABLE = """
pytest pytest=py.test pytest=pytest-3
    keep -k -m --deselect --ignore
    flags --lf --last-failed --sw --doctest-modules
    drop -n -p -o -c -W -r --tb --maxfail --durations --timeout --rootdir --junitxml --junit-xml
    drop --cov --cov-report --cov-config --color --log-level --log-cli-level --basetemp --ds --dist
    drop --confcutdir --numprocesses --import-mode --capture --override-ini --seed --show-capture
unittest trial nose2 nosetests stestr
    keep -k -s -p -t
    drop -j
    skip discover
tox
    keep -e -m
    drop -c -p --parallel --workdir
    skip run
nox
    keep -s -t -k -e --session --sessions
    drop -f -p
py_compile compileall doctest
    drop -j -o
jest vitest ava jasmine karma tap
    keep -t --testNamePattern --testPathPattern --testPathPatterns --project --selectProjects -m
    keep --match
    drop -c --config -w --maxWorkers --reporter --reporters --testTimeout --timeout --bail --env
    drop --coverageReporters --environment --browser --pool
    skip run start
mocha
    keep -g --grep -f --fgrep
    drop -R --reporter -r --require -t --timeout --config --loader
playwright
    subs test
    keep -g --grep --project
    drop -c --config --reporter --workers -j
cypress
    subs run
    keep --spec
    drop --browser --config
go
    subs test build vet
    keep -run -bench -tags
    drop -count -timeout -parallel -p -cpu -o -coverprofile -covermode -coverpkg -mod -ldflags
    drop -gcflags -C -fuzz -fuzztime -benchtime
gotestsum
    drop --format -f --junitfile
golangci-lint
    subs run
    drop -c --config --timeout --new-from-rev --out-format -E --enable -D --disable --default
cargo
    subs test/t build/b check/c clippy nextest miri fmt
    keep -p --package --test --bin --example --features -E
    flags --lib --workspace --all
    drop -j --jobs --target --target-dir --manifest-path --profile --color --message-format
    drop --test-threads --config -Z -W -D -A
    skip run
staticcheck revive hadolint yamllint actionlint markdownlint cppcheck clang-tidy bandit vulture
    drop -c --config
mvn mvn=mvnw mvn=mvnd
    kind goals
    keep -Dtest -Dit.test -pl --projects
    drop -f -P -s -T
gradle gradle=gradlew
    kind goals
    keep --tests -p --project-dir -x
    drop -I --init-script --max-workers
sbt lein mill ant
    kind goals
rspec
    keep -e --example -t --tag
    drop -f --format -r -o --seed -I
phpunit pest paratest
    keep --filter --group --testsuite
    drop -c --configuration -d
phpstan psalm
    drop -c --configuration -l --level --memory-limit
    skip analyse analyze
rubocop standardrb
    keep --only
    drop -f --format -c --config
ctest
    keep -R -L -E
    drop -j --parallel --timeout -C --test-dir --preset
make make=gmake ninja just task invoke invoke=inv rake rails mise moon turbo nx lerna gulp scons
    kind tasks
    keep -C --directory --filter --scope -p --projects --project --target
    drop -j -f --file --justfile -l -o --jobs --concurrency --parallel
    skip run run-many affected
npm pnpm yarn bun composer hatch pdm rye pixi poe deno
    kind scripts
    keep -w --workspace --filter -F --prefix -C --dir --cwd -t --grep --test-name-pattern
    flags -r --recursive --workspaces
    drop --reporter --loglevel -e --env --config --timeout --workspace-concurrency --outdir
bazel bazelisk buck2
    subs test build
    keep --test_filter
    drop --config -c --jobs
docker docker=podman
    subs build buildx/build
    keep -f --file --target
    drop -t --tag --build-arg --platform --label --progress --output -o --cache-from --cache-to
    skip build
docker-compose docker-compose=podman-compose
    subs build
    keep -f --file
    drop --build-arg --progress -p --project-name
dotnet
    subs test build format msbuild
    keep --filter --project
    drop -c --configuration -v --verbosity --logger -f --framework -o -r
swift
    subs test build
    keep --filter --target --product
    drop -c --configuration -j
xcodebuild
    keep -scheme -only-testing
    drop -destination -project -workspace -sdk
mix
    subs test compile credo dialyzer format
    keep --only
    drop --seed --max-failures
zig
    subs build test fmt
stack cabal dune lake spago nimble gleam crystal rebar3 forge hardhat anchor truffle pants detox opa
    subs test build check compile spec runtest eunit ct
ng vite next astro nuxt vercel ultracite buf sqlfluff cue regal molecule django django=django-admin
    subs build test check lint vet e2e
    drop -c --config --mode
behave robot cucumber cucumber-js ginkgo bats shellspec busted prove elm-test wtr Invoke-Pester
    keep -t --tags --focus
    drop -c --config -f --format
codespell semgrep ansible-lint tflint luacheck hlint swiftlint ktlint detekt svelte-check
    drop -c --config
flutter dart
    subs test analyze build format
    keep --name
meson
    subs test compile
    keep -C
    drop -j
cmake
    needs --build
    keep --build --target -t
    drop -j --parallel --config --preset
terraform tofu helm
    subs validate lint fmt
tsc tsc=tsgo vue-tsc
    keep -p --project -b --build
    drop --target --module --outDir --lib --moduleResolution --jsx --rootDir --pretty
mypy dmypy
    keep -p -m -c --package --module
    drop --config-file --python-version --exclude --cache-dir --python-executable --follow-imports
    skip run
pyright basedpyright
    drop -p --project --pythonpath --level --pythonversion
ty pyre pyrefly
    subs check
    drop --python --project
ruff
    subs check format
    keep --select
    drop --config --output-format --target-version --line-length --extend-select --ignore
flake8 pylint pycodestyle pydocstyle
    keep --select --disable --enable
    drop --max-line-length --rcfile --config --ignore -j --format -d -f
eslint oxlint stylelint tslint xo standard
    keep --rule
    drop -c --config --ext --max-warnings --format -f --ignore-path --parser-options
    drop --cache-location -o
biome
    subs check lint ci format
    drop --config-path --max-diagnostics
shellcheck
    drop -s -e -S --severity -f --exclude --shell
pre-commit prek
    subs run
    keep --files
    drop -c --hook-stage
black
    kind formatter
    needs --check
    drop -l --line-length --config -t --target-version
isort
    kind formatter
    needs --check --check-only -c
    drop --profile --settings-path -l
prettier
    kind formatter
    needs --check -c --list-different -l
    drop --config --ignore-path
rustfmt
    kind formatter
    needs --check
    drop --edition --config
gcc g++ cc c++ clang clang++ rustc javac kotlinc nvcc scalac ghc gfortran ocamlc swiftc
    kind sources
    drop -o -I -L -l -D -d -cp -classpath -include -isystem -x -W -C --edition --crate-type
    drop --crate-name --target --out-dir -sourcepath
"""


def _parse_tool_rows() -> Iterator[tuple[list[str], dict[str, list[str]]]]:
    row: dict[str, list[str]] = {}
    for line in _TOOL_TABLE.splitlines():
        words = line.split()
        if line.startswith(" "):
            row.setdefault(words[0], []).extend(words[1:])
        elif words:
            row = {}
            yield words, row


def _build_tools() -> Iterator[tuple[str, ShellTool]]:
    for names, row in list(_parse_tool_rows()):
        subs = [group.split("/") for group in row.get("subs", ())]
        sets = {
            key: frozenset(row.get(key, ())) for key in ("keep", "flags", "drop", "needs", "skip")
        }
        for name in names:
            tool, _, alias = name.partition("=")
            yield (
                alias or tool,
                ShellTool(
                    name=tool,
                    kind=row.get("kind", ["plain"])[0],
                    subs={alias: group[0] for group in subs for alias in group} or None,
                    **sets,
                ),
            )


CHECK_TOOLS: Mapping[str, ShellTool] = dict(_build_tools())


# Whether a command checks the work, and what it checks, whatever its output flags.


ToolAndTarget = tuple[str, str]
"""The tool and the target."""

MAX_TARGET_CHARS = 500
_CHECK_TASK = compile_lazily(
    r"(?:^|[:_./-])(?:tests?|lint(?:er|ing)?|build|type-?checks?|types|checks?|compile|verify|ci|"
    r"e2e|unit|specs?|coverage|tsc|mypy|pytest|eslint|jest|vitest|validate|clippy|vet|smoke)"
    r"(?=$|[\d:_./-])"
)
_NOT_CHECK_TASK = compile_lazily(r"(?:^|[:_.-])(?:watch|dev|serve|start|clean|install)(?:$|[:_.-])")
_CHECK_GOAL = compile_lazily(
    r"test|check|build|compile|verify|lint|assemble|package|install|detekt", re.I
)
_TEST_NAME = compile_lazily(
    r"(?:^|[^a-z])(?:(?:run_?|self)?tests?|specs?|repro(?:duce|ducer|duction)?|verify|checks?"
    r"|validate|smoke|e2e|ci|lint)(?![a-z])",
    re.I,
)
_TEST_FOLDER = compile_lazily(r"(?:^|/)(?:tests?|specs?|__tests__)/")
_EDITING_NAME = compile_lazily(
    r"(?:fix|update|patch|apply|edit|gen(?:erate)?|create|add|write|make|modify|replace|insert|"
    r"convert|remove|rename|copy|setup|conftest)(?![a-z])",
    re.I,
)
_SOURCE_FILE = compile_lazily(
    r"\.(?:c|cc|cpp|cxx|m|mm|s|rs|java|kt|scala|cu|f90|hs|ml|swift)$", re.I
)
_FORMAT_CHECK = compile_lazily(
    r"--?check(?:-formatted)?$|--verify-no-changes$|--set-exit-if-changed$|--dry-run$"
)
_NO_RUN_OPTIONS = word_set(
    "--version --help -h -help help version --collect-only --co --markers --fixtures --listTests "
    "--list-tests --list --showconfig --show-config --print-config --show-settings --init"
)
_PLAIN_WORD = compile_lazily(r"[\w@%+=:,./-]+", re.ASCII)
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
"""Options with which an interpreter only parses its file."""
_INLINE_RUNNERS = word_set("python node ruby")
_INLINE_ASSERTION = compile_lazily(r"(?:^|[;\n]) *(?:assert\b|console\.assert\(|raise unless\b)")
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
    """Return what a program with its words checks; None if it is not a check."""
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


def match_inline_assertions(name: str, part: ShellCommand) -> ToolAndTarget | None:
    """Match an interpreter whose script stands in the command and asserts something.

    One that also writes files asserts something about its own edits.
    """
    if name not in _INLINE_RUNNERS:
        return None
    script = part.body or next(
        (code for option, code in pairwise(part.words) if option in ("-c", "-e")), ""
    )
    if not _INLINE_ASSERTION.search(script) or "write" in script:
        return None
    return "script", shorten_target(quote_words([name, "-c", " ".join(script.split())]))


def is_check_task(name: str) -> bool:
    """Whether a project's task name means a check: `test:unit`, `lint`, `ci-build`."""
    return _CHECK_TASK.search(name) is not None and _NOT_CHECK_TASK.search(name) is None


def names_editing_script(path: str) -> bool:
    """Whether a script's name says that it changes files: `fix_rates.py`."""
    return _EDITING_NAME.match(path.rpartition("/")[2]) is not None


def quote_words(words: Iterable[str]) -> str:
    """Quote words as a line that parses to the same words."""
    return " ".join([_quote_word(word) for word in words])


def shorten_target(line: str) -> str:
    """Return a target; a very long one is replaced by its digest."""
    if len(line) <= MAX_TARGET_CHARS:
        return line
    return f"{line[:MAX_TARGET_CHARS].split(maxsplit=1)[0]} {content_digest(line)[:16]}"


def _quote_word(word: str) -> str:
    return word if _PLAIN_WORD.fullmatch(word) else shlex.quote(word)


def _build_target(
    prefix: ShellWords, options: ShellWords, names: ShellWords, tool: ShellTool
) -> str:
    targets = sorted({name for name in names if name not in tool.skip and not name.isdigit()})
    return " ".join([*prefix, *sorted(set(options)), *map(_quote_word, targets)])


def _parse_arguments(words: ShellWords, tool: ShellTool) -> tuple[ShellWords, ShellWords]:
    """Return the quoted options that select what is checked, and the other words."""
    options: ShellWords = []
    names: ShellWords = []
    i, count = 0, len(words)
    while i < count:
        word = words[i]
        i += 1
        if word[:1] != "-" or word == "-":
            if path := _normalise_place(word):
                names.append(path)
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
    """`./tests/` is `tests`; `.` means everything, like no word; `+nightly` is not a place."""
    if word[:2] == "./" and word[2:3] != ".":
        word = word[2:].lstrip("/")
    if word[-1:] == "/" and len(word) > 1:
        word = word.rstrip("/") or "/"
    return "" if word == "." or word[:1] == "+" else word


TargetWords = tuple[ShellWords, ShellWords] | None
"""The first words of a target, and those that select what is checked."""


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
    prefix = [tool.name]
    if names[:1] == ["workspace"]:
        prefix, names = [*prefix, *map(_quote_word, names[:2])], names[2:]
    run = names[0] if names and names[0] in ("run", "run-script", "task") else ""
    if run:
        names = names[1:]
    if not names or not is_check_task(names[0]) or (names[0] == "ci" and not run):
        return ([*prefix, "test"], names[1:]) if not run and names[:1] == ["t"] else None
    if tool.name == "npm":
        if names[0] != "test" and not run:
            return None
        prefix += [] if names[0] == "test" else ["run"]
    elif run and tool.name not in ("pnpm", "yarn", "composer"):
        prefix.append(run)
    return [*prefix, _quote_word(names[0])], names[1:]


_TOOL_MATCHERS: Mapping[str, Callable[[ShellTool, ShellWords, ShellWords], TargetWords]] = {
    "plain": _match_plain,
    "formatter": _match_formatter,
    "goals": _match_goals,
    "sources": _match_sources,
    "tasks": _match_tasks,
    "scripts": _match_scripts,
}


def _match_test_script(name: str, words: ShellWords) -> ToolAndTarget | None:
    """Match a file named like a test, run by itself or by an interpreter."""
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


def _match_test_file(path: str, prefix: ShellWords, arguments: ShellWords) -> ToolAndTarget | None:
    name = path.rpartition("/")[2]
    if name == "runtests.py" or (name == "manage.py" and arguments[:1] in (["test"], ["check"])):
        test_prefix = [name] if name == "runtests.py" else [name, arguments[0]]
        return "django", _build_target(
            test_prefix,
            *_parse_arguments(arguments[len(test_prefix) - 1 :], _DJANGO_TOOL),
            _DJANGO_TOOL,
        )
    if name == "setup.py" and arguments and arguments[0] in _SETUP_COMMANDS:
        return name, f"{name} {arguments[0]}"
    if name == "artisan" and arguments[:1] == ["test"]:
        return name, quote_words([*prefix, *(word for word in arguments if word[:1] != "-")])
    if _EDITING_NAME.match(name) or not (_TEST_NAME.search(name) or _TEST_FOLDER.search(path)):
        return None
    return "script", quote_words([*prefix, *(word for word in arguments if word[:1] != "-")])
