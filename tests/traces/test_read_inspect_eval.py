"""Inspect's logs are read: packed, crashed, in chunks, as JSON, and never past their limits."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from closeloop.records.trace import Command, Handoff, Message, Note, Session, ToolUse
from closeloop.traces.file_source import FileSource, installed_readers
from closeloop.traces.readers import inspect_eval

FIXTURES = Path(__file__).parent / "fixtures" / "inspect_eval"
LOG = FIXTURES / "session.eval"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "inspect_eval"
HEADER = {"version": 2, "eval": {"task": "t", "model": "m", "run_id": "r", "solver": "mine"}}


def read(path: Path) -> Session:
    assert inspect_eval.recognises(FileSource(path))
    [session] = list(inspect_eval.read(FileSource(path)))
    return session


def made(tmp_path: Path, *events: dict[str, Any], **sample: Any) -> Session:
    """A log with one sample, as JSON, read."""
    told = {"id": 1, "epoch": 1, "events": list(events), **sample}
    path = tmp_path / "made.json"
    path.write_text(json.dumps({**HEADER, "samples": [told]}))
    return read(path)


def model(text: str = "", *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "tool_calls": list(calls)}
    return {"event": "model", "model": "m", "input": [],
            "output": {"choices": [{"message": message}], **more}}  # fmt: skip


def test_a_recorded_log_is_read_with_its_sub_agents_and_exit_codes() -> None:
    session = read(LOG)
    counter, checker = (lane.id for lane in session.trace.lanes[1:])
    told = [
        event for event in session.trace.events if getattr(event, "text", " ")[:9] != "tool call"
    ]
    assert [(event.lane, type(event).__name__) for event in told] == [
        ("root", "Message"), ("root", "Command"), ("root", "Command"), ("root", "Handoff"),
        (counter, "Note"), (counter, "Message"), (counter, "Command"), (counter, "Message"),
        ("root", "Handoff"), (checker, "Note"), (checker, "Command"), (checker, "Message"),
        ("root", "Message"), ("root", "Message"), ("root", "Note"),
    ]  # fmt: skip
    commands = [event for event in told if isinstance(event, Command)]
    assert [(one.command, one.exit_code, one.exit_from) for one in commands] == [
        ("cat greeting.txt", 1, "stated"),
        ("echo hello > greeting.txt && cat greeting.txt", 0, "stated"),
        ("wc -l < greeting.txt", 0, "stated"),
        ("exit 3", 3, "stated"),
    ]
    called, handed = (event for event in told if isinstance(event, Handoff))
    assert (called.child, called.brief) == (counter, "Count the lines of greeting.txt.")
    assert called.report is not None
    assert called.report.endswith("There is 1 line.")
    assert handed.child == checker
    assert [lane.agent for lane in session.trace.lanes] == ["react", "counter", "checker"]
    assert session.system is not None
    assert session.system.startswith("You lead.")
    assert session.summary == "done"
    assert session.links == {"task": "greet", "sample": "greet", "epoch": "1"}


def test_each_reply_is_counted_once_and_what_is_cached_is_not_fresh() -> None:
    session = read(LOG)
    assert [len(lane.turns) for lane in session.trace.lanes] == [5, 2, 2]
    usage = session.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (540, 360, 90)


def test_a_crashed_log_without_its_header_and_one_in_chunks_tell_the_same() -> None:
    whole = read(LOG)
    for name in ("crashed.eval", "chunked.eval"):
        assert read(FIXTURES / name) == whole


def test_a_log_as_json_tells_the_same(tmp_path: Path) -> None:
    [(header, sample)] = inspect_eval.iter_samples(FileSource(LOG))
    path = tmp_path / "log.json"
    path.write_text(json.dumps({**header, "samples": [sample]}))
    assert read(path) == read(LOG)


def test_what_scorers_and_the_set_up_do_is_not_the_agents_work(tmp_path: Path) -> None:
    session = made(
        tmp_path,
        {"event": "span_begin", "id": "i", "type": "init", "name": "init"},
        {"event": "sandbox", "span_id": "i", "action": "exec", "cmd": "apt install", "result": 0},
        model("Yes.", usage={"input_tokens": 5, "output_tokens": 1, "total_tokens": 6}),
        {"event": "span_begin", "id": "s", "type": "scorers", "name": "scorers"},
        {"event": "span_begin", "id": "g", "parent_id": "s", "type": "scorer", "name": "graded"},
        {**model("GRADE: C", usage={"input_tokens": 99, "output_tokens": 9}), "span_id": "g"},
        {"event": "step", "action": "begin", "type": "scorer", "name": "graded"},
        model("GRADE: C", usage={"input_tokens": 99, "output_tokens": 9}),
        {"event": "step", "action": "end", "type": "scorer", "name": "graded"},
        scores={"graded": {"value": "C"}},
    )
    assert [type(event).__name__ for event in session.trace.events] == ["Message", "Note"]
    assert (session.usage.input_tokens, session.usage.output_tokens) == (5, 1)
    assert session.trace.skipped == {"an event of scoring or set-up": 3}
    assert session.agent == "mine"
    note = session.trace.events[1]
    assert isinstance(note, Note)
    assert (note.about, note.text) == ("score", "graded: C")


def test_attachments_stand_where_they_belong(tmp_path: Path) -> None:
    call = {"id": "c", "function": "bash", "arguments": {"cmd": "attachment://one"}}
    session = made(
        tmp_path,
        model("attachment://two", call),
        {"event": "tool", "id": "c", "function": "bash", "arguments": {"cmd": "attachment://one"},
         "result": "attachment://three", "completed": "2026-01-01T00:00:00Z"},
        attachments={"one": "echo long", "two": "Long words.", "three": "long"},
    )  # fmt: skip
    said, command = session.trace.events
    assert isinstance(said, Message)
    assert said.text == "Long words."
    assert isinstance(command, Command)
    assert (command.command, command.output, command.exit_code) == ("echo long", "long", None)


def test_a_call_that_failed_or_never_ended_says_so(tmp_path: Path) -> None:
    calls = [
        {"id": name, "function": name, "arguments": {}} for name in ("bad", "good", "open", "bash")
    ]
    calls[3]["arguments"] = {"cmd": "sleep 9"}
    done = {"event": "tool", "arguments": {}, "completed": "2026-01-01T00:00:00Z"}
    session = made(
        tmp_path,
        model("", *calls),
        {**done, "id": "bad", "function": "bad", "result": "",
         "error": {"type": "parsing", "message": "no such argument"}},
        {**done, "id": "good", "function": "good", "result": [{"type": "text", "text": "fine"}]},
        {**done, "id": "bash", "function": "bash", "result": "",
         "error": {"type": "timeout", "message": "out of time"}},
    )  # fmt: skip
    bad, good, unfinished, stopped = session.trace.events
    assert isinstance(bad, ToolUse)
    assert (bad.ok, bad.output) == (False, "no such argument")
    assert isinstance(good, ToolUse)
    assert (good.ok, good.output) == (True, "fine")
    assert isinstance(unfinished, ToolUse)
    assert (unfinished.ok, unfinished.output) == (None, None)
    assert isinstance(stopped, Command)
    assert (stopped.stopped, stopped.exit_code) == ("out of time", None)


def test_limits_errors_and_interrupts_are_how_a_sample_ended(tmp_path: Path) -> None:
    assert made(tmp_path, limit={"type": "token", "limit": 9}).exit == "out_of_budget"
    assert made(tmp_path, limit={"type": "time", "limit": 9}).exit == "out_of_time"
    crashed = made(tmp_path, error={"message": "boom"})
    assert (crashed.exit, crashed.cause) == ("crashed", "boom")
    [interrupt] = made(tmp_path, {"event": "interrupt", "source": "user_cancel"}).trace.events
    assert isinstance(interrupt, Message)
    assert interrupt.intent == "interrupt"
    [unknown] = made(tmp_path, {"event": "dream", "data": 1}).trace.events
    assert isinstance(unknown, Note)
    assert unknown.about == "unknown: dream"


def test_a_sample_without_events_still_has_its_messages(tmp_path: Path) -> None:
    session = made(
        tmp_path,
        messages=[{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}],
    )
    assert [event.text for event in session.trace.events if isinstance(event, Message)] == [
        "Hi.", "Hello.",
    ]  # fmt: skip


def test_numbers_that_json_does_not_know_do_not_hide_a_log(tmp_path: Path) -> None:
    path = tmp_path / "nan.eval"
    sample = '{"id": 1, "epoch": 1, "events": [], "scores": {"s": {"value": NaN}}}'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as log:
        log.writestr("_journal/start.json", json.dumps(HEADER))
        log.writestr("samples/1_epoch_1.json", sample)
    [note] = read(path).trace.events
    assert isinstance(note, Note)
    assert note.text == "s: null"


@pytest.mark.parametrize("packing", ["deflate", "zstd"])
def test_a_bomb_is_counted_and_not_unpacked(packing: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.eval"
    content = b" " * (64 << 20)
    packed = zstandard.ZstdCompressor().compress(content) if packing == "zstd" else content
    kind = zipfile.ZIP_STORED if packing == "zstd" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", kind) as log:
        log.writestr("_journal/start.json", json.dumps(HEADER))
        log.writestr("samples/1_epoch_1.json", packed)
    if packing == "zstd":
        relabel(path, "samples/1_epoch_1.json")
    source = FileSource(path)
    assert list(inspect_eval.read(source)) == []
    assert source.skipped == {inspect_eval.TOO_LARGE: 1}


def relabel(path: Path, name: str) -> None:
    """Say that a stored member is packed with zstd, which zipfile cannot write here."""
    content = path.read_bytes()
    encoded = name.encode()
    for header, offset, length in ((b"PK\x03\x04", 8, 30), (b"PK\x01\x02", 10, 46)):
        place = content.index(encoded) if header == b"PK\x03\x04" else content.rindex(encoded)
        start = place - length
        assert content[start : start + 4] == header
        method = start + offset
        content = content[:method] + (93).to_bytes(2, "little") + content[method + 2 :]
    path.write_bytes(content)


def test_a_damaged_member_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "damaged.eval"
    with zipfile.ZipFile(path, "w") as log:
        log.writestr("header.json", json.dumps(HEADER))
        log.writestr("samples/1_epoch_1.json", '{"id": 1, "epoch": 1, "events": [')
        log.writestr("samples/2_epoch_1.json", '{"id": 2, "epoch": 1, "events": []}')
    source = FileSource(path)
    assert [session.id for session in inspect_eval.read(source)] == ["r/2/1"]
    assert source.skipped == {inspect_eval.DAMAGED: 1}


def test_another_zip_is_not_taken_for_a_log(tmp_path: Path) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("word/document.xml", "<a/>")
    assert not inspect_eval.recognises(FileSource(path))
    path.write_bytes(b"PK\x03\x04 and then something else")
    assert not inspect_eval.recognises(FileSource(path))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")
def test_every_shared_log_is_read_with_all_its_calls_paired() -> None:
    for path in sorted(SHARED.iterdir()):
        assert [one.name for one in installed_readers() if one.recognises(FileSource(path))] == [
            "inspect-eval"
        ]
        samples = [sample for _, sample in inspect_eval.iter_samples(FileSource(path))]
        source = FileSource(path)
        sessions = list(inspect_eval.read(source))
        assert len(sessions) == len(samples)
        assert not {inspect_eval.DAMAGED, inspect_eval.TOO_LARGE} & source.skipped.keys()
        for sample, session in zip(samples, sessions, strict=True):
            called = [event for event in sample["events"] if event["event"] == "tool"]
            calls = [event for event in session.trace.events if event.call is not None]
            assert [event.call for event in calls] == [event["id"] for event in called]
            commands = [event for event in calls if isinstance(event, Command)]
            assert all(event.output is not None for event in commands)
            ran = [one for one in commands if one.exit_from == "stated"]
            assert len(ran) == len(commands)
            spent = [
                event["output"]["usage"]["output_tokens"]
                for event in sample["events"]
                if event["event"] == "model" and event["output"].get("usage")
            ]
            # Of the scorer's replies nothing is counted, so there is never more than the file has.
            assert (session.usage.output_tokens or 0) <= sum(spent)


def test_messages_that_get_a_new_id_each_time_are_told_once(tmp_path: Path) -> None:
    call = {"id": "c1", "function": "bash", "arguments": {"cmd": "ls"}}
    asked = {"id": "m1", "role": "user", "content": "List it."}
    reply = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    result = {"id": "m3", "role": "tool", "tool_call_id": "c1", "function": "bash", "content": "f"}
    first = model("I look.", call) | {"input": [asked]}
    later = [asked | {"id": "n1"}, reply | {"id": "n2"}, result | {"id": "n3"}]
    again = [asked | {"id": "o1"}, reply | {"id": "o2"}, result | {"id": "o3"}]
    session = made(tmp_path, first, model("f") | {"input": later}, model("f") | {"input": again})
    assert [type(event).__name__ for event in session.trace.events] == [
        "Message", "Message", "Command", "Message", "Message",
    ]  # fmt: skip


def test_what_is_left_out_is_counted_for_each_sample_alone(tmp_path: Path) -> None:
    outside = {"event": "span_begin", "id": "s", "type": "scorers", "name": "scorers"}
    graded = model("C") | {"span_id": "s"}
    samples = [{"id": n, "epoch": 1, "events": [outside, graded, model("x")]} for n in (1, 2)]
    path = tmp_path / "made.json"
    path.write_text(json.dumps({**HEADER, "samples": samples}))
    found = [session.trace.skipped for session in inspect_eval.read(FileSource(path))]
    assert found == [{"an event of scoring or set-up": 1}] * 2


def test_words_without_an_id_that_are_said_again_are_told_again(tmp_path: Path) -> None:
    asked, reply = ({"role": who, "content": "Go on."} for who in ("user", "assistant"))
    session = made(
        tmp_path,
        model("Go on.") | {"input": [asked]},
        model("Go on.") | {"input": [asked, reply, asked]},
    )
    assert [event.role for event in session.trace.events if isinstance(event, Message)] == [
        "user", "agent", "user", "agent",
    ]  # fmt: skip
