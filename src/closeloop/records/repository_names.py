"""Repositories by what people call them."""

from __future__ import annotations

import re

_ADDRESS_PREFIX = re.compile(
    r"(?:\w{1,20}://(?:[^/@\s]{1,200}@)?[^/\s]{1,255}/|[\w.-]{1,100}@[\w.-]{1,255}:/?)"
)


def repository_name(address: str) -> str:
    """`owner/name` of an address at any host, however it is written; a path stays as it is."""
    match = _ADDRESS_PREFIX.match(address)
    if match is None:
        return address
    return address[match.end() :].strip("/").removesuffix(".git") or address
