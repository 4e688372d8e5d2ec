"""Files that pages are made with: served from memory under names that change with their content."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from closeloop.model.record import Record

PLACE = "/static/"
FOREVER = "public, max-age=31536000, immutable"
SMALLEST = 500
"""Bytes that are worth packing."""


class Asset(Record):
    """One file, as it is and packed."""

    address: str
    content: bytes
    packed: bytes | None
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    """By name, such as `app.css` or `vendor/htmx.min.js`."""
    return {name: _asset(name, content) for name, content in _under(_folder(), "")}


def address(name: str) -> str:
    """Where a page finds a file."""
    return assets()[name].address


async def serve(request: Request) -> Response:
    """A file by its address; it may be kept for ever, as other content has another one."""
    found = _by_address().get(request.url.path)
    if found is None:
        return Response("No such file.", 404, media_type="text/plain")
    headers = {"cache-control": FOREVER, "vary": "accept-encoding"}
    if found.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(found.packed, headers=headers, media_type=found.media_type)
    return Response(found.content, headers=headers, media_type=found.media_type)


@cache
def _by_address() -> dict[str, Asset]:
    return {asset.address: asset for asset in assets().values()}


def _folder() -> Traversable:
    return files(__package__).joinpath("static")


def _under(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        name = path + each.name
        if each.is_dir():
            found += _under(each, f"{name}/")
        else:
            found.append((name, each.read_bytes()))
    return found


def _asset(name: str, content: bytes) -> Asset:
    stem, _, ending = name.rpartition(".")
    media_type = mimetypes.guess_type(name)[0] or "text/plain"
    return Asset(
        address=f"{PLACE}{stem}.{hashlib.sha256(content).hexdigest()[:12]}.{ending}",
        content=content,
        packed=gzip.compress(content, 9, mtime=0) if len(content) > SMALLEST else None,
        media_type=media_type,
    )
