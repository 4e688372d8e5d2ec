"""Which steps of the main line were taken back: by what later commits say, or do without a word.

A commit inside a merged branch may take back what another branch brought, so all commits are
read, and each belongs to the step that it landed with. A step that undoes every line another one
changed in the sources takes it back as well, whatever it is called.
"""

from __future__ import annotations

import re
import subprocess
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from closeloop.changes.risk.git_log import EditedFile, MainlineStep, is_product_source
from closeloop.git import FOREIGN_COMMAND, GitRepository, git_environment
from closeloop.records.record import Record

MAX_INVERSE_DAYS = 365
"""What is undone later than this was not a mistake."""
MIN_INVERSE_LINES = 2
"""One line that goes to and fro is a version, or a switch."""
MAX_INVERSE_GROWTH = 2
"""A step that changes more than so many times as much has another purpose."""
_MAX_CANDIDATES = 50
_MESSAGE_CHARS = 5_000
_LANDED_FORMAT = "%x00%H%x00%P%x00%B%x00"
_REVERTED_COMMIT = re.compile(
    r"\brevert(?:s|ed|ing)?(?: (?:back|commits?|merge|revision|changeset|[\w-]+ly)){0,3}:?"
    r" ([0-9a-f]{7,40})\b",
    re.IGNORECASE,
)
_REVERTED_PULL = re.compile(
    r"\brevert(?:s|ed|ing)? (?:PR|pull request|merge request)?\s*[#!](\d{1,7})\b", re.IGNORECASE
)
_REVERTED_MERGE = re.compile(
    r"\brevert(?:s|ed|ing)? [\"'`“]Merge pull request #(\d{1,7}) ", re.IGNORECASE
)
_QUOTED_TITLE = re.compile(
    r"\b(?:revert(?:s|ed|ing)?|back(?:s|ed|ing)? out|undo|roll(?:s|ed)? back)\b[^\"“`\n]{0,30}"
    r"[\"“`](.{4,300})[\"”`]",
    re.IGNORECASE,
)
_PLAIN_TITLE = re.compile(
    r"^(?:revert(?:s|ed)?|back(?:s|ed)? out):? (?!that\b|the\b|to\b|\")(.{4,300})$", re.IGNORECASE
)
_TITLE_NUMBER = re.compile(r"\s*\(#\d+\)\s*$|^\[[\w. ]{1,20}\]\s*")
_PULL_OF_TITLE = re.compile(r"\(#(\d{1,7})\)\s*$|^Merge pull request #(\d{1,7}) ")


class MainlineCommit(Record):
    """One commit, and the step of the main line that brought it."""

    id: str
    message: str
    step: int


class RevertStatement(Record):
    """What a message says is taken back."""

    ids: tuple[str, ...] = ()
    pulls: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()


def parse_revert_statement(message: str) -> RevertStatement | None:
    """The commits, pull requests and titles that a message takes back; None where none."""
    message = message[:_MESSAGE_CHARS]
    if not re.search(r"revert|back(?:s|ed)? out|undo|roll(?:s|ed)? back", message, re.IGNORECASE):
        return None
    title = message.partition("\n")[0]
    plain = _PLAIN_TITLE.match(_TITLE_NUMBER.sub("", title))
    said = RevertStatement(
        ids=tuple(one.lower() for one in _REVERTED_COMMIT.findall(message)),
        pulls=(*_REVERTED_PULL.findall(message), *_REVERTED_MERGE.findall(message)),
        titles=tuple(
            _normalise_title(one)
            for one in (*_QUOTED_TITLE.findall(message), *((plain[1],) if plain else ()))
        ),
    )
    return said if said.ids or said.pulls or said.titles else None


def read_landed_commits(
    repository: GitRepository, steps: Sequence[str], head: str
) -> Iterator[MainlineCommit]:
    """All commits that the steps brought, those of merged branches with the step that did."""
    command = [*FOREIGN_COMMAND, "-c", "log.showSignature=false", "log"]
    command += [f"--format={_LANDED_FORMAT}", "--end-of-options", head, "--"]
    environment = git_environment({"GIT_DIR": str(repository.folder)})
    ran = subprocess.run(
        command, cwd=repository.root, env=environment, capture_output=True, check=False
    )
    fields = ran.stdout.decode("utf-8", "replace").split("\0")
    parents = dict(zip(fields[1::4], (one.split() for one in fields[2::4]), strict=False))
    messages = dict(zip(fields[1::4], fields[3::4], strict=False))
    for commit, step in _assign_steps(steps, parents).items():
        if commit in messages:
            yield MainlineCommit(id=commit, message=messages[commit].strip(), step=step)


def _assign_steps(steps: Sequence[str], parents: Mapping[str, list[str]]) -> dict[str, int]:
    """By commit, the first step from which it is reached; what is older than all has none."""
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
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                owner[one] = number
                waiting += parents.get(one, ())
    return owner


def find_stated_reverts(commits: Iterable[MainlineCommit]) -> set[int]:
    """The steps that a commit of a later one says it takes back."""
    index = _LandedIndex(commits)
    reverted: set[int] = set()
    for commit, said in index.statements:
        reverted.update(index.resolve_steps(said, commit.step))
    return reverted


class _LandedIndex:
    """Commits by id, pull request and title, and those that take something back."""

    def __init__(self, commits: Iterable[MainlineCommit]) -> None:
        self._ids: dict[str, list[MainlineCommit]] = {}
        self._pulls: dict[str, list[int]] = {}
        self._titles: dict[str, list[int]] = {}
        self.statements: list[tuple[MainlineCommit, RevertStatement]] = []
        for one in sorted(commits, key=lambda commit: commit.step):
            self._ids.setdefault(one.id[:7], []).append(one)
            lines = [line for line in one.message.splitlines() if line.strip()][:2]
            for line in lines:
                self._titles.setdefault(_normalise_title(line), []).append(one.step)
            if lines and (number := _PULL_OF_TITLE.search(lines[0])):
                self._pulls.setdefault(number[1] or number[2], []).append(one.step)
            if (said := parse_revert_statement(one.message)) is not None:
                self.statements.append((one, said))

    def resolve_steps(self, said: RevertStatement, before: int) -> Iterator[int]:
        """The steps that are meant, of those before one."""
        for commit in said.ids:
            for one in self._ids.get(commit[:7], ()):
                if one.id.startswith(commit) and one.step < before:
                    yield one.step
        for index, names in ((self._pulls, said.pulls), (self._titles, said.titles)):
            for name in names:
                steps = index.get(name, [])
                place = bisect_left(steps, before)
                if place:
                    yield steps[place - 1]


def _normalise_title(title: str) -> str:
    plain = _TITLE_NUMBER.sub("", _TITLE_NUMBER.sub("", title.strip()))
    return plain.strip().rstrip(".…").lower()


_FileEdit = tuple[str, int, int]
"""A path, and what stands for the text removed from it and added to it."""


class InverseSteps:
    """The replay: feed it every step in order, then read which were undone line by line."""

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
        candidates = {one for edit in undone for one in self._steps.get(edit, ())}
        earliest = step.at - MAX_INVERSE_DAYS * 86_400
        self.reverted.update(
            one
            for one in candidates
            if self._edits[one] <= undone
            and self._times[one] >= earliest
            and size <= self._sizes[one] * MAX_INVERSE_GROWTH
        )
        if size >= MIN_INVERSE_LINES:
            for edit in edits:
                known = self._steps.setdefault(edit, [])
                known.append(number)
                del known[:-_MAX_CANDIDATES]


def _edited_texts(files: Iterable[EditedFile]) -> Iterator[_FileEdit]:
    for file in files:
        if file.places and file.old_path is None and is_product_source(file.path):
            yield file.path, file.removed_text, file.added_text
