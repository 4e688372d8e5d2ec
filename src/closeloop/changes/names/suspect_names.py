"""Names on added lines, and those that something speaks against."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from closeloop.records.inspection import (
    Inspection,
    Language,
    SourceImport,
    SourceModule,
    SourceName,
)
from closeloop.records.record import Record

UseKind = Literal["import", "call", "attribute", "keyword", "name", "option"]
_TEST_INPUT = re.compile(
    r"(?:.*/)?(?:test-?data|_*(?:fixtures?|snapshots?|goldens?)_*"
    r"|_*(?:tests?|specs?)_*/(?:.*/)?(?:data|cases|inputs?|outputs?|expected|resources|samples))/.*",
    re.IGNORECASE,
)
_TEST_FILE = re.compile(r"/(?:test_|conftest)[^/]*$|[._-](?:test|spec)\.\w+$")
_MAJOR_VERSION = re.compile(r"v\d+")


class NameUse(Record):
    """A name that an added line uses."""

    path: str
    line: int
    language: Language
    text: str
    kind: UseKind
    receiver: str | None = None
    """As written; empty where the name is looked up on something too long to tell."""
    target: SourceImport | None = None
    """Of an imported name, the module that it is taken from."""


class Suspect(Record):
    """A name that seems not to exist."""

    use: NameUse
    near: str | None = None
    """What was probably meant."""
    where: str | None = None
    """The module or class in which it was looked for."""
    certain: bool = False
    """Whether what was meant stands in the very place where it was looked for."""


def is_test_input(path: str) -> bool:
    """Whether tests only read a source, so that nothing it names need exist."""
    return _TEST_INPUT.fullmatch(path) is not None and _TEST_FILE.search(path) is None


def find_name_uses(inspection: Inspection) -> Iterator[NameUse]:
    """Every name that added lines use, once a line."""
    for file in inspection.files:
        module = inspection.modules.get(("after", file.path))
        added = inspection.added.get(file.path, frozenset())
        if module is None or not added or is_test_input(file.path):
            continue
        lines = (inspection.sides.read("after", file.path) or b"").split(b"\n")
        for name in dict.fromkeys(module.names):
            if name.line in added and name.kind != "definition":
                looked_up = name.receiver is None and _is_member(name, lines)
                yield NameUse(
                    path=file.path,
                    line=name.line,
                    language=module.language,
                    text=name.text,
                    kind=name.kind,
                    receiver="" if looked_up else name.receiver,
                )
        for one in module.imports:
            if one.line in added and one.name and one.name not in ("*", "default"):
                yield NameUse(
                    path=file.path,
                    line=one.line,
                    language=module.language,
                    text=one.name,
                    kind="import",
                    target=SourceImport(module=one.module, line=one.line),
                )


def _is_member(name: SourceName, lines: list[bytes]) -> bool:
    """Whether something stands before it that it is looked up on."""
    line = lines[name.line - 1] if name.line <= len(lines) else b""
    before = lines[name.line - 2].rstrip() if 1 < name.line <= len(lines) else b""
    word = re.escape(name.text.encode())
    if before.endswith((b".", b"::")) and re.match(rb"\s*" + word, line):
        return True
    return re.search(rb"(?<![\w.$:])" + word + rb"(?![\w$])", line) is None


def import_bindings(target: SourceImport, language: Language) -> tuple[str, ...]:
    """The names that an import gives to a file; several where only the package itself knows."""
    if target.alias or target.name:
        return (target.alias or target.name or "",)
    if language == "python":
        return (target.module.split(".")[0],)
    if language == "go":
        # `gopkg.in/yaml.v3`, `example.org/go-cmp/v2`: a package's name is like its last part.
        parts = [part for part in target.module.split("/") if not _MAJOR_VERSION.fullmatch(part)]
        return (*parts[-1:], *re.split(r"[-.]", parts[-1])) if parts else ()
    return ()


def module_bindings(module: SourceModule, *, imports: bool = True) -> Iterator[str]:
    """Every name that a file makes, anywhere in it, or brings in."""
    yield from (name.text for name in module.names if name.kind == "definition")
    yield from (function.name for function in module.functions)
    yield from (type_.name for type_ in module.types)
    if imports:
        for one in module.imports:
            yield from import_bindings(one, module.language)
