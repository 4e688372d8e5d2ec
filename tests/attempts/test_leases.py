"""Leases while the work goes on: renewed, through an outage too, until another has them."""

from __future__ import annotations

import re
from functools import partial

import anyio
import psycopg
import pytest

import postgres_server
from closeloop.attempts.attempt_execution import maintain_leases
from closeloop.records.errors import MachineFailed
from closeloop.store import Store, open_store
from patience import PATIENCE

END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"


def run_beside(store: Store, least: int, work) -> None:
    """Some work, while the leases of `me` are kept."""

    async def go() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(maintain_leases, store, "me", min_leases=least, seconds=0.8))
            await work()
            group.cancel_scope.cancel()

    anyio.run(go)


def test_a_database_that_is_away_for_a_while_ends_no_work_and_the_lease_is_renewed(
    postgres_folder: str, postgres_url: str
) -> None:
    (name,) = re.findall(r"/(test_\d+)", postgres_url)
    with (
        open_store(postgres_url) as store,
        psycopg.connect(postgres_server.address(postgres_folder), autocommit=True) as admin,
    ):
        assert store.claim_job("job", "me", 0.8)

        async def work() -> None:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            admin.execute(END, [name])
            with pytest.raises(MachineFailed):
                store.renew_leases("me", 0.8)
            await anyio.sleep(1.2)
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
            with anyio.fail_after(PATIENCE):
                while not store.experiments.list_claimed_jobs():  # noqa: ASYNC110 - a row, which wakes nobody
                    await anyio.sleep(0.02)

        run_beside(store, 1, work)


def test_work_that_another_process_has_taken_over_is_ended(tmp_path) -> None:
    with open_store(str(tmp_path / "closeloop.db")) as store:
        assert store.claim_job("job", "me", 0)
        assert store.claim_job("job", "another", 60)
        with pytest.raises(ExceptionGroup) as ended:
            run_beside(store, 1, partial(anyio.sleep, PATIENCE))
        assert ended.group_contains(MachineFailed, match="Another process has taken over this work")


def test_one_who_holds_no_lease_between_two_attempts_goes_on(tmp_path) -> None:
    with open_store(str(tmp_path / "closeloop.db")) as store:
        run_beside(store, 0, partial(anyio.sleep, 0.5))
