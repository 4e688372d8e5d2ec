"""weakened-test: existing tests are switched off, emptied or removed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from closeloop.changes.kinds import is_test, kind_of
from closeloop.changes.quality.changed import Changed, changed, finding, short, text_of
from closeloop.model.assertions import ASSERTION, FLOOR, SKIP, WEAK, begun_test
from closeloop.model.finding import Finding, Rule, Unmeasured
from closeloop.model.inspection import Function, Inspection
from closeloop.model.record import Record

rules = (
    Rule(
        name="weakened-test",
        version=1,
        about="A test that was there is switched off, loosened or removed.",
        severity="error",
        mode="silent regression",
        gates=True,
    ),
)

_ONLY = re.compile(r"\b(?:it|test|describe|context)\.only\(|^(?:fit|fdescribe)\(")
_TITLE = re.compile(r"\(\s*['\"`]([^'\"`]{3,80})")
_ALWAYS = re.compile(r"^assert (?:True|1)\s*(?:#.*)?$|assertTrue\(True\)|^assert!\(true\)")
_WORD = re.compile(r"\w{3,}")
_CONDITION = re.compile(r"\b(?:xfail|skip)\((?!reason\b|strict\b|raises\b|run\b|[\"'f)])")
_AHEAD = 8
"""A test begins so many lines after what is written above it."""


class _Test(Record):
    """A test with its lines, each without its indentation."""

    name: str
    first: int
    lines: tuple[str, ...]
    off: bool = False
    """Skipped, by what is written above it."""

    @property
    def assertions(self) -> list[str]:
        return [line for line in self.lines if ASSERTION.search(line)]


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Tests that were there before; one that goes with what it tested is no loss."""
    gone = _gone(inspection)
    after = {
        name: test
        for file in changed(inspection, "test")
        for name, test in _tests(file.lines, file.after.functions if file.after else ()).items()
    }
    skips = _skips(inspection)
    fewer = _fewer(inspection)
    found: list[Finding] = []
    for file in changed(inspection, "test"):
        if is_test(file.path) and file.before is not None:
            before = _before(inspection, file.old_path)
            found += _switched_off(file, before, skips)
            found += _loosened(file, before, gone, fewer)
    return [*found, *_removed(inspection, after, gone), *_lowered(inspection)]


def _skips(inspection: Inspection) -> Counter[str]:
    """Lines that the change takes away and that skipped something: they may only have moved."""
    return Counter(
        line
        for path, numbers in inspection.removed.items()
        if kind_of(path) == "test"
        for at, text in enumerate(text_of(inspection.sides.read("before", path)), 1)
        if at in numbers and SKIP.search(line := text.strip())
    )


def _fewer(inspection: Inspection) -> Counter[str]:
    """Assertions that there are fewer of than before, wherever they stood."""
    counts: Counter[str] = Counter()
    for file in inspection.files:
        if kind_of(file.path) == "test":
            for side, path in (("before", file.old_path or file.path), ("after", file.path)):
                for line in text_of(inspection.sides.read(side, path)):
                    if ASSERTION.search(bare := line.strip()):
                        counts[bare] += 1 if side == "before" else -1
    return +counts


def _gone(inspection: Inspection) -> set[str]:
    """Names that the product defined before, and no more."""
    defined: dict[str, set[str]] = {"before": set(), "after": set()}
    for (side, path), module in inspection.modules.items():
        if kind_of(path) != "test":
            defined[side].update(one.name for one in module.functions)
            defined[side].update(one.name for one in module.types)
            defined[side].update(one.text for one in module.names if one.kind == "definition")
    return {name for name in defined["before"] - defined["after"] if len(name) > 3}


def _before(inspection: Inspection, path: str) -> Mapping[str, _Test]:
    module = inspection.modules.get(("before", path))
    lines = text_of(inspection.sides.read("before", path))
    return _tests(lines, module.functions if module else ())


def _tests(lines: Sequence[str], functions: Sequence[Function]) -> Mapping[str, _Test]:
    """By name: functions that are tests, and for scripts the blocks that `it` or `test` begin."""
    bare = [line.strip() for line in lines]
    found: dict[str, _Test] = {}
    for one in functions:
        marks = {mark.partition("(")[0].rpartition("::")[2] for mark in one.decorators}
        if re.match(r"[tT]est", one.name) or marks & {"Test", "test"}:
            inside = bare[one.first_line - 1 : one.last_line]
            off = any(SKIP.search(f"@{mark}") for mark in one.decorators)
            found[one.qualified] = _Test(
                name=one.name, first=one.first_line, lines=tuple(inside), off=off
            )
    for at, line in enumerate(bare):
        if line.startswith(("it", "test", "xit", "xtest", "fit")):
            plain = re.sub(r"^[xf]?(it|test)(?:\.\w+)?\(", r"\1(", line)
            name = begun_test(plain)
            if name and not plain.startswith(("def ", "func ", "fn ", "async ")):
                end = next(
                    (
                        number
                        for number in range(at + 1, len(lines))
                        if bare[number] and _depth(lines[number]) <= _depth(lines[at])
                    ),
                    len(lines),
                )
                found.setdefault(name, _Test(name=name, first=at + 1, lines=tuple(bare[at:end])))
    return found


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _switched_off(
    file: Changed, before: Mapping[str, _Test], skips: Counter[str]
) -> Iterator[Finding]:
    """More skips than there were, of tests that were there."""
    spare = skips.copy()
    for number in sorted(file.added):
        line = file.line(number).strip()
        if not SKIP.search(line):
            continue
        if spare[line] > 0:
            spare[line] -= 1
            continue
        if _ONLY.search(line):
            yield _found(f"`{short(line)}` switches all other tests off.", file, number)
        elif name := _existing(file, number, before):
            yield _found(f"`{name}` is switched off: `{short(line)}`.", file, number)


def _existing(file: Changed, number: int, before: Mapping[str, _Test]) -> str | None:
    """The test that was there and that a skip on this line means, unless under a condition."""
    line = file.line(number).strip()
    names = {test.name for test in before.values() if not test.off}
    if (title := _TITLE.search(line)) and title[1] in names:
        return title[1]
    if line.startswith(("@", "#[")):
        if _CONDITION.search(line + file.line(number + 1).strip()):
            return None
        following = (file.line(number + ahead).strip() for ahead in range(1, _AHEAD))
        for other in following:
            match = re.search(r"\b(?:def|fn|func|void|fun) (\w+)", other)
            if match:
                return match[1] if match[1] in names else None
            if other.startswith("class "):
                return None
        return None
    above = next((other for at in range(number - 1, 0, -1) if (other := file.line(at)).strip()), "")
    if _depth(above) < _depth(file.line(number)) and begun_test(above.strip()) in names:
        return begun_test(above.strip())
    return None


def _loosened(
    file: Changed, before: Mapping[str, _Test], gone: set[str], fewer: Counter[str]
) -> Iterator[Finding]:
    after = _tests(file.lines, file.after.functions if file.after else ())
    for key, old in before.items():
        new = after.get(key)
        if new is None or old.lines == new.lines:
            continue
        lost = [line for line in old.assertions if line not in new.lines and line in fewer]
        if not lost or _mentions(lost, gone):
            continue
        fresh = [line for line in new.lines if line not in old.lines]
        number = next(
            (at for at in range(new.first, new.first + len(new.lines)) if at in file.added),
            new.first,
        )
        always = next((line for line in fresh if _ALWAYS.search(line)), None)
        if always:
            yield _found(f"`{short(lost[0])}` became `{short(always)}`.", file, number)
        elif weak := _weaker(lost, fresh):
            yield _found(f"`{weak[0]}` became `{weak[1]}`, which says less.", file, number)
        elif not fresh:
            yield _found(
                f"`{old.name}` lost {len(lost)} of {len(old.assertions)} assertions:"
                f" `{short(lost[0])}`.",
                file,
                number,
                certain=not new.assertions,
            )


def _weaker(lost: Sequence[str], fresh: Sequence[str]) -> tuple[str, str] | None:
    """The same thing is asserted, but only that it is there."""
    heads = {head: line for line in lost if not WEAK.search(line) and (head := _about(line))}
    if any(_about(line) in heads and not WEAK.search(line) for line in fresh):
        return None
    for line in fresh:
        if ASSERTION.search(line) and WEAK.search(line) and (old := heads.get(_about(line))):
            return short(old), short(line)
    return None


def _about(line: str) -> str:
    """What is asserted of, however it is: `x` in `assert x == 1` and in `assert x is not None`."""
    line = re.sub(r"^(?:await )?assert ", "", line)
    match = re.match(
        r"(?:self\.assert\w+|assert\w*!?|expect|isinstance)\(([^,()]+(?:\([^()]*\))?)", line
    )
    return match[1].strip() if match else re.split(r" (?:==|is|!=|in|not|>|<)", line)[0]


def _removed(
    inspection: Inspection, after: Mapping[str, _Test], gone: set[str]
) -> Iterator[Finding]:
    kept = {test.name for test in after.values()}
    texts = ["\n".join(file.lines) for file in changed(inspection, "test")]
    for file in inspection.files:
        path = file.old_path or file.path
        if not is_test(path) or file.status == "added":
            continue
        before = _before(inspection, path)
        lost = [
            test
            for test in before.values()
            if test.name not in kept
            and test.assertions
            and not inspection.index.defined(test.name)
            and (test.name.isidentifier() or not any(test.name in text for text in texts))
        ]
        new = len(kept - {test.name for test in before.values()})
        if not lost or len(lost) <= new or any(_mentions(test.lines, gone) for test in lost):
            continue
        line = min(inspection.added.get(file.path, frozenset()), default=1)
        names = ", ".join(f"`{short(test.name)}`" for test in lost[:3])
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        were = "was" if len(lost) == 1 else "were"
        yield finding(
            rules[0],
            f"{names}{more} {were} removed, and nothing that the product defines went with it.",
            f"{file.path}:{line}",
            severity="warning",
            confidence=0.6,
        )


def _mentions(lines: Sequence[str], names: set[str]) -> bool:
    return bool(names) and any(not names.isdisjoint(_WORD.findall(line)) for line in lines)


def _lowered(inspection: Inspection) -> Iterator[Finding]:
    for file in changed(inspection, "config", "manifest", "ci"):
        if not file.before and not any("fail" in line or "overage" in line for line in file.lines):
            continue
        old = text_of(inspection.sides.read("before", file.old_path))
        removed = inspection.removed.get(file.old_path, frozenset())
        floors = {
            match[1]: float(match[2])
            for number in removed
            if number <= len(old) and (match := FLOOR.search(old[number - 1]))
        }
        for number in sorted(file.added):
            match = FLOOR.search(file.line(number))
            if match and float(match[2]) < floors.get(match[1], 0):
                told = f"{match[1]} is lowered from {floors[match[1]]:g} to {match[2]}."
                yield _found(told, file, number)


def _found(message: str, file: Changed, line: int, *, certain: bool = True) -> Finding:
    return finding(
        rules[0],
        message,
        f"{file.path}:{line}",
        severity="error" if certain else "warning",
        confidence=0.9 if certain else 0.6,
    )
