"""Which past changes went wrong: reverted, or their lines repaired soon after.

Every line of the sources is kept with the step that wrote it, by replaying the main line. When a
step whose title says that it fixes something replaces lines, the steps that wrote them are the
ones it repairs (SZZ, within a time).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from functools import lru_cache

from closeloop.changes.file_kinds import classify_file
from closeloop.changes.risk.git_log import EditedFile, MainlineStep

REPAIR_DAYS = 90
"""A repair later than this is not held against the change."""
_MAX_FIX_FILES = 20
"""A fix that touches more sources than this is a sweep: it blames nobody."""
_MAX_FILE_LINES = 20_000
"""Lines: a longer file is data that nobody wrote."""
_MERGE = re.compile(r"Merge (?:pull request|branch|remote-tracking branch|PR\b)|Merged in ")
_PULL_NUMBER = re.compile(r"\s*\(#\d+\)\s*$|^\[[\w. ]{1,20}\]\s*")
_FIX = re.compile(
    r"\b(?:fix(?:e[sd]|ing|up)?|bug(?:fix)?|hotfix|regression|crash(?:e[sd])?|broken|repair(?:s|ed)?)\b",
    re.IGNORECASE,
)
_HARMLESS_FIX = re.compile(
    r"\b(?:typos?|docs?|docstrings?|documentation|readme|comments?|spelling|grammar|links?|lint(?:ing)?"
    r"|flake8|format(?:ting)?|whitespace|changelog|isort|black|warnings?|ci|tests?|travis|workflows?"
    r"|imports?|example|version)\b",
    re.IGNORECASE,
)
_REVERT = re.compile(r"^(?:Revert(?:ed)?|Back(?:ed)? out):? \"?(.{4,300}?)\"?\s*$", re.IGNORECASE)
_REVERTED_COMMIT = re.compile(r"reverts? commit ([0-9a-f]{7,40})\b", re.IGNORECASE)


@lru_cache(maxsize=100_000)
def is_product_source(path: str) -> bool:
    """Whether bugs are made there, and not in tests or pages."""
    return classify_file(path) in ("source", "schema", "migration")


def commit_title(message: str) -> str:
    """The line that says what the step does; for a merge, that of what it brought."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) > 1 and _MERGE.match(lines[0]):
        return _PULL_NUMBER.sub("", lines[1])
    return _PULL_NUMBER.sub("", lines[0]) if lines else ""


def is_fix_message(message: str) -> bool:
    """Whether the step says that it repairs the program's behaviour."""
    words = commit_title(message)
    return bool(_FIX.search(words)) and not _HARMLESS_FIX.search(words) and not _REVERT.match(words)


class DefectLabels:
    """The replay: feed it every step in order, then read what went wrong."""

    def __init__(self) -> None:
        self.reverted: set[int] = set()
        self.fixed: set[int] = set()
        self.repairs: list[tuple[int, int]] = []
        """Which step repairs which."""
        self._writers: dict[str, array[int]] = {}
        self._times: list[int] = []
        self._ids: dict[str, int] = {}
        self._titles: dict[str, int] = {}

    def add_step(self, step: MainlineStep) -> None:
        number = len(self._times)
        self._times.append(step.at)
        self._record_revert(step)
        sources = [file for file in step.files if is_product_source(file.path)]
        blames = is_fix_message(step.message) and len(sources) <= _MAX_FIX_FILES
        for file in sources:
            replaced = self._replay_file(file, number)
            if blames:
                blamed = self._recent_writers(replaced, step.at)
                self.fixed.update(blamed)
                self.repairs += [(number, one) for one in sorted(blamed)]
        self._ids[step.id[:7]] = number
        self._titles[commit_title(step.message)] = number

    def _record_revert(self, step: MainlineStep) -> None:
        named = [self._ids.get(commit[:7]) for commit in _REVERTED_COMMIT.findall(step.message)]
        if quoted := _REVERT.match(commit_title(step.message)):
            named.append(self._titles.get(_PULL_NUMBER.sub("", quoted[1].rstrip('"'))))
        self.reverted.update(number for number in named if number is not None)

    def _recent_writers(self, writers: Iterable[int], at: int) -> set[int]:
        earliest = at - REPAIR_DAYS * 86_400
        return {one for one in set(writers) if one >= 0 and self._times[one] >= earliest}

    def _replay_file(self, file: EditedFile, number: int) -> list[int]:
        """Put the step's lines into the file; the writers of the lines that it replaced."""
        writers = self._writers.pop(file.old_path or file.path, None) or array("i")
        replaced: list[int] = []
        for place in reversed(file.places):
            end = place.start + place.removed
            if max(end, place.added) > _MAX_FILE_LINES:
                return []
            if end > len(writers):
                writers.extend([-1] * (end - len(writers)))
            replaced.extend(writers[place.start : end])
            writers[place.start : end] = array("i", [number]) * place.added
        if not file.gone:
            self._writers[file.path] = writers
        return replaced
