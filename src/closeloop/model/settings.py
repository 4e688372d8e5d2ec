"""Settings: what `closeloop.toml` may say. Read once, at the door, and handed down."""

from __future__ import annotations

from typing import Any, Literal

from closeloop.model.record import Record
from closeloop.model.variant import Limits

SandboxKind = Literal["auto", "bwrap", "landlock", "none"]
Provider = Literal["openai", "anthropic", "scripted"]


class ModelSettings(Record, forbid_unknown_fields=True):
    """Where a model is and how to pay for it. The key itself is never kept, only where it lies."""

    provider: Provider
    model: str
    """The provider's name for it; for `scripted`, the path of the script."""
    base_url: str | None = None
    """Another server that speaks the provider's format."""
    key_env: str | None = None
    """Environment variable that holds the key; the provider's usual one when not given."""
    key_file: str | None = None
    input_price: float | None = None
    output_price: float | None = None
    cache_read_price: float | None = None
    cache_write_price: float | None = None
    """US dollars per million tokens."""
    timeout: float = 600.0
    retries: int = 4


class VariantSettings(Record, forbid_unknown_fields=True):
    """A variant as people write it."""

    agent: str = "builtin"
    model: str | None = None
    prompt: str | None = None
    """Path of a file with the system prompt."""
    settings: dict[str, str | int | float | bool] = {}
    limits: dict[str, Any] = {}
    """Those of the project's limits that differ for this variant."""


class Commands(Record, forbid_unknown_fields=True):
    """The project's own commands, found by `closeloop init`."""

    setup: tuple[str, ...] = ()
    test: str | None = None
    lint: str | None = None
    types: str | None = None
    build: str | None = None


class SandboxSettings(Record, forbid_unknown_fields=True):
    """How agents are caged."""

    kind: SandboxKind = "auto"
    read: tuple[str, ...] = ()
    """More paths that commands may read, such as a toolchain in the home folder."""
    env: tuple[str, ...] = ()
    """Names of environment variables handed on to commands."""


class Settings(Record, forbid_unknown_fields=True):
    """All of `closeloop.toml`."""

    tasks: str = "tasks"
    store: str = ".closeloop/closeloop.db"
    """A path, or `postgresql://…`."""
    cache: str | None = None
    """Where base trees are kept; `.closeloop/cache` when not given."""
    commands: Commands = Commands()
    limits: Limits = Limits()
    sandbox: SandboxSettings = SandboxSettings()
    models: dict[str, ModelSettings] = {}
    variants: dict[str, VariantSettings] = {}
    retries: int = 2
    """How often an attempt that could not be scored is begun again."""
