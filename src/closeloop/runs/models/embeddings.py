"""Texts as vectors by a provider that speaks OpenAI's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.settings import Settings
from closeloop.runs.models import openai
from closeloop.runs.models.keys import find_key
from closeloop.runs.models.opening import check_address, digest_of, settings_of
from closeloop.runs.models.remote import url_of
from closeloop.runs.models.wire import Endpoint, Rejected, Wire

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AT_ONCE = 64
LONGEST = 8_000


class ProviderEncoder:
    """Keeps no connection between calls."""

    floor, alike = 0.30, 0.65

    def __init__(self, name: str, endpoint: Endpoint, key: str | None) -> None:
        self.id = name
        self._endpoint = endpoint
        self._key = key

    def ready(self) -> bool:
        return True

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row of length one for each text. Not from within an event loop: it runs its own."""
        import numpy as np

        if not texts:
            return np.zeros((0, 0), np.float32)
        rows = np.array(anyio.run(self._all, texts), np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.where(lengths == 0, 1, lengths)
        return rows

    async def _all(self, texts: Sequence[str]) -> list[list[float]]:
        wire = Wire(self._endpoint, openai.FORMAT.headers(self._key), self._key)
        rows: list[list[float]] = []
        try:
            for start in range(0, len(texts), AT_ONCE):
                some = [text[:LONGEST] or " " for text in texts[start : start + AT_ONCE]]
                payload = {"model": self._endpoint.model, "input": some}
                rows += _rows(await wire.post(payload), len(some), wire.server)
        except Rejected as rejected:
            raise BadInput(
                f"{wire.server} gives no embeddings by {self._endpoint.model!r}: "
                f"name another in memory.encoder ({rejected})."
            ) from None
        finally:
            await wire.close()
        if len({len(row) for row in rows}) != 1:
            raise MachineFailed(f"{wire.server} sent vectors of several lengths: try again.")
        return rows


def open_encoder(
    name: str, settings: Settings, environ: Mapping[str, str], folder: Path
) -> ProviderEncoder:
    """The encoder that a model's name stands for."""
    known = settings_of(name, settings.models)
    if known.provider != "openai":
        raise BadInput(
            f"{name!r} gives no embeddings: memory.encoder takes a model of the provider openai, "
            "or of a server that speaks its format."
        )
    base = known.base_url or openai.FORMAT.address
    local = check_address(name, base)
    place = find_key(name, known, openai.FORMAT.key_env, environ, folder)
    if place.key is None and not local:
        raise BadInput(f"No key for the encoder {name!r}: set {place.told}.")
    endpoint = Endpoint(
        url=url_of(base, "/v1/embeddings"),
        model=known.model,
        key_from=place.told,
        local=local,
        timeout=known.timeout,
        retries=known.retries,
    )
    about = digest_of(known, folder)[:8]
    return ProviderEncoder(f"{known.provider}:{known.model}:{about}", endpoint, place.key)


def _rows(answer: Any, wanted: int, server: str) -> list[list[float]]:
    """What a server sent, in the order that was asked for."""
    match answer:
        case {"data": list(found)} if len(found) == wanted:
            rows = {
                one.get("index", place): one.get("embedding")
                for place, one in enumerate(found)
                if isinstance(one, dict)
            }
            ordered = [rows.get(place) for place in range(wanted)]
            if all(_numbers(row) for row in ordered):
                return [row for row in ordered if row is not None]
    raise MachineFailed(f"{server} sent something other than embeddings: check the address.")


def _numbers(row: Any) -> bool:
    return isinstance(row, list) and bool(row) and all(type(one) in (int, float) for one in row)
