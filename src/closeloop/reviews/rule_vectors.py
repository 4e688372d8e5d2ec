"""Texts of rules as vectors, and which of them are nearest to a remark. Likeness ranks only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeloop import plugins
from closeloop.records.errors import BadInput, Fault, PluginFailed
from closeloop.records.protocols import Encoder
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import Settings
from closeloop.records.team_rules import TeamRule
from closeloop.reviews.encoders import ngrams
from closeloop.reviews.remark_polarity import find_words
from closeloop.store import Store

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]
    Vectors = dict[str, NDArray[np.float32]]

MAX_RETRIEVED = 10
MAX_EXAMPLES = 24
"""Of a rule, the oldest, that it is found by."""
MIN_WORDS_LIKENESS = 0.2
"""Reviewers who want the same again mostly use some of the same words."""
CODE_NAME_WEIGHT = 0.4
_QUOTED_NAME = re.compile(r"`(\w{2,60})(?:\(\))?`")


class RuleVectors(Record):
    """Rules that can be searched by meaning: a row for each text that a rule is found by."""

    rules: tuple[TeamRule, ...]
    matrix: Any
    """A row for each text, of length one; those of one rule stand together."""
    starts: Any
    """The first row of each rule."""
    lengths: Any
    """Of the sum of a rule's rows."""
    said: Any
    """When each text was said, in seconds."""


def first_reported_at(rule: TeamRule) -> datetime:
    """When it was first said."""
    return min((one.at for one in rule.examples), default=rule.since)


def rule_texts(rule: TeamRule) -> list[tuple[str, datetime]]:
    """What a rule is found by, and since when: its own words, and those of people who said it."""
    first_said: dict[str, datetime] = {rule.text: first_reported_at(rule)}
    for example in rule.examples[:MAX_EXAMPLES]:
        first_said.setdefault(example.text, example.at)
    return list(first_said.items())


def text_key(text: str) -> str:
    """Under which a text's vector is kept."""
    return content_digest("text", text.encode("utf-8", "replace"))[:32]


def build_rule_vectors(
    rules: Iterable[TeamRule], vectors: Mapping[str, Vector], width: int
) -> RuleVectors:
    """A rule lies amid its texts: by one example more it is found a good deal more often."""
    import numpy as np

    kept = tuple(rules)
    texts = [rule_texts(rule) for rule in kept]
    rows = [vectors[text_key(text)] for said in texts for text, _ in said]
    matrix = np.stack(rows) if rows else np.zeros((0, width), np.float32)
    starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)[:-1]
    sums = np.add.reduceat(matrix, starts, axis=0) if kept else matrix
    return RuleVectors(
        rules=kept,
        matrix=matrix,
        starts=starts,
        lengths=_nonzero(np.linalg.norm(sums, axis=1)),
        said=np.array([at.timestamp() for said in texts for _, at in said], np.float64),
    )


def _nonzero(lengths: Vector) -> Vector:
    import numpy as np

    whole: Vector = np.where(lengths == 0, 1, lengths).astype(np.float32)
    return whole


def replace_rule_vectors(known: RuleVectors, rule: str, new: RuleVectors) -> RuleVectors:
    """With other rows for one rule, or with none; what was not there is added at the end."""
    import numpy as np

    place = next((at for at, one in enumerate(known.rules) if one.id == rule), None)
    if place is not None:
        start, end = _rows_of_rule(known, place)
        later = known.starts[place + 1 :] - (end - start)
        known = RuleVectors(
            rules=(*known.rules[:place], *known.rules[place + 1 :]),
            matrix=np.delete(known.matrix, slice(start, end), axis=0),
            starts=np.concatenate([known.starts[:place], later]),
            lengths=np.delete(known.lengths, place),
            said=np.delete(known.said, slice(start, end)),
        )
    if not known.rules or not new.rules:
        return known if known.rules else new
    return RuleVectors(
        rules=known.rules + new.rules,
        matrix=np.vstack([known.matrix, new.matrix]),
        starts=np.concatenate([known.starts, new.starts + len(known.matrix)]),
        lengths=np.concatenate([known.lengths, new.lengths]),
        said=np.concatenate([known.said, new.said]),
    )


def _rows_of_rule(known: RuleVectors, place: int) -> tuple[int, int]:
    last = place + 1 == len(known.rules)
    return int(known.starts[place]), len(known.matrix) if last else int(known.starts[place + 1])


def rate_rules(known: RuleVectors, vector: Vector, before: datetime | None = None) -> Vector:
    """How like each rule is to a text; -1 for one that nobody had said before a moment."""
    import numpy as np

    likeness = known.matrix @ vector
    ratings: Vector
    if before is None or (known.said < before.timestamp()).all():
        ratings = np.add.reduceat(likeness, known.starts) / known.lengths
        return ratings
    was_said = known.said < before.timestamp()
    counts = np.add.reduceat(was_said.astype(np.int64), known.starts)
    sizes = np.diff(np.append(known.starts, len(known.matrix)))
    lengths = known.lengths.copy()
    for place in np.flatnonzero((counts > 0) & (counts < sizes)):
        start, end = _rows_of_rule(known, int(place))
        rows = known.matrix[start:end][was_said[start:end]]
        lengths[place] = np.linalg.norm(rows.sum(axis=0)) or 1
    sums = np.add.reduceat(np.where(was_said, likeness, np.float32(0)), known.starts)
    rated = sums / lengths
    ratings = np.where(counts > 0, rated, np.float32(-1)).astype(np.float32)
    return ratings


def nearest_rules(
    known: RuleVectors, vector: Vector, before: datetime | None = None
) -> list[tuple[TeamRule, float]]:
    """The rules most like a text, the likest first: every one is looked at."""
    import numpy as np

    most = min(MAX_RETRIEVED, len(known.rules))
    if most == 0:
        return []
    likeness = rate_rules(known, vector, before)
    top = np.argpartition(-likeness, most - 1)[:most]
    found = [(known.rules[place], float(likeness[place])) for place in top if likeness[place] > -1]
    return sorted(found, key=lambda one: (-one[1], one[0].id))


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


def likeness_of_words(text: str, others: Sequence[str]) -> float:
    """How like a text is to the nearest of others in the pieces of its words.

    A name of code that one of them quotes and both have weighs as much as a like sentence, be it
    a word as small as `any`.
    """
    rows = ngrams.encode([text, *others])
    shared = (CODE_NAME_WEIGHT * has_shared_code(text, other) for other in others)
    likenesses = (rows[1:] @ rows[0]).tolist()
    return max(
        (min(1.0, like + more) for like, more in zip(likenesses, shared, strict=True)), default=0.0
    )


def has_shared_code(one: str, other: str) -> bool:
    """Whether both have a name that one of them quotes as code."""
    quoted = {name.casefold() for text in (one, other) for name in _QUOTED_NAME.findall(text)}
    ours, theirs = ({*find_words(text.casefold())} for text in (one, other))
    return not quoted.isdisjoint(ours & theirs)


def likeness_floor(encoder: Encoder) -> float:
    """What likeness of meaning and of words must come to, on average, to be worth a question."""
    return encoder.floor if encoder.id == ngrams.id else (encoder.floor + MIN_WORDS_LIKENESS) / 2
