"""What a form says, whoever sent it."""

from __future__ import annotations

from urllib.parse import parse_qs

MAX_FIELDS = 1000


def parse_form_fields(body: bytes) -> dict[str, list[str]]:
    """Each field with its values; none of what cannot be a form of ours."""
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=MAX_FIELDS)
    except ValueError:
        return {}
