"""What the rest of closeloop counts on in an encoder, as a test that anybody can run."""

from __future__ import annotations

from closeloop.records.protocols import Encoder

SAMPLE_TEXTS = (
    "Use the project's logger instead of print.",
    "Please don't print here, we have a logger for that.",
    "",
    "\0 \ud800 \U0001f600 日本語",
    "word " * 5000,
)


def check_encoder(encoder: Encoder) -> None:
    """AssertionError says what the encoder does not keep to."""
    import numpy as np

    assert encoder.id, "it needs an id"
    assert encoder.id.strip() == encoder.id, "its id is one word"
    assert -1.0 < encoder.floor <= encoder.alike <= 1.0, "floor and alike are likenesses, in order"
    assert encoder.ready(), "what it needs is not here"
    rows = encoder.encode(SAMPLE_TEXTS)
    assert rows.shape[:1] == (len(SAMPLE_TEXTS),), "a row for each text"
    assert rows.ndim == 2, "a row for each text"
    assert rows.dtype == np.float32, "numbers of 32 bits"
    assert np.isfinite(rows).all(), "numbers only"
    lengths = np.linalg.norm(rows, axis=1)
    assert all(abs(one - 1) < 1e-3 or one == 0 for one in lengths), "rows have the length 1, or 0"
    again = encoder.encode(SAMPLE_TEXTS[::-1])[::-1]
    assert np.abs(rows - again).max() < 1e-4, "a text's row depends on nothing but the text"
    assert encoder.encode(()).shape[0] == 0, "no texts, no rows"
