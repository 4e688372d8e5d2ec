"""From a model's name to a model that answers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from closeloop.model.errors import BadInput, unknown
from closeloop.model.protocols import Model
from closeloop.model.record import digest
from closeloop.model.settings import ModelSettings, Provider
from closeloop.model.variant import Limits
from closeloop.runs.models.prices import prices_of

PROVIDERS: dict[str, Provider] = {"anthropic": "anthropic", "openai": "openai"}


class OpenModel(Model, Protocol):
    """A model that holds connections until it is closed."""

    async def close(self) -> None: ...


def settings_of(name: str, models: Mapping[str, ModelSettings]) -> ModelSettings:
    """What a name stands for: one from the settings, `provider/model` or `scripted:FILE`."""
    if name in models:
        return models[name]
    if name.startswith("scripted:") and name != "scripted:":
        return ModelSettings(provider="scripted", model=name.removeprefix("scripted:"))
    provider, _, model = name.partition("/")
    if model and provider in PROVIDERS:
        return ModelSettings(provider=PROVIDERS[provider], model=model)
    if model and difflib.get_close_matches(provider, PROVIDERS):
        raise unknown("model provider", provider, PROVIDERS)
    raise BadInput(
        f"{unknown('model', name, models)} "
        "One may also write openai/NAME, anthropic/NAME or scripted:FILE."
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
    prices = prices_of(settings)
    if settings.provider == "scripted":
        from closeloop.runs.models.scripted import ScriptedModel
        from closeloop.runs.models.scripts import load_script

        return ScriptedModel(load_script(folder / settings.model), prices)
    if limits.money is not None and prices is None and settings.base_url is None:
        raise BadInput(
            f"The money limit needs the price of {name!r}: "
            "give its input_price and output_price, or set no money limit."
        )
    from closeloop.runs.models import anthropic, openai
    from closeloop.runs.models.dialect import Dialect
    from closeloop.runs.models.remote import RemoteModel
    from closeloop.runs.models.wire import Endpoint, Wire

    speech = openai.FORMAT if settings.provider == "openai" else anthropic.FORMAT
    base = settings.base_url or speech.address
    local = _check_address(name, base)
    key_from = settings.key_file or settings.key_env or speech.key_env
    key = _key(name, settings, key_from, environ, folder)
    if key is None and not local:
        raise BadInput(
            f"No key for the model {name!r}: set {key_from}, or its key_env or key_file."
        )
    endpoint = Endpoint(
        url=_url(base, speech.path),
        model=settings.model,
        key_from=key_from,
        local=local,
        timeout=settings.timeout,
        retries=settings.retries,
    )
    # OpenAI's own models know only the new name of this limit, most other servers the old one.
    own = settings.provider == "openai" and settings.base_url is None
    dialect = Dialect(reply_limit="max_completion_tokens" if own else "max_tokens")
    wire = Wire(endpoint, speech.headers(key), key)
    return RemoteModel(settings.model, speech, wire, prices, dialect)


def _key(
    name: str, settings: ModelSettings, key_from: str, environ: Mapping[str, str], folder: Path
) -> str | None:
    if settings.key_file is not None:
        path = folder / Path(settings.key_file).expanduser()
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"The key file {path} of {name!r} cannot be read: check it.") from None
    else:
        key = environ.get(key_from, "").strip()
    # Checked here because the HTTP library would quote a bad key in its complaint.
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise BadInput(f"What {key_from} holds is not a key: it should be one word.")
    return key or None


def _check_address(name: str, url: str) -> bool:
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


def _url(base: str, path: str) -> str:
    parts = urlsplit(base)
    before = parts.path.rstrip("/")
    if before.endswith("/v1"):
        path = path.removeprefix("/v1")
    return parts._replace(path=before + path).geturl()
