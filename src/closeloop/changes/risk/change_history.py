"""The repository's history: what landed, what of it went wrong, and the past of each file."""

from __future__ import annotations

import logging
import math
import re
import subprocess
import tempfile
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO
from zlib import crc32

import msgspec

from closeloop.changes.file_kinds import classify_file
from closeloop.code_digest import digest_code, replace_file
from closeloop.git import (
    FOREIGN_COMMAND,
    REFETCH_HINT,
    GitRepository,
    find_repository,
    git_environment,
    query_git,
    summarise_git_error,
)
from closeloop.records.change import Inspection
from closeloop.records.errors import MachineFailed
from closeloop.records.record import Record
from closeloop.text.wording import compile_lazily, package_folder

# The main line, step by step: each commit or merge with the lines it replaced.


_LOG_FORMAT = "%x00%H%x00%ct%x00%aE%x00%B%x00"
_HUNK = compile_lazily(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MESSAGE_BYTES = 20_000
MAX_ERROR_BYTES = 10_000


class ReplacedLines(Record):
    """Lines replaced at one place; line numbers are those before the step."""

    start: int
    """Number of unchanged lines before the place."""
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
    """Hashes of the text of all removed lines, and of all added lines."""

    @property
    def added_lines(self) -> int:
        return sum(hunk.added for hunk in self.places)

    @property
    def removed_lines(self) -> int:
        return sum(hunk.removed for hunk in self.places)


class MainlineStep(Record):
    """One commit of the main line; a merge includes everything it brought."""

    id: str
    at: int
    """Seconds since 1970."""
    author: str
    message: str
    files: tuple[EditedFile, ...]


def read_mainline_steps(
    repository: GitRepository, commits: str, limit: int
) -> Iterator[MainlineStep]:
    """Yield the newest `limit` main-line steps up to a commit or in a range, oldest first."""
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
                f"Git cannot read the history of {repository.root} "
                f"({summarise_git_error(errors.read(MAX_ERROR_BYTES))}): try `git log "
                f"{commits}`."
            )


class _GitLogParser:
    """Parser of the output of `git log -p`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.line = stream.readline()
        self.removed_text = self.added_text = 0

    def parse_steps(self) -> Iterator[MainlineStep]:
        while self.line:
            if not self.line.startswith(b"\0"):
                self._next_line()
                continue
            commit, committed_at, author, message = self._parse_header()
            files = tuple(self._parse_files())
            yield MainlineStep(
                id=commit, at=committed_at, author=author, message=message, files=files
            )

    def _next_line(self) -> None:
        self.line = self.stream.readline()

    def _parse_header(self) -> tuple[str, int, str, str]:
        text = self.line
        while self.line and text.count(b"\0") < 5:
            self._next_line()
            if len(text) < _MESSAGE_BYTES or b"\0" in self.line:
                text += self.line
        self._next_line()
        _, commit, committed_at, author, message, *_ = text.split(b"\0")
        return (
            commit.decode(),
            int(committed_at),
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
        hunks: list[ReplacedLines] = []
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
                hunks.append(self._parse_hunk(hunk))
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
            places=tuple(hunks),
            removed_text=self.removed_text,
            added_text=self.added_text,
        )

    def _parse_hunk(self, hunk: re.Match[bytes]) -> ReplacedLines:
        """Skip the lines that the header announces, whatever they look like."""
        start, removed, _, added = (1 if part is None else int(part) for part in hunk.groups())
        lines_left = removed + added
        self._next_line()
        while self.line and (lines_left > 0 or self.line.startswith(b"\\")):
            if self.line.startswith(b"-"):
                self.removed_text = crc32(self.line, self.removed_text)
            elif self.line.startswith(b"+"):
                # As a removed line, so that undone text gives the same number.
                self.added_text = crc32(b"-" + self.line[1:], self.added_text)
            lines_left -= not self.line.startswith(b"\\")
            self._next_line()
        return ReplacedLines(start=start - 1 if removed else start, removed=removed, added=added)


def _decode_path(raw: bytes) -> str:
    """Decode a path; names with quotes or control characters keep git's escapes."""
    return raw.decode(errors="replace").rstrip("\n").removesuffix("\t").strip('"')


# Which past changes went wrong: their lines were repaired soon after.
#
# Every source line is tracked with the step that wrote it, by replaying the main line. When
# a step whose title says that it fixes something replaces lines, the steps that wrote them are
# the ones it repairs (SZZ, within a time).

REPAIR_DAYS = 90
"""Maximum days until a repair that counts against the change."""
_MAX_FIX_FILES = 20
"""Maximum sources of a fix; one that touches more is a sweep and blames nobody."""
_MAX_FILE_LINES = 20_000
"""Maximum lines of a file; a longer one is data that nobody wrote."""
_MERGE = compile_lazily(r"Merge (?:pull request|branch|remote-tracking branch|PR\b)|Merged in ")
_PULL_NUMBER = compile_lazily(r"\s*\(#\d+\)\s*$|^\[[\w. ]{1,20}\]\s*")
_FIX = compile_lazily(
    r"\b(?:fix(?:e[sd]|ing|up)?|bug(?:fix)?|hotfix|regression|crash(?:e[sd])?|broken|repair(?:s|ed)?)\b",
    re.IGNORECASE,
)
_HARMLESS_FIX = compile_lazily(
    r"\b(?:typos?|docs?|docstrings?|documentation|readme|comments?|spelling|grammar|links?|lint(?:ing)?"
    r"|flake8|format(?:ting)?|whitespace|changelog|isort|black|warnings?|ci|tests?|travis|workflows?"
    r"|imports?|example|version)\b",
    re.IGNORECASE,
)
_REVERT = compile_lazily(r"^(?:Revert(?:ed)?|Back(?:ed)? out)\b", re.IGNORECASE)


@lru_cache(maxsize=100_000)
def is_product_source(path: str) -> bool:
    """Return whether the path is source, a schema or a migration, not a test or a page."""
    return classify_file(path) in ("source", "schema", "migration")


def commit_title(message: str) -> str:
    """Return the line that describes the step; for a merge, that of the merged branch."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) > 1 and _MERGE.match(lines[0]):
        return _PULL_NUMBER.sub("", lines[1])
    return _PULL_NUMBER.sub("", lines[0]) if lines else ""


def is_fix_message(message: str) -> bool:
    """Return whether the message says that it fixes the program's behaviour."""
    title = commit_title(message)
    return bool(_FIX.search(title)) and not _HARMLESS_FIX.search(title) and not _REVERT.match(title)


class DefectLabels:
    """A replay: feed every step in order, then read which went wrong."""

    def __init__(self) -> None:
        self.fixed: set[int] = set()
        self.repairs: list[tuple[int, int]] = []
        """Pairs of steps: which repairs which."""
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
                self.repairs += [(number, writer) for writer in sorted(blamed)]

    def _recent_writers(self, writers: Iterable[int], time: int) -> set[int]:
        earliest = time - REPAIR_DAYS * 86_400
        return {
            writer for writer in set(writers) if writer >= 0 and self._times[writer] >= earliest
        }

    def _replay_file(self, file: EditedFile, number: int) -> list[int]:
        """Apply the step to the file; return the steps that wrote the replaced lines."""
        writers = self._writers.pop(file.old_path or file.path, None) or array("i")
        replaced: list[int] = []
        for hunk in reversed(file.places):
            end = hunk.start + hunk.removed
            if max(end, hunk.added) > _MAX_FILE_LINES:
                return []
            if end > len(writers):
                writers.extend([-1] * (end - len(writers)))
            replaced.extend(writers[hunk.start : end])
            writers[hunk.start : end] = array("i", [number]) * hunk.added
        if not file.gone:
            self._writers[file.path] = writers
        return replaced


# Reverted steps of the main line: stated by later commits, or undone without a statement.
#
# A commit inside a merged branch may revert what another branch brought, so all commits are
# read, and each belongs to the step that it landed with. A step that undoes every line another
# one changed in the sources reverts it as well, whatever its message says.


MAX_INVERSE_DAYS = 365
"""Maximum days until an undo that counts; later, the change was not a mistake."""
MIN_INVERSE_LINES = 2
"""Minimum lines; one line that goes back and forth is a version or a switch."""
MAX_INVERSE_GROWTH = 2
"""A step that changes more than this many times as much has another purpose."""
_MAX_CANDIDATES = 50
_MESSAGE_CHARS = 5_000
_LANDED_FORMAT = "%x00%H%x00%P%x00%B%x00"
_REVERTED_COMMIT = compile_lazily(
    r"\brevert(?:s|ed|ing)?(?: (?:back|commits?|merge|revision|changeset|[\w-]+ly)){0,3}:?"
    r" ([0-9a-f]{7,40})\b",
    re.IGNORECASE,
)
_REVERTED_PULL = compile_lazily(
    r"\brevert(?:s|ed|ing)? (?:PR|pull request|merge request)?\s*[#!](\d{1,7})\b", re.IGNORECASE
)
_REVERTED_MERGE = compile_lazily(
    r"\brevert(?:s|ed|ing)? [\"'`“]Merge pull request #(\d{1,7}) ", re.IGNORECASE
)
_QUOTED_TITLE = compile_lazily(
    r"\b(?:revert(?:s|ed|ing)?|back(?:s|ed|ing)? out|undo|roll(?:s|ed)? back)\b[^\"“`\n]{0,30}"
    r"[\"“`](.{4,300})[\"”`]",
    re.IGNORECASE,
)
_PLAIN_TITLE = compile_lazily(
    r"^(?:revert(?:s|ed)?|back(?:s|ed)? out):? (?!that\b|the\b|to\b|\")(.{4,300})$", re.IGNORECASE
)
_TITLE_NUMBER = compile_lazily(r"\s*\(#\d+\)\s*$|^\[[\w. ]{1,20}\]\s*")
_PULL_OF_TITLE = compile_lazily(r"\(#(\d{1,7})\)\s*$|^Merge pull request #(\d{1,7}) ")


class MainlineCommit(Record):
    """One commit, and the main-line step that brought it."""

    id: str
    message: str
    step: int


class RevertStatement(Record):
    """What a message says it reverts."""

    ids: tuple[str, ...] = ()
    pulls: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()


def parse_revert_statement(message: str) -> RevertStatement | None:
    """Return the commits, pull requests and titles that a message reverts; None if none."""
    message = message[:_MESSAGE_CHARS]
    if not re.search(r"revert|back(?:s|ed)? out|undo|roll(?:s|ed)? back", message, re.IGNORECASE):
        return None
    title = message.partition("\n")[0]
    plain = _PLAIN_TITLE.match(_TITLE_NUMBER.sub("", title))
    statement = RevertStatement(
        ids=tuple(commit_id.lower() for commit_id in _REVERTED_COMMIT.findall(message)),
        pulls=(*_REVERTED_PULL.findall(message), *_REVERTED_MERGE.findall(message)),
        titles=tuple(
            _normalise_title(title)
            for title in (*_QUOTED_TITLE.findall(message), *((plain[1],) if plain else ()))
        ),
    )
    return statement if statement.ids or statement.pulls or statement.titles else None


def read_landed_commits(
    repository: GitRepository, steps: Sequence[str], head: str
) -> Iterator[MainlineCommit]:
    """Yield all commits that the steps brought; those of merged branches with the merging step."""
    command = [*FOREIGN_COMMAND, "-c", "log.showSignature=false", "log"]
    command += [f"--format={_LANDED_FORMAT}", "--end-of-options", head, "--"]
    environment = git_environment({"GIT_DIR": str(repository.folder)})
    process = subprocess.run(
        command, cwd=repository.root, env=environment, capture_output=True, check=False
    )
    fields = process.stdout.decode("utf-8", "replace").split("\0")
    parents = dict(zip(fields[1::4], (field.split() for field in fields[2::4]), strict=False))
    messages = dict(zip(fields[1::4], fields[3::4], strict=False))
    for commit, step in _assign_steps(steps, parents).items():
        if commit in messages:
            yield MainlineCommit(id=commit, message=messages[commit].strip(), step=step)


def _assign_steps(steps: Sequence[str], parents: Mapping[str, list[str]]) -> dict[str, int]:
    """Map each commit to the first step that reaches it; commits older than all have none."""
    owner = {commit: number for number, commit in enumerate(steps)}
    older = list(parents.get(steps[0], ())) if steps else []
    seen = set(owner)
    while older:
        commit = older.pop()
        if commit not in seen:
            seen.add(commit)
            older += parents.get(commit, ())
    for number, commit in enumerate(steps):
        waiting = list(parents.get(commit, ())[1:])
        while waiting:
            ancestor = waiting.pop()
            if ancestor not in seen:
                seen.add(ancestor)
                owner[ancestor] = number
                waiting += parents.get(ancestor, ())
    return owner


def find_stated_reverts(commits: Iterable[MainlineCommit]) -> set[int]:
    """Return the steps that a later step's commit says it reverts."""
    index = _LandedIndex(commits)
    reverted: set[int] = set()
    for commit, statement in index.statements:
        reverted.update(index.resolve_steps(statement, commit.step))
    return reverted


class _LandedIndex:
    """Commits by id, pull request and title, and those that revert something."""

    def __init__(self, commits: Iterable[MainlineCommit]) -> None:
        self._ids: dict[str, list[MainlineCommit]] = {}
        self._pulls: dict[str, list[int]] = {}
        self._titles: dict[str, list[int]] = {}
        self.statements: list[tuple[MainlineCommit, RevertStatement]] = []
        for landed in sorted(commits, key=lambda commit: commit.step):
            self._ids.setdefault(landed.id[:7], []).append(landed)
            lines = [line for line in landed.message.splitlines() if line.strip()][:2]
            for line in lines:
                self._titles.setdefault(_normalise_title(line), []).append(landed.step)
            if lines and (number := _PULL_OF_TITLE.search(lines[0])):
                self._pulls.setdefault(number[1] or number[2], []).append(landed.step)
            if (statement := parse_revert_statement(landed.message)) is not None:
                self.statements.append((landed, statement))

    def resolve_steps(self, statement: RevertStatement, before: int) -> Iterator[int]:
        """Yield the steps meant, out of those before one."""
        for commit in statement.ids:
            for candidate in self._ids.get(commit[:7], ()):
                if candidate.id.startswith(commit) and candidate.step < before:
                    yield candidate.step
        for index, names in ((self._pulls, statement.pulls), (self._titles, statement.titles)):
            for name in names:
                steps = index.get(name, [])
                position = bisect_left(steps, before)
                if position:
                    yield steps[position - 1]


def _normalise_title(title: str) -> str:
    plain = _TITLE_NUMBER.sub("", _TITLE_NUMBER.sub("", title.strip()))
    return plain.strip().rstrip(".…").lower()


_FileEdit = tuple[str, int, int]
"""A path, and hashes of the text removed from it and added to it."""


class InverseSteps:
    """A replay: feed every step in order, then read which were undone line by line."""

    def __init__(self) -> None:
        self.reverted: set[int] = set()
        self._times: list[int] = []
        self._sizes: list[int] = []
        self._edits: list[frozenset[_FileEdit]] = []
        self._steps: dict[_FileEdit, list[int]] = {}

    def add_step(self, step: MainlineStep) -> None:
        number = len(self._times)
        edits = frozenset(_edited_texts(step.files))
        size = sum(
            file.added_lines + file.removed_lines
            for file in step.files
            if is_product_source(file.path)
        )
        self._times.append(step.at)
        self._sizes.append(size)
        self._edits.append(edits)
        undone = {(path, added, removed) for path, removed, added in edits}
        candidates = {candidate for edit in undone for candidate in self._steps.get(edit, ())}
        earliest = step.at - MAX_INVERSE_DAYS * 86_400
        self.reverted.update(
            candidate
            for candidate in candidates
            if self._edits[candidate] <= undone
            and self._times[candidate] >= earliest
            and size <= self._sizes[candidate] * MAX_INVERSE_GROWTH
        )
        if size >= MIN_INVERSE_LINES:
            for edit in edits:
                edit_steps = self._steps.setdefault(edit, [])
                edit_steps.append(number)
                del edit_steps[:-_MAX_CANDIDATES]


def _edited_texts(files: Iterable[EditedFile]) -> Iterator[_FileEdit]:
    for file in files:
        if file.places and file.old_path is None and is_product_source(file.path):
            yield file.path, file.removed_text, file.added_text


MAX_STEPS = 5_000
"""Maximum steps read: more cost a large repository minutes, and do not improve the ranking."""
_MAX_CACHED_HISTORIES = 4
_COMMIT_ID = compile_lazily(r"[0-9a-f]{40}([0-9a-f]{24})?")
_log = logging.getLogger(__name__)
_MAX_UNLABELLED_SHARE = 0.05
"""Share of unlabelled steps from which on all labels are recomputed."""


class PastChange(Record, array_like=True, omit_defaults=False):
    """One main-line step, as stored."""

    id: str
    at: int
    author: int
    fix: bool
    files: tuple[int, ...]
    """Indices of the files it touched."""
    added: int | None
    """Lines added to sources; None if it touches none."""
    reverted: bool = False
    fixed: bool = False

    @property
    def went_wrong(self) -> bool:
        return self.reverted or self.fixed


class History(Record):
    """What landed on the main line, oldest first."""

    code: str
    """Digest of the code that made it: a history made by other code is not reused."""
    head: str
    paths: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    past: tuple[PastChange, ...] = ()
    labelled: int = 0
    """Number of changes that have been checked for reverts and repairs."""
    cut: str | None = None
    """Why older steps are missing; None if they are not."""

    @property
    def judged_changes(self) -> tuple[PastChange, ...]:
        """Return changes to sources, old enough that a needed repair would have come."""
        labelled = self.past[: self.labelled]
        latest = max((change.at for change in labelled), default=0) - REPAIR_DAYS * 86_400
        return tuple(
            change for change in labelled if change.added is not None and change.at <= latest
        )


class FileHistory(Record):
    """The history of one file."""

    changes: int
    fixes: int
    reverts: int
    authors: int
    last: int
    """When it was last touched, in seconds since 1970."""


def read_history(root: Path, head: str | None, cache: Path) -> History:
    """Read what landed up to a commit; cached by commit, and extended when it has grown."""
    repository = find_repository(root)
    if head is None or repository is None:
        return History(code=digest_code(__name__), head="", cut="nothing has been committed yet")
    folder = cache / "history"
    cached_path = folder / f"{head}.msgpack"
    if history := _load_history(cached_path):
        return history
    history = _extend_history(repository, head, folder) or _read_full_history(repository, head)
    _save_history(cached_path, history)
    return history


def list_file_histories(history: History, paths: Iterable[str]) -> dict[str, FileHistory]:
    """Return the history of some files, by path; none for files never touched."""
    numbers = {path: number for number, path in enumerate(history.paths)}
    paths_by_number = {numbers[path]: path for path in paths if path in numbers}
    touching: dict[str, list[PastChange]] = {}
    for change in history.past:
        for number in paths_by_number.keys() & change.files:
            touching.setdefault(paths_by_number[number], []).append(change)
    return {
        path: FileHistory(
            changes=len(past),
            fixes=sum(change.fix for change in past),
            reverts=sum(change.reverted for change in past),
            authors=len({change.author for change in past}),
            last=max(change.at for change in past),
        )
        for path, past in touching.items()
    }


def count_source_lines(files: Iterable[tuple[str, int]]) -> int | None:
    """Sum the lines added to sources, given lines added by path; None if there is no source."""
    sources = [added for path, added in files if is_product_source(path)]
    return sum(sources) if sources else None


class _HistoryBuilder:
    """Builds a history from steps."""

    def __init__(self, history: History | None = None) -> None:
        self.names = list(history.paths) if history else []
        self.numbers = {path: number for number, path in enumerate(self.names)}
        self.authors = {name: n for n, name in enumerate(history.authors if history else ())}
        self.past = list(history.past) if history else []

    def add(self, step: MainlineStep) -> None:
        self.past.append(
            PastChange(
                id=step.id,
                at=step.at,
                author=self.authors.setdefault(step.author, len(self.authors)),
                fix=is_fix_message(step.message),
                files=tuple(self._file_number(file) for file in step.files),
                added=count_source_lines((file.path, file.added_lines) for file in step.files),
            )
        )

    def _file_number(self, file: EditedFile) -> int:
        """Return a file's index; a renamed file keeps it, and so its history."""
        number = self.numbers.pop(file.old_path or file.path, None)
        if number is None:
            number = len(self.names)
            self.names.append(file.path)
        self.names[number] = file.path
        self.numbers[file.path] = number
        return number

    def build_history(
        self, head: str, past: Iterable[PastChange], labelled: int, cut: str | None
    ) -> History:
        return History(
            code=digest_code(__name__),
            head=head,
            paths=tuple(self.names),
            authors=tuple(self.authors),
            past=tuple(past),
            labelled=labelled,
            cut=cut,
        )


def _read_full_history(repository: GitRepository, head: str) -> History:
    builder, labels, inverses = _HistoryBuilder(), DefectLabels(), InverseSteps()
    cut = None
    try:
        for step in read_mainline_steps(repository, head, MAX_STEPS):
            builder.add(step)
            labels.add_step(step)
            inverses.add_step(step)
    except MachineFailed:
        cut = f"content is missing, as in a partial clone; {REFETCH_HINT}"
    landed = read_landed_commits(repository, [change.id for change in builder.past], head)
    reverted = find_stated_reverts(landed) | inverses.reverted
    past = (
        msgspec.structs.replace(change, reverted=n in reverted, fixed=n in labels.fixed)
        for n, change in enumerate(builder.past)
    )
    return builder.build_history(
        head, past, len(builder.past), cut or _cut_reason(repository, len(builder.past))
    )


def _cut_reason(repository: GitRepository, count: int) -> str | None:
    if query_git(repository, "rev-parse", "--is-shallow-repository") == "true":
        return "the clone is shallow; `git fetch --unshallow` fetches the rest"
    return f"only the last {MAX_STEPS:,} commits are read" if count >= MAX_STEPS else None


def _extend_history(repository: GitRepository, head: str, folder: Path) -> History | None:
    """Extend the newest cached history to a later commit; its labels stay as they were."""
    for path in _newest_first(folder):
        old = _load_history(path)
        if old is None or query_git(repository, "merge-base", old.head, head) != old.head:
            continue
        builder = _HistoryBuilder(old)
        try:
            new = list(read_mainline_steps(repository, f"{old.head}..{head}", MAX_STEPS))
        except MachineFailed:
            return None
        if len(builder.past) + len(new) > old.labelled * (1 + _MAX_UNLABELLED_SHARE):
            return None
        for step in new:
            builder.add(step)
        return builder.build_history(head, builder.past, old.labelled, old.cut)
    return None


def _newest_first(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.msgpack"), key=lambda path: -path.stat().st_mtime)
    except OSError:
        return []


def _load_history(path: Path) -> History | None:
    try:
        history = msgspec.msgpack.decode(path.read_bytes(), type=History)
    except OSError:
        return None
    except msgspec.MsgspecError:
        history = None
    # It may have been restored from what others could write, and git is asked about the commit.
    if history is None or history.head != path.stem or not _COMMIT_ID.fullmatch(history.head):
        _log.warning("%s was damaged, and the history is read again.", path)
        return None
    # Objects that a shallow or partial clone lacked may be available by now.
    is_incomplete = history.cut is not None and len(history.past) < MAX_STEPS
    return None if is_incomplete or history.code != digest_code(__name__) else history


def _save_history(path: Path, history: History) -> None:
    """Save on a best-effort basis: a history that cannot be saved is read again next time."""
    try:
        replace_file(path, msgspec.msgpack.encode(history))
        for old in _newest_first(path.parent)[_MAX_CACHED_HISTORIES:]:
            old.unlink(missing_ok=True)
    except OSError:
        return


# The size of a change: files, lines, modules, and how far it is spread.


class ChangeSize(Record):
    """The size of a change, counting hand-written files only."""

    files: int
    added: int
    removed: int
    source_added: int | None
    """Lines added to sources, which determine its likelihood; None if it touches none."""
    modules: int
    """Number of packages or top-level folders that it touches."""
    entropy: float
    """How evenly the lines are spread over the files: 0 all in one, 1 the same in each."""


def measure_change_size(inspection: Inspection) -> ChangeSize:
    files = inspection.files
    lines = [file.added + file.removed for file in files]
    return ChangeSize(
        files=len(files),
        added=sum(file.added for file in files),
        removed=sum(file.removed for file in files),
        source_added=count_source_lines((file.path, file.added) for file in files),
        modules=len(Counter(package_folder(file.path) for file in files)),
        entropy=_line_entropy(lines),
    )


def _line_entropy(lines: list[int]) -> float:
    counts = [count for count in lines if count]
    total = sum(counts)
    if len(counts) < 2:
        return 0.0
    shares = [count / total for count in counts]
    return -sum(share * math.log2(share) for share in shares) / math.log2(len(counts))
