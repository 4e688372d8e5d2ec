"""Measure one trace: let every rule look at it, and sum up what they and the measures say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from closeloop.process.edit_contents import is_source_path, is_test_source, list_code_changes
from closeloop.process.measures.measure_summary import measure_lanes, process_score
from closeloop.process.measures.session_features import collect_features
from closeloop.process.measures.verification import (
    could_not_run,
    find_backing,
    list_trace_checks,
)
from closeloop.process.rulebook import Rulebook
from closeloop.records.attempt import Grade
from closeloop.records.errors import PluginFailed
from closeloop.records.finding import (
    AttemptEnding,
    EndingCategory,
    FailureMode,
    Finding,
    Measurement,
    ModeSource,
    ModeTag,
    Unmeasured,
)
from closeloop.records.inspection import (
    TraceReading,
    TraceStep,
)
from closeloop.records.settings import SilenceSettings
from closeloop.text.patches import parse_patch
from closeloop.text.wording import matches_globs, package_folder

# Which outcome category an attempt falls into: the first that applies, with its reason.

UNCHECKED_RULES = ("missing-verification", "unverified-claim", "empty-check", "wrong-copy")
NONCOMPLIANCE_RULES = (
    "lost-constraint",
    "out-of-scope-edit",
    "weakened-test",
    "answer-from-history",
    "bait-taken",
    "repeated-correction",
)
_MACHINE_ERRORS = (
    "No space left on device",
    "Temporary failure in name resolution",
    "Could not resolve host",
    "Cannot connect to the Docker daemon",
)


def classify_ending(reading: TraceReading, findings: Iterable[Finding]) -> AttemptEnding | None:
    """The first category that applies; None where nothing is known of the attempt at all.

    Neither error nor success is guessed: where the record does not show how the work came out, the
    category is unknown.
    """
    if reading.attempt is None and not reading.trace.events:
        return None
    counted = [finding for finding in findings if finding.silenced is None]
    for classify in _ENDING_ORDER:
        ending = classify(reading, counted)
        if ending is not None:
            return ending
    return _unknown_ending(reading)


def _environment_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    attempt, grade = reading.attempt, reading.grade
    if attempt is not None and attempt.exit == "machine":
        return _make_ending("environment failure", attempt.cause or "The machine failed the agent.")
    if grade is not None and grade.outcome.result == "unscored" and not _awaits_review(grade):
        return _make_ending("environment failure", grade.outcome.cause or "It could not be graded.")
    for lane in reading.lanes.values():
        step = lane.checks[-1] if lane.checks else None
        output = getattr(step.event, "output", None) if step and step.failed else None
        sign = next((sign for sign in _MACHINE_ERRORS if output and sign in output), None)
        if step is not None and sign is not None:
            return _make_ending(
                "environment failure", f"The last check said: {sign}.", [step.number]
            )
    return None


def _timeout_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    attempt = reading.attempt
    if attempt is not None and attempt.exit in ("out_of_time", "idle"):
        return _make_ending(
            "timeout", attempt.cause or f"It ended {attempt.exit.replace('_', ' ')}."
        )
    return None


def _unverified_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    """Unverified to the end: a claim in the midst of the work may have been checked later."""
    checks = list_trace_checks(reading)
    last = checks[-1].number if checks else 0
    standing = [finding for finding in findings if max(finding.events, default=0) >= last]
    return _ending_from_rules(standing, UNCHECKED_RULES, "missing verification")


def _noncompliance_ending(
    reading: TraceReading, findings: Sequence[Finding]
) -> AttemptEnding | None:
    grade = reading.grade
    if grade is not None and grade.out_of_scope:
        return _make_ending(
            "instruction non-compliance",
            f"It changed {grade.out_of_scope[0]}, which is out of scope.",
        )
    return _ending_from_rules(findings, NONCOMPLIANCE_RULES, "instruction non-compliance")


def _reasoning_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    """The work was wrong: its grade says so, or its last check does and the agent went astray."""
    attempt, grade = reading.attempt, reading.grade
    if grade is not None and grade.outcome.result == "fail":
        reasons = grade.outcome.reasons
        return _make_ending("reasoning error", reasons[0] if reasons else "The work did not pass.")
    error = next((finding for finding in findings if finding.severity == "error"), None)
    check = _last_result(reading)
    if error is not None and grade is None and check is not None and check.failed:
        return _make_ending("reasoning error", error.message, (*error.events, check.number))
    if (
        attempt is not None
        and attempt.origin == "experiment"
        and attempt.exit in ("gave_up", "out_of_budget", "crashed")
    ):
        # Of another's recording, that only says that it ends there.
        return _make_ending("reasoning error", attempt.cause or f"Its exit was {attempt.exit!r}.")
    return None


def _clean_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    """The work passed: its grade says so, or the last check of the code as it was left."""
    if reading.grade is not None and reading.grade.outcome.result == "pass":
        return _make_ending("clean", "The work passed, and the rules found nothing against it.")
    check = _last_result(reading)
    if check is None or check.failed is not False or reading.grade is not None:
        return None
    root = next(iter(reading.lanes.values()))
    backing = find_backing(list_code_changes(root), list_trace_checks(reading))
    if backing is not None and check.number < backing.last.number:
        return None
    return _make_ending(
        "clean", "The last check passed, and nothing was changed since.", [check.number]
    )


def _unknown_ending(reading: TraceReading) -> AttemptEnding:
    check = _last_result(reading)
    if reading.grade is not None:
        reason = reading.grade.outcome.cause or "It awaits review."
    elif check is None:
        reason = "No check says whether the work is right."
    elif check.failed:
        reason = "The last check failed, and the record does not show why it ended there."
    else:
        reason = "Code was changed after the last check."
    return AttemptEnding(
        category="unknown", reason=reason, events=(check.number,) if check is not None else ()
    )


def _awaits_review(grade: Grade) -> bool:
    return "review" in (grade.outcome.cause or "")


def _last_result(reading: TraceReading) -> TraceStep | None:
    """The last check that ran and says whether it passed."""
    return next(
        (
            step
            for step in reversed(list_trace_checks(reading))
            if step.check is not None and step.check.passed is not None and not could_not_run(step)
        ),
        None,
    )


_ENDING_ORDER: tuple[Callable[[TraceReading, Sequence[Finding]], AttemptEnding | None], ...] = (
    _environment_ending,
    _timeout_ending,
    _unverified_ending,
    _noncompliance_ending,
    _reasoning_ending,
    _clean_ending,
)


def _ending_from_rules(
    findings: Sequence[Finding], rules: Sequence[str], category: EndingCategory
) -> AttemptEnding | None:
    first = next((finding for finding in findings if finding.rule in rules), None)
    return _make_ending(category, first.message, first.events) if first else None


def _make_ending(
    category: EndingCategory, reason: str, events: Sequence[int] = ()
) -> AttemptEnding:
    return AttemptEnding(category=category, reason=reason, events=tuple(events))


# Which of the five failure modes an attempt shows, by its findings, its grade and its reading.


def tag_failure_modes(reading: TraceReading, findings: Iterable[Finding]) -> tuple[ModeTag, ...]:
    """One tag for each mode and source, with the first reason for it."""
    tags: dict[tuple[str, str], ModeTag] = {}
    for tag in (
        *_tags_from_grade(reading),
        *_tags_from_unopened_files(reading),
        *_tags_from_findings(findings),
    ):
        tags.setdefault((tag.mode, tag.source), tag)
    return tuple(tags.values())


def _tags_from_findings(findings: Iterable[Finding]) -> Iterable[ModeTag]:
    for finding in findings:
        if finding.mode is not None and finding.silenced is None:
            yield ModeTag(mode=finding.mode, reason=finding.message, events=finding.events)


def _tags_from_grade(reading: TraceReading) -> Iterable[ModeTag]:
    grade = reading.grade
    if grade is None:
        return
    if grade.out_of_scope:
        reason = f"{grade.out_of_scope[0]} lies outside the declared scope."
        yield ModeTag(mode="scope creep", reason=reason, source="grade")
    passes = grade.fail_to_pass is not None and grade.fail_to_pass[0] == grade.fail_to_pass[1]
    if grade.broken and passes:
        reason = f"The task's tests pass, and {grade.broken[0]} does no more."
        yield ModeTag(mode="silent regression", reason=reason, source="grade")
    if grade.missing_names:
        reason = f"A failing test says that {grade.missing_names[0]} does not exist."
        yield ModeTag(mode="hallucinated API", reason=reason, source="grade")


def _tags_from_unopened_files(reading: TraceReading) -> Iterable[ModeTag]:
    """Program text that the known good change needed, and that the agent never saw."""
    grade = reading.grade
    if grade is None or grade.outcome.result != "fail" or not reading.trace.events:
        return
    opened = _opened_files(reading)
    for needed in _files_of_reference(reading):
        if is_source_path(needed) and not _is_among(needed, opened):
            reason = f"{needed} had to be changed and was never opened."
            yield ModeTag(mode="context blindness", reason=reason, source="grade")
            return


# Files that the agent opened, against those that the reference changes.


def _opened_files(reading: TraceReading) -> set[str]:
    return {
        path
        for lane in reading.lanes.values()
        for step in lane.steps
        for path in (*step.read, *step.written)
    }


def _files_of_reference(reading: TraceReading) -> list[str]:
    """What the known good change needed of what was there."""
    if reading.task is None or reading.task.reference is None:
        return []
    files = parse_patch(reading.task.reference).files
    return [file.old_path or file.path for file in files if file.status != "added"]


def _is_among(needed: str, paths: Iterable[str]) -> bool:
    """Whether one of the paths is of this file; not all are relative to the project."""
    return any(path == needed or path.endswith("/" + needed) for path in paths)


def measure_opened_files(reading: TraceReading) -> tuple[float | None, float | None]:
    """Precision and recall of the files that were there and were opened; tests left out.

    A file that the change adds could not be opened, and one that was only written counts: who
    changes a file has it open.
    """
    if not reading.trace.events:
        return None, None
    needed = [path for path in _files_of_reference(reading) if not is_test_source(path)]
    added = (
        {file.path for file in reading.change.files if file.status == "added"}
        if reading.change
        else set()
    )
    opened = {
        path
        for path in _opened_files(reading)
        if not is_test_source(path) and not any(_is_among(one, [path]) for one in added)
    }
    if not needed:
        return None, None
    right = sum(any(_is_among(one, [path]) for one in needed) for path in opened)
    found = sum(_is_among(one, opened) for one in needed)
    return right / len(opened) if opened else None, found / len(needed)


def list_examined_modes(
    reading: TraceReading, book: Rulebook, unmeasured: Iterable[Unmeasured]
) -> tuple[tuple[FailureMode, ModeSource], ...]:
    """Which modes were looked for: by a rule that could look, or by a grade that can tell."""
    examined: dict[tuple[FailureMode, ModeSource], None] = {}
    gaps = {one.rule for one in unmeasured}
    for chosen in book.chosen if reading.trace.events and "everything" not in gaps else ():
        rule = chosen.detector.rule
        if rule.mode is not None and rule.name not in gaps:
            examined[rule.mode, "rule"] = None
    grade, task = reading.grade, reading.task
    if grade is None:
        return tuple(examined)
    scored = grade.outcome.result in ("pass", "fail")
    if task is not None and task.scope and scored:
        examined["scope creep", "grade"] = None
    if grade.pass_to_pass is not None:
        examined["silent regression", "grade"] = None
    if grade.missing_names is not None:
        examined["hallucinated API", "grade"] = None
    if task is not None and task.reference is not None and scored and reading.trace.events:
        examined["context blindness", "grade"] = None
    return tuple(examined)


def measure_reading(reading: TraceReading, book: Rulebook) -> Measurement:
    """All that the rules say of a trace: the same trace and rules, the same measurement."""
    findings: list[Finding] = []
    unmeasured = [Unmeasured(rule="everything", reason=gap) for gap in reading.gaps]
    for chosen in book.chosen:
        try:
            result = chosen.detector.detect(reading, chosen.limits)
        except Exception as error:
            raise _blame_rule(chosen.detector.rule.name, error) from error
        if isinstance(result, Unmeasured):
            unmeasured.append(result)
        else:
            findings += result
    if book.silences and findings:
        findings = [_apply_silences(finding, reading, book.silences) for finding in findings]
    findings.sort(key=lambda finding: (min(finding.events, default=0), finding.rule))
    whole, lanes = measure_lanes(reading, findings, unmeasured)
    opened_precision, opened_recall = measure_opened_files(reading)
    return Measurement(
        rules=book.identity,
        findings=tuple(findings),
        unmeasured=tuple(unmeasured),
        whole=whole,
        lanes=lanes,
        score=process_score(reading, whole),
        modes=tag_failure_modes(reading, findings),
        examined=list_examined_modes(reading, book, unmeasured),
        modules=len({package_folder(file.path) for file in reading.change.files})
        if reading.change
        else None,
        opened_precision=opened_precision,
        opened_recall=opened_recall,
        ending=classify_ending(reading, findings),
        features=collect_features(reading, whole, findings),
    )


def _blame_rule(rule: str, error: Exception) -> PluginFailed:
    return PluginFailed(
        f"The rule {rule!r} raised {type(error).__name__}: {error}. Switch it off with "
        f"`enabled = false` in [rules.{rule}] and tell its author."
    )


def _apply_silences(
    finding: Finding, reading: TraceReading, silences: Iterable[SilenceSettings]
) -> Finding:
    for silence in silences:
        if silence.rule == finding.rule and _silence_applies(silence, finding, reading):
            return msgspec.structs.replace(finding, silenced=silence.reason)
    return finding


def _silence_applies(silence: SilenceSettings, finding: Finding, reading: TraceReading) -> bool:
    task = reading.task.id if reading.task else ""
    if silence.task is not None and not matches_globs(task, [silence.task]):
        return False
    if silence.path is None:
        return True
    cited = set(finding.events)
    touched = (
        path
        for lane in reading.lanes.values()
        for step in lane.steps
        if step.number in cited
        for path in (*step.written, *step.read)
    )
    return any(matches_globs(path, [silence.path]) for path in touched)
