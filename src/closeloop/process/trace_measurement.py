"""Measure one trace: let every rule look at it, and sum up what they and the measures say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain

import msgspec

from closeloop.process.agent_claims import find_refusal
from closeloop.process.child_reports import find_redone_edits, list_report_facts, parent_uses_fact
from closeloop.process.edit_contents import is_source_path, is_test_source, list_code_changes
from closeloop.process.feedback_use import (
    LoopSummary,
    SurprisingState,
    drift_curve,
    drift_slope,
    feedback_rate,
    find_surprises,
    list_feedback_uses,
    recovery_rate,
    summarise_loops,
)
from closeloop.process.handoff_briefs import (
    BRIEF_PARTS,
    BriefNeed,
    HandoffContext,
    count_brief_parts,
    is_brief_understood,
    is_hidden_text,
    list_all_needs,
    list_handoff_contexts,
    missing_planted_facts,
)
from closeloop.process.rulebook import Rulebook
from closeloop.process.session_features import collect_features
from closeloop.process.verification import (
    could_not_run,
    find_backing,
    has_verification,
    list_trace_checks,
)
from closeloop.records.attempt import Grade, Usage, sum_usage
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.errors import PluginFailed
from closeloop.records.estimate import Rate, pool_rates, wilson_rate
from closeloop.records.finding import (
    AttemptEnding,
    EndingCategory,
    FailureMode,
    Finding,
    HandoffFacts,
    Measurement,
    Measures,
    ModeSource,
    ModeTag,
    ProcessScore,
    Unmeasured,
)
from closeloop.records.record import Record
from closeloop.records.settings import SilenceSettings
from closeloop.text.patches import parse_patch
from closeloop.text.wording import matches_globs, package_folder, truncate_words

# All measures of a trace, by lane and in total; and the process score they add up to.


# The shares of a handoff: what the brief contained, the child understood, the parent used.


class HandoffRates(Record):
    """Rates over some handoffs; None where none of them could be measured."""

    brief: Rate | None = None
    brief_parts: Rate | None = None
    understood: Rate | None = None
    returned: Rate | None = None
    planted: Rate | None = None


def handoff_rates_by_lane(reading: TraceReading) -> dict[str | None, HandoffRates]:
    """By the lane that handed work on; under None all of them together."""
    if not reading.handoffs:
        return {}
    facts = reading.task.facts if reading.task else ()
    counted = [
        (one.event.lane, _count_handoff(one, needed, facts))
        for one, needed in zip(list_handoff_contexts(reading), list_all_needs(reading), strict=True)
    ]
    lanes = dict.fromkeys(lane for lane, _ in counted)
    by_lane = {lane: [counts for of, counts in counted if of == lane] for lane in lanes}
    return {lane: _compute_rates(counts) for lane, counts in by_lane.items()} | {
        None: _compute_rates([counts for _, counts in counted])
    }


HitCount = tuple[int, int]
"""So many of so many."""


def _count_handoff(
    one: HandoffContext, needed: Sequence[BriefNeed] | None, facts: Sequence[str]
) -> dict[str, HitCount]:
    counts = {
        "planted": (len(facts) - len(missing_planted_facts(facts, one.event.brief)), len(facts)),
        "returned": _count_used_facts(one),
    }
    if not is_hidden_text(one.event.brief):
        counts["brief_parts"] = count_brief_parts(one.event.brief), BRIEF_PARTS
    if needed is not None:
        counts["brief"] = sum(need.present for need in needed), len(needed)
    if (is_understood := is_brief_understood(one)) is not None:
        counts["understood"] = int(is_understood), 1
    return counts


def _count_used_facts(one: HandoffContext) -> HitCount:
    """Facts of the report that the parent uses; it does not use what it does again or undoes."""
    if not one.event.report or not (one.after or one.said):
        return 0, 0
    facts = list_report_facts(one)
    redone_paths = {again.path for again in find_redone_edits(one)}
    used = sum(parent_uses_fact(fact, one) and fact.text not in redone_paths for fact in facts)
    return used, len(facts) + len(redone_paths - {fact.text for fact in facts})


def _compute_rates(judged: Sequence[dict[str, HitCount]]) -> HandoffRates:
    def share(name: str) -> Rate | None:
        counts = [one[name] for one in judged if name in one]
        return wilson_rate(sum(hits for hits, _ in counts), sum(of for _, of in counts))

    return HandoffRates(
        brief=share("brief"),
        brief_parts=share("brief_parts"),
        understood=share("understood"),
        returned=share("returned"),
        planted=share("planted"),
    )


# Context loss: what the agent once knew and lost, by the rules that detect it.

LOSS_RULES = frozenset(("lost-constraint", "repeated-correction", "needless-reread"))


def count_context_losses(
    findings: Iterable[Finding], unmeasured: Iterable[Unmeasured] = ()
) -> int | None:
    """How often, silenced findings left out; None where none of the rules could look."""
    if LOSS_RULES.issubset([one.rule for one in unmeasured]):
        return None
    return len(
        [1 for finding in findings if finding.rule in LOSS_RULES and finding.silenced is None]
    )


# Tampering: tests weakened, errors suppressed, answers looked up.

TAMPERING_RULES = frozenset(("weakened-test", "suppressed-error", "answer-from-history"))


def count_tampering(
    findings: Iterable[Finding], unmeasured: Iterable[Unmeasured] = ()
) -> int | None:
    """How often, silenced findings left out; None where none of the rules could look."""
    if TAMPERING_RULES.issubset([one.rule for one in unmeasured]):
        return None
    return len(
        [1 for finding in findings if finding.rule in TAMPERING_RULES and finding.silenced is None]
    )


class _TraceMeasures(Record):
    """What is worked out once for all lanes."""

    findings: Sequence[Finding]
    unmeasured: Sequence[Unmeasured]
    checks: Sequence[TraceStep]
    handoffs: Mapping[str | None, HandoffRates]
    surprises: Mapping[str, Sequence[SurprisingState]]
    times: Mapping[str, Sequence[datetime | None]]
    """Lane → when each of its events was, where that is known."""


def measure_lanes(
    reading: TraceReading, findings: Sequence[Finding], unmeasured: Sequence[Unmeasured]
) -> tuple[Measures, tuple[Measures, ...]]:
    """Of the whole trace, and of each lane; where there is one lane, it is the whole."""
    known = _TraceMeasures(
        findings=findings,
        unmeasured=unmeasured,
        checks=list_trace_checks(reading),
        handoffs=handoff_rates_by_lane(reading),
        surprises=find_surprises(reading),
        times=_times_by_lane(reading),
    )
    lanes = tuple([_measure_lane(lane, known) for lane in reading.lanes.values()])
    return _measure_whole(reading, lanes, known), lanes


def process_score(reading: TraceReading, whole: Measures) -> ProcessScore:
    """Four rates. Planted facts are exact, so they take the place of what was guessed."""
    briefs = whole.planted or whole.brief
    loop_summaries = [
        ended for lane in reading.lanes.values() if (ended := summarise_loops(lane)) is not None
    ]
    return ProcessScore(
        handoff=pool_rates(briefs, whole.understood, whole.returned),
        feedback=whole.feedback,
        recovery=whole.recovery,
        convergence=wilson_rate(
            sum(e.closed for e in loop_summaries), sum(e.episodes for e in loop_summaries)
        ),
    )


def _measure_lane(lane: LaneReading, known: _TraceMeasures) -> Measures:
    name, loop_summary = lane.lane.id, summarise_loops(lane)
    curve = drift_curve(lane)
    lane_findings = [finding for finding in known.findings if finding.lane == name]
    shares = known.handoffs.get(name)
    times = known.times.get(name, ())
    return Measures(
        lane=name,
        events=len(times),
        calls=len(lane.steps),
        edits=len(lane.edits),
        checks=len(lane.checks),
        iterations=len(lane.iterations),
        converged=_convergence_state(loop_summary),
        converged_after=loop_summary.converged_after if loop_summary else None,
        standstill=loop_summary.standstill if loop_summary else 0,
        feedback=feedback_rate(list_feedback_uses(lane)),
        **_handoff_fields(shares),
        recovery=recovery_rate(known.surprises.get(name, ())),
        context_losses=count_context_losses(lane_findings, known.unmeasured)
        if lane.steps
        else None,
        verified=has_verification(lane, known.checks),
        tampering=count_tampering(lane_findings, known.unmeasured) if lane.changes else None,
        drift=curve,
        drift_slope=drift_slope(curve),
        context_tokens=max(
            filter(None, (count_context_tokens(turn.usage) for turn in lane.lane.turns)),
            default=None,
        ),
        usage=sum_usage(turn.usage for turn in lane.lane.turns),
        seconds=_elapsed_seconds(times),
    )


def count_context_tokens(usage: Usage) -> int | None:
    """What a turn had before it, cached or not, and what it added; None where none is told."""
    parts = (
        usage.input_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.output_tokens,
    )
    return sum(filter(None, parts)) or None


def _measure_whole(
    reading: TraceReading, lanes: Sequence[Measures], known: _TraceMeasures
) -> Measures:
    if not lanes:
        return Measures()
    root = lanes[0]
    if len(lanes) == 1:
        return msgspec.structs.replace(
            root,
            lane=None,
            events=len(reading.trace.events),
            context_losses=_whole_context_losses(lanes, known),
            tampering=_whole_tampering(lanes, known),
        )
    return msgspec.structs.replace(
        root,
        lane=None,
        events=len(reading.trace.events),
        calls=sum(lane.calls for lane in lanes),
        edits=sum(lane.edits for lane in lanes),
        checks=sum(lane.checks for lane in lanes),
        standstill=max(lane.standstill for lane in lanes),
        feedback=pool_rates(*(lane.feedback for lane in lanes)),
        **_handoff_fields(known.handoffs.get(None)),
        recovery=pool_rates(*(lane.recovery for lane in lanes)),
        context_losses=_whole_context_losses(lanes, known),
        tampering=_whole_tampering(lanes, known),
        context_tokens=max(filter(None, (lane.context_tokens for lane in lanes)), default=None),
        usage=sum_usage(lane.usage for lane in lanes),
        seconds=_elapsed_seconds(list(chain.from_iterable(known.times.values()))),
    )


def _handoff_fields(shares: HandoffRates | None) -> dict[str, Rate | None]:
    return {} if shares is None else msgspec.structs.asdict(shares)


def _whole_context_losses(lanes: Sequence[Measures], known: _TraceMeasures) -> int | None:
    acts = any(lane.calls for lane in lanes)
    return count_context_losses(known.findings, known.unmeasured) if acts else None


def _whole_tampering(lanes: Sequence[Measures], known: _TraceMeasures) -> int | None:
    edits = any(lane.edits for lane in lanes)
    return count_tampering(known.findings) if edits else lanes[0].tampering


def _convergence_state(ended: LoopSummary | None) -> bool | None:
    if ended is None or not ended.episodes:
        return None
    return ended.converged_after is not None


def _times_by_lane(reading: TraceReading) -> dict[str, list[datetime | None]]:
    times: dict[str, list[datetime | None]] = {}
    for event in reading.trace.events:
        times.setdefault(event.lane, []).append(event.at)
    return times


def _elapsed_seconds(times: Sequence[datetime | None]) -> float | None:
    """From the first to the last known time; None if at most one of several events has one."""
    known = [time for time in times if time is not None]
    if not known or (len(known) == 1 and len(times) > 1):
        return None
    return (max(known) - min(known)).total_seconds()


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
MAX_QUOTE_CHARS = 160
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
        return _make_ending(
            "environment failure", attempt.cause or "The machine failed, not the agent."
        )
    if grade is not None and grade.outcome.result == "unscored" and not _awaits_review(grade):
        return _make_ending("environment failure", grade.outcome.cause or "It could not be graded.")
    for lane in reading.lanes.values():
        step = lane.checks[-1] if lane.checks else None
        output = getattr(step.event, "output", None) if step and step.failed else None
        sign = next((sign for sign in _MACHINE_ERRORS if output and sign in output), None)
        if step is not None and sign is not None:
            return _make_ending(
                "environment failure", f"The last check reported: {sign}.", [step.number]
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


def _abandoned_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    """Who refuses or gives up made no error in the work: of none of the categories."""
    attempt, grade, refusal = reading.attempt, reading.grade, find_refusal(reading)
    if grade is not None and grade.outcome.result == "pass":
        return None
    if refusal is not None:
        words = f"The agent gave up: “{truncate_words(refusal.text, MAX_QUOTE_CHARS)}”"
        return _make_ending("unknown", words, [refusal.number])
    if attempt is not None and attempt.origin == "experiment" and attempt.exit == "gave_up":
        # Of another's recording, that only says that it ends there.
        return _make_ending("unknown", f"The agent gave up: {attempt.cause or 'it said no more'}.")
    return None


def _reasoning_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    """The work was wrong: its grade says so, or its last check does and the agent went astray."""
    attempt, grade = reading.attempt, reading.grade
    if grade is not None and grade.outcome.result == "fail":
        reasons = grade.outcome.reasons
        return _make_ending("reasoning error", reasons[0] if reasons else "The grade is fail.")
    error = next((finding for finding in findings if finding.severity == "error"), None)
    check = _last_result(reading)
    if error is not None and grade is None and check is not None and check.failed:
        return _make_ending("reasoning error", error.message, (*error.events, check.number))
    if (
        attempt is not None
        and attempt.origin == "experiment"
        and attempt.exit in ("out_of_budget", "crashed")
    ):
        return _make_ending("reasoning error", attempt.cause or f"Its exit was {attempt.exit!r}.")
    return None


def _clean_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    """The work passed: its grade says so, or the last check of the code as it was left."""
    if reading.grade is not None and reading.grade.outcome.result == "pass":
        return _make_ending("clean", "The grade is pass, and there are no findings against it.")
    check = _last_result(reading)
    if check is None or check.failed is not False or reading.grade is not None:
        return None
    root = next(iter(reading.lanes.values()))
    backing = find_backing(list_code_changes(root), list_trace_checks(reading))
    if backing is not None and check.number < backing.last.number:
        return None
    return _make_ending(
        "clean", "The last check passed, and nothing was changed after it.", [check.number]
    )


def _unknown_ending(reading: TraceReading) -> AttemptEnding:
    check = _last_result(reading)
    if reading.grade is not None:
        reason = reading.grade.outcome.cause or "It awaits review."
    elif check is None:
        reason = "No check shows whether the work is right."
    elif check.failed:
        reason = "The last check failed, and the trace does not show why the agent stopped."
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
    _abandoned_ending,
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
        reason = f"{grade.out_of_scope[0]} is outside the declared scope."
        yield ModeTag(mode="scope creep", reason=reason, source="grade")
    passes = grade.fail_to_pass is not None and grade.fail_to_pass[0] == grade.fail_to_pass[1]
    if grade.broken and passes:
        reason = f"The task's tests pass, but {grade.broken[0]} no longer passes."
        yield ModeTag(mode="silent regression", reason=reason, source="grade")
    if grade.missing_names:
        name = grade.missing_names[0]
        reason = f"A failing test shows that `{name}`, a name that the change uses, does not exist."
        yield ModeTag(mode="hallucinated API", reason=reason, source="grade")


def _tags_from_unopened_files(reading: TraceReading) -> Iterable[ModeTag]:
    """Program text that the known good change needed, and that the agent never saw."""
    grade = reading.grade
    if grade is None or grade.outcome.result != "fail" or not _has_worked(reading):
        return
    opened = _opened_files(reading)
    for needed in _files_of_reference(reading):
        if is_source_path(needed) and not _is_among(needed, opened):
            reason = f"The reference changes {needed}, which the agent never opened."
            yield ModeTag(mode="context blindness", reason=reason, source="grade")
            return


def _has_worked(reading: TraceReading) -> bool:
    """Who refused to work was not blind to what the work needs."""
    return bool(reading.trace.events) and find_refusal(reading) is None


# Files that the agent opened, compared with those that the reference changes.


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
    if task is not None and task.reference is not None and scored and _has_worked(reading):
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
        f"The rule {rule!r} raised {type(error).__name__}: {error}. Disable it with "
        f"`enabled = false` in [rules.{rule}] and report this to its author."
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


# Which facts a handoff's score counts: what arrived, what was lost, what the parent used.


def list_handoff_facts(
    reading: TraceReading, planted: Sequence[str] = ()
) -> tuple[HandoffFacts, ...]:
    """Every handoff in order; planted facts take the place of what the request seems to need."""
    if not reading.handoffs:
        return ()
    return tuple(
        _collect_facts(one, needed or (), planted)
        for one, needed in zip(list_handoff_contexts(reading), list_all_needs(reading), strict=True)
    )


def _collect_facts(
    one: HandoffContext, needed: Sequence[BriefNeed], planted: Sequence[str]
) -> HandoffFacts:
    if planted:
        missing = set(missing_planted_facts(planted, one.event.brief))
        needs = [(fact, fact not in missing) for fact in planted]
    else:
        needs = [(need.fact.text, need.present) for need in needed]
    returned = _list_returned(one)
    return HandoffFacts(
        event=one.event.number,
        child=one.event.child,
        arrived=tuple(text for text, present in needs if present),
        lost=tuple(text for text, present in needs if not present),
        understood=is_brief_understood(one),
        used=tuple(text for text, used in returned if used),
        unused=tuple(text for text, used in returned if not used),
    )


def _list_returned(one: HandoffContext) -> list[tuple[str, bool]]:
    """Facts of the report; what the parent does again or takes back, it does not use."""
    if not one.event.report or not (one.after or one.said):
        return []
    facts = list_report_facts(one)
    redone = dict.fromkeys(again.path for again in find_redone_edits(one))
    returned = [
        (fact.text, parent_uses_fact(fact, one) and fact.text not in redone) for fact in facts
    ]
    reported = {fact.text for fact in facts}
    return returned + [(path, False) for path in redone if path not in reported]
