"""Leases on attempts and plans: kept while this process works, given up when another has them."""

from __future__ import annotations

import anyio
from anyio import to_thread

from closeloop.records.errors import Fault, MachineFailed
from closeloop.store import Store

LEASE_SECONDS = 120.0


async def maintain_leases(
    store: Store, owner: str, *, least: int = 0, seconds: float = LEASE_SECONDS
) -> None:
    """Say now and then that this process is alive, so that nobody takes over its work.

    A database that is away for a while ends no work under way: it is asked again until it tells.
    MachineFailed when fewer than the least are still ours: somebody else does that work now.
    """
    wait = seconds / 4
    while True:
        await anyio.sleep(wait)
        try:
            lease_count = await to_thread.run_sync(store.renew_leases, owner, seconds)
        except Fault:
            wait = seconds / 24
            continue
        if lease_count < least:
            raise MachineFailed("Another process has taken this work over: let it finish.")
        wait = seconds / 4
