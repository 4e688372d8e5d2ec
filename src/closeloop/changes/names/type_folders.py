"""Folders in which repositories are laid out for the type checker: one each, and not too many."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

MAX_FOLDERS = 20
"""So many repositories stay laid out; those that were used longest ago are removed."""
_REMOVED = "removed-"
_WAIT_SECONDS = 0.05


class TypeCheckerUnusable(Exception):
    """Why it could not look."""


@contextmanager
def lock_folder(folder: Path, patience: float) -> Iterator[None]:
    """A repository's folder for one process at a time; the oldest of the others are removed."""
    late = time.monotonic() + patience
    while (lock := _try_lock(folder)) is None:
        if time.monotonic() > late:
            raise TypeCheckerUnusable("another check does not come to an end")
        time.sleep(_WAIT_SECONDS)
    with lock:
        os.utime(lock.fileno())
        remove_old_folders(folder.parent)
        yield


def remove_old_folders(parent: Path) -> None:
    """Remove the folders unused for longest, never one that is in use."""
    folders = sorted((one for one in parent.iterdir() if one.is_dir()), key=_last_use)
    leftovers = [one for one in folders if one.name.startswith(_REMOVED)]
    kept = [one for one in folders if one not in leftovers]
    for folder in kept[: max(0, len(kept) - MAX_FOLDERS)]:
        lock = _try_lock(folder)
        if lock is None:
            continue
        with lock, suppress(OSError):
            # Renamed first: who waits for the lock finds its folder gone, and makes a new one.
            leftovers.append(folder.rename(parent / f"{_REMOVED}{folder.name}-{os.getpid()}"))
    for folder in leftovers:
        shutil.rmtree(folder, ignore_errors=True)


def _last_use(folder: Path) -> float:
    for path in (folder / "lock", folder):
        with suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _try_lock(folder: Path) -> IO[bytes] | None:
    """The lock, which closing gives back; None where another has it or has removed the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("ab")
    except (FileExistsError, FileNotFoundError):  # it was removed meanwhile
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock.fileno()), (folder / "lock").stat()):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    lock.close()
    return None
