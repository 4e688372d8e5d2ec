"""Hashed character n-grams: no dependencies, no meaning. The baseline for other encoders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from closeloop.reviews.remark_polarity import STOP_WORDS, common_wording

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


id = "ngrams:2"  # noqa: A001 - what the protocol calls it
floor, alike = 0.26, 0.50
WIDTH = 512
SHORTEST, LONGEST = 3, 5
MAX_TEXT_CHARS = 4000

_WORD = re.compile(r"\w+")
_SKIPPED_WORDS = STOP_WORDS | {"don", "instead", "never", "not", "rather"}
"""Words that are not encoded; polarity is compared separately."""


def ready() -> bool:
    return True


def encode(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return a row of length one for each text, or of zeros if it has no word."""
    import numpy as np

    rows = np.zeros((len(texts), WIDTH), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in _WORD.findall(common_wording(text[:MAX_TEXT_CHARS])):
            if len(word) > 1 and word not in _SKIPPED_WORDS:
                _add_ngrams(row, f" {word} ")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.where(lengths == 0, 1, lengths)
    return rows


def _add_ngrams(row: NDArray[np.float32], word: str) -> None:
    """Add the n-grams of a word. The sign is hashed too, so that collisions cancel out."""
    grams = [
        word[start : start + size]
        for size in range(SHORTEST, LONGEST + 1)
        for start in range(len(word) - size + 1)
    ]
    for gram in grams:
        hashed = crc32(gram.encode("utf-8", "replace"))
        # A long word counts as one word: its n-grams share its weight.
        row[hashed % WIDTH] += (1.0 if hashed & 1 << 31 else -1.0) / len(grams) ** 0.5
