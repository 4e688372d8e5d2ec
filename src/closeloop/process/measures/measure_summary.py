"""All measures of a trace, by lane and together; and the process score they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain

import msgspec

from closeloop.process.brief_needs import BriefNeed, list_all_needs
from closeloop.process.child_reports import find_redone_edits, list_report_facts, parent_uses_fact
from closeloop.process.handoff_briefs import (
    BRIEF_PARTS,
    HandoffContext,
    count_brief_parts,
    is_brief_understood,
    is_hidden_text,
    list_handoff_contexts,
    missing_planted_facts,
)
from closeloop.process.measures.convergence import (
    LoopSummary,
    drift_curve,
    drift_slope,
    summarise_loops,
)
from closeloop.process.measures.feedback_use import feedback_rate, list_feedback_uses
from closeloop.process.measures.recovery import SurprisingState, find_surprises, recovery_rate
from closeloop.process.measures.verification import has_verification, list_trace_checks
from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.estimate import Rate, pool_rates, wilson_rate
from closeloop.records.finding import Finding, Measures, ProcessScore, Unmeasured
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
    TraceStep,
)
from closeloop.records.record import Record

# The shares of a handoff: what the brief held, what the child understood, what the parent used.


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


# Context loss: what the agent once knew and lost, by the rules that see it.

LOSS_RULES = frozenset(("lost-constraint", "repeated-correction", "needless-reread"))


def count_context_losses(
    findings: Iterable[Finding], unmeasured: Iterable[Unmeasured] = ()
) -> int | None:
    """How often, silenced findings left out; None where none of the rules could look."""
    if LOSS_RULES.issubset([one.rule for one in unmeasured]):
        return None
    return len([1 for one in findings if one.rule in LOSS_RULES and one.silenced is None])


# Tampering: tests weakened, errors suppressed, answers looked up.

TAMPERING_RULES = frozenset(("weakened-test", "suppressed-error", "answer-from-history"))


def count_tampering(
    findings: Iterable[Finding], unmeasured: Iterable[Unmeasured] = ()
) -> int | None:
    """How often, silenced findings left out; None where none of the rules could look."""
    if TAMPERING_RULES.issubset([one.rule for one in unmeasured]):
        return None
    return len([1 for one in findings if one.rule in TAMPERING_RULES and one.silenced is None])


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
    """From the first to the last of those that are known."""
    known = [time for time in times if time is not None]
    return (max(known) - min(known)).total_seconds() if known else None
