"""The agent stopped after too few tries, with a failing check or without any change.

## What it looks for

The end of the root lane, in two forms:

- the last check failed, nothing was changed after it, there were fewer than two iterations
  (changes, then a check), and the agent gave up: by its exit, or by its last message ("I was unable
  to …", "still fails");
- a change was requested, and the agent ends without changing anything but scratch files: with
  advice, with a claim, or without a message. In a project that has code already, so do scripts that
  the agent wrote and ran, and tests that it added, if no file that was there is changed.

Nothing is reported if the last message is truncated (in a sentence, a code block or a thought) or
only a tag; if a file shows the new text although the tool reported an error; or if the client told
the agent to continue for many turns, because it may have run out of them. For the second form,
nothing is reported if the agent says that no change is needed or that something is missing. Nothing
is reported either if the agent asked, if the user wrote after it, if the attempt was stopped from
outside, if the check could not run, if nothing was changed and nothing had to be fixed (a review, a
question), or if the agent names an external reason: access, credentials, network, the environment,
an earlier failure.

## Why it matters

Budget was left, and the output of the check showed where to look.

## Bad

```text
#2  pytest -q     FAILED tests/test_cart.py::test_total - assert 10 == 12
#3  edit cart.py
#4  pytest -q     FAILED tests/test_cart.py::test_total - assert 11 == 12
#5  "I couldn't get test_total to pass."
```

## Good

```text
#2  pytest -q     FAILED tests/test_mail.py::test_send - SMTPAuthenticationError
#3  "test_send needs the password of the mail server, which I do not have. Please provide it."
```

## When it can be measured

The first form: if at least one check has a known result, by exit code or by output. The second
form: always.

## Thresholds and silencing

`iterations` (2): this many iterations count as a real try.

```toml
[rules.gave-up-early]
iterations = 3

[[silence]]
rule = "gave-up-early"
task = "triage-*"
reason = "these only ask for a look"
```

## How sure it is

It is advisory: whether another try would have helped is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from closeloop.process.agent_claims import admits_problem, ends_work
from closeloop.process.edit_contents import (
    find_created_files,
    is_scratch_path,
    is_source_path,
    is_test_source,
)
from closeloop.process.rule_helpers import (
    describe_failures,
    explain_unreadable_checks,
    truncate_line,
)
from closeloop.process.verification import could_not_run
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Message
from closeloop.text.client_markup import strip_client_markup
from closeloop.text.wording import compile_lazily

rule = Rule(
    name="gave-up-early",
    version=6,
    about="The agent stopped after too few tries, with a failing check or without any change.",
    severity="warning",
    thresholds={"iterations": 2},
)

MAX_REQUEST_CHARS = 12_000
MAX_LAST_WORDS_CHARS = 2000
MIN_ANSWERS = 2
"""A single answer may come from a client without tools."""
INSTALLERS = frozenset(("pip", "pip3", "conda", "apt", "apt-get", "npm", "python"))
"""They write outside the code, or only what a program generates."""
MIN_CUT_CHARS = 400
"""A shorter text without a full stop is just careless."""
MAX_URGES = 3
MANY_TURNS = 20
"""An agent that was urged this often, and did this much, may have run out of turns."""
_TAG = compile_lazily(r"<[^<>\n]{1,40}>")
_OPEN_THOUGHT = compile_lazily(
    r"<(think|thinking|thought)>(?!.*</\1>)|begin_of_thought(?!.*end_of_thought)", re.S
)
CHANGE_WISH = compile_lazily(
    r"(?:^|[.!?:;]\s+|\bplease |\bhelp me (?:to )?|\b(?:can|could) you (?:please )?|\bto )"
    r"(?:implement|fix|add|change|update|rewrite|refactor|remove|rename|repair)\b",
    re.MULTILINE,
)
NO_CHANGE_WISH = compile_lazily(
    r"\b(?:do not|don't|without) (?:chang|edit|modify|implement|fix)\w* (?:any|the code|code)\b"
    r"|\b(?:change|edit|modify|fix) nothing\b|\bmake no (?:code )?changes\b"
    r"|^\W*(?:plan|review|explain|investigate|analy[sz]e|research)\b|\bread-only\b|\bplan mode\b",
    re.MULTILINE,
)
"""A request to look, plan or answer needs no change."""
_NOTHING_TO_CHANGE = compile_lazily(
    r"\bno (?:\w+ )?(?:changes?|fix|action|modifications?) (?:is|are|was|were)? ?(?:needed|required"
    r"|necessary)|\balready\b|\bnot (?:reproduc|present|a bug|possible|able to)\w*"
    r"|\b(?:don't|do not) need to\b|\bplease (?:provide|confirm|share|let me know which|clarify)"
)
_JUSTIFICATION = compile_lazily(
    r"\b(?:permission|credential|access|network|offline|internet|api key|token|password"
    r"|not installed|unavailable|sandbox|environments?|runtime|tooling|timed? ?out|pre-?existing"
    r"|unrelated|out of scope"
    r"|read-only|licen[cs]e"
    r"|please (?:provide|confirm|advise|let me know|clarify)"
    r"|before (?:i|we) (?:go on|proceed|continue)"
    r"|as (?:you )?(?:asked|requested|instructed))\b"
)
_STOPPING_WORDS = compile_lazily(
    r"\b(?:i(?:'m| am)? (?:was )?(?:unable|not able|giving up|stuck|stopping)|i give up|gave up"
    r"|(?:could not|couldn't|cannot|can't) (?:fix|resolve|solve|find|get|make|figure|complete)"
    r"|beyond (?:my|the scope)|still fail\w*|remain\w* (?:failing|unresolved|unfixed)"
    r"|not (?:been )?(?:resolved|fixed|solved)|did(?:n't| not) (?:work|succeed|manage))\b"
)


_SOURCE_NAME = compile_lazily(r"[\w/.-]/\w+\.(?:py|js|ts|go|rs|java|rb|c|cc|cpp|php)\b")
"""A file of program text in a listing."""
_REPAIR_WISH = compile_lazily(
    r"\b(?:fix\w*|repair|resolve|solve|mend|implement|add|make|get|debug|pass(?:es)?|green)\b"
)
"""An agent that should look and report does not give up."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report if the root changed nothing, or its last check failed after too few iterations."""
    exit_ = reading.attempt.exit if reading.attempt else None
    stopped = exit_ not in (None, "finished", "gave_up") or not reading.lanes
    if not stopped and (ending := _find_empty_ending(reading)):
        return [ending]
    if reason := explain_unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    if stopped:
        return []
    root = next(iter(reading.lanes.values()))
    failing = _last_failing_check(root)
    if not root.changes and not _REPAIR_WISH.search((root.request or "")[:4000].lower()):
        return []
    if failing is None or len(root.iterations) >= limits["iterations"]:
        return []
    last = next((message for message in reversed(root.messages) if message.role == "agent"), None)
    if not _stops_without_reason(
        last, given_up=exit_ == "gave_up", after=failing
    ) or _user_spoke_since(root, failing):
        return []
    assert failing.check is not None, "it is a check"
    assert failing.check.failures is not None, "it failed"
    tries = len(root.iterations)
    quote = f": “{truncate_line(last.text)}”" if last is not None else ""
    return [
        make_finding(
            rule,
            f"It stopped after {tries} {'try' if tries == 1 else 'tries'} with "
            f"{truncate_line(describe_failures(failing.check.failures))} failing{quote}.",
            [failing.number, *([last.number] if last else [])],
            lane=root.lane.id,
            confidence=0.9 if exit_ == "gave_up" else 0.75,
        )
    ]


def _find_empty_ending(reading: TraceReading) -> Finding | None:
    """Report a requested change if the agent ended without changing anything that lasts."""
    root = next(iter(reading.lanes.values()))
    last = reading.trace.events[-1] if reading.trace.events else None
    ends_in_message = (
        isinstance(last, Message) and last.role == "agent" and last.intent != "question"
    )
    if last is None or not (ends_in_message or ends_work(last)):
        return None
    lasting_changes = [step for step in root.changes if _may_last(step)]
    if lasting_changes and not _only_tries(root, lasting_changes):
        return None
    if isinstance(last, Message) and (_is_cut_off(last.text) or _was_urged(root)):
        return None
    if any(_has_landed(root, step) for step in root.edits[-MANY_TURNS:] if step.failed):
        return None
    if not root.steps and sum(message.role == "agent" for message in root.messages) < MIN_ANSWERS:
        return None
    request = strip_client_markup((root.request or "")[:MAX_REQUEST_CHARS]).lower()
    if len(root.users) > 1 or not CHANGE_WISH.search(request) or NO_CHANGE_WISH.search(request):
        return None
    last_text = last.text[-MAX_LAST_WORDS_CHARS:].lower() if isinstance(last, Message) else ""
    if last_text.rstrip().endswith("?") or _NOTHING_TO_CHANGE.search(last_text):
        return None
    unchanged = "any file that was there" if lasting_changes else "anything"
    return make_finding(
        rule,
        f"A change was requested, but the agent ended without changing {unchanged}.",
        [*([root.steps[-1].number] if root.steps else []), last.number],
        lane=root.lane.id,
        confidence=0.9,
    )


def _is_cut_off(text: str) -> bool:
    """Whether it has no word, or ends in an open block, a thought or the middle of a sentence."""
    untagged = _TAG.sub("", text).strip()
    if not untagged or text.count("```") % 2 or _OPEN_THOUGHT.search(text):
        return True
    return untagged[-1].isalnum() and untagged[-1].islower() and len(untagged) > MIN_CUT_CHARS


def _was_urged(root: LaneReading) -> bool:
    """Whether the client urged it repeatedly to continue and then stopped."""
    urge_count = sum(message.role == "system" for message in root.messages)
    turns = len(root.steps) + sum(message.role == "agent" for message in root.messages)
    return urge_count >= MAX_URGES and turns >= MANY_TURNS


def _has_landed(root: LaneReading, step: TraceStep) -> bool:
    """Whether the tool reported an error although the file shows the new text."""
    event = step.event
    intended_text = (getattr(event, "after", None) or "").strip()
    if not intended_text or is_scratch_path(step.written[0]):
        return False
    return any(
        intended_text in _text_of(later)
        for later in root.steps[step.index + 1 :]
        if step.written[0] in later.read
    )


def _may_last(step: TraceStep) -> bool:
    """Whether it may have changed something to keep: only scratch files certainly do not last."""
    if step.written:
        return not all(map(is_scratch_path, step.written))
    programs = step.effect.programs if step.effect else ()
    return INSTALLERS.isdisjoint(name.partition(" ")[0] for name in programs)


def _only_tries(root: LaneReading, changes: Sequence[TraceStep]) -> bool:
    """Whether the agent only wrote new tests and scripts, which nobody else named."""
    created = find_created_files(root.changes)
    written_paths = {path for step in changes for path in step.written}
    if not all(step.written for step in changes) or not written_paths <= created.keys():
        return False
    names = {path.rpartition("/")[2] for path in written_paths if not is_scratch_path(path)}
    run_scripts = {
        name.rpartition("/")[2]
        for step in root.commands
        if step.effect is not None
        for name in step.effect.runs
    }
    only_trials = all(
        is_test_source(path) or path.rpartition("/")[2] in run_scripts for path in written_paths
    )
    request = root.request or ""
    if not only_trials or any(name in request for name in names):
        return False
    earlier_steps = root.steps[: changes[0].index]
    return any(is_source_path(path) for step in earlier_steps for path in step.read) or any(
        _SOURCE_NAME.search(_text_of(step)[:MAX_REQUEST_CHARS]) for step in earlier_steps
    )


def _text_of(step: TraceStep) -> str:
    return getattr(step.event, "text", None) or getattr(step.event, "output", None) or ""


def _last_failing_check(root: LaneReading) -> TraceStep | None:
    """Return the last check if it failed and nothing was changed since."""
    last = root.checks[-1] if root.checks else None
    if last is None or last.check is None or last.check.failures is None or could_not_run(last):
        return None
    changed = root.changes[-1].number if root.changes else 0
    return last if changed <= last.number else None


def _stops_without_reason(last: Message | None, *, given_up: bool, after: TraceStep) -> bool:
    """Whether it ends without success and without an external reason."""
    if last is None or last.intent == "question":
        return given_up and last is None
    lower_text = last.text[:6000].lower().replace("’", "'")
    if lower_text.rstrip().endswith("?") or _JUSTIFICATION.search(lower_text):
        return False
    if last.number < after.number:
        return given_up
    return given_up or _STOPPING_WORDS.search(lower_text) is not None or admits_problem(lower_text)


def _user_spoke_since(root: LaneReading, failing: TraceStep) -> bool:
    """Whether the user spoke or was asked since, so that stopping was not the agent's choice."""
    return any(
        message.number > failing.number and (message.role == "user" or message.intent == "question")
        for message in reversed(root.messages)
    )
