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

from closeloop.changes import apart
from closeloop.changes.apart import Job, Row, Source
from closeloop.changes.kinds import kind_of, language_of
from closeloop.changes.sources import Sides
from closeloop.model.settings import CheckSettings

MANY = 500
"""From so many files on, the processors share the work."""
PROCESSES = 4
BATCH = 100


def sources_of(sides: Sides, settings: CheckSettings) -> Iterator[Source]:
    """Files of known languages after the change, generated and vendored ones too."""
    for path, blob in sides.tree("after").items():
        language = language_of(path)
        if language and blob.strip("0"):
            kind = kind_of(path, settings=settings)
            yield Source(path=path, language=language, blob=blob, kind=kind)


def skimmed(sides: Sides, sources: Sequence[Source]) -> Iterator[list[Row]]:
    """Their outlines, some at a time, without those that cannot be had."""
    contents = ((source, sides.read_blob(source.blob)) for source in sources)
    jobs = (Job(source=source, content=read) for source, read in contents if read is not None)
    batches = iter(lambda: list(islice(jobs, BATCH)), [])
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(sources) <= MANY or processors < 2:
        yield from map(apart.rows, batches)
    else:
        yield from _shared(batches, min(processors, PROCESSES) - 1)


def _shared(batches: Iterable[list[Job]], helpers: int) -> Iterator[list[Row]]:
    """Hand out a few batches, another for each that comes back, and read one where all are busy."""
    free: SimpleQueue[Popen[bytes]] = SimpleQueue()
    waiting: deque[Future[list[Row]]] = deque()
    with ExitStack() as stack:
        for _ in range(helpers):
            # Not from the current folder, which is anybody's: hence -P.
            command = [sys.executable, "-P", "-m", apart.__name__]
            worker = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
            stack.callback(_end, worker)
            free.put(worker)
        threads = stack.enter_context(ThreadPoolExecutor(helpers))
        for batch in batches:
            while waiting and waiting[0].done():
                yield waiting.popleft().result()
            if len(waiting) < 2 * helpers:
                waiting.append(threads.submit(_handed, free, batch))
            else:
                yield apart.rows(batch)
        while waiting:
            yield waiting.popleft().result()


def _handed(free: SimpleQueue[Popen[bytes]], batch: list[Job]) -> list[Row]:
    """What another process makes of it; or this one, where the other is no use."""
    worker = free.get()
    try:
        assert worker.stdin
        assert worker.stdout
        apart.send(worker.stdin, msgspec.msgpack.encode(batch))
        return msgspec.msgpack.decode(apart.received(worker.stdout), type=list[Row])
    except (OSError, EOFError, msgspec.DecodeError):
        return apart.rows(batch)
    finally:
        free.put(worker)


def _end(worker: Popen[bytes]) -> None:
    worker.kill()
    worker.communicate()
