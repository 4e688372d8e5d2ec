"""Cages made with bubblewrap: nothing but arguments."""

from __future__ import annotations

import functools
import os
import resource
import shutil
from collections.abc import Sequence

from closeloop.model.variant import Limits
from closeloop.runs.sandbox.place import HOME, WORKSPACE, Place, Sandbox, hidden_paths, shown
from closeloop.runs.sandbox.process import Channels

SHARED_MEMORY = 256 << 20
FILES = 16384
THREADS = 8
"""Per process, on average: the kernel's limit counts threads."""

# bubblewrap's --die-with-parent misses a parent that dies while the cage is being built. So all
# of it runs in a process namespace of its own, whose first process dies with `unshare`, which
# dies with us; and which does not start the cage when we are gone already.
OUTER = """
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


def wrap(
    sandbox: Sandbox, place: Place, limits: Limits, argv: Sequence[str], channels: Channels
) -> list[str]:
    """The command in a cage, in namespaces that hold its overlay."""
    overlay = ""
    if place.lower:  # relative paths: a comma or colon in the cache's path would be read as syntax
        lower = os.path.relpath(place.lower, place.folder)
        overlay = f"lowerdir={lower},upperdir=upper,workdir=work,userxattr"
    outer = [_tool("setpriv"), "--pdeathsig", "KILL", _tool("unshare")]
    outer += ["-U", "-r", "-m", "-p", "-f", "--kill-child", "/bin/sh", "-c", OUTER, "sh"]
    outer += [str(os.getpid()), str(limits.disk_bytes // 512), str(FILES)]
    outer += [str(limits.processes * THREADS), place.folder, overlay, sandbox.mount]
    return [*outer, *_cage(sandbox, place, argv, channels)]


def wrap_alone(
    sandbox: Sandbox, place: Place, limits: Limits, argv: Sequence[str], channels: Channels
) -> list[str]:
    """The command in a cage, where only bubblewrap itself may make namespaces."""
    files = min(FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    limited = [_tool("prlimit"), "--core=0", f"--nofile={files}", f"--fsize={limits.disk_bytes}"]
    return [*limited, *_cage(sandbox, place, argv, channels)]


def _cage(sandbox: Sandbox, place: Place, argv: Sequence[str], channels: Channels) -> list[str]:
    cage = [_tool("bwrap"), "--unshare-all", "--die-with-parent", "--new-session"]
    cage += ["--uid", "1000", "--gid", "1000", "--hostname", "agent"]
    cage += ["--json-status-fd", str(channels.status)]
    cage += ["--seccomp", str(channels.seccomp)] if channels.seccomp is not None else []
    cage += ["--share-net"] if place.network else []
    for link, target in sandbox.view.links:
        cage += ["--symlink", target, link]
    for share in shown(sandbox, place):
        cage += ["--bind" if share.write else "--ro-bind", share.source, share.target]
    cage += ["--proc", "/proc", "--dev", "/dev"]
    for path in hidden_paths():
        cage += ["--ro-bind", os.devnull, path]
    cage += ["--size", str(SHARED_MEMORY), "--tmpfs", "/dev/shm"]  # noqa: S108
    # What bubblewrap makes itself lies in memory that no limit counts; and where we are root, the
    # kernel lets commands write to its settings.
    cage += ["--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/"]
    return [*cage, "--chdir", WORKSPACE, "--setenv", "HOME", HOME, "--", *argv]


@functools.cache
def _tool(name: str) -> str:
    return shutil.which(name) or name
