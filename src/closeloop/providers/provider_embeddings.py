"""Texts as vectors by a provider that speaks OpenAI's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from closeloop.providers import openai
from closeloop.providers.model_opening import (
    check_base_url,
    digest_model,
    find_key,
    find_model_settings,
)
from closeloop.providers.provider_connection import (
    ModelEndpoint,
    ProviderConnection,
    RequestRejected,
    join_format_url,
)
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCH_SIZE = 64
MAX_TEXT_CHARS = 8_000


class ProviderEncoder:
    """Keeps no connection between calls."""

    floor, alike = 0.30, 0.65

    def __init__(self, name: str, endpoint: ModelEndpoint, key: str | None) -> None:
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
        rows = np.array(anyio.run(self._encode_batches, texts), np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.where(lengths == 0, 1, lengths)
        return rows

    async def _encode_batches(self, texts: Sequence[str]) -> list[list[float]]:
        wire = ProviderConnection(
            self._endpoint, openai.OPENAI_FORMAT.headers(self._key), self._key
        )
        rows: list[list[float]] = []
        try:
            for start in range(0, len(texts), BATCH_SIZE):
                batch = [text[:MAX_TEXT_CHARS] or " " for text in texts[start : start + BATCH_SIZE]]
                payload = {"model": self._endpoint.model, "input": batch}
                rows += _read_embedding_rows(await wire.post_json(payload), len(batch), wire.server)
        except RequestRejected as rejected:
            raise BadInput(
                f"{wire.server} gives no embeddings by {self._endpoint.model!r}: "
                f"name another in memory.encoder ({rejected})."
            ) from None
        finally:
            await wire.close()
        if len({len(row) for row in rows}) != 1:
            raise MachineFailed(f"{wire.server} sent vectors of several lengths: try again.")
        return rows


def open_provider_encoder(
    name: str, settings: Settings, environ: Mapping[str, str], folder: Path
) -> ProviderEncoder:
    """The encoder that a model's name stands for."""
    model_settings = find_model_settings(name, settings.models)
    if model_settings.provider != "openai":
        raise BadInput(
            f"{name!r} gives no embeddings: memory.encoder takes a model of the provider openai, "
            "or of a server that speaks its format."
        )
    base = model_settings.base_url or openai.OPENAI_FORMAT.address
    local = check_base_url(name, base)
    found_key = find_key(name, model_settings, openai.OPENAI_FORMAT.key_env, environ, folder)
    if found_key.key is None and not local:
        raise BadInput(f"No key for the encoder {name!r}: set {found_key.told}.")
    endpoint = ModelEndpoint(
        url=join_format_url(base, "/v1/embeddings"),
        model=model_settings.model,
        key_from=found_key.told,
        local=local,
        timeout=model_settings.timeout,
        retries=model_settings.retries,
    )
    settings_digest = digest_model(model_settings, folder)[:8]
    return ProviderEncoder(
        f"{model_settings.provider}:{model_settings.model}:{settings_digest}",
        endpoint,
        found_key.key,
    )


def _read_embedding_rows(answer: Any, wanted: int, server: str) -> list[list[float]]:
    """What a server sent, in the order that was asked for."""
    match answer:
        case {"data": list(found)} if len(found) == wanted:
            rows = {
                one.get("index", place): one.get("embedding")
                for place, one in enumerate(found)
                if isinstance(one, dict)
            }
            ordered = [rows.get(place) for place in range(wanted)]
            if all(_is_vector(row) for row in ordered):
                return [row for row in ordered if row is not None]
    raise MachineFailed(f"{server} sent something other than embeddings: check the address.")


def _is_vector(row: Any) -> bool:
    return isinstance(row, list) and bool(row) and all(type(one) in (int, float) for one in row)
