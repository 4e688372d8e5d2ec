"""docs/tutorial.md, followed literally in an empty folder.

Every `bash` block is typed, and the lines of a `text` block right below it must be printed, in that
order; ids and the width of columns may differ. `console` blocks are not typed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from closeloop.records.errors import MachineFailed
from closeloop.records.record import Record
from closeloop.records.settings import SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool
from patience import PATIENCE, until

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```bash\n(.*?)^```\n(?:\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_SERVE = "closeloop serve"


class Step(Record):
    commands: str
    expected: tuple[str, ...]


STEPS = [
    Step(commands=found[1], expected=tuple((found[2] or "").splitlines()))
    for found in _BLOCK.finditer(PAGE)
]


class Reader:
    """Somebody at a shell, with closeloop and pytest installed and no keys, who types along."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        who = {f"GIT_{role}_NAME": "Ann" for role in ("AUTHOR", "COMMITTER")}
        who |= {f"GIT_{role}_EMAIL": "ann@example.org" for role in ("AUTHOR", "COMMITTER")}
        mine = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CLOSELOOP_", "PIP_")) and "API_KEY" not in name
        }
        self.environment = {
            **mine,
            **who,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",  # no test waits for the network
        }

    def type(self, commands: str) -> str:
        """Everything that is printed; the folder that the commands end in is the next one's."""
        here = self.folder / ".here"
        ran = subprocess.run(
            ["bash", "-e", "-c", f'{commands}\npwd > "$HERE"'],
            cwd=self.folder,
            env=self.environment | {"HERE": str(here)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{commands}\n{ran.stdout}"
        self.folder = Path(here.read_text().strip())
        here.unlink()
        return ran.stdout

    def open_dashboard(self) -> str:
        """Start the server, open its address, and stop it with Ctrl-C."""
        server = subprocess.Popen(
            [*_SERVE.split(), "--port", "0"],
            cwd=self.folder,
            env=self.environment | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
            assert address is not None
            return until(lambda: fetch_page(f"{address[0]}/attempts"))
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate()


def fetch_page(address: str) -> str:
    """The page's text; empty while nobody answers."""
    try:
        return httpx.get(address, timeout=PATIENCE, trust_env=False).text
    except httpx.ConnectError:
        return ""


@pytest.fixture
def reader(tried_demo: Path, tmp_path: Path) -> Reader:
    """In an empty folder, but for the demo, which was run before: `closeloop demo` shows it."""
    try:
        WorkspacePool(tmp_path / "cache", SandboxSettings()).close()
    except MachineFailed:
        pytest.skip("no sandbox works here")
    beside = shutil.ignore_patterns("*.db-wal", "*.db-shm")
    folder, home = tmp_path / "empty", tmp_path / "home"
    home.mkdir()
    shutil.copytree(tried_demo, folder / "closeloop-demo", symlinks=True, ignore=beside)
    return Reader(folder, home)


def plain(line: str) -> str:
    """Without what differs: the width of columns, and the commit at the end of a task's id."""
    return " ".join(re.sub(r"-[0-9a-f]{8}\b", "-ID", line).split())


def test_the_tutorial_can_be_followed_literally(reader: Reader) -> None:
    assert len(STEPS) > 10
    for step in STEPS:
        if step.commands.strip() == _SERVE:
            assert "tests/test_discounts.py" in reader.open_dashboard()
            continue
        came = reader.type(step.commands)
        lines = iter(came.splitlines())
        for expected in step.expected:
            found = any(plain(expected) in plain(line) for line in lines)
            assert found, f"{step.commands}\nprints no line {expected!r}:\n{came}"
    assert reader.folder.name == "past"
