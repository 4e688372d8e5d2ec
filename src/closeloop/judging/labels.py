"""What people say of items, from a CSV file."""

from __future__ import annotations

import csv
import io
from typing import Any, get_args

from closeloop.model.calibration import Asked, Label, Word
from closeloop.model.errors import BadInput, unknown
from closeloop.model.record import Record

LARGEST = 16 << 20
COLUMNS = ("item", "label", "asked", "person", "golden", "judge")
TRUE, FALSE = ("1", "true", "yes"), ("", "0", "false", "no")
Verdicts = dict[tuple[str, Asked], Word]
"""What a judge says, by item and by what was asked; an abstention is not in it."""


class Sheet(Record):
    """A file's labels, and the judge's verdicts where the file holds them."""

    labels: tuple[Label, ...]
    verdicts: Verdicts | None


def read_sheet(content: bytes, file: str, rubric: str) -> Sheet:
    """BadInput names the line of what is wrong."""
    if len(content) > LARGEST:
        raise BadInput(f"{file} is over {LARGEST >> 20} MB: label fewer items.")
    try:
        text = content.decode("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not UTF-8 text: save it as UTF-8.") from None
    except csv.Error as error:
        raise BadInput(f"{file} is not CSV: {error}.") from None
    names = _columns(rows, file)
    labels: list[Label] = []
    verdicts: Verdicts = {}
    for line, row in enumerate(rows, 2):
        at = f"{file}:{line}"
        if None in row or None in row.values():
            raise BadInput(f"{at}: the row has another number of cells than the first.")
        item = row["item"].strip()
        if not item:
            raise BadInput(f"{at}: the item has no name.")
        asked = _one_of(row.get("asked") or "overall", get_args(Asked), at)
        judge = (row.get("judge") or "").strip()
        if judge not in ("", "abstain"):
            verdicts[item, asked] = _word(judge, at)
        if row["label"].strip():
            labels.append(_label(row, item, asked, rubric, at))
    return Sheet(labels=tuple(labels), verdicts=verdicts if "judge" in names else None)


def _columns(rows: list[dict[str, str]], file: str) -> list[str]:
    names = [name for name in rows[0] if name is not None] if rows else []
    for name in names:
        if name not in COLUMNS:
            raise unknown(f"column in {file}", name, COLUMNS)
    if not {"item", "label"} <= {*names}:
        raise BadInput(f"{file} needs the columns item and label, and a row for each label.")
    return names


def _label(row: dict[str, str], item: str, asked: Asked, rubric: str, at: str) -> Label:
    golden = (row.get("golden") or "").strip().lower()
    if golden not in (*TRUE, *FALSE):
        raise BadInput(f"{at}: golden is yes or no, not {golden!r}.")
    return Label(
        item=item,
        rubric=rubric,
        asked=asked,
        label=_word(row["label"], at),
        person=(row.get("person") or "").strip() or "somebody",
        golden=golden in TRUE,
    )


def _word(written: str, at: str) -> Word:
    """To a question of yes or no, people answer so."""
    plain = {"yes": "pass", "no": "fail"}.get(written.strip().lower(), written)
    word: Word = _one_of(plain, get_args(Word), at)
    return word


def _one_of(written: str, known: tuple[str, ...], at: str) -> Any:
    word = written.strip().lower()
    if word not in known:
        raise BadInput(f"{at}: {written.strip()[:40]!r} should be one of {', '.join(known)}.")
    return word
