"""Importing recordings of every format beside decoding them; reading traces beside Inspect."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import recordings
from harness import Bench, NotMeasured, own_cpu_seconds, peak_memory_bytes
from table import Row, build_row

LONG_MEGABYTES, SHORT_MEGABYTES = 120, 6
READ_TRACES, READ_MEGABYTES = 100, 7
STEPS = ("detect", "read", "redact", "pack")


def measure(bench: Bench) -> Iterator[Row]:
    for kind, size in (("long", bench.size(LONG_MEGABYTES, 1)), ("short", SHORT_MEGABYTES)):
        if kind == "long" or not bench.is_smoke:
            yield from _measure_folder(bench, kind, size)
    yield from _measure_reading(bench)


def make_recordings(bench: Bench, kind: str, megabytes: float) -> Path:
    """A folder that is made by the first part that needs it."""
    return bench.input(
        f"recorded-{kind}",
        lambda folder: bench.call("recordings", f"make_{kind}", str(folder), megabytes),
    )


def _measure_folder(bench: Bench, kind: str, megabytes: float) -> Iterator[Row]:
    """A folder imported once, again, and by two processes; and the steps of it."""
    folder = make_recordings(bench, kind, megabytes)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    name = f"import of {len(sizes):,} {kind} files, {sum(sizes) / 1e6:.0f} MB"
    store = bench.folder / f"{kind}.db"

    def import_twice() -> dict[str, float]:
        store.unlink(missing_ok=True)
        first = bench.call("imports", "bring_in", str(folder), str(store), 1)
        again = bench.call("imports", "bring_in", str(folder), str(store), 1)
        spent = bench.call("imports", "time_steps", str(folder)) if kind == "long" else {}
        decode = bench.call("imports", "decode", str(folder))
        return {**first, **spent, "again": again["cpu"], "decode": decode}

    times = bench.repeat(import_twice)
    decoding = {"floor": times["decode"], "against": "msgspec decoding their JSON"}
    yield build_row(f"{name}, CPU", times["cpu"], "s", aim=3, **decoding)
    if kind == "short":
        return
    for step in STEPS:
        yield build_row(f"import: {step}, CPU", times[step], "s", **decoding)
    yield build_row(
        "import of what is known already, CPU", times["again"], "s", floor=times["cpu"],
        against="the first import", aim=0.05,
    )  # fmt: skip
    yield build_row("import: memory", times["memory"], "MB", budget=300)
    if not bench.is_smoke:
        both = bench.repeat(lambda: _import_on(bench, folder, 2), warm_up=lambda: None)
        yield build_row(
            "import on two cores, seconds", both["seconds"], "s", floor=times["seconds"],
            against="the same import on one", aim=0.65,
        )  # fmt: skip
        yield build_row("import on two cores: memory", both["memory"], "MB", budget=300)


def _import_on(bench: Bench, folder: Path, jobs: int) -> dict[str, float]:
    store = bench.folder / f"jobs-{jobs}.db"
    store.unlink(missing_ok=True)
    return dict(bench.call("imports", "bring_in", str(folder), str(store), jobs))


def _measure_reading(bench: Bench) -> Iterator[Row]:
    """Stored traces read back, beside an Inspect log with the same content."""
    store, long = str(bench.folder / "long.db"), str(bench.folder / "read.db")
    traces, megabytes = bench.size(READ_TRACES, 3), bench.size(READ_MEGABYTES, 1)
    bench.call("imports", "lengthen", store, long, traces, megabytes)
    name = f"reading {traces} traces, {megabytes} MB"
    ours = bench.repeat(lambda: bench.call("imports", "read", long, traces))
    yield build_row(
        f"{name}, CPU", ours["cpu"], "ms", floor=ours["decode"],
        against="msgspec decoding them from JSON",
    )  # fmt: skip
    try:
        peer = bench.peer_python(".venv-peer", "inspect_ai")
    except NotMeasured as reason:
        yield Row(f"{name}, beside Inspect, CPU", note=f"not measured: {reason}")
        return
    lines, log = str(bench.folder / "traces.jsonl"), str(bench.folder / "log.eval")
    bench.call("imports", "export", long, traces, lines)
    bench.call("peer_logs", "make_log", lines, log, python=peer)
    theirs = bench.repeat(lambda: {"cpu": bench.call("peer_logs", "read_log", log, python=peer)})
    yield build_row(
        f"{name}, beside Inspect, CPU", ours["cpu"], "ms", floor=theirs["cpu"],
        against="Inspect reading them from a log", aim=0.125,
    )  # fmt: skip


def decode(folder: str) -> float:
    """The floor: CPU seconds of decoding every file of JSON; others are not counted."""
    import msgspec

    decoder = msgspec.json.Decoder()
    begun = own_cpu_seconds()
    for path in sorted(Path(folder).rglob("*")):
        if path.suffix not in recordings.JSON:
            continue
        content = path.read_bytes()
        if path.suffix == ".jsonl":
            for line in content.splitlines():
                decoder.decode(line)
        else:
            decoder.decode(content)
    return own_cpu_seconds() - begun


def bring_in(folder: str, store: str, jobs: int) -> dict[str, float]:
    from closeloop.flow import import_sessions
    from closeloop.records.trace import SessionFilter
    from closeloop.store import open_store

    with open_store(store) as opened, Watched(jobs) as watched:
        begun, clock = own_cpu_seconds(), time.perf_counter()
        tally = import_sessions(
            [Path(folder)],
            opened,
            session_filter=SessionFilter(),
            jobs=jobs,
            report_progress=lambda tally: None,
        )
        used, seconds = own_cpu_seconds() - begun, time.perf_counter() - clock
    new = sum(count.new for count in tally.formats.values())
    return {"cpu": used, "seconds": seconds, "memory": watched.most, "new": new}


def time_steps(folder: str) -> dict[str, float]:
    """CPU seconds of what is done with each file, but for the store."""

    from closeloop.text.redaction import redact_record
    from closeloop.traces.file_source import (
        FileSource,
        RecordingFile,
        find_owner,
        find_reader,
        installed_readers,
        walk_files,
    )
    from closeloop.traces.session_import import pack_session, without_garbage_collection

    installed_readers()
    spent: defaultdict[str, float] = defaultdict(float)

    def timed(part: str, work: Callable[..., Any], *given: Any) -> Any:
        begun = time.process_time()
        result = work(*given)
        spent[part] += time.process_time() - begun
        return result

    with without_garbage_collection():
        for file in walk_files([Path(folder)]):
            source = FileSource(Path(file.path))
            reader = (
                timed("detect", find_reader, source) if isinstance(file, RecordingFile) else None
            )
            owner = timed("detect", find_owner, reader, source) if reader else None
            if reader is None or str(owner or file.path) != file.path:
                continue
            for session in timed("read", lambda: list(reader.read(source))):  # noqa: B023
                clean, _ = timed("redact", redact_record, session)
                timed("pack", pack_session, clean, None, file.path)
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
            self.most = peak_memory_bytes()

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

    from closeloop.records.attempt import Attempt
    from closeloop.records.experiment_plan import AttemptResult
    from closeloop.records.trace import Lane, Trace
    from closeloop.store import open_store

    Path(long).unlink(missing_ok=True)
    with open_store(store) as opened, open_store(long) as made:
        found = [opened.load_trace(row.id) for row in opened.list_attempts(limit=traces)]
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
            made.save_attempt(AttemptResult(attempt=attempt, trace=trace))
    return {"traces": traces}


def read(store: str, attempts: int) -> dict[str, float]:
    """CPU seconds of reading stored traces, and of decoding them from JSON."""
    import msgspec

    from closeloop.records.trace import Trace
    from closeloop.store import open_store

    with open_store(store) as opened:
        ids = [row.id for row in opened.list_attempts(limit=attempts)]
        opened.load_trace(ids[0])
        begun = own_cpu_seconds()
        traces = [opened.load_trace(name) for name in ids]
        used = own_cpu_seconds() - begun
    encoded, decoder = [msgspec.json.encode(trace) for trace in traces], msgspec.json.Decoder(Trace)
    begun = own_cpu_seconds()
    for content in encoded:
        decoder.decode(content)
    return {"cpu": used, "decode": own_cpu_seconds() - begun}


def export(store: str, attempts: int, file: str) -> dict[str, float]:
    from closeloop.store import open_store
    from closeloop.traces import trace_export

    size = 0
    with open_store(store) as opened, Path(file).open("wb") as out:
        for row in opened.list_attempts(limit=attempts):
            for line in trace_export.export_jsonl(
                opened.load_attempt(row.id), opened.load_trace(row.id)
            ):
                size += out.write(line)
    return {"bytes": size}
