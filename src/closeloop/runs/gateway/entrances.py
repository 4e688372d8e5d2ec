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

LONGEST_FOLDER = 60
"""The path of a socket may have some hundred bytes."""


class Entrances:
    """All ways to the doors of one gateway."""

    def __init__(self, port: int = 0) -> None:
        self.number = 0
        self._port = port
        self._folder: Path | None = None
        self._listeners: Listeners | None = None
        self._loopback: tuple[Listener, int] | None = None

    def make(self) -> Entrance:
        """The ways to one more door."""
        self.number += 1
        return Entrance(self, str(self.number))

    @property
    def folder(self) -> Path:
        """Only its owner may look into it."""
        if self._folder is None:
            long = len(tempfile.gettempdir()) > LONGEST_FOLDER
            made = tempfile.mkdtemp(prefix="closeloop-", dir="/tmp" if long else None)  # noqa: S108
            self._folder = Path(made)
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

    def __init__(self, entrances: Entrances, name: str) -> None:
        self._entrances = entrances
        self._name = name
        self._listener: Listener | None = None
        self._path = ""
        self._secret = ""

    def socket(self, door: Any) -> str:
        if self._listener is None:
            folder = self._entrances.folder / self._name
            folder.mkdir(mode=0o700)
            self._path = str(folder / "model.sock")
            self._listener = self._entrances.listeners.unix(self._path, door)
        return self._path

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
                shutil.rmtree(Path(self._path).parent)
