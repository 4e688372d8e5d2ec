"""Find a plug-in by its kind and name; built-in ones are found the same way.

Entry points are read from the files that installers write. `importlib.metadata` would read the same
ones, and takes a tenth of the time of a short command; it is used for packages in archives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, get_args

from closeloop.records.errors import PluginFailed, unknown_name_error
from closeloop.records.record import Record

PluginKind = Literal["agents", "checks", "detectors", "encoders", "judges", "readers", "scorers"]


class InstalledPlugin(Record):
    """The entry point of a plug-in."""

    name: str
    group: str
    value: str
    """`module:object`."""

    @property
    def module(self) -> str:
        return self.value.partition(":")[0].strip()

    def load(self) -> Any:
        """Import the object that it names."""
        loaded: Any = import_module(self.module)
        for name in filter(None, self.value.partition(":")[2].strip().split(".")):
            loaded = getattr(loaded, name)
        return loaded


def installed_plugins(kind: PluginKind) -> dict[str, InstalledPlugin]:
    """Return every installed plug-in of a kind."""
    group = f"closeloop.{kind}"
    return {
        entry.name: entry for entry in _read_entry_points(tuple(sys.path)) if entry.group == group
    }


@lru_cache(maxsize=1)
def _read_entry_points(search_paths: tuple[str, ...]) -> tuple[InstalledPlugin, ...]:
    """Return the entry points of closeloop of all packages on the path."""
    if any(os.path.isfile(path) for path in search_paths):  # noqa: PTH113 (an archive)
        from importlib.metadata import entry_points

        groups = [f"closeloop.{kind}" for kind in get_args(PluginKind)]
        return tuple(
            InstalledPlugin(name=entry.name, group=group, value=entry.value)
            for group in groups
            for entry in entry_points(group=group)
        )
    packages: dict[str, str] = {}
    for path in search_paths:
        with suppress(OSError), os.scandir(path or ".") as entries:
            for entry in entries:
                if entry.name.endswith((".dist-info", ".egg-info")):
                    # The first of several with one name is the one that is imported.
                    name = entry.name.rpartition(".")[0].partition("-")[0].lower()
                    packages.setdefault(name.replace(".", "_"), entry.path)
    return tuple(entry for path in packages.values() for entry in _read_package(path))


def _read_package(info_folder: str) -> Iterator[InstalledPlugin]:
    """Read the entry points of closeloop that a package declares."""
    try:
        with open(f"{info_folder}/entry_points.txt", encoding="utf-8") as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return
    group = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            group = line.strip("[] ")
        elif group.startswith("closeloop.") and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            plain_value = value.partition("[")[0].strip()  # without its extras
            yield InstalledPlugin(name=name.strip(), group=group, value=plain_value)


def load_plugin(kind: PluginKind, name: str) -> Any:
    """Load a plug-in: the object that its entry point names."""
    entries = installed_plugins(kind)
    if name not in entries:
        raise unknown_name_error(kind.removesuffix("s"), name, entries)
    return _load_entry_point(kind, entries[name])


def load_plugins(kind: PluginKind) -> list[Any]:
    """Load all plug-ins of a kind, ordered by name."""
    return [_load_entry_point(kind, entry) for _, entry in sorted(installed_plugins(kind).items())]


def _load_entry_point(kind: PluginKind, entry: InstalledPlugin) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise PluginFailed(
            f"The {kind.removesuffix('s')} {entry.name!r} could not be loaded: {error}. "
            f"Reinstall the package that provides {entry.value!r}."
        ) from error
