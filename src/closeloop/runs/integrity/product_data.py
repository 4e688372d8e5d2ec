"""Whether a file of data is part of the product: its code, its package or its request names it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from closeloop.model.globs import matches
from closeloop.runs.integrity.base_sources import BaseSources, SourceText, folders_above
from closeloop.runs.integrity.path_literals import (
    OWN_FOLDER,
    RECURSIVE,
    find_folder_literals,
    list_name_patterns,
)

_UPDATE_REQUEST = re.compile(
    r"\b(?:updat|regenerat|refresh|rewrit|re-?record|bless|adjust|replac)\w*\b[^.\n]{0,60}"
    r"\b(?:goldens?|snapshots?|fixtures?|expectations|expected (?:outputs?|results?|files?)"
    r"|baselines?|test data)\b",
    re.IGNORECASE,
)
_READING_CALL = re.compile(
    r"(?:files|contents|open\w*|read\w*|get_data|resource_\w+|listdir|scandir|walk|glob|Path)"
    r"\(\s*[\"'`]$"
)
_EXCLUDING_LINE = re.compile(r"^\s*(?:global-|recursive-)?(?:exclude|prune)\b.*$", re.MULTILINE)
_TOOL_TABLE = re.compile(
    r"^\[+tool\.(?!setuptools|poetry|flit|hatch|pdm|uv|scikit-build|maturin|meson-python)"
    r"[^\n]*\n(?:(?!\[)[^\n]*\n?)*",
    re.MULTILINE,
)
"""Tables of pyproject.toml that say nothing of what is packaged."""


def is_requested(prompt: str, path: str) -> bool:
    """Whether a request names a file or its folder, or asks for new expectations."""
    asked = prompt.lower()
    folder, _, name = path.lower().rpartition("/")
    if name in asked or (folder and f"{folder}/" in asked) or _UPDATE_REQUEST.search(prompt):
        return True
    last = re.escape(folder.rpartition("/")[2])
    place = rf"(?:`|\b){last}`?/|`{last}`|\b{last}\b`? (?:folder|directory)"
    return bool(folder) and re.search(place, asked) is not None


def is_product_file(sources: BaseSources, path: str) -> bool:
    """Whether code of the product, or the metadata of a package, names this very file."""
    name = path.rpartition("/")[2]
    word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    if any(name in source.text and word.search(source.text) for source in sources.product):
        return True
    return _is_put_together(sources, name) or _is_packaged(sources, path)


def _is_put_together(sources: BaseSources, name: str) -> bool:
    """Whether code of the product has the stem of a name as a literal, and adds its ending."""
    stem, dot, ending = name.rpartition(".")
    if not stem:
        return False
    alone = re.compile(rf"""["'`]{re.escape(stem)}["'`]""")
    if not any(stem in source.text and alone.search(source.text) for source in sources.product):
        return False
    return any(
        fnmatch.fnmatch(name, glob) and glob != "*"
        for source in sources.product
        if dot + ending in source.text
        for glob in list_name_patterns(source.text)
    )


def list_product_patterns(sources: BaseSources, folder: str) -> Iterator[str]:
    """Globs of the names in a folder that the product reads without naming each."""
    if any(_names_folder(sources, source, folder) for source in sources.product):
        yield "*"
        return
    above = {"", *folders_above(f"{folder}/x")}
    for source in sources.product:
        anchored = OWN_FOLDER.search(source.text) is not None
        below = source.folder in above and anchored and RECURSIVE.search(source.text) is not None
        over = anchored and f"{source.folder}/".startswith(f"{folder}/" if folder else "")
        if source.folder == folder or below or over:
            patterns = list_name_patterns(source.text)
            yield from (glob for glob in patterns if glob != "*" or anchored)


def _names_folder(sources: BaseSources, source: SourceText, folder: str) -> bool:
    """Whether a source names a folder or one above it, as a path and not as a package."""
    for place in folders_above(f"{folder}/x") if folder else ():
        for literal in find_folder_literals(source.text, place.rpartition("/")[2]):
            before, after = literal.groups()
            parts = [part for part in before.split("/") if part not in ("", ".", "..")]
            known = place.split("/")[:-1]
            shared = min(len(parts), len(known))
            if shared and parts[-shared:] != known[-shared:] and "}" not in before:
                continue
            opening = source.text[max(0, literal.start() - 40) : literal.start()]
            if place not in sources.product_folders or after or _READING_CALL.search(opening):
                return True
    return False


def _is_packaged(sources: BaseSources, path: str) -> bool:
    """Whether the metadata of a package lists a file, its folder, or files called like it."""
    packages = sources.product_folders
    folders = folders_above(path)
    in_package = any(folder in packages for folder in folders)
    for metadata in sources.metadata:
        for word in _metadata_words(metadata):
            if "*" in word and ("/" in word or in_package) and matches(path, (f"**/{word}",)):
                return True
            places = [path, *(folder for folder in folders if folder not in packages)]
            if any(place == word or place.endswith(f"/{word}") for place in places):
                return True
    return False


def _metadata_words(metadata: SourceText) -> Iterator[str]:
    text = metadata.text
    if metadata.path.endswith("pyproject.toml"):
        text = _TOOL_TABLE.sub("", text)
    if metadata.path.endswith(("MANIFEST.in", "setup.cfg")):
        words = re.split(r"[\s=,]+", _EXCLUDING_LINE.sub("", text))
    else:
        words = re.findall(r"""["']([^"'\s]+)["']""", text)
    for word in words:
        plain = re.sub(r"(?:/\*+)+$", "", word.removeprefix("./").rstrip("/"))
        if re.search(r"\w", plain):
            yield plain
