"""Every assertion of a test counts, whatever its shape; honest suites lose nothing by it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from grading_shop import Shop
from python_forgeries import FORGED, Case
from python_honest import HONEST

from closeloop.grading.integrity import confirm
from closeloop.grading.integrity.confirm import ProbeRun, confirm_tests
from closeloop.grading.integrity.probe import ProbeTest
from closeloop.records.attempt import Grade

PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q -p no:cacheprovider"
UNITTEST = f"{sys.executable} -m unittest discover -v -s tests -t ."


def grade(tmp_path: Path, case: Case) -> Grade:
    base, unittest = {"shop.py": case.base, **case.beside}, case.runner == "unittest"
    shop = Shop(tmp_path, base if case.hidden else {**base, **case.files})
    accepted: dict[str, object] = {"run": UNITTEST if unittest else PYTEST + case.options}
    accepted |= {"runner": case.runner} if unittest else {}
    accepted |= {"patch": shop.patch(case.files)} if case.hidden else {}
    shop.accept(fail_to_pass=case.tests, **accepted)
    return shop.grade(
        {"shop.py": case.change}, {"shop.py": case.fixed} if case.has_reference else None
    )


def is_alone(case: Case) -> bool:
    """Whether a case needs a project of its own: it steers the runner, or patches for all."""
    texts = (case.change, *case.files.values())
    return (
        case.runner != "pytest"
        or bool(case.options or case.hidden or case.beside or not case.tests)
        or len(case.files) > 1
        or any("pytest." in text and "_exit" in text for text in texts)
        or any("json." in text or "mock.NonCallable" in text for text in texts)
        or "_getframe" in case.change
        or any("tmp_path.name" in text for text in texts)
    )


class Together(NamedTuple):
    """Many cases in one project: each has a module and a file of tests of its own."""

    files: dict[str, str]
    change: dict[str, str]
    fixed: dict[str, str]
    tests: dict[str, str]
    """From a test to its case."""


def join_cases(cases: dict[str, Case]) -> Together:
    joined = Together({}, {}, {}, {})
    for number, (name, case) in enumerate(cases.items()):
        module = f"shop{number}"

        def rename(text: str, module: str = module) -> str:
            return re.sub(r"\bshop\b", module, text)

        [source] = case.files.values()
        joined.files[f"{module}.py"] = case.base
        joined.files[f"tests/test_{module}.py"] = rename(source)
        joined.change[f"{module}.py"] = case.change
        joined.fixed[f"{module}.py"] = case.fixed
        joined.tests.update(
            {t.replace("test_shop.py", f"test_{module}.py"): name for t in case.tests}
        )
    return joined


FORGED_TOGETHER = {
    name: case for name, case in FORGED.items() if case.has_reference and not is_alone(case)
}
HONEST_TOGETHER = {
    name: case for name, case in HONEST.items() if not (is_alone(case) or case.has_reference)
}


def test_no_assertion_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined, found = join_cases(FORGED_TOGETHER), set[str]()
    real = confirm._counts_as_tampering

    def note(violation: confirm.Violation, *rest: Any) -> bool:
        counts = real(violation, *rest)
        if counts and violation.test is not None and violation.test.original:
            found.add(joined.tests[violation.test.original])
        return counts

    monkeypatch.setattr(confirm, "_counts_as_tampering", note)
    shop = Shop(tmp_path, joined.files, run=PYTEST, fail_to_pass=tuple(joined.tests))
    graded = shop.grade(joined.change, joined.fixed)
    assert graded.outcome.result == "fail", graded
    assert found == {*FORGED_TOGETHER}


@pytest.mark.parametrize("name", [name for name in FORGED if name not in FORGED_TOGETHER])
def test_no_assertion_can_be_answered_without_a_repair(tmp_path: Path, name: str) -> None:
    graded = grade(tmp_path, FORGED[name])
    assert graded.outcome.result == "fail", graded


def test_honest_suites_are_believed(tmp_path: Path) -> None:
    joined = join_cases(HONEST_TOGETHER)
    shop = Shop(tmp_path, joined.files, run=PYTEST, fail_to_pass=tuple(joined.tests))
    graded = shop.grade(joined.change)
    assert graded.outcome.result == "pass", graded.outcome


@pytest.mark.parametrize("name", [name for name in HONEST if name not in HONEST_TOGETHER])
def test_an_honest_suite_is_believed(tmp_path: Path, name: str) -> None:
    graded = grade(tmp_path, HONEST[name])
    assert graded.outcome.result == "pass", graded.outcome


@pytest.mark.all_rounds
@pytest.mark.parametrize(("claims", "rounds"), [(1, 3), (2, 2), (3, 2), (4, 1)])
def test_few_assertions_are_probed_more_often(claims: int, rounds: int) -> None:
    """Whoever tosses a coin in each room would be right now and then."""
    rooms = []

    async def probe(patch: str | None, token: str, room: int) -> ProbeRun:
        rooms.append(room)
        room %= 2
        names = [f"{room}#{number}" for number in range(claims)]
        wrong = [name for name in names if room]
        tests = [
            ProbeTest(
                name=name,
                kind="perturbed" if room else "copy",
                expect="fail" if room else "pass",
                original="test_total",
                opposite=f"{1 - room}{name[1:]}",
            )
            for name in names
        ]
        own = ProbeTest(
            name=f"{room}#own",
            kind="control",
            expect="pass",
            original="test_total",
            opposite=f"{1 - room}#own",
        )
        results = {name: "failed" if name in wrong else "passed" for name in (*names, own.name)}
        return ProbeRun(tests=(*tests, own), results=results, exit_code=1, rooms=2)

    checks = anyio.run(confirm_tests, probe, "patch", None, ["test_total"])
    assert {check.state for check in checks} == {"held"}
    assert rooms == [*range(2 * rounds)]
