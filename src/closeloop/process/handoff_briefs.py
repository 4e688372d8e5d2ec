"""What a brief should hold, and what the child made of it."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from closeloop.process.rule_helpers import cache_on_reading
from closeloop.process.text_facts import (
    PreparedText,
    TextFact,
    find_sentence_targets,
    find_targets,
    is_same_path,
    parse_facts,
    prepare_text,
    states_fact,
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

# Both sides of every handoff: what the parent was asked, what the child did, what came after.

MAX_WINDOW_STEPS = 200
"""So many steps of the parent before and after a handoff are looked at."""
MAX_TEXT_CHARS = 4000
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


@cache_on_reading
def list_handoff_contexts(reading: TraceReading) -> Sequence[HandoffContext]:
    """Every handoff of a trace, in order."""
    events = reading.handoffs
    turns: dict[str, list[int]] = {}
    for event in events:
        if event.child is not None:
            turns.setdefault(event.child, []).append(event.number)
    return [
        _build_handoff_context(reading, event, turns.get(event.child or "", [])) for event in events
    ]


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
    reading: TraceReading, event: Handoff, turns: Sequence[int]
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


def _parent_request(reading: TraceReading, parent: LaneReading, spoken: int) -> str | None:
    """The user's last words that stand alone, with what was answered or corrected since."""
    texts: list[str] = []
    for message in reversed(parent.messages[max(0, spoken - MAX_WINDOW_STEPS) : spoken]):
        if message.role != "user":
            continue
        texts.append(message.text)
        is_addition = message.intent in ("answer", "correction", "interrupt")
        if not is_addition and len(message.text[:MAX_TEXT_CHARS].split()) >= MIN_REQUEST_WORDS:
            break
    if texts:
        return "\n\n".join(reversed(texts))
    if parent.request is None and parent.lane.parent is None and reading.task:
        return reading.task.prompt or None
    return parent.request


FIRST_STEPS = 5
"""The child's first steps show what it understood."""
MIN_WHOLE_SHARE = 0.6
"""With so much of the request's words in the brief, all of the work is handed on."""
MAX_STEPS = 100
_HIDDEN_TEXT = re.compile(r"\W*(?:(?:redacted|encrypted|omitted)\W*)?", re.IGNORECASE)
_CHANGE_REQUEST = re.compile(
    r"(?:^|[.:;\n]\s*|\b(?:to|and|then|please|must|should|you)\s+)(?:\*\*)?"
    r"(?:implement|writ|fix|add|creat|chang|refactor|updat|remov|renam|migrat|port|convert|replac|"
    r"build|make|repair|extend|mov)(?:e|ing|s)?\b"
)
_DEMAND = re.compile(
    r"\b(?:must|should|shall|at (?:most|least)|no more than|limit\w*|max\w*|min|minimum|within|"
    r"exactly|set|use|default\w*|threshold|time-?outs?)\b"
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


class BriefNeed(Record):
    """A fact that the child needs."""

    fact: TextFact
    present: bool
    clear: bool = False
    """Beyond doubt about this part of the work, so that leaving it out is a fault."""


def is_hidden_text(text: str) -> bool:
    """It was said, and the recording does not tell what."""
    return _HIDDEN_TEXT.fullmatch(text) is not None


def missing_planted_facts(facts: Sequence[str], brief: str) -> tuple[str, ...]:
    """Planted facts that a brief does not hold, word for word."""
    words = normalise_words(brief) if facts else ""
    return tuple(fact for fact in facts if normalise_words(fact) not in words)


@cache_on_reading
def list_all_needs(reading: TraceReading) -> Sequence[Sequence[BriefNeed] | None]:
    """Of every handoff, in order."""
    return [find_brief_needs(one) for one in list_handoff_contexts(reading)]


def find_brief_needs(one: HandoffContext) -> list[BriefNeed] | None:
    """What the child needs of what was asked and learned; None where the trace does not say."""
    if one.asked is None or is_hidden_text(one.event.brief):
        return None
    brief, asked = prepare_text(full_brief_text(one)), prepare_text(one.asked)
    whole = bool(asked.stems) and len(asked.stems & brief.stems) >= MIN_WHOLE_SHARE * len(
        asked.stems
    )
    facts = parse_facts(one.asked)
    if any(fact.always for fact in facts) and not child_makes_changes(one):
        facts = tuple(fact for fact in facts if not fact.always)
    missing: list[TextFact] = []
    brief_needs: list[BriefNeed] = []
    for fact in facts:
        if states_fact(brief, fact):
            brief_needs.append(BriefNeed(fact=fact, present=True))
        else:
            missing.append(fact)
    kept_sentences = _sentences_done_by_parent(missing, one.after)
    for fact in missing:
        related, clear = _assess_relevance(fact, brief, one)
        if fact.always or ((whole or related) and fact.sentence not in kept_sentences):
            clear = clear or (whole and _is_definite_restriction(fact))
            brief_needs.append(BriefNeed(fact=fact, present=False, clear=clear))
    return brief_needs + [
        BriefNeed(fact=fact, present=states_fact(brief, fact))
        for fact in _facts_learned_earlier(one, brief)
    ]


def find_dropped_facts(
    one: HandoffContext, needed: Iterable[BriefNeed]
) -> list[tuple[TextFact, TraceStep | None]]:
    """Facts beyond doubt that the child was not told and never saw; with the step against it."""
    missing: list[tuple[TextFact, TraceStep | None]] = []
    if not any(fact.always or _is_demand(fact) for fact in parse_facts(one.asked or "")):
        return []
    for need in needed:
        if need.present:
            continue
        violation = _find_violation(need.fact, one.work)
        if (need.clear or violation) and not _child_saw_fact(one.work, need.fact):
            missing.append((need.fact, violation))
    return missing


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
        return bool(_CHANGE_REQUEST.search(one.event.brief[:4000].casefold()))
    return bool(one.child.changes)


def is_brief_understood(one: HandoffContext) -> bool | None:
    """Whether the child aims at the brief's targets at once; None without targets or steps."""
    sought = short_names(find_targets(one.event.brief)) if one.work else ()
    if not sought:
        return None
    if any(step_touches(step, sought) for step in one.work[:FIRST_STEPS]):
        return True
    # Words alone are no aim: they count when the work then goes where they say.
    plan = _first_messages(one)
    return mentions_any(plan, sought) and _child_reaches(one, sought)


def list_missed_files(one: HandoffContext) -> tuple[str, ...]:
    """Files that the brief names and the child never came near, although it changed others."""
    changed = " ".join(dict.fromkeys(_written_paths(one))).casefold()
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


def _assess_relevance(
    fact: TextFact, brief: PreparedText, one: HandoffContext
) -> tuple[bool, bool]:
    """Whether a fact that was left out is about this part of the work; and beyond doubt."""
    around = _surrounding_stems(fact)
    shared = len(around & brief.stems)
    related = shared >= 2 and shared >= 0.5 * len(around)
    if fact.kind == "number":
        return related, shared >= 3 and shared >= 0.6 * len(around) and _is_demand(fact)
    return related, _is_definite_restriction(fact) and (related or _is_near_work(fact, one))


# What was asked is asked of every handoff.
@lru_cache(1024)
def _surrounding_stems(fact: TextFact) -> frozenset[str]:
    """The words that a fact stands among; of a restriction all."""
    own = (
        () if fact.kind in ("prohibition", "constraint") else word_stems(normalise_words(fact.text))
    )
    return word_stems(normalise_words(fact.sentence)).difference(own)


def _is_near_work(fact: TextFact, one: HandoffContext) -> bool:
    """What it speaks of lies beside what the brief names or the child changes."""
    folders = _parent_folders(fact.targets)
    return bool(folders) and not folders.isdisjoint(
        _parent_folders((*find_targets(one.event.brief), *_written_paths(one)))
    )


@lru_cache(1024)
def _is_demand(fact: TextFact) -> bool:
    """A quantity that is asked for, not one that was observed."""
    if fact.kind != "number" or fact.text.isdigit():
        return False
    return _DEMAND.search(fact.sentence.casefold()) is not None


def _is_definite_restriction(fact: TextFact) -> bool:
    """A restriction that can be kept or broken; committing and pushing is the parent's affair."""
    if not fact.always or word_stems(normalise_words(fact.sentence)) & {
        "commit",
        "push",
        "merg",
        "branch",
    }:
        return False
    return fact.kind == "prohibition" or bool(fact.targets)


def _sentences_done_by_parent(missing: Sequence[TextFact], after: Sequence[TraceStep]) -> set[str]:
    """Sentences about what the parent then does itself: it kept that part of the work."""
    named = [(fact, normalise_words(fact.text).strip()) for fact in missing if not fact.always]
    if not named:
        return set()
    signs = [_longest_word(words) for _, words in named]
    texts = (step_input(step) for step in after if step.changed)
    parent_text = " ".join(
        normalise_words(text) for text in texts if mentions_any(text.casefold(), signs)
    )
    return {fact.sentence for fact, words in named if f" {words} " in parent_text}


@lru_cache(4096)
def _longest_word(words: str) -> str:
    return max(words.split(), key=len, default="")


def _written_paths(one: HandoffContext) -> Iterator[str]:
    return (path for step in one.work if step.changed for path in step.written)


def _parent_folders(paths: Iterable[str]) -> set[str]:
    return {path.rpartition("/")[0] for path in paths} - {"", "."}


def _facts_learned_earlier(one: HandoffContext, brief: PreparedText) -> Iterator[TextFact]:
    """What the parent had found out and the child went on to need."""
    if written := dict.fromkeys(_written_paths(one)):
        known = {path for step in one.before for path in (*step.read, *step.written)}
        for path in [path for path in written if path in known][:20]:
            yield TextFact(kind="path", text=path, sentence=path)
    check = next((step.check for step in reversed(one.before) if step.check), None)
    failures = check.failures if check else None
    if failures and failures.parser != "tail" and brief.stems & {"fail", "fix", "repair", "pass"}:
        tests = [key.rpartition("::")[2] for key in list(failures.errors)[:20]]
        facts = [
            TextFact(kind="symbol", text=test, sentence=test) for test in tests if test.strip()
        ]
        yield from [fact for fact in facts if states_fact(brief, fact)][:1] or facts[:1]


def _find_violation(fact: TextFact, work: Sequence[TraceStep]) -> TraceStep | None:
    """The child's first change of a file that it should have been told to leave alone."""
    if fact.kind != "prohibition":
        return None
    for step in work if fact.targets else ():
        if step.changed and any(
            is_same_path(target, path) for target in fact.targets for path in step.written
        ):
            return step
    return None


def _child_saw_fact(work: Sequence[TraceStep], fact: TextFact) -> bool:
    """Whether something that the child read states the fact."""
    longest_stems = sorted(
        word_stems(normalise_words(fact.sentence)), key=lambda word: (len(word), word)
    )
    digits = tuple(re.findall(r"\d+", fact.text)) if fact.kind == "number" else ()
    signs = digits or short_names(fact.targets) or tuple(longest_stems[-2:])
    return any(
        mentions_any(text, signs) and states_fact(prepare_text(text), fact)
        for text in map(step_output, work[:MAX_STEPS])
    )


def _child_reaches(one: HandoffContext, sought: Sequence[str]) -> bool:
    return any(
        mentions_any(step_input(step), sought) or mentions_any(step_output(step), sought)
        for step in one.work
    )


def _first_messages(one: HandoffContext) -> str:
    messages = one.child.messages[: 2 * FIRST_STEPS] if one.child else ()
    return " ".join(message.text[:4000] for message in messages if message.role == "agent")
