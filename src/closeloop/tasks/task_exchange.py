"""Import and export tasks: SWE-bench and Harbor, with containers."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shlex
import shutil
import sys
import tarfile
import tempfile
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from closeloop.git import read_git_text, try_git_text
from closeloop.records.attempt import Proof, TestRun
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.task import Acceptance, Task, TestRunner
from closeloop.tasks.task_files import (
    COPIED_COMMIT_TIME,
    is_repository_address,
    read_task_text,
    with_digests,
)
from closeloop.text.patches import parse_patch
from closeloop.text.untrusted import parse_json
from closeloop.text.wording import matches_globs

# SWE-bench's format: a JSON line per task, with the fix, the tests and their names.
#
# The tests that a task requires, each by name: other formats cannot express "the rest".


class RequiredTests(Record):
    """Tests that must start to pass, and tests that must keep passing."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]


def list_required_tests(task: Task, proof: Proof | None) -> RequiredTests:
    """Return all tests by name, from the task if it lists them, else from its proof."""
    acceptance = task.acceptance
    if acceptance.fail_to_pass and acceptance.pass_to_pass is not None:
        return RequiredTests(
            fail_to_pass=acceptance.fail_to_pass, pass_to_pass=acceptance.pass_to_pass
        )
    if proof is None or proof.before is None or proof.reference is None:
        raise BadInput(
            f"The tests that must pass in {task.id} are not known by name: verify it "
            f"first with `closeloop task check {task.id}`."
        )
    passing_before, passing_after = find_steady_passes(proof.before, proof.reference)
    fail_to_pass = acceptance.fail_to_pass or tuple(sorted(passing_after - passing_before))
    pass_to_pass = (
        tuple(sorted(passing_before & passing_after))
        if acceptance.pass_to_pass is None
        else acceptance.pass_to_pass
    )
    return RequiredTests(fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass)


def find_steady_passes(before: TestRun, after: TestRun) -> tuple[set[str], set[str]]:
    """Return what passes without and with the change, except tests that are flaky in either."""
    flaky = {*before.flaky, *after.flaky}
    return passing_tests(before) - flaky, passing_tests(after) - flaky


def passing_tests(run: TestRun) -> set[str]:
    return {test.id for test in run.tests if test.status == "passed"}


MAX_LINE_BYTES = 64 << 20
_OWNER_AND_NAME = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}")
_COMMIT_ID = re.compile(r"[0-9a-f]{40}")
_UNITTEST_NAME = re.compile(r"(\w+) \(([\w.]+)\)")


class SwebenchOptions(Record):
    """What the format lacks: where repositories are, and how tests run."""

    clones: Path | None = None
    """A clone, or a folder with clones by name; default: their addresses."""
    run: str = "python -m pytest"
    setup: tuple[str, ...] = ()


class SwebenchSource(Record):
    """Repository data that the format needs and a task lacks."""

    repo: str
    """`owner/name`."""
    created_at: str = ""


def read_swebench_tasks(path: Path, setting: SwebenchOptions) -> Iterator[Task | str]:
    """Yield the task of each line, or why it is none."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_read_lines(file), 1):
                name = f"{path}, line {number}"
                try:
                    yield _task_from_row(_decode_row(line, name), setting, name)
                except BadInput as fault:
                    yield str(fault)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error


def render_swebench_line(task: Task, names: RequiredTests, source: SwebenchSource) -> bytes:
    """Render one task for SWE-bench's loader; BadInput if the format cannot express it."""
    acceptance = task.acceptance
    if task.base is None or task.reference is None or not acceptance.run:
        raise BadInput(
            f"{task.id} has no repository, reference or test command, which SWE-bench needs."
        )
    if acceptance.patch is None:
        raise BadInput(f"{task.id} has no hidden tests (acceptance.patch), which SWE-bench needs.")
    row = {
        "repo": source.repo,
        "instance_id": f"{source.repo.replace('/', '__')}-{task.id}",
        "base_commit": task.base,
        "patch": task.reference,
        "test_patch": acceptance.patch,
        "problem_statement": task.prompt,
        "hints_text": "",
        "created_at": source.created_at,
        "version": str(task.version),
        # Lists as text: the format of its data sets and its code.
        "FAIL_TO_PASS": json.dumps(names.fail_to_pass),
        "PASS_TO_PASS": json.dumps(names.pass_to_pass),
        "environment_setup_commit": task.base,
        "install_config": {"install": list(task.setup), "test_cmd": acceptance.run},
        **_evaluation_fields(task),
    }
    # In ASCII: its loader treats U+2028 and similar characters as line ends.
    return json.dumps(row).encode() + b"\n"


def _evaluation_fields(task: Task) -> dict[str, str]:
    """Return how version 5 runs and parses the tests, in the image that our Harbor export
    builds."""
    acceptance = task.acceptance
    if (acceptance.runner or "pytest") != "pytest" or "pytest" not in (acceptance.run or ""):
        return {}
    files = parse_patch(acceptance.patch or "").files
    paths = " ".join(shlex.quote(file.path) for file in files if file.status != "deleted")
    script = f"""\
#!/bin/bash
set -uxo pipefail
cd /app
for path in {paths}; do rm -f "$path"; git checkout HEAD -- "$path"; done
git apply -v - <<'CLOSELOOP_END'
{(acceptance.patch or "").rstrip(chr(10))}
CLOSELOOP_END
: '>>>>> Start Test Output'
PYTEST_ADDOPTS=-rA {acceptance.run}
: '>>>>> End Test Output'
"""
    return {
        "image": f"closeloop/{task.id.lower()}:latest",
        "eval_script": script,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }


def _read_lines(file: Any) -> Iterator[bytes]:
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise BadInput(
                f"A line of it is longer than {MAX_LINE_BYTES >> 20} MB, too long for a task."
            )
        if line.strip():
            yield line


def _decode_row(line: bytes, name: str) -> dict[str, Any]:
    value = parse_json(line, name)
    if not isinstance(value, dict):
        raise BadInput(f"{name} is not a JSON object.")
    return value


def _task_from_row(row: dict[str, Any], setting: SwebenchOptions, name: str) -> Task:
    repo, base = _required_text(row, "repo", name), _required_text(row, "base_commit", name)
    if not _OWNER_AND_NAME.fullmatch(repo) or ".." in repo:
        raise BadInput(f"{name}: 'repo' must be owner/name, not {repo[:80]!r}.")
    if not _COMMIT_ID.fullmatch(base):
        raise BadInput(f"{name}: 'base_commit' must be a full commit id.")
    failing, passing = (
        _required_tests(row, "FAIL_TO_PASS", name),
        _required_tests(row, "PASS_TO_PASS", name),
    )
    if not failing:
        raise BadInput(f"{name}: FAIL_TO_PASS is empty, so a fix could not be recognised.")
    run, setup = _run_and_setup(row, setting)
    runner: TestRunner | None = "unittest" if _UNITTEST_NAME.fullmatch(failing[0]) else None
    task = Task(
        id=normalise_task_id(_required_text(row, "instance_id", name)),
        prompt=_required_text(row, "problem_statement", name).strip(),
        repo=_clone_location(repo, setting.clones),
        base=base,
        setup=setup,
        acceptance=Acceptance(
            run=run,
            runner=runner,
            fail_to_pass=tuple(map(_normalise_test_name, failing)),
            pass_to_pass=tuple(map(_normalise_test_name, passing)),
            patch=_required_patch(row, "test_patch", name),
        ),
        reference=_required_patch(row, "patch", name),
        origin=f"swe-bench:{_required_text(row, 'instance_id', name)[:200]}",
    )
    return with_digests(task)


def normalise_task_id(text: str) -> str:
    """Turn a foreign name into a task id."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100] or "task"


def _required_text(row: dict[str, Any], field: str, name: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{name}: {field!r} is missing.")
    return value


def _required_patch(row: dict[str, Any], field: str, name: str) -> str:
    text = _required_text(row, field, name)
    text = text if text.endswith("\n") else f"{text}\n"
    try:
        parse_patch(text)
    except BadInput as fault:
        raise BadInput(f"{name}: {field!r}: {fault}") from fault
    return text


def _required_tests(row: dict[str, Any], field: str, name: str) -> list[str]:
    value = row.get(field, [])
    try:
        value = msgspec.json.decode(value) if isinstance(value, str) else value
        return msgspec.convert(value, list[str])
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name}: {field!r} must be a list of tests.") from error


def _normalise_test_name(name: str) -> str:
    """Convert Django's `test_x (a.B)` to unittest's `a.B.test_x`."""
    match = _UNITTEST_NAME.fullmatch(name)
    return f"{match[2]}.{match[1]}" if match else name


def _run_and_setup(row: dict[str, Any], setting: SwebenchOptions) -> tuple[str, tuple[str, ...]]:
    """Return the run and setup commands of the row; else those of the project."""
    install_config = row.get("install_config")
    install_config = install_config if isinstance(install_config, dict) else {}
    run, install = install_config.get("test_cmd"), install_config.get("install")
    lines = [install] if isinstance(install, str) else install
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        lines = list(setting.setup)
    return run if isinstance(run, str) and run else setting.run, tuple(lines)


def _clone_location(repo: str, clones: Path | None) -> str:
    if clones is None:
        return f"https://github.com/{repo}"
    owner, _, short = repo.partition("/")
    clone_names: Iterable[str] = (f"{owner}/{short}", f"{owner}__{short}", short)
    folders = [clones / name for name in clone_names]
    return str(next((folder for folder in folders if folder.is_dir()), clones).resolve())


# Repository data that other formats need: its owner, and when the work began.

_ADDRESS_OWNER_AND_NAME = re.compile(r"[/:]([\w.-]{1,100})/([\w.-]{1,100}?)(?:\.git)?/?$")


def read_swebench_source(task: Task) -> SwebenchSource:
    """Read it from the address, or that of the clone's origin; else use a name of our own."""
    repo = task.repo or ""
    address = (
        repo
        if is_repository_address(repo)
        else try_git_text(repo, "remote", "get-url", "origin").strip()
    )
    match = _ADDRESS_OWNER_AND_NAME.search(address) if is_repository_address(address) else None
    folder_name = re.sub(r"[^\w.-]+", "-", Path(repo).name) or "task"
    return SwebenchSource(
        repo=f"{match[1]}/{match[2]}" if match else f"local/{folder_name}",
        created_at=try_git_text(
            repo, "show", "-s", "--format=%cI", f"{task.base}^{{commit}}"
        ).strip(),
    )


# Write a task as Harbor runs it: a folder with a container to build, a request and a grader.
#
# Export and import file trees, for formats that include a repository.

MAX_UNPACKED_BYTES = 2 << 30
_GIT_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "closeloop",
    "GIT_AUTHOR_EMAIL": "closeloop@localhost",
    "GIT_COMMITTER_NAME": "closeloop",
    "GIT_COMMITTER_EMAIL": "closeloop@localhost",
    "GIT_AUTHOR_DATE": COPIED_COMMIT_TIME,
    "GIT_COMMITTER_DATE": COPIED_COMMIT_TIME,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def check_out_commit(repo: str, commit: str, folder: Path) -> None:
    """Write all files of a commit to an empty folder. `git archive` may leave files out."""
    index = folder.parent / f".{folder.name}.index"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _run_git(Path(repo), "read-tree", commit, GIT_INDEX_FILE=str(index))
        _run_git(
            Path(repo), "checkout-index", "-a", f"--prefix={folder}/", GIT_INDEX_FILE=str(index)
        )
    finally:
        index.unlink(missing_ok=True)


def pack_folder(folder: Path) -> bytes:
    """Pack a folder as tar.gz, byte for byte the same for the same files."""

    def clear_ownership(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            archive.add(path, arcname=name, recursive=False, filter=clear_ownership)
    return buffer.getvalue()


def unpack_archive(archive: Path, folder: Path) -> None:
    """Unpack a tar below a folder; BadInput if it would write elsewhere, or too much."""
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                total += member.size
                if total > MAX_UNPACKED_BYTES:
                    raise BadInput(f"{archive} unpacks to more than {MAX_UNPACKED_BYTES >> 30} GB.")
                extract_member(tar, member, folder.resolve())
    except (tarfile.TarError, OSError, EOFError, zlib.error, LookupError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(":.")
        raise BadInput(f"{archive} cannot be unpacked: {reason}.") from error


def extract_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Extract files, folders and links that stay below; not every Python 3.11 has
    `filter="data"`."""
    path = folder / member.name
    is_inside = path.parent.resolve().is_relative_to(folder) and ".." not in path.parts
    if not is_inside or ".git" in path.parts:
        raise BadInput(f"{member.name!r} would be written outside its folder.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.issym():
        if not (path.parent / member.linkname).resolve().is_relative_to(folder):
            raise BadInput(f"{member.name!r} is a link that points outside its folder.")
        path.symlink_to(member.linkname)
    elif (content := archive.extractfile(member)) is not None and not path.is_symlink():
        path.write_bytes(content.read())
        path.chmod(0o755 if member.mode & 0o100 else 0o644)


def commit_folder(folder: Path) -> str:
    """Make a folder a repository with one commit, and return its id."""
    _run_git(folder, "init", "-q", "-b", "main")
    _run_git(folder, "add", "-A", "-f")
    _run_git(folder, "commit", "-q", "--allow-empty", "--no-verify", "-m", "The task's environment")
    return _run_git(folder, "rev-parse", "HEAD").strip()


def patch_adding_files(folder: Path, files: dict[str, bytes]) -> str:
    """Return the patch that adds these files to a repository, without changing it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    _run_git(folder, "add", "-f", "--", *files)
    patch = _run_git(folder, "diff", "--cached", "--binary", "HEAD")
    _run_git(folder, "reset", "-q", "--hard", "HEAD")
    return patch


def _run_git(folder: Path, *arguments: str, **environ: str) -> str:
    """Run git on foreign content: without the user's own filters."""
    return read_git_text(folder, *arguments, env=_GIT_ENVIRONMENT | environ)


SCHEMA_VERSION = "1.4"
RECORD_FILE = "closeloop.json"
"""Our own record of the task, beside the grader, to read it back without loss."""
_RUNNER_IMAGES: dict[TestRunner, str] = {
    "jest": "node:22-bookworm",
    "vitest": "node:22-bookworm",
    "mocha": "node:22-bookworm",
    "node": "node:22-bookworm",
    "go": "golang:1-bookworm",
    "cargo": "rust:1-bookworm",
    "junit": "maven:3-eclipse-temurin-21",
}
_DOCKERFILE = """\
FROM {image}
WORKDIR /app
ADD repo.tar.gz /app/
RUN git init -q -b main && git add -A -f \\
 && git -c user.name=closeloop -c user.email=closeloop@localhost commit -q -m "Start"
COPY setup.sh /tmp/setup.sh
RUN bash -e /tmp/setup.sh
"""
_SOLVE_SCRIPT = """\
#!/bin/bash
cd /app && git apply --whitespace=nowarn /solution/reference.patch
"""
_TEST_SCRIPT = """\
#!/bin/bash
# The tests are those of the task, whatever was done to them; the reward is 1 or 0.
mkdir -p /logs/verifier
echo 0 > /logs/verifier/reward.txt
cd /app || exit 1
while IFS= read -r path; do rm -rf -- "$path"; done < /tests/gone.txt
cp -R /tests/files/. /app/
passed=1
{steps}
echo "$passed" > /logs/verifier/reward.txt
"""
_PYTEST_STEP = """\
export PYTHONPATH="/tests${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTEST_ADDOPTS="-p closeloop_report ${{PYTEST_ADDOPTS}}"
( {run} )
python3 /tests/grade.py || passed=0
unset PYTEST_ADDOPTS"""
_REPORT_PLUGIN = '''\
"""Says of every test how it went, a line each, where grade.py looks."""

import json
import os

REPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "report.jsonl")


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        with open(REPORT, "a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, report.outcome]) + "\\n")
'''
_GRADE_SCRIPT = '''\
"""Exits with 0 when every test that is asked for passed, each time that it ran."""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "tests.json"), encoding="utf-8") as file:
    wanted = json.load(file)
seen = {}
try:
    with open(os.path.join(HERE, "report.jsonl"), encoding="utf-8") as file:
        for name, outcome in map(json.loads, file):
            seen.setdefault(name, set()).add(outcome)
except FileNotFoundError:
    print("no test ran")
missing = [name for name in wanted if seen.get(name) != {"passed"}]
for name in missing[:50]:
    print("not passed:", name)
sys.exit(bool(missing))
'''


def write_harbor_task(task: Task, names: RequiredTests | None, folder: Path) -> None:
    """Write a task's folder; BadInput if Harbor cannot express it."""
    repo, base = _require_exportable(task)
    steps = _grading_steps(task, names)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        check_out_commit(repo, base, tree)
        archive = pack_folder(tree)
        files, removed_paths = _hidden_files(task, names, tree)
    required_names = names.fail_to_pass + names.pass_to_pass if names else ()
    files_to_write: dict[str, str | bytes] = {
        "task.toml": _render_task_toml(task),
        "instruction.md": f"{task.prompt}\n",
        "environment/Dockerfile": _DOCKERFILE.format(image=_choose_image(task)),
        "environment/repo.tar.gz": archive,
        "environment/setup.sh": "".join(f"{line}\n" for line in ("cd /app", *task.setup)),
        "tests/test.sh": _TEST_SCRIPT.format(steps=steps),
        "tests/gone.txt": "".join(f"{path}\n" for path in removed_paths),
        "tests/closeloop_report.py": _REPORT_PLUGIN,
        "tests/grade.py": _GRADE_SCRIPT,
        "tests/tests.json": json.dumps(required_names, indent=0),
        f"tests/{RECORD_FILE}": _encode_record(task),
        **{f"tests/files/{path}": content for path, content in files.items()},
    }
    if task.reference is not None:
        files_to_write |= {
            "solution/solve.sh": _SOLVE_SCRIPT,
            "solution/reference.patch": task.reference,
        }
    _write_folder(files_to_write, folder)


def _write_folder(files: Mapping[str, str | bytes], folder: Path) -> None:
    """Write the folder atomically."""
    draft = folder.with_name(f".{folder.name}.part")
    try:
        (draft / "tests/files").mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            if path.suffix == ".sh":
                path.chmod(0o755)
        draft.rename(folder)
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _require_exportable(task: Task) -> tuple[str, str]:
    acceptance = task.acceptance
    if task.repo is None or task.base is None:
        raise BadInput(f"{task.id} has no repository, which Harbor needs.")
    if acceptance.answer is not None or task.answers:
        raise BadInput(f"{task.id} is graded by the agent's answer, and Harbor grades files only.")
    if not os.path.isdir(task.repo):  # noqa: PTH112 - an address is no path
        raise BadInput(
            f"{task.id}: {task.repo} is not on this machine: clone it, and set `repo` to the clone."
        )
    return task.repo, task.base


def _grading_steps(task: Task, names: RequiredTests | None) -> str:
    """Return the grader's steps: the tests, then the commands."""
    acceptance, steps = task.acceptance, []
    if acceptance.run and names is None:
        steps.append(f"( {acceptance.run} ) || passed=0")
    elif (
        acceptance.run
        and (acceptance.runner or "pytest") == "pytest"
        and "pytest" in acceptance.run
    ):
        steps.append(_PYTEST_STEP.format(run=acceptance.run))
    elif acceptance.run:
        raise BadInput(
            f"{task.id} names single tests of another runner than pytest, which Harbor "
            "tasks do not support."
        )
    steps += [f"( {command} ) || passed=0" for command in acceptance.commands]
    return "\n".join(steps)


def _hidden_files(
    task: Task, names: RequiredTests | None, tree: Path
) -> tuple[dict[str, bytes], list[str]]:
    """Return the files that grading puts in place, and those that must not exist."""
    tree_files = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    kept_paths = (
        {path for path in tree_files if matches_globs(path, task.protected)}
        if task.protected
        else set()
    )
    kept_paths |= {
        name.partition("::")[0] for name in (names.fail_to_pass if names else ())
    } & tree_files
    patched_paths: list[str] = []
    if task.acceptance.patch is not None:
        patch = tree.parent / "hidden.patch"
        patch.write_bytes(task.acceptance.patch.encode())
        read_git_text(tree, "init", "-q")
        read_git_text(tree, "apply", "--whitespace=nowarn", str(patch))
        for file in parse_patch(task.acceptance.patch).files:
            kept_paths |= {file.path}
            patched_paths += [name for name in (file.old_path, file.path) if name]
    contents = {
        path: (tree / path).read_bytes() for path in sorted(kept_paths) if (tree / path).is_file()
    }
    return contents, sorted(path for path in set(patched_paths) if path not in contents)


def _choose_image(task: Task) -> str:
    images_by_word: Iterable[tuple[str, str]] = (
        ("go test", "golang:1-bookworm"),
        ("cargo", "rust:1-bookworm"),
        ("npm", "node:22-bookworm"),
        ("npx", "node:22-bookworm"),
    )
    run = task.acceptance.run or ""
    if task.acceptance.runner in _RUNNER_IMAGES:
        return _RUNNER_IMAGES[task.acceptance.runner]
    python_image = f"python:{sys.version_info.major}.{sys.version_info.minor}-bookworm"
    return next((image for word, image in images_by_word if word in run), python_image)


def _encode_record(task: Task) -> bytes:
    """Encode the task without machine-specific data and what is stored beside it."""
    plain = msgspec.structs.replace(task, repo=None, reference=None)
    return msgspec.json.format(msgspec.json.encode(plain))


def _render_task_toml(task: Task) -> str:
    quoted = json.dumps
    tags = ", ".join(quoted(tag) for tag in task.tags)
    # A container needs longer than a sandbox on the machine that proved the task.
    seconds = 3 * task.acceptance.timeout * (1 + len(task.acceptance.commands))
    return f"""\
schema_version = "{SCHEMA_VERSION}"

[task]
name = {quoted(f"closeloop/{task.id}")}
description = {quoted(task.prompt.partition(chr(10))[0][:200])}
keywords = [{tags}]

[metadata]
origin = {quoted(task.origin)}
base_commit = {quoted(task.base)}

[verifier]
timeout_sec = {seconds:.1f}

[environment]
build_timeout_sec = 1800.0
workdir = "/app"
"""


# Import container tasks of Harbor and terminal-bench.
#
# Their tests use absolute paths: `/app`, `/tests`, `/logs`. Grading copies the tests somewhere
# and writes the actual paths into the copy. What their images install is missing; such a task
# cannot be proved, and says so, until its `setup` installs it.


MAX_FILES = 2000
MAX_FILE_BYTES = 32 << 20
HIDDEN_FOLDER = ".harbor"
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w{1,40})['\"]?[^\n]{0,200}\n")
_GRADER_SCRIPT = """\
#!/bin/bash
# Runs the tests of a container's task here: with the places of this machine in their place.
root=$PWD
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir -p "$place/logs/verifier"
cp -R "$root/.harbor/tests" "$place/tests"
grep -rlIE '/(app|tests|logs)' "$place/tests" | while IFS= read -r file; do
  sed -i -E "s#(^|[^A-Za-z0-9_.}])/(tests|logs)(/|[^A-Za-z0-9_]|\\$)#\\1$place/\\2\\3#g
s#(^|[^A-Za-z0-9_.}])APP(/|[^A-Za-z0-9_]|\\$)#\\1$root\\2#g" "$file"
done
export TEST_DIR="$place/tests"
bash "$place/tests/SCRIPT"
code=$?
reward="$place/logs/verifier/reward.txt"
if [ -s "$reward" ]; then awk '{ exit !($1 >= 1) }' "$reward"; else exit "$code"; fi
"""


def is_container_task(folder: Path) -> bool:
    return (folder / "task.toml").is_file() or (folder / "task.yaml").is_file()


def read_container_task(folder: Path, repos: Path) -> Task:
    """Read one task's folder; its files become a repository of their own in `repos`."""
    draft = repos / f".{normalise_task_id(folder.name)}.part"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        return _import_task(folder, draft)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{folder} cannot be read as a task: {error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _import_task(folder: Path, draft: Path) -> Task:
    harbor = (folder / "task.toml").is_file()
    config = _read_harbor_config(folder) if harbor else _read_terminal_bench_config(folder)
    environment = folder / "environment" if harbor else folder
    record_path = folder / "tests" / RECORD_FILE
    if record_path.is_file():
        unpack_archive(environment / "repo.tar.gz", draft)
    else:
        _copy_environment(environment, draft, config["root"])
    base = commit_folder(draft)
    task = (
        _restore_own_task(record_path, folder)
        if record_path.is_file()
        else _build_task(folder, draft, config)
    )
    # Named by its content: a task imported earlier keeps its base.
    repo = draft.with_name(f"{normalise_task_id(folder.name)}-{base[:12]}")
    imported_task = with_digests(replace(task, repo=str(repo.resolve()), base=base))
    if not repo.exists():
        draft.rename(repo)
    return imported_task


def _read_harbor_config(folder: Path) -> dict[str, Any]:
    name = str(folder / "task.toml")
    try:
        config = tomllib.loads(read_task_text(folder / "task.toml", name))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} is not valid TOML: {error}.") from error
    if config.get("steps"):
        raise BadInput(f"{name} has several steps, but a closeloop task has one request.")
    verifier = config.get("verifier")
    package = config.get("task")
    return {
        "prompt": read_task_text(folder / "instruction.md", str(folder / "instruction.md")).strip(),
        "seconds": verifier.get("timeout_sec") if isinstance(verifier, dict) else None,
        "tags": package.get("keywords") if isinstance(package, dict) else None,
        "script": "test.sh",
        "solution": folder / "solution",
        "root": _find_workdir(folder / "environment" / "Dockerfile"),
        "origin": "harbor",
    }


def _read_terminal_bench_config(folder: Path) -> dict[str, Any]:
    name = str(folder / "task.yaml")
    try:
        config = yaml.safe_load(read_task_text(folder / "task.yaml", name))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"{name} is not valid YAML.") from error
    if not isinstance(config, dict) or not isinstance(config.get("instruction"), str):
        raise BadInput(f"{name}: 'instruction' is missing.")
    return {
        "prompt": config["instruction"].strip(),
        "seconds": config.get("max_test_timeout_sec"),
        "tags": config.get("tags"),
        "script": "run-tests.sh",
        "solution": folder,
        "root": _find_workdir(folder / "Dockerfile"),
        "origin": "terminal-bench",
    }


def _build_task(folder: Path, repo: Path, fields: dict[str, Any]) -> Task:
    tests_folder = folder / "tests"
    tests = {name: (tests_folder / name).read_bytes() for name in _list_files(tests_folder)}
    if fields["script"] not in tests:
        script = folder / fields["script"]
        if not script.is_file():
            raise BadInput(f"{folder} has no {fields['script']}, so it cannot be graded.")
        tests[fields["script"]] = script.read_bytes()
    grader = _GRADER_SCRIPT.replace("SCRIPT", fields["script"]).replace("APP", fields["root"])
    files = {f"{HIDDEN_FOLDER}/tests/{name}": content for name, content in tests.items()}
    files[f"{HIDDEN_FOLDER}/grade.sh"] = grader.encode()
    seconds = fields["seconds"]
    timeout = float(seconds) if isinstance(seconds, int | float) and 0 < seconds < 1e6 else 600.0
    tags = fields["tags"] if isinstance(fields["tags"], list) else []
    return Task(
        id=normalise_task_id(folder.name),
        prompt=fields["prompt"],
        acceptance=Acceptance(
            commands=(f"bash {HIDDEN_FOLDER}/grade.sh",),
            patch=patch_adding_files(repo, files),
            timeout=timeout,
        ),
        reference=_find_reference(fields["solution"]),
        tags=tuple(tag for tag in tags if isinstance(tag, str)),
        origin=f"{fields['origin']}:{folder.name}",
    )


def _restore_own_task(record: Path, folder: Path) -> Task:
    """Restore a task that closeloop exported."""
    try:
        task = msgspec.json.decode(record.read_bytes(), type=Task)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{record} is not a task: {error}.") from error
    patch = folder / "solution" / "reference.patch"
    reference = read_task_text(patch, str(patch), MAX_FILE_BYTES) if patch.is_file() else None
    return replace(task, id=normalise_task_id(task.id), reference=reference)


def _find_reference(folder: Path) -> str | None:
    """Return the fix as a patch, if any: from a file, or from the script that applies it."""
    for path in sorted([*folder.glob("*.patch"), *folder.glob("*.diff")]):
        return read_task_text(path, str(path), MAX_FILE_BYTES)
    for path in (folder / "solve.sh", folder / "solution.sh"):
        if path.is_file():
            return _patch_in_script(read_task_text(path, str(path), MAX_FILE_BYTES))
    return None


def _patch_in_script(script: str) -> str | None:
    for start in _HEREDOC.finditer(script):
        body, closed, _ = script[start.end() :].partition(f"\n{start[1]}\n")
        if closed and "--- " in body and "+++ " in body:
            try:
                return f"{body}\n" if parse_patch(f"{body}\n").files else None
            except BadInput:
                continue
    return None


def _find_workdir(dockerfile: Path) -> str:
    """Return the working directory: the last WORKDIR, else the usual one."""
    root = "/app"
    for instruction, argument in _docker_instructions(dockerfile):
        if instruction == "WORKDIR" and argument.startswith("/") and len(argument) > 1:
            root = str(PurePosixPath(argument))
    return root


def _copy_environment(environment: Path, target: Path, root: str) -> None:
    """Copy what the image copies from the task's folder into the working directory."""
    target.mkdir(parents=True, exist_ok=True)
    context_root = environment.resolve()
    for instruction, arguments in _docker_instructions(environment / "Dockerfile"):
        if instruction not in ("COPY", "ADD"):
            continue
        *sources, destination = _parse_copy_arguments(arguments) or [""]
        image_path = PurePosixPath(root, destination)
        if not image_path.is_relative_to(root) or ".." in image_path.parts:
            continue
        target_path = target / image_path.relative_to(root)
        is_folder = (
            destination.endswith("/")
            or destination in (".", "./")
            or len(sources) > 1
            or target_path.is_dir()
        )
        for source in sources:
            path = (environment / source).resolve()
            if not path.is_relative_to(context_root) or "://" in source:
                continue
            names = _list_files(path) if path.is_dir() else [path.name if is_folder else ""]
            for name in names:
                origin = path / name if path.is_dir() else path
                file_target = target_path / name if name else target_path
                # Git's own files decide which programs git runs.
                is_git_file = ".git" in file_target.relative_to(target).parts
                if origin.is_file() and not origin.is_symlink() and not is_git_file:
                    file_target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(origin, file_target)


def _parse_copy_arguments(arguments: str) -> list[str]:
    """Return the sources and target of COPY, given as words or as a list of strings."""
    json_list = re.match(r"(?:--\S+\s+)*(\[.*)", arguments)
    if json_list:
        return msgspec.json.decode(json_list[1], type=list[str])
    return [part for part in shlex.split(arguments) if not part.startswith("--")]


def _docker_instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    if not dockerfile.is_file():
        return
    text = read_task_text(dockerfile, str(dockerfile)).replace("\\\n", " ")
    for line in text.split("\n"):
        instruction, _, arguments = line.strip().partition(" ")
        yield instruction.upper(), arguments.strip()


def _list_files(folder: Path) -> Iterator[str]:
    """Yield the names of the files below a folder; links are not followed."""
    file_count = 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_symlink() or not path.is_file() or ".git" in path.relative_to(folder).parts:
            continue
        file_count += 1
        if file_count > MAX_FILES or path.stat().st_size > MAX_FILE_BYTES:
            raise BadInput(f"{folder} has too many files, or too large ones, for a task.")
        yield str(path.relative_to(folder))
