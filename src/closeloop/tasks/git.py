"""Ask git about repositories of others: without their hooks, and without the caller's setting."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from closeloop.model.errors import BadInput


def git(folder: Path | str, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    """What git says; BadInput when it fails."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    options = ("-c", "core.quotePath=false", "-c", "core.hooksPath=/dev/null")
    ran = subprocess.run(
        ["git", "-C", str(folder), *options, *arguments],
        env={**plain, "LC_ALL": "C", "GIT_LFS_SKIP_SMUDGE": "1", **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if ran.returncode != 0:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = said[-1] if said else "it failed"
        raise BadInput(f"git {arguments[0]} in {folder}: {reason}.")
    return ran.stdout.decode("utf-8", "surrogateescape")
