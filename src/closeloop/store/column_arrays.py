"""Columns of many rows: numbers, and texts of which each is kept once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from closeloop.records.record import Record

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


class TextColumn(Record):
    """For each row, which of the few texts it has; None is one of them where it has none."""

    codes: Any
    labels: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> TextColumn:
        return TextColumn(codes=self.codes[rows], labels=self.labels)

    def tolist(self) -> list[Any]:
        labels = self.labels
        return [labels[code] for code in self.codes.tolist()]

    def each(self, number: Callable[[Any], float | None]) -> Array:
        """What each row's text counts as, NaN for None; every text is looked at once."""
        import numpy as np

        numbers: Array = np.array([number(label) for label in self.labels], np.float64)[self.codes]
        return numbers

    def are(self, texts: Collection[str]) -> Array:
        """Where the text is one of these."""
        import numpy as np

        mask: Array = np.array([label in texts for label in self.labels], np.bool_)[self.codes]
        return mask

    def known(self) -> Array:
        import numpy as np

        has_text = [label is not None for label in self.labels]
        mask: Array = np.array(has_text, np.bool_)[self.codes]
        return mask

    def translated(self, meaning: Callable[[Any], Any]) -> TextColumn:
        return TextColumn(codes=self.codes, labels=tuple(map(meaning, self.labels)))

    def otherwise(self, other: TextColumn) -> TextColumn:
        """The other's text where there is none."""
        import numpy as np

        codes = np.where(self.known(), self.codes, other.codes + len(self.labels))
        return TextColumn(codes=codes, labels=self.labels + other.labels)


Column = Any
"""An array of numbers, NaN where one is not known, or texts."""


class AttemptColumns(Record):
    """Rows of attempts, column by column."""

    attempts: list[str]
    """Whose they are."""
    held: dict[str, Column]


def make_text_column(values: Sequence[Any]) -> TextColumn:
    """A column of texts, row by row."""
    import numpy as np

    places = number_by_first_use()
    codes = np.fromiter(map(places.__getitem__, values), np.int32, len(values))
    return TextColumn(codes=codes, labels=tuple(places))


def number_by_first_use() -> defaultdict[Any, int]:
    """Whoever is looked up first is 0, the next other one 1."""
    places: defaultdict[Any, int] = defaultdict()
    places.default_factory = places.__len__
    return places


def collect_columns(
    parts: Iterator[Sequence[Sequence[Any]]], kinds: Mapping[str, bool]
) -> AttemptColumns:
    """Rows, some at a time, whose first value is their attempt; `kinds` says which are texts.

    Values are packed as they come: as Python's own they take more than ten times the room.
    """
    import numpy as np

    attempts: list[str] = []
    places = {name: number_by_first_use() for name, is_text in kinds.items() if is_text}
    pieces_by_name: dict[str, list[Array]] = {name: [] for name in kinds}
    for part in parts:
        first, *columns = zip(*part, strict=True)
        attempts.extend(first)
        for name, values in zip(kinds, columns, strict=True):
            pieces_by_name[name].append(
                np.fromiter(map(places[name].__getitem__, values), np.int32, len(values))
                if name in places
                else np.array(values, np.float64)
            )
    arrays: dict[str, Column] = {}
    for name, pieces in pieces_by_name.items():
        whole = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
        arrays[name] = (
            TextColumn(codes=whole, labels=tuple(places[name]))
            if name in places
            else whole.astype(np.float64, copy=False)
        )
    return AttemptColumns(attempts=attempts, held=arrays)


def align_columns(part: AttemptColumns, at: Array, rows: int) -> dict[str, Column]:
    """What is known of some rows as columns of all: `at` is the place of each, -1 for none.

    Of several with one place the last counts.
    """
    import numpy as np

    placed_rows = np.flatnonzero(at >= 0)
    aligned: dict[str, Column] = {}
    for name, column in part.held.items():
        if isinstance(column, TextColumn):
            codes = np.full(rows, len(column.labels), np.int32)
            codes[at[placed_rows]] = column.codes[placed_rows]
            aligned[name] = TextColumn(codes=codes, labels=(*column.labels, None))
        else:
            aligned[name] = np.full(rows, np.nan)
            aligned[name][at[placed_rows]] = column[placed_rows]
    return aligned
