"""Repositories and trees of files, for the tests of workspaces."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

Tree = dict[str, tuple[str, bytes]]
"""Path → how it is (`file`, `program`, `link`) and its content or target."""


def git(folder: Path, *arguments: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
    argv = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout.strip()


def plant(folder: Path, tree: Tree) -> None:
    for name, (kind, content) in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            os.symlink(content, os.fsencode(path))  # noqa: PTH211 (keeps every sign)
        else:
            path.write_bytes(content)
            path.chmod(0o755 if kind == "program" else 0o644)
