"""The gateway of a run: models that are open, and doors to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from closeloop.model.attempt import Usage
from closeloop.model.errors import BadInput
from closeloop.model.exchange import Exchange
from closeloop.model.settings import ModelSettings
from closeloop.model.variant import Limits
from closeloop.runs.gateway.door import OpenDoor, Source
from closeloop.runs.gateway.entrances import Entrances
from closeloop.runs.gateway.ledger import Listener
from closeloop.runs.gateway.live import Live, Relay
from closeloop.runs.gateway.pace import Pace
from closeloop.runs.gateway.recording import Kept, load
from closeloop.runs.gateway.replay import Replay
from closeloop.runs.models.budget import NOTHING
from closeloop.runs.models.opening import OpenModel, demand_price, open_model

Recorded = Callable[[str], Iterable[Exchange]]
"""What a stored attempt asked its model, by the attempt's id."""


def _nothing(attempt: str) -> Iterable[Exchange]:
    return ()


class Gateway:
    """Opened once for a run. Keys stay in here: a door shows a model, never its key."""

    def __init__(
        self,
        environ: Mapping[str, str],
        folder: Path,
        *,
        recorded: Recorded = _nothing,
        port: int = 0,
        sockets: Path | None = None,
    ) -> None:
        self._environ = environ
        self._folder = folder
        self._recorded = recorded
        self._entrances = Entrances(port, sockets)
        self._opened = AsyncExitStack()
        self._recordings: dict[str, list[Kept]] = {}
        self._paces: dict[ModelSettings, Pace] = {}
        self._relays: dict[ModelSettings, Relay] = {}
        self._models: dict[ModelSettings, OpenModel] = {}

    async def __aenter__(self) -> Self:
        self._opened.push_async_callback(self._entrances.close)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._opened.aclose()

    def prepare(self, name: str, settings: ModelSettings, limits: Limits) -> None:
        """Open a model, once for all who ask for it; BadInput when it cannot be used so."""
        demand_price(name, settings, limits)
        if settings.provider == "recorded":
            self._recording(settings.model)
        else:
            self._model(name, settings, limits)

    def _recording(self, attempt: str) -> list[Kept]:
        if attempt not in self._recordings:
            self._recordings[attempt] = load(self._recorded(attempt))
        if not self._recordings[attempt]:
            raise BadInput(f"Nothing was recorded of what attempt {attempt!r} asked its model.")
        return self._recordings[attempt]

    def _model(self, name: str, settings: ModelSettings, limits: Limits) -> OpenModel:
        if settings not in self._models:
            made = open_model(name, settings, limits, environ=self._environ, folder=self._folder)
            self._models[settings] = made
            self._opened.push_async_callback(made.close)
        return self._models[settings]

    def _source(self, name: str, settings: ModelSettings, limits: Limits, *, first: bool) -> Source:
        if settings.provider == "recorded":
            return Replay(settings.model, self._recording(settings.model))
        model = self._model(name, settings, limits)
        if settings not in self._paces:
            self._paces[settings] = Pace(settings)
            if settings.provider != "scripted":
                from closeloop.runs.gateway.passing import Passing
                from closeloop.runs.models.remote import RemoteModel

                assert isinstance(model, RemoteModel)
                self._relays[settings] = Passing(model)
        return Live(model, self._paces[settings], self._relays.get(settings), first=first)

    @asynccontextmanager
    async def open(
        self,
        name: str,
        settings: ModelSettings,
        limits: Limits,
        listener: Listener | None = None,
        *,
        first: bool = False,
        before: Usage = NOTHING,
    ) -> AsyncIterator[OpenDoor]:
        """A door for one attempt; a listener takes its exchanges as they come.

        Who comes in first does not wait behind the others: a judge, for whom work stands still.
        The limits hold for what was used before, too.
        """
        self.prepare(name, settings, limits)
        entrance = self._entrances.make()
        source = self._source(name, settings, limits, first=first)
        door = OpenDoor(source, limits, entrance, listener, before)
        try:
            yield door
        finally:
            with anyio.CancelScope(shield=True):
                await entrance.close()
                await door.leave()


@asynccontextmanager
async def local(settings: ModelSettings, limits: Limits, folder: Path) -> AsyncIterator[OpenDoor]:
    """One door to one model that needs no key."""
    async with Gateway({}, folder) as gateway, gateway.open("local", settings, limits) as door:
        yield door
