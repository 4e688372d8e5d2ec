"""The current rules in memory: loaded once, searched often, updated as they are saved."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from operator import xor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from closeloop import plugins
from closeloop.records.errors import BadInput, Fault, PluginFailed
from closeloop.records.protocols import Encoder
from closeloop.records.pull_request import Correction
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import Settings
from closeloop.records.team_rules import (
    ContextRecord,
    RepeatedRemark,
    RuleExample,
    RuleMatch,
    RuleState,
    TeamRule,
)
from closeloop.reviews import ngrams
from closeloop.reviews.remark_polarity import (
    RemarkRelation,
    comparable_words,
    compare_remarks,
    extract_rule_text,
    find_words,
    infer_rule_paths,
    is_teaching_remark,
    parse_rule_parts,
    remark_parts,
)
from closeloop.store import Store
from closeloop.text.wording import matches_globs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]
    Vectors = dict[str, NDArray[np.float32]]


# Texts of rules as vectors, and which are nearest to a remark. Similarity only ranks.


MAX_RETRIEVED = 10
MAX_EXAMPLES = 24
"""Maximum examples by which a rule is found; the oldest."""
MEANING_WEIGHT = 0.6
"""Weight of meaning; the rest is for words, as reviewers who repeat a request reuse some words."""
CHANCE_WORDS_LIKENESS = 0.2
"""Word similarity that unrelated texts may have by chance."""
CODE_NAME_WEIGHT = 0.2
OFTEN_SAID_WEIGHT = 0.05
"""Added for each doubling of the number of remarks behind a rule."""
_QUOTED_NAME = re.compile(r"`(\w{2,60})(?:\(\))?`")


class TextRows(Record):
    """Texts of rules as vectors of length one; the rows of one rule are adjacent."""

    matrix: Any
    starts: Any
    """Index of the first row of each rule."""
    said: Any
    """When each row was said, in seconds."""


class RuleVectors(Record):
    """Searchable rules: by the meaning of each sentence, and by the words of a text."""

    rules: tuple[TeamRule, ...]
    meanings: TextRows
    words: TextRows
    unrelated: float = 0.0
    """Similarity in meaning of unrelated texts, by this encoder's vectors."""


def first_reported_at(rule: TeamRule) -> datetime:
    """Return when it was first said."""
    return min((example.at for example in rule.examples), default=rule.since)


def rule_texts(rule: TeamRule) -> list[tuple[str, datetime]]:
    """Return the texts by which a rule is found, with their times: its own, and people's
    remarks."""
    first_said: dict[str, datetime] = {rule.text: first_reported_at(rule)}
    for example in rule.examples[:MAX_EXAMPLES]:
        first_said.setdefault(example.text, example.at)
    return list(first_said.items())


def text_key(text: str) -> str:
    """Return the key of a text's vector."""
    return content_digest("text", text.encode("utf-8", "replace"))[:32]


def build_rule_vectors(
    rules: Iterable[TeamRule],
    vectors: Mapping[str, Vector],
    word_vectors: Mapping[str, Vector],
    unrelated: float = 0.0,
) -> RuleVectors:
    """Return rules with the vectors of the parts of their texts, and of the words of whole
    texts."""
    indexed_rules = tuple(rules)
    texts = [rule_texts(rule) for rule in indexed_rules]
    return RuleVectors(
        rules=indexed_rules,
        meanings=_stack_rows([[*_meaning_rows(dated_texts, vectors)] for dated_texts in texts]),
        words=_stack_rows(
            [
                [(word_vectors[text_key(text)], time) for text, time in dated_texts]
                for dated_texts in texts
            ]
        ),
        unrelated=unrelated,
    )


def _meaning_rows(
    dated_texts: Sequence[tuple[str, datetime]], vectors: Mapping[str, Vector]
) -> Iterator[tuple[Vector, datetime]]:
    """Yield a row for each part of each text, and the mean of all texts at the time of the last."""
    import numpy as np

    text_vectors = []
    for text, time in dated_texts:
        parts = [vectors[text_key(part)] for part in remark_parts(text)]
        yield from ((part, time) for part in parts)
        text_vectors.append(parts[0])
    if len(text_vectors) > 1:
        middle = np.sum(text_vectors, axis=0)
        yield middle / (np.linalg.norm(middle) or 1), max(time for _, time in dated_texts)


def _stack_rows(rows_by_rule: Sequence[Sequence[tuple[Vector, datetime]]]) -> TextRows:
    import numpy as np

    rows = [row for rows in rows_by_rule for row, _ in rows]
    return TextRows(
        matrix=np.stack(rows) if rows else np.zeros((0, 0), np.float32),
        starts=np.cumsum([0, *map(len, rows_by_rule)], dtype=np.int64)[:-1],
        said=np.array([time.timestamp() for rows in rows_by_rule for _, time in rows], np.float64),
    )


def replace_rule_vectors(vectors: RuleVectors, rule: str, new: RuleVectors) -> RuleVectors:
    """Replace or remove the rows of one rule; a new rule is added at the end."""
    index = next(
        (position for position, candidate in enumerate(vectors.rules) if candidate.id == rule), None
    )
    if index is not None:
        vectors = RuleVectors(
            rules=(*vectors.rules[:index], *vectors.rules[index + 1 :]),
            meanings=_delete_rows(vectors.meanings, index),
            words=_delete_rows(vectors.words, index),
            unrelated=vectors.unrelated,
        )
    if not vectors.rules or not new.rules:
        return vectors if vectors.rules else new
    return RuleVectors(
        rules=vectors.rules + new.rules,
        meanings=_append_rows(vectors.meanings, new.meanings),
        words=_append_rows(vectors.words, new.words),
        unrelated=vectors.unrelated,
    )


def _delete_rows(rows: TextRows, index: int) -> TextRows:
    import numpy as np

    last = index + 1 == len(rows.starts)
    start = int(rows.starts[index])
    end = len(rows.matrix) if last else int(rows.starts[index + 1])
    later = rows.starts[index + 1 :] - (end - start)
    return TextRows(
        matrix=np.delete(rows.matrix, slice(start, end), axis=0),
        starts=np.concatenate([rows.starts[:index], later]),
        said=np.delete(rows.said, slice(start, end)),
    )


def _append_rows(rows: TextRows, new_rows: TextRows) -> TextRows:
    import numpy as np

    return TextRows(
        matrix=np.vstack([rows.matrix, new_rows.matrix]),
        starts=np.concatenate([rows.starts, new_rows.starts + len(rows.matrix)]),
        said=np.concatenate([rows.said, new_rows.said]),
    )


class TextVectors(Record):
    """The vectors of a text to search rules by."""

    meanings: Any
    """One row for each of its parts."""
    words: Any


def rate_rules(vectors: RuleVectors, text: TextVectors, before: datetime | None = None) -> Vector:
    """Return how similar each rule is to a text; -1 for one that nobody had said before `before`.

    Combines the similarity of the nearest sentences by meaning and of the nearest texts by words,
    both above chance.
    """
    import numpy as np

    meaning = _rate_rows(vectors.meanings, text.meanings, before)
    wording = _rate_rows(vectors.words, text.words[None], before)
    beyond_chance = np.maximum(wording - CHANCE_WORDS_LIKENESS, 0) / (1 - CHANCE_WORDS_LIKENESS)
    related = (meaning - vectors.unrelated) / (1 - vectors.unrelated)
    rated = MEANING_WEIGHT * related + (1 - MEANING_WEIGHT) * beyond_chance
    ratings: Vector = np.where(meaning > -1, rated, -1).astype(np.float32)
    return ratings


def _rate_rows(text_rows: TextRows, rows: Vector, before: datetime | None) -> Vector:
    import numpy as np

    likeness = (text_rows.matrix @ rows.T).max(axis=1)
    if before is not None:
        likeness = np.where(text_rows.said < before.timestamp(), likeness, np.float32(-1))
    rated: Vector = np.maximum.reduceat(likeness, text_rows.starts)
    return rated


def nearest_rules(
    vectors: RuleVectors, text: TextVectors, before: datetime | None = None
) -> list[tuple[TeamRule, float]]:
    """Return the rules most similar to a text, most similar first, by an exhaustive search."""
    import numpy as np

    count = min(MAX_RETRIEVED, len(vectors.rules))
    if count == 0:
        return []
    likeness = rate_rules(vectors, text, before)
    top = np.argpartition(-likeness, count - 1)[:count]
    rated_rules = [
        (vectors.rules[index], float(likeness[index])) for index in top if likeness[index] > -1
    ]
    return sorted(rated_rules, key=lambda rated: (-rated[1], rated[0].id))


# The choice of the encoder, and vectors that are computed once and stored.

ENCODERS_BEST_FIRST = ("gte", "minilm", "ngrams")


def open_encoder(settings: Settings, root: Path, environ: Mapping[str, str]) -> Encoder:
    """Return the encoder that the settings name; for `auto`, the best built-in one that is
    ready."""
    name = settings.memory.encoder
    if name == "auto":
        name = next(
            candidate
            for candidate in ENCODERS_BEST_FIRST
            if plugins.load_plugin("encoders", candidate).ready()
        )
    if name in plugins.installed_plugins("encoders"):
        encoder: Encoder = plugins.load_plugin("encoders", name)
        if not encoder.ready():
            raise BadInput(
                f"The encoder {name!r} is not installed: run "
                f"`closeloop admin encoder install {name}`."
            )
        return encoder
    from closeloop.providers.model_opening import open_provider_encoder

    if name in settings.models or "/" in name:
        return open_provider_encoder(name, settings, environ, root)
    return plugins.load_plugin("encoders", name)  # type: ignore[no-any-return]


def vectors_for_texts(texts: Iterable[str], encoder: Encoder, store: Store) -> Vectors:
    """Return a vector by key for each text, encoding only those that are not stored."""
    text_by_key = {text_key(text): text for text in texts}
    vector_by_key = store.memory.load_vectors(encoder.id, list(text_by_key))
    missing = [key for key in text_by_key if key not in vector_by_key]
    if missing:
        rows = encode_texts([text_by_key[key] for key in missing], encoder)
        new = dict(zip(missing, rows, strict=True))
        store.memory.save_vectors(encoder.id, new)
        vector_by_key |= new
    return vector_by_key


def encode_texts(texts: Sequence[str], encoder: Encoder) -> NDArray[np.float32]:
    """Return a row for each text; an invalid result is reported as the plug-in's fault."""
    try:
        rows = encoder.encode(texts)
        wrong = rows.ndim != 2 or len(rows) != len(texts)
    except Fault:
        raise
    except Exception as error:
        raise PluginFailed(
            f"The encoder {encoder.id!r} failed ({error}): report it to its author, or "
            "choose another in memory.encoder."
        ) from error
    if wrong:
        raise PluginFailed(
            f"The encoder {encoder.id!r} returned {rows.shape} for {len(texts)} texts: "
            "report it to its author."
        )
    return rows


def has_shared_code(first: str, second: str) -> bool:
    """Return whether both texts contain a name that one of them quotes as code."""
    quoted = {name.casefold() for text in (first, second) for name in _QUOTED_NAME.findall(text)}
    first_words, second_words = ({*find_words(text.casefold())} for text in (first, second))
    return not quoted.isdisjoint(first_words & second_words)


# Rules learned from remarks: found by meaning, distinguished by polarity and scope.
#
# a remark ──► the ten rules nearest to it ──► without contraries, and those of other files ──►
# the same words confirm themselves; everything else waits for a model or a person to confirm

MAX_CANDIDATES = 3
"""Maximum candidate rules to ask a person about."""
MAX_CANDIDATE_GAP = 0.2
"""Maximum distance from the most similar candidate; others are dropped."""


def propose_rule(example: RuleExample) -> TeamRule | None:
    """Return the rule that a remark proposes, for a person to review; None if it requests
    nothing."""
    if not is_teaching_remark(example.text):
        return None
    text = extract_rule_text(example.text)
    return build_rule(text, example) if comparable_words(text) else None


def build_rule(text: str, origin: RuleExample) -> TeamRule:
    """Build a rule. The same words in the same repository give the same rule."""
    name = content_digest("rule", origin.repo, comparable_words(text))[:12]
    parts = parse_rule_parts(text)
    paths = infer_rule_paths(parts, origin.path)
    return TeamRule(
        id=name,
        repo=origin.repo,
        text=text,
        canonical=parts,
        paths=paths,
        since=origin.at,
        examples=(origin,),
    )


def score_nearest(
    rule_vectors: RuleVectors, text: str, vectors: TextVectors, before: datetime | None = None
) -> list[tuple[float, TeamRule, list[str]]]:
    """Return the rules nearest to a remark with their texts, likeliest first.

    A code name that one of two texts quotes and both contain counts, even one as short as `any`.
    Rules said often come earlier in the order; their score is unchanged.
    """
    scored = []
    for rule, likeness in nearest_rules(rule_vectors, vectors, before):
        earlier_texts = [
            rule_text for rule_text, time in rule_texts(rule) if before is None or time < before
        ]
        shared = any(has_shared_code(text, rule_text) for rule_text in earlier_texts)
        score = min(1.0, likeness + CODE_NAME_WEIGHT * shared)
        times = sum(before is None or example.at < before for example in rule.examples)
        order = score + OFTEN_SAID_WEIGHT * math.log2(max(times, 1))
        scored.append((order, (score, rule, earlier_texts)))
    return [entry for _, entry in sorted(scored, key=lambda entry: -entry[0])]


def find_restated_rules(
    rule_vectors: RuleVectors,
    text: str,
    vectors: TextVectors,
    *,
    floor: float,
    path: str | None = None,
    before: datetime | None = None,
) -> list[RuleMatch]:
    """Return the rules that a remark may restate, without opposites and rules for other files.

    With `before`, only what had been said before that time counts.
    """
    rule_matches = find_near_rules(
        rule_vectors, text, vectors, floor=floor, path=path, before=before
    )
    if exact_matches := [match for match in rule_matches if match.exact]:
        # A remark that repeats a rule literally is about that rule, not about similar ones.
        return exact_matches
    best = max((match.likeness for match in rule_matches), default=0.0)
    close_matches = [match for match in rule_matches if match.likeness >= best - MAX_CANDIDATE_GAP]
    return close_matches[:MAX_CANDIDATES]


def find_near_rules(
    rule_vectors: RuleVectors,
    text: str,
    vectors: TextVectors,
    *,
    floor: float = -1.0,
    path: str | None = None,
    before: datetime | None = None,
) -> list[RuleMatch]:
    """Return the rules nearest to a remark, likeliest first, at most `MAX_RETRIEVED`.

    Opposites, rules for other files and rules less similar than `floor` are left out.
    """
    rule_matches = []
    comparable = comparable_words(text)
    for score, rule, said_texts in score_nearest(rule_vectors, text, vectors, before):
        exact = bool(comparable) and any(
            comparable_words(said_text) == comparable for said_text in said_texts
        )
        if not applies_to_path(rule, path) or (score < floor and not exact):
            continue
        rule_relation: RemarkRelation = "same" if exact else compare_with_texts(said_texts, text)
        if rule_relation != "opposite":
            match = RuleMatch(
                rule=rule,
                likeness=score,
                relation=rule_relation,
                exact=exact,
                earlier=first_example(rule, before),
                texts=tuple(said_texts),
            )
            rule_matches.append(match)
    return rule_matches


def first_example(rule: TeamRule, before: datetime | None = None) -> RuleExample | None:
    """Return the first example of a rule, if it is from before the given time."""
    earlier = [example for example in rule.examples if before is None or example.at < before]
    return min(earlier, key=lambda example: (example.at, example.key), default=None)


def compare_with_texts(texts: Iterable[str], text: str) -> RemarkRelation:
    """Return how a remark relates to a rule: opposite if it is so to most of the rule's texts."""
    relations = [compare_remarks(rule_text, text) for rule_text in texts]
    contraries = relations.count("opposite")
    if contraries * 2 > len(relations):
        return "opposite"
    return "same" if "same" in relations and not contraries else "unclear"


def applies_to_path(rule: TeamRule, path: str | None) -> bool:
    """Return whether a rule applies to a path; a remark without a path may belong anywhere."""
    return path is None or not rule.paths or matches_globs(path, rule.paths)


# Whether a remark restates a rule that existed before the work began.

ModelOpinion = Literal["same", "opposite", "other"]


class RepeatCounts(Record):
    """Counts of remarks on one piece of work that repeat known rules."""

    repeated: int = 0
    unconfirmed: int = 0


def is_worded_remark(correction: Correction) -> bool:
    """Return whether it is a person's own text; an edit or a revert has only a title."""
    return correction.kind in ("comment", "note") and bool(correction.text.strip())


def find_repeats(
    remark: Correction,
    matches: Iterable[RuleMatch],
    started_at: datetime,
    encoder: str,
    given_context: ContextRecord | None,
) -> list[RepeatedRemark]:
    """Return the rules older than the work that a remark repeats, confirmed or as candidates."""
    return [
        RepeatedRemark(
            key=remark.id,
            rule=match.rule.id,
            repo=remark.repo,
            pull=remark.pull,
            attempt=remark.attempt,
            text=remark.text,
            path=remark.path,
            at=remark.at,
            likeness=round(match.likeness, 4),
            encoder=encoder,
            state="confirmed" if match.exact and match.rule.state == "active" else "candidate",
            by="words" if match.exact and match.rule.state == "active" else None,
            rule_age=(remark.at - first_reported_at(match.rule)).total_seconds(),
            offered=None if given_context is None else match.rule.id in given_context.rules,
            earlier=match.earlier.text if match.earlier else match.rule.text,
            earlier_pull=match.earlier.pull if match.earlier else None,
            earlier_by=match.earlier.by if match.earlier else None,
        )
        for match in matches
        if match.rule.state != "retired" and first_reported_at(match.rule) < started_at
    ]


def apply_opinion(
    repeat: RepeatedRemark, opinion: ModelOpinion, model: str, *, supported: bool
) -> RepeatedRemark:
    """Apply a model's opinion: it denies, and confirms if the words of both texts support that."""
    repeat = replace(repeat, opinion=opinion)
    if repeat.state != "candidate" or (opinion == "same" and not supported):
        return repeat
    return replace(
        repeat, state="confirmed" if opinion == "same" else "denied", by="model", who=model
    )


def select_new_repeats(
    new: Sequence[RepeatedRemark], stored: Sequence[RepeatedRemark]
) -> list[RepeatedRemark]:
    """Return the repeats that are new, changed state, or were reworded.

    A person's decision stays. A model's opinion of the same words stays until a model gives
    another.
    """
    known_by_key = {(repeat.key, repeat.rule): repeat for repeat in stored}
    return [
        repeat
        for repeat in new
        if (before := known_by_key.get((repeat.key, repeat.rule))) is None
        or _has_changed(repeat, before)
    ]


def _has_changed(repeat: RepeatedRemark, before: RepeatedRemark) -> bool:
    if before.by == "person":
        return False
    if repeat.opinion is None:
        if before.by == "model" and repeat.text == before.text and repeat.by != "words":
            return False
        before = replace(before, opinion=None)
    return repeat != before


def keep_to_confirmed(
    remark: Correction, repeats: Sequence[RepeatedRemark], stored: Iterable[RepeatedRemark]
) -> list[RepeatedRemark]:
    """Keep only the rule that a remark is confirmed to restate, if there is one.

    Confirmed by a person, or else because its words are those of an accepted rule.
    """
    decisions = {
        repeat.rule: repeat.state
        for repeat in stored
        if repeat.key == remark.id and repeat.by == "person"
    }
    by_words = {
        repeat.rule
        for repeat in repeats
        if repeat.state == "confirmed" and repeat.rule not in decisions
    }
    settled = {
        repeat.rule for repeat in repeats if decisions.get(repeat.rule) == "confirmed"
    } or by_words
    return [repeat for repeat in repeats if not settled or repeat.rule in settled]


def is_settled(
    remark: Correction, repeats: Iterable[RepeatedRemark], stored: Iterable[RepeatedRemark]
) -> bool:
    """Return whether a remark is confirmed to restate a rule, by its words or by a person."""
    return any(repeat.state == "confirmed" for repeat in repeats) or any(
        repeat.key == remark.id
        and repeat.state == "confirmed"
        and repeat.by == "person"
        and repeat.text == remark.text
        for repeat in stored
    )


def withdraw_repeats(
    remark: Correction,
    current: Iterable[RepeatedRemark],
    stored: Iterable[RepeatedRemark],
    kept: Iterable[RepeatedRemark] = (),
) -> list[RepeatedRemark]:
    """Return denials of the repeats that no longer hold, even if confirmed in older words.

    A person's decision on exactly these words stays, and so does what is `kept`.
    """
    rules = {repeat.rule for repeat in current}
    staying = {
        repeat.rule for repeat in kept if repeat.key == remark.id and repeat.text == remark.text
    }
    return [
        replace(repeat, text=remark.text, state="denied", by="words", who=None, opinion=None)
        for repeat in stored
        if repeat.key == remark.id
        and repeat.state != "denied"
        and repeat.rule not in rules
        and (
            remark.withdrawn
            or (
                repeat.rule not in staying and (repeat.text != remark.text or repeat.by != "person")
            )
        )
    ]


def count_repeats(repeats: Iterable[RepeatedRemark]) -> RepeatCounts:
    """Count each remark once: confirmed if it surely repeats a rule, unconfirmed if it may."""
    states: dict[str, set[str]] = {}
    for repeat in repeats:
        states.setdefault(repeat.key, set()).add(repeat.state)
    sure = sum("confirmed" in state for state in states.values())
    perhaps = sum("confirmed" not in state and "candidate" in state for state in states.values())
    return RepeatCounts(repeated=sure, unconfirmed=perhaps)


def is_touched(rule: TeamRule) -> bool:
    """Return whether a person changed a rule: then only a person can remove it."""
    return rule.by is not None or any(
        example.put_by is not None or example.source in ("person", "insight")
        for example in rule.examples
    )


class TextAges:
    """When the texts of rules were said, in order, with a running digest.

    A rule that is new or changed costs only the digests of what was said after it, mostly nothing.
    """

    def __init__(self, rules: Iterable[TeamRule]) -> None:
        self._by_rule = {rule.id: _dated_digests(rule) for rule in rules}
        self._dated = sorted(dated for row in self._by_rule.values() for dated in row)
        self._running = [0]
        """Digests of the first texts, as many as were asked for."""

    def update(self, rule: TeamRule) -> None:
        """Replace what is known of a rule."""
        for dated in self._by_rule.get(rule.id, ()):
            index = bisect_left(self._dated, dated)
            del self._dated[index], self._running[index + 1 :]
        self._by_rule[rule.id] = [] if rule.state == "retired" else _dated_digests(rule)
        for dated in self._by_rule[rule.id]:
            index = bisect_left(self._dated, dated)
            self._dated.insert(index, dated)
            del self._running[index + 1 :]

    def before(self, moment: datetime) -> tuple[int, str]:
        """Return how many texts were said before a time, and their digest."""
        count = bisect_left(self._dated, (moment, 0))
        known = len(self._running) - 1
        newer = (digest for _, digest in self._dated[known:count])
        self._running += list(accumulate(newer, xor, initial=self._running[-1]))[1:]
        return count, f"{self._running[count]:x}"


def _dated_digests(rule: TeamRule) -> list[tuple[datetime, int]]:
    state = (rule.id, rule.state == "active", rule.paths)
    return [(time, int(content_digest(*state, text)[:12], 16)) for text, time in rule_texts(rule)]


class RuleIndex:
    """The rules of a store, with their vectors by one encoder."""

    def __init__(self, store: Store, encoder: Encoder) -> None:
        self.store = store
        self.encoder = encoder
        self._rules = {rule.id: rule for rule in store.memory.list_rules()}
        self._indexes: dict[str | None, RuleVectors] = {}
        self._ages: dict[str, TextAges] = {}
        self._vectors: Vectors = {}
        self._words: Vectors = {}
        self._rules_by_example: dict[str, set[str]] = {}
        """Ids of rules by the keys of their examples, those withdrawn included."""
        self._rules_by_words: dict[str, set[str]] = {}
        """Ids of rules by the comparable words of their texts, former ones included."""
        self._load_vectors(self._rules.values())
        for rule in self._rules.values():
            self._note_rule(rule)

    def _note_rule(self, rule: TeamRule) -> None:
        for example in rule.examples:
            self._rules_by_example.setdefault(example.key, set()).add(rule.id)
        for text, _ in rule_texts(rule):
            self._rules_by_words.setdefault(comparable_words(text), set()).add(rule.id)

    def _load_vectors(self, rules: Iterable[TeamRule]) -> None:
        texts = [text for rule in rules for text, _ in rule_texts(rule)]
        parts = [part for text in texts for part in remark_parts(text)]
        new_parts = [part for part in parts if text_key(part) not in self._vectors]
        self._vectors |= vectors_for_texts(new_parts, self.encoder, self.store)
        new_texts = [text for text in texts if text_key(text) not in self._words]
        self._words |= vectors_for_texts(new_texts, ngrams, self.store)

    def list_rules(self, repo: str | None) -> list[TeamRule]:
        """Return the rules that apply to a repository and are not retired."""
        return [
            rule
            for rule in self._rules.values()
            if rule.state != "retired" and rule.repo in (None, repo)
        ]

    def rules_of_example(self, key: str, repo: str | None) -> list[TeamRule]:
        """Return the rules that a remark is an example of."""
        rules = [self._rules[name] for name in sorted(self._rules_by_example.get(key, ()))]
        return [
            rule
            for rule in rules
            if rule.repo == repo and any(example.key == key for example in rule.examples)
        ]

    def find_touched(self, text: str, repo: str | None, path: str | None) -> TeamRule | None:
        """Return the rule changed by a person that has exactly this text."""
        comparable = comparable_words(text)
        named = self._rules_by_words.get(comparable, ()) if comparable else ()
        matching = [
            rule
            for rule in map(self._rules.__getitem__, named)
            if rule.state != "retired"
            and rule.repo in (None, repo)
            and is_touched(rule)
            and applies_to_path(rule, path)
            and any(comparable_words(rule_text) == comparable for rule_text, _ in rule_texts(rule))
        ]
        return min(matching, key=lambda rule: rule.id, default=None)

    def add_example(self, rule: TeamRule, *, always: bool) -> bool:
        """Add a rule's examples; return whether the rule is new. `always`: activate it at once."""
        stored_rule = self._rules.get(rule.id)
        examples = {
            example.key: example
            for example in (*(stored_rule.examples if stored_rule else ()), *rule.examples)
        }
        in_order = sorted(examples.values(), key=lambda example: (example.at, example.key))
        self._save_learned(
            replace(stored_rule or rule, examples=tuple(in_order)), rule.examples, always=always
        )
        return stored_rule is None or not stored_rule.examples

    def withdraw_examples(self, key: str, repo: str | None, text: str | None, always: bool) -> None:
        """Withdraw a remark as an example of rules, unless `text` is still what it says."""
        for rule in self.rules_of_example(key, repo):
            outdated = [
                example for example in rule.examples if example.key == key and example.text != text
            ]
            if outdated:
                remaining = tuple(example for example in rule.examples if example not in outdated)
                withdrawn = [replace(example, withdrawn=True) for example in outdated]
                self._save_learned(replace(rule, examples=remaining), withdrawn, always=always)

    def _save_learned(
        self, rule: TeamRule, changed: Sequence[RuleExample], *, always: bool
    ) -> None:
        """Save a rule with its current examples, and update its vectors."""
        if not is_touched(rule):
            rule = self._derive_rule(rule, always=always)
        self.store.memory.save_learned_rule(replace(rule, examples=tuple(changed)))
        self._rules[rule.id] = rule
        for name, ages in self._ages.items():
            if rule.repo in (None, name):
                ages.update(rule)
        self._note_rule(rule)
        self._load_vectors([rule])
        for indexed_repo, vectors in self._indexes.items():
            if rule.repo in (None, indexed_repo):
                new_rows = self._build_vectors([rule] if rule.state != "retired" else [])
                self._indexes[indexed_repo] = replace_rule_vectors(vectors, rule.id, new_rows)

    def _derive_rule(self, rule: TeamRule, *, always: bool) -> TeamRule:
        """Return an untouched rule as its first example has it; retired if it has no example."""
        first = first_example(rule)
        if first is None:
            return replace(rule, state="retired", activated=None)
        if rule.canonical.by == "patterns":
            derived = propose_rule(first)
            if derived is not None and derived.id == rule.id:
                rule = replace(derived, examples=rule.examples, check=rule.check)
        since, activated = first.at, first.at if always else None
        state: RuleState = "active" if always else "proposed"
        return replace(rule, state=state, since=since, activated=activated)

    def texts_before(self, repo: str, moment: datetime) -> tuple[int, str]:
        """Return how many texts were said before a time, and a digest that changes with them."""
        if repo not in self._ages:
            self._ages[repo] = TextAges(self.list_rules(repo))
        return self._ages[repo].before(moment)

    def find_restated(
        self, text: str, repo: str | None, path: str | None = None, before: datetime | None = None
    ) -> list[RuleMatch]:
        """Return the rules of a repository that a remark may restate, as of `before`."""
        vectors = self._vectors_of_repo(repo)
        if not vectors.rules:
            return []
        return find_restated_rules(
            vectors, text, self._encode(text), floor=self.encoder.floor, path=path, before=before
        )

    def find_near(
        self, text: str, repo: str | None, path: str | None = None, before: datetime | None = None
    ) -> list[RuleMatch]:
        """Return the rules of a repository nearest to a remark, however unlike, as of `before`."""
        vectors = self._vectors_of_repo(repo)
        if not vectors.rules:
            return []
        return find_near_rules(vectors, text, self._encode(text), path=path, before=before)

    def likeness_by_rule(self, text: str, repo: str | None) -> dict[str, float]:
        """Return how similar each rule of a repository is to a text, by the rule's id."""
        vectors = self._vectors_of_repo(repo)
        if not vectors.rules or not text.strip():
            return {}
        scores = rate_rules(vectors, self._encode(text)).tolist()
        return dict(zip((rule.id for rule in vectors.rules), scores, strict=True))

    def _encode(self, text: str) -> TextVectors:
        import numpy as np

        parts = vectors_for_texts(remark_parts(text), self.encoder, self.store)
        return TextVectors(meanings=np.stack([*parts.values()]), words=ngrams.encode([text])[0])

    def _vectors_of_repo(self, repo: str | None) -> RuleVectors:
        if repo not in self._indexes:
            self._indexes[repo] = self._build_vectors(self.list_rules(repo))
        return self._indexes[repo]

    def _build_vectors(self, rules: Iterable[TeamRule]) -> RuleVectors:
        unrelated = getattr(self.encoder, "unrelated", 0.0)
        return build_rule_vectors(rules, self._vectors, self._words, unrelated)
