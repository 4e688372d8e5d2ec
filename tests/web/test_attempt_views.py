"""What the page of one attempt shows besides its events, and what can be done from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from dashboard_store import BARE, HOSTILE, LONG, PASSED, SEALED, SPIRAL, START, fill
from msgspec.structs import replace
from starlette.testclient import TestClient

from closeloop.judges.judge_calibration import Verdicts, calibrate_judge
from closeloop.records.attempt import Usage
from closeloop.records.evaluation import HumanLabel
from closeloop.records.finding import Finding
from closeloop.records.trace import (
    Command,
    Edit,
    Lane,
    Message,
    Note,
    Thought,
    ToolUse,
    Trace,
    Turn,
)
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app
from closeloop.web.diff_view import DiffFile, DiffLine, colour_diff, diff_from_edit, pair_lines
from closeloop.web.event_views import (
    add_worst_finding,
    build_event_fragment,
    build_minimap,
    count_tools,
    describe_event_parts,
    find_moments,
    mark_findings,
)
from closeloop.web.page import PageContext
from closeloop.web.render import format_clock

HERE = "http://127.0.0.1:4318"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        fill(opened)
        yield opened


@pytest.fixture(scope="module")
def client(store: Store) -> Iterator[TestClient]:
    desk = PageContext(store)
    desk.metric_cache.patience = None
    desk.user = "ann"
    with TestClient(build_web_app(store, token=None, page_context=desk), base_url=HERE) as opened:
        yield opened


def send(client: TestClient, path: str, form: dict[str, str], **headers: str) -> Any:
    """As a browser does from our own page."""
    token = re.search(r'X-CSRF-Token": "(\w+)"', client.get("/attempts").text)
    assert token is not None
    return client.post(
        path,
        data={"csrf": token[1], **form},
        headers={"origin": HERE, **headers},
        follow_redirects=False,
    )


def test_a_thumb_becomes_a_score_and_counts_in_the_precision_of_its_rule(
    client: TestClient, store: Store
) -> None:
    view = client.get(f"/api/attempts/{SPIRAL}").json()
    spiral = next(one for one in view["findings"] if one["rule"] == "spiral")
    event = str(spiral["events"][0])
    path = f"/attempts/{SPIRAL}/findings"
    answer = send(client, path, {"rule": "spiral", "event": event, "verdict": "right"})
    assert answer.status_code == 303
    part = send(
        client,
        path,
        {"rule": "spiral", "event": event, "verdict": "wrong"},
        **{"hx-request": "true"},
    )
    assert "you marked it wrong; press again to undo" in part.text
    given = {one.name: one for one in store.scores.list_scores(SPIRAL)}
    assert (given["right-spiral"].value, given["right-spiral"].by) == (0.0, "ann")
    rules = {one["rule"]["name"]: one for one in client.get("/api/trust").json()["rules"]}
    assert (rules["spiral"]["own"]["hits"], rules["spiral"]["own"]["of"]) == (0, 1)
    assert "0 of 1" in client.get("/rules?q=spiral").text
    assert "right-spiral" in client.get(f"/attempts/{SPIRAL}/scores").text


@pytest.mark.parametrize(
    "form",
    [
        {"rule": "nobody", "event": "1", "verdict": "right"},
        {"rule": "spiral", "event": "999", "verdict": "right"},
        {"rule": "spiral", "event": "x", "verdict": "right"},
        {"rule": "spiral", "event": "1", "verdict": "perhaps"},
        {},
    ],
)
def test_votes_on_what_was_not_found_are_refused(client: TestClient, form: dict[str, str]) -> None:
    assert send(client, f"/attempts/{SPIRAL}/findings", form).status_code == 400
    assert send(client, f"/attempts/{SEALED}/findings", form).status_code == 400


def test_a_page_takes_a_score_and_refuses_one_that_is_none(
    client: TestClient, store: Store
) -> None:
    form = {"name": "would-merge", "value": "yes"}
    answer = send(client, f"/attempts/{PASSED}/scores", form)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/attempts/{PASSED}/scores")
    assert [one.by for one in store.scores.list_scores(PASSED)] == ["ann"]
    assert send(client, f"/attempts/{PASSED}/scores", {**form, "value": "7"}).status_code == 400
    pressed = 'value="yes" aria-pressed="true"'
    assert pressed in client.get(f"/attempts/{PASSED}").text
    form["value"] = "no"
    part = send(client, f"/attempts/{PASSED}/scores", form, **{"hx-request": "true"}).text
    assert pressed not in part
    assert 'value="no" aria-pressed="true"' in part


def test_an_attempt_can_be_taken_along_as_a_file(client: TestClient) -> None:
    patch = client.get(f"/attempts/{SPIRAL}/export/patch")
    assert patch.headers["content-disposition"] == f'attachment; filename="{SPIRAL}.patch"'
    assert patch.text.startswith("diff --git")
    for kind in ("jsonl", "atif", "otlp"):
        assert client.get(f"/attempts/{SPIRAL}/export/{kind}").status_code == 200
    for path in (f"{SPIRAL}/export/zip", f"{SEALED}/export/patch", "nobody/export/patch"):
        assert client.get(f"/attempts/{path}").status_code in (400, 404)


def test_a_round_leads_to_its_diff(client: TestClient) -> None:
    lane = client.get(f"/api/attempts/{SPIRAL}/iterations").json()["lanes"][0]
    part = client.get(f"/attempts/{SPIRAL}/round?lane={lane['lane']}&number=1")
    assert 'class="plus"' in part.text
    assert client.get(f"/attempts/{SPIRAL}/round?lane=x&number=1").status_code == 404


def test_how_likely_an_attempt_succeeded_has_reasons(client: TestClient) -> None:
    view = client.get(f"/api/attempts/{SPIRAL}/likely").json()
    assert view["known"] == "fail"
    assert view["session"]["place"] <= view["of"]
    page = client.get(f"/attempts/{SPIRAL}/likely").text
    assert "this attempt is not in the triage list" in page
    assert "/triage" not in page
    speaks = any(reason["effect"] < 0 for reason in view["session"]["reasons"])
    assert ("no sign of failure" in page) != speaks


def test_an_attempt_has_the_place_that_triage_gives_it(client: TestClient) -> None:
    """Graded attempts are estimated too, but not listed."""
    listed = client.get("/api/triage").json()
    places = {one["row"]["id"]: one["session"]["place"] for one in listed["lines"]}
    view = client.get(f"/api/attempts/{LONG}/likely").json()
    assert view["known"] is None
    assert (view["session"]["place"], view["of"]) == (places[LONG], listed["total"])
    assert "in triage order" in client.get(f"/attempts/{LONG}/likely").text


def test_an_empty_tab_names_its_command_as_code(client: TestClient) -> None:
    page = client.get(f"/attempts/{BARE}/tests").text
    assert "<code>closeloop run</code>" in page
    assert "`closeloop run`" not in page


def test_long_traces_have_a_strip_and_short_ones_none(client: TestClient) -> None:
    assert 'class="minimap"' in client.get(f"/attempts/{LONG}").text
    assert 'class="minimap"' not in client.get(f"/attempts/{PASSED}").text


TRACE = Trace(
    reader="made",
    reader_version=1,
    lanes=(
        Lane(
            id="root",
            turns=(
                Turn(
                    usage=Usage(input_tokens=1000, output_tokens=200, cache_read_tokens=5000),
                    model="claude-sonnet-4-5",
                    seconds=3.0,
                ),
            ),
        ),
    ),
    events=(
        Message(number=1, lane="root", role="user", text="Mend it."),
        Message(number=2, lane="root", turn=1, role="agent", text="I will."),
        Command(number=3, lane="root", turn=1, command="pytest", exit_code=1),
        ToolUse(number=4, lane="root", turn=1, name="WebFetch", ok=True),
        Edit(number=5, lane="root", turn=1, path="a.py", before="a\nb", after="a\nc"),
    ),
)


def test_a_step_says_what_it_took_once_with_the_cache_apart_and_the_list_price() -> None:
    """1,000 at $3, 200 at $15 and 5,000 cached at $0.30 a million: $0.0075."""
    steps = [event.step for event in build_event_fragment(TRACE, 0, (), None)]
    assert [step is not None for step in steps] == [False, True, False, False, False]
    step = steps[1]
    assert step is not None
    assert (step.input_tokens, step.cached_tokens, step.output_tokens) == (1000, 5000, 200)
    assert (step.cost, step.is_priced, step.seconds) == (pytest.approx(0.0075), True, 3.0)


def test_tools_are_counted_with_their_failures() -> None:
    counts = {one.name: (one.uses, one.failed) for one in count_tools(TRACE)}
    assert counts == {"shell": (1, 1), "WebFetch": (1, 0), "edit": (1, 0)}
    assert build_minimap(TRACE) == ()


def test_a_mark_of_the_minimap_is_its_worst_event_and_a_finding_before_all() -> None:
    commands = [
        Command(number=number, lane="root", command="make", exit_code=int(number == 30))
        for number in range(1, 361)
    ]
    marks = build_minimap(replace(TRACE, events=tuple(commands)))
    assert [(mark.first, mark.last) for mark in marks[:2]] == [(1, 2), (3, 4)]
    assert [mark.number for mark in marks if mark.kind == "failed"] == [30]
    findings = [
        Finding(rule=rule, version=1, severity="error", message="", events=(number,))
        for rule, number in (("spiral", 30), ("drift", 3), ("standstill", 4), ("gone", 999))
    ]
    found = [mark for mark in mark_findings(marks, findings) if mark.kind == "finding"]
    assert [(mark.number, mark.text) for mark in found] == [(3, "drift"), (30, "spiral")]


def test_an_edit_is_a_diff_of_its_file() -> None:
    edit = TRACE.events[-1]
    assert isinstance(edit, Edit)
    file = diff_from_edit(edit)
    assert file is not None
    assert [(line.kind, line.text) for line in file.lines if line.kind != "hunk"] == [
        ("same", "a"),
        ("minus", "b"),
        ("plus", "c"),
    ]


def diff_file(path: str, *lines: tuple[str, str]) -> DiffFile:
    built = tuple(
        DiffLine(kind=kind, old=None, new=None, text=text)  # type: ignore[arg-type]
        for kind, text in lines
    )
    return DiffFile(
        path=path, old_path=None, status="changed", added=1, removed=1, binary=False, note=None,
        marks=(), lines=built, left_out=0,
    )  # fmt: skip


def test_a_split_diff_sets_what_was_removed_beside_what_was_added() -> None:
    kinds = ("hunk", "same", "minus", "minus", "plus", "same", "plus")
    file = diff_file("a.py", *((kind, kind) for kind in kinds))
    assert pair_lines(file.lines) == [(0, 0), (1, 1), (2, 4), (3, None), (5, 5), (None, 6)]


def test_code_is_coloured_and_what_changed_in_a_line_is_marked() -> None:
    file = diff_file("a.py", ("minus", "return total"), ("plus", "return totals"))
    before, after = colour_diff(file)
    assert str(before) == '<span class="tok-k">return</span> <mark>total</mark>'
    assert str(after) == '<span class="tok-k">return</span> <mark>totals</mark>'
    plain = diff_file("a.unknown", ("plus", "return <b>"))
    assert str(colour_diff(plain)[0]) == "return &lt;b&gt;"


def test_no_code_is_obeyed_however_it_is_coloured() -> None:
    for path in ("a.py", "a.html", "a.md", "a.js", "Makefile"):
        lines = HOSTILE.split("\n")
        file = diff_file(
            path, *(("minus", line) for line in lines), *(("plus", f"{line}!") for line in lines)
        )
        for html in colour_diff(file):
            assert set(re.findall(r"<(/?\w+)", str(html))) <= {"span", "/span", "mark", "/mark"}


def test_a_thumb_can_be_taken_back(client: TestClient, store: Store) -> None:
    view = client.get(f"/api/attempts/{SPIRAL}").json()
    spiral = next(one for one in view["findings"] if one["rule"] == "spiral")
    form = {"rule": "spiral", "event": str(spiral["events"][0])}
    path = f"/attempts/{SPIRAL}/findings"
    send(client, path, {**form, "verdict": "right"})
    part = send(client, path, {**form, "verdict": "none"}, **{"hx-request": "true"})
    assert "you marked it" not in part.text
    given = {one.name: one for one in store.scores.list_scores(SPIRAL)}
    assert given["right-spiral"].value is None
    rules = {one["rule"]["name"]: one for one in client.get("/api/trust").json()["rules"]}
    assert rules["spiral"].get("own") is None


def test_a_long_trace_says_where_to_look_first() -> None:
    quiet = [Thought(number=number, lane="root", text="hm") for number in range(20, 30)]
    trace = Trace(
        reader="r",
        reader_version=1,
        lanes=(Lane(id="root"),),
        events=(
            Message(number=1, lane="root", role="user", text="Mend it.", intent="request"),
            Edit(number=2, lane="root", path="a.py"),
            *(Command(number=n, lane="root", command="pytest", exit_code=1) for n in (3, 4, 5)),
            Message(number=6, lane="root", role="agent", text="All tests pass.", intent="claim"),
            Message(number=7, lane="root", role="user", text="No.", intent="correction"),
            *quiet,
        ),
    )
    found = find_moments(trace)
    assert [(one.number, one.label) for one in found] == [
        (1, "Request"),
        (3, "3 failures in a row"),
        (6, "Claim of success"),
        (7, "First correction by the user"),
    ]
    assert found[2].text == "All tests pass."
    worst = Finding(
        rule="false-claim", version=1, severity="error", message="It fails.", events=(6,)
    )
    mild = Finding(rule="mild", version=1, severity="info", message="Well.", events=(2,))
    assert add_worst_finding(found, (mild, worst))[2].label == "Finding: false-claim"
    assert find_moments(replace(trace, events=trace.events[:7])) == ()


REJECTED = "The user doesn't want to proceed with this tool use."


def test_searches_without_a_match_and_doubts_are_no_failures_and_no_claims() -> None:
    """Nor are a command to the client, and what was stopped before it began, what one looks for."""
    trace = Trace(
        reader="r",
        reader_version=1,
        lanes=(Lane(id="root"),),
        events=(
            Message(number=1, lane="root", role="user", text="/mode"),
            Message(number=2, lane="root", role="user", text="Stop.", intent="interrupt"),
            Message(number=3, lane="root", role="user", text="Mend it.", intent="request"),
            *(
                Command(number=n, lane="root", command=f"grep -n x{n} a.py | head", exit_code=1)
                for n in range(4, 10)
            ),
            Edit(number=10, lane="root", path="a.py", ok=False, error=REJECTED),
            Message(number=11, lane="root", role="user", text=REJECTED, intent="correction"),
            Command(number=12, lane="root", command="pytest", exit_code=1),
            Message(number=13, lane="root", role="agent", text="It may be y?", intent="claim"),
        ),
    )
    assert [(one.number, one.label) for one in find_moments(trace)] == [
        (3, "Request"),
        (12, "First failure"),
        (13, "Last message of the agent"),
    ]


def test_what_a_user_ran_in_the_terminal_is_shown_as_output() -> None:
    note = Note(
        number=1, lane="root", about="user command", text="<bash-stdout>a  b\n| c</bash-stdout>"
    )
    assert describe_event_parts(note)[-1] == [("output", "a  b\n| c")]


def test_an_evaluation_says_how_far_its_judge_is_to_be_believed() -> None:
    with open_store(":memory:") as opened:
        fill(opened)
        client = TestClient(build_web_app(opened, token=None), base_url=HERE)
        page = f"/attempts/{SPIRAL}/evaluations"
        assert "It was never compared with people." in client.get(page).text
        judge = opened.judged.list_judge_versions()[0]
        labels = [
            HumanLabel(item=str(n), rubric=judge.rubric, label="pass", person="ann")
            for n in range(4)
        ]
        verdicts: Verdicts = {(str(n), "overall"): "pass" if n else "fail" for n in range(4)}
        opened.judged.save_calibration(calibrate_judge(judge, labels, verdicts, START))
        assert "It agrees with people on 75 % of 4 labelled items." in client.get(page).text


def test_times_of_a_trace_count_from_the_start_of_the_work() -> None:
    """Not from a note that is an hour older; what is older has no time."""
    times = (-3600, 0, 116)
    trace = replace(
        TRACE,
        events=tuple(
            replace(event, at=START + timedelta(seconds=seconds))
            for event, seconds in zip(TRACE.events, times, strict=False)
        ),
    )
    events = build_event_fragment(trace, 0, (), START)
    assert [event.elapsed for event in events] == [None, 0.0, 116.0]
    shown = [format_clock(seconds) for seconds in (8.24, 59.6, 116, 43_500, 100_000)]
    assert shown == ["8.2 s", "1:00", "1:56", "12:05:00", "1 d 3 h"]
