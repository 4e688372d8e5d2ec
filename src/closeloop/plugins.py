"""Find a plug-in by its kind and name: built-in ones by the same door."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from closeloop.records.errors import PluginFailed, unknown_name_error

PluginKind = Literal["agents", "checks", "detectors", "encoders", "judges", "readers", "scorers"]


def installed_plugins(kind: PluginKind) -> dict[str, EntryPoint]:
    """Every plug-in of a kind that is installed."""
    return {entry.name: entry for entry in entry_points(group=f"closeloop.{kind}")}


def load_plugin(kind: PluginKind, name: str) -> Any:
    """The plug-in itself: whatever its entry point names."""
    entries = installed_plugins(kind)
    if name not in entries:
        raise unknown_name_error(kind.removesuffix("s"), name, entries)
    return _load_entry_point(kind, entries[name])


def load_plugins(kind: PluginKind) -> list[Any]:
    """All of a kind, in the order of their names."""
    return [_load_entry_point(kind, entry) for _, entry in sorted(installed_plugins(kind).items())]


def _load_entry_point(kind: PluginKind, entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise PluginFailed(
            f"The {kind.removesuffix('s')} {entry.name!r} could not be loaded: {error}. "
            f"Reinstall the package that provides {entry.value!r}."
        ) from error
