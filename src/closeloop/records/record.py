"""The base of all records: frozen, keyword-only data without behaviour."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, dataclass_transform

import msgspec

Time = Annotated[datetime, msgspec.Meta(tz=True)]


class _KeywordOnly(msgspec.StructMeta):
    """Passes `kw_only` on to subclasses, which msgspec does not do."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> Any:
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True, **options})


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record(msgspec.Struct, metaclass=_KeywordOnly, frozen=True, omit_defaults=True):
    """A record. Absent is `None`; ids and times are passed in, never created here."""


# msgspec resolves the fields of a type when it is first read, and crashes if two threads do so at
# once.

resolving_types = threading.Lock()
"""Held while a decoder is created and other threads may create one."""


def resolve_record_types() -> None:
    """Resolve the fields of every loaded record, before threads read any."""
    with resolving_types:
        kinds: list[type[Record]] = [Record]
        for kind in kinds:
            kinds += kind.__subclasses__()
            with suppress(NameError, TypeError):  # one that is never read
                msgspec.msgpack.Decoder(kind)


def html_table(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Build an HTML table for notebooks. All content is escaped; None is an empty cell."""
    import html

    def html_row(cells: Iterable[object], tag: str) -> str:
        texts = ("" if cell is None else html.escape(str(cell)) for cell in cells)
        return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in texts)}</tr>"

    body = "".join(html_row(row, "td") for row in rows)
    return f"<table><thead>{html_row(header, 'th')}</thead><tbody>{body}</tbody></table>"


def content_digest(*parts: Any) -> str:
    """Digest of some content: equal parts give equal digests on any machine."""
    return hashlib.sha256(msgspec.msgpack.encode(parts, order="deterministic")).hexdigest()


def stable_fraction(*parts: Any) -> float:
    """Return a number between 0 and 1 that is constant for the same parts."""
    return int(content_digest(*parts)[:12], 16) / 16**12
