"""Others hand in what came of their plans, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from judge_scripts import judge_script
from judging_models import Asked, bench, fair
from starlette.testclient import TestClient

from closeloop.gateway import Gateway
from closeloop.judges.judge_panel import JudgePanel, open_judge_panel
from closeloop.records.attempt import Attempt
from closeloop.records.evaluation import Evaluation, Evaluations
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.record import Record
from closeloop.records.settings import JudgeSettings, Settings
from closeloop.records.task import Task
from closeloop.records.trace import ModelRequest
from closeloop.store import Store, open_store
from closeloop.web import submissions
from closeloop.web.app import build_web_app
from closeloop.web.page import ApiOperation, build_openapi_document
from closeloop.web.submissions import SubmissionEvaluator

SCRIPT = judge_script(("return a [+] b", "yes", "return a + b"), ("BEGIN task", "no", "sum of two"))
SETTINGS = Settings(judge=JudgeSettings(models=("scripted:judge.yaml",)))
TOKEN = {"authorization": "Bearer word"}
HANDED: dict[str, Any] = {
    "request": "The sum of two.",
    "plan": [{"id": "good", "prompt": "The sum of two."}, {"id": "bad", "prompt": "sum of two"}],
    "results": [{"task": "good", "text": "return a + b"}, {"task": "bad", "text": "return 7"}],
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "judge.yaml").write_bytes(SCRIPT)
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def client(
    store: Store, folder: Path, token: str | None = "word", settings: Settings = SETTINGS
) -> TestClient:
    @asynccontextmanager
    async def opening() -> AsyncIterator[JudgePanel]:
        async with Gateway({}, folder) as gateway:
            yield open_judge_panel(settings, gateway, folder)

    served = build_web_app(store, token=token, evaluator=SubmissionEvaluator(opening))
    return TestClient(served, base_url="http://127.0.0.1")


def test_a_plan_is_evaluated_answered_and_kept(store: Store, tmp_path: Path) -> None:
    with client(store, tmp_path) as web:
        answer = web.post("/api/evaluations", json=HANDED, headers=TOKEN)
        assert answer.status_code == 200
        made = answer.json()
        assert made["passed"] is False
        assert [one["passed"] for one in made["evaluations"]] == [True, False]
        kept = web.get(f"/api/evaluations/{made['evaluations'][1]['id']}", headers=TOKEN)
        assert kept.json() == made["evaluations"][1]
    assert len(store.judged.list_evaluations()) == 2


def test_each_evaluation_is_kept_as_it_ends_and_not_with_the_request(store: Store) -> None:
    kept: list[int] = []

    def counting(request: ModelRequest) -> Any:
        kept.append(len(store.judged.list_evaluations()))
        return fair(request)

    @asynccontextmanager
    async def opening() -> AsyncIterator[JudgePanel]:
        yield JudgePanel(judges=bench(Asked(counting)).judges, concurrency=1)

    served = build_web_app(store, token="word", evaluator=SubmissionEvaluator(opening))
    with TestClient(served, base_url="http://127.0.0.1") as web:
        assert web.post("/api/evaluations", json=HANDED, headers=TOKEN).status_code == 200
    assert kept == [0, 0, 1]  # the first passes, and is asked about once more


def test_only_who_has_the_token_may_ask(store: Store, tmp_path: Path) -> None:
    with client(store, tmp_path) as web:
        wrong = {"authorization": "Bearer other"}
        for headers in ({}, wrong):
            answer = web.post("/api/evaluations", json=HANDED, headers=headers)
            assert answer.status_code in (401, 403)
            assert web.get("/api/evaluations/x", headers=headers).status_code in (401, 403)
    with client(store, tmp_path, token=None) as web:
        answer = web.post("/api/evaluations", json=HANDED)
        assert answer.status_code in (401, 403)
        assert answer.json()["message"].endswith(".")
    assert store.judged.list_evaluations() == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "must be a section"),
        (b'{"request": "r", "results": []}', "no results"),
        (b'{"request": "r", "results": [{"task": 7}]}', "results[0].task"),
        (b'{"request": "r", "results": {}}', "'results' must be a list"),
        (b'{"request": "r", "result": []}', "Did you mean 'results'?"),
        (b'{"request": "r", "results": [{"task": "a", "txt": ""}]}', "mean 'results[0].text'?"),
        (
            b'{"request": "r", "results": [{"task": "a"}], "plan": [{"id": "a", "zzz": 1}]}',
            "no field 'plan[0].zzz'. Known: depends_on, id",
        ),
        (
            b'{"request": "r", "results": [{"task": "a"}],'
            b' "facts": {"a": [{"name": "n", "text": "t", "block": true}]}}',
            "mean 'facts.a[0].blocks'?",
        ),
        (json.dumps({**HANDED, "facts": {"none": []}}).encode(), "no subtask 'none'"),
        (
            b'{"request": "r", "plan": [{"id": "a", "prompt": "p", "depends_on": ["a"]}],'
            b' "results": [{"task": "a"}]}',
            "contain a cycle",
        ),
        (
            b'{"request": "r", "plan": [{"id": "a", "prompt": "p", "rubric": "../x.toml"}],'
            b' "results": [{"task": "a", "text": "t"}]}',
            "is not in the project",
        ),
        (
            json.dumps(
                {"request": "r", "results": [{"task": str(number)} for number in range(1001)]}
            ).encode(),
            "fewer at a time",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(
    store: Store, tmp_path: Path, content: bytes, message: str
) -> None:
    headers = {**TOKEN, "content-type": "application/json"}
    with client(store, tmp_path) as web:
        answer = web.post("/api/evaluations", content=content, headers=headers)
    assert answer.status_code == 400
    assert message in answer.json()["message"]


def test_other_formats_and_large_requests_are_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {**TOKEN, "content-type": "text/plain"}
    packed = {**TOKEN, "content-type": "application/json", "content-encoding": "gzip"}
    monkeypatch.setattr(submissions, "BODY_LIMIT", 1_000_000)
    with client(store, tmp_path) as web:
        for headers in (plain, packed):
            refused = web.post("/api/evaluations", content=b"{}", headers=headers)
            assert refused.status_code == 415
        large = {**HANDED, "request": "x" * 1_000_001}
        assert web.post("/api/evaluations", json=large, headers=TOKEN).status_code == 413
        # Places are given back, whatever came of it.
        for _ in range(submissions.MAX_SUBMISSIONS_AT_ONCE + 1):
            assert web.post("/api/evaluations", json={}, headers=TOKEN).status_code == 400
        monkeypatch.setattr(submissions, "BODY_LIMIT", 16 << 20)
        ten = {"request": "sum of two", "results": [{"task": "t", "text": "y " * 5_000_000}]}
        made = web.post("/api/evaluations", json=ten, headers=TOKEN).json()
        assert made["evaluations"][0]["cut"] > 9_000_000


def test_a_server_without_a_judge_says_how_to_name_one(store: Store, tmp_path: Path) -> None:
    with client(store, tmp_path, settings=Settings()) as web:
        answer = web.post("/api/evaluations", json=HANDED, headers=TOKEN)
        assert answer.status_code == 503
        assert "judge.models" in answer.json()["message"]
        assert web.get("/api/evaluations/none", headers=TOKEN).status_code == 404


def test_what_was_said_of_a_task_that_is_held_out_by_now_is_not_told(
    store: Store, tmp_path: Path
) -> None:
    attempt = Attempt(id="abc", origin="experiment", task="t", task_digest="d", exit="finished")
    one = Evaluation(id="e1", task="t", attempt="abc", judge="v", passed=True)
    store.save_task(Task(id="t", prompt="Sum.", digest="d", grading="g"))
    store.save_attempt(AttemptResult(attempt=attempt))
    store.judged.save_evaluations(
        Evaluations(judges=(), evaluations=(one,), passed=True, summary="")
    )
    with client(store, tmp_path) as web:
        assert web.get("/api/evaluations/e1", headers=TOKEN).status_code == 200
        store.save_task(Task(id="t", prompt="Sum.", digest="d", grading="g", split="held-out"))
        assert web.get("/api/evaluations/e1", headers=TOKEN).status_code == 403


# The document


def test_the_document_describes_the_records_that_come_and_go(store: Store, tmp_path: Path) -> None:
    with client(store, tmp_path) as web:
        told = web.get("/api/openapi.json", headers=TOKEN).json()
    assert told["openapi"] == "3.1.0"
    post = told["paths"]["/api/evaluations"]["post"]
    body = post["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/Submission"}
    assert told["components"]["schemas"]["Submission"]["required"] == ["request", "results"]
    get = told["paths"]["/api/evaluations/{id}"]["get"]
    assert [part["name"] for part in get["parameters"]] == ["id"]
    assert set(references(told)) <= {
        f"#/components/schemas/{name}" for name in told["components"]["schemas"]
    }


def test_what_is_answered_fits_the_document(store: Store, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with client(store, tmp_path) as web:
        told = web.get("/api/openapi.json", headers=TOKEN).json()
        made = web.post("/api/evaluations", json=HANDED, headers=TOKEN).json()
    for value, name in ((HANDED, "Submission"), (made, "Evaluations")):
        schema = {"$ref": f"#/components/schemas/{name}", "components": told["components"]}
        jsonschema.Draft202012Validator(schema).validate(value)


def test_a_record_may_describe_what_stands_in_the_address() -> None:
    class Filter(Record):
        """Which ones."""

        name: str
        after: str
        many: int = 50

    operation = ApiOperation(
        method="get", path="/api/x/{name:str}", name="x", summary="X.", answer=str, query=Filter
    )
    told = build_openapi_document([operation])
    parameters = told["paths"]["/api/x/{name}"]["get"]["parameters"]
    assert [(one["name"], one["in"], one["required"]) for one in parameters] == [
        ("name", "path", True),
        ("after", "query", True),
        ("many", "query", False),
    ]


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(found := part.get("$ref"), str):
            yield found
        for inner in part.values():
            yield from references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from references(inner)
