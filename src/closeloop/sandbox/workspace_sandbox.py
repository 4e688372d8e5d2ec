"""A workspace seen from inside its sandbox."""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import posixpath
import secrets
import stat
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path

import anyio
import msgspec

from closeloop.records.errors import MachineFailed
from closeloop.records.protocols import ProcessResult
from closeloop.records.task import Limits
from closeloop.sandbox.machine_view import (
    FORWARDER_PATH,
    SandboxBackend,
    SandboxPort,
    SharedFolder,
    WorkspaceLayout,
    describe_sandbox_limits,
    map_port_sockets,
    real_paths,
    visible_paths,
)
from closeloop.sandbox.program_execution import (
    CommandOutput,
    DiskLimit,
    Program,
    ProgramLimits,
    ProgramResult,
    StandingSandbox,
    Watcher,
    execute_program,
)
from closeloop.sandbox.sandbox_ladder import (
    build_call_filter,
    build_command_environment,
    specify_standing_sandbox,
    wrap_with_bwrap,
    wrap_with_landlock,
)

MAX_READ_BYTES = 16 << 20
FILE_SECONDS = 60.0
COMMAND_MARK = "CLOSELOOP_COMMAND"
PR_SET_CHILD_SUBREAPER = 36

# Run inside the sandbox, so that paths and links resolve there.
READ_SCRIPT = """
[ -e "$1" ] || exit 2; [ ! -d "$1" ] || exit 21; [ -f "$1" ] || exit 22; [ -r "$1" ] || exit 13
exec head -c "$2" -- "$1"
"""
READ_ALL_SCRIPT = """
mark=$1 limit=$2; shift 2
for file; do
    printf %s "$mark"
    [ -f "$file" ] && [ -r "$file" ] && printf 1 && head -c "$limit" -- "$file"
done
"""
ERRNO_BY_EXIT = {2: errno.ENOENT, 13: errno.EACCES, 21: errno.EISDIR, 22: errno.EINVAL}
WRITE_SCRIPT = """
[ ! -d "$1" ] || exit 21; [ ! -e "$1" ] || [ -f "$1" ] || exit 22
mkdir -p -- "$2" || exit 13
cat > "$1" || exit 13
"""


class WorkspaceSandbox:
    """Runs commands in a workspace, each in a new sandbox or in a standing one."""

    def __init__(
        self,
        sandbox: SandboxBackend,
        layout: WorkspaceLayout,
        limits: Limits,
        disk: DiskLimit | None,
        refused: Mapping[str, int] | None = None,
    ) -> None:
        self.refused: Mapping[str, int] = {} if refused is None else refused
        """Hosts that were refused to commands, with counts."""
        self.sandbox = sandbox
        self.place = layout
        self._visible_paths = visible_paths(sandbox, layout)
        self._limits = limits
        self._disk = disk
        self.standing: StandingSandbox | None = None
        """Where commands run one after the other; otherwise each gets a new sandbox."""
        self._kinds_used: set[str] = set()
        self._workspace_sandboxes: list[StandingSandbox] = []
        """Those of the same workspace, closed before another one is created."""
        # An overlay may be mounted only once at a time.
        self._turn: AbstractAsyncContextManager[None] = (
            anyio.Lock() if layout.lower else nullcontext()
        )

    @property
    def root(self) -> str:
        return self._visible_paths[0]

    @property
    def home(self) -> str:
        """Path of the home folder as commands see it."""
        return self._visible_paths[1]

    def with_shares_only(
        self, shares: tuple[SharedFolder, ...], limits: Limits
    ) -> WorkspaceSandbox:
        """Return another sandbox around the same workspace with some of our folders."""
        layout = msgspec.structs.replace(self.place, shares=shares)
        sibling = type(self)(self.sandbox, layout, limits, None)
        return self._share_turn(sibling)

    def with_access(
        self, shares: tuple[SharedFolder, ...], ports: tuple[SandboxPort, ...], limits: Limits
    ) -> WorkspaceSandbox:
        """Return another sandbox around the same workspace with more shares and ports."""
        layout = msgspec.structs.replace(
            self.place, shares=self.place.shares + shares, ports=self.place.ports + ports
        )
        sibling = type(self)(self.sandbox, layout, limits, self._disk, self.refused)
        return self._share_turn(sibling)

    def as_read_only(self) -> WorkspaceSandbox:
        """Return another sandbox around the same workspace without write access."""
        layout = msgspec.structs.replace(self.place, frozen=True)
        sibling = type(self)(self.sandbox, layout, self._limits, self._disk)
        return self._share_turn(sibling)

    def with_network(self, limits: Limits) -> WorkspaceSandbox:
        """Return another sandbox around the same workspace with network access."""
        layout = msgspec.structs.replace(self.place, network=True, ports=(), env={})
        sibling = type(self)(self.sandbox, layout, limits, None)
        return self._share_turn(sibling)

    def _share_turn(self, sibling: WorkspaceSandbox) -> WorkspaceSandbox:
        sibling._turn = self._turn
        sibling._workspace_sandboxes = self._workspace_sandboxes
        sibling._kinds_used = self._kinds_used
        return sibling

    def open_standing(self) -> None:
        """From now on run commands one after the other in one sandbox, where the kind allows it.

        Its first process must be ours, in a process namespace: so our own launcher makes it, also
        where bubblewrap makes those of single commands. Where that is not allowed, and without
        namespaces, each command gets a sandbox of its own.
        """
        if self.sandbox.wrap in (wrap_with_bwrap, wrap_with_landlock):
            self.standing = StandingSandbox(
                lambda: specify_standing_sandbox(self.sandbox, self.place, self._limits)
            )
            self._workspace_sandboxes.append(self.standing)

    def describe(self) -> str:
        """Which kinds of sandbox its commands ran in, and what those enforce."""
        sandbox_limits = self.sandbox.sandbox_limits
        kinds = " and ".join(sorted(self._kinds_used)) or sandbox_limits.kind
        return describe_sandbox_limits(msgspec.structs.replace(sandbox_limits, kind=kinds))

    @property
    def has_standing(self) -> bool:
        """Whether this workspace ever had a standing sandbox."""
        return bool(self._workspace_sandboxes)

    async def close_standing(self) -> None:
        """End the standing sandboxes of this workspace with everything in them."""
        for sandbox in self._workspace_sandboxes:
            if sandbox.is_open and not sandbox.is_busy:
                await anyio.to_thread.run_sync(sandbox.close)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        seconds: float | None = None,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ProcessResult:
        """Run a program, or a shell line, until it and its children end."""
        result = await self.execute_command(command, seconds=seconds, stdin=stdin, env=env)
        return ProcessResult(
            exit_code=result.exit_code,
            output=result.output.text,
            seconds=result.seconds,
            stopped=result.stopped,
            dropped_bytes=result.output.dropped_bytes,
        )

    async def execute_command(
        self,
        command: str | Sequence[str],
        *,
        seconds: float | None = None,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        keep: int | None = None,
        watcher: Watcher | None = None,
    ) -> ProgramResult:
        """Like run, in bytes; with `keep`, that much of the output, with errors separately."""
        argv = [self.sandbox.view.shell, "-c", command] if isinstance(command, str) else command
        if self.place.ports and self.sandbox.isolated:
            ports = json.dumps(map_port_sockets(self.place))
            argv = [sys.executable, "-I", "-S", FORWARDER_PATH, ports, *argv]
        program = self._build_program(
            argv, build_command_environment(self.sandbox, self.place, env)
        )
        program_limits = ProgramLimits(
            seconds=self._limits.command_seconds if seconds is None else seconds,
            idle_seconds=self._limits.idle_seconds,
            processes=self._limits.processes,
            memory_bytes=self._limits.memory_bytes,
            output_bytes=self._limits.output_bytes if keep is None else 2 * keep,
        )
        if (encoding_fault := _find_encoding_fault(argv)) is not None:
            return _build_unstarted_result(encoding_fault)
        async with self._turn:
            for is_last in (False, True):
                try:
                    async with self._choose_sandbox(is_retry=is_last) as standing_sandbox:
                        result = await execute_program(
                            msgspec.structs.replace(program, standing=standing_sandbox),
                            program_limits,
                            stdin=stdin,
                            disk=self._disk,
                            separate_errors=keep is not None,
                            watcher=watcher,
                        )
                except ConnectionError:  # the standing sandbox ended before it accepted the command
                    self._reopen_folders()
                    continue
                except OSError as error:
                    return self._handle_start_error(error)
                code = self._read_exit_code(result)
                if code is not None or result.stopped:
                    self._kinds_used.add(
                        "landlock" if standing_sandbox else self.sandbox.sandbox_limits.kind
                    )
                    break
                if is_last:
                    message = result.errors.text.strip()[-500:] or result.sandbox_report.decode(
                        errors="replace"
                    )
                    raise MachineFailed(f"The sandbox could not run a command: {message}")
                self._reopen_folders()
        return msgspec.structs.replace(result, exit_code=None if result.stopped else code)

    @asynccontextmanager
    async def _choose_sandbox(self, is_retry: bool) -> AsyncIterator[StandingSandbox | None]:
        """Return the standing sandbox, unless it is busy or failed; no other overlay is mounted."""
        standing_sandbox = self.standing
        if is_retry:
            standing_sandbox = self.standing = None  # it cannot be created here
        if standing_sandbox is None or standing_sandbox.is_busy:
            await self.close_standing()
            yield None
            return
        standing_sandbox.is_busy = True
        try:
            yield standing_sandbox
        finally:
            standing_sandbox.is_busy = False

    async def read(self, path: str, limit: int = MAX_READ_BYTES) -> bytes:
        """Return a file's content; OSError if it cannot be read or exceeds the limit."""
        full_path = posixpath.join(self.root, path)
        argv = ["/bin/sh", "-c", READ_SCRIPT, "sh", full_path, str(limit + 1)]
        result = await self.execute_command(argv, seconds=FILE_SECONDS, keep=limit + 1)
        _raise_for_exit(result, path)
        return _require_within_limit(result.output.content, limit, path)

    async def read_all(
        self, paths: Sequence[str], limit: int = MAX_READ_BYTES
    ) -> list[bytes | None]:
        """Read files by one command; None for one that cannot be read or is over the limit."""
        if not paths:
            return []
        separator = secrets.token_hex(16)  # generated only now: no file contains it
        full_paths = [posixpath.join(self.root, path) for path in paths]
        argv = ["/bin/sh", "-c", READ_ALL_SCRIPT, "sh", separator, str(limit + 1), *full_paths]
        result = await self.execute_command(argv, seconds=FILE_SECONDS, keep=2 * limit)
        parts = result.output.content.split(separator.encode())[1:]
        if len(parts) != len(paths) or result.output.dropped_bytes:
            return [await self._read_if_possible(path, limit) for path in paths]
        return [part[1:] if 0 < len(part) <= limit + 1 else None for part in parts]

    async def _read_if_possible(self, path: str, limit: int) -> bytes | None:
        try:
            return await self.read(path, limit)
        except OSError:
            return None

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file and its parent folders; OSError if refused."""
        full_path = posixpath.join(self.root, path)
        argv = ["/bin/sh", "-c", WRITE_SCRIPT, "sh", full_path, posixpath.dirname(full_path)]
        result = await self.execute_command(argv, seconds=FILE_SECONDS, stdin=content, keep=1 << 12)
        _raise_for_exit(result, path)

    def has_free_disk(self, bytes_: int) -> bool:
        """Whether the disk of the workspace has that much left, seen from outside."""
        filesystem = os.statvfs(Path(self.place.folder).parent)
        has_bytes = filesystem.f_bavail * filesystem.f_frsize >= bytes_
        return has_bytes and (filesystem.f_favail > 0 or filesystem.f_files == 0)

    def _build_program(self, argv: Sequence[str], env: dict[str, str]) -> Program:
        wrap = self.sandbox.wrap
        assert wrap is not None
        return Program(
            argv=lambda channels: wrap(self.sandbox, self.place, self._limits, argv, channels),
            env=env,
            directory=self.place.folder,
            tree="namespace" if self.sandbox.isolated else "adopted",
            seccomp=build_call_filter(self.sandbox, self.place),
            command=argv,
        )

    def _read_exit_code(self, result: ProgramResult) -> int | None:
        """Return the exit code that the sandbox reports; None if the command never ran."""
        status: dict[str, object] = {}
        for line in result.sandbox_report.decode(errors="replace").splitlines():
            with suppress(ValueError):
                status |= json.loads(line)
        code = status.get("exit-code")
        if isinstance(code, int) and "failed" not in status:
            return code
        return 127 if b"bwrap: execvp " in result.errors.content else None

    def _handle_start_error(self, error: OSError) -> ProgramResult:
        """A command that no machine could start is the agent's fault; other errors are ours."""
        if error.errno != errno.E2BIG:
            raise MachineFailed(f"The sandbox could not be started: {error}.") from error
        return _build_unstarted_result(error)

    def _reopen_folders(self) -> None:
        """Restore access to folders that a command may have closed."""
        for path in real_paths(self.place):
            with suppress(OSError):
                Path(path).chmod(0o755)


class UnconfinedSandbox(WorkspaceSandbox):
    """No sandbox: commands run as the user in the workspace; their leftovers are still killed."""

    _inside: tuple[str, ...] | None = None

    def _build_program(self, argv: Sequence[str], env: dict[str, str]) -> Program:
        _adopt_orphans()
        for path in real_paths(self.place):
            os.makedirs(path, exist_ok=True)  # noqa: PTH103 (a third of the time)
        if not os.access(self.root, os.X_OK):
            self._reopen_folders()
        mark = secrets.token_hex(8)
        return Program(
            argv=lambda _: argv,
            env={**env, COMMAND_MARK: mark},
            directory=self.root,
            mark=f"{COMMAND_MARK}={mark}",
        )

    def _read_exit_code(self, result: ProgramResult) -> int | None:
        return result.exit_code

    def _handle_start_error(self, error: OSError) -> ProgramResult:
        return _build_unstarted_result(error)

    async def read(self, path: str, limit: int = MAX_READ_BYTES) -> bytes:
        """Return a file's content; OSError if it cannot be read or exceeds the limit."""
        handle = self._open_inside(path, os.O_RDONLY)
        with os.fdopen(handle, "rb", buffering=0) as file:
            content = bytearray()
            while len(content) <= limit and (part := file.read(limit + 1 - len(content))):
                content += part
        return _require_within_limit(bytes(content), limit, path)

    async def read_all(
        self, paths: Sequence[str], limit: int = MAX_READ_BYTES
    ) -> list[bytes | None]:
        """Read files; None for one that cannot be read or is over the limit."""
        return [await self._read_if_possible(path, limit) for path in paths]

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file and its parent folders; OSError if refused."""
        try:
            handle = self._open_inside(path, os.O_WRONLY)
        except FileNotFoundError:
            handle = self._create_inside(path)
        with os.fdopen(handle, "wb", buffering=0) as file:
            file.truncate()
            remaining = memoryview(content)
            while remaining:
                remaining = remaining[file.write(remaining) :]

    def _open_inside(self, path: str, flags: int) -> int:
        """Open a regular file that is really inside."""
        full_path = posixpath.join(self.root, path)
        try:
            handle = os.open(full_path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
        except ValueError as error:
            raise OSError(errno.EINVAL, "not a file name", path) from error
        try:
            _refuse_special_file(os.fstat(handle).st_mode, path)
            self._refuse_outside(os.readlink(f"/proc/self/fd/{handle}"), path)  # noqa: PTH115
        except OSError:
            os.close(handle)
            raise
        return handle

    def _create_inside(self, path: str) -> int:
        folder, name = posixpath.split(posixpath.join(self.root, path))
        real_path = os.path.realpath(folder)
        self._refuse_outside(real_path, path)
        os.makedirs(real_path, exist_ok=True)  # noqa: PTH103
        return self._open_inside(f"{real_path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def _refuse_outside(self, real_path: str, path: str) -> None:
        if self._inside is None:
            self._inside = tuple(os.path.realpath(folder) + "/" for folder in self._visible_paths)
        if not (real_path + "/").startswith(self._inside):
            raise PermissionError(errno.EACCES, "outside the workspace", path)


def _refuse_special_file(mode: int, path: str) -> None:
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number), path)


@functools.cache
def _adopt_orphans() -> None:
    """Become the parent of what commands leave behind, to find and kill it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _find_encoding_fault(argv: Sequence[str]) -> ValueError | None:
    """Return what prevents passing a text to a program."""
    try:
        encoded = b"".join(map(os.fsencode, argv))
    except ValueError as error:
        return error
    return ValueError("A command cannot contain a NUL byte.") if b"\0" in encoded else None


def _build_unstarted_result(error: Exception) -> ProgramResult:
    output = CommandOutput(1 << 12)
    output.add_chunk(f"{error}\n".encode(errors="replace"))
    code = 127 if isinstance(error, FileNotFoundError) else 126
    return ProgramResult(
        exit_code=code, output=output, errors=output, sandbox_report=b"", seconds=0.0, stopped=None
    )


def _raise_for_exit(result: ProgramResult, path: str) -> None:
    if result.stopped:
        raise TimeoutError(errno.ETIMEDOUT, result.stopped, path)
    if result.exit_code:
        number = ERRNO_BY_EXIT.get(result.exit_code, errno.EIO)
        raise OSError(number, os.strerror(number), path)


def _require_within_limit(content: bytes, limit: int, path: str) -> bytes:
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
    return content
