"""Read every source file of a repository a little, on all processors when there are many."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from queue import SimpleQueue
from subprocess import DEVNULL, PIPE, Popen

import msgspec

from closeloop.changes import outline_worker
from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import classify_file, language_of
from closeloop.changes.outline_worker import OutlineJob, OutlineRow, SourceFile
from closeloop.records.settings import CheckSettings

MIN_PARALLEL_FILES = 500
"""From so many files on, the processors share the work."""
MAX_PROCESSES = 4
BATCH_FILES = 100


def list_source_files(sides: ChangeSides, settings: CheckSettings) -> Iterator[SourceFile]:
    """Files of known languages after the change, generated and vendored ones too."""
    for path, blob in sides.tree("after").items():
        language = language_of(path)
        if language and blob.strip("0"):
            kind = classify_file(path, settings=settings)
            yield SourceFile(path=path, language=language, blob=blob, kind=kind)


def read_outlines(sides: ChangeSides, sources: Sequence[SourceFile]) -> Iterator[list[OutlineRow]]:
    """Their outlines, some at a time, without those that cannot be had."""
    contents = ((source, sides.read_blob(source.blob)) for source in sources)
    jobs = (
        OutlineJob(source=source, content=read) for source, read in contents if read is not None
    )
    batches = iter(lambda: list(islice(jobs, BATCH_FILES)), [])
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(sources) <= MIN_PARALLEL_FILES or processors < 2:
        yield from map(outline_worker.outline_batch, batches)
    else:
        yield from _read_in_parallel(batches, min(processors, MAX_PROCESSES) - 1)


def _read_in_parallel(
    batches: Iterable[list[OutlineJob]], helpers: int
) -> Iterator[list[OutlineRow]]:
    """Hand out a few batches, another for each that comes back, and read one where all are busy."""
    free: SimpleQueue[Popen[bytes]] = SimpleQueue()
    waiting: deque[Future[list[OutlineRow]]] = deque()
    with ExitStack() as stack:
        for _ in range(helpers):
            # Not from the current folder, which is anybody's: hence -P.
            command = [sys.executable, "-P", "-m", outline_worker.__name__]
            worker = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
            stack.callback(_stop_worker, worker)
            free.put(worker)
        threads = stack.enter_context(ThreadPoolExecutor(helpers))
        for batch in batches:
            while waiting and waiting[0].done():
                yield waiting.popleft().result()
            if len(waiting) < 2 * helpers:
                waiting.append(threads.submit(_outline_remotely, free, batch))
            else:
                yield outline_worker.outline_batch(batch)
        while waiting:
            yield waiting.popleft().result()


def _outline_remotely(free: SimpleQueue[Popen[bytes]], batch: list[OutlineJob]) -> list[OutlineRow]:
    """What another process makes of it; or this one, where the other is no use."""
    worker = free.get()
    try:
        assert worker.stdin
        assert worker.stdout
        outline_worker.send_frame(worker.stdin, msgspec.msgpack.encode(batch))
        return msgspec.msgpack.decode(
            outline_worker.receive_frame(worker.stdout), type=list[OutlineRow]
        )
    except (OSError, EOFError, msgspec.DecodeError):
        return outline_worker.outline_batch(batch)
    finally:
        free.put(worker)


def _stop_worker(worker: Popen[bytes]) -> None:
    worker.kill()
    worker.communicate()
