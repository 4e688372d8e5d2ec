"""What several turns used together."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import msgspec

from closeloop.records.attempt import Usage

_TOKEN_FIELDS = tuple(name for name in Usage.__struct_fields__ if name.endswith("_tokens"))
_token_counts = attrgetter(*_TOKEN_FIELDS)
_NO_USAGE = Usage()


def sum_token_counts(usages: Iterable[Usage]) -> Usage:
    """The sums of the tokens that are known, None where none is; what they cost is left out."""
    columns = zip(*map(_token_counts, usages), strict=True)
    sums = {
        name: sum(filter(None, column))
        for name, column in zip(_TOKEN_FIELDS, columns, strict=False)
        if column.count(None) < len(column)
    }
    return msgspec.structs.replace(_NO_USAGE, **sums)


def sum_usage(usages: Iterable[Usage]) -> Usage:
    """All of them as one. A cost is known only when that of every one that used anything is."""
    usage_list = list(usages)
    whole = sum_token_counts(usage_list)
    if all(usage.cost is None for usage in usage_list):
        return whole
    usage_list = [usage for usage in usage_list if usage != _NO_USAGE]
    costs = [usage.cost for usage in usage_list]
    if None in costs:
        return whole
    reported = all(usage.cost_from == "reported" for usage in usage_list)
    return msgspec.structs.replace(
        whole,
        cost=sum(cost for cost in costs if cost is not None),
        cost_from="reported" if reported else "prices",
    )
