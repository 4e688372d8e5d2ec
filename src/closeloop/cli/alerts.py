"""Tell somebody what became worse: in a file or at an address, each turn once."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from closeloop.cli.config import load
from closeloop.cli.console import warn, whole
from closeloop.measuring.trends import fresh
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.plural import plural

if TYPE_CHECKING:
    from closeloop.model.trend import Regression, Trends

SECONDS = 15.0


def send(found: Trends, where: str, now: datetime) -> None:
    """Only what is sure and recent; what was told is remembered beside the store."""
    memory = load(Path.cwd()).root / ".closeloop" / "alerts.jsonl"
    told = remembered(memory, where)
    new = fresh(found, dict.fromkeys(told), now=now)
    if not new:
        return
    if where.startswith(("http://", "https://")):
        post(where, new)
    else:
        append(Path(where), [whole(one) | {"key": one.key} for one in new])
    append(memory, [{"key": one.key, "where": where, "at": now} for one in new])
    warn(f"{plural(len(new), 'regression was', 'regressions were')} told to {where}.")


def remembered(memory: Path, where: str) -> set[str]:
    """The keys that were told there; a line that cannot be read says nothing."""
    keys = set()
    for line in memory.read_bytes().splitlines() if memory.exists() else ():
        try:
            kept = msgspec.json.decode(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(kept, dict) and kept.get("where") == where:
            keys.add(str(kept.get("key")))
    return keys


def post(address: str, new: list[Regression]) -> None:
    """One request with all of them; not one that a redirect sends elsewhere."""
    import httpx

    body = {"regressions": [whole(one) | {"key": one.key} for one in new]}
    try:
        answer = httpx.post(
            address,
            content=msgspec.json.encode(body),
            headers={"content-type": "application/json"},
            timeout=SECONDS,
        )
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise MachineFailed(
            f"The alert could not be sent ({type(error).__name__}): check the address, and the "
            "same command tells it again."
        ) from error


def append(file: Path, rows: list[dict[str, object]]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as opened:
            opened.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    except OSError as error:
        raise BadInput(f"{file} cannot be written ({error.strerror}): name another.") from error
