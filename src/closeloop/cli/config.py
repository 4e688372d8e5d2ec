"""Find and read `closeloop.toml`, once: flag > environment > file > default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from closeloop.cli.files import content_of
from closeloop.model.errors import BadInput
from closeloop.model.record import Record
from closeloop.model.settings import Settings

NAME = "closeloop.toml"
LARGEST_FILE = 1 << 20


class Configuration(Record):
    """What holds in a folder. Paths in the settings are relative to the root, or absolute."""

    file: Path | None
    """None where there is no closeloop.toml."""
    root: Path
    settings: Settings


def load(folder: Path, *, environ: Mapping[str, str] = os.environ) -> Configuration:
    """The configuration that holds in a folder."""
    folder = folder.absolute()
    file = find(folder)
    settings = read(file) if file else Settings()
    overrides = {
        "store": environ.get("CLOSELOOP_STORE"),
        "cache": environ.get("CLOSELOOP_CACHE"),
    }
    # What is typed in a shell is meant from where one stands, not from where the file lies.
    changes = {
        name: value if "://" in value else str(folder / Path(value).expanduser())
        for name, value in overrides.items()
        if value
    }
    root = file.parent if file else repository(folder) or folder
    settings = msgspec.structs.replace(_expanded(settings, root), **changes)
    return Configuration(file=file, root=root, settings=settings)


def _expanded(settings: Settings, root: Path) -> Settings:
    """Paths as people write them: `~` is their home, and a relative one starts at the root."""

    def full(path: str) -> str:
        return path if "://" in path else str(Path(path).expanduser())

    read = tuple(str(root / full(path)) for path in settings.sandbox.read)
    return msgspec.structs.replace(
        settings,
        tasks=full(settings.tasks),
        store=full(settings.store),
        cache=settings.cache and full(settings.cache),
        sandbox=msgspec.structs.replace(settings.sandbox, read=read),
    )


def find(folder: Path) -> Path | None:
    """The nearest closeloop.toml, from a folder upwards."""
    above = (place / NAME for place in (folder, *folder.parents))
    return next((file for file in above if file.is_file()), None)


def repository(folder: Path) -> Path | None:
    """The top of the git repository a folder lies in."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)


def read(file: Path) -> Settings:
    """The settings of one file."""
    import tomllib

    from closeloop.model.reading import read_record

    content = content_of(file, LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise BadInput(f"{file} is too large to be a configuration.")
    try:
        written = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is not UTF-8 text: save it as UTF-8.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{file} is not valid TOML: {error}.") from error
    settings = read_record(written, Settings, str(file))
    _demand_sense(settings, file)
    return settings


def _demand_sense(settings: Settings, file: Path) -> None:
    if settings.retries < 0:
        raise BadInput(f"{file}: 'retries' must not be negative.")
    from closeloop.model.reading import read_change

    limits = {"limits": settings.limits}
    for name, variant in settings.variants.items():
        path = f"variants.{name}.limits"
        limits[path] = read_change(settings.limits, variant.limits, str(file), path)
    for path, limit in limits.items():
        for name, value in msgspec.structs.asdict(limit).items():
            if value is not None and not value > 0:
                raise BadInput(f"{file}: '{path}.{name}' must be more than 0.")
