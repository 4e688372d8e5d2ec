"""Cages made with Landlock, in namespaces where they are allowed: no program is needed."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from closeloop.model.variant import Limits
from closeloop.runs.sandbox.bwrap import FILES, THREADS
from closeloop.runs.sandbox.place import Place, Sandbox, hidden_paths, paths, shown
from closeloop.runs.sandbox.process import Channels

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def version() -> int:
    """Of Landlock in this kernel; 0 when there is none."""
    return max(int(ctypes.CDLL(None).syscall(444, None, 0, 1)), 0)


def wrap(
    sandbox: Sandbox, place: Place, limits: Limits, argv: Sequence[str], channels: Channels
) -> list[str]:
    """The command with a file system, network and processes of its own."""
    writable = [*paths(sandbox, place), "/dev"]
    writable += [share.target for share in place.shares if share.write]
    rlimits = _rlimits(limits) | {"RLIMIT_NPROC": limits.processes * THREADS}
    lower = os.path.relpath(place.lower, place.folder) if place.lower else ""
    isolated = {
        "isolated": True,
        "stage": str(Path(sandbox.mount).with_name("stage")),
        "mount": sandbox.mount,
        "folder": place.folder,
        "overlay": lower and f"lowerdir={lower},upperdir=upper,workdir=work,userxattr",
        "links": sandbox.view.links,
        "shown": [(share.source, share.target, share.write) for share in shown(sandbox, place)],
        "hidden": hidden_paths(),
        "rules": [("/", False), *((path, True) for path in writable)],
    }
    return _launch(sandbox, place, argv, channels, isolated | {"rlimits": rlimits})


def wrap_alone(
    sandbox: Sandbox, place: Place, limits: Limits, argv: Sequence[str], channels: Channels
) -> list[str]:
    """The command among everything else, allowed to open only what it is given."""
    view = sandbox.view
    readable = [*view.readable, *(link for link, _ in view.links), *view.etc, "/proc"]
    readable += [f"/etc/{name}" for name in ("hosts", "passwd", "group", "nsswitch.conf")]
    readable += ["/etc/resolv.conf"] if place.network else []
    readable += [share.source for share in place.shares if not share.write]
    folders = paths(sandbox, place)
    readable += folders[:1] if place.frozen else []
    writable = [*folders[place.frozen :], *(f"/dev/{name}" for name in DEVICES)]
    writable += [share.source for share in place.shares if share.write]
    rules = [*((path, False) for path in readable), *((path, True) for path in writable)]
    plain = {"isolated": False, "rules": rules, "rlimits": _rlimits(limits)}
    plain["ports"] = [port.number for port in place.ports]
    return _launch(sandbox, place, argv, channels, plain)


def _rlimits(limits: Limits) -> dict[str, int]:
    return {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": limits.disk_bytes, "RLIMIT_NOFILE": FILES}


def _launch(
    sandbox: Sandbox, place: Place, argv: Sequence[str], channels: Channels, cage: dict[str, Any]
) -> list[str]:
    specification = cage | {
        "parent": os.getpid(),
        "status": channels.status,
        "seccomp": channels.seccomp,
        "network": place.network,
        "directory": paths(sandbox, place)[0],
        "argv": list(argv),
    }
    return [sys.executable, "-I", "-S", LAUNCHER, json.dumps(specification)]
