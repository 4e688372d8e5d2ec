"""Test commands run for real in a cage, each with the tool it names."""

import os
import shutil
import subprocess
import sys

import anyio
import pytest

from closeloop.grading.suite_run import HIDDEN_FAILURES, judge_suite, run_tests
from closeloop.grading.tool_outcomes import select_tests
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Acceptance, Limits
from closeloop.sandbox.workspaces import WorkspacePool
from patience import SCALES

PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest"
TOOLCHAINS = ("PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME", "GOCACHE", "GOPATH")


@pytest.fixture
def run(tmp_path):
    """Put files into an empty workspace and run tests there."""

    def run_with(files, command, *, when="after", kind="none", **acceptance):
        async def go():
            settings = SandboxSettings(kind=kind, env=TOOLCHAINS if kind == "none" else ())
            async with (
                WorkspacePool(tmp_path / "cache", settings) as workspaces,
                workspaces.open(None, Limits()) as workspace,
            ):
                for name, text in files.items():
                    await workspace.sandbox.write(name, text.encode())
                wanted = Acceptance(run=command, **{"timeout": 120.0, **acceptance})
                return await run_tests(workspace.sandbox, wanted, when)

        return anyio.run(go)

    return run_with


def statuses(result):
    return {test.id: test.status for test in result.tests}


SAMPLE = {
    "tests/test_a.py": "import pytest\n\n\nclass TestA:\n"
    "    @pytest.mark.parametrize('x', ['a::b', 'c[d]', 'é'])\n"
    "    def test_b(self, x): assert x != 'c[d]'\n"
}
EXPECTED = {
    "tests/test_a.py::TestA::test_b[a::b]": "passed",
    "tests/test_a.py::TestA::test_b[c[d]]": "failed",
    "tests/test_a.py::TestA::test_b[\\xe9]": "passed",
}


@pytest.mark.parametrize(
    "command",
    [
        f"{PYTEST} -q",
        f"{PYTEST} --verbosity=-2 --no-header tests",
        f"cd tests && cd .. && {PYTEST} --junitxml=mine.xml",
        f"sh -c '{PYTEST} -q'",
    ],
)
def test_pytest_reports_each_test_by_its_node_id(run, command):
    result = run(SAMPLE, command)
    assert statuses(result) == EXPECTED
    assert (result.ran, result.notes, result.trouble) == (True, (), None)
    assert result.commands[0].exit_code == 1
    assert result.commands[0].command == command


def test_the_sandbox_of_this_machine_gives_the_same_results(run):
    assert statuses(run(SAMPLE, f"{PYTEST} -q", kind="auto")) == EXPECTED


UNITTEST = """\
import unittest


class T(unittest.TestCase):
    def test_passes(self): print("to stdout", end="")
    def test_fails(self): self.assertEqual(1, 2)
"""


def test_unittest_reports_each_test_by_its_dotted_name(run):
    result = run({"test_a.py": UNITTEST}, f"{sys.executable} -m unittest discover -q")
    assert statuses(result) == {"test_a.T.test_passes": "passed", "test_a.T.test_fails": "failed"}
    assert result.notes == ()


def test_a_pipe_hides_no_result(run):
    result = run({"test_a.py": UNITTEST}, f"{sys.executable} -m unittest | tail -1")
    assert statuses(result) == {"test_a.T.test_passes": "passed", "test_a.T.test_fails": "failed"}
    # Where the shell cannot tell how the first part of a pipe ended, that is noted.
    assert (result.commands[0].exit_code == 1) != (HIDDEN_FAILURES in result.notes)


def test_a_makefile_hides_the_runner_but_not_its_results(run):
    files = {"Makefile": f"test:\n\t@{PYTEST} -q\n", **SAMPLE}
    assert statuses(run(files, "make test")) == EXPECTED
    files = {"Makefile": f"test:\n\t@{sys.executable} -m unittest -v\n", "test_a.py": UNITTEST}
    assert statuses(run(files, "make test"))["test_a.T.test_fails"] == "failed"


def test_two_runners_in_one_command_are_both_read(run):
    command = f"{PYTEST} tests -q; {sys.executable} -m unittest test_u"
    names = statuses(run({**SAMPLE, "test_u.py": UNITTEST}, command))
    assert len(names) == 5


def test_no_test_is_never_a_pass(run):
    result = run({"a.py": "\n"}, f"{PYTEST} || true")
    assert not result.ran
    assert result.notes == ("no test ran",)
    skipped = "import pytest\n\n\n@pytest.mark.skip\ndef test_a(): pass\n"
    assert run({"test_a.py": skipped}, PYTEST).ran is False


def test_the_exit_code_is_checked_against_the_results(run):
    assert run(SAMPLE, f"{PYTEST} || true").notes == (HIDDEN_FAILURES,)
    fine = {"test_a.py": "def test_a(): pass\n"}
    notes = run(fine, f"{PYTEST} && exit 3").notes
    assert notes == ("every test passed, yet the test command exited with 3",)


def test_a_broken_test_file_is_an_error_result(run):
    result = run({"test_a.py": "import no_such_module\n"}, PYTEST)
    assert statuses(result) == {"test_a.py": "error"}
    assert not result.ran
    acceptance = Acceptance(run=PYTEST, fail_to_pass=("test_a.py::test_a",))
    (reason, *_) = judge_suite(acceptance, result, result).reasons
    expected = "no test ran: test_a.py: ModuleNotFoundError: No module named 'no_such_module'"
    assert reason == expected


def test_a_process_that_leaves_in_mid_test_is_noticed(run):
    crash = "import os\ndef test_a(): pass\ndef test_b(): os._exit(0)\ndef test_c(): pass\n"
    result = run({"test_a.py": crash}, f"{PYTEST} -q")
    assert statuses(result) == {"test_a.py::test_a": "passed", "test_a.py::test_b": "error"}
    assert "the report of the tests is truncated" in result.notes


def test_tests_out_of_time_keep_the_results_so_far(run):
    slow = "import time\ndef test_a(): pass\ndef test_b(): time.sleep(600)\n"
    for scale in SCALES:
        result = run({"test_a.py": slow}, f"{PYTEST} -q", timeout=4.0 * scale)
        if result.tests:
            break
    assert result.commands[0].stopped == "out of time"
    assert result.trouble is None
    assert statuses(result)["test_a.py::test_a"] == "passed"


def test_a_missing_command_is_trouble_only_before_a_change(run):
    assert "was not found" in run({}, "no-such-tool", when="before").trouble
    assert run({}, "no-such-tool").trouble is None


def test_a_killed_run_is_trouble(run):
    assert "killed" in run({}, "kill -9 $$").trouble


def test_talk_of_a_full_disk_is_no_full_disk(run):
    talk = {"test_a.py": "def test_a(): raise OSError(28, 'No space left on device')\n"}
    assert run(talk, PYTEST).trouble is None


def test_a_full_disk_is_trouble(run, tmp_path):
    disk = tmp_path / "cache"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        assert "disk was full" in run({}, "cat /dev/zero >filling").trouble
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_reports_planted_before_the_run_are_not_believed(run):
    planted = {"out/TEST-a.xml": '<testsuite><testcase classname="a" name="b"/></testsuite>'}
    options = {"runner": "junit", "report": "**/TEST-*.xml"}
    assert not run(planted, "true", **options).ran
    fresh = run({"keep.xml": "<s><testcase name='c'/></s>"}, "cp keep.xml TEST-c.xml", **options)
    assert statuses(fresh) == {"c": "passed"}


def test_endless_output_is_survived(run):
    noisy = "def test_a(): print('x' * 40_000_000)\n"
    result = run({"test_a.py": noisy}, f"{PYTEST} -s")
    assert statuses(result) == {"test_a.py::test_a": "passed"}
    assert len(result.commands[0].output) < 30_000


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed")
def test_cargo_reports_each_test_by_its_target(run):
    files = {
        "Cargo.toml": '[package]\nname = "till"\nversion = "0.1.0"\nedition = "2021"\n',
        "src/lib.rs": "#[cfg(test)]\nmod tests { #[test] fn fails() { panic!() } }\n",
        "tests/shop.rs": "#[test] fn sells() {}\n",
    }
    result = run(files, "cargo test --offline 2>&1 | tail -2")
    assert statuses(result) == {"till::tests::fails": "failed", "shop::sells": "passed"}


@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
def test_go_reports_each_test_by_its_package(run):
    files = {
        "go.mod": "module till\n\ngo 1.19\n",
        "a_test.go": 'package till\nimport "testing"\nfunc TestA(t *testing.T) {\n'
        '\tt.Run("b c", func(t *testing.T) { t.Fail() })\n}\n',
    }
    result = run(files, "GOFLAGS=-mod=mod go test ./...")
    assert statuses(result) == {"till/TestA": "failed", "till/TestA/b_c": "failed"}
    assert result.notes == ()


@pytest.mark.skipif(shutil.which("mocha") is None, reason="mocha is not installed")
def test_mocha_reports_each_test_by_its_file(run):
    files = {"test/a.js": "it('adds', () => {}); it('fails', () => { throw Error('no') });\n"}
    result = run(files, "mocha --reporter spec test/")
    assert statuses(result) == {"test/a.js > adds": "passed", "test/a.js > fails": "failed"}


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize(
    ("command", "runner"),
    [
        ("node --test test/", None),
        ("node --test --test-reporter tap test/", None),
        ("sh run.sh", "node"),
    ],
)
def test_node_reports_each_test_by_its_file(run, command, runner):
    tests = """
        const { describe, it, before, test } = require("node:test")
        describe("sums", () => {
          it("adds", () => {})
          it("fails", () => { throw Error("no") })
          it("waits", { skip: true }, () => {})
          it("will be", { todo: true }, () => { throw Error("not yet") })
        })
        describe("broken", () => { before(() => { throw Error("hook") }); it("never", () => {}) })
        test("parts", async (t) => { await t.test("one", () => {}) })
        """
    files = {
        "run.sh": "node --test test/\n",
        "test/a.test.js": tests,
        "test/b.test.js": 'const { it } = require("node:test")\nit("adds", () => {})\n',
        "test/c.test.js": 'require("./nowhere")\n',
    }
    result = run(files, command, runner=runner)
    assert statuses(result) == {
        "test/a.test.js > sums > adds": "passed",
        "test/a.test.js > sums > fails": "failed",
        "test/a.test.js > sums > waits": "skipped",
        "test/a.test.js > sums > will be": "skipped",
        "test/a.test.js > broken": "error",
        "test/a.test.js > broken > never": "failed",
        "test/a.test.js > parts > one": "passed",
        "test/a.test.js > parts": "passed",
        "test/b.test.js > adds": "passed",
        "test/c.test.js": "error",
    }
    assert result.notes == ()
    assert "Error: no" in next(test.message for test in result.tests if test.id.endswith("fails"))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_server_that_a_failed_test_leaves_behind_does_not_keep_node_waiting(run):
    files = {
        "test/a.test.js": """
        const { test } = require("node:test")
        test("leaves", () => { require("http").createServer().listen(0); throw Error("no") })
        test("follows", () => {})
        """
    }
    result = run(files, "node --test test/", timeout=60.0)
    if result.commands[0].stopped:
        pytest.skip("NOT TESTED HERE: this Node cannot end a file")
    assert statuses(result) == {
        "test/a.test.js > leaves": "failed",
        "test/a.test.js > follows": "passed",
    }
    assert result.notes == ()


@pytest.mark.parametrize("tool", ["jest", "vitest"])
def test_jest_and_vitest_report_each_test_by_its_file(run, tool):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    command = "vitest --globals" if tool == "vitest" else "jest"
    files = {
        "package.json": f'{{"scripts": {{"test": "{command}"}}}}',
        "web/a.test.js": "test('adds', () => { expect(1).toBe(1); });\n",
    }
    expected = {"web/a.test.js > adds": "passed"}
    assert statuses(run(files, command)) == expected
    assert statuses(run(files, "npm test", runner=tool)) == expected


ADDS = "describe('c', () => { it('adds', () => {}) })\n"
FAILS = "describe('a (b)', () => { it('fails', () => { throw Error() }) })\n"
NODE_TEST = 'const {describe, it} = require("node:test")\n'
SUITES = {
    "pytest": (
        f"{sys.executable} -m pytest -p no:cacheprovider -o addopts= -k 'adds or fails' tests",
        {"tests/test_a.py": "def test_adds(): pass\ndef test_fails(): assert 0\n"},
        "tests/test_a.py::test_fails",
    ),
    "python3": (
        "python3 -m unittest discover -s tests",
        {
            "tests/test_a.py": "import unittest\nclass A(unittest.TestCase):\n"
            "    def test_adds(self): pass\n    def test_fails(self): self.fail()\n",
        },
        "test_a.A.test_fails",
    ),
    "node": (
        "node --test test/",
        {"test/a.test.js": NODE_TEST + FAILS, "test/b.test.js": NODE_TEST + ADDS},
        "test/a.test.js > a (b) > fails",
    ),
    "go": (
        "GOFLAGS=-mod=mod go test -v ./...",
        {
            "go.mod": "module till\n\ngo 1.19\n",
            "in/a_test.go": 'package in\nimport "testing"\nfunc TestAdds(t *testing.T) {}\n'
            "func TestFails(t *testing.T) { t.Fail() }\n",
            "b_test.go": 'package till\nimport "testing"\nfunc TestB(t *testing.T) {}\n',
        },
        "till/in/TestFails",
    ),
    "cargo": (
        "cargo test --offline",
        {
            "Cargo.toml": '[package]\nname = "till"\nversion = "0.1.0"\nedition = "2021"\n',
            "src/lib.rs": "#[cfg(test)]\nmod tests { #[test] fn adds() {}\n"
            "#[test] fn fails() { panic!() } }\n",
        },
        "till::tests::fails",
    ),
    **{
        tool: (
            command,
            {"package.json": "{}", "test/a.test.js": FAILS + ADDS},
            f"test/a.test.js > {name}",
        )
        for tool, command, name in (
            ("jest", "jest", "a (b) > fails"),
            ("vitest", "vitest run --globals", "a (b) > fails"),
            ("mocha", "mocha test/", "a (b) fails"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("tool", SUITES)
def test_only_the_selected_test_is_run(run, tool):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    command, files, name = SUITES[tool]
    whole = statuses(run(files, command))
    assert whole.pop(name) == "failed"
    assert "passed" in whole.values()
    narrowed = statuses(run(files, select_tests(command, None, [name])))
    assert narrowed.pop(name) == "failed"
    assert {*narrowed.values()} <= {"skipped"}
