"""What these checks ask of a changed file: its lines, its syntax at both ends, its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from closeloop.changes.kinds import Kind, kind_of
from closeloop.model.finding import Finding, Rule, Severity
from closeloop.model.inspection import Function, Inspection, Module
from closeloop.model.record import Record

MOST_LINE = 2000
"""So much of a line is looked at."""
QUOTED = 80
GROWTH = 0.2
"""What was too large already must have grown by this part to be told again."""
_ASIDE = re.compile(
    r"(^|/)(examples?|samples?|demos?|docs?|docs_src|bench(marks?)?|fixtures?|playground|templates?)/"
)


class Changed(Record):
    """A changed file as it is afterwards."""

    path: str
    old_path: str
    kind: Kind
    lines: tuple[str, ...]
    added: frozenset[int]
    after: Module | None = None
    before: Module | None = None

    def line(self, number: int) -> str:
        """What stands there, without what is too long to look at."""
        return self.lines[number - 1][:MOST_LINE] if 0 < number <= len(self.lines) else ""

    def blocks(self) -> Iterator[tuple[int, list[str]]]:
        """Added lines that follow each other, each time with the number of the first."""
        numbers = sorted(self.added)
        start = 0
        for at in range(1, len(numbers) + 1):
            if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
                yield numbers[start], [self.line(number) for number in numbers[start:at]]
                start = at


def changed(inspection: Inspection, *kinds: Kind) -> Iterator[Changed]:
    """The files that are still there, of these kinds or of all."""
    for file in inspection.files:
        kind = kind_of(file.path)
        if file.status == "deleted" or (kinds and kind not in kinds):
            continue
        old_path = file.old_path or file.path
        yield Changed(
            path=file.path,
            old_path=old_path,
            kind=kind,
            lines=text_of(inspection.sides.read("after", file.path)),
            added=inspection.added.get(file.path, frozenset()),
            after=inspection.modules.get(("after", file.path)),
            before=inspection.modules.get(("before", old_path)),
        )


def text_of(content: bytes | None) -> tuple[str, ...]:
    """The lines as git counts them."""
    return tuple((content or b"").decode("utf-8", "replace").replace("\r\n", "\n").split("\n"))


def is_aside(path: str) -> bool:
    """Examples and the like, which repeat each other on purpose."""
    return _ASIDE.search(path) is not None


def is_tested(function: Function) -> bool:
    """A test among the code, as Rust has them."""
    return any(one == "test" or one.endswith("::test") for one in function.decorators)


def around(functions: Iterable[Function], line: int) -> Function | None:
    """The innermost function that the line is in."""
    inside = [one for one in functions if one.first_line <= line <= one.last_line]
    return max(inside, key=lambda one: one.first_line, default=None)


def folders(inspection: Inspection) -> Mapping[str, Sequence[str]]:
    """The sources of the repository that are of the same kind and beside each other."""
    found: dict[str, list[str]] = {}
    for path in inspection.index.paths():
        found.setdefault(_folder(path), []).append(path)
    return found


def beside(path: str, files: Mapping[str, Sequence[str]]) -> list[str]:
    return [other for other in files.get(_folder(path), ()) if other != path]


def _folder(path: str) -> str:
    """Where a file lies, and how its name ends."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/*.{name.rpartition('.')[2]}"


Past = Mapping[str, Sequence[tuple[str, Function]]]
"""By name, the functions of all changed files before the change, with their paths."""


def past(inspection: Inspection) -> Past:
    found: dict[str, list[tuple[str, Function]]] = {}
    for (side, path), module in inspection.modules.items():
        if side == "before":
            for one in module.functions:
                found.setdefault(one.name, []).append((path, one))
    return found


def earlier(before: Past, file: Changed, function: Function) -> Function | None:
    """The same function before the change, wherever it was; None where it is new."""
    named = before.get(function.name, ())
    same = [
        one for path, one in named if path == file.old_path and one.qualified == function.qualified
    ]
    if not same and named:
        kept = {one.qualified for one in file.after.functions} if file.after else set()
        same = [one for path, one in named if path != file.old_path or one.qualified not in kept]
    # Overloads share their name with what does the work.
    return max(same, key=lambda one: one.last_line - one.first_line, default=None)


def finding(
    rule: Rule,
    message: str,
    *places: str,
    severity: Severity | None = None,
    confidence: float = 1.0,
) -> Finding:
    """A finding of that rule at `path:line`, and where else to look."""
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


def short(text: str) -> str:
    """A line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= QUOTED else line[: QUOTED - 1] + "…"
