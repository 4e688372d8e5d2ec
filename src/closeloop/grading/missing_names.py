"""Names that a change made up: a failing test says they do not exist, and nothing else has them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from closeloop.grading.integrity.base_sources import list_added_sources, read_base_sources
from closeloop.grading.touched_paths import parse_change
from closeloop.records.attempt import TestRun
from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.records.task import Task
from closeloop.text.missing_names import NAME_DEFINITION, find_missing_names

MAX_MESSAGES = 50
"""Of failing tests: those that fail for one reason say the same."""


def find_made_up_names(
    task: Task, change: Change, after: TestRun, root: str | None
) -> tuple[str, ...] | None:
    """The names that only the change uses; None where the base cannot be searched for them.

    What the base, its tests or the reference have under that name exists somewhere, and what the
    change itself defines is merely out of reach.
    """
    try:
        added = "\n".join(source.text for source in list_added_sources(change))
    except BadInput:
        return None
    names = {
        missing.name: missing.name.rpartition(".")[2]
        for message in _failure_messages(after)
        for missing in find_missing_names(message)
        if missing.sort != "option"
    }
    suspects = {
        name: word
        for name, word in names.items()
        if _has_word(added, word) and not _defines_word(added, word)
    }
    if not suspects:
        return ()
    patches = [parse_change(patch) for patch in (task.reference, task.acceptance.patch)]
    sources = (
        read_base_sources(root, filter(None, patches), lambda path, text: False) if root else None
    )
    if sources is None:
        return None
    texts = [source.text for source in (*sources.tests, *sources.product, *sources.metadata)]
    return tuple(
        name for name, word in suspects.items() if not any(_has_word(text, word) for text in texts)
    )


def _failure_messages(run: TestRun) -> Iterator[str]:
    failing = [test for test in run.tests if test.status in ("failed", "error") and test.message]
    for test in failing[:MAX_MESSAGES]:
        yield test.message or ""
    for command in run.commands:
        if command.exit_code:
            yield command.output


def _has_word(text: str, word: str) -> bool:
    return word in text and re.search(rf"\b{re.escape(word)}\b", text) is not None


def _defines_word(text: str, word: str) -> bool:
    definition = NAME_DEFINITION.replace("NAME", re.escape(word))
    return re.search(definition, text, re.MULTILINE) is not None
