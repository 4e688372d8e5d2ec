"""Repositories by what people call them."""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"(?:\w{1,20}://(?:[^/@\s]{1,200}@)?[^/\s]{1,255}/|[\w.-]{1,100}@[\w.-]{1,255}:/?)"
)


def repository_name(address: str) -> str:
    """`owner/name` of an address at any host, however it is written; a path stays as it is."""
    found = _ADDRESS.match(address)
    if found is None:
        return address
    return address[found.end() :].strip("/").removesuffix(".git") or address
