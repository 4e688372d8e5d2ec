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
    words: Mapping[str, Vector],
    unrelated: float = 0.0,
) -> RuleVectors:
    """Return rules with the vectors of the parts of their texts, and of the words of whole
    texts."""
    kept = tuple(rules)
    texts = [rule_texts(rule) for rule in kept]
    return RuleVectors(
        rules=kept,
        meanings=_stack_rows([[*_meaning_rows(said, vectors)] for said in texts]),
        words=_stack_rows([[(words[text_key(text)], at) for text, at in said] for said in texts]),
        unrelated=unrelated,
    )


def _meaning_rows(
    said: Sequence[tuple[str, datetime]], vectors: Mapping[str, Vector]
) -> Iterator[tuple[Vector, datetime]]:
    """Yield a row for each part of each text, and the mean of all texts at the time of the last."""
    import numpy as np

    wholes = []
    for text, at in said:
        parts = [vectors[text_key(part)] for part in remark_parts(text)]
        yield from ((part, at) for part in parts)
        wholes.append(parts[0])
    if len(wholes) > 1:
        middle = np.sum(wholes, axis=0)
        yield middle / (np.linalg.norm(middle) or 1), max(at for _, at in said)


def _stack_rows(rows_by_rule: Sequence[Sequence[tuple[Vector, datetime]]]) -> TextRows:
    import numpy as np

    rows = [row for rows in rows_by_rule for row, _ in rows]
    return TextRows(
        matrix=np.stack(rows) if rows else np.zeros((0, 0), np.float32),
        starts=np.cumsum([0, *map(len, rows_by_rule)], dtype=np.int64)[:-1],
        said=np.array([at.timestamp() for rows in rows_by_rule for _, at in rows], np.float64),
    )


def replace_rule_vectors(known: RuleVectors, rule: str, new: RuleVectors) -> RuleVectors:
    """Replace or remove the rows of one rule; a new rule is added at the end."""
    place = next((at for at, one in enumerate(known.rules) if one.id == rule), None)
    if place is not None:
        known = RuleVectors(
            rules=(*known.rules[:place], *known.rules[place + 1 :]),
            meanings=_delete_rows(known.meanings, place),
            words=_delete_rows(known.words, place),
            unrelated=known.unrelated,
        )
    if not known.rules or not new.rules:
        return known if known.rules else new
    return RuleVectors(
        rules=known.rules + new.rules,
        meanings=_append_rows(known.meanings, new.meanings),
        words=_append_rows(known.words, new.words),
        unrelated=known.unrelated,
    )


def _delete_rows(known: TextRows, place: int) -> TextRows:
    import numpy as np

    last = place + 1 == len(known.starts)
    start = int(known.starts[place])
    end = len(known.matrix) if last else int(known.starts[place + 1])
    later = known.starts[place + 1 :] - (end - start)
    return TextRows(
        matrix=np.delete(known.matrix, slice(start, end), axis=0),
        starts=np.concatenate([known.starts[:place], later]),
        said=np.delete(known.said, slice(start, end)),
    )


def _append_rows(known: TextRows, new: TextRows) -> TextRows:
    import numpy as np

    return TextRows(
        matrix=np.vstack([known.matrix, new.matrix]),
        starts=np.concatenate([known.starts, new.starts + len(known.matrix)]),
        said=np.concatenate([known.said, new.said]),
    )


class TextVectors(Record):
    """The vectors of a text to search rules by."""

    meanings: Any
    """One row for each of its parts."""
    words: Any


def rate_rules(known: RuleVectors, text: TextVectors, before: datetime | None = None) -> Vector:
    """Return how similar each rule is to a text; -1 for one that nobody had said before `before`.

    Combines the similarity of the nearest sentences by meaning and of the nearest texts by words,
    both above chance.
    """
    import numpy as np

    meaning = _rate_rows(known.meanings, text.meanings, before)
    words = _rate_rows(known.words, text.words[None], before)
    beyond_chance = np.maximum(words - CHANCE_WORDS_LIKENESS, 0) / (1 - CHANCE_WORDS_LIKENESS)
    related = (meaning - known.unrelated) / (1 - known.unrelated)
    rated = MEANING_WEIGHT * related + (1 - MEANING_WEIGHT) * beyond_chance
    ratings: Vector = np.where(meaning > -1, rated, -1).astype(np.float32)
    return ratings


def _rate_rows(known: TextRows, rows: Vector, before: datetime | None) -> Vector:
    import numpy as np

    likeness = (known.matrix @ rows.T).max(axis=1)
    if before is not None:
        likeness = np.where(known.said < before.timestamp(), likeness, np.float32(-1))
    rated: Vector = np.maximum.reduceat(likeness, known.starts)
    return rated


def nearest_rules(
    known: RuleVectors, text: TextVectors, before: datetime | None = None
) -> list[tuple[TeamRule, float]]:
    """Return the rules most similar to a text, most similar first, by an exhaustive search."""
    import numpy as np

    most = min(MAX_RETRIEVED, len(known.rules))
    if most == 0:
        return []
    likeness = rate_rules(known, text, before)
    top = np.argpartition(-likeness, most - 1)[:most]
    found = [(known.rules[place], float(likeness[place])) for place in top if likeness[place] > -1]
    return sorted(found, key=lambda one: (-one[1], one[0].id))


# The choice of the encoder, and vectors that are computed once and stored.

ENCODERS_BEST_FIRST = ("gte", "minilm", "ngrams")


def open_encoder(settings: Settings, root: Path, environ: Mapping[str, str]) -> Encoder:
    """Return the encoder that the settings name; for `auto`, the best built-in one that is
    ready."""
    name = settings.memory.encoder
    if name == "auto":
        name = next(
            one for one in ENCODERS_BEST_FIRST if plugins.load_plugin("encoders", one).ready()
        )
    if name in plugins.installed_plugins("encoders"):
        encoder: Encoder = plugins.load_plugin("encoders", name)
        if not encoder.ready():
            raise BadInput(
                f"The encoder {name!r} is not installed: run "
                f"`closeloop admin encoder install {name}`."
            )
        return encoder
    from closeloop.providers.model_opening import open_provider_encoder as open_provider

    if name in settings.models or "/" in name:
        return open_provider(name, settings, environ, root)
    return plugins.load_plugin("encoders", name)  # type: ignore[no-any-return]


def vectors_for_texts(texts: Iterable[str], encoder: Encoder, store: Store) -> Vectors:
    """Return a vector by key for each text, encoding only those that are not stored."""
    wanted = {text_key(text): text for text in texts}
    known = store.memory.load_vectors(encoder.id, list(wanted))
    missing = [key for key in wanted if key not in known]
    if missing:
        rows = encode_texts([wanted[key] for key in missing], encoder)
        new = dict(zip(missing, rows, strict=True))
        store.memory.save_vectors(encoder.id, new)
        known |= new
    return known


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


def has_shared_code(one: str, other: str) -> bool:
    """Return whether both texts contain a name that one of them quotes as code."""
    quoted = {name.casefold() for text in (one, other) for name in _QUOTED_NAME.findall(text)}
    ours, theirs = ({*find_words(text.casefold())} for text in (one, other))
    return not quoted.isdisjoint(ours & theirs)


# Rules learned from remarks: found by meaning, distinguished by polarity and scope.
#
# a remark ──► the ten rules nearest to it ──► without contraries, and those of other files ──►
# the same words confirm themselves; everything else waits for somebody to confirm

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
    known: RuleVectors, text: str, vectors: TextVectors, before: datetime | None = None
) -> list[tuple[float, TeamRule, list[str]]]:
    """Return the rules nearest to a remark with their texts, likeliest first.

    A code name that one of two texts quotes and both contain counts, even one as short as `any`.
    Rules said often come earlier in the order; their score is unchanged.
    """
    scored = []
    for rule, likeness in nearest_rules(known, vectors, before):
        said = [one for one, at in rule_texts(rule) if before is None or at < before]
        shared = any(has_shared_code(text, one) for one in said)
        score = min(1.0, likeness + CODE_NAME_WEIGHT * shared)
        times = sum(before is None or example.at < before for example in rule.examples)
        order = score + OFTEN_SAID_WEIGHT * math.log2(max(times, 1))
        scored.append((order, (score, rule, said)))
    return [one for _, one in sorted(scored, key=lambda one: -one[0])]


def find_restated_rules(
    known: RuleVectors,
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
    rule_matches: list[tuple[float, RuleMatch]] = []
    words = comparable_words(text)
    for score, rule, said in score_nearest(known, text, vectors, before):
        exact = bool(words) and any(comparable_words(one) == words for one in said)
        if not applies_to_path(rule, path) or (score < floor and not exact):
            continue
        rule_relation: RemarkRelation = "same" if exact else compare_with_texts(said, text)
        if rule_relation != "opposite":
            match = RuleMatch(
                rule=rule,
                likeness=score,
                relation=rule_relation,
                exact=exact,
                earlier=first_example(rule, before),
            )
            rule_matches.append((score, match))
    if exact_matches := [near for _, near in rule_matches if near.exact]:
        # What is said in so many words is about that rule, and not about those near it.
        return exact_matches
    best = max((score for score, _ in rule_matches), default=0.0)
    offered = [near for score, near in rule_matches if score >= best - MAX_CANDIDATE_GAP]
    return offered[:MAX_CANDIDATES]


def first_example(rule: TeamRule, before: datetime | None = None) -> RuleExample | None:
    """Return the first example of a rule, if it is from before the given time."""
    earlier = [example for example in rule.examples if before is None or example.at < before]
    return min(earlier, key=lambda one: (one.at, one.key), default=None)


def compare_with_texts(said: Iterable[str], text: str) -> RemarkRelation:
    """Return how a remark relates to a rule: opposite if it is so to most of the rule's texts."""
    relations = [compare_remarks(one, text) for one in said]
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


def is_worded_remark(one: Correction) -> bool:
    """Return whether it is a person's own text; an edit or a revert has only a title."""
    return one.kind in ("comment", "note") and bool(one.text.strip())


def find_repeats(
    remark: Correction,
    near: Iterable[RuleMatch],
    began: datetime,
    encoder: str,
    told: ContextRecord | None,
) -> list[RepeatedRemark]:
    """Return the rules older than the work that a remark repeats, confirmed or as candidates."""
    return [
        RepeatedRemark(
            key=remark.id,
            rule=one.rule.id,
            repo=remark.repo,
            pull=remark.pull,
            attempt=remark.attempt,
            text=remark.text,
            path=remark.path,
            at=remark.at,
            likeness=round(one.likeness, 4),
            encoder=encoder,
            state="confirmed" if one.exact and one.rule.state == "active" else "candidate",
            by="words" if one.exact and one.rule.state == "active" else None,
            rule_age=(remark.at - first_reported_at(one.rule)).total_seconds(),
            offered=None if told is None else one.rule.id in told.rules,
            earlier=one.earlier.text if one.earlier else one.rule.text,
            earlier_pull=one.earlier.pull if one.earlier else None,
            earlier_by=one.earlier.by if one.earlier else None,
        )
        for one in near
        if one.rule.state != "retired" and first_reported_at(one.rule) < began
    ]


def apply_opinion(found: RepeatedRemark, near: RuleMatch, opinion: ModelOpinion) -> RepeatedRemark:
    """Apply a model's opinion: it can deny, and confirm only if the words support that."""
    found = replace(found, opinion=opinion)
    if found.state != "candidate":
        return found
    if opinion != "same":
        return replace(found, state="denied", by="model")
    return replace(found, state="confirmed", by="model") if near.relation == "same" else found


def select_new_repeats(
    new: Sequence[RepeatedRemark], known: Sequence[RepeatedRemark]
) -> list[RepeatedRemark]:
    """Return the repeats that are new, changed state, or were reworded.

    A person's decision stays, and so does a model's opinion of the same words.
    """
    known_by_key = {(one.key, one.rule): one for one in known}
    return [
        one
        for one in new
        if (before := known_by_key.get((one.key, one.rule))) is None
        or (before.by != "person" and one.text != before.text)
        or (before.by not in ("person", "model") and one != replace(before, opinion=None))
    ]


def keep_to_confirmed(
    remark: Correction, found: Sequence[RepeatedRemark], known: Iterable[RepeatedRemark]
) -> list[RepeatedRemark]:
    """Keep only the rule that a remark is confirmed to restate, if there is one.

    Confirmed by a person, or else because its words are those of an accepted rule.
    """
    said = {one.rule: one.state for one in known if one.key == remark.id and one.by == "person"}
    by_words = {one.rule for one in found if one.state == "confirmed" and one.rule not in said}
    settled = {one.rule for one in found if said.get(one.rule) == "confirmed"} or by_words
    return [one for one in found if not settled or one.rule in settled]


def withdraw_repeats(
    remark: Correction, still: Iterable[RepeatedRemark], known: Iterable[RepeatedRemark]
) -> list[RepeatedRemark]:
    """Return denials of the repeats that no longer hold, even if confirmed in older words.

    A person's decision on exactly these words stays.
    """
    rules = {one.rule for one in still}
    return [
        replace(one, text=remark.text, state="denied", by="words", who=None, opinion=None)
        for one in known
        if one.key == remark.id
        and one.state != "denied"
        and one.rule not in rules
        and (one.text != remark.text or one.by != "person" or remark.withdrawn)
    ]


def count_repeats(found: Iterable[RepeatedRemark]) -> RepeatCounts:
    """Count each remark once: confirmed if it surely repeats a rule, unconfirmed if it may."""
    states: dict[str, set[str]] = {}
    for one in found:
        states.setdefault(one.key, set()).add(one.state)
    sure = sum("confirmed" in state for state in states.values())
    perhaps = sum("confirmed" not in state and "candidate" in state for state in states.values())
    return RepeatCounts(repeated=sure, unconfirmed=perhaps)


def is_touched(rule: TeamRule) -> bool:
    """Return whether a person changed a rule: then only a person can remove it."""
    return rule.by is not None or any(
        example.put_by is not None or example.source in ("person", "insight")
        for example in rule.examples
    )


class RuleIndex:
    """The rules of a store, with their vectors by one encoder."""

    def __init__(self, store: Store, encoder: Encoder) -> None:
        self.store = store
        self.encoder = encoder
        self._rules = {rule.id: rule for rule in store.memory.list_rules()}
        self._indexes: dict[str | None, RuleVectors] = {}
        self._ages: dict[str, tuple[list[datetime], list[str]]] = {}
        self._vectors: Vectors = {}
        self._words: Vectors = {}
        self._load_vectors(self._rules.values())

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
        return [
            rule
            for rule in self._rules.values()
            if rule.repo == repo and any(example.key == key for example in rule.examples)
        ]

    def find_touched(self, text: str, repo: str | None, path: str | None) -> TeamRule | None:
        """Return the rule changed by a person that has exactly this text."""
        words = comparable_words(text)
        matching = [
            rule
            for rule in self.list_rules(repo)
            if words
            and is_touched(rule)
            and applies_to_path(rule, path)
            and any(comparable_words(said) == words for said, _ in rule_texts(rule))
        ]
        return min(matching, key=lambda rule: rule.id, default=None)

    def add_example(self, rule: TeamRule, *, always: bool) -> bool:
        """Add a rule's examples; return whether the rule is new. `always`: activate it at once."""
        known = self._rules.get(rule.id)
        examples = {one.key: one for one in (*(known.examples if known else ()), *rule.examples)}
        in_order = sorted(examples.values(), key=lambda one: (one.at, one.key))
        self._save_learned(
            replace(known or rule, examples=tuple(in_order)), rule.examples, always=always
        )
        return known is None or not known.examples

    def withdraw_examples(self, key: str, repo: str | None, text: str | None, always: bool) -> None:
        """Withdraw a remark as an example of rules, unless `text` is still what it says."""
        for rule in self.rules_of_example(key, repo):
            gone = [
                example for example in rule.examples if example.key == key and example.text != text
            ]
            if gone:
                left = tuple(example for example in rule.examples if example not in gone)
                withdrawn = [replace(one, withdrawn=True) for one in gone]
                self._save_learned(replace(rule, examples=left), withdrawn, always=always)

    def _save_learned(
        self, rule: TeamRule, changed: Sequence[RuleExample], *, always: bool
    ) -> None:
        """Save a rule with its current examples, and update its vectors."""
        if not is_touched(rule):
            rule = self._derive_rule(rule, always=always)
        self.store.memory.save_learned_rule(replace(rule, examples=tuple(changed)))
        self._rules[rule.id] = rule
        self._ages.clear()
        self._load_vectors([rule])
        for repo, known in self._indexes.items():
            if rule.repo in (None, repo):
                new_rows = self._build_vectors([rule] if rule.state != "retired" else [])
                self._indexes[repo] = replace_rule_vectors(known, rule.id, new_rows)

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
            said = sorted(
                (at, content_digest(rule.id, rule.state == "active", rule.paths, text)[:12])
                for rule in self.list_rules(repo)
                for text, at in rule_texts(rule)
            )
            marks = accumulate((int(name, 16) for _, name in said), xor, initial=0)
            self._ages[repo] = [at for at, _ in said], [f"{mark:x}" for mark in marks]
        births, marks_of = self._ages[repo]
        place = bisect_left(births, moment)
        return place, marks_of[place]

    def find_restated(
        self,
        text: str,
        repo: str | None,
        path: str | None = None,
        before: datetime | None = None,
    ) -> list[RuleMatch]:
        """Return the rules of a repository that a remark may restate, as of `before`."""
        known = self._vectors_of_repo(repo)
        if not known.rules:
            return []
        return find_restated_rules(
            known,
            text,
            self._encode(text),
            floor=self.encoder.floor,
            path=path,
            before=before,
        )

    def likeness_by_rule(self, text: str, repo: str | None) -> dict[str, float]:
        """Return how similar each rule of a repository is to a text, by the rule's id."""
        known = self._vectors_of_repo(repo)
        if not known.rules or not text.strip():
            return {}
        scores = rate_rules(known, self._encode(text)).tolist()
        return dict(zip((rule.id for rule in known.rules), scores, strict=True))

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
