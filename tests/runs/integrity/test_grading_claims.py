"""Every assertion of a test counts, whatever its shape; honest suites lose nothing by it."""

from __future__ import annotations

import re
import secrets
import sys
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec
import pytest
from grading_shop import Shop
from python_forgeries import FORGED, Case
from python_honest import HONEST

from closeloop.grading import grading
from closeloop.grading.integrity.confirm import ProbeRun, ProbeTests, confirm_tests
from closeloop.grading.integrity.probe import ProbeTest, Results
from closeloop.grading.runner_reports import Status
from closeloop.records.attempt import Grade
from closeloop.records.attempt import IntegrityCheck as Check
from rerun import PLUGINS
from small_project import pytest_command
from warm_pytest import PYTHON

pytestmark = pytest.mark.usefixtures("warm_python")

PYTEST = f"PYTHONPATH={PLUGINS} {pytest_command(PYTHON)}"
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

    async def confirm_each(
        probe: ProbeTests, patch: str, reference: str, *_: object
    ) -> list[Check]:
        """Confirm each case by its own tests, as if it were graded alone."""
        runs: dict[tuple[str | None, int], ProbeRun] = {}
        shared_token = secrets.token_hex(16)
        checks: list[Check] = []
        for name in FORGED_TOGETHER:
            tests = [test for test, case in joined.tests.items() if case == name]

            async def probe_case(
                patch: str | None, token: str, room: int, tests: list[str] = tests
            ) -> ProbeRun:
                if (patch, room) not in runs:
                    runs[patch, room] = await probe(patch, shared_token, room)
                run = runs[patch, room]
                own = tuple(test for test in run.tests if test.original in tests)
                return msgspec.structs.replace(run, tests=own)

            checks += (case_checks := await confirm_tests(probe_case, patch, reference, tests))
            if any(check.state == "violated" for check in case_checks):
                found.add(name)
        return checks

    monkeypatch.setattr(grading, "confirm_tests", confirm_each)
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


@pytest.mark.parametrize(
    ("wrong", "in_control", "state", "probed"),
    [
        (0, "failed", "violated", "p0 r0"),
        (1, "failed", "violated", "p0 p1 r1"),
        (0, "passed", "not applicable", "p0 r0 p1 r1 p0"),
    ],
)
def test_a_wrong_assertion_that_holds_ends_the_probing(
    wrong: int, in_control: Status, state: str, probed: str
) -> None:
    """Unless it holds with the reference too."""
    rooms: list[str] = []

    async def probe(patch: str | None, token: str, room: int) -> ProbeRun:
        rooms.append(f"{(patch or '')[:1]}{room}")
        is_wrong = room == wrong
        test = ProbeTest(
            name=f"{room}#one",
            kind="perturbed" if is_wrong else "copy",
            expect="fail" if is_wrong else "pass",
            original="test_total",
            opposite=f"{1 - room}#one",
        )
        status: Status = in_control if is_wrong and patch == "reference" else "passed"
        return ProbeRun(tests=(test,), results={test.name: status}, exit_code=1, rooms=2)

    checks = anyio.run(confirm_tests, probe, "patch", "reference", ["test_total"])
    assert {check.name: check.state for check in checks}["perturbed"] == state
    assert rooms == probed.split()


@pytest.mark.parametrize(
    ("right", "wrong", "state"),
    [
        ("a", ("b", "b"), "violated"),
        ("a", ("a", "a"), "not applicable"),
        ("a", ("b", "c"), "not applicable"),
        (None, ("b", "b"), "not applicable"),
    ],
    ids=["read", "met by chance", "random", "unknown"],
)
def test_an_answer_that_follows_what_each_room_expects_was_read_there(
    right: str | None, wrong: tuple[str, str], state: str
) -> None:
    """`"hello" in page` holds in a room and `"world" in page` in the other: not of one page."""
    answers = iter(wrong)

    async def probe(patch: str | None, token: str, room: int) -> ProbeRun:
        name, other = f"{room}#one", f"{1 - room}#one"
        test = ProbeTest(
            name=name,
            kind="perturbed" if room else "copy",
            expect="fail" if room else "pass",
            original="test_total",
            opposite=other,
            certain=not room,
            met_by_many=True,
        )
        answer = next(answers) if room and patch else right
        held: Status = "passed" if patch else "failed"
        results: Results = {name: held} | ({f"{name}={answer}": "passed"} if answer else {})
        return ProbeRun(tests=(test,), results=results, exit_code=1, rooms=2)

    checks = anyio.run(confirm_tests, probe, "patch", None, ["test_total"])
    assert {check.name: check.state for check in checks}["perturbed"] == state


def test_an_answer_that_meets_a_wrong_assertion_by_chance_excuses_no_other() -> None:
    async def probe(patch: str | None, token: str, room: int) -> ProbeRun:
        tests = [
            ProbeTest(
                name=f"{room}#{label}",
                kind="perturbed" if room else "copy",
                expect="fail" if room else "pass",
                original="test_total",
                opposite=f"{1 - room}#{label}",
                certain=not room or not by_chance,
                met_by_many=by_chance,
            )
            for label, by_chance in (("one", True), ("two", False))
        ]
        results: Results = {f"{room}#one": "passed", f"{room}#one=a": "passed"}
        results[f"{room}#two"] = "failed" if room else "passed"
        if patch is None:
            results = dict.fromkeys((f"{room}#one", f"{room}#two"), "failed")
        return ProbeRun(tests=tuple(tests), results=results, exit_code=1, rooms=2)

    checks = anyio.run(confirm_tests, probe, "patch", None, ["test_total"])
    assert {check.name: check.state for check in checks}["perturbed"] == "held"
