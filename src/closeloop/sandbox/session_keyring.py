"""Starting programs without the user's session keyring.

A session keyring belongs to a thread, and programs inherit that of the thread that starts them.
So sandboxed programs are started by a thread of their own, which joins a new one each time.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219}
JOIN_SESSION_KEYRING = 1

Started = TypeVar("Started")


def start_without_keyring(start: Callable[[], Started]) -> Started:
    """Call `start` in the thread that has a new, empty session keyring.

    The thread lives as long as this process: it is the parent whose death sandboxes watch.
    """
    return _starter_thread(os.getpid()).submit(_join_and_start, start).result()


def _join_and_start(start: Callable[[], Started]) -> Started:
    """Where the user's quota of keys is used up, the keyring of the last start serves again."""
    if (number := KEYCTL_NUMBERS.get(os.uname().machine)) is not None:
        _load_libc().syscall(number, JOIN_SESSION_KEYRING, None)
    return start()


@functools.cache
def _load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _starter_thread(process: int) -> ThreadPoolExecutor:
    """One for each process: a forked child has only its parent's first thread."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="starts")
