"""From a model's name to a model that answers."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from closeloop.model.chat import ModelReply, ModelRequest
from closeloop.model.errors import BadInput, unknown
from closeloop.model.protocols import Model
from closeloop.model.record import digest
from closeloop.model.settings import ModelSettings, Provider, Settings
from closeloop.model.variant import Limits
from closeloop.runs.models.dialect import Retried
from closeloop.runs.models.prices import prices_of

PROVIDERS: dict[str, Provider] = {
    "anthropic": "anthropic",
    "gemini": "gemini",
    "openai": "openai",
}


class OpenModel(Model, Protocol):
    """A model that holds connections until it is closed."""

    async def reply(self, request: ModelRequest, retried: Retried = ...) -> ModelReply: ...

    async def close(self) -> None: ...


def settings_of(name: str, models: Mapping[str, ModelSettings]) -> ModelSettings:
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
        raise unknown("model provider", provider, PROVIDERS)
    raise BadInput(
        f"{unknown('model', name, models)} "
        "One may also write openai/NAME, anthropic/NAME, gemini/NAME, scripted:FILE "
        "or recorded:ATTEMPT."
    )


def digest_of(settings: ModelSettings, folder: Path) -> str:
    """Which model, exactly: the content of the script, or provider, model and address."""
    if settings.provider == "scripted":
        from closeloop.runs.models.scripts import read_script

        return digest("scripted", read_script(folder / settings.model))
    return digest(settings.provider, settings.model, settings.base_url)


def open_model(
    name: str,
    settings: ModelSettings,
    limits: Limits,
    *,
    environ: Mapping[str, str],
    folder: Path,
) -> OpenModel:
    """A model to share between attempts; paths in the settings start at the folder."""
    demand_price(name, settings, limits)
    prices = prices_of(settings)
    if settings.provider == "scripted":
        from closeloop.runs.models.scripted import ScriptedModel
        from closeloop.runs.models.scripts import load_script

        return ScriptedModel(load_script(folder / settings.model), prices)
    if settings.provider == "recorded":
        raise BadInput(f"{name!r} is a recording, which only `closeloop run` can play.")
    from closeloop.runs.models import anthropic, gemini, openai
    from closeloop.runs.models.dialect import Dialect
    from closeloop.runs.models.keys import find_key
    from closeloop.runs.models.remote import RemoteModel, url_of
    from closeloop.runs.models.wire import Endpoint, Wire

    formats = {"openai": openai.FORMAT, "anthropic": anthropic.FORMAT, "gemini": gemini.FORMAT}
    speech = formats[settings.provider]
    base = settings.base_url or speech.address
    local = check_address(name, base)
    place = find_key(name, settings, speech.key_env, environ, folder)
    if place.key is None and not local:
        raise BadInput(
            f"No key for the model {name!r}: set {place.told}, or its key_env or key_file."
        )
    endpoint = Endpoint(
        url=url_of(base, speech.path.replace("{model}", settings.model)),
        model=settings.model,
        key_from=place.told,
        local=local,
        timeout=settings.timeout,
        retries=settings.retries,
    )
    # OpenAI's own models know only the new name of this limit, most other servers the old one.
    own = settings.provider == "openai" and settings.base_url is None
    dialect = Dialect(reply_limit="max_completion_tokens" if own else "max_tokens")
    wire = Wire(endpoint, speech.headers(place.key), place.key)
    return RemoteModel(settings, speech, wire, base, dialect)


@asynccontextmanager
async def opened_model(
    name: str, settings: Settings, root: Path, environ: Mapping[str, str]
) -> AsyncIterator[Model]:
    """The model of that name; it is closed again at the end."""
    found = settings_of(name, settings.models)
    model = open_model(name, found, settings.limits, environ=environ, folder=root)
    try:
        yield model
    finally:
        await model.close()


def demand_price(name: str, settings: ModelSettings, limits: Limits) -> None:
    """BadInput for a money limit that could not be held."""
    free = settings.provider in ("scripted", "recorded") or settings.base_url is not None
    if limits.money is not None and not free and prices_of(settings) is None:
        raise BadInput(
            f"The money limit needs the price of {name!r}: "
            "give its input_price and output_price, or set no money limit."
        )


def check_address(name: str, url: str) -> bool:
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
