"""What a brief should hold: of what was asked and what the parent knew, what this child needs.

A brief for a part of the work needs only the facts that concern this part. A sentence of the
request concerns it when the two share a target or most of their words; a requirement that names
no target of its own (`Never fall back to local time.`) concerns whatever the sentence before it
asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import compress, pairwise

from closeloop.process.handoff_briefs import (
    MAX_STEPS,
    HandoffContext,
    child_makes_changes,
    full_brief_text,
    is_hidden_text,
    list_handoff_contexts,
    list_written_paths,
    short_names,
    step_input,
    step_output,
)
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
    mentions_any,
    normalise_words,
    split_paragraph,
    split_paragraphs,
    split_sentences,
    word_stems,
)
from closeloop.records.inspection import TraceReading, TraceStep
from closeloop.records.record import Record

MIN_WHOLE_SHARE = 0.6
"""With so much of the request's words in the brief, all of the work is handed on."""
MAX_TRACE_SHARE = 1 / 3
"""With no more of its words in the brief, a requirement is gone, not reworded."""
MAX_EXCERPT_RATIO = 1.2
"""A brief longer than this, beside the request, tells it in its own words."""

_NUMBER_BOUND = re.compile(
    r"\b(?:under|below|over|above|within|less than|fewer than|no (?:less|fewer) than|more than"
    r"|up to|faster than|exactly|max(?:imum)?(?: of)?|min(?:imum)?(?: of)?)"
    r"\s+(?:\w+\s+){0,2}?[$€£]?\d"
)
_REQUIREMENT_START = re.compile(
    r"\b(?:(?<!has )(?<!have )(?<!had )(?<!it )(?<!they )(?<!i )(?<!we )never\b"
    r"|(?<!i )must\b(?: not\b|n't\b)?|shall\b|may not\b"
    r"|(?<!i )(?<!we )(?<!they )(?<!users )(?<!tests )(?:do not|don't)\b"
    r"(?! (?:worry|need|have|know|think|see|hesitate|forget|want|care|mind|get|like|understand)\b)"
    r"|avoid\b|without (?!\w+ing any\b)\w+ing\b|at most\b|at least\b|no more than\b"
    r"|no (?:new|external|other|third|global|additional|extra)\b)"
)
_REQUIREMENT_WORDS = ("never", "must", "shall", " not", "n't", "avoid", "without", "at ", "no ")
_NARRATIVE = re.compile(
    r"\b(?:took|takes|was|were|currently|now|got|has been|expired|failed|fails|noticed|saw)\b"
)
_DEMAND = re.compile(
    r"\b(?:must|should|shall|at (?:most|least)|no more than|limit\w*|max\w*|min|minimum|within|"
    r"under|below|less than|up to|exactly|set|use|default\w*|threshold|time-?outs?)\b"
)
_PARENT_AFFAIR_STEMS = word_stems(
    " commit push merge branch amend rebase release deploy report ask tell answer summary summarize"
    " summarise reply stop wait confirm approve approval agent subagent plan explain forget "
)
"""What a requirement about one of these asks of the parent, which talks to the user."""
_GLOBAL_HEADING = re.compile(
    r"\b(?:constraints?|rules|requirements|non-goals|all items|everywhere|throughout)\b"
)
_DOCUMENT = re.compile(r"\b[\w./-]+\.(?:md|txt|rst|ya?ml|json)\b|\b(?:spec|ticket|issue|plan)\b")
_FAILING_WORK = re.compile(
    r"\b(?:fix|repair|make|get|debug|resolve)\w*\b[^.\n]{0,60}"
    r"(?:\b(?:fail\w*|broken|errors?|red|pass|green)\b|\btests?\b)"
)
_THOUSANDS = re.compile(r",(?<=\d,)(?=\d{3}\b)")


class BriefNeed(Record):
    """A fact that the child needs."""

    fact: TextFact
    present: bool
    clear: bool = False
    """Beyond doubt about this part of the work, so that leaving it out is a fault."""


class _RequestView:
    """What was asked, beside the brief made of it; worked out as far as it is needed."""

    def __init__(self, one: HandoffContext, asked: str) -> None:
        self.one = one
        self.asked = prepare_text(asked)
        self.brief = prepare_text(_THOUSANDS.sub("", full_brief_text(one)))

    @cached_property
    def _others(self) -> tuple[Sequence[PreparedText], PreparedText]:
        """The briefs of the parent's other handoffs, and the words of all of them."""
        texts = [prepare_text(_THOUSANDS.sub("", text)) for text in self.one.other_briefs]
        words = "\n".join([text.words for text in texts])
        return texts, PreparedText(text="", words=words, stems=frozenset())

    def is_stated_elsewhere(self, fact: TextFact) -> bool:
        """Whether one of the other briefs states the fact; a name is sought in all at once."""
        others, joined = self._others
        if fact.kind in ("path", "symbol", "quote"):
            return states_fact(joined, fact)
        return any(_is_stated(other, fact) for other in others)

    @cached_property
    def whole(self) -> bool:
        """All of the work is handed on."""
        stems = self.asked.stems
        return bool(stems) and len(stems & self.brief.stems) >= MIN_WHOLE_SHARE * len(stems)

    @cached_property
    def excerpt(self) -> bool:
        """The brief is no longer than what was asked: what it does not repeat, it leaves out."""
        room = MAX_EXCERPT_RATIO * len(self.asked.words.split())
        return len(self.brief.words.split()) <= room

    @cached_property
    def handed_on(self) -> Mapping[str, bool]:
        """Of each sentence of the request, whether it is about the child's part."""
        return _map_handed_on(self.asked.text, self.brief, self.one)


@cache_on_reading
def list_all_needs(reading: TraceReading) -> Sequence[Sequence[BriefNeed] | None]:
    """Of every handoff, in order."""
    return [find_brief_needs(one) for one in list_handoff_contexts(reading)]


def find_brief_needs(one: HandoffContext) -> list[BriefNeed] | None:
    """What the child needs of what was asked and learned; None where the trace does not say."""
    if one.asked is None or is_hidden_text(one.event.brief):
        return None
    works = child_makes_changes(one)
    asked = _THOUSANDS.sub("", one.asked)
    view, facts = _RequestView(one, asked), _list_request_facts(asked)
    if not works:
        # Who only looks needs no rules for changes, and the facts only of what it is to look at.
        facts = tuple(
            fact
            for fact in facts
            if fact.kind not in ("prohibition", "constraint")
            and (view.whole or _is_related(fact, view))
        )
    stated = [_is_stated(view.brief, fact) for fact in facts]
    needs = [BriefNeed(fact=fact, present=True) for fact in compress(facts, stated)]
    missing = [fact for fact, present in zip(facts, stated, strict=True) if not present]
    kept_sentences = _sentences_done_by_parent(missing, one.after)
    for fact in missing:
        if _is_needed(fact, view, kept_sentences):
            clear = works and _is_clear(fact, view)
            needs.append(BriefNeed(fact=fact, present=False, clear=clear))
    learned = _facts_learned_earlier(one, view.brief) if works else ()
    return needs + [BriefNeed(fact=fact, present=states_fact(view.brief, fact)) for fact in learned]


def find_dropped_facts(
    one: HandoffContext, needed: Iterable[BriefNeed]
) -> list[tuple[TextFact, TraceStep | None]]:
    """Facts beyond doubt that the child was not told and never saw; with the step against it."""
    missing: list[tuple[TextFact, TraceStep | None]] = []
    for need in (each for each in needed if not each.present):
        violation = _find_violation(need.fact, one.work)
        if (need.clear or violation) and not _child_saw_fact(one.work, need.fact):
            missing.append((need.fact, violation))
    return missing


# The request, taken apart.


def _map_handed_on(asked: str, brief: PreparedText, one: HandoffContext) -> dict[str, bool]:
    """Of each sentence whether it is about the child's part; requirements follow the one before."""
    targets = (*find_targets(one.event.brief), *list_written_paths(one))
    handed_on: dict[str, bool] = {}
    waiting: list[str] = []
    governed: bool | None = None
    for_all = False
    for paragraph in split_paragraphs(asked):
        if paragraph.rstrip().endswith(":") or paragraph.startswith("#"):
            for_all = _GLOBAL_HEADING.search(paragraph.casefold()) is not None
        for sentence in split_paragraph(paragraph):
            own_targets = find_sentence_targets(sentence)
            if own_targets or not (for_all or sentence.endswith(":") or _is_requirement(sentence)):
                governed = _is_about_part(sentence, own_targets, brief, targets)
                handed_on.update(dict.fromkeys(waiting, governed))
                waiting = []
            if governed is None:
                waiting.append(sentence)
            handed_on[sentence] = governed or (for_all and not own_targets) or False
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
    """It says how the result must be, and leaves to others what the work is."""
    return bool(list_requirements(sentence)) or bool(_NUMBER_BOUND.search(sentence.casefold()))


@lru_cache(1024)
def list_requirements(sentence: str) -> tuple[str, ...]:
    """Clauses that say what the result must or must not be, each from the word that demands it."""
    plain = sentence.casefold().replace("’", "'")
    matches = _REQUIREMENT_START.finditer(plain) if mentions_any(plain, _REQUIREMENT_WORDS) else ()
    starts = [match.start() for match in matches]
    pairs = pairwise([*starts, len(sentence)])
    clauses = (sentence[start:end].strip(" ,;.") for start, end in pairs)
    return tuple(clause for clause in clauses if word_stems(normalise_words(clause)))


@lru_cache(256)
def _list_request_facts(asked: str) -> tuple[TextFact, ...]:
    """Facts of a request; what it demands of the result as the clause that demands it."""
    facts = parse_facts(asked)
    restricted = {fact.sentence for fact in facts if fact.always}
    clauses = [
        TextFact(kind="constraint", text=clause, sentence=sentence)
        for sentence in split_sentences(asked)
        if sentence not in restricted
        for clause in list_requirements(sentence)
    ]
    named = (fact for fact in facts if fact.always or fact.kind != "constraint")
    return (*named, *dict.fromkeys(clauses))


def _is_stated(text: PreparedText, fact: TextFact) -> bool:
    if fact.kind != "constraint" or fact.always:
        return states_fact(text, fact)
    numbers = [one for one in parse_facts(fact.text) if one.kind == "number"]
    return _trace_share(fact, text) >= 0.5 and all(states_fact(text, one) for one in numbers)


def _trace_share(fact: TextFact, text: PreparedText) -> float:
    """How much of a fact's words a text holds."""
    stems = word_stems(normalise_words(fact.text))
    return len(stems & text.stems) / len(stems) if stems else 1.0


# Whether the child's part needs what the brief leaves out.


def _is_needed(fact: TextFact, view: _RequestView, kept_sentences: Iterable[str]) -> bool:
    """Whether a fact that was left out is about this child's part of the work."""
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
    """The brief repeats what the fact stands among."""
    around = _surrounding_stems(fact)
    shared = len(around & view.brief.stems)
    return shared >= 2 and shared >= 0.5 * len(around)


def _demands_of_part(fact: TextFact, view: _RequestView) -> bool:
    """A quantity among the requirements on the child's part."""
    demanded = _is_demand(fact) or (fact.kind == "number" and _is_requirement(fact.sentence))
    return demanded and view.handed_on.get(fact.sentence, False)


def _is_clear(fact: TextFact, view: _RequestView) -> bool:
    """Whether it is beyond doubt that the child's part needs it and that it was not passed on."""
    if word_stems(normalise_words(fact.sentence)) & _PARENT_AFFAIR_STEMS:
        return False
    if fact.always:
        definite = fact.kind == "prohibition" or bool(fact.targets)
        return definite and (view.whole or _is_related(fact, view) or _is_near_work(fact, view.one))
    if fact.kind == "number":
        around = _surrounding_stems(fact)
        shared = len(around & view.brief.stems)
        if shared >= 3 and shared >= 0.6 * len(around) and _is_demand(fact):
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
    """The words that a fact stands among; of a restriction all."""
    is_restriction = fact.kind in ("prohibition", "constraint")
    return _other_stems(fact.sentence, "" if is_restriction else fact.text)


# What was asked is asked of every handoff.
@lru_cache(4096)
def _other_stems(sentence: str, part: str) -> frozenset[str]:
    stems = word_stems(normalise_words(sentence))
    return stems.difference(word_stems(normalise_words(part))) if part else stems


def _is_near_work(fact: TextFact, one: HandoffContext) -> bool:
    """What it speaks of lies beside what the brief names or the child changes."""
    folders = _parent_folders(fact.targets)
    return bool(folders) and not folders.isdisjoint(
        _parent_folders((*find_targets(one.event.brief), *list_written_paths(one)))
    )


def _parent_folders(paths: Iterable[str]) -> set[str]:
    return {path.rpartition("/")[0] for path in paths} - {"", "."}


@lru_cache(1024)
def _is_demand(fact: TextFact) -> bool:
    """A quantity that is asked for, not one that was observed."""
    if fact.kind != "number" or fact.text.isdigit():
        return False
    return _DEMAND.search(fact.sentence.casefold()) is not None


def _sentences_done_by_parent(missing: Sequence[TextFact], after: Sequence[TraceStep]) -> set[str]:
    """Sentences about what the parent then does itself: it kept that part of the work."""
    named = [(fact, normalise_words(fact.text).strip()) for fact in missing if not fact.always]
    if not named:
        return set()
    signs = [max(words.split(), key=len, default="") for _, words in named]
    texts = (step_input(step) for step in after if step.changed)
    parent_text = " ".join(
        normalise_words(text) for text in texts if mentions_any(text.casefold(), signs)
    )
    return {fact.sentence for fact, words in named if f" {words} " in parent_text}


def _facts_learned_earlier(one: HandoffContext, brief: PreparedText) -> Iterator[TextFact]:
    """What the parent had found out and the child went on to need."""
    if written := dict.fromkeys(list_written_paths(one)):
        known = {path for step in one.before for path in (*step.read, *step.written)}
        for path in [path for path in written if path in known][:20]:
            yield TextFact(kind="path", text=path, sentence=path)
    check = next((step.check for step in reversed(one.before) if step.check), None)
    failures = check.failures if check else None
    if failures and failures.parser != "tail":
        tests = [key.rpartition("::")[2] for key in list(failures.errors)[:20]]
        facts = [TextFact(kind="symbol", text=key, sentence=key) for key in tests if key.strip()]
        stated = [fact for fact in facts if states_fact(brief, fact)]
        if stated or _FAILING_WORK.search(brief.text[:2000].casefold()):
            yield from stated[:1] or facts[:1]


def _find_violation(fact: TextFact, work: Sequence[TraceStep]) -> TraceStep | None:
    """The child's first change of a file that it should have been told to leave alone."""
    targets = fact.targets if fact.kind == "prohibition" else ()
    for step in work if targets else ():
        if step.changed and any(
            is_same_path(one, path) for one in targets for path in step.written
        ):
            return step
    return None


def _child_saw_fact(work: Sequence[TraceStep], fact: TextFact) -> bool:
    """Whether something that the child read states the fact."""
    longest_stems = sorted(sorted(word_stems(normalise_words(fact.text))), key=len)
    digits = tuple(re.findall(r"\d+", fact.text)) if fact.kind == "number" else ()
    signs = digits or short_names(fact.targets) or tuple(longest_stems[-2:])
    return any(
        mentions_any(text, signs) and _is_stated(prepare_text(text), fact)
        for text in map(step_output, work[:MAX_STEPS])
    )
