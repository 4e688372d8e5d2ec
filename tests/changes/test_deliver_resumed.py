"""A delivery that is stopped anywhere goes on there: nothing is done, paid or opened twice."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from delivered_project import DOUBLE, REQUEST, WRONG, ask, build, hosted, writes
from fake_github import answer

from closeloop.orchestration.request_delivery import load_delivery_order
from closeloop.records.errors import BadInput
from closeloop.records.orchestration import (
    AskedWork,
    DeliveryOrder,
    DeliveryProgress,
    DeliveryResult,
)
from closeloop.store import open_store
from closeloop.store.fact_rows import is_owner_dead
from command_line import typed
from small_project import git

Point = tuple[str, bool]
PAID = ("delivery.worked", "delivery.fixed")


def known_order(project: Path) -> DeliveryOrder:
    """The delivery that the project's store knows."""
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        return load_delivery_order(store, store.steps.list_steps("delivery/")[0].split("/")[1])


class KilledError(BaseException):
    """The process is gone: nothing catches this."""


class Killer:
    """Ends a delivery at each point of it that it has not ended it at before."""

    def __init__(self) -> None:
        self.seen: list[Point] = []

    def tell(self, progress: DeliveryProgress) -> None:
        point = (progress.step, progress.done)
        if progress.known or point in self.seen:
            return
        self.seen.append(point)
        raise KilledError


def test_killed_at_every_step_it_ends_as_if_nobody_had(tmp_path: Path, store_url: str) -> None:
    fixes = (writes(DOUBLE),)
    project = build(tmp_path / "project", first=writes(WRONG), fixes=fixes, store=store_url)
    killer, result = Killer(), None
    with hosted(project) as github:
        while result is None:
            try:
                result = ask(project, killer.tell, github.environ)
            except KilledError:
                assert len(killer.seen) < 20
    steps = ["requested", "worked", "checked", "fixed", "saved", "branched", "opened", "ended"]
    assert {step for step, _ in killer.seen} == {*steps}
    assert len(killer.seen) == 2 * len(steps)
    assert (result.state, result.cycles) == ("delivered", 1)
    assert len(github.pulls) == 1
    assert result.branch is not None
    assert git(project, "show", f"{result.branch.name}:calc.py") == DOUBLE
    assert github.openings == 1
    with open_store(store_url) as store:
        assert [row.id for row in store.list_attempts()] == [result.attempt]
        assert len(store.reports.list_reports(10, attempt=result.attempt)) == 1
        events = store.events.list_after(0)
        paid = [one.details["cost"] for one in events if one.kind in PAID]
        assert result.cost == pytest.approx(sum(paid))
        kinds = [one.kind for one in events]
        assert kinds.count("delivery.worked") == kinds.count("delivery.fixed") == 1
        assert kinds.count("delivery.opened") == kinds.count("delivery.ended") == 1


@pytest.mark.parametrize("step", ["saved", "branched", "opened"])
def test_what_was_done_and_not_written_down_is_found_and_not_done_again(
    tmp_path: Path, step: str
) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE))
    store, copy = project / ".closeloop/closeloop.db", tmp_path / "before.db"

    def keep(progress: DeliveryProgress) -> None:
        if (progress.step, progress.done) == (step, False):
            with sqlite3.connect(store) as source, sqlite3.connect(copy) as target:
                source.backup(target)

    with hosted(project) as github:
        first = ask(project, keep, github.environ)
        for leftover in store.parent.glob("closeloop.db*"):
            leftover.unlink()
        shutil.copy(copy, store)
        second = ask(project, environ=github.environ)
        assert second.branch == first.branch
        assert second.pull is not None
        assert first.pull is not None
        assert second.pull.url == first.pull.url
        assert len(github.pulls) == 1
    with open_store(str(store)) as opened:
        assert len(opened.list_attempts()) == 1


def test_a_pull_request_that_is_not_listed_yet_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeloop.changes.code_host.retry_delay", lambda *_: 0.0)
    project = build(tmp_path / "project", first=writes(DOUBLE))
    with hosted(project) as github:
        branch = ask(project).branch
        assert branch is not None
        github.empty_lists = 1
        number, url = 7, f"{github.address}/pull/7"
        head = {"ref": branch.name, "sha": branch.commit}
        github.pulls.append({"number": number, "html_url": url, "head": head})
        github.head = branch.commit
        result = ask(project, environ=github.environ)
    assert result.pull is not None
    assert len(github.pulls) == 1


def test_a_lost_answer_opens_no_second_pull_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeloop.changes.code_host.retry_delay", lambda *_: 0.0)
    project = build(tmp_path / "project", first=writes(DOUBLE))
    with hosted(project) as github:

        def lose_answer(progress: DeliveryProgress) -> None:
            if (progress.step, progress.done) == ("opened", False):
                github.after.append(("POST .*/pulls$", answer(502, "Bad gateway")))

        result = ask(project, lose_answer, github.environ)
    assert len(github.pulls) == 1
    assert result.pull is not None
    assert result.pull.number == github.pulls[0]["number"]


def test_a_branch_that_people_went_on_with_is_left_as_it_is(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE))

    def stop(progress: DeliveryProgress) -> None:
        if (progress.step, progress.done) == ("opened", False):
            raise KilledError

    with hosted(project) as github:
        with pytest.raises(KilledError):
            ask(project, stop, github.environ)
        order = known_order(project)
        name = f"closeloop/{order.task.id}/{order.id}"
        git(github.bare, "branch", name, "main")  # somebody pushed something there meanwhile
        result = ask(project, environ=github.environ)
        assert result.branch is not None
        pushed = git(github.bare, "rev-parse", name).strip()
        assert pushed == git(project, "rev-parse", "main").strip()


def test_a_dry_run_makes_the_branch_and_the_next_run_opens_the_pull_request(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE))
    with hosted(project) as github:
        dry = ask(project, environ=github.environ, dry_run=True)
        assert (dry.state, dry.pull, github.pulls) == ("delivered", None, [])
        assert dry.notes == ("Dry run: no pull request was opened.",)
        wet = ask(project, environ=github.environ)
    assert wet.id == dry.id
    assert wet.branch == dry.branch
    assert len(github.pulls) == 1


def test_without_a_remote_there_is_a_branch_and_a_note_that_says_so(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE))
    result = ask(project)
    assert result.branch is not None
    (note,) = result.notes
    assert note.startswith("No pull request was opened: `origin` is not on GitHub or GitLab")


def test_the_same_request_is_one_delivery_and_once_more_is_another(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE))
    told: list[DeliveryProgress] = []
    first, second = ask(project), ask(project, told.append)
    assert first.id == second.id
    assert all(one.known for one in told)
    third = ask(project, again=True)
    assert third.id != first.id
    assert ask(project, asked=AskedWork(text=f"{REQUEST}, please")).id not in (first.id, third.id)


def test_a_delivery_goes_on_by_its_id_though_the_branch_moved(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE))

    def stop(progress: DeliveryProgress) -> None:
        if (progress.step, progress.done) == ("checked", False):
            raise KilledError

    with pytest.raises(KilledError):
        ask(project, stop)
    (project / "more.txt").write_text("more\n")
    git(project, "add", "more.txt")
    git(project, "commit", "-qm", "More")
    order = known_order(project)
    told: list[DeliveryProgress] = []
    result: DeliveryResult = ask(project, told.append, order=order)
    assert result.id == order.id
    assert [one.known for one in told if one.step == "worked"] == [True]
    assert result.branch is not None
    assert git(project, "rev-parse", f"{result.branch.name}~1").strip() == order.task.base


def test_two_processes_do_not_deliver_the_same(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE))

    def deliver_too(progress: DeliveryProgress) -> None:
        if (progress.step, progress.done) == ("worked", False):
            with open_store(str(project / ".closeloop/closeloop.db")) as store:
                job = known_order(project).job
                assert not store.claim_job(job, "another", 60, is_owner_dead)

    assert ask(project, deliver_too).state == "delivered"


def test_an_unknown_delivery_is_named(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE))
    ask(project)
    with (
        open_store(str(project / ".closeloop/closeloop.db")) as store,
        pytest.raises(BadInput, match="delivery"),
    ):
        load_delivery_order(store, "zzz")


def test_the_branch_of_a_delivery_is_named_and_made_again_where_it_is_gone(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE))
    result = ask(project)
    assert result.branch is not None
    git(project, "branch", "-D", result.branch.name)
    for _ in range(2):
        done = typed(project, "show", result.attempt, "--branch")
        assert done.stdout == f"{result.branch.name} in {project}\n"
        assert git(project, "rev-parse", result.branch.name).strip() == result.branch.commit


def test_a_trial_says_which_variant_delivers(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE))
    with (project / "closeloop.toml").open("a") as file:
        file.write('[variants.other]\nmodel = "worker"\n')
    typed(project, "ab", "start", "pairs", "--variants", "worker=0.5,other=0.5")
    done = typed(project, "deliver", REQUEST, "--variant", "pairs", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        (assigned,) = store.trials.list_assignments("pairs")
        (row,) = store.list_attempts()
    assert (assigned.key, assigned.variant) == (row.task, result["variant"])
    assert assigned.at <= row.started
    again = typed(project, "deliver", REQUEST, "--variant", "pairs", "--json")
    assert json.loads(again.stdout)["id"] == result["id"]
