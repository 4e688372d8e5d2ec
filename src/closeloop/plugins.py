"""Find a plug-in by its kind and name; built-in ones are found the same way."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Literal, cast

from closeloop.records.errors import PluginFailed, unknown_name_error

PluginKind = Literal["agents", "checks", "detectors", "encoders", "judges", "readers", "scorers"]


def installed_plugins(kind: PluginKind) -> dict[str, EntryPoint]:
    """Return every installed plug-in of a kind."""
    entries = _read_entry_points(tuple(sys.path)).select(group=f"closeloop.{kind}")
    return {entry.name: entry for entry in entries}


@lru_cache(maxsize=1)
def _read_entry_points(path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of all packages on the path; slow, so cached."""
    return cast("EntryPoints", entry_points())


def load_plugin(kind: PluginKind, name: str) -> Any:
    """Load a plug-in: the object that its entry point names."""
    entries = installed_plugins(kind)
    if name not in entries:
        raise unknown_name_error(kind.removesuffix("s"), name, entries)
    return _load_entry_point(kind, entries[name])


def load_plugins(kind: PluginKind) -> list[Any]:
    """Load all plug-ins of a kind, ordered by name."""
    return [_load_entry_point(kind, entry) for _, entry in sorted(installed_plugins(kind).items())]


def _load_entry_point(kind: PluginKind, entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise PluginFailed(
            f"The {kind.removesuffix('s')} {entry.name!r} could not be loaded: {error}. "
            f"Reinstall the package that provides {entry.value!r}."
        ) from error
