"""Feedback use: are the failures that a check shows gone, fewer or others by the next one?"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Literal

from closeloop.process.agent_claims import has_disclaimer, list_closings, parse_claim
from closeloop.process.check_comparison import (
    compare_failures,
    find_next_comparable,
    is_same_line,
    share_program,
)
from closeloop.process.edit_contents import is_scratch_path, is_source_path
from closeloop.process.measures.verification import (
    EVENT_NUMBER,
    NO_END,
    is_trial,
    is_unclaimed_style,
)
from closeloop.process.printed_output import prints_same
from closeloop.process.rule_helpers import cache_on_reading, uses_stash
from closeloop.process.text_words import mentions_any
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.inspection import (
    CheckFailures,
    LaneReading,
    TraceStep,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    Command,
    Edit,
    Handoff,
    Read,
    ToolUse,
)

FeedbackOutcome = Literal["used", "returned", "repeated", "claimed"]
"""The failures are gone or others; they returned; the check was repeated; success was claimed."""

MAX_TEXT_CHARS = 4000
"""So much of each text is searched for what the output named."""
MAX_ERRORS = 40
MAX_GOOD_RUNS = 20
MAX_EARLIER_CHECKS = 5
"""So many failing checks before one may have named what the test is about."""
_CALLED_NAME = re.compile(r"(\w{3,})\(")
_NAME_PART = re.compile(r"[a-z]{4,}")
_CODE_NAME = re.compile(r"\b[A-Za-z]\w*?(?:_|[a-z][A-Z])\w+")
"""A name of the code in a message: words of prose have neither underscores nor inner capitals."""
_DULL_WORD_LIST = """test tests test_ spec assert assertionerror error errors failed failure
exception none true false self line file python expected actual received should when with that
returns return does from into have been module cases case unit src lib app main init __init__"""
_DULL_WORDS = frozenset(_DULL_WORD_LIST.split())


class FeedbackUse(Record):
    """One turn of the loop: a failing check, and what came of it by the next comparable one."""

    check: TraceStep
    use: FeedbackOutcome
    then: tuple[int, ...] = ()
    """The check that shows it, or the claim."""
    opened: bool | None = None
    """Whether what was done next touches a file, test or name of the output: a second measure,
    beside the effect; None where the output names none."""
    changes_code: bool = True
    """Whether program text was changed up to the next check, or to the claim."""
    is_plain: bool = True
    """Whether the next check is the very same command, or the claim says that checks pass."""


@cache_on_reading
def list_feedback_uses(lane: LaneReading) -> Sequence[FeedbackUse]:
    """Every turn of the loop whose end can be told; the others are left out.

    It is judged by its effect: whether the failures are gone, fewer or different by the next
    comparable check that ran, not by the words that the fix shares with the output.
    """
    uses = []
    for place, step in enumerate(lane.checks):
        check = step.check
        if check is None or check.passed or (check.failures is None and check.blocked is None):
            continue
        use = (
            _judge_blocked_check(lane, place)
            if check.failures is None
            else _judge_failing_check(lane, place)
        )
        if use is not None:
            uses.append(use)
    return uses


def feedback_rate(uses: Sequence[FeedbackUse]) -> Rate | None:
    """The share of failing checks whose output was used."""
    return wilson_rate(sum(use.use == "used" for use in uses), len(uses))


def _judge_blocked_check(lane: LaneReading, place: int) -> FeedbackUse | None:
    """The environment was repaired and the check ran, or it was run again with nothing done."""
    step = lane.checks[place]
    following = next(iter(find_next_comparable(lane.checks, place, ran=False)), None)
    if following is None or following.check is None:
        return None
    if following.check.passed is not None:
        return FeedbackUse(check=step, use="used", then=(following.number,))
    return _find_idle_repeat(lane, step, following)


def _judge_failing_check(lane: LaneReading, place: int) -> FeedbackUse | None:
    step = lane.checks[place]
    first_change = _find_kept_change(lane, step)
    for following in find_next_comparable(lane.checks, place):
        if following.number < first_change:
            # Another look at the same state: what it shows is used, or not, after it.
            return _find_idle_repeat(lane, step, following)
        progress = compare_failures(step, following)
        if progress != "unknown":
            use: FeedbackOutcome = "returned" if progress == "same" else "used"
            return FeedbackUse(
                check=step,
                use=use,
                then=(following.number,),
                opened=_touches_evidence(lane, place, following),
                changes_code=_lies_between(
                    _numbers_of_source_changes(lane), step.number, following.number
                ),
                is_plain=is_same_line(step, following),
            )
    return _find_claim(lane, place)


def _find_idle_repeat(
    lane: LaneReading, step: TraceStep, following: TraceStep
) -> FeedbackUse | None:
    """The very same command, the same result, and nothing done between that may have mattered."""
    between = lane.steps[step.index + 1 : following.index]
    if (
        _is_same_command(step, following)
        and following.check is not None
        and not following.check.passed
        and _fails_the_same(step, following)
        and all(map(_only_looks, between))
    ):
        return FeedbackUse(check=step, use="repeated", then=(following.number,))
    return None


def _fails_the_same(step: TraceStep, following: TraceStep) -> bool:
    """Another failure says that something is different now, outside of the workspace perhaps."""
    if step.check is not None and step.check.failures is not None:
        return compare_failures(step, following) in ("same", "unknown")
    is_cut_off = isinstance(following.event, Command) and following.event.output is None
    return is_cut_off or prints_same(step, following)


def _find_kept_change(lane: LaneReading, step: TraceStep) -> float:
    """When the code is changed next: scratch files and a look at the base do not count."""
    numbers = _numbers_of_kept_changes(lane)
    place = bisect_left(numbers, step.number)
    return numbers[place] if place < len(numbers) else NO_END


@cache_on_reading
def _numbers_of_kept_changes(lane: LaneReading) -> Sequence[int]:
    return [step.number for step in lane.changes if not is_scratch_change(step)]


def is_scratch_change(step: TraceStep) -> bool:
    """It changes nothing that is to be kept: scratch files, or a look at the base."""
    return uses_stash(step) or (bool(step.written) and all(map(is_scratch_path, step.written)))


def has_change_between(changes: Sequence[TraceStep], first: int, last: int) -> bool:
    """One of the changes, which are in order, lies between two events."""
    place = bisect_right(changes, first, key=EVENT_NUMBER)
    return place < len(changes) and changes[place].number < last


def _find_claim(lane: LaneReading, place: int) -> FeedbackUse | None:
    """Success is claimed on top of a failing check, and nothing has run well since."""
    step = lane.checks[place]
    closings = list_closings(lane)
    at = bisect_right(closings, step.number, key=attrgetter("message.number"))
    if at == len(closings) or closings[at].since > step.number:
        return None
    number = closings[at].message.number
    if any(_answers_for(step, run) for run in _list_good_runs(lane, step.number, number)):
        return None
    claim = parse_claim(closings[at].message)
    if claim is None or is_unclaimed_style(step, claim.quote):
        return None
    if has_disclaimer(lane, step.number, number):
        return None
    changes_code = _lies_between(_numbers_of_source_changes(lane), step.number, number)
    return FeedbackUse(
        check=step,
        use="claimed",
        then=(number,),
        changes_code=changes_code,
        is_plain=claim.passing,
    )


def _list_good_runs(lane: LaneReading, first: int, last: int) -> Sequence[TraceStep]:
    runs = _all_good_runs(lane)
    begin = bisect_right(runs, first, key=EVENT_NUMBER)
    return runs[begin : bisect_left(runs, last, key=EVENT_NUMBER)][-MAX_GOOD_RUNS:]


@cache_on_reading
def _all_good_runs(lane: LaneReading) -> Sequence[TraceStep]:
    """Checks that pass, and other runs that end well."""
    return [
        step
        for step in lane.steps
        if (step.check.passed is True if step.check else step.failed is False and is_trial(step))
    ]


def _answers_for(failing: TraceStep, run: TraceStep) -> bool:
    """The run may show that all is well; the same program on other tests does not."""
    if failing.check is None or run.check is None:
        return True
    return not share_program(failing.check, run.check)


@cache_on_reading
def _numbers_of_source_changes(lane: LaneReading) -> Sequence[int]:
    return [
        step.number
        for step in lane.steps
        if step.changed and (not step.written or any(map(is_source_path, step.written)))
    ]


def _lies_between(numbers: Sequence[int], first: int, last: int) -> bool:
    """One of the numbers, which are in order, comes after the first and not after the last."""
    return bisect_right(numbers, first) < bisect_right(numbers, last)


def _touches_evidence(lane: LaneReading, place: int, following: TraceStep) -> bool | None:
    """What was done between acts on something that the output, or an earlier one, names."""
    step = lane.checks[place]
    failures = step.check.failures if step.check else None
    if failures is None:
        return None
    words = set(collect_evidence(failures))
    for earlier in lane.checks[max(0, place - MAX_EARLIER_CHECKS) : place]:
        known = earlier.check.failures if earlier.check else None
        if known is not None and not failures.errors.keys().isdisjoint(known.errors):
            words.update(collect_evidence(known))
    if not words:
        return None
    between = lane.steps[step.index + 1 : following.index + 1]
    return any(mentions_any(text.lower(), tuple(words)) for text in _action_texts(between))


def _is_same_command(step: TraceStep, following: TraceStep) -> bool:
    """The very same command in the very same state."""
    return step.state == following.state and not following.changed and is_same_line(step, following)


def _only_looks(step: TraceStep) -> bool:
    """It only looks: other commands may change what lies outside of the workspace."""
    return step.doing is None or step.doing.searches or bool(step.doing.read)


def collect_evidence(failures: CheckFailures) -> tuple[str, ...]:
    """Words that the output gives one to work with: files, tests, names, in small letters."""
    words: dict[str, None] = {}
    for path in failures.paths:
        name = path.replace("\\", "/").rsplit("/", 1)[-1].split(":", 1)[0].lower()
        words[name] = None
        words[_test_subject(name.split(".", 1)[0])] = None
    for symbol in failures.symbols:
        words[_test_subject(symbol.rsplit(".", 1)[-1].lower())] = None
    for test in list(failures.errors)[:MAX_ERRORS]:
        # A message is full of words that any edit has; the name of a test is not.
        if " " not in test or "::" in test or " > " in test:
            words.update(dict.fromkeys(_NAME_PART.findall(test[-200:].lower())))
        # What the failing line calls is what the test is about.
        called = failures.errors[test].partition("←")[2]
        words.update(dict.fromkeys(_CALLED_NAME.findall(called.lower()) if called else ()))
    for message in list(failures.errors.values())[:MAX_ERRORS]:
        for name in _CODE_NAME.findall(message[:300]):
            if not name.endswith(("Error", "Exception", "Type")):
                words[name.lower()] = None
    return tuple([word for word in words if len(word) > 2 and word not in _DULL_WORDS])


def _test_subject(name: str) -> str:
    """What a test is about: `test_cart` and `cart_test` are about `cart`."""
    for prefix in ("test_", "tests_", "test"):
        if name.startswith(prefix) and len(name) > len(prefix) + 2:
            return name[len(prefix) :]
    for suffix in ("_test", "_spec", ".test", ".spec", "tests", "test"):
        if name.endswith(suffix) and len(name) > len(suffix) + 2:
            return name[: -len(suffix)]
    return name


def _action_texts(steps: Iterable[TraceStep]) -> Iterable[str]:
    """What was acted on: what the action names, not what came out of it."""
    for step in steps:
        event = step.event
        if isinstance(event, Command):
            yield event.command[:MAX_TEXT_CHARS]
        elif isinstance(event, Edit):
            yield event.path
            for text in (event.before, event.after, event.patch):
                if text:
                    yield text[:MAX_TEXT_CHARS]
        elif isinstance(event, Read):
            yield event.path
        elif isinstance(event, ToolUse):
            yield str(event.arguments)[:MAX_TEXT_CHARS]
        elif isinstance(event, Handoff):
            yield event.brief[:MAX_TEXT_CHARS]
