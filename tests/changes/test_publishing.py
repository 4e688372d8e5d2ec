"""What a pull request is told, once and only once: a check run, a comment, labels."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from fake_github import BOT, NUMBER, PERSON, REPO, TOKEN, FakeGitHub, answer, serving
from msgspec.structs import replace
from starlette.responses import JSONResponse
from told_github import MANY, PULL, Clock, tell

from closeloop.changes.code_host import open_github
from closeloop.changes.report_formats import COMMENT_MARKER
from closeloop.changes.report_publishing import publish_report
from closeloop.records.change import Risk
from report_example import BAD, CLEAN, HEAD

# One comment


def test_a_pull_request_is_told_by_a_check_run_a_comment_and_a_label(host: FakeGitHub):
    told = tell(host)
    assert told.notes == ()
    (body,) = host.bodies()
    assert body.startswith(COMMENT_MARKER)
    assert f"https://github.com/{REPO}/blob/{HEAD}/tally/days.py#L12" in body
    assert told.comment == f"https://github.com/{REPO}/pull/{NUMBER}#issuecomment-2"
    (run,) = host.runs.values()
    assert (run["name"], run["head_sha"]) == ("closeloop", HEAD)
    assert (run["status"], run["conclusion"]) == ("completed", "failure")
    assert told.check == run["html_url"]
    assert told.labels == ("risk:high",) == tuple(host.labels)
    assert host.known_labels["risk:high"]["color"] == "d93f0b"


def test_the_same_report_again_changes_nothing(host: FakeGitHub):
    tell(host)
    before = len(host.changes())
    tell(host)
    assert len(host.changes()) == before


def test_the_comment_is_kept_up_to_date_in_place(host: FakeGitHub):
    first = tell(host)
    second = tell(host, replace(BAD, reasons=("Something new.",)))
    assert first.comment == second.comment
    (body,) = host.bodies()
    assert "Something new." in body


def test_a_clean_change_begins_no_comment(host: FakeGitHub):
    told = tell(host, CLEAN)
    assert told.comment is None
    assert host.comments == {}
    assert told.labels == ("risk:low",)
    (run,) = host.runs.values()
    assert run["conclusion"] == "success"


def test_a_change_that_became_clean_says_so_where_it_complained(host: FakeGitHub):
    tell(host)
    tell(host, CLEAN)
    (body,) = host.bodies()
    assert "found no problems" in body


def test_comments_of_others_are_left_alone_whatever_they_begin_with(host: FakeGitHub):
    host.write(f"{COMMENT_MARKER}\nmine!", PERSON)
    host.write(f"{COMMENT_MARKER}\nalso mine!", "other[bot]")
    host.write(f"> {COMMENT_MARKER} as was said", BOT)
    tell(host)
    assert host.bodies(PERSON) == [f"{COMMENT_MARKER}\nmine!"]
    assert host.bodies("other[bot]") == [f"{COMMENT_MARKER}\nalso mine!"]
    assert len(host.bodies()) == 2


def test_a_token_that_cannot_tell_its_name_still_finds_its_comment(host: FakeGitHub):
    host.login = None
    host.write(f"{COMMENT_MARKER}\nmine!", PERSON)
    tell(host)
    tell(host, replace(BAD, reasons=("New.",)))
    (body,) = host.bodies()
    assert "New." in body
    assert host.bodies(PERSON) == [f"{COMMENT_MARKER}\nmine!"]


def test_the_comment_is_found_behind_many_others(host: FakeGitHub):
    for number in range(150):
        host.write(f"talk {number}")
    host.write(f"{COMMENT_MARKER}\nold", BOT)
    for number in range(150):
        host.write(f"more talk {number}")
    tell(host)
    (body,) = host.bodies()
    assert "Blocked" in body


def test_pages_that_lie_elsewhere_are_not_asked_for(host: FakeGitHub):
    with serving(FakeGitHub(HEAD)) as evil:
        elsewhere = f'<{evil.address}/steal>; rel="next"'
        page = JSONResponse([], headers={"link": elsewhere})
        host.before.append(("GET .*/comments", lambda: page))
        assert tell(host).notes == ()
        assert evil.asked == []


def test_two_runs_at_once_leave_one_comment(host: FakeGitHub):
    async def go() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(one)

    async def one() -> None:
        async with open_github(REPO, TOKEN, host.address, Clock().pause) as hub:
            await publish_report(hub, PULL, BAD)

    anyio.run(go)
    tell(host)
    assert len(host.bodies()) == 1
    assert host.labels == ["risk:high"]


def test_two_comments_of_ours_become_one(host: FakeGitHub):
    for _ in range(2):
        host.write(f"{COMMENT_MARKER}\nold", BOT)
    tell(host)
    assert [one["id"] for one in host.comments.values()] == [1]


def test_a_comment_that_is_deleted_meanwhile_is_written_anew(host: FakeGitHub):
    host.write(f"{COMMENT_MARKER}\nold", BOT)

    def deleted() -> Any:
        host.comments.clear()
        return answer(404, "Not Found")()

    host.before.append(("PATCH .*/comments/", deleted))
    tell(host)
    assert len(host.bodies()) == 1


def test_an_older_run_does_not_speak_for_a_newer_head(host: FakeGitHub):
    host.head = "c" * 40
    told = tell(host)
    assert host.comments == {}
    assert host.labels == []
    assert len(host.runs) == 1
    assert "newer commits" in " ".join(told.notes)


# Check runs


def test_many_annotations_come_in_batches_of_fifty(host: FakeGitHub):
    tell(host, MANY)
    ((number, run),) = host.runs.items()
    assert len(host.annotations[number]) == 120
    assert run["status"] == "completed"
    assert sum("check-runs" in line for line in host.changes()) == 3


def test_a_run_that_was_cut_off_is_finished_and_not_begun_again(host: FakeGitHub):
    host.before += [("PATCH .*/check-runs/", answer(502))] * 50
    told = tell(host, MANY)
    assert told.check is None
    (run,) = host.runs.values()
    assert run["status"] == "in_progress"
    host.before.clear()
    tell(host, MANY)
    ((number, run),) = host.runs.items()
    assert run["status"] == "completed"
    messages = [note["message"] for note in host.annotations[number]]
    assert messages == [f"m{n}" for n in range(120)]


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_annotations_whose_receipt_was_lost_are_not_sent_twice(host: FakeGitHub, method: str):
    host.after.append((f"{method} .*/check-runs", answer(502)))
    assert tell(host, MANY).notes == ()
    ((number, _),) = host.runs.items()
    assert len(host.annotations[number]) == 120


def test_a_comment_whose_receipt_was_lost_is_not_written_twice(host: FakeGitHub):
    host.after.append(("POST .*/comments", answer(500)))
    assert tell(host).notes == ()
    assert len(host.bodies()) == 1
    assert sum(line.startswith("POST") and "comments" in line for line in host.asked) == 1


def test_another_result_for_the_same_commit_is_another_run(host: FakeGitHub):
    for report in (BAD, CLEAN, BAD):
        tell(host, report)
    conclusions = [run["conclusion"] for run in host.runs.values()]
    assert conclusions == ["failure", "success", "failure"]


def test_a_run_that_was_cut_off_and_found_something_else_is_called_off(host: FakeGitHub):
    host.before += [("PATCH .*/check-runs/", answer(502))] * 50
    tell(host, MANY)
    host.before.clear()
    tell(host, BAD)
    assert [run["conclusion"] for run in host.runs.values()] == ["cancelled", "failure"]


# Labels


def test_only_the_label_of_this_risk_stays(host: FakeGitHub):
    for name in ("risk:low", "bug", "risk:accepted"):
        host.label(name, PERSON)
    tell(host)
    assert sorted(host.labels) == ["bug", "risk:accepted", "risk:high"]


def test_a_label_that_is_there_keeps_its_colour(host: FakeGitHub):
    host.known_labels["risk:high"] = {"name": "risk:high", "color": "123456"}
    tell(host)
    assert host.known_labels["risk:high"]["color"] == "123456"


def test_without_a_risk_no_label_claims_one(host: FakeGitHub):
    host.label("risk:high", BOT)
    assert tell(host, replace(BAD, risk=None)).labels == ()
    assert host.labels == []


def test_a_held_change_is_labelled_and_fails_until_it_is_let_go(host: FakeGitHub):
    risk = Risk(level="critical", reasons=("A schema changes.",))
    tell(host, replace(CLEAN, verdict="block", held=True, risk=risk))
    assert sorted(host.labels) == ["hold", "risk:critical"]
    assert [run["conclusion"] for run in host.runs.values()] == ["failure"]
    tell(host, CLEAN)
    assert host.labels == ["risk:low"]


def test_a_hold_of_a_person_stays(host: FakeGitHub):
    host.label("hold", PERSON)
    tell(host, CLEAN)
    assert sorted(host.labels) == ["hold", "risk:low"]


def test_a_label_that_another_run_makes_first_is_no_trouble(host: FakeGitHub):
    host.before.append(("GET .*/labels/risk", answer(404)))
    host.known_labels["risk:high"] = {"name": "risk:high"}
    assert tell(host).labels == ("risk:high",)
