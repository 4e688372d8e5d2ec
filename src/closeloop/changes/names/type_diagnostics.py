"""What a fast type checker says of added lines and did not say before."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from closeloop.changes.names.suspect_names import find_virtualenv, load_standard_library
from closeloop.changes.names.type_folders import TypeCheckerUnusable, lock_folder
from closeloop.records.inspection import ChangeSide, Inspection
from closeloop.records.record import Record, content_digest

DiagnosticKind = Literal["attribute", "import", "name", "keyword", "call"]

TY_SECONDS = 30.0
MAX_FILES = 20_000
"""So many modules are laid out for it; a larger repository is not looked at."""
MAX_FILE_BYTES = 1_000_000
MAX_REPORT_BYTES = 50_000_000
"""So much of its report is read."""
_SITE_PACKAGES = "lib/python3*/site-packages"
_SOURCE_ENDINGS = (".py", ".pyi")
_RULE_KINDS: dict[str, DiagnosticKind] = {
    **dict.fromkeys(("missing-attribute", "unresolved-attribute"), "attribute"),
    **dict.fromkeys(("import-not-found", "unresolved-import"), "import"),
    "missing-union-attribute": "attribute",
    "unresolved-reference": "name",
    "unknown-argument": "keyword",
    "positional-only-parameter-as-kwarg": "keyword",
    "unknown-typed-dict-constructor-key": "keyword",
    "no-matching-overload": "call",
    "too-many-positional-arguments": "call",
    "missing-argument": "call",
}
"""Those of its rules that tell what does not exist or does not fit; some are called otherwise in
older versions. A value of the wrong type is left out: on 100 clean commits it was said four times,
all the others together once."""
_QUOTED_NAME = re.compile(r"`([^`]+)`")
_TY_SETTINGS = '[src]\nrespect-ignore-files = false\n[environment]\npython-platform = "all"\n'


class TypeDiagnostic(Record):
    """One name that the checker cannot find."""

    path: str
    line: int
    kind: DiagnosticKind
    name: str
    where: str | None
    """What it was looked up in."""
    message: str
    last_line: int
    """Where what is underlined ends."""


class _CachedDiagnostics(Record):
    """What it said of one state of the files."""

    key: str
    complaints: tuple[TypeDiagnostic, ...]


class _TyPosition(Record):
    line: int


class _TyRange(Record):
    begin: _TyPosition
    end: _TyPosition


class _TyLocation(Record):
    path: str
    positions: _TyRange


class _TyDiagnostic(Record):
    """One line of its report, in the form of GitLab."""

    check_name: str
    description: str
    location: _TyLocation


_Kept = TypeVar("_Kept")


def find_new_diagnostics(inspection: Inspection, folder: Path) -> Sequence[TypeDiagnostic]:
    """New ones on added lines; Unusable where it could not look."""
    if not _changed_sources(inspection, "after"):
        return ()
    with lock_folder(folder, TY_SECONDS):
        diagnostics = _load_diagnostics(inspection, "after", folder)
        after = [
            one
            for one in diagnostics
            if one.line in inspection.added.get(one.path, frozenset())
            and _is_repository_fault(one, folder)
        ]
        if not after:
            return ()
        renamed = {file.old_path: file.path for file in inspection.files if file.old_path}
        old = _load_diagnostics(inspection, "before", folder)
        before = Counter((renamed.get(one.path, one.path), one.message) for one in old)
    # What was said of the file before is said again of a line that was moved or touched.
    return [one for one in after if not before[one.path, one.message]]


def _load_diagnostics(
    inspection: Inspection, side: ChangeSide, folder: Path
) -> Sequence[TypeDiagnostic]:
    """Everything said of the changed files at that end; kept, until anything there differs."""
    files = _changed_sources(inspection, side)
    tree = inspection.sides.tree(side)
    wanted = {
        path: blob
        for path, blob in tree.items()
        if path.endswith(_SOURCE_ENDINGS)
        and not path.startswith("/")
        and ".." not in path.split("/")
    }
    if len(wanted) > MAX_FILES:
        raise TypeCheckerUnusable(f"the repository has over {MAX_FILES:,} Python modules")
    python = find_virtualenv(inspection.sides.root)
    packages = [path.stat().st_mtime_ns for path in python.glob(_SITE_PACKAGES)] if python else []
    key = content_digest(wanted, files, str(python), packages, _RULE_KINDS)
    cached = _read_json(folder / f"said-{side}", _CachedDiagnostics)
    if cached is None or cached.key != key:
        _write_tree(inspection, wanted, folder)
        cached = _CachedDiagnostics(key=key, complaints=tuple(_run_ty(folder, files, python)))
        (folder / f"said-{side}").write_bytes(msgspec.json.encode(cached))
    return cached.complaints


def _changed_sources(inspection: Inspection, side: ChangeSide) -> list[str]:
    return [
        path for at, path in inspection.modules if at == side and path.endswith(_SOURCE_ENDINGS)
    ]


def _is_repository_fault(one: TypeDiagnostic, folder: Path) -> bool:
    """A module that is not installed is the machine's lack; one of the repository's own is not."""
    if one.kind != "import" or "has no member" in one.message or one.name.startswith("."):
        return True
    first = one.name.split(".")[0]
    return first in load_standard_library("python") or any(
        (folder / "tree" / root / first).is_dir() for root in ("", "src", "lib")
    )


def _write_tree(inspection: Inspection, wanted: dict[str, str], folder: Path) -> None:
    """Make the folder's files those of one end: only what differs is written."""
    listing, tree = folder / "listing", folder / "tree"
    _write_file(tree, "ty.toml", _TY_SETTINGS.encode())
    written_blobs = _read_json(listing, dict[str, str]) or {}
    listing.unlink(missing_ok=True)
    for path in written_blobs.keys() - wanted.keys():
        (tree / path).unlink(missing_ok=True)
        _remove_empty_parents(tree, path)
    for path, blob in wanted.items():
        if written_blobs.get(path) != blob:
            content = inspection.sides.read_blob(blob)
            fits = content is not None and len(content) <= MAX_FILE_BYTES
            _write_file(tree, path, content if content and fits else b"")
    listing.write_bytes(msgspec.json.encode(wanted))


def _remove_empty_parents(tree: Path, path: str) -> None:
    """An empty folder is a namespace package, which would hide an installed one of its name."""
    for above in Path(path).parents[:-1]:
        try:
            (tree / above).rmdir()
        except OSError:
            return


def _read_json(path: Path, kind: type[_Kept]) -> _Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError, RecursionError):
        return None


def _write_file(tree: Path, path: str, content: bytes) -> None:
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


def _run_ty(folder: Path, files: Sequence[str], python: Path | None) -> Iterator[TypeDiagnostic]:
    if not files:
        return
    command = [_find_ty(), "check", "--output-format", "gitlab", "--exit-zero", "--project", "."]
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
                timeout=TY_SECONDS,
                check=False,
            )
            if output.seek(0, os.SEEK_END) > MAX_REPORT_BYTES:
                raise TypeCheckerUnusable("ty said more than can be read")
            output.seek(0)
            diagnostics = msgspec.json.decode(output.read(), type=list[_TyDiagnostic])
    except subprocess.TimeoutExpired:
        raise TypeCheckerUnusable(f"ty took over {TY_SECONDS:.0f} seconds") from None
    except OSError as error:
        raise TypeCheckerUnusable(f"ty cannot be run: {error.strerror}") from None
    except msgspec.DecodeError:
        words = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise TypeCheckerUnusable(
            f"ty failed: {words[-1][:200] if words else ran.returncode}"
        ) from None
    for one in diagnostics:
        kind = _RULE_KINDS.get(one.check_name)
        if kind and (complaint := _parse_diagnostic(kind, one)):
            yield complaint


def _parse_diagnostic(kind: DiagnosticKind, told: _TyDiagnostic) -> TypeDiagnostic | None:
    message = told.description.partition(": ")[2]
    quoted = _QUOTED_NAME.findall(message)
    if not quoted:
        return None
    # A name looked up stands at the end of what is underlined, any other at its beginning.
    positions = told.location.positions
    at = positions.end if kind == "attribute" else positions.begin
    member = kind == "attribute" or "has no member" in message
    if told.check_name == "missing-union-attribute":
        # Attribute `x` is not defined on `A` in union `A | B`. What may be None is no invention.
        if "None" in quoted[1:2]:
            return None
        quoted = quoted[1::-1]
    if kind == "attribute" and message.startswith("Unresolved"):
        # There the attribute comes first, and then what it was looked up in.
        quoted.reverse()
    return TypeDiagnostic(
        path=told.location.path,
        line=at.line,
        kind=kind,
        name=quoted[-1] if member else quoted[0],
        where=quoted[0] if member else quoted[-1] if len(quoted) > 1 else None,
        message=message,
        last_line=positions.end.line,
    )


def _find_ty() -> str:
    try:
        import ty

        return str(ty.find_ty_bin())
    except (ImportError, FileNotFoundError):
        raise TypeCheckerUnusable("ty is not installed") from None
