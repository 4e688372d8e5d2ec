"""Jobs: one owner at a time, until the lease runs out, until it is finished."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from closeloop.records.attempt import Attempt
from closeloop.records.experiment_plan import AttemptResult
from closeloop.store import Store, open_store
from closeloop.store.fact_rows import current_owner, is_owner_dead
from example_counts import scale_examples

LONG = 1000.0
owners = st.sampled_from(["host:1:7", "host:2:7", "host:3:7"])
keys = st.sampled_from(["task/variant/1/0", "task/variant/2/0"])
_worlds = itertools.count()


class Jobs(RuleBasedStateMachine):
    """The store's jobs beside a dictionary: key → (owner, whether the lease still runs)."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.world = f"{next(_worlds)}/"
        self.columns: dict[str, tuple[str, bool]] = {}
        self.done: set[str] = set()

    def free_for(self, key: str, owner: str) -> bool:
        holder, alive = self.columns.get(key, (owner, False))
        return key not in self.done and (holder == owner or not alive)

    @rule(key=keys, owner=owners, seconds=st.sampled_from([LONG, 0.0]))
    def claim(self, key: str, owner: str, seconds: float) -> None:
        expected = self.free_for(key, owner)
        assert self.store.claim_job(self.world + key, self.world + owner, seconds) is expected
        if expected:
            self.columns[key] = (owner, seconds == LONG)

    @rule(key=keys, owner=owners, dead=owners)
    def steal(self, key: str, owner: str, dead: str) -> None:
        victim = self.columns.get(key, (None, False))[0]
        expected = key not in self.done and (self.free_for(key, owner) or victim == dead)
        name = self.world + key
        stolen = self.store.claim_job(
            name, self.world + owner, LONG, lambda who: who.endswith(dead)
        )
        assert stolen is expected
        if expected:
            self.columns[key] = (owner, True)

    @rule(owner=owners, seconds=st.sampled_from([LONG, 0.0]))
    def heartbeat(self, owner: str, seconds: float) -> None:
        mine = [key for key, (holder, _) in self.columns.items() if holder == owner]
        assert self.store.renew_leases(self.world + owner, seconds) == len(mine)
        for key in mine:
            self.columns[key] = (owner, seconds == LONG)

    @rule(owner=owners, key=st.none() | keys)
    def release(self, owner: str, key: str | None) -> None:
        mine = [each for each, (holder, _) in self.columns.items() if holder == owner]
        given_back = [each for each in mine if key in (None, each)]
        name = None if key is None else self.world + key
        assert self.store.release_jobs(self.world + owner, name) == len(given_back)
        for each in given_back:
            del self.columns[each]

    @rule(key=keys, again=st.booleans())
    def finish(self, key: str, again: bool) -> None:
        name = self.world + key
        first = name if not again else f"{name} by another"
        attempt = Attempt(id=first, origin="experiment", exit="finished", experiment=self.world)
        saved = self.store.save_attempt(AttemptResult(attempt=attempt), name)
        known = {row.id for row in self.store.list_attempts(experiment=self.world)}
        assert (first in known) == (saved is not None)
        if key not in self.done:
            assert saved
        self.done.add(key)
        self.columns.pop(key, None)

    @invariant()
    def a_finished_job_stays_finished(self) -> None:
        for key in self.done:
            assert not self.store.claim_job(self.world + key, "anybody", LONG, lambda who: True)


def test_jobs_behave_like_a_dictionary_of_leases(store_url: str) -> None:
    with open_store(store_url) as opened:

        class Here(Jobs):
            store = opened

        run_state_machine_as_test(
            Here,
            settings=settings(
                max_examples=scale_examples(15),
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_a_lease_runs_out_by_itself_and_a_heartbeat_keeps_it(store_url: str) -> None:
    with open_store(store_url) as store:
        assert store.claim_job("kept", "first", 0.05)
        assert store.claim_job("long", "first", LONG)
        assert not store.claim_job("long", "second", LONG)
        assert store.renew_leases("first", LONG) == 2
        assert store.claim_job("short", "first", 0.05)
        time.sleep(0.15)
        assert store.claim_job("short", "second", LONG)
        assert not store.claim_job("kept", "second", LONG)
        assert store.renew_leases("first", LONG) == 2


def test_an_attempt_that_comes_second_is_not_saved(store_url: str) -> None:
    def attempt(name: str) -> Attempt:
        return Attempt(id=name, origin="experiment", exit="finished")

    with open_store(store_url) as store:
        assert store.claim_job("job", "slow", 0)
        assert store.claim_job("job", "quick", 60)
        assert store.save_attempt(AttemptResult(attempt=attempt("quick")), "job")
        assert not store.save_attempt(AttemptResult(attempt=attempt("slow")), "job")
        same_name = Attempt(id="quick", origin="experiment", exit="gave_up")
        assert not store.save_attempt(AttemptResult(attempt=same_name), "job")
        assert store.load_attempt("quick").exit == "finished"
        assert [row.id for row in store.list_attempts()] == ["quick"]
        assert store.save_attempt(AttemptResult(attempt=attempt("quick")), "job")


def test_whoever_decides_about_the_dead_is_asked_only_about_live_leases(store_url: str) -> None:
    asked: list[str] = []

    def dead(owner: str) -> Any:
        asked.append(owner)
        return False

    with open_store(store_url) as store:
        assert store.claim_job("job", "one", 60, dead)
        assert store.claim_job("gone", "one", 0, dead)
        assert store.claim_job("gone", "two", 60, dead)
        assert asked == []
        assert not store.claim_job("job", "two", 60, dead)
        assert asked == ["one"]


@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_releasing_gives_back_only_what_is_unfinished(store_url: str, seconds: float) -> None:
    with open_store(store_url) as store:
        assert store.claim_job("done", "one", seconds)
        assert store.claim_job("open", "one", seconds)
        store.save_attempt(
            AttemptResult(attempt=Attempt(id="a", origin="experiment", exit="finished")), "done"
        )
        assert store.release_jobs("one") == 1
        assert not store.claim_job("done", "two", LONG)
        assert store.claim_job("open", "two", LONG)


def test_who_was_killed_works_on_nothing(store_url: str) -> None:
    process = current_owner()
    killed = f"{process.rpartition(':')[0]}:0"
    assert is_owner_dead(killed)
    with open_store(store_url) as store:
        for key, owner, seconds in (
            ("plan/mine/0/0", process, LONG),
            ("plan/killed/0/0", killed, LONG),
            ("plan/elsewhere/0/0", "host:1:7", LONG),
            ("plan/late/0/0", "host:1:7", 0.0),
            ("other", process, LONG),
        ):
            assert store.claim_job(key, owner, seconds)
        assert {*store.experiments.list_claimed_jobs()} == {
            "plan/mine/0/0",
            "plan/elsewhere/0/0",
            "other",
        }
        assert store.plans.running_plan_ids() == {"mine", "elsewhere"}
