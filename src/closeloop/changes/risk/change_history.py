"""The repository's past: what landed, what of it went wrong, and what befell each file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from closeloop.changes.risk.git_log import (
    REPAIR_DAYS,
    DefectLabels,
    EditedFile,
    MainlineStep,
    is_fix_message,
    is_product_source,
    read_mainline_steps,
)
from closeloop.changes.risk.revert_labels import (
    InverseSteps,
    find_stated_reverts,
    read_landed_commits,
)
from closeloop.code_digest import digest_code, replace_file
from closeloop.git import REFETCH_HINT, GitRepository, find_repository, query_git
from closeloop.records.errors import MachineFailed
from closeloop.records.inspection import (
    Inspection,
)
from closeloop.records.record import Record
from closeloop.text.wording import package_folder

MAX_STEPS = 5_000
"""A first reading of more costs a large repository minutes, and what is older ranks no better."""
_MAX_CACHED_HISTORIES = 4
_MAX_UNLABELLED_SHARE = 0.05
"""When so much was added since the labels were made, they are made anew."""


class PastChange(Record, array_like=True, omit_defaults=False):
    """One step of the main line, as it is kept."""

    id: str
    at: int
    author: int
    fix: bool
    files: tuple[int, ...]
    """Numbers of the files it touched."""
    added: int | None
    """Lines added to sources; None where it touches none."""
    reverted: bool = False
    fixed: bool = False

    @property
    def went_wrong(self) -> bool:
        return self.reverted or self.fixed


class History(Record):
    """What landed on the main line, oldest first."""

    code: str
    """The digest of what made it: what other code has made is not used again."""
    head: str
    paths: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    past: tuple[PastChange, ...] = ()
    labelled: int = 0
    """So many of them have been looked at for reverts and repairs."""
    cut: str | None = None
    """Why older steps are not there, where they are not."""

    @property
    def judged_changes(self) -> tuple[PastChange, ...]:
        """Those that touched sources, long enough ago for a needed repair to have come."""
        labelled = self.past[: self.labelled]
        latest = max((one.at for one in labelled), default=0) - REPAIR_DAYS * 86_400
        return tuple(one for one in labelled if one.added is not None and one.at <= latest)


class FileHistory(Record):
    """What befell one file."""

    changes: int
    fixes: int
    reverts: int
    authors: int
    last: int
    """When it was last touched, in seconds since 1970."""


def read_history(root: Path, head: str | None, cache: Path) -> History:
    """All that landed up to a commit; kept by that commit, and carried on where it has grown."""
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
    """The history of some files, by path; none for those that were never touched."""
    numbers = {path: number for number, path in enumerate(history.paths)}
    wanted = {numbers[path]: path for path in paths if path in numbers}
    touching: dict[str, list[PastChange]] = {}
    for one in history.past:
        for number in wanted.keys() & one.files:
            touching.setdefault(wanted[number], []).append(one)
    return {
        path: FileHistory(
            changes=len(past),
            fixes=sum(one.fix for one in past),
            reverts=sum(one.reverted for one in past),
            authors=len({one.author for one in past}),
            last=max(one.at for one in past),
        )
        for path, past in touching.items()
    }


def count_source_lines(files: Iterable[tuple[str, int]]) -> int | None:
    """Lines added to sources, of lines added by path; None where no source is among them."""
    sources = [added for path, added in files if is_product_source(path)]
    return sum(sources) if sources else None


class _HistoryBuilder:
    """Steps on their way into a history."""

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
        """A renamed file keeps its number, and so its history."""
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
    book, labels, inverses = _HistoryBuilder(), DefectLabels(), InverseSteps()
    cut = None
    try:
        for step in read_mainline_steps(repository, head, MAX_STEPS):
            book.add(step)
            labels.add_step(step)
            inverses.add_step(step)
    except MachineFailed:
        cut = f"content is missing, as in a partial clone; {REFETCH_HINT}"
    landed = read_landed_commits(repository, [one.id for one in book.past], head)
    reverted = find_stated_reverts(landed) | inverses.reverted
    past = (
        msgspec.structs.replace(one, reverted=n in reverted, fixed=n in labels.fixed)
        for n, one in enumerate(book.past)
    )
    return book.build_history(
        head, past, len(book.past), cut or _cut_reason(repository, len(book.past))
    )


def _cut_reason(repository: GitRepository, count: int) -> str | None:
    if query_git(repository, "rev-parse", "--is-shallow-repository") == "true":
        return "the clone is shallow; `git fetch --unshallow` brings the rest"
    return f"only the last {MAX_STEPS:,} steps are read" if count >= MAX_STEPS else None


def _extend_history(repository: GitRepository, head: str, folder: Path) -> History | None:
    """The newest history kept, carried on to a later commit; its labels stay as they were."""
    for path in _newest_first(folder):
        old = _load_history(path)
        if old is None or query_git(repository, "merge-base", old.head, head) != old.head:
            continue
        book = _HistoryBuilder(old)
        try:
            new = list(read_mainline_steps(repository, f"{old.head}..{head}", MAX_STEPS))
        except MachineFailed:
            return None
        if len(book.past) + len(new) > old.labelled * (1 + _MAX_UNLABELLED_SHARE):
            return None
        for step in new:
            book.add(step)
        return book.build_history(head, book.past, old.labelled, old.cut)
    return None


def _newest_first(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.msgpack"), key=lambda path: -path.stat().st_mtime)
    except OSError:
        return []


def _load_history(path: Path) -> History | None:
    try:
        history = msgspec.msgpack.decode(path.read_bytes(), type=History)
    except (OSError, msgspec.MsgspecError):
        return None
    # What a shallow or partial clone lacks may be there by now.
    lacking = history.cut is not None and len(history.past) < MAX_STEPS
    return None if lacking or history.code != digest_code(__name__) else history


def _save_history(path: Path, history: History) -> None:
    """Best effort: a history that cannot be kept is read again next time."""
    try:
        replace_file(path, msgspec.msgpack.encode(history))
        for old in _newest_first(path.parent)[_MAX_CACHED_HISTORIES:]:
            old.unlink(missing_ok=True)
    except OSError:
        return


# How much a change touches: files, lines, modules, and how far it is spread.


class ChangeSize(Record):
    """The size of a change, of what people write."""

    files: int
    added: int
    removed: int
    source_added: int | None
    """Lines added to sources, what its likelihood is told by; None where it touches none."""
    modules: int
    """Packages or top folders that it touches."""
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
    counted = [count for count in lines if count]
    total = sum(counted)
    if len(counted) < 2:
        return 0.0
    shares = [count / total for count in counted]
    return -sum(share * math.log2(share) for share in shares) / math.log2(len(counted))
