"""SWE-bench's format: a JSON line a task, with the fix, the tests and their names."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from closeloop.model.errors import BadInput
from closeloop.model.patches import parse
from closeloop.model.reading import read_json
from closeloop.model.record import Record
from closeloop.model.task import Acceptance, Runner, Task
from closeloop.tasks.digests import with_digests
from closeloop.tasks.exchange.named import Named

LONGEST_LINE = 64 << 20
_OWNED = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_UNITTEST = re.compile(r"(\w+) \(([\w.]+)\)")


class Setting(Record):
    """What the format does not say: where repositories are, and how tests are run."""

    clones: Path | None = None
    """A clone, or a folder with clones by name; their addresses when not given."""
    run: str = "python -m pytest"
    setup: tuple[str, ...] = ()


class Source(Record):
    """What the format says of a repository, which a task does not."""

    repo: str
    """`owner/name`."""
    created_at: str = ""


def read_swebench(path: Path, setting: Setting) -> Iterator[Task | str]:
    """The tasks of a file, line by line; of what is none, why."""
    try:
        with path.open("rb") as opened:
            for number, line in enumerate(_lines(opened), 1):
                name = f"{path}, line {number}"
                try:
                    yield _task(_fields(line, name), setting, name)
                except BadInput as fault:
                    yield str(fault)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error


def swebench_line(task: Task, names: Named, source: Source) -> bytes:
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
        **_evaluation(task),
    }
    # In plain ASCII: its loader takes U+2028 and its like for the end of a line.
    return json.dumps(row).encode() + b"\n"


def _evaluation(task: Task) -> dict[str, str]:
    """How version 5 runs and reads the tests, in the image that our Harbor export builds."""
    wanted = task.acceptance
    if (wanted.runner or "pytest") != "pytest" or "pytest" not in (wanted.run or ""):
        return {}
    files = parse(wanted.patch or "").files
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


def _lines(opened: Any) -> Iterator[bytes]:
    while line := opened.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise BadInput(f"A line of it is longer than {LONGEST_LINE >> 20} MB: no task is.")
        if line.strip():
            yield line


def _fields(line: bytes, name: str) -> dict[str, Any]:
    value = read_json(line, name)
    if not isinstance(value, dict):
        raise BadInput(f"{name} is no JSON object: a task is one.")
    return value


def _task(row: dict[str, Any], setting: Setting, name: str) -> Task:
    repo, base = _text(row, "repo", name), _text(row, "base_commit", name)
    if not _OWNED.fullmatch(repo) or ".." in repo:
        raise BadInput(f"{name}: 'repo' must be owner/name, not {repo[:80]!r}.")
    if not _COMMIT.fullmatch(base):
        raise BadInput(f"{name}: 'base_commit' must be the whole id of a commit.")
    failing, passing = _tests(row, "FAIL_TO_PASS", name), _tests(row, "PASS_TO_PASS", name)
    if not failing:
        raise BadInput(f"{name}: FAIL_TO_PASS is empty: nothing would tell a fix from none.")
    run, setup = _ways(row, setting)
    runner: Runner | None = "unittest" if _UNITTEST.fullmatch(failing[0]) else None
    task = Task(
        id=task_id(_text(row, "instance_id", name)),
        prompt=_text(row, "problem_statement", name).strip(),
        repo=_clone(repo, setting.clones),
        base=base,
        setup=setup,
        acceptance=Acceptance(
            run=run,
            runner=runner,
            fail_to_pass=tuple(map(_test, failing)),
            pass_to_pass=tuple(map(_test, passing)),
            patch=_patch(row, "test_patch", name),
        ),
        reference=_patch(row, "patch", name),
        origin=f"swe-bench:{_text(row, 'instance_id', name)[:200]}",
    )
    return with_digests(task)


def task_id(text: str) -> str:
    """A name of others as an id of ours."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100] or "task"


def _text(row: dict[str, Any], field: str, name: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{name}: {field!r} is missing.")
    return value


def _patch(row: dict[str, Any], field: str, name: str) -> str:
    text = _text(row, field, name)
    text = text if text.endswith("\n") else f"{text}\n"
    try:
        parse(text)
    except BadInput as fault:
        raise BadInput(f"{name}: {field!r}: {fault}") from fault
    return text


def _tests(row: dict[str, Any], field: str, name: str) -> list[str]:
    value = row.get(field, [])
    try:
        value = msgspec.json.decode(value) if isinstance(value, str) else value
        return msgspec.convert(value, list[str])
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name}: {field!r} must be a list of tests.") from error


def _test(name: str) -> str:
    """Django's `test_x (a.B)` is what unittest calls `a.B.test_x`."""
    found = _UNITTEST.fullmatch(name)
    return f"{found[2]}.{found[1]}" if found else name


def _ways(row: dict[str, Any], setting: Setting) -> tuple[str, tuple[str, ...]]:
    """How to run and set up, where the line says so; else as the project does."""
    told = row.get("install_config")
    told = told if isinstance(told, dict) else {}
    run, install = told.get("test_cmd"), told.get("install")
    lines = [install] if isinstance(install, str) else install
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        lines = list(setting.setup)
    return run if isinstance(run, str) and run else setting.run, tuple(lines)


def _clone(repo: str, clones: Path | None) -> str:
    if clones is None:
        return f"https://github.com/{repo}"
    owner, _, short = repo.partition("/")
    below: Iterable[str] = (f"{owner}/{short}", f"{owner}__{short}", short)
    places = [clones / name for name in below]
    return str(next((place for place in places if place.is_dir()), clones).resolve())
