"""Columns of many attempts, packed in memory: numbers, texts as codes, and ids."""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property, lru_cache
from itertools import repeat
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from closeloop.records.record import Record
from closeloop.store.record_bodies import pack_record, unpack_record

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


PACKED_ROWS = 20_000
"""Rows that are packed together."""
PACKED_PARTS = 40
"""Parts of numbers that are packed together."""
COMPUTED_ROWS = 65_536
"""Rows whose values are computed together: their columns fit in the processor's cache."""


class TextColumn(Record):
    """A column of texts with few distinct values, as codes; None is a label for missing text."""

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
        """Map each row's text to a number, NaN for None; `number` is called once per label."""
        import numpy as np

        numbers: Array = np.array([number(label) for label in self.labels], np.float64)[self.codes]
        return numbers

    def are(self, texts: Collection[str]) -> Array:
        """Return a mask of the rows whose text is one of these."""
        return self.matches(lambda label: label in texts)

    def known(self) -> Array:
        return self.matches(lambda label: label is not None)

    def matches(self, is_match: Callable[[Any], bool]) -> Array:
        """Return a mask of the rows whose text matches; `is_match` is called once per label."""
        import numpy as np

        is_label = np.array([is_match(label) for label in self.labels], np.bool_)
        if is_label.any():
            mask: Array = is_label[self.codes]
            return mask
        return np.zeros(len(self), np.bool_)

    def translated(self, translate: Callable[[Any], Any]) -> TextColumn:
        return TextColumn(codes=self.codes, labels=tuple(map(translate, self.labels)))

    def otherwise(self, fallback: TextColumn) -> TextColumn:
        """Fill missing texts from another column."""
        import numpy as np

        codes = np.where(self.known(), self.codes, fallback.codes + len(self.labels))
        return TextColumn(codes=codes, labels=self.labels + fallback.labels)


Column = Any
"""An array of numbers, NaN if unknown, or a `TextColumn`."""


NumberTypes = ("int8", "int16", "int32")
"""Types of packed whole numbers; the smallest number of each stands for unknown."""


class NumberColumn(Record):
    """A column of numbers in the smallest type that holds all of them exactly."""

    packed: Any
    """Whole numbers in one of `NumberTypes`, or 64-bit floats."""

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: Any) -> NumberColumn:
        return NumberColumn(packed=self.packed[rows])

    def unpack(self) -> Array:
        """Return the numbers as 64-bit floats, NaN if unknown."""
        import numpy as np

        numbers: Array = self.packed
        if numbers.dtype.kind == "f":
            return numbers
        if _is_constant(self.packed):
            first = self.packed[0]
            number = np.nan if first == np.iinfo(first.dtype).min else np.float64(first)
            return np.broadcast_to(number, len(self))
        numbers = self.packed.astype(np.float64)
        numbers[self.packed == np.iinfo(self.packed.dtype).min] = np.nan
        return numbers


def _is_constant(array: Array) -> bool:
    """Whether one value in memory stands for all rows."""
    return array.strides == (0,) and len(array) > 0


def pack_numbers(numbers: Array) -> NumberColumn:
    """Pack 64-bit floats, NaN if unknown."""
    import numpy as np

    is_unknown = np.isnan(numbers)
    known = numbers[~is_unknown] if is_unknown.any() else numbers
    if not len(known):
        unknown = np.int8(np.iinfo(np.int8).min)
        return NumberColumn(packed=np.broadcast_to(unknown, len(numbers)))
    least, most = known.min(), known.max()
    for name in NumberTypes:
        limits = np.iinfo(name)
        if limits.min < least and most <= limits.max:
            whole = np.where(is_unknown, limits.min, numbers).astype(name)
            if (whole[~is_unknown] == known).all():
                numbers = whole
            break
    if least == most and len(known) == len(numbers):
        numbers = np.broadcast_to(numbers[0], len(numbers))
    return NumberColumn(packed=numbers)


def _join_numbers(pieces: Sequence[Array]) -> Array:
    """Join packed numbers of several types; unknown ones stay unknown."""
    import numpy as np

    if not pieces:
        return np.empty(0, np.int8)
    types, first_number = {piece.dtype for piece in pieces}, pieces[0][0]
    joined_type = np.result_type(*types)
    if len(types) == 1 and all(_is_constant(part) and part[0] == first_number for part in pieces):
        return np.broadcast_to(first_number, sum(map(len, pieces)))
    if joined_type.kind == "f":
        return np.concatenate([NumberColumn(packed=piece).unpack() for piece in pieces])
    joined = np.empty(sum(map(len, pieces)), joined_type)
    first = 0
    for piece in pieces:
        part = joined[first : first + len(piece)]
        part[:] = piece
        if piece.dtype != joined_type:
            part[piece == np.iinfo(piece.dtype).min] = np.iinfo(joined_type).min
        first += len(piece)
    return joined


def _join_texts(pieces: Sequence[TextColumn]) -> TextColumn:
    """Join columns of texts; a text has one code in all."""
    import numpy as np

    code_by_text = number_by_first_use()
    codes = [[code_by_text[label] for label in piece.labels] for piece in pieces]
    kind = np.min_scalar_type(len(code_by_text))
    joined = [np.array(part, kind)[piece.codes] for part, piece in zip(codes, pieces, strict=True)]
    return TextColumn(codes=np.concatenate(joined), labels=tuple(code_by_text))


def _narrow_codes(codes: Array, labels: int) -> Array:
    """Return codes in the smallest type that holds the code of one more label."""
    import numpy as np

    return codes.astype(np.min_scalar_type(labels), copy=False)


class PackedColumns(MutableMapping[str, Column]):
    """Columns by name, packed in memory; a column is unpacked when it is read.

    A million attempts have about 70 columns: as 64-bit floats they would take 500 MB.
    """

    def __init__(self, columns: Mapping[str, Column] = MappingProxyType({})) -> None:
        self._packed: dict[str, Any] = {}
        self._parts: list[PackedColumns] = []
        self.update(columns)

    @classmethod
    def from_packed(cls, packed: dict[str, NumberColumn | TextColumn]) -> PackedColumns:
        columns = cls()
        columns._packed = packed
        return columns

    def list_packed(self) -> list[tuple[str, NumberColumn | TextColumn]]:
        return [*self._packed.items()]

    def __getitem__(self, name: str) -> Column:
        import numpy as np

        column = self._packed[name]
        if isinstance(column, TextColumn):
            return TextColumn(codes=column.codes.astype(np.int32), labels=column.labels)
        return column.unpack() if isinstance(column, NumberColumn) else column

    def __setitem__(self, name: str, column: Column) -> None:
        import numpy as np

        if isinstance(column, TextColumn):
            codes = _narrow_codes(column.codes, len(column.labels))
            column = TextColumn(codes=codes, labels=column.labels)
        elif not isinstance(column, NumberColumn) and column.dtype == np.float64:
            column = pack_numbers(column)
        self._packed[name] = column
        self._parts = []

    def __delitem__(self, name: str) -> None:
        del self._packed[name]
        self._parts = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def copy(self) -> PackedColumns:
        return self.join()

    def join(self, *others: Mapping[str, Column]) -> PackedColumns:
        """Return these columns and others; the last of a name counts."""
        joined = PackedColumns()
        for columns in (self, *others):
            if isinstance(columns, PackedColumns):
                joined._packed.update(columns._packed)
            else:
                joined.update(columns)
        return joined

    @classmethod
    def join_rows(cls, parts: Sequence[PackedColumns]) -> PackedColumns:
        """Join the rows of parts with the same columns; empties them, to need less memory."""
        joined = cls()
        for name in [*parts[0]]:
            pieces = [part._packed.pop(name) for part in parts]
            joined._packed[name] = (
                _join_texts(pieces)
                if isinstance(pieces[0], TextColumn)
                else NumberColumn(packed=_join_numbers([piece.packed for piece in pieces]))
            )
        return joined

    def select_rows(self, rows: Any) -> PackedColumns:
        """Return the columns with only these rows, given as a mask or by number."""
        selected = PackedColumns()
        selected._packed = {name: column[rows] for name, column in self._packed.items()}
        return selected

    def compute(self, values_of: Callable[[PackedColumns], Array]) -> Array:
        """Compute a value of each row, by parts: unpacked columns of all rows take much memory."""
        import numpy as np

        rows = len(next(iter(self._packed.values()), ()))
        if rows <= COMPUTED_ROWS:
            return values_of(self)
        if not self._parts:
            starts = range(0, rows, COMPUTED_ROWS)
            self._parts = [self.select_rows(slice(row, row + COMPUTED_ROWS)) for row in starts]
        values = values_of(self._parts[0])
        computed = np.empty(rows, values.dtype)
        computed[:COMPUTED_ROWS] = values
        for number, part in enumerate(self._parts[1:], 1):
            computed[number * COMPUTED_ROWS : (number + 1) * COMPUTED_ROWS] = values_of(part)
        return computed

    def align_rows(self, positions: Array, rows: int) -> PackedColumns:
        """Move each row to its position, -1 for none; other rows are unknown.

        If several rows have the same position, the last counts.
        """
        import numpy as np

        placed_rows = np.flatnonzero(positions >= 0)
        places = positions[placed_rows]
        if len(placed_rows) == rows == len(positions) and (places == placed_rows).all():
            return self
        aligned = PackedColumns()
        for name, column in self._packed.items():
            if isinstance(column, TextColumn):
                codes = np.full(rows, len(column.labels), column.codes.dtype)
                codes[places] = column.codes[placed_rows]
                aligned[name] = TextColumn(codes=codes, labels=(*column.labels, None))
                continue
            packed = column.packed
            unknown = np.nan if packed.dtype.kind == "f" else np.iinfo(packed.dtype).min
            if not len(places) or (_is_constant(packed) and packed[0] == unknown):
                nothing = np.broadcast_to(packed.dtype.type(unknown), rows)
                aligned._packed[name] = NumberColumn(packed=nothing)
                continue
            aligned_numbers = np.full(rows, unknown, packed.dtype)
            aligned_numbers[places] = packed[placed_rows]
            aligned._packed[name] = NumberColumn(packed=aligned_numbers)
        return aligned

    def forget_rows(self, names: Sequence[str], is_forgotten: Array) -> None:
        """Set columns to unknown in some rows."""
        rows = len(is_forgotten)
        if is_forgotten.any():
            import numpy as np

            positions = np.where(is_forgotten, -1, np.arange(rows))
            chosen = PackedColumns()
            chosen._packed = {name: self._packed[name] for name in names}
            self._packed.update(chosen.align_rows(positions, rows)._packed)


class AttemptIds(Sequence[str]):
    """Ids of attempts in one array of bytes: as texts they would take six times the memory."""

    def __init__(self, packed: Array) -> None:
        self.packed = packed
        """UTF-8 of equal width; texts if an id is long."""

    @cached_property
    def keys(self) -> Array:
        """Return a hash of each id."""
        return _hash_ids(self.packed)

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, row: Any) -> Any:
        value = self.packed[row]
        if isinstance(value, str):
            return value
        if isinstance(value, bytes):
            return value.decode()
        return AttemptIds(value)

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), PACKED_ROWS):
            part = self.packed[first : first + PACKED_ROWS].tolist()
            yield from part if self.packed.dtype.kind == "O" else map(bytes.decode, part)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def are_equal(self, others: AttemptIds) -> Array:
        """Return a mask of the rows with the same id in both."""
        import numpy as np

        if self.packed.dtype.kind == others.packed.dtype.kind:
            mask: Array = self.packed == others.packed
            return mask
        pairs = zip(self, others, strict=True)
        return np.fromiter((one == other for one, other in pairs), np.bool_, len(self))


def _hash_ids(packed: Array) -> Array:
    """Return a hash of each id, the same in arrays of any width."""
    import numpy as np

    if packed.dtype.kind == "O":
        hashes = [_hash_ids(np.array([name.encode("utf-8", "surrogatepass")])) for name in packed]
        return np.concatenate(hashes)
    words_per_id = -(-packed.dtype.itemsize // 8)
    words = packed.astype(f"S{8 * words_per_id}").view(np.uint64).reshape(-1, words_per_id)
    sums = np.zeros(len(packed), np.uint64)
    for place in range(words_per_id):
        # A word of zeros adds nothing. The factors are odd; others would do as well.
        factor = np.uint64(0x9E3779B97F4A7C15 * (2 * place + 1) % 2**64)
        word = words[:, place] * factor
        sums += (word ^ (word >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return sums.view(np.int64)


MAX_PACKED_ID_BYTES = 64


def pack_ids(names: Sequence[str]) -> AttemptIds:
    """Pack the ids of attempts."""
    if isinstance(names, AttemptIds):
        return names
    packer = IdPacker()
    for first in range(0, len(names), PACKED_ROWS):
        packer.add_ids(names[first : first + PACKED_ROWS])
    return packer.join_ids()


class IdPacker:
    """Packs ids that arrive in parts."""

    def __init__(self) -> None:
        self._packed: list[Array] = []

    def add_ids(self, names: Sequence[str]) -> None:
        import numpy as np

        width = len(names[0])
        joined = "\0".join(names)
        content = np.frombuffer(f"{joined}\0".encode("utf-8", "surrogatepass"), np.uint8)
        if joined.count("\0") != len(names) - 1:
            packed = np.array([*names], np.object_)
        elif (
            0 < width <= MAX_PACKED_ID_BYTES
            and len(content) == len(names) * (width + 1)
            and not content[width :: width + 1].any()
        ):
            packed = content.reshape(-1, width + 1)[:, :width].copy().view(f"S{width}")[:, 0]
        else:
            packed = np.array([name.encode("utf-8", "surrogatepass") for name in names])
            if packed.dtype.itemsize > MAX_PACKED_ID_BYTES:
                packed = np.array([*names], np.object_)
        self._packed.append(packed)

    def join_ids(self) -> AttemptIds:
        return _join_ids(self._packed)


def _join_ids(pieces: Sequence[Array]) -> AttemptIds:
    import numpy as np

    if not pieces:
        return AttemptIds(np.empty(0, "S1"))
    if any(piece.dtype.kind == "O" for piece in pieces):
        pieces = [np.array([*AttemptIds(piece)], np.object_) for piece in pieces]
    return AttemptIds(np.concatenate(pieces))


class AttemptColumns(Record):
    """Rows of attempts, stored by column."""

    attempts: Sequence[str]
    """The attempt id of each row."""
    columns: PackedColumns


def join_rows(parts: Sequence[AttemptColumns]) -> AttemptColumns:
    """Return the rows of all parts, which have the same columns and are emptied."""
    parts = [part for part in parts if len(part.attempts)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    return AttemptColumns(
        attempts=_join_ids([pack_ids(part.attempts).packed for part in parts]),
        columns=PackedColumns.join_rows([part.columns for part in parts]),
    )


class StoredArray(Record):
    """An array as it is stored."""

    type: str
    rows: int
    content: bytes
    """The bytes of all elements; of one element if it stands for all rows."""


class ColumnSegment(Record):
    """Columns of some rows as they are stored."""

    ids: StoredArray | None
    long_ids: tuple[str, ...] = ()
    numbers: dict[str, StoredArray]
    texts: dict[str, tuple[StoredArray, tuple[str | None, ...]]]


def pack_segment(columns: AttemptColumns) -> bytes:
    """Pack columns as loaded from the store."""
    ids, held = pack_ids(columns.attempts), columns.columns.list_packed()
    has_long_ids = ids.packed.dtype.kind == "O"
    return pack_record(
        ColumnSegment(
            ids=None if has_long_ids else _store_array(ids.packed),
            long_ids=tuple(ids) if has_long_ids else (),
            numbers={
                name: _store_array(column.packed)
                for name, column in held
                if isinstance(column, NumberColumn)
            },
            texts={
                name: (_store_array(column.codes), column.labels)
                for name, column in held
                if isinstance(column, TextColumn)
            },
        )
    )


def unpack_segment(body: bytes) -> AttemptColumns:
    """Unpack columns that `pack_segment` packed."""
    import numpy as np

    segment = unpack_record(body, ColumnSegment)
    if segment.ids is None:
        ids = AttemptIds(np.array(segment.long_ids, np.object_))
    else:
        ids = AttemptIds(_load_array(segment.ids))
    return AttemptColumns(
        attempts=ids,
        columns=PackedColumns.from_packed(
            {name: NumberColumn(packed=_load_array(part)) for name, part in segment.numbers.items()}
            | {
                name: TextColumn(codes=_load_array(codes), labels=labels)
                for name, (codes, labels) in segment.texts.items()
            }
        ),
    )


def _store_array(array: Array) -> StoredArray:
    stored = array[:1] if _is_constant(array) else array
    return StoredArray(type=array.dtype.str, rows=len(array), content=stored.tobytes())


def _load_array(stored: StoredArray) -> Array:
    import numpy as np

    array = np.frombuffer(stored.content, stored.type)
    return array if len(array) == stored.rows else np.broadcast_to(array[0], stored.rows)


def make_text_column(values: Sequence[Any]) -> TextColumn:
    """Build a column of texts from row values."""
    import numpy as np

    code_by_value = number_by_first_use()
    codes = np.fromiter(map(code_by_value.__getitem__, values), np.int32, len(values))
    return TextColumn(codes=codes, labels=tuple(code_by_value))


def number_by_first_use() -> defaultdict[Any, int]:
    """Return a dictionary that numbers keys by first lookup: 0, 1, …."""
    number_by_key: defaultdict[Any, int] = defaultdict()
    number_by_key.default_factory = number_by_key.__len__
    return number_by_key


def collect_columns(
    parts: Iterator[Sequence[Sequence[Any]]], kinds: Mapping[str, bool]
) -> AttemptColumns:
    """Collect rows into columns; the first value is the attempt, `kinds` says which are texts.

    Values are packed as they arrive: Python objects take more than ten times the memory.
    """
    ids = IdPacker()
    packers = {name: TextPacker() if is_text else NumberPacker() for name, is_text in kinds.items()}
    for part in parts:
        first, *columns = zip(*part, strict=True)
        ids.add_ids(first if None not in first else [name or "" for name in first])
        for packer, values in zip(packers.values(), columns, strict=True):
            packer.add_values(values)
    packed = PackedColumns()
    while packers:
        name = next(iter(packers))
        packed[name] = packers.pop(name).join_values()
    return AttemptColumns(attempts=ids.join_ids(), columns=packed)


class TextPacker:
    """Packs texts that arrive in parts as codes."""

    def __init__(self) -> None:
        self._code_by_text: dict[Any, int] = {}
        self._pieces: list[Array] = []

    def add_values(self, values: tuple[Any, ...]) -> None:
        import numpy as np

        codes = _look_up(values, self._code_by_text)
        if codes is None:
            for text in values:
                self._code_by_text.setdefault(text, len(self._code_by_text))
            codes = _look_up(values, self._code_by_text) or ()
        if len(self._code_by_text) <= MAX_BYTE_CODES:
            self._pieces.append(np.frombuffer(bytes(codes), np.uint8))
        else:
            numbers = np.fromiter(codes, np.int32, len(codes))
            self._pieces.append(_narrow_codes(numbers, len(self._code_by_text)))

    def join_values(self) -> TextColumn:
        import numpy as np

        codes = np.concatenate(self._pieces) if self._pieces else np.empty(0, np.int32)
        return TextColumn(codes=codes, labels=tuple(self._code_by_text))


MAX_BYTE_CODES = 255
MAX_KNOWN_NUMBERS = 1000
"""Distinct numbers of a column that are looked up; more are converted one by one."""


def _look_up(values: tuple[Any, ...], by_value: Mapping[Any, Any]) -> tuple[Any, ...] | None:
    """Return what a mapping has for each value; None if it lacks one.

    `itemgetter` takes half the time of a loop.
    """
    try:
        result = itemgetter(*values)(by_value)
    except KeyError:
        return None
    return result if len(values) > 1 else (result,)


@lru_cache(maxsize=32)
def _float_packer(size: int) -> Callable[..., bytes]:
    """Return a function that packs so many numbers; it takes half the time of numpy."""
    return struct.Struct(f"{size}d").pack


def _are_same_floats(values: Sequence[Any]) -> bool:
    """Whether all are the same number, or all are NaN."""
    if any(not isinstance(value, float) for value in values):
        return False
    return values.count(values[0]) == len(values) or all(map(math.isnan, values))


class NumberPacker:
    """Packs numbers that arrive in parts; None is unknown."""

    def __init__(self) -> None:
        self._float_by_value: dict[Any, float] = {None: math.nan}
        self._has_unknown = False
        self._loose: list[Array | float] = []
        """Parts that are not packed yet; a number stands for a part of equal ones."""
        self._loose_sizes: list[int] = []
        self._pieces: list[Array] = []

    def add_values(self, values: tuple[Any, ...]) -> None:
        import numpy as np

        size, first = len(values), values[0]
        if values[-1] is first and values.count(first) == size:
            self._loose.append(math.nan if first is None else float(first))
        else:
            self._loose.append(np.frombuffer(self._pack_values(values)))
        self._loose_sizes.append(size)
        if len(self._loose) >= PACKED_PARTS:
            self._pack_loose()

    def _pack_values(self, values: tuple[Any, ...]) -> bytes:
        pack = _float_packer(len(values))
        if not self._has_unknown:
            try:
                return pack(*values)
            except struct.error:  # of None
                self._has_unknown = True
        if len(self._float_by_value) <= MAX_KNOWN_NUMBERS:
            if (numbers := _look_up(values, self._float_by_value)) is not None:
                return pack(*numbers)
            self._float_by_value |= {value: float(value) for value in values if value is not None}
        return pack(*[math.nan if value is None else value for value in values])

    def _pack_loose(self) -> None:
        import numpy as np

        parts, sizes = self._loose, self._loose_sizes
        self._loose, self._loose_sizes = [], []
        if not parts:
            return
        if _are_same_floats(parts):
            packed = pack_numbers(np.array(parts[:1])).packed
            self._pieces.append(np.broadcast_to(packed[0], sum(sizes)))
            return
        arrays = [
            np.full(size, part) if isinstance(part, float) else part
            for part, size in zip(parts, sizes, strict=True)
        ]
        self._pieces.append(pack_numbers(np.concatenate(arrays)).packed)

    def join_values(self) -> NumberColumn:
        self._pack_loose()
        return NumberColumn(packed=_join_numbers(self._pieces))


def align_columns(part: AttemptColumns, positions: Array, rows: int) -> PackedColumns:
    """Expand columns of some rows to all rows, by the position of each, -1 for none.

    If several have the same position, the last counts.
    """
    return part.columns.align_rows(positions, rows)


def find_last_rows(positions: Array, *keys: TextColumn) -> Array:
    """Return the rows that count, in order: the last of each place and combination of keys."""
    import numpy as np

    counted_rows = np.flatnonzero(positions >= 0)[::-1]
    key = positions[counted_rows]
    for column in keys:
        key = key * len(column.labels) + column.codes[counted_rows]
    return np.sort(counted_rows[np.unique(key, return_index=True)[1]])


def divide_known(sums: Array, counts: Array) -> Array:
    """Return the mean of each place; NaN if its count is 0."""
    import numpy as np

    means: Array = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return means


class RowPlacer:
    """Finds the rows of attempts in a table."""

    def __init__(self, attempts: Sequence[str]) -> None:
        import numpy as np

        self._ids = pack_ids(attempts)
        self.size = len(attempts)
        self._last_ids, self._last_places = self._ids, np.arange(self.size)

    @cached_property
    def _sorted_keys(self) -> tuple[Array, Array]:
        """Return the hashes in order, and the row of each."""
        import numpy as np

        order = np.argsort(self._ids.keys).astype(np.int32)
        return self._ids.keys[order], order

    @cached_property
    def _row_by_attempt(self) -> dict[str, int]:
        """Return the rows by id if two ids have the same hash, else nothing."""
        keys, _ = self._sorted_keys
        has_collision = (keys[1:] == keys[:-1]).any()
        return {name: row for row, name in enumerate(self._ids)} if has_collision else {}

    def find_places(self, part: AttemptColumns) -> Array:
        """Return the place of each row's attempt; -1 if it does not count."""
        return self.find_ids(part.attempts)

    def find_ids(self, attempts: Sequence[str]) -> Array:
        """Return the place of each attempt; -1 if it does not count.

        One review gives many scores, so a list often equals the previous one and is reused.
        """
        import numpy as np

        ids, last = pack_ids(attempts), self._last_ids
        if not (np.array_equal(last.keys, ids.keys) and last.are_equal(ids).all()):
            self._last_ids, self._last_places = ids, self._find_ids(ids)
        return self._last_places

    def _find_ids(self, ids: AttemptIds) -> Array:
        import numpy as np

        if self._row_by_attempt:
            places = map(self._row_by_attempt.get, ids, repeat(-1))
            return np.fromiter(places, np.intp, len(ids))
        rows = np.full(len(ids), -1, np.intp)
        if self.size and len(ids):
            keys, order = self._sorted_keys
            by_key = np.argsort(ids.keys)  # sorted keys are found several times as fast
            at = np.searchsorted(keys, ids.keys[by_key])
            rows[by_key] = order[np.minimum(at, self.size - 1)]
            rows[~self._ids[rows].are_equal(ids)] = -1
        return rows

    def find_newest(self, part: AttemptColumns) -> tuple[Array, Array]:
        """Return the places of each attempt's and person's last values, and those values."""
        import numpy as np

        positions = self.find_places(part)
        rows = find_last_rows(positions, part.columns["who"])
        values = part.columns["value"][rows]
        is_known = np.isfinite(values)
        return positions[rows[is_known]], values[is_known]


def leave_out_attempts(columns: AttemptColumns, attempts: Sequence[str]) -> AttemptColumns:
    """Return the columns without some attempts."""
    import numpy as np

    if not attempts:
        return columns
    places = RowPlacer(columns.attempts).find_ids(attempts)
    is_kept = np.ones(len(columns.attempts), np.bool_)
    is_kept[places[places >= 0]] = False
    return filter_rows(columns, is_kept)


def filter_rows(columns: AttemptColumns, rows: Any) -> AttemptColumns:
    """Return only some rows, given as a mask or by number."""
    return AttemptColumns(
        attempts=pack_ids(columns.attempts)[rows], columns=columns.columns.select_rows(rows)
    )
