"""The ways to doors: a socket each, and a shared port. Nothing is opened before it is asked for."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeloop.gateway.proxy_server import HttpListener, ProxyServer


class ProxyListeners:
    """All ways to the doors of one gateway."""

    def __init__(self, port: int = 0, folder: Path | None = None) -> None:
        self._port = port
        self._folder = folder
        self._listeners: ProxyServer | None = None
        self._loopback: tuple[HttpListener, int] | None = None

    def add_listener(self) -> ProxyListener:
        """The ways to one more door."""
        return ProxyListener(self)

    @property
    def folder(self) -> Path:
        """Only its owner may look into it."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="closeloop-"))
        return self._folder

    @property
    def listeners(self) -> ProxyServer:
        if self._listeners is None:
            from closeloop.gateway.proxy_server import ProxyServer

            self._listeners = ProxyServer()
        return self._listeners

    @property
    def port(self) -> int:
        """Where all doors are on loopback."""
        if self._loopback is None:
            self._loopback = self.listeners.listen_loopback(self._port)
        return self._loopback[1]

    async def close(self) -> None:
        if self._loopback is not None:
            await self._loopback[0].close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class ProxyListener:
    """The ways to one door: a socket in a folder of its own, and a secret on loopback."""

    def __init__(self, entrances: ProxyListeners) -> None:
        self._entrances = entrances
        self._listener: HttpListener | None = None
        self._path = Path()
        self._secret = ""

    def socket(self, door: Any) -> str:
        if self._listener is None:
            # Its name cannot be guessed: not every cage keeps programs from connecting.
            self._path = self._entrances.folder / secrets.token_hex(8) / "model.sock"
            self._listener = self._entrances.listeners.listen_unix(self._path, door)
        return str(self._path)

    def address(self, door: Any) -> str:
        if not self._secret:
            self._secret = secrets.token_urlsafe(24)
            self._entrances.listeners.doors[self._secret] = door
        return f"http://127.0.0.1:{self._entrances.port}/{self._secret}"

    async def close(self) -> None:
        if self._secret:
            del self._entrances.listeners.doors[self._secret]
        if self._listener is not None:
            await self._listener.close()
            with suppress(OSError):
                shutil.rmtree(self._path.parent)
