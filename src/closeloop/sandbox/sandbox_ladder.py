"""Chooses the sandbox of this machine: bubblewrap, else Landlock, else none if requested by
name."""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from closeloop.records.errors import MachineFailed
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.machine_view import (
    HOME,
    WORKSPACE,
    SandboxBackend,
    SandboxLimits,
    WorkspaceLayout,
    copy_etc,
    hidden_paths,
    inspect_machine,
    list_visible_shares,
    visible_paths,
)
from closeloop.sandbox.program_execution import LAUNCHER_COMMAND, Channels

# The system calls that a sandboxed command may not make, as a seccomp program for the kernel.
#
# Refused calls return an error, and the command goes on. `ptrace` and `process_vm_readv` stay
# allowed, for debuggers, `strace` and leak checkers: the process namespace, or Landlock, limits
# them to the command's own processes.


PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
CLONE_NEWUSER = 1 << 28
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
X32_CALLS = 0x40000000
"""From this number on, calls on x86_64 belong to the x32 ABI."""
SOCKET_TYPE_MASK = 0xF
MAX_LINEAR_RULES = 3

LOAD, AND, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16

AUDIT_X86_64, AUDIT_I386, AUDIT_AARCH64 = 0xC000003E, 0x40000003, 0xC00000B7
ARCHITECTURES = {"x86_64": (AUDIT_X86_64, AUDIT_I386), "aarch64": (AUDIT_AARCH64,)}
"""Supported calling conventions by machine. All others get ENOSYS."""


class CallNumbers(NamedTuple):
    """The number of one system call in each calling convention."""

    x86_64: int | None
    i386: int | None
    aarch64: int | None


REFUSED_CALLS = {
    # Keyrings of the kernel, which may hold the user's keys.
    "add_key": CallNumbers(248, 286, 217),
    "request_key": CallNumbers(249, 287, 218),
    "keyctl": CallNumbers(250, 288, 219),
    # Large parts of the kernel that tests do not need.
    "bpf": CallNumbers(321, 357, 280),
    "userfaultfd": CallNumbers(323, 374, 282),
    "perf_event_open": CallNumbers(298, 336, 241),
    # Calls for administrators only.
    "mount": CallNumbers(165, 21, 40),
    "umount": CallNumbers(None, 22, None),
    "umount2": CallNumbers(166, 52, 39),
    "pivot_root": CallNumbers(155, 217, 41),
    "open_tree": CallNumbers(428, 428, 428),
    "move_mount": CallNumbers(429, 429, 429),
    "fsopen": CallNumbers(430, 430, 430),
    "fsconfig": CallNumbers(431, 431, 431),
    "fsmount": CallNumbers(432, 432, 432),
    "fspick": CallNumbers(433, 433, 433),
    "mount_setattr": CallNumbers(442, 442, 442),
    "open_tree_attr": CallNumbers(467, 467, 467),
    "kexec_load": CallNumbers(246, 283, 104),
    "kexec_file_load": CallNumbers(320, None, 294),
    "init_module": CallNumbers(175, 128, 105),
    "finit_module": CallNumbers(313, 350, 273),
    "delete_module": CallNumbers(176, 129, 106),
    "swapon": CallNumbers(167, 87, 224),
    "swapoff": CallNumbers(168, 115, 225),
    "reboot": CallNumbers(169, 88, 142),
    "acct": CallNumbers(163, 51, 89),
    "quotactl": CallNumbers(179, 131, 60),
    "quotactl_fd": CallNumbers(443, 443, 443),
    "open_by_handle_at": CallNumbers(304, 342, 265),
    "syslog": CallNumbers(103, 103, 116),
}
"""Calls that fail with EPERM."""
ABSENT_CALLS = {
    "io_uring_setup": CallNumbers(425, 425, 425),
    "io_uring_enter": CallNumbers(426, 426, 426),
    "io_uring_register": CallNumbers(427, 427, 427),
    # Its flags are in memory, which a filter cannot read; without it, libraries call clone.
    "clone3": CallNumbers(435, 435, 435),
    # So do its arguments; newer libraries call socket.
    "socketcall": CallNumbers(None, 102, None),
    "ipc": CallNumbers(None, 117, None),
}
"""Calls that fail with ENOSYS, as in a kernel without them."""
SHARED_CALLS = {
    # Memory, semaphores and queues with a name, which outlive the command that makes them.
    "shmat": CallNumbers(30, 397, 196),
    "shmctl": CallNumbers(31, 396, 195),
    "semget": CallNumbers(64, 393, 190),
    "semop": CallNumbers(65, None, 193),
    "semctl": CallNumbers(66, 394, 191),
    "semtimedop": CallNumbers(220, None, 192),
    "msgget": CallNumbers(68, 399, 186),
    "msgsnd": CallNumbers(69, 400, 189),
    "msgrcv": CallNumbers(70, 401, 188),
    "msgctl": CallNumbers(71, 402, 187),
    "mq_open": CallNumbers(240, 277, 180),
}
"""These too, where all programs of the machine share what they create."""
SHMGET = CallNumbers(29, 395, 194)
MAX_SEGMENT_BYTES = 64 << 10
"""Of System V shared memory, which is not counted; 4,096 segments equal the size of `/dev/shm`."""
CLONE, UNSHARE = CallNumbers(56, 120, 220), CallNumbers(272, 310, 97)
SOCKET, SOCKETPAIR = CallNumbers(41, 359, 198), CallNumbers(53, 360, 199)
IOCTL, PRLIMIT = CallNumbers(16, 54, 29), CallNumbers(302, 340, 261)

Instruction = tuple[int, int, int, int]
"""Code, instructions to skip if true and if false, and the operand."""


@functools.cache
def filter_is_available() -> bool:
    """Whether this kernel filters system calls, on a machine with known call numbers."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, None, 0, 0) < 0
    return failed and ctypes.get_errno() == errno.EFAULT and os.uname().machine in ARCHITECTURES


@functools.cache
def compile_filter(machine: str, tcp_only: bool, isolated: bool) -> bytes:
    """The filter as an array of `struct sock_filter`.

    With `tcp_only`, sockets are for TCP alone: Landlock, which decides about TCP, does not look at
    UDP, at Multipath TCP or at Unix sockets with a name. `isolated` says that the command has
    namespaces of its own, so that shared memory with a name is its own, too.
    """
    program: list[Instruction] = [(LOAD, 0, 0, ARCHITECTURE_OFFSET)]
    for architecture in ARCHITECTURES[machine]:
        section = _filter_calls(architecture, tcp_only, isolated)
        program += [(JUMP_EQUAL, 0, len(section), architecture), *section]
    program.append(_refuse(errno.ENOSYS))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _filter_calls(architecture: int, tcp_only: bool, isolated: bool) -> list[Instruction]:
    """Build the decision about a call of one calling convention."""
    absent_calls = [*ABSENT_CALLS.values(), *(() if isolated else (*SHARED_CALLS.values(), SHMGET))]
    answers: list[tuple[CallNumbers, list[Instruction]]] = [
        *((numbers, [_refuse(errno.EPERM)]) for numbers in REFUSED_CALLS.values()),
        *((numbers, [_refuse(errno.ENOSYS)]) for numbers in absent_calls),
        *([(SHMGET, _refuse_large_segments(architecture))] if isolated else ()),
        (CLONE, _refuse_user_namespace()),
        (UNSHARE, _refuse_user_namespace()),
        (IOCTL, _refuse_terminal_input()),
        (PRLIMIT, _refuse_first_process()),
        (SOCKET, _refuse_families(tcp_only)),
        (SOCKETPAIR, _refuse_families(tcp_only=False)),
    ]
    section: list[Instruction] = [(LOAD, 0, 0, NUMBER_OFFSET)]
    if architecture == AUDIT_X86_64:
        section += [(JUMP_AT_LEAST, 0, 1, X32_CALLS), _refuse(errno.ENOSYS)]
    column = (AUDIT_X86_64, AUDIT_I386, AUDIT_AARCH64).index(architecture)
    rules = [
        (number, action) for numbers, action in answers if (number := numbers[column]) is not None
    ]
    return [*section, *_find_rule(sorted(rules))]


def _find_rule(rules: Sequence[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Search by halving: the kernel tries every call number when a filter is installed."""
    if len(rules) > MAX_LINEAR_RULES:
        middle = len(rules) // 2
        lower, upper = _find_rule(rules[:middle]), _find_rule(rules[middle:])
        return [(JUMP_AT_LEAST, len(lower), 0, rules[middle][0]), *lower, *upper]
    instructions: list[Instruction] = []
    for number, action in rules:
        instructions += [(JUMP_EQUAL, 0, len(action), number), *action]
    return [*instructions, (RETURN, 0, 0, ALLOW)]


def _refuse_user_namespace() -> list[Instruction]:
    return [
        _load_argument(0),
        (JUMP_ANY_BIT, 0, 1, CLONE_NEWUSER),
        _refuse(errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]


def _refuse_first_process() -> list[Instruction]:
    """Protect the limits of the first process, which later commands would inherit."""
    return [_load_argument(0), (JUMP_EQUAL, 0, 1, 1), _refuse(errno.EPERM), (RETURN, 0, 0, ALLOW)]


def _refuse_terminal_input() -> list[Instruction]:
    """Refuse typing into a terminal for its user."""
    return [
        _load_argument(1),
        (JUMP_EQUAL, 1, 0, TIOCSTI),
        (JUMP_EQUAL, 0, 1, TIOCLINUX),
        _refuse(errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]


def _refuse_large_segments(architecture: int) -> list[Instruction]:
    """Refuse shared memory above the limit; 32-bit sizes have no upper half."""
    upper = [(LOAD, 0, 0, ARGUMENTS_OFFSET + 12), (JUMP_EQUAL, 0, 2, 0)]
    return [
        *(upper if architecture != AUDIT_I386 else ()),
        _load_argument(1),
        (JUMP_AT_LEAST, 0, 1, MAX_SEGMENT_BYTES + 1),
        _refuse(errno.EINVAL),
        (RETURN, 0, 0, ALLOW),
    ]


def _refuse_families(tcp_only: bool) -> list[Instruction]:
    """Allow local, internet and netlink sockets."""
    return [
        _load_argument(0),
        (JUMP_EQUAL, 0, 1, socket.AF_UNIX),
        _refuse(errno.EACCES) if tcp_only else (RETURN, 0, 0, ALLOW),
        (JUMP_EQUAL, 0, 1, socket.AF_NETLINK),
        (RETURN, 0, 0, ALLOW),
        (JUMP_EQUAL, 2, 0, socket.AF_INET),
        (JUMP_EQUAL, 1, 0, socket.AF_INET6),
        _refuse(errno.EAFNOSUPPORT),
        *(_refuse_all_but_tcp() if tcp_only else [(RETURN, 0, 0, ALLOW)]),
    ]


def _refuse_all_but_tcp() -> list[Instruction]:
    return [
        _load_argument(1),
        (AND, 0, 0, SOCKET_TYPE_MASK),
        (JUMP_EQUAL, 0, 3, socket.SOCK_STREAM),
        _load_argument(2),
        (JUMP_EQUAL, 2, 0, socket.IPPROTO_IP),
        (JUMP_EQUAL, 1, 0, socket.IPPROTO_TCP),
        _refuse(errno.EACCES),
        (RETURN, 0, 0, ALLOW),
    ]


def _load_argument(position: int) -> Instruction:
    """Load the lower half of an argument; the kernel ignores the upper half of those used here."""
    return (LOAD, 0, 0, ARGUMENTS_OFFSET + 8 * position)


def _refuse(number: int) -> Instruction:
    return (RETURN, 0, 0, REFUSE | number)


# Sandboxes made with bubblewrap: only arguments.

SHARED_MEMORY_BYTES = 256 << 20
MAX_OPEN_FILES = 16384
THREADS_PER_PROCESS = 8
"""Average threads per process: the kernel's limit counts threads."""

# bubblewrap's --die-with-parent misses a parent that dies while the sandbox is being built. So all
# of it runs in a process namespace of its own, whose first process dies with `unshare`, which dies
# with us; and which does not start the sandbox if we are already gone. "We" is the thread that
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
    layout: WorkspaceLayout,
    limits: Limits,
    argv: Sequence[str],
    channels: Channels,
) -> list[str]:
    """Wrap the command in a sandbox, in namespaces that hold its overlay."""
    overlay = ""
    if layout.lower:  # relative paths: a comma or colon in the cache's path would be read as syntax
        lower = os.path.relpath(layout.lower, layout.folder)
        overlay = f"lowerdir={lower},upperdir=upper,workdir=work,userxattr"
    outer_command = [_find_tool("setpriv"), "--pdeathsig", "KILL", _find_tool("unshare")]
    outer_command += [
        "-U",
        "-r",
        "-m",
        "-p",
        "-f",
        "--kill-child",
        "/bin/sh",
        "-c",
        OUTER_SCRIPT,
        "sh",
    ]
    starter = f"{os.getpid()}/task/{threading.get_native_id()}"
    outer_command += [starter, str(limits.disk_bytes // 512), str(MAX_OPEN_FILES)]
    outer_command += [
        str(limits.processes * THREADS_PER_PROCESS),
        layout.folder,
        overlay,
        sandbox.mount,
    ]
    return [*outer_command, *_bwrap_arguments(sandbox, layout, argv, channels)]


def wrap_with_bwrap_alone(
    sandbox: SandboxBackend,
    layout: WorkspaceLayout,
    limits: Limits,
    argv: Sequence[str],
    channels: Channels,
) -> list[str]:
    """Wrap the command if only bubblewrap itself may create namespaces."""
    files = min(MAX_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    limited = [
        _find_tool("prlimit"),
        "--core=0",
        f"--nofile={files}",
        f"--fsize={limits.disk_bytes}",
    ]
    return [*limited, *_bwrap_arguments(sandbox, layout, argv, channels)]


def _bwrap_arguments(
    sandbox: SandboxBackend, layout: WorkspaceLayout, argv: Sequence[str], channels: Channels
) -> list[str]:
    arguments = [_find_tool("bwrap"), "--unshare-all", "--die-with-parent", "--new-session"]
    arguments += ["--uid", "1000", "--gid", "1000", "--hostname", "agent"]
    arguments += ["--json-status-fd", str(channels.status)]
    arguments += ["--seccomp", str(channels.seccomp)] if channels.seccomp is not None else []
    arguments += ["--share-net"] if layout.network else []
    for link, target in sandbox.view.links:
        arguments += ["--symlink", target, link]
    for share in list_visible_shares(sandbox, layout):
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


# Sandboxes made with Landlock, in namespaces if they are allowed: no program is needed.

DEVICE_NAMES = ("null", "zero", "full", "random", "urandom", "tty")


def landlock_version() -> int:
    """Version of Landlock in this kernel; 0 if there is none."""
    return max(int(ctypes.CDLL(None).syscall(444, None, 0, 1)), 0)


def wrap_with_landlock(
    sandbox: SandboxBackend,
    layout: WorkspaceLayout,
    limits: Limits,
    argv: Sequence[str],
    channels: Channels,
) -> list[str]:
    """Wrap the command with its own file system, network and processes."""
    return _launcher_command(
        sandbox, layout, argv, channels, _namespace_restrictions(sandbox, layout, limits)
    )


def specify_standing_sandbox(
    sandbox: SandboxBackend, layout: WorkspaceLayout, limits: Limits
) -> str:
    """Specify one with its own file system, network and processes, for the launcher."""
    restrictions = _namespace_restrictions(sandbox, layout, limits)
    return json.dumps(restrictions | _describe_surroundings(sandbox, layout))


def _namespace_restrictions(
    sandbox: SandboxBackend, layout: WorkspaceLayout, limits: Limits
) -> dict[str, Any]:
    writable = [*visible_paths(sandbox, layout), "/dev"]
    writable += [share.target for share in layout.shares if share.write]
    rlimits = _resource_limits(limits) | {"RLIMIT_NPROC": limits.processes * THREADS_PER_PROCESS}
    lower = os.path.relpath(layout.lower, layout.folder) if layout.lower else ""
    return {
        "isolated": True,
        "stage": str(Path(sandbox.mount).with_name("stage")),
        "mount": sandbox.mount,
        "folder": layout.folder,
        "overlay": lower and f"lowerdir={lower},upperdir=upper,workdir=work,userxattr",
        "links": sandbox.view.links,
        "shown": [
            (share.source, share.target, share.write)
            for share in list_visible_shares(sandbox, layout)
        ],
        "hidden": hidden_paths(),
        "rules": [("/", False), *((path, True) for path in writable)],
        "rlimits": rlimits,
    }


def wrap_with_landlock_alone(
    sandbox: SandboxBackend,
    layout: WorkspaceLayout,
    limits: Limits,
    argv: Sequence[str],
    channels: Channels,
) -> list[str]:
    """Wrap the command without namespaces, restricted to opening the named paths."""
    view = sandbox.view
    readable = [*view.readable, *(link for link, _ in view.links), *view.etc, "/proc"]
    readable += [f"/etc/{name}" for name in ("hosts", "passwd", "group", "nsswitch.conf")]
    readable += ["/etc/resolv.conf"] if layout.network else []
    readable += [share.source for share in layout.shares if not share.write]
    folders = visible_paths(sandbox, layout)
    readable += folders[:1] if layout.frozen else []
    writable = [*folders[layout.frozen :], *(f"/dev/{name}" for name in DEVICE_NAMES)]
    writable += [share.source for share in layout.shares if share.write]
    rules = [*((path, False) for path in readable), *((path, True) for path in writable)]
    restrictions = {"isolated": False, "rules": rules, "rlimits": _resource_limits(limits)}
    restrictions["ports"] = [port.number for port in layout.ports]
    return _launcher_command(sandbox, layout, argv, channels, restrictions)


def _resource_limits(limits: Limits) -> dict[str, int]:
    return {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": limits.disk_bytes, "RLIMIT_NOFILE": MAX_OPEN_FILES}


def _launcher_command(
    sandbox: SandboxBackend,
    layout: WorkspaceLayout,
    argv: Sequence[str],
    channels: Channels,
    restrictions: dict[str, Any],
) -> list[str]:
    specification = {
        **restrictions,
        **_describe_surroundings(sandbox, layout),
        "parent": os.getpid(),
        "status": channels.status,
        "seccomp": channels.seccomp,
        "argv": list(argv),
    }
    return [*LAUNCHER_COMMAND, json.dumps(specification)]


def _describe_surroundings(sandbox: SandboxBackend, layout: WorkspaceLayout) -> dict[str, Any]:
    return {"network": layout.network, "directory": visible_paths(sandbox, layout)[0]}


PROBE_SECONDS = 20.0
UNFILTERED_NOTE = "This kernel does not filter system calls (seccomp is missing)."


def find_sandbox(settings: SandboxSettings, cache: Path) -> SandboxBackend:
    """Return the best sandbox of the requested kind that runs a command here."""
    mount = cache / "mount"
    for folder in (mount, cache / "stage"):
        folder.mkdir(parents=True, exist_ok=True)
    view = inspect_machine(settings)
    sandbox_limits = SandboxLimits(
        kind="none",
        files=False,
        network=False,
        processes=False,
        note="Commands run without a sandbox.",
    )
    unconfined = SandboxBackend(
        sandbox_limits=sandbox_limits, view=view, mount=str(mount), wrap=None
    )
    if settings.kind == "none":
        return unconfined
    problems = []
    for candidate in list_candidates(unconfined, settings.kind, cache):
        problem = probe_sandbox(candidate, cache)
        if problem is None:
            return candidate
        problems.append(f"{candidate.sandbox_limits.kind}: {problem}")
    first_trouble = f" ({problems[0]})" if problems else ""
    raise MachineFailed(
        f"No sandbox works here{first_trouble}: install bubblewrap, "
        "or pass --set sandbox.kind=none to run agents without one."
    )


def list_candidates(unconfined: SandboxBackend, kind: str, cache: Path) -> Iterator[SandboxBackend]:
    """Yield candidates from the strongest and fastest down."""
    version, filtered = landlock_version(), filter_is_available()
    unconfined = msgspec.structs.replace(unconfined, filtered=filtered)
    isolated = msgspec.structs.replace(
        unconfined, isolated=True, etc=copy_etc(cache, unconfined.view.etc)
    )
    sandbox_limits = SandboxLimits(
        kind="bwrap",
        files=True,
        network=True,
        processes=True,
        system_calls=filtered,
        note="" if filtered else UNFILTERED_NOTE,
    )
    if kind in ("auto", "bwrap") and shutil.which("bwrap"):
        confined = msgspec.structs.replace(
            isolated, sandbox_limits=sandbox_limits, wrap=wrap_with_bwrap
        )
        yield msgspec.structs.replace(confined, overlay=True)
        yield confined
        late_note = "A command that is starting when closeloop is killed may keep running."
        lesser_limits = msgspec.structs.replace(
            sandbox_limits, note=f"{late_note} {sandbox_limits.note}".strip()
        )
        yield msgspec.structs.replace(
            confined, sandbox_limits=lesser_limits, wrap=wrap_with_bwrap_alone
        )
    if kind in ("auto", "landlock") and version:
        sandbox_limits = msgspec.structs.replace(sandbox_limits, kind="landlock")
        confined = msgspec.structs.replace(
            isolated, sandbox_limits=sandbox_limits, wrap=wrap_with_landlock
        )
        yield msgspec.structs.replace(confined, overlay=True)
        yield confined
        sandbox_limits = _describe_landlock_limits(version, filtered)
        yield msgspec.structs.replace(
            unconfined, sandbox_limits=sandbox_limits, wrap=wrap_with_landlock_alone
        )


def _describe_landlock_limits(version: int, filtered: bool) -> SandboxLimits:
    """Return what is enforced without namespaces, with a note on what is not."""
    sockets = ["TCP"] * (version < 4) + ["UDP and named Unix sockets"] * (not filtered)
    gaps = [f"the network is open ({', '.join(sockets)})"] * bool(sockets)
    memory = "" if filtered else ", System V shared memory"
    gaps.append(f"command lines of other processes{memory} and names of keys can be read")
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


def build_call_filter(sandbox: SandboxBackend, layout: WorkspaceLayout) -> bytes:
    """Build the filter for one command; empty if this kernel has none."""
    if not sandbox.filtered:
        return b""
    tcp_only = not sandbox.isolated and not layout.network
    return compile_filter(os.uname().machine, tcp_only, sandbox.isolated)


def probe_sandbox(sandbox: SandboxBackend, cache: Path) -> str | None:
    """Write a file from inside; None if it arrives, else what went wrong."""
    with tempfile.TemporaryDirectory(dir=cache, prefix="probe-") as folder:
        workspace_layout = WorkspaceLayout(
            folder=folder, lower=f"{folder}/lower" if sandbox.overlay else None
        )
        folder_names = ("lower", "upper", "work") if sandbox.overlay else ("root",)
        for name in folder_names:
            Path(folder, name).mkdir()
        for name in ("workspace", "home"):
            Path(folder, folder_names[0], name).mkdir()
        Path(folder, "temporary").mkdir()
        probe = _run_probe(sandbox, workspace_layout)
        if isinstance(probe, str):
            return probe
        probe_file = Path(folder, "upper" if sandbox.overlay else "root", "workspace", "probe")
        if probe_file.exists():
            return None
        return (
            probe.stderr.decode(errors="replace").strip()[-300:] or f"exit code {probe.returncode}"
        )


def _run_probe(
    sandbox: SandboxBackend, layout: WorkspaceLayout
) -> subprocess.CompletedProcess[bytes] | str:
    """Run a command that writes a file; a text if it does not end."""
    assert sandbox.wrap is not None
    status, status_end = os.pipe()
    seccomp, seccomp_end = os.pipe()
    os.write(seccomp_end, build_call_filter(sandbox, layout))
    os.close(seccomp_end)
    channels = Channels(status=status_end, seccomp=seccomp if sandbox.filtered else None)
    try:
        return subprocess.run(
            sandbox.wrap(sandbox, layout, Limits(), ["/bin/sh", "-c", ": > probe"], channels),
            env=build_command_environment(sandbox, layout),
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
    sandbox: SandboxBackend, layout: WorkspaceLayout, extra_env: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Build the variables that a command sees."""
    _, home, temporary = visible_paths(sandbox, layout)
    env = {**sandbox.view.env, "HOME": home, "TMPDIR": temporary, **layout.env, **(extra_env or {})}
    # A workspace without a repository must not take one around the cache for its own.
    return env if sandbox.isolated else {"GIT_CEILING_DIRECTORIES": layout.folder, **env}
