"""Cages made with Landlock, in namespaces where they are allowed: no program is needed."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from closeloop.records.variant import Limits
from closeloop.sandbox.bwrap import MAX_OPEN_FILES, THREADS_PER_PROCESS
from closeloop.sandbox.program_execution import Channels
from closeloop.sandbox.workspace_layout import (
    SandboxBackend,
    WorkspaceLayout,
    hidden_paths,
    list_visible_shares,
    visible_paths,
)

LAUNCHER_PATH = str(Path(__file__).with_name("launcher.py"))
DEVICE_NAMES = ("null", "zero", "full", "random", "urandom", "tty")


def landlock_version() -> int:
    """Of Landlock in this kernel; 0 when there is none."""
    return max(int(ctypes.CDLL(None).syscall(444, None, 0, 1)), 0)


def wrap_with_landlock(
    sandbox: SandboxBackend,
    place: WorkspaceLayout,
    limits: Limits,
    argv: Sequence[str],
    channels: Channels,
) -> list[str]:
    """The command with a file system, network and processes of its own."""
    writable = [*visible_paths(sandbox, place), "/dev"]
    writable += [share.target for share in place.shares if share.write]
    rlimits = _resource_limits(limits) | {"RLIMIT_NPROC": limits.processes * THREADS_PER_PROCESS}
    lower = os.path.relpath(place.lower, place.folder) if place.lower else ""
    isolated = {
        "isolated": True,
        "stage": str(Path(sandbox.mount).with_name("stage")),
        "mount": sandbox.mount,
        "folder": place.folder,
        "overlay": lower and f"lowerdir={lower},upperdir=upper,workdir=work,userxattr",
        "links": sandbox.view.links,
        "shown": [
            (share.source, share.target, share.write)
            for share in list_visible_shares(sandbox, place)
        ],
        "hidden": hidden_paths(),
        "rules": [("/", False), *((path, True) for path in writable)],
    }
    return _launcher_command(sandbox, place, argv, channels, isolated | {"rlimits": rlimits})


def wrap_with_landlock_alone(
    sandbox: SandboxBackend,
    place: WorkspaceLayout,
    limits: Limits,
    argv: Sequence[str],
    channels: Channels,
) -> list[str]:
    """The command among everything else, allowed to open only what it is given."""
    view = sandbox.view
    readable = [*view.readable, *(link for link, _ in view.links), *view.etc, "/proc"]
    readable += [f"/etc/{name}" for name in ("hosts", "passwd", "group", "nsswitch.conf")]
    readable += ["/etc/resolv.conf"] if place.network else []
    readable += [share.source for share in place.shares if not share.write]
    folders = visible_paths(sandbox, place)
    readable += folders[:1] if place.frozen else []
    writable = [*folders[place.frozen :], *(f"/dev/{name}" for name in DEVICE_NAMES)]
    writable += [share.source for share in place.shares if share.write]
    rules = [*((path, False) for path in readable), *((path, True) for path in writable)]
    plain = {"isolated": False, "rules": rules, "rlimits": _resource_limits(limits)}
    plain["ports"] = [port.number for port in place.ports]
    return _launcher_command(sandbox, place, argv, channels, plain)


def _resource_limits(limits: Limits) -> dict[str, int]:
    return {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": limits.disk_bytes, "RLIMIT_NOFILE": MAX_OPEN_FILES}


def _launcher_command(
    sandbox: SandboxBackend,
    place: WorkspaceLayout,
    argv: Sequence[str],
    channels: Channels,
    cage: dict[str, Any],
) -> list[str]:
    specification = cage | {
        "parent": os.getpid(),
        "status": channels.status,
        "seccomp": channels.seccomp,
        "network": place.network,
        "directory": visible_paths(sandbox, place)[0],
        "argv": list(argv),
    }
    return [sys.executable, "-I", "-S", LAUNCHER_PATH, json.dumps(specification)]
