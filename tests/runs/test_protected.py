"""Which files an attempt cannot win by changing."""

from __future__ import annotations

import pytest

from closeloop.model.globs import matches
from closeloop.model.task import Acceptance, Task
from closeloop.runs.protected import put_back

PATCH = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"
TEST = "tests/test_bill.py::test_rounds"


def aside(reference: str | None = None, protected: tuple[str, ...] = (), **acceptance: object):
    task = Task(
        id="x",
        prompt="Do it.",
        protected=protected,
        reference=reference and PATCH.format(reference),
        acceptance=Acceptance(**{"run": "python -m pytest", **acceptance}),
    )
    return put_back(task)


def test_what_the_verdict_hangs_on_is_put_back() -> None:
    globs = aside(
        protected=("fixtures/**",),
        fail_to_pass=(TEST,),
        pass_to_pass=("tests/sub/test_x.py::test_a[1]", "billing::tests::rounds"),
        patch=PATCH.format("tests/test_new.py"),
    )
    for path in (
        "fixtures/a/b",
        "tests/test_bill.py",
        "tests/sub/test_x.py",
        "tests/test_new.py",
        "conftest.py",
        "a/b/conftest.py",
        "pytest.ini",
        "tox.ini",
        "web/jest.config.ts",
        "pytest.py",
        "_pytest/runner.py",
    ):
        assert matches(path, globs), path
    for path in ("billing/code.rs", "src/billing.py", "tests/other.py", "pyproject.toml"):
        assert not matches(path, globs), path


@pytest.mark.parametrize(
    ("test", "file"),
    [
        ("src/cart.test.ts > cart > adds", "src/cart.test.ts"),
        ("tests.test_bill.TestBill.test_rounds", "tests/test_bill.py"),
        ("test_bill.TestBill.test_rounds", "tests/test_bill.py"),
        ("a[1]*.ts::x", "a[1]*.ts"),
    ],
)
def test_a_test_id_of_any_runner_protects_its_file_and_no_other(test: str, file: str) -> None:
    assert matches(file, aside(fail_to_pass=(test,)))
    assert not matches("a1b.ts", aside(fail_to_pass=(test,)))


def test_a_java_test_protects_its_class() -> None:
    globs = aside(runner="junit", report="r", fail_to_pass=("org.acme.BillTest$Inner::rounds",))
    assert matches("src/test/java/org/acme/BillTest.java", globs)
    assert not matches("src/main/java/org/acme/Bill.java", globs)


def test_what_the_reference_changes_is_the_agents_to_change() -> None:
    assert matches("pyproject.toml", aside("src/billing.py"))
    assert matches("conftest.py", aside("pyproject.toml"))
    assert not matches("pyproject.toml", aside("pyproject.toml"))
    assert not matches("conftest.py", aside("tests/conftest.py"))


def test_without_a_test_command_only_what_the_task_says_is_put_back() -> None:
    assert aside(run=None, commands=("make",), protected=("a",)) == ("a",)
