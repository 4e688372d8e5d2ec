"""What others may build on: the names that `closeloop` exports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import closeloop


def test_the_public_names_are_these_and_sorted():
    assert closeloop.__all__ == sorted(closeloop.__all__)
    assert all(getattr(closeloop, name).__name__ == name for name in closeloop.__all__)


def test_another_name_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = closeloop.nothing


def test_importing_closeloop_imports_nothing_heavy():
    code = "import sys, closeloop; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"msgspec", "sqlite3", "httpx", "rich", "anyio"} & set(loaded)


RECORDING = Path(__file__).parent / "traces/fixtures/claude_code"
NEW_RECORDING = Path(__file__).parent / "traces/fixtures/gemini"
RUNS_THINGS = {"httpx", "jinja2", "tree_sitter", "yaml", "asyncio", "anyio"}
"""With what attempts are run, models asked, pages served and code parsed."""
RULES = {"closeloop.process.detectors.spiral", "closeloop.process.detectors.drift"}
READERS = {"closeloop.traces.readers.codex", "closeloop.traces.readers.otlp"}
PROCESSES = {"multiprocessing", "concurrent.futures.process"}
STARTS = [
    (("list", "attempts"), RUNS_THINGS | RULES | READERS | PROCESSES | {"numpy"}),
    (("find", "rounding"), RUNS_THINGS | RULES | READERS | PROCESSES | {"numpy"}),
    (("show", "ATTEMPT"), RUNS_THINGS | RULES | READERS | PROCESSES | {"numpy"}),
    (("show", "ATTEMPT", "--json"), RUNS_THINGS | RULES | READERS | PROCESSES | {"numpy", "rich"}),
    (("triage", "--since", "all"), RUNS_THINGS | RULES | READERS | PROCESSES),
    (("metrics",), RUNS_THINGS | RULES | READERS | PROCESSES),
    (("import", str(RECORDING)), RUNS_THINGS | RULES | READERS | PROCESSES | {"numpy"}),
    (("import", str(NEW_RECORDING)), RUNS_THINGS | READERS | PROCESSES | {"numpy"}),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a store of one recording, and the attempt that it became."""
    folder = tmp_path_factory.mktemp("project")
    _run_python("from closeloop.cli import main; main()", folder, "import", str(RECORDING))
    rows = _run_python("from closeloop.cli import main; main()", folder, "list", "attempts", "-q")
    return folder, re.findall(r"\b[0-9a-f]{12}\b", rows)[0]


@pytest.mark.parametrize(
    ("words", "unused"), STARTS, ids=[" ".join(words)[:30] for words, _ in STARTS]
)
def test_a_command_loads_only_what_it_needs(
    project: tuple[Path, str], words: tuple[str, ...], unused: set[str]
) -> None:
    folder, attempt = project
    code = (
        "import sys, atexit; from closeloop.cli import main;"
        "atexit.register(lambda: print('loaded:', *sys.modules)); main()"
    )
    given = [attempt if word == "ATTEMPT" else word for word in words]
    loaded = _run_python(code, folder, *given).rpartition("loaded:")[2].split()
    assert not unused & {*loaded}


def _run_python(code: str, folder: Path, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def test_type_checkers_know_the_same_names():
    text = Path(closeloop.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert sorted(re.findall(r"(\w+) as \1\b", text)) == sorted([*closeloop.__all__, "open"])
    assert {*closeloop.__all__, "open", "__version__"} <= {*dir(closeloop)}
