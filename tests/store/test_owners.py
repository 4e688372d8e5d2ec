"""A lease is stolen only from a process that is surely gone."""

from __future__ import annotations

import subprocess
import sys

from closeloop.store.fact_rows import current_owner, is_owner_dead

SAY = (
    "from closeloop.store.fact_rows import current_owner; print(current_owner(), flush=True);"
    " input()"
)


def test_a_process_is_dead_once_it_has_ended_and_not_before() -> None:
    command = [sys.executable, "-c", SAY]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        owner = child.stdout.readline().strip()
        assert not is_owner_dead(owner)
        child.kill()
        # Killed and not yet waited for: what is left of it works on nothing.
        child.stdout.read()
        for _ in range(1000):
            if is_owner_dead(owner):
                break
        assert is_owner_dead(owner)
    assert is_owner_dead(owner)


def test_a_later_process_with_the_same_number_is_another() -> None:
    owner = current_owner()
    assert not is_owner_dead(owner)
    machine, pid, start = owner.rsplit(":", 2)
    assert is_owner_dead(f"{machine}:{pid}:{int(start) - 1}")


def test_a_process_of_another_machine_may_be_alive() -> None:
    pid_and_start = current_owner().split(":", 1)[1]
    assert not is_owner_dead(f"elsewhere/1:{pid_and_start}0")
    assert not is_owner_dead("nonsense")
    assert not is_owner_dead("")
