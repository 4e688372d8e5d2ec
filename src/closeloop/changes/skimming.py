"""Read every source file of a repository a little, on all processors when there are many."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import islice
from queue import SimpleQueue
from subprocess import DEVNULL, PIPE, Popen
from typing import IO

import msgspec

from closeloop.changes.kinds import is_generated, is_vendored, language_of
from closeloop.changes.shelf import Row
from closeloop.changes.sources import Sides
from closeloop.changes.syntax import Outline, skim, words
from closeloop.model.inspection import Language
from closeloop.model.record import Record
from closeloop.model.settings import CheckSettings

MANY = 500
"""From so many files on, the processors share the work."""
PROCESSES = 4
BATCH = 100


class Source(Record):
    """A file of a known language."""

    path: str
    language: Language
    blob: str
    vendored: bool

    @property
    def key(self) -> str:
        """Of others' code only the words are kept."""
        return f"{'words' if self.vendored else self.language}:{self.blob}"


class Job(Record):
    """A file to read."""

    source: Source
    content: bytes


def sources_of(sides: Sides, settings: CheckSettings) -> Iterator[Source]:
    """Files of known languages after the change, generated and vendored ones too."""
    for path, blob in sides.tree("after").items():
        language = language_of(path)
        if language and blob.strip("0"):
            vendored = is_vendored(path, settings.vendored)
            yield Source(path=path, language=language, blob=blob, vendored=vendored)


def skimmed(sides: Sides, sources: Sequence[Source]) -> Iterator[list[Row]]:
    """Their outlines, some at a time, without those that cannot be had."""
    contents = ((source, sides.read_blob(source.blob)) for source in sources)
    jobs = (Job(source=source, content=read) for source, read in contents if read is not None)
    batches = iter(lambda: list(islice(jobs, BATCH)), [])
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(sources) <= MANY or processors < 2:
        yield from map(_rows, batches)
    else:
        yield from _shared(batches, min(processors, PROCESSES))


def _shared(batches: Iterable[list[Job]], processes: int) -> Iterator[list[Row]]:
    """Hand out a few batches, and another for each that comes back."""
    free: SimpleQueue[Popen[bytes]] = SimpleQueue()
    waiting: deque[Future[list[Row]]] = deque()
    with ExitStack() as stack:
        for _ in range(processes):
            # Not from the current folder, which is anybody's: hence -P.
            command = [sys.executable, "-P", "-m", __name__]
            worker = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
            stack.callback(_end, worker)
            free.put(worker)
        threads = stack.enter_context(ThreadPoolExecutor(processes))
        for batch in batches:
            waiting.append(threads.submit(_handed, free, batch))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _handed(free: SimpleQueue[Popen[bytes]], batch: list[Job]) -> list[Row]:
    """What another process makes of it; or this one, where the other is no use."""
    worker = free.get()
    try:
        assert worker.stdin
        assert worker.stdout
        _send(worker.stdin, msgspec.msgpack.encode(batch))
        return msgspec.msgpack.decode(_received(worker.stdout), type=list[Row])
    except (OSError, EOFError, msgspec.DecodeError):
        return _rows(batch)
    finally:
        free.put(worker)


def _end(worker: Popen[bytes]) -> None:
    worker.kill()
    worker.communicate()


def _send(stream: IO[bytes], content: bytes) -> None:
    stream.write(len(content).to_bytes(8, "little"))
    stream.write(content)
    stream.flush()


def _received(stream: IO[bytes]) -> bytes:
    length = stream.read(8)
    content = stream.read(int.from_bytes(length, "little")) if length else b""
    if not content:
        raise EOFError
    return content


def _rows(jobs: Iterable[Job]) -> list[Row]:
    return [_row(job.source, job.content) for job in jobs]


def _row(source: Source, content: bytes) -> Row:
    if source.vendored:
        return source.key, False, Outline(names=b"\n".join(words(content)))
    return source.key, is_generated(source.path, content), skim(source.language, content)


def _work(commands: IO[bytes], answers: IO[bytes]) -> None:
    """What the other process does, until nobody asks any more."""
    with suppress(EOFError):
        while True:
            jobs = msgspec.msgpack.decode(_received(commands), type=list[Job])
            _send(answers, msgspec.msgpack.encode(_rows(jobs)))


if __name__ == "__main__":
    _work(sys.stdin.buffer, sys.stdout.buffer)
