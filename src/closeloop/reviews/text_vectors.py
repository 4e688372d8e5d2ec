"""Which encoder is used, and vectors that are made once and kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop import plugins
from closeloop.records.errors import BadInput, Fault, PluginFailed
from closeloop.records.protocols import Encoder
from closeloop.records.settings import Settings
from closeloop.reviews.rule_search import text_key
from closeloop.store import Store

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = dict[str, NDArray[np.float32]]

ENCODERS_BEST_FIRST = ("minilm", "ngrams")


def open_encoder(settings: Settings, root: Path, environ: Mapping[str, str]) -> Encoder:
    """The one that the settings name; by `auto` the best of ours that is ready."""
    name = settings.memory.encoder
    if name == "auto":
        name = next(
            one for one in ENCODERS_BEST_FIRST if plugins.load_plugin("encoders", one).ready()
        )
    if name in plugins.installed_plugins("encoders"):
        encoder: Encoder = plugins.load_plugin("encoders", name)
        if not encoder.ready():
            raise BadInput(f"The encoder {name!r} is not here: run `closeloop encoder install`.")
        return encoder
    from closeloop.providers.provider_embeddings import open_provider_encoder as open_provider

    if name in settings.models or "/" in name:
        return open_provider(name, settings, environ, root)
    return plugins.load_plugin("encoders", name)  # type: ignore[no-any-return]


def vectors_for_texts(texts: Iterable[str], encoder: Encoder, store: Store) -> Vectors:
    """By key, a vector for each text; only those that nobody made before are made now."""
    wanted = {text_key(text): text for text in texts}
    known = store.memory.load_vectors(encoder.id, list(wanted))
    missing = [key for key in wanted if key not in known]
    if missing:
        rows = encode_texts([wanted[key] for key in missing], encoder)
        new = dict(zip(missing, rows, strict=True))
        store.memory.save_vectors(encoder.id, new)
        known |= new
    return known


def encode_texts(texts: Sequence[str], encoder: Encoder) -> NDArray[np.float32]:
    """A row for each text; what a plug-in does wrong is its fault."""
    try:
        rows = encoder.encode(texts)
        wrong = rows.ndim != 2 or len(rows) != len(texts)
    except Fault:
        raise
    except Exception as error:
        raise PluginFailed(
            f"The encoder {encoder.id!r} failed ({error}): report it to its author, or name "
            "another in memory.encoder."
        ) from error
    if wrong:
        raise PluginFailed(
            f"The encoder {encoder.id!r} gave {rows.shape} for {len(texts)} texts: report it to "
            "its author."
        )
    return rows
