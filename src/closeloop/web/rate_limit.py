"""How often one address may do something."""

from __future__ import annotations

import time
from collections import OrderedDict

MAX_ADDRESSES = 10_000


class AddressRateLimit:
    """So many in so many seconds, of each address."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.rate = most / seconds
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count_request(self, address: str) -> float | None:
        """Count one more; None when it may go on, else the seconds until it may."""
        now = time.monotonic()
        left, last_time = self._left.pop(address, (float(self.most), now))
        left = min(float(self.most), left + (now - last_time) * self.rate)
        allowed = left >= 1
        self._left[address] = (left - 1 if allowed else left, now)
        if len(self._left) > MAX_ADDRESSES:
            self._left.popitem(last=False)
        return None if allowed else max(1.0, (1 - left) / self.rate)
