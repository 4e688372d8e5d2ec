"""How a program of others is called and understood, and where it lies on this machine."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from closeloop.records.attempt import Exit
from closeloop.records.protocols import Recording
from closeloop.records.record import Record
from closeloop.records.task import Limits

MAX_TAIL_BYTES = 4 << 20
"""Bytes at the end of what a program printed in which its last words are looked for."""
PLACEHOLDER_KEY = "closeloop"
"""Stands where a program wants a key: the real one never comes near it."""


class AgentCallRequest(Record):
    """What a program is called for."""

    prompt: str
    system: str | None
    model: str
    address: str
    """Of the gateway: `http://127.0.0.1:PORT`, where every format is spoken."""
    home: str
    workspace: str
    turns: int
    settings: Mapping[str, str | int | float | bool]
    again: bool = False
    """Go on with the session that is there, instead of beginning one."""


class AgentCall(Record):
    """How to start it."""

    arguments: Sequence[str]
    env: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    """To write before, by their paths below the home folder."""
    stdin: str | None = None


class AgentReport(Record):
    """How it ended, in its own words."""

    text: str | None = None
    """Its last words."""
    exit: Exit | None = None
    """Where it tells more than its exit code."""
    cause: str | None = None


class Adapter(Record):
    """One program of others."""

    name: str
    program: str
    """Its name in PATH."""
    package: str | None = None
    """The package that holds it, which knows its version."""
    install: str
    """The command that installs it."""
    oldest: str | None = None
    """The first version that is known to work."""
    call: Callable[[AgentCallRequest], AgentCall]
    understand: Callable[[bytes, Sequence[Recording]], AgentReport]
    """Given what it printed and left."""
    recordings: Sequence[str] = ()
    """Patterns below the home folder; a star may stand for folders too."""
    prints: bool = False
    """What it prints is its recording."""
    done: bytes | None = None
    """Printed when the work is done, by a program that lingers."""
    again: bool = True
    """Whether it can go on with a session."""
    needs_model: bool = True
    settings: Sequence[str] = ()
    """Names of settings of its own."""


def iterate_last_json_lines(printed: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects that were printed one a line, the last first."""
    for line in reversed(printed[-MAX_TAIL_BYTES:].splitlines()):
        if line[:1] == b"{":
            try:
                value = msgspec.json.decode(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value


def find_text(value: Any, *path: str) -> str | None:
    """The text that lies there, if one does."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) and value.strip() else None


def join_text_parts(content: Any) -> str | None:
    """The text in a provider's list of parts."""
    parts = content if isinstance(content, list) else []
    return "".join(find_text(part, "text") or "" for part in parts) or None


def openai_environment(use: AgentCallRequest) -> dict[str, str]:
    """Variables that point OpenAI's libraries, and those that follow them, at the gateway."""
    address = f"{use.address}/v1"
    return {
        "OPENAI_BASE_URL": address,
        "OPENAI_API_BASE": address,
        "OPENAI_API_KEY": PLACEHOLDER_KEY,
    }


# What every agent may be asked when its work is over.

FEEDBACK_QUESTION = """\
The work is over; change nothing any more. For those who write such requests and look after this \
repository: which information, context or instructions were missing, wrong or hard to find, so \
that you lost time or had to guess? Answer in a few plain sentences, the most useful first. If \
nothing was missing, say so.
"""
MAX_FEEDBACK_SECONDS, GRACE_SECONDS = 600.0, 20.0
"""For the answer, and how far it may reach beyond the time that the attempt has."""


def compute_feedback_seconds(limits: Limits, began: float) -> float:
    """How long an agent that began then, by the monotonic clock, may take to answer."""
    left = limits.seconds + GRACE_SECONDS - (time.monotonic() - began)
    return max(1.0, min(MAX_FEEDBACK_SECONDS, left))


# Programs of others on this machine: where one is, which version, and what it needs to run.

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
