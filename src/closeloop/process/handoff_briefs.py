"""Both sides of every handoff: the brief, what the child did, what the parent did after."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from operator import attrgetter

import msgspec

from closeloop.process.rule_helpers import cache_on_reading
from closeloop.process.text_facts import (
    find_sentence_targets,
    find_targets,
)
from closeloop.process.text_words import (
    compile_phrases,
    mentions_any,
    normalise_words,
    split_sentences,
    word_stems,
)
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
    TraceStep,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    Command,
    Edit,
    Handoff,
    Message,
    Read,
    ToolUse,
)
from closeloop.text.client_markup import is_client_text, strip_client_markup

MAX_WINDOW_STEPS = 200
"""So many steps of the parent before and after a handoff are looked at."""
MAX_TEXT_CHARS = 4000
MAX_SIBLINGS = 20
MIN_REQUEST_WORDS = 8
"""Words; a message of fewer cannot stand alone: `Yes, do that.`"""


class HandoffContext(Record):
    """One handoff. The parent's steps and words are those next to it."""

    event: Handoff
    asked: str | None
    """What the parent was asked when it handed the work on; None where the trace does not say."""
    parent: LaneReading
    child: LaneReading | None
    work: Sequence[TraceStep]
    """What the child did for this handoff, without what its own children did."""
    before: Sequence[TraceStep]
    after: Sequence[TraceStep]
    said: Sequence[Message]
    """The parent's words afterwards."""
    other_briefs: Sequence[str] = ()
    """What the parent handed to others: it may have split the work."""


@cache_on_reading
def list_handoff_contexts(reading: TraceReading) -> Sequence[HandoffContext]:
    """Every handoff of a trace, in order."""
    events = reading.handoffs
    turns: dict[str, list[int]] = {}
    siblings: dict[str, list[Handoff]] = {}
    for event in events:
        siblings.setdefault(event.lane, []).append(event)
        if event.child is not None:
            turns.setdefault(event.child, []).append(event.number)
    return [
        _build_handoff_context(
            reading, event, turns.get(event.child or "", []), siblings[event.lane][:MAX_SIBLINGS]
        )
        for event in events
    ]


def until_user_speaks(one: HandoffContext) -> HandoffContext:
    """The same handoff, with what the parent does and says before the user has the next word."""
    first = bisect_right(one.parent.users, one.event.number, key=attrgetter("number"))
    asks = islice(one.parent.users, first, first + MAX_WINDOW_STEPS)
    end = next((message.number for message in asks if not is_client_text(message.text)), None)
    if end is None:
        return one
    return msgspec.structs.replace(
        one,
        after=[step for step in one.after if step.number < end],
        said=[message for message in one.said if message.number < end],
    )


def step_input(step: TraceStep) -> str:
    """What the agent wrote to act: command, path, arguments, brief."""
    event = step.event
    if isinstance(event, Command):
        return event.command[:MAX_TEXT_CHARS]
    if isinstance(event, Edit):
        return f"{event.path} {(event.after or event.patch or '')[:MAX_TEXT_CHARS]}"
    if isinstance(event, Read):
        return event.path
    if isinstance(event, ToolUse):
        return f"{event.name} {str(event.arguments)[:MAX_TEXT_CHARS]}"
    return event.brief[:MAX_TEXT_CHARS]


def step_output(step: TraceStep) -> str:
    """What the agent was shown for it."""
    event = step.event
    if isinstance(event, Read):
        return event.text or ""
    if isinstance(event, Handoff):
        return event.report or ""
    return "" if isinstance(event, Edit) else event.output or ""


def short_names(targets: Iterable[str]) -> tuple[str, ...]:
    """How files and code are called when they are mentioned: by the last part of their name."""
    short = (target.replace("\\", "/").rstrip("/").rpartition("/")[2] for target in targets)
    return tuple(dict.fromkeys(name for name in short if len(name) > 2))


def _build_handoff_context(
    reading: TraceReading, event: Handoff, turns: Sequence[int], siblings: Sequence[Handoff]
) -> HandoffContext:
    parent = reading.lanes[event.lane]
    child = reading.lanes.get(event.child) if event.child not in (None, event.lane) else None
    first = bisect_left(parent.steps, event.number, key=_event_number)
    last = bisect_right(parent.steps, event.number, key=_event_number)
    message_count = bisect_right(parent.messages, event.number, key=lambda message: message.number)
    end = message_count + MAX_WINDOW_STEPS
    later_messages = [one for one in parent.messages[message_count:end] if one.role == "agent"]
    if end < len(parent.messages) and parent.messages[-1].role == "agent":
        later_messages.append(parent.messages[-1])
    return HandoffContext(
        event=event,
        asked=_parent_request(reading, parent, message_count),
        parent=parent,
        child=child,
        work=_child_work(child, event, turns) if child else (),
        before=parent.steps[max(0, first - MAX_WINDOW_STEPS) : first],
        after=parent.steps[last : last + MAX_WINDOW_STEPS],
        said=later_messages,
        other_briefs=[other.brief for other in siblings if other is not event],
    )


def _event_number(step: TraceStep) -> int:
    return step.event.number


def _child_work(child: LaneReading, event: Handoff, turns: Sequence[int]) -> Sequence[TraceStep]:
    """All of the child's steps; where it was called again, those up to or from then on."""
    if len(turns) < 2:
        return child.steps
    place = bisect_left(turns, event.number)
    start = bisect_left(child.steps, event.number, key=_event_number) if place else 0
    if place + 1 >= len(turns):
        return child.steps[start:]
    return child.steps[start : bisect_left(child.steps, turns[place + 1], key=_event_number)]


# One message stands before many handoffs.
_strip_markup = lru_cache(256)(strip_client_markup)


def _parent_request(reading: TraceReading, parent: LaneReading, spoken: int) -> str | None:
    """The user's last words that stand alone, with what was answered or corrected since."""
    texts: list[str] = []
    for message in reversed(parent.messages[max(0, spoken - MAX_WINDOW_STEPS) : spoken]):
        if message.role != "user":
            continue
        text = _strip_markup(message.text)
        if not text:
            continue
        texts.append(text)
        is_addition = message.intent in ("answer", "correction", "interrupt")
        if not is_addition and len(text[:MAX_TEXT_CHARS].split()) >= MIN_REQUEST_WORDS:
            break
    if texts:
        return "\n\n".join(reversed(texts))
    if parent.request is None and parent.lane.parent is None and reading.task:
        return reading.task.prompt or None
    return parent.request


FIRST_STEPS = 5
"""The child's first steps show what it understood."""
MAX_STEPS = 100
_HIDDEN_TEXT = re.compile(r"\W*(?:(?:redacted|encrypted|omitted)\W*)?", re.IGNORECASE)
_CHANGE_REQUEST = re.compile(
    r"(?:^|[.:;\n]\s*|\b(?:to|and|then|please|must|should|you)\s+)(?:\*\*)?"
    r"(?:implement|writ|fix|add|creat|chang|refactor|updat|remov|renam|migrat|port|convert|replac|"
    r"build|make|repair|extend|mov)(?:e|ing|s)?\b"
)
_READING_BRIEF = re.compile(
    r"^\W*(?:you(?:'re| are) (?:an? |the |doing )*[^.\n]{0,60}?(?:review|explor|research|audit)"
    r"|(?:please |can you )?(?:\w+ly )?(?:review|explore|research|investigate|analy[sz]e|find"
    r"|search|look (?:at|into|for|up)|explain|summari[sz]e|audit|list|check|inspect|trace"
    r"|locate|read|map|study|understand|examine|compare|evaluate|assess)\b"
    r"(?![^.\n]{0,80}\band (?:fix|implement|add|chang|updat|rewrit|refactor|apply)))"
    r"|\b(?:research|read|review|analysis)[- ]only\b"
    r"|\b(?:do not|don't|without|never|not) (?:writ|edit|modif|chang|mak)\w* (?:any |the |to )?"
    r"(?:files?|code|changes|edits|anything)\b(?! (?:outside|other|except|in |to |under))"
)
_CONTEXT = compile_phrases(
    r"context\w*", "background", "because", "since", "currently", "so far", "already", "existing",
    "project", "codebase", "part of", "goal", "the user", "we (?:are|have|want|need)", "you are",
    "this is", "dans (?:le|une)",
)  # fmt: skip
_SCOPE = compile_phrases(
    "scope", "focus", r"limit\w* (?:yourself )?to", "in the (?:files?|folder|module)"
)
_BOUNDARY = compile_phrases(
    "only", "nothing else", "no other", "do not", "don't", "just", "solely", "read-?only",
    "out of scope", "uniquement", "unique", "ne pas",
)  # fmt: skip
_HOW_TO_REPORT = compile_phrases(
    "report", "return", "summari[sz]e", "summary", "reply", "respond", "answer with", "tell me",
    "let me know", "attempt_completion", r"rapport\w*", "output format",
)  # fmt: skip
_PRECEDENCE = compile_phrases(
    "supersedes?", "overrides?", "takes? precedence", "regardless", "in conflict",
    "conflicts? with", "ignore (?:any|all|previous|earlier)", "instead of", "wins?", "even if",
    "remplacent",
)  # fmt: skip
BRIEF_PARTS = 5


_QUESTION = re.compile(
    r"\W*(?:what|why|how|where|which|who|when|is|are|does|do|did|can)\b[^.\n]*\?"
)


def is_hidden_text(text: str) -> bool:
    """It was said, and the recording does not tell what."""
    return _HIDDEN_TEXT.fullmatch(text) is not None


def missing_planted_facts(facts: Sequence[str], brief: str) -> tuple[str, ...]:
    """Planted facts that a brief does not hold, word for word."""
    words = normalise_words(brief) if facts else ""
    return tuple(fact for fact in facts if normalise_words(fact) not in words)


def full_brief_text(one: HandoffContext) -> str:
    """The brief, with what else the child was told before its first step."""
    texts = [one.event.brief]
    if one.child and one.child.handoff is one.event:
        first = one.child.steps[0].number if one.child.steps else None
        texts += [
            message.text
            for message in one.child.messages[:MAX_STEPS]
            if message.role != "agent" and (first is None or message.number < first)
        ]
    return "\n\n".join(dict.fromkeys(texts))


def count_brief_parts(brief: str) -> int:
    """How many of the five parts of a good brief it has."""
    lowercase_brief = brief[:20_000].casefold().replace("’", "'")
    scope = _SCOPE(lowercase_brief) or _names_target(brief)
    others = (_CONTEXT, _BOUNDARY, _HOW_TO_REPORT, _PRECEDENCE)
    return scope + sum(part(lowercase_brief) for part in others)


def _names_target(brief: str) -> bool:
    return any(True for sentence in split_sentences(brief) for _ in find_sentence_targets(sentence))


def child_makes_changes(one: HandoffContext) -> bool:
    """Whether the child changes files; where it is not on record, whether it is asked to."""
    if one.child is None or not one.child.steps:
        brief = one.event.brief[:MAX_TEXT_CHARS].casefold()
        return not is_reading_brief(brief) and _CHANGE_REQUEST.search(brief) is not None
    return bool(one.child.changes) and not is_reading_brief(one.event.brief)


def is_reading_brief(brief: str) -> bool:
    """It asks to find out, review or explain, and for no change."""
    return _READING_BRIEF.search(brief[:MAX_TEXT_CHARS].casefold()) is not None


def asks_only_to_look(request: str) -> bool:
    """A review, an explanation or an answer is wanted, and no change of the code."""
    words = request.strip()
    return is_reading_brief(words) or _QUESTION.fullmatch(words.casefold()) is not None


def is_brief_understood(one: HandoffContext) -> bool | None:
    """Whether the child's first steps, or its first change, aim at the brief's targets.

    None without targets or steps.
    """
    sought = short_names(find_targets(one.event.brief)) if one.work else ()
    if not sought:
        return None
    stems = (name.partition(".")[0] for name in sought)
    aims = (*sought, *(stem for stem in stems if len(stem) > 4))
    first_change = next((step for step in one.work if step.changed), None)
    first_steps = (*one.work[:FIRST_STEPS], *filter(None, [first_change]))
    if any(step_touches(step, aims) for step in first_steps):
        return True
    # Words alone are no aim: they count when the work then goes where they say.
    plan = _first_messages(one)
    return mentions_any(plan, sought) and _child_reaches(one, sought)


def list_missed_files(one: HandoffContext) -> tuple[str, ...]:
    """Files that the brief names and the child never came near, although it changed others."""
    changed = " ".join(dict.fromkeys(list_written_paths(one))).casefold()
    targets = find_targets(one.event.brief) if changed else ()
    files = tuple(name for name in targets if _names_code(name))
    if not files or _child_reaches(one, short_names(targets)):
        return ()
    # A brief may name a file in passing and tell in words what it is about.
    words = [word for word in word_stems(normalise_words(one.event.brief)) if len(word) > 3]
    return () if mentions_any(changed, words) else files


def _names_code(name: str) -> bool:
    return ("/" in name or "." in name) and not name.endswith((".md", ".rst", ".txt", ".log"))


def step_touches(step: TraceStep, sought: Sequence[str]) -> bool:
    """Whether a step names one of those things, or opens a file that does."""
    return mentions_any(step_input(step), sought) or (
        bool(step.read) and mentions_any(step_output(step), sought)
    )


def list_written_paths(one: HandoffContext) -> Iterator[str]:
    """Files that the child changed for this handoff."""
    return (path for step in one.work if step.changed for path in step.written)


def _child_reaches(one: HandoffContext, sought: Sequence[str]) -> bool:
    return any(
        mentions_any(step_input(step), sought) or mentions_any(step_output(step), sought)
        for step in one.work
    )


def _first_messages(one: HandoffContext) -> str:
    messages = one.child.messages[: 2 * FIRST_STEPS] if one.child else ()
    return " ".join(message.text[:4000] for message in messages if message.role == "agent")
