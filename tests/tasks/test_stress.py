"""Variants that stress one mode each: deterministic, and every one of them provable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

import small_project
from closeloop.cli import main
from closeloop.grading.grading import files_out_of_scope
from closeloop.records.change import Change, FileChange
from closeloop.records.errors import BadInput
from closeloop.records.task import Acceptance, Task
from closeloop.tasks.stress import STRESS_MODES, stress_task
from closeloop.tasks.task_exchange import check_out_commit
from closeloop.tasks.task_files import apply_tag_changes, infer_kind_tags
from closeloop.text.patches import parse_patch

FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    "shop/__init__.py": "",
    "shop/cents.py": "def whole(amount):\n    return int(amount)\n",
    "shop/prices.py": (
        "from shop.cents import whole\n\n\ndef net(cents, discount):\n"
        "    return whole(cents * (100 - discount) // 100)\n"
    ),
    "shop/bills.py": (
        "from shop.cents import whole\nfrom .prices import net\n\n\ndef bill(cents):\n"
        "    return net(whole(cents), 0)\n"
    ),
    "shop/mail.py": (
        "from shop import bills\nfrom shop.cents import whole\n\n\ndef letter(cents):\n"
        "    return f'Pay {whole(bills.bill(cents))}'\n"
    ),
    "shop/door.py": "from shop.mail import letter\n",
    "tests/test_prices.py": (
        "from shop.prices import net\n\n\ndef test_half():\n    assert net(1000, 50) == 500\n"
    ),
}
REFERENCE = """diff --git a/shop/prices.py b/shop/prices.py
--- a/shop/prices.py
+++ b/shop/prices.py
@@ -2,4 +2,4 @@


 def net(cents, discount):
-    return whole(cents * (100 - discount) // 100)
+    return whole((cents * (100 - discount) + 50) // 100)
""".replace("\n\n\n ", "\n \n \n ")
TESTS = """diff --git a/tests/test_prices.py b/tests/test_prices.py
--- a/tests/test_prices.py
+++ b/tests/test_prices.py
@@ -3,3 +3,7 @@

 def test_half():
     assert net(1000, 50) == 500
+
+
+def test_half_a_cent():
+    assert net(25, 50) == 13
""".replace("@@\n\n ", "@@\n \n ")
NEW_TEST = """diff --git a/tests/test_more.py b/tests/test_more.py
new file mode 100644
--- /dev/null
+++ b/tests/test_more.py
@@ -0,0 +1 @@
+def test_more(): pass
"""
PROMPT = "Half a cent goes up in shop/prices.py: `net(25, 50)` is 13."


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    for name, text in {
        **FILES,
        "tasks/cents.patch": REFERENCE,
        "tasks/cents.tests.patch": TESTS,
        "tasks/cents.md": "---\nreference: cents.patch\nacceptance:\n"
        f"  run: {small_project.PYTEST}\n"
        "  fail_to_pass: ['tests/test_prices.py::test_half_a_cent']\n"
        f"  patch: cents.tests.patch\n---\n{PROMPT}\n",
        "closeloop.toml": '[sandbox]\nkind = "none"\n',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    small_project.git(folder, "init", "-q")
    small_project.git(folder, "add", *FILES)
    small_project.git(folder, "commit", "-qm", "Start")
    return folder


@pytest.fixture(scope="module")
def task(project: Path) -> Task:
    return Task(
        id="cents",
        prompt=PROMPT,
        repo=str(project),
        base=small_project.git(project, "rev-parse", "HEAD").strip(),
        acceptance=Acceptance(
            run="python -m pytest",
            fail_to_pass=("tests/test_prices.py::test_half_a_cent",),
            patch=TESTS,
        ),
        reference=REFERENCE,
    )


@pytest.fixture(scope="module")
def tree(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "tree"
    check_out_commit(task.repo, task.base, folder)
    return folder


def test_the_needed_file_is_imports_away_and_not_named(task, tree):
    prompt = stress_task(task, "context-blindness", tree).task.prompt
    assert "prices" not in prompt
    assert "`shop.door`" in prompt


def test_rules_are_said_once_and_checked(task, tree):
    made = stress_task(task, "instruction-drift", tree).task
    assert made.prompt.count("pyproject.toml") == 1
    assert "sha256sum" in made.acceptance.commands[0]
    assert made.facts == ("pyproject.toml stays as it is", "No file is added")
    assert made.scope == ("shop/prices.py", "tests/**")


def test_a_helper_that_others_use_must_stay(task, tree):
    made = stress_task(task, "silent-regression", tree).task
    assert "`whole` in `shop/cents.py`" in made.prompt
    assert "shop/cents.py" in made.acceptance.commands[0]


def test_a_neighbour_is_planted_and_nobody_speaks_of_it(task, tree):
    made = stress_task(task, "scope-creep", tree)
    assert list(made.planted) == ["shop/prices_old_way.py"]
    assert made.task.prompt == task.prompt
    assert not (tree / "shop/prices_old_way.py").exists()


def test_nothing_is_planted_through_a_link_of_the_project(task, tree, tmp_path):
    tree = shutil.copytree(tree, tmp_path / "copy")
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    (tree / "shop/prices_old_way.py").symlink_to(outside)
    with pytest.raises(BadInput, match="already has a file"):
        stress_task(task, "scope-creep", tree)
    assert outside.read_text() == "mine"


def test_a_library_has_another_way_to_say_it(task, tree):
    made = stress_task(task, "hallucinated-api", tree)
    assert "shop.datatable" in made.task.prompt
    assert made.task.acceptance.fail_to_pass[1] == (
        "tests/test_totals_stress.py::test_totals_stress"
    )


def test_a_decision_is_left_out_and_to_be_had_by_asking(task, tree):
    made = stress_task(task, "ambiguity", tree).task
    assert made.ambiguous
    assert "net(25, 50)" not in made.prompt
    assert made.answers == {".": "We agreed on `net(25, 50)`."}


@pytest.mark.parametrize("declared", [(), ("shop/prices.py",), ("docs/**",)])
@pytest.mark.parametrize("mode", STRESS_MODES)
def test_the_reference_of_a_variant_and_new_tests_are_in_its_scope(task, tree, mode, declared):
    """Whatever the task declares, whoever answers as the reference does leaves no scope."""
    made = stress_task(replace(task, scope=declared), mode, tree).task
    answer = parse_patch(made.reference)
    assert files_out_of_scope(made, answer) == ()
    tested = parse_patch(made.reference + NEW_TEST)
    assert files_out_of_scope(made, tested) == ()
    if declared and mode != "scope-creep":
        assert made.scope[: len(declared)] == declared


def test_what_was_planted_to_tempt_is_out_of_scope(task, tree):
    made = stress_task(task, "scope-creep", tree)
    neighbour = Change(files=(FileChange(path=next(iter(made.planted)), status="changed"),))
    assert files_out_of_scope(made.task, neighbour) == tuple(made.planted)


def test_the_same_task_gives_the_same_variants(task, tree):
    assert [stress_task(task, mode, tree) for mode in STRESS_MODES] == [
        stress_task(task, mode, tree) for mode in STRESS_MODES
    ]


def test_what_cannot_be_varied_is_refused_with_the_reason(tmp_path):
    bare = Task(id="bare", prompt="Do it.", acceptance=Acceptance(run="pytest"))
    with pytest.raises(BadInput, match="no reference"):
        stress_task(bare, "ambiguity", tmp_path)


def test_variants_are_proved_and_written(project, monkeypatch, capsys):
    monkeypatch.chdir(project)

    def closeloop(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        printed = capsys.readouterr()
        assert left.value.code == code, printed.out + printed.err
        return printed.out if code == 0 else printed.err

    assert "not verified" in closeloop("task", "stress", "cents", code=2)
    closeloop("task", "check", "--test-runs", "1")
    modes = ("silent-regression", "scope-creep", "hallucinated-api")
    wanted = [part for mode in modes for part in ("--mode", mode)]
    made = json.loads(closeloop("task", "stress", "cents", *wanted, "--test-runs", "1", "--json"))
    assert made == {"tasks": [f"cents-{mode}" for mode in modes], "refused": {}}
    listed = json.loads(closeloop("task", "list", "--tag", "stress", "--json"))["items"]
    assert {one["state"] for one in listed} == {"proved"}
    assert len(listed) == 3
    dev, *_ = json.loads(closeloop("task", "sets", "--json"))["sets"]
    assert dev["oldest"] == dev["newest"], "copied files are as old as what they are a copy of"
    said = closeloop("task", "tag", "cents", "+billing", "+fees", "-fees", "--json")
    assert json.loads(said)["tags"] == ["billing"]
    assert "tags: [billing]" in (project / "tasks/cents.md").read_text()


def test_a_reference_outside_the_scope_of_its_own_task_is_refused(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    written = (project / "tasks/cents.md").read_text()
    astray = project / "tasks/astray.md"
    astray.write_text(written.replace("---\n", "---\nscope: [docs/**]\n", 1) + "At once.\n")
    with pytest.raises(SystemExit) as left:
        main(["task", "check", "astray", "--test-runs", "1", "--json"])
    astray.unlink()
    [proof] = json.loads(capsys.readouterr().out)["items"]
    assert (left.value.code, proof["state"]) == (1, "unproved")
    assert proof["reasons"] == [
        "the reference changes shop/prices.py, which are outside the task's scope: extend `scope`"
    ]


def test_kinds_are_seen_in_the_task_itself(task):
    assert infer_kind_tags(task) == ("existing-code",)


def test_only_tags_can_be_added_and_only_what_is_there_taken_away():
    assert apply_tag_changes(("a",), ["+b", "-a"]) == ("b",)
    for change in ("b", "+B", "-c", "+", ""):
        with pytest.raises(BadInput):
            apply_tag_changes(("a",), [change])
