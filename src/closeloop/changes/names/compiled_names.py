"""hallucinated-name by the compilers that the project's own commands ran before and after."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from msgspec.structs import replace

from closeloop.changes.names import rules
from closeloop.changes.names.compiler_errors import CompilerError, parse_compiler_errors
from closeloop.changes.names.suspect_names import is_test_input
from closeloop.changes.tool_comparison import ToolComparison, tool_ending
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.inspection import Inspection
from closeloop.records.record import Record

COMPILER_CONFIDENCE = 0.95
_ENDED = ("passed", "failed")
_CUT_LIST = "too many errors"
"""Go names the first ten of a package: what it left out before the change is not new after it."""


class Compiler(Record):
    """A language whose compiler tells which names do not exist, and how to know that it ran."""

    language: str
    endings: tuple[str, ...]
    command: re.Pattern[str]
    tool: str
    """The project's command that runs it, whatever that is called."""
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
    found: Sequence[Finding | Unmeasured],
    comparisons: Sequence[ToolComparison],
) -> tuple[Finding | Unmeasured, ...]:
    """What was found, and what compilers refuse on added lines since the change.

    A name that was suspected already is certain where a compiler refuses it too.
    """
    results = list(found)
    for error in _find_new_errors(inspection, comparisons):
        place = f"{error.path}:{error.line}"
        known = next((at for at, one in enumerate(results) if _is_about(one, place, error)), None)
        if known is None:
            results.append(_build_finding(error, place))
        elif isinstance(one := results[known], Finding):
            results[known] = replace(one, severity="error", confidence=COMPILER_CONFIDENCE)
    return (*results, *_report_uncompiled(inspection, comparisons))


def _find_new_errors(
    inspection: Inspection, comparisons: Sequence[ToolComparison]
) -> Iterator[CompilerError]:
    """Errors on added lines, each once, that no command printed of the base."""
    compared = [one for one in comparisons if _has_both_ends(one)]
    before = {
        _error_key(error) for one in compared for error in parse_compiler_errors(one.before.output)
    }
    seen = set[tuple[str, int, str]]()
    for one in compared:
        if one.after.state == "passed" or _CUT_LIST in one.before.output:
            continue
        for error in parse_compiler_errors(one.after.output):
            path = _find_changed_path(error.path, inspection.added)
            if path is None or is_test_input(path) or error.line not in inspection.added[path]:
                continue
            key = (path, error.line, _last_part(error))
            if _error_key(error) not in before and key not in seen:
                seen.add(key)
                yield replace(error, path=path)


def _has_both_ends(one: ToolComparison) -> bool:
    """A command that told something of the base, and ended by itself after the change."""
    return tool_ending(one.before) in _ENDED and one.after.state in _ENDED


def _error_key(error: CompilerError) -> tuple[str, ...]:
    """A name that was missing anywhere is the machine's lack; arguments are a file's own."""
    file = PurePosixPath(error.path).name
    return (error.message,) if error.name else (file, error.message)


def _find_changed_path(told: str, added: Mapping[str, frozenset[int]]) -> str | None:
    """The changed file that was meant: commands run in folders of their own or tell whole paths."""
    path = told.replace("\\", "/").removeprefix("./")
    if path in added:
        return path
    bare = re.sub(r"^(?:\.\./)+", "", path)
    candidates = [
        one
        for one in added
        if one.endswith(f"/{bare}") or (path.startswith("/") and path.endswith(f"/{one}"))
    ]
    return candidates[0] if len(candidates) == 1 else None


def _is_about(one: Finding | Unmeasured, place: str, error: CompilerError) -> bool:
    if not isinstance(one, Finding) or one.rule != rules[0].name or place not in one.places:
        return False
    name = _last_part(error)
    return not name or f"`{name}`" in one.message


def _last_part(error: CompilerError) -> str:
    """`ToUppr` of `strings.ToUppr`: one command tells it whole, another does not."""
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
    """Languages of added lines that no compiler has looked at, before and after."""
    for compiler in COMPILERS:
        if not any(
            path.endswith(compiler.endings) for path, lines in inspection.added.items() if lines
        ):
            continue
        ran = [
            one
            for one in comparisons
            if compiler.command.search(one.run.command) or one.run.name == compiler.tool
        ]
        if any(map(_has_both_ends, ran)):
            continue
        reason = f"no command of the project compiles it, such as `{compiler.example}`"
        if ran:
            run = ran[0].run
            state = run.before if run.after in _ENDED else run.after
            reason = f"`{run.command}` tells nothing of both ends: {run.note or state}"
        yield Unmeasured(rule=rules[0].name, reason=f"{compiler.language}'s types: {reason}")
