"""What people copy into their repositories: the action, the hook, the examples on the page."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from inspected import git, write

from closeloop.changes.report_formats import COMMENT_MARKER, REPORT_FORMATS
from closeloop.cli.check import check

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "check-in-ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
WORKFLOW, UPLOAD, GITLAB, PRE_COMMIT = (yaml.safe_load(block) for block in BLOCKS)
INSTALL, CHECK, PREPARE = "Install closeloop", "Check the pull request", "Prepare the cache"
RESTORE, SAVE = "Restore the cache", "Save the cache"
SHELL = shutil.which("bash") or "bash"


def scripts() -> dict[str, str]:
    """Every shell line that a runner would run."""
    found = {step["name"]: step["run"] for step in STEPS.values() if "run" in step}
    for key in ("script", "after_script"):
        found |= {f"{key} {number}": line for number, line in enumerate(GITLAB["closeloop"][key])}
    return found


@pytest.mark.parametrize(("name", "script"), scripts().items())
def test_every_script_is_a_script(name: str, script: str):
    ran = subprocess.run([SHELL, "-n", "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


# The action


def test_the_action_has_what_github_asks_for():
    assert {"name", "description", "runs"} <= ACTION.keys()
    assert ACTION["runs"]["using"] == "composite"
    for step in STEPS.values():
        assert step.get("shell") == ("bash" if "run" in step else None)
    for given in ACTION["inputs"].values():
        assert given["description"]


def test_no_script_is_made_of_what_others_wrote():
    for name, script in scripts().items():
        assert "${{" not in script, name


def test_the_action_uses_every_input_and_no_other():
    values = [value for step in STEPS.values() for value in step.get("env", {}).values()]
    used = set(re.findall(r"inputs\.(\w+)", " ".join(values)))
    assert used == ACTION["inputs"].keys()
    table = re.search(r"^\| input \|.*?\n\n", PAGE, re.DOTALL | re.MULTILINE)
    assert table
    assert set(re.findall(r"^\| `(\w+)`", table[0], re.MULTILINE)) == used


@pytest.mark.parametrize("sarif", [True, False])
def test_the_action_installs_what_is_checked_out_and_hands_its_arguments_on(
    tmp_path: Path, sarif: bool
):
    """Run as a runner runs it, with a Python that only writes down what it was asked."""
    asked = tmp_path / "asked"
    for path in (tmp_path / "python", tmp_path / "closeloop/bin/python"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
        path.chmod(0o755)
    program = tmp_path / "closeloop/bin/closeloop"
    program.write_text(f'#!/bin/sh\necho "closeloop:$#:$*" >> {asked}\nexit 1\n')
    program.chmod(0o755)
    env = {**os.environ, "RUNNER_TEMP": str(tmp_path), "PYTHON": str(tmp_path / "python")}
    env |= {"SOURCE": "/checkout", "GITHUB_TOKEN": "x", "ARGUMENTS": " --tier  risk $(id)"}
    env |= {"SARIF": str(tmp_path / "a b.sarif") if sarif else ""}
    install, checked = (STEPS[name]["run"] for name in (INSTALL, CHECK))
    assert subprocess.run([SHELL, "-c", install], env=env, check=False).returncode == 0
    assert subprocess.run([SHELL, "-c", checked], env=env, check=False).returncode == 1
    told = asked.read_text()
    assert "--constraint /checkout/constraints.txt /checkout[check]\n" in told
    more = f" --format sarif={tmp_path}/a b.sarif" if sarif else ""
    assert f"closeloop:{7 if sarif else 5}:check --github --tier risk $(id){more}\n" in told
    assert (ROOT / "constraints.txt").is_file()


def test_the_action_says_so_where_python_is_too_old(tmp_path: Path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    env = {**os.environ, "RUNNER_TEMP": str(tmp_path), "PYTHON": str(old), "SOURCE": "/checkout"}
    install = STEPS[INSTALL]["run"]
    ran = subprocess.run([SHELL, "-c", install], env=env, check=False, capture_output=True)
    assert ran.returncode == 2
    assert b"::error::" in ran.stdout


@pytest.mark.parametrize(("code", "warned"), [(0, False), (1, False), (2, True)])
def test_a_push_prepares_the_cache_without_running_the_repository(
    tmp_path: Path, code: int, warned: bool
):
    program = tmp_path / "closeloop/bin/closeloop"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho report\nexit {code}\n')
    program.chmod(0o755)
    env = {**os.environ, "RUNNER_TEMP": str(tmp_path)}
    command = [SHELL, "-eo", "pipefail", "-c", STEPS[PREPARE]["run"]]  # as a runner starts it
    ran = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert (tmp_path / "asked").read_text() == "check --tier quality --tier risk HEAD~1..HEAD\n"
    assert ran.stdout.startswith("::warning::") if warned else ran.stdout == ""


def test_only_a_push_to_the_default_branch_saves_the_cache():
    used = {name: step["uses"].partition("@")[0] for name, step in STEPS.items() if "uses" in step}
    assert used == {RESTORE: "actions/cache/restore", SAVE: "actions/cache/save"}
    for name in (PREPARE, SAVE):
        assert "github.event_name == 'push'" in STEPS[name]["if"]
    assert "github.event_name != 'push'" in STEPS[CHECK]["if"]
    default = "github.ref == format('refs/heads/{0}', github.event.repository.default_branch)"
    assert default in STEPS[SAVE]["if"]
    assert "||" not in STEPS[SAVE]["if"]
    restored, saved = (STEPS[name]["with"] for name in (RESTORE, SAVE))
    assert restored["path"] == saved["path"]
    assert restored["key"].startswith(restored["restore-keys"])
    assert saved["key"] == restored["key"].replace("github.event.pull_request.base.sha || ", "")


def test_what_is_restored_cannot_replace_closeloop():
    assert list(STEPS) == [RESTORE, INSTALL, CHECK, PREPARE, SAVE]
    for path in STEPS[SAVE]["with"]["path"].split():
        assert path.startswith("~/.cache/closeloop/")


def test_the_cache_has_what_a_check_reads_again_and_no_results_of_commands(tmp_path: Path):
    """The real command, in a home folder of its own."""
    home, repository = tmp_path / "home", tmp_path / "repository"
    home.mkdir()
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    write(repository, {"closeloop.toml": '[commands]\nsetup = ["touch made"]\ntest = "true"\n'})
    for number in range(3):
        write(repository, {f"m{number}.py": f"def work_{number}(): return {number}\n"})
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", f"Add {number}")
    env = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    env |= {"HOME": str(home), "RUNNER_TEMP": str(tmp_path)}
    program = tmp_path / "closeloop/bin/closeloop"
    program.parent.mkdir(parents=True)
    program.symlink_to(Path(sys.executable).with_name("closeloop"))
    for script in (STEPS[PREPARE]["run"], f"{program} check HEAD~1 > /dev/null"):
        subprocess.run([SHELL, "-ec", script], cwd=repository, env=env, check=True)
    patterns = STEPS[SAVE]["with"]["path"].split()
    saved = [path for pattern in patterns for path in home.glob(pattern.removeprefix("~/"))]
    assert [path.name for path in saved if path.is_dir()] == ["history"]
    assert [path.suffix for path in saved if path.is_file()] == [".db"]
    assert (home / ".cache/closeloop/workspaces").is_dir()


# The page


def test_the_workflow_has_what_the_check_needs():
    assert WORKFLOW[True] == {  # YAML reads `on` as a truth
        "pull_request": None,
        "push": {"branches": ["main"]},
    }
    assert WORKFLOW["permissions"] == {
        "contents": "read",
        "checks": "write",
        "pull-requests": "write",
    }
    (job,) = WORKFLOW["jobs"].values()
    checkout, action = job["steps"]
    assert checkout["with"]["fetch-depth"] == 0
    assert re.fullmatch(r"OWNER/closeloop@\w+", action["uses"])


def test_inputs_on_the_page_are_those_of_the_action():
    action, upload = UPLOAD
    assert action["with"].keys() <= ACTION["inputs"].keys()
    assert upload["with"]["sarif_file"] == action["with"]["sarif"]


def test_gitlab_gets_the_files_that_are_written():
    job = GITLAB["closeloop"]
    written = dict(re.findall(r"--format (\w+)=(\S+)", "\n".join(job["script"])))
    assert written["gitlab"] == job["artifacts"]["reports"]["codequality"]
    assert written["markdown"] in job["artifacts"]["paths"]


def test_formats_on_the_page_are_those_there_are():
    known = {*REPORT_FORMATS, "json"}
    assert set(re.findall(r"--format (\w+)", PAGE)) - {"FORMAT"} <= known
    table = PAGE[PAGE.index("| format |") :]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == known


def test_flags_on_the_page_in_the_action_and_in_the_hook_are_those_of_the_command():
    parameters = inspect.signature(check).parameters
    flags = {f"--{name.replace('_', '-')}" for name in parameters}
    texts = [*scripts().values(), *(hook["entry"] for hook in HOOKS), PAGE]
    used = {
        flag
        for text in texts
        for call in re.findall(r"closeloop\"? check\b[^`|]*", text)
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", call.split("\n")[0])
    }
    assert {"--github", "--format", "--staged"} <= used
    assert used <= flags


# The hook


def test_the_hook_is_the_one_on_the_page():
    (hook,) = HOOKS
    (repository,) = PRE_COMMIT["repos"]
    assert [one["id"] for one in repository["hooks"]] == [hook["id"]]
    assert hook["language"] == "python"
    assert hook["pass_filenames"] is False
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert hook["entry"].split()[0] in project["scripts"]


# The note in GitLab, written by the script on the page


class Notes(BaseHTTPRequestHandler):
    """A merge request's notes, as far as the script asks for them."""

    notes: dict[int, dict[str, Any]]
    tokens: set[str]

    def do_GET(self) -> None:
        self._answer([*self.notes.values()])

    def do_POST(self) -> None:
        number = len(self.notes) + 1
        self._keep(number, "project_1_bot_9f")

    def do_PUT(self) -> None:
        self._keep(int(self.path.rpartition("/")[2]), "project_1_bot_9f")

    def _keep(self, number: int, user: str) -> None:
        content = self.rfile.read(int(self.headers["content-length"])).decode()
        body = content.split("\r\n\r\n", 1)[1].rpartition("\r\n--")[0]
        self.notes[number] = {"id": number, "body": body, "author": {"username": user}}
        self._answer(self.notes[number])

    def _answer(self, value: Any) -> None:
        self.tokens.add(self.headers.get("private-token", ""))
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


@contextmanager
def gitlab() -> Iterator[tuple[type[Notes], str]]:
    class Mine(Notes):
        notes: dict[int, dict[str, Any]] = {}
        tokens: set[str] = set()

    with ThreadingHTTPServer(("127.0.0.1", 0), Mine) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield Mine, f"http://127.0.0.1:{server.server_port}/api/v4"
        server.shutdown()


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not here")
def test_the_note_in_gitlab_is_kept_up_to_date_in_place(tmp_path: Path):
    (script,) = GITLAB["closeloop"]["after_script"]
    with gitlab() as (kept, address):
        theirs = {"id": 1, "body": f"{COMMENT_MARKER}\nnot ours", "author": {"username": "mallory"}}
        kept.notes[1] = theirs
        env = {**os.environ, "CI_API_V4_URL": address, "NOTE_TOKEN": "secret"}
        env |= {"CI_PROJECT_ID": "1", "CI_MERGE_REQUEST_IID": "7", "no_proxy": "127.0.0.1"}
        for text in ("first", "second & more"):
            (tmp_path / "closeloop.md").write_text(f"{COMMENT_MARKER}\n{text}\n")
            subprocess.run([SHELL, "-ec", script], cwd=tmp_path, env=env, check=True)
        assert kept.tokens == {"secret"}
        assert kept.notes.pop(1) == theirs
        assert [note["body"] for note in kept.notes.values()] == [
            f"{COMMENT_MARKER}\nsecond & more\n"
        ]
