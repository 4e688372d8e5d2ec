"""Which repository a folder belongs to, as far as the disk still knows."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_ORIGIN = re.compile(r'^\[remote "origin"\]\s*\n(?:[^\[]*\n)?\s*url\s*=\s*(\S+)', re.MULTILINE)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
MAX_CONFIG_CHARS = 1 << 20


@lru_cache(maxsize=10_000)
def repository_address(directory: str | None) -> str | None:
    """The address of its origin, else its top folder, else the directory itself."""
    if not directory or not directory.startswith("/"):
        return directory or None
    folder = Path(directory)
    try:
        for place in (folder, *folder.parents):
            git = place / ".git"
            if git.exists():
                return _origin_url(git) or str(place)
    except (OSError, ValueError):
        pass
    return directory


def _origin_url(git: Path) -> str | None:
    try:
        if git.is_file():  # a worktree, whose own folder is inside the repository's
            gitdir_line = git.read_text(encoding="utf-8", errors="replace")[:4096]
            git = Path(git.parent, gitdir_line.removeprefix("gitdir:").strip()).parent.parent
        with (git / "config").open(encoding="utf-8", errors="replace") as file:
            match = _ORIGIN.search(file.read(MAX_CONFIG_CHARS))
    except (OSError, ValueError):
        return None
    return _CREDENTIALS.sub("", match[1]) if match else None
