"""What an agent writes into a secret's place is graded as it is, and shown without it."""

from __future__ import annotations

import hashlib
import json
import stat
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import yaml
from starlette.testclient import TestClient

import small_project
from closeloop.attempts.attempt_saving import FinishedAttempt, UnsavedBatch, write_batch_file
from closeloop.cli.config import load_project
from closeloop.records.attempt import Attempt
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.orchestration import (
    Orchestration,
    SubtaskExecution,
    SubtaskResult,
    SubtaskSpec,
)
from closeloop.store import migrations, open_store
from closeloop.store.record_bodies import unpack_record
from closeloop.text.patches import parse_patch
from closeloop.text.redaction import redact_new_secrets, redact_patch
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from command_line import typed
from made_secrets import ANY, BASE32, HEX, UPPER, make, readable

KEY_LINES = [make(ANY + "+/", 64, line) for line in range(5)]
SECRETS = {
    "aws": f"AK{'IA'}{make(BASE32, 16)}",
    "github": f"gh{'p'}_{make(ANY, 36)}",
    "slack": f"xox{'b'}-{make('123456789', 12)}-{make(ANY, 24)}",
    "stripe": f"sk_{'live'}_{make(ANY, 24)}",
    "openai": f"sk-{'proj'}-{make(ANY, 48)}",
    "google": f"AI{'za'}{make(ANY, 35)}",
    "npm": f"np{'m'}_{make(ANY, 36)}",
    "sendgrid": f"S{'G'}.{make(ANY, 22)}.{make(ANY, 43)}",
    "twilio": f"S{'K'}{make(HEX, 32)}",
    "password": "hunter2!x",
    "octopus": f"AP{'I'}-{make(UPPER, 26)}",
    "private key": KEY_LINES[2],
}
ASSIGNED = "".join(
    f"{secret}\n" for name, secret in SECRETS.items() if name not in ("password", "private key")
)
LEAK = (
    f"{ASSIGNED}password = '{SECRETS['password']}'\n"
    "-----BEGIN RSA PRIVATE KEY-----\n" + "\n".join(KEY_LINES) + "\n-----END RSA PRIVATE KEY-----\n"
)
NAMED = f"keys/{SECRETS['aws']}.txt"
DIGEST = hashlib.sha256(LEAK.encode()).hexdigest()
TASK = f"""---
acceptance:
  commands:
    - "echo '{DIGEST}  leak.txt' | sha256sum -c"
scope: [leak.txt]
---
Write the settings down.
"""
TURNS = [
    {"do": {"write": {"path": "leak.txt", "text": LEAK}}},
    {"do": {"write": {"path": NAMED, "text": "here\n"}}},
    {"do": {"run": "printf 'a\\000%s\\n' \"$(sed -n 2p leak.txt)\" > leak.bin"}},
    {"do": {"finish": {"summary": "Written."}}},
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project where an agent wrote every secret into a file and one into a file's name."""
    folder = small_project.build(tmp_path_factory.mktemp("leaky"), sandbox="none")
    (folder / "tasks" / "leak.md").write_text(TASK)
    script = {"name": "closer", "dialogues": [{"prompt": "settings", "turns": TURNS}]}
    (folder / "closer.yaml").write_text(yaml.safe_dump(script))
    done = typed(folder, "run", "leak", "--variant", "closer", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["attempts"][0]["outcome"] == "pass", done.stdout
    return folder


def name_of(project: Path) -> str:
    with open_store(str(database(project))) as store:
        return store.list_attempts()[0].id


def database(project: Path) -> Path:
    return next((project / ".closeloop").glob("*.db"))


def leaked(text: str | bytes) -> list[str]:
    content = text.encode() if isinstance(text, str) else text
    return [name for name, secret in SECRETS.items() if secret.encode() in content]


def test_no_secret_of_a_patch_can_be_read_in_the_store(project: Path) -> None:
    assert leaked(readable(database(project))) == []


def test_what_is_shown_has_the_same_lines_and_says_what_was_taken_out(project: Path) -> None:
    with open_store(str(database(project))) as store:
        name = store.list_attempts()[0].id
        shown, exact = store.load_change(name), store.load_exact_change(name)
    assert shown is not None
    assert exact is not None
    assert len(shown.patch.splitlines()) < len(exact.patch.splitlines()), (
        "binary content is left out"
    )
    assert "+[redacted: aws-access-key]" in shown.patch
    assert shown.patch.count("+[redacted: private-key]") == len(KEY_LINES)
    assert "keys/[redacted: aws-access-key].txt" in [file.path for file in shown.files]
    assert [(file.added, file.hunks) for file in shown.files] == [
        (file.added, file.hunks) for file in exact.files
    ]
    text = [section for section in shown.patch.split("diff --git") if "leak.bin" not in section]
    assert parse_patch("diff --git".join(text)).files


COMMANDS = (
    ("show",),
    ("show", "--full"),
    ("show", "--json"),
    ("export", "--table", "events"),
    ("export", "--atif"),
    ("export", "--otlp"),
    ("review", "--json"),
    ("check", "attempt:"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_a_secret_of_a_patch(project: Path, command: tuple[str, ...]) -> None:
    name = name_of(project)
    words = ("check", f"attempt:{name}") if command[0] == "check" else (*command, name)
    done = typed(project, *words)
    assert leaked(done.stdout + done.stderr) == []
    assert done.returncode in (0, 1), done.stderr


def test_no_page_of_the_dashboard_and_no_answer_of_its_api_tells_one(project: Path) -> None:
    settings = load_project(project, environ={}).settings
    with open_store(str(database(project))) as store:
        name = store.list_attempts()[0].id
        desk = PageContext(store, settings)
        with TestClient(
            build_web_app(store, token=None, page_context=desk), base_url="http://localhost"
        ) as client:
            for page in ("", "/diff", "/tests", "/checks"):
                for place in (f"/attempts/{name}{page}", f"/api/attempts/{name}{page}"):
                    answer = client.get(place)
                    assert answer.status_code == 200, place
                    assert leaked(answer.content) == [], place


def test_a_branch_takes_no_new_secret_into_the_repository(project: Path) -> None:
    done = typed(project, "show", name_of(project), "--branch", "--json")
    branch = json.loads(done.stdout)["name"]
    changed = small_project.git(project, "diff", "--binary", f"HEAD..{branch}")
    assert leaked(changed) == []
    assert "[redacted: stripe-key]" in small_project.git(project, "show", f"{branch}:leak.txt")
    assert "leak.bin" not in changed


def test_grading_again_uses_the_exact_patch(project: Path) -> None:
    done = typed(project, "run", "leak", "--variant", "closer", "--again", "grades", "--json")
    assert json.loads(done.stdout)["attempts"][0]["outcome"] == "pass", done.stdout
    assert leaked(readable(database(project))) == []


def test_a_store_and_what_is_put_aside_are_readable_by_their_owner_only(
    project: Path, tmp_path: Path
) -> None:
    assert stat.S_IMODE(database(project).stat().st_mode) == 0o600
    made = AttemptResult(attempt=Attempt(id="one", origin="experiment", exit="finished"))
    write_batch_file(UnsavedBatch(finished=(FinishedAttempt(made=made, job="j"),)), tmp_path, "one")
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert unpack_record(file.read_bytes(), UnsavedBatch).finished[0].made == made


def test_a_context_line_that_holds_a_secret_still_applies_in_a_branch(tmp_path: Path) -> None:
    project = small_project.build(tmp_path, sandbox="none")
    secret = SECRETS["github"]
    (project / "settings.py").write_text(f"a = 1\nkey = '{secret}'\nb = 2\n")
    small_project.git(project, "add", "settings.py")
    small_project.git(project, "commit", "-qm", "Leak")
    script = {
        "name": "closer",
        "dialogues": [
            {
                "prompt": "settings",
                "turns": [
                    {"do": {"edit": {"path": "settings.py", "old": "a = 1", "new": "a = 3"}}},
                    {"do": {"finish": "Done."}},
                ],
            }
        ],
    }
    (project / "closer.yaml").write_text(yaml.safe_dump(script))
    (project / "tasks" / "leak.md").write_text(
        "---\nacceptance: {commands: [grep -q 'a = 3' settings.py]}\n---\nMend the settings.\n"
    )
    done = typed(project, "run", "leak", "--variant", "closer", "--json")
    assert json.loads(done.stdout)["attempts"][0]["outcome"] == "pass", done.stdout
    assert secret.encode() not in readable(database(project))
    branch = json.loads(typed(project, "show", name_of(project), "--branch", "--json").stdout)[
        "name"
    ]
    assert small_project.git(project, "show", f"{branch}:settings.py").startswith("a = 3\nkey")


def test_an_older_store_becomes_readable_by_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.db"
    open_store(str(path)).close()
    path.chmod(0o644)
    next_step = migrations.Migration(statements=("CREATE TABLE notes (text {text})",))
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, next_step))
    open_store(str(path)).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    open_store(str(path)).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640, "a choice made later stands"


def test_the_try_of_a_sub_agent_goes_on_from_its_exact_patch(store_url: str) -> None:
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    patch = (
        f"diff --git a/{SECRETS['aws']}.py b/{SECRETS['aws']}.py\nnew file mode 100644\n"
        f"--- /dev/null\n+++ b/{SECRETS['aws']}.py\n@@ -0,0 +1 @@\n+{SECRETS['npm']}\n"
    )
    execution = SubtaskExecution(
        plan="plan1",
        task="add",
        number=1,
        variant="v",
        agent="a",
        brief="Add.",
        exit="finished",
        patch=patch,
        files=(f"{SECRETS['aws']}.py",),
        started=at,
        ended=at,
    )
    part = SubtaskSpec(id="add", prompt="Add.")
    with open_store(store_url) as store:
        plan = Orchestration(id="plan1", at=at, request="Add.", tasks=(part,), worker="v")
        store.plans.save_plan(plan)
        store.plans.save([SubtaskResult(execution=execution)], [])
        shown = store.plans.load_story("plan1").tries[0].execution
        exact = store.plans.load_exact_story("plan1").tries[0].execution
    assert exact == execution
    assert leaked(msgspec.json.encode(shown)) == []
    assert shown.files == ("[redacted: aws-access-key].py",)
    assert "+[redacted: npm-token]\n" in shown.patch


def test_a_change_that_keeps_a_secret_of_the_repository_applies_and_brings_no_other() -> None:
    old, new = SECRETS["github"], SECRETS["stripe"]
    patch = (
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n"
        f" key = '{old}'\n-old = '{old}'\n+old = '{old}', '{new}'\n"
    )
    kept = redact_new_secrets(patch)
    assert kept == patch.replace(new, "[redacted: stripe-key]")
    assert old not in redact_patch(patch)
    assert parse_patch(redact_patch(patch)).files == parse_patch(patch).files
