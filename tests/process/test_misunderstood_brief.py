"""misunderstood-brief: a sub-agent that works on something else."""

from __future__ import annotations

from typing import Any

import pytest
from rules import found

from closeloop.records.finding import Unmeasured

LANES = {"child": "root"}
OTHER = {"edit": {"path": "billing/renewal.py", "before": "a", "after": "b"}}
BRIEF = "Fix web/session_store.py: sessions are lost on restart."


def findings(brief: str, *work: dict[str, Any]) -> Any:
    events = [
        {"handoff": {"brief": brief, "child": "child", "report": "Done."}},
        *({"lane": "child", **one} for one in work),
    ]
    return found("misunderstood-brief", events, lanes=LANES)


def test_edits_far_from_the_files_of_the_brief_are_found() -> None:
    (finding,) = findings(BRIEF, {"read": "billing/renewal.py"}, OTHER)
    assert finding.events == (3, 1)
    assert finding.lane == "child"
    assert "web/session_store.py" in finding.message
    assert "billing/renewal.py" in finding.message


@pytest.mark.parametrize(
    "look",
    [
        {"read": "/home/me/web/session_store.py"},
        {"run": {"command": "cat web/session_store.py", "exit": 0}},
        {
            "run": {
                "command": "grep -rn restart .",
                "exit": 0,
                "output": "web/session_store.py:3: x",
            }
        },
        {"tool": {"name": "grep", "arguments": {"path": "web/session_store.py"}}},
        {"handoff": {"brief": "Look at session_store.py"}},
    ],
)
def test_who_came_near_the_file_may_have_found_the_cause_elsewhere(look: dict[str, Any]) -> None:
    assert findings(BRIEF, look, OTHER) == []


def test_a_file_named_in_passing_is_not_what_the_brief_is_about() -> None:
    page = {"edit": {"path": "src/SettingsPage.tsx", "before": "a", "after": "b"}}
    assert findings("Add a toggle to the settings page, like src/Menu.tsx has.", page) == []
    assert findings("Follow CONTRIBUTING.md and make it blue.", OTHER) == []


def test_what_is_to_be_left_alone_need_not_be_opened() -> None:
    assert findings("Make it faster. Do not touch web/session_store.py.", OTHER) == []


def test_who_changes_nothing_did_nothing_wrong() -> None:
    assert findings(BRIEF, {"read": "billing/renewal.py"}) == []


def test_a_brief_without_files_cannot_be_missed() -> None:
    assert findings("Sessions are lost on restart, please fix that.", OTHER) == []


def test_a_sub_agent_called_twice_is_judged_by_the_brief_of_each_time() -> None:
    events = [
        {"handoff": {"brief": BRIEF, "child": "child"}},
        {"lane": "child", "read": "web/session_store.py"},
        {"lane": "child", "edit": {"path": "web/session_store.py", "before": "a", "after": "b"}},
        {"handoff": {"brief": "Now repair lib/mailer.py.", "child": "child"}},
        {"lane": "child", **OTHER},
    ]
    (finding,) = found("misunderstood-brief", events, lanes=LANES)
    assert finding.events == (5, 4)


def test_without_the_work_of_any_sub_agent_nothing_can_be_said() -> None:
    said = found("misunderstood-brief", [{"handoff": {"brief": BRIEF, "report": "Done."}}])
    assert isinstance(said, Unmeasured)
    assert found("misunderstood-brief", []) == []
    assert found("misunderstood-brief", [{"lane": "lost", **OTHER}]) == []
