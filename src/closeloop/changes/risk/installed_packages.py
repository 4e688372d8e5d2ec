"""What the packages installed beside the sources say of themselves: version and licence."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from closeloop.changes.risk.popular_packages import Ecosystem
from closeloop.records.record import Record

_ENVIRONMENTS = (".venv", "venv", "env", ".env")
_MAX_METADATA_CHARS = 20_000
_LICENCE_TEXTS = (
    ("Apache-2.0", "Apache License"),
    ("MPL-2.0", "Mozilla Public License"),
    ("AGPL", "GNU AFFERO GENERAL PUBLIC LICENSE"),
    ("LGPL", "GNU LESSER GENERAL PUBLIC LICENSE"),
    ("GPL", "GNU GENERAL PUBLIC LICENSE"),
    ("MIT", "Permission is hereby granted, free of charge"),
    ("BSD", "Redistribution and use in source and binary forms"),
    ("ISC", "Permission to use, copy, modify, and/or distribute"),
)
"""How a licence file that states no name is known."""


class InstalledPackage(Record):
    """As its own metadata says."""

    version: str | None = None
    licence: str | None = None


def find_installed_package(root: Path, ecosystem: Ecosystem, name: str) -> InstalledPackage | None:
    """The package, where it is installed beside the sources and can be read; else None."""
    try:
        if ecosystem == "npm" and re.fullmatch(r"(?:@[\w.-]+/)?[\w.-]+", name) and ".." not in name:
            return _read_package_json(root / "node_modules" / name)
        if ecosystem == "pypi":
            return _find_distribution(root, name)
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    return None


def _read_package_json(folder: Path) -> InstalledPackage:
    facts = msgspec.json.decode((folder / "package.json").read_bytes()[:200_000])
    licence, version = facts.get("license"), facts.get("version")
    return InstalledPackage(
        version=version if isinstance(version, str) else None,
        licence=licence[:80] if isinstance(licence, str) else None,
    )


def _find_distribution(root: Path, name: str) -> InstalledPackage | None:
    for place in _ENVIRONMENTS:
        for ending, file in (("dist-info", "METADATA"), ("egg-info", "PKG-INFO")):
            for folder in (root / place).glob(f"lib/python3*/site-packages/*.{ending}"):
                stem = re.sub(r"[-_.]+", "-", folder.name.partition("-")[0]).lower()
                if stem == name and folder.is_dir():
                    return _read_metadata(folder, file)
    return None


def _read_metadata(folder: Path, file: str) -> InstalledPackage:
    head = (folder / file).read_text("utf-8", "replace")[:_MAX_METADATA_CHARS].partition("\n\n")[0]
    version = re.search(r"^Version:\s*(\S{1,80})", head, re.MULTILINE)
    stated = re.search(r"^License-Expression:\s*(.{1,80})$", head, re.MULTILINE) or re.search(
        r"^License:\s*(.{1,80})$", head, re.MULTILINE
    )
    listed = re.search(r"^Classifier: License ::.*:: (.{1,80})$", head, re.MULTILINE)
    chosen = stated or listed
    licence = chosen[1].strip() if chosen else None
    if licence is None or licence.upper() == "UNKNOWN":
        licence = _licence_of_text(folder)
    return InstalledPackage(version=version[1] if version else None, licence=licence)


def _licence_of_text(folder: Path) -> str | None:
    """By the words of the licence file, where the metadata names none."""
    for path in sorted(folder.rglob("*LICEN[CS]E*"))[:3]:
        text = path.read_text("utf-8", "replace")[:3_000]
        for name, words in _LICENCE_TEXTS:
            if words in text:
                return name
    return None
