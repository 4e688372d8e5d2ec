"""What a workspace lacks, told before anybody wonders why tests fail for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from closeloop.changes.kinds import is_pointer
from closeloop.changes.sources import Sides
from closeloop.model.globs import matches
from closeloop.model.inspection import Side

SUBMODULE = "160000"
MOST_READ = 200
MOST_GLOBS = 100
_FAILS = "what needs that content fails, without this change too"


def absent(sides: Sides) -> Iterator[str]:
    """A sentence for each kind of content that is not there, at either end."""
    modules = _modules(sides, "after")
    if modules:
        yield f"{_listed(modules, 'submodule')} empty in the workspaces: {_FAILS}"
    pointers = list(_pointers(sides))
    if pointers:
        yield f"{_listed(pointers, 'file')} kept by Git LFS, and not in the workspaces: {_FAILS}"
    large = [
        file.path
        for file in sides.change.files
        if (entry := sides.entries("after").get(file.path))
        and entry.mode != SUBMODULE
        and sides.read_blob(entry.id) is None
    ]
    if large:
        yield f"{_listed(large, 'changed file')} too large, and left out of the workspaces"


def _modules(sides: Sides, side: Side) -> list[str]:
    return [path for path, entry in sides.entries(side).items() if entry.mode == SUBMODULE]


def _pointers(sides: Sides) -> Iterator[str]:
    """Files that attributes give to LFS and whose content is a pointer; the first few are read."""
    tree = sides.tree("after")
    globs: list[str] = []
    for path in tree:
        if path == ".gitattributes" or path.endswith("/.gitattributes"):
            folder = path.removesuffix(".gitattributes")
            lines = (sides.read("after", path) or b"").splitlines()
            words = [line.split() for line in lines if b"filter=lfs" in line]
            globs += [_glob(folder, first) for first, *rest in words if b"filter=lfs" in rest]
    globs = [glob for glob in globs if len(glob) < 300 and glob.count("*") <= 6][:MOST_GLOBS]
    meant = [path for path in tree if matches(path, globs)] if globs else []
    yield from (path for path in meant[:MOST_READ] if is_pointer(sides.read("after", path) or b""))


def _glob(folder: str, pattern: bytes) -> str:
    """A pattern of an attributes file, seen from the root: one without a folder means any."""
    text = pattern.decode("utf-8", "replace")
    return f"{folder}{text.removeprefix('/')}" if "/" in text else f"{folder}**/{text}"


def _listed(paths: Sequence[str], noun: str) -> str:
    if len(paths) == 1:
        return f"the {noun} {paths[0]} is"
    return f"{len(paths)} {noun}s ({paths[0]}, …) are"
