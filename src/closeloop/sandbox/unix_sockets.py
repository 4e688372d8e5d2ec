"""Unix sockets: our own, at paths of any length, and those of others that nobody may reach."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

BOUND_SOCKETS_FILE = "/proc/net/unix"
MAX_SCANNED_ENTRIES = 200_000


def bind_unix_socket(path: Path) -> socket.socket:
    """A socket at a path, whose folder is made.

    The system takes only a hundred bytes or so for its address: so it is named by way of its
    folder, which is open meanwhile. Who connects sees the folder in a cage, under a short path.
    """
    path.parent.mkdir(mode=0o700, parents=True)
    folder_descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    unix_socket = socket.socket(socket.AF_UNIX)
    try:
        unix_socket.bind(f"/proc/self/fd/{folder_descriptor}/{path.name}")
    except OSError:
        unix_socket.close()
        raise
    finally:
        os.close(folder_descriptor)
    return unix_socket


def list_bound_sockets(folders: Iterable[str]) -> list[str]:
    """Sockets below these folders that are bound now, as far as the kernel knows their paths.

    It knows none that was bound by a relative path, or in another network namespace.
    """
    try:
        with open(BOUND_SOCKETS_FILE, "rb", buffering=0) as listing:  # noqa: PTH123
            content = b"".join(iter(lambda: listing.read(1 << 16), b""))
    except OSError:
        return []
    prefixes = tuple(os.fsencode(folder) + b"/" for folder in folders)
    if not any(b" " + prefix in content for prefix in prefixes):
        return []
    names = (line.split(b" /", 1)[-1] for line in content.splitlines() if b" /" in line)
    paths = (b"/" + name for name in names)
    return [os.fsdecode(path) for path in paths if path.startswith(prefixes) and _is_socket(path)]


def find_sockets(folders: Iterable[str]) -> Iterator[str]:
    """Sockets that lie below these folders, whoever bound them, among the first entries there."""
    waiting, scanned = list(folders), 0
    while waiting and scanned < MAX_SCANNED_ENTRIES:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                scanned += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_file() and not entry.is_symlink() and _is_socket(entry.path):
                    yield entry.path


def _is_socket(path: str | bytes) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
