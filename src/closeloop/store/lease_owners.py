"""Who holds a lease: a process of a machine, told apart from a later one with the same number."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def current_owner() -> str:
    """A name that no other process, now or later, on this machine or another, will have."""
    return f"{_machine_name()}:{os.getpid()}:{_process_start(os.getpid())}"


def is_owner_dead(owner: str) -> bool:
    """Surely gone: a process of this machine that no longer runs. Any other may be alive."""
    machine, _, process = owner.partition(":")
    pid, _, start = process.partition(":")
    return machine == _machine_name() and pid.isdigit() and _process_start(int(pid)) != start


def _machine_name() -> str:
    """Host and process namespace: containers of one host count processes each for itself."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return f"{socket.gethostname()}/{namespace}"


def _process_start(pid: int) -> str | None:
    """When a process began, in the kernel's ticks; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        # Without /proc (macOS) a process can only be asked whether it is there.
        return "?" if not Path("/proc/self").exists() and _is_running(pid) else None
    # The second field is the program's name in parentheses and may hold anything.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state == "Z" else fields[18]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
