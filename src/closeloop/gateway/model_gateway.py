"""The gateway of a run: open models and the proxies to them."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

from closeloop.gateway.attempt_proxy import AttemptProxy, ReplySource
from closeloop.gateway.exchange_ledger import ExchangeListener
from closeloop.gateway.live_source import LiveSource, ProviderRelay, RateLimiter
from closeloop.gateway.replay_source import RecordedExchange, ReplaySource, load_recorded_exchanges
from closeloop.providers.model_opening import OpenModel, open_model, require_price
from closeloop.providers.model_prices import NO_USAGE
from closeloop.records.attempt import Usage
from closeloop.records.errors import BadInput
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from closeloop.records.trace import Exchange

if TYPE_CHECKING:
    from closeloop.gateway.proxy_server import HttpListener, ProxyServer


# How agents reach their proxies: a socket each, and a shared port. Opened on first use.


class ProxyListeners:
    """All listeners of one gateway's proxies."""

    def __init__(self, port: int = 0, folder: Path | None = None) -> None:
        self._port = port
        self._folder = folder
        self._listeners: ProxyServer | None = None
        self._loopback: tuple[HttpListener, int] | None = None

    def add_listener(self) -> ProxyListener:
        """Add the listener of one more proxy."""
        return ProxyListener(self)

    @property
    def folder(self) -> Path:
        """A folder that only its owner can read."""
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
        """The loopback port of all proxies."""
        if self._loopback is None:
            self._loopback = self.listeners.listen_loopback(self._port)
        return self._loopback[1]

    async def close(self) -> None:
        if self._loopback is not None:
            await self._loopback[0].close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class ProxyListener:
    """The listener of one proxy: a socket in its own folder, and a secret on loopback."""

    def __init__(self, listeners: ProxyListeners) -> None:
        self._entrances = listeners
        self._listener: HttpListener | None = None
        self._path = Path()
        self._secret = ""

    def socket(self, proxy: Any) -> str:
        if self._listener is None:
            # Its name cannot be guessed: not every sandbox prevents connections.
            self._path = self._entrances.folder / secrets.token_hex(8) / "model.sock"
            self._listener = self._entrances.listeners.listen_unix(self._path, proxy)
        return str(self._path)

    def address(self, proxy: Any) -> str:
        if not self._secret:
            self._secret = secrets.token_urlsafe(24)
            self._entrances.listeners.doors[self._secret] = proxy
        return f"http://127.0.0.1:{self._entrances.port}/{self._secret}"

    @property
    def is_open(self) -> bool:
        return bool(self._secret) or self._listener is not None

    async def close(self) -> None:
        if self._secret:
            del self._entrances.listeners.doors[self._secret]
        if self._listener is not None:
            await self._listener.close()
            with suppress(OSError):
                shutil.rmtree(self._path.parent)


ExchangeLookup = Callable[[str], Iterable[Exchange]]
"""Returns the exchanges of a stored attempt by its id."""


def _no_exchanges(attempt: str) -> Iterable[Exchange]:
    return ()


class Gateway:
    """Opened once for a run. Keys stay inside: a proxy exposes a model, never its key."""

    def __init__(
        self,
        environ: Mapping[str, str],
        folder: Path,
        *,
        recorded: ExchangeLookup = _no_exchanges,
        port: int = 0,
        sockets: Path | None = None,
    ) -> None:
        self._environ = environ
        self._folder = folder
        self._recorded = recorded
        self._entrances = ProxyListeners(port, sockets)
        self._opened = AsyncExitStack()
        self._recordings: dict[str, list[RecordedExchange]] = {}
        self._paces: dict[ModelSettings, RateLimiter] = {}
        self._relays: dict[ModelSettings, ProviderRelay] = {}
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

    def prepare_model(self, name: str, settings: ModelSettings, limits: Limits) -> None:
        """Open a model once for all who need it; BadInput if it cannot be used."""
        require_price(name, settings, limits)
        if settings.provider == "recorded":
            self._load_recording(settings.model)
        else:
            self._open_model(name, settings, limits)

    def _load_recording(self, attempt: str) -> list[RecordedExchange]:
        if attempt not in self._recordings:
            self._recordings[attempt] = load_recorded_exchanges(self._recorded(attempt))
        if not self._recordings[attempt]:
            raise BadInput(f"No model requests of attempt {attempt!r} were recorded.")
        return self._recordings[attempt]

    def _open_model(self, name: str, settings: ModelSettings, limits: Limits) -> OpenModel:
        if settings not in self._models:
            opened_model = open_model(
                name, settings, limits, environ=self._environ, folder=self._folder
            )
            self._models[settings] = opened_model
            self._opened.push_async_callback(opened_model.close)
        return self._models[settings]

    def _make_source(
        self, name: str, settings: ModelSettings, limits: Limits, *, first: bool
    ) -> ReplySource:
        if settings.provider == "recorded":
            return ReplaySource(settings.model, self._load_recording(settings.model))
        model = self._open_model(name, settings, limits)
        if settings not in self._paces:
            self._paces[settings] = RateLimiter(settings)
            if settings.provider != "scripted":
                from closeloop.gateway.passthrough_relay import PassthroughRelay
                from closeloop.providers.provider_connection import RemoteModel

                assert isinstance(model, RemoteModel)
                self._relays[settings] = PassthroughRelay(model)
        return LiveSource(model, self._paces[settings], self._relays.get(settings), first=first)

    @asynccontextmanager
    async def open_proxy(
        self,
        name: str,
        settings: ModelSettings,
        limits: Limits,
        listener: ExchangeListener | None = None,
        *,
        first: bool = False,
        usage_before: Usage = NO_USAGE,
    ) -> AsyncIterator[AttemptProxy]:
        """A door for one attempt; a listener takes its exchanges as they come.

        Who comes in first does not wait behind the others: a judge, for whom work stands still.
        The limits hold for what was used before, too.
        """
        self.prepare_model(name, settings, limits)
        endpoint = self._entrances.add_listener()
        source = self._make_source(name, settings, limits, first=first)
        proxy = AttemptProxy(source, limits, endpoint, listener, usage_before)
        try:
            yield proxy
        finally:
            if endpoint.is_open or proxy.busy:
                with anyio.CancelScope(shield=True):
                    await endpoint.close()
                    await proxy.end_attempt()
            proxy.end_turns()


@asynccontextmanager
async def open_local_proxy(
    settings: ModelSettings, limits: Limits, folder: Path
) -> AsyncIterator[AttemptProxy]:
    """Open one proxy to one model that needs no key."""
    async with (
        Gateway({}, folder) as gateway,
        gateway.open_proxy("local", settings, limits) as proxy,
    ):
        yield proxy
