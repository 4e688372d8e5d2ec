"""What a sandbox may reach: Unix sockets of ours, and the hosts that somebody has named."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

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
        with open(BOUND_SOCKETS_FILE, "rb", buffering=0) as listing:  # noqa: PTH123
            content = b"".join(iter(lambda: listing.read(1 << 16), b""))
    except OSError:
        return []
    prefixes = tuple(os.fsencode(folder) + b"/" for folder in folders)
    if not any(b" " + prefix in content for prefix in prefixes):
        return []
    names = (line.split(b" /", 1)[-1] for line in content.splitlines() if b" /" in line)
    paths = (b"/" + name for name in names)
    return [os.fsdecode(path) for path in paths if path.startswith(prefixes) and _is_socket(path)]


def find_sockets(folders: Iterable[str]) -> Iterator[str]:
    """Sockets that lie below these folders, whoever bound them, among the first entries there."""
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


# The hosts that cages may reach, where somebody has named some: a proxy that knows no others.

PROXY_PORT = 8018
"""Where commands find the proxy on the loopback of their cage."""
DEFAULT_PORTS = (80, 443)
MAX_HEAD_BYTES = 1 << 14
HEAD_SECONDS, CONNECT_SECONDS = 30.0, 30.0
CHUNK_BYTES = 1 << 16
MAX_REFUSED_NAMES = 1000


class HostAllowlist:
    """Lets through to these hosts, and keeps a list of what it refused."""

    def __init__(self, hosts: Sequence[str], socket: str) -> None:
        self.socket = socket
        self.port = 0
        """On the machine's own loopback."""
        self.refused: dict[str, int] = {}
        self._hosts = [host.lower().rstrip(".") for host in hosts]

    def allows_host(self, host: str, port: int) -> bool:
        name = host.lower().rstrip(".")
        for known in self._hosts:
            wanted, _, number = known.partition(":")
            matches_host = name == wanted or (wanted[:2] == "*." and name.endswith(wanted[1:]))
            if matches_host and (port == int(number) if number else port in DEFAULT_PORTS):
                return True
        return False

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection: `CONNECT host:port`, and then whatever both sides say."""
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
    """Open at a socket in a new folder, and on loopback for cages that have none of their own."""
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
