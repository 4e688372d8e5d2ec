"""weakened-test: existing tests are disabled, emptied or removed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from closeloop.changes.file_kinds import classify_file, is_test_file
from closeloop.changes.quality.changed_file import (
    MAX_LINE_CHARS,
    ChangedFile,
    list_changed_files,
    make_check_finding,
    shorten_line,
    split_git_lines,
)
from closeloop.records.change import Inspection, SourceFunction
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.record import Record
from closeloop.text.code_patterns import (
    ASSERTION,
    SKIPPED_TEST,
    find_loosened_assertion,
    find_lowered_floor,
    starting_test,
)

rules = (
    Rule(
        name="weakened-test",
        version=3,
        about="An existing test is switched off, loosened or removed.",
        severity="error",
        mode="silent regression",
        gates=True,
    ),
)

_ONLY = re.compile(r"\b(?:it|test|describe|context)\.only\(|^(?:fit|fdescribe)\(")
_TITLE = re.compile(r"\(\s*['\"`]([^'\"`]{3,80})")
_ALWAYS_TRUE = re.compile(r"^assert (?:True|1)\s*(?:#.*)?$|assertTrue\(True\)|^assert!\(true\)")
_WORD = re.compile(r"\w{3,}")
_CONDITION = re.compile(r"\b(?:xfail|skip)\((?!reason\b|strict\b|raises\b|run\b|[\"'f)])")
_CASE_LIST = re.compile(
    r"parametri[sz]e\b|\bsubTest\(|\.each\b|\bt\.Run\(|@(?:ParameterizedTest|ValueSource|CsvSource)"
    r"|^\s*for \w[^:]* in [\[(]|#\[(?:case|rstest)\b"
)
_LITERAL = re.compile(r"\"(?:\\.|[^\"\\])+\"|'(?:\\.|[^'\\])+'|(?<![\w.])\d[\w.]*")
_MIN_KEPT_SHARE = 0.8
_MIN_TEXT_CHARS = 7
"""Minimum length of a text with its quotes; shorter texts occur in many tests."""
_MAX_CASE_LINES = 60
"""Maximum lines between the list of cases and its test."""
_MAX_LINES_AHEAD = 8
"""Maximum lines between what is written above a test and the test."""


class _TestBody(Record):
    """A test with its lines, without indentation."""

    name: str
    first: int
    lines: tuple[str, ...]
    off: bool = False
    """Whether it is skipped by what is written above it."""

    @property
    def assertions(self) -> list[str]:
        return [line for line in self.lines if ASSERTION.search(line)]


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Check tests that existed before; one removed together with its subject is no loss."""
    removed_names = _removed_names(inspection)
    after = {
        name: test
        for file in list_changed_files(inspection, "test")
        for name, test in _parse_tests(
            file.lines, file.after.functions if file.after else ()
        ).items()
    }
    skips = _removed_skips(inspection)
    fewer = _lost_assertions(inspection)
    findings: list[Finding] = []
    for file in list_changed_files(inspection, "test"):
        if is_test_file(file.path) and file.before is not None:
            before = _tests_before(inspection, file.old_path)
            findings += _disabled_tests(file, before, skips)
            findings += _loosened_tests(file, before, removed_names, fewer)
    return [
        *findings,
        *_removed_tests(inspection, after, removed_names),
        *_lowered_floors(inspection),
    ]


def _removed_skips(inspection: Inspection) -> Counter[str]:
    """Count removed lines that skipped something: they may only have moved."""
    return Counter(
        line
        for path, numbers in inspection.removed.items()
        if classify_file(path) == "test"
        for number, text in enumerate(split_git_lines(inspection.sides.read("before", path)), 1)
        if number in numbers and SKIPPED_TEST.search(line := text.strip())
    )


def _lost_assertions(inspection: Inspection) -> Counter[str]:
    """Count assertions that are now fewer, in any file."""
    counts: Counter[str] = Counter()
    for file in inspection.files:
        if classify_file(file.path) == "test":
            for side, path in (("before", file.old_path or file.path), ("after", file.path)):
                for line in split_git_lines(inspection.sides.read(side, path)):
                    if ASSERTION.search(bare := line.strip()):
                        counts[bare] += 1 if side == "before" else -1
    return +counts


def _removed_names(inspection: Inspection) -> set[str]:
    """Return names that the product defined before and no longer does."""
    defined: dict[str, set[str]] = {"before": set(), "after": set()}
    for (side, path), module in inspection.modules.items():
        if classify_file(path) != "test":
            defined[side].update(function.name for function in module.functions)
            defined[side].update(type_.name for type_ in module.types)
            defined[side].update(name.text for name in module.names if name.kind == "definition")
    return {name for name in defined["before"] - defined["after"] if len(name) > 3}


def _removed_texts(inspection: Inspection) -> set[str]:
    """Return quoted texts that the product contained before and no longer does."""
    sources = [file for file in inspection.files if classify_file(file.path) == "source"]
    texts: set[str] = set()
    for file in sources:
        path = file.old_path or file.path
        numbers = inspection.removed.get(path, frozenset())
        lines = split_git_lines(inspection.sides.read("before", path)) if numbers else ()
        for number in numbers:
            line = lines[number - 1][:MAX_LINE_CHARS] if number <= len(lines) else ""
            texts.update(
                literal[1:-1]
                for literal in _LITERAL.findall(line)
                if len(literal) > _MIN_TEXT_CHARS
            )
    for file in sources if texts else ():
        after = (inspection.sides.read("after", file.path) or b"").decode("utf-8", "replace")
        texts = {text for text in texts if text not in after}
    return texts


def _tests_before(inspection: Inspection, path: str) -> Mapping[str, _TestBody]:
    module = inspection.modules.get(("before", path))
    lines = split_git_lines(inspection.sides.read("before", path))
    return _parse_tests(lines, module.functions if module else ())


def _parse_tests(
    lines: Sequence[str], functions: Sequence[SourceFunction]
) -> Mapping[str, _TestBody]:
    """Return tests by name: test functions, and in scripts the blocks of `it` or `test`."""
    bare = [line.strip() for line in lines]
    tests: dict[str, _TestBody] = {}
    for function in functions:
        decorator_names = {
            decorator.partition("(")[0].rpartition("::")[2] for decorator in function.decorators
        }
        if re.match(r"[tT]est", function.name) or decorator_names & {"Test", "test"}:
            body = bare[function.first_line - 1 : function.last_line]
            off = any(SKIPPED_TEST.search(f"@{decorator}") for decorator in function.decorators)
            tests[function.qualified] = _TestBody(
                name=function.name, first=function.first_line, lines=tuple(body), off=off
            )
    for index, line in enumerate(bare):
        if line.startswith(("it", "test", "xit", "xtest", "fit")):
            plain = re.sub(r"^[xf]?(it|test)(?:\.\w+)?\(", r"\1(", line)
            name = starting_test(plain)
            if name and not plain.startswith(("def ", "func ", "fn ", "async ")):
                end = next(
                    (
                        number
                        for number in range(index + 1, len(lines))
                        if bare[number]
                        and _indent_width(lines[number]) <= _indent_width(lines[index])
                    ),
                    len(lines),
                )
                tests.setdefault(
                    name, _TestBody(name=name, first=index + 1, lines=tuple(bare[index:end]))
                )
    return tests


def _indent_width(line: str) -> int:
    return len(line) - len(line.lstrip())


def _disabled_tests(
    file: ChangedFile, before: Mapping[str, _TestBody], skips: Counter[str]
) -> Iterator[Finding]:
    """Yield tests that existed before and are now skipped."""
    spare = skips.copy()
    for number in sorted(file.added):
        line = file.line_at(number).strip()
        if not SKIPPED_TEST.search(line):
            continue
        if spare[line] > 0:
            spare[line] -= 1
            continue
        if _ONLY.search(line):
            yield _weakening_finding(
                f"`{shorten_line(line)}` disables all other tests.", file, number
            )
        elif name := _find_skipped_test(file, number, before):
            yield _weakening_finding(f"`{name}` is disabled: `{shorten_line(line)}`.", file, number)


def _find_skipped_test(
    file: ChangedFile, number: int, before: Mapping[str, _TestBody]
) -> str | None:
    """Return the existing test that a skip on this line disables, unless it is conditional."""
    line = file.line_at(number).strip()
    names = {test.name for test in before.values() if not test.off}
    if (title := _TITLE.search(line)) and title[1] in names:
        return title[1]
    if line.startswith(("@", "#[")):
        if _CONDITION.search(line + file.line_at(number + 1).strip()):
            return None
        following = (file.line_at(number + offset).strip() for offset in range(1, _MAX_LINES_AHEAD))
        for nearby_line in following:
            match = re.search(r"\b(?:def|fn|func|void|fun) (\w+)", nearby_line)
            if match:
                return match[1] if match[1] in names else None
            if nearby_line.startswith("class "):
                return None
        return None
    line_above = next(
        (
            nearby_line
            for position in range(number - 1, 0, -1)
            if (nearby_line := file.line_at(position)).strip()
        ),
        "",
    )
    if (
        _indent_width(line_above) < _indent_width(file.line_at(number))
        and starting_test(line_above.strip()) in names
    ):
        return starting_test(line_above.strip())
    return None


def _loosened_tests(
    file: ChangedFile, before: Mapping[str, _TestBody], removed_names: set[str], fewer: Counter[str]
) -> Iterator[Finding]:
    after = _parse_tests(file.lines, file.after.functions if file.after else ())
    for key, old in before.items():
        new = after.get(key)
        if new is None or old.lines == new.lines:
            continue
        lost_assertions = [
            line for line in old.assertions if line not in new.lines and line in fewer
        ]
        if not lost_assertions or _mentions_any(lost_assertions, removed_names):
            continue
        new_lines = [line for line in new.lines if line not in old.lines]
        number = next(
            (
                number
                for number in range(new.first, new.first + len(new.lines))
                if number in file.added
            ),
            new.first,
        )
        always = next((line for line in new_lines if _ALWAYS_TRUE.search(line)), None)
        if always:
            yield _weakening_finding(
                f"`{shorten_line(lost_assertions[0])}` became `{shorten_line(always)}`.",
                file,
                number,
            )
        elif weak := find_loosened_assertion(lost_assertions, new_lines):
            old_line, new_line = map(shorten_line, weak)
            yield _weakening_finding(
                f"`{old_line}` became `{new_line}`, which checks less.", file, number
            )
        elif not new_lines:
            yield _weakening_finding(
                f"`{old.name}` lost {len(lost_assertions)} of {len(old.assertions)} assertions:"
                f" `{shorten_line(lost_assertions[0])}`.",
                file,
                number,
                certain=not new.assertions,
            )


def _removed_tests(
    inspection: Inspection, after: Mapping[str, _TestBody], removed_names: set[str]
) -> Iterator[Finding]:
    remaining_names = {test.name for test in after.values()}
    files = list(list_changed_files(inspection, "test"))
    texts = ["\n".join(file.lines) for file in files]
    cases = _added_cases(files)
    gone_texts = _removed_texts(inspection)
    for file in inspection.files:
        path = file.old_path or file.path
        if not is_test_file(path) or file.status == "added":
            continue
        before = _tests_before(inspection, path)
        lost_tests = [
            test
            for test in before.values()
            if test.name not in remaining_names
            and test.assertions
            and not inspection.index.defined(test.name)
            and (test.name.isidentifier() or not any(test.name in text for text in texts))
        ]
        remaining = [test for test in lost_tests if not _became_case(test, cases)]
        new = len(remaining_names - {test.name for test in before.values()})
        # The test that absorbed them replaces no other.
        new -= len(remaining) < len(lost_tests)
        lost_tests = remaining
        if (
            not lost_tests
            or len(lost_tests) <= new
            or any(_mentions_any(test.lines, removed_names) for test in lost_tests)
            or any(
                text in line for test in lost_tests for line in test.lines for text in gone_texts
            )
        ):
            continue
        line = min(inspection.added.get(file.path, frozenset()), default=1)
        names = ", ".join(f"`{shorten_line(test.name)}`" for test in lost_tests[:3])
        suffix = f" and {len(lost_tests) - 3} more" if len(lost_tests) > 3 else ""
        were = "was" if len(lost_tests) == 1 else "were"
        yield make_check_finding(
            rules[0],
            f"{names}{suffix} {were} removed, although no definition in the product was "
            "removed with it.",
            f"{file.path}:{line}",
            severity="warning",
            confidence=0.6,
        )


def _added_cases(files: Sequence[ChangedFile]) -> Counter[str]:
    """Count values in added lines and in changed parametrised tests, if there are any: such a test
    keeps lines of those that it replaces."""
    values: Counter[str] = Counter()
    for file in files:
        added = [file.line_at(number) for number in sorted(file.added)]
        tests = file.after.functions if file.after else ()
        changed = [
            test
            for test in tests
            if not file.added.isdisjoint(
                range(test.first_line - _MAX_CASE_LINES, test.last_line + 1)
            )
        ]
        decorators = [decorator for function in changed for decorator in function.decorators]
        if any(_CASE_LIST.search(text) for text in (*added, *decorators)):
            bodies = [
                file.line_at(number)
                for test in changed
                if any(_CASE_LIST.search(decorator) for decorator in test.decorators)
                for number in range(test.first_line, test.last_line + 1)
            ]
            values.update(value for line in (*added, *bodies) for value in _LITERAL.findall(line))
    return values


def _became_case(test: _TestBody, cases: Counter[str]) -> bool:
    """Return whether nearly all values of the test are now in such a list."""
    values = {value for line in test.lines[1:] for value in _LITERAL.findall(line)}
    return bool(values) and sum(value in cases for value in values) >= _MIN_KEPT_SHARE * len(values)


def _mentions_any(lines: Sequence[str], names: set[str]) -> bool:
    return bool(names) and any(not names.isdisjoint(_WORD.findall(line)) for line in lines)


def _lowered_floors(inspection: Inspection) -> Iterator[Finding]:
    for file in list_changed_files(inspection, "config", "manifest", "ci"):
        if not file.before and not any("fail" in line or "overage" in line for line in file.lines):
            continue
        old = split_git_lines(inspection.sides.read("before", file.old_path))
        removed_lines = inspection.removed.get(file.old_path, frozenset())
        numbers = sorted(file.added)
        removed_texts = [old[number - 1] for number in sorted(removed_lines) if number <= len(old)]
        floor = find_lowered_floor(removed_texts, (file.line_at(number) for number in numbers))
        if floor is not None:
            name, before, after, line = floor
            number = next(number for number in numbers if file.line_at(number) == line)
            message = f"{name} is lowered from {before} to {after}."
            yield _weakening_finding(message, file, number)


def _weakening_finding(
    message: str, file: ChangedFile, line: int, *, certain: bool = True
) -> Finding:
    return make_check_finding(
        rules[0],
        message,
        f"{file.path}:{line}",
        severity="error" if certain else "warning",
        confidence=0.9 if certain else 0.6,
    )
