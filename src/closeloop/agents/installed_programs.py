"""Programs of others on this machine: where one is, which version, and what it needs to run."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from closeloop.records.record import Record

VERSION_SECONDS = 60.0
MAX_SHEBANG_BYTES = 256
_NUMBER = re.compile(r"\d+(?:\.\d+){1,3}[\w.+-]{0,40}")


class InstalledProgram(Record):
    """A program as it was found."""

    path: str
    """Without links: what is really run."""
    version: str | None
    shown: tuple[str, ...]
    """What a cage must show for it to run."""
    search: tuple[str, ...] = ()
    """Folders of interpreters that it looks for by name."""


def find_installed_program(name: str, package: str | None = None) -> InstalledProgram | None:
    """A program by its path, or by its name in PATH; None when there is none."""
    program_path = shutil.which(str(Path(name).expanduser()))
    if program_path is None:
        return None
    real_path = os.path.realpath(program_path)
    return _inspect_program(real_path, package, Path(real_path).stat().st_mtime_ns)


@functools.cache
def _inspect_program(real: str, package: str | None, changed: int) -> InstalledProgram:
    parts, search = _find_needed_paths(real)
    # Any program at all may do anything when it is asked: its content stands for its version.
    version = (
        (_packaged_version(real, package) or _printed_version(real))
        if package
        else _digest_file(real)
    )
    shown = tuple(dict.fromkeys(parts))
    return InstalledProgram(path=real, version=version, shown=shown, search=tuple(search))


def _find_needed_paths(path: str) -> tuple[list[str], list[str]]:
    """A file's installation and, for a script, its interpreter's; and folders to search."""
    shown, search = _installation_paths(path), []
    line = _read_shebang(path)
    if line and Path(line[0]).name == "env":
        names = [word for word in line[1:] if not word.startswith("-") and "=" not in word]
        line = [shutil.which(names[0]) or ""] if names else []
        search += [str(Path(line[0]).parent)] if line and line[0] else []
    if line and Path(line[0]).is_file():
        shown += [*_installation_paths(line[0]), *_installation_paths(os.path.realpath(line[0]))]
    return shown, search


def _installation_paths(path: str) -> list[str]:
    """All its packages for a Node program, the environment of a Python one, else the file."""
    above = Path(path).parents
    modules = [folder for folder in above if folder.name == "node_modules"]
    if modules:
        return [str(modules[-1])]
    for folder in above:
        if (folder / "pyvenv.cfg").is_file():
            return _prefix_folders(folder) if Path.home().is_relative_to(folder) else [str(folder)]
    bin_, prefix = above[0], above[0].parent
    if bin_.name == "bin" and any((prefix / "lib").glob("python3*")):
        return _prefix_folders(prefix)  # an interpreter is nothing without its library
    return [path]


def _prefix_folders(folder: Path) -> list[str]:
    """Of an installation only what is programs: it may be somebody's home, or the whole system."""
    names = ("bin", "lib", "lib64", "include")
    return [str(folder / name) for name in names if (folder / name).is_dir()]


def _read_shebang(path: str) -> list[str]:
    with Path(path).open("rb") as file:
        head = file.read(MAX_SHEBANG_BYTES)
    return os.fsdecode(head[2:].splitlines()[0]).split() if head[:2] == b"#!" else []


def _digest_file(real: str) -> str:
    with Path(real).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _packaged_version(real: str, package: str) -> str | None:
    """As the package that holds the program says, which costs no start of it."""
    for folder in Path(real).parents:
        manifest = folder / "package.json"
        if (
            manifest.is_file()
            and (package_manifest := _read_package_manifest(manifest)).get("name") == package
        ):
            return str(package_manifest.get("version") or "") or None
        if (folder / "pyvenv.cfg").is_file():
            name = re.sub(r"[-_.]+", "_", package)
            for dist_info in folder.glob(f"lib/python3*/site-packages/{name}-*.dist-info"):
                return dist_info.name.removesuffix(".dist-info").rpartition("-")[2]
    return None


def _read_package_manifest(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _printed_version(real: str) -> str | None:
    """As the program itself says, in a home of its own."""
    with tempfile.TemporaryDirectory(prefix="closeloop-version-") as folder:
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "TERM": "dumb"}
        try:
            completed = subprocess.run(
                [real, "--version"],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=VERSION_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    version_match = _NUMBER.search(completed.stdout[:4096].decode(errors="replace"))
    return version_match[0] if version_match else None
