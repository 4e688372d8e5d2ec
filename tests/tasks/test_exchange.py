"""Tasks go to other tools and come from them, and mean the same there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import small_project
from closeloop.cli import main
from closeloop.records.errors import BadInput
from closeloop.records.task import Acceptance, Task
from closeloop.tasks.task_exchange import (
    RequiredTests,
    SwebenchOptions,
    SwebenchSource,
    list_required_tests,
    read_container_task,
    read_swebench_tasks,
    render_swebench_line,
    unpack_archive,
    write_harbor_task,
)

HARBOR = os.environ.get("HARBOR_PYTHON") or str(
    Path(__file__).parent.parent.parent / ".venv-harbor/bin/python"
)
LOADS = """
import sys, typing, typing_extensions
if not hasattr(typing, "override"):
    typing.override = typing_extensions.override
from harbor.models.task.task import Task
task = Task(sys.argv[1])
assert Task.is_valid_dir(sys.argv[1])
assert task.paths.discovered_test_path and task.paths.discovered_solve_path
print(task.config.schema_version, task.name, task.instruction)
"""
NAMES = RequiredTests(
    fail_to_pass=("test_triple.py::test_triple",), pass_to_pass=("test_calculator.py::test_double",)
)
TRIPLE_FIX = (
    "diff --git a/calculator.py b/calculator.py\n--- a/calculator.py\n+++ b/calculator.py\n"
    "@@ -4,3 +4,7 @@\n \n def double(a):\n     return a + a\n+\n+\n"
    "+def triple(a):\n+    return 3 * a\n"
)


@pytest.fixture
def triple(tmp_path: Path) -> Task:
    """A task with hidden tests, in a repository of its own."""
    repo = small_project.build(tmp_path / "project")
    return Task(
        id="triple",
        prompt="Add `triple` to the calculator.",
        repo=str(repo),
        base=small_project.git(repo, "rev-parse", "HEAD").strip(),
        acceptance=Acceptance(
            run=small_project.PYTEST,
            fail_to_pass=NAMES.fail_to_pass,
            pass_to_pass=NAMES.pass_to_pass,
            patch=small_project.TRIPLE_TESTS_PATCH,
        ),
        reference=TRIPLE_FIX,
        tags=("arithmetic",),
    )


class Container:
    """A folder that plays one: what a Dockerfile would make, and scripts with its places."""

    def __init__(self, task: Path, place: Path) -> None:
        self.place = place
        unpack_archive(task / "environment/repo.tar.gz", place / "app")
        small_project.git(place, "init", "-q", "app")
        for name in ("tests", "solution"):
            subprocess.run(["cp", "-R", str(task / name), str(place / name)], check=True)
            for script in (place / name).glob("*.sh"):
                text = script.read_text()
                for root in ("/app", "/tests", "/logs", "/solution"):
                    text = text.replace(root, f"{place}{root}")
                script.write_text(text)

    def run(self, script: str) -> None:
        environ = {**os.environ, "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run(["bash", str(self.place / script)], check=False, env=environ)

    def reward(self) -> str:
        self.run("tests/test.sh")
        (self.place / "tests/report.jsonl").unlink(missing_ok=True)
        return (self.place / "logs/verifier/reward.txt").read_text().strip()


def test_an_exported_task_is_graded_in_harbors_way(triple, tmp_path):
    write_harbor_task(triple, NAMES, tmp_path / "out/triple")
    container = Container(tmp_path / "out/triple", tmp_path / "container")
    assert container.reward() == "0", "nothing was done"
    (container.place / "app/test_triple.py").write_text("def test_triple():\n    pass\n")
    assert container.reward() == "0", "the tests are those of the task"
    container.run("solution/solve.sh")
    assert container.reward() == "1"
    broken = container.place / "app/calculator.py"
    broken.write_text(broken.read_text().replace("return a + a", "return 5"))
    assert container.reward() == "0", "what passed must still pass"


def has_harbor() -> bool:
    probe = [HARBOR, "-c", "import harbor, pathspec"]
    return Path(HARBOR).exists() and subprocess.run(probe, check=False).returncode == 0


def test_an_exported_task_loads_in_harbor_itself(triple, tmp_path):
    if not has_harbor():
        pytest.skip("needs an environment with bench/harbor.txt")
    write_harbor_task(triple, NAMES, tmp_path / "triple")
    loaded = subprocess.run(
        [HARBOR, "-c", LOADS, str(tmp_path / "triple")], capture_output=True, text=True, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.split()[:2] == ["1.4", "closeloop/triple"]
    assert "Add `triple`" in loaded.stdout


def test_what_is_exported_twice_is_the_same(triple, tmp_path):
    for name in ("one", "two"):
        write_harbor_task(triple, NAMES, tmp_path / name)
    files = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert (
            path.read_bytes()
            == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()
        )


def test_a_task_comes_back_from_harbor_as_it_went(triple, tmp_path):
    write_harbor_task(triple, NAMES, tmp_path / "triple")
    back = read_container_task(tmp_path / "triple", tmp_path / "repos")
    for field in ("id", "prompt", "acceptance", "reference", "tags", "setup", "origin"):
        assert getattr(back, field) == getattr(triple, field), field
    listed = small_project.git(Path(back.repo), "ls-tree", "-r", "--name-only", back.base)
    assert listed == small_project.git(
        Path(triple.repo), "ls-tree", "-r", "--name-only", triple.base
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"repo": None}, "no repository"),
        ({"acceptance": Acceptance(answer="42")}, "graded by the agent's answer"),
        (
            {"acceptance": Acceptance(run="go test ./...", runner="go")},
            "another runner than pytest",
        ),
    ],
)
def test_what_harbor_cannot_say_is_refused(triple, tmp_path, changes, why):
    import msgspec

    with pytest.raises(BadInput, match=why):
        write_harbor_task(msgspec.structs.replace(triple, **changes), NAMES, tmp_path / "out")


TEST_SH = "#!/bin/bash\nif grep -q done /app/out.txt && [ -f /tests/helper.txt ]; then\n"
TEST_SH += "  echo 1 > /logs/verifier/reward.txt\nelse\n  echo 0 > /logs/verifier/reward.txt\nfi\n"
SOLVE = """#!/bin/bash
cd /app
cat > /tmp/fix.diff << 'END'
--- a/out.txt
+++ b/out.txt
@@ -1 +1 @@
-begun
+done
END
git apply /tmp/fix.diff
"""


def harbor_folder(folder: Path) -> Path:
    for name, text in {
        "task.toml": 'schema_version = "1.4"\n[task]\nname = "x/y"\nkeywords = ["files"]\n'
        "[verifier]\ntimeout_sec = 77.0\n",
        "instruction.md": "Write done into out.txt.\n",
        "environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY out.txt /app/\nCOPY .. /app/\n",
        "environment/out.txt": "begun\n",
        "tests/test.sh": TEST_SH,
        "tests/helper.txt": "x",
        "solution/solve.sh": SOLVE,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def terminal_bench_folder(folder: Path) -> Path:
    for name, text in {
        "task.yaml": "instruction: |-\n  Write done into out.txt.\ntags: [files]\n"
        "max_test_timeout_sec: 77.0\n",
        "Dockerfile": "FROM debian\nWORKDIR /app\nCOPY out.txt .\n",
        "out.txt": "begun\n",
        "run-tests.sh": "test -f $TEST_DIR/helper.txt && grep -q done /app/out.txt\n",
        "tests/helper.txt": "x",
        "solution.sh": SOLVE,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("make", [harbor_folder, terminal_bench_folder])
def test_a_task_of_a_container_is_graded_here(make, tmp_path):
    task = read_container_task(make(tmp_path / "write-done"), tmp_path / "repos")
    assert (task.id, task.tags, task.acceptance.timeout) == ("write-done", ("files",), 77.0)
    assert task.reference is not None
    repo = Path(task.repo)
    assert sorted(path.name for path in repo.iterdir()) == [".git", "out.txt"]

    def graded() -> int:
        command = ["bash", "-c", task.acceptance.commands[0]]
        return subprocess.run(command, cwd=repo, check=False).returncode

    patch = tmp_path / "p"
    patch.write_text(task.acceptance.patch)
    small_project.git(repo, "apply", str(patch))
    assert graded() != 0
    patch.write_text(task.reference)
    small_project.git(repo, "apply", str(patch))
    assert graded() == 0


def test_a_task_that_changed_does_not_take_the_base_of_the_one_imported_earlier(tmp_path):
    folder = terminal_bench_folder(tmp_path / "write-done")
    first = read_container_task(folder, tmp_path / "repos")
    assert read_container_task(folder, tmp_path / "repos") == first
    (folder / "out.txt").write_text("begun anew\n")
    second = read_container_task(folder, tmp_path / "repos")
    assert second.base != first.base
    assert small_project.git(Path(first.repo), "rev-parse", "HEAD").strip() == first.base


def test_no_file_of_a_task_is_git_s_own(tmp_path):
    folder = terminal_bench_folder(tmp_path / "write-done")
    touch = f"touch {tmp_path}/ran"
    run = f'[core]\n\tfsmonitor = {touch}\n[filter "x"]\n\tclean = {touch}\n'
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text(run)
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (folder / "config").write_text(run)
    (folder / ".gitattributes").write_text("* filter=x\n")
    (folder / "Dockerfile").write_text("WORKDIR /app\nCOPY . .\nCOPY config /app/.git/config\n")
    read_container_task(folder, tmp_path / "repos")
    assert not (tmp_path / "ran").exists()


def test_a_list_of_files_is_copied_like_words(tmp_path):
    folder = terminal_bench_folder(tmp_path / "write-done")
    (folder / "Dockerfile").write_text('WORKDIR /app\nCOPY --chown=a ["out.txt", "/app/a b.txt"]\n')
    repo = Path(read_container_task(folder, tmp_path / "repos").repo)
    assert (repo / "a b.txt").read_text() == "begun\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Dockerfile", 'COPY "a b /app\n'),
        ("Dockerfile", "COPY [1, 2]\n"),
        ("Dockerfile", "COPY a\0b /app\n"),
        ("Dockerfile", "WORKDIR /app\nCOPY out.txt /app/x\nCOPY out.txt /app/x/y\n"),
        ("task.yaml", "instruction: a\nday: 2020-13-45\n"),
        ("task.yaml", f"instruction: a\nn: {'9' * 5000}\n"),
        ("task.yaml", 'instruction: "\\ud800"\n'),
        ("task.toml", f"a = {'9' * 5000}\n"),
        ("task.toml", f"a = {'[' * 5000}"),
        ("tests/closeloop.json", "[" * 100_000),
    ],
)
def test_a_hostile_folder_is_refused_in_a_sentence_and_leaves_nothing(tmp_path, name, text):
    make = harbor_folder if name == "task.toml" else terminal_bench_folder
    folder = make(tmp_path / "hostile")
    (folder / name).write_text(text)
    with pytest.raises(BadInput, match=r"^[^\n]*hostile[^\n]*\.$"):
        read_container_task(folder, tmp_path / "repos")
    assert list((tmp_path / "repos").glob("*")) == []


def test_an_archive_of_broken_links_or_bytes_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("a")
        member.type, member.linkname = tarfile.LNKTYPE, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(BadInput, match="cannot be unpacked"):
        unpack_archive(tmp_path / "a.tar", tmp_path / "folder")
    (tmp_path / "a.tar").write_bytes(b"junk")
    with pytest.raises(BadInput, match=r"^[^\n]*cannot be unpacked[^\n]*$"):
        unpack_archive(tmp_path / "a.tar", tmp_path / "folder")


def test_a_folder_for_harbor_appears_whole_or_not_at_all(triple, tmp_path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(BadInput, match="cannot be written"):
        write_harbor_task(triple, NAMES, tmp_path / "out/triple")
    write_harbor_task(triple, NAMES, tmp_path / "whole/triple")
    assert [path.name for path in (tmp_path / "whole").iterdir()] == ["triple"]


def test_an_archive_cannot_write_outside(tmp_path):
    for name in ("../out.txt", "/tmp/out.txt", ".git/hooks/x"):
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
        with pytest.raises(BadInput, match="outside its folder"):
            unpack_archive(tmp_path / "a.tar", tmp_path / "in/folder")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.SYMTYPE, "../../.."
        archive.addfile(member)
    with pytest.raises(BadInput, match="points outside"):
        unpack_archive(tmp_path / "a.tar", tmp_path / "in/folder")


def test_swebench_lines_are_read_as_they_were_written(triple, tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(render_swebench_line(triple, NAMES, SwebenchSource(repo="ann/calculator")))
    row = json.loads(file.read_text())
    assert json.loads(row["FAIL_TO_PASS"]) == list(NAMES.fail_to_pass)
    [back] = read_swebench_tasks(file, SwebenchOptions(clones=Path(triple.repo)))
    assert back.id == "ann__calculator-triple"
    for field in ("prompt", "acceptance", "reference", "base", "repo", "setup"):
        assert getattr(back, field) == getattr(triple, field), field


RESOLVES = """
import json, sys
from swebench.harness.grading import get_eval_report
from swebench.harness.utils import load_swebench_dataset, make_test_spec
[row] = load_swebench_dataset(sys.argv[1])
spec = make_test_spec(row)
if len(sys.argv) == 2:
    print(spec.eval_script)
else:
    told = {"instance_id": spec.instance_id, "model_patch": row["patch"], "model_name_or_path": "x"}
    print(get_eval_report(spec, told, sys.argv[2], True)[spec.instance_id]["resolved"])
"""


def test_swebenchs_own_code_resolves_an_exported_task(triple, tmp_path):
    python = os.environ.get("SWEBENCH_PYTHON")
    if python is None:
        pytest.skip("SWEBENCH_PYTHON names no environment with swebench 5")

    def swebench(*arguments: Path) -> str:
        command = [python, "-c", RESOLVES, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    file = tmp_path / "tasks.jsonl"
    file.write_bytes(render_swebench_line(triple, NAMES, SwebenchSource(repo="ann/calculator")))
    script, log = tmp_path / "eval.sh", tmp_path / "log.txt"
    script.write_text(swebench(file).replace("cd /app", f"cd {triple.repo}"))
    resolved = []
    for patch in (None, TRIPLE_FIX):
        if patch is not None:
            (tmp_path / "fix").write_text(patch)
            small_project.git(Path(triple.repo), "apply", str(tmp_path / "fix"))
        with log.open("w") as written:
            subprocess.run(["bash", str(script)], stdout=written, stderr=written, check=False)
        resolved.append(swebench(file, log).strip())
    assert resolved == ["False", "True"]


def test_no_character_ends_a_line_of_swebenchs(triple):
    import msgspec

    odd = msgspec.structs.replace(triple, prompt="a\u2028b\x85c\x0cd")
    line = render_swebench_line(odd, NAMES, SwebenchSource(repo="ann/calculator")).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["problem_statement"] == odd.prompt


def test_lists_djangos_names_and_bad_lines_are_all_met(triple, tmp_path):
    row = json.loads(render_swebench_line(triple, NAMES, SwebenchSource(repo="ann/calculator")))
    django = {**row, "FAIL_TO_PASS": ["test_x (a.b.C)"], "PASS_TO_PASS": "[]"}
    bad = [
        "nonsense",
        "[1]",
        json.dumps({**row, "base_commit": "main"}),
        json.dumps({**row, "repo": "../../etc"}),
        json.dumps({**row, "patch": "no patch"}),
        json.dumps({**row, "FAIL_TO_PASS": "[]"}),
        json.dumps({**row, "FAIL_TO_PASS": "{"}),
        json.dumps({**row, "problem_statement": None}),
    ]
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join([json.dumps(django), *bad]))
    first, *others = read_swebench_tasks(file, SwebenchOptions())
    assert first.acceptance.fail_to_pass == ("a.b.C.test_x",)
    assert first.acceptance.runner == "unittest"
    assert first.repo == "https://github.com/ann/calculator"
    assert len(others) == len(bad)
    assert all(isinstance(one, str) and f"line {n}" in one for n, one in enumerate(others, 2))


@given(st.binary(max_size=200))
def test_garbage_is_never_a_task_and_never_an_accident(content):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.jsonl"
        file.write_bytes(content)
        assert all(isinstance(one, str) for one in read_swebench_tasks(file, SwebenchOptions()))


def test_tests_that_are_not_named_need_a_proof(triple):
    import msgspec

    unnamed = msgspec.structs.replace(
        triple, acceptance=msgspec.structs.replace(triple.acceptance, pass_to_pass=None)
    )
    with pytest.raises(BadInput, match="verify it first"):
        list_required_tests(unnamed, None)


def test_tasks_go_out_and_come_in_by_command(triple, tmp_path, monkeypatch, capsys):
    project = Path(triple.repo)
    monkeypatch.chdir(project)
    (project / "tasks/triple.patch").write_text(TRIPLE_FIX)
    text = (project / "tasks/triple.md").read_text()
    (project / "tasks/triple.md").write_text(
        text.replace("---\n", "---\nreference: triple.patch\n", 1)
    )

    def closeloop(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        printed = capsys.readouterr()
        return left.value.code, printed.out + printed.err

    code, said = closeloop(
        "task", "export", "--format", "harbor", "--out", str(tmp_path / "harbor")
    )
    assert code == 0
    assert "1 task written" in said
    assert "must pass in fix are not known by name: verify it first" in said
    code, said = closeloop(
        "task", "export", "triple", "--format", "swe-bench", "--out", str(tmp_path / "tasks.jsonl")
    )
    assert code == 0, said
    code, said = closeloop("task", "import", str(tmp_path / "tasks.jsonl"), "--clones", ".")
    assert "1 task already existed" in said, "nobody is asked the same twice, whatever its name"
    (project / "tasks/triple.md").unlink()
    code, said = closeloop("task", "import", str(tmp_path / "tasks.jsonl"), "--clones", ".")
    assert code == 0, said
    assert (project / "tasks/local__project-triple.md").exists()
    code, said = closeloop("task", "import", str(tmp_path / "tasks.jsonl"), "--clones", ".")
    assert "1 task already existed" in said
    code, said = closeloop("task", "import", str(tmp_path))
    assert code == 2
    assert "nor a folder with task.toml" in said
