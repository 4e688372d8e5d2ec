"""The API is what its description says: whatever is asked, no fault and no answer it leaves out."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from boards_store import EXPERIMENT, NEW, OLD, PLAN, PULL, REPO, fill_boards
from dashboard_store import BARE, HANDOFF, LONG, SEALED, SPIRAL
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from closeloop.gateway import Gateway
from closeloop.judges.judge_panel import JudgePanel, open_judge_panel
from closeloop.records.settings import JudgeSettings, Settings
from closeloop.store import open_store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from closeloop.web.submissions import SubmissionEvaluator

sys.path.append(str(Path(sys.prefix, "aside")))
schemathesis = pytest.importorskip(
    "schemathesis", reason="NO SCHEMATHESIS: `make test` installs it"
)
HERE = "http://127.0.0.1:4318"
KNOWN: dict[str, list[Any]] = {
    "attempt": [SPIRAL, HANDOFF, LONG, SEALED, BARE],
    "experiment": [EXPERIMENT],
    "id": ["ev1"],
    "number": [1, 2, PULL],
    "plan": [PLAN],
    "prompt": [OLD, NEW],
    "repo": [REPO],
    "task": ["missing-cent", "task-0"],
}
"""What there is, by the name that paths have for it."""
GOOD: dict[str, dict[str, Any]] = {
    "/api/evaluations": {"request": "Add.", "results": [{"task": "t", "text": "return a + b"}]},
    "/api/review": {
        "item": "x00000000000",
        "contained": True,
        "approach": True,
        "merge": True,
        "outside": "none",
    },
}
"""What can be handed in."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
SILENT = {"prompt": "", "turns": [{"when": ".", "repeat": True, "say": "I cannot say."}]}
EXAMPLES = 15


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    (tmp_path / "judge.yaml").write_text(json.dumps({"name": "judge", "dialogues": [SILENT]}))
    judged = Settings(judge=JudgeSettings(models=("scripted:judge.yaml",)))

    @asynccontextmanager
    async def opening() -> AsyncIterator[JudgePanel]:
        async with Gateway({}, tmp_path) as gateway:
            yield open_judge_panel(judged, gateway, tmp_path)

    with open_store(":memory:") as store:
        fill_boards(store)
        desk = PageContext(store)
        desk.metric_cache.patience = None
        served = build_web_app(
            store, token="word", page_context=desk, evaluator=SubmissionEvaluator(opening)
        )
        told = {"authorization": "Bearer word"}
        with TestClient(
            served, base_url=HERE, headers=told, raise_server_exceptions=False
        ) as opened:
            yield opened


@st.composite
def requests(draw: st.DrawFn, operation: Any) -> Any:
    """What the description allows, or does not; often of something that is there."""
    modes = [operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode]
    case = draw(st.one_of(*modes))
    for name, value in (case.path_parameters or {}).items():
        case.path_parameters[name] = draw(st.sampled_from([*KNOWN.get(name, ()), value]))
    if operation.path in GOOD and draw(st.booleans()):
        case.body, case.media_type = GOOD[operation.path], "application/json"
    return case


def test_every_answer_is_one_that_the_description_tells_of(client: TestClient) -> None:
    described = client.get("/api/openapi.json").json()
    del described["security"]  # the caller has a token; without one, test_access.py asks
    schemathesis.checks.load_all_checks()
    checks = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    asked = 0
    for found in schemathesis.openapi.from_dict(described).get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=requests(operation))
        def answered(case: Any) -> None:
            nonlocal asked
            asked += 1
            sent = case.as_transport_kwargs(base_url=HERE)
            sent.pop("cookies", None)
            if isinstance(sent.get("data"), bytes | str):
                sent["content"] = sent.pop("data")
            case.validate_response(client.request(**sent), checks=checks)

        answered()
    assert asked > 200
