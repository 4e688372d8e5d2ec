"""hallucinated-name by the compilers that the project's own commands ran before and after."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from msgspec.structs import replace

from closeloop.changes.names import rules
from closeloop.changes.names.suspect_names import is_test_input
from closeloop.changes.tool_comparison import ToolComparison, tool_ending
from closeloop.records.change import Inspection
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.record import Record

# Parse errors of TypeScript, Go and Rust compilers about missing names or wrong calls.
#
# The project's own commands ran them in the sandbox: nothing runs here.


MAX_ERRORS = 2_000
_MAX_LINE_CHARS = 2_000
_MAX_BLOCK_LINES = 60

_TYPESCRIPT_ERROR = re.compile(
    r"(?P<path>\S.{0,300}?\.(?:[cm]?[jt]sx?|vue|svelte))"
    r"(?:\((?P<line>\d+),\d+\): |:(?P<row>\d+):\d+ - )error TS(?P<code>\d+): (?P<message>.*)"
)
_GO_ERROR = re.compile(r"(?:vet: )?(?P<path>\S{1,300}\.go):(?P<line>\d+)(?::\d+)?: (?P<message>.*)")
_RUST_ERROR = re.compile(r"error(?:\[(?P<code>E\d{4})\])?: (?P<message>.*)")
_RUST_PLACE = re.compile(r"\s*--> (?P<path>\S{1,300}\.rs):(?P<line>\d+):\d+")

_TYPESCRIPT_CODES = frozenset((
    "2304", "2305", "2339", "2353", "2503", "2551", "2552", "2554", "2555", "2561", "2570", "2614",
    "2694", "2724",
))  # fmt: skip
"""No such name, member, export, property or namespace; too many or too few arguments. Excludes
2580, 2582, 2584 and 2591: types that are not installed."""
_TYPESCRIPT_MODULE_CODE = "2307"
_TYPESCRIPT_OUTER_CODES = frozenset(("2322", "2345", "2769"))
"""A value of the wrong type: counts if the lines below say that a property does not exist."""
_UNKNOWN_PROPERTY = re.compile(
    r"Object literal may only specify known properties.*' does not exist in type"
    r"|Property '[^']+' does not exist on type 'IntrinsicAttributes"
)
_TYPESCRIPT_NAME = re.compile(
    r"Cannot find (?:name|namespace|module) '([^']+)'|has no exported member (?:named )?'([^']+)'"
    r"|[Pp]roperty '([^']+)' does not exist|'([^']+)' does not exist in type"
)
_TYPESCRIPT_NEAR = re.compile(r"[Dd]id you mean (?:to write |the instance member )?'([^']+)'\?")

_GO_MESSAGE = re.compile(
    r"(?:undefined|undeclared name): (?P<name>[\w.]+)"
    r"|\S+ undefined \(type .* has no field or method (?P<member>\w+)"
    r"|unknown field '?(?P<field>\w+)'? in struct literal"
    r"|(?:too many|not enough) arguments in call to (?P<call>\S+)"
    r"|no required module provides package (?P<module>[^\s;]+)"
    r"|package (?P<package>\S+) is not in (?:GOROOT|std)"
    r"|(?:name )?(?P<hidden>\w+) not (?:exported|declared) by package"
)
_GO_NEAR = re.compile(r"but does have (?:field |method )?(\w+)")

_RUST_CODES = frozenset((
    "E0026", "E0061", "E0220", "E0405", "E0407", "E0412", "E0422", "E0423", "E0424", "E0425",
    "E0432", "E0433", "E0437", "E0438", "E0531", "E0559", "E0560", "E0574", "E0576", "E0599",
    "E0609",
))  # fmt: skip
"""No such name, item, member or field; too many or too few arguments."""
_RUST_NAME = re.compile(
    r"(?:unresolved import|undeclared [a-z ]{1,60}|cannot find [a-z, /]{1,60}|named|no field"
    r"|does not have|associated item|method|type|const) `([\w:]+)`"
)
_RUST_TOLD_NEAR = re.compile(
    r"similar name(?: exists)?[^\n`]{0,60}: `(\w+)`|`(\w+)` with a similar name"
)
_RUST_SHOWN_NEAR = re.compile(
    r"help: [^\n]*similar name[^\n]*\n\s*\|\n((?:\s*\d+ [-+|~] .*\n){1,2})"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WORD = re.compile(r"[A-Za-z_]\w*")


class CompilerError(Record):
    """A name or call that a compiler rejects."""

    path: str
    """As the compiler prints it."""
    line: int
    message: str
    name: str | None = None
    near: str | None = None
    """The compiler's suggestion."""


def parse_compiler_errors(output: str) -> Iterator[CompilerError]:
    """Yield each rejected name or call in a command's output."""
    lines = [line[:_MAX_LINE_CHARS] for line in _COLOUR.sub("", output).splitlines()]
    error_count = 0
    for number, line in enumerate(lines):
        error = (
            _parse_typescript(line, lines, number)
            or _parse_go(line)
            or _parse_rust(line, lines, number)
        )
        if error is not None:
            yield error
            error_count += 1
            if error_count == MAX_ERRORS:
                return


def _parse_typescript(line: str, lines: list[str], number: int) -> CompilerError | None:
    match = (
        _TYPESCRIPT_ERROR.fullmatch(line) if ": error TS" in line or "- error TS" in line else None
    )
    if match is None:
        return None
    code, message = match["code"], match["message"]
    if code in _TYPESCRIPT_OUTER_CODES:
        inner = _find_unknown_property(lines, number)
        if inner is None:
            return None
        message = inner
    elif code == _TYPESCRIPT_MODULE_CODE:
        # A missing package may be a fault of the machine; a missing file of the repository is not.
        if not message.startswith(("Cannot find module '.", "Cannot find module '/")):
            return None
    elif code not in _TYPESCRIPT_CODES:
        return None
    name = _TYPESCRIPT_NAME.search(message)
    suggestion = _TYPESCRIPT_NEAR.search(message)
    return CompilerError(
        path=match["path"],
        line=int(match["line"] or match["row"]),
        message=message,
        name=next(filter(None, name.groups()), None) if name else None,
        near=suggestion[1] if suggestion else None,
    )


def _find_unknown_property(lines: list[str], number: int) -> str | None:
    """Return the property that an indented line below reports as missing."""
    for detail_line in lines[number + 1 : number + 1 + _MAX_BLOCK_LINES]:
        if not detail_line.startswith("  "):
            return None
        if _UNKNOWN_PROPERTY.search(detail_line):
            return detail_line.strip()
    return None


def _parse_go(line: str) -> CompilerError | None:
    match = _GO_ERROR.fullmatch(line) if ".go:" in line else None
    name_match = _GO_MESSAGE.match(match["message"]) if match else None
    if match is None or name_match is None:
        return None
    suggestion = _GO_NEAR.search(match["message"])
    return CompilerError(
        path=match["path"],
        line=int(match["line"]),
        message=match["message"].partition("; to add it")[0],
        name=next(filter(None, name_match.groups()), None),
        near=suggestion[1] if suggestion else None,
    )


def _parse_rust(line: str, lines: list[str], number: int) -> CompilerError | None:
    match = _RUST_ERROR.fullmatch(line) if line.startswith("error") else None
    if match is None:
        return None
    message = match["message"]
    if match["code"] not in _RUST_CODES and not message.startswith("cannot find macro"):
        return None
    location = _RUST_PLACE.match(lines[number + 1]) if number + 1 < len(lines) else None
    if location is None:
        return None
    block = []
    for block_line in lines[number + 1 : number + 1 + _MAX_BLOCK_LINES]:
        if not block_line.strip():
            break
        block.append(block_line)
    name = _RUST_NAME.search(message)
    return CompilerError(
        path=location["path"],
        line=int(location["line"]),
        message=message,
        name=name[1] if name else None,
        near=_find_rust_suggestion("\n".join(block) + "\n"),
    )


def _find_rust_suggestion(block: str) -> str | None:
    """Return the name suggested as similar, or the one word that the proposed line changes."""
    suggestion = _RUST_TOLD_NEAR.search(block)
    if suggestion:
        return suggestion[1] or suggestion[2]
    proposal = _RUST_SHOWN_NEAR.search(block)
    if proposal is None:
        return None
    proposed = proposal[1].splitlines()[-1]
    row = proposed.split()[0]
    original_line = re.search(rf"^\s*{row} \| (.*)$", block[: proposal.start()], re.MULTILINE)
    words = set(_WORD.findall(original_line[1])) if original_line else set()
    new = [word for word in _WORD.findall(proposed) if word not in words] if words else []
    return new[0] if len(new) == 1 else None


COMPILER_CONFIDENCE = 0.95
_ENDED = ("passed", "failed")
_CUT_LIST = "too many errors"
"""Go lists ten errors per package: one left out before the change is not new after it."""


class Compiler(Record):
    """A language whose compiler reports missing names, and how to recognise that it ran."""

    language: str
    endings: tuple[str, ...]
    command: re.Pattern[str]
    tool: str
    """The project's command that runs it, under any name."""
    example: str


COMPILERS = (
    Compiler(
        language="TypeScript",
        endings=(".ts", ".tsx", ".mts", ".cts"),
        command=re.compile(r"\b(?:tsc|tsgo|vue-tsc|type-?check|check[:-]types)\b"),
        tool="types",
        example="tsc --noEmit",
    ),
    Compiler(
        language="Go",
        endings=(".go",),
        command=re.compile(r"\bgo (?:build|vet|test)\b|\bgolangci-lint\b"),
        tool="build",
        example="go build ./...",
    ),
    Compiler(
        language="Rust",
        endings=(".rs",),
        command=re.compile(r"\bcargo (?:\S+ )*?(?:build|check|clippy|test|nextest)\b"),
        tool="build",
        example="cargo check",
    ),
)


def add_compiled_names(
    inspection: Inspection,
    findings: Sequence[Finding | Unmeasured],
    comparisons: Sequence[ToolComparison],
) -> tuple[Finding | Unmeasured, ...]:
    """Add names that compilers reject on added lines since the change to the findings.

    A suspected name is certain if a compiler rejects it too.
    """
    results = list(findings)
    for error in _find_new_errors(inspection, comparisons):
        place = f"{error.path}:{error.line}"
        known_index = next(
            (index for index, result in enumerate(results) if _is_about(result, place, error)), None
        )
        if known_index is None:
            results.append(_build_finding(error, place))
        elif isinstance(finding := results[known_index], Finding):
            results[known_index] = replace(
                finding, severity="error", confidence=COMPILER_CONFIDENCE
            )
    return (*results, *_report_uncompiled(inspection, comparisons))


def _find_new_errors(
    inspection: Inspection, comparisons: Sequence[ToolComparison]
) -> Iterator[CompilerError]:
    """Yield each error on added lines once, unless a command printed it for the base."""
    compared = [comparison for comparison in comparisons if _has_both_ends(comparison)]
    before = {
        _error_key(error)
        for comparison in compared
        for error in parse_compiler_errors(comparison.before.output)
    }
    seen_keys = set[tuple[str, int, str]]()
    for compared_tool in compared:
        if compared_tool.after.state == "passed" or _CUT_LIST in compared_tool.before.output:
            continue
        for error in parse_compiler_errors(compared_tool.after.output):
            path = _find_changed_path(error.path, inspection.added)
            if path is None or is_test_input(path) or error.line not in inspection.added[path]:
                continue
            key = (path, error.line, _last_part(error))
            if _error_key(error) not in before and key not in seen_keys:
                seen_keys.add(key)
                yield replace(error, path=path)


def _has_both_ends(comparison: ToolComparison) -> bool:
    """Return whether a command gave output for the base and ended normally after the change."""
    return tool_ending(comparison.before) in _ENDED and comparison.after.state in _ENDED


def _error_key(error: CompilerError) -> tuple[str, ...]:
    """Return the key of an error: a missing name is compared across files, arguments per file."""
    file = PurePosixPath(error.path).name
    return (error.message,) if error.name else (file, error.message)


def _find_changed_path(reported_path: str, added: Mapping[str, frozenset[int]]) -> str | None:
    """Return the changed file meant; commands may run in a subfolder or print absolute paths."""
    path = reported_path.replace("\\", "/").removeprefix("./")
    if path in added:
        return path
    bare = re.sub(r"^(?:\.\./)+", "", path)
    candidates = [
        changed_path
        for changed_path in added
        if changed_path.endswith(f"/{bare}")
        or (path.startswith("/") and path.endswith(f"/{changed_path}"))
    ]
    return candidates[0] if len(candidates) == 1 else None


def _is_about(result: Finding | Unmeasured, place: str, error: CompilerError) -> bool:
    if (
        not isinstance(result, Finding)
        or result.rule != rules[0].name
        or place not in result.places
    ):
        return False
    name = _last_part(error)
    return not name or f"`{name}`" in result.message


def _last_part(error: CompilerError) -> str:
    """Return `ToUppr` of `strings.ToUppr`: some commands print the full name, others do not."""
    return re.split(r"[.:/]", error.name or "")[-1]


def _build_finding(error: CompilerError, place: str) -> Finding:
    rule = rules[0]
    text = error.message.strip().rstrip(".")
    if error.near and not re.search(rf"\b{re.escape(error.near)}\b", text):
        text = f"{text}; did you mean `{error.near}`?"
    elif not text.endswith("?"):
        text += "."
    return Finding(
        rule=rule.name,
        version=rule.version,
        severity="error",
        mode=rule.mode,
        message=text,
        places=(place,),
        confidence=COMPILER_CONFIDENCE,
        source="check",
    )


def _report_uncompiled(
    inspection: Inspection, comparisons: Sequence[ToolComparison]
) -> Iterator[Unmeasured]:
    """Yield languages of added lines that no compiler checked both before and after."""
    for compiler in COMPILERS:
        if not any(
            path.endswith(compiler.endings) for path, lines in inspection.added.items() if lines
        ):
            continue
        language_runs = [
            comparison
            for comparison in comparisons
            if compiler.command.search(comparison.run.command)
            or comparison.run.name == compiler.tool
        ]
        if any(map(_has_both_ends, language_runs)):
            continue
        reason = f"no command of the project compiles it, such as `{compiler.example}`"
        if language_runs:
            run = language_runs[0].run
            state = run.before if run.after in _ENDED else run.after
            reason = (
                f"`{run.command}` gives no comparable result before and after: {run.note or state}"
            )
        yield Unmeasured(rule=rules[0].name, reason=f"{compiler.language}'s types: {reason}")
