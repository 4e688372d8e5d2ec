"""What a sandboxed command asks the kernel for and does not get, really tried on every step."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest
from test_sandbox_escape import TIERS, at_tier

from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox import machine_view, sandbox_ladder
from closeloop.sandbox.machine_view import describe_sandbox_limits
from closeloop.sandbox.workspaces import WorkspacePool
from patience import PATIENCE

ADD_KEY, KEYCTL = (248, 250) if platform.machine() == "x86_64" else (217, 219)
SESSION_KEYRING, UNLINK, SEARCH = -3, 9, 10
MULTIPATH_TCP = 262
TOOLS = """
import ctypes, errno, json, mmap, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def attempt(number, *arguments):
    "The name of the error, or what the call returned."
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(prepare, arguments))
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]
def prepare(argument):
    return ctypes.c_long(argument) if isinstance(argument, int) else argument
def raised(act):
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno]
class Piece(ctypes.Structure):
    _fields_ = [('address', ctypes.c_void_p), ('size', ctypes.c_size_t)]
ptrace, readv = (101, 310) if os.uname().machine == 'x86_64' else (117, 270)
def trace(process):
    return attempt(ptrace, 16, process, 0, 0)
def read_memory(process, address, size):
    seen = ctypes.create_string_buffer(size)
    here, there = Piece(ctypes.addressof(seen), size), Piece(address, size)
    got = attempt(readv, process, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return seen.raw.decode() if got == size else got
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=TIERS)
def workspaces(request: pytest.FixtureRequest, cache: Path) -> Iterator[WorkspacePool]:
    opened = at_tier(request.param, cache)
    yield opened
    opened.close()


def run_probe(workspaces: WorkspacePool, code: str) -> object:
    """What a Python program prints as JSON in a new, empty workspace."""

    async def main() -> str:
        async with workspaces.open(None, Limits(command_seconds=PATIENCE)) as workspace:
            await workspace.sandbox.write("probe.py", f"{TOOLS}\n{code}".encode())
            return (await workspace.sandbox.run([sys.executable, "probe.py"])).output

    output = anyio.run(main)
    try:
        return json.loads(output)
    except ValueError:
        pytest.fail(output)


def demand_filter(workspaces: WorkspacePool) -> None:
    if not workspaces.sandbox_limits.system_calls:
        pytest.skip(f"NOT ENFORCED HERE: {workspaces.sandbox_limits.note}")


def numbers_here(calls: dict[str, sandbox_ladder.CallNumbers]) -> dict[str, int]:
    numbers = {name: getattr(each, platform.machine()) for name, each in calls.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def test_calls_that_commands_do_not_need_are_refused(workspaces: WorkspacePool) -> None:
    demand_filter(workspaces)
    refused, absent = (
        numbers_here(sandbox_ladder.REFUSED_CALLS),
        numbers_here(sandbox_ladder.ABSENT_CALLS),
    )
    answers = run_probe(
        workspaces,
        f"calls = {refused | absent}\n"
        "print(json.dumps({name: attempt(call, 0, 0, 0, 0, 0) for name, call in calls.items()}))",
    )
    assert answers == dict.fromkeys(refused, "EPERM") | dict.fromkeys(absent, "ENOSYS")


KERNEL_HEADERS = Path("/usr/include/asm-generic/unistd.h")
DANGEROUS = {
    "EPERM": "add_key request_key keyctl bpf userfaultfd perf_event_open mount umount2 pivot_root"
    " open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr kexec_load kexec_file_load"
    " init_module finit_module delete_module swapon swapoff reboot acct quotactl"
    " open_by_handle_at syslog",
    "ENOSYS": "io_uring_setup io_uring_enter io_uring_register clone3",
}


def test_every_dangerous_call_is_on_the_lists() -> None:
    listed = {"EPERM": sandbox_ladder.REFUSED_CALLS, "ENOSYS": sandbox_ladder.ABSENT_CALLS}
    for answer, names in DANGEROUS.items():
        assert set(names.split()) - set(listed[answer]) == set()
    if not KERNEL_HEADERS.exists():
        pytest.skip("NOT TESTED HERE: the numbers, as the kernel's headers are not installed")
    generic = dict(re.findall(r"#define __NR3?2?6?4?_?(\w+) (\d+)", KERNEL_HEADERS.read_text()))
    for calls in listed.values():
        for name, numbers in calls.items():
            if numbers.aarch64 is not None and name in generic:
                assert numbers.aarch64 == int(generic[name]), name


def test_sockets_are_of_the_usual_families_only(workspaces: WorkspacePool) -> None:
    demand_filter(workspaces)
    usual = [socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_UNIX]
    answers = run_probe(
        workspaces,
        f"usual = {[int(family) for family in usual]}\n"
        "types = {family: 3 if family == 16 else 1 for family in range(1, 46)}\n"
        "act = lambda family: socket.socket(family, types[family]).close()\n"
        "answers = {family: raised(lambda: act(family)) for family in types}\n"
        "print(json.dumps([[answers.pop(each) for each in usual], sorted(set(answers.values()))]))",
    )
    unix = None if workspaces.sandbox.isolated else "EACCES"
    assert answers == [[None, None, None, unix], ["EAFNOSUPPORT"]]


def test_no_user_namespaces_are_made_inside(workspaces: WorkspacePool) -> None:
    demand_filter(workspaces)
    machine = platform.machine()
    calls = [getattr(sandbox_ladder.UNSHARE, machine), getattr(sandbox_ladder.CLONE, machine)]
    flags = sandbox_ladder.CLONE_NEWUSER | 17
    answers = run_probe(
        workspaces, f"print(json.dumps([attempt(call, {flags}, 0) for call in {calls}]))"
    )
    assert answers == ["EPERM", "EPERM"]


def test_nobody_types_into_a_terminal(workspaces: WorkspacePool) -> None:
    demand_filter(workspaces)
    answers = run_probe(
        workspaces,
        "import fcntl\n"
        "act = lambda request: fcntl.ioctl(0, request, b'x')\n"
        f"requests = {[sandbox_ladder.TIOCSTI, sandbox_ladder.TIOCLINUX]}\n"
        "print(json.dumps([raised(lambda: act(request)) for request in requests]))",
    )
    assert answers == ["EPERM", "EPERM"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT TESTED HERE: no 32-bit calls")
def test_32_bit_calls_are_filtered_as_well(workspaces: WorkspacePool) -> None:
    demand_filter(workspaces)
    # push rbx; mov eax, edi; mov ebx, esi; xor ecx, ecx; int 0x80; pop rbx; ret
    answers = run_probe(
        workspaces,
        "code = mmap.mmap(-1, 4096, prot=7)\n"
        "code.write(bytes.fromhex('53 89f8 89f3 31c9 cd80 5b c3'))\n"
        "kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)\n"
        "old = kind(ctypes.addressof(ctypes.c_char.from_buffer(code)))\n"
        "print(json.dumps([old(20, 0), os.getpid(), old(288, 0), old(310, 1 << 28), old(102, 1),\n"
        "                  old(359, 40), attempt(0x40000000 + 39)]))",
    )
    assert isinstance(answers, list)
    if answers[0] == -errno.ENOSYS:
        pytest.skip("NOT TESTED HERE: this kernel runs no 32-bit programs")
    own_id, same_id, *refusals = answers
    assert own_id == same_id
    keyctl, unshare, socketcall, vsock, x32 = refusals
    assert (keyctl, unshare, socketcall) == (-errno.EPERM, -errno.EPERM, -errno.ENOSYS)
    assert (vsock, x32) == (-errno.EAFNOSUPPORT, "ENOSYS")


def test_threads_processes_and_debuggers_of_ones_own_work(workspaces: WorkspacePool) -> None:
    answers = run_probe(
        workspaces,
        "import subprocess, threading, time\n"
        "thread = threading.Thread(target=os.getpid); thread.start(); thread.join()\n"
        "secret = ctypes.create_string_buffer(b'own')\n"
        "child = os.fork() or time.sleep(60)\n"
        "answers = [trace(child), read_memory(child, ctypes.addressof(secret), 3)]\n"
        "os.kill(child, 9)\n"
        "print(json.dumps([*answers, subprocess.call(['true'])]))",
    )
    assert answers == [0, "own", 0]


def test_strace_follows_a_command(workspaces: WorkspacePool) -> None:
    if shutil.which("strace") is None:
        pytest.skip("NOT TESTED HERE: strace is not installed")
    answers = run_probe(
        workspaces,
        "import subprocess\n"
        "run = subprocess.run(['strace', '-f', 'true'], capture_output=True, text=True)\n"
        "print(json.dumps('exited with 0' in run.stderr))",
    )
    assert answers is True


def test_no_process_outside_is_traced_or_read(workspaces: WorkspacePool) -> None:
    content = ctypes.create_string_buffer(b"SECRET")
    with subprocess.Popen(["sleep", "60"]) as outside:
        answers = run_probe(
            workspaces,
            f"answers = [trace({outside.pid})]\n"
            f"answers += [read_memory({os.getpid()}, {ctypes.addressof(content)}, 6)]\n"
            "print(json.dumps(answers))",
        )
        outside.kill()
    assert isinstance(answers, list)
    assert set(answers) <= {"EPERM", "ESRCH"}


@contextlib.contextmanager
def key_in_session() -> Iterator[str]:
    """A key of ours that every program finds which inherits our session keyring."""
    libc = ctypes.CDLL(None, use_errno=True)
    name = f"closeloop-test-{os.getpid()}-{threading.get_ident()}"
    key = libc.syscall(ADD_KEY, b"user", name.encode(), b"SECRET", 6, SESSION_KEYRING)
    if key < 0:
        pytest.skip(f"NOT TESTED HERE: no session keyring: {os.strerror(ctypes.get_errno())}")
    try:
        yield name
    finally:
        libc.syscall(KEYCTL, UNLINK, key, SESSION_KEYRING)


def search_for(name: str) -> str:
    return (
        f"found = attempt({KEYCTL}, {SEARCH}, {SESSION_KEYRING}, b'user', b'{name}', 0)\n"
        "print(json.dumps(found))"
    )


def test_the_session_keyring_is_not_the_users(workspaces: WorkspacePool) -> None:
    with key_in_session() as name:
        answers = run_probe(workspaces, search_for(name))
    assert answers == ("EPERM" if workspaces.sandbox_limits.system_calls else "ENOKEY")


def test_without_a_filter_the_session_keyring_is_still_not_the_users(
    workspaces: WorkspacePool,
) -> None:
    workspaces.sandbox = msgspec.structs.replace(workspaces.sandbox, filtered=False)
    with key_in_session() as name:
        answers = run_probe(workspaces, search_for(name))
    assert answers == "ENOKEY"


def test_names_of_keys_are_hidden_where_there_are_namespaces(workspaces: WorkspacePool) -> None:
    if not Path("/proc/keys").exists():
        pytest.skip("NOT TESTED HERE: this kernel has no keyrings")
    answers = run_probe(
        workspaces, "print(json.dumps(raised(lambda: len(open('/proc/keys').read()))))"
    )
    if workspaces.sandbox.isolated:
        assert answers in (0, "EACCES")
    else:
        assert "names of keys" in workspaces.sandbox_limits.note


def test_neither_udp_nor_multipath_tcp_leads_out(workspaces: WorkspacePool) -> None:
    demand_filter(workspaces)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(("127.0.0.1", 0))
        datagrams.settimeout(0.1)
        server.settimeout(0.1)
        answers = run_probe(
            workspaces,
            f"sent = raised(lambda: socket.socket(2, 2).sendto(b'x', {datagrams.getsockname()}))\n"
            f"made = lambda: socket.socket(2, 1, {MULTIPATH_TCP})\n"
            f"joined = raised(lambda: made().connect({server.getsockname()}))\n"
            "print(json.dumps([sent, joined]))",
        )
        with pytest.raises(TimeoutError):
            datagrams.recv(10)
        with pytest.raises(TimeoutError):
            server.accept()
    if not workspaces.sandbox.isolated:
        assert answers == ["EACCES", "EACCES"]


@pytest.mark.parametrize("tier", TIERS)
def test_sockets_of_others_below_readable_paths_are_closed(
    tier: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "file").write_text("readable")
    (tmp_path / "link").symlink_to(tmp_path / "shown")
    monkeypatch.chdir(tmp_path / "shown")
    names = ["relative", "early", "late"]
    with contextlib.ExitStack() as opened:
        relative, early, late = (opened.enter_context(socket.socket(socket.AF_UNIX)) for _ in names)
        relative.bind("relative")
        early.bind(str(tmp_path / "shown" / "early"))
        workspaces = at_tier(tier, cache, SandboxSettings(read=(str(tmp_path / "link"),)))
        opened.callback(workspaces.close)
        late.bind(str(tmp_path / "shown" / "late"))
        for each in (relative, early, late):
            each.listen()
        answers = run_probe(
            workspaces,
            f"folder = {str(tmp_path / 'link')!r}\n"
            "join = lambda name: socket.socket(1).connect(f'{folder}/{name}')\n"
            f"joined = [raised(lambda: join(name)) for name in {names}]\n"
            "print(json.dumps([open(f'{folder}/file').read(), joined]))",
        )
    if workspaces.sandbox.isolated:
        assert answers == ["readable", ["ECONNREFUSED"] * 3]
    else:
        closed = workspaces.sandbox_limits.system_calls
        assert answers == ["readable", ["EACCES" if closed else None] * 3]
        assert closed is ("named Unix sockets" not in workspaces.sandbox_limits.note)


def test_sockets_are_closed_below_the_folders_of_the_system_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_view, "SYSTEM_FOLDERS", (str(tmp_path),))
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        view = machine_view.inspect_machine(SandboxSettings())
        assert str(tmp_path / "socket") in machine_view.foreign_sockets(view)


def test_command_lines_of_others_are_read_only_where_the_note_says_so(
    workspaces: WorkspacePool,
) -> None:
    with subprocess.Popen(["sleep", "61.25"]) as outside:
        answers = run_probe(
            workspaces,
            "folders = [name for name in os.listdir('/proc') if name.isdigit()]\n"
            "lines = [raised(lambda: open(f'/proc/{name}/cmdline').read()) for name in folders]\n"
            "print(json.dumps(any('61.25' in line for line in lines)))",
        )
        outside.kill()
    assert answers is ("command lines" in workspaces.sandbox_limits.note)
    assert answers is not workspaces.sandbox.isolated


def test_shared_memory_is_reached_only_where_the_note_says_so(workspaces: WorkspacePool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x434C0000 | os.getpid() & 0xFFFF
    segment = libc.shmget(key, 4096, 0o1600)
    if segment < 0:
        pytest.skip(f"NOT TESTED HERE: {os.strerror(ctypes.get_errno())}")
    try:
        answers = run_probe(workspaces, f"print(json.dumps(libc.shmget({key}, 4096, 0) >= 0))")
    finally:
        libc.shmctl(segment, 0, None)
    assert answers is ("System V shared memory" in workspaces.sandbox_limits.note)
    assert answers is (
        not workspaces.sandbox.isolated and not workspaces.sandbox_limits.system_calls
    )


def test_nothing_with_a_name_is_left_for_the_next_command(workspaces: WorkspacePool) -> None:
    """Else one room of a grade could tell the next what it has seen."""
    demand_filter(workspaces)
    code = (
        "made = [libc.shmget(0x434C1234, 4096, 0o1600), libc.semget(0x434C1234, 1, 0o1600),\n"
        "        libc.msgget(0x434C1234, 0o1600), libc.mq_open(b'/closeloop', 0o102, 0o600, 0)]\n"
        "print(json.dumps([number >= 0 for number in made]))"
    )
    try:
        made = run_probe(workspaces, code)
        found = run_probe(workspaces, code.replace("0o1600", "0").replace("0o102", "2"))
    finally:
        remove = "ipcrm -M 0x434C1234 -S 0x434C1234 -Q 0x434C1234"
        subprocess.run(remove.split(), check=False, capture_output=True)
    assert isinstance(made, list)
    assert made[:3] == [workspaces.sandbox.isolated] * 3
    assert workspaces.sandbox.isolated or not made[3]
    assert found == [False] * 4


def test_shared_memory_that_is_not_counted_is_small(workspaces: WorkspacePool) -> None:
    demand_filter(workspaces)
    most = sandbox_ladder.MAX_SEGMENT_BYTES
    sizes = [most, most + 1, 1 << 33]
    answers = run_probe(
        workspaces,
        "libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]\n"
        f"print(json.dumps([libc.shmget(0, size, 0o1600) >= 0 for size in {sizes}]))",
    )
    assert answers == [workspaces.sandbox.isolated, False, False]


WITHOUT_SECCOMP = """
import ctypes, errno, struct, sys
from pathlib import Path
import anyio
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox import sandbox_ladder as seccomp
from closeloop.sandbox.machine_view import describe_sandbox_limits
from closeloop.sandbox.workspaces import WorkspacePool

refuse = seccomp.REFUSE | errno.EINVAL
program = [
    (seccomp.LOAD, 0, 0, 0), (seccomp.JUMP_EQUAL, 0, 3, {prctl}),
    (seccomp.LOAD, 0, 0, 16), (seccomp.JUMP_EQUAL, 0, 1, 22),
    (seccomp.RETURN, 0, 0, refuse), (seccomp.RETURN, 0, 0, seccomp.ALLOW),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
assert libc.prctl(22, 2, header, 0, 0) == 0

async def main():
    async with WorkspacePool(Path(sys.argv[1]), SandboxSettings()) as workspaces:
        async with workspaces.open(None, Limits()) as workspace:
            print((await workspace.sandbox.run("echo ran")).output, end="")
            print(describe_sandbox_limits(workspaces.sandbox_limits))

anyio.run(main)
"""


def test_where_the_kernel_has_no_seccomp_commands_run_and_the_note_says_so(tmp_path: Path) -> None:
    prctl = 157 if platform.machine() == "x86_64" else 167
    script = WITHOUT_SECCOMP.replace("{prctl}", str(prctl))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    if "No sandbox works here" in done.stderr:
        pytest.skip("NOT TESTED HERE: no sandbox works on this machine")
    output, description = done.stdout.splitlines()
    assert output == "ran"
    assert "system calls" not in description.partition(":")[0]
    assert "This kernel does not filter system calls" in description


def test_the_description_says_what_is_enforced(workspaces: WorkspacePool) -> None:
    described = describe_sandbox_limits(workspaces.sandbox_limits)
    kind, _, enforced = described.partition(":")[0].partition(" (")
    assert kind == workspaces.sandbox_limits.kind
    assert "files" in enforced
    assert ("system calls" in enforced) is workspaces.sandbox_limits.system_calls


def decide(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would make of a call: its rules, in a dozen lines."""
    data = [number & 0xFFFFFFFF, architecture, 0, 0]
    for argument in [*arguments, *[0] * (6 - len(arguments))]:
        data += [argument & 0xFFFFFFFF, argument >> 32]
    codes = [struct.unpack_from("HBBI", program, at) for at in range(0, len(program), 8)]
    place, accumulator = 0, 0
    while True:
        code, if_true, if_false, operand = codes[place]
        place += 1
        if code == sandbox_ladder.RETURN:
            return operand & 0xFFFF if operand != sandbox_ladder.ALLOW else 0
        if code == sandbox_ladder.LOAD:
            accumulator = data[operand // 4]
        elif code == sandbox_ladder.AND:
            accumulator &= operand
        else:
            holds = {
                sandbox_ladder.JUMP_EQUAL: accumulator == operand,
                sandbox_ladder.JUMP_AT_LEAST: accumulator >= operand,
                sandbox_ladder.JUMP_ANY_BIT: bool(accumulator & operand),
            }[code]
            place += if_true if holds else if_false


CONVENTIONS = [
    ("x86_64", "x86_64", sandbox_ladder.AUDIT_X86_64),
    ("x86_64", "i386", sandbox_ladder.AUDIT_I386),
    ("aarch64", "aarch64", sandbox_ladder.AUDIT_AARCH64),
]


@pytest.mark.parametrize(("machine", "convention", "audit"), CONVENTIONS)
@pytest.mark.parametrize("tcp_only", [False, True])
@pytest.mark.parametrize("isolated", [False, True])
def test_every_call_of_a_machine_gets_the_right_answer(
    machine: str, convention: str, audit: int, tcp_only: bool, isolated: bool
) -> None:
    program = sandbox_ladder.compile_filter(machine, tcp_only, isolated)
    assert len(program) < 4096, "it is handed over in a pipe"

    def ask(calls: sandbox_ladder.CallNumbers, *arguments: int) -> int:
        return decide(program, audit, getattr(calls, convention), *arguments)

    expected = {
        getattr(numbers, convention): answer
        for calls, answer in (
            (sandbox_ladder.REFUSED_CALLS, errno.EPERM),
            (sandbox_ladder.ABSENT_CALLS, errno.ENOSYS),
            (sandbox_ladder.SHARED_CALLS, 0 if isolated else errno.ENOSYS),
            ({"shmget": sandbox_ladder.SHMGET}, 0 if isolated else errno.ENOSYS),
        )
        for numbers in calls.values()
    }
    with_arguments = {
        getattr(call, convention) for call in (sandbox_ladder.SOCKET, sandbox_ladder.SOCKETPAIR)
    }
    for number in set(range(512)) - with_arguments:
        assert decide(program, audit, number) == expected.get(number, 0), number
    thread = 0x3D0F00
    for call in (sandbox_ladder.CLONE, sandbox_ladder.UNSHARE):
        assert [ask(call, thread), ask(call, thread | sandbox_ladder.CLONE_NEWUSER)] == [
            0,
            errno.EPERM,
        ]
    for request, answer in ((0x5401, 0), (0x5412, errno.EPERM), (1 << 32 | 0x541C, errno.EPERM)):
        assert ask(sandbox_ladder.IOCTL, 0, request) == answer
    refused = errno.EACCES if tcp_only else 0
    for family in (socket.AF_INET, socket.AF_INET6):
        close_on_exec = 0x80000
        assert ask(sandbox_ladder.SOCKET, family, close_on_exec | 1, 0) == 0
        assert ask(sandbox_ladder.SOCKET, family, 1, socket.IPPROTO_TCP) == 0
        assert ask(sandbox_ladder.SOCKET, family, 1, MULTIPATH_TCP) == refused
        assert ask(sandbox_ladder.SOCKET, family, close_on_exec | 2, 0) == refused
    assert ask(sandbox_ladder.SOCKET, socket.AF_UNIX, 1) == refused
    assert ask(sandbox_ladder.SOCKETPAIR, socket.AF_UNIX, 1) == 0
    for call in (sandbox_ladder.SOCKET, sandbox_ladder.SOCKETPAIR):
        assert ask(call, socket.AF_NETLINK, 3) == 0
        assert ask(call, 40, 1) == errno.EAFNOSUPPORT


def test_calling_conventions_that_are_not_understood_have_no_calls() -> None:
    arm, x32_getpid = 0x40000028, 0x40000000 + 39
    assert decide(sandbox_ladder.compile_filter("aarch64", False, True), arm, 20) == errno.ENOSYS
    program = sandbox_ladder.compile_filter("x86_64", False, True)
    assert decide(program, sandbox_ladder.AUDIT_AARCH64, 172) == errno.ENOSYS
    assert decide(program, sandbox_ladder.AUDIT_X86_64, x32_getpid) == errno.ENOSYS
