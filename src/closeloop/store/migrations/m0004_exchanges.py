"""What attempts asked their models, and what came back."""

from __future__ import annotations

STATEMENTS = (
    # A request is the digests of its pieces, 32 bytes each: an agent sends most of them again.
    """CREATE TABLE exchanges (
        attempt {text} NOT NULL REFERENCES attempts (id),
        number BIGINT NOT NULL,
        at BIGINT NOT NULL,
        path {text} NOT NULL,
        status BIGINT NOT NULL,
        seconds DOUBLE PRECISION NOT NULL,
        first_byte_seconds DOUBLE PRECISION,
        retries BIGINT NOT NULL,
        model {text},
        input_tokens BIGINT,
        output_tokens BIGINT,
        cache_read_tokens BIGINT,
        cache_write_tokens BIGINT,
        cost DOUBLE PRECISION,
        cause {text},
        response {text} NOT NULL REFERENCES blobs (digest),
        request {bytes} NOT NULL,
        body {bytes} NOT NULL,
        PRIMARY KEY (attempt, number)
    )""",
)

FACTS = ("exchanges",)
