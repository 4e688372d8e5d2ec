"""Kill commands at any moment, on both databases: nothing finished is lost or done twice.

Moments are drawn from a seed, as shares of the time that the command takes undisturbed. For a
longer campaign set CLOSELOOP_TEST_KILLS and CLOSELOOP_TEST_SEED.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

import postgres_server
import small_project
from closeloop.store import Store, open_store
from closeloop.tasks.work_history import read_ledger
from patience import PATIENCE, until

sys.path.insert(0, str(Path(__file__).parent / "changes"))
sys.path.insert(0, str(Path(__file__).parent / "orchestration"))
import delivered_project
import orchestrated

KILLS = int(os.environ.get("CLOSELOOP_TEST_KILLS", "2"))
SEED = os.environ.get("CLOSELOOP_TEST_SEED", "7")
SESSIONS = 75
SHOP = "def total(prices):\n    return sum(prices)\n"
SHOP_TESTS = """import unittest

from shop import total


class TestShop(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2]), 3)
"""
_numbers = itertools.count(1)


class Place:
    """A project with a store of its own, and a command that works on it."""

    def __init__(self, case: Case, folder: Path, url: str | None) -> None:
        self.case = case
        self.folder = case.build(folder)
        self.url = url or str(self.folder / ".closeloop/closeloop.db")

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "closeloop", *self.case.words(self)],
            cwd=self.folder,
            env={**os.environ, "CLOSELOOP_STORE": self.url, "PIP_NO_INDEX": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self) -> Any:
        """What comes of it when it is left alone."""
        process = self.start()
        printed, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        return self.outcome(printed)

    def outcome(self, printed: str) -> Any:
        with open_store(self.url) as store:
            return self.case.outcome(self, store, printed)


class Case:
    """One command: what it works on, how it is called and what must come of it."""

    def __init__(
        self,
        build: Callable[[Path], Path],
        words: Callable[[Place], list[str]],
        outcome: Callable[[Place, Store, str], Any],
    ) -> None:
        self.build, self.words, self.outcome = build, words, outcome


def attempts_of_run(place: Place, store: Store, printed: str) -> Any:
    fields = ("id", "task", "variant_name", "number", "retry", "exit", "outcome", "reason", "turns")
    rows = json.loads(printed)["attempts"]
    assert len(store.list_attempts()) == len(rows)
    return [tuple(row.get(field) for field in fields) for row in rows]


def write_sessions(folder: Path) -> Path:
    """Sessions of pi, each of its own."""
    at = "2026-11-15T05:46:00.000Z"
    (folder / "recorded").mkdir(parents=True)
    for number in range(SESSIONS):
        text = f"Session {number}: " + "api_key = " * 3000
        said = {"role": "user", "content": [{"type": "text", "text": text}]}
        head = {"type": "session", "version": 3, "id": f"s{number}", "timestamp": at, "cwd": "/a"}
        body = {"type": "message", "id": "m", "parentId": None, "timestamp": at, "message": said}
        lines = f"{json.dumps(head)}\n{json.dumps(body)}\n"
        (folder / "recorded" / f"{number}.jsonl").write_text(lines)
    return folder


def sessions_of_import(place: Place, store: Store, printed: str) -> Any:
    paths = [str(path) for path in sorted((place.folder / "recorded").iterdir())]
    known = store.load_imported_files(paths)
    assert sum(row.sessions for row in known.values()) == len(store.list_attempts()) == SESSIONS
    ids = (store.load_session(row.id) for row in store.list_attempts())
    return sorted(session.id for session in ids if session is not None)


def build_shop(folder: Path) -> Path:
    """Two pieces of work in the past that can be mined."""
    folder.mkdir()
    code, tests = SHOP, SHOP_TESTS
    configuration = '[commands]\ntest = "python3 -m unittest"\n'  # starts quickly
    files = {"closeloop.toml": configuration, ".gitignore": ".closeloop/\ntasks/\n"}
    small_project.git(folder, "init", "-q", "-b", "main")
    for name in ("", "smallest", "largest"):
        if name:
            chosen = {"smallest": "min", "largest": "max"}[name]
            code += f"\n\ndef {name}(prices):\n    return {chosen}(prices)\n"
            tests += f"\n    def test_{name}(self):\n        from shop import {name}\n\n"
            tests += f"        self.assertEqual({name}([1, 2]), {chosen}(1, 2))\n"
        files |= {"shop.py": code, "test_shop.py": tests}
        for path, content in files.items():
            (folder / path).write_text(content)
        small_project.git(folder, "add", "-A")
        small_project.git(folder, "commit", "-qm", f"The {name} price" if name else "Start")
    return folder


def tasks_of_mine(place: Place, store: Store, printed: str) -> Any:
    tasks = sorted((place.folder / "tasks").rglob("*"))
    kept = {str(path.relative_to(place.folder)): path.is_file() for path in tasks}
    ledger = read_ledger(place.folder / ".closeloop/mined.jsonl")
    return kept, sorted((entry.commit, entry.state) for entry in ledger.values())


def resume_or_begin(place: Place) -> list[str]:
    if "://" in place.url or Path(place.url).exists():
        with open_store(place.url) as store:
            if listed := store.plans.list_plans(1):
                return ["orchestrate", "--resume", listed[0].id, "--json"]
    return ["orchestrate", "plan.json", "--json"]


def tries_of_plan(place: Place, store: Store, printed: str) -> Any:
    (listed,) = store.plans.list_plans(10)
    story = store.plans.load_story(listed.id)
    assert story.ending is not None
    assert len(store.list_attempts()) == 1
    return sorted(
        (one.execution.task, one.execution.number, one.assessment and one.assessment.passed)
        for one in story.tries
    )


def build_delivered(folder: Path) -> Path:
    first, mended = map(
        delivered_project.writes, (delivered_project.WRONG, delivered_project.DOUBLE)
    )
    return delivered_project.build(folder, first=first, fixes=(mended,))


def steps_of_delivery(place: Place, store: Store, printed: str) -> Any:
    result = json.loads(printed)
    assert [row.id for row in store.list_attempts()] == [result["attempt"]]
    code = small_project.git(place.folder, "show", f"{result['branch']['name']}:calc.py")
    kinds = [event.kind for event in store.events.list_after(0)]
    return result["id"], result["state"], result["cycles"], result["cost"], code, kinds


CASES = {
    "deliver": Case(
        build_delivered,
        lambda place: ["deliver", delivered_project.REQUEST, "--json"],
        steps_of_delivery,
    ),
    "run": Case(
        partial(small_project.build, runner="unittest"),
        lambda place: ["run", "--json"],
        attempts_of_run,
    ),
    "import": Case(
        write_sessions, lambda place: ["import", "recorded", "--jobs", "2"], sessions_of_import
    ),
    "mine": Case(build_shop, lambda place: ["mine", "--test-runs", "1", "--json"], tasks_of_mine),
    "orchestrate": Case(orchestrated.build, resume_or_begin, tries_of_plan),
}


@pytest.fixture
def fresh_url(request: pytest.FixtureRequest) -> Callable[[str], str | None]:
    """The address of another new database; None for SQLite, where the project has its own."""

    def make(engine: str) -> str | None:
        if engine == "sqlite":
            return None
        folder, name = request.getfixturevalue("postgres_folder"), f"killed_{next(_numbers)}"
        with psycopg.connect(postgres_server.address(folder), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        return postgres_server.address(folder, name)

    return make


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, float]]:
    """What comes of a command that is left alone, and how long it takes."""

    @cache
    def measure(command: str) -> tuple[Any, float]:
        place = Place(CASES[command], tmp_path_factory.mktemp(command) / "undisturbed", None)
        began = time.monotonic()
        return place.run(), time.monotonic() - began

    return measure


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        pair
        for pair in itertools.product(CASES, ("sqlite", "postgresql"))
        # As test_kill.py and test_deliver_resumed.py do.
        if pair not in (("run", "sqlite"), ("deliver", "postgresql"))
    ],
)
def test_a_command_that_is_killed_loses_nothing(
    command: str,
    engine: str,
    tmp_path: Path,
    fresh_url: Callable[[str], str | None],
    undisturbed: Callable[[str], tuple[Any, float]],
) -> None:
    expected, longest = undisturbed(command)
    chance = random.Random(f"{SEED} {command} {engine}")
    kills = 0
    for number in itertools.count():
        place = Place(CASES[command], tmp_path / f"round-{number}", fresh_url(engine))
        while kills < KILLS:
            process, began = place.start(), time.monotonic()
            try:
                process.communicate(timeout=chance.uniform(0.05, 1.0) * longest)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
            else:
                longest = min(longest, time.monotonic() - began)
                break  # it was quicker: the next kill is another project's, and sooner
        assert place.run() == expected
        if kills == KILLS:
            break


def span(number: int) -> dict[str, Any]:
    one = {"traceId": f"{number:032x}", "spanId": f"{number:016x}", "name": "chat"}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_server_that_is_killed_keeps_what_it_acknowledged(
    engine: str, tmp_path: Path, fresh_url: Callable[[str], str | None]
) -> None:
    chance = random.Random(f"{SEED} serve {engine}")
    serve = Case(lambda folder: folder, lambda place: ["serve", "--port", "0"], lambda *_: None)
    (tmp_path / "closeloop.toml").touch()
    place = Place(serve, tmp_path, fresh_url(engine))
    numbers = itertools.count(1)
    acknowledged: set[str] = set()
    for _ in range(KILLS):
        process = place.start()
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        assert until(lambda address=address: is_up(address))
        for _ in range(chance.randint(1, 40)):
            number = next(numbers)
            answer = httpx.post(f"{address}/v1/traces", json=span(number), timeout=PATIENCE)
            assert answer.status_code == 200
            acknowledged.add(f"{number:032x}")
        process.kill()
        process.communicate()
    with open_store(place.url) as store:
        assert store.count_spans() == dict.fromkeys(acknowledged, 1)


def is_up(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=PATIENCE).is_success
    except httpx.TransportError:
        return False
