"""GitHub refuses, limits, fails and answers oddly; nothing is lost by it but what it refused."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from fake_github import REPO, TOKEN, FakeGitHub, answer
from msgspec.structs import replace
from starlette.responses import PlainTextResponse
from told_github import PULL, Clock, tell

from closeloop.changes import code_host
from closeloop.changes.code_host import (
    CodeHostClient,
    CodeHostReply,
    open_github,
    rate_limit_seconds,
)
from closeloop.records.errors import BadInput
from report_example import HEAD


def test_a_token_that_only_reads_sends_the_report_to_the_summary(host: FakeGitHub, tmp_path: Path):
    host.writes = False
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    told = tell(host, pull=replace(PULL, fork=True), summary=summary)
    assert told.check is None
    assert told.comment is None
    assert told.labels == ()
    refused, instead = told.notes
    assert "check run, comment, labels" in refused
    assert "from a fork" in refused
    assert "summary of the job" in instead
    assert summary.read_text().startswith("before\n")
    assert "Blocked" in summary.read_text()


def test_a_job_without_permission_is_told_which_to_give(host: FakeGitHub):
    host.writes = False
    (note,) = tell(host).notes
    assert "pull-requests: write" in note


def test_what_is_refused_hides_nothing_else(host: FakeGitHub, tmp_path: Path):
    host.checks = False
    told = tell(host, summary=tmp_path / "summary.md")
    assert told.check is None
    assert told.comment
    assert told.labels == ("risk:high",)
    assert "GitHub App" in told.notes[0]
    assert (tmp_path / "summary.md").exists()


def test_a_limit_is_waited_for_as_long_as_it_says(host: FakeGitHub):
    clock = Clock()
    host.before += [
        (
            "POST .*/check-runs",
            answer(403, "You have exceeded a secondary rate limit", retry_after="17"),
        ),
        ("POST .*/comments", answer(429, "", retry_after="3")),
    ]
    assert tell(host, clock=clock).notes == ()
    assert clock.waits == [17.0, 3.0]
    assert len(host.runs) == len(host.comments) == 1


def test_a_limit_that_holds_too_long_is_not_waited_for(host: FakeGitHub, tmp_path: Path):
    clock = Clock()
    reset = str(int(time.time()) + 3000)
    limited = answer(
        403, "API rate limit exceeded", x_ratelimit_remaining="0", x_ratelimit_reset=reset
    )
    host.before += [(".*", limited)] * 50
    told = tell(host, clock=clock, summary=tmp_path / "summary.md")
    assert clock.waits == []
    assert "minutes" in told.notes[0]
    assert (tmp_path / "summary.md").exists()


def test_a_bad_day_of_the_server_is_outlasted(host: FakeGitHub):
    clock = Clock()
    host.before += [(".*", answer(503))] * 4
    assert tell(host, clock=clock).notes == ()
    assert len(clock.waits) == 4


def test_a_server_that_never_answers_well_is_given_up(host: FakeGitHub):
    host.before += [(".*", answer(500))] * 500
    told = tell(host)
    assert "5 times" in " ".join(told.notes)


@pytest.mark.parametrize(
    ("status", "headers", "body", "wait"),
    [
        (403, {"retry-after": "5"}, b"", 5.0),
        (429, {}, b"", 60.0),
        (403, {}, b'{"message": "You have exceeded a secondary rate limit"}', 60.0),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1000000100"}, b"", 101.0),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1"}, b"", 1.0),
        (403, {"x-ratelimit-remaining": "9"}, b'{"message": "Must have admin rights"}', None),
        (404, {"retry-after": "5"}, b"", None),
    ],
)
def test_a_limit_is_told_from_a_refusal(
    status: int, headers: dict[str, str], body: bytes, wait: float | None
):
    now = datetime.fromtimestamp(1_000_000_000, UTC)
    assert (
        rate_limit_seconds(CodeHostReply(status=status, headers=headers, body=body), 0, now) == wait
    )


def test_no_answer_without_end_is_read(host: FakeGitHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(code_host, "MAX_BODY_BYTES", 1000)
    host.write("x" * 2000)
    assert "endless response" in " ".join(tell(host).notes)


def test_something_else_than_github_is_recognised(host: FakeGitHub):
    host.before += [(".*", lambda: PlainTextResponse("<html>"))] * 50
    assert "GITHUB_API_URL" in " ".join(tell(host).notes)


def test_a_server_that_is_not_there_is_told_in_a_sentence():
    nowhere = FakeGitHub(HEAD)
    nowhere.address = "http://127.0.0.1:9"
    told = tell(nowhere)
    assert "could not be reached" in " ".join(told.notes)


# The token


def test_the_token_is_never_said(host: FakeGitHub, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    host.before += [(".*/check-runs", answer(403, f"no: {TOKEN}"))] * 50
    told = tell(host)
    assert "no: …" in " ".join(told.notes)
    assert TOKEN not in " ".join([str(told), caplog.text, repr(CodeHostClient)])


@pytest.mark.parametrize("api", ["http://github.example/api/v3", "ftp://x", "github.com", ""])
def test_a_token_is_not_sent_in_the_open(api: str):
    async def go() -> None:
        async with open_github(REPO, TOKEN, api):
            pass

    with pytest.raises(BadInput, match="https"):
        anyio.run(go)


@pytest.mark.parametrize("token", ["", "a\nb", "ü"])
def test_a_missing_token_is_asked_for(token: str):
    async def go() -> None:
        async with open_github(REPO, token):
            pass

    with pytest.raises(BadInput, match="GITHUB_TOKEN"):
        anyio.run(go)


def test_github_enterprise_has_its_own_address(host: FakeGitHub):
    assert tell(host, prefix="/api/v3/").notes == ()
    assert len(host.bodies()) == 1
    assert "POST /api/graphql" in host.asked
