"""Prints files from inside a sandbox.

A program, not a module: run as `python -I -S -c SOURCE SPECIFICATION`, it may use only the
standard library. Each file is printed as length of its path, its own length, path, content.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

MAX_ENTRIES = 200_000
"""Maximum number of names that are examined."""
FILE_HEADER = struct.Struct(">IQ")


def main() -> None:
    specification = json.loads(sys.argv[1])
    root = os.path.realpath(specification["root"])
    bytes_left = specification["bytes"]
    matching_paths = {
        path for pattern in specification["patterns"] for path in find_matching_paths(root, pattern)
    }
    for path in sorted(matching_paths):
        with suppress(OSError):
            name = os.fsencode(path)
            content = read_regular_file(root, path, bytes_left - FILE_HEADER.size - len(name))
            if content is not None:
                packed_file = FILE_HEADER.pack(len(name), len(content)) + name + content
                sys.stdout.buffer.write(packed_file)
                bytes_left -= len(packed_file)


def find_matching_paths(root: str, pattern: str) -> Iterator[str]:
    """Yield paths below the root; a star matches anything, including folders."""
    fixed = pattern.partition("*")[0].rpartition("/")[0]
    parts = (re.escape(part) for part in pattern.split("*"))
    path_pattern = re.compile(".*".join(parts), re.DOTALL)
    entries_seen = 0
    for folder, _, names in os.walk(f"{root}/{fixed}"):
        for name in names:
            path = f"{folder}/{name}"[len(root) + 1 :]
            if path_pattern.fullmatch(path):
                yield path
        entries_seen += len(names) + 1
        if entries_seen > MAX_ENTRIES:
            return


def read_regular_file(root: str, path: str, max_bytes: int) -> bytes | None:
    """Read a regular file that exists there and fits; a pipe would block for ever."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
    handle = os.open(f"{root}/{path}", flags)
    with os.fdopen(handle, "rb") as file:
        file_status = os.fstat(handle)
        is_inside = os.path.realpath(f"/proc/self/fd/{handle}").startswith(root + "/")
        if (
            not stat.S_ISREG(file_status.st_mode)
            or file_status.st_size > max_bytes
            or not is_inside
        ):
            return None
        content = file.read(max_bytes + 1)
    return content if len(content) <= max_bytes else None


if __name__ == "__main__":
    main()
