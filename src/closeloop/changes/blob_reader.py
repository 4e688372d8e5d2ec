"""Contents of a repository's objects, through one process."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from closeloop import git

MAX_BLOB_BYTES = 5_000_000
"""Larger files are told of, not read."""


class BlobReader:
    """`git cat-file --batch`, begun when it is first asked."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder, self.env = folder, env
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def read(self, blob: str) -> bytes | None:
        """None when the repository lacks it, it is no file, or it is over 5 MB."""
        if not blob.strip("0"):
            return None
        with self.lock:
            return self._read_object(blob)

    def _read_object(self, blob: str) -> bytes | None:
        process = self.process = self.process or self._start_process()
        assert process.stdin
        assert process.stdout
        process.stdin.write(blob.encode() + b"\n")
        process.stdin.flush()
        header = process.stdout.readline().split()
        if len(header) != 3:
            return None
        size = int(header[2])
        if size > MAX_BLOB_BYTES:
            # Cheaper than reading it to the end.
            self._kill_process()
            return None
        content = process.stdout.read(size + 1)[:-1]
        return content if header[1] == b"blob" else None

    def _start_process(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*git.FOREIGN_COMMAND, "cat-file", "--batch"],
            cwd=self.folder,
            env=git.git_environment(self.env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def close(self) -> None:
        with self.lock:
            self._kill_process()

    def _kill_process(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None
