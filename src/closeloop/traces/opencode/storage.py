"""OpenCode's store before it had a database: a file for each session, message and part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from closeloop.model.protocols import Source
from closeloop.traces.opencode.sessions import Recorded
from closeloop.traces.untrusted import amount, decoded, mapping, text

MOST = 20_000
"""How many files of a folder are looked at."""
INFO_BYTES = 1 << 20
_NAME = re.compile(r"[\w-]{1,128}")

Kind = Literal["session", "message", "part"]
Sessions = Mapping[str, tuple[Path, dict[str, Any]]]


def kind_of(source: Source) -> Kind | None:
    """What a file holds; None for those of others."""
    if b'"sessionID"' not in source.head and b'"projectID"' not in source.head:
        return None
    told = _document(source)
    if text(told.get("id")) is None:
        return None
    if isinstance(told.get("time"), dict) and text(told.get("sessionID")):
        return "message" if told.get("role") in ("user", "assistant") else None
    if text(told.get("sessionID")) and text(told.get("messageID")):
        return "part" if text(told.get("type")) else None
    return "session" if _is_session(told) else None


def _document(source: Source) -> dict[str, Any]:
    lines = source.lines
    return mapping(source.document if not lines else lines[0] if len(lines) == 1 else None)


def _is_session(told: Mapping[str, Any]) -> bool:
    named = all(text(told.get(name)) for name in ("id", "projectID", "directory", "version"))
    return named and isinstance(told.get("time"), dict) and "messages" not in told


def owner(source: Source) -> Path | None:
    """The file of the session that a message, a part or a child belongs to."""
    told, known = _document(source), _sessions(_root(source.path))
    name = text(told.get("sessionID")) or text(told.get("id")) or ""
    above: dict[str, None] = {}
    while name in known and name not in above:
        above[name] = None
        name = text(known[name][1].get("parentID")) or ""
    if not above:
        return None
    names = list(above)
    # Of parents that name each other in a ring, one must be the first.
    found, _ = known[min(names[names.index(name) :]) if name in above else names[-1]]
    return found if found != source.path else None


def family_of(source: Source) -> dict[str, Path]:
    """A session and those that came of it, by their ids."""
    first, known = text(_document(source).get("id")) or "", _sessions(_root(source.path))
    children: dict[str, list[str]] = {}
    for name, (_, info) in known.items():
        children.setdefault(text(info.get("parentID")) or "", []).append(name)
    found = {first: source.path}
    waiting = [first]
    while waiting:
        for name in children.get(waiting.pop(), ()):
            if name not in found:
                found[name] = known[name][0]
                waiting.append(name)
    return found


def parts(source: Source) -> Sequence[Path]:
    """All files of a session and of its children but the first one."""
    root, found = _root(source.path), []
    for name, path in family_of(source).items():
        messages = _files(root / "message", name)
        found += [] if path == source.path else [path]
        found += messages
        found += [part for one in messages for part in _files(root / "part", one.stem)]
    return found


def recorded(source: Source, path: Path) -> Recorded | None:
    """A session with its messages; None where it has none."""
    root, info = _root(source.path), _document(source.beside(path))
    messages = []
    for one in _files(root / "message", text(info.get("id")) or ""):
        said = [_document(source.beside(part)) for part in _files(root / "part", one.stem)]
        messages.append({"info": _document(source.beside(one)), "parts": said})
    messages.sort(key=_created)
    return Recorded(info, messages) if messages else None


def _created(message: Mapping[str, Any]) -> float:
    return amount(mapping(mapping(message.get("info")).get("time")).get("created")) or 0.0


def _root(path: Path) -> Path:
    """Sessions lie by project, messages by session, parts by message."""
    return path.parent.parent.parent


def _files(folder: Path, name: str) -> list[Path]:
    if not _NAME.fullmatch(name):
        return []
    return sorted(_within(folder / name))


def _within(folder: Path) -> Iterator[Path]:
    try:
        yield from islice(folder.glob("*.json"), MOST)
    except OSError:
        return


def _sessions(root: Path) -> Sessions:
    """The sessions of a store, looked up again only when one comes or goes."""
    try:
        folders = sorted(islice((root / "session").iterdir(), MOST))
        stamps = tuple((folder, folder.stat().st_mtime_ns) for folder in folders)
    except OSError:
        return {}
    return _listed(stamps)


@lru_cache(maxsize=4)
def _listed(stamps: tuple[tuple[Path, int], ...]) -> Sessions:
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in (path for folder, _ in stamps for path in sorted(_within(folder))):
        try:
            with path.open("rb") as file:
                told = mapping(decoded(file.read(INFO_BYTES)))
        except OSError:
            continue
        if _is_session(told):
            found.setdefault(told["id"], (path, told))
    return found
