"""Known vulnerabilities of packages, from entries in the OSV format."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from closeloop.changes.risk.popular_packages import Ecosystem
from closeloop.records.errors import BadInput
from closeloop.records.record import Record

MAX_ADVISORY_BYTES = 500_000_000
OSV_ECOSYSTEMS: dict[Ecosystem, str] = {
    "pypi": "PyPI",
    "npm": "npm",
    "go": "Go",
    "crates": "crates.io",
    "maven": "Maven",
    "rubygems": "RubyGems",
    "packagist": "Packagist",
}
_ECOSYSTEMS = {name.lower(): ecosystem for ecosystem, name in OSV_ECOSYSTEMS.items()}
_MAX_VERSION_CHARS = 100
_PRERELEASE = re.compile(r"(?<=\d)[-.]?(?:a|b|c|rc|alpha|beta|dev|pre|preview)(?=[\d.-]|$)")


class Advisory(Record):
    """One package that one entry is about."""

    id: str
    ecosystem: Ecosystem
    package: str
    versions: frozenset[str] = frozenset()
    ranges: tuple[tuple[str, str | None, bool], ...] = ()
    """From which version, up to which, and whether that one is affected too."""


def read_advisories(path: Path) -> list[Advisory]:
    """All entries of a file, an archive or a folder; BadInput where there are none to read."""
    try:
        advisories = [
            advisory for content in _list_contents(path) for advisory in parse_advisories(content)
        ]
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        zipfile.BadZipFile,
    ) as error:
        raise BadInput(
            f"The advisories in {path.name} cannot be read ({error}): `check.advisories` names a"
            " file or folder in the OSV format."
        ) from None
    if not advisories:
        raise BadInput(f"There are no advisories in {path.name}: is it in the OSV format?")
    return advisories


def list_vulnerabilities(
    advisories: Sequence[Advisory], ecosystem: Ecosystem, package: str, version: str | None
) -> list[str]:
    """The ids of those that a version has; without a version, of those that were never fixed."""
    plain = version.lstrip("v") if version else None
    return sorted(
        {
            one.id
            for one in advisories
            if (one.ecosystem, one.package) == (ecosystem, package) and _is_affected(one, plain)
        }
    )


def _list_contents(path: Path) -> Iterator[bytes]:
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            yield _read_bounded(file)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_ADVISORY_BYTES:
                raise ValueError("it is too large")
            for entry in archive.infolist():
                if entry.filename.endswith(".json"):
                    yield archive.read(entry)
    elif path.suffix == ".jsonl":
        yield from filter(bytes.strip, _read_bounded(path).split(b"\n"))
    else:
        yield _read_bounded(path)


def _read_bounded(path: Path) -> bytes:
    if path.stat().st_size > MAX_ADVISORY_BYTES:
        raise ValueError("it is too large")
    return path.read_bytes()


def parse_advisories(content: bytes) -> Iterator[Advisory]:
    """One entry, a list of them, or what a query answers."""
    data = msgspec.json.decode(content)
    entries = data if isinstance(data, list) else data.get("vulns", [data])
    for entry in entries:
        if entry.get("withdrawn"):
            continue
        for affected in entry.get("affected") or ():
            package = affected.get("package") or {}
            ecosystem = _ECOSYSTEMS.get(str(package.get("ecosystem")).partition(":")[0].lower())
            if ecosystem:
                yield Advisory(
                    id=re.sub(r"[^\w.:-]", "?", str(entry["id"])[:80], flags=re.ASCII),
                    ecosystem=ecosystem,
                    package=_normalise_name(ecosystem, str(package.get("name"))),
                    versions=frozenset(map(str, affected.get("versions") or ())),
                    ranges=tuple(_parse_ranges(affected.get("ranges") or ())),
                )


def _parse_ranges(ranges: Sequence[Any]) -> Iterator[tuple[str, str | None, bool]]:
    for one in ranges:
        if one.get("type") == "GIT":
            continue
        start: str | None = None
        for event in one.get("events") or ():
            if "introduced" in event:
                start = str(event["introduced"])
            elif start is not None and ("fixed" in event or "last_affected" in event):
                inclusive = "last_affected" in event
                yield start, str(event["last_affected" if inclusive else "fixed"]), inclusive
                start = None
        if start is not None:
            yield start, None, False


def _normalise_name(ecosystem: Ecosystem, name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower() if ecosystem == "pypi" else name


def _is_affected(advisory: Advisory, version: str | None) -> bool:
    if version is None:
        return any(end is None for _, end, _ in advisory.ranges)
    if version in advisory.versions:
        return True
    at = version_key(version)
    return any(
        version_key(start) <= at
        and (end is None or at < version_key(end) or (inclusive and at == version_key(end)))
        for start, end, inclusive in advisory.ranges
    )


def version_key(version: str) -> tuple[tuple[int, ...], int]:
    """By numbers, zeros at the end left out; a release comes after what led up to it."""
    plain = version[:_MAX_VERSION_CHARS].lstrip("v").partition("+")[0]
    early = _PRERELEASE.search(plain)
    release = plain[: early.start()] if early else plain
    numbers = [int(part) for part in re.findall(r"\d+", release)]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers), 0 if early else 1
