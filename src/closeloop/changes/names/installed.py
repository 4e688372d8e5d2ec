"""Names that others' code offers: standard libraries, and packages installed beside the project."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

import zstandard

from closeloop.changes.syntax import words
from closeloop.model.inspection import Language

MOST_FILES = 3000
MOST_BYTES = 40_000_000
"""So much of a package is read; of a larger one nothing is said."""
_ENVIRONMENTS = (".venv", "venv", "env", ".env")
_LIBRARIES: dict[Language, str] = {
    "python": "python",
    "javascript": "javascript",
    "typescript": "javascript",
    "tsx": "javascript",
    "go": "go",
    "java": "java",
    "rust": "rust",
}
_ENDINGS: dict[str, tuple[str, ...]] = {"python": (".py", ".pyi"), "javascript": (".d.ts",)}
_NAMED = re.compile(rb"[a-z_]\w*$", re.IGNORECASE)


@cache
def standard(language: Language) -> Mapping[str, frozenset[str]]:
    """By module, the names of a language's standard library, of all its versions."""
    packed = (files(__package__) / "standard" / f"{_LIBRARIES[language]}.zst").read_bytes()
    text = zstandard.ZstdDecompressor().decompress(packed).decode()
    lines = (line.split(" ") for line in text.splitlines())
    return {line[0]: frozenset(line[1:]) for line in lines}


@cache
def standard_names(language: Language) -> frozenset[str]:
    """All of them at once."""
    return frozenset[str]().union(*standard(language).values())


def environment(root: Path) -> Path | None:
    """The virtual environment of a Python project."""
    for name in _ENVIRONMENTS:
        if (root / name / "pyvenv.cfg").is_file():
            return root / name
    return None


class Installed:
    """Packages that lie beside the project, each read when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: dict[tuple[str, str], frozenset[str] | None] = {}

    def names(self, language: Language, package: str) -> frozenset[str] | None:
        """Every word of a package; None where it is not installed or too large."""
        family = _LIBRARIES[language]
        key = family, package
        if key not in self._names:
            places = (
                list(self._places(family, package))
                if _NAMED.match(package.encode())
                or (family == "javascript" and ".." not in package)
                else []
            )
            self._names[key] = _read(places, _ENDINGS.get(family, ())) if places else None
        return self._names[key]

    def _places(self, family: str, package: str) -> Iterator[Path]:
        if family == "python" and (found := environment(self.root)):
            for library in (*found.glob("lib/python3*/site-packages"), found / "Lib/site-packages"):
                for name in (package, f"{package}.py", f"{package}.pyi", f"{package}-stubs"):
                    if (library / name).exists():
                        yield library / name
        elif family == "javascript":
            typed = "@types/" + package.removeprefix("@").replace("/", "__")
            for name in (package, typed):
                if (self.root / "node_modules" / name).is_dir():
                    yield self.root / "node_modules" / name


def _read(places: list[Path], endings: tuple[str, ...]) -> frozenset[str] | None:
    found: set[bytes] = set()
    seen = size = 0
    for place in places:
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.name.endswith(endings) and path.is_file():
                seen, size = seen + 1, size + path.stat().st_size
                if seen > MOST_FILES or size > MOST_BYTES:
                    return None
                found |= words(path.read_bytes())
    return frozenset(word.decode("utf-8", "replace") for word in found) if found else None
