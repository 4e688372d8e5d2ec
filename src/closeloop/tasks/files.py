"""Load tasks: Markdown files that say what is asked, and how we know that it was done."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from closeloop.git import try_text
from closeloop.model.errors import BadInput
from closeloop.model.patches import parse
from closeloop.model.reading import no_field, read_record
from closeloop.model.task import Task
from closeloop.tasks.digests import with_digests
from closeloop.tasks.front import read_text, split

Resolve = Callable[[str, str], str]
"""The full commit id of (repository, revision); BadInput when there is none."""

LARGEST_PATCH = 32 << 20
FIELDS = tuple(
    name for name in Task.__struct_fields__ if name not in ("prompt", "digest", "grading")
)
NO_REPOSITORY = "none"
PLACEHOLDER = "<!-- Write the request here, in the words you would use to a colleague. -->"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def load_tasks(places: Path | Sequence[Path], root: Path | None, resolve: Resolve) -> list[Task]:
    """The tasks of a folder and all below it, or of the files and folders named."""
    return list(load_files(places, root, resolve).values())


def load_files(
    places: Path | Sequence[Path], root: Path | None, resolve: Resolve
) -> dict[Path, Task]:
    """The same, by the file that each is read from."""
    paths = [
        path
        for place in ([places] if isinstance(places, Path) else places)
        for path in ([place] if place.suffix == ".md" else task_files(place))
    ]
    if not paths:
        raise BadInput(f"No tasks in {places}: write the first one with `closeloop task new NAME`.")
    resolve_once = cache(resolve)
    ids: dict[str, Path] = {}
    digests: dict[str, Path] = {}
    tasks = {}
    for path in {path.resolve(): path for path in paths}.values():
        task = load_task(path, root, resolve_once)
        if (other := ids.setdefault(task.id, path)) != path:
            raise BadInput(f"{path}: the id {task.id!r} is taken by {other}: give it another one.")
        if (other := digests.setdefault(task.digest, path)) != path:
            raise BadInput(f"{path} asks the same as {other}: make them one task, or reword one.")
        tasks[path] = task
    return tasks


def task_files(folder: Path) -> list[Path]:
    """Every Markdown file of a folder, in order, but read-me's and what is hidden."""
    return sorted(
        path
        for path in folder.rglob("*.md")
        if path.name.lower() != "readme.md"
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )


def load_task(path: Path, root: Path | None, resolve: Resolve) -> Task:
    """One task. `root` is the repository of tasks that name none."""
    name = str(path)
    written, prompt = split(read_text(path, name), name)
    _demand_known(written, name)
    if not _COMMENT.sub("", prompt).strip():
        raise BadInput(f"{name}: the prompt is missing: write the request below the front matter.")
    if PLACEHOLDER in prompt:
        prompt = prompt.replace(PLACEHOLDER, "").lstrip("\n")
    task = read_record({"id": path.stem, **written, "prompt": prompt}, Task, name, strict=False)
    _demand_sense(task, name)
    files = [file for file in (path.name, task.reference, task.acceptance.patch) if file]
    acceptance = msgspec.structs.replace(
        task.acceptance, patch=_patch(task.acceptance.patch, "acceptance.patch", path)
    )
    repo = _repo(task.repo, path, root)
    task = msgspec.structs.replace(
        task,
        repo=repo,
        base=_base(task.base, repo, name, resolve),
        acceptance=acceptance,
        reference=_patch(task.reference, "reference", path),
    )
    _demand_unseen(files, path, task.base)
    return with_digests(task)


def demand_id(text: str, name: str) -> None:
    """Ids become file names and command-line words."""
    if not _ID.fullmatch(text):
        raise BadInput(
            f"{name} must be letters, digits, '.', '_' and '-', at most 100, not {text!r}."
        )


def is_address(repo: str) -> bool:
    """Whether a repository is named by an address and not by a path."""
    return "://" in repo or re.match(r"[\w.-]+@[\w.-]+:", repo) is not None


def _demand_known(written: dict[str, Any], name: str) -> None:
    if "prompt" in written:
        raise BadInput(f"{name}: no field 'prompt': the text below the front matter is the prompt.")
    for field in written:
        if field not in FIELDS:
            raise no_field(name, field, FIELDS)


def _demand_sense(task: Task, name: str) -> None:
    acceptance = task.acceptance
    demand_id(task.id, f"{name}: 'id'")
    if not (acceptance.run or acceptance.commands or acceptance.answer):
        raise BadInput(
            f"{name}: 'acceptance' is missing: say what must hold, by tests (run), commands "
            "or an answer."
        )
    if not acceptance.run:
        for field in ("fail_to_pass", "pass_to_pass", "runner", "report"):
            if getattr(acceptance, field):
                raise BadInput(f"{name}: 'acceptance.{field}' needs 'acceptance.run', the command.")
    if acceptance.runner == "junit" and not acceptance.report:
        raise BadInput(f"{name}: 'acceptance.report' is missing: where does it leave JUnit XML?")
    if not (math.isfinite(acceptance.timeout) and acceptance.timeout > 0):
        raise BadInput(f"{name}: 'acceptance.timeout' must be seconds, more than 0.")
    if acceptance.answer is not None:
        _demand_expression(acceptance.answer, f"{name}: 'acceptance.answer'")
    for question in task.answers:
        _demand_expression(question, f"{name}: 'answers', {question!r}")


def _demand_expression(text: str, name: str) -> None:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadInput(f"{name} is not a regular expression: {error}.") from error


def _patch(written: str | None, field: str, path: Path) -> str | None:
    if written is None:
        return None
    file = path.parent / written
    name = f"{path}: the file {written!r} of {field!r}"
    if not file.is_file():
        raise BadInput(f"{name} does not exist.")
    text = read_text(file, name, LARGEST_PATCH)
    try:
        empty = not parse(text).files
    except BadInput as fault:
        raise BadInput(f"{name}: {fault}") from fault
    if empty:
        raise BadInput(f"{name} is empty: make it with `git diff`.")
    return text


def _repo(written: str | None, path: Path, root: Path | None) -> str | None:
    if written == NO_REPOSITORY:
        return None
    if written is not None:
        return written if is_address(written) else str((path.parent / written).resolve())
    if root is None:
        raise BadInput(
            f"{path}: 'repo' is missing, as this file lies in no git repository: name one, "
            "or write `repo: none` for a question that needs no code."
        )
    return str(root.resolve())


def _base(written: str | None, repo: str | None, name: str, resolve: Resolve) -> str | None:
    if repo is None:
        if written is not None:
            raise BadInput(f"{name}: 'base' needs a repository, and 'repo' is none.")
        return None
    try:
        return resolve(repo, written or "HEAD")
    except BadInput as fault:
        if written is not None and _COMMIT.fullmatch(written):
            return written  # gone since: that spoils this task and no other
        raise BadInput(f"{name}: {fault}") from fault


def _demand_unseen(files: Sequence[str], path: Path, base: str | None) -> None:
    """A task that lies in the commit it starts from shows the agent how it is graded."""
    if base is None:
        return
    # Fails where the file lies in no repository, or in another one: then there is nothing to see.
    listed = try_text(path.parent, "ls-tree", "--name-only", "-z", base, "--", *files)
    if seen := listed.split("\0")[0]:
        raise BadInput(
            f"{path}: the agent would find {seen!r} in the commit it starts from: name an earlier "
            "one as 'base', or keep tasks in a repository of their own."
        )
