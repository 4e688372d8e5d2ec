"""Seed 003: thirty pull requests of an agent come by webhook, and the numbers are those by hand."""

from __future__ import annotations

import csv
import hmac
import random
import re
from contextlib import closing
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
from github_team import CLAUDE, REPO, Team
from msgspec.structs import replace
from starlette.testclient import TestClient

from closeloop.records.settings import PullSettings, Settings
from closeloop.records.team_rules import HumanReview
from closeloop.reviews import rule_learning
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.review_queue import ReviewQueue, submit_review
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from closeloop.web.webhooks import WebhookConfiguration, WebhookMiddleware
from command_line import typed
from patience import until

SECRET = "the team's secret"
AGENTS = merge_known_agents({})
REMARK = ("src/a/b.py", 3, "Use the shared clock instead of datetime.now().")
WIDE = ["src/a/x.py", "src/b/x.py", "lib/c/x.py"]


def agree(team: Team, number: int, back: bool) -> None:
    """Right at once, reviewed and merged; some are taken back later."""
    team.check(number)
    team.review(number, "bob", "approved")
    sha = team.merge(number)
    if back:
        team.land(f"Revert it\n\nThis reverts commit {sha}.")


def send_back(team: Team, number: int, rounds: int, remark: tuple[str, int, str] = REMARK) -> None:
    """A reviewer asks for changes, the agent makes them, and it is merged."""
    team.check(number)
    for _ in range(rounds):
        team.review(number, "bob", "changes_requested", remark)
        team.push(number, "ann", f"Mend it\n\n{CLAUDE}")
        team.check(number)
    team.review(number, "bob", "approved")
    team.merge(number)


def fix_findings(team: Team, number: int) -> None:
    """A person changes it and approves."""
    team.check(number)
    team.push(number, "bob", "Do it right", files=["src/a/b.py"])
    team.check(number)
    team.review(number, "bob", "approved")
    team.merge(number)


def wave_through(team: Team, number: int, back: bool) -> None:
    """Nobody but its author looks."""
    team.check(number)
    sha = team.merge(number)
    if back:
        team.land(f"Revert it\n\nThis reverts commit {sha}.")


def refuse(team: Team, number: int) -> None:
    """CI fails, changes are asked for, nothing comes, and it is closed."""
    team.check(number, "failure")
    team.review(number, "bob", "changes_requested", REMARK)
    team.close(number)


def merge_unchecked(team: Team, number: int) -> None:
    """Reviewed and merged, and no CI ever said whether it passes."""
    team.review(number, "bob", "approved")
    team.merge(number)


def merge_red(team: Team, number: int) -> None:
    team.check(number, "failure")
    team.review(number, "bob", "approved")
    team.merge(number)


def act_out() -> Team:
    """8 agreed (1 and 2 reverted), 6 sent back (one twice), 4 mended by a person, 5 unreviewed (one
    reverted), 4 refused, 2 without CI, 1 merged red: 30.
    """
    team = Team()
    acts: list[tuple[Any, list[str], tuple[Any, ...]]] = [
        *((agree, ["src/a/b.py"], (number < 2,)) for number in range(8)),
        *((send_back, ["src/a/b.py"], (2 if number == 0 else 1,)) for number in range(6)),
        *((fix_findings, ["src/a/b.py"], ()) for _ in range(4)),
        *((wave_through, ["src/a/b.py"], (number == 0,)) for number in range(5)),
        *((refuse, WIDE, ()) for _ in range(4)),
        *((merge_unchecked, ["src/a/b.py"], ()) for _ in range(2)),
        (merge_red, WIDE[:2], ()),
    ]
    for place, (act, files, given) in enumerate(acts, 1):
        number = team.open("ann", f"Do {place}\n\n{CLAUDE}", branch=f"claude/{place}", files=files)
        act(team, number, *given)
        team.wait(days=1)
    return team


FIRST_REFUSED = 8 + 6 + 4 + 5 + 1

EXPECTED = {
    # Agreed ones, of those of which it is known: not the 5 that nobody reviewed, nor the 2
    # without CI. (Value, n, coverage.)
    "task completion rate": (8 / 23, 23, 23 / 30),
    # Two of the eight were taken back.
    "regression introduction rate": (2 / 8, 8, 1.0),
    # 5 · 1 + 2 of those sent back, 4 mended, 4 refused: 15.
    "review loop count": (15 / 30, 30, 1.0),
    # Three that were taken back touched 1 file, the red one 2, four refused ones 3.
    "blast radius, files": (2.5, 8, 1.0),
    # 26 were merged.
    "merged without review": (5 / 26, 26, 1.0),
    # Agreed and waved through, of all but the 2 without CI.
    "first-try rate": (13 / 28, 28, 28 / 30),
    # Of those sent back, mended or refused, the six that the agent mended itself.
    "after-feedback rate": (6 / 14, 14, None),
    # 120 s of one reviewer, 60 s and 180 s of two.
    "reviewer time": (180.0, 2, 2 / 30),
}


async def accept_nothing(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})


def deliver(store: Store, bodies: list[tuple[str, bytes]], first: int = 0) -> None:
    """Send signed webhooks, numbered from the first, and wait until all are read."""
    secrets = WebhookConfiguration(github=SECRET, gitlab=None, agents=AGENTS)
    with TestClient(WebhookMiddleware(accept_nothing, store, secrets)) as web:
        for place, (event, body) in enumerate(bodies, first):
            signature = hmac.digest(SECRET.encode(), body, "sha256").hex()
            headers = {
                "content-type": "application/json",
                "x-github-event": event,
                "x-github-delivery": f"delivery-{place}",
                "x-hub-signature-256": f"sha256={signature}",
            }
            answer = web.post("/webhooks/github", content=body, headers=headers)
            assert answer.status_code == 202
        assert until(lambda: not store.pulls.list_unread(1))


def answer_reviews(store: Store, team: Team) -> None:
    """What people say of two of them in the review queue."""
    queue = ReviewQueue(store=store, settings=Settings(), agents=AGENTS)
    good = HumanReview(item=f"{REPO}#1", reviewer="bob", at=team.now, contained=True,
                       outside="none", approach=True, merge=True, tags=(),
                       seconds=120.0)  # fmt: skip
    bad = replace(good, item=f"{REPO}#{FIRST_REFUSED}", merge=False, contained=False,
                  outside="no", notes="It rewrote lib/c, too.", seconds=60.0,
                  tags=("scope creep", "context blindness"))  # fmt: skip
    for review in (good, bad, replace(bad, reviewer="eve", seconds=180.0, tags=())):
        submit_review(queue, review)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, shared_store_url: str) -> Path:
    root = tmp_path_factory.mktemp("tally")
    (root / "closeloop.toml").write_text(f"store = '{shared_store_url}'\n")
    team = act_out()
    bodies = team.bodies()
    bodies += bodies[::7]
    random.Random(30).shuffle(bodies)
    with closing(open_store(shared_store_url)) as store:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rule_learning, "LOOK_SECONDS", 0.05)
            patch.setattr(rule_learning, "IDLE_FACTOR", 0)
            deliver(store, bodies)
        answer_reviews(store, team)
    return root


def read_json(project: Path, *words: str) -> Any:
    done = typed(project, *words, "--json")
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout)


def list_pulls(project: Path) -> list[Any]:
    return [row["pull"] for row in read_json(project, "list", "pulls", "--limit", "30")["items"]]


def test_thirty_pull_requests_give_the_numbers_counted_by_hand(project: Path) -> None:
    found = {one["metric"]: one for one in read_json(project, "metrics")["figures"]}
    told = {name: (found[name]["value"], found[name]["n"]) for name in EXPECTED}
    assert told == {name: (pytest.approx(value), n) for name, (value, n, _) in EXPECTED.items()}
    for name, (_, _, coverage) in EXPECTED.items():
        assert coverage is None or found[name]["coverage"] == pytest.approx(coverage), name
    radius = found["blast radius, files"]["more"]
    assert (radius["p90"], radius["worst"]) == (3, 3)


def test_what_people_tagged_is_counted_and_shown(project: Path) -> None:
    """Two were reviewed, one shows scope creep, by a person."""
    report = read_json(project, "metrics", "--score", "scope creep")
    (creep,) = report["figures"]
    assert (creep["value"], creep["n"], creep["more"]) == (0.5, 2, {"person": 1})
    assert creep["coverage"] == pytest.approx(2 / 30)
    listing = list_pulls(project)
    attempt = next(row["attempt"] for row in listing if row["pull"] == FIRST_REFUSED)
    shown = typed(project, "show", attempt)
    assert "scope creep (person): bob says so: It rewrote lib/c, too." in shown.stdout


def test_what_is_not_known_of_an_edit_is_not_told_as_nothing(project: Path) -> None:
    """Webhooks name the files of an edit and not its lines; a revert is told of the one, too."""
    listing = list_pulls(project)
    reverted = next(row for row in listing if row["pointers"])
    edited = next(row for row in listing if row["edits"])
    shown = typed(project, "show", f"{reverted['repo']}#{reverted['pull']}").stdout
    assert "merged, reverted" in shown
    shown = typed(project, "show", f"{edited['repo']}#{edited['pull']}").stdout
    assert "edit by " in shown
    assert "+0" not in shown


def read_first_cells(page: str) -> dict[str, str]:
    """By the name in the first cell of a row, the value in the second; of details, the summary."""
    cells = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page, flags=re.DOTALL):
        texts = [
            re.sub(r"<[^>]+>", " ", (re.findall(r"<summary>(.*?)</summary>", cell) or [cell])[0])
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL)
        ]
        if len(texts) > 1:
            cells.setdefault(" ".join(texts[0].split()), " ".join(texts[1].split()))
    return cells


def test_the_same_numbers_stand_on_the_page_in_the_report_and_in_the_export(
    project: Path, shared_store_url: str
) -> None:
    found = {one["metric"]: one["value"] for one in read_json(project, "metrics")["figures"]}
    files = ("report.csv", "report.md", "report.parquet", "report.html")
    done = typed(project, "report", *files)
    assert done.returncode == 0, done.stderr
    rows = csv.DictReader((project / "report.csv").open(encoding="utf-8"))
    written = {row["metric"]: row["value"] for row in rows if not row["by"]}
    table = pyarrow.parquet.read_table(project / "report.parquet").to_pylist()
    packed = {row["metric"]: row["value"] for row in table if not row["by"]}
    text = (project / "report.md").read_text(encoding="utf-8")
    shown = read_first_cells((project / "report.html").read_text(encoding="utf-8"))
    with closing(open_store(shared_store_url)) as store:
        desk = PageContext(store)
        desk.metric_cache.patience = None
        app = build_web_app(store, token=None, page_context=desk)
        with TestClient(app, base_url="http://127.0.0.1:4318") as web:
            page = web.get("/api/overview").json()["numbers"]["production"]
    on_page = {line["figure"]["metric"]: line["figure"]["value"] for line in page}
    for name in EXPECTED:
        assert float(written[name]) == pytest.approx(found[name]), name
        assert packed[name] == found[name], name
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")][:1]
        assert row.split(" | ")[1] == shown[name], name
    assert {name: found[name] for name in on_page} == on_page
    assert len(on_page) >= 4
    assert "| task completion rate | 35 % |" in text


def test_the_export_has_the_scores_that_the_numbers_are_made_of(project: Path) -> None:
    report = read_json(project, "metrics")
    found = {one["metric"]: one["value"] for one in report["figures"]}
    definitions = {one["name"]: one for one in report["definitions"]}
    done = typed(project, "export", "--table", "scores")
    rows = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    aggregates = {"rate": fmean, "mean": fmean, "median": median}
    for name in EXPECTED:
        score, kind = definitions[name]["score"], definitions[name]["kind"]
        values = [row["value"] for row in rows if row["name"] == score]
        assert aggregates[kind](values) == pytest.approx(found[name]), name


def test_a_team_may_let_unreviewed_merges_count(project: Path) -> None:
    """The five that nobody reviewed are completions then: 13 of 28."""
    settings = (project / "closeloop.toml").read_text()
    (project / "closeloop.toml").write_text(f"{settings}[pulls]\nunreviewed_completes = true\n")
    try:
        (rate,) = read_json(project, "metrics", "--score", "task completion rate")["figures"]
    finally:
        (project / "closeloop.toml").write_text(settings)
    assert (rate["value"], rate["n"]) == (pytest.approx(13 / 28), 28)
    assert PullSettings().unreviewed_completes is False
