"""What people say of items, from a CSV file."""

from __future__ import annotations

import csv
import io
from typing import Any, get_args

from closeloop.records.calibration import HumanLabel, JudgedAspect, LabelVerdict
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.record import Record

MAX_SHEET_BYTES = 16 << 20
SHEET_COLUMNS = ("item", "label", "asked", "person", "golden", "judge")
TRUE, FALSE = ("1", "true", "yes"), ("", "0", "false", "no")
Verdicts = dict[tuple[str, JudgedAspect], LabelVerdict]
"""What a judge says, by item and by what was asked; an abstention is not in it."""


class LabelSheet(Record):
    """A file's labels, and the judge's verdicts where the file holds them."""

    labels: tuple[HumanLabel, ...]
    verdicts: Verdicts | None


def read_label_sheet(content: bytes, file: str, rubric: str) -> LabelSheet:
    """BadInput names the line of what is wrong."""
    if len(content) > MAX_SHEET_BYTES:
        raise BadInput(f"{file} is over {MAX_SHEET_BYTES >> 20} MB: label fewer items.")
    try:
        text = content.decode("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not UTF-8 text: save it as UTF-8.") from None
    except csv.Error as error:
        raise BadInput(f"{file} is not CSV: {error}.") from None
    names = _read_columns(rows, file)
    labels: list[HumanLabel] = []
    verdicts: Verdicts = {}
    for line, row in enumerate(rows, 2):
        at = f"{file}:{line}"
        if None in row or None in row.values():
            raise BadInput(f"{at}: the row has another number of cells than the first.")
        item = row["item"].strip()
        if not item:
            raise BadInput(f"{at}: the item has no name.")
        asked = _require_one_of(row.get("asked") or "overall", get_args(JudgedAspect), at)
        judge = (row.get("judge") or "").strip()
        if judge not in ("", "abstain"):
            verdicts[item, asked] = _parse_word(judge, at)
        if row["label"].strip():
            labels.append(_read_label(row, item, asked, rubric, at))
    return LabelSheet(labels=tuple(labels), verdicts=verdicts if "judge" in names else None)


def _read_columns(rows: list[dict[str, str]], file: str) -> list[str]:
    names = [name for name in rows[0] if name is not None] if rows else []
    for name in names:
        if name not in SHEET_COLUMNS:
            raise unknown_name_error(f"column in {file}", name, SHEET_COLUMNS)
    if not {"item", "label"} <= {*names}:
        raise BadInput(f"{file} needs the columns item and label, and a row for each label.")
    return names


def _read_label(
    row: dict[str, str], item: str, asked: JudgedAspect, rubric: str, at: str
) -> HumanLabel:
    golden = (row.get("golden") or "").strip().lower()
    if golden not in (*TRUE, *FALSE):
        raise BadInput(f"{at}: golden is yes or no, not {golden!r}.")
    return HumanLabel(
        item=item,
        rubric=rubric,
        asked=asked,
        label=_parse_word(row["label"], at),
        person=(row.get("person") or "").strip() or "somebody",
        golden=golden in TRUE,
    )


def _parse_word(written: str, at: str) -> LabelVerdict:
    """To a question of yes or no, people answer so."""
    plain = {"yes": "pass", "no": "fail"}.get(written.strip().lower(), written)
    word: LabelVerdict = _require_one_of(plain, get_args(LabelVerdict), at)
    return word


def _require_one_of(written: str, known: tuple[str, ...], at: str) -> Any:
    word = written.strip().lower()
    if word not in known:
        raise BadInput(f"{at}: {written.strip()[:40]!r} should be one of {', '.join(known)}.")
    return word
