"""Load tasks: Markdown files that say what is asked, and how we know that it was done."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from closeloop.git import try_git_text
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.record import content_digest
from closeloop.records.settings import Settings
from closeloop.records.task import Acceptance, Task
from closeloop.sandbox.workspaces import resolve_commit
from closeloop.text.patches import parse_patch
from closeloop.text.record_reading import read_record, unknown_field_error

# Markdown with front matter: YAML between `---` lines, then the body.

MAX_FILE_BYTES = 4 << 20
MAX_NESTING = 8

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_QUOTE_HINT = "put a value that begins with '*' or '&' in quotes"
_NODE_EVENTS = (yaml.NodeEvent, yaml.CollectionEndEvent)
_YAML_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read_task_text(path: Path, name: str, limit: int = MAX_FILE_BYTES) -> str:
    """A file's text; `name` is what faults call it."""
    try:
        with path.open("rb") as opened:
            content = opened.read(limit + 1)
        if len(content) > limit:
            raise BadInput(f"{name} is larger than {limit >> 20} MB: too large for a task.")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{name} is not UTF-8 text (byte {error.start}): save it as UTF-8."
        ) from error


def split_front_matter(text: str, name: str) -> tuple[dict[str, Any], str]:
    """The front matter's fields, every scalar as text, and the body; a plain prompt has none."""
    # A checkout with other line ends must not be another task.
    text = text.replace("\r\n", "\n")
    fenced = _FRONT_MATTER.match(text)
    if fenced is None and text.startswith("---"):
        raise BadInput(f"{name}: the front matter does not end: put '---' on a line below it.")
    if fenced is None:
        return {}, text.strip()
    try:
        value = _YamlBuilder(name).build_document(yaml.parse(fenced[1], Loader=_YAML_LOADER))
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 2}" if error.problem_mark else ""
        problem = (
            _QUOTE_HINT if "alias" in (error.context or "") else error.problem or error.context
        )
        raise BadInput(f"{name}: invalid YAML{line}: {problem}.") from error
    except yaml.YAMLError as error:
        raise BadInput(f"{name}: invalid YAML: {' '.join(str(error).split())}.") from error
    return value, text[fenced.end() :].strip()


class _YamlBuilder:
    """Plain values from YAML events.

    Not a yaml loader: those turn `no` into False and 1e7 into a number, let the last of two
    equal keys win, and let aliases grow a small file to any size.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def build_document(self, events: Iterator[Any]) -> dict[str, Any]:
        nodes = (event for event in events if isinstance(event, _NODE_EVENTS))
        first = next(nodes, None)
        value = {} if first is None else self._build_value(first, nodes, 0)
        if not isinstance(value, dict):
            raise BadInput(f"{self.name}: the front matter must be fields, such as `id: NAME`.")
        if (more := next(nodes, None)) is not None:
            raise self._make_fault(more, "the front matter must be one document")
        return value

    def _build_value(self, event: Any, events: Iterator[Any], depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._make_fault(event, f"no aliases or anchors here: {_QUOTE_HINT}")
        if depth > MAX_NESTING:
            raise self._make_fault(event, "values are nested too deeply")
        if isinstance(event, yaml.ScalarEvent):
            absent = not event.style and event.value in ("", "~", "null")
            return None if absent else event.value
        if isinstance(event, yaml.MappingStartEvent):
            return self._build_fields(events, depth)
        items = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            items.append(self._build_value(item, events, depth + 1))
        return items

    def _build_fields(self, events: Iterator[Any], depth: int) -> dict[str, Any]:
        """Fields without a value are left out: absent is not empty."""
        fields: dict[str, Any] = {}
        seen: set[str] = set()
        while not isinstance(key := next(events), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise self._make_fault(key, "a field's name must be plain text")
            if key.value in seen:
                raise self._make_fault(key, f"the field {key.value!r} is there twice")
            seen.add(key.value)
            value = self._build_value(next(events), events, depth + 1)
            if value is not None:
                fields[key.value] = value
        return fields

    def _make_fault(self, event: Any, what: str) -> BadInput:
        return BadInput(f"{self.name}: line {event.start_mark.line + 2}: {what}.")


# What makes two tasks the same: for the agent that works on them, and for the grader.


def with_digests(task: Task) -> Task:
    """The task with its two identities, the same on every machine.

    A commit id stands for all the content of its repository, wherever that was cloned to, so the
    repository's path is part of neither. The base counts for grading too: a proof is kept under
    the grading digest alone, and what tests say at one commit they need not say at another.
    """
    start = (task.base, task.setup)
    # The order of answers decides which one is given: they count as pairs.
    task_digest = content_digest("task 1", task.prompt, *start, tuple(task.answers.items()))
    grading_digest = content_digest(
        "grading 1",
        *start,
        task.acceptance,
        task.protected,
        task.reference,
        task.scope,
        task.facts,
        task.ambiguous,
    )
    return msgspec.structs.replace(task, digest=task_digest, grading=grading_digest)


ResolveRevision = Callable[[str, str], str]
"""The full commit id of (repository, revision); BadInput when there is none."""

MAX_PATCH_BYTES = 32 << 20
TASK_FIELDS = tuple(
    name for name in Task.__struct_fields__ if name not in ("prompt", "digest", "grading")
)
NO_REPOSITORY = "none"
PROMPT_PLACEHOLDER = "<!-- Write the request here, in the words you would use to a colleague. -->"

_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._-]+")
_COMMIT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_HTML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def select_tasks(settings: Settings, root: Path, names: Sequence[str]) -> list[Task]:
    """The project's tasks, or those named: by id, by file, or by folder."""
    files = [Path(name) for name in names if _is_place(name)]
    ids = [name for name in names if not _is_place(name)]
    chosen = load_tasks(files, root, resolve_commit) if files else []
    if ids or not files:
        known = {task.id: task for task in load_tasks(root / settings.tasks, root, resolve_commit)}
        for name in ids:
            if name not in known:
                raise _unknown_task_error(name, known)
        chosen += [known[name] for name in ids or known]
    return list({task.id: task for task in chosen}.values())


def _unknown_task_error(name: str, known: Iterable[str]) -> BadInput:
    if Path(name).is_dir():
        return BadInput(f"No task named {name!r}: write {name}/ for the tasks of that folder.")
    return unknown_name_error("task", name, known)


def _is_place(name: str) -> bool:
    """A folder is written with a slash, so that it is never taken for a task's id."""
    return name.endswith((".md", "/")) or ("/" in name and Path(name).is_dir())


def load_tasks(
    places: Path | Sequence[Path], root: Path | None, resolve: ResolveRevision
) -> list[Task]:
    """The tasks of a folder and all below it, or of the files and folders named."""
    return list(load_tasks_by_file(places, root, resolve).values())


def load_tasks_by_file(
    places: Path | Sequence[Path], root: Path | None, resolve: ResolveRevision
) -> dict[Path, Task]:
    """The same, by the file that each is read from."""
    named = [places] if isinstance(places, Path) else places
    paths = [
        path
        for place in named
        for path in ([place] if place.suffix == ".md" else list_task_files(place))
    ]
    if not paths:
        folders = ", ".join(map(str, named))
        raise BadInput(
            f"No tasks in {folders}: write the first one with `closeloop task new NAME`."
        )
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
    task_id = _id_from_name(path.stem)
    task = read_record({"id": task_id, **fields, "prompt": prompt}, Task, name, strict=False)
    _require_complete_task(task, name)
    files = [file for file in (path.name, task.reference, task.acceptance.patch) if file]
    if not (task.acceptance.is_given or task.reference or task.rubric or task.answers):
        files = []  # it says nothing but the request
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


def _id_from_name(stem: str) -> str:
    """A file's name as an id: `Fix the header.md` is `Fix-the-header`."""
    return _NOT_IN_IDS.sub("-", stem).strip("-.")[:100]


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
    if not acceptance.is_given and acceptance != Acceptance():
        raise BadInput(
            f"{name}: 'acceptance' does not say what must hold: give tests (run), commands or an "
            "answer, or leave it out where people and judges score the task."
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
    if base is None or not files:
        return
    # Fails where the file lies in no repository, or in another one: then there is nothing to see.
    tree_listing = try_git_text(path.parent, "ls-tree", "--name-only", "-z", base, "--", *files)
    if visible_file := tree_listing.split("\0")[0]:
        raise BadInput(
            f"{path}: the agent would find {visible_file!r} in the commit it starts from: name an"
            " earlier one as 'base', or keep tasks in a repository of their own."
        )
