"""What a fast type checker says of added lines and did not say before."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from closeloop.changes.names.installed import environment, standard
from closeloop.model.inspection import Inspection, Side
from closeloop.model.record import Record, digest

Kind = Literal["attribute", "import", "name", "keyword"]

SECONDS = 30.0
MOST_FILES = 20_000
"""So many modules are laid out for it; a larger repository is not looked at."""
LARGEST = 1_000_000
MOST_BYTES = 50_000_000
"""So much of its report is read."""
_PACKAGES = "lib/python3*/site-packages"
_SOURCES = (".py", ".pyi")
_RULES: dict[str, Kind] = {
    **dict.fromkeys(("missing-attribute", "unresolved-attribute"), "attribute"),
    **dict.fromkeys(("import-not-found", "unresolved-import"), "import"),
    "unresolved-reference": "name",
    "unknown-argument": "keyword",
}
"""Those of its rules that tell of names; some are called otherwise in older versions."""
_QUOTED = re.compile(r"`([^`]+)`")
_SETTINGS = '[src]\nrespect-ignore-files = false\n[environment]\npython-platform = "all"\n'


class Complaint(Record):
    """One name that the checker cannot find."""

    path: str
    line: int
    kind: Kind
    name: str
    where: str | None
    """What it was looked up in."""
    message: str


class _Said(Record):
    """What it said of one state of the files."""

    key: str
    complaints: tuple[Complaint, ...]


class _At(Record):
    line: int


class _Positions(Record):
    begin: _At
    end: _At


class _Location(Record):
    path: str
    positions: _Positions


class _Diagnostic(Record):
    """One line of its report, in the form of GitLab."""

    check_name: str
    description: str
    location: _Location


_Kept = TypeVar("_Kept")


class Unusable(Exception):
    """Why it could not look."""


def complaints(inspection: Inspection, folder: Path) -> Sequence[Complaint]:
    """New ones on added lines; Unusable where it could not look."""
    if not _changed(inspection, "after"):
        return ()
    with _locked(folder):
        told = _told(inspection, "after", folder)
        after = [
            one
            for one in told
            if one.line in inspection.added.get(one.path, frozenset()) and _is_ours(one, folder)
        ]
        if not after:
            return ()
        renamed = {file.old_path: file.path for file in inspection.files if file.old_path}
        old = _told(inspection, "before", folder)
        before = Counter((renamed.get(one.path, one.path), one.message) for one in old)
    # What was said of the file before is said again of a line that was moved or touched.
    return [one for one in after if not before[one.path, one.message]]


def _told(inspection: Inspection, side: Side, folder: Path) -> Sequence[Complaint]:
    """Everything said of the changed files at that end; kept, until anything there differs."""
    files = _changed(inspection, side)
    tree = inspection.sides.tree(side)
    wanted = {
        path: blob
        for path, blob in tree.items()
        if path.endswith(_SOURCES) and not path.startswith("/") and ".." not in path.split("/")
    }
    if len(wanted) > MOST_FILES:
        raise Unusable(f"the repository has over {MOST_FILES:,} Python modules")
    python = environment(inspection.sides.root)
    packages = [path.stat().st_mtime_ns for path in python.glob(_PACKAGES)] if python else []
    key = digest(wanted, files, str(python), packages)
    kept = _read(folder / f"said-{side}", _Said)
    if kept is None or kept.key != key:
        _lay(inspection, wanted, folder)
        kept = _Said(key=key, complaints=tuple(_said(folder, files, python)))
        (folder / f"said-{side}").write_bytes(msgspec.json.encode(kept))
    return kept.complaints


def _changed(inspection: Inspection, side: Side) -> list[str]:
    return [path for at, path in inspection.modules if at == side and path.endswith(_SOURCES)]


def _is_ours(one: Complaint, folder: Path) -> bool:
    """A module that is not installed is the machine's lack; one of the repository's own is not."""
    if one.kind != "import" or "has no member" in one.message or one.name.startswith("."):
        return True
    first = one.name.split(".")[0]
    return first in standard("python") or any(
        (folder / "tree" / root / first).is_dir() for root in ("", "src", "lib")
    )


def _lay(inspection: Inspection, wanted: dict[str, str], folder: Path) -> None:
    """Make the folder's files those of one end: only what differs is written."""
    listing, tree = folder / "listing", folder / "tree"
    there = _read(listing, dict[str, str]) or {}
    listing.unlink(missing_ok=True)
    for path in there.keys() - wanted.keys():
        (tree / path).unlink(missing_ok=True)
    for path, blob in wanted.items():
        if there.get(path) != blob:
            content = inspection.sides.read_blob(blob)
            fits = content is not None and len(content) <= LARGEST
            _write(tree, path, content if content and fits else b"")
    listing.write_bytes(msgspec.json.encode(wanted))


def _read(path: Path, kind: type[_Kept]) -> _Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError, RecursionError):
        return None


def _write(tree: Path, path: str, content: bytes) -> None:
    place = tree / path
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        # A file became a folder, or the other way round: what is in the way is stale.
        if place.is_dir():
            shutil.rmtree(place)
        for above in place.relative_to(tree).parents:
            if (tree / above).is_file():
                (tree / above).unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; what another left half done is laid again."""
    (folder / "tree").mkdir(parents=True, exist_ok=True)
    (folder / "tree" / "ty.toml").write_text(_SETTINGS)
    with (folder / "lock").open("w") as lock:
        late = time.monotonic() + SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > late:
                    raise Unusable("another check does not come to an end") from None
                time.sleep(0.05)
        yield


def _said(folder: Path, files: Sequence[str], python: Path | None) -> Iterator[Complaint]:
    if not files:
        return
    command = [_program(), "check", "--output-format", "gitlab", "--exit-zero", "--project", "."]
    if python:
        command += ["--python", str(python)]
    clean = {"PATH": os.defpath, "HOME": str(folder), "RAYON_NUM_THREADS": "2"}
    try:
        with (folder / "output").open("w+b") as output:
            ran = subprocess.run(
                [*command, "--", *files],
                cwd=folder / "tree",
                env=clean,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=SECONDS,
                check=False,
            )
            if output.seek(0, os.SEEK_END) > MOST_BYTES:
                raise Unusable("ty said more than can be read")
            output.seek(0)
            told = msgspec.json.decode(output.read(), type=list[_Diagnostic])
    except subprocess.TimeoutExpired:
        raise Unusable(f"ty took over {SECONDS:.0f} seconds") from None
    except OSError as error:
        raise Unusable(f"ty cannot be run: {error.strerror}") from None
    except msgspec.DecodeError:
        words = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Unusable(f"ty failed: {words[-1][:200] if words else ran.returncode}") from None
    for one in told:
        kind = _RULES.get(one.check_name)
        if kind and (complaint := _complaint(kind, one)):
            yield complaint


def _complaint(kind: Kind, told: _Diagnostic) -> Complaint | None:
    message = told.description.partition(": ")[2]
    quoted = _QUOTED.findall(message)
    if not quoted:
        return None
    # A name looked up stands at the end of what is underlined, any other at its beginning.
    positions = told.location.positions
    at = positions.end if kind == "attribute" else positions.begin
    member = kind == "attribute" or "has no member" in message
    if kind == "attribute" and message.startswith("Unresolved"):
        # There the attribute comes first, and then what it was looked up in.
        quoted.reverse()
    return Complaint(
        path=told.location.path,
        line=at.line,
        kind=kind,
        name=quoted[-1] if member else quoted[0],
        where=quoted[0] if member else quoted[-1] if len(quoted) > 1 else None,
        message=message,
    )


def _program() -> str:
    try:
        import ty

        return str(ty.find_ty_bin())
    except (ImportError, FileNotFoundError):
        raise Unusable("ty is not installed") from None
