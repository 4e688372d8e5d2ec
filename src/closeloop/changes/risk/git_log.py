"""What landed on the main line, step by step: each commit or merge with the lines it replaced."""

from __future__ import annotations

import re
import subprocess
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import IO
from zlib import crc32

from closeloop.changes.file_kinds import classify_file
from closeloop.git import FOREIGN_COMMAND, GitRepository, git_environment, summarise_git_error
from closeloop.records.errors import MachineFailed
from closeloop.records.record import Record

_LOG_FORMAT = "%x00%H%x00%ct%x00%aE%x00%B%x00"
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MESSAGE_BYTES = 20_000
MAX_ERROR_BYTES = 10_000


class ReplacedLines(Record):
    """Lines replaced at one place, counted in the file before the step."""

    start: int
    """Lines before the place that stay."""
    removed: int
    added: int


class EditedFile(Record):
    """One file of a step."""

    path: str
    old_path: str | None = None
    gone: bool = False
    places: tuple[ReplacedLines, ...] = ()
    removed_text: int = 0
    added_text: int = 0
    """What stands for the text of all lines that it loses, and gets."""

    @property
    def added_lines(self) -> int:
        return sum(place.added for place in self.places)

    @property
    def removed_lines(self) -> int:
        return sum(place.removed for place in self.places)


class MainlineStep(Record):
    """One commit of the main line, a merge with all that it brought."""

    id: str
    at: int
    """Seconds since 1970."""
    author: str
    message: str
    files: tuple[EditedFile, ...]


def read_mainline_steps(
    repository: GitRepository, commits: str, limit: int
) -> Iterator[MainlineStep]:
    """The newest `limit` steps of the main line up to a commit or in a range, oldest first."""
    command = [
        *FOREIGN_COMMAND,
        *("-c", "core.quotePath=false", "-c", "log.showSignature=false"),
        *("log", "--first-parent", "--diff-merges=first-parent", "--reverse", f"-n{limit}"),
        *(
            "-p",
            "-U0",
            "-M",
            "--no-color",
            "--no-ext-diff",
            "--no-textconv",
            "--no-indent-heuristic",
        ),
        *(
            "--src-prefix=a/",
            "--dst-prefix=b/",
            f"--format={_LOG_FORMAT}",
            "--end-of-options",
            commits,
        ),
        "--",
    ]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            cwd=repository.root,
            env=git_environment({"GIT_DIR": str(repository.folder)}),
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield from _GitLogParser(process.stdout).parse_steps()
        except GeneratorExit:
            process.kill()
            raise
        if process.wait():
            errors.seek(0)
            raise MachineFailed(
                f"Git cannot tell the history of {repository.root}"
                f" ({summarise_git_error(errors.read(MAX_ERROR_BYTES))}): try `git log {commits}`."
            )


class _GitLogParser:
    """A place in the output of `git log -p`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.line = stream.readline()
        self.removed_text = self.added_text = 0

    def parse_steps(self) -> Iterator[MainlineStep]:
        while self.line:
            if not self.line.startswith(b"\0"):
                self._next_line()
                continue
            commit, at, author, message = self._parse_header()
            files = tuple(self._parse_files())
            yield MainlineStep(id=commit, at=at, author=author, message=message, files=files)

    def _next_line(self) -> None:
        self.line = self.stream.readline()

    def _parse_header(self) -> tuple[str, int, str, str]:
        text = self.line
        while self.line and text.count(b"\0") < 5:
            self._next_line()
            if len(text) < _MESSAGE_BYTES or b"\0" in self.line:
                text += self.line
        self._next_line()
        _, commit, at, author, message, *_ = text.split(b"\0")
        return (
            commit.decode(),
            int(at),
            author.decode(errors="replace").lower(),
            message.decode(errors="replace").strip(),
        )

    def _parse_files(self) -> Iterator[EditedFile]:
        while self.line and not self.line.startswith(b"\0"):
            if self.line.startswith(b"diff --git "):
                edited = self._parse_file()
                if edited is not None:
                    yield edited
            else:
                self._next_line()

    def _parse_file(self) -> EditedFile | None:
        old = new = None
        is_deleted = False
        places: list[ReplacedLines] = []
        self.removed_text = self.added_text = 0
        self._next_line()
        while self.line and not self.line.startswith((b"\0", b"diff --git ")):
            if self.line.startswith(b"deleted file"):
                is_deleted = True
            elif self.line.startswith(b"rename from "):
                old = _decode_path(self.line[len("rename from ") :])
            elif self.line.startswith(b"rename to "):
                new = _decode_path(self.line[len("rename to ") :])
            elif self.line.startswith(b"--- a/"):
                old = _decode_path(self.line[6:])
            elif self.line.startswith(b"+++ b/"):
                new = _decode_path(self.line[6:])
            elif hunk := _HUNK.match(self.line):
                places.append(self._parse_hunk(hunk))
                continue
            self._next_line()
        path = new or old
        if path is None:
            return None
        moved = old if old and new and old != new else None
        return EditedFile(
            path=path,
            old_path=moved,
            gone=is_deleted,
            places=tuple(places),
            removed_text=self.removed_text,
            added_text=self.added_text,
        )

    def _parse_hunk(self, hunk: re.Match[bytes]) -> ReplacedLines:
        """Step over the lines that the header promises, whatever they look like."""
        start, removed, _, added = (1 if part is None else int(part) for part in hunk.groups())
        left = removed + added
        self._next_line()
        while self.line and (left > 0 or self.line.startswith(b"\\")):
            if self.line.startswith(b"-"):
                self.removed_text = crc32(self.line, self.removed_text)
            elif self.line.startswith(b"+"):
                # As a removed line, so that text that is undone gives the same number.
                self.added_text = crc32(b"-" + self.line[1:], self.added_text)
            left -= not self.line.startswith(b"\\")
            self._next_line()
        return ReplacedLines(start=start - 1 if removed else start, removed=removed, added=added)


def _decode_path(raw: bytes) -> str:
    """As git writes it; names with quotes or control signs keep git's escapes."""
    return raw.decode(errors="replace").rstrip("\n").removesuffix("\t").strip('"')


# Which past changes went wrong: their lines were repaired soon after.
#
# Every line of the sources is kept with the step that wrote it, by replaying the main line. When
# a step whose title says that it fixes something replaces lines, the steps that wrote them are
# the ones it repairs (SZZ, within a time).

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
_REVERT = re.compile(r"^(?:Revert(?:ed)?|Back(?:ed)? out)\b", re.IGNORECASE)


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
        self.fixed: set[int] = set()
        self.repairs: list[tuple[int, int]] = []
        """Which step repairs which."""
        self._writers: dict[str, array[int]] = {}
        self._times: list[int] = []

    def add_step(self, step: MainlineStep) -> None:
        number = len(self._times)
        self._times.append(step.at)
        sources = [file for file in step.files if is_product_source(file.path)]
        blames = is_fix_message(step.message) and len(sources) <= _MAX_FIX_FILES
        for file in sources:
            replaced = self._replay_file(file, number)
            if blames:
                blamed = self._recent_writers(replaced, step.at)
                self.fixed.update(blamed)
                self.repairs += [(number, one) for one in sorted(blamed)]

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
