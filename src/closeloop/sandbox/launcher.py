"""Builds a sandbox from the kernel's own means, then runs one command in it, or one by one several.

A program, not a module: run as `python -I -S launcher.py SPECIFICATION`, it may use nothing but
the standard library. Run with the number of a socket instead, it starts a standing
sandbox for each specification that it receives; they share the memory of one interpreter.

With user namespaces the command gets its own file system, network and processes; Landlock is laid
over that, or stands alone where namespaces are not allowed.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC_KEEPING_LOCK = ctypes.PyDLL(None)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    4096,
    16384,
    1 << 18,
)
MNT_DETACH = 2
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    1 << 17,
    1 << 26,
    1 << 27,
    1 << 28,
    1 << 29,
    1 << 30,
)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
PR_CAPBSET_DROP, PR_SET_SECCOMP, PR_SET_DUMPABLE = 24, 22, 4
PTRACE_DETACH = 17
JOIN_SESSION_KEYRING = 1
KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219}
CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOUNT_SETATTR, CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 442, 444, 445, 446
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
OWN_ID = 1000
DEVICE_NAMES = ("null", "zero", "full", "random", "urandom", "tty")

FILE_READ, FILE_WRITE = 0b101, 0b10
"""Execute and read a file; write it."""
FOLDER_READ = FILE_READ | 1 << 3
ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file rights known to each version of Landlock."""
TRUNCATE_RIGHT, DEVICE_CONTROL_RIGHT = 1 << 14, 1 << 15
CONNECT_RIGHT = 0b10
"""Connecting to a port on any machine: the kernel does not check addresses."""


def main() -> NoReturn:
    if sys.argv[1].isdigit():
        start_standing_sandboxes(int(sys.argv[1]), int(sys.argv[2]))
    specification = json.loads(sys.argv[1])
    call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL if specification["isolated"] else signal.SIGTERM)
    if os.getppid() != specification["parent"]:
        sys.exit(1)
    os.set_inheritable(specification["status"], False)
    read_call_filter(specification)
    code = (
        run_in_namespaces(specification) if specification["isolated"] else run_plain(specification)
    )
    os.write(specification["status"], json.dumps({"exit-code": code}).encode())
    os._exit(code)


def read_call_filter(specification: dict[str, Any]) -> None:
    if specification["seccomp"] is not None:
        specification["filter"] = os.read(specification["seccomp"], 1 << 16)
        os.close(specification["seccomp"])


def run_in_namespaces(specification: dict[str, Any]) -> int:
    """Run the command below the first process of a new process namespace, which dies with us."""
    user, group = os.geteuid(), os.getegid()
    unshare_namespaces(specification, NEWUSER | NEWPID, user, group)
    alive, hold = os.pipe()
    child_pid = os.fork()
    if child_pid:
        return wait_for_child(child_pid)
    os.close(hold)
    die_with_parent(alive)
    os.close(alive)
    run_step(build_root, specification)
    os._exit(wait_for_child(start_command(specification)))


def unshare_namespaces(
    specification: dict[str, Any], first_flags: int, user: int, group: int
) -> None:
    """Enter new namespaces and map this user into them."""
    flags = first_flags | NEWNS | NEWIPC | NEWUTS
    call_or_raise(LIBC.unshare, flags | (0 if specification["network"] else NEWNET))
    for path, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{OWN_ID} {user} 1"),
        ("gid_map", f"{OWN_ID} {group} 1"),
    ):
        write_file(f"/proc/self/{path}", content)
    # Only now: the kernel counts processes within the new namespace.
    set_resource_limits(specification)
    socket.sethostname("agent")
    if not specification["network"]:
        raise_loopback()


def die_with_parent(alive: int) -> None:
    """Let the kernel kill us with our parent, who has the other end of this pipe."""
    call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([alive], [], [], 0)[0]:  # closed: our parent died before it was watched
        os._exit(1)


def start_standing_sandboxes(requests_handle: int, parent: int) -> NoReturn:
    """Start a sandbox for each request, and answer with a handle of its first process.

    A request consists of the handles of a specification, of a control socket, and of the filter of
    system calls if there is one.
    """
    call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what ended
    gc.disable()  # it would write to pages that are shared with the sandboxes
    requests = socket.socket(fileno=requests_handle)
    alive, hold = os.pipe()
    user, group = os.geteuid(), os.getegid()
    while True:
        message, handles, _, _ = socket.recv_fds(requests, 16, 3)
        if not message:
            os._exit(0)
        pid = fork_into_namespace()
        if pid == 0:
            requests.close()
            os.close(hold)
            die_with_parent(alive)
            os.close(alive)
            run_standing_sandbox(handles, user, group)
        process_handles = []
        with suppress(OSError):  # it could not be started, or has ended already
            process_handles.append(os.pidfd_open(pid))
        socket.send_fds(requests, [str(pid).encode()], process_handles)
        for handle in (*handles, *process_handles):
            os.close(handle)


def fork_into_namespace() -> int:
    """Fork the first process of a new process namespace.

    `unshare` and `fork` would need a process between us and each sandbox. Nothing is missed that
    `os.fork` does besides: there is one thread, which keeps the interpreter's lock.
    """
    number = CLONE_NUMBERS[os.uname().machine]
    return int(LIBC_KEEPING_LOCK.syscall(number, NEWUSER | NEWPID | signal.SIGCHLD, 0, 0, 0, 0))


def run_standing_sandbox(handles: list[int], user: int, group: int) -> NoReturn:
    """As the first process of a process namespace: build the sandbox, then serve commands."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    if (number := KEYCTL_NUMBERS.get(os.uname().machine)) is not None:
        LIBC.syscall(number, JOIN_SESSION_KEYRING, None)
    with open(handles[0], "rb") as specification_file:  # noqa: PTH123
        specification = json.load(specification_file)
    specification["status"] = handles[1]
    specification["seccomp"] = handles[2] if len(handles) > 2 else None
    read_call_filter(specification)
    run_step(lambda given: unshare_namespaces(given, 0, user, group), specification)
    run_step(build_root, specification)
    run_step(serve_commands, specification)
    os._exit(1)


def serve_commands(specification: dict[str, Any]) -> NoReturn:
    """Run what comes over the control socket, as the first process of this namespace.

    No command can reach us: signals from inside do nothing to a first process that handles none,
    and it may not be traced or looked into, as it keeps capabilities that commands do not have.
    """
    for handled in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # or ignored, by Python
        signal.signal(handled, signal.SIG_DFL)
    call_prctl(PR_SET_DUMPABLE, 0)
    control = socket.socket(fileno=os.dup(specification["status"]))
    while True:
        message, handles, _, _ = socket.recv_fds(control, 16, 4)
        if not message:
            os._exit(0)
        with open(handles[0], "rb") as order:  # noqa: PTH123
            command = specification | json.load(order)
        failed, failed_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for number, handle in enumerate(handles[1:]):
                os.dup2(handle, number)
            os.closerange(3, failed_end)  # our handles, except the one that reports failures
            command["status"] = failed_end
            run_step(leave_shared_state, command)
            execute_command(command)
        for handle in (*handles[1:], failed_end):
            os.close(handle)
        with open(failed, "rb") as failure:  # noqa: PTH123 (ends when the command is executed)
            report = failure.read()
        code = wait_for_child(pid)
        kill_everything_else()
        control.send(report or json.dumps({"exit-code": code}).encode())


def leave_shared_state(specification: dict[str, Any]) -> None:
    """Unshare System V shared memory and ports, so that they end with the command."""
    call_or_raise(LIBC.unshare, NEWIPC | (0 if specification["network"] else NEWNET))
    if not specification["network"]:
        raise_loopback()


def kill_everything_else() -> None:
    """Kill all other processes of this namespace, and release the memory they shared by files."""
    with suppress(ChildProcessError):
        while True:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            os.wait()
    call_or_raise(LIBC.umount2, b"/dev/shm", MNT_DETACH)
    mount_shared_memory("/dev/shm")  # noqa: S108


def run_plain(specification: dict[str, Any]) -> int:
    """Run the command below this process, which adopts and finally kills what it leaves behind."""
    set_resource_limits(specification)
    call_prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, kill_and_exit)
    code = wait_for_child(start_command(specification))
    kill_children()
    return code


def start_command(specification: dict[str, Any]) -> int:
    """Fork the command."""
    pid = os.fork()
    if pid == 0:
        execute_command(specification)
    return pid


def execute_command(specification: dict[str, Any]) -> NoReturn:
    """In a forked child: apply Landlock and execute the command."""
    for ignored in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):  # by us, or by Python
        signal.signal(ignored, signal.SIG_DFL)
    run_step(restrict_with_landlock, specification)
    run_step(enter_directory, specification)
    run_step(filter_system_calls, specification)
    argv = specification["argv"]
    try:
        os.execvpe(argv[0], argv, specification.get("env", os.environ))  # noqa: S606
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127)
    except ValueError as error:  # a variable that cannot be passed to a program
        os.write(2, f"{error}\n".encode(errors="replace"))
        os._exit(126)


def enter_directory(specification: dict[str, Any]) -> None:
    os.chdir(specification["directory"])


def wait_for_child(pid: int) -> int:
    """Reap until this child ends; return its exit code as shells count."""
    while True:
        ended_pid, status = os.wait()
        if os.WIFSTOPPED(status):  # it asked to be traced by its parent: let it continue
            passed = os.WSTOPSIG(status) & 0x7F
            LIBC.ptrace(PTRACE_DETACH, ended_pid, None, 0 if passed == signal.SIGTRAP else passed)
        elif ended_pid == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def kill_children() -> None:
    """Kill children until none is left; orphans below them become ours in turn."""
    while True:
        with open("/proc/thread-self/children") as children_file:  # noqa: PTH123
            for pid in children_file.read().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def kill_and_exit(*_: object) -> None:
    kill_children()
    os._exit(1)


def build_root(specification: dict[str, Any]) -> None:
    """Build a file system with the exposed paths, /proc and /dev, and nothing else."""
    new_root = specification["stage"]
    mount_filesystem(None, "/", None, MS_REC | MS_PRIVATE)
    if specification["overlay"]:
        os.chdir(specification["folder"])
        mount_filesystem("overlay", specification["mount"], "overlay", 0, specification["overlay"])
    mount_filesystem("tmpfs", new_root, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,mode=755")
    for link, target in specification["links"]:
        os.makedirs(os.path.dirname(new_root + link), exist_ok=True)  # noqa: PTH103, PTH120
        os.symlink(target, new_root + link)  # noqa: PTH211
    for source, target, writable in specification["shown"]:
        bind_mount(source, new_root + target, writable)
    os.makedirs(f"{new_root}/dev/shm", exist_ok=True)  # noqa: PTH103, S108
    for name in DEVICE_NAMES:
        bind_mount(f"/dev/{name}", f"{new_root}/dev/{name}", False)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        os.symlink(f"/proc/self/fd/{number}", f"{new_root}/dev/{name}")  # noqa: PTH211
    os.symlink("/proc/self/fd", f"{new_root}/dev/fd")  # noqa: PTH211
    mount_shared_memory(f"{new_root}/dev/shm")  # noqa: S108
    os.makedirs(f"{new_root}/dev/pts")  # noqa: PTH103
    os.symlink("pts/ptmx", f"{new_root}/dev/ptmx")  # noqa: PTH211
    mount_filesystem(
        "devpts",
        f"{new_root}/dev/pts",
        "devpts",
        MS_NOSUID | MS_NOEXEC,
        "newinstance,ptmxmode=0666",
    )
    os.makedirs(f"{new_root}/proc")  # noqa: PTH103
    mount_filesystem("proc", f"{new_root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path in specification["hidden"]:
        mount_filesystem("/dev/null", new_root + path, None, MS_BIND)
    for path in (f"{new_root}/proc", new_root):  # root may write to the kernel's settings in /proc
        set_read_only(path, 0)
    os.chdir(new_root)
    call_or_raise(LIBC.syscall, PIVOT_ROOT[os.uname().machine], b".", b".")
    call_or_raise(LIBC.umount2, b".", MNT_DETACH)
    os.chdir("/")


def mount_shared_memory(target: str) -> None:
    mount_filesystem("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "size=256m,mode=755")


def bind_mount(source: str, target: str, writable: bool) -> None:
    if os.path.isdir(source):  # noqa: PTH112
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
    elif not os.path.exists(target):  # noqa: PTH110
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    mount_filesystem(source, target, None, MS_BIND | MS_REC)
    if not writable:
        set_read_only(target, AT_RECURSIVE)


def set_read_only(path: str, flags: int) -> None:
    attributes = struct.pack("QQQQ", MS_RDONLY, 0, 0, 0)
    call_or_raise(
        LIBC.syscall, MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, attributes, len(attributes)
    )


def restrict_with_landlock(specification: dict[str, Any]) -> None:
    """Restrict reading and writing to the named paths, as far as this kernel's Landlock can."""
    drop_capabilities()
    call_prctl(PR_SET_NO_NEW_PRIVS, 1)
    version = LIBC.syscall(CREATE_RULESET, None, 0, 1)
    if version < 1:
        if specification["isolated"]:
            return
        raise OSError(ctypes.get_errno(), "Landlock is not available")
    rights = ALL_RIGHTS[
        max(known_version for known_version in ALL_RIGHTS if known_version <= version)
    ]
    is_fenced = not specification["network"] and not specification["isolated"]
    network = 0b11 if version >= 4 and is_fenced else 0
    scope = 0b11 if version >= 6 else 0
    attributes = struct.pack("QQQ", rights, network, scope)[
        : 24 if version >= 6 else 16 if version >= 4 else 8
    ]
    rules = call_or_raise(LIBC.syscall, CREATE_RULESET, attributes, len(attributes), 0)
    for path, writable in specification["rules"]:
        allow_path(rules, path, rights if writable else FOLDER_READ, rights)
    for port in specification["ports"] if network else ():
        call_or_raise(LIBC.syscall, ADD_RULE, rules, 2, struct.pack("=QQ", CONNECT_RIGHT, port), 0)
    call_or_raise(LIBC.syscall, RESTRICT_SELF, rules, 0)
    os.close(rules)


def filter_system_calls(specification: dict[str, Any]) -> None:
    """Install the filter; its refusals apply to this process as well."""
    if specification["seccomp"] is None:
        return
    program = specification["filter"]
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    call_or_raise(LIBC.prctl, PR_SET_SECCOMP, 2, header, 0, 0)


def drop_capabilities() -> None:
    """Drop root's capabilities, which Landlock does not check."""
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def allow_path(rules: int, path: str, rights: int, handled_rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):  # noqa: PTH112
        rights &= FILE_READ | FILE_WRITE | TRUNCATE_RIGHT | DEVICE_CONTROL_RIGHT
    rule = struct.pack("=Qi", rights & handled_rights, handle)
    call_or_raise(LIBC.syscall, ADD_RULE, rules, 1, rule, 0)
    os.close(handle)


def raise_loopback() -> None:
    """Bring up the loopback device of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 0x1 | 0x40))


def run_step(step: Callable[[dict[str, Any]], None], specification: dict[str, Any]) -> None:
    """In a forked child: a sandbox that cannot be built is our fault, not the command's."""
    try:
        step(specification)
    except OSError as error:
        os.write(specification["status"], json.dumps({"failed": str(error)}).encode())
        os._exit(1)


def set_resource_limits(specification: dict[str, Any]) -> None:
    for name, limit in specification["rlimits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        new_limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(number, (new_limit, new_limit))


def mount_filesystem(
    source: str | None, target: str, kind: str | None, flags: int, data: str = ""
) -> None:
    arguments = [text.encode() if text is not None else None for text in (source, target, kind)]
    call_or_raise(
        LIBC.mount, *arguments, ctypes.c_ulong(flags), data.encode(), call_name=f"mount {target}"
    )


def call_prctl(option: int, value: int) -> None:
    call_or_raise(LIBC.prctl, option, value, 0, 0, 0)


def write_file(path: str, content: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123
        file.write(content)


def call_or_raise(function: Any, *arguments: Any, call_name: str = "") -> int:
    result: int = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call_name or function.__name__}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    main()
