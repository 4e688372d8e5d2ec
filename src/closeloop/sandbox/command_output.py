"""What a command prints, kept in bounded memory: its head and its tail."""

from __future__ import annotations

from collections import deque


class CommandOutput:
    """The first and the last half of the limit; the middle is only counted."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped = 0

    def add_chunk(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if not chunk:
            return
        self._tail.append(chunk)
        self._tail_bytes += len(chunk)
        while self._tail_bytes - len(self._tail[0]) >= self._half:
            first = len(self._tail.popleft())
            self._tail_bytes -= first
            self._dropped += first

    @property
    def dropped_bytes(self) -> int:
        return self._dropped + max(self._tail_bytes - self._half, 0)

    @property
    def content(self) -> bytes:
        """Everything kept, as it came."""
        return bytes(self._head) + b"".join(self._tail)[-self._half :]

    @property
    def text(self) -> str:
        """For people: a line stands where the middle is missing."""
        tail = b"".join(self._tail)[-self._half :]
        gap = f"\n[{self.dropped_bytes} bytes left out]\n" if self.dropped_bytes else ""
        if not gap:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        return self._head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace")
