"""Both sides of every handoff: the brief, the child's work, the parent's actions afterwards."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import compress, islice, pairwise
from operator import attrgetter

import msgspec

from closeloop.process.rule_helpers import cache_on_reading
from closeloop.process.text_facts import (
    PreparedText,
    TextFact,
    compile_phrases,
    find_sentence_targets,
    find_targets,
    is_same_path,
    mentions_any,
    normalise_words,
    parse_facts,
    prepare_text,
    split_paragraph,
    split_paragraphs,
    split_sentences,
    states_fact,
    word_stems,
)
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.text.client_markup import is_client_text, strip_client_markup
from closeloop.text.wording import compile_lazily

MAX_WINDOW_STEPS = 200
"""Steps of the parent before and after a handoff that are examined."""
MAX_TEXT_CHARS = 4000
MAX_SIBLINGS = 20
MIN_REQUEST_WORDS = 8
"""A message with fewer words cannot stand alone: `Yes, do that.`"""


class HandoffContext(Record):
    """One handoff, with the parent's adjacent steps and messages."""

    event: Handoff
    request: str | None
    """The parent's request when it handed the work on; None if unknown."""
    parent: LaneReading
    child: LaneReading | None
    work: Sequence[TraceStep]
    """The child's steps for this handoff, without its own children's."""
    before: Sequence[TraceStep]
    after: Sequence[TraceStep]
    messages: Sequence[Message]
    """The parent's messages afterwards."""
    other_briefs: Sequence[str] = ()
    """The parent's other briefs, among which it may have split the work."""


@cache_on_reading
def list_handoff_contexts(reading: TraceReading) -> Sequence[HandoffContext]:
    """List every handoff of a trace, in order."""
    events = reading.handoffs
    turns: dict[str, list[int]] = {}
    briefs: dict[str, list[str]] = {}
    brief_indexes: list[int] = []
    for event in events:
        lane_briefs = briefs.setdefault(event.lane, [])
        brief_indexes.append(len(lane_briefs))
        lane_briefs.append(event.brief)
        if event.child is not None:
            turns.setdefault(event.child, []).append(event.number)
    return [
        _build_handoff_context(
            reading,
            event,
            turns.get(event.child or "", []),
            _leave_out(briefs[event.lane][:MAX_SIBLINGS], index),
        )
        for event, index in zip(events, brief_indexes, strict=True)
    ]


def _leave_out(texts: list[str], index: int) -> Sequence[str]:
    return texts[:index] + texts[index + 1 :]


def until_user_speaks(handoff: HandoffContext) -> HandoffContext:
    """Return the handoff limited to before the user's next message."""
    first = bisect_right(handoff.parent.users, handoff.event.number, key=attrgetter("number"))
    user_messages = islice(handoff.parent.users, first, first + MAX_WINDOW_STEPS)
    end = next(
        (message.number for message in user_messages if not is_client_text(message.text)), None
    )
    if end is None:
        return handoff
    return msgspec.structs.replace(
        handoff,
        after=[step for step in handoff.after if step.number < end],
        messages=[message for message in handoff.messages if message.number < end],
    )


def step_input(step: TraceStep) -> str:
    """Return what the agent wrote to act: command, path, arguments, brief."""
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
    """Return what the agent was shown."""
    event = step.event
    if isinstance(event, Read):
        return event.text or ""
    if isinstance(event, Handoff):
        return event.report or ""
    return "" if isinstance(event, Edit) else event.output or ""


def short_names(targets: Iterable[str]) -> tuple[str, ...]:
    """Return how files and code are mentioned: by the last part of their name."""
    names = (target.replace("\\", "/").rstrip("/").rpartition("/")[2] for target in targets)
    return tuple(dict.fromkeys(name for name in names if len(name) > 2))


def _build_handoff_context(
    reading: TraceReading, event: Handoff, turns: Sequence[int], other_briefs: Sequence[str]
) -> HandoffContext:
    parent = reading.lanes[event.lane]
    child = reading.lanes.get(event.child) if event.child not in (None, event.lane) else None
    first = bisect_left(parent.steps, event.number, key=_event_number)
    last = bisect_right(parent.steps, event.number, key=_event_number)
    message_count = bisect_right(parent.messages, event.number, key=lambda message: message.number)
    end = message_count + MAX_WINDOW_STEPS
    later_messages = [
        message for message in parent.messages[message_count:end] if message.role == "agent"
    ]
    if end < len(parent.messages) and parent.messages[-1].role == "agent":
        later_messages.append(parent.messages[-1])
    return HandoffContext(
        event=event,
        request=_parent_request(reading, parent, message_count),
        parent=parent,
        child=child,
        work=_child_work(child, event, turns) if child else (),
        before=parent.steps[max(0, first - MAX_WINDOW_STEPS) : first],
        after=parent.steps[last : last + MAX_WINDOW_STEPS],
        messages=later_messages,
        other_briefs=other_briefs,
    )


def _event_number(step: TraceStep) -> int:
    return step.event.number


def _child_work(child: LaneReading, event: Handoff, turns: Sequence[int]) -> Sequence[TraceStep]:
    """Return the child's steps; if it was called again, those up to or from then on."""
    if len(turns) < 2:
        return child.steps
    index = bisect_left(turns, event.number)
    start = bisect_left(child.steps, event.number, key=_event_number) if index else 0
    if index + 1 >= len(turns):
        return child.steps[start:]
    return child.steps[start : bisect_left(child.steps, turns[index + 1], key=_event_number)]


# One message may precede many handoffs.
_strip_markup = lru_cache(256)(strip_client_markup)


def _parent_request(reading: TraceReading, parent: LaneReading, spoken: int) -> str | None:
    """Return the user's last self-contained message, with answers and corrections since."""
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
"""The child's first steps, which show what it understood."""
MAX_STEPS = 100
_HIDDEN_TEXT = compile_lazily(r"\W*(?:(?:redacted|encrypted|omitted)\W*)?", re.IGNORECASE)
_CHANGE_REQUEST = compile_lazily(
    r"(?:^|[.:;\n]\s*|\b(?:to|and|then|please|must|should|you)\s+)(?:\*\*)?"
    r"(?:implement|writ|fix|add|creat|chang|refactor|updat|remov|renam|migrat|port|convert|replac|"
    r"build|make|repair|extend|mov)(?:e|ing|s)?\b"
)
_READING_BRIEF = compile_lazily(
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


MIN_PROBLEM_WORDS = 30
"""A request with fewer words that names no change may be a greeting or a test."""
_QUESTION = compile_lazily(
    r"\W*(?:what|why|how|where|which|who|when|is|are|does|do|did|can)\b[^.\n]*\?"
)


def is_hidden_text(text: str) -> bool:
    """Whether it was said but is not in the recording."""
    return _HIDDEN_TEXT.fullmatch(text) is not None


def missing_planted_facts(facts: Sequence[str], brief: str) -> tuple[str, ...]:
    """Return planted facts that a brief does not contain literally."""
    words = normalise_words(brief) if facts else ""
    return tuple(fact for fact in facts if normalise_words(fact) not in words)


def full_brief_text(handoff: HandoffContext) -> str:
    """Return the brief with what else the child was told before its first step."""
    texts = [handoff.event.brief]
    if handoff.child and handoff.child.handoff is handoff.event:
        first = handoff.child.steps[0].number if handoff.child.steps else None
        texts += [
            message.text
            for message in handoff.child.messages[:MAX_STEPS]
            if message.role != "agent" and (first is None or message.number < first)
        ]
    return "\n\n".join(dict.fromkeys(texts))


def count_brief_parts(brief: str) -> int:
    """Count how many of the five parts of a good brief it has."""
    lowercase_brief = brief[:20_000].casefold().replace("’", "'")
    scope = _SCOPE(lowercase_brief) or _names_target(brief)
    part_matchers = (_CONTEXT, _BOUNDARY, _HOW_TO_REPORT, _PRECEDENCE)
    return scope + sum(matches_part(lowercase_brief) for matches_part in part_matchers)


def _names_target(brief: str) -> bool:
    return any(True for sentence in split_sentences(brief) for _ in find_sentence_targets(sentence))


def child_makes_changes(handoff: HandoffContext) -> bool:
    """Whether the child changes files; if not recorded, whether it is asked to."""
    if handoff.child is None or not handoff.child.steps:
        brief = handoff.event.brief[:MAX_TEXT_CHARS].casefold()
        return not is_reading_brief(brief) and _CHANGE_REQUEST.search(brief) is not None
    return bool(handoff.child.changes) and not is_reading_brief(handoff.event.brief)


def is_reading_brief(brief: str) -> bool:
    """Whether it asks to find out, review or explain, and for no change."""
    return _READING_BRIEF.search(brief[:MAX_TEXT_CHARS].casefold()) is not None


def asks_for_change(request: str) -> bool:
    """Whether code is to be changed, as far as the request says: it says so, or is as long as a
    description of a problem, and asks for no review, explanation or answer.
    """
    text = request.strip()[:MAX_TEXT_CHARS].casefold()
    if is_reading_brief(text):
        return False
    if _CHANGE_REQUEST.search(text):
        return True
    return _QUESTION.fullmatch(text) is None and text.count(" ") >= MIN_PROBLEM_WORDS


def is_brief_understood(handoff: HandoffContext) -> bool | None:
    """Whether the child's first steps, or its first change, concern the brief's targets.

    None without targets or steps.
    """
    target_names = short_names(find_targets(handoff.event.brief)) if handoff.work else ()
    if not target_names:
        return None
    stems = (name.partition(".")[0] for name in target_names)
    target_words = (*target_names, *(stem for stem in stems if len(stem) > 4))
    first_change = next((step for step in handoff.work if step.changed), None)
    first_steps = (*handoff.work[:FIRST_STEPS], *filter(None, [first_change]))
    if any(step_touches(step, target_words) for step in first_steps):
        return True
    # Words alone are no target: they count if the work then touches what they name.
    plan = _first_messages(handoff)
    return mentions_any(plan, target_names) and _child_reaches(handoff, target_names)


def list_missed_files(handoff: HandoffContext) -> tuple[str, ...]:
    """Return files that the brief names and the child never touched, although it changed others."""
    changed = " ".join(dict.fromkeys(list_written_paths(handoff))).casefold()
    targets = find_targets(handoff.event.brief) if changed else ()
    files = tuple(name for name in targets if _names_code(name))
    if not files or _child_reaches(handoff, short_names(targets)):
        return ()
    # A brief may mention a file in passing and describe its subject in words.
    words = [word for word in word_stems(normalise_words(handoff.event.brief)) if len(word) > 3]
    return () if mentions_any(changed, words) else files


def _names_code(name: str) -> bool:
    return ("/" in name or "." in name) and not name.endswith((".md", ".rst", ".txt", ".log"))


def step_touches(step: TraceStep, sought: Sequence[str]) -> bool:
    """Whether a step names one of those things, or opens a file that does."""
    return mentions_any(step_input(step), sought) or (
        bool(step.read) and mentions_any(step_output(step), sought)
    )


def list_written_paths(handoff: HandoffContext) -> Iterator[str]:
    """Yield files that the child changed for this handoff."""
    return (path for step in handoff.work if step.changed for path in step.written)


def _child_reaches(handoff: HandoffContext, target_names: Sequence[str]) -> bool:
    return any(
        mentions_any(step_input(step), target_names)
        or mentions_any(step_output(step), target_names)
        for step in handoff.work
    )


def _first_messages(handoff: HandoffContext) -> str:
    messages = handoff.child.messages[: 2 * FIRST_STEPS] if handoff.child else ()
    return " ".join(message.text[:4000] for message in messages if message.role == "agent")


# What a brief should contain: the part of the request and of the parent's knowledge that this child
# needs.
#
# A brief for a part of the work needs only the facts that concern this part. A sentence of the
# request concerns it when the two share a target or most of their words; a requirement that names
# no target of its own (`Never fall back to local time.`) concerns whatever the sentence before it
# asks for.


MIN_WHOLE_SHARE = 0.6
"""With this share of the request's words in the brief, all of the work is handed on."""
MAX_TRACE_SHARE = 1 / 3
"""With at most this share of its words in the brief, a requirement is gone, not reworded."""
MAX_EXCERPT_RATIO = 1.2
"""A brief longer than this, relative to the request, rewords it."""

_NUMBER_BOUND = compile_lazily(
    r"\b(?:under|below|over|above|within|less than|fewer than|no (?:less|fewer) than|more than"
    r"|up to|faster than|exactly|max(?:imum)?(?: of)?|min(?:imum)?(?: of)?)"
    r"\s+(?:\w+\s+){0,2}?[$€£]?\d"
)
_REQUIREMENT_START = compile_lazily(
    r"\b(?:(?<!has )(?<!have )(?<!had )(?<!it )(?<!they )(?<!i )(?<!we )never\b"
    r"|(?<!i )must\b(?: not\b|n't\b)?|shall\b|may not\b"
    r"|(?<!i )(?<!we )(?<!they )(?<!users )(?<!tests )(?:do not|don't)\b"
    r"(?! (?:worry|need|have|know|think|see|hesitate|forget|want|care|mind|get|like|understand)\b)"
    r"|avoid\b|without (?!\w+ing any\b)\w+ing\b|at most\b|at least\b|no more than\b"
    r"|no (?:new|external|other|third|global|additional|extra)\b)"
)
_REQUIREMENT_WORDS = ("never", "must", "shall", " not", "n't", "avoid", "without", "at ", "no ")
_NARRATIVE = compile_lazily(
    r"\b(?:took|takes|was|were|currently|now|got|has been|expired|failed|fails|noticed|saw)\b"
)
_DEMAND = compile_lazily(
    r"\b(?:must|should|shall|at (?:most|least)|no more than|limit\w*|max\w*|min|minimum|within|"
    r"under|below|less than|up to|exactly|set|use|default\w*|threshold|time-?outs?)\b"
)
_PARENT_AFFAIR_STEMS = word_stems(
    " commit push merge branch amend rebase release deploy report ask tell answer summary summarize"
    " summarise reply stop wait confirm approve approval agent subagent plan explain forget "
)
"""Topics of requirements on the parent, which talks to the user."""
_GLOBAL_HEADING = compile_lazily(
    r"\b(?:constraints?|rules|requirements|non-goals|all items|everywhere|throughout)\b"
)
_DOCUMENT = compile_lazily(
    r"\b[\w./-]+\.(?:md|txt|rst|ya?ml|json)\b|\b(?:spec|ticket|issue|plan)\b"
)
_FAILING_WORK = compile_lazily(
    r"\b(?:fix|repair|make|get|debug|resolve)\w*\b[^.\n]{0,60}"
    r"(?:\b(?:fail\w*|broken|errors?|red|pass|green)\b|\btests?\b)"
)
_THOUSANDS = compile_lazily(r",(?<=\d,)(?=\d{3}\b)")


class BriefNeed(Record):
    """A fact that the child needs."""

    fact: TextFact
    present: bool
    clear: bool = False
    """Whether it certainly concerns this part of the work, so that omitting it is a fault."""


class _RequestView:
    """The request beside its brief, computed lazily."""

    def __init__(self, handoff: HandoffContext, request: str) -> None:
        self.one = handoff
        self.request = prepare_text(request)
        self.brief = prepare_text(_THOUSANDS.sub("", full_brief_text(handoff)))

    @cached_property
    def _others(self) -> tuple[Sequence[PreparedText], PreparedText]:
        """Return the briefs of the parent's other handoffs, and all their words."""
        texts = [prepare_text(_THOUSANDS.sub("", text)) for text in self.one.other_briefs]
        words = "\n".join([text.words for text in texts])
        return texts, PreparedText(text="", words=words, stems=frozenset())

    def is_stated_elsewhere(self, fact: TextFact) -> bool:
        """Whether one of the other briefs states the fact; a name is sought in all at once."""
        other_briefs, joined_briefs = self._others
        if fact.kind in ("path", "symbol", "quote"):
            return states_fact(joined_briefs, fact)
        return any(_is_stated(brief, fact) for brief in other_briefs)

    @cached_property
    def whole(self) -> bool:
        """Whether all of the work is handed on."""
        stems = self.request.stems
        return bool(stems) and len(stems & self.brief.stems) >= MIN_WHOLE_SHARE * len(stems)

    @cached_property
    def excerpt(self) -> bool:
        """Whether the brief is no longer than the request, so that what it lacks is left out."""
        max_words = MAX_EXCERPT_RATIO * len(self.request.words.split())
        return len(self.brief.words.split()) <= max_words

    @cached_property
    def handed_on(self) -> Mapping[str, bool]:
        """Return, for each sentence of the request, whether it concerns the child's part."""
        return _map_handed_on(self.request.text, self.brief, self.one)


@cache_on_reading
def list_all_needs(reading: TraceReading) -> Sequence[Sequence[BriefNeed] | None]:
    """Return the needs of every handoff, in order."""
    return [find_brief_needs(handoff_context) for handoff_context in list_handoff_contexts(reading)]


def find_brief_needs(handoff: HandoffContext) -> list[BriefNeed] | None:
    """Return what the child needs of the request and findings; None if unknown."""
    if handoff.request is None or is_hidden_text(handoff.event.brief):
        return None
    makes_changes = child_makes_changes(handoff)
    request = _THOUSANDS.sub("", handoff.request)
    view, facts = _RequestView(handoff, request), _list_request_facts(request)
    if not makes_changes:
        # A child that only reads needs no rules for changes, and only the facts about what it
        # reads.
        facts = tuple(
            fact
            for fact in facts
            if fact.kind not in ("prohibition", "constraint")
            and (view.whole or _is_related(fact, view))
        )
    is_stated = [_is_stated(view.brief, fact) for fact in facts]
    needs = [BriefNeed(fact=fact, present=True) for fact in compress(facts, is_stated)]
    missing = [fact for fact, present in zip(facts, is_stated, strict=True) if not present]
    kept_sentences = _sentences_done_by_parent(missing, handoff.after)
    for fact in missing:
        if _is_needed(fact, view, kept_sentences):
            is_clear = makes_changes and _is_clear(fact, view)
            needs.append(BriefNeed(fact=fact, present=False, clear=is_clear))
    learned_facts = _facts_learned_earlier(handoff, view.brief) if makes_changes else ()
    return needs + [
        BriefNeed(fact=fact, present=states_fact(view.brief, fact)) for fact in learned_facts
    ]


def find_dropped_facts(
    handoff: HandoffContext, needs: Iterable[BriefNeed]
) -> list[tuple[TextFact, TraceStep | None]]:
    """Return certain facts that the child never received, with the step that violates each."""
    missing: list[tuple[TextFact, TraceStep | None]] = []
    for need in (candidate for candidate in needs if not candidate.present):
        violation = _find_violation(need.fact, handoff.work)
        if (need.clear or violation) and not _child_saw_fact(handoff.work, need.fact):
            missing.append((need.fact, violation))
    return missing


# The request, split into parts.


def _map_handed_on(request: str, brief: PreparedText, handoff: HandoffContext) -> dict[str, bool]:
    """For each sentence, whether it concerns the child's part; requirements follow the one
    before."""
    targets = (*find_targets(handoff.event.brief), *list_written_paths(handoff))
    handed_on: dict[str, bool] = {}
    pending: list[str] = []
    concerns_part: bool | None = None
    is_global = False
    for paragraph in split_paragraphs(request):
        if paragraph.rstrip().endswith(":") or paragraph.startswith("#"):
            is_global = _GLOBAL_HEADING.search(paragraph.casefold()) is not None
        for sentence in split_paragraph(paragraph):
            own_targets = find_sentence_targets(sentence)
            if own_targets or not (
                is_global or sentence.endswith(":") or _is_requirement(sentence)
            ):
                concerns_part = _is_about_part(sentence, own_targets, brief, targets)
                handed_on.update(dict.fromkeys(pending, concerns_part))
                pending = []
            if concerns_part is None:
                pending.append(sentence)
            handed_on[sentence] = concerns_part or (is_global and not own_targets) or False
    return handed_on


def _is_about_part(
    sentence: str, own_targets: Sequence[str], brief: PreparedText, targets: Sequence[str]
) -> bool:
    if any(is_same_path(name, target) for name in own_targets for target in targets):
        return True
    stems = word_stems(normalise_words(_REQUIREMENT_START.split(sentence.casefold())[0]))
    stems = stems.difference(*(word_stems(normalise_words(name)) for name in own_targets))
    shared = len(stems & brief.stems)
    return shared >= 2 and shared >= MIN_WHOLE_SHARE * len(stems)


def _is_requirement(sentence: str) -> bool:
    """Whether it states how the result must be, and not what the work is."""
    return bool(list_requirements(sentence)) or bool(_NUMBER_BOUND.search(sentence.casefold()))


@lru_cache(1024)
def list_requirements(sentence: str) -> tuple[str, ...]:
    """Return clauses about what the result must or must not be, from the demanding word on."""
    folded = sentence.casefold().replace("’", "'")
    matches = (
        _REQUIREMENT_START.finditer(folded) if mentions_any(folded, _REQUIREMENT_WORDS) else ()
    )
    starts = [match.start() for match in matches]
    pairs = pairwise([*starts, len(sentence)])
    clauses = (sentence[start:end].strip(" ,;.") for start, end in pairs)
    return tuple(clause for clause in clauses if word_stems(normalise_words(clause)))


@lru_cache(256)
def _list_request_facts(request: str) -> tuple[TextFact, ...]:
    """Return the facts of a request; requirements as the clause that demands them."""
    facts = parse_facts(request)
    restricted = {fact.sentence for fact in facts if fact.always}
    clauses = [
        TextFact(kind="constraint", text=clause, sentence=sentence)
        for sentence in split_sentences(request)
        if sentence not in restricted
        for clause in list_requirements(sentence)
    ]
    definite_facts = (fact for fact in facts if fact.always or fact.kind != "constraint")
    return (*definite_facts, *dict.fromkeys(clauses))


def _is_stated(text: PreparedText, fact: TextFact) -> bool:
    if fact.kind != "constraint" or fact.always:
        return states_fact(text, fact)
    numbers = [number for number in parse_facts(fact.text) if number.kind == "number"]
    return _trace_share(fact, text) >= 0.5 and all(states_fact(text, number) for number in numbers)


def _trace_share(fact: TextFact, text: PreparedText) -> float:
    """Return how much of a fact's words a text contains."""
    stems = word_stems(normalise_words(fact.text))
    return len(stems & text.stems) / len(stems) if stems else 1.0


# Whether the child's part needs what the brief leaves out.


def _is_needed(fact: TextFact, view: _RequestView, kept_sentences: Iterable[str]) -> bool:
    """Whether an omitted fact concerns this child's part of the work."""
    if fact.always:
        return True
    if fact.sentence in kept_sentences or view.is_stated_elsewhere(fact):
        return False
    if fact.kind == "constraint":
        return view.handed_on.get(fact.sentence, view.whole)
    if _is_related(fact, view) or _demands_of_part(fact, view):
        return True
    # A sentence with targets of its own is another part of the work.
    return view.whole and (
        view.handed_on.get(fact.sentence, True) or not find_sentence_targets(fact.sentence)
    )


def _is_related(fact: TextFact, view: _RequestView) -> bool:
    """Whether the brief repeats the fact's context."""
    context_stems = _surrounding_stems(fact)
    shared_count = len(context_stems & view.brief.stems)
    return shared_count >= 2 and shared_count >= 0.5 * len(context_stems)


def _demands_of_part(fact: TextFact, view: _RequestView) -> bool:
    """Whether it is a quantity among the requirements on the child's part."""
    demanded = _is_demand(fact) or (fact.kind == "number" and _is_requirement(fact.sentence))
    return demanded and view.handed_on.get(fact.sentence, False)


def _is_clear(fact: TextFact, view: _RequestView) -> bool:
    """Whether the child's part certainly needs it and it was not passed on."""
    if word_stems(normalise_words(fact.sentence)) & _PARENT_AFFAIR_STEMS:
        return False
    if fact.always:
        is_definite = fact.kind == "prohibition" or bool(fact.targets)
        return is_definite and (
            view.whole or _is_related(fact, view) or _is_near_work(fact, view.one)
        )
    if fact.kind == "number":
        context_stems = _surrounding_stems(fact)
        shared_count = len(context_stems & view.brief.stems)
        if shared_count >= 3 and shared_count >= 0.6 * len(context_stems) and _is_demand(fact):
            return True
    elif fact.kind != "constraint" or _NARRATIVE.search(fact.sentence.casefold()):
        return False
    if not view.handed_on.get(fact.sentence, False) or not view.excerpt:
        return False
    if not view.one.work and _DOCUMENT.search(view.brief.text.casefold()):
        return False
    if fact.kind == "number":
        return _is_demand(fact) and not _NARRATIVE.search(fact.sentence.casefold())
    return _trace_share(fact, view.brief) <= MAX_TRACE_SHARE


def _surrounding_stems(fact: TextFact) -> frozenset[str]:
    """Return the words around a fact; for a restriction all."""
    is_restriction = fact.kind in ("prohibition", "constraint")
    return _other_stems(fact.sentence, "" if is_restriction else fact.text)


# The same request is compared with every handoff.
@lru_cache(4096)
def _other_stems(sentence: str, part: str) -> frozenset[str]:
    stems = word_stems(normalise_words(sentence))
    return stems.difference(word_stems(normalise_words(part))) if part else stems


def _is_near_work(fact: TextFact, handoff: HandoffContext) -> bool:
    """Whether its subject is beside what the brief names or the child changes."""
    folders = _parent_folders(fact.targets)
    return bool(folders) and not folders.isdisjoint(
        _parent_folders((*find_targets(handoff.event.brief), *list_written_paths(handoff)))
    )


def _parent_folders(paths: Iterable[str]) -> set[str]:
    return {path.rpartition("/")[0] for path in paths} - {"", "."}


@lru_cache(1024)
def _is_demand(fact: TextFact) -> bool:
    """Whether a quantity is demanded rather than observed."""
    if fact.kind != "number" or fact.text.isdigit():
        return False
    return _DEMAND.search(fact.sentence.casefold()) is not None


def _sentences_done_by_parent(missing: Sequence[TextFact], after: Sequence[TraceStep]) -> set[str]:
    """Return sentences about what the parent does itself afterwards."""
    worded_facts = [
        (fact, normalise_words(fact.text).strip()) for fact in missing if not fact.always
    ]
    if not worded_facts:
        return set()
    longest_words = [max(words.split(), key=len, default="") for _, words in worded_facts]
    texts = (step_input(step) for step in after if step.changed)
    parent_text = " ".join(
        normalise_words(text) for text in texts if mentions_any(text.casefold(), longest_words)
    )
    return {fact.sentence for fact, words in worded_facts if f" {words} " in parent_text}


def _facts_learned_earlier(handoff: HandoffContext, brief: PreparedText) -> Iterator[TextFact]:
    """Yield what the parent had found out and the child went on to need."""
    if written_paths := dict.fromkeys(list_written_paths(handoff)):
        known_paths = {path for step in handoff.before for path in (*step.read, *step.written)}
        for path in [path for path in written_paths if path in known_paths][:20]:
            yield TextFact(kind="path", text=path, sentence=path)
    check = next((step.check for step in reversed(handoff.before) if step.check), None)
    failures = check.failures if check else None
    if failures and failures.parser != "tail":
        tests = [key.rpartition("::")[2] for key in list(failures.errors)[:20]]
        facts = [TextFact(kind="symbol", text=key, sentence=key) for key in tests if key.strip()]
        stated_facts = [fact for fact in facts if states_fact(brief, fact)]
        if stated_facts or _FAILING_WORK.search(brief.text[:2000].casefold()):
            yield from stated_facts[:1] or facts[:1]


def _find_violation(fact: TextFact, work: Sequence[TraceStep]) -> TraceStep | None:
    """Return the child's first change of a file that it should have been told to leave alone."""
    targets = fact.targets if fact.kind == "prohibition" else ()
    for step in work if targets else ():
        if step.changed and any(
            is_same_path(target, path) for target in targets for path in step.written
        ):
            return step
    return None


def _child_saw_fact(work: Sequence[TraceStep], fact: TextFact) -> bool:
    """Whether something that the child read states the fact."""
    longest_stems = sorted(sorted(word_stems(normalise_words(fact.text))), key=len)
    digits = tuple(re.findall(r"\d+", fact.text)) if fact.kind == "number" else ()
    search_words = digits or short_names(fact.targets) or tuple(longest_stems[-2:])
    return any(
        mentions_any(text, search_words) and _is_stated(prepare_text(text), fact)
        for text in map(step_output, work[:MAX_STEPS])
    )
