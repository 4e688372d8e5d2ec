"""What several turns used together."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import msgspec

from closeloop.model.attempt import Usage

_COUNTS = tuple(name for name in Usage.__struct_fields__ if name.endswith("_tokens"))


def token_sums(usages: Iterable[Usage]) -> Usage:
    """The sums of the tokens that are known, None where none is; what they cost is left out."""
    columns = zip(*map(attrgetter(*_COUNTS), usages), strict=True)
    known = ([count for count in column if count is not None] for column in columns)
    sums = {name: sum(counts) for name, counts in zip(_COUNTS, known, strict=False) if counts}
    return msgspec.structs.replace(Usage(), **sums)


def total(usages: Iterable[Usage]) -> Usage:
    """All of them as one. A cost is known only when that of every one that used anything is."""
    each = [usage for usage in usages if usage != _NOTHING]
    whole = token_sums(each)
    costs = [usage.cost for usage in each]
    if not costs or None in costs:
        return whole
    reported = all(usage.cost_from == "reported" for usage in each)
    return msgspec.structs.replace(
        whole,
        cost=sum(cost for cost in costs if cost is not None),
        cost_from="reported" if reported else "prices",
    )


_NOTHING = Usage()
