"""A change laid open for checks: content at both ends, syntax, and the repository around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from closeloop.records.change import Change, FileChange
from closeloop.records.record import Record
from closeloop.records.task import Task

Language = Literal["python", "javascript", "typescript", "tsx", "go", "java", "rust"]
ChangeSide = Literal["before", "after"]


class SourceFunction(Record):
    """A function or method as it is written."""

    name: str
    qualified: str
    """With the classes around it: `Cart.total`."""
    first_line: int
    last_line: int
    parameters: tuple[str, ...] = ()
    """As written, with defaults and types."""
    complexity: int = 1
    """Cyclomatic: decisions plus one."""
    cognitive: int = 0
    statements: int = 0
    public: bool = True
    decorators: tuple[str, ...] = ()


class SourceType(Record):
    """A class, interface, struct, enum or trait."""

    name: str
    qualified: str
    first_line: int
    last_line: int
    bases: tuple[str, ...] = ()
    methods: int = 0
    public: bool = True


class SourceImport(Record):
    """A name brought in from elsewhere."""

    module: str
    """As written: `.text`, `react`, `fmt`."""
    name: str | None = None
    """None where the whole module is meant."""
    alias: str | None = None
    line: int


class SourceName(Record):
    """A name that is used or defined."""

    text: str
    line: int
    kind: Literal["call", "attribute", "keyword", "name", "definition"]
    receiver: str | None = None
    """What it is looked up on, or for a keyword what is called; as written, where that is short."""


class SourceModule(Record):
    """What one file's text says, by its syntax."""

    language: Language
    functions: tuple[SourceFunction, ...] = ()
    types: tuple[SourceType, ...] = ()
    imports: tuple[SourceImport, ...] = ()
    names: tuple[SourceName, ...] = ()
    prints: tuple[int, ...] = ()
    """Fingerprints of its windows of tokens, by which copies are found, in order."""
    print_lines: tuple[int, ...] = ()
    """The line on which each of them begins."""
    broken_lines: tuple[int, ...] = ()
    """Where it cannot be parsed."""
    note: str | None = None
    """Why it was not read, or not all of it."""


class SourceIndex(Protocol):
    """Every source file of the repository after the change, parsed once per content."""

    def paths(self) -> Sequence[str]:
        """Source files of known languages, without generated and vendored ones."""
        ...

    def module(self, path: str) -> SourceModule | None: ...

    def imports(self) -> Mapping[str, Sequence[SourceImport]]:
        """By path, what each file imports, in one look; on which line is not told (0)."""
        ...

    def defined(self, name: str) -> Sequence[tuple[str, int]]:
        """Where something of that name is defined: path and line."""
        ...

    def known(self, name: str) -> bool:
        """Whether the name occurs anywhere in the repository, the change's added lines left out."""
        ...

    def copies(self, prints: Sequence[int]) -> Mapping[int, Sequence[tuple[str, int]]]:
        """Where each of these fingerprints occurs: path and line."""
        ...


class Inspection(Record):
    """What a check of a change is given."""

    change: Change
    sides: Any
    """`closeloop.changes.change_sides.ChangeSides`: bytes of any path at either end."""
    index: Any
    """A repository's index: `RepositoryIndex`."""
    files: tuple[FileChange, ...] = ()
    """Files of the change that people write: neither generated, vendored nor binary."""
    added: Mapping[str, frozenset[int]] = {}
    """By path, the numbers of the lines that the change added or altered, after it."""
    removed: Mapping[str, frozenset[int]] = {}
    """By path before the change, the numbers of the lines that it took away or altered."""
    modules: Mapping[tuple[ChangeSide, str], SourceModule] = {}
    """Syntax of the changed files, at each end where the file is there."""
    task: Task | None = None
    request: str | None = None
    """What was asked for, in words, where it is known: the task's prompt, the pull request."""
    settings: Any = None
    """`closeloop.records.settings.CheckSettings`."""
