"""Take a secret that got in out of a store, and leave a tombstone that says so."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.session import Purge
from closeloop.store import Store
from closeloop.text.redaction import redact_json, redact_patch, redact_text, redact_value

MIN_SECRET_CHARACTERS = 8
PURGED_MARK = "[purged]"
UNREDACTED_TABLES = ("tasks",)
"""What grading runs is the user's own: known forms in it are mostly made-up keys of tests."""
MAX_FILE_BYTES = 64 << 20


class PurgeResult(Record):
    """What a purge found, and whether it was done."""

    kind: str
    records: int
    places: dict[str, int]
    """Records by table."""
    done: bool
    purge: Purge | None = None
    """The tombstone; None where nothing was removed."""
    left: dict[str, int] = {}
    """Records that hold known forms and are left alone, by table."""
    files: tuple[str, ...] = ()
    """Files beside the store that hold the secret."""


def purge_secret(store: Store, secret: str, *, who: str, apply: bool) -> PurgeResult:
    """Replace a secret in everything that is stored; only count where `apply` is not set."""
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise BadInput(
            f"A secret of {len(secret)} characters would be found in ordinary text: "
            f"give one of at least {MIN_SECRET_CHARACTERS}."
        )
    removal = _SecretRemoval(secret)
    if not apply:
        return _dry_result("secret", store.purges.count_records(removal.rewrite_value))
    purge = store.purges.rewrite_records(
        removal.rewrite_value, _make_tombstone_builder("secret", who, removal.salted_digest)
    )
    return _applied_result("secret", purge)


def purge_known_forms(store: Store, *, who: str, apply: bool) -> PurgeResult:
    """Run today's redaction over everything that is stored, but for the tasks."""
    redaction = _FormRedaction()
    places = store.purges.count_records(redaction.rewrite_value)
    left = {name: places.pop(name) for name in UNREDACTED_TABLES if name in places}
    result = _dry_result("known", places)
    if apply:
        redaction = _FormRedaction()
        tombstone = _make_tombstone_builder("known", who, redaction.salted_digest)
        purge = store.purges.rewrite_records(redaction.rewrite_value, tombstone, UNREDACTED_TABLES)
        result = _applied_result("known", purge)
    return replace(result, left=left)


def files_with_secret(secret: str, folder: Path) -> Iterator[str]:
    """Files in a folder that hold a secret as it is; databases are for `purge_secret`."""
    secret_bytes = secret.encode()
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        try:
            if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
                continue
            if secret_bytes in path.read_bytes():
                yield str(path)
        except OSError:
            continue  # gone, or not ours to read


def _dry_result(kind: str, places: dict[str, int]) -> PurgeResult:
    return PurgeResult(kind=kind, records=sum(places.values()), places=places, done=False)


def _applied_result(kind: str, made: Purge | None) -> PurgeResult:
    places = made.places if made else {}
    records = sum(places.values())
    return PurgeResult(kind=kind, records=records, places=places, done=True, purge=made)


def _make_tombstone_builder(
    kind: str, who: str, digest: Callable[[], str]
) -> Callable[[dict[str, int]], Purge]:
    def build_tombstone(places: dict[str, int]) -> Purge:
        records = sum(places.values())
        at = datetime.now(UTC)
        return Purge(at=at, who=who, kind=kind, records=records, places=places, digest=digest())

    return build_tombstone


class _SecretRemoval:
    """Replaces a secret, also as JSON, URLs and base 64 write it."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        escaped = msgspec.json.encode(secret)[1:-1].decode()
        ways = [secret, escaped, msgspec.json.encode(escaped)[1:-1].decode(), quote(secret, "")]
        ways.append(base64.b64encode(secret.encode("utf-8", "replace")).decode().rstrip("="))
        self._ways = sorted(dict.fromkeys(ways), key=len, reverse=True)

    def salted_digest(self) -> str:
        """A salted digest, slow to guess: it only confirms the secret to whoever has it."""
        salt = os.urandom(16)
        content = self._secret.encode("utf-8", "replace")
        made = hashlib.scrypt(content, salt=salt, n=2**14, r=8, p=1, dklen=32)
        return f"scrypt:{salt.hex()}:{made.hex()}"

    def rewrite_value(self, value: Any) -> Any:
        """A text, bytes or a decoded record without the secret."""
        match value:
            case str():
                for way in self._ways:
                    value = value.replace(way, PURGED_MARK)
                return value
            case bytes():
                for way in self._ways:
                    value = value.replace(way.encode(), PURGED_MARK.encode())
                return value
            case dict():
                return {
                    self.rewrite_value(key): self.rewrite_value(each) for key, each in value.items()
                }
            case list():
                return [self.rewrite_value(each) for each in value]
        return value


class _FormRedaction:
    """Redacts all known forms, and remembers a digest of what held them."""

    def __init__(self) -> None:
        self._salt = os.urandom(16)
        self._removed = hashlib.blake2b(key=self._salt, digest_size=32)

    def salted_digest(self) -> str:
        """A salted digest of the records as they were."""
        return f"blake2b:{self._salt.hex()}:{self._removed.hexdigest()}"

    def rewrite_value(self, value: Any) -> Any:
        """A text, bytes or a decoded record without secrets of known forms."""
        match value:
            case str():
                new: Any = redact_text(value, {})
            case bytes():
                new = redact_json(value)
            case _:
                new = redact_value(_redact_patches(value))
        if new != value:
            self._removed.update(msgspec.msgpack.encode(value))
        return new


def _redact_patches(value: Any) -> Any:
    """Patches are redacted line by line, or else they could not be read any more."""
    match value:
        case dict():
            return {
                key: redact_patch(each)
                if key == "patch" and isinstance(each, str)
                else _redact_patches(each)
                for key, each in value.items()
            }
        case list():
            return [_redact_patches(each) for each in value]
    return value
