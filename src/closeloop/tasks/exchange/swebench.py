"""SWE-bench's format: a JSON line a task, with the fix, the tests and their names."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from closeloop.git import try_git_text
from closeloop.records.attempt import Proof, TestRun
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.task import Acceptance, Task, TestRunner
from closeloop.tasks.task_files import is_repository_address, with_digests
from closeloop.text.patches import parse_patch
from closeloop.text.record_reading import parse_json

# The tests that a task asks for, each by its name: other tools have no word for "the rest".


class RequiredTests(Record):
    """What must come to pass, and what must stay so."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]


def list_required_tests(task: Task, proof: Proof | None) -> RequiredTests:
    """All tests by name, from the task where it says so and else from its proof."""
    acceptance = task.acceptance
    if acceptance.fail_to_pass and acceptance.pass_to_pass is not None:
        return RequiredTests(
            fail_to_pass=acceptance.fail_to_pass, pass_to_pass=acceptance.pass_to_pass
        )
    if proof is None or proof.before is None or proof.reference is None:
        raise BadInput(
            f"What passes in {task.id} is not known by name: prove it first, with "
            f"`closeloop task check {task.id}`."
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
    """What passes without the change and with it, but for tests that are flaky in either."""
    flaky = {*before.flaky, *after.flaky}
    return passing_tests(before) - flaky, passing_tests(after) - flaky


def passing_tests(run: TestRun) -> set[str]:
    return {test.id for test in run.tests if test.status == "passed"}


MAX_LINE_BYTES = 64 << 20
_OWNER_AND_NAME = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}")
_COMMIT_ID = re.compile(r"[0-9a-f]{40}")
_UNITTEST_NAME = re.compile(r"(\w+) \(([\w.]+)\)")


class SwebenchOptions(Record):
    """What the format does not say: where repositories are, and how tests are run."""

    clones: Path | None = None
    """A clone, or a folder with clones by name; their addresses when not given."""
    run: str = "python -m pytest"
    setup: tuple[str, ...] = ()


class SwebenchSource(Record):
    """What the format says of a repository, which a task does not."""

    repo: str
    """`owner/name`."""
    created_at: str = ""


def read_swebench_tasks(path: Path, setting: SwebenchOptions) -> Iterator[Task | str]:
    """The tasks of a file, line by line; of what is none, why."""
    try:
        with path.open("rb") as opened:
            for number, line in enumerate(_read_lines(opened), 1):
                name = f"{path}, line {number}"
                try:
                    yield _task_from_row(_decode_row(line, name), setting, name)
                except BadInput as fault:
                    yield str(fault)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error


def render_swebench_line(task: Task, names: RequiredTests, source: SwebenchSource) -> bytes:
    """One task, as SWE-bench's loader takes it; BadInput where it has no way to say it."""
    wanted = task.acceptance
    if task.base is None or task.reference is None or not wanted.run:
        raise BadInput(f"{task.id} has no repository, reference or test command: SWE-bench needs.")
    if wanted.patch is None:
        raise BadInput(f"{task.id} has no hidden tests (acceptance.patch): SWE-bench needs some.")
    row = {
        "repo": source.repo,
        "instance_id": f"{source.repo.replace('/', '__')}-{task.id}",
        "base_commit": task.base,
        "patch": task.reference,
        "test_patch": wanted.patch,
        "problem_statement": task.prompt,
        "hints_text": "",
        "created_at": source.created_at,
        "version": str(task.version),
        # Lists in a text: so its data sets have them, and so its code reads them.
        "FAIL_TO_PASS": json.dumps(names.fail_to_pass),
        "PASS_TO_PASS": json.dumps(names.pass_to_pass),
        "environment_setup_commit": task.base,
        "install_config": {"install": list(task.setup), "test_cmd": wanted.run},
        **_evaluation_fields(task),
    }
    # In plain ASCII: its loader takes U+2028 and its like for the end of a line.
    return json.dumps(row).encode() + b"\n"


def _evaluation_fields(task: Task) -> dict[str, str]:
    """How version 5 runs and reads the tests, in the image that our Harbor export builds."""
    wanted = task.acceptance
    if (wanted.runner or "pytest") != "pytest" or "pytest" not in (wanted.run or ""):
        return {}
    files = parse_patch(wanted.patch or "").files
    paths = " ".join(shlex.quote(file.path) for file in files if file.status != "deleted")
    script = f"""\
#!/bin/bash
set -uxo pipefail
cd /app
for path in {paths}; do rm -f "$path"; git checkout HEAD -- "$path"; done
git apply -v - <<'CLOSELOOP_END'
{(wanted.patch or "").rstrip(chr(10))}
CLOSELOOP_END
: '>>>>> Start Test Output'
PYTEST_ADDOPTS=-rA {wanted.run}
: '>>>>> End Test Output'
"""
    return {
        "image": f"closeloop/{task.id.lower()}:latest",
        "eval_script": script,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }


def _read_lines(opened: Any) -> Iterator[bytes]:
    while line := opened.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise BadInput(f"A line of it is longer than {MAX_LINE_BYTES >> 20} MB: no task is.")
        if line.strip():
            yield line


def _decode_row(line: bytes, name: str) -> dict[str, Any]:
    value = parse_json(line, name)
    if not isinstance(value, dict):
        raise BadInput(f"{name} is no JSON object: a task is one.")
    return value


def _task_from_row(row: dict[str, Any], setting: SwebenchOptions, name: str) -> Task:
    repo, base = _required_text(row, "repo", name), _required_text(row, "base_commit", name)
    if not _OWNER_AND_NAME.fullmatch(repo) or ".." in repo:
        raise BadInput(f"{name}: 'repo' must be owner/name, not {repo[:80]!r}.")
    if not _COMMIT_ID.fullmatch(base):
        raise BadInput(f"{name}: 'base_commit' must be the whole id of a commit.")
    failing, passing = (
        _required_tests(row, "FAIL_TO_PASS", name),
        _required_tests(row, "PASS_TO_PASS", name),
    )
    if not failing:
        raise BadInput(f"{name}: FAIL_TO_PASS is empty: nothing would tell a fix from none.")
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
    """A name of others as an id of ours."""
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
    """Django's `test_x (a.B)` is what unittest calls `a.B.test_x`."""
    match = _UNITTEST_NAME.fullmatch(name)
    return f"{match[2]}.{match[1]}" if match else name


def _run_and_setup(row: dict[str, Any], setting: SwebenchOptions) -> tuple[str, tuple[str, ...]]:
    """How to run and set up, where the line says so; else as the project does."""
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
    below: Iterable[str] = (f"{owner}/{short}", f"{owner}__{short}", short)
    places = [clones / name for name in below]
    return str(next((place for place in places if place.is_dir()), clones).resolve())


# What others ask of a task's repository: whose it is, and when the work began.

_ADDRESS_OWNER_AND_NAME = re.compile(r"[/:]([\w.-]{1,100})/([\w.-]{1,100}?)(?:\.git)?/?$")


def read_swebench_source(task: Task) -> SwebenchSource:
    """By its address, or that which its clone was made from; else a name of our own."""
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
