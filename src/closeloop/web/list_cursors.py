"""Cursors: where the next page of a list begins, as text that an address can hold."""

from __future__ import annotations

import base64
import binascii

import msgspec

from closeloop.records.attempt import AttemptRow
from closeloop.records.attempt_lists import PageCursor
from closeloop.records.errors import BadInput


def cursor_after_row(row: AttemptRow) -> str:
    """The page after this line."""
    body = msgspec.json.encode(PageCursor(started=row.started, id=row.id))
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def parse_cursor(text: str | None) -> PageCursor | None:
    if text is None:
        return None
    try:
        body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(body, type=PageCursor)
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise BadInput("That page of the list is not there: begin at its first.") from error
