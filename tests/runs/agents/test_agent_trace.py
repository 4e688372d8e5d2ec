"""A whole trace of the built-in agent, as a reviewer sees it."""

from __future__ import annotations

import msgspec
from agent_desk import Desk, ModelToolCall, says

from closeloop.records.trace import Trace


def call(name: str, **arguments: object) -> ModelToolCall:
    return ModelToolCall(id=f"{name}-1", name=name, arguments=arguments)


def shown(trace: Trace) -> dict[str, object]:
    """Number, lane, turn and kind of every event, then what is particular to it."""
    lines = {}
    for event in trace.events:
        fields = msgspec.to_builtins(event)
        place = f"{event.number} {event.lane} {event.turn} {fields['kind']}"
        common = ("number", "lane", "turn", "kind", "at")
        lines[place] = {name: value for name, value in fields.items() if name not in common}
    return lines


def test_the_trace_of_a_small_piece_of_work(desk: Desk) -> None:
    (desk.folder / "price.py").write_text("def total(net):\n    return net * 1.2\n")
    desk.answer = lambda question: "19 %." if "rate" in question else None
    work = desk.work(
        says("Let me look.", call("search", pattern="1\\.2"), call("read", path="price.py")),
        says("", call("ask", question="Which tax rate?")),
        says("", call("edit", path="price.py", old="1.2", new="1.19")),
        says("", call("delegate", brief="Check price.py: the rate is 19 %.")),
        says(
            "",
            call("run", command="python3 -c 'import price; print(price.total(100))'"),
            call("tset"),
        ),
        says("total(100) is 119.0."),
        says("", call("finish", summary="The rate is 19 %; checked by a sub-agent.")),
    )
    assert work.exit == "finished"
    assert [(lane.id, lane.parent, len(lane.turns)) for lane in work.trace.lanes] == [
        ("root", None, 5),
        ("sub-1", "root", 2),
    ]
    times = [event.at for event in work.trace.events]
    assert times == sorted(times)
    assert shown(work.trace) == {
        "1 root None message": {"role": "user", "text": "Do it.", "intent": "request"},
        "2 root 1 message": {"role": "agent", "text": "Let me look."},
        "3 root 1 tool": {
            "seconds": 1.0,
            "call": "search-1",
            "name": "search",
            "arguments": {"pattern": "1\\.2", "path": "."},
            "output": "price.py:2:     return net * 1.2",
            "ok": True,
        },
        "4 root 1 read": {
            "seconds": 1.0,
            "call": "read-1",
            "path": "price.py",
            "text": """\
def total(net):
    return net * 1.2
""",
            "ok": True,
        },
        "5 root 2 message": {
            "call": "ask-1",
            "role": "agent",
            "text": "Which tax rate?",
            "intent": "question",
        },
        "6 root 2 message": {"call": "ask-1", "role": "user", "text": "19 %.", "intent": "answer"},
        "7 root 3 edit": {
            "seconds": 1.0,
            "call": "edit-1",
            "path": "price.py",
            "before": "1.2",
            "after": "1.19",
            "ok": True,
        },
        "8 root 4 handoff": {
            "seconds": 10.0,
            "call": "delegate-1",
            "brief": "Check price.py: the rate is 19 %.",
            "child": "sub-1",
            "report": "total(100) is 119.0.",
            "ok": True,
        },
        "9 sub-1 None message": {
            "role": "user",
            "text": "Check price.py: the rate is 19 %.",
            "intent": "request",
        },
        "10 sub-1 1 command": {
            "seconds": 1.0,
            "call": "run-1",
            "command": "python3 -c 'import price; print(price.total(100))'",
            "output": "119.0\n",
            "exit_code": 0,
            "exit_from": "stated",
        },
        "11 sub-1 1 note": {
            "call": "tset-1",
            "text": "No tool named 'tset'. Known: ask, edit, finish, read, run, search, write.",
            "about": "bad call",
        },
        "12 sub-1 2 message": {"role": "agent", "text": "total(100) is 119.0.", "intent": "claim"},
        "13 root 5 message": {
            "call": "finish-1",
            "role": "agent",
            "text": "The rate is 19 %; checked by a sub-agent.",
            "intent": "claim",
        },
    }
