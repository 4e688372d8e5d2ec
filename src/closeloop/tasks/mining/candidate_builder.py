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

from closeloop.git import read_git_text
from closeloop.records.change import Change, FileChange
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.task import TestRunner
from closeloop.tasks.exchange.git_trees import extract_member
from closeloop.tasks.mining import patch_words
from closeloop.tasks.mining.change_parts import (
    ChangeParts,
    CollectionRules,
    find_test_roots,
    split_change_paths,
    split_paths,
)
from closeloop.tasks.mining.changelog_notes import extract_changelog_notes
from closeloop.tasks.mining.prompt_leaks import remove_solution
from closeloop.tasks.mining.task_candidates import (
    MAX_PATCH_BYTES,
    TaskCandidate,
    find_unfit_reason,
    rank_work,
    score_work,
)
from closeloop.tasks.mining.task_prompts import compose_prompt, request_from_message
from closeloop.tasks.mining.work_history import (
    MIN_MESSAGE_WORDS,
    PastWork,
    find_words_at,
    list_files_at,
    list_past_work,
)
from closeloop.tasks.projects.manifest_folder import ManifestFolder
from closeloop.text.patches import parse_patch

MAX_LISTED_FILES = 200_000
MAX_NAMES = 24
_DIFF_COMMAND = (
    "diff",
    "--binary",
    "--full-index",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
)


class WorkSurvey(Record):
    """A repository's work that may be worth digging for, best first."""

    works: tuple[PastWork, ...]
    passed_over: dict[str, str]
    """Commits that cannot be tasks → why."""


def survey_work(repo: Path, rules: CollectionRules, since: str | None, now: datetime) -> WorkSurvey:
    """Look at every piece of work once, by its numbers alone."""
    roots = find_test_roots(list_files_at(repo, "HEAD"), rules)
    scored_work, passed_over = [], {}
    changes = _read_change_sizes(repo, since)
    for work in list_past_work(repo, since):
        change = changes.get(work.commit) or Change()
        parts = split_paths([file.path for file in change.files], roots, rules)
        reason = find_unfit_reason(change, parts)
        if reason is not None:
            passed_over[work.commit] = reason
            continue
        files = {file.path: file for file in change.files}
        source, tests = ([files[path] for path in paths] for paths in (parts.source, parts.tests))
        has_note = any(files[path].added for path in parts.changelog)
        scored_work.append((score_work(work.message, has_note, source, tests), work))
    return WorkSurvey(works=tuple(rank_work(scored_work, now)), passed_over=passed_over)


def build_candidate(repo: Path, work: PastWork, rules: CollectionRules) -> TaskCandidate | str:
    """The work as a candidate, or why it is none."""
    diff_listing = read_git_text(repo, *_DIFF_COMMAND, "--name-only", "-z", work.base, work.commit)
    paths = [path for path in diff_listing.split("\0") if path]
    known = list_files_at(repo, work.commit)
    if any(not path.isprintable() for path in paths):
        return "the name of a file cannot be printed"
    parts = split_change_paths(paths, known, rules)
    try:
        source = _read_patch(repo, work, parts.source)
        tests = _read_patch(repo, work, (*parts.tests, *parts.support))
    except UnicodeDecodeError:
        return "its patch is not UTF-8 text"
    if len(source) + len(tests) > MAX_PATCH_BYTES:
        return "its patch is too large for a task"
    if "\nindex " in source and "Subproject commit " in source:
        return "it changes a submodule"
    return _candidate_from_patches(repo, work, parts, source, tests, frozenset(known))


def _candidate_from_patches(
    repo: Path, work: PastWork, parts: ChangeParts, source: str, tests: str, known: frozenset[str]
) -> TaskCandidate | str:
    try:
        reason = find_unfit_reason(parse_patch(source + tests), parts)
    except BadInput as fault:
        return str(fault)
    if reason is not None:
        return reason
    changelog = ""
    new_names = sorted(patch_words.find_introduced_names(source, tests))[: 4 * MAX_NAMES]
    known_names = find_words_at(repo, work.base, new_names)
    with suppress(UnicodeDecodeError):
        changelog = extract_changelog_notes(_read_patch(repo, work, parts.changelog))
    message = request_from_message(work.message, changelog)
    if work.hindsight:
        message = remove_solution(message, tests)
    if len(message.split()) < MIN_MESSAGE_WORDS:
        # Then only the names tell what is to be made, also those that something else has.
        known_names -= patch_words.find_defined_names(source)
    names = [name for name in new_names if name not in known_names]
    prompt = compose_prompt(
        message, source, tests, names[:MAX_NAMES], patch_words.find_expected_messages(source, tests)
    )
    if prompt is None:
        return "its message says too little, or only the answer"
    return TaskCandidate(
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
def open_manifests(repo: Path, commit: str) -> Iterator[ManifestFolder]:
    """A commit's files, for those who look for what it is made with. Only names and small files."""
    place = Path(tempfile.mkdtemp(prefix="closeloop-"))
    try:
        names = list_files_at(repo, commit)[:MAX_LISTED_FILES]
        _extract_files(repo, commit, [name for name in names if _is_manifest_file(name)], place)
        yield ManifestFolder(place, tuple(names))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def select_runner_files(runner: TestRunner | None, files: Sequence[str]) -> tuple[str, ...]:
    """What to hand a runner so that it runs those test files only; nothing where it cannot."""
    if runner in ("pytest", "jest", "vitest", "mocha", "node"):
        return tuple(files)
    if runner == "go":
        return tuple(sorted({f"./{Path(file).parent}".replace("/.", "") for file in files}))
    return ()


def _is_manifest_file(name: str) -> bool:
    """Whether a file may say how the project is set up or tested."""
    path = Path(name)
    shallow = len(path.parts) <= 2
    wanted = (".toml", ".cfg", ".ini", ".txt", ".json", ".mod", ".work", ".xml", ".lock", ".kts")
    has_known_name = path.suffix in wanted or path.name in ("setup.py", "noxfile.py", "conftest.py")
    has_known_name = has_known_name or (path.suffix == ".py" and path.name.startswith("test"))
    return shallow and (has_known_name or path.name in ("Makefile", "Pipfile", "build.gradle"))


def _extract_files(repo: Path, commit: str, names: Sequence[str], place: Path) -> None:
    for start in range(0, len(names), 500):
        batch = names[start : start + 500]
        archive = read_git_text(repo, "archive", "--format=tar", commit, "--", *batch)
        content = archive.encode("utf-8", "surrogateescape")
        with suppress(tarfile.TarError, OSError), tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for member in tar:
                with suppress(BadInput):  # a link that leads elsewhere tells nothing
                    extract_member(tar, member, place.resolve())


def _read_patch(repo: Path, work: PastWork, paths: Sequence[str]) -> str:
    if not paths:
        return ""
    patch = read_git_text(repo, *_DIFF_COMMAND, work.base, work.commit, "--", *paths)
    return patch.encode("utf-8", "surrogateescape").decode()


def _read_change_sizes(repo: Path, since: str | None) -> dict[str, Change]:
    """What every commit changes against its first parent, in numbers only: one call of git."""
    limits = [f"--since={since}"] if since else []
    options = ("--numstat", "-z", "--no-renames", "--diff-merges=first-parent")
    log_output = read_git_text(repo, "log", "--format=%x01%H%x00", *options, *limits, "HEAD")
    changes = {}
    for entry in log_output.split("\x01")[1:]:
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
        changes[commit] = Change(files=tuple(files))
    return changes
