"""Find a plug-in by its kind and name: built-in ones by the same door."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from closeloop.model.errors import PluginFailed, unknown

Kind = Literal["agents", "checks", "detectors", "encoders", "judges", "readers"]


def known(kind: Kind) -> dict[str, EntryPoint]:
    """Every plug-in of a kind that is installed."""
    return {entry.name: entry for entry in entry_points(group=f"closeloop.{kind}")}


def find(kind: Kind, name: str) -> Any:
    """The plug-in itself: whatever its entry point names."""
    entries = known(kind)
    if name not in entries:
        raise unknown(kind.removesuffix("s"), name, entries)
    return _load(kind, entries[name])


def every(kind: Kind) -> list[Any]:
    """All of a kind, in the order of their names."""
    return [_load(kind, entry) for _, entry in sorted(known(kind).items())]


def _load(kind: Kind, entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise PluginFailed(
            f"The {kind.removesuffix('s')} {entry.name!r} could not be loaded: {error}. "
            f"Reinstall the package that provides {entry.value!r}."
        ) from error
