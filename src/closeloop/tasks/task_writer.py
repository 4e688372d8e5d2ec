"""Write tasks: one that is known, or the beginnings of one that a person will finish."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
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
)

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
    """A new task's text: filled in as far as can be known, the rest explained."""
    repo = {"# repo: ../other": "when not given: where this file lies; `none` for no code at all"}
    lines = [f"id: {name}", *_explain_fields(repo, name), f"base: {head}"]
    if commands.setup:
        lines += ["setup:", *(f"  - {yaml_scalar(line)}" for line in commands.setup)]
    acceptance_lines = [
        *_render_run(commands.test),
        *_explain_fields(_TEST_FIELDS if commands.test else {}, name),
    ]
    acceptance_lines += _explain_fields(_ACCEPTANCE_FIELDS, name)
    lines += [
        "acceptance:",
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
