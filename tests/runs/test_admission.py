"""Suites run as many at once as the machine has processors, however many attempts there are."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from closeloop.concurrency import run_limited
from closeloop.grading.grading import GradedSubmission, grade_attempt
from closeloop.records.attempt import Attempt, Grade, Outcome, Proof
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Acceptance, Task
from closeloop.sandbox import admission
from closeloop.sandbox.admission import (
    OVERSUBSCRIBED_MESSAGE,
    admit_suite,
    count_cores,
    report_waiting,
    run_suite,
)
from closeloop.sandbox.program_execution import CURRENT_TALLY
from closeloop.sandbox.workspaces import WorkspacePool
from closeloop.text.patches import parse_patch
from patience import SCALES, until

CORES = int(count_cores())
LOAD_SECONDS = 300
PATCH = (
    "diff --git a/done b/done\nnew file mode 100644\n"
    "--- /dev/null\n+++ b/done\n@@ -0,0 +1 @@\n+done\n"
)
HOLD = """
import sys, anyio
from closeloop.sandbox import admission
async def hold():
    async with admission.admit_suite(alone=True):
        print("held", flush=True)
        sys.stdin.read()
        open(sys.argv[1], "w").close()
anyio.run(hold)
"""


@pytest.fixture(autouse=True)
def own_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else's suites take part; and no more than one for each processor."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(admission, "IDLE_SECONDS", 1e9)


# Slots


def test_as_many_suites_run_at_once_as_there_are_processors() -> None:
    now, most = 0, 0

    async def suite(_: int) -> None:
        nonlocal now, most
        async with admit_suite():
            now += 1
            most = max(most, now)
            await anyio.sleep(0.02)
            now -= 1

    async def go() -> None:
        await run_limited(range(4 * CORES), suite, jobs=4 * CORES)

    anyio.run(go)
    assert most == CORES


def test_idle_processors_make_room_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, idle = tmp_path / "stat", itertools.count(0, 10**9)

    def pass_idly() -> None:
        (tmp_path / "next").write_text(f"cpu  0 0 0 {next(idle)} 0 0 0 0 0 0\n")
        (tmp_path / "next").rename(stat)

    pass_idly()
    monkeypatch.setattr(admission, "STAT_FILE", stat)
    monkeypatch.setattr(admission, "IDLE_SECONDS", 0.0)
    entered: list[int] = []

    async def suite(number: int) -> None:
        async with admit_suite():
            entered.append(number)
            while len(entered) <= CORES:  # all are in at once, or it never ends
                pass_idly()
                await anyio.sleep(0.01)

    async def go() -> None:
        await run_limited(range(CORES + 1), suite, jobs=CORES + 1)

    anyio.run(go)
    assert len(entered) == CORES + 1


def test_a_suite_that_is_known_to_wait_takes_a_part_of_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\n")  # no processor idles, so no share is learnt
    monkeypatch.setattr(admission, "STAT_FILE", stat)
    monkeypatch.setattr(admission, "_CPU_SHARES", {"sleeps": 0.01, "waits": 0.1, "computes": 0.9})
    slots = admission.SLOTS_PER_CORE * CORES

    def count_at_once(name: str, expected: int) -> int:
        now, most, jobs = 0, 0, expected + 4

        async def go() -> None:
            full = anyio.Event()

            async def suite(_: int) -> None:
                nonlocal now, most
                async with admit_suite(suite=name):
                    now += 1
                    most = max(most, now)
                    if now == expected:
                        full.set()
                    await full.wait()  # so many are in at once, or it never ends
                    await anyio.sleep(0.02)
                    now -= 1

            await run_limited(range(jobs), suite, jobs=jobs)

        anyio.run(go)
        return most

    assert count_at_once("sleeps", slots) == slots
    assert count_at_once("waits", slots // 4) == slots // 4
    assert count_at_once("computes", CORES) == CORES


def test_a_suite_is_known_by_its_last_run_unless_the_machine_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(admission, "STAT_FILE", stat)
    monkeypatch.setattr(admission, "_CPU_SHARES", {})

    async def run_while(idle_ticks: int) -> None:
        stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\n")
        async with admit_suite(suite="one"):
            await anyio.sleep(0.01)
            stat.write_text(f"cpu  0 0 0 {idle_ticks} 0 0 0 0 0 0\n")

    anyio.run(run_while, 0)
    assert not admission._CPU_SHARES
    anyio.run(run_while, 10**9)
    assert admission._CPU_SHARES == {"one": 0.0}


@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_processes_share_the_slots(tmp_path: Path, ends: str) -> None:
    released = tmp_path / "released"
    command = [sys.executable, "-c", HOLD, str(released)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        seen: list[bool] = []

        async def wait() -> None:
            async with admit_suite():
                seen.append(released.exists())

        async def go() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await anyio.sleep(0.05)
                assert not seen
                if ends == "killed":
                    other.send_signal(signal.SIGKILL)
                other.stdin.close()

        anyio.run(go)
    assert seen == [ends == "by itself"]


def test_a_long_wait_for_another_process_is_reported_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "FIRST_REPORT_SECONDS", 0.0)
    command = [sys.executable, "-c", HOLD, str(tmp_path / "released")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        stdin, reports = other.stdin, list[int]()

        def report(others: int) -> None:
            reports.append(others)
            if others:
                stdin.close()

        async def go() -> None:
            with report_waiting(report):
                async with admit_suite():
                    pass

        anyio.run(go)
    assert reports == [1, 0]


def test_a_wait_for_suites_of_the_same_process_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "FIRST_REPORT_SECONDS", 0.0)
    reports: list[int] = []

    async def suite(_: int) -> None:
        async with admit_suite():
            await anyio.sleep(0.05)

    async def go() -> None:
        with report_waiting(reports.append):
            await run_limited(range(2 * CORES), suite, jobs=2 * CORES)

    anyio.run(go)
    assert reports == []


def test_alone_means_that_others_end_first_and_begin_later() -> None:
    told: list[str] = []

    async def suite(name: str, *, alone: bool = False) -> None:
        async with admit_suite(alone=alone):
            told.append(f"{name} begins")
            await anyio.sleep(0.05)
            told.append(f"{name} ends")

    async def go() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(suite, "first")
            while not told:  # noqa: ASYNC110
                await anyio.sleep(0.001)
            group.start_soon(lambda: suite("alone", alone=True))
            await anyio.sleep(0.001)
            group.start_soon(suite, "last")

    anyio.run(go)
    order = itertools.product(("first", "alone", "last"), ("begins", "ends"))
    assert told == [f"{name} {what}" for name, what in order]


def test_what_is_admitted_waits_for_nothing_inside() -> None:
    async def go() -> bool:
        async with admit_suite(alone=True) as outer, admit_suite() as inner:
            return outer is inner

    assert anyio.run(go)


def test_a_suite_that_the_clock_stops_on_a_full_machine_is_run_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, stolen, clocks = tmp_path / "stat", itertools.count(0, 10**9), list[int]()
    monkeypatch.setattr(admission, "STAT_FILE", stat)

    def use_all_processors() -> None:
        stat.write_text(f"cpu  0 0 0 0 0 0 0 {next(stolen)} 0 0\n")

    async def run(clock: int) -> str:
        clocks.append(clock)
        use_all_processors()
        tally = CURRENT_TALLY.get()
        assert tally is not None
        tally.waited = 10**9
        return "stopped"

    use_all_processors()
    assert anyio.run(run_suite, run, lambda _: True) == ("stopped", True)
    assert clocks == [1, admission.ALONE_TIMEOUT_FACTOR]
    clocks.clear()
    assert anyio.run(run_suite, run, lambda _: False) == ("stopped", False)
    assert clocks == [1]


# Grades


def burn(seconds: float) -> str:
    code = f"import time\nwhile time.process_time() < {seconds}: pass"
    return f"{sys.executable} -S -c '{code}'"


def graded(repo: Path, command: str, timeout: float, attempts: int = 1) -> list[Grade]:
    """The same right change by many attempts, all graded at once."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=repo, check=True, capture_output=True, text=True
    ).stdout.strip()
    wanted = Acceptance(commands=(f"test -e done && {command}",), timeout=timeout)
    task = Task(id="t", prompt="…", repo=str(repo), base=head, grading="g", acceptance=wanted)
    proof = Proof(task="t", grading="g", state="proved")
    grades: list[Grade] = []

    async def go() -> None:
        async with WorkspacePool(repo.parent / "cache", SandboxSettings(kind="none")) as workspaces:
            base = await workspaces.prepare_base(str(repo), head)

            async def one(number: int) -> None:
                attempt = Attempt(id=f"a{number}", origin="experiment", exit="finished")
                work = GradedSubmission(
                    attempt=attempt, change=parse_patch(PATCH), trace=None, proof=proof
                )
                grades.append(await grade_attempt(workspaces, base, task, work))

            await run_limited(range(attempts), one, jobs=attempts)

    anyio.run(go)
    return grades


def fails(repo: Path, command: str) -> bool:
    """Whether it fails for its time; as long as others use the machine, that cannot be told."""

    def outcome() -> Outcome | None:
        (one,) = graded(repo, command, 0.5)
        return one.outcome if one.outcome.result != "unscored" else None

    found = until(outcome)
    assert found
    return found.result == "fail" and "was stopped: out of time" in found.reasons[-1]


@contextmanager
def load(processes: int) -> Iterator[None]:
    """So many others that want a processor all the time."""
    # They end by themselves should nobody be left to end them.
    spin = f"import signal; signal.alarm({LOAD_SECONDS})\nwhile True: pass"
    command = [sys.executable, "-S", "-c", spin]
    # A session each: the kernel may share processors out by session.
    others = [subprocess.Popen(command, start_new_session=True) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_many_right_attempts_at_once_all_pass(repo: Path) -> None:
    """All at once, each would have to wait for six times its own time."""
    for scale in SCALES:
        grades = graded(repo, burn(0.2 * scale), 0.8 * scale, attempts=6 * CORES)
        results = [one.outcome.result for one in grades]
        if set(results) == {"pass"}:
            break
    assert results == ["pass"] * 6 * CORES, [one.outcome for one in grades]


@pytest.mark.parametrize("command", ["sleep 600", burn(600.0)], ids=["sleeps", "loops"])
def test_a_suite_that_never_ends_fails(repo: Path, command: str) -> None:
    assert fails(repo, command)


def test_a_suite_that_only_sleeps_fails_on_a_busy_machine_too(repo: Path) -> None:
    with load(3 * CORES):
        for scale in SCALES:  # in which its start is a small part
            (one,) = graded(repo, "sleep 600", 1.5 * scale)
            if one.outcome.result != "unscored":
                break
    assert one.outcome.result == "fail"


def test_a_suite_that_others_kept_from_running_is_unscored(repo: Path) -> None:
    def cause() -> str | None:
        (one,) = graded(repo, burn(60.0), 0.5)
        return one.outcome.cause

    with load(5 * CORES):
        assert until(cause) == OVERSUBSCRIBED_MESSAGE


def test_a_suite_cannot_pass_its_own_load_for_that_of_others(repo: Path) -> None:
    """Its children are nobody's, so that their time is not known to it."""
    swarm = (
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "for _ in range(60):\n"  # where others keep the processors busy, none must pile up
        f"    for _ in range({4 * CORES}):\n"
        "        if os.fork() == 0:\n"
        "            while time.process_time() < 0.05: pass\n"
        "            os._exit(0)\n"
        "    time.sleep(0.1)\n"
        "time.sleep(600)\n"
    )
    assert fails(repo, f"{sys.executable} -S -c '{swarm}'")
