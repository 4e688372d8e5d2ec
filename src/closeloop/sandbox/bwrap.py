"""Cages made with bubblewrap: nothing but arguments."""

from __future__ import annotations

import functools
import os
import resource
import shutil
from collections.abc import Sequence

from closeloop.records.variant import Limits
from closeloop.sandbox.program_execution import Channels
from closeloop.sandbox.workspace_layout import (
    HOME,
    WORKSPACE,
    SandboxBackend,
    WorkspaceLayout,
    hidden_paths,
    list_visible_shares,
)

SHARED_MEMORY_BYTES = 256 << 20
MAX_OPEN_FILES = 16384
THREADS_PER_PROCESS = 8
"""Per process, on average: the kernel's limit counts threads."""

# bubblewrap's --die-with-parent misses a parent that dies while the cage is being built. So all
# of it runs in a process namespace of its own, whose first process dies with `unshare`, which
# dies with us; and which does not start the cage when we are gone already.
OUTER_SCRIPT = """
read -r state < "/proc/$1/stat" || exit 1
case $state in *") Z "*) exit 1 ;; esac
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
    outer += [str(os.getpid()), str(limits.disk_bytes // 512), str(MAX_OPEN_FILES)]
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
