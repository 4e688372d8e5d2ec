"""Many p-values at once: how much smaller each must be for all to hold together."""

from __future__ import annotations

from collections.abc import Mapping


def adjust_holm(tests: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values; with those under 0.05 called, one false call in twenty runs at most."""
    adjusted, least = {}, 0.0
    ordered = sorted(tests, key=tests.__getitem__)
    for place, name in enumerate(ordered):
        least = max(least, min(1.0, tests[name] * (len(ordered) - place)))
        adjusted[name] = least
    return {name: adjusted[name] for name in tests}


def adjust_benjamini_hochberg(tests: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values; of those under 0.05, one in twenty is expected to be false."""
    adjusted, most = {}, 1.0
    ordered = sorted(tests, key=tests.__getitem__)
    for place, name in reversed(list(enumerate(ordered, 1))):
        most = min(most, tests[name] * (len(ordered) / place))
        adjusted[name] = most
    return {name: adjusted[name] for name in tests}
