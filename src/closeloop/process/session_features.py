"""Features of a session: plain numbers that say how it went, for the triage of many sessions.

None is not known, which is not zero: a feature that a recording cannot show is left out of what
is concluded from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, takewhile
from operator import attrgetter

from closeloop.process.edit_contents import (
    diff_edit,
    is_scratch_path,
    is_source_path,
    list_code_changes,
    list_submitted_edits,
)
from closeloop.process.handoff_briefs import asks_for_change
from closeloop.process.text_facts import build_automaton
from closeloop.process.verification import is_trial
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Measures
from closeloop.records.trace import Command, Edit, Message, Read, Thought, ToolUse
from closeloop.text.client_markup import strip_client_markup

MAX_WORDS_CHARS = 12_000
"""Characters of the agent's text that are searched for words of doubt and certainty."""
MAX_OUTPUT_CHARS = 3000
"""Characters at the end of an output, which shows how it ended."""
MAX_REQUEST_CHARS = 20_000

HESITATION_WORDS = (
    " but ", " wait", " however", " maybe", " perhaps", " might ", " alternativ", " another way",
    " another approach", " different approach", " instead", " still ", " unfortunately", " seem",
    " apolog", " sorry", " actually", " not sure", " unclear", " strange", " hmm", " mistake",
    " doesn't work", " didn't work", " not work",
)  # fmt: skip
CERTAINTY_WORDS = (
    " confirm", " verif", " as expected", " correctly", " success", " works", " fixed", " passes",
    " passed", " now ", " properly",
)  # fmt: skip
_word_automaton = cache(lambda: build_automaton([*HESITATION_WORDS, *CERTAINTY_WORDS]))
_ERROR_OUTPUT = re.compile(
    r"Traceback \(most recent|\b[A-Z]\w*(?:Error|Exception)\b|\bFAILED\b|\bpanic:|command not found"
    r"|No such file or directory|\berror(?:\[\w+\])?: "
)


Features = Mapping[str, float | None]


def collect_features(
    reading: TraceReading, measures: Measures, findings: Iterable[Finding]
) -> dict[str, float]:
    """Collect all known features of a session; for an empty one, just that."""
    steps = _list_steps(reading)
    if not reading.trace.events:
        return {}
    root = next(iter(reading.lanes.values()))
    changes = _list_lasting_changes(reading)
    if not changes and _submits_code(reading):
        # It was changed in a way that the recording does not show.
        excused: Features = {"no_code_change": 0.0}
    elif not changes and not asks_for_change(strip_client_markup(root.request or "")):
        # A review, an answer or a greeting requires no change.
        excused = {"no_code_change": None}
    else:
        excused = {}
    if not steps:
        features: Features = {"actions": 0.0, "no_code_change": 1.0, **excused}
        return _known_features(features)
    features = {
        **_length_features(reading, steps, measures),
        **_writing_features(steps, changes),
        **_diff_features(root, steps, changes),
        **_failure_features(steps),
        **_checking_features(steps, changes),
        **_measured_features(measures, findings),
        **_word_features(reading, steps),
        **_ending_features(reading, steps),
        **excused,
    }
    return _known_features(features)


def _known_features(features: Features) -> dict[str, float]:
    return {name: float(value) for name, value in features.items() if value is not None}


def _list_steps(reading: TraceReading) -> Sequence[TraceStep]:
    """List the actions of all lanes, in order."""
    lanes = list(reading.lanes.values())
    if len(lanes) == 1:
        return lanes[0].steps
    return sorted(chain.from_iterable(lane.steps for lane in lanes), key=attrgetter("event.number"))


def _list_lasting_changes(reading: TraceReading) -> frozenset[int]:
    """Return event numbers of source code changes, without scratch files."""
    return frozenset(
        step.number for lane in reading.lanes.values() for step in list_code_changes(lane)
    )


def _submits_code(reading: TraceReading) -> bool:
    submitted_edits = list_submitted_edits(reading) or ()
    return any(
        is_source_path(edit.path) and not is_scratch_path(edit.path) for edit in submitted_edits
    )


def _length_features(
    reading: TraceReading, steps: Sequence[TraceStep], measures: Measures
) -> Features:
    turns = [turn for lane in reading.lanes.values() for turn in lane.lane.turns]
    tokens = [turn.usage.output_tokens for turn in turns]
    # Some recordings contain only the last turn's tokens, not a sum.
    is_sum = 2 * tokens.count(None) <= len(tokens)
    read_paths = [path for step in steps for path in step.read]
    return {
        "actions": len(steps),
        "turns": len(turns) or None,
        "output_tokens": measures.usage.output_tokens if is_sum else None,
        "last_turn_tokens": tokens[-1] if tokens else None,
        "tool_text": sum([len(_returned_text(step)) for step in steps]),
        "files_read": len(set(read_paths)),
        "rereads": len(read_paths) - len(set(read_paths)),
        "repeated_actions": 1 - len(set(map(_action_key, steps))) / len(steps),
    }


def _returned_text(step: TraceStep) -> str:
    event = step.event
    if type(event) is Command or type(event) is ToolUse:
        return event.output or ""
    return (event.text or "") if type(event) is Read else ""


def _action_key(step: TraceStep) -> tuple[object, ...]:
    """Return a key that is equal for two identical actions."""
    event = step.event
    if isinstance(event, Command):
        return (event.command,)
    if isinstance(event, Edit):
        return ("edit", event.path, event.before, event.after, event.patch)
    if isinstance(event, Read):
        return ("read", event.path, event.first_line, event.last_line)
    return (event.number,)


def _writing_features(steps: Sequence[TraceStep], changes: frozenset[int]) -> Features:
    """Return features of where in the session code was written."""
    last = len(steps) - 1
    change_indexes = [index for index, step in enumerate(steps) if step.changed]
    source_indexes = [index for index, step in enumerate(steps) if step.number in changes]
    failed_edits = [step for step in steps if step.failed and isinstance(step.event, Edit)]
    return {
        "changes": len(change_indexes),
        "no_code_change": not source_indexes,
        "first_write": change_indexes[0] / len(steps) if change_indexes else None,
        "last_write": (source_indexes[-1] + 1) / len(steps) if source_indexes else None,
        "actions_after_write": last - source_indexes[-1] if source_indexes else None,
        "write_span": source_indexes[-1] - source_indexes[0] if source_indexes else None,
        "failed_edits": len(failed_edits),
    }


def _diff_features(
    root: LaneReading, steps: Sequence[TraceStep], changes: frozenset[int]
) -> Features:
    """Return features of the size and spread of changes, and whether the request names them."""
    if not changes:
        return {}
    writing_steps = [step for step in steps if step.number in changes]
    paths = {path for step in writing_steps for path in step.written}
    sizes = [size for step in writing_steps if (size := _edited_lines(step)) is not None]
    read_paths = [path for step in steps for path in step.read]
    request = (root.request or "")[:MAX_REQUEST_CHARS].lower()
    stems = {path.rsplit("/", 1)[-1].partition(".")[0].lower() for path in paths}
    return {
        "files_changed": len(paths),
        "folders_changed": len({path.rpartition("/")[0] for path in paths}),
        "lines_changed": sum(sizes) if sizes else None,
        "last_edit_lines": sizes[-1] if sizes else None,
        "rewrites": len(writing_steps) - len(paths),
        "focus": sum(path in paths for path in read_paths) / len(read_paths)
        if read_paths
        else None,
        "named_by_request": any(stem in request for stem in stems) if request else None,
    }


def _edited_lines(step: TraceStep) -> int | None:
    """Count lines added and removed, also by commands; None if unknown."""
    changes = [lines for edit in step.edits if (lines := diff_edit(edit)) is not None]
    return sum(len(change.added) + len(change.removed) for change in changes) if changes else None


def _failure_features(steps: Sequence[TraceStep]) -> Features:
    """Return features of failed actions, overall and towards the end."""
    outcomes = [step.failed for step in steps if step.failed is not None]
    late_outcomes = [
        step.failed for step in steps[-max(1, len(steps) // 4) :] if step.failed is not None
    ]
    streak = longest = 0
    for step in steps:
        streak = streak + 1 if step.failed else 0
        longest = max(longest, streak)
    return {
        "failing_share": sum(outcomes) / len(outcomes) if outcomes else None,
        "failing_last_quarter": sum(late_outcomes) / len(late_outcomes) if late_outcomes else None,
        "failures_in_a_row": longest if outcomes else None,
    }


def _checking_features(steps: Sequence[TraceStep], changes: frozenset[int]) -> Features:
    """Return the number of runs, overall and after the last change, and the last one's result."""
    runs = [step for step in steps if step.check is not None or is_trial(step)]
    last_write = max(changes, default=None)
    results = [
        step.check.passed
        for step in runs
        if step.check is not None and step.check.passed is not None
    ]
    return {
        "runs": len(runs),
        "runs_after_write": sum(step.number > last_write for step in runs)
        if last_write is not None
        else None,
        "last_run_fails": _shows_error(runs[-1]) if runs else None,
        "last_check_passes": results[-1] if results else None,
    }


def _shows_error(step: TraceStep) -> bool:
    if step.failed is not None and (step.failed or step.check is not None):
        return step.failed
    return _ERROR_OUTPUT.search(_returned_text(step)[-MAX_OUTPUT_CHARS:]) is not None


def _measured_features(measures: Measures, findings: Iterable[Finding]) -> Features:
    """Return features from measures and findings."""
    feedback = measures.feedback
    rules = {finding.rule for finding in findings if finding.silenced is None}
    return {
        "verified": measures.verified,
        "feedback_unused": feedback.of - feedback.hits if feedback else None,
        "feedback_share": feedback.hits / feedback.of if feedback and feedback.of else None,
        "standstill": measures.standstill,
        "rules_broken": len(rules),
    }


def _word_features(reading: TraceReading, steps: Sequence[TraceStep]) -> Features:
    """Return features of words of doubt and certainty before the last action."""
    last_action = steps[-1].number
    texts = list(_agent_texts(reading, last_action))
    if not any(texts):
        return {}
    words = sum([text.count(" ") + 1 for text in texts])
    searched = " ".join(texts)[-MAX_WORDS_CHARS:].lower().replace("\n", " ")
    searched_words = max(50, searched.count(" ") + 1)
    matches = _word_automaton().find_matches_as_indexes(searched, overlapping=True)
    hesitations = sum([word_index < len(HESITATION_WORDS) for word_index, _, _ in matches])
    return {
        "words": words,
        "hesitations": hesitations,
        "hesitation": hesitations / searched_words,
        "certainty": (len(matches) - hesitations) / searched_words,
    }


def _agent_texts(reading: TraceReading, last_number: int) -> Iterator[str]:
    for event in reading.trace.events:
        if event.number > last_number:
            return
        if type(event) is Thought or (type(event) is Message and event.role == "agent"):
            yield event.text


def _ending_features(reading: TraceReading, steps: Sequence[TraceStep]) -> Features:
    """Return features of the ending and of the request."""
    root = next(iter(reading.lanes.values()))
    # What its user or a hook does afterwards, such as `/exit`, is not the agent's ending.
    events_after = takewhile(
        lambda event: event.number > steps[-1].number, reversed(reading.trace.events)
    )
    return {
        "ends_in_action": not any(
            isinstance(event, Message) and event.role == "agent" for event in events_after
        ),
        "ends_in_edit": isinstance(steps[-1].event, Edit),
        "request_words": (root.request or "").count(" ") + 1 if root.request else None,
    }
