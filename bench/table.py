"""The table of the bench: its rows, how it is printed and kept, and what moved between two."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
SCALES = {"s": 1, "ms": 1e-3, "µs": 1e-6, "MB": 1e6, "KB": 1e3, "×": 1, "": 1}
MIN_MOVE = 0.03
"""A line that moved by less did not move, however small the spread over three repeats was."""
MAX_WORSE = 0.15
"""A line that is worse by more fails the bench, unless `slower.toml` names it with its reason."""
SLOWER = Path(__file__).parent / "slower.toml"
LEGEND = (
    "Lower is better in every line. Ratios are to floors and peers measured in the same run, and "
    "can be compared\nbetween machines; values can be compared only on the same machine. The "
    "spread is half the range of the repeats."
)


class Row(NamedTuple):
    """One measurement; or, with a note instead of a value, why there is none."""

    name: str
    value: float | None = None
    unit: str = ""
    against: str = ""
    """The floor or peer of the ratio."""
    ratio: float | None = None
    spread: float | None = None
    aim: str = ""
    is_met: bool | None = None
    note: str = ""
    part: str = ""


def build_row(
    name: str,
    values: Sequence[float],
    unit: str,
    *,
    floor: Sequence[float] | None = None,
    against: str = "",
    aim: float | None = None,
    budget: float | None = None,
) -> Row:
    """The medians of repeats given in seconds or bytes; an aim is a ratio, a budget a value.

    Each repeat is divided by the floor measured beside it, so that what slowed both is left out.
    """
    scaled = [value / SCALES[unit] for value in values]
    ratios = [value / below for value, below in zip(values, floor, strict=True)] if floor else None
    value = statistics.median(scaled)
    ratio = statistics.median(ratios) if ratios else None
    row = Row(name, value, unit, against, ratio, _spread(ratios or scaled))
    if aim is not None and ratio is not None:
        return row._replace(aim=f"≤ {aim:g} ×", is_met=ratio <= aim)
    if budget is not None:
        return row._replace(aim=f"≤ {budget:g} {unit}".strip(), is_met=value <= budget)
    return row


def _spread(values: Sequence[float]) -> float:
    """Half the range, as a part of the median."""
    median = statistics.median(values)
    return (max(values) - min(values)) / 2 / abs(median) if median else 0.0


def format_row(row: Row) -> str:
    if row.value is None:
        return f"{row.name:54} {row.note}"
    ratio = "" if row.ratio is None else f"{row.ratio:8.3g} ×"
    spread = "" if row.spread is None else f"± {row.spread:.0%}"
    mark = "" if row.is_met is None else f"  aim {row.aim} {'met' if row.is_met else 'MISSED'}"
    value = f"{row.value:,.3g}" if row.value < 1000 else f"{row.value:,.0f}"
    return (
        f"{row.name:54} {value:>8} {row.unit:3} {ratio:10} {spread:>6}  {row.against:38}{mark}"
    ).rstrip()


def describe_run() -> dict[str, Any]:
    """The commit, day and machine of a table. Taken at the start: work may go on in the clone."""
    return {
        "commit": _git("rev-parse", "--short", "HEAD"),
        "is_changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": _processor_name(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        },
    }


def _processor_name() -> str:
    """The processor with its generation and clock: clouds give many the same name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    # The first of each is that of the first core.
    fields = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in reversed(lines))
    }
    if "model name" not in fields:
        return platform.processor()
    details = [f"{name} {fields[name]}" for name in ("cpu family", "model") if name in fields]
    if "cpu MHz" in fields:
        details.append(f"{float(fields['cpu MHz']) / 1000:.1f} GHz")
    return ", ".join([fields["model name"], *details])


def _git(*arguments: str) -> str:
    """What git says of this clone; nothing where there is no git."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def keep_table(table: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a table; rows of parts that were not run again stay as the same commit has them."""
    file = folder / f"{table['date']}-{table['commit'] or 'unknown'}.json"
    parts = {row["part"] for row in table["rows"]}
    before = json.loads(file.read_bytes())["rows"] if file.exists() else []
    kept = [row for row in before if row["part"] not in parts]
    folder.mkdir(exist_ok=True)
    text = json.dumps({**table, "rows": kept + table["rows"]}, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")
    return file


def compare_tables(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """The lines that moved by more than both spreads together, and those that are in one only."""
    is_same_machine = old["machine"] == new["machine"]
    if not is_same_machine:
        yield "Measured on different machines: only lines with a ratio are compared."
    before, after = ({(row["part"], row["name"]): row for row in t["rows"]} for t in (old, new))
    compared = moved = 0
    for key in [*before, *(key for key in after if key not in before)]:
        numbers = [_number(table.get(key), is_same_machine) for table in (before, after)]
        if numbers[0] is None or numbers[1] is None:
            sides = [_reason(table.get(key)) for table in (before, after)]
            if sides[0] != sides[1]:
                yield f"{key[0]:11} {key[1]:54} {sides[0]} → {sides[1]}"
            continue
        compared += 1
        (first, spread, unit), (second, other, _) = numbers
        if abs(second - first) > max(first * spread + second * other, MIN_MOVE * abs(first)):
            moved += 1
            change = f"{second / first:.2f} of before" if first else "before 0"
            word = "better" if second < first else "WORSE"
            yield (
                f"{key[0]:11} {key[1]:54} {first:8.3g} → {second:8.3g} {unit:2}  {change}, {word} "
                f"(spreads {spread:.0%}, {other:.0%})"
            )
    yield f"{moved} of {compared} lines moved by more than their spread."


def find_slower_lines(
    old: dict[str, Any], new: dict[str, Any], reasons: dict[str, dict[str, str]]
) -> list[str]:
    """The lines that are worse by more than is allowed and than both spreads, without a reason.

    Each repeat of a line was divided by the floor beside it, and the median of these is compared.
    """
    is_same_machine = old["machine"] == new["machine"]
    before = {(row["part"], row["name"]): row for row in old["rows"]}
    slower = []
    for row in new["rows"]:
        part, name = row["part"], row["name"]
        numbers = [_number(one, is_same_machine) for one in (before.get((part, name)), row)]
        if numbers[0] is None or numbers[1] is None or reasons.get(part, {}).get(name):
            continue
        (first, spread, unit), (second, other, _) = numbers
        if second - first > max(MAX_WORSE * abs(first), first * spread + second * other):
            slower.append(f"{part:11} {name:54} {first:8.3g} → {second:8.3g} {unit}")
    return slower


def load_newest_table(folder: Path = RESULTS) -> dict[str, Any] | None:
    """The table that was kept last; None where none is."""
    files = sorted(folder.glob("*.json"))
    tables = [json.loads(file.read_bytes()) for file in files]
    return max(tables, key=lambda table: table["date"], default=None)


def load_reasons(file: Path = SLOWER) -> dict[str, dict[str, str]]:
    """By part and line, why it may be slower than in the table that was kept last."""
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _number(row: dict[str, Any] | None, is_same_machine: bool) -> tuple[float, float, str] | None:
    """What is compared of a line: its ratio, or on the same machine its value."""
    if row is None or row["value"] is None:
        return None
    if row["ratio"] is not None:
        return row["ratio"], row["spread"] or 0.0, "×"
    return (row["value"], row["spread"] or 0.0, row["unit"]) if is_same_machine else None


def _reason(row: dict[str, Any] | None) -> str:
    if row is None:
        return "no such line"
    return str(row["note"]) if row["value"] is None else "measured"
