"""From a piece of past work to a candidate: its patches, split, and what to ask for."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from closeloop.git import read_text
from closeloop.model.change import Change, FileChange
from closeloop.model.errors import BadInput
from closeloop.model.patches import parse
from closeloop.model.record import Record
from closeloop.model.task import Runner
from closeloop.tasks.exchange.trees import extract
from closeloop.tasks.mining import code
from closeloop.tasks.mining.candidates import MOST_PATCH_BYTES, Candidate, ranked, score, unfit
from closeloop.tasks.mining.history import FEW_WORDS, Work, files_at, words_in, works
from closeloop.tasks.mining.leaks import without_the_way
from closeloop.tasks.mining.notes import changelog_of
from closeloop.tasks.mining.parts import Collects, Parts, parted, split, test_roots
from closeloop.tasks.mining.prompts import compose, request
from closeloop.tasks.projects.folder import Folder

MANIFESTS = 200_000
MOST_NAMES = 24
_DIFF = ("diff", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv")


class Lode(Record):
    """A repository's work that may be worth digging for, best first."""

    works: tuple[Work, ...]
    passed_over: dict[str, str]
    """Commits that cannot be tasks → why."""


def survey(repo: Path, rules: Collects, since: str | None, now: datetime) -> Lode:
    """Look at every piece of work once, by its numbers alone."""
    roots = test_roots(files_at(repo, "HEAD"), rules)
    rated, passed_over = [], {}
    changes = _numbers(repo, since)
    for work in works(repo, since):
        change = changes.get(work.commit) or Change()
        parts = parted([file.path for file in change.files], roots, rules)
        reason = unfit(change, parts)
        if reason is not None:
            passed_over[work.commit] = reason
            continue
        files = {file.path: file for file in change.files}
        source, tests = ([files[path] for path in paths] for paths in (parts.source, parts.tests))
        noted = any(files[path].added for path in parts.changelog)
        rated.append((score(work.message, noted, source, tests), work))
    return Lode(works=tuple(ranked(rated, now)), passed_over=passed_over)


def candidate(repo: Path, work: Work, rules: Collects) -> Candidate | str:
    """The work as a candidate, or why it is none."""
    listed = read_text(repo, *_DIFF, "--name-only", "-z", work.base, work.commit)
    paths = [path for path in listed.split("\0") if path]
    known = files_at(repo, work.commit)
    if any(not path.isprintable() for path in paths):
        return "the name of a file cannot be printed"
    parts = split(paths, known, rules)
    try:
        source = _patch(repo, work, parts.source)
        tests = _patch(repo, work, (*parts.tests, *parts.support))
    except UnicodeDecodeError:
        return "its patch is not UTF-8 text"
    if len(source) + len(tests) > MOST_PATCH_BYTES:
        return "its patch is too large for a task"
    if "\nindex " in source and "Subproject commit " in source:
        return "it changes a submodule"
    return _asked(repo, work, parts, source, tests, frozenset(known))


def _asked(
    repo: Path, work: Work, parts: Parts, source: str, tests: str, known: frozenset[str]
) -> Candidate | str:
    try:
        reason = unfit(parse(source + tests), parts)
    except BadInput as fault:
        return str(fault)
    if reason is not None:
        return reason
    noted = ""
    new = sorted(code.introduced(source, tests))[: 4 * MOST_NAMES]
    there = words_in(repo, work.base, new)
    with suppress(UnicodeDecodeError):
        noted = changelog_of(_patch(repo, work, parts.changelog))
    message = request(work.message, noted)
    if work.hindsight:
        message = without_the_way(message, tests)
    if len(message.split()) < FEW_WORDS:
        # Then only the names tell what is to be made, also those that something else has.
        there -= code.defined(source)
    names = [name for name in new if name not in there]
    prompt = compose(message, source, tests, names[:MOST_NAMES], code.messages(source, tests))
    if prompt is None:
        return "its message says too little, or only the answer"
    return Candidate(
        commit=work.commit,
        base=work.base,
        at=work.at,
        prompt=prompt,
        source=source,
        tests=tests,
        test_files=tuple(path for path in parts.tests if path in known),
        source_files=parts.source,
    )


@contextmanager
def manifests(repo: Path, commit: str) -> Iterator[Folder]:
    """A commit's files, for those who look for what it is made with. Only names and small files."""
    place = Path(tempfile.mkdtemp(prefix="closeloop-"))
    try:
        names = files_at(repo, commit)[:MANIFESTS]
        _extract(repo, commit, [name for name in names if _is_told(name)], place)
        yield Folder(place, tuple(names))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def runner_files(runner: Runner | None, files: Sequence[str]) -> tuple[str, ...]:
    """What to hand a runner so that it runs those test files only; nothing where it cannot."""
    if runner in ("pytest", "jest", "vitest", "mocha", "node"):
        return tuple(files)
    if runner == "go":
        return tuple(sorted({f"./{Path(file).parent}".replace("/.", "") for file in files}))
    return ()


def _is_told(name: str) -> bool:
    """Whether a file may say how the project is set up or tested."""
    path = Path(name)
    shallow = len(path.parts) <= 2
    wanted = (".toml", ".cfg", ".ini", ".txt", ".json", ".mod", ".work", ".xml", ".lock", ".kts")
    named = path.suffix in wanted or path.name in ("setup.py", "noxfile.py", "conftest.py")
    named = named or (path.suffix == ".py" and path.name.startswith("test"))
    return shallow and (named or path.name in ("Makefile", "Pipfile", "build.gradle"))


def _extract(repo: Path, commit: str, names: Sequence[str], place: Path) -> None:
    for start in range(0, len(names), 500):
        some = names[start : start + 500]
        packed = read_text(repo, "archive", "--format=tar", commit, "--", *some)
        content = packed.encode("utf-8", "surrogateescape")
        with suppress(tarfile.TarError, OSError), tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for member in tar:
                with suppress(BadInput):  # a link that leads elsewhere tells nothing
                    extract(tar, member, place.resolve())


def _patch(repo: Path, work: Work, paths: Sequence[str]) -> str:
    if not paths:
        return ""
    patch = read_text(repo, *_DIFF, work.base, work.commit, "--", *paths)
    return patch.encode("utf-8", "surrogateescape").decode()


def _numbers(repo: Path, since: str | None) -> dict[str, Change]:
    """What every commit changes against its first parent, in numbers only: one call of git."""
    limits = [f"--since={since}"] if since else []
    options = ("--numstat", "-z", "--no-renames", "--diff-merges=first-parent")
    listed = read_text(repo, "log", "--format=%x01%H%x00", *options, *limits, "HEAD")
    found = {}
    for entry in listed.split("\x01")[1:]:
        commit, _, lines = entry.partition("\0")
        files = []
        for line in lines.strip("\n\0").split("\0"):
            added, _, rest = line.lstrip("\n").partition("\t")
            removed, _, path = rest.partition("\t")
            if path:
                counts = [int(text) if text.isdigit() else 0 for text in (added, removed)]
                files.append(
                    FileChange(path=path, status="changed", added=counts[0], removed=counts[1])
                )
        found[commit] = Change(files=tuple(files))
    return found
