"""A store that cannot be written can be read; what must write says so in one sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
import store_worker

from closeloop.records.errors import BadInput, ReadOnlyStore
from closeloop.store import open_store
from closeloop.store import store as store_opening
from command_line import typed
from patience import PATIENCE, until

NO_MOUNT = "NO READ-ONLY MOUNT: this machine lets nobody mount a folder read-only"


def read_only(folder: Path) -> tuple[str, ...]:
    """What stands before a command to let it see a folder that nobody can write to."""
    rights = () if os.geteuid() == 0 else ("-U", "-r")
    mount = f'mount --bind "{folder}" "{folder}" && mount -o remount,ro,bind "{folder}"'
    words = ("unshare", *rights, "--mount", "sh", "-c", f'{mount} && cd "{folder}" && exec "$@"')
    if shutil.which("unshare") is None or subprocess.call([*words, "sh", "true"]):
        pytest.skip(NO_MOUNT)
    return (*words, "sh")


@pytest.fixture
def project(tried_project: Path) -> Path:
    """A project with six attempts that were measured, and one that was not."""
    with open_store(str(tried_project / ".closeloop/closeloop.db")) as store:
        store_worker.save(store, "unmeasured")
    return tried_project


@pytest.fixture(params=["closed", "killed"])
def left(request: pytest.FixtureRequest, project: Path, tmp_path: Path) -> Path:
    """The project with a store that was closed, or that was left open by a process now dead."""
    place = tmp_path / "left"
    if request.param == "closed":
        return Path(shutil.copytree(project, place, symlinks=True))
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        # What is newest lies in the log only, and is copied before anybody closes it.
        store_worker.save(store, tmp_path.name)
        shutil.copytree(project, place, symlinks=True)
        assert (place / ".closeloop/closeloop.db-wal").stat().st_size > 0
        return place


def closeloop(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*read_only(folder), sys.executable, "-m", "closeloop", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


TYPE_ALL = """
import json, sys
from pathlib import Path
from command_line import typed
for words in json.loads(sys.argv[1]):
    done = typed(Path.cwd(), *words)
    print(json.dumps([done.returncode, done.stdout, done.stderr]))
"""


def read_all(folder: Path, commands: list[tuple[str, ...]]) -> list[tuple[int, str, str]]:
    """How each command ends and what it prints, all in one process."""
    script = [sys.executable, "-c", TYPE_ALL, json.dumps(commands)]
    printed = subprocess.run(
        [*read_only(folder), *script],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=True,
    ).stdout
    return [tuple(json.loads(line)) for line in printed.splitlines()]


READING = [
    ("list", "attempts", "--json"),
    ("metrics", "--json"),
    ("compare", "closer", "spiraller", "--json"),
    ("export", "--table", "events"),
]


def test_a_project_on_a_read_only_disk_is_read(left: Path, tmp_path: Path) -> None:
    # A copy that is written to, for metrics save what they measure.
    written = Path(shutil.copytree(left, tmp_path / "written", symlinks=True))
    name = json.loads(typed(written, "list", "attempts", "--json").stdout)["items"][0]["id"]
    *results, shown = read_all(left, [*READING, ("show", name)])
    for words, (code, printed, errors) in zip(READING, results, strict=True):
        assert code == 0, (words, errors)
        assert printed == typed(written, *words).stdout
    assert shown[0] == 0
    assert name in shown[1]


@pytest.mark.parametrize(
    "words", [("run", "--repeats", "2"), ("import", "."), ("admin", "token", "new", "x")]
)
def test_what_must_write_to_a_read_only_disk_says_so(words: tuple[str, ...], left: Path) -> None:
    result = closeloop(left, *words)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert re.search("is read-only: make it|cannot be opened: make it", line)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    log = folder.parent / "log.txt"
    command = [*read_only(folder), sys.executable, "-m", "closeloop", "serve", "--port", "0"]
    with log.open("w") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
    try:
        assert until(lambda: process.poll() is not None or "\n" in log.read_text())
        address = log.read_text().splitlines()[0].split()[-1]
        assert until(lambda: _answers(address)), log.read_text()
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE)
        assert "Traceback" not in log.read_text()


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=PATIENCE).is_success
    except httpx.TransportError:
        return False


def test_a_read_only_store_is_served_for_reading(left: Path) -> None:
    with serving(left) as address, httpx.Client(base_url=address, timeout=PATIENCE) as http:
        rows = http.get("/api/attempts").json()
        assert len(json.dumps(rows)) > 1000
        document = http.get("/api/openapi.json").json()
        paths = [path for path in document["paths"] if path.startswith("/api/") and "{" not in path]
        for path in paths:
            if "get" in document["paths"][path]:
                page = path.removeprefix("/api")
                assert http.get(path).status_code in (200, 400), path
                assert http.get(page).status_code in (200, 400, 404), page
        for path in ("/v1/traces", "/api/review", "/login", "/memory"):
            answer = http.post(path, json={}, headers={"accept": "application/json"})
            assert answer.status_code == 403
            assert "is read-only" in answer.json()["message"]


def test_a_read_only_database_of_postgresql_is_read(postgres_url: str) -> None:
    with open_store(postgres_url) as store:
        store_worker.save(store, "one")
    name = postgres_url.split("?", maxsplit=1)[0].rsplit("/", 1)[1]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with open_store(postgres_url, may_be_read_only=True) as store:
        assert [row.id for row in store.list_attempts()] == ["one"]
        with pytest.raises(ReadOnlyStore, match="is read-only"):
            store_worker.save(store, "two")


def test_a_read_only_store_of_an_older_closeloop_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "a.db"
    open_store(str(path)).close()
    script = (
        "import sys, closeloop; from closeloop.store import migrations;"
        "migrations.MIGRATIONS += (migrations.Migration(statements=()),);"
        "closeloop.open_store(sys.argv[1], may_be_read_only=True)"
    )
    command = [*read_only(path.parent), sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert BadInput.__name__ in done.stderr
    assert "make it writable once" in done.stderr


def test_a_store_with_a_misspelt_name_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "typo.db"
    with pytest.raises(BadInput, match="There is no store at"):
        store_opening.open_store(str(file))
    assert not file.exists()
    open_store(str(file)).close()
    store_opening.open_store(str(file)).close()
