"""What a fast type checker says of added lines and did not say before."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from closeloop.changes.names.installed import environment, standard
from closeloop.model.inspection import Inspection, Side
from closeloop.model.record import Record

Kind = Literal["attribute", "import", "name", "keyword"]

SECONDS = 60.0
MOST_FILES = 20_000
"""So many modules are laid out for it; a larger repository is not looked at."""
LARGEST = 1_000_000
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


class Unusable(Exception):
    """Why it could not look."""


def complaints(inspection: Inspection, folder: Path) -> Sequence[Complaint]:
    """New ones on added lines; Unusable where it could not look."""
    files = _changed(inspection, "after")
    if not files:
        return ()
    with _locked(folder):
        _lay(inspection, "after", folder)
        after = list(_said(folder, files, inspection))
        after = [one for one in after if one.line in inspection.added.get(one.path, frozenset())]
        after = [one for one in after if _is_ours(one, folder)]
        if not after:
            return ()
        renamed = {file.old_path: file.path for file in inspection.files if file.old_path}
        _lay(inspection, "before", folder)
        old = _said(folder, _changed(inspection, "before"), inspection)
        before = Counter((renamed.get(one.path, one.path), one.message) for one in old)
    # What was said of the file before is said again of a line that was moved or touched.
    return [one for one in after if not before[one.path, one.message]]


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


def _lay(inspection: Inspection, side: Side, folder: Path) -> None:
    """Make the folder's files those of that end: only what differs is written."""
    sides = inspection.sides
    wanted = {path: blob for path, blob in sides.tree(side).items() if path.endswith(_SOURCES)}
    if len(wanted) > MOST_FILES:
        raise Unusable(f"the repository has over {MOST_FILES:,} Python modules")
    listing, tree = folder / "listing", folder / "tree"
    there = _listed(listing)
    listing.unlink(missing_ok=True)
    for path in there.keys() - wanted.keys():
        (tree / path).unlink(missing_ok=True)
        there.pop(path)
    for path, blob in wanted.items():
        if there.get(path) != blob and ".." not in path.split("/"):
            content = sides.read_blob(blob)
            if content is not None and len(content) <= LARGEST:
                _write(tree / path, content)
    listing.write_bytes(msgspec.json.encode(wanted))


def _listed(listing: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(listing.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        # A file became a folder, or the other way round: what is in the way is stale.
        raise Unusable("its copy of the repository is in disorder") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; what another left half done is laid again."""
    (folder / "tree").mkdir(parents=True, exist_ok=True)
    (folder / "tree" / "ty.toml").write_text(_SETTINGS)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _said(folder: Path, files: Sequence[str], inspection: Inspection) -> Iterator[Complaint]:
    if not files:
        return
    tree = folder / "tree"
    command = [_program(), "check", "--output-format", "gitlab", "--exit-zero", "--project", "."]
    if found := environment(inspection.sides.root):
        command += ["--python", str(found)]
    clean = {"PATH": os.defpath, "HOME": str(folder), "RAYON_NUM_THREADS": "2"}
    try:
        ran = subprocess.run(
            [*command, "--", *files],
            cwd=tree,
            env=clean,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unusable(f"ty took over {SECONDS:.0f} seconds") from None
    except OSError as error:
        raise Unusable(f"ty cannot be run: {error.strerror}") from None
    try:
        told = json.loads(ran.stdout)
    except ValueError:
        words = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Unusable(f"ty failed: {words[-1][:200] if words else ran.returncode}") from None
    for one in told:
        kind = _RULES.get(one["check_name"])
        if kind and (complaint := _complaint(kind, one)):
            yield complaint


def _complaint(kind: Kind, told: Any) -> Complaint | None:
    message = told["description"].partition(": ")[2]
    quoted = _QUOTED.findall(message)
    if not quoted:
        return None
    positions = told["location"]["positions"]
    # A name looked up stands at the end of what is underlined, any other at its beginning.
    end = "end" if kind == "attribute" else "begin"
    member = kind == "attribute" or "has no member" in message
    return Complaint(
        path=told["location"]["path"],
        line=positions[end]["line"],
        kind=kind,
        name=quoted[-1] if member else quoted[0],
        where=quoted[0] if member else quoted[-1] if kind == "keyword" else None,
        message=message,
    )


def _program() -> str:
    import ty

    try:
        return str(ty.find_ty_bin())
    except FileNotFoundError:
        raise Unusable("ty is not installed") from None
