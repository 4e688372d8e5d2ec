"""From a model's name to a model that answers."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from closeloop.providers.format_dialect import RetryListener
from closeloop.providers.model_prices import find_model_prices
from closeloop.records.chat import ModelReply, ModelRequest
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.protocols import Model
from closeloop.records.record import content_digest
from closeloop.records.settings import ModelSettings, Provider, Settings
from closeloop.records.task import Limits

PROVIDERS: dict[str, Provider] = {
    "anthropic": "anthropic",
    "gemini": "gemini",
    "openai": "openai",
}


class OpenModel(Model, Protocol):
    """A model that holds connections until it is closed."""

    async def reply(self, request: ModelRequest, retried: RetryListener = ...) -> ModelReply: ...

    async def close(self) -> None: ...


def find_model_settings(name: str, models: Mapping[str, ModelSettings]) -> ModelSettings:
    """What a name stands for: one from the settings, `provider/model`, a script or a recording."""
    if name in models:
        return models[name]
    kind, _, rest = name.partition(":")
    if kind in ("scripted", "recorded") and rest:
        return ModelSettings(provider=kind, model=rest)  # type: ignore[arg-type]
    provider, _, model = name.partition("/")
    if model and provider in PROVIDERS:
        return ModelSettings(provider=PROVIDERS[provider], model=model)
    if model and difflib.get_close_matches(provider, PROVIDERS):
        raise unknown_name_error("model provider", provider, PROVIDERS)
    raise BadInput(
        f"{unknown_name_error('model', name, models)} "
        "One may also write openai/NAME, anthropic/NAME, gemini/NAME, scripted:FILE "
        "or recorded:ATTEMPT."
    )


def digest_model(settings: ModelSettings, folder: Path) -> str:
    """Which model, exactly: the content of the script, or provider, model and address."""
    if settings.provider == "scripted":
        from closeloop.providers.model_scripts import read_script

        return content_digest("scripted", read_script(folder / settings.model))
    return content_digest(settings.provider, settings.model, settings.base_url)


def open_model(
    name: str,
    settings: ModelSettings,
    limits: Limits,
    *,
    environ: Mapping[str, str],
    folder: Path,
) -> OpenModel:
    """A model to share between attempts; paths in the settings start at the folder."""
    require_price(name, settings, limits)
    prices = find_model_prices(settings)
    if settings.provider == "scripted":
        from closeloop.providers.model_scripts import load_script
        from closeloop.providers.scripted_model import ScriptedModel

        return ScriptedModel(load_script(folder / settings.model), prices)
    if settings.provider == "recorded":
        raise BadInput(f"{name!r} is a recording, which only `closeloop run` can play.")
    from closeloop.providers import anthropic_format, gemini_format, openai_format
    from closeloop.providers.format_dialect import Dialect
    from closeloop.providers.model_keys import find_key
    from closeloop.providers.provider_connection import ModelEndpoint, ProviderConnection
    from closeloop.providers.remote_model import RemoteModel, join_format_url

    formats = {
        "openai": openai_format.OPENAI_FORMAT,
        "anthropic": anthropic_format.ANTHROPIC_FORMAT,
        "gemini": gemini_format.GEMINI_FORMAT,
    }
    provider_format = formats[settings.provider]
    base = settings.base_url or provider_format.address
    local = check_base_url(name, base)
    found_key = find_key(name, settings, provider_format.key_env, environ, folder)
    if found_key.key is None and not local:
        raise BadInput(
            f"No key for the model {name!r}: set {found_key.told}, or its key_env or key_file."
        )
    endpoint = ModelEndpoint(
        url=join_format_url(base, provider_format.path.replace("{model}", settings.model)),
        model=settings.model,
        key_from=found_key.told,
        local=local,
        timeout=settings.timeout,
        retries=settings.retries,
    )
    # OpenAI's own models know only the new name of this limit, most other servers the old one.
    is_openai_itself = settings.provider == "openai" and settings.base_url is None
    dialect = Dialect(reply_limit="max_completion_tokens" if is_openai_itself else "max_tokens")
    wire = ProviderConnection(endpoint, provider_format.headers(found_key.key), found_key.key)
    return RemoteModel(settings, provider_format, wire, base, dialect)


@asynccontextmanager
async def open_model_by_name(
    name: str, settings: Settings, root: Path, environ: Mapping[str, str]
) -> AsyncIterator[Model]:
    """The model of that name; it is closed again at the end."""
    model_settings = find_model_settings(name, settings.models)
    model = open_model(name, model_settings, settings.limits, environ=environ, folder=root)
    try:
        yield model
    finally:
        await model.close()


def require_price(name: str, settings: ModelSettings, limits: Limits) -> None:
    """BadInput for a money limit that could not be held."""
    is_free = settings.provider in ("scripted", "recorded") or settings.base_url is not None
    if limits.money is not None and not is_free and find_model_prices(settings) is None:
        raise BadInput(
            f"The money limit needs the price of {name!r}: "
            "give its input_price and output_price, or set no money limit."
        )


def check_base_url(name: str, url: str) -> bool:
    """Whether it is on this machine; BadInput when it is no address at all."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise BadInput(f"The base_url of {name!r} is not an address: check it.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise BadInput(f"The base_url of {name!r} should start with http:// or https://.")
    if "@" in parts.netloc:
        raise BadInput(f"Take the password out of the base_url of {name!r}: use key_env.")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
