"""All measures of a trace, by lane and together; and the process score they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain

import msgspec

from closeloop.model.finding import Finding, Unmeasured
from closeloop.model.measurement import Measures, ProcessScore
from closeloop.model.rates import Rate, pooled, rate
from closeloop.model.record import Record
from closeloop.model.steps import LaneReading, Reading, Step
from closeloop.model.usage import total
from closeloop.process.convergence import Loops, loops
from closeloop.process.measures.context import context_losses
from closeloop.process.measures.drift import drift_curve, drift_slope
from closeloop.process.measures.feedback import feedback, feedback_uses
from closeloop.process.measures.handoffs import Handoffs, handoffs
from closeloop.process.measures.recovery import Item, recovery, surprises
from closeloop.process.measures.tampering import tampering
from closeloop.process.measures.verification import checks_of, verified


class _Known(Record):
    """What is worked out once for all lanes."""

    findings: Sequence[Finding]
    unmeasured: Sequence[Unmeasured]
    checks: Sequence[Step]
    handoffs: Mapping[str | None, Handoffs]
    surprises: Mapping[str, Sequence[Item]]
    times: Mapping[str, Sequence[datetime | None]]
    """Lane → when each of its events was, where that is known."""


def measures_of(
    reading: Reading, findings: Sequence[Finding], unmeasured: Sequence[Unmeasured]
) -> tuple[Measures, tuple[Measures, ...]]:
    """Of the whole trace, and of each lane; where there is one lane, it is the whole."""
    known = _Known(
        findings=findings,
        unmeasured=unmeasured,
        checks=checks_of(reading),
        handoffs=handoffs(reading),
        surprises=surprises(reading),
        times=_times(reading),
    )
    lanes = tuple([_of_lane(lane, known) for lane in reading.lanes.values()])
    return _whole(reading, lanes, known), lanes


def score_of(reading: Reading, whole: Measures) -> ProcessScore:
    """Four rates. Planted facts are exact, so they take the place of what was guessed."""
    briefs = whole.planted or whole.brief
    ends = [ended for lane in reading.lanes.values() if (ended := loops(lane)) is not None]
    return ProcessScore(
        handoff=pooled(briefs, whole.understood, whole.returned),
        feedback=whole.feedback,
        recovery=whole.recovery,
        convergence=rate(sum(e.closed for e in ends), sum(e.episodes for e in ends)),
    )


def _of_lane(lane: LaneReading, known: _Known) -> Measures:
    name, ended = lane.lane.id, loops(lane)
    curve = drift_curve(lane)
    own = [finding for finding in known.findings if finding.lane == name]
    shares = known.handoffs.get(name)
    times = known.times.get(name, ())
    return Measures(
        lane=name,
        events=len(times),
        calls=len(lane.steps),
        edits=len(lane.edits),
        checks=len(lane.checks),
        iterations=len(lane.iterations),
        converged=_converged(ended),
        converged_after=ended.converged_after if ended else None,
        standstill=ended.standstill if ended else 0,
        feedback=feedback(feedback_uses(lane)),
        **_told(shares),
        recovery=recovery(known.surprises.get(name, ())),
        context_losses=context_losses(own, known.unmeasured) if lane.steps else None,
        verified=verified(lane, known.checks),
        tampering=tampering(own, known.unmeasured) if lane.changes else None,
        drift=curve,
        drift_slope=drift_slope(curve),
        usage=total(turn.usage for turn in lane.lane.turns),
        seconds=_seconds(times),
    )


def _whole(reading: Reading, lanes: Sequence[Measures], known: _Known) -> Measures:
    if not lanes:
        return Measures()
    root = lanes[0]
    if len(lanes) == 1:
        return msgspec.structs.replace(
            root,
            lane=None,
            events=len(reading.trace.events),
            context_losses=_losses(lanes, known),
            tampering=_tampering(lanes, known),
        )
    return msgspec.structs.replace(
        root,
        lane=None,
        events=len(reading.trace.events),
        calls=sum(lane.calls for lane in lanes),
        edits=sum(lane.edits for lane in lanes),
        checks=sum(lane.checks for lane in lanes),
        standstill=max(lane.standstill for lane in lanes),
        feedback=pooled(*(lane.feedback for lane in lanes)),
        **_told(known.handoffs.get(None)),
        recovery=pooled(*(lane.recovery for lane in lanes)),
        context_losses=_losses(lanes, known),
        tampering=_tampering(lanes, known),
        usage=total(lane.usage for lane in lanes),
        seconds=_seconds(list(chain.from_iterable(known.times.values()))),
    )


def _told(shares: Handoffs | None) -> dict[str, Rate | None]:
    return {} if shares is None else msgspec.structs.asdict(shares)


def _losses(lanes: Sequence[Measures], known: _Known) -> int | None:
    acts = any(lane.calls for lane in lanes)
    return context_losses(known.findings, known.unmeasured) if acts else None


def _tampering(lanes: Sequence[Measures], known: _Known) -> int | None:
    edits = any(lane.edits for lane in lanes)
    return tampering(known.findings) if edits else lanes[0].tampering


def _converged(ended: Loops | None) -> bool | None:
    if ended is None or not ended.episodes:
        return None
    return ended.converged_after is not None


def _times(reading: Reading) -> dict[str, list[datetime | None]]:
    times: dict[str, list[datetime | None]] = {}
    for event in reading.trace.events:
        times.setdefault(event.lane, []).append(event.at)
    return times


def _seconds(times: Sequence[datetime | None]) -> float | None:
    """From the first to the last of those that are known."""
    known = [time for time in times if time is not None]
    return (max(known) - min(known)).total_seconds() if known else None
