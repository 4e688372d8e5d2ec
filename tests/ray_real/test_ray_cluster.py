"""Attempts on a real Ray cluster: nodes and drivers die, the table is whole in the end."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from two_nodes import Cluster, two_nodes

import small_project

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: `make ray` has it"
)
SLOWLY = """name: slow
dialogues:
  - prompt: subtracts
    turns:
      - do: {run: sleep 2}
      - do: {edit: {path: calculator.py, old: return a - b, new: return a + b}}
      - do: {finish: Done.}
  - prompt: answer
    turns: [{do: {run: sleep 2}}, {say: It is 42.}]
"""
REPEATS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # A socket's path must be short, and Ray puts its own below this folder.
    folder = Path(f"/tmp/closeloop-ray-{os.getpid()}")
    folder.mkdir()
    with two_nodes(folder) as nodes:
        yield nodes
    subprocess.run(["rm", "-rf", str(folder)], check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = small_project.build(tmp_path, sandbox="none")
    (folder / "slow.yaml").write_text(SLOWLY)
    return folder


def stored(project: Path) -> list[tuple[str, int, str]]:
    """The id, retry and exit of every attempt so far."""
    path = project / ".closeloop" / "closeloop.db"
    if not path.exists():
        return []
    database = sqlite3.connect(path)
    try:
        return database.execute("SELECT id, retry, exit FROM attempts").fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        database.close()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def finished(driver: subprocess.Popen[str]) -> list[dict[str, object]]:
    printed, said = driver.communicate(timeout=180)
    assert driver.returncode == 0, said
    return list(json.loads(printed)["attempts"])


ASKED = ("fix", "question", "--model", "scripted:slow.yaml", "--repeats", str(REPEATS))


def test_a_driver_that_is_killed_goes_on_where_it_was(cluster, project):
    driver = cluster.closeloop(project, *ASKED, "--set", "run.jobs=2")
    wait_for(lambda: len(stored(project)) >= 2, "nothing is finished")
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    before = stored(project)
    rows = finished(cluster.closeloop(project, *ASKED, "--set", "run.jobs=2"))
    assert len(rows) == 2 * REPEATS
    assert {row["outcome"] for row in rows} == {"pass"}
    assert set(before) <= set(stored(project))
    assert len(stored(project)) == 2 * REPEATS


def test_a_node_that_is_lost_loses_no_finished_attempt_and_makes_none_twice(cluster, project):
    driver = cluster.closeloop(project, *ASKED, "--set", "run.jobs=2")
    wait_for(lambda: len(stored(project)) >= 2, "nothing is finished")
    cluster.kill("other")
    rows = finished(driver)
    assert len(rows) == 2 * REPEATS
    assert {row["outcome"] for row in rows} == {"pass"}
    places = {(row["task"], row["variant"], row["number"]) for row in rows}
    assert len(places) == len(rows)
    lost = [row for row in stored(project) if row[2] == "machine"]
    assert lost, "the node had nothing in hand"
    assert len(stored(project)) == 2 * REPEATS + len(lost)
    cluster.start("other", processors=1)
    cluster.wait(2)


MENDER = """name: mender
dialogues:
  - prompt: breaks checks
    turns:
      - do: {edit: {path: calculator.py, old: return a * 3, new: return a + a}}
      - do: {finish: Mended.}
  - turns:
      - do: {run: "printf '# more\\n' >> calculator.py"}
      - do: {edit: {path: calculator.py, old: return a + a, new: return a * 3}}
      - do: {finish: Done.}
      - say: Nothing was missing.
"""


def test_a_delivery_and_its_fix_cycle_are_worked_on_by_nodes(cluster, project):
    (project / "mender.yaml").write_text(MENDER)
    with (project / "closeloop.toml").open("a") as file:
        file.write("[commands]\ntest = \"grep -q 'a + a' calculator.py\"\n")
    asked = ("Add a remark", "--model", "scripted:mender.yaml")
    driver = cluster.closeloop(project, *asked, command="deliver")
    printed, said = driver.communicate(timeout=180)
    assert driver.returncode == 0, said
    result = json.loads(printed)
    assert (result["state"], result["cycles"]) == ("delivered", 1)
    assert result["feedback"] == "Nothing was missing."
    code = small_project.git(project, "show", f"{result['branch']['name']}:calculator.py")
    assert code == small_project.CALCULATOR + "# more\n"
