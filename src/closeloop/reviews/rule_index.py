"""Rules as they are now, in memory: read once, searched often, added to as they are kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
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
    TeamRule,
)
from closeloop.reviews.remark_polarity import (
    RemarkRelation,
    build_rule_check,
    comparable_words,
    compare_remarks,
    extract_rule_text,
    infer_rule_paths,
    is_teaching_remark,
    parse_rule_parts,
)
from closeloop.store import Store
from closeloop.text.wording import matches_globs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]
    Vectors = dict[str, NDArray[np.float32]]


# Rules learned from remarks: found by meaning, held apart by polarity and scope.
#
# a remark ──► the ten rules nearest to it ──► without contraries, and those of other files ──►
# the same words confirm themselves; everything else waits for somebody to confirm

MAX_RETRIEVED = 10
MAX_CANDIDATES = 3
"""Of them, that somebody is asked about."""
MAX_EXAMPLES = 8
"""Of a rule, that its vector is made of."""


class RuleVectors(Record):
    """Rules that can be searched by meaning."""

    rules: tuple[TeamRule, ...]
    matrix: Any
    """A row for each rule, of length one."""


def propose_rule(example: RuleExample) -> TeamRule | None:
    """The rule that a remark would be, for a person to look at; None where it asks for nothing."""
    if not is_teaching_remark(example.text):
        return None
    text = extract_rule_text(example.text)
    return build_rule(text, example) if comparable_words(text) else None


def build_rule(text: str, origin: RuleExample) -> TeamRule:
    """A rule in these words. The same words in the same repository are the same rule."""
    name = content_digest("rule", origin.repo, comparable_words(text))[:12]
    parts = parse_rule_parts(text)
    paths = infer_rule_paths(parts, origin.path)
    return TeamRule(
        id=name,
        repo=origin.repo,
        text=text,
        canonical=parts,
        paths=paths,
        check=build_rule_check(name, text, paths),
        since=origin.at,
        examples=(origin,),
    )


def rule_texts(rule: TeamRule) -> list[str]:
    """What a rule is found by: its own words, and those of people who said it."""
    example_texts = dict.fromkeys(one.text for one in rule.examples[:MAX_EXAMPLES])
    return [rule.text, *(text for text in example_texts if text != rule.text)]


def text_key(text: str) -> str:
    """Under which a text's vector is kept."""
    return content_digest("text", text.encode("utf-8", "replace"))[:32]


def build_rule_vectors(
    rules: Iterable[TeamRule], vectors: Mapping[str, Vector], width: int
) -> RuleVectors:
    """A rule lies amid its texts: by one example more it is found a good deal more often."""
    import numpy as np

    kept = tuple(rules)
    matrix = np.zeros((len(kept), width), np.float32)
    for place, rule in enumerate(kept):
        matrix[place] = sum(vectors[text_key(text)] for text in rule_texts(rule))
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    matrix /= np.where(lengths == 0, 1, lengths)
    return RuleVectors(rules=kept, matrix=matrix)


def merge_rule_vectors(known: RuleVectors, more: RuleVectors) -> RuleVectors:
    """Both together; a rule that is in both is as the second has it."""
    import numpy as np

    if not known.rules:
        return more
    anew = {rule.id for rule in more.rules}
    kept = [place for place, rule in enumerate(known.rules) if rule.id not in anew]
    whole = len(kept) == len(known.rules)
    rows = known.matrix if whole else known.matrix[kept]
    rules = known.rules if whole else tuple(known.rules[place] for place in kept)
    return RuleVectors(rules=rules + more.rules, matrix=np.vstack([rows, more.matrix]))


def nearest_rules(known: RuleVectors, vector: Vector) -> list[tuple[TeamRule, float]]:
    """The rules most like a text, the likest first: every one is looked at."""
    import numpy as np

    likeness = known.matrix @ vector
    most = min(MAX_RETRIEVED, len(known.rules))
    if most == 0:
        return []
    top = np.argpartition(-likeness, most - 1)[:most]
    top = top[np.lexsort((top, -likeness[top]))]
    return [(known.rules[place], float(likeness[place])) for place in top]


def find_restated_rules(
    known: RuleVectors, text: str, vector: Vector, *, floor: float, path: str | None = None
) -> list[RuleMatch]:
    """The rules that a remark may restate: no contraries, none that hold for other files only."""
    rule_matches = []
    words = comparable_words(text)
    for rule, likeness in nearest_rules(known, vector):
        exact = bool(words) and any(comparable_words(said) == words for said in rule_texts(rule))
        if not applies_to_path(rule, path) or (likeness < floor and not exact):
            continue
        rule_relation: RemarkRelation = "same" if exact else compare_with_rule(rule, text)
        if rule_relation != "opposite":
            rule_matches.append(
                RuleMatch(rule=rule, likeness=likeness, relation=rule_relation, exact=exact)
            )
    return sorted(rule_matches, key=lambda near: not near.exact)[:MAX_CANDIDATES]


def compare_with_rule(rule: TeamRule, text: str) -> RemarkRelation:
    """What a remark is to a rule: contrary when it is so to any of its texts."""
    relations = [compare_remarks(said, text) for said in rule_texts(rule)]
    if "opposite" in relations:
        return "opposite"
    return "same" if "same" in relations else "unclear"


def applies_to_path(rule: TeamRule, path: str | None) -> bool:
    """Whether a rule holds at a place; nobody knows where a remark on the whole belongs."""
    return path is None or not rule.paths or matches_globs(path, rule.paths)


def exact_match(near: Sequence[RuleMatch]) -> RuleMatch | None:
    """The rule that needs nobody to confirm it: said in the same words."""
    return next((one for one in near if one.exact), None)


# Which encoder is used, and vectors that are made once and kept.

ENCODERS_BEST_FIRST = ("minilm", "ngrams")


def open_encoder(settings: Settings, root: Path, environ: Mapping[str, str]) -> Encoder:
    """The one that the settings name; by `auto` the best of ours that is ready."""
    name = settings.memory.encoder
    if name == "auto":
        name = next(
            one for one in ENCODERS_BEST_FIRST if plugins.load_plugin("encoders", one).ready()
        )
    if name in plugins.installed_plugins("encoders"):
        encoder: Encoder = plugins.load_plugin("encoders", name)
        if not encoder.ready():
            raise BadInput(f"The encoder {name!r} is not here: run `closeloop encoder install`.")
        return encoder
    from closeloop.providers.provider_embeddings import open_provider_encoder as open_provider

    if name in settings.models or "/" in name:
        return open_provider(name, settings, environ, root)
    return plugins.load_plugin("encoders", name)  # type: ignore[no-any-return]


def vectors_for_texts(texts: Iterable[str], encoder: Encoder, store: Store) -> Vectors:
    """By key, a vector for each text; only those that nobody made before are made now."""
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
    """A row for each text; what a plug-in does wrong is its fault."""
    try:
        rows = encoder.encode(texts)
        wrong = rows.ndim != 2 or len(rows) != len(texts)
    except Fault:
        raise
    except Exception as error:
        raise PluginFailed(
            f"The encoder {encoder.id!r} failed ({error}): report it to its author, or name "
            "another in memory.encoder."
        ) from error
    if wrong:
        raise PluginFailed(
            f"The encoder {encoder.id!r} gave {rows.shape} for {len(texts)} texts: report it to "
            "its author."
        )
    return rows


# Whether a remark restates a rule that was there before the work began.

ModelOpinion = Literal["same", "opposite", "other"]


class RepeatCounts(Record):
    """Remarks on one piece of work that repeat what was known."""

    repeated: int = 0
    unconfirmed: int = 0


def is_worded_remark(one: Correction) -> bool:
    """Whether it is in a person's words; what an edit or a revert says is only its title."""
    return one.kind in ("comment", "note") and bool(one.text.strip())


def first_reported_at(rule: TeamRule) -> datetime:
    """When it was first said."""
    return min((one.at for one in rule.examples), default=rule.since)


def find_repeats(
    remark: Correction,
    near: Iterable[RuleMatch],
    began: datetime,
    encoder: str,
    told: ContextRecord | None,
) -> list[RepeatedRemark]:
    """What a remark repeats, surely or perhaps, of the rules that are older than the work."""
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
            state="confirmed" if one.exact else "candidate",
            by="words" if one.exact else None,
            rule_age=(remark.at - first_reported_at(one.rule)).total_seconds(),
            offered=None if told is None else one.rule.id in told.rules,
        )
        for one in near
        if one.rule.state == "active" and first_reported_at(one.rule) < began
    ]


def apply_opinion(found: RepeatedRemark, near: RuleMatch, opinion: ModelOpinion) -> RepeatedRemark:
    """What a model's word changes: it denies, and confirms only where the words bear it out."""
    found = replace(found, opinion=opinion)
    if found.state != "candidate":
        return found
    if opinion != "same":
        return replace(found, state="denied", by="model")
    return replace(found, state="confirmed", by="model") if near.relation == "same" else found


def select_new_repeats(
    new: Sequence[RepeatedRemark], known: Sequence[RepeatedRemark]
) -> list[RepeatedRemark]:
    """What is not known yet, is surer now, or was put into other words.

    What a person said stays, and what a model said of these words.
    """
    known_by_key = {(one.key, one.rule): one for one in known}
    return [
        one
        for one in new
        if (before := known_by_key.get((one.key, one.rule))) is None
        or (before.by is None and one.state != before.state)
        or (before.by != "person" and one.text != before.text)
    ]


def withdraw_repeats(
    remark: Correction, near: Iterable[RuleMatch], known: Iterable[RepeatedRemark]
) -> list[RepeatedRemark]:
    """What a remark repeated in older words, whoever confirmed it, and does not in these."""
    still = {one.rule.id for one in near}
    return [
        replace(one, text=remark.text, state="denied", by="words", who=None, opinion=None)
        for one in known
        if one.key == remark.id
        and one.text != remark.text
        and one.state != "denied"
        and one.rule not in still
    ]


def count_repeats(found: Iterable[RepeatedRemark]) -> RepeatCounts:
    """Each remark once: confirmed when it surely repeats a rule, unconfirmed when it may."""
    states: dict[str, set[str]] = {}
    for one in found:
        states.setdefault(one.key, set()).add(one.state)
    sure = sum("confirmed" in each for each in states.values())
    perhaps = sum("confirmed" not in each and "candidate" in each for each in states.values())
    return RepeatCounts(repeated=sure, unconfirmed=perhaps)


class RuleIndex:
    """The rules of a store, with their vectors by one encoder."""

    def __init__(self, store: Store, encoder: Encoder) -> None:
        self.store = store
        self.encoder = encoder
        self._rules = {rule.id: rule for rule in store.memory.list_rules()}
        self._indexes: dict[str | None, RuleVectors] = {}
        self._ages: dict[str, tuple[list[datetime], list[str]]] = {}
        texts = [text for rule in self._rules.values() for text in rule_texts(rule)]
        self._vectors = vectors_for_texts(texts, encoder, store)

    def list_rules(self, repo: str | None) -> list[TeamRule]:
        """Those that hold for a repository and are not retired."""
        return [
            rule
            for rule in self._rules.values()
            if rule.state != "retired" and rule.repo in (None, repo)
        ]

    def get_rule(self, name: str) -> TeamRule | None:
        return self._rules.get(name)

    def save_rule(self, rule: TeamRule) -> None:
        """Save a rule, or one more example of it, and find it from now on."""
        self.store.memory.save_examples(rule)
        before = self._rules.get(rule.id)
        examples_by_key = {
            one.key: one for one in (*(before.examples if before else ()), *rule.examples)
        }
        rule = self._rules[rule.id] = replace(rule, examples=tuple(examples_by_key.values()))
        self._ages.clear()
        self._vectors |= vectors_for_texts(rule_texts(rule), self.encoder, self.store)
        for repo, known in self._indexes.items():
            if rule.repo in (None, repo):
                self._indexes[repo] = merge_rule_vectors(known, self._build_vectors([rule]))

    def rules_before(self, repo: str, moment: datetime) -> str:
        """A name for the active rules that were first said before a moment; others have another."""
        if repo not in self._ages:
            active = [rule for rule in self.list_rules(repo) if rule.state == "active"]
            aged = sorted((first_reported_at(rule), rule.id) for rule in active)
            marks = accumulate((int(name, 16) for _, name in aged), xor, initial=0)
            self._ages[repo] = [at for at, _ in aged], [f"{mark:x}" for mark in marks]
        births, marks_of = self._ages[repo]
        return marks_of[bisect_left(births, moment)]

    def find_restated(
        self, text: str, repo: str | None, path: str | None = None
    ) -> list[RuleMatch]:
        """The rules of a repository that a remark may restate."""
        known = self._vectors_of_repo(repo)
        if not known.rules:
            return []
        vector = vectors_for_texts([text], self.encoder, self.store)[text_key(text)]
        return find_restated_rules(known, text, vector, floor=self.encoder.floor, path=path)

    def likeness_by_rule(self, text: str, repo: str | None) -> dict[str, float]:
        """How like each rule of a repository is to a text, by the rule's id."""
        known = self._vectors_of_repo(repo)
        if not known.rules or not text.strip():
            return {}
        vector = vectors_for_texts([text], self.encoder, self.store)[text_key(text)]
        scores = (known.matrix @ vector).tolist()
        return dict(zip((rule.id for rule in known.rules), scores, strict=True))

    def _vectors_of_repo(self, repo: str | None) -> RuleVectors:
        if repo not in self._indexes:
            self._indexes[repo] = self._build_vectors(self.list_rules(repo))
        return self._indexes[repo]

    def _build_vectors(self, rules: Iterable[TeamRule]) -> RuleVectors:
        width = len(next(iter(self._vectors.values()))) if self._vectors else 0
        return build_rule_vectors(rules, self._vectors, width)
