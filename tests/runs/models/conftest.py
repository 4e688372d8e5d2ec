"""A provider for every test that asks for one."""

from __future__ import annotations

from provider_server import provider

__all__ = ["provider"]
