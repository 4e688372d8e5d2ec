"""Load tasks: Markdown files that say what is asked, and how we know that it was done."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from closeloop.git import try_git_text
from closeloop.records.errors import BadInput
from closeloop.records.task import Task
from closeloop.tasks.front_matter import read_task_text, split_front_matter
from closeloop.tasks.task_digests import with_digests
from closeloop.text.patches import parse_patch
from closeloop.text.record_reading import read_record, unknown_field_error

ResolveRevision = Callable[[str, str], str]
"""The full commit id of (repository, revision); BadInput when there is none."""

MAX_PATCH_BYTES = 32 << 20
TASK_FIELDS = tuple(
    name for name in Task.__struct_fields__ if name not in ("prompt", "digest", "grading")
)
NO_REPOSITORY = "none"
PROMPT_PLACEHOLDER = "<!-- Write the request here, in the words you would use to a colleague. -->"

_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COMMIT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_HTML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def load_tasks(
    places: Path | Sequence[Path], root: Path | None, resolve: ResolveRevision
) -> list[Task]:
    """The tasks of a folder and all below it, or of the files and folders named."""
    return list(load_tasks_by_file(places, root, resolve).values())


def load_tasks_by_file(
    places: Path | Sequence[Path], root: Path | None, resolve: ResolveRevision
) -> dict[Path, Task]:
    """The same, by the file that each is read from."""
    paths = [
        path
        for place in ([places] if isinstance(places, Path) else places)
        for path in ([place] if place.suffix == ".md" else list_task_files(place))
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


def list_task_files(folder: Path) -> list[Path]:
    """Every Markdown file of a folder, in order, but read-me's and what is hidden."""
    return sorted(
        path
        for path in folder.rglob("*.md")
        if path.name.lower() != "readme.md"
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )


def load_task(path: Path, root: Path | None, resolve: ResolveRevision) -> Task:
    """One task. `root` is the repository of tasks that name none."""
    name = str(path)
    fields, prompt = split_front_matter(read_task_text(path, name), name)
    _require_known_fields(fields, name)
    if not _HTML_COMMENT.sub("", prompt).strip():
        raise BadInput(f"{name}: the prompt is missing: write the request below the front matter.")
    if PROMPT_PLACEHOLDER in prompt:
        prompt = prompt.replace(PROMPT_PLACEHOLDER, "").lstrip("\n")
    task = read_record({"id": path.stem, **fields, "prompt": prompt}, Task, name, strict=False)
    _require_complete_task(task, name)
    files = [file for file in (path.name, task.reference, task.acceptance.patch) if file]
    acceptance = msgspec.structs.replace(
        task.acceptance, patch=_load_patch(task.acceptance.patch, "acceptance.patch", path)
    )
    repo = _resolve_repo(task.repo, path, root)
    task = msgspec.structs.replace(
        task,
        repo=repo,
        base=_resolve_base(task.base, repo, name, resolve),
        acceptance=acceptance,
        reference=_load_patch(task.reference, "reference", path),
    )
    _require_hidden_from_agent(files, path, task.base)
    return with_digests(task)


def require_valid_id(text: str, name: str) -> None:
    """Ids become file names and command-line words."""
    if not _ID_PATTERN.fullmatch(text):
        raise BadInput(
            f"{name} must be letters, digits, '.', '_' and '-', at most 100, not {text!r}."
        )


def is_repository_address(repo: str) -> bool:
    """Whether a repository is named by an address and not by a path."""
    return "://" in repo or re.match(r"[\w.-]+@[\w.-]+:", repo) is not None


def _require_known_fields(written: dict[str, Any], name: str) -> None:
    if "prompt" in written:
        raise BadInput(f"{name}: no field 'prompt': the text below the front matter is the prompt.")
    for field in written:
        if field not in TASK_FIELDS:
            raise unknown_field_error(name, field, TASK_FIELDS)


def _require_complete_task(task: Task, name: str) -> None:
    acceptance = task.acceptance
    require_valid_id(task.id, f"{name}: 'id'")
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
        _require_regex(acceptance.answer, f"{name}: 'acceptance.answer'")
    for question in task.answers:
        _require_regex(question, f"{name}: 'answers', {question!r}")


def _require_regex(text: str, name: str) -> None:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadInput(f"{name} is not a regular expression: {error}.") from error


def _load_patch(written: str | None, field: str, path: Path) -> str | None:
    if written is None:
        return None
    file = path.parent / written
    name = f"{path}: the file {written!r} of {field!r}"
    if not file.is_file():
        raise BadInput(f"{name} does not exist.")
    text = read_task_text(file, name, MAX_PATCH_BYTES)
    try:
        empty = not parse_patch(text).files
    except BadInput as fault:
        raise BadInput(f"{name}: {fault}") from fault
    if empty:
        raise BadInput(f"{name} is empty: make it with `git diff`.")
    return text


def _resolve_repo(written: str | None, path: Path, root: Path | None) -> str | None:
    if written == NO_REPOSITORY:
        return None
    if written is not None:
        return written if is_repository_address(written) else str((path.parent / written).resolve())
    if root is None:
        raise BadInput(
            f"{path}: 'repo' is missing, as this file lies in no git repository: name one, "
            "or write `repo: none` for a question that needs no code."
        )
    return str(root.resolve())


def _resolve_base(
    written: str | None, repo: str | None, name: str, resolve: ResolveRevision
) -> str | None:
    if repo is None:
        if written is not None:
            raise BadInput(f"{name}: 'base' needs a repository, and 'repo' is none.")
        return None
    try:
        return resolve(repo, written or "HEAD")
    except BadInput as fault:
        if written is not None and _COMMIT_ID.fullmatch(written):
            return written  # gone since: that spoils this task and no other
        raise BadInput(f"{name}: {fault}") from fault


def _require_hidden_from_agent(files: Sequence[str], path: Path, base: str | None) -> None:
    """A task that lies in the commit it starts from shows the agent how it is graded."""
    if base is None:
        return
    # Fails where the file lies in no repository, or in another one: then there is nothing to see.
    tree_listing = try_git_text(path.parent, "ls-tree", "--name-only", "-z", base, "--", *files)
    if visible_file := tree_listing.split("\0")[0]:
        raise BadInput(
            f"{path}: the agent would find {visible_file!r} in the commit it starts from: name an"
            " earlier one as 'base', or keep tasks in a repository of their own."
        )
