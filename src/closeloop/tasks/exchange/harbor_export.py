"""Write a task as Harbor runs it: a folder with a container to build, a request and a grader."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from closeloop.git import read_git_text
from closeloop.records.errors import BadInput
from closeloop.records.task import Task, TestRunner
from closeloop.tasks.exchange.swebench import RequiredTests
from closeloop.text.patches import parse_patch
from closeloop.text.wording import matches_globs

# Trees of files out of git and into it, for formats that carry a repository along.

MAX_UNPACKED_BYTES = 2 << 30
_GIT_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "closeloop",
    "GIT_AUTHOR_EMAIL": "closeloop@localhost",
    "GIT_COMMITTER_NAME": "closeloop",
    "GIT_COMMITTER_EMAIL": "closeloop@localhost",
    # The same content is the same commit, whenever it is imported.
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def check_out_commit(repo: str, commit: str, folder: Path) -> None:
    """All files of a commit in an empty folder. Not `git archive`, which leaves out what it may."""
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
    """A folder as tar.gz, byte for byte the same for the same files."""

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
    """A tar's files below a folder; BadInput for one that would write elsewhere, or too much."""
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                total += member.size
                if total > MAX_UNPACKED_BYTES:
                    raise BadInput(f"{archive} unpacks to more than {MAX_UNPACKED_BYTES >> 30} GB.")
                extract_member(opened, member, folder.resolve())
    except (tarfile.TarError, OSError, EOFError, zlib.error, LookupError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(":.")
        raise BadInput(f"{archive} cannot be unpacked: {reason}.") from error


def extract_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Files, folders and links that stay below; `filter="data"` is not on every Python 3.11."""
    path = folder / member.name
    inside = path.parent.resolve().is_relative_to(folder) and ".." not in path.parts
    if not inside or ".git" in path.parts:
        raise BadInput(f"{member.name!r} would be written outside of its folder.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.issym():
        if not (path.parent / member.linkname).resolve().is_relative_to(folder):
            raise BadInput(f"{member.name!r} is a link that leads outside of its folder.")
        path.symlink_to(member.linkname)
    elif (content := archive.extractfile(member)) is not None and not path.is_symlink():
        path.write_bytes(content.read())
        path.chmod(0o755 if member.mode & 0o100 else 0o644)


def commit_folder(folder: Path) -> str:
    """Make a folder a repository with one commit, and say which."""
    _run_git(folder, "init", "-q", "-b", "main")
    _run_git(folder, "add", "-A", "-f")
    _run_git(folder, "commit", "-q", "--allow-empty", "--no-verify", "-m", "The task's environment")
    return _run_git(folder, "rev-parse", "HEAD").strip()


def patch_adding_files(folder: Path, files: dict[str, bytes]) -> str:
    """The patch that adds these files to a repository, which stays as it is."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    _run_git(folder, "add", "-f", "--", *files)
    patch = _run_git(folder, "diff", "--cached", "--binary", "HEAD")
    _run_git(folder, "reset", "-q", "--hard", "HEAD")
    return patch


def _run_git(folder: Path, *arguments: str, **environ: str) -> str:
    """Content of others: no filters of the user's own."""
    return read_git_text(folder, *arguments, env=_GIT_ENVIRONMENT | environ)


SCHEMA_VERSION = "1.4"
RECORD_FILE = "closeloop.json"
"""Our own record of the task, beside the grader: for reading it back without a loss."""
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
    """Write a task's folder; BadInput where Harbor has no way to say it."""
    repo, base = _require_exportable(task)
    steps = _grading_steps(task, names)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        check_out_commit(repo, base, tree)
        archive = pack_folder(tree)
        files, gone = _hidden_files(task, names, tree)
    required_names = names.fail_to_pass + names.pass_to_pass if names else ()
    files_to_write: dict[str, str | bytes] = {
        "task.toml": _render_task_toml(task),
        "instruction.md": f"{task.prompt}\n",
        "environment/Dockerfile": _DOCKERFILE.format(image=_choose_image(task)),
        "environment/repo.tar.gz": archive,
        "environment/setup.sh": "".join(f"{line}\n" for line in ("cd /app", *task.setup)),
        "tests/test.sh": _TEST_SCRIPT.format(steps=steps),
        "tests/gone.txt": "".join(f"{path}\n" for path in gone),
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
    """The folder appears whole, or not at all."""
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
    wanted = task.acceptance
    if task.repo is None or task.base is None:
        raise BadInput(f"{task.id} has no repository: Harbor's tasks are about files.")
    if wanted.answer is not None or task.answers:
        raise BadInput(f"{task.id} is about what is said, and Harbor grades files only.")
    if not os.path.isdir(task.repo):  # noqa: PTH112 - an address is no path
        raise BadInput(f"{task.id}: {task.repo} is not on this machine: clone it, and name that.")
    return task.repo, task.base


def _grading_steps(task: Task, names: RequiredTests | None) -> str:
    """What the grader does: the tests, then the commands."""
    wanted, steps = task.acceptance, []
    if wanted.run and names is None:
        steps.append(f"( {wanted.run} ) || passed=0")
    elif wanted.run and (wanted.runner or "pytest") == "pytest" and "pytest" in wanted.run:
        steps.append(_PYTEST_STEP.format(run=wanted.run))
    elif wanted.run:
        raise BadInput(f"{task.id} names single tests of another runner than pytest.")
    steps += [f"( {command} ) || passed=0" for command in wanted.commands]
    return "\n".join(steps)


def _hidden_files(
    task: Task, names: RequiredTests | None, tree: Path
) -> tuple[dict[str, bytes], list[str]]:
    """The files that grading puts in place, as they then are, and those that must not be there."""
    here = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    kept_paths = (
        {path for path in here if matches_globs(path, task.protected)} if task.protected else set()
    )
    kept_paths |= {name.partition("::")[0] for name in (names.fail_to_pass if names else ())} & here
    gone: list[str] = []
    if task.acceptance.patch is not None:
        patch = tree.parent / "hidden.patch"
        patch.write_bytes(task.acceptance.patch.encode())
        read_git_text(tree, "init", "-q")
        read_git_text(tree, "apply", "--whitespace=nowarn", str(patch))
        for file in parse_patch(task.acceptance.patch).files:
            kept_paths |= {file.path}
            gone += [name for name in (file.old_path, file.path) if name]
    contents = {
        path: (tree / path).read_bytes() for path in sorted(kept_paths) if (tree / path).is_file()
    }
    return contents, sorted(path for path in set(gone) if path not in contents)


def _choose_image(task: Task) -> str:
    words: Iterable[tuple[str, str]] = (
        ("go test", "golang:1-bookworm"),
        ("cargo", "rust:1-bookworm"),
        ("npm", "node:22-bookworm"),
        ("npx", "node:22-bookworm"),
    )
    run = task.acceptance.run or ""
    if task.acceptance.runner in _RUNNER_IMAGES:
        return _RUNNER_IMAGES[task.acceptance.runner]
    python_image = f"python:{sys.version_info.major}.{sys.version_info.minor}-bookworm"
    return next((image for word, image in words if word in run), python_image)


def _encode_record(task: Task) -> bytes:
    """The task without what this machine alone knows, and without what lies beside it."""
    plain = msgspec.structs.replace(task, repo=None, reference=None)
    return msgspec.json.format(msgspec.json.encode(plain))


def _render_task_toml(task: Task) -> str:
    quoted = json.dumps
    tags = ", ".join(quoted(tag) for tag in task.tags)
    # A container needs longer than a cage on the machine that proved it.
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
