"""An attempt whose model does not answer is unscored, whatever the clock says."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from provider_server import Provider, provider

import small_project
from closeloop.attempts.experiment_run import (
    list_plan_attempts,
    open_run,
    open_run_context,
    plan_experiment,
    run_attempts,
)
from closeloop.cli.config import load_project
from closeloop.records.attempt import AttemptRow
from closeloop.records.change import Change
from closeloop.records.experiment_plan import RunProgress
from closeloop.records.settings import ExperimentSettings
from closeloop.tasks.task_files import select_tasks
from patience import PATIENCE, SCALES

__all__ = ["provider"]

EDIT = {"path": "calculator.py", "old": "return a - b", "new": "return a + b"}
PROGRAM = f"""#!{sys.executable} -IS
import json, os, pathlib, subprocess, urllib.request
messages = [{{"role": "user", "content": "Mend add."}}]
while True:
    body = json.dumps({{"model": "m", "messages": messages, "stream": True}}).encode()
    to = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
                                {{"content-type": "application/json"}})
    said = ""
    with urllib.request.urlopen(to) as answer:
        for line in answer:
            if line.startswith(b"data: {{"):
                for choice in json.loads(line[6:])["choices"]:
                    said += choice["delta"].get("content") or ""
    print(said, flush=True)
    if not said:
        raise SystemExit("no answer")
    if said == "edit":
        path = pathlib.Path("calculator.py")
        path.write_text(path.read_text().replace("return a - b", "return a + b"))
    elif said == "sleep":
        subprocess.run(["sleep", "600"])
    elif said == "done":
        break
    messages.append({{"role": "assistant", "content": said}})
"""
CONFIGURATION = """
retries = {retries}
[models.far]
provider = "openai"
model = "m"
base_url = "{address}/v1"
input_price = 1000
output_price = 1000
[variants.builtin]
model = "far"
limits = {{seconds = {seconds}}}
[variants.program]
agent = "command"
model = "far"
settings = {{program = "{program}"}}
limits = {{seconds = {seconds}}}
"""
USAGE = {"prompt_tokens": 900, "completion_tokens": 100}
CALLS: dict[str, Any] = {
    "edit": ("edit", EDIT),
    "look": ("run", {"command": "true"}),
    "sleep": ("run", {"command": "sleep 600"}),
}
Step = Callable[[Any], None]


def does(name: str) -> Step:
    """One good turn, for an agent that streams and for one that does not."""
    call = CALLS.get(name)
    message: dict[str, Any] = {"role": "assistant", "content": name}
    if call:
        function = {"name": call[0], "arguments": msgspec.json.encode(call[1]).decode()}
        message["tool_calls"] = [{"id": "c1", "type": "function", "function": function}]
    whole = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE}

    def send(handler: Any) -> None:
        if handler.provider.asked[-1].get("stream"):
            begin_stream(handler)
            last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": USAGE}
            for event in (saying(name), last):
                write_chunk(handler, b"data: %s\n\n" % msgspec.json.encode(event))
            write_chunk(handler, b"data: [DONE]\n\n")
            handler.wfile.write(b"0\r\n\r\n")
        else:
            handler.send(200, msgspec.json.encode(whole))

    return send


def saying(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"role": "assistant", "content": text}}]}


def begin_stream(handler: Any) -> None:
    handler.wfile.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )


def write_chunk(handler: Any, chunk: bytes) -> None:
    handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
    handler.wfile.flush()


def refuses(status: int, **headers: str) -> Step:
    return lambda handler: handler.send(status, b'{"error": {"message": "later"}}', **headers)


def sends_for_ever(*events: bytes, every: float = 0.1) -> Step:
    """A stream that never ends, until the other side hangs up."""

    def send(handler: Any) -> None:
        begin_stream(handler)
        while True:
            for event in events:
                write_chunk(handler, event)
                time.sleep(every)  # the pace of the provider

    return send


def says_nothing(handler: Any) -> None:
    handler.connection.recv(1)


def breaks_off(handler: Any) -> None:
    begin_stream(handler)
    write_chunk(handler, b"data: %s\n\n" % msgspec.json.encode(saying("ed")))
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


PINGS = sends_for_ever(b": waiting\n\n")
TRICKLES = sends_for_ever(
    b"data: %s\n\n" % msgspec.json.encode(saying("x")), *[b": waiting\n\n"] * 20
)
LATER = refuses(429, retry_after="3600")
SILENCES = {
    "429 with a far Retry-After": LATER,
    "503": refuses(503),
    "529": refuses(529, retry_after="30"),
    "pings for ever": PINGS,
    "a trickle": TRICKLES,
    "nothing": says_nothing,
}


class Ended(msgspec.Struct):
    row: AttemptRow
    tries: list[AttemptRow]
    change: Change | None
    told: list[RunProgress]


def attempt(
    folder: Path,
    address: str,
    variant: str,
    *,
    seconds: float = 2.0,
    retries: int = 0,
    budget: float | None = None,
) -> Ended:
    """One experiment of one attempt at the task `fix`, with the tries that it took."""
    folder.mkdir()
    project = small_project.build(folder, sandbox="none")
    (project / "tasks/fix.md").write_text(small_project.QUICK_FIX)
    program = project / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    file = project / "closeloop.toml"
    more = CONFIGURATION.format(
        retries=retries, address=address, seconds=seconds, program=str(program)
    )
    first, _, rest = more.strip().partition("\n")
    file.write_text(f"{first}\n{file.read_text()}{rest}\n")
    settings = load_project(project, environ={}).settings
    told: list[RunProgress] = []

    async def go() -> Ended:
        chosen = select_tasks(settings, project, ["fix"])
        environ = {"OPENAI_API_KEY": "none"}
        async with open_run_context(settings, project, [variant], environ) as workshop:
            plan = plan_experiment(workshop, chosen, ExperimentSettings(budget=budget))
            with anyio.fail_after(PATIENCE):
                async with open_run(plan, workshop, jobs=1, report_progress=told.append) as going:
                    await run_attempts(going)
            tries = sorted(workshop.store.list_attempts(), key=lambda row: row.retry)
            row = list_plan_attempts(plan, workshop.store)[0]
            return Ended(row, tries, workshop.store.load_change(row.id), told)

    return anyio.run(go)


def attempt_in_time(
    folder: Path, provider: Provider, variant: str, exit_: str, seconds: float, **more: Any
) -> Ended:
    """The same with a wider limit where a slow machine spoils it."""
    for scale in SCALES:
        provider.asked.clear()
        given = seconds * scale
        ended = attempt(folder / str(scale), provider.address, variant, seconds=given, **more)
        if ended.row.exit == exit_:
            break
    return ended


@pytest.fixture(autouse=True)
def short_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes about a hundred bytes for the path of a socket."""
    monkeypatch.setattr("tempfile.tempdir", "/tmp")


@pytest.mark.parametrize("variant", ["builtin", "program"])
@pytest.mark.parametrize("how", SILENCES)
def test_a_model_that_never_answers_leaves_the_attempt_unscored(
    provider: Provider, tmp_path: Path, how: str, variant: str
) -> None:
    provider.says(SILENCES[how])
    ended = attempt_in_time(tmp_path, provider, variant, "machine", 1.0)
    assert (ended.row.exit, ended.row.outcome) == ("machine", "unscored")
    assert "did not answer, not once" in (ended.row.cause or "")


@pytest.mark.parametrize("variant", ["builtin", "program"])
def test_a_provider_that_cannot_be_reached_leaves_the_attempt_unscored(
    tmp_path: Path, variant: str
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        ended = attempt(tmp_path / "project", address, variant)
    assert (ended.row.exit, ended.row.outcome) == ("machine", "unscored")


@pytest.mark.parametrize("variant", ["builtin", "program"])
@pytest.mark.parametrize("how", ["429 with a far Retry-After", "pings for ever", "a trickle"])
def test_a_model_that_stops_answering_leaves_what_was_done_kept_and_unscored(
    provider: Provider, tmp_path: Path, how: str, variant: str
) -> None:
    provider.says(does("edit"), does("look"), does("look"), SILENCES[how])
    ended = attempt_in_time(tmp_path, provider, variant, "machine", 2.0)
    assert (ended.row.exit, ended.row.outcome) == ("machine", "unscored")
    assert "stopped answering, after 3 answers" in (ended.row.cause or "")
    assert ended.change is not None
    assert "+    return a + b" in ended.change.patch
    assert ended.row.cost is not None
    assert ended.row.cost > 0


@pytest.mark.parametrize("variant", ["builtin", "program"])
def test_an_agent_that_spends_its_time_in_its_own_commands_is_out_of_time_and_graded(
    provider: Provider, tmp_path: Path, variant: str
) -> None:
    provider.says(does("sleep"))
    ended = attempt_in_time(tmp_path, provider, variant, "out_of_time", 1.0)
    assert (ended.row.exit, ended.row.outcome) == ("out_of_time", "fail")


def test_a_program_that_gives_up_on_a_broken_answer_is_not_at_fault(
    provider: Provider, tmp_path: Path
) -> None:
    provider.says(breaks_off)
    ended = attempt(tmp_path / "project", provider.address, "program", seconds=PATIENCE)
    assert (ended.row.exit, ended.row.outcome) == ("machine", "unscored")
    assert "during a reply" in (ended.row.cause or "")


def test_an_attempt_that_the_model_left_is_begun_again_and_then_scored(
    provider: Provider, tmp_path: Path
) -> None:
    provider.says(PINGS, does("edit"), does("done"))
    ended = attempt_in_time(tmp_path, provider, "program", "finished", 2.0, retries=1)
    assert [row.outcome for row in ended.tries] == ["unscored", "pass"]
    assert ended.tries[1].parent == ended.tries[0].id


def test_what_an_unscored_try_cost_counts_against_the_budget_of_the_experiment(
    provider: Provider, tmp_path: Path
) -> None:
    provider.says(does("edit"), LATER)
    ended = attempt_in_time(tmp_path, provider, "program", "machine", 2.0, retries=5, budget=1.0)
    assert [row.outcome for row in ended.tries] == ["unscored"]
    assert ended.row.cost == pytest.approx(1.0)
    (held,) = [one.why for one in ended.told if one.stage == "held"]
    assert "$1.00 of the budget of $1.00 are spent" in (held or "")
