"""What a workspace lacks, told before anybody wonders why tests fail for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import is_lfs_pointer
from closeloop.records.globs import matches_globs
from closeloop.records.inspection import ChangeSide

SUBMODULE_MODE = "160000"
MAX_READ_FILES = 200
MAX_GLOBS = 100
_CONSEQUENCE = "what needs that content fails, without this change too"


def describe_missing_content(sides: ChangeSides) -> Iterator[str]:
    """A sentence for each kind of content that is not there, at either end."""
    modules = _submodule_paths(sides, "after")
    if modules:
        yield f"{_subject_phrase(modules, 'submodule')} empty in the workspaces: {_CONSEQUENCE}"
    pointers = list(_lfs_pointer_paths(sides))
    if pointers:
        yield (
            f"{_subject_phrase(pointers, 'file')} kept by Git LFS, and not in the workspaces:"
            f" {_CONSEQUENCE}"
        )
    large = [
        file.path
        for file in sides.change.files
        if (entry := sides.list_entries("after").get(file.path))
        and entry.mode != SUBMODULE_MODE
        and sides.read_blob(entry.id) is None
    ]
    if large:
        yield f"{_subject_phrase(large, 'changed file')} too large, and left out of the workspaces"


def _submodule_paths(sides: ChangeSides, side: ChangeSide) -> list[str]:
    return [
        path for path, entry in sides.list_entries(side).items() if entry.mode == SUBMODULE_MODE
    ]


def _lfs_pointer_paths(sides: ChangeSides) -> Iterator[str]:
    """Files that attributes give to LFS and whose content is a pointer; the first few are read."""
    tree = sides.tree("after")
    globs: list[str] = []
    for path in tree:
        if path == ".gitattributes" or path.endswith("/.gitattributes"):
            folder = path.removesuffix(".gitattributes")
            lines = (sides.read("after", path) or b"").splitlines()
            words = [line.split() for line in lines if b"filter=lfs" in line]
            globs += [_root_glob(folder, first) for first, *rest in words if b"filter=lfs" in rest]
    globs = [glob for glob in globs if len(glob) < 300 and glob.count("*") <= 6][:MAX_GLOBS]
    lfs_paths = [path for path in tree if matches_globs(path, globs)] if globs else []
    yield from (
        path
        for path in lfs_paths[:MAX_READ_FILES]
        if is_lfs_pointer(sides.read("after", path) or b"")
    )


def _root_glob(folder: str, pattern: bytes) -> str:
    """A pattern of an attributes file, seen from the root: one without a folder means any."""
    text = pattern.decode("utf-8", "replace")
    return f"{folder}{text.removeprefix('/')}" if "/" in text else f"{folder}**/{text}"


def _subject_phrase(paths: Sequence[str], noun: str) -> str:
    if len(paths) == 1:
        return f"the {noun} {paths[0]} is"
    return f"{len(paths)} {noun}s ({paths[0]}, …) are"
