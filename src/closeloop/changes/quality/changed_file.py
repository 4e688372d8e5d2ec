"""What the quality checks read of a changed file: its lines, its syntax on both sides, its
folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from closeloop.changes.file_kinds import FileKind, classify_file
from closeloop.records.change import Inspection, SourceFunction, SourceModule
from closeloop.records.finding import Finding, Rule, Severity
from closeloop.records.record import Record
from closeloop.text.wording import truncate_words

MAX_LINE_CHARS = 2000
"""Maximum characters examined of a line."""
MAX_QUOTE_CHARS = 80
MIN_GROWTH_SHARE = 0.2
"""Minimum growth, as a share, for something already too large to be reported again."""
_EXAMPLE_FOLDERS = re.compile(
    r"(^|/)(examples?|samples?|demos?|docs?|docs?_src|documentation|snippets|tutorials?|cookbook|website"
    r"|bench(marks?)?|fixtures?|playground|templates?)/"
)


class ChangedFile(Record):
    """A changed file, as after the change."""

    path: str
    old_path: str
    kind: FileKind
    lines: tuple[str, ...]
    added: frozenset[int]
    after: SourceModule | None = None
    before: SourceModule | None = None

    def line_at(self, number: int) -> str:
        """Return a line's text, truncated if it is too long."""
        return self.lines[number - 1][:MAX_LINE_CHARS] if 0 < number <= len(self.lines) else ""

    def added_blocks(self) -> Iterator[tuple[int, list[str]]]:
        """Yield each run of consecutive added lines, with the number of its first line."""
        numbers = sorted(self.added)
        start = 0
        for index in range(1, len(numbers) + 1):
            if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
                yield numbers[start], [self.line_at(number) for number in numbers[start:index]]
                start = index


def list_changed_files(inspection: Inspection, *kinds: FileKind) -> Iterator[ChangedFile]:
    """Yield changed files that still exist, of these kinds or of all."""
    for file in inspection.files:
        kind = classify_file(file.path)
        if file.status == "deleted" or (kinds and kind not in kinds):
            continue
        old_path = file.old_path or file.path
        yield ChangedFile(
            path=file.path,
            old_path=old_path,
            kind=kind,
            lines=split_git_lines(inspection.sides.read("after", file.path)),
            added=inspection.added.get(file.path, frozenset()),
            after=inspection.modules.get(("after", file.path)),
            before=inspection.modules.get(("before", old_path)),
        )


def split_git_lines(content: bytes | None) -> tuple[str, ...]:
    """Split content into lines as git counts them."""
    return tuple((content or b"").decode("utf-8", "replace").replace("\r\n", "\n").split("\n"))


def is_example_file(path: str) -> bool:
    """Return whether it is an example or similar, which repeat each other on purpose."""
    return _EXAMPLE_FOLDERS.search(path) is not None


def is_inline_test(function: SourceFunction) -> bool:
    """Return whether it is a test inside product code, as in Rust."""
    return any(
        decorator == "test" or decorator.endswith("::test") for decorator in function.decorators
    )


def enclosing_function(
    functions: Iterable[SourceFunction], line: int, last: int | None = None
) -> SourceFunction | None:
    """Return the innermost function that contains the line, preferably one that contains `last`
    too."""
    enclosing = [
        function for function in functions if function.first_line <= line <= function.last_line
    ]
    covering = [
        function for function in enclosing if last is not None and last <= function.last_line
    ]
    return max(covering or enclosing, key=lambda function: function.first_line, default=None)


def group_sources_by_folder(inspection: Inspection) -> Mapping[str, Sequence[str]]:
    """Return the repository's sources grouped by folder and file ending."""
    paths_by_folder: dict[str, list[str]] = {}
    for path in inspection.index.paths():
        paths_by_folder.setdefault(_folder_key(path), []).append(path)
    return paths_by_folder


def list_neighbours(path: str, files: Mapping[str, Sequence[str]]) -> list[str]:
    return [other for other in files.get(_folder_key(path), ()) if other != path]


def _folder_key(path: str) -> str:
    """Return a file's folder together with its ending."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/*.{name.rpartition('.')[2]}"


OldFunctions = Mapping[str, Sequence[tuple[str, SourceFunction]]]
"""Functions of all changed files before the change, by name, with their paths."""


def index_old_functions(inspection: Inspection) -> OldFunctions:
    functions_by_name: dict[str, list[tuple[str, SourceFunction]]] = {}
    for (side, path), module in inspection.modules.items():
        if side == "before":
            for function in module.functions:
                functions_by_name.setdefault(function.name, []).append((path, function))
    return functions_by_name


def find_old_function(
    before: OldFunctions, file: ChangedFile, function: SourceFunction
) -> SourceFunction | None:
    """Return the same function before the change, in any file; None if it is new."""
    same_name = before.get(function.name, ())
    matches = [
        candidate
        for path, candidate in same_name
        if path == file.old_path and candidate.qualified == function.qualified
    ]
    if not matches and same_name:
        remaining_names = (
            {function.qualified for function in file.after.functions} if file.after else set()
        )
        matches = [
            candidate
            for path, candidate in same_name
            if path != file.old_path or candidate.qualified not in remaining_names
        ]
    # Overloads share their name with the implementation.
    return max(
        matches, key=lambda candidate: candidate.last_line - candidate.first_line, default=None
    )


def make_check_finding(
    rule: Rule,
    message: str,
    *places: str,
    severity: Severity | None = None,
    confidence: float = 1.0,
) -> Finding:
    """Build a finding of that rule at `path:line`, with further places to look."""
    return Finding(
        rule=rule.name,
        version=rule.version,
        severity=severity or rule.severity,
        mode=rule.mode,
        message=message,
        places=places,
        confidence=confidence,
        source="check",
    )


def shorten_line(text: str) -> str:
    """Truncate a long line."""
    return truncate_words(text, MAX_QUOTE_CHARS)
