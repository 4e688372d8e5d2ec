"""Which files an attempt cannot win by changing."""

from __future__ import annotations

from pathlib import Path

import pytest

from closeloop.grading.integrity.restore import (
    BaseTree,
    Steering,
    read_steering,
    run_through,
    why_restored,
)
from closeloop.records.task import Acceptance, Task

PATCH = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"
TEST = "tests/test_bill.py::test_rounds"


def steering(
    base: Path, reference: str | None = None, prompt: str = "Do it.", **given: object
) -> Steering:
    protected = given.pop("protected", ())
    references = "".join(PATCH.format(path) for path in (reference or "").split())
    task = Task(
        id="x",
        prompt=prompt,
        protected=protected,
        reference=references or None,
        acceptance=Acceptance(**{"run": "python -m pytest", **given}),
    )
    return read_steering(task, BaseTree(root=str(base)))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    files = {
        "src/billing.py": "",
        "src/app/__init__.py": "",
        "tests/test_bill.py": "",
        "tests/other.py": "",
        "django/test/client.py": "",
        "pyproject.toml": "",
        "Makefile": "include more.mk\ntest:\n\t./ci/run.sh\n",
        "more.mk": "",
        "ci/run.sh": "python tools/check.py && python app.py",
        "tools/check.py": "",
        "app.py": "",
        "install.sh": "#!/bin/sh\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_the_verdict_hangs_on_is_restored(base: Path) -> None:
    known = steering(
        base,
        protected=("fixtures/**",),
        fail_to_pass=(TEST,),
        pass_to_pass=("tests/sub/test_x.py::test_a[1]", "billing::tests::rounds"),
        patch=PATCH.format("tests/test_new.py"),
    )
    for path in (
        "fixtures/a/b",
        "tests/test_bill.py",
        "tests/other.py",
        "tests/sub/test_x.py",
        "tests/test_new.py",
        "tests/data/new.json",
        "src/test_added.py",
        "web/cart.spec.ts",
        "pkg/cart_test.go",
        "conftest.py",
        "a/b/conftest.py",
        "pytest.ini",
        "tox.ini",
        "web/jest.config.ts",
        ".npmrc",
        ".cargo/config.toml",
        "src/__pycache__/billing.cpython-311.pyc",
        "node_modules/jest/index.js",
        ".venv/lib/python3.11/site-packages/x.py",
        "sitecustomize.py",
        "pytest.py",
        "_pytest/__init__.py",
        "src/pluggy.py",
        "argparse.py",
        "json/__init__.py",
    ):
        assert why_restored(known, path), path
    for path in (
        "billing/code.rs",
        "src/billing.py",
        "src/app/types.py",
        "src/app/argparse.py",
        "new/types.py",
        "django/test/client.py",
        "pyproject.toml",
        "app.py",
    ):
        assert why_restored(known, path) is None, path


@pytest.mark.parametrize(
    ("test", "file"),
    [
        ("src/cart.ts > cart > adds", "src/cart.ts"),
        ("checks.bill.TestBill.test_rounds", "checks/bill.py"),
        ("bill.TestBill.test_rounds", "checks/bill.py"),
        ("a[1]*.ts::x", "a[1]*.ts"),
    ],
)
def test_a_test_id_of_any_runner_protects_its_file_and_no_other(
    base: Path, test: str, file: str
) -> None:
    known = steering(base, fail_to_pass=(test,), patch=PATCH.format("x"))
    assert why_restored(known, file) == "protected by the task"
    assert why_restored(known, "a1b.ts") is None


def test_a_java_test_protects_its_class(base: Path) -> None:
    names = ("org.acme.Bill$Inner::rounds",)
    known = steering(base, runner="junit", report="r", fail_to_pass=names)
    assert why_restored(known, "src/test/java/org/acme/Bill.java")
    assert why_restored(known, "src/main/java/org/acme/Other.java") is None


def test_manifests_are_restored_where_a_reference_does_without(base: Path) -> None:
    assert why_restored(steering(base, "src/billing.py"), "pyproject.toml")
    assert why_restored(steering(base), "pyproject.toml") is None


def test_a_task_about_what_steers_tests_leaves_that_to_the_agent(base: Path) -> None:
    assert why_restored(steering(base, "tests/conftest.py"), "tests/conftest.py") is None
    assert why_restored(steering(base, "pyproject.toml"), "pyproject.toml") is None
    both = steering(base, "tests/conftest.py src/billing.py")
    assert why_restored(both, "tests/conftest.py")


def test_a_command_is_followed_into_the_scripts_it_calls(base: Path) -> None:
    known = run_through(["make test"], BaseTree(root=str(base)))
    assert {path: why for path, why in known.items() if (base / path).exists()} == {
        "Makefile": "`make test`",
        "more.mk": "Makefile",
        "ci/run.sh": "Makefile",
        "tools/check.py": "ci/run.sh",
    }
    restored = steering(base, run="make test")
    assert why_restored(restored, "tools/check.py") == "run by ci/run.sh"
    assert why_restored(restored, "GNUmakefile") == "run by `make test`"
    assert why_restored(restored, "app.py") is None


def test_a_script_that_the_task_is_about_is_the_agents_to_change(base: Path) -> None:
    command = {"run": None, "commands": ("sh install.sh",)}
    assert why_restored(steering(base, **command), "install.sh")
    named = steering(base, prompt="Make install.sh quiet.", **command)
    assert why_restored(named, "install.sh") is None
    assert why_restored(steering(base, "install.sh", **command), "install.sh") is None


def test_a_file_that_only_the_agent_can_make_is_the_agents(base: Path) -> None:
    known = steering(base, run=None, commands=("pytest tests/test_mine.py",), reference="app.py")
    assert why_restored(known, "tests/test_mine.py") is None


def test_links_do_not_lead_out_of_the_base(base: Path) -> None:
    (base / "link.sh").symlink_to("/etc/passwd")
    (base / "folder").symlink_to("/etc")
    tree = BaseTree(root=str(base))
    assert tree.read("link.sh") is None
    assert not tree.has("folder/passwd")
    assert not tree.has("../x")
