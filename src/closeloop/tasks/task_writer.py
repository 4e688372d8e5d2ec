"""Write tasks, and change a field or the tags of one that is written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.settings import CommandSettings
from closeloop.records.task import Task
from closeloop.tasks.task_files import (
    NO_REPOSITORY,
    PROMPT_PLACEHOLDER,
    TASK_FIELDS,
    is_repository_address,
    read_task_text,
    split_front_matter,
)
from closeloop.text.patches import parse_patch

_JUNIT_REPORTS = {
    "mvn": "**/target/surefire-reports/TEST-*.xml",
    "mvnw": "**/target/surefire-reports/TEST-*.xml",
    "gradle": "**/build/test-results/test/TEST-*.xml",
    "gradlew": "**/build/test-results/test/TEST-*.xml",
}

_TEST_FIELDS = {
    "fail_to_pass: []": "tests that fail now and must pass: [tests/test_x.py::test_y]",
    "# pass_to_pass: []": "when not given: all that pass now and are not flaky",
}
_ACCEPTANCE_FIELDS = {
    "# patch: NAME.tests.patch": "hidden tests: the agent never sees them, grading applies them",
    "# commands: [make lint]": "these must exit with 0 after the change",
    "# answer: (?i)utf-8": "a regular expression that the agent's last message must match",
    "# timeout: 600": "seconds for one run of the tests, or one command",
}
_OPTIONAL_FIELDS = {
    "# reference: NAME.patch": "the known good change: git diff BASE FIX > NAME.patch",
    "# scope: [src/billing/**]": "where changes belong; anywhere when not given",
    "# protected: [fixtures/**]": "put back before grading, as the tests above are anyway",
    "# ambiguous: true": "a decision is missing in the request: a question is right",
    "# answers: {currency: Euro.}": "what the user says when asked: expression → answer",
    "# facts: [whole cents]": "texts that must reach every sub-agent",
    "# rubric: No new dependency.": "what a good change is like, for whoever judges it",
    "# tags: [billing]": "to choose tasks by",
    "# split: held-out": "not for daily use; `dev` when not given",
}


def render_task_files(task: Task, folder: Path) -> dict[str, str]:
    """The files that make a task in a folder: name → text, the task's own file first."""
    files = {f"{task.id}.md": ""}
    task_values = msgspec.to_builtins(task)
    front_matter: dict[str, Any] = {
        name: task_values[name] for name in TASK_FIELDS if name in task_values
    }
    front_matter["repo"] = _relative_repo(task.repo, folder)
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
    """A new task's text: filled in as far as can be known, the rest explained.

    One that has its prompt can be run as it is: what must hold is left to people and judges until
    somebody fills that in.
    """
    repo = {"# repo: ../other": "when not given: where this file lies; `none` for no code at all"}
    lines = [f"id: {name}", *_explain_fields(repo, name), f"base: {head}"]
    if commands.setup:
        lines += ["setup:", *(f"  - {yaml_scalar(line)}" for line in commands.setup)]
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
    """Write a file that is not there yet; one that is, is never touched."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise BadInput(f"{path} is there already: choose another name, or edit it.") from error
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
    """As a comment, with what explains it in its old column."""
    return line if line.startswith("# ") else f"# {line.replace('   # ', ' # ', 1)}"


def _explain_fields(fields: dict[str, str], name: str) -> Iterator[str]:
    for field, about in fields.items():
        yield f"{field.replace('NAME', name):<34} # {about.replace('NAME', name)}"


def _relative_repo(repo: str | None, folder: Path) -> str:
    """A path is written from the folder on, so that both can move together."""
    if repo is None:
        return NO_REPOSITORY
    return repo if is_repository_address(repo) else os.path.relpath(repo, folder.resolve())


def yaml_scalar(text: str) -> str:
    """A text as it stands behind `field: `."""
    return _dump_yaml([text], default_flow_style=True).strip()[1:-1]


def _dump_yaml(value: Any, **options: Any) -> str:
    return yaml.dump(  # type: ignore[no-any-return]
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000, **options
    )


class _Dumper(yaml.SafeDumper):
    """Long texts stay readable, and no character is lost, as the likes of U+0085 else are."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None
    if not text.isprintable():
        readable = all(line.isprintable() for line in text.split("\n"))
        style = "|" if readable else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


# Change a field of a task's file, and leave every other byte of it as it is.

FieldValue = str | tuple[str, ...] | None
"""None takes the field out."""


def text_with_field(text: str, field: str, value: FieldValue, name: str) -> str:
    """The text of a task with one field of its front matter set."""
    current_fields, body = split_front_matter(text, name)
    expected_fields = {key: kept for key, kept in current_fields.items() if key != field}
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
        understood = split_front_matter(edited, name) == (expected_fields, body)
    except BadInput:
        understood = False
    if not understood:
        raise BadInput(f"{name}: {field!r} is written in a way that only people can change: do so.")
    return edited


def set_task_field(path: Path, field: str, value: FieldValue) -> None:
    """Change a field of a file: it is whole before, and whole after."""
    edited = text_with_field(read_task_text(path, str(path)), field, value, str(path))
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_bytes(edited.encode())
        draft.replace(path)
    except OSError as error:
        raise MachineFailed(f"{path} cannot be written: {error.strerror}.") from error


def _drop_field_lines(lines: Sequence[str], field: str) -> list[str]:
    """The lines that do not belong to a field: not its own, nor those indented below it."""
    kept_lines, inside = [], False
    for line in lines:
        if re.match(rf"{re.escape(field)}[ \t]*:", line):
            inside = True
        elif inside and line.strip() and not line[0].isspace() and not line.startswith("- "):
            inside = False
        if not inside:
            kept_lines.append(line)
    return kept_lines


def _render_value(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return yaml_scalar(value)
    return f"[{', '.join(yaml_scalar(item) for item in value)}]"


# Tags of tasks: what kind of work each is, and which failure modes it has shown.

MIN_LIST_ITEMS = 3
_TAG_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_LIST_ITEM = re.compile(r"^\s{0,3}(?:[-*+]|\d{1,2}[.)])\s+\S", re.MULTILINE)


def infer_kind_tags(task: Task) -> tuple[str, ...]:
    """The kinds that a task shows by itself."""
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
    """A failure mode as a tag."""
    return re.sub(r"[^a-z0-9]+", "-", mode.lower()).strip("-")


def apply_tag_changes(tags: Sequence[str], changes: Iterable[str]) -> tuple[str, ...]:
    """Tags after `+one` and `-another`."""
    changed_tags = list(tags)
    for change in changes:
        sign, tag = change[:1], change[1:]
        if sign not in "+-" or not _TAG_PATTERN.fullmatch(tag):
            raise BadInput(
                f"{change!r} is no change of tags: write +name or -name, in small letters, "
                "digits and '-'."
            )
        if sign == "-" and tag not in changed_tags:
            raise BadInput(
                f"There is no tag {tag!r} to take away: it has {', '.join(changed_tags)}."
            )
        changed_tags = [one for one in changed_tags if one != tag] + ([tag] if sign == "+" else [])
    return tuple(changed_tags)
