"""What several turns used together."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from closeloop.model.attempt import Usage

_COUNTS = tuple(name for name in Usage.__struct_fields__ if name.endswith("_tokens"))


def token_sums(usages: Iterable[Usage]) -> Usage:
    """The sums of the tokens that are known, None where none is; what they cost is left out."""
    counts: dict[str, int] = {}
    for usage in usages:
        for name in _COUNTS:
            if (value := getattr(usage, name)) is not None:
                counts[name] = counts.get(name, 0) + value
    return msgspec.structs.replace(Usage(), **counts)
