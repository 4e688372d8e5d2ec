"""Use of feedback and recovery: how a lane reacts to failing checks and surprising states."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from operator import attrgetter
from typing import Literal

from ahocorasick_rs import AhoCorasick, Implementation
from msgspec.structs import replace

from closeloop.process.agent_claims import has_disclaimer, list_closings, parse_claim
from closeloop.process.check_commands import names_editing_script
from closeloop.process.check_results import (
    FailureProgress,
    compare_failures,
    covers_check,
    find_comparable,
    find_next_comparable,
    is_same_line,
    prints_same,
    runs_program,
    same_failures,
    share_program,
)
from closeloop.process.edit_contents import (
    EditLines,
    deletes_path,
    diff_edit,
    is_scratch_path,
    is_source_path,
    is_test_source,
    list_file_edits,
)
from closeloop.process.failure_collector import ORIGIN_MARK
from closeloop.process.rule_helpers import cache_on_reading, list_git_verbs, uses_stash
from closeloop.process.stale_files import (
    MissingFile,
    error_mentions,
    find_stale_encounters,
    list_missing_files,
)
from closeloop.process.text_facts import (
    compile_phrases,
    contains_any,
    mentions_any,
    normalise_words,
    word_stems,
)
from closeloop.process.verification import (
    EVENT_NUMBER,
    NO_END,
    is_static_check,
    is_trial,
    is_unclaimed_style,
)
from closeloop.records.change import (
    CheckFailures,
    Iteration,
    LaneReading,
    TraceCheck,
    TraceReading,
    TraceStep,
)
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.text.code_patterns import (
    ASSERTION,
    SKIPPED_TEST,
    SUPPRESSION_WISH,
    find_lowered_floor,
    is_relaxed_setting,
    starting_test,
    strip_suppression,
)

# Whether failures go away from iteration to iteration, and whether actions follow the goal.


class LoopSummary(Record):
    """How far a lane's iterations went."""

    converged_after: int | None
    """Iterations until nothing failed any more; None if that never happened."""
    episodes: int
    """Number of times that something began to fail."""
    closed: int
    """How many of those ended with a comparable check that passes."""
    standstill: int
    """The longest row of iterations with unchanged failures."""


class FailureEpisode:
    """Comparable failing checks, up to the one that passes."""

    def __init__(self, first: TraceStep) -> None:
        self.failing = [first]
        self.closed_by: TraceStep | None = None

    @property
    def known_checks(self) -> Sequence[TraceStep]:
        """Checks of the episode; a failing check comparable with one of them continues it."""
        return self.failing[:1] if len(self.failing) == 1 else (self.failing[0], self.failing[-1])


@cache_on_reading
def summarise_loops(lane: LaneReading) -> LoopSummary | None:
    """Summarise the lane's iterations; None if no check shows whether it passed."""
    episodes = list_episodes(lane)
    if not episodes and not any(
        step.check and step.check.passed is not None for step in lane.checks
    ):
        return None
    closed = [episode.closed_by for episode in episodes if episode.closed_by is not None]
    longest = max((len(row) for row in find_standstills(lane)), default=0)
    return LoopSummary(
        converged_after=_count_iterations(lane, closed) if len(closed) == len(episodes) else None,
        episodes=len(episodes),
        closed=len(closed),
        standstill=longest,
    )


def _count_iterations(lane: LaneReading, closed: Sequence[TraceStep]) -> int | None:
    """Count up to the last check that closed an episode, else up to the first that passes."""
    if closed:
        last = max(step.number for step in closed)
        return sum(iteration.changes[0].number <= last for iteration in lane.iterations) or None
    passing = (number for number, iteration in enumerate(lane.iterations, 1) if iteration.passed)
    return next(passing, None)


MAX_OPEN_EPISODES = 20
"""Simultaneous failures that are kept apart."""


@cache_on_reading
def list_episodes(lane: LaneReading) -> Sequence[FailureEpisode]:
    """List rows of failing checks of the same tests or targets, whatever their commands.

    Checks that cannot run are among them if changed code did not help. A failure that was never
    checked again while another program passed later is left out, because it is unknown whether it
    still fails.
    """
    episodes: list[FailureEpisode] = []
    open_episodes: list[FailureEpisode] = []
    passed: dict[str, TraceStep] = {}
    for step in lane.checks:
        check = step.check
        if check is None or check.passed is None:
            continue
        if check.passed:
            passed[check.target] = step
            _close_episodes(lane, open_episodes, check, step)
            continue
        if check.failures is None:
            continue
        known_checks = [
            known_check for episode in open_episodes for known_check in episode.known_checks
        ]
        earlier = next(find_comparable(check, known_checks), None)
        if earlier is not None:
            owners = {
                known_check.number: episode
                for episode in open_episodes
                for known_check in episode.known_checks
            }
            owners[earlier.number].failing.append(step)
        elif len(open_episodes) < MAX_OPEN_EPISODES:
            open_episodes.append(FailureEpisode(step))
            episodes.append(open_episodes[-1])
    kept_episodes = [
        episode
        for episode in episodes
        if episode.closed_by is not None
        or len(episode.failing) > 1
        or not any(_is_other_pass(episode.failing[-1], step) for step in passed.values())
    ]
    return [*kept_episodes, *_list_blocked_episodes(lane)]


def _list_blocked_episodes(lane: LaneReading) -> list[FailureEpisode]:
    """List checks that still cannot run after changes of the code, or are claimed to pass."""
    episodes: list[FailureEpisode] = []
    for use in list_feedback_uses(lane):
        check = use.check.check
        if check is None or check.blocked is None or use.use not in ("returned", "claimed"):
            continue
        last_checks = [episode.failing[-1] for episode in episodes]
        known_check = next(find_comparable(check, last_checks), None)
        if known_check is not None:
            episodes[last_checks.index(known_check)].failing.append(use.check)
        else:
            episodes.append(FailureEpisode(use.check))
    kept_episodes = []
    for episode in episodes:
        index = bisect_left(lane.checks, episode.failing[-1].number, key=EVENT_NUMBER)
        episode.closed_by = next(iter(find_next_comparable(lane.checks, index)), None)
        # A check that runs later and fails begins an episode of its own.
        if episode.closed_by is None or episode.closed_by.failed is False:
            kept_episodes.append(episode)
    return kept_episodes


def _close_episodes(
    lane: LaneReading, open_episodes: list[FailureEpisode], check: TraceCheck, step: TraceStep
) -> None:
    """A passing check ends the episodes whose last failures it covers and whose tests still run."""
    last_failing = {episode.failing[-1].number: episode for episode in open_episodes}
    for failing in find_comparable(check, [episode.failing[-1] for episode in open_episodes]):
        if compare_failures(failing, step) == "gone" and not _drops_failing_test(
            lane, failing, step
        ):
            episode = last_failing[failing.number]
            episode.closed_by = step
            open_episodes.remove(episode)


def _is_other_pass(failing: TraceStep, step: TraceStep) -> bool:
    """Whether a later pass of another program may have replaced what failed."""
    if step.number < failing.number or failing.check is None or step.check is None:
        return False
    return not share_program(failing.check, step.check)


@cache_on_reading
def find_standstills(lane: LaneReading) -> Sequence[Sequence[Iteration]]:
    """Return the longest rows of iterations after which the same failed in the same way."""
    rows: list[list[Iteration]] = []
    last: list[TraceStep] = []
    for iteration in lane.iterations:
        failing = list_failing_checks(iteration)
        if not failing or iteration.passed is not False:
            if any(step.check and step.check.passed is not None for step in iteration.checks):
                last = []
            continue
        if last and _is_standstill(last, failing):
            rows[-1].append(iteration)
            last = [*failing, *(step for step in last if not _is_repeated(step, failing))]
        else:
            rows.append([iteration])
            last = failing
    return rows


def list_failing_checks(iteration: Iteration) -> list[TraceStep]:
    """Return its checks that ran and failed."""
    return [step for step in iteration.checks if step.check and step.check.failures]


def _is_standstill(last: Sequence[TraceStep], current: Sequence[TraceStep]) -> bool:
    """Whether what was run before fails as it did, and new failures are in what failed already."""
    compared = 0
    for step in current:
        for earlier in find_comparable(step.check, last) if step.check else ():
            progress = compare_failures(earlier, step)
            if progress not in ("same", "unknown") or _adds_failures(earlier, step):
                return False
            compared += progress == "same"
    return compared > 0


def _adds_failures(earlier: TraceStep, later: TraceStep) -> bool:
    """Whether more fails than before, which is not a standstill."""
    before, after = earlier.check, later.check
    if before is None or after is None or before.failures is None or after.failures is None:
        return False
    return after.failures.keys > before.failures.keys and covers_check(before, after)


def _is_repeated(earlier: TraceStep, failing: Sequence[TraceStep]) -> bool:
    return any(
        earlier.check and step.check and earlier.check.target == step.check.target
        for step in failing
    )


# Drift: how related the actions are to the goal, window by window.

WINDOW_STEPS = 20
MAX_WINDOWS = 25
"""Longer lanes are sampled in this many windows, evenly spread."""
_MAX_GOAL_CHARS = 2000
"""Characters of the request that state the goal; what follows is pasted."""
_MAX_MESSAGE_CHARS = 500
_MAX_MESSAGES = 20
_MAX_TERMS = 200
_MAX_TEXT_CHARS = 400
_MIN_ACTIONS = 5


@cache_on_reading
def drift_curve(lane: LaneReading) -> tuple[float, ...]:
    """Return the share of actions that bear on the goal in each window, first to last.

    A file that an action on the goal opens belongs to the goal from then on.
    """
    count = len(lane.steps) // WINDOW_STEPS
    terms = _goal_terms(lane) if count > 1 else []
    if not terms:
        return ()
    window_indexes = (
        range(count)
        if count <= MAX_WINDOWS
        else [index * (count - 1) // (MAX_WINDOWS - 1) for index in range(MAX_WINDOWS)]
    )
    # Created for each lane: this type is the fastest to create.
    goal = AhoCorasick(terms, implementation=Implementation.ContiguousNFA)
    goal_paths: set[str] = set()
    curve = []
    for index in window_indexes:
        action_count = relevant_count = 0
        for step in lane.steps[index * WINDOW_STEPS : (index + 1) * WINDOW_STEPS]:
            bears_on_goal = _bears_on_goal(step, goal, goal_paths)
            if bears_on_goal is not None:
                action_count, relevant_count = action_count + 1, relevant_count + bears_on_goal
        if action_count >= _MIN_ACTIONS:
            curve.append(round(relevant_count / action_count, 3))
    return tuple(curve) if len(curve) > 1 else ()


def drift_slope(curve: Sequence[float]) -> float | None:
    """Return the change of similarity from the first window to the last, by a linear fit."""
    count = len(curve)
    if count < 2:
        return None
    middle, mean = (count - 1) / 2, sum(curve) / count
    rise = sum((index - middle) * (value - mean) for index, value in enumerate(curve))
    run = sum((index - middle) ** 2 for index in range(count))
    return round(rise / run * (count - 1), 3)


def _goal_terms(lane: LaneReading) -> list[str]:
    """Return the significant words of all requests: with a new request the goal grows."""
    user_texts = [message.text[:_MAX_MESSAGE_CHARS] for message in lane.users[:_MAX_MESSAGES]]
    request_text = "\n".join([(lane.request or "")[:_MAX_GOAL_CHARS], *user_texts])
    return sorted(term for term in word_stems(normalise_words(request_text)) if len(term) > 3)[
        :_MAX_TERMS
    ]


def _bears_on_goal(step: TraceStep, goal: AhoCorasick, goal_paths: set[str]) -> bool | None:
    """Whether an action is about the goal; None for checks and waiting."""
    if step.check is not None or (step.effect is not None and step.effect.waits):
        return None
    paths = (*step.read, *step.written)
    if not goal_paths.isdisjoint(paths):
        return True
    if not contains_any(goal, _step_text(step).lower()):
        return False
    goal_paths.update(paths)
    return True


def _step_text(step: TraceStep) -> str:
    event = step.event
    if isinstance(event, Command):
        return f"{event.command[:_MAX_TEXT_CHARS]}\n{(event.output or '')[:_MAX_TEXT_CHARS]}"
    if isinstance(event, Edit):
        return f"{event.path}\n{(event.after or event.patch or '')[:_MAX_TEXT_CHARS]}"
    if isinstance(event, Read):
        return f"{event.path}\n{(event.text or '')[: 2 * _MAX_TEXT_CHARS]}"
    if isinstance(event, ToolUse):
        arguments = (event.arguments or {}).values()
        return "\n".join(value[:_MAX_TEXT_CHARS] for value in arguments if isinstance(value, str))
    return event.brief[:_MAX_TEXT_CHARS] if isinstance(event, Handoff) else ""


# Feedback use: are the failures of a check gone, fewer or different in the next one?


FeedbackOutcome = Literal["used", "returned", "repeated", "claimed", "dropped"]
"""Failures are gone or different; they returned; the check was repeated; success was claimed; the
failing test was removed, skipped or made to expect what the code gives."""

MAX_TEXT_CHARS = 4000
"""Characters of each text that are searched for names of the output."""
MAX_ERRORS = 40
MAX_GOOD_RUNS = 20
MIN_RETURNS = 2
"""Returns of the same failures after which what made them go is no fix."""
MAX_EARLIER_CHECKS = 5
"""Failing checks before one that may have named the subject of the test."""
MAX_CHANGES_BETWEEN = 50
_TEST_WISH = re.compile(
    r"\b(?:skip|xfail|disabl|quarantin|ignor|remov|delet|drop|deprecat|updat|adjust|rewrit|chang"
    r"|adapt|correct|refactor|migrat|repair|fix|clean)\w*\b[^.\n]{0,60}"
    r"(?<![\w-])(?:tests?|specs?|expectations?|assertions?|snapshots?)\b"
)
"""The request wants tests to be changed."""
_REWRITES_EXPECTATIONS = re.compile(
    r"\b(?:jest|vitest|test)\b[^;&|]*\s(?:-u|--update)(?=\s|$)|\s--?(?:updateSnapshot"
    r"|update-snapshots?|snapshot-update|force-regen|update)(?=\s|$)|\bUPDATE_(?:GOLDEN|SNAPSHOTS?"
    r"|EXPECT)\w*="
)
"""A run that stores what the code gives now as what is expected: `jest -u`."""
_MOCK = re.compile(
    r"\b(?:Magic|Async)?Mock\(|\bmonkeypatch\.setattr\(|\bmocker\.patch|\bpatch\(['\"]"
    r"|\b(?:jest|vi)\.(?:mock|fn|spyOn)\(|\.mock(?:Return|Resolved)Value\(|\.and_return\("
)
"""The test is given a result that the code does not give."""
_OTHER_ERROR = re.compile(r"(?<!Assertion)(?:Error|Exception)\b|[Nn]ot found|undefined|No such")
"""A message about something other than a value: the test itself may be at fault."""
_HAS_WORD = re.compile(r"\w")
_TEST_PART = re.compile(r"::|[.>/ ]|\[")
_CALLED_NAME = re.compile(r"(\w{3,})\(")
_NAME_PART = re.compile(r"[a-z]{4,}")
_CODE_NAME = re.compile(r"\b[A-Za-z]\w*?(?:_|[a-z][A-Z])\w+")
"""A code name in a message: prose has neither underscores nor inner capitals."""
_DULL_WORD_LIST = """test tests test_ spec assert assertionerror error errors failed failure
exception none true false self line file python expected actual received should when with that
returns return does from into have been module cases case unit src lib app main init __init__"""
_DULL_WORDS = frozenset(_DULL_WORD_LIST.split())


class FeedbackUse(Record):
    """A failing check, and its outcome by the next comparable one."""

    check: TraceStep
    use: FeedbackOutcome
    then: tuple[int, ...] = ()
    """The check that shows it, or the claim."""
    opened: bool | None = None
    """Whether what was done next touches a file, test or name of the output: a second measure,
    beside the effect; None where the output names none."""
    changes_code: bool = True
    """Whether source code was changed before the next check or the claim."""
    is_plain: bool = True
    """Whether the next check is the very same command, or the claim says that checks pass."""


@cache_on_reading
def list_feedback_uses(lane: LaneReading) -> Sequence[FeedbackUse]:
    """List the failing checks whose outcome is known.

    The outcome is whether the failures are gone, fewer or different in the next comparable check
    that ran, not which words the fix shares with the output.
    """
    uses = []
    for index, step in enumerate(lane.checks):
        check = step.check
        if check is None or check.passed or (check.failures is None and check.blocked is None):
            continue
        use = (
            _judge_blocked_check(lane, index)
            if check.failures is None
            else _judge_failing_check(lane, index)
        )
        if use is not None:
            uses.append(use)
    return _mark_fixes_that_do_not_hold(lane, uses)


def _mark_fixes_that_do_not_hold(
    lane: LaneReading, uses: Sequence[FeedbackUse]
) -> Sequence[FeedbackUse]:
    """Take fixes for not used if what they mended fails again as before, twice or more.

    The last fix is kept: it holds.
    """
    last_failing = {
        frozenset(step.check.failures.errors.items()): step.number
        for step in lane.checks
        if step.check and step.check.failures and step.check.failures.parser != "tail"
    }
    returned: dict[frozenset[tuple[str, str]], list[int]] = {}
    for use in uses:
        failures = use.check.check.failures if use.check.check else None
        errors = frozenset(failures.errors.items()) if failures else frozenset()
        if use.use == "used" and last_failing.get(errors, 0) > use.then[0]:
            returned.setdefault(errors, []).append(use.check.number)
    undone = {number for row in returned.values() if len(row) >= MIN_RETURNS for number in row}
    return [replace(use, use="returned") if use.check.number in undone else use for use in uses]


def feedback_rate(uses: Sequence[FeedbackUse]) -> Rate | None:
    """Return the share of failing checks whose output was used."""
    return wilson_rate(sum(use.use == "used" for use in uses), len(uses))


def _judge_blocked_check(lane: LaneReading, index: int) -> FeedbackUse | None:
    """Judge by whether the environment was repaired and the check ran.

    It was not if the check is repeated idly, if changed code leaves it unable to run in the same
    way, or if the agent says next that the checks pass.
    """
    step = lane.checks[index]
    if isinstance(step.event, Command) and step.event.stopped == "interrupted":
        return None
    following = next(iter(find_next_comparable(lane.checks, index, ran=False)), None)
    if following is None or following.check is None:
        claim = _find_claim(lane, index)
        return claim if claim is not None and claim.is_plain else None
    if following.check.passed is not None:
        return FeedbackUse(check=step, use="used", then=(following.number,))
    if _find_kept_change(lane, step) < following.number:
        changes = [one for one in lane.steps[step.index + 1 : following.index] if one.changed]
        if (
            all(any(map(is_source_path, one.written)) for one in changes)
            and is_same_line(step, following)
            and prints_same(step, following)
        ):
            return FeedbackUse(check=step, use="returned", then=(following.number,))
        return None
    return _find_idle_repeat(lane, step, following)


def _judge_failing_check(lane: LaneReading, index: int) -> FeedbackUse | None:
    step = lane.checks[index]
    first_change = _find_kept_change(lane, step)
    has_passed = False
    for following in find_next_comparable(lane.checks, index):
        if following.number < first_change and not _may_have_written(lane, step, following):
            if following.check is not None and following.check.passed:
                if _drops_failing_test(lane, step, following):
                    return FeedbackUse(check=step, use="dropped", then=(following.number,))
                # It passes by chance: the next change shows whether that was looked into.
                has_passed = True
                continue
            # A repeated check of the same state: its feedback is used, or not, after it.
            return _find_idle_repeat(lane, step, following)
        progress = compare_failures(step, following)
        if progress != "unknown":
            return FeedbackUse(
                check=step,
                use=_judge_progress(lane, index, following, progress),
                then=(following.number,),
                opened=_touches_evidence(lane, index, following),
                changes_code=first_change > following.number
                or _lies_between(_numbers_of_source_changes(lane), step.number, following.number),
                is_plain=is_same_line(step, following),
            )
    return None if has_passed else _find_claim(lane, index)


def _judge_progress(
    lane: LaneReading, index: int, following: TraceStep, progress: FailureProgress
) -> FeedbackOutcome:
    """Return the outcome of a turn; going back to failures that were there before is none."""
    step = lane.checks[index]
    if progress == "same":
        return "returned"
    if progress == "different" and _is_seen_before(lane, index, following):
        return "returned"
    if progress == "gone" and _drops_failing_test(lane, step, following):
        return "dropped"
    return "used"


def _is_seen_before(lane: LaneReading, index: int, following: TraceStep) -> bool:
    """Whether an earlier check, since the last that passes, failed as the following one does."""
    failures = following.check.failures if following.check else None
    if failures is None or failures.parser == "tail":
        return False
    for earlier in reversed(lane.checks[max(0, index - MAX_EARLIER_CHECKS) : index]):
        if earlier.check is None or earlier.check.passed:
            return False
        before = earlier.check.failures
        if before is not None and same_failures(before, failures):
            return True
    return False


def _may_have_written(lane: LaneReading, step: TraceStep, following: TraceStep) -> bool:
    """Whether a program ran in between whose effect on the files is not recorded."""
    is_gone = following.check is not None and following.check.passed is True
    for between in lane.steps[step.index + 1 : following.index]:
        effect = between.effect
        if effect is None or between.check is not None or _only_looks(between):
            continue
        if uses_stash(between):
            return False
        if effect.runs if not is_gone else effect.runs or runs_program(effect):
            return is_gone or any(map(names_editing_script, effect.runs))
    return False


def _drops_failing_test(lane: LaneReading, failing: TraceStep, passing: TraceStep) -> bool:
    """Whether what failed is not tested any more, or its complaint was only silenced.

    The failing test was deleted or skipped, or expects something else, although the code was never
    changed; or all changes in between add marks that silence a linter or type checker, or make the
    settings of a check more lenient.
    """
    failures = failing.check.failures if failing.check else None
    begin = bisect_right(lane.changes, failing.number, key=EVENT_NUMBER)
    end = bisect_left(lane.changes, passing.number, key=EVENT_NUMBER)
    changes = [step for step in lane.changes[begin:end] if not is_scratch_change(step)]
    if failures is None or len(changes) > MAX_CHANGES_BETWEEN:
        return False
    request_text = (lane.request or "")[:MAX_TEXT_CHARS].lower()
    if changes and all(_only_relaxes_settings(step) or _only_silences(step) for step in changes):
        return not SUPPRESSION_WISH.search(request_text)
    if is_static_check(failing):
        return False
    rewrites = not changes and _rewrites_expectations(passing)
    changes_tests = bool(changes) and all(
        step.written and all(map(is_test_source, step.written)) for step in changes
    )
    if not (rewrites or changes_tests) or _TEST_WISH.search(request_text):
        return False
    tests = {_TEST_PART.split(key)[-1] for key in failures.errors}
    names = tests | {*failures.symbols}
    is_code_changed = any(
        is_source_path(path) and not is_test_source(path)
        for step in lane.changes[:begin]
        for path in step.written
    )
    if rewrites:
        return not is_code_changed
    if not is_code_changed and _fits_failing_tests(lane.changes[:begin], changes, failures):
        return True
    return any(
        deletes_path(step, path)
        or _drops_test(edit, names, expects_other=not is_code_changed)
        or (_is_named_by(path, failures) and _leaves_out(edit, tests))
        for step in changes
        for path, edit in list_file_edits(step)
    )


def _fits_failing_tests(
    earlier_changes: Sequence[TraceStep], changes: Sequence[TraceStep], failures: CheckFailures
) -> bool:
    """Whether tests that existed failed in what they expect, and only they were changed."""
    paths = {path for step in changes for path in step.written}
    return (
        all(
            message and not _OTHER_ERROR.search(message.partition(ORIGIN_MARK)[0])
            for message in failures.errors.values()
        )
        and all(_is_named_by(path, failures) for path in paths)
        and paths.isdisjoint(path for step in earlier_changes for path in step.written)
    )


def _is_named_by(path: str, failures: CheckFailures) -> bool:
    """Whether the failures are in this file."""
    places = (*failures.paths, *(key.partition("::")[0] for key in failures.errors))
    return any(place and (path.endswith(place) or place.endswith(path)) for place in places)


def _leaves_out(edit: Edit, tests: Set[str]) -> bool:
    """Whether a file is written anew, without any of the tests."""
    is_whole = edit.before is None and edit.patch is None and edit.after is not None
    return is_whole and not any(test in (edit.after or "") for test in tests)


def _only_relaxes_settings(step: TraceStep) -> bool:
    """Whether a change of settings only makes a check more lenient.

    A rule is switched off, a file or test is left out, a threshold is lowered, or the exit code of
    a check is dropped.
    """
    edits = list(list_file_edits(step))
    return bool(edits) and all(
        (not is_source_path(path) or "config" in path or "rc." in path)
        and (lines := diff_edit(edit)) is not None
        and _relaxes_check(lines)
        for path, edit in edits
    )


def _relaxes_check(lines: EditLines) -> bool:
    added = [line for line in lines.added if _HAS_WORD.search(line)]
    if find_lowered_floor(lines.removed, added) is not None:
        return True
    return any(map(is_relaxed_setting, added)) and not any(map(is_relaxed_setting, lines.removed))


def _rewrites_expectations(step: TraceStep) -> bool:
    event = step.event
    return isinstance(event, Command) and bool(
        _REWRITES_EXPECTATIONS.search(event.command[:MAX_TEXT_CHARS])
    )


def _only_silences(step: TraceStep) -> bool:
    """Whether a change only adds marks that silence a tool, to lines that stay as they are."""
    edit_lines = [diff_edit(edit) for _, edit in list_file_edits(step)]
    return bool(edit_lines) and all(
        lines is not None
        and bool(lines.added)
        and all(strip_suppression(line) in ("", *lines.removed) for line in lines.added)
        for lines in edit_lines
    )


def _drops_test(edit: Edit, names: Set[str], *, expects_other: bool) -> bool:
    """Whether an edit of a test file removes or skips a test, exchanges an assertion or mocks."""
    lines = diff_edit(edit)
    if lines is None:
        return False
    if any(SKIPPED_TEST.search(line) for line in lines.added):
        return True
    added_tests = {starting_test(line) for line in lines.added}
    removed_tests = {test for line in lines.removed if (test := starting_test(line))}
    if removed_tests - added_tests and not added_tests - {None} - removed_tests:
        return any(name in test or test in name for test in removed_tests for name in names)
    return expects_other and (
        any(map(ASSERTION.search, lines.removed)) or any(map(_MOCK.search, lines.added))
    )


def _find_idle_repeat(
    lane: LaneReading, step: TraceStep, following: TraceStep
) -> FeedbackUse | None:
    """Return a repetition of the same command with the same result and nothing relevant in
    between."""
    steps_between = lane.steps[step.index + 1 : following.index]
    if (
        _is_same_command(step, following)
        and following.check is not None
        and not following.check.passed
        and _fails_the_same(step, following)
        and all(map(_only_looks, steps_between))
    ):
        return FeedbackUse(check=step, use="repeated", then=(following.number,))
    return None


def _fails_the_same(step: TraceStep, following: TraceStep) -> bool:
    """Whether the failure is the same; another one may have a cause outside the workspace."""
    if step.check is not None and step.check.failures is not None:
        return compare_failures(step, following) in ("same", "unknown")
    is_cut_off = isinstance(following.event, Command) and following.event.output is None
    return is_cut_off or prints_same(step, following)


def _find_kept_change(lane: LaneReading, step: TraceStep) -> float:
    """Return when the code is changed next, without scratch files and looks at the base."""
    numbers = _numbers_of_kept_changes(lane)
    index = bisect_left(numbers, step.number)
    return numbers[index] if index < len(numbers) else NO_END


@cache_on_reading
def _numbers_of_kept_changes(lane: LaneReading) -> Sequence[int]:
    return [step.number for step in lane.changes if not is_scratch_change(step)]


def is_scratch_change(step: TraceStep) -> bool:
    """Whether it changes nothing that is kept: scratch files, or a look at the base."""
    return uses_stash(step) or (bool(step.written) and all(map(is_scratch_path, step.written)))


def has_change_between(changes: Sequence[TraceStep], first: int, last: int) -> bool:
    """Whether one of the changes, which are in order, is between two events."""
    index = bisect_right(changes, first, key=EVENT_NUMBER)
    return index < len(changes) and changes[index].number < last


def _find_claim(lane: LaneReading, check_index: int) -> FeedbackUse | None:
    """Return a claim of success after a failing check, with no success since."""
    step = lane.checks[check_index]
    closings = list_closings(lane)
    index = bisect_right(closings, step.number, key=attrgetter("message.number"))
    if index == len(closings) or closings[index].since > step.number:
        return None
    number = closings[index].message.number
    if any(_answers_for(step, run) for run in _list_good_runs(lane, step.number, number)):
        return None
    claim = parse_claim(closings[index].message)
    if claim is None or is_unclaimed_style(step, claim.quote):
        return None
    if has_disclaimer(lane, step.number, number):
        return None
    changes_code = _lies_between(_numbers_of_source_changes(lane), step.number, number)
    return FeedbackUse(
        check=step, use="claimed", then=(number,), changes_code=changes_code, is_plain=claim.passing
    )


def _list_good_runs(lane: LaneReading, first: int, last: int) -> Sequence[TraceStep]:
    runs = _all_good_runs(lane)
    begin = bisect_right(runs, first, key=EVENT_NUMBER)
    return runs[begin : bisect_left(runs, last, key=EVENT_NUMBER)][-MAX_GOOD_RUNS:]


@cache_on_reading
def _all_good_runs(lane: LaneReading) -> Sequence[TraceStep]:
    """Return passing checks and other successful runs."""
    return [
        step
        for step in lane.steps
        if (
            step.check.passed is True
            if step.check
            else step.failed is False and is_trial(step) and not step.edits
        )
    ]


def _answers_for(failing: TraceStep, run: TraceStep) -> bool:
    """Whether the run may show success; the same program on other tests does not."""
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
    """Whether one of the ordered numbers is after the first and not after the last."""
    return bisect_right(numbers, first) < bisect_right(numbers, last)


def _touches_evidence(lane: LaneReading, index: int, following: TraceStep) -> bool | None:
    """Whether actions in between concern something that this or an earlier output names."""
    step = lane.checks[index]
    failures = step.check.failures if step.check else None
    if failures is None:
        return None
    evidence = set(collect_evidence(failures))
    for earlier in lane.checks[max(0, index - MAX_EARLIER_CHECKS) : index]:
        earlier_failures = earlier.check.failures if earlier.check else None
        if earlier_failures is not None and not failures.errors.keys().isdisjoint(
            earlier_failures.errors
        ):
            evidence.update(collect_evidence(earlier_failures))
    if not evidence:
        return None
    steps_between = lane.steps[step.index + 1 : following.index + 1]
    return any(mentions_any(text.lower(), tuple(evidence)) for text in _action_texts(steps_between))


def _is_same_command(step: TraceStep, following: TraceStep) -> bool:
    """Whether it is the very same command in the very same state."""
    return step.state == following.state and not following.changed and is_same_line(step, following)


def _only_looks(step: TraceStep) -> bool:
    """Whether it only reads: other commands may change things outside the workspace."""
    return step.effect is None or step.effect.searches or bool(step.effect.read)


def collect_evidence(failures: CheckFailures) -> tuple[str, ...]:
    """Return names in the output to work with: files, tests, names, in lower case."""
    evidence: dict[str, None] = {}
    for path in failures.paths:
        name = path.replace("\\", "/").rsplit("/", 1)[-1].split(":", 1)[0].lower()
        evidence[name] = None
        evidence[_test_subject(name.split(".", 1)[0])] = None
    for symbol in failures.symbols:
        evidence[_test_subject(symbol.rsplit(".", 1)[-1].lower())] = None
    for test in list(failures.errors)[:MAX_ERRORS]:
        # A message contains words that occur in any edit; a test's name does not.
        if " " not in test or "::" in test or " > " in test:
            evidence.update(dict.fromkeys(_NAME_PART.findall(test[-200:].lower())))
        # What the failing line calls is what the test is about.
        call_text = failures.errors[test].partition("←")[2]
        evidence.update(dict.fromkeys(_CALLED_NAME.findall(call_text.lower()) if call_text else ()))
    for message in list(failures.errors.values())[:MAX_ERRORS]:
        for name in _CODE_NAME.findall(message[:300]):
            if not name.endswith(("Error", "Exception", "Type")):
                evidence[name.lower()] = None
    return tuple([word for word in evidence if len(word) > 2 and word not in _DULL_WORDS])


def _test_subject(name: str) -> str:
    """Return the subject of a test: `test_cart` and `cart_test` are about `cart`."""
    for prefix in ("test_", "tests_", "test"):
        if name.startswith(prefix) and len(name) > len(prefix) + 2:
            return name[len(prefix) :]
    for suffix in ("_test", "_spec", ".test", ".spec", "tests", "test"):
        if name.endswith(suffix) and len(name) > len(suffix) + 2:
            return name[: -len(suffix)]
    return name


def _action_texts(steps: Iterable[TraceStep]) -> Iterable[str]:
    """Return what actions name, not their results."""
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


# Recovery: how a lane responds to the unexpected, one surprising state at a time.


SurpriseKind = Literal[
    "failed edit", "missing file", "conflict", "contradiction", "changed file", "open question"
]

NEAR_STEPS = 20
"""Following actions that are examined if nothing shows the outcome sooner."""
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
    """The surprising step; None for the request itself."""
    path: str | None = None
    met: bool


def mentions_problem(text: str) -> bool:
    """Whether a text says that something is not as it should be."""
    return _PROBLEM_PHRASES(text.lower())


def recovery_rate(items: Sequence[SurprisingState]) -> Rate | None:
    """Return the share of surprising states followed by reading again, asking or reporting."""
    return wilson_rate(sum(item.met for item in items), len(items))


@cache_on_reading
def find_surprises(reading: TraceReading) -> Mapping[str, Sequence[SurprisingState]]:
    """Return surprising states by lane, without those whose handling is unknown."""
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
    """Return failed edits with the lane's reaction."""
    items = []
    for failed_edits in _group_failed_edits(lane):
        is_met = _met_failed_edit(lane, failed_edits)
        if is_met is not None:
            step = failed_edits[0]
            items.append(
                SurprisingState(surprise="failed edit", step=step, path=step.written[0], met=is_met)
            )
    return items


def _group_failed_edits(lane: LaneReading) -> Sequence[Sequence[TraceStep]]:
    """Return failed edits, grouped by call."""
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
    """Yield failed edits without any reaction while the work continued."""
    unmet_states = {
        item.step: item for item in list_failed_edits(lane) if item.step and not item.met
    }
    last_indexes = {
        path.rpartition("/")[2]: step.index
        for step in (lane.steps if unmet_states else ())
        for path in (*step.read, *step.written)
    }
    for failed_edits in _group_failed_edits(lane) if unmet_states else ():
        item = unmet_states.get(failed_edits[0])
        if (
            item
            and max(last_indexes[name] for name in _file_names(failed_edits))
            <= failed_edits[-1].index
        ):
            yield item


def _file_names(edits: Sequence[TraceStep]) -> set[str]:
    return {step.written[0].rpartition("/")[2] for step in edits}


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
    surprise: SurpriseKind, step: TraceStep, is_met: bool | None
) -> Iterator[SurprisingState]:
    if is_met is not None:
        yield SurprisingState(surprise=surprise, step=step, met=is_met)


def _following_steps(
    lane: LaneReading, step: TraceStep, max_steps: int = NEAR_STEPS
) -> Sequence[TraceStep]:
    """Return the next steps, up to the user's next message."""
    end = _next_user_message(lane, step.number)
    steps = lane.steps[step.index + 1 : step.index + 1 + max_steps]
    return [later for later in steps if later.number < end]


def _next_user_message(lane: LaneReading, after: int) -> float:
    start = bisect_right(lane.messages, after, key=attrgetter("number"))
    for message in lane.messages[start : start + 200]:
        if message.role == "user":
            return message.number
    return float("inf")


def _agent_messages(lane: LaneReading, after: int, before: float) -> Iterator[Message]:
    start = bisect_right(lane.messages, after, key=attrgetter("number"))
    for message in lane.messages[start : start + NEAR_STEPS]:
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


def _met_failed_edit(lane: LaneReading, failed_edits: Sequence[TraceStep]) -> bool | None:
    """Whether it read the file again, asked, reported it, or succeeded in another way."""
    names, step = _file_names(failed_edits), failed_edits[0]
    sent_along = {edit.index for edit in failed_edits if edit.written != step.written}
    following = [
        later
        for later in _following_steps(lane, step)
        # Calls sent in the same answer could not react to the failure.
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
    """Whether its first words after the failure are about it."""
    before = following[0].number if following else _next_user_message(lane, step.number)
    first_message = next(_agent_messages(lane, step.number, before), None)
    return (
        first_message is not None and not following and mentions_problem(first_message.text[:1000])
    )


def _is_one_try(step: TraceStep, later: TraceStep) -> bool:
    """Whether one call that was to change several places failed once."""
    first, second = step.event, later.event
    if first.call is not None and first.call == second.call:
        return True
    if later.index != step.index + 1 or first.turn != second.turn:
        return False
    return isinstance(first, Edit) and isinstance(second, Edit) and first.error == second.error


def _is_same_text(edit: Edit, earlier: object) -> bool:
    intended_text = earlier.after.strip() if isinstance(earlier, Edit) and earlier.after else ""
    return bool(intended_text) and edit.after is not None and intended_text in edit.after


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
    """Whether a tool is used to make such edits."""
    command = step.event.command[:1000] if isinstance(step.event, Command) else ""
    return mentions_any(command, _FIXING_WORDS) and _FIXING_COMMAND.search(command) is not None


def _continues_regardless(
    lane: LaneReading, following: Sequence[TraceStep], after: int, before: float
) -> bool:
    """Whether it edits elsewhere, checks or claims as if nothing had happened."""
    if any(step.check is not None or isinstance(step.event, Edit) for step in following):
        return True
    return any(message.intent == "claim" for message in _agent_messages(lane, after, before))


def _met_missing(lane: LaneReading, missing: MissingFile) -> bool | None:
    """Whether it looked around or asked, instead of pretending or editing what does not exist."""
    if missing.bluff is not None:
        return False
    for later in _following_steps(lane, missing.step, 5):
        event = later.event
        if isinstance(event, Read):
            if event.path == missing.path:
                return event.ok is not False
            if event.ok is not False:
                return True
        elif isinstance(event, Edit):
            if event.path == missing.path and event.action == "change":
                return False
            break
        elif isinstance(event, ToolUse) or (later.effect is not None and _looks_around(later)):
            return True
    return True if missing.admitted else None


def _looks_around(step: TraceStep) -> bool:
    effect = step.effect
    return effect is not None and (
        effect.searches or bool(step.read) or not _LOOKUP_PROGRAMS.isdisjoint(effect.programs)
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
    """Handle the same check of the same state with another result than before."""
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
    """Return whether an open request led to a question or assumption before the first edit."""
    first_change = root.changes[0].number if root.changes else None
    early_messages = [
        message
        for message in root.messages
        if message.role == "agent" and (first_change is None or message.number < first_change)
    ]
    is_met = any(
        message.intent == "question" or _ASSUMPTION.search(message.text[:4000])
        for message in early_messages
    )
    if not is_met and first_change is None:
        return []
    return [
        SurprisingState(
            surprise="open question",
            step=root.changes[0] if first_change else None,
            met=bool(is_met),
        )
    ]
