"""Rules learned from remarks: found by meaning, held apart by polarity and scope.

a remark ──► the ten rules nearest to it ──► without contraries, and those of other files
         ──► the same words confirm themselves; everything else waits for somebody to confirm
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from closeloop.model.globs import matches
from closeloop.model.memory import Example, LearnedRule, Near
from closeloop.model.record import Record, digest
from closeloop.reviews.canonical import canonical, check_of, paths_of, rule_text, teaches
from closeloop.reviews.polarity import Relation, relation
from closeloop.reviews.words import same_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

RETRIEVED = 10
CANDIDATES = 3
"""Of them, that somebody is asked about."""
MOST_EXAMPLES = 8
"""Of a rule, that its vector is made of."""


class Index(Record):
    """Rules that can be searched by meaning."""

    rules: tuple[LearnedRule, ...]
    matrix: Any
    """A row for each rule, of length one."""


def proposed(example: Example) -> LearnedRule | None:
    """The rule that a remark would be, for a person to look at; None where it asks for nothing."""
    if not teaches(example.text):
        return None
    text = rule_text(example.text)
    return written(text, example) if same_words(text) else None


def written(text: str, origin: Example) -> LearnedRule:
    """A rule in these words. The same words in the same repository are the same rule."""
    name = digest("rule", origin.repo, same_words(text))[:12]
    parts = canonical(text)
    paths = paths_of(parts, origin.path)
    return LearnedRule(
        id=name,
        repo=origin.repo,
        text=text,
        canonical=parts,
        paths=paths,
        check=check_of(name, text, paths),
        since=origin.at,
        examples=(origin,),
    )


def texts_of(rule: LearnedRule) -> list[str]:
    """What a rule is found by: its own words, and those of people who said it."""
    said = dict.fromkeys(one.text for one in rule.examples[:MOST_EXAMPLES])
    return [rule.text, *(text for text in said if text != rule.text)]


def key_of(text: str) -> str:
    """Under which a text's vector is kept."""
    return digest("text", text.encode("utf-8", "replace"))[:32]


def index(rules: Iterable[LearnedRule], vectors: Mapping[str, Vector], width: int) -> Index:
    """A rule lies amid its texts: by one example more it is found a good deal more often."""
    import numpy as np

    kept = tuple(rules)
    matrix = np.zeros((len(kept), width), np.float32)
    for place, rule in enumerate(kept):
        matrix[place] = sum(vectors[key_of(text)] for text in texts_of(rule))
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    matrix /= np.where(lengths == 0, 1, lengths)
    return Index(rules=kept, matrix=matrix)


def joined(known: Index, more: Index) -> Index:
    """Both together; a rule that is in both is as the second has it."""
    import numpy as np

    if not known.rules:
        return more
    anew = {rule.id for rule in more.rules}
    kept = [place for place, rule in enumerate(known.rules) if rule.id not in anew]
    whole = len(kept) == len(known.rules)
    rows = known.matrix if whole else known.matrix[kept]
    rules = known.rules if whole else tuple(known.rules[place] for place in kept)
    return Index(rules=rules + more.rules, matrix=np.vstack([rows, more.matrix]))


def nearest(known: Index, vector: Vector) -> list[tuple[LearnedRule, float]]:
    """The rules most like a text, the likest first: every one is looked at."""
    import numpy as np

    likeness = known.matrix @ vector
    most = min(RETRIEVED, len(known.rules))
    if most == 0:
        return []
    top = np.argpartition(-likeness, most - 1)[:most]
    top = top[np.lexsort((top, -likeness[top]))]
    return [(known.rules[place], float(likeness[place])) for place in top]


def restated(
    known: Index, text: str, vector: Vector, *, floor: float, path: str | None = None
) -> list[Near]:
    """The rules that a remark may restate: no contraries, none that hold for other files only."""
    found = []
    words = same_words(text)
    for rule, likeness in nearest(known, vector):
        exact = bool(words) and any(same_words(said) == words for said in texts_of(rule))
        if not in_scope(rule, path) or (likeness < floor and not exact):
            continue
        held: Relation = "same" if exact else held_against(rule, text)
        if held != "opposite":
            found.append(Near(rule=rule, likeness=likeness, relation=held, exact=exact))
    return sorted(found, key=lambda near: not near.exact)[:CANDIDATES]


def held_against(rule: LearnedRule, text: str) -> Relation:
    """What a remark is to a rule: contrary when it is so to any of its texts."""
    relations = [relation(said, text) for said in texts_of(rule)]
    if "opposite" in relations:
        return "opposite"
    return "same" if "same" in relations else "unclear"


def in_scope(rule: LearnedRule, path: str | None) -> bool:
    """Whether a rule holds at a place; nobody knows where a remark on the whole belongs."""
    return path is None or not rule.paths or matches(path, rule.paths)


def settled(near: Sequence[Near]) -> Near | None:
    """The rule that needs nobody to confirm it: said in the same words."""
    return next((one for one in near if one.exact), None)
