"""Which repository a folder belongs to, as far as the disk still knows."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_ORIGIN = re.compile(r'^\[remote "origin"\]\s*\n(?:[^\[]*\n)?\s*url\s*=\s*(\S+)', re.MULTILINE)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
LARGEST_CONFIGURATION = 1 << 20


@lru_cache(maxsize=10_000)
def repository_of(directory: str | None) -> str | None:
    """The address of its origin, else its top folder, else the directory itself."""
    if not directory or not directory.startswith("/"):
        return directory or None
    folder = Path(directory)
    try:
        for place in (folder, *folder.parents):
            git = place / ".git"
            if git.exists():
                return _origin(git) or str(place)
    except (OSError, ValueError):
        pass
    return directory


def _origin(git: Path) -> str | None:
    try:
        if git.is_file():  # a worktree, whose own folder is inside the repository's
            named = git.read_text(encoding="utf-8", errors="replace")[:4096]
            git = Path(git.parent, named.removeprefix("gitdir:").strip()).parent.parent
        with (git / "config").open(encoding="utf-8", errors="replace") as file:
            found = _ORIGIN.search(file.read(LARGEST_CONFIGURATION))
    except (OSError, ValueError):
        return None
    return _CREDENTIALS.sub("", found[1]) if found else None
