"""Load tasks: Markdown files with a request and how success is recognised."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from closeloop.git import try_git_text
from closeloop.records.errors import BadInput, MachineFailed, unknown_name_error
from closeloop.records.record import content_digest
from closeloop.records.settings import CommandSettings, Settings
from closeloop.records.task import Acceptance, Task
from closeloop.sandbox.workspaces import resolve_commit
from closeloop.text.patches import parse_patch
from closeloop.text.untrusted import read_record, unknown_field_error

# Markdown with front matter: YAML between `---` lines, then the body.

MAX_FILE_BYTES = 4 << 20
MAX_NESTING = 8

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_QUOTE_HINT = "put a value that begins with '*' or '&' in quotes"
_NODE_EVENTS = (yaml.NodeEvent, yaml.CollectionEndEvent)
_YAML_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read_task_text(path: Path, name: str, limit: int = MAX_FILE_BYTES) -> str:
    """Return a file's text; `name` is used in errors."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
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
    """Return the front matter's fields, all scalars as text, and the body; a plain prompt has
    none."""
    # A checkout with other line endings must not become another task.
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
    """Builds plain values from YAML events.

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
        if (next_document := next(nodes, None)) is not None:
            raise self._make_fault(next_document, "the front matter must be one document")
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
        """Build a mapping; fields without a value are left out: absent is not empty."""
        fields: dict[str, Any] = {}
        field_names: set[str] = set()
        while not isinstance(key := next(events), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise self._make_fault(key, "a field's name must be plain text")
            if key.value in field_names:
                raise self._make_fault(key, f"the field {key.value!r} occurs twice")
            field_names.add(key.value)
            value = self._build_value(next(events), events, depth + 1)
            if value is not None:
                fields[key.value] = value
        return fields

    def _make_fault(self, event: Any, problem: str) -> BadInput:
        return BadInput(f"{self.name}: line {event.start_mark.line + 2}: {problem}.")


# Identity of a task: for the agent that works on it, and for the grader.


def with_digests(task: Task) -> Task:
    """Return the task with its two identities, the same on every machine.

    A commit id stands for all the content of its repository, wherever it was cloned to, so the
    repository's path is part of neither. The base counts for grading too: a proof is stored under
    the grading digest alone, and test results at one commit need not hold at another.
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
"""Returns the full commit id of (repository, revision); BadInput if there is none."""

MAX_PATCH_BYTES = 32 << 20
COPIED_COMMIT_TIME = "2000-01-01T00:00:00+00:00"
"""Time of the commits that closeloop makes of copied files: same content, same commit."""
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
    """Return the project's tasks, or those named: by id, by file, or by folder."""
    files = [Path(name) for name in names if _is_place(name)]
    ids = [name for name in names if not _is_place(name)]
    setup = settings.commands.setup
    tasks = load_tasks(files, root, resolve_commit, setup) if files else []
    if ids or not files:
        tasks_by_id = {
            task.id: task for task in load_tasks(root / settings.tasks, root, resolve_commit, setup)
        }
        for name in ids:
            if name not in tasks_by_id:
                dev_ids = [task.id for task in tasks_by_id.values() if task.split == "dev"]
                raise _unknown_task_error(name, dev_ids)
        tasks += [tasks_by_id[name] for name in ids or tasks_by_id]
    return list({task.id: task for task in tasks}.values())


def _unknown_task_error(name: str, task_ids: Iterable[str]) -> BadInput:
    if Path(name).is_dir():
        return BadInput(f"No task named {name!r}: write {name}/ for the tasks of that folder.")
    return unknown_name_error("task", name, task_ids)


def _is_place(name: str) -> bool:
    """Return whether the name is a file or folder; folders have a slash, unlike task ids."""
    return name.endswith((".md", "/")) or ("/" in name and Path(name).is_dir())


def load_tasks(
    places: Path | Sequence[Path],
    root: Path | None,
    resolve: ResolveRevision,
    setup: Sequence[str] = (),
) -> list[Task]:
    """Load the tasks of a folder and its subfolders, or of the files and folders given.

    `root` is the repository of tasks that name none; `resolve(repo, revision)` returns a commit id;
    `setup` is `commands.setup` of the project, for tasks without a `setup` of their own.
    """
    return list(load_tasks_by_file(places, root, resolve, setup).values())


def load_tasks_by_file(
    locations: Path | Sequence[Path],
    root: Path | None,
    resolve: ResolveRevision,
    setup: Sequence[str] = (),
) -> dict[Path, Task]:
    """Load the same tasks, by the file that each is read from."""
    sources = [locations] if isinstance(locations, Path) else locations
    paths = [
        path
        for source in sources
        for path in ([source] if source.suffix == ".md" else list_task_files(source))
    ]
    if not paths:
        folders = ", ".join(map(str, sources))
        raise BadInput(
            f"There are no tasks in {folders}: create one with `closeloop task new NAME`."
        )
    resolve_once = cache(resolve)
    ids: dict[str, Path] = {}
    digests: dict[str, Path] = {}
    tasks = {}
    for path in {path.resolve(): path for path in paths}.values():
        task = load_task(path, root, resolve_once, setup)
        if (other_path := ids.setdefault(task.id, path)) != path:
            raise BadInput(
                f"{path}: the id {task.id!r} is already used by {other_path}: choose another one."
            )
        if (other_path := digests.setdefault(task.digest, path)) != path:
            raise BadInput(
                f"{path} has the same content as {other_path}: delete one, or change it."
            )
        tasks[path] = task
    return tasks


def list_task_files(folder: Path) -> list[Path]:
    """Return every Markdown file of a folder, sorted, except READMEs and hidden files."""
    return sorted(
        path
        for path in folder.rglob("*.md")
        if path.name.lower() != "readme.md"
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )


def load_task(
    path: Path, root: Path | None, resolve: ResolveRevision, setup: Sequence[str] = ()
) -> Task:
    """Load one task.

    `root` is the repository of tasks that name none, `setup` the commands of those without any.
    """
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
        files = []  # it contains only the request
    acceptance = msgspec.structs.replace(
        task.acceptance, patch=_load_patch(task.acceptance.patch, "acceptance.patch", path)
    )
    repo = _resolve_repo(task.repo, path, root)
    inherits = repo is not None and "setup" not in fields
    task = msgspec.structs.replace(
        task,
        repo=repo,
        setup=tuple(setup) if inherits else task.setup,
        base=_resolve_base(task.base, repo, name, resolve),
        acceptance=acceptance,
        reference=_load_patch(task.reference, "reference", path),
    )
    _require_hidden_from_agent(files, path, task.base)
    return with_digests(task)


def _id_from_name(stem: str) -> str:
    """Turn a file's name into an id: `Fix the header.md` is `Fix-the-header`."""
    return _NOT_IN_IDS.sub("-", stem).strip("-.")[:100]


def require_valid_id(text: str, name: str) -> None:
    """Check an id, which becomes a file name and a command-line word."""
    if not _ID_PATTERN.fullmatch(text):
        raise BadInput(
            f"{name} must be letters, digits, '.', '_' and '-', at most 100, not {text!r}."
        )


def is_repository_address(repo: str) -> bool:
    """Return whether a repository is given by an address instead of a path."""
    return "://" in repo or re.match(r"[\w.-]+@[\w.-]+:", repo) is not None


def _require_known_fields(fields: dict[str, Any], name: str) -> None:
    if "prompt" in fields:
        raise BadInput(
            f"{name}: there is no field 'prompt': the text below the front matter is the prompt."
        )
    for field in fields:
        if field not in TASK_FIELDS:
            raise unknown_field_error(name, field, TASK_FIELDS)


def _require_complete_task(task: Task, name: str) -> None:
    acceptance = task.acceptance
    require_valid_id(task.id, f"{name}: 'id'")
    if not acceptance.is_given and acceptance != Acceptance():
        raise BadInput(
            f"{name}: 'acceptance' has no check: give tests (run), commands or an "
            "answer, or remove it if people and judges score the task."
        )
    if not acceptance.run:
        for field in ("fail_to_pass", "pass_to_pass", "runner", "report"):
            if getattr(acceptance, field):
                raise BadInput(f"{name}: 'acceptance.{field}' needs 'acceptance.run', the command.")
    if acceptance.runner == "junit" and not acceptance.report:
        raise BadInput(
            f"{name}: 'acceptance.report' is missing: give the path of the JUnit XML report."
        )
    if not (math.isfinite(acceptance.timeout) and acceptance.timeout > 0):
        raise BadInput(f"{name}: 'acceptance.timeout' must be a number of seconds, more than 0.")
    if acceptance.answer is not None:
        _require_regex(acceptance.answer, f"{name}: 'acceptance.answer'")
    for question in task.answers:
        _require_regex(question, f"{name}: 'answers', {question!r}")


def _require_regex(text: str, name: str) -> None:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadInput(f"{name} is not a regular expression: {error}.") from error


def _load_patch(patch_name: str | None, field: str, path: Path) -> str | None:
    if patch_name is None:
        return None
    file = path.parent / patch_name
    name = f"{path}: the file {patch_name!r} of {field!r}"
    if not file.is_file():
        raise BadInput(f"{name} does not exist.")
    text = read_task_text(file, name, MAX_PATCH_BYTES)
    try:
        is_empty = not parse_patch(text).files
    except BadInput as fault:
        raise BadInput(f"{name}: {fault}") from fault
    if is_empty:
        raise BadInput(f"{name} is empty: create it with `git diff`.")
    return text


def _resolve_repo(repo_field: str | None, path: Path, root: Path | None) -> str | None:
    if repo_field == NO_REPOSITORY:
        return None
    if repo_field is not None:
        return (
            repo_field
            if is_repository_address(repo_field)
            else str((path.parent / repo_field).resolve())
        )
    if root is None:
        raise BadInput(
            f"{path}: 'repo' is missing, because this file is not in a git repository: "
            "set it, or write `repo: none` for a question that needs no code."
        )
    return str(root.resolve())


def _resolve_base(
    revision: str | None, repo: str | None, name: str, resolve: ResolveRevision
) -> str | None:
    if repo is None:
        if revision is not None:
            raise BadInput(f"{name}: 'base' needs a repository, and 'repo' is none.")
        return None
    try:
        return resolve(repo, revision or "HEAD")
    except BadInput as fault:
        if revision is not None and _COMMIT_ID.fullmatch(revision):
            return revision  # removed since: only this task is affected
        raise BadInput(f"{name}: {fault}") from fault


def _require_hidden_from_agent(files: Sequence[str], path: Path, base: str | None) -> None:
    """Reject a task inside its own base commit: the agent would see how it is graded."""
    if base is None or not files:
        return
    # Fails if the file is in no repository or in another one.
    tree_listing = try_git_text(path.parent, "ls-tree", "--name-only", "-z", base, "--", *files)
    if visible_file := tree_listing.split("\0")[0]:
        raise BadInput(
            f"{path}: the agent would find {visible_file!r} in the commit it starts "
            "from: set 'base' to an earlier commit, or keep tasks in a separate "
            "repository."
        )


# Write tasks, and change a field or the tags of an existing one.


_JUNIT_REPORTS = {
    "mvn": "**/target/surefire-reports/TEST-*.xml",
    "mvnw": "**/target/surefire-reports/TEST-*.xml",
    "gradle": "**/build/test-results/test/TEST-*.xml",
    "gradlew": "**/build/test-results/test/TEST-*.xml",
}

_SETUP_FIELD = {"# setup: [make deps]": "by default `commands.setup` in closeloop.toml"}
_TEST_FIELDS = {
    "fail_to_pass: []": "tests that fail now and must pass: [tests/test_x.py::test_y]",
    "# pass_to_pass: []": "by default: all that pass now and are not flaky",
}
_ACCEPTANCE_FIELDS = {
    "# patch: NAME.tests.patch": "hidden tests: the agent never sees them, grading applies them",
    "# commands: [make lint]": "these must exit with 0 after the change",
    "# answer: (?i)utf-8": "a regular expression that the agent's last message must match",
    "# timeout: 600": "seconds for one run of the tests, or one command",
}
_OPTIONAL_FIELDS = {
    "# reference: NAME.patch": "the known good change: git diff BASE FIX > NAME.patch",
    "# scope: [src/billing/**]": "where changes belong; anywhere by default",
    "# protected: [fixtures/**]": "restored before grading, like the tests above",
    "# ambiguous: true": "a decision is missing in the request: the agent should ask",
    "# answers: {currency: Euro.}": "what the user says when asked: expression → answer",
    "# facts: [whole cents]": "texts that must reach every sub-agent",
    "# rubric: No new dependency.": "what a good change is like, for reviewers and judges",
    "# tags: [billing]": "to select tasks",
    "# split: held-out": "not for daily use; `dev` by default",
}


def render_task_files(task: Task, folder: Path) -> dict[str, str]:
    """Return the files of a task in a folder: name → text, the task's own file first."""
    files = {f"{task.id}.md": ""}
    task_values = msgspec.to_builtins(task)
    front_matter: dict[str, Any] = {
        name: task_values[name] for name in TASK_FIELDS if name in task_values
    }
    front_matter["repo"] = _relative_repo(task.repo, folder)
    if task.repo is not None:
        front_matter["setup"] = list(task.setup)  # otherwise the project's would be used
    if task.reference is not None:
        front_matter["reference"] = f"{task.id}.patch"
        files[front_matter["reference"]] = task.reference
    if task.acceptance.patch is not None:
        front_matter["acceptance"]["patch"] = f"{task.id}.tests.patch"
        files[front_matter["acceptance"]["patch"]] = task.acceptance.patch
    files[f"{task.id}.md"] = f"---\n{_dump_yaml(front_matter)}---\n\n{task.prompt}\n"
    return files


def render_new_task(
    name: str, commands: CommandSettings, head: str, prompt: str | None = None
) -> str:
    """Render a new task's text: filled in as far as possible, the rest explained.

    With a prompt it can run as it is: until somebody adds acceptance, people and judges decide.
    """
    repo = {"# repo: ../other": "by default where this file is; `none` for no code at all"}
    lines = [f"id: {name}", *_explain_fields(repo, name), f"base: {head}"]
    lines += _explain_fields(_SETUP_FIELD, name)
    acceptance_lines = [
        *_render_run(commands.test),
        *_explain_fields(_TEST_FIELDS if commands.test else {}, name),
    ]
    acceptance_lines += _explain_fields(_ACCEPTANCE_FIELDS, name)
    head_line = "acceptance:"
    if prompt is not None:
        acceptance_lines = [_comment_out(line) for line in acceptance_lines]
        [head_line] = _explain_fields({"# acceptance:": "none: people and judges score it"}, name)
    lines += [
        head_line,
        *(f"  {line}" for line in acceptance_lines),
        *_explain_fields(_OPTIONAL_FIELDS, name),
    ]
    return "\n".join(["---", *lines, "---", "", prompt or PROMPT_PLACEHOLDER, ""])


def write_new_file(path: Path, text: str) -> None:
    """Write a new file; never touch an existing one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError as error:
        raise BadInput(f"{path} already exists: choose another name, or edit it.") from error
    except OSError as error:
        raise MachineFailed(f"{path} cannot be written: {error.strerror}.") from error


def _render_run(command: str | None) -> list[str]:
    if command is None:
        return list(_explain_fields({"# run: pytest": "the command that runs the tests"}, ""))
    lines = [f"run: {yaml_scalar(command)}"]
    report = next(
        (_JUNIT_REPORTS[word] for word in re.split(r"[\s/]+", command) if word in _JUNIT_REPORTS),
        None,
    )
    return [*lines, "runner: junit", f"report: {yaml_scalar(report)}"] if report else lines


def _comment_out(line: str) -> str:
    """Return the line as a comment, with its explanation in the same column."""
    return line if line.startswith("# ") else f"# {line.replace('   # ', ' # ', 1)}"


def _explain_fields(fields: dict[str, str], name: str) -> Iterator[str]:
    for field, description in fields.items():
        yield f"{field.replace('NAME', name):<34} # {description.replace('NAME', name)}"


def _relative_repo(repo: str | None, folder: Path) -> str:
    """Return a path relative to the folder, so that both can move together."""
    if repo is None:
        return NO_REPOSITORY
    return repo if is_repository_address(repo) else os.path.relpath(repo, folder.resolve())


def yaml_scalar(text: str) -> str:
    """Format a text for use after `field: `."""
    return _dump_yaml([text], default_flow_style=True).strip()[1:-1]


def _dump_yaml(value: Any, **options: Any) -> str:
    return yaml.dump(  # type: ignore[no-any-return]
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000, **options
    )


class _Dumper(yaml.SafeDumper):
    """Keeps long texts readable and loses no character, such as U+0085."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None
    if not text.isprintable():
        readable = all(line.isprintable() for line in text.split("\n"))
        style = "|" if readable else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


# Change a field of a task's file without changing any other byte.

FieldValue = str | tuple[str, ...] | None
"""None removes the field."""


def text_with_field(text: str, field: str, value: FieldValue, name: str) -> str:
    """Return the text of a task with one field of its front matter set."""
    current_fields, body = split_front_matter(text, name)
    expected_fields = {
        key: current_value for key, current_value in current_fields.items() if key != field
    }
    if value is not None:
        expected_fields[field] = list(value) if isinstance(value, tuple) else value
    end = "\r\n" if "\r\n" in text else "\n"
    if not text.startswith("---"):  # a plain prompt
        text = f"---{end}---{end}{end}{text}"
    lines = text.replace("\r\n", "\n").split("\n")
    last = next(number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---")
    kept_lines = list(_drop_field_lines(lines[1:last], field))
    if value is not None:
        kept_lines.append(f"{field}: {_render_value(value)}")
    edited = end.join([lines[0], *kept_lines, *lines[last:]])
    try:
        is_editable = split_front_matter(edited, name) == (expected_fields, body)
    except BadInput:
        is_editable = False
    if not is_editable:
        raise BadInput(
            f"{name}: {field!r} is written in a form that closeloop cannot edit: edit it by hand."
        )
    return edited


def set_task_field(path: Path, field: str, value: FieldValue) -> None:
    """Change a field of a file atomically."""
    edited = text_with_field(read_task_text(path, str(path)), field, value, str(path))
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_bytes(edited.encode())
        draft.replace(path)
    except OSError as error:
        raise MachineFailed(f"{path} cannot be written: {error.strerror}.") from error


def _drop_field_lines(lines: Sequence[str], field: str) -> list[str]:
    """Return the lines without a field's own and those indented below it."""
    kept_lines, in_field = [], False
    for line in lines:
        if re.match(rf"{re.escape(field)}[ \t]*:", line):
            in_field = True
        elif in_field and line.strip() and not line[0].isspace() and not line.startswith("- "):
            in_field = False
        if not in_field:
            kept_lines.append(line)
    return kept_lines


def _render_value(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return yaml_scalar(value)
    return f"[{', '.join(yaml_scalar(item) for item in value)}]"


# Tags of tasks: the kind of work, and the failure modes seen.

MIN_LIST_ITEMS = 3
_TAG_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_LIST_ITEM = re.compile(r"^\s{0,3}(?:[-*+]|\d{1,2}[.)])\s+\S", re.MULTILINE)


def infer_kind_tags(task: Task) -> tuple[str, ...]:
    """Return the kinds that a task itself shows."""
    files = parse_patch(task.reference).files if task.reference else ()
    kind_holds = {
        "ambiguous": task.ambiguous,
        "existing-code": any(file.status == "changed" for file in files),
        "multi-file": len(files) > 1,
        "multi-step": len(_LIST_ITEM.findall(task.prompt)) >= MIN_LIST_ITEMS,
        "needs-a-question": task.ambiguous and bool(task.answers),
    }
    return tuple(tag for tag, holds in kind_holds.items() if holds)


def tag_from_mode(mode: str) -> str:
    """Return a failure mode as a tag."""
    return re.sub(r"[^a-z0-9]+", "-", mode.lower()).strip("-")


def apply_tag_changes(tags: Sequence[str], changes: Iterable[str]) -> tuple[str, ...]:
    """Return the tags after applying `+one` and `-another`."""
    changed_tags = list(tags)
    for change in changes:
        sign, tag = change[:1], change[1:]
        if sign not in "+-" or not _TAG_PATTERN.fullmatch(tag):
            raise BadInput(
                f"{change!r} is not a change of tags: write +name or -name, with "
                "lower-case letters, digits and '-'."
            )
        if sign == "-" and tag not in changed_tags:
            raise BadInput(
                f"There is no tag {tag!r} to remove: the task has {', '.join(changed_tags)}."
            )
        changed_tags = [changed_tag for changed_tag in changed_tags if changed_tag != tag] + (
            [tag] if sign == "+" else []
        )
    return tuple(changed_tags)
