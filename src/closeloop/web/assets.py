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

from closeloop.records.record import Record

ASSET_PATH = "/static/"
CACHE_FOREVER = "public, max-age=31536000, immutable"
MIN_GZIP_BYTES = 500
"""Bytes that are worth packing."""


class StaticAsset(Record):
    """One file, as it is and packed."""

    address: str
    content: bytes
    packed: bytes | None
    media_type: str


@cache
def load_assets() -> dict[str, StaticAsset]:
    """By name, such as `app.css` or `vendor/htmx.min.js`."""
    return {
        name: _build_asset(name, content)
        for name, content in _list_files_under(_static_folder(), "")
    }


def asset_address(name: str) -> str:
    """Where a page finds a file."""
    return load_assets()[name].address


async def serve_asset(request: Request) -> Response:
    """A file by its address; it may be kept for ever, as other content has another one."""
    asset = _assets_by_address().get(request.url.path)
    if asset is None:
        return Response("No such file.", 404, media_type="text/plain")
    headers = {"cache-control": CACHE_FOREVER, "vary": "accept-encoding"}
    if asset.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(asset.packed, headers=headers, media_type=asset.media_type)
    return Response(asset.content, headers=headers, media_type=asset.media_type)


@cache
def _assets_by_address() -> dict[str, StaticAsset]:
    return {asset.address: asset for asset in load_assets().values()}


def _static_folder() -> Traversable:
    return files(__package__).joinpath("static")


def _list_files_under(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    named_files: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        name = path + each.name
        if each.is_dir():
            named_files += _list_files_under(each, f"{name}/")
        else:
            named_files.append((name, each.read_bytes()))
    return named_files


def _build_asset(name: str, content: bytes) -> StaticAsset:
    stem, _, ending = name.rpartition(".")
    media_type = mimetypes.guess_type(name)[0] or "text/plain"
    return StaticAsset(
        address=f"{ASSET_PATH}{stem}.{hashlib.sha256(content).hexdigest()[:12]}.{ending}",
        content=content,
        packed=gzip.compress(content, 9, mtime=0) if len(content) > MIN_GZIP_BYTES else None,
        media_type=media_type,
    )
