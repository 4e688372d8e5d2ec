"""The paths that changes, patches and test ids name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from closeloop.records.attempt import TestRun
from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.records.task import Task, TestRunner
from closeloop.text.patches import parse_patch
from closeloop.text.wording import escape_glob


def changed_paths(change: Change) -> list[str]:
    """Every path a change touches, the old one of a renamed file too."""
    paths = (path for file in change.files for path in (file.path, file.old_path))
    return list(dict.fromkeys(path for path in paths if path is not None))


def parse_change(patch: str | None) -> Change | None:
    """What a patch changes; None for what is no patch."""
    try:
        return parse_patch(patch or "")
    except BadInput:
        return None


def list_patch_paths(patch: str | None) -> list[str]:
    """Every path a patch touches; none for what is no patch."""
    change = parse_change(patch)
    return changed_paths(change) if change else []


def with_failing_tests(task: Task, before: TestRun) -> Task:
    """The task with the files protected whose tests must be made to pass, where it names none."""
    if task.acceptance.names_tests:
        return task
    failing_ids = (test.id for test in before.tests if test.status in ("failed", "error"))
    files = list_test_files(failing_ids, task.acceptance.runner)
    return msgspec.structs.replace(task, protected=tuple(dict.fromkeys((*task.protected, *files))))


def path_in_test_id(test: str) -> str:
    """The part of a test's id before its name: a path, where the runner writes one there."""
    return re.split("::| > ", test, maxsplit=1)[0]


def list_test_files(tests: Iterable[str], runner: TestRunner | None) -> Iterator[str]:
    """The files that test ids name: `path.py::test`, `path.ts > suite > test`, `module.Class.test`.

    `billing::tests::rounds` of cargo and `billing.py::billing.total`, a doctest, are in the code
    itself: that is no file of tests.
    """
    for test in tests:
        file = path_in_test_id(test)
        if re.search(r"\.py::\w+(?:\.\w+)+$", test):
            continue
        if runner == "junit":
            yield f"**/{escape_glob(file.partition('$')[0]).replace('.', '/')}.*"
        elif re.search(r"\.\w+$" if file != test else r"\.(py|[cm]?[jt]sx?)$", file):
            yield escape_glob(file)
        elif dotted := re.fullmatch(r"(\w+(?:\.\w+)*)\.\w+\.\w+", test):
            yield f"**/{dotted[1].replace('.', '/')}.py"
