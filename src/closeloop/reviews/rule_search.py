"""Rules learned from remarks: found by meaning, held apart by polarity and scope.

a remark ──► the ten rules nearest to it ──► without contraries, and those of other files
         ──► the same words confirm themselves; everything else waits for somebody to confirm
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from closeloop.records.globs import matches_globs
from closeloop.records.record import Record, content_digest
from closeloop.records.team_rules import RuleExample, RuleMatch, TeamRule
from closeloop.reviews.remark_polarity import RemarkRelation, compare_remarks
from closeloop.reviews.remark_words import comparable_words
from closeloop.reviews.rule_extraction import (
    build_rule_check,
    extract_rule_text,
    infer_rule_paths,
    is_teaching_remark,
    parse_rule_parts,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

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
