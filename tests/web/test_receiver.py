"""Spans that agents send become sessions, whatever order they come in, and none is lost."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.testclient import TestClient

from closeloop.records.trace import Command, Message
from closeloop.store import Store, open_store
from closeloop.traces.session_import import build_trace_session, list_unbuilt_traces
from closeloop.web import otlp_receiver
from closeloop.web.app import build_web_app
from patience import PATIENCE, until

TRACE = "5b8efff798038103d269b633813fc60c"
SECRET = f"gh{'p'}_" + "x9Kd7Lm2Qp4Rt6Vw8Yz1Bc3Fg5Hj0Nn7Ss2A"
HERE = "http://127.0.0.1"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def client(store: Store, token: str | None = None) -> TestClient:
    return TestClient(build_web_app(store, token=token, quiet=0.05), base_url=HERE)


def span(number: int, attributes: dict[str, Any], parent: int | None = 1) -> dict[str, Any]:
    given = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
    begun = 1_700_000_000_000_000_000 + number * 1_000_000_000
    return {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": attributes["gen_ai.operation.name"],
        "startTimeUnixNano": str(begun),
        "endTimeUnixNano": str(begun + 500_000_000),
        "attributes": given,
    }


def conversation() -> list[dict[str, Any]]:
    """An agent that was asked, ran a command and said so."""

    def messages(role: str, text: str) -> str:
        said = [{"role": role, "parts": [{"type": "text", "content": text}]}]
        return msgspec.json.encode(said).decode()

    call = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "bash",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.call.arguments": '{"command": "pytest -q"}',
        "gen_ai.tool.call.result": "1 passed",
    }
    return [
        span(1, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "helper"}, None),
        span(
            2,
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "m-1",
                "gen_ai.input.messages": messages("user", f"Fix it, with {SECRET}"),
            },
        ),
        span(3, call),
        span(
            4,
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "m-1",
                "gen_ai.output.messages": messages("assistant", "Fixed."),
            },
        ),
    ]


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": list(spans)}]}]}


def wait_for(store: Store, events: int) -> str:
    """The id of the only session, once it has so many events."""

    def found() -> str | None:
        rows = store.list_attempts()
        return rows[0].id if len(rows) == 1 and (rows[0].events or 0) >= events else None

    return until(found) or pytest.fail(str(store.list_attempts()))


def test_spans_become_a_session_without_its_secrets(store: Store) -> None:
    with client(store) as web:
        answer = web.post("/v1/traces", json=export(*conversation()))
        assert (answer.status_code, answer.json()) == (200, {})
        name = wait_for(store, 3)
    trace = store.load_trace(name)
    assert trace is not None
    kept = msgspec.json.encode(trace)
    assert SECRET.encode() not in kept
    assert b"[redacted: github-token]" in kept
    (command,) = [event for event in trace.events if isinstance(event, Command)]
    assert (command.command, command.output) == ("pytest -q", "1 passed")
    said = [event.text for event in trace.events if isinstance(event, Message)]
    assert said[-1] == "Fixed."
    for body in store.load_spans(TRACE):
        assert SECRET.encode() not in body


def test_late_spans_in_any_order_and_sent_twice_make_the_same_session(
    store: Store, tmp_path: Path
) -> None:
    with open_store(str(tmp_path / "at-once.db")) as other, client(other) as web:
        web.post("/v1/traces", json=export(*conversation()))
        whole = other.load_trace(wait_for(other, 3))
    spans = conversation() * 2
    random.Random(3).shuffle(spans)
    with client(store) as web:
        for one in spans:
            assert web.post("/v1/traces", json=export(one)).status_code == 200
            time.sleep(0.03)
        assert until(lambda: store.load_trace(wait_for(store, 3)) == whole)


def test_protobuf_is_taken_and_answered_in_protobuf(store: Store) -> None:
    request = ExportTraceServiceRequest()
    for one in conversation():
        made = request.resource_spans.add().scope_spans.add().spans.add()
        made.trace_id, made.span_id = bytes.fromhex(TRACE), bytes.fromhex(one["spanId"])
        made.parent_span_id = bytes.fromhex(one["parentSpanId"])
        made.name = one["name"]
        made.start_time_unix_nano = int(one["startTimeUnixNano"])
        for pair in one["attributes"]:
            made.attributes.add(key=pair["key"]).value.string_value = pair["value"]["stringValue"]
    headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
    with client(store) as web:
        body = gzip.compress(request.SerializeToString())
        answer = web.post("/v1/traces", content=body, headers=headers)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/x-protobuf"
        assert not ExportTraceServiceResponse.FromString(answer.content).HasField("partial_success")
        wait_for(store, 3)


def test_what_cannot_be_taken_is_said_and_the_rest_is_kept(store: Store) -> None:
    good, *_ = conversation()
    nameless = {**good, "spanId": ""}
    foreign = {**good, "traceId": "not an id; \x00", "spanId": "00000000000000aa"}
    with client(store) as web:
        answer = web.post("/v1/traces", json=export(good, nameless, foreign))
    assert answer.status_code == 200
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "2"
    assert len(store.load_spans(TRACE)) == 1


GZIP = {"content-type": "application/json", "content-encoding": "gzip"}
JSON = {"content-type": "application/json"}
BAD = {
    "no kind": (b"{}", {}, 415),
    "another kind": (b"a=b", {"content-type": "text/plain"}, 415),
    "another encoding": (b"{}", {**JSON, "content-encoding": "br"}, 415),
    "not JSON": (b"{", JSON, 400),
    "a list": (b"[]", JSON, 400),
    "nested too deeply": (b'{"a":' * 100_000, JSON, 400),
    "not protobuf": (b"\xff\xff\xff", {"content-type": "application/x-protobuf"}, 400),
    "not gzip": (b"{}", GZIP, 400),
    "torn gzip": (gzip.compress(b"{}" * 1000)[:-9], GZIP, 400),
    "too large": (b" " * (otlp_receiver.BODY_LIMIT + 1), JSON, 413),
    "a bomb": (gzip.compress(bytes(otlp_receiver.UNPACKED_LIMIT + 1)), GZIP, 413),
    "many bombs": (gzip.compress(bytes(1 << 20)) * 20, GZIP, 413),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    body, headers, status = BAD[name]
    with open_store(":memory:") as store, client(store) as web:
        answer = web.post("/v1/traces", content=body, headers=headers)
        assert answer.status_code == status, answer.text
        assert len(answer.content) > 10
        assert web.get("/health").json()["status"] == "ok"


def test_odd_shapes_are_taken_calmly() -> None:
    with open_store(":memory:") as store, client(store) as web:
        for odd in ({}, {"resourceSpans": 7}, {"resourceSpans": [None, {"scopeSpans": [3, {}]}]}):
            assert web.post("/v1/traces", json=odd).status_code == 200


def test_a_token_is_asked_of_everybody_where_there_is_one() -> None:
    with open_store(":memory:") as store, client(store, token="s3cret") as web:
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
            assert web.post("/v1/traces", json={}, headers=given).status_code == 401
        right = {"authorization": "Bearer s3cret"}
        assert web.post("/v1/traces", json={}, headers=right).status_code == 200
        assert web.get("/health").status_code == 200


def test_a_page_that_calls_us_by_another_name_is_refused() -> None:
    with open_store(":memory:") as store, client(store) as web:
        answer = web.post("/v1/traces", json={}, headers={"host": "evil.example"})
        assert answer.status_code == 400


def test_spans_that_a_killed_server_had_not_built_are_built_later(store: Store) -> None:
    from closeloop.traces.readers.otlp import spans_from_json
    from closeloop.traces.session_import import save_spans

    save_spans(spans_from_json(export(*conversation())), store)
    assert list(list_unbuilt_traces(store)) == [TRACE]
    assert len(build_trace_session(TRACE, store)) == 1
    assert list(list_unbuilt_traces(store)) == []
    assert build_trace_session(TRACE, store) == []


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=PATIENCE).is_success
    except httpx.TransportError:
        return False


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    environ = {key: value for key, value in os.environ.items() if key != "CLOSELOOP_TOKEN"}
    (folder / "closeloop.toml").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "closeloop", "serve", "--port", "0", *arguments],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = line.split()[-1]
        assert until(lambda: answers(address))
        yield process, address
    finally:
        process.kill()
        process.wait()


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, address):
        for one in conversation():
            answer = httpx.post(f"{address}/v1/traces", json=export(one), timeout=PATIENCE)
            assert answer.status_code == 200
        process.send_signal(signal.SIGKILL)
        process.wait()
    with open_store(str(tmp_path / ".closeloop/closeloop.db")) as store:
        assert len(store.load_spans(TRACE)) == 4
    with serving(tmp_path) as (process, _):
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    with open_store(str(tmp_path / ".closeloop/closeloop.db")) as store:
        (row,) = store.list_attempts()
        assert row.agent == "helper"


def test_ctrl_c_stops_the_dashboard_without_an_error(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, _):
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=PATIENCE)
    assert printed.splitlines()[-1] == "Dashboard stopped."
    assert "Run the same command again" not in printed
    assert process.returncode == 0


def test_another_host_needs_a_token(tmp_path: Path) -> None:
    (tmp_path / "closeloop.toml").touch()
    refused = subprocess.run(
        [sys.executable, "-m", "closeloop", "serve", "--host", "0.0.0.0", "--port", "0"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "CLOSELOOP_TOKEN"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert refused.returncode == 2
    assert "CLOSELOOP_TOKEN" in refused.stderr
