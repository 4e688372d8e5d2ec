"""Attempts graded in clean rooms, tasks proved by their controls: real git, real pytest."""

import os
import subprocess
import sys
from pathlib import Path

import anyio
import msgspec
import pytest

from closeloop.grading import grading
from closeloop.grading.grading import GradedSubmission, grade_attempt
from closeloop.grading.task_proof import (
    GRADER_VERSION,
    NO_REFERENCE,
    NOTHING_PASSES,
    check_gradable,
    prove_task,
)
from closeloop.records.attempt import Attempt, Proof
from closeloop.records.change import Change
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Acceptance, Task
from closeloop.records.trace import Edit, Message, Trace
from closeloop.sandbox.workspaces import WorkspacePool
from closeloop.text.patches import parse_patch
from patience import PATIENCE, SCALES
from warm_pytest import PYTHON

pytestmark = pytest.mark.usefixtures("warm_python")

PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {PYTHON} -m pytest -q"
COLD_PYTEST = PYTEST.replace(PYTHON, sys.executable)

BILLING = """\
def total(prices):
    return sum(prices) + 1


def label(text):
    return text.upper()
"""
TESTS = """\
from billing import label, total


def test_total():
    assert total([1, 2]) == 3


def test_label():
    assert label("a") == "A"
"""
FIXED = BILLING.replace(" + 1", "")
TOTAL, LABEL = "test_billing.py::test_total", "test_billing.py::test_label"


class Project:
    """A repository, and patches against its one commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q")
        self.write({"billing.py": BILLING, "test_billing.py": TESTS})
        self.commit()

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", "go on")
        self.base = self.git("rev-parse", "HEAD").strip()

    def git(self, *arguments: str) -> str:
        names = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        for who in ("AUTHOR", "COMMITTER"):
            names |= {f"GIT_{who}_NAME": "t", f"GIT_{who}_EMAIL": "t@example.com"}
        return subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env={**os.environ, **names},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def write(self, files: dict[str, str | None]) -> None:
        for name, text in files.items():
            path = self.folder / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def patch(self, files: dict[str, str | None]) -> str:
        self.write(files)
        self.git("add", "-A")
        patch = self.git("diff", "--cached", "--no-renames")
        self.git("reset", "-q", "--hard")
        return patch

    def task(self, **changes) -> Task:
        acceptance = {"run": PYTEST, "fail_to_pass": (TOTAL,), "timeout": PATIENCE}
        acceptance |= changes.pop("acceptance", {})
        given = {
            "id": "total",
            "prompt": "The total is off by one.",
            "repo": str(self.folder),
            "base": self.base,
            "protected": ("test_*.py",),
            "reference": self.patch({"billing.py": FIXED}),
            "grading": "g",
        }
        return Task(**{**given, **changes}, acceptance=Acceptance(**acceptance))


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path / "project")


class Grader:
    """The three functions under test, each in its own event loop."""

    bases: dict[tuple[str, str, bytes], Proof] = {}
    """What the tests of equal tasks at equal trees say, which is found out once."""

    def __init__(self, cache: Path, kind: str = "none") -> None:
        self.cache = cache
        self.kind = kind

    def _with(self, function, task, *arguments):
        async def go():
            async with WorkspacePool(self.cache, SandboxSettings(kind=self.kind)) as workspaces:
                base = None
                if task.repo is not None:
                    base = await workspaces.prepare_base(task.repo, task.base, task.setup)
                return await function(workspaces, base, task, *arguments)

        return anyio.run(go)

    def look(self, task):
        return self._with(check_gradable, task)

    def look_once(self, task):
        if task.repo is None or task.setup:
            return self.look(task)
        tree = subprocess.check_output(
            ["git", "rev-parse", f"{task.base}^{{tree}}"], cwd=task.repo, text=True
        )
        settings = msgspec.json.encode(msgspec.structs.replace(task, repo=None, base=None))
        key = self.kind, tree, settings
        if key not in self.bases:
            self.bases[key] = self.look(task)
        return self.bases[key]

    def prove(self, task, repeats=1, quick=None):
        return self._with(prove_task, task, repeats, quick)

    def grade(self, task, patch, *, proof=None, trace=None, **attempt):
        given = {"id": "a1", "origin": "experiment", "exit": "finished", **attempt}
        submission = GradedSubmission(
            attempt=Attempt(**given),
            change=parse_patch(patch) if patch else Change(),
            trace=trace,
            proof=proof or self.look_once(task),
        )
        return self._with(grade_attempt, task, submission)


@pytest.fixture
def grader(tmp_path):
    return Grader(tmp_path / "cache")


def test_a_right_change_passes_and_its_facts_are_counted(project, grader):
    task = project.task()
    graded = grader.grade(task, project.patch({"billing.py": FIXED}))
    assert graded.outcome.result == "pass"
    assert (graded.fail_to_pass, graded.pass_to_pass) == ((1, 1), (1, 1))
    assert (graded.files_precision, graded.files_recall) == (1.0, 1.0)
    assert graded.before.tests != graded.after.tests
    assert (graded.version, graded.grading, graded.attempt) == (GRADER_VERSION, "g", "a1")


@pytest.mark.parametrize("kind", ["auto"])
def test_the_sandbox_changes_nothing(project, tmp_path, kind):
    task = project.task(acceptance={"run": COLD_PYTEST})
    caged = Grader(tmp_path / "cache", kind)
    graded = caged.grade(task, task.reference)
    assert (graded.outcome.result, graded.evidence) == ("pass", "confirmed")
    assert caged.grade(task, "").outcome.result == "fail"


def test_without_a_sandbox_a_pass_is_only_reported(project, grader):
    """The code under test could have left a program that answers in the second process."""
    task = project.task()
    graded = grader.grade(task, task.reference)
    assert (graded.outcome.result, graded.evidence) == ("pass", "reported")
    assert {check.state for check in graded.integrity} == {"held"}


def test_a_wrong_change_fails_and_names_the_test(project, grader):
    graded = grader.grade(project.task(), project.patch({"billing.py": BILLING + "\n\nX = 1\n"}))
    assert graded.outcome.result == "fail"
    assert graded.outcome.reasons[0].startswith(f"{TOTAL} fails: ")
    assert graded.fail_to_pass == (0, 1)


def test_no_change_fails_with_that_reason_first(project, grader):
    graded = grader.grade(project.task(), "", exit="gave_up")
    assert graded.outcome.result == "fail"
    assert graded.outcome.reasons[0] == "nothing was changed"
    assert graded.fail_to_pass == (0, 1)


def test_what_the_agent_left_when_its_time_ran_out_is_graded(project, grader):
    task = project.task()
    assert grader.grade(task, task.reference, exit="out_of_time").outcome.result == "pass"


def test_an_attempt_that_the_machine_failed_is_not_scored(project, grader):
    task = project.task()
    graded = grader.grade(task, task.reference, exit="machine", cause="The model is down.")
    assert (graded.outcome.result, graded.outcome.cause) == ("unscored", "The model is down.")
    assert graded.after is None


def test_a_broken_test_is_named_though_the_task_is_solved(project, grader):
    broken = FIXED.replace("text.upper()", "text.lower()")
    graded = grader.grade(project.task(), project.patch({"billing.py": broken}))
    assert graded.outcome.result == "fail"
    assert graded.broken == (LABEL,)
    assert graded.outcome.reasons[0].startswith(f"{LABEL} passed before and fails")
    assert graded.pass_to_pass == (0, 1)


def test_weakened_tests_are_put_back(project, grader):
    patch = project.patch({"test_billing.py": "def test_total(): pass\n"})
    graded = grader.grade(project.task(), patch)
    assert graded.outcome.result == "fail"
    assert graded.restored == ("test_billing.py",)
    assert graded.outcome.reasons[0] == "only files were changed that grading restores"


def test_deleted_tests_are_put_back_beside_a_real_change(project, grader):
    patch = project.patch({"test_billing.py": None, "billing.py": FIXED})
    graded = grader.grade(project.task(), patch)
    assert graded.outcome.result == "pass"
    assert graded.restored == ("test_billing.py",)


def test_a_deleted_test_is_restored_though_nobody_protects_it(project, grader):
    project.write({"test_other.py": "def test_other():\n    assert True\n"})
    project.commit()
    patch = project.patch({"test_other.py": None, "billing.py": FIXED})
    graded = grader.grade(project.task(protected=()), patch)
    assert graded.outcome.result == "pass"
    assert graded.set_aside == ("test_other.py",)
    assert graded.pass_to_pass == (2, 2)


def test_hidden_tests_win_over_what_the_agent_wrote_in_their_place(project, grader):
    hidden = "from billing import total\n\n\ndef test_hidden():\n    assert total([]) == 0\n"
    task = project.task(
        acceptance={
            "patch": project.patch({"tests/test_hidden.py": hidden}),
            "fail_to_pass": ("tests/test_hidden.py::test_hidden",),
            "run": f"PYTHONPATH=. {PYTEST}",
        }
    )
    cheat = project.patch({"tests/test_hidden.py": "def test_hidden(): pass\n"})
    assert grader.grade(task, cheat).outcome.result == "fail"
    both = project.patch({"tests/test_hidden.py": "def test_hidden(): 1 / 0", "billing.py": FIXED})
    graded = grader.grade(task, both)
    assert graded.outcome.result == "pass"
    assert graded.restored == ("tests/test_hidden.py",)


def test_a_change_that_does_not_apply_fails(project, grader):
    patch = project.patch({"billing.py": FIXED}).replace("return sum", "return max")
    graded = grader.grade(project.task(), patch)
    assert graded.outcome.result == "fail"
    assert "does not apply" in graded.outcome.reasons[0]


def test_leaving_with_exit_code_0_inside_a_test_is_not_a_pass(project, grader):
    sly = FIXED + "\n\nimport os, sys\nprint('test_billing.py::test_total PASSED')\n"
    sly += "print('test_billing.py::test_label PASSED')\nsys.stdout.flush()\nos._exit(0)\n"
    graded = grader.grade(project.task(), project.patch({"billing.py": sly}))
    assert graded.outcome.result == "fail"


def test_a_command_that_hides_failures_cannot_be_scored(project, grader):
    task = project.task(acceptance={"run": f"{PYTEST} || true"})
    graded = grader.grade(task, task.reference)
    assert graded.outcome.result == "unscored"
    assert "hides its exit code" in graded.outcome.cause


def moody(name: str, count: Path, *runs: int) -> str:
    """A Python statement that counts in a file, and fails in the runs of these numbers."""
    # What is appended tells runs apart that count at the same time.
    return (
        f"count = open({str(count / name)!r}, 'ab'); count.write(b'x'); count.flush(); "
        f"number = count.tell() - 1; count.close(); assert number not in {runs}"
    )


def breaking_label(count: Path, *runs: int) -> str:
    """The right change, with a label that is wrong in some of the runs."""
    return FIXED.replace("return text.upper()", f"{moody('label', count, *runs)}; return 'A'")


def test_a_test_that_a_change_broke_once_is_not_scored(project, grader, tmp_path):
    change = project.patch({"billing.py": breaking_label(tmp_path, 0)})
    graded = grader.grade(project.task(), change)
    assert graded.outcome.result == "unscored"
    assert f"{LABEL} fails sometimes, in 1 of 5 runs with the change" in graded.outcome.cause
    assert "and in none of 7 without it" in graded.outcome.cause
    assert graded.after.flaky == (LABEL,)


def test_a_test_that_a_change_breaks_now_and_then_is_held_against_it(project, grader, tmp_path):
    change = project.patch({"billing.py": breaking_label(tmp_path, 0, *range(4, 30))})
    graded = grader.grade(project.task(), change)
    assert graded.outcome.result == "fail", graded.outcome
    assert graded.outcome.reasons == (
        f"{LABEL} fails sometimes, in 4 of 5 runs with the change, and in none of 7 without it",
    )


def test_only_the_tests_that_a_change_broke_are_run_again(project, grader, tmp_path):
    """Each run of the whole suite counts itself."""
    counting = f"\n\ndef test_counted():\n    {moody('counted', tmp_path)}\n"
    task = project.task(acceptance={"patch": project.patch({"test_billing.py": TESTS + counting})})
    wrong_label = FIXED.replace("return text.upper()", "return 'B'")
    graded = grader.grade(task, project.patch({"billing.py": wrong_label}))
    assert graded.outcome.result == "fail"
    assert graded.broken == (LABEL,)
    # before the change, in a second process, and after it
    assert len((tmp_path / "counted").read_text()) == 3


def test_a_test_that_breaks_only_among_others_is_run_again_with_all(project, grader):
    spoiled = FIXED.replace("return sum(prices)", "prices.append(0); return sum(prices)")
    shared = "\n\nPRICES = [1, 2]\n\n\ndef test_first():\n    assert total(PRICES) == 3\n"
    shared += "\n\ndef test_later():\n    assert PRICES == [1, 2]\n"
    task = project.task(acceptance={"patch": project.patch({"test_billing.py": TESTS + shared})})
    graded = grader.grade(task, project.patch({"billing.py": spoiled}))
    assert graded.outcome.result == "fail", graded.outcome
    assert "test_billing.py::test_later" in graded.broken


def test_a_fail_to_pass_test_that_fails_now_and_then_is_no_pass(project, grader, tmp_path):
    shaky = FIXED.replace(
        "return sum(prices)", f"{moody('total', tmp_path, 1, 2)}; return sum(prices)"
    )
    change = project.patch({"billing.py": shaky})
    with_reference = grader.grade(project.task(), change)
    assert with_reference.outcome.result == "unscored"
    assert f"{TOTAL} failed in a second process" in with_reference.outcome.cause
    (tmp_path / "total").unlink()
    without = grader.grade(project.task(reference=None), change)
    assert without.outcome.result == "unscored"
    assert "without a reference it is unknown whether the test is stable" in without.outcome.cause


def test_a_test_that_is_flaky_at_the_base_is_not_held_against_a_change(project, grader, tmp_path):
    flaky = f"\n\ndef test_flaky():\n    {moody('flaky', tmp_path, 3, 5, 14)}\n"
    task = project.task(acceptance={"patch": project.patch({"test_billing.py": TESTS + flaky})})
    graded = grader.grade(task, task.reference)
    assert graded.outcome.result == "pass"
    assert graded.after.flaky == ("test_billing.py::test_flaky",)
    assert graded.broken == ()


def test_a_test_that_fails_at_the_base_by_now_is_not_held_against_a_change(
    project, grader, tmp_path
):
    # Such as one that watches the clock, when the machine has become busy since.
    late = f"\n\ndef test_late():\n    {moody('late', tmp_path, *range(1, 60))}\n"
    task = project.task(acceptance={"patch": project.patch({"test_billing.py": TESTS + late})})
    graded = grader.grade(task, task.reference)
    assert graded.outcome.result == "pass", graded.outcome
    assert graded.after.flaky == ("test_billing.py::test_late",)
    assert graded.broken == ()


def test_tests_that_hang_with_the_change_are_its_failure(project, grader):
    hanging = project.patch({"billing.py": "import time\n\ntime.sleep(600)\n" + FIXED})
    for scale in SCALES:
        graded = grader.grade(project.task(acceptance={"timeout": 4.0 * scale}), hanging)
        if graded.outcome.result != "unscored":
            break
    assert graded.outcome.result == "fail"
    assert any("stopped" in reason for reason in graded.outcome.reasons)


def test_tests_that_hang_until_they_are_mended_make_a_task(project, grader):
    hanging = TESTS.replace("def test_total():", "def test_total():\n    wait()")
    wait = "\n\ndef wait():\n    import time\n\n    time.sleep({})\n"
    project.write({"billing.py": BILLING + wait.format(600)})
    project.write({"test_billing.py": hanging.replace("label, total", "label, total, wait")})
    project.commit()
    mended = project.patch({"billing.py": FIXED + wait.format(0)})
    for scale in SCALES:
        task = project.task(reference=mended, acceptance={"timeout": 3.0 * scale})
        proof = grader.prove(task)
        if proof.state == "proved":
            break
    assert proof.state == "proved"
    assert grader.grade(task, "", proof=proof).outcome.result == "fail"
    unproved = msgspec.structs.replace(proof, state="unchecked")
    graded = grader.grade(task, "", proof=unproved)
    assert "too slow" in graded.outcome.cause


def test_tests_that_the_change_kills_twice_fail(project, grader):
    deadly = FIXED + "\n\nimport os\n\nos.kill(os.getpid(), 9)\n"
    graded = grader.grade(project.task(), project.patch({"billing.py": deadly}))
    assert graded.outcome.result == "fail"
    assert "killed, twice" in graded.outcome.reasons[0]


def test_trouble_at_the_base_is_looked_at_again(project, grader):
    task = project.task()
    proof = grader.look(task)
    spoiled = msgspec.structs.replace(proof.before, trouble="The disk was full.")
    proof = msgspec.structs.replace(proof, before=spoiled)
    assert grader.grade(task, task.reference, proof=proof).outcome.result == "pass"


def test_a_test_command_that_is_missing_is_nobodys_failure(project, grader):
    task = project.task(acceptance={"run": "no-such-runner --all"})
    proof = grader.look(task)
    assert proof.state == "unproved"
    assert "was not found" in proof.reasons[0]
    assert grader.grade(task, task.reference, proof=proof).outcome.result == "unscored"


def test_a_test_command_that_runs_no_test_is_said_at_once(project, grader):
    task = project.task(acceptance={"run": f"{PYTEST} -k nothing_like_this"})
    assert "ran no test" in grader.look(task).reasons[0]


def test_a_task_that_is_done_already_cannot_be_scored(project, grader):
    task = project.task(acceptance={"fail_to_pass": (LABEL,)})
    graded = grader.grade(task, task.reference)
    assert (graded.outcome.result, graded.outcome.cause) == ("unscored", NOTHING_PASSES)


def test_commands_must_exit_with_0(project, grader):
    task = project.task(acceptance={"commands": ("grep -q rounding billing.py",)})
    graded = grader.grade(task, task.reference)
    assert graded.outcome.reasons == ("`grep -q rounding billing.py` exited with 1",)
    right = project.patch({"billing.py": FIXED + "\n# rounding\n"})
    assert grader.grade(task, right).outcome.result == "pass"


def test_a_command_that_is_missing_is_nobodys_failure(project, grader):
    task = project.task(acceptance={"commands": ("no-such-linter .",)})
    graded = grader.grade(task, task.reference)
    assert graded.outcome.result == "unscored"
    assert "`no-such-linter .` was not found" in graded.outcome.cause
    ours = project.task(acceptance={"commands": ("./tool",)})
    assert grader.grade(ours, ours.reference).outcome.result == "fail"


def test_an_agent_that_left_what_cannot_be_read_is_told_so(project, grader):
    graded = grader.grade(project.task(), "", exit="crashed", cause="The change is too large.")
    assert graded.outcome.reasons[0] == "The change is too large."


def test_commands_alone_make_a_task(project, grader):
    task = project.task(acceptance={"run": None, "fail_to_pass": (), "commands": ("test -f new",)})
    assert grader.grade(task, project.patch({"new": "x\n"})).outcome.result == "pass"
    assert grader.grade(task, project.patch({"other": "x\n"})).outcome.result == "fail"


def test_without_named_tests_the_whole_suite_must_pass(project, grader):
    task = project.task(acceptance={"fail_to_pass": ()}, protected=())
    graded = grader.grade(task, task.reference)
    assert graded.outcome.result == "pass"
    assert (graded.fail_to_pass, graded.pass_to_pass) == ((1, 1), (1, 1))
    assert grader.grade(task, project.patch({"x.py": "\n"})).outcome.result == "fail"
    own = {"billing.py": FIXED, "test_own.py": "def test_own(): assert 0\n"}
    graded = grader.grade(task, project.patch(own))
    assert (graded.outcome.result, graded.set_aside) == ("pass", ("test_own.py",))


def test_a_failing_test_cannot_be_weakened_or_deleted_though_none_is_named(project, grader):
    project.write({"test_extra.py": "from billing import vat\n\n\ndef test_vat(): assert vat\n"})
    project.commit()
    task = project.task(acceptance={"fail_to_pass": ()}, protected=(), reference=None)
    weak = {"test_billing.py": TESTS.replace("assert total([1, 2]) == 3", "pass")}
    graded = grader.grade(task, project.patch({**weak, "test_extra.py": None}))
    assert graded.outcome.result == "fail"
    assert graded.restored == ("test_billing.py", "test_extra.py")
    graded = grader.grade(task, project.patch({"billing.py": FIXED, "test_extra.py": None}))
    assert graded.outcome.result == "fail"
    right = {"billing.py": FIXED + "\n\nvat = 1\n"}
    assert grader.grade(task, project.patch(right)).outcome.result == "pass"


LIAR = """\
from _pytest.reports import TestReport


def pytest_runtest_makereport(item, call):
    report = TestReport.from_item_and_call(item, call)
    report.outcome, report.longrepr = "passed", None
    return report
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conftest.py", LIAR),
        ("pytest.ini", "[pytest]\naddopts = -p liar\n"),
        ("tox.ini", "[pytest]\naddopts = -p liar\n"),
        ("setup.cfg", "[tool:pytest]\naddopts = -p liar\n"),
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-p liar'\n"),
        ("pytest.py", "raise SystemExit(0)\n"),
    ],
)
def test_an_agent_cannot_teach_the_runner_to_lie(project, grader, name, text):
    task = project.task(acceptance={"run": COLD_PYTEST})
    graded = grader.grade(task, project.patch({name: text, "liar.py": LIAR}))
    assert graded.outcome.result == "fail"
    assert graded.fail_to_pass == (0, 1)
    assert graded.restored == (name,)


def test_a_reference_may_change_how_tests_are_run(project, grader):
    project.write({"test_extra.py": "def test_three(three):\n    assert three == 3\n"})
    project.commit()
    fixture = "import pytest\n\n\n@pytest.fixture\ndef three():\n    return 3\n"
    reference = project.patch({"conftest.py": fixture})
    tests = {"fail_to_pass": ("test_extra.py::test_three",)}
    assert grader.prove(project.task(acceptance=tests, reference=reference)).state == "proved"


def test_an_answer_is_matched_with_the_last_message(grader):
    task = Task(id="q", prompt="Which?", acceptance=Acceptance(answer=r"(?i)\butf-8\b"))
    right = grader.grade(task, "", summary="It is UTF-8.")
    assert (right.outcome.result, right.evidence) == ("pass", "by answer")
    graded = grader.grade(task, "", summary="It is latin-1.")
    assert "does not match" in graded.outcome.reasons[-1]
    assert grader.grade(task, "").outcome.result == "fail"


def test_a_task_is_proved_by_its_reference_and_by_doing_nothing(project, grader):
    proof = grader.prove(project.task(), repeats=2)
    assert (proof.state, proof.reasons, proof.repeats) == ("proved", (), 2)
    assert proof.before.ran
    assert proof.reference.ran
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(proof), type=Proof) == proof


def test_a_task_without_a_reference_is_not_proved_but_can_be_graded(project, grader):
    task = project.task(reference=None)
    proof = grader.prove(task)
    assert (proof.state, proof.reasons) == ("unchecked", (NO_REFERENCE,))
    right = project.patch({"billing.py": FIXED})
    graded = grader.grade(task, right, proof=proof)
    assert graded.outcome.result == "pass"
    assert graded.files_recall is None


def test_a_misspelt_test_is_named_with_the_nearest(project, grader):
    task = project.task(acceptance={"fail_to_pass": ("test_billing.py::test_totl",)})
    proof = grader.prove(task)
    assert proof.state == "unproved"
    expected = f"no test named test_billing.py::test_totl ran. Nearest: {TOTAL}"
    assert any(reason.startswith(expected) for reason in proof.reasons)


def test_a_reference_that_does_not_pass_says_why(project, grader):
    proof = grader.prove(project.task(reference=project.patch({"x.py": "X = 1\n"})))
    assert proof.state == "unproved"
    assert proof.reasons[0].startswith(f"with the reference change, {TOTAL} fails")


def test_tests_in_the_wrong_list_are_named(project, grader):
    lists = {"fail_to_pass": (TOTAL, LABEL), "pass_to_pass": (TOTAL,)}
    reasons = " ".join(grader.prove(project.task(acceptance=lists)).reasons)
    assert f"{LABEL} passes before any change" in reasons
    assert f"{TOTAL} does not pass before the change" in reasons


def test_flaky_tests_are_marked_and_kept_out_of_verdicts(project, grader, tmp_path):
    count = tmp_path / "count"
    flaky = (
        f"import pathlib\n\n\ndef test_moody():\n    count = pathlib.Path({str(count)!r})\n"
        "    text = count.read_text() if count.exists() else ''\n"
        "    count.write_text(text + 'x')\n    assert len(text) % 2 == 0\n"
    )
    task = project.task(acceptance={"patch": project.patch({"test_moody.py": flaky})})
    proof = grader.prove(task, repeats=3)
    assert proof.state == "proved"
    assert proof.before.flaky == ("test_moody.py::test_moody",)
    for _ in range(2):
        graded = grader.grade(task, task.reference, proof=proof)
        assert graded.outcome.result == "pass"
        assert graded.pass_to_pass == (1, 1)


def test_repeats_of_a_few_tests_only_say_nothing_of_the_others(project, grader, tmp_path):
    runs = tmp_path / "runs"
    counted = f"def test_counted():\n    with open({str(runs)!r}, 'a') as runs:\n"
    counted += "        runs.write('x')\n"
    task = project.task(acceptance={"patch": project.patch({"test_counted.py": counted})})
    proof = grader.prove(task, repeats=3, quick=f"{PYTEST} {TOTAL}")
    assert (proof.state, proof.before.flaky, proof.reference.flaky) == ("proved", (), ())
    assert runs.read_text() == "xx", "once each way: neither in repeats nor with wrong changes"
    assert len(proof.before.tests) > 1


def test_a_quick_command_that_runs_nothing_is_not_believed(project, grader):
    """Else every wrong change would seem to fail, and no test to be flaky."""
    taken = "import billing\n\n\ndef test_total():\n    assert hasattr(billing, 'more')\n"
    more = f"{BILLING}\n\ndef more(a):\n    return a == 2\n"
    changes = {"reference": project.patch({"billing.py": more})}
    task = project.task(acceptance={"patch": project.patch({"test_billing.py": taken})}, **changes)
    proof = grader.prove(task, repeats=2, quick=f"{PYTEST} nowhere.py")
    assert proof.state == "unproved"
    assert "its tests also pass when the fix" in proof.reasons[0]


def test_an_answer_that_nothing_gives_too_proves_no_task(grader):
    task = Task(id="q", prompt="Which?", acceptance=Acceptance(answer="utf|"))
    assert grader.prove(task).reasons == (NOTHING_PASSES,)
    sound = Task(id="q", prompt="Which?", acceptance=Acceptance(answer="utf"))
    assert grader.prove(sound).state == "proved"


def test_files_outside_the_scope_are_named(project, grader):
    patch = project.patch({"billing.py": FIXED, "docs/x.md": "x\n"})
    graded = grader.grade(project.task(scope=("billing.py",)), patch)
    assert graded.outcome.result == "pass"
    assert graded.out_of_scope == ("docs/x.md",)
    assert (graded.files_precision, graded.files_recall) == (0.5, 1.0)


def trace_of(*events) -> Trace:
    return Trace(reader="t", reader_version=1, events=events)


QUESTION = Message(number=1, lane="root", role="agent", text="Which?", intent="question")
EDIT = Edit(number=2, lane="root", path="a")


@pytest.mark.parametrize(
    ("trace", "asked"),
    [
        (None, None),
        (trace_of(), None),
        (trace_of(QUESTION, EDIT), True),
        (trace_of(EDIT, QUESTION), False),
        (trace_of(EDIT), False),
        (trace_of(msgspec.structs.replace(EDIT, ok=False), QUESTION), True),
    ],
)
def test_a_question_counts_when_it_comes_before_the_first_edit(trace, asked):
    assert grading.asked_before_editing(trace) is asked


MADE_UP = "import decimal\n\n\n" + BILLING.replace(
    "sum(prices) + 1", "decimal.round_half_even_to_cents(sum(prices))"
)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (MADE_UP, ("round_half_even_to_cents",)),
        # The base has a function of that name, though not there.
        (MADE_UP.replace("round_half_even_to_cents", "label"), ()),
        # What the change defines itself is merely out of reach.
        (MADE_UP + "\n\ndef round_half_even_to_cents(amount):\n    return amount\n", ()),
        (FIXED, ()),
    ],
)
def test_a_name_that_a_failing_test_misses_and_only_the_change_has_is_made_up(
    project, grader, source, names
):
    task = project.task()
    graded = grader.grade(task, project.patch({"billing.py": source}))
    assert graded.missing_names == names
