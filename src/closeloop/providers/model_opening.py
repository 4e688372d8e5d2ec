"""Opens a model by its name."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import anyio

from closeloop.providers.model_prices import find_model_prices
from closeloop.providers.wire_format import RetryListener
from closeloop.records.errors import BadInput, MachineFailed, unknown_name_error
from closeloop.records.protocols import Model
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import ModelSettings, Provider, Settings
from closeloop.records.task import Limits
from closeloop.records.trace import ModelReply, ModelRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from closeloop.providers.wire_format import ModelEndpoint


PROVIDERS: dict[str, Provider] = {"anthropic": "anthropic", "gemini": "gemini", "openai": "openai"}


class OpenModel(Model, Protocol):
    """A model with open connections until it is closed."""

    async def reply(self, request: ModelRequest, retried: RetryListener = ...) -> ModelReply: ...

    async def close(self) -> None: ...


def find_model_settings(name: str, models: Mapping[str, ModelSettings]) -> ModelSettings:
    """Resolve a name: one from the settings, `provider/model`, a script or a recording."""
    if name in models:
        return models[name]
    kind, _, model_name = name.partition(":")
    if kind in ("scripted", "recorded") and model_name:
        return ModelSettings(provider=kind, model=model_name)  # type: ignore[arg-type]
    provider, _, model = name.partition("/")
    if model and provider in PROVIDERS:
        return ModelSettings(provider=PROVIDERS[provider], model=model)
    if model and difflib.get_close_matches(provider, PROVIDERS):
        raise unknown_name_error("model provider", provider, PROVIDERS)
    raise BadInput(
        f"{unknown_name_error('model', name, models)} Also possible: openai/NAME, "
        "anthropic/NAME, gemini/NAME, scripted:FILE and recorded:ATTEMPT."
    )


def digest_model(settings: ModelSettings, folder: Path) -> str:
    """Identify the model: the content of the script, or provider, model and address."""
    if settings.provider == "scripted":
        from closeloop.providers.scripted_model import read_script

        return content_digest("scripted", read_script(folder / settings.model))
    return content_digest(settings.provider, settings.model, settings.base_url)


class MissingKey(BadInput):
    """A model has no key."""


def open_model(
    name: str, settings: ModelSettings, limits: Limits, *, environ: Mapping[str, str], folder: Path
) -> OpenModel:
    """Open a model to share between attempts; paths in the settings are relative to the folder."""
    require_price(name, settings, limits)
    prices = find_model_prices(settings)
    if settings.provider == "scripted":
        from closeloop.providers.scripted_model import ScriptedModel, load_script

        return ScriptedModel(load_script(folder / settings.model), prices)
    if settings.provider == "recorded":
        raise BadInput(f"{name!r} is a recording, which only `closeloop run` can replay.")
    from closeloop.providers import anthropic, gemini, openai
    from closeloop.providers.provider_connection import (
        ProviderConnection,
        RemoteModel,
        join_format_url,
    )
    from closeloop.providers.wire_format import Dialect, ModelEndpoint

    formats = {
        "openai": openai.OPENAI_FORMAT,
        "anthropic": anthropic.ANTHROPIC_FORMAT,
        "gemini": gemini.GEMINI_FORMAT,
    }
    provider_format = formats[settings.provider]
    base = settings.base_url or provider_format.address
    local = check_base_url(name, base)
    found_key = find_key(name, settings, provider_format.key_env, environ, folder)
    if found_key.key is None and not local:
        raise MissingKey(
            f"No key for the model {name!r}: set {found_key.source_name}, "
            "or its key_env or key_file."
        )
    endpoint = ModelEndpoint(
        url=join_format_url(base, provider_format.path.replace("{model}", settings.model)),
        model=settings.model,
        key_from=found_key.source_name,
        local=local,
        timeout=settings.timeout,
        retries=settings.retries,
    )
    # OpenAI's own models accept only the new name of this limit, most other servers the old one.
    is_openai_itself = settings.provider == "openai" and settings.base_url is None
    dialect = Dialect(reply_limit="max_completion_tokens" if is_openai_itself else "max_tokens")
    wire = ProviderConnection(endpoint, provider_format.headers(found_key.key), found_key.key)
    return RemoteModel(settings, provider_format, wire, base, dialect)


@asynccontextmanager
async def open_model_by_name(
    name: str, settings: Settings, root: Path, environ: Mapping[str, str]
) -> AsyncIterator[Model]:
    """Open the model of that name, and close it at the end."""
    model_settings = find_model_settings(name, settings.models)
    model = open_model(name, model_settings, settings.limits, environ=environ, folder=root)
    try:
        yield model
    finally:
        await model.close()


def require_price(name: str, settings: ModelSettings, limits: Limits) -> None:
    """BadInput for a cost limit that could not be enforced."""
    is_free = settings.provider in ("scripted", "recorded") or settings.base_url is not None
    if limits.money is not None and not is_free and find_model_prices(settings) is None:
        raise BadInput(
            f"The money limit needs the price of {name!r}: set its input_price and "
            "output_price, or no money limit."
        )


def check_base_url(name: str, url: str) -> bool:
    """Whether it is on this machine; BadInput if it is not a URL."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise BadInput(f"The base_url of {name!r} is not a URL: check it.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise BadInput(f"The base_url of {name!r} must start with http:// or https://.")
    if "@" in parts.netloc:
        raise BadInput(f"Remove the password from the base_url of {name!r}: use key_env.")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


# Where keys are stored: in the environment, in a file, or in the system's keyring.


class FoundKey(Record):
    """The location of a model's key."""

    source_name: str
    """How messages name it; never the key itself."""
    key: str | None


def find_key(
    name: str, settings: ModelSettings, usual: str, environ: Mapping[str, str], folder: Path
) -> FoundKey:
    """Find the key of a model and its location; `usual` is the provider's own variable."""
    if settings.key_file is not None:
        source, key = settings.key_file, _read_key_file(name, folder, settings.key_file)
    elif settings.key_keyring is not None:
        source, key = f"the keyring's {settings.key_keyring}", _read_keyring(name, settings)
    else:
        source = settings.key_env or usual
        key = environ.get(source, "").strip()
    # Checked here because the HTTP library would quote a bad key in its complaint.
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise BadInput(f"The content of {source} is not a key: it must be one word.")
    return FoundKey(source_name=source, key=key or None)


def _read_key_file(name: str, folder: Path, file: str) -> str:
    path = folder / Path(file).expanduser()
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"The key file {path} of {name!r} cannot be read: check it.") from None


def _read_keyring(name: str, settings: ModelSettings) -> str:
    service, slash, user = (settings.key_keyring or "").rpartition("/")
    if not slash:
        raise BadInput(f"The key_keyring of {name!r} must be 'service/user'.")
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        raise BadInput(
            f"The key of {name!r} is in a keyring: install the package keyring, or use key_env."
        ) from None
    try:
        return str(keyring.get_password(service, user) or "").strip()
    except Exception as error:  # each system's keyring raises different errors
        kind = type(error).__name__
        raise BadInput(f"The keyring cannot be read ({kind}): unlock it, or use key_env.") from None


# Embeddings of texts by a provider with OpenAI's format.


BATCH_SIZE = 64
MAX_TEXT_CHARS = 8_000


class ProviderEncoder:
    """An encoder by a provider's embeddings; has no connection between calls."""

    floor, alike = 0.30, 0.65

    def __init__(self, name: str, endpoint: ModelEndpoint, key: str | None) -> None:
        self.id = name
        self._endpoint = endpoint
        self._key = key

    def ready(self) -> bool:
        return True

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a unit vector per text.

        It runs its own event loop, so do not call it inside one.
        """
        import numpy as np

        if not texts:
            return np.zeros((0, 0), np.float32)
        rows = np.array(anyio.run(self._encode_batches, texts), np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.where(lengths == 0, 1, lengths)
        return rows

    async def _encode_batches(self, texts: Sequence[str]) -> list[list[float]]:
        from closeloop.providers import openai
        from closeloop.providers.provider_connection import ProviderConnection
        from closeloop.providers.wire_format import RequestRejected

        wire = ProviderConnection(
            self._endpoint, openai.OPENAI_FORMAT.headers(self._key), self._key
        )
        rows: list[list[float]] = []
        try:
            for start in range(0, len(texts), BATCH_SIZE):
                batch = [text[:MAX_TEXT_CHARS] or " " for text in texts[start : start + BATCH_SIZE]]
                payload = {"model": self._endpoint.model, "input": batch}
                rows += _read_embedding_rows(await wire.post_json(payload), len(batch), wire.server)
        except RequestRejected as rejected:
            raise BadInput(
                f"{wire.server} has no embeddings for {self._endpoint.model!r}: choose "
                f"another model in memory.encoder ({rejected})."
            ) from None
        finally:
            await wire.close()
        if len({len(row) for row in rows}) != 1:
            raise MachineFailed(f"{wire.server} sent vectors of several lengths: try again.")
        return rows


def open_provider_encoder(
    name: str, settings: Settings, environ: Mapping[str, str], folder: Path
) -> ProviderEncoder:
    """Open the encoder of a model's name."""
    model_settings = find_model_settings(name, settings.models)
    if model_settings.provider != "openai":
        raise BadInput(
            f"{name!r} has no embeddings: memory.encoder needs a model of the provider "
            "openai, or of a server with the same API."
        )
    from closeloop.providers import openai
    from closeloop.providers.provider_connection import join_format_url
    from closeloop.providers.wire_format import ModelEndpoint

    base = model_settings.base_url or openai.OPENAI_FORMAT.address
    local = check_base_url(name, base)
    found_key = find_key(name, model_settings, openai.OPENAI_FORMAT.key_env, environ, folder)
    if found_key.key is None and not local:
        raise BadInput(f"No key for the encoder {name!r}: set {found_key.source_name}.")
    endpoint = ModelEndpoint(
        url=join_format_url(base, "/v1/embeddings"),
        model=model_settings.model,
        key_from=found_key.source_name,
        local=local,
        timeout=model_settings.timeout,
        retries=model_settings.retries,
    )
    settings_digest = digest_model(model_settings, folder)[:8]
    return ProviderEncoder(
        f"{model_settings.provider}:{model_settings.model}:{settings_digest}",
        endpoint,
        found_key.key,
    )


def _read_embedding_rows(answer: Any, count: int, server: str) -> list[list[float]]:
    """Return the received rows in the requested order."""
    match answer:
        case {"data": list(entries)} if len(entries) == count:
            rows = {
                entry.get("index", index): entry.get("embedding")
                for index, entry in enumerate(entries)
                if isinstance(entry, dict)
            }
            ordered = [rows.get(index) for index in range(count)]
            if all(_is_vector(row) for row in ordered):
                return [row for row in ordered if row is not None]
    raise MachineFailed(f"{server} sent something other than embeddings: check the URL.")


def _is_vector(row: Any) -> bool:
    return isinstance(row, list) and bool(row) and all(type(value) in (int, float) for value in row)
