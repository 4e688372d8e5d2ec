"""What several turns used together."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import msgspec

from closeloop.model.attempt import Usage

_COUNTS = tuple(name for name in Usage.__struct_fields__ if name.endswith("_tokens"))
_counts = attrgetter(*_COUNTS)
_NOTHING = Usage()


def token_sums(usages: Iterable[Usage]) -> Usage:
    """The sums of the tokens that are known, None where none is; what they cost is left out."""
    columns = zip(*map(_counts, usages), strict=True)
    sums = {
        name: sum(filter(None, column))
        for name, column in zip(_COUNTS, columns, strict=False)
        if column.count(None) < len(column)
    }
    return msgspec.structs.replace(_NOTHING, **sums)


def total(usages: Iterable[Usage]) -> Usage:
    """All of them as one. A cost is known only when that of every one that used anything is."""
    each = list(usages)
    whole = token_sums(each)
    if all(usage.cost is None for usage in each):
        return whole
    each = [usage for usage in each if usage != _NOTHING]
    costs = [usage.cost for usage in each]
    if None in costs:
        return whole
    reported = all(usage.cost_from == "reported" for usage in each)
    return msgspec.structs.replace(
        whole,
        cost=sum(cost for cost in costs if cost is not None),
        cost_from="reported" if reported else "prices",
    )
