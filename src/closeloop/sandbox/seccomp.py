"""The system calls that a sandboxed command may not make, as a program for the kernel.

Refused calls return an error, and the command goes on. `ptrace` and `process_vm_readv` stay
allowed, for debuggers, `strace` and leak checkers: the process namespace, or Landlock, limits them
to the command's own processes.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
CLONE_NEWUSER = 1 << 28
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
X32_CALLS = 0x40000000
"""From this number on, calls on x86_64 are those of the x32 ABI."""
SOCKET_TYPE_MASK = 0xF
MAX_LINEAR_RULES = 3

LOAD, AND, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16

AUDIT_X86_64, AUDIT_I386, AUDIT_AARCH64 = 0xC000003E, 0x40000003, 0xC00000B7
ARCHITECTURES = {"x86_64": (AUDIT_X86_64, AUDIT_I386), "aarch64": (AUDIT_AARCH64,)}
"""By machine: the calling conventions that are understood. All others get ENOSYS."""


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
    # What only the machine's administrator does.
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
"""These fail with EPERM."""
ABSENT_CALLS = {
    "io_uring_setup": CallNumbers(425, 425, 425),
    "io_uring_enter": CallNumbers(426, 426, 426),
    "io_uring_register": CallNumbers(427, 427, 427),
    # Its flags lie in memory, where a filter cannot look; without it, libraries call clone.
    "clone3": CallNumbers(435, 435, 435),
    # So do its arguments; newer libraries call socket.
    "socketcall": CallNumbers(None, 102, None),
}
"""These fail with ENOSYS, as in a kernel that does not have them."""
CLONE, UNSHARE = CallNumbers(56, 120, 220), CallNumbers(272, 310, 97)
SOCKET, SOCKETPAIR = CallNumbers(41, 359, 198), CallNumbers(53, 360, 199)
IOCTL = CallNumbers(16, 54, 29)

Instruction = tuple[int, int, int, int]
"""Code, how many instructions to skip if true, and if false, and the operand."""


@functools.cache
def filter_is_available() -> bool:
    """Whether this kernel filters system calls, on a machine whose call numbers are known."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, None, 0, 0) < 0
    return failed and ctypes.get_errno() == errno.EFAULT and os.uname().machine in ARCHITECTURES


@functools.cache
def compile_filter(machine: str, tcp_only: bool) -> bytes:
    """The filter as an array of `struct sock_filter`.

    With `tcp_only`, sockets are for TCP alone: Landlock, which decides about TCP, does not look at
    UDP, at Multipath TCP or at Unix sockets with a name.
    """
    program: list[Instruction] = [(LOAD, 0, 0, ARCHITECTURE_OFFSET)]
    for architecture in ARCHITECTURES[machine]:
        section = _filter_calls(architecture, tcp_only)
        program += [(JUMP_EQUAL, 0, len(section), architecture), *section]
    program.append(_refuse(errno.ENOSYS))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _filter_calls(architecture: int, tcp_only: bool) -> list[Instruction]:
    """Decide about a call of one calling convention."""
    answers: list[tuple[CallNumbers, list[Instruction]]] = [
        *((numbers, [_refuse(errno.EPERM)]) for numbers in REFUSED_CALLS.values()),
        *((numbers, [_refuse(errno.ENOSYS)]) for numbers in ABSENT_CALLS.values()),
        (CLONE, _refuse_user_namespace()),
        (UNSHARE, _refuse_user_namespace()),
        (IOCTL, _refuse_terminal_input()),
        (SOCKET, _refuse_families(tcp_only)),
        (SOCKETPAIR, _refuse_families(tcp_only=False)),
    ]
    section: list[Instruction] = [(LOAD, 0, 0, NUMBER_OFFSET)]
    if architecture == AUDIT_X86_64:
        section += [(JUMP_AT_LEAST, 0, 1, X32_CALLS), _refuse(errno.ENOSYS)]
    column = (AUDIT_X86_64, AUDIT_I386, AUDIT_AARCH64).index(architecture)
    rules = [
        (number, answer) for numbers, answer in answers if (number := numbers[column]) is not None
    ]
    return [*section, *_find_rule(sorted(rules))]


def _find_rule(rules: Sequence[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """By halving: the kernel tries every call number when a filter is installed."""
    if len(rules) > MAX_LINEAR_RULES:
        middle = len(rules) // 2
        lower, upper = _find_rule(rules[:middle]), _find_rule(rules[middle:])
        return [(JUMP_AT_LEAST, len(lower), 0, rules[middle][0]), *lower, *upper]
    instructions: list[Instruction] = []
    for number, answer in rules:
        instructions += [(JUMP_EQUAL, 0, len(answer), number), *answer]
    return [*instructions, (RETURN, 0, 0, ALLOW)]


def _refuse_user_namespace() -> list[Instruction]:
    return [
        _load_argument(0),
        (JUMP_ANY_BIT, 0, 1, CLONE_NEWUSER),
        _refuse(errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]


def _refuse_terminal_input() -> list[Instruction]:
    """Typing into a terminal for its user."""
    return [
        _load_argument(1),
        (JUMP_EQUAL, 1, 0, TIOCSTI),
        (JUMP_EQUAL, 0, 1, TIOCLINUX),
        _refuse(errno.EPERM),
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
    """The lower half of an argument: the kernel ignores the upper half of those looked at here."""
    return (LOAD, 0, 0, ARGUMENTS_OFFSET + 8 * position)


def _refuse(number: int) -> Instruction:
    return (RETURN, 0, 0, REFUSE | number)
