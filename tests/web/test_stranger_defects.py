"""What a stranger with imported sessions stumbled over on the pages, each once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from closeloop.metrics.attempt_groups import describe_pair
from closeloop.records.attempt import Attempt, Usage
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.trace import Command, Lane, Message, Trace, Turn
from closeloop.store import Store, open_store
from closeloop.traces.session_import import explain_unknown_cost
from closeloop.web import static_export
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from closeloop.web.pages.metrics import TriagePageQuery, format_triage_command

HTML = {"accept": "text/html"}
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
PRICED = Usage(input_tokens=1_000_000, output_tokens=0)


def _trace(*turns: Turn) -> Trace:
    return Trace(
        reader="made",
        reader_version=1,
        lanes=(Lane(id="root", turns=turns),),
        events=(
            Message(number=1, lane="root", role="user", text="Fix the refunds", intent="request"),
            Command(number=2, lane="root", command="ls", exit_code=0),
        ),
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "closeloop.db")) as opened:
        for name, days, cause in (("s1", 0, "The recording ends within a turn."), ("s2", 20, None)):
            attempt = Attempt(
                id=name,
                origin="production",
                exit="gave_up",
                cause=cause,
                started=START - timedelta(days=days),
            )
            opened.save_attempt(AttemptResult(attempt=attempt, trace=_trace()))
        yield opened


@pytest.fixture
def client(store: Store) -> TestClient:
    return TestClient(build_web_app(store, token=None), base_url="http://127.0.0.1:4318")


def test_a_session_of_two_models_says_which_has_no_price_and_what_the_other_cost() -> None:
    turns = (
        Turn(model="claude-sonnet-4-20250514", usage=PRICED),
        Turn(model="unheard-of-1", usage=PRICED),
    )
    usage = Usage(input_tokens=2_000_000, output_tokens=0)
    assert explain_unknown_cost(_trace(*turns), "unheard-of-1", usage) == (
        "no list price for unheard-of-1; at list prices $3.00 for claude-sonnet-4-20250514"
    )


def test_an_unknown_cost_has_its_reason() -> None:
    no_output = Usage(input_tokens=5)
    turns = (Turn(model="claude-sonnet-4-20250514", usage=no_output),)
    assert explain_unknown_cost(_trace(), None, Usage()) == "the recording has no token counts"
    assert explain_unknown_cost(_trace(*turns), None, no_output) == (
        "the recording has no output token counts"
    )
    assert explain_unknown_cost(_trace(), None, no_output) == (
        "the recording does not name the model"
    )


def test_a_recording_that_just_ends_did_not_give_up(client: TestClient) -> None:
    ended = client.get("/attempts/s1", headers=HTML).text
    assert "recording incomplete" in ended
    assert "gave up" not in ended
    assert "gave up" in client.get("/attempts/s2", headers=HTML).text


def test_totals_and_charts_of_all_time_cover_the_same_sessions(store: Store) -> None:
    desk = PageContext(store)
    desk.metric_cache.patience = None
    app = build_web_app(store, token=None, page_context=desk)
    text = TestClient(app, base_url="http://127.0.0.1:4318").get("/", headers=HTML).text
    assert '<h2 id="glance">All time</h2>' in text
    assert '<span class="big">2</span> sessions' in text
    assert "Charts: the 30 days" not in text


def test_agents_of_one_name_are_told_apart_by_their_models(store: Store) -> None:
    row = store.listing.load_row("s1")
    assert row is not None
    first, second = (replace(row, agent="codex", model=name) for name in ("gpt-a", "gpt-b"))
    assert "codex (gpt-a) was not graded and codex (gpt-b)" in describe_pair(first, second)


def test_sessions_lead_to_what_goes_into_agents_md(client: TestClient) -> None:
    assert 'href="/memory/preview"' in client.get("/attempts", headers=HTML).text


def test_the_command_of_triage_has_the_filters_of_the_page(store: Store) -> None:
    asked = TriagePageQuery(agent="a b", model="m", since=START, limit=7)
    assert format_triage_command(asked) == (
        "closeloop triage --since 2026-03-01 --agent 'a b' --model m --limit 7"
    )
    assert format_triage_command(TriagePageQuery(until=START)) is None
    desk = PageContext(store)
    desk.metric_cache.patience = None
    app = build_web_app(store, token=None, page_context=desk)
    page = TestClient(app, base_url="http://127.0.0.1:4318").get("/triage?limit=7", headers=HTML)
    assert "closeloop triage --since all --limit 7" in page.text


def test_settings_say_why_the_store_has_more_attempts_than_the_lists(store: Store) -> None:
    desk = PageContext(store)
    desk.metric_cache.patience = None
    app = build_web_app(store, token=None, page_context=desk)
    page = TestClient(app, base_url="http://127.0.0.1:4318").get("/api/settings").json()
    assert (page["counts"]["attempts"], page["superseded"]) == (2, 0)


def test_a_copy_that_reached_its_limit_says_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_export, "MAX_PAGES", 30)
    exported = static_export.export_pages(PageContext(store), tmp_path / "site")
    assert exported.written == 30
    assert exported.left_out > 0
    assert "were left out" in (tmp_path / "site" / "index.html").read_text()


def test_a_search_that_is_too_long_and_a_rule_that_does_not_exist_are_refused_in_plain_words(
    client: TestClient,
) -> None:
    refused = client.get(f"/attempts?q={'x' * 300}", headers=HTML)
    assert refused.status_code == 400
    assert "The search text is too long: at most 200 characters." in refused.text
    unknown = client.get("/api/attempts?rule=spirall")
    assert unknown.status_code == 400
    assert "spiral" in unknown.json()["message"]
    assert client.get("/attempts?rule=spiral", headers=HTML).status_code == 200


def test_no_empty_page_offers_a_command_that_fails_on_a_plain_history(client: TestClient) -> None:
    assert "import --git " not in client.get("/pulls", headers=HTML).text
