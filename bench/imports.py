"""Importing recordings beside decoding their JSON, in its own process: prints what it measured.

python bench/imports.py make FOLDER MEGABYTES     recordings repeated with fresh ids
python bench/imports.py decode FOLDER             msgspec.json.decode of the same bytes
python bench/imports.py import FOLDER STORE JOBS  CPU, seconds and memory of an import
python bench/imports.py lengthen STORE LONG TRACES MEGABYTES  longer traces, made of those
python bench/imports.py read STORE ATTEMPTS       stored traces, read back
python bench/imports.py export STORE ATTEMPTS FILE  the same traces as JSON lines, for a peer
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
import uuid
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "tests" / "traces" / "fixtures"
_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def make(folder: Path, megabytes: int) -> None:
    """Every fixture that is text, again and again, each time under other ids."""
    files = [
        path
        for path in sorted(FIXTURES.rglob("*"))
        if path.suffix in (".jsonl", ".json") and path.stat().st_size > 4000
    ]
    made, number = 0, 0
    while made < megabytes << 20:
        number += 1
        for file in files:
            place = folder / str(number) / file.relative_to(FIXTURES)
            place.parent.mkdir(parents=True, exist_ok=True)
            fresh: dict[bytes, bytes] = {}

            def renamed(found: re.Match[bytes], fresh: dict[bytes, bytes] = fresh) -> bytes:
                return fresh.setdefault(found[0], str(uuid.uuid4()).encode())

            content = _ID.sub(renamed, file.read_bytes())
            place.write_bytes(content)
            made += len(content)


def decode(folder: Path) -> dict[str, float]:
    """The floor: every byte decoded as JSON, and nothing done with it."""
    import msgspec

    decoder = msgspec.json.Decoder()
    begun = cpu()
    size = 0
    for path in sorted(folder.rglob("*.json*")):
        content = path.read_bytes()
        size += len(content)
        if path.suffix == ".jsonl":
            for line in content.splitlines():
                decoder.decode(line)
        else:
            decoder.decode(content)
    return {"cpu": cpu() - begun, "bytes": size}


def bring_in(folder: Path, store: str, jobs: int) -> dict[str, float]:
    from closeloop.intake.imports import import_sessions
    from closeloop.model.intake import Wish
    from closeloop.store import open_store

    with open_store(store) as opened:
        begun, clock = cpu(), time.perf_counter()
        tally = import_sessions([folder], opened, wish=Wish(), jobs=jobs, tell=lambda tally: None)
        used, seconds = cpu() - begun, time.perf_counter() - clock
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    new = sum(count.new for count in tally.formats.values())
    return {"cpu": used, "seconds": seconds, "memory": max(own, workers) * 1024, "new": new}


def lengthen(store: str, long: str, traces: int, megabytes: int) -> dict[str, float]:
    """Traces as long as real ones: events of many, one after the other."""
    from itertools import cycle

    import msgspec

    from closeloop.model.attempt import Attempt
    from closeloop.model.trace import Lane, Trace
    from closeloop.store import open_store

    with open_store(store) as opened, open_store(long) as made:
        found = [opened.trace(row.id) for row in opened.attempts(limit=traces)]
        events = cycle([event for trace in found if trace for event in trace.events])
        for number in range(traces):
            chosen, size = [], 0
            while size < (megabytes << 20) // traces:
                event = msgspec.structs.replace(
                    next(events), number=len(chosen) + 1, lane="root", turn=None
                )
                chosen.append(event)
                size += len(msgspec.json.encode(event))
            trace = Trace(
                reader="x", reader_version=1, lanes=(Lane(id="root"),), events=tuple(chosen)
            )
            attempt = Attempt(id=f"{number:012x}", origin="production", exit="finished")
            made.save_attempt(attempt, trace=trace)
    return {"traces": traces}


def read(store: str, attempts: int) -> dict[str, float]:
    from closeloop.store import open_store

    with open_store(store) as opened:
        ids = [row.id for row in opened.attempts(limit=attempts)]
        opened.trace(ids[0])
        begun = cpu()
        events = sum(len(trace.events) for name in ids if (trace := opened.trace(name)))
        return {"cpu": cpu() - begun, "traces": len(ids), "events": events}


def export(store: str, attempts: int, file: Path) -> dict[str, float]:
    from closeloop.store import open_store
    from closeloop.traces.export import jsonl

    size = 0
    with open_store(store) as opened, file.open("wb") as out:
        for row in opened.attempts(limit=attempts):
            for line in jsonl.export(opened.attempt(row.id), opened.trace(row.id)):
                size += out.write(line)
    return {"bytes": size}


def cpu() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    match sys.argv[1:]:
        case "make", folder, megabytes:
            make(Path(folder), int(megabytes))
            print("{}")
        case "decode", folder:
            print(json.dumps(decode(Path(folder))))
        case "import", folder, store, jobs:
            print(json.dumps(bring_in(Path(folder), store, int(jobs))))
        case "lengthen", store, long, traces, megabytes:
            print(json.dumps(lengthen(store, long, int(traces), int(megabytes))))
        case "read", store, attempts:
            print(json.dumps(read(store, int(attempts))))
        case "export", store, attempts, file:
            print(json.dumps(export(store, int(attempts), Path(file))))
        case _:
            sys.exit(__doc__)
