"""Recovery: how a lane meets what it did not expect, one surprising state at a time."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Literal

from closeloop.process.missing_files import MissingFile, list_missing_files
from closeloop.process.rule_helpers import cache_on_reading, list_git_verbs
from closeloop.process.stale_files import error_mentions, find_stale_encounters
from closeloop.process.text_words import compile_phrases, mentions_any
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
    TraceStep,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    Command,
    Edit,
    Message,
    Read,
    ToolUse,
)

SurpriseKind = Literal[
    "failed edit", "missing file", "conflict", "contradiction", "changed file", "open question"
]

NEAR_STEPS = 20
"""So many of the following actions are looked at where nothing says sooner how it went on."""
_REFUSED_MESSAGES = (
    "user doesn't want", "rejected", "denied", "not executed", "cancelled", "canceled", "aborted",
    "interrupted", "sibling", "permission", "must be different", "exactly the same",
    "no changes to", "not been read yet",
)  # fmt: skip
_PROBLEM_PHRASES = compile_phrases(
    r"fail\w*", "could ?n['’o]t", "did ?n['’o]t", "does ?n['’o]t", "unable", "not found", "missing",
    "errors?", r"conflict\w*", "instead", "not apply", "no match", "retry", "again", "already",
    r"differ\w*", "flaky", r"inconsistent\w*",
)  # fmt: skip
_ASSUMPTION = re.compile(
    r"\b(?:assum\w+|ambiguous|unclear|not specified|unspecified|under-?specified|interpret\w*"
    r"|could mean|either way|not clear)\b",
    re.IGNORECASE,
)
_FIXING_WORDS = ("fix", "format", "fmt", "--write")
_FIXING_COMMAND = re.compile(
    r"--(?:fix|write)\b|\bgofmt -w\b|\b(?:run|make|just|task|cargo|go|ruff|biome|deno|dart|mix|npm"
    r"|pnpm|yarn|bun|terraform)\s(?:\S{1,40}[:-])?(?:fix|format|fmt)\b"
)
_LOOKUP_PROGRAMS = frozenset(("ls", "find", "fd", "tree", "rg", "grep", "locate"))
_CONFLICT_VERBS = frozenset(("diff", "status", "show", "mergetool", "log"))


class SurprisingState(Record):
    """One surprising state."""

    surprise: SurpriseKind
    step: TraceStep | None
    """What came as a surprise; None for the request itself."""
    path: str | None = None
    met: bool


def mentions_problem(text: str) -> bool:
    """Whether a text says that something is not as it should be."""
    return _PROBLEM_PHRASES(text.lower())


def recovery_rate(items: Sequence[SurprisingState]) -> Rate | None:
    """The share of surprising states that were met by looking again, asking or saying so."""
    return wilson_rate(sum(item.met for item in items), len(items))


@cache_on_reading
def find_surprises(reading: TraceReading) -> Mapping[str, Sequence[SurprisingState]]:
    """Lane → its surprising states; where nobody can say how one was met, it is left out."""
    states_by_lane: dict[str, list[SurprisingState]] = {}
    for name, lane in reading.lanes.items():
        states_by_lane[name] = (
            list(_surprises_in_lane(lane)) if lane.failing or len(lane.checks) > 1 else []
        )
    for meeting in find_stale_encounters(reading):
        if meeting.how != "failed edit":
            states_by_lane[meeting.step.event.lane].append(
                SurprisingState(
                    surprise="changed file",
                    step=meeting.step,
                    path=meeting.path,
                    met=meeting.how == "read again",
                )
            )
    if reading.task is not None and reading.task.ambiguous and reading.lanes:
        name, root = next(iter(reading.lanes.items()))
        states_by_lane[name] += _open_question_states(root)
    return states_by_lane


@cache_on_reading
def list_failed_edits(lane: LaneReading) -> Sequence[SurprisingState]:
    """Edits that did not take, with what the lane did about each."""
    items = []
    for tried in _group_failed_edits(lane):
        met = _met_failed_edit(lane, tried)
        if met is not None:
            step = tried[0]
            items.append(
                SurprisingState(surprise="failed edit", step=step, path=step.written[0], met=met)
            )
    return items


def _group_failed_edits(lane: LaneReading) -> Sequence[Sequence[TraceStep]]:
    """Edits that did not take; those of one call together."""
    tries: list[list[TraceStep]] = []
    for step in lane.failing:
        event = step.event
        if not isinstance(event, Edit) or error_mentions(event.error, _REFUSED_MESSAGES):
            continue
        if tries and _is_one_try(tries[-1][-1], step):
            tries[-1].append(step)
        else:
            tries.append([step])
    return tries


def list_abandoned_edits(lane: LaneReading) -> Iterator[SurprisingState]:
    """Failed edits about which nothing was ever done, while the work went on."""
    unmet = {item.step: item for item in list_failed_edits(lane) if item.step and not item.met}
    last = {
        path.rpartition("/")[2]: step.index
        for step in (lane.steps if unmet else ())
        for path in (*step.read, *step.written)
    }
    for tried in _group_failed_edits(lane) if unmet else ():
        item = unmet.get(tried[0])
        if item and max(last[name] for name in _file_names(tried)) <= tried[-1].index:
            yield item


def _file_names(tried: Sequence[TraceStep]) -> set[str]:
    return {step.written[0].rpartition("/")[2] for step in tried}


def _surprises_in_lane(lane: LaneReading) -> Iterator[SurprisingState]:
    yield from list_failed_edits(lane)
    for missing in list_missing_files(lane):
        yield from _make_state("missing file", missing.step, _met_missing(lane, missing))
    for step in lane.failing:
        event = step.event
        if isinstance(event, Command) and "CONFLICT (" in (event.output or ""):
            yield from _make_state("conflict", step, _met_conflict(lane, step))
    results: dict[tuple[str, int], TraceStep] = {}
    for step in lane.checks:
        yield from _make_state("contradiction", step, _met_contradiction(lane, step, results))


def _make_state(
    surprise: SurpriseKind, step: TraceStep, met: bool | None
) -> Iterator[SurprisingState]:
    if met is not None:
        yield SurprisingState(surprise=surprise, step=step, met=met)


def _following_steps(
    lane: LaneReading, step: TraceStep, most: int = NEAR_STEPS
) -> Sequence[TraceStep]:
    """The next steps, up to where the user speaks."""
    end = _next_user_message(lane, step.number)
    steps = lane.steps[step.index + 1 : step.index + 1 + most]
    return [later for later in steps if later.number < end]


def _next_user_message(lane: LaneReading, after: int) -> float:
    at = bisect_right(lane.messages, after, key=attrgetter("number"))
    for message in lane.messages[at : at + 200]:
        if message.role == "user":
            return message.number
    return float("inf")


def _agent_messages(lane: LaneReading, after: int, before: float) -> Iterator[Message]:
    at = bisect_right(lane.messages, after, key=attrgetter("number"))
    for message in lane.messages[at : at + NEAR_STEPS]:
        if message.number >= before:
            return
        if message.role == "agent":
            yield message


def _agent_mentions(lane: LaneReading, after: int, before: float, name: str) -> bool:
    return any(
        message.intent == "question"
        or (name in message.text and mentions_problem(message.text[:4000]))
        for message in _agent_messages(lane, after, before)
    )


def _met_failed_edit(lane: LaneReading, tried: Sequence[TraceStep]) -> bool | None:
    """Looked at the file again, asked, said so, or tried otherwise with success."""
    names, step = _file_names(tried), tried[0]
    sent_along = {one.index for one in tried if one.written != step.written}
    following = [
        later
        for later in _following_steps(lane, step)
        # What was sent along with it could not know that it failed.
        if later.index not in sent_along
        and (step.event.turn is None or later.event.turn != step.event.turn)
    ]
    if _answers_failure(lane, step, following):
        return True
    for later in following:
        event = later.event
        if isinstance(event, Edit) and event.ok is not False and _is_same_text(event, step.event):
            return True
        if any(path.rpartition("/")[2] in names for path in (*later.read, *later.written)):
            return not isinstance(event, Edit) or event.ok is not False
        if any(_step_mentions(later, name) for name in names) or _runs_fixer(later):
            return True
    end = (
        following[-1].number
        if len(following) == NEAR_STEPS
        else _next_user_message(lane, step.number)
    )
    if any(_agent_mentions(lane, step.number, end, name) for name in names):
        return True
    return False if _continues_regardless(lane, following, step.number, end) else None


def _answers_failure(lane: LaneReading, step: TraceStep, following: Sequence[TraceStep]) -> bool:
    """Its first words after the failure are about it."""
    before = following[0].number if following else _next_user_message(lane, step.number)
    first_message = next(_agent_messages(lane, step.number, before), None)
    return (
        first_message is not None and not following and mentions_problem(first_message.text[:1000])
    )


def _is_one_try(one: TraceStep, other: TraceStep) -> bool:
    """One call that was to change several places: it failed once."""
    first, second = one.event, other.event
    if first.call is not None and first.call == second.call:
        return True
    if other.index != one.index + 1 or first.turn != second.turn:
        return False
    return isinstance(first, Edit) and isinstance(second, Edit) and first.error == second.error


def _is_same_text(one: Edit, other: object) -> bool:
    wanted = other.after.strip() if isinstance(other, Edit) and other.after else ""
    return bool(wanted) and one.after is not None and wanted in one.after


def _step_mentions(step: TraceStep, name: str) -> bool:
    event = step.event
    if isinstance(event, Command):
        return name in event.command
    return (
        isinstance(event, ToolUse)
        and event.arguments is not None
        and any(isinstance(value, str) and name in value for value in event.arguments.values())
    )


def _runs_fixer(step: TraceStep) -> bool:
    """A tool is left to make such edits."""
    command = step.event.command[:1000] if isinstance(step.event, Command) else ""
    return mentions_any(command, _FIXING_WORDS) and _FIXING_COMMAND.search(command) is not None


def _continues_regardless(
    lane: LaneReading, following: Sequence[TraceStep], after: int, before: float
) -> bool:
    """Edits elsewhere, a check, or a claim: as if nothing had happened."""
    if any(step.check is not None or isinstance(step.event, Edit) for step in following):
        return True
    return any(message.intent == "claim" for message in _agent_messages(lane, after, before))


def _met_missing(lane: LaneReading, missing: MissingFile) -> bool | None:
    """Looked around or asked, as against passing it off as read or editing what is not there."""
    if missing.bluff is not None:
        return False
    for later in _following_steps(lane, missing.step, 5):
        now = later.event
        if isinstance(now, Read):
            if now.path == missing.path:
                return now.ok is not False
            if now.ok is not False:
                return True
        elif isinstance(now, Edit):
            if now.path == missing.path and now.action == "change":
                return False
            break
        elif isinstance(now, ToolUse) or (later.doing is not None and _looks_around(later)):
            return True
    return True if missing.admitted else None


def _looks_around(step: TraceStep) -> bool:
    doing = step.doing
    return doing is not None and (
        doing.searches or bool(step.read) or not _LOOKUP_PROGRAMS.isdisjoint(doing.programs)
    )


def _met_conflict(lane: LaneReading, step: TraceStep) -> bool | None:
    for later in _following_steps(lane, step, 10):
        verbs = list_git_verbs(later)
        command = later.event.command if isinstance(later.event, Command) else ""
        if later.read or isinstance(later.event, Read | Edit) or "--abort" in command:
            return True
        if not _CONFLICT_VERBS.isdisjoint(verbs) or _looks_around(later):
            return True
        if "commit" in verbs or "push" in verbs:
            return False
    return True if _agent_mentions(lane, step.number, float("inf"), "onflict") else None


def _met_contradiction(
    lane: LaneReading, step: TraceStep, results: dict[tuple[str, int], TraceStep]
) -> bool | None:
    """The same check of the same state says something else than before."""
    check = step.check
    if check is None or check.passed is None:
        return None
    before = results.get((check.target, step.state))
    results[check.target, step.state] = step
    if before is None or before.check is None or before.check.passed == check.passed:
        return None
    for later in _following_steps(lane, step, 5):
        if (
            later.check is not None
            and later.check.target == check.target
            and later.state == step.state
        ):
            return True
        if later.read or _looks_around(later):
            return True
        if later.changed:
            break
    if _agent_mentions(lane, step.number, _next_user_message(lane, step.number), "test"):
        return True
    return (
        False
        if check.passed and _continues_regardless(lane, (), step.number, float("inf"))
        else None
    )


def _open_question_states(root: LaneReading) -> list[SurprisingState]:
    """A request that lacks a decision: a question or a stated assumption before the first edit."""
    first = root.changes[0].number if root.changes else None
    before = [
        message
        for message in root.messages
        if message.role == "agent" and (first is None or message.number < first)
    ]
    met = any(
        message.intent == "question" or _ASSUMPTION.search(message.text[:4000])
        for message in before
    )
    if not met and first is None:
        return []
    return [
        SurprisingState(
            surprise="open question", step=root.changes[0] if first else None, met=bool(met)
        )
    ]
