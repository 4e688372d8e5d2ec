"""Whether a file of data is part of the product: its code, its package or its request names it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from functools import cache

from closeloop.grading.integrity.base_sources import BaseSources, SourceText, folders_above
from closeloop.grading.integrity.data_paths import holds_expectations
from closeloop.grading.integrity.path_literals import (
    OWN_FOLDER,
    find_folder_literals,
    list_name_patterns,
    reads_subfolders,
)
from closeloop.text.wording import matches_globs

_UPDATE_REQUEST = re.compile(
    r"\b(?:updat|regenerat|refresh|rewrit|re-?record|bless|adjust|replac)\w*\b[^.\n]{0,60}"
    r"\b(?:goldens?|snapshots?|fixtures?|expectations|expected (?:outputs?|results?|files?)"
    r"|baselines?|test data)\b",
    re.IGNORECASE,
)
_NAME = re.compile(r"""["'`]([\w.-]+)(?=["'`])""")
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


def make_product_test(sources: BaseSources) -> Callable[[str], bool]:
    """A function that says whether code of the product, or its package, names a file."""
    patterns = cache(lambda folder: set(_patterns_in_folder(sources, folder)))
    names = cache(lambda ending: _list_names(sources, ending))
    literals = cache(lambda: _list_literals(sources))
    adds_ending = cache(lambda ending: _adds_ending(sources, ending))

    def is_product_data(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        stem, dot, ending = name.rpartition(".")
        return (
            any(fnmatch.fnmatch(name, glob) for glob in patterns(folder))
            or re.split(r"[^\w.-]", name)[-1] in names(dot + ending)
            or (stem in literals() and adds_ending(dot + ending))
            or _is_packaged(sources, path)
        )

    return is_product_data


def _list_names(sources: BaseSources, ending: str) -> set[str]:
    """All names with an ending that code of the product has anywhere, in comments too."""
    name = re.compile(rf"[\w.-]*{re.escape(ending)}(?![\w-])")
    found = (name.findall(source.text) for source in sources.product if ending in source.text)
    return {name for names in found for name in names}


def _list_literals(sources: BaseSources) -> set[str]:
    """The literals of the product that may be the name of a file without its ending."""
    return {literal for source in sources.product for literal in _NAME.findall(source.text)}


def _adds_ending(sources: BaseSources, ending: str) -> bool:
    """Whether code of the product adds an ending to names, or looks for it."""
    return any(
        glob.endswith(ending) and glob != ending
        for source in sources.product
        if ending in source.text
        for glob in list_name_patterns(source.text)
    )


def _patterns_in_folder(sources: BaseSources, folder: str) -> Iterator[str]:
    """Globs of the names in a folder that the product reads without naming each."""
    if any(_names_folder(sources, source, folder) for source in sources.product):
        yield "*"
        return
    above = {"", *folders_above(f"{folder}/x")}
    for source in sources.product:
        is_below = source.folder in above
        is_above = f"{source.folder}/".startswith(f"{folder}/" if folder else "")
        if not is_below and not is_above:
            continue
        is_anchored = OWN_FOLDER.search(source.text) is not None
        reaches = is_above or reads_subfolders(source.text)
        if source.folder == folder or (is_anchored and reaches):
            patterns = list_name_patterns(source.text)
            yield from (glob for glob in patterns if glob != "*" or is_anchored)


def _names_folder(sources: BaseSources, source: SourceText, folder: str) -> bool:
    """Whether a source names a folder or one above it, as a path and not as a package."""
    for place in folders_above(f"{folder}/x") if folder else ():
        above, _, name = place.rpartition("/")
        alone_is_vague = holds_expectations(above) and not holds_expectations(name)
        for literal in find_folder_literals(source.text, name):
            before, after = literal.groups()
            parts = [part for part in before.split("/") if part not in ("", ".", "..")]
            shared = min(len(parts), len(above.split("/"))) if above else 0
            if shared and parts[-shared:] != above.split("/")[-shared:] and "}" not in before:
                continue
            if alone_is_vague and not shared:
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
            if "*" in word and ("/" in word or in_package) and matches_globs(path, (f"**/{word}",)):
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
