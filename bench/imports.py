"""Importing recordings beside decoding their JSON, in its own process: prints what it measured.

python bench/imports.py make KIND FOLDER MEGABYTES  recordings, `long` as real ones or `short`
python bench/imports.py decode FOLDER             msgspec.json.decode of the same bytes
python bench/imports.py import FOLDER STORE JOBS  CPU, seconds and memory of an import
python bench/imports.py parts FOLDER              CPU of each part of it, but for the store
python bench/imports.py lengthen STORE LONG TRACES MEGABYTES  longer traces, made of those
python bench/imports.py read STORE ATTEMPTS       stored traces, read back
python bench/imports.py export STORE ATTEMPTS FILE  the same traces as JSON lines, for a peer
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import recordings


def make(kind: str, folder: Path, megabytes: int) -> dict[str, float]:
    """Recordings, and how many there are now."""
    recordings.MAKERS[kind](folder, megabytes)
    sizes = sorted(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"files": len(sizes), "bytes": sum(sizes), "median": sizes[len(sizes) // 2]}


def decode(folder: Path) -> dict[str, float]:
    """The floor: every file of JSON decoded, and nothing done with it; others are not counted."""
    import msgspec

    decoder = msgspec.json.Decoder()
    begun = cpu()
    size = 0
    for path in sorted(folder.rglob("*")):
        if path.suffix not in recordings.JSON:
            continue
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

    with open_store(store) as opened, Watched(jobs) as watched:
        begun, clock = cpu(), time.perf_counter()
        tally = import_sessions([folder], opened, wish=Wish(), jobs=jobs, tell=lambda tally: None)
        used, seconds = cpu() - begun, time.perf_counter() - clock
    new = sum(count.new for count in tally.formats.values())
    return {"cpu": used, "seconds": seconds, "memory": watched.most, "new": new}


def parts(folder: Path) -> dict[str, float]:
    """CPU of what is done with each file, and of the calls in C that cannot be left out of it."""
    import msgspec

    from closeloop.intake.reading import pack_session, without_collector
    from closeloop.model.leaks import find
    from closeloop.store.bodies import compress
    from closeloop.traces.detect import reader_of, readers
    from closeloop.traces.find import File, walk
    from closeloop.traces.redact import redact
    from closeloop.traces.source import FileSource

    readers()
    spent: defaultdict[str, float] = defaultdict(float)

    def timed(part: str, work: Callable[..., Any], *given: Any) -> Any:
        begun = time.process_time()
        result = work(*given)
        spent[part] += time.process_time() - begun
        return result

    with without_collector():
        for file in walk([folder]):
            source = FileSource(Path(file.path))
            reader = timed("detect", reader_of, source) if isinstance(file, File) else None
            owner = timed("detect", reader.owner, source) if reader else None
            if reader is None or str(owner or file.path) != file.path:
                continue
            for session in timed("read", lambda: list(reader.read(source))):  # noqa: B023
                clean, _ = timed("redact", redact, session)
                timed("pack", pack_session, clean, None, file.path)
                told = timed("  JSON", msgspec.json.encode, clean)
                timed("  search", lambda: list(find(told)))  # noqa: B023
                kept = timed("  msgpack", msgspec.msgpack.encode, clean.trace)
                timed("  sha256", lambda: sha256(kept).digest())  # noqa: B023
                timed("  zstd", compress, kept)
    return dict(spent)


class Watched:
    """The most memory that this process and all below it have at once; workers, if there are."""

    def __init__(self, jobs: int) -> None:
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch) if jobs > 1 else None

    def __enter__(self) -> Watched:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join()
        else:
            self.most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self.most = max(self.most, _memory(os.getpid()))


def _memory(process: int) -> int:
    """Pages that are shared count in parts."""
    try:
        about = Path(f"/proc/{process}/smaps_rollup").read_text()
        below = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return 0
    own = next(int(line.split()[1]) for line in about.splitlines() if line.startswith("Pss:"))
    return own * 1024 + sum(_memory(int(child)) for child in below)


def lengthen(store: str, long: str, traces: int, megabytes: int) -> dict[str, float]:
    """Traces as long as real ones: events of many, one after the other."""
    from itertools import cycle

    import msgspec

    from closeloop.model.attempt import Attempt
    from closeloop.model.plan import Made
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
            made.keep(Made(attempt=attempt, trace=trace))
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
        case "make", kind, folder, megabytes:
            print(json.dumps(make(kind, Path(folder), int(megabytes))))
        case "decode", folder:
            print(json.dumps(decode(Path(folder))))
        case "import", folder, store, jobs:
            print(json.dumps(bring_in(Path(folder), store, int(jobs))))
        case "parts", folder:
            print(json.dumps(parts(Path(folder))))
        case "lengthen", store, long, traces, megabytes:
            print(json.dumps(lengthen(store, long, int(traces), int(megabytes))))
        case "read", store, attempts:
            print(json.dumps(read(store, int(attempts))))
        case "export", store, attempts, file:
            print(json.dumps(export(store, int(attempts), Path(file))))
        case _:
            sys.exit(__doc__)
