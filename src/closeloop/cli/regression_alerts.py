"""Tell somebody what became worse: in a file or at an address, each turn once."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from closeloop.cli.config import load_project
from closeloop.cli.console import print_warning, record_to_map
from closeloop.metrics.metric_trends import select_new_regressions
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.plural import count_with_noun

if TYPE_CHECKING:
    from closeloop.records.trend_report import MetricRegression, TrendReport

ALERT_TIMEOUT_SECONDS = 15.0


def send_regression_alerts(found: TrendReport, where: str, now: datetime) -> None:
    """Only what is sure and recent; what was told is remembered beside the store."""
    sent_file = load_project(Path.cwd()).root / ".closeloop" / "alerts.jsonl"
    sent_keys = read_sent_keys(sent_file, where)
    new_regressions = select_new_regressions(found, dict.fromkeys(sent_keys), now=now)
    if not new_regressions:
        return
    if where.startswith(("http://", "https://")):
        post_regressions(where, new_regressions)
    else:
        append_json_lines(
            Path(where), [record_to_map(one) | {"key": one.key} for one in new_regressions]
        )
    append_json_lines(
        sent_file, [{"key": one.key, "where": where, "at": now} for one in new_regressions]
    )
    print_warning(
        f"{count_with_noun(len(new_regressions), 'regression was', 'regressions were')} told to"
        f" {where}."
    )


def read_sent_keys(memory: Path, where: str) -> set[str]:
    """The keys that were told there; a line that cannot be read says nothing."""
    keys = set()
    for line in memory.read_bytes().splitlines() if memory.exists() else ():
        try:
            entry = msgspec.json.decode(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and entry.get("where") == where:
            keys.add(str(entry.get("key")))
    return keys


def post_regressions(address: str, new: list[MetricRegression]) -> None:
    """One request with all of them; not one that a redirect sends elsewhere."""
    import httpx

    body = {"regressions": [record_to_map(one) | {"key": one.key} for one in new]}
    try:
        response = httpx.post(
            address,
            content=msgspec.json.encode(body),
            headers={"content-type": "application/json"},
            timeout=ALERT_TIMEOUT_SECONDS,
        )
        response.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise MachineFailed(
            f"The alert could not be sent ({type(error).__name__}): check the address, and the "
            "same command tells it again."
        ) from error


def append_json_lines(file: Path, rows: list[dict[str, object]]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as output:
            output.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    except OSError as error:
        raise BadInput(f"{file} cannot be written ({error.strerror}): name another.") from error
