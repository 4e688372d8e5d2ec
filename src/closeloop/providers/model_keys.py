"""Where keys lie: in the environment, in a file, or in the system's keyring."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path

from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.settings import ModelSettings


class FoundKey(Record):
    """Where a model's key is looked for."""

    told: str
    """As messages name it: never the key itself."""
    key: str | None


def find_key(
    name: str, settings: ModelSettings, usual: str, environ: Mapping[str, str], folder: Path
) -> FoundKey:
    """The key of a model, and where it came from; `usual` is the provider's own variable."""
    if settings.key_file is not None:
        source, key = settings.key_file, _read_key_file(name, folder, settings.key_file)
    elif settings.key_keyring is not None:
        source, key = f"the keyring's {settings.key_keyring}", _read_keyring(name, settings)
    else:
        source = settings.key_env or usual
        key = environ.get(source, "").strip()
    # Checked here because the HTTP library would quote a bad key in its complaint.
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise BadInput(f"What {source} holds is not a key: it should be one word.")
    return FoundKey(told=source, key=key or None)


def _read_key_file(name: str, folder: Path, file: str) -> str:
    path = folder / Path(file).expanduser()
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"The key file {path} of {name!r} cannot be read: check it.") from None


def _read_keyring(name: str, settings: ModelSettings) -> str:
    service, slash, user = (settings.key_keyring or "").rpartition("/")
    if not slash:
        raise BadInput(f"The key_keyring of {name!r} should be 'service/user'.")
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        raise BadInput(
            f"The key of {name!r} is in a keyring: install the package keyring, or use key_env."
        ) from None
    try:
        return str(keyring.get_password(service, user) or "").strip()
    except Exception as error:  # each system's keyring has errors of its own
        kind = type(error).__name__
        raise BadInput(f"The keyring cannot be read ({kind}): unlock it, or use key_env.") from None
