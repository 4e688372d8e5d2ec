"""All measures of a trace, by lane and together; and the process score they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain

import msgspec

from closeloop.process.convergence import LoopSummary, summarise_loops
from closeloop.process.measures.context_loss import count_context_losses
from closeloop.process.measures.feedback_use import feedback_rate, list_feedback_uses
from closeloop.process.measures.goal_drift import drift_curve, drift_slope
from closeloop.process.measures.handoff_rates import HandoffRates, handoff_rates_by_lane
from closeloop.process.measures.recovery import SurprisingState, find_surprises, recovery_rate
from closeloop.process.measures.tampering import count_tampering
from closeloop.process.measures.verification import has_verification, list_trace_checks
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.measurement import Measures, ProcessScore
from closeloop.records.rates import Rate, pool_rates, wilson_rate
from closeloop.records.record import Record
from closeloop.records.trace_steps import LaneReading, TraceReading, TraceStep
from closeloop.records.usage_totals import sum_usage


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
        usage=sum_usage(turn.usage for turn in lane.lane.turns),
        seconds=_elapsed_seconds(times),
    )


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
