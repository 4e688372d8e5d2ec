"""What a sandbox exposes of the machine: the system and toolchains, and a clean environment."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from closeloop.records.errors import BadInput
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.program_execution import Channels

# What a sandbox may reach: our Unix sockets, and the allowed hosts.


BOUND_SOCKETS_FILE = "/proc/net/unix"
MAX_SCANNED_ENTRIES = 200_000


def bind_unix_socket(path: Path) -> socket.socket:
    """A socket at a path, whose folder is made.

    The system takes only a hundred bytes or so for its address: so it is named by way of its
    folder, which is open meanwhile. Who connects sees the folder in a cage, under a short path.
    """
    path.parent.mkdir(mode=0o700, parents=True)
    folder_descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    unix_socket = socket.socket(socket.AF_UNIX)
    try:
        unix_socket.bind(f"/proc/self/fd/{folder_descriptor}/{path.name}")
    except OSError:
        unix_socket.close()
        raise
    finally:
        os.close(folder_descriptor)
    return unix_socket


def list_bound_sockets(folders: Iterable[str]) -> list[str]:
    """Sockets below these folders that are bound now, as far as the kernel knows their paths.

    It knows none that was bound by a relative path, or in another network namespace.
    """
    try:
        with open(BOUND_SOCKETS_FILE, "rb", buffering=0) as sockets_file:  # noqa: PTH123
            content = b"".join(iter(lambda: sockets_file.read(1 << 16), b""))
    except OSError:
        return []
    prefixes = tuple(os.fsencode(folder) + b"/" for folder in folders)
    if not any(b" " + prefix in content for prefix in prefixes):
        return []
    names = (line.split(b" /", 1)[-1] for line in content.splitlines() if b" /" in line)
    paths = (b"/" + name for name in names)
    return [os.fsdecode(path) for path in paths if path.startswith(prefixes) and _is_socket(path)]


def find_sockets(folders: Iterable[str]) -> Iterator[str]:
    """Yield sockets below these folders, whoever bound them, among the first entries."""
    waiting, scanned = list(folders), 0
    while waiting and scanned < MAX_SCANNED_ENTRIES:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                scanned += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_file() and not entry.is_symlink() and _is_socket(entry.path):
                    yield entry.path


def _is_socket(path: str | bytes) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


# The hosts that sandboxes may reach, if any are configured: a proxy that refuses all others.

PROXY_PORT = 8018
"""Loopback port of the proxy inside the sandbox."""
DEFAULT_PORTS = (80, 443)
MAX_HEAD_BYTES = 1 << 14
HEAD_SECONDS, CONNECT_SECONDS = 30.0, 30.0
CHUNK_BYTES = 1 << 16
MAX_REFUSED_NAMES = 1000


class HostAllowlist:
    """A proxy that allows these hosts, and records what it refused."""

    def __init__(self, hosts: Sequence[str], socket: str) -> None:
        self.socket = socket
        self.port = 0
        """On the machine's own loopback."""
        self.refused: dict[str, int] = {}
        self._hosts = [host.lower().rstrip(".") for host in hosts]

    def allows_host(self, host: str, port: int) -> bool:
        name = host.lower().rstrip(".")
        for allowed_host in self._hosts:
            pattern, _, number = allowed_host.partition(":")
            matches_host = name == pattern or (pattern[:2] == "*." and name.endswith(pattern[1:]))
            if matches_host and (port == int(number) if number else port in DEFAULT_PORTS):
                return True
        return False

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection: `CONNECT host:port`, then copy both ways."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            host, _, port = target.rpartition(":")
            number = int(port) if port.isdecimal() and len(port) < 6 else 0
            if method != "CONNECT" or not self.allows_host(host, number):
                self._refuse_target(target, writer)
                return
            async with asyncio.timeout(CONNECT_SECONDS):
                remote = await asyncio.open_connection(host, number)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_carry_stream(reader, remote[1]), _carry_stream(remote[0], writer))
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
        except asyncio.LimitOverrunError:
            writer.write(b"HTTP/1.1 431 Too Large\r\ncontent-length: 0\r\n\r\n")
        finally:
            await _close_writer(writer)

    def _refuse_target(self, target: str, writer: asyncio.StreamWriter) -> None:
        name = target[:200]
        if name in self.refused or len(self.refused) < MAX_REFUSED_NAMES:
            self.refused[name] = self.refused.get(name, 0) + 1
        body = b"closeloop: this host is not in `hosts` under [sandbox], or not asked by CONNECT\n"
        head = f"HTTP/1.1 403 Forbidden\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)


@asynccontextmanager
async def open_allowlist(hosts: Sequence[str], folder: Path) -> AsyncIterator[HostAllowlist]:
    """Open at a socket in a new folder, and on loopback for sandboxes without their own."""
    allowlist = HostAllowlist(hosts, str(folder / "hosts.sock"))
    unix_server = await asyncio.start_unix_server(
        allowlist.serve_connection,
        sock=bind_unix_socket(folder / "hosts.sock"),
        limit=MAX_HEAD_BYTES,
    )
    tcp_server = await asyncio.start_server(
        allowlist.serve_connection, "127.0.0.1", 0, limit=MAX_HEAD_BYTES
    )
    allowlist.port = tcp_server.sockets[0].getsockname()[1]
    try:
        yield allowlist
    finally:
        unix_server.close()
        tcp_server.close()


async def _carry_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


async def _close_writer(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()


SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
ETC_PATTERNS = (
    *(
        "alternatives",
        "ca-certificates",
        "ca-certificates.conf",
        "crypto-policies",
        "debian_version",
    ),
    *("fonts", "gai.conf", "host.conf", "java*", "ld.so.*", "localtime", "lsb-release", "maven"),
    *("mime.types", "openal", "os-release", "pki", "protocols", "services", "shells", "ssl"),
    *("timezone", "xml"),
)
"""Parts of /etc that programs need to start, resolve and verify; never keys or accounts."""
SECRET_PATTERNS = shutil.ignore_patterns("private", "*.key", "entitlement*")
TOOLCHAINS = {
    ".pyenv": "PYENV_ROOT",
    ".rbenv": "RBENV_ROOT",
    ".goenv": "GOENV_ROOT",
    ".asdf": "ASDF_DATA_DIR",
    ".nvm": "NVM_DIR",
    ".volta": "VOLTA_HOME",
    ".rustup": "RUSTUP_HOME",
    ".bun/bin": None,
    ".cargo/bin": None,
    ".deno/bin": None,
    ".local/bin": None,
    ".local/share/fnm": None,
    ".local/share/mise": "MISE_DATA_DIR",
    ".local/share/pipx": None,
    ".local/share/pnpm": None,
    ".local/share/uv": None,
    ".local/share/virtualenvs": None,
    ".sdkman/candidates": "SDKMAN_CANDIDATES_DIR",
    "go/bin": None,
}
"""Program folders under the home, without credentials → the variable that names them."""
ETC_FILES = {
    "passwd": "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost agent\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
}
FIXED_VARIABLES = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "agent",
    "GIT_AUTHOR_EMAIL": "agent@localhost",
    "GIT_COMMITTER_NAME": "agent",
    "GIT_COMMITTER_EMAIL": "agent@localhost",
}


_PACKAGE_VARIABLE = re.compile(
    r"(https?|no|all)_proxy|(pip|uv|npm_config|yarn|cargo|poetry)_\w+|go(proxy|nosumdb|sumdb|flags)"
    r"|ssl_cert_(file|dir)|(requests|curl)_ca_bundle|node_extra_ca_certs|git_ssl_cainfo",
    re.IGNORECASE,
)


_HOST_PATTERN = re.compile(r"(\*\.)?[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:[0-9]{1,5})?")


def package_environment() -> dict[str, str]:
    """Return proxies, indexes and certificates for package installation. For setup only."""
    return {name: value for name, value in os.environ.items() if _PACKAGE_VARIABLE.fullmatch(name)}


class MachineView(Record):
    """The same for every sandbox of a process."""

    readable: tuple[str, ...]
    """Folders and files exposed read-only in place, none inside another."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links of the root folder: link, target."""
    sockets: tuple[str, ...]
    """Sockets found below the paths in `read`."""
    etc: tuple[str, ...]
    """Readable parts of /etc if there is no private one."""
    env: dict[str, str]
    shell: str


def inspect_machine(settings: SandboxSettings) -> MachineView:
    """Find which of the usual paths this machine has, and what PATH may name."""
    home = Path.home()
    system = [path for path in SYSTEM_FOLDERS if Path(path).is_dir()]
    links = tuple((path, str(Path(path).readlink())) for path in system if Path(path).is_symlink())
    extra_paths = [Path(path).expanduser() for path in settings.read]
    for path in extra_paths:
        if not path.exists():
            raise BadInput(f"Remove {path} from `read` under [sandbox]: it does not exist.")
    for host in settings.hosts:
        if not _HOST_PATTERN.fullmatch(host):
            raise BadInput(
                f"Write {host!r} in `hosts` under [sandbox] as host, *.host or host:port."
            )
    toolchains = {home / name: variable for name, variable in TOOLCHAINS.items()}
    toolchain_folders = [path for path in toolchains if path.is_dir()]
    python_paths = [
        part
        for prefix in {sys.prefix, sys.base_prefix}
        for part in _python_folders(Path(prefix), home)
    ]
    search = [entry for entry in os.environ.get("PATH", os.defpath).split(":") if entry[:1] == "/"]
    if is_own_environment(Path(sys.prefix)):
        search = put_last(search, Path(sys.prefix) / "bin")
    programs = [part for entry in search for part in _program_folders(Path(entry))]
    folders = [path for path in system if not Path(path).is_symlink()]
    readable = _outermost_paths(
        [*folders, *map(str, [*toolchain_folders, *python_paths, *programs, *extra_paths])]
    )
    visible_folders = [""] if settings.kind == "none" else readable
    search_path = [
        entry
        for entry in dict.fromkeys([*search, f"{sys.prefix}/bin"])
        if _is_inside(entry, visible_folders)
    ]
    env = FIXED_VARIABLES | {"PATH": ":".join(search_path)}
    env |= {
        name: str(path) for path, name in toolchains.items() if name and path in toolchain_folders
    }
    env |= {name: os.environ[name] for name in settings.env if name in os.environ}
    etc = tuple(
        str(path) for pattern in ETC_PATTERNS for path in sorted(Path("/etc").glob(pattern))
    )
    shell = shutil.which("bash", path=env["PATH"]) or "/bin/sh"
    return MachineView(
        readable=tuple(readable),
        links=links,
        sockets=tuple(find_sockets(map(str, extra_paths))),
        etc=etc,
        env=env,
        shell=shell,
    )


_INSTALLERS = frozenset({"pip", "setuptools", "uv", "wheel"})


def is_own_environment(prefix: Path) -> bool:
    """Whether an environment was made for closeloop alone, as pipx and pre-commit do.

    Of such a one, nobody wants the Python: activated, it would hide that of the project. By what
    was asked for when it was made: whoever works in an environment asked for more than closeloop.
    `closeloop[demo]` is more: it brings pytest, and the system's Python may have none.
    """
    if not (prefix / "pyvenv.cfg").is_file() or any(
        prefix.glob("lib/python3*/site-packages/pytest/__init__.py")
    ):
        return False
    requested = {
        marker.parent.name.split("-")[0].lower()
        for marker in prefix.glob("lib/python3*/site-packages/*.dist-info/REQUESTED")
    }
    return requested - _INSTALLERS == {"closeloop"}


def put_last(search: Sequence[str], folder: Path) -> list[str]:
    """Return a search path with one folder, by any name, after all others."""
    real_path = os.path.realpath(folder)
    hidden = [entry for entry in search if os.path.realpath(entry) == real_path]
    return [*(entry for entry in search if entry not in hidden), *hidden]


def copy_etc(cache: Path, entries: Iterable[str]) -> str:
    """Copy a small /etc when the machine's changes: one mount instead of dozens."""
    stamps = [
        (path, os.lstat(path).st_mtime_ns)
        for entry in entries
        for path in [entry, *map(str, Path(entry).glob("*") if Path(entry).is_dir() else ())]
    ]
    folder = cache / "etc" / content_digest(stamps, ETC_FILES)[:16]
    if folder.is_dir():
        return str(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary_folder = Path(tempfile.mkdtemp(dir=folder.parent))
    for entry in map(Path, entries):
        if entry.is_dir():
            shutil.copytree(
                entry, temporary_folder / entry.name, symlinks=True, ignore=_unreadable_names
            )
        elif os.access(entry, os.R_OK) or entry.is_symlink():
            shutil.copy2(entry, temporary_folder / entry.name, follow_symlinks=False)
    for name, content in ETC_FILES.items():
        (temporary_folder / name).write_text(content)
    temporary_folder.chmod(0o755)
    try:
        temporary_folder.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(temporary_folder, ignore_errors=True)
    return str(folder)


def _unreadable_names(folder: str, names: list[str]) -> set[str]:
    closed_names = {name for name in names if not os.access(Path(folder, name), os.R_OK)}
    return set(SECRET_PATTERNS(folder, names)) | {
        name for name in closed_names if not Path(folder, name).is_symlink()
    }


def _python_folders(prefix: Path, home: Path) -> list[Path]:
    """Return the folders of a Python installation, without other content of a home."""
    if home.is_relative_to(prefix) or prefix == home / ".local":
        return [
            prefix / name for name in ("bin", "lib", "lib64", "include") if (prefix / name).is_dir()
        ]
    return [prefix]


def _program_folders(folder: Path) -> list[Path]:
    """Return what to expose for an entry of PATH: the installation it belongs to, if any."""
    if not folder.is_dir():
        return []
    if (folder.parent / "pyvenv.cfg").is_file():
        return [folder.parent]
    if not folder.is_relative_to("/opt"):
        return []
    return [folder.parent if folder.name == "bin" and folder.parent != Path("/opt") else folder]


def _outermost_paths(paths: list[str]) -> list[str]:
    outermost: list[str] = []
    for path in sorted(set(paths)):
        if not _is_inside(path, outermost):
            outermost.append(path)
    return outermost


def _is_inside(path: str, folders: Iterable[str]) -> bool:
    real_path = os.path.realpath(path)
    return any(
        path == folder or path.startswith(folder + "/") or real_path.startswith(folder + "/")
        for folder in folders
    )


# One workspace on disk, and its path for commands.


WORKSPACE, HOME, TEMPORARY = "/workspace", "/home/agent", "/tmp"  # noqa: S108
OWN_FOLDER = "/run/closeloop"
FORWARDER_PATH = f"{OWN_FOLDER}/forwarder.py"


class SandboxLimits(Record):
    """What is enforced on this machine."""

    kind: str
    """`bwrap`, `landlock` or `none`."""
    files: bool
    network: bool
    processes: bool
    """Whether whole process trees die with the command, and with closeloop."""
    system_calls: bool = False
    """Whether system calls that commands do not need are refused."""
    note: str = ""


def describe_sandbox_limits(sandbox_limits: SandboxLimits) -> str:
    """Describe what is enforced and what is not, on one line."""
    enforced = {
        "files": sandbox_limits.files,
        "network": sandbox_limits.network,
        "processes": sandbox_limits.processes,
        "system calls": sandbox_limits.system_calls,
    }
    names = ", ".join(name for name, is_enforced in enforced.items() if is_enforced)
    kind = f"{sandbox_limits.kind} ({names})" if names else sandbox_limits.kind
    return f"{kind}: {sandbox_limits.note}" if sandbox_limits.note else kind


class SharedFolder(Record):
    """One of our folders, exposed to some commands at a path outside the workspace."""

    source: str
    target: str
    write: bool = False


class SandboxPort(Record):
    """One of our servers, reachable for commands at a port of their own loopback."""

    number: int
    socket: str
    """Where it listens: a Unix socket in a folder of its own. Where commands have no loopback of
    their own, it must listen on the port itself."""


class WorkspaceLayout(Record):
    """A workspace's folders: `root/workspace`, `root/home` and `temporary`."""

    folder: str
    lower: str | None = None
    """With an overlay: the lower folder of `root`, to which `upper` adds."""
    shares: tuple[SharedFolder, ...] = ()
    ports: tuple[SandboxPort, ...] = ()
    env: dict[str, str] = {}
    """Additional variables for every command."""
    frozen: bool = False
    """Whether the workspace is read-only."""
    network: bool = False


class SandboxBackend(Record):
    """A way to confine commands that works on this machine."""

    sandbox_limits: SandboxLimits
    view: MachineView
    mount: str
    """An empty folder where every sandbox mounts its overlay, invisible to the others."""
    wrap: (
        Callable[[SandboxBackend, WorkspaceLayout, Limits, Sequence[str], Channels], list[str]]
        | None
    )
    """Wraps a command; None runs it unchanged."""
    filtered: bool = False
    """Whether commands run under a filter of system calls."""
    overlay: bool = False
    isolated: bool = False
    """Whether commands see their own file system, with the workspace at a constant path."""
    etc: str | None = None


def find_layout_root(sandbox: SandboxBackend, layout: WorkspaceLayout) -> str:
    """Return the folder with `workspace` and `home`, before shares are mounted."""
    return sandbox.mount if layout.lower else f"{layout.folder}/root"


def visible_paths(sandbox: SandboxBackend, layout: WorkspaceLayout) -> tuple[str, str, str]:
    """Return the workspace, home and temporary folder as commands see them."""
    if sandbox.isolated:
        return WORKSPACE, HOME, TEMPORARY
    root = find_layout_root(sandbox, layout)
    return f"{root}/workspace", f"{root}/home", f"{layout.folder}/temporary"


def real_paths(layout: WorkspaceLayout) -> tuple[str, str, str]:
    """Return the same three in the real file system; with an overlay, what was added to them."""
    root = f"{layout.folder}/{'upper' if layout.lower else 'root'}"
    return f"{root}/workspace", f"{root}/home", f"{layout.folder}/temporary"


def visible_share_path(sandbox: SandboxBackend, share: SharedFolder) -> str:
    """Return the path of a share as commands see it."""
    return share.target if sandbox.isolated else share.source


def list_visible_shares(sandbox: SandboxBackend, layout: WorkspaceLayout) -> list[SharedFolder]:
    """List everything an isolated command sees besides the system, outer folders first."""
    root = find_layout_root(sandbox, layout)
    shares = [
        SharedFolder(source=f"{layout.folder}/temporary", target=TEMPORARY, write=True),
        *(SharedFolder(source=path, target=path) for path in sandbox.view.readable),
        SharedFolder(source=f"{root}/workspace", target=WORKSPACE, write=not layout.frozen),
        SharedFolder(source=f"{root}/home", target=HOME, write=True),
        *layout.shares,
        *(
            SharedFolder(source=str(Path(port.socket).parent), target=_port_folder(port))
            for port in layout.ports
        ),
    ]
    if layout.ports:
        source = str(Path(__file__).with_name("forwarder.py"))
        shares.append(SharedFolder(source=source, target=FORWARDER_PATH))
    if sandbox.etc:
        shares.append(SharedFolder(source=sandbox.etc, target="/etc"))
    if layout.network and Path("/etc/resolv.conf").exists():
        shares.append(SharedFolder(source="/etc/resolv.conf", target="/etc/resolv.conf"))
    shares += (
        SharedFolder(source=os.devnull, target=path) for path in foreign_sockets(sandbox.view)
    )
    return shares


def foreign_sockets(view: MachineView) -> list[str]:
    """List sockets below what commands may read, which a read-only mount does not close."""
    folders = _folders_by_real_path(view.readable)
    foreign = [path for path in view.sockets if Path(path).is_socket()]
    for path in list_bound_sockets({*folders, *folders.values()}):
        real = next((real for real in folders if path.startswith(f"{real}/")), None)
        foreign.append(path if real is None else folders[real] + path.removeprefix(real))
    return sorted(set(foreign))


@functools.cache
def _folders_by_real_path(readable: tuple[str, ...]) -> dict[str, str]:
    return {os.path.realpath(path): path for path in readable}


@functools.cache
def hidden_paths() -> tuple[str, ...]:
    """Return files of /proc about other namespaces, such as the names of the user's keys."""
    return tuple(path for path in ("/proc/keys",) if Path(path).exists())


def map_port_sockets(layout: WorkspaceLayout) -> dict[int, str]:
    """Return the socket path behind each port, as isolated commands see it."""
    return {port.number: f"{_port_folder(port)}/{Path(port.socket).name}" for port in layout.ports}


def _port_folder(port: SandboxPort) -> str:
    return f"{OWN_FOLDER}/{port.number}"
