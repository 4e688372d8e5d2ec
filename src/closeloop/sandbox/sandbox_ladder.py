"""Which cage this machine can have: bubblewrap, else Landlock, else none, if asked for by name."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from closeloop.records.errors import MachineFailed
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.machine_view import copy_etc, inspect_machine
from closeloop.sandbox.program_execution import Channels
from closeloop.sandbox.seccomp import compile_filter, filter_is_available
from closeloop.sandbox.workspace_layout import (
    HOME,
    WORKSPACE,
    SandboxBackend,
    SandboxLimits,
    WorkspaceLayout,
    hidden_paths,
    list_visible_shares,
    visible_paths,
)

# Cages made with bubblewrap: nothing but arguments.

SHARED_MEMORY_BYTES = 256 << 20
MAX_OPEN_FILES = 16384
THREADS_PER_PROCESS = 8
"""Per process, on average: the kernel's limit counts threads."""

# bubblewrap's --die-with-parent misses a parent that dies while the cage is being built. So all
# of it runs in a process namespace of its own, whose first process dies with `unshare`, which
# dies with us; and which does not start the cage when we are gone already. "We" is the thread that
# started it: the others may live on for a moment after its end has killed `unshare`.
OUTER_SCRIPT = """
read -r state < "/proc/$1/stat" || exit 1
case $state in *") Z "* | *") X "*) exit 1 ;; esac
{
ulimit -c 0; ulimit -f "$2"; ulimit -n "$3"
if [ -n "${BASH_VERSION-}" ]; then ulimit -u "$4"; else ulimit -p "$4"; fi
} 2>/dev/null
cd "$5" || exit 1
[ -z "$6" ] || mount -t overlay overlay -o "$6" "$7" || exit 1
shift 7
exec "$@"
"""


def wrap_with_bwrap(
    sandbox: SandboxBackend,
    place: WorkspaceLayout,
    limits: Limits,
    argv: Sequence[str],
    channels: Channels,
) -> list[str]:
    """The command in a cage, in namespaces that hold its overlay."""
    overlay = ""
    if place.lower:  # relative paths: a comma or colon in the cache's path would be read as syntax
        lower = os.path.relpath(place.lower, place.folder)
        overlay = f"lowerdir={lower},upperdir=upper,workdir=work,userxattr"
    outer = [_find_tool("setpriv"), "--pdeathsig", "KILL", _find_tool("unshare")]
    outer += ["-U", "-r", "-m", "-p", "-f", "--kill-child", "/bin/sh", "-c", OUTER_SCRIPT, "sh"]
    starter = f"{os.getpid()}/task/{threading.get_native_id()}"
    outer += [starter, str(limits.disk_bytes // 512), str(MAX_OPEN_FILES)]
    outer += [str(limits.processes * THREADS_PER_PROCESS), place.folder, overlay, sandbox.mount]
    return [*outer, *_bwrap_arguments(sandbox, place, argv, channels)]


def wrap_with_bwrap_alone(
    sandbox: SandboxBackend,
    place: WorkspaceLayout,
    limits: Limits,
    argv: Sequence[str],
    channels: Channels,
) -> list[str]:
    """The command in a cage, where only bubblewrap itself may make namespaces."""
    files = min(MAX_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    limited = [
        _find_tool("prlimit"),
        "--core=0",
        f"--nofile={files}",
        f"--fsize={limits.disk_bytes}",
    ]
    return [*limited, *_bwrap_arguments(sandbox, place, argv, channels)]


def _bwrap_arguments(
    sandbox: SandboxBackend, place: WorkspaceLayout, argv: Sequence[str], channels: Channels
) -> list[str]:
    arguments = [_find_tool("bwrap"), "--unshare-all", "--die-with-parent", "--new-session"]
    arguments += ["--uid", "1000", "--gid", "1000", "--hostname", "agent"]
    arguments += ["--json-status-fd", str(channels.status)]
    arguments += ["--seccomp", str(channels.seccomp)] if channels.seccomp is not None else []
    arguments += ["--share-net"] if place.network else []
    for link, target in sandbox.view.links:
        arguments += ["--symlink", target, link]
    for share in list_visible_shares(sandbox, place):
        arguments += ["--bind" if share.write else "--ro-bind", share.source, share.target]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for path in hidden_paths():
        arguments += ["--ro-bind", os.devnull, path]
    arguments += ["--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
    # What bubblewrap makes itself lies in memory that no limit counts; and where we are root, the
    # kernel lets commands write to its settings.
    arguments += ["--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/"]
    return [*arguments, "--chdir", WORKSPACE, "--setenv", "HOME", HOME, "--", *argv]


@functools.cache
def _find_tool(name: str) -> str:
    return shutil.which(name) or name


# Cages made with Landlock, in namespaces where they are allowed: no program is needed.

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


PROBE_SECONDS = 20.0
UNFILTERED_NOTE = "This kernel filters no system calls (seccomp is missing)."


def find_sandbox(settings: SandboxSettings, cache: Path) -> SandboxBackend:
    """The best cage of the kind asked for that really runs a command here."""
    mount = cache / "mount"
    for folder in (mount, cache / "stage"):
        folder.mkdir(parents=True, exist_ok=True)
    view = inspect_machine(settings)
    guards = SandboxLimits(
        kind="none", files=False, network=False, processes=False, note="Commands run uncaged."
    )
    unconfined = SandboxBackend(guards=guards, view=view, mount=str(mount), wrap=None)
    if settings.kind == "none":
        return unconfined
    troubles = []
    for candidate in list_candidates(unconfined, settings.kind, cache):
        trouble = probe_sandbox(candidate, cache)
        if trouble is None:
            return candidate
        troubles.append(f"{candidate.guards.kind}: {trouble}")
    first_trouble = f" ({troubles[0]})" if troubles else ""
    raise MachineFailed(
        f"No sandbox works here{first_trouble}: install bubblewrap, "
        "or pass --sandbox none to run agents without one."
    )


def list_candidates(bare: SandboxBackend, kind: str, cache: Path) -> Iterator[SandboxBackend]:
    """From the strongest and fastest down."""
    version, filtered = landlock_version(), filter_is_available()
    bare = msgspec.structs.replace(bare, filtered=filtered)
    isolated = msgspec.structs.replace(bare, isolated=True, etc=copy_etc(cache, bare.view.etc))
    guards = SandboxLimits(
        kind="bwrap",
        files=True,
        network=True,
        processes=True,
        system_calls=filtered,
        note="" if filtered else UNFILTERED_NOTE,
    )
    if kind in ("auto", "bwrap") and shutil.which("bwrap"):
        confined = msgspec.structs.replace(isolated, guards=guards, wrap=wrap_with_bwrap)
        yield msgspec.structs.replace(confined, overlay=True)
        yield confined
        late_note = "A command being started when closeloop is killed may go on."
        lesser_limits = msgspec.structs.replace(guards, note=f"{late_note} {guards.note}".strip())
        yield msgspec.structs.replace(confined, guards=lesser_limits, wrap=wrap_with_bwrap_alone)
    if kind in ("auto", "landlock") and version:
        guards = msgspec.structs.replace(guards, kind="landlock")
        confined = msgspec.structs.replace(isolated, guards=guards, wrap=wrap_with_landlock)
        yield msgspec.structs.replace(confined, overlay=True)
        yield confined
        guards = _describe_landlock_limits(version, filtered)
        yield msgspec.structs.replace(bare, guards=guards, wrap=wrap_with_landlock_alone)


def _describe_landlock_limits(version: int, filtered: bool) -> SandboxLimits:
    """What is enforced without namespaces, and in the note what is not."""
    sockets = ["TCP"] * (version < 4) + ["UDP and named Unix sockets"] * (not filtered)
    gaps = [f"the network is open ({', '.join(sockets)})"] * bool(sockets)
    gaps.append(
        "command lines of other processes, names of keys and System V shared memory can be read"
    )
    if version < 6:
        gaps.append("commands may signal other processes of this user")
    if version < 2:
        gaps.append("files cannot be moved between folders")
    note = f"Landlock without namespaces: {'; '.join(gaps)}."
    return SandboxLimits(
        kind="landlock",
        files=True,
        network=not sockets,
        processes=version >= 6,
        system_calls=filtered,
        note=note if filtered else f"{note} {UNFILTERED_NOTE}",
    )


def build_call_filter(sandbox: SandboxBackend, place: WorkspaceLayout) -> bytes:
    """The filter for one command; empty where this kernel has none."""
    if not sandbox.filtered:
        return b""
    tcp_only = not sandbox.isolated and not place.network
    return compile_filter(os.uname().machine, tcp_only)


def probe_sandbox(sandbox: SandboxBackend, cache: Path) -> str | None:
    """Write a file from inside; None when it arrives, else what went wrong."""
    with tempfile.TemporaryDirectory(dir=cache, prefix="probe-") as folder:
        place = WorkspaceLayout(folder=folder, lower=f"{folder}/lower" if sandbox.overlay else None)
        layout = ("lower", "upper", "work") if sandbox.overlay else ("root",)
        for name in layout:
            Path(folder, name).mkdir()
        for name in ("workspace", "home"):
            Path(folder, layout[0], name).mkdir()
        Path(folder, "temporary").mkdir()
        probe = _run_probe(sandbox, place)
        if isinstance(probe, str):
            return probe
        probe_file = Path(folder, "upper" if sandbox.overlay else "root", "workspace", "probe")
        if probe_file.exists():
            return None
        return (
            probe.stderr.decode(errors="replace").strip()[-300:] or f"exit code {probe.returncode}"
        )


def _run_probe(
    sandbox: SandboxBackend, place: WorkspaceLayout
) -> subprocess.CompletedProcess[bytes] | str:
    """Run a command that writes a file; a text where it does not end."""
    assert sandbox.wrap is not None
    status, status_end = os.pipe()
    seccomp, seccomp_end = os.pipe()
    os.write(seccomp_end, build_call_filter(sandbox, place))
    os.close(seccomp_end)
    channels = Channels(status=status_end, seccomp=seccomp if sandbox.filtered else None)
    try:
        return subprocess.run(
            sandbox.wrap(sandbox, place, Limits(), ["/bin/sh", "-c", ": > probe"], channels),
            env=build_command_environment(sandbox, place),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[status_end, seccomp],
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        for descriptor in (status, status_end, seccomp):
            os.close(descriptor)


def build_command_environment(
    sandbox: SandboxBackend, place: WorkspaceLayout, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables a command sees."""
    _, home, temporary = visible_paths(sandbox, place)
    env = {**sandbox.view.env, "HOME": home, "TMPDIR": temporary, **place.env, **(more or {})}
    # A workspace without a repository must not take one around the cache for its own.
    return env if sandbox.isolated else {"GIT_CEILING_DIRECTORIES": place.folder, **env}
