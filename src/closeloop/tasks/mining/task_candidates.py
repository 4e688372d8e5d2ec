"""Which pieces of work could be tasks, and which are likely good ones."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from closeloop.records.change import Change, FileChange
from closeloop.records.record import Record, Time
from closeloop.tasks.mining.change_parts import ChangeParts
from closeloop.tasks.mining.task_prompts import TEST_BEHAVIOUR, request_from_message
from closeloop.tasks.mining.work_history import MIN_MESSAGE_WORDS, PastWork

MAX_SOURCE_FILES = 12
MAX_SOURCE_LINES = 800
MAX_PATCH_BYTES = 1 << 20
_CHORE_SUBJECT = re.compile(
    r"(?i)(?:(?:failing )?tests?\b|revert\b|bump\b|release\b|prepare\b.*release|pre-commit"
    r"|black\b|ruff\b|reformat|format(?:ting)?\b|lint|typos?\b|chore\b|ci\b|build\b|docs?\b"
    r"|style\b|update (?:copyright|dependenc|lock)|version \d|merge\b"
    r"|drop (?:support|.{0,30}python)|remove support|modernize|upgrade\b|migrate\b|pyupgrade"
    r"|rename\b|refactor|type hints?|typing\b|annotat|move\b|deprecat)"
)
_ABOUT_TESTS = re.compile(
    rf"(?i)(?:\w+ ){{1,5}}tests?\b(?! runner| client| suite|{TEST_BEHAVIOUR})"
    r"|(?:\S+ ){0,4}add(?:ed|s)? tests?\b"
)
_CHORE_PREFIX = re.compile(
    r"(?i)(?:tests?|docs?|chore|ci|build|style|refactor)(?:\([^()]{0,40}\))?!?:"
)
_WORTHY_WORD = re.compile(
    r"(?i)\b(?:fix|bug|add|support|allow|handle|raise|prevent|correct|implement)"
)


class TaskCandidate(Record):
    """What a task could be made of: the work, in its parts."""

    commit: str
    base: str
    at: Time
    prompt: str
    prompt_by: Literal["person", "model"] = "person"
    source: str
    """The change to the source, as a patch: the reference."""
    tests: str
    """The change to the tests, as a patch: hidden."""
    test_files: tuple[str, ...]
    """Files in it that the runner collects and that are there after it."""
    source_files: tuple[str, ...]


def find_unfit_reason(change: Change, parts: ChangeParts) -> str | None:
    """Why a change cannot be a task, if it is plain without running anything."""
    files = {file.path: file for file in change.files}
    source = [files[path] for path in parts.source if path in files]
    if not parts.tests:
        return "it changes no tests"
    if not source:
        return "it changes no source"
    if len(source) > MAX_SOURCE_FILES:
        return f"it changes {len(source)} source files, too many for one task"
    lines = sum(file.added + file.removed for file in source)
    if lines > MAX_SOURCE_LINES:
        return f"it changes {lines} lines of source, too many for one task"
    if all(file.status in ("deleted", "renamed") and not file.added for file in source):
        return "it only moves or deletes source"
    if not any(files[path].added for path in parts.tests if path in files):
        return "it adds nothing to the tests"
    return None


def score_work(
    message: str, noted: bool, source: Sequence[FileChange], tests: Sequence[FileChange]
) -> float:
    """How good a task this may be, by size, files, message and tests; a point is a notch.

    `noted`: the change log has more words for it.
    """
    lines = sum(file.added + file.removed for file in source)
    # Around 25 lines in one or two files are an hour's work: neither a typo nor a project.
    points = 3.0 - abs(math.log(max(lines, 1) / 25)) - 0.5 * max(0, len(source) - 2)
    subject, _, body = request_from_message(message).partition("\n")
    points += min(len(re.findall(r"\w+", subject)), 8) / 4
    points += min(len(body.strip()) + 200 * noted, 300) / 200
    points -= 1.0 if len(message.split()) < MIN_MESSAGE_WORDS and not noted else 0.0
    points += 1.5 if _WORTHY_WORD.search(subject) else 0.0
    bare_message = re.sub(
        r"^(?:\[[^\]\n]{0,40}\] *|\W{0,9}\w{0,40}\W{0,9}(?:\([^()\n]{0,40}\)!?)?: *)", "", message
    )
    is_chore = any(map(_CHORE_SUBJECT.match, (message, bare_message))) or _ABOUT_TESTS.match(
        subject
    )
    points -= 3.0 if is_chore or _CHORE_PREFIX.match(message) else 0.0
    added, removed = sum(file.added for file in tests), sum(file.removed for file in tests)
    points += min(added, 40) / 40
    # Tests that were there and had to be changed often ask for just this way to do it.
    points -= 2 * removed / max(added + removed, 1)
    return points


def rank_work(rated: Sequence[tuple[float, PastWork]], now: datetime) -> list[PastWork]:
    """Best first; a point is lost with every year, as environments rot and projects move on."""

    def worth(pair: tuple[float, PastWork]) -> float:
        return pair[0] - (now - pair[1].at).days / 365

    return [work for _, work in sorted(rated, key=worth, reverse=True)]
