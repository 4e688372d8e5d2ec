"""Variants by words: rules that are said once, and a decision that is not said at all."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from closeloop.records.errors import BadInput
from closeloop.records.task import Task
from closeloop.tasks.mining.task_prompts import NAMES_HEADING
from closeloop.text.patches import parse_patch
from closeloop.text.wording import escape_glob

_MANIFEST_FILES = (
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    "package.json",
    "go.mod",
    "Cargo.toml",
)
_NAMES_SECTION = re.compile(rf"\n*{NAMES_HEADING}(.+?)\.?\s*$", re.DOTALL)
_DECISION = re.compile(
    r"`([^`\n]{1,60})`|\"([^\"\n]{1,60})\"|(?<![\w.])(\d{1,9}(?:\.\d{1,9})?)(?![\w.])"
)


def add_constraints(task: Task, tree: Path) -> tuple[Task, dict[str, str]]:
    """Several steps, under rules that stand only at the beginning: will they hold to the end?"""
    files = parse_patch(task.reference or "").files
    touched = {file.path for file in files}
    kept_files = [
        name for name in _MANIFEST_FILES if (tree / name).is_file() and name not in touched
    ]
    rules = [f"`{name}` stays as it is." for name in kept_files]
    if not any(file.status == "added" for file in files):
        rules.append("No file is added.")
    if not rules:
        raise BadInput(f"{task.id} breaks every rule that could be set: its change adds files.")
    prompt = "\n".join(
        [
            "These rules hold for all of this work, and are not said again:",
            "",
            *(f"- {rule}" for rule in rules),
            "",
            "Work in these steps:",
            "",
            "1. Find the code that this is about, and what calls it.",
            "2. Do what is asked below.",
            "3. Read your change again, and take out what the request does not need.",
            "4. Run the tests, and mend what they show.",
            "5. Say in a few lines what you changed, and why.",
            "",
            task.prompt,
        ]
    )
    files_kept = {name: (tree / name).read_bytes() for name in kept_files}
    commands = (
        *task.acceptance.commands,
        *([unchanged_files_command(files_kept)] if kept_files else []),
    )
    return replace(
        task,
        prompt=prompt,
        facts=(*task.facts, *(rule.rstrip(".").replace("`", "") for rule in rules)),
        scope=task.scope or tuple(sorted(escape_glob(path) for path in touched)),
        acceptance=replace(task.acceptance, commands=commands),
    ), {}


def remove_decision(task: Task, tree: Path) -> tuple[Task, dict[str, str]]:
    """The request without one thing that the tests insist on: somebody has to ask."""
    del tree
    prompt, answer = _remove_names(task.prompt) or _remove_literal(task) or ("", "")
    if len(prompt.split()) < 4:
        raise BadInput(f"{task.id} states no decision that the tests need and one could leave out.")
    return replace(task, prompt=prompt, ambiguous=True, answers={".": answer}), {}


def unchanged_files_command(files: Mapping[str, bytes]) -> str:
    """A command that fails once one of these files is another."""
    sums = [f"{hashlib.sha256(content).hexdigest()}  {path}" for path, content in files.items()]
    return f"printf '%s\\n' {' '.join(map(shlex.quote, sums))} | sha256sum -c --quiet -"


def _remove_names(prompt: str) -> tuple[str, str] | None:
    match = _NAMES_SECTION.search(prompt)
    return (prompt[: match.start()], f"Use these names: {match[1]}.") if match else None


def _remove_literal(task: Task) -> tuple[str, str] | None:
    """The first name, text or number that only request and tests have."""
    tests = "\n".join(
        line[1:] for line in (task.acceptance.patch or "").split("\n") if line.startswith("+")
    )
    for found in _DECISION.finditer(task.prompt):
        text = next(filter(None, found.groups()))
        if not re.search(rf"(?<![\w.]){re.escape(text)}(?![\w.])", tests):
            continue
        prompt = task.prompt.replace(found[0], "what we agreed on")
        if text not in prompt:
            return prompt, f"We agreed on {found[0]}."
    return None
