"""The commands as a user types them: what they print, what they refuse, how they exit."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.table import Table

import small_project
from closeloop.cli.console import print_parts
from closeloop.cli.run import render_outcome_cell
from closeloop.records.attempt import AttemptRow
from command_line import typed
from patience import PATIENCE, ROUNDS, until

pytestmark = pytest.mark.usefixtures("warm_path")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return small_project.build(tmp_path / "project", sandbox="none")


def typed_anew(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "closeloop", *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


FORECAST = ("attempt to run", "attempts to run", "difference on exactly", "points on exactly")
"""What is said before a run."""


def refused(folder: Path, *arguments: str, code: int = 2, **environ: str) -> str:
    """The one sentence that a user gets, and nothing else."""
    result = typed(folder, *arguments, **environ)
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    said = result.stderr.splitlines()
    lines = [
        line
        for line in said
        if not line.endswith("run without a sandbox.")
        and not any(text in line for text in FORECAST)
    ]
    assert len(lines) == 1, result.stderr
    return lines[0].removeprefix("closeloop: ")


def test_a_run_prints_a_table_and_where_to_look(project):
    result = typed_anew(project, "run")
    assert result.returncode == 0, result.stderr
    assert "3 of 3" in result.stdout
    assert "0 of 3" in result.stdout
    assert "✗ test_add fails: assert -1 == 5" in result.stdout
    pointer = next(line for line in result.stdout.splitlines() if "closeloop show" in line)
    shown = typed(project, "show", pointer.split()[2])
    assert shown.returncode == 0
    assert "✗ fail" in shown.stdout


def test_results_are_to_be_had_as_json(tried_project):
    result = typed(tried_project, "run", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert len(document["attempts"]) == 6
    listed = json.loads(
        typed(tried_project, "list", "attempts", "--json", "--outcome", "pass").stdout
    )["items"]
    assert {row["variant_name"] for row in listed} == {"closer"}
    shown = json.loads(typed(tried_project, "show", listed[0]["id"], "--json").stdout)
    assert shown["attempt"]["id"] == listed[0]["id"]


def test_tasks_are_proved(project):
    result = typed(project, "task", "check", "--test-runs", "2", "--json")
    proofs = {proof["task"]: proof for proof in json.loads(result.stdout)["items"]}
    assert {name: proof["state"] for name, proof in proofs.items()} == {
        "fix": "proved",
        "question": "proved",
        "triple": "unchecked",
    }
    assert result.returncode == 0


def test_a_reference_that_does_not_apply_is_no_proof(project):
    patch = project / "tasks" / "fix.patch"
    patch.write_text(patch.read_text().replace("a - b", "a / b"))
    result = typed(project, "task", "check", "fix")
    assert result.returncode == 1
    assert "does not apply" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["run", "fixx"],
            "No task named 'fixx'. Did you mean 'fix'? Known: fix, question, triple.",
        ),
        (["run", "--variant", "close"], "No variant named 'close'. Did you mean 'closer'?"),
        (["run", "--agent", "builtn"], "No agent named 'builtn'. Did you mean 'builtin'?"),
        (["run", "--model", "gpt"], "No model named 'gpt'."),
        (["run", "--model", "openai/gpt-5"], "No key for the model 'openai/gpt-5': set OPENAI_API"),
        (["run", "--model", "scripted:none.yaml"], "none.yaml"),
        (["run", "--agent", "builtin"], "The built-in agent needs a model"),
        (["run", "--repeats", "0"], "--repeats must be more than 0."),
        (["report", "r.html", "--score", "quality"], "name what is compared with --compare"),
        (["run", "missing.md"], "missing.md"),
        (["show", "abcdef"], "There is no store at "),
        (["run", "--variant", "closer", "--agent", "builtin"], "Give either --variant"),
    ],
)
def test_an_unknown_name_is_told_with_its_neighbours(project, arguments, sentence):
    assert sentence in refused(project, *arguments)


def test_a_list_that_is_empty_says_why(project):
    assert typed(project, "list", "attempts").returncode == 2
    typed(project, "admin", "token", "new", "ann")
    assert "abcdef" in refused(project, "show", "abcdef")
    assert (
        "`closeloop run` or `closeloop import` adds some"
        in typed(project, "list", "attempts").stdout
    )
    assert "No attempts match" in typed(project, "list", "attempts", "--task", "x").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--reapets", "2"], "--reapets. Did you mean --repeats?"),
        (["run", "--repeats", "x"], "--repeats must be a whole number, not 'x'."),
        (["gate", "--margin", "x"], "--margin must be a number, not 'x'."),
        (
            ["metrics", "--over-time", "--baseline-end", "x"],
            "--baseline-end must be a day, such as 2026-11-01, not 'x'.",
        ),
        (["show", "--task"], "--task needs a value."),
        (["task", "new"], "NAME is missing."),
        (["task", "export", "fix"], "--format is missing."),
        (["task", "due", "x"], "Unexpected argument 'x'."),
        (["nope"], 'Unknown command "nope".'),
        (["list", "tasks"], 'Unknown command "tasks". Did you mean `closeloop task list`?'),
        (["list", "rules"], 'Unknown command "rules".'),
        (
            ["-q", "--all", "measure"],
            "Options follow the command, as in `closeloop COMMAND --all`.",
        ),
    ],
)
def test_what_was_typed_wrong_is_told_in_a_line_with_where_to_read_on(project, arguments, sentence):
    said = refused(project, *arguments)
    assert sentence in said
    assert " --help`." in said
    assert len(said.splitlines()) == 1


def test_a_folder_without_its_slash_is_told_how_to_write_it(project):
    assert "write tasks/ for the tasks of that folder" in refused(project, "run", "tasks")
    assert "There are no tasks in nowhere: " in refused(project, "run", "nowhere/")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("acceptance:", "acceptence:", "no field 'acceptence'. Did you mean 'acceptance'?"),
        ("scope:", "base: 0123abc\nscope:", "0123abc"),
        ("scope:", "repo: ../..\nscope:", "is not a git repository"),
        ("scope:", "repo: ../../nowhere\nscope:", "nowhere"),
        ("reference: fix.patch", "reference: gone.patch", "gone.patch"),
        ("---\n`add`", "`add`", "fix.md"),
        ("`add` subtracts: make test_add pass.", "", "the prompt is missing"),
    ],
)
def test_a_task_with_a_mistake_is_named(project, old, new, sentence):
    task = project / "tasks" / "fix.md"
    assert old in task.read_text()
    task.write_text(task.read_text().replace(old, new, 1))
    message = refused(project, "run")
    assert sentence in message
    assert "fix.md" in message


def test_a_test_command_that_runs_no_test_is_told_before_anything_runs(project):
    task = project / "tasks" / "fix.md"
    task.write_text(task.read_text().replace("-m pytest", "-m pytest -k nothing_at_all"))
    result = typed(project, "run", "fix")
    assert result.returncode == 2
    assert "ran no test" in result.stdout


def test_a_setup_that_fails_is_told_with_its_output(project):
    task = project / "tasks" / "fix.md"
    setup = r"""setup: 'printf "no luck\33[2J"; exit 3'"""
    task.write_text(task.read_text().replace("scope:", f"{setup}\nscope:"))
    result = typed(project, "run", "fix")
    assert result.returncode == 2
    assert "exit code 3" in result.stdout
    assert "no luck\\x1b[2J" in result.stdout


def test_a_folder_without_a_project_is_told(tmp_path):
    assert "git init" in refused(tmp_path, "init")
    assert "closeloop task new" in refused(tmp_path, "run", "--model", "scripted:x.yaml")


def test_an_unknown_key_in_the_configuration_is_told(project):
    (project / "closeloop.toml").write_text("tassks = 'x'\n")
    assert "Did you mean 'tasks'?" in refused(project, "run")


def test_a_store_of_a_newer_closeloop_is_left_alone(project):
    typed(project, "run", "question")
    store = project / ".closeloop" / "closeloop.db"
    with sqlite3.connect(store) as database:
        database.execute("INSERT INTO closeloop_migrations VALUES (99)")
    database.close()
    assert "pgrade closeloop" in refused(project, "list", "attempts")


def test_a_file_that_is_no_store_is_left_alone(project):
    (project / ".closeloop").mkdir(exist_ok=True)
    (project / ".closeloop" / "closeloop.db").write_text("my diary, not a database\n" * 100)
    refused(project, "run", "question")
    assert (project / ".closeloop" / "closeloop.db").read_text().startswith("my diary")


@contextmanager
def provider(status: int, body: bytes, headers: dict[str, str] | None = None) -> Iterator[str]:
    """A model server that always answers the same; status 0 hangs up."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if status == 0:
                self.connection.close()
                return
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def with_model(project: Path, address: str) -> None:
    file = project / "closeloop.toml"
    file.write_text(
        f'retries = 0\n{file.read_text()}\n[models.local]\nprovider = "openai"\nmodel = "m"\n'
        f'base_url = "{address}"\nretries = 1\n'
    )


def test_a_refused_key_is_told_once_and_not_tried_again(project):
    with provider(401, b'{"error": {"message": "bad key sk-secret-123456"}}') as address:
        with_model(project, address)
        key = "sk-secret-123456"
        command = ("run", "question", "--model", "local", "--repeats", "3", "--set", "run.jobs=1")
        result = typed(project, *command, OPENAI_API_KEY=key)
    assert result.returncode == 1
    assert "2 attempts were not started: they would fail like another one" in result.stderr
    assert "OPENAI_API_KEY" in result.stderr
    assert key not in result.stderr + result.stdout


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, b"{}"),
        (500, b"oops"),
        (200, b"<html>not a model</html>"),
        (200, b'{"choices": 7}'),
        (0, b""),
    ],
)
def test_a_model_server_in_trouble_leaves_attempts_unscored(project, status, body):
    with provider(status, body, {"retry-after": "0"}) as address:
        with_model(project, address)
        result = typed(project, "run", "question", "--model", "local", "--json")
    assert result.returncode == 4, result.stderr
    (row,) = json.loads(result.stdout)["attempts"]
    assert (row["exit"], row["outcome"]) == ("machine", "unscored")
    assert row["outcome_cause"]


def test_an_agent_that_records_nothing_is_not_measured(project):
    """Its claim may be false, and nothing shows it: a count of 0 would say that it is not."""
    with (project / "closeloop.toml").open("a") as file:
        file.write('[variants.mute]\nagent = "command"\nsettings = {program = "echo It is 42."}\n')
    printed = typed(project, "run", "question", "--variant", "mute").stdout
    rows = {line[:33].strip(): line[33:].strip() for line in printed.splitlines()}
    assert rows["passed / scored"] == "1 of 1"
    unknown = ("made a false claim", "claimed success without a check", "median turns")
    assert [rows[name] for name in unknown] == ["–", "–", "–"]
    attempt = re.search(r"closeloop show (\w+)", printed)[1]
    assert "no trace was recorded: how the agent worked" in typed(project, "show", attempt).stdout
    assert "1 attempt has no trace" in refused(project, "measure", attempt)
    figures = json.loads(typed(project, "metrics", "--json").stdout)["figures"]
    values = {figure["metric"]: figure["value"] for figure in figures}
    assert (values["without findings"], values["turns"]) == (None, None)
    assert "has only the variant 'mute'" in refused(project, "compare")
    toml = project / "closeloop.toml"
    toml.write_text(toml.read_text().replace("It is 42", "It is 43"))
    typed(project, "run", "question", "--variant", "mute")
    error = refused(project, "compare")
    assert re.search(r"only the variant 'mute': .* `closeloop compare [0-9a-f]{12} OTHER`", error)


def test_two_runs_at_once_share_the_work(project):
    go = project / "go"
    (project / "wait.sh").write_text(f"until [ -e {go} ]; do sleep 0.1; done; echo It is 42.\n")
    with (project / "closeloop.toml").open("a") as file:
        program = f"sh {project}/wait.sh"
        file.write(f'[variants.waiter]\nagent = "command"\nsettings = {{program = "{program}"}}\n')
    asked = ("run", "question", "--variant", "waiter")
    command = [sys.executable, "-m", "closeloop", *asked]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.DEVNULL) as other:
        try:
            assert until(lambda: store_has_a_claim(project))
            early = typed(project, *asked)
        finally:
            go.touch()
        assert other.wait() == 0
    assert early.returncode == 1
    assert "1 attempt is running in another process" in early.stderr
    late = typed(project, *asked)
    assert "another process" not in late.stderr
    assert "1 of 1" in late.stdout


def store_has_a_claim(project: Path) -> bool:
    try:
        with sqlite3.connect(f"file:{project}/.closeloop/closeloop.db?mode=ro", uri=True) as store:
            question = "SELECT count(*) FROM jobs WHERE state = 'claimed'"
            return bool(store.execute(question).fetchone()[0])
    except sqlite3.OperationalError:
        return False


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(project):
    script = project / "spiraller.yaml"
    script.write_text("dialogues: [{turns: [{say: Later., delay: 600}]}]\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "closeloop", "run", "question"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def is_listed() -> bool:
        printed = typed(project, "list", "attempts", "--json").stdout
        return bool(printed and json.loads(printed).get("items"))

    assert until(is_listed)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Run the same command again" in errors
    assert "Traceback" not in errors
    rows = json.loads(typed(project, "list", "attempts", "--json").stdout)["items"]
    assert [row["variant_name"] for row in rows] == ["closer"]


def test_what_an_agent_wrote_cannot_command_the_terminal(project):
    script = project / "closer.yaml"
    script.write_text('dialogues: [{turns: [{say: "42 \\e]0;owned\\a \\e[2J\\u202e"}]}]\n')
    typed(project, "run", "question", "--variant", "closer")
    row = json.loads(typed(project, "list", "attempts", "--json").stdout)["items"][0]
    shown = typed(project, "show", row["id"]).stdout
    assert "\\x1b]0;owned" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_what_a_test_said_cannot_command_the_terminal_from_the_table():
    said = "\x1b[2J\x1b[1;31mred\x1b[0m"
    row = AttemptRow(id="a", origin="experiment", exit="finished", outcome="fail", reason=said)
    assert render_outcome_cell([row], {}).plain == "✗ \\x1b[2Jred"


def help_seconds(project: Path) -> float:
    """Processor seconds that the help takes, once it is compiled."""
    before = os.times()
    told = typed_anew(project, "--help", PYTHONDONTWRITEBYTECODE="").stdout
    after = os.times()
    for name in ("init", "run", "attempts", "show", "task"):
        assert name in told
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system


def test_a_command_tells_all_of_itself_wherever_help_is_typed(tmp_path):
    told = typed(tmp_path, "run", "--help").stdout
    assert "Finished attempts are saved" in told
    assert typed(tmp_path, "--help", "run").stdout == told
    assert told.startswith("Usage: closeloop run [OPTIONS]")
    # What is wrapped in the source is wrapped again to fit.
    assert "│                   unscored ones; `grades` only grades them again." in told
    described = typed(tmp_path, "import", "--help", COLUMNS="80").stdout
    assert "first.\nWith" not in described


def test_help_is_quick_and_complete(tmp_path):
    # Twice the aim, so that a busy machine does not fail it; `make bench` measures the aim.
    assert any(help_seconds(tmp_path) < 0.5 for _ in range(ROUNDS))


def test_a_long_name_pushes_nothing_out_of_a_table(capsys):
    table = Table(box=None)
    for name in ("attempt", "task", "variant"):
        table.add_column(name, no_wrap=True)
    table.add_row("61056434a133", "T" * 100, "V" * 300)
    print_parts(table)
    told = capsys.readouterr().out
    assert "61056434a133" in told
    assert (told.count("T"), told.count("V")) == (100, 300)
