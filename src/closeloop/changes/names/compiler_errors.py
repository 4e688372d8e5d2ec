"""What compilers of TypeScript, Go and Rust say does not exist or does not fit, read from output.

Those that the project's own commands ran in the sandbox: nothing is run here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from closeloop.records.record import Record

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
"""No such name, member, export, property or namespace; too many or too few arguments. Left out are
2580, 2582, 2584 and 2591: types that are not installed."""
_TYPESCRIPT_MODULE_CODE = "2307"
_TYPESCRIPT_OUTER_CODES = frozenset(("2322", "2345", "2769"))
"""A value that does not fit: counted where the lines below say that a property does not exist."""
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
    """A name or a call that a compiler refuses."""

    path: str
    """As the compiler writes it."""
    line: int
    message: str
    name: str | None = None
    near: str | None = None
    """What it says was probably meant."""


def parse_compiler_errors(output: str) -> Iterator[CompilerError]:
    """Each refused name or call in what a command printed."""
    lines = [line[:_MAX_LINE_CHARS] for line in _COLOUR.sub("", output).splitlines()]
    found = 0
    for number, line in enumerate(lines):
        error = (
            _parse_typescript(line, lines, number)
            or _parse_go(line)
            or _parse_rust(line, lines, number)
        )
        if error is not None:
            yield error
            found += 1
            if found == MAX_ERRORS:
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
        # A package that is not installed is the machine's lack; a file of the repository is not.
        if not message.startswith(("Cannot find module '.", "Cannot find module '/")):
            return None
    elif code not in _TYPESCRIPT_CODES:
        return None
    name = _TYPESCRIPT_NAME.search(message)
    near = _TYPESCRIPT_NEAR.search(message)
    return CompilerError(
        path=match["path"],
        line=int(match["line"] or match["row"]),
        message=message,
        name=next(filter(None, name.groups()), None) if name else None,
        near=near[1] if near else None,
    )


def _find_unknown_property(lines: list[str], number: int) -> str | None:
    """The line below, indented, that says which property is not there."""
    for below in lines[number + 1 : number + 1 + _MAX_BLOCK_LINES]:
        if not below.startswith("  "):
            return None
        if _UNKNOWN_PROPERTY.search(below):
            return below.strip()
    return None


def _parse_go(line: str) -> CompilerError | None:
    match = _GO_ERROR.fullmatch(line) if ".go:" in line else None
    told = _GO_MESSAGE.match(match["message"]) if match else None
    if match is None or told is None:
        return None
    near = _GO_NEAR.search(match["message"])
    return CompilerError(
        path=match["path"],
        line=int(match["line"]),
        message=match["message"].partition("; to add it")[0],
        name=next(filter(None, told.groups()), None),
        near=near[1] if near else None,
    )


def _parse_rust(line: str, lines: list[str], number: int) -> CompilerError | None:
    match = _RUST_ERROR.fullmatch(line) if line.startswith("error") else None
    if match is None:
        return None
    message = match["message"]
    if match["code"] not in _RUST_CODES and not message.startswith("cannot find macro"):
        return None
    place = _RUST_PLACE.match(lines[number + 1]) if number + 1 < len(lines) else None
    if place is None:
        return None
    block = []
    for below in lines[number + 1 : number + 1 + _MAX_BLOCK_LINES]:
        if not below.strip():
            break
        block.append(below)
    name = _RUST_NAME.search(message)
    return CompilerError(
        path=place["path"],
        line=int(place["line"]),
        message=message,
        name=name[1] if name else None,
        near=_find_rust_suggestion("\n".join(block) + "\n"),
    )


def _find_rust_suggestion(block: str) -> str | None:
    """What is named as similar, or the one word by which the line it proposes differs."""
    told = _RUST_TOLD_NEAR.search(block)
    if told:
        return told[1] or told[2]
    shown = _RUST_SHOWN_NEAR.search(block)
    if shown is None:
        return None
    proposed = shown[1].splitlines()[-1]
    row = proposed.split()[0]
    written = re.search(rf"^\s*{row} \| (.*)$", block[: shown.start()], re.MULTILINE)
    words = set(_WORD.findall(written[1])) if written else set()
    new = [word for word in _WORD.findall(proposed) if word not in words] if words else []
    return new[0] if len(new) == 1 else None
