"""Turn past work into a candidate: its patches, split, and a request."""

from __future__ import annotations

import io
import math
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Literal

from closeloop.git import REFETCH_HINT, is_missing_object, read_git_text
from closeloop.records.change import Change, FileChange
from closeloop.records.errors import BadInput
from closeloop.records.record import Record, Time
from closeloop.records.task import TestRunner
from closeloop.tasks import task_prompts
from closeloop.tasks.change_parts import (
    ChangeParts,
    CollectionRules,
    find_test_roots,
    is_written_code,
    split_change_paths,
    split_paths,
)
from closeloop.tasks.other_projects import ManifestFolder
from closeloop.tasks.required_names import (
    RequiredName,
    WorkFiles,
    describe_untold_names,
    find_required_names,
    find_untold_names,
    list_added_lines,
)
from closeloop.tasks.task_exchange import extract_member
from closeloop.tasks.task_prompts import (
    TEST_BEHAVIOUR,
    ShownTest,
    compose_prompt,
    find_examples,
    is_brief,
    iter_patch_lines,
    remove_form_lines,
    remove_solution,
    request_from_message,
    split_patch_lines,
)
from closeloop.tasks.work_history import MIN_MESSAGE_WORDS, PastWork, list_files_at, list_past_work
from closeloop.text.patches import parse_patch
from closeloop.text.wording import compile_lazily, escape_glob

# The entries of a change in the changelog.


MAX_NOTES = 100
_BULLET = compile_lazily(r"^\s*[-*•]\s+")
_HEADING = compile_lazily(
    r"\W*|\W*(?:version|release)? ?v?\d+(?:\.\d+)+\S{0,12}(?:\W.{0,40})?|\W*\d{4}-\d\d-\d\d\W*"
    r"|#.*|\w+:|\W*(?:new |other |security |breaking )?(?:features?|(?:bug ?)?fix(?:es)?|added"
    r"|changed|changes|fixed|removed|deprecat\w+|improvements|enhancements|security|support|refactoring"
    r"|unreleased)\W*",
    re.IGNORECASE,
)
_EMPTY_NOTE = compile_lazily(r"(?i)\W*(?:same (?:for|goes|as) .*)?")


def extract_changelog_notes(patch: str) -> str:
    """Return changelog entries that a change adds, as prose, without moved and edited ones."""
    old_entries = [*_split_entries(split_patch_lines(patch).removed[:MAX_NOTES])]
    old_lines = [_strip_bullet(line) for line in split_patch_lines(patch).removed[:MAX_NOTES]]
    notes: dict[str, None] = {}
    for entry in _split_entries([*islice(_new_lines(patch), MAX_NOTES)]):
        is_old = get_close_matches(entry, old_entries, 1) or get_close_matches(entry, old_lines, 1)
        if entry and not _EMPTY_NOTE.fullmatch(entry) and not is_old:
            notes[entry] = None
    return "\n\n".join(notes)


def _split_entries(lines: Sequence[str]) -> Iterator[str]:
    """Yield list entries with their wrapped lines, and paragraphs."""
    entry: list[str] = []
    for line in [*lines, ""]:
        if (_BULLET.match(line) or not line.strip()) and entry:
            yield "\n".join(entry)
            entry = []
        if not _EMPTY_NOTE.fullmatch(text := _strip_bullet(line)) or entry:
            entry += [text] if text else []


def _new_lines(patch: str) -> Iterator[str]:
    """Yield added lines, without headings and lines inside an existing entry."""
    old = within = False
    for sign, line in iter_patch_lines(patch):
        begins = _BULLET.match(line) is not None
        # The continuation of a wrapped entry may look like a heading.
        wrapped = within and line[:1].isspace() and line.strip() and not begins
        heads = not begins and not wrapped and _HEADING.fullmatch(line.strip()) is not None
        within = bool(begins or wrapped)
        if sign == " ":
            old = not heads
        elif sign == "+":
            old = old and not begins and not heads
            if not old and not heads:
                yield line
            elif heads:
                yield ""


def _strip_bullet(line: str) -> str:
    return _BULLET.sub("", line).strip()


# Turn past work into a candidate: its patches, split, and a request.
#
# Which pieces of work could be tasks, and which are likely good ones.

LARGE_FILES = 12
LARGE_LINES = 800
"""More changed files or lines of code make a task large: it is tried last, and tagged."""
MAX_SOURCE_FILES = 50
MAX_SOURCE_LINES = 4000
"""Beyond these are moved packages and renamed names, which no request describes."""
MAX_PATCH_BYTES = 1 << 20
MAX_NAMED_FILES = 4
NO_TESTS_REASON = "it changes no tests"
VAGUE_REASON = "its message has too little information, or only the solution"
_CHORE_SUBJECT = compile_lazily(
    r"(?i)(?:(?:failing )?tests?\b|revert\b|bump\b|release\b|prepare\b.*release|pre-commit"
    r"|black\b|ruff\b|reformat|format(?:ting)?\b|lint|typos?\b|chore\b|ci\b|build\b|docs?\b"
    r"|style\b|update (?:copyright|dependenc|lock)|version \d|merge\b"
    r"|drop (?:support|.{0,30}python)|remove support|modernize|upgrade\b|migrate\b|pyupgrade"
    r"|rename\b|refactor|type hints?|typing\b|annotat|move\b|deprecat)"
)
_ABOUT_TESTS = compile_lazily(
    rf"(?i)(?:\w+ ){{1,5}}tests?\b(?! runner| client| suite|{TEST_BEHAVIOUR})"
    r"|(?:\S+ ){0,4}add(?:ed|s)? tests?\b"
)
_CHORE_PREFIX = compile_lazily(
    r"(?i)(?:tests?|docs?|chore|ci|build|style|refactor)(?:\([^()]{0,40}\))?!?:"
)
_WORTHY_WORD = compile_lazily(
    r"(?i)\b(?:fix|bug|add|support|allow|handle|raise|prevent|correct|implement)"
)


class TaskCandidate(Record):
    """The parts of past work that a task could be made of."""

    commit: str
    base: str
    at: Time
    prompt: str
    prompt_by: Literal["person", "model"] = "person"
    source: str
    """The reference: the change to the source, as a patch."""
    tests: str
    """The hidden tests: the change to the tests, as a patch."""
    test_files: tuple[str, ...]
    """Files in it that the runner collects and that exist after it."""
    source_files: tuple[str, ...]
    scope: tuple[str, ...] = ()
    """Expected scope of the work, as globs."""
    names: tuple[RequiredName, ...] = ()
    """Names that the tests use and the base lacks."""
    examples: tuple[ShownTest, ...] = ()
    """Tests that can complete the request, if the message says little."""
    needs_examples: bool = False
    """Whether the message alone says too little."""
    large: bool = False
    """Whether the work changes much more code than most."""


def find_unfit_reason(change: Change, parts: ChangeParts) -> str | None:
    """Return why a change cannot be a task, if that is clear without running anything."""
    files = {file.path: file for file in change.files}
    source = [files[path] for path in parts.source if path in files]
    if not parts.tests:
        return NO_TESTS_REASON
    if not source:
        return "it changes no source"
    files_of_code, lines = _measure_code(source)
    if files_of_code > MAX_SOURCE_FILES:
        return f"it changes {files_of_code} files of code, too many for one task"
    if lines > MAX_SOURCE_LINES:
        return f"it changes {lines:,} lines of code, too many for one task"
    if all(file.status in ("deleted", "renamed") and not file.added for file in source):
        return "it only moves or deletes source"
    if not any(files[path].added for path in parts.tests if path in files):
        return "it adds nothing to the tests"
    return None


def _measure_code(source: Sequence[FileChange]) -> tuple[int, int]:
    """Return the number of files and changed lines of code: data and generated code do not count.

    Work that changes no code is measured by all of its files.
    """
    code = [file for file in source if is_written_code(file.path)] or source
    return len(code), sum(file.added + file.removed for file in code)


def score_work(
    message: str, noted: bool, source: Sequence[FileChange], tests: Sequence[FileChange]
) -> float:
    """Score how good a task this may be, by size, files, message and tests.

    `noted`: the changelog describes it further.
    """
    files_of_code, lines = _measure_code(source)
    # Around 25 lines in one or two files are an hour's work: neither a typo nor a project.
    points = 3.0 - abs(math.log(max(lines, 1) / 25)) - 0.5 * max(0, files_of_code - 2)
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
    # Existing tests that had to change often require exactly this implementation.
    points -= 2 * removed / max(added + removed, 1)
    return points


def rank_work(scored_work: Sequence[tuple[float, PastWork]], now: datetime) -> list[PastWork]:
    """Rank best first; each year of age costs a point, as environments rot and projects move on."""

    def worth(pair: tuple[float, PastWork]) -> float:
        return pair[0] - (now - pair[1].at).days / 365

    return [work for _, work in sorted(scored_work, key=worth, reverse=True)]


MAX_LISTED_FILES = 200_000
MAX_UNREADABLE = 1000
"""After this many commits with missing content, doubtful ones are not examined singly."""
UNREADABLE_REASON = f"this clone is partial: {REFETCH_HINT}"
MAX_NAMES = 40
MAX_FORMS = 20
_FORM_PATH = compile_lazily(
    r"(?i)(?:^|/)(?:pull_request_template|issue_template)(?:\.\w+$|/[^/]+\.(?:md|ya?ml)$)"
)
_DIFF_COMMAND = (
    "diff",
    "--binary",
    "--full-index",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
)


class WorkSurvey(Record):
    """Past work that may be worth mining, best first."""

    works: tuple[PastWork, ...]
    passed_over: dict[str, str]
    """Commits that cannot be tasks → why."""


def survey_work(repo: Path, rules: CollectionRules, since: str | None, now: datetime) -> WorkSurvey:
    """Examine every piece of work once, by its numbers alone."""
    roots = find_test_roots(list_files_at(repo, "HEAD"), rules)
    past_work = list_past_work(repo, since)
    changes, unreadable = _read_change_sizes(repo, [work.commit for work in past_work])
    scored_work, passed_over = [], dict.fromkeys(unreadable, UNREADABLE_REASON)
    for work in past_work:
        if work.commit in unreadable:
            continue
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
    """Build a candidate from the work, or return why it is none."""
    diff_listing = read_git_text(repo, *_DIFF_COMMAND, "--name-only", "-z", work.base, work.commit)
    paths = [path for path in diff_listing.split("\0") if path]
    commit_files = list_files_at(repo, work.commit)
    if any(not path.isprintable() for path in paths):
        return "the name of a file cannot be printed"
    parts = split_change_paths(paths, commit_files, rules)
    try:
        source = _read_patch(repo, work, parts.source)
        tests = _read_patch(repo, work, (*parts.tests, *parts.support))
    except UnicodeDecodeError:
        return "its patch is not UTF-8 text"
    if len(source) + len(tests) > MAX_PATCH_BYTES:
        return "its patch is too large for a task"
    if "\nindex " in source and "Subproject commit " in source:
        return "it changes a submodule"
    return _candidate_from_patches(repo, work, parts, source, tests, frozenset(commit_files))


def _candidate_from_patches(
    repo: Path,
    work: PastWork,
    parts: ChangeParts,
    source: str,
    tests: str,
    commit_files: frozenset[str],
) -> TaskCandidate | str:
    try:
        change = parse_patch(source + tests)
        reason = find_unfit_reason(change, parts)
    except BadInput as fault:
        return str(fault)
    if reason == NO_TESTS_REASON and (unrun_files := (*parts.support, *parts.source)):
        file_list = ", ".join(unrun_files[:MAX_NAMED_FILES])
        suffix = f" and {len(unrun_files) - MAX_NAMED_FILES} more" * (
            len(unrun_files) > MAX_NAMED_FILES
        )
        return f"{reason}: the test command does not run {file_list}{suffix}"
    if reason is not None:
        return reason
    changelog = ""
    base_paths = list_files_at(repo, work.base)
    files = WorkFiles(repo, work, parts, base_paths, sorted(commit_files))
    names = find_required_names(files, source, tests)
    with suppress(UnicodeDecodeError):
        changelog = extract_changelog_notes(_read_patch(repo, work, parts.changelog))
    message = request_from_message(
        remove_form_lines(work.message, _read_forms(files, base_paths)), changelog
    )
    if work.hindsight:
        message = remove_solution(message, tests)
    labels = [name.label for name in names if not name.is_told(message)]
    texts = task_prompts.find_expected_messages(source, tests)
    examples: tuple[ShownTest, ...] = ()
    prompt = compose_prompt(message, source, tests, labels[:MAX_NAMES], texts)
    needs_examples = prompt is None
    if prompt is None or is_brief(prompt):
        examples = tuple(_list_examples(files, tests))
    if prompt is None:
        prompt = compose_prompt(
            message, source, tests, labels[:MAX_NAMES], texts, completed=bool(examples)
        )
    if prompt is None:
        return VAGUE_REASON
    if untold := find_untold_names(prompt, names):
        return describe_untold_names(untold)
    files_of_code, lines = _measure_code([one for one in change.files if one.path in parts.source])
    return TaskCandidate(
        commit=work.commit,
        base=work.base,
        at=work.at,
        prompt=prompt,
        source=source,
        tests=tests,
        test_files=tuple(path for path in parts.tests if path in commit_files),
        source_files=parts.source,
        scope=_find_scope(parts),
        names=tuple(names),
        examples=examples,
        needs_examples=needs_examples,
        large=files_of_code > LARGE_FILES or lines > LARGE_LINES,
    )


def _list_examples(files: WorkFiles, tests: str) -> Iterator[ShownTest]:
    added = list_added_lines(tests)
    for path in files.parts.tests:
        yield from find_examples(files.read_tip(path) or "", added.get(path, ()))


def _find_scope(parts: ChangeParts) -> tuple[str, ...]:
    """Return the folders of the source and tests, and the other files, as scope.

    Files at the root stand for themselves: their folder would be everything.
    """
    globs = []
    for path in (*parts.source, *parts.tests, *parts.support):
        folder = str(PurePosixPath(path).parent)
        globs.append(escape_glob(path) if folder == "." else f"{escape_glob(folder)}/**")
    globs += map(escape_glob, (*parts.changelog, *parts.rest))
    folder_prefixes = [glob.removesuffix("**") for glob in globs if glob.endswith("/**")]
    within = {
        glob
        for glob in globs
        for prefix in folder_prefixes
        if glob.startswith(prefix) and glob != f"{prefix}**"
    }
    return tuple(dict.fromkeys(glob for glob in globs if glob not in within))


def _read_forms(files: WorkFiles, base_paths: Sequence[str]) -> list[str]:
    """Return a project's templates for pull requests and issues."""
    forms = [path for path in base_paths if _FORM_PATH.search(path)]
    return [files.read_base(path) or "" for path in forms[:MAX_FORMS]]


@contextmanager
def open_manifests(repo: Path, commit: str) -> Iterator[ManifestFolder]:
    """Open a commit's file names and small files, to detect how the project is built."""
    folder = Path(tempfile.mkdtemp(prefix="closeloop-"))
    try:
        names = list_files_at(repo, commit)[:MAX_LISTED_FILES]
        _extract_files(repo, commit, [name for name in names if _is_manifest_file(name)], folder)
        yield ManifestFolder(folder, tuple(names))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def select_runner_files(runner: TestRunner | None, files: Sequence[str]) -> tuple[str, ...]:
    """Return arguments that restrict a runner to those test files; empty if it cannot."""
    if runner in ("pytest", "jest", "vitest", "mocha", "node"):
        return tuple(files)
    if runner == "go":
        return tuple(sorted({f"./{Path(file).parent}".replace("/.", "") for file in files}))
    return ()


def _is_manifest_file(name: str) -> bool:
    """Return whether a file may say how the project is set up or tested."""
    path = Path(name)
    shallow = len(path.parts) <= 2
    suffixes = (".toml", ".cfg", ".ini", ".txt", ".json", ".mod", ".work", ".xml", ".lock", ".kts")
    has_known_name = path.suffix in suffixes or path.name in (
        "setup.py",
        "noxfile.py",
        "conftest.py",
    )
    has_known_name = has_known_name or (path.suffix == ".py" and path.name.startswith("test"))
    has_known_name = has_known_name or bool(re.match(r"(?:jest|vite|vitest)\.config\.", path.name))
    return shallow and (has_known_name or path.name in ("Makefile", "Pipfile", "build.gradle"))


def _extract_files(repo: Path, commit: str, names: Sequence[str], target: Path) -> None:
    for start in range(0, len(names), 500):
        batch = names[start : start + 500]
        archive = read_git_text(repo, "archive", "--format=tar", commit, "--", *batch)
        content = archive.encode("utf-8", "surrogateescape")
        with suppress(tarfile.TarError, OSError), tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for member in tar:
                with suppress(BadInput):  # a link to another place is no evidence
                    extract_member(tar, member, target.resolve())


def _read_patch(repo: Path, work: PastWork, paths: Sequence[str]) -> str:
    if not paths:
        return ""
    patch = read_git_text(repo, *_DIFF_COMMAND, work.base, work.commit, "--", *paths)
    return patch.encode("utf-8", "surrogateescape").decode()


def _read_change_sizes(repo: Path, commits: Sequence[str]) -> tuple[dict[str, Change], set[str]]:
    """Return the size of each commit's change against its first parent, and unreadable commits.

    One call of git, halved if part of the history is missing, as in a partial clone.
    """
    changes: dict[str, Change] = {}
    unreadable: set[str] = set()
    batches = [commits] if commits else []
    while batches:
        batch = batches.pop()
        try:
            changes |= _read_batch_sizes(repo, batch)
        except BadInput as fault:
            if not is_missing_object(str(fault)):
                raise
            if len(batch) == 1 or len(unreadable) >= MAX_UNREADABLE:
                unreadable.update(batch)
            else:
                middle = len(batch) // 2
                batches += [batch[middle:], batch[:middle]]
    return changes, unreadable


def _read_batch_sizes(repo: Path, commits: Sequence[str]) -> dict[str, Change]:
    options = ("--numstat", "-z", "--no-renames", "--diff-merges=first-parent")
    walk = ("--no-walk=unsorted", "--stdin")
    commit_lines = "".join(f"{commit}\n" for commit in commits).encode()
    log_output = read_git_text(
        repo, "log", "--format=%x01%H%x00", *options, *walk, stdin=commit_lines
    )
    changes = {}
    for entry in log_output.split("\x01")[1:]:
        commit, _, lines = entry.partition("\0")
        files = []
        for line in lines.strip("\n\0").split("\0"):
            added, _, removed_and_path = line.lstrip("\n").partition("\t")
            removed, _, path = removed_and_path.partition("\t")
            if path:
                counts = [int(text) if text.isdigit() else 0 for text in (added, removed)]
                files.append(
                    FileChange(path=path, status="changed", added=counts[0], removed=counts[1])
                )
        changes[commit] = Change(files=tuple(files))
    return changes
