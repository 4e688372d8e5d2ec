"""What base and reference must show before a pass counts: they load the tests, and mend them."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest
from grading_shop import Shop
from probe_runner import make_request, run_probe, write_files

from closeloop.cli.show import render_grade_facts
from closeloop.grading.grading import find_unsteady_tests
from closeloop.grading.integrity import python
from closeloop.grading.integrity.confirm import ProbeRun, confirm_tests
from closeloop.grading.integrity.probe import ProbeTest, Results
from closeloop.grading.runner_reports import Status
from closeloop.records.attempt import Grade, IntegrityCheck, Outcome
from small_project import pytest_command
from warm_pytest import PYTHON

pytestmark = pytest.mark.usefixtures("warm_python")

PYTEST = pytest_command(PYTHON)
BROKEN = "def total(prices):\n    return sum(prices) + 1\n"
FIXED = "def total(prices):\n    return sum(prices)\n"
TOTAL = "tests/test_shop.py::test_total"
HIDDEN = {
    "tests/conftest.py": "from shop import VERSION\n",
    "tests/test_shop.py": "from shop import total\n\n\n"
    "def test_total():\n    assert total([1]) == 1\n",
}
ANY = "class Any:\n    def __eq__(self, other): return True\ndef total(prices): return Any()\n"
IN_PROBE = "import os\nif 'closeloop' in os.environ.get('PYTHONPATH', ''): "
KILLED = {
    "at once": ANY + "VERSION = 1\n" + IN_PROBE + "os._exit(3)\n",
    "with 0": ANY + "VERSION = 1\n" + IN_PROBE + "os._exit(0)\n",
    "in the test": "VERSION = 1\nimport os\ndef total(prices):\n"
    "    if 'closeloop' in os.environ.get('PYTHONPATH', ''): os._exit(1)\n    return 1\n",
}


@pytest.fixture
def hidden_shop(tmp_path: Path) -> Shop:
    """A shop whose base cannot load the conftest of its hidden tests."""
    shop = Shop(tmp_path, {"shop.py": BROKEN})
    shop.accept(run=PYTEST, fail_to_pass=(TOTAL,), patch=shop.patch(HIDDEN))
    return shop


@pytest.mark.parametrize("how", KILLED)
def test_a_second_process_that_is_killed_is_no_pass(hidden_shop: Shop, how: str) -> None:
    graded = hidden_shop.grade({"shop.py": KILLED[how]})
    assert graded.outcome.result in ("unscored", "fail"), graded
    if graded.outcome.result == "unscored":
        assert "did not report in a second process" in (graded.outcome.cause or "")


def test_a_right_change_passes_though_its_base_cannot_load_the_tests(hidden_shop: Shop) -> None:
    graded = hidden_shop.grade({"shop.py": FIXED + "VERSION = 1\n"})
    assert (graded.outcome.result, graded.evidence) == ("pass", "confirmed"), graded


REPORT = "<testsuite><testcase classname='a' name='b'/></testsuite>"
WRITES = f'open("report.xml", "w").write("{REPORT}")\n'
CHECK = "import shop\nassert shop.total([1, 2]) == 3\n"
COMMAND = f"{sys.executable} check.py"


@pytest.mark.parametrize("has_report", [False, True])
def test_a_script_must_notice_a_wrong_assertion_of_its_own(
    tmp_path: Path, has_report: bool
) -> None:
    """Whatever a product writes: it may not end its check before the last assertion."""
    check = CHECK + WRITES * has_report
    shop = Shop(tmp_path, {"shop.py": BROKEN, "check.py": check}, commands=(COMMAND,))
    if has_report:
        shop.accept(run=COMMAND, runner="junit", report="report.xml", fail_to_pass=("a::b",))
    ends = WRITES * has_report + "import os\nos._exit(0)\n"
    forged = shop.grade({"shop.py": BROKEN + ends})
    assert forged.outcome.result == "fail", forged
    assert "tampered-result" in forged.outcome.reasons[0]
    honest = shop.grade({"shop.py": FIXED})
    evidence = "reported" if has_report else "weak"
    assert (honest.outcome.result, honest.evidence) == ("pass", evidence), honest


MAIN = "import shop\nshop.main()\nassert shop.is_done\n"
ENDS = {
    "a program that ends itself": (
        MAIN,
        "def main():\n    raise ValueError\n",
        "import sys\n\n\ndef main():\n    sys.exit(0)\n",
        "pass",
    ),
    "a function that ends where the base goes on": (
        CHECK,
        BROKEN,
        "import os\n\n\ndef total(prices):\n    os._exit(0)\n",
        "fail",
    ),
    "a module that the base lacks and that ends when imported": (
        f"import basket\n{CHECK}",
        BROKEN,
        "raise SystemExit(0)\n",
        "fail",
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_product_may_end_its_process_unless_the_base_shows_that_it_must_not(
    tmp_path: Path, how: str
) -> None:
    check, base, change, result = ENDS[how]
    shop = Shop(tmp_path, {"shop.py": base, "check.py": check}, commands=(COMMAND,))
    graded = shop.grade({"basket.py" if "basket" in check else "shop.py": change})
    assert graded.outcome.result == result, graded
    if result == "pass":
        assert graded.evidence == "weak"
        assert "perturbed" in {c.name for c in graded.integrity if c.state == "not applicable"}


def test_a_change_that_does_nothing_never_passes_by_the_files_of_the_reference(
    tmp_path: Path,
) -> None:
    """The repair lies in a folder of tests, whose files are the reference's for every attempt."""
    files = {
        "testing/shop.py": BROKEN,
        "testing/test_shop.py": "from testing.shop import total\n\n\n"
        "def test_total():\n    assert total([1, 2]) == 3\n",
        "testing/__init__.py": "",
        "CHANGES.md": "# 1\n",
    }
    shop = Shop(tmp_path, files, run=PYTEST, fail_to_pass=("testing/test_shop.py::test_total",))
    reference = {"testing/shop.py": FIXED, "CHANGES.md": "# 2\n"}
    assert shop.grade_patch("", reference).outcome.result == "fail"
    graded = shop.grade({"CHANGES.md": "# nothing\n"}, reference)
    assert graded.outcome.result == "unscored", graded
    assert (
        "an empty change passes, with the files that the reference creates from testing/shop.py"
        in str(graded.outcome.cause)
    )


NO_CHANGES = {
    "nothing": {},
    "a comment": {"shop.py": BROKEN + "# checked\n"},
    "its tests": {"tests/test_shop.py": "def test_total():\n    pass\n"},
    "a new file": {"notes.txt": "done\n"},
}


@pytest.mark.parametrize("what", NO_CHANGES)
def test_a_change_that_repairs_nothing_fails(tmp_path: Path, what: str) -> None:
    test = HIDDEN["tests/test_shop.py"]
    shop = Shop(tmp_path, {"shop.py": BROKEN, "tests/test_shop.py": test}, run=PYTEST)
    reference = {"shop.py": FIXED, "tests/test_shop.py": test + "    assert total([]) == 0\n"}
    assert shop.grade(NO_CHANGES[what], reference).outcome.result == "fail"


def test_a_plugin_that_is_installed_may_exchange_functions_of_pytest(tmp_path: Path) -> None:
    """That of hypothesis does: else each pass in such a project would be probed three times."""
    files = {"shop.py": FIXED + "VERSION = 1\n", **HIDDEN}
    write_files(tmp_path, files)
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider"
    request = make_request(tmp_path, "pytest", command, [TOTAL], HIDDEN)
    outcome = run_probe(python, request)
    assert outcome.violations() == [], outcome
    assert any("replaced" in test.how for test in outcome.probe.tests)
    patched = "from _pytest import fixtures\nfixtures.FixtureFunctionMarker.__call__ = print\n"
    write_files(tmp_path, {**files, "shop.py": files["shop.py"] + patched})
    outcome = run_probe(python, make_request(tmp_path, "pytest", command, [TOTAL], HIDDEN))
    assert outcome.violations() == [("control", "pass", "failed")], outcome


@pytest.mark.parametrize(
    ("first", "second", "unsteady"), [("01", "10", False), ("01", "11", True), ("11", "11", False)]
)
def test_parameters_that_change_places_are_not_unsteady(
    first: str, second: str, unsteady: bool
) -> None:
    """The ids of parameters that a set gives are in another order in each process."""
    names = [f"test_{letter}[{number}]" for letter in "ab" for number in range(2)]
    tests = tuple(
        ProbeTest(name=name, kind="copy", expect="pass", original=f"was {name}") for name in names
    )
    probes = [
        ProbeRun(
            tests=tests,
            results={
                name: "passed" if mark == "1" else "failed"
                for name, mark in zip(names, f"{marks}11", strict=True)
            },
        )
        for marks in (first, second)
    ]
    found = find_unsteady_tests([], probes, [f"was {name}" for name in names])
    assert found == (["was test_a[0]"] if unsteady else [])


@pytest.mark.parametrize(("in_control", "state"), [("failed", "held"), ("passed", "violated")])
def test_a_parameter_that_fails_under_another_name_may_be_another_with_the_reference(
    in_control: Status, state: str
) -> None:
    """Of many tests some are chosen: the control may fail with a parameter that was not."""
    test = ProbeTest(name="test_a[0]", kind="copy", expect="pass", original="test_was[0]")
    steady = ProbeTest(name="test_b", kind="copy", expect="pass", original="test_fixed")

    async def probe(patch: str | None, token: str, room: int) -> ProbeRun:
        results: Results = {"test_a[0]": "failed", "test_a[1]": "passed", "test_b": "passed"}
        if patch == "reference":
            results |= {"test_a[0]": "passed", "test_a[1]": in_control}
        return ProbeRun(tests=(test, steady), results=results, exit_code=1)

    checks = anyio.run(confirm_tests, probe, "patch", "reference", ["test_fixed"])
    assert {check.name: check.state for check in checks}["confirmed"] == state


@pytest.mark.parametrize(
    ("evidence", "state", "words"),
    [
        ("confirmed", "held", "confirmed: the tests also pass in a second process"),
        ("reported", "held", "unconfirmed: graded without a sandbox"),
        ("reported", "not applicable", "unconfirmed: the tests could not be confirmed"),
    ],
)
def test_a_grade_says_why_it_is_not_confirmed(evidence: str, state: str, words: str) -> None:
    graded = Grade(
        attempt="a",
        grading="g",
        version=1,
        outcome=Outcome(result="pass"),
        evidence=evidence,  # type: ignore[arg-type]
        integrity=(
            IntegrityCheck(name="confirmed", state="held"),
            IntegrityCheck(name="perturbed", state=state),  # type: ignore[arg-type]
        ),
    )
    assert any(words in text.plain for text in render_grade_facts(graded))
