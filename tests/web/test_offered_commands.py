"""Every command that a page offers works in the folder where the server runs."""

from __future__ import annotations

import html
import io
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

import small_project
from closeloop.cli.config import load_project
from closeloop.store.store import open_existing_store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from closeloop.web.pages import PAGES
from command_line import typed

HERE = "http://127.0.0.1:4318"
OFFERED = re.compile(r"<code[^>]*>(closeloop [a-z][^<]*)</code>")
FILLED_IN = {
    "closeloop admin token new NAME": "closeloop admin token new somebody",
    "closeloop ab start trial --variants a=0.5,b=0.5": (
        "closeloop ab start trial --variants closer=0.5,spiraller=0.5"
    ),
}
"""What people type in place of what stands for it."""
SERVICES = (
    "closeloop import --github owner/name",
    "closeloop import --git .",
    "closeloop list pulls --fetch",
)
"""What asks a code host, which is not here, or a history of pull requests."""
NAMES_OF_NOTHING = ("closeloop score ATTEMPT", "closeloop compare A B", "closeloop judge calibrate")
"""Shown as patterns, of which every page of an attempt has the real one."""
RECORDINGS = Path(__file__).parents[1] / "traces" / "fixtures" / "codex"
JUDGE = """name: judge
dialogues:
  - prompt: .
    turns: [{say: I have no say., repeat: true}]
"""
LONG = ("closeloop run", "closeloop mine")
"""Run once before, and tried by other tests."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two attempts at a task of the folder's own repository, made by `closeloop run`."""
    folder = small_project.build(tmp_path_factory.mktemp("project"), "none")
    for name in ("fix.patch", "triple.md", "triple-tests.patch", "question.md"):
        (folder / "tasks" / name).unlink()
    (folder / "tasks" / "fix.md").write_text(small_project.QUICK_FIX)
    with (folder / "closeloop.toml").open("a") as settings:
        settings.write('[judge]\nmodels = ["scripted:judge.yaml"]\n')
    (folder / "judge.yaml").write_text(JUDGE)
    sessions = folder / "home" / ".codex" / "sessions"
    sessions.mkdir(parents=True)
    for recording in (RECORDINGS / "direct").rglob("*.jsonl"):
        shutil.copy(recording, sessions)
    made = typed(folder, "run", HOME=str(folder / "home"))
    assert made.returncode in (0, 1), made.stderr
    return folder


@pytest.fixture(scope="module")
def offered(project: Path) -> list[str]:
    """All that stands on a page, each once."""
    found = load_project(project)
    with open_existing_store(found.settings, found.root) as store:
        desk = PageContext(store, found.settings, found.root)
        desk.metric_cache.patience = None
        attempts = [row.id for row in store.list_attempts()]
        experiment = store.list_experiments()[0].id
        with TestClient(
            build_web_app(store, token=None, page_context=desk), base_url=HERE
        ) as client:
            commands = [
                html.unescape(text)
                for address in list_addresses(attempts, experiment)
                for text in OFFERED.findall(client.get(address).text)
            ]
    return list(dict.fromkeys(commands))


def list_addresses(attempts: list[str], experiment: str) -> Iterator[str]:
    """Every page, of the attempts and the task that there are."""
    names = {"{task}": "fix", "{experiment}": experiment, "{number}": "1"}
    for page in PAGES:
        required = {one.name for one in msgspec.structs.fields(page.query_type) if one.required}
        if not required <= {"attempt", "task", "experiment", "number"}:
            continue
        path = page.path
        for name, value in names.items():
            path = path.replace(name, value)
        for attempt in attempts if "{attempt}" in path else attempts[:1]:
            yield path.replace("{attempt}", attempt)
    yield f"/compare?attempt={attempts[0]}&attempt={attempts[1]}"


def test_pages_offer_commands(offered: list[str]) -> None:
    assert any(one.startswith("closeloop check") for one in offered)
    assert any(one.startswith("closeloop compare attempt:") for one in offered)
    assert any(one.startswith("closeloop judge ") for one in offered)


def test_every_command_that_a_page_offers_works_where_the_server_runs(
    project: Path, offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict may be bad; what was typed is understood, and ends as it should."""
    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))  # who reviews stops at once
    failed = {}
    for command in offered:
        if command in SERVICES or command.startswith(NAMES_OF_NOTHING):
            continue
        words = shlex.split(FILLED_IN.get(command, command))[1:]
        if command in LONG:
            words.append("--help")
        ended = typed(project, *words, HOME=str(project / "home"))
        said = f"{ended.stdout}{ended.stderr}"
        if ended.returncode not in (0, 1, 4):
            failed[command] = (ended.returncode, said[-400:])
    assert not failed, "\n".join(f"{key}: {value}" for key, value in failed.items())
