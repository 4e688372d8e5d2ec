"""The ways to doors: a socket each, and a shared port. Nothing is opened before it is asked for."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeloop.runs.gateway.serving import Listener, Listeners


class Entrances:
    """All ways to the doors of one gateway."""

    def __init__(self, port: int = 0, folder: Path | None = None) -> None:
        self._port = port
        self._folder = folder
        self._listeners: Listeners | None = None
        self._loopback: tuple[Listener, int] | None = None

    def make(self) -> Entrance:
        """The ways to one more door."""
        return Entrance(self)

    @property
    def folder(self) -> Path:
        """Only its owner may look into it."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="closeloop-"))
        return self._folder

    @property
    def listeners(self) -> Listeners:
        if self._listeners is None:
            from closeloop.runs.gateway.serving import Listeners

            self._listeners = Listeners()
        return self._listeners

    @property
    def port(self) -> int:
        """Where all doors are on loopback."""
        if self._loopback is None:
            self._loopback = self.listeners.loopback(self._port)
        return self._loopback[1]

    async def close(self) -> None:
        if self._loopback is not None:
            await self._loopback[0].close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class Entrance:
    """The ways to one door: a socket in a folder of its own, and a secret on loopback."""

    def __init__(self, entrances: Entrances) -> None:
        self._entrances = entrances
        self._listener: Listener | None = None
        self._path = Path()
        self._secret = ""

    def socket(self, door: Any) -> str:
        if self._listener is None:
            # Its name cannot be guessed: not every cage keeps programs from connecting.
            self._path = self._entrances.folder / secrets.token_hex(8) / "model.sock"
            self._listener = self._entrances.listeners.unix(self._path, door)
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
