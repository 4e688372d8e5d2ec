"""Scores as people and programs give them: typed, in a file, or sent; all of them or none."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from closeloop.metrics.score_definitions import ScoreCatalogue, find_definition, parse_score
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.score import Score, ScoreSource
from closeloop.store import Store

MAX_FILE_BYTES = 64 << 20
MAX_NOTE_CHARACTERS = 10_000
MAX_NAME_CHARACTERS = 200
GIVEN_SOURCES: tuple[ScoreSource, ...] = ("person", "judge", "code")
"""What tests and rules say is computed, and cannot be given."""


class GivenScore(Record, forbid_unknown_fields=True):
    """One score as it comes in."""

    attempt: str
    name: str
    value: float | str | bool | None
    note: str = ""
    by: str | None = None


class ScoreIntake(Record):
    """Who gives scores, and what may be given."""

    catalogue: ScoreCatalogue
    source: ScoreSource
    by: str
    now: datetime

    def read_rows(
        self, rows: Sequence[GivenScore], store: Store, lines: Sequence[str] = ()
    ) -> list[Score]:
        """Each row checked; BadInput says what is wrong with the first that is, and where."""
        if self.source not in GIVEN_SOURCES:
            raise BadInput(f"What {self.source} says is computed: give a score as person or code.")
        if not rows:
            raise BadInput("No score was given: write one like would-merge=yes.")
        self._refuse_forged_judges(rows, store)
        find_id = cache(store.find_attempt_id)
        scores: list[Score] = []
        for row in rows:
            try:
                scores.append(self._read_row(row, find_id))
            except BadInput as error:
                if not lines:
                    raise
                raise BadInput(f"{lines[len(scores)]}: {error} Nothing was written.") from None
        return scores

    def _refuse_forged_judges(self, rows: Sequence[GivenScore], store: Store) -> None:
        """A judge of closeloop's own speaks by its evaluations alone."""
        if self.source == "judge":
            given = {(row.by or "").strip() or self.by.strip() for row in rows}
            if known := given & {one.id for one in store.judged.list_judge_versions()}:
                raise BadInput(
                    f"{min(known)!r} is a version of a judge that `closeloop judge` asks: nobody "
                    "else gives its scores."
                )

    def _read_row(self, row: GivenScore, find_id: Callable[[str], str]) -> Score:
        definition = find_definition(row.name, self.catalogue)
        if row.name in self.catalogue.scorers:
            raise BadInput(f"{row.name!r} is computed by a scorer, and cannot be given.")
        if len(row.note) > MAX_NOTE_CHARACTERS:
            raise BadInput(f"A note is over {MAX_NOTE_CHARACTERS:,} characters: shorten it.")
        if row.value is None:
            raise BadInput(f"{row.name!r} of {row.attempt} has no value: leave the line out.")
        value, label = parse_score(definition, row.value)
        by = (row.by or "").strip() or self.by.strip()
        if not by or not by.isprintable() or len(by) > MAX_NAME_CHARACTERS:
            raise BadInput(f"{by!r} is no name of whoever scores: write one line.")
        return Score(
            attempt=find_id(row.attempt),
            name=row.name,
            value=value,
            label=label,
            source=self.source,
            version=by if self.source == "judge" else "",
            by=by,
            at=self.now,
            note=row.note,
        )


def read_typed_scores(attempt: str, values: Sequence[str], note: str) -> list[GivenScore]:
    """`would-merge=yes quality=0.8`, as somebody typed them."""
    rows = []
    for one in values:
        name, equals, value = one.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise BadInput(f"{one!r} is no score: write it like would-merge=yes.")
        rows.append(GivenScore(attempt=attempt, name=name.strip(), value=value.strip(), note=note))
    return rows


def read_score_file(file: Path) -> tuple[list[GivenScore], list[str]]:
    """CSV with a head, or JSON lines, and where each row stands; `-` is standard input."""
    try:
        content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if str(file) == "-" else _read(file)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BadInput(f"{file} is no text in UTF-8: save it so.") from None
    if len(content) > MAX_FILE_BYTES:
        raise BadInput(f"{file} is over {MAX_FILE_BYTES >> 20} MB: split it.")
    rows = _read_csv(text) if file.suffix.lower() == ".csv" else _read_json_lines(text)
    found, lines = [], []
    for line, row in rows:
        try:
            found.append(msgspec.convert(row, GivenScore))
        except msgspec.ValidationError as error:
            raise BadInput(f"{file}, line {line}: {error}. Nothing was written.") from None
        lines.append(f"{file}, line {line}")
    if not found:
        raise BadInput(f"{file} has no scores: give each line an attempt, a name and a value.")
    return found, lines


def _read(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(MAX_FILE_BYTES + 1)


def _read_csv(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Strictly: a quote that is never closed would swallow all lines after it."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        head = reader.fieldnames or ()
        if len({*head}) < len(head):
            raise BadInput("The head names a column twice. Nothing was written.")
        for row in reader:
            if None in row:
                raise BadInput(
                    f"Line {reader.line_num} has more fields than the head. Nothing was written."
                )
            filled = {key: value for key, value in row.items() if value not in (None, "")}
            yield reader.line_num, filled
    except csv.Error as error:
        raise BadInput(f"Line {reader.line_num} is no CSV: {error}. Nothing was written.") from None


def _read_json_lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadInput(f"Line {number} is no JSON: {error}. Nothing was written.") from None
