from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard

from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Note,
    Read,
    Session,
    Thought,
    ToolUse,
)
from closeloop.traces.file_source import FileSource, installed_readers
from closeloop.traces.readers import codex

FIXTURES = Path(__file__).parent / "fixtures" / "codex"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "codex_rollout"
RECORDINGS = sorted(SHARED.rglob("*.jsonl")) if SHARED.is_dir() else []
REQUEST = "Fix the rounding in billing.py so that the tests pass, and have the change reviewed."
ANSWER = "billing.py now rounds half a cent up; the tests pass and the review found nothing."
BRIEF = "REVIEW-BRIEF: read billing.py and say whether half a cent goes up. Change nothing."
REVIEW = "Half a cent goes up. Nothing else changed."
TEST = "python3 -m unittest -q 2>&1"


def read(path: Path) -> Session:
    (session,) = codex.read(FileSource(path))
    return session


def scene(name: str) -> list[Path]:
    return sorted((FIXTURES / name).rglob("*.jsonl"))


def lane_of(session: Session, lane: str = "root") -> list[AnyEvent]:
    return [event for event in session.trace.events if event.lane == lane]


def told(event: AnyEvent) -> tuple[Any, ...]:
    """An event in a line."""
    match event:
        case Message(role="system"):
            return ("system", event.text.partition(">")[0][1:])
        case Message():
            return (event.role, event.intent, event.text)
        case Command():
            return ("run", event.command, event.exit_code, event.exit_from)
        case Edit():
            return (event.action, event.path, event.ok)
        case Handoff():
            return ("handoff", event.brief, event.report, event.ok)
        case ToolUse():
            return ("tool", event.name, event.output is not None)
        case Note():
            return ("note", event.about)
    return (type(event).__name__,)


# The recordings


def test_each_tool_called_by_itself_is_read_event_by_event() -> None:
    parent, child = scene("direct")
    session = read(parent)
    (_, lane) = session.trace.lanes
    assert [told(event) for event in lane_of(session)] == [
        ("system", "permissions instructions"),
        ("system", "environment_context"),
        ("user", "request", REQUEST),
        ("agent", None, "Let me see what fails."),
        ("run", TEST, 1, "stated"),
        ("agent", "question", "Up or to even?"),
        ("note", "a question without an answer"),
        ("agent", None, "The amount is cut, not rounded."),
        ("change", "billing.py", False),
        ("change", "billing.py", True),
        ("create", "NOTES.md", True),
        ("run", f"sleep 1; {TEST}", 0, "stated"),
        ("tool", "write_stdin", True),
        ("agent", None, "Now a review."),
        ("handoff", BRIEF, REVIEW, True),
        ("tool", "wait_agent", True),
        ("note", "a sub-agent's state"),
        ("tool", "close_agent", True),
        ("agent", "claim", ANSWER),
    ]
    assert [told(event) for event in lane_of(session, lane.id)] == [
        ("system", "permissions instructions"),
        ("system", "environment_context"),
        ("user", "request", BRIEF),
        ("agent", None, "I read it."),
        ("run", "cat billing.py", 0, "stated"),
        ("agent", "claim", REVIEW),
    ]
    (handoff,) = (event for event in session.trace.events if isinstance(event, Handoff))
    assert (handoff.child, lane.parent) == (lane.id, "root")
    assert [*codex.parts(FileSource(parent))] == [child]
    assert codex.owner(FileSource(child)) == parent
    assert codex.owner(FileSource(parent)) is None
    assert codex.parts(FileSource(child)) == []


def test_a_command_left_running_gets_its_output_and_exit_code_when_it_ends() -> None:
    for name in ("direct", "forked"):
        session = read(scene(name)[0])
        (slept,) = (
            event
            for event in session.trace.events
            if isinstance(event, Command) and event.command.startswith("sleep")
        )
        assert slept.exit_code == 0
        assert slept.output is not None
        assert slept.output.count("Ran 1 test") == 1


def test_edits_carry_their_part_of_the_patch() -> None:
    edits = [event for event in read(scene("direct")[0]).trace.events if isinstance(event, Edit)]
    failed, changed, created = edits
    assert failed.error is not None
    assert failed.error.startswith("apply_patch verification failed")
    assert changed.patch is not None
    assert changed.patch.startswith("*** Update File: billing.py\n@@\n def rounded")
    assert "NOTES" not in changed.patch
    assert created.after == "Half a cent goes up.\n"
    assert changed.call == created.call


def test_what_a_script_of_the_agent_did_is_read_too() -> None:
    session = read(scene("code")[0])
    assert [told(event) for event in lane_of(session)][4:] == [
        ("user", "request", REQUEST),
        ("agent", None, "Let me see what fails."),
        ("run", TEST, 1, "stated"),
        ("tool", "exec", True),
        ("create", "/tmp/codex-workspace/NOTES.md", True),
        ("change", "/tmp/codex-workspace/billing.py", True),
        ("run", TEST, 0, "stated"),
        ("handoff", BRIEF, REVIEW, True),
        ("tool", "wait_agent", True),
        ("agent", "claim", ANSWER),
    ]
    assert session.system == "You are a coding agent."
    (handoff,) = (event for event in session.trace.events if isinstance(event, Handoff))
    assert handoff.child == session.trace.lanes[1].id
    assert next(event.ok for event in lane_of(session) if isinstance(event, ToolUse)) is True


def test_a_forked_child_begins_where_its_own_work_does() -> None:
    parent, child = scene("forked")
    session = read(parent)
    assert [told(event) for event in lane_of(session, session.trace.lanes[1].id)] == [
        ("note", "forked"),
        ("user", "request", BRIEF),
        ("run", "cat billing.py", 0, "parsed"),
        ("agent", "claim", REVIEW),
    ]
    calls = [event.call for event in session.trace.events if isinstance(event, Command)]
    assert len(calls) == len(set(calls)) == 3
    alone = read(child)
    assert alone.parent == session.id
    assert len(alone.trace.lanes[0].turns) == 2


def test_events_of_all_lanes_stand_in_the_order_they_happened() -> None:
    for name in ("direct", "code", "forked"):
        times = [event.at for event in read(scene(name)[0]).trace.events if event.at]
        assert times == sorted(times)


def test_what_is_known_of_the_session_is_kept() -> None:
    session = read(scene("forked")[0])
    assert (session.agent, session.agent_version) == ("codex", "0.118.0")
    assert session.model == "gpt-5.4"
    assert session.system == "You are a coding agent."
    assert session.directory == "/tmp/codex-workspace"
    assert (session.exit, session.cause) == ("finished", None)
    assert session.summary == ANSWER
    assert session.started is not None
    assert session.ended is not None
    assert session.started < session.ended


@pytest.mark.parametrize("name", ["direct", "code", "forked"])
def test_tokens_are_the_last_totals_of_the_threads(name: str) -> None:
    files = scene(name)
    session = read(files[0])
    assert session.usage.input_tokens == sum(totals(path, "input_tokens") for path in files)
    assert session.usage.output_tokens == sum(totals(path, "output_tokens") for path in files)


def totals(path: Path, key: str) -> int:
    """By the last total, less what a fork began with."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    counts = [
        line["payload"]["info"]["total_token_usage"][key]
        for line in lines
        if line["payload"].get("type") == "token_count" and line["payload"]["info"]
    ]
    forked = "forked_from_id" in lines[0]["payload"]
    inherited = max((n for n, line in enumerate(lines) if spawned(line)), default=0)
    before = [
        line["payload"]["info"]["total_token_usage"][key]
        for line in lines[:inherited]
        if line["payload"].get("type") == "token_count" and line["payload"]["info"]
    ]
    return int(counts[-1]) - (int(before[-1]) if forked and before else 0)


def spawned(line: Any) -> bool:
    return "You are the newly spawned agent" in str(line["payload"].get("output"))


# Where files are


def test_a_packed_rollout_is_the_same(tmp_path: Path) -> None:
    parent, child = scene("direct")
    folder = tmp_path / "2026" / "11" / "15"
    later = tmp_path / "2026" / "11" / "16"
    folder.mkdir(parents=True)
    later.mkdir()
    for path, place in ((parent, folder / "a.jsonl.zst"), (child, later / "b.zst")):
        place.write_bytes(zstandard.compress(path.read_bytes()))
    packed = FileSource(folder / "a.jsonl.zst")
    assert codex.recognises(packed)
    assert [*codex.parts(packed)] == [later / "b.zst"]
    assert codex.owner(FileSource(later / "b.zst")) == folder / "a.jsonl.zst"
    assert read(folder / "a.jsonl.zst") == read(parent)


def test_a_child_without_its_parent_is_a_session_of_its_own(tmp_path: Path) -> None:
    parent, child = scene("direct")
    shutil.copy(child, tmp_path / "child.jsonl")
    assert codex.owner(FileSource(tmp_path / "child.jsonl")) is None
    session = read(tmp_path / "child.jsonl")
    assert session.parent == read(parent).id
    assert [lane.id for lane in session.trace.lanes] == ["root"]


def test_a_parent_without_its_child_keeps_the_handoff(tmp_path: Path) -> None:
    shutil.copy(scene("direct")[0], tmp_path / "parent.jsonl")
    session = read(tmp_path / "parent.jsonl")
    (handoff,) = (event for event in session.trace.events if isinstance(event, Handoff))
    assert (handoff.child, handoff.report, handoff.ok) == (None, REVIEW, True)


# The format's traps, each made by hand


class Rollout:
    """Lines of a rollout, written one after another."""

    def __init__(self, folder: Path, **meta: Any) -> None:
        self.path = folder / "rollout.jsonl"
        self.lines: list[dict[str, Any]] = []
        self.add("session_meta", id="thread", cwd="/w", cli_version="1", source="cli", **meta)

    def add(self, kind: str, /, **payload: Any) -> Rollout:
        second = len(self.lines)
        time = f"2026-01-01T00:{second // 60:02}:{second % 60:02}.000Z"
        self.lines.append({"timestamp": time, "type": kind, "payload": payload})
        return self

    def item(self, kind: str, /, **payload: Any) -> Rollout:
        return self.add("response_item", type=kind, **payload)

    def event(self, kind: str, /, **payload: Any) -> Rollout:
        return self.add("event_msg", type=kind, **payload)

    def user(self, text: str) -> Rollout:
        content = [{"type": "input_text", "text": text}]
        return self.item("message", role="user", content=content)

    def agent(self, text: str) -> Rollout:
        content = [{"type": "output_text", "text": text}]
        return self.item("message", role="assistant", content=content)

    def call(self, name: str, call: str = "c", /, **arguments: Any) -> Rollout:
        written = json.dumps(arguments)
        return self.item("function_call", name=name, arguments=written, call_id=call)

    def output(self, output: Any, call: str = "c") -> Rollout:
        return self.item("function_call_output", call_id=call, output=output)

    def tokens(self, total: int, last: int, cached: int = 0) -> Rollout:
        def count(number: int) -> dict[str, int]:
            return {
                "input_tokens": number,
                "cached_input_tokens": cached,
                "output_tokens": number // 10,
                "reasoning_output_tokens": 1,
                "total_tokens": number,
            }

        info = {"total_token_usage": count(total), "last_token_usage": count(last)}
        return self.event("token_count", info=info)

    def read(self) -> Session:
        self.path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        return read(self.path)

    def told(self) -> list[tuple[Any, ...]]:
        return [told(event) for event in self.read().trace.events]


def test_a_message_told_twice_is_one(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path)
    for text in ("Do it", "yes"):
        rollout.user(text).event("user_message", message=text)
        rollout.event("agent_message", message="Fine.").agent("Fine.")
    assert rollout.told() == [
        ("user", "request", "Do it"),
        ("agent", None, "Fine."),
        ("user", None, "yes"),
        ("agent", "claim", "Fine."),
    ]


@pytest.mark.parametrize(
    "sorts", [["agent_message"], ["agent_message", "AgentMessage"], ["AgentMessage"]]
)
def test_last_words_that_events_tell_again_and_trimmed_are_one(
    sorts: list[str], tmp_path: Path
) -> None:
    rollout = Rollout(tmp_path).event("task_started").user("Do it").agent("All done.\n")
    for sort in sorts:
        if sort == "agent_message":
            rollout.event(sort, message="All done.")
        else:
            item = {"type": sort, "content": [{"type": "Text", "text": "All done."}]}
            rollout.event("item_completed", item=item)
    rollout.event("task_complete", last_agent_message="All done.")
    assert rollout.told() == [("user", "request", "Do it"), ("agent", "claim", "All done.\n")]


def test_a_message_that_only_an_event_tells_is_kept(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path).event("task_started").event("user_message", message="Do it")
    rollout.event("agent_message", message="Done.").event("task_complete")
    assert rollout.told() == [("user", "request", "Do it"), ("agent", "claim", "Done.")]


def test_what_codex_puts_among_the_users_messages_is_not_the_users(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path).user("# AGENTS.md instructions for /w\n\nBe brief.")
    rollout.user("<user_instructions>\nBe brief.\n</user_instructions>")
    rollout.user("<b>Bold</b>").event("user_message", message="<b>Bold</b>")
    rollout.user("<b>Is this bold?")
    assert [line[0] for line in rollout.told()] == ["system", "system", "user", "user"]


def test_a_short_message_is_not_taken_for_a_longer_text_that_has_its_words(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path).user("# AGENTS.md instructions for /w\n\nNever push.")
    rollout.user("push").event("user_message", message="push")
    rollout.item("message", role="user", content=[{"type": "input_image", "image_url": "data:"}])
    assert [line[:2] for line in rollout.told()] == [
        ("system", " AGENTS.md instructions for /w\n\nNever push."),
        ("user", "request"),
        ("note", "image"),
    ]


def test_an_interrupt_is_told_once(tmp_path: Path) -> None:
    text = "<turn_aborted>\nThe user interrupted the previous turn.\n</turn_aborted>"
    rollout = Rollout(tmp_path).event("task_started").user("Do it").call("shell", command="ls")
    rollout.user(text).event("turn_aborted", reason="interrupted")
    session = rollout.read()
    intents = [e.intent for e in session.trace.events if isinstance(e, Message)]
    assert intents == ["request", "interrupt"]
    assert isinstance(session.trace.events[-1], Note)
    assert (session.exit, session.cause) == ("gave_up", "The turn was interrupted.")
    (command,) = (event for event in session.trace.events if isinstance(event, Command))
    assert (command.output, command.exit_code) == (None, None)
    old = Rollout(tmp_path).user("Do it").event("turn_aborted", reason="interrupted")
    assert ("user", "interrupt", "interrupted") in old.told()


@pytest.mark.parametrize(
    ("output", "text", "code", "found"),
    [
        ("Chunk ID: a\nWall time: 1.5 seconds\nProcess exited with code 2\n"
         "Original token count: 3\nOutput:\nbad\n", "bad\n", 2, "parsed"),
        ("Command: /bin/sh -lc 'a\nb'\nChunk ID: a\nWall time: 1.5 seconds\n"
         "Process exited with code 0\nOutput:\n", "", 0, "parsed"),
        ("Exit code: 1\nWall time: 1.5 seconds\nTotal output lines: 9\nOutput:\nbad", "bad", 1,
         "parsed"),
        ('{"output":"bad","metadata":{"exit_code":3,"duration_seconds":1.5}}', "bad", 3, "stated"),
        ({"content": "Process exited with code 4\n", "success": False},
         "Process exited with code 4\n", 4, "parsed"),
        ([{"type": "input_text", "text": "hm"}], "hm", None, None),
        ("aborted by user after 2.0s", "aborted by user after 2.0s", None, None),
        ("failed in sandbox MacosSeatbelt with execution error: sandbox denied exec error, "
         "exit code: 5, stdout: , stderr: bad", "failed in sandbox MacosSeatbelt with execution "
         "error: sandbox denied exec error, exit code: 5, stdout: , stderr: bad", 5, "parsed"),
        (None, "", None, None),
    ],
)  # fmt: skip
def test_exit_codes_are_found_in_every_shape_of_output(
    output: Any, text: str, code: int | None, found: str | None, tmp_path: Path
) -> None:
    session = Rollout(tmp_path).call("shell", command=["bash", "-lc", "make"]).output(output).read()
    (command,) = session.trace.events
    assert isinstance(command, Command)
    assert (command.command, command.output) == ("make", text)
    assert (command.exit_code, command.exit_from) == (code, found)
    assert command.seconds in (1.5, None)


def test_a_stated_exit_code_goes_before_a_parsed_one(tmp_path: Path) -> None:
    end: dict[str, Any] = {"call_id": "c", "exit_code": 7, "duration": {"secs": 2, "nanos": 0}}
    said = "Wall time: 1.0 seconds\nProcess exited with code 0\nOutput:\nx"
    for first in (True, False):
        rollout = Rollout(tmp_path).call("exec_command", cmd="make")
        if first:
            rollout.event("exec_command_end", **end).output(said)
        else:
            rollout.output(said).event("exec_command_end", **end)
        (command,) = rollout.read().trace.events
        assert isinstance(command, Command)
        assert (command.exit_code, command.exit_from, command.seconds) == (7, "stated", 2.0)
        assert command.output == "x"


def test_results_go_to_the_oldest_call_when_ids_repeat(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path).call("shell", command="one").call("shell", command="two")
    rollout.output("1").output("2").output("3")
    session = rollout.read()
    assert [e.output for e in session.trace.events if isinstance(e, Command)] == ["1", "2\n3"]
    lost = Rollout(tmp_path).output("nobody's", "other")
    assert lost.told() == [("note", "result without a call")]


def test_a_process_is_followed_through_several_polls(tmp_path: Path) -> None:
    running = "Chunk ID: a\nWall time: 1.0 seconds\nProcess running with session ID 7\nOutput:\n"
    ended = "Chunk ID: a\nWall time: 1.0 seconds\nProcess exited with code 1\nOutput:\n"
    rollout = Rollout(tmp_path).call("exec_command", "a", cmd="make").output(running + "1 ", "a")
    for call, output in (("b", running + "2 "), ("d", ended + "3")):
        rollout.call("write_stdin", call, session_id=7, chars="").output(output, call)
    command, *polls = rollout.read().trace.events
    assert isinstance(command, Command)
    assert (command.output, command.exit_code) == ("1 2 3", 1)
    assert [poll.output for poll in polls if isinstance(poll, ToolUse)] == ["2 ", "3"]


PATCH = """*** Begin Patch
*** Add File: new.py
+a
+
+b
*** Update File: old.py
*** Move to: other.py
@@ class A:
-x
+y
*** Delete File: gone.py
*** Update File: same.py
@@
 keep
+more
*** End of File
*** End Patch"""


@pytest.mark.parametrize("shape", ["custom", "function", "words", "line", "heredoc"])
def test_a_patch_in_any_dress_is_an_edit_for_every_file(shape: str, tmp_path: Path) -> None:
    rollout = Rollout(tmp_path)
    match shape:
        case "custom":
            rollout.item("custom_tool_call", name="apply_patch", input=PATCH, call_id="c")
        case "function":
            rollout.call("apply_patch", input=PATCH)
        case "words":
            rollout.call("shell", command=["apply_patch", PATCH])
        case "line":
            rollout.call("exec_command", cmd=f"apply_patch <<'EOF'\n{PATCH}\nEOF\n")
        case _:
            line = f"cd /w && apply_patch <<'PATCH'\n{PATCH}\nPATCH"
            rollout.call("shell", command=["bash", "-lc", line])
    rollout.output('{"output":"Success. Updated the following files","metadata":{"exit_code":0}}')
    session = rollout.read()
    assert [told(event) for event in session.trace.events] == [
        ("create", "new.py", True),
        ("move", "old.py", True),
        ("delete", "gone.py", True),
        ("change", "same.py", True),
    ]
    edits = [event for event in session.trace.events if isinstance(event, Edit)]
    assert edits[0].after == "a\n\nb\n"
    assert edits[1].patch is not None
    assert "*** Move to: other.py" in edits[1].patch
    assert edits[3].patch is not None
    assert edits[3].patch.endswith("+more\n*** End of File")


def test_a_command_that_only_speaks_of_patches_is_a_command(tmp_path: Path) -> None:
    lines = [f"apply_patch <<'E'\n{PATCH}\nE\nmake test", f"cat <<'E'\n{PATCH}\nE", "apply_patch"]
    for line in lines:
        (event,) = Rollout(tmp_path).call("exec_command", cmd=line).read().trace.events
        assert isinstance(event, Command)


@pytest.mark.parametrize(
    ("script", "printed", "command"),
    [
        ('const r = await tools.exec_command({cmd:"echo \\"a\\"\\nls", workdir:"/w"}); text(r)',
         "a\n", ('echo "a"\nls', "/w", "a\n", None)),
        ("await tools.exec_command({ workdir: `/w`, 'cmd': 'echo \\\'b" + '"' + "\\\'' })",
         '{"exit_code":3,"output":"b"}', ("echo 'b\"'", "/w", "b", 3)),
        ("await tools.exec_command({cmd: `rm ${name}`})", "", None),
        ("await tools.exec_command({cmd: one})", "", None),
        ('tools.exec_command({cmd: "a"}); tools.exec_command({cmd: "b"})', "", None),
        ('tools.update_plan({plan: []}) // cmd: "a"', "", None),
    ],
)  # fmt: skip
def test_a_script_that_only_runs_a_command_is_one_where_no_event_tells(
    script: str, printed: str, command: Any, tmp_path: Path
) -> None:
    rollout = Rollout(tmp_path).item("custom_tool_call", name="exec", input=script, call_id="c")
    said = ["Script completed\nWall time 0.1 seconds\nOutput:\n", printed]
    content = [{"type": "input_text", "text": text} for text in said]
    rollout.item("custom_tool_call_output", call_id="c", output=content)
    (event,) = rollout.read().trace.events
    if command is None:
        assert isinstance(event, ToolUse)
    else:
        assert isinstance(event, Command)
        assert (event.command, event.directory, event.output, event.exit_code) == command


@pytest.mark.parametrize("late", [False, True])
def test_a_script_and_the_end_of_its_command_are_one_event(late: bool, tmp_path: Path) -> None:
    script = 'text(await tools.exec_command({cmd: "make"}))'
    rollout = Rollout(tmp_path).item("custom_tool_call", name="exec", input=script, call_id="c")
    end = {"call_id": "own", "command": ["bash", "-lc", "make"], "exit_code": 2, "stdout": "no"}
    if not late:
        rollout.event("exec_command_end", **end)
    printed = [{"type": "input_text", "text": "Script completed\nOutput:\nno"}]
    rollout.item("custom_tool_call_output", call_id="c", output=printed)
    if late:
        rollout.event("exec_command_end", **end)
    (event,) = rollout.read().trace.events
    assert isinstance(event, Command)
    assert (event.command, event.output, event.exit_code) == ("make", "no", 2)
    assert event.exit_from == "stated"


def test_a_refused_action_is_a_correction(tmp_path: Path) -> None:
    rollout = (
        Rollout(tmp_path).call("shell", command="rm x").output("exec command rejected by user")
    )
    assert ("user", "correction", "exec command rejected by user") in rollout.told()


def test_totals_become_what_each_message_used(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path).event("token_count", info=None).agent("a").tokens(100, 100, 40)
    rollout.tokens(100, 100, 40).user("b").agent("c").tokens(250, 150, 40).tokens(250, 150, 40)
    rollout.user("d").agent("e").tokens(30, 30)
    session = rollout.read()
    (lane,) = session.trace.lanes
    assert [turn.usage.input_tokens for turn in lane.turns] == [60, 150, 30]
    assert session.usage.cache_read_tokens == 40
    assert [e.turn for e in session.trace.events if isinstance(e, Message)] == [
        1, None, 2, None, 3,
    ]  # fmt: skip


def test_a_full_context_is_no_usage(tmp_path: Path) -> None:
    full = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 9}
    rollout = Rollout(tmp_path).agent("a").tokens(100, 100)
    rollout.event("token_count", info={"total_token_usage": full, "last_token_usage": full})
    assert rollout.read().usage.input_tokens == 100


def test_a_compaction_is_one_note_and_its_history_is_not_read_again(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path).user("Do it")
    again = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}]
    rollout.add("compacted", message="So far so good.", replacement_history=again)
    rollout.event("context_compacted")
    rollout.event("thread_rolled_back", num_turns=1)
    assert rollout.told() == [
        ("user", "request", "Do it"),
        ("note", "compaction"),
        ("note", "rewind"),
    ]


def test_an_answered_question_has_its_answer(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path).call("request_user_input", questions=[{"question": "Up?"}])
    rollout.output('{"answers":{"q":{"answers":["Yes","Always"]}}}')
    rollout.call("request_user_input_async", "d", questions=[{"title": "Down?"}])
    assert rollout.told() == [
        ("agent", "question", "Up?"),
        ("user", "answer", "Yes\nAlways"),
        ("agent", "question", "Down?"),
    ]


def test_handoffs_are_followed_by_the_old_events_too(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path).call("spawn_agent", items=[{"type": "text", "text": "Look"}])
    rollout.event("collab_agent_spawn_end", call_id="c", new_thread_id="kid").output("spawned")
    rollout.event("collab_waiting_end", statuses={"kid": {"completed": "Seen."}})
    rollout.call("send_input", "d", target="kid", message="Again").output("{}", "d")
    rollout.call("spawn_agent", "e", message="No").output("collab spawn failed: limit", "e")
    rollout.user(
        "<subagent_notification>"
        + json.dumps({"agent_path": "kid", "status": {"completed": "Still so."}})
        + "</subagent_notification>"
    )
    assert rollout.told()[:3] == [
        ("handoff", "Look", "Seen.", True),
        ("handoff", "Again", "Still so.", True),
        ("handoff", "No", "collab spawn failed: limit", False),
    ]


def test_a_brief_in_no_known_shape_is_empty(tmp_path: Path) -> None:
    for items in (None, 5, ["x"], [{"text": 5}]):
        rollout = Rollout(tmp_path).call("spawn_agent", items=items)
        assert rollout.told() == [("handoff", "", None, None)]


def test_thoughts_models_and_unknown_records_are_kept(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path)
    rollout.add("turn_context", model="a").add("turn_context", model="b")
    rollout.item("reasoning", summary=[{"type": "summary_text", "text": "Hm."}], content=None)
    rollout.item("reasoning", summary=[], encrypted_content="xx")
    rollout.item("oracle", text="?").event("surprise").add("prophecy")
    session = rollout.read()
    abouts = [event.about for event in session.trace.events if isinstance(event, Note)]
    assert abouts == ["model", "unknown: oracle", "unknown: surprise", "unknown: prophecy"]
    assert sum(isinstance(event, Thought) for event in session.trace.events) == 1
    assert session.model == "b"


def test_reads_searches_and_other_servers_tools_are_told_apart(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path).call("read_file", file_path="a.py").output("x = 1")
    rollout.item("web_search_call", status="completed", action={"type": "search", "query": "q"})
    rollout.call("mcp__docs__find", "m", query="q").output("found", "m")
    rollout.event("mcp_tool_call_end", call_id="m", result={"Ok": {"isError": True}})
    opened, searched, found = rollout.read().trace.events
    assert isinstance(opened, Read)
    assert opened.text == "x = 1"
    assert isinstance(searched, ToolUse)
    assert (searched.name, searched.ok) == ("web_search", True)
    assert isinstance(found, ToolUse)
    assert (found.output, found.ok) == ("found", False)


def test_a_fork_by_hand_counts_only_its_own_records(tmp_path: Path) -> None:
    mine, theirs = "019d7e2f-0041-7310-951c-94020254dfc9", "019d7d08-46c9-7f73-affe-4e6ca9852d56"
    rollout = Rollout(tmp_path)
    rollout.lines[0]["payload"] |= {"id": mine, "forked_from_id": theirs}
    rollout.add("session_meta", id=theirs).event("task_started", turn_id=theirs)
    rollout.user("Old").agent("Old too").tokens(500, 500).call("shell", command="old")
    rollout.output("You are the newly spawned agent. This is another fork's.")
    rollout.event("task_complete")
    rollout.event("task_started", turn_id="019d7e2f-1000-7310-951c-94020254dfc9")
    rollout.user("New").agent("Newer").tokens(600, 100).event("task_complete")
    session = rollout.read()
    assert rollout.told() == [
        ("note", "forked"),
        ("user", "request", "New"),
        ("agent", "claim", "Newer"),
    ]
    assert session.usage.input_tokens == 100
    assert (session.parent, session.links) == (None, {"forked from": theirs})


def test_a_session_resumed_by_an_old_version_begins_after_what_it_repeats(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path).add("session_meta", id="before").user("Old")
    rollout.add("turn_context", model="m").agent("Old too").tokens(500, 500)
    for line in rollout.lines[1:]:
        # All of it is copied at once, some seconds after the file was begun.
        line["timestamp"] = "2026-01-01T00:00:06.000Z"
    while len(rollout.lines) < 9:
        rollout.lines.append(rollout.lines[-1])
    rollout.user("New").add("turn_context", model="m").agent("Newer").tokens(100, 100)
    session = rollout.read()
    assert rollout.told() == [
        ("note", "forked"),
        ("user", "request", "New"),
        ("agent", "claim", "Newer"),
    ]
    assert (session.usage.input_tokens, session.links) == (100, {"forked from": "before"})


def test_a_fork_that_says_where_it_begins_is_believed(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path, subagent_history_start_ordinal=2)
    rollout.user("Old").user("New")
    for number, line in enumerate(rollout.lines):
        line["ordinal"] = number
    assert rollout.told() == [("note", "forked"), ("user", "request", "New")]


def test_the_first_versions_files_have_no_envelopes(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    records: list[dict[str, Any]] = [
        {"id": "t", "timestamp": "2025-06-01T00:00:00Z", "instructions": "Be brief."},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Do it"}]},
        {"type": "function_call", "name": "shell", "call_id": "c",
         "arguments": '{"command":["ls"]}'},
        {"type": "function_call_output", "call_id": "c",
         "output": '{"output":"a","metadata":{"exit_code":0}}'},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert codex.recognises(FileSource(path))
    session = read(path)
    assert [told(event) for event in session.trace.events] == [
        ("user", "request", "Do it"),
        ("run", "ls", 0, "stated"),
    ]
    assert (session.id, session.system) == ("t", "Be brief.")


def test_a_first_line_longer_than_the_head_is_recognised(tmp_path: Path) -> None:
    rollout = Rollout(tmp_path, base_instructions={"text": "x" * 200_000}).user("Do it")
    rollout.read()
    text = rollout.path.read_text().replace('": ', '":').replace(', "', ',"')
    rollout.path.write_text(text)
    assert codex.recognises(FileSource(rollout.path))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}\n",
        '{"type":"session_meta"}\n',
        '{"timestamp":"x","type":"event","payload":{}}\n',
        '{"type":"user","message":{"role":"user"},"timestamp":"x"}\n',
        '{"id":"a","timestamp":"b","instructions":"c"}\n{"name":"not a record"}\n',
    ],
)
def test_other_files_are_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    assert not codex.recognises(FileSource(path))


# Recordings of others


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_every_shared_rollout_is_read_without_loss_or_doubles(path: Path) -> None:
    assert [r.name for r in installed_readers() if r.recognises(FileSource(path))] == ["codex"]
    source = FileSource(path)
    (session,) = codex.read(source)
    assert source.skipped == {}
    own = records_of(path)
    calls = Counter(
        record["call_id"]
        for record in own
        if record.get("type") in ("function_call", "custom_tool_call")
    )
    results = {
        record["call_id"] for record in own if str(record.get("type")).endswith("call_output")
    }
    read_calls = {event.call for event in session.trace.events if event.call in calls}
    assert read_calls == set(calls)
    for event in session.trace.events:
        if event.call in results and isinstance(event, Command | ToolUse):
            assert event.output is not None, event
        if event.call in results and isinstance(event, Edit):
            assert event.ok is not None, event
    commands = [e.call for e in session.trace.events if isinstance(e, Command | ToolUse) and e.call]
    assert len(commands) == len(set(commands))
    said = [r for r in own if r.get("type") == "message" and r.get("role") == "assistant"]
    spoken = [e for e in session.trace.events if isinstance(e, Message) and e.role == "agent"]
    assert len(spoken) == len(said)
    if "forked_from_id" not in path.read_text()[:500]:
        usage = session.usage
        assert (usage.input_tokens or 0) + (usage.cache_read_tokens or 0) == totals(
            path, "input_tokens"
        )
        assert usage.output_tokens == totals(path, "output_tokens")


def records_of(path: Path) -> list[dict[str, Any]]:
    """The payloads after the last sign of a fork."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    start = max((number for number, line in enumerate(lines) if spawned(line)), default=-1)
    return [line["payload"] for line in lines[start + 1 :]]
