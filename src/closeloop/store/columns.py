"""Columns of many rows: numbers, and texts of which each is kept once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from closeloop.model.record import Record

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


class Texts(Record):
    """For each row, which of the few texts it has; None is one of them where it has none."""

    codes: Any
    labels: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Texts:
        return Texts(codes=self.codes[rows], labels=self.labels)

    def tolist(self) -> list[Any]:
        labels = self.labels
        return [labels[code] for code in self.codes.tolist()]

    def each(self, number: Callable[[Any], float | None]) -> Array:
        """What each row's text counts as, NaN for None; every text is looked at once."""
        import numpy as np

        found: Array = np.array([number(label) for label in self.labels], np.float64)[self.codes]
        return found

    def are(self, texts: Collection[str]) -> Array:
        """Where the text is one of these."""
        import numpy as np

        found: Array = np.array([label in texts for label in self.labels], np.bool_)[self.codes]
        return found

    def known(self) -> Array:
        import numpy as np

        held = [label is not None for label in self.labels]
        found: Array = np.array(held, np.bool_)[self.codes]
        return found

    def translated(self, meaning: Callable[[Any], Any]) -> Texts:
        return Texts(codes=self.codes, labels=tuple(map(meaning, self.labels)))

    def otherwise(self, other: Texts) -> Texts:
        """The other's text where there is none."""
        import numpy as np

        codes = np.where(self.known(), self.codes, other.codes + len(self.labels))
        return Texts(codes=codes, labels=self.labels + other.labels)


Column = Any
"""An array of numbers, NaN where one is not known, or texts."""


class Columns(Record):
    """Rows of attempts, column by column."""

    attempts: list[str]
    """Whose they are."""
    held: dict[str, Column]


def texts(values: Sequence[Any]) -> Texts:
    """A column of texts, row by row."""
    import numpy as np

    places = numbered()
    codes = np.fromiter(map(places.__getitem__, values), np.int32, len(values))
    return Texts(codes=codes, labels=tuple(places))


def numbered() -> defaultdict[Any, int]:
    """Whoever is looked up first is 0, the next other one 1."""
    places: defaultdict[Any, int] = defaultdict()
    places.default_factory = places.__len__
    return places


def gathered(parts: Iterator[Sequence[Sequence[Any]]], kinds: Mapping[str, bool]) -> Columns:
    """Rows, some at a time, whose first value is their attempt; `kinds` says which are texts.

    Values are packed as they come: as Python's own they take more than ten times the room.
    """
    import numpy as np

    attempts: list[str] = []
    places = {name: numbered() for name, is_text in kinds.items() if is_text}
    packed: dict[str, list[Array]] = {name: [] for name in kinds}
    for part in parts:
        first, *columns = zip(*part, strict=True)
        attempts.extend(first)
        for name, values in zip(kinds, columns, strict=True):
            packed[name].append(
                np.fromiter(map(places[name].__getitem__, values), np.int32, len(values))
                if name in places
                else np.array(values, np.float64)
            )
    held: dict[str, Column] = {}
    for name, pieces in packed.items():
        whole = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
        held[name] = (
            Texts(codes=whole, labels=tuple(places[name]))
            if name in places
            else whole.astype(np.float64, copy=False)
        )
    return Columns(attempts=attempts, held=held)


def joined(part: Columns, at: Array, rows: int) -> dict[str, Column]:
    """What is known of some rows as columns of all: `at` is the place of each, -1 for none.

    Of several with one place the last counts.
    """
    import numpy as np

    there = np.flatnonzero(at >= 0)
    found: dict[str, Column] = {}
    for name, column in part.held.items():
        if isinstance(column, Texts):
            codes = np.full(rows, len(column.labels), np.int32)
            codes[at[there]] = column.codes[there]
            found[name] = Texts(codes=codes, labels=(*column.labels, None))
        else:
            found[name] = np.full(rows, np.nan)
            found[name][at[there]] = column[there]
    return found
