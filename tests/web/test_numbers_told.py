"""Numbers and verdicts as people read them: in one way, and true at their edges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec
import pytest
from boards_store import EXPERIMENT, fill_boards
from dashboard_store import SPIRAL, START
from markupsafe import Markup
from starlette.testclient import TestClient

from closeloop.metrics.metric_figures import format_bounds, format_metric_value
from closeloop.metrics.work_summary import UseByDay, UsePoint
from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.estimate import (
    Comparison,
    Estimate,
    Metric,
    MetricValue,
    PairTable,
    VariantComparison,
)
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.task import Experiment, Task, Variant
from closeloop.records.trace import Session, Trace
from closeloop.statistics.rate_comparison import compare_rates
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from closeloop.web.render import format_money, format_percent, format_points, template_environment

Result = Literal["pass", "fail", "unscored"]
COST = Metric(
    name="cost",
    score="cost",
    family="cost",
    kind="mean",
    source="attempt",
    says="Dollars.",
    unit="$",
)


@contextmanager
def shown(store: Store) -> Iterator[TestClient]:
    desk = PageContext(store)
    desk.metric_cache.patience = None
    app = build_web_app(store, token=None, page_context=desk)
    here = "http://127.0.0.1:4318"
    with TestClient(app, base_url=here, headers={"accept": "text/html"}) as client:
        yield client


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        fill_boards(opened)
        yield opened


@pytest.fixture(scope="module")
def client(store: Store) -> Iterator[TestClient]:
    with shown(store) as opened:
        yield opened


def tried(
    store: Store, name: str, task: str, how: Result, trace: Trace | None = None, digest: str = ""
) -> None:
    """A variant of that name, and an attempt of it at a task."""
    digest = digest or name
    store.save_variant(Variant(digest=digest, name=name, agent="builtin"))
    store.save_task(Task(id=task, prompt="Do it.", digest=f"d{task}", grading="g"))
    made = Attempt(
        id=f"{digest}{task}",
        origin="experiment",
        task=task,
        task_digest=f"d{task}",
        variant=digest,
        started=START,
        ended=START,
        exit="finished",
    )
    grade = Grade(attempt=made.id, grading="g", version=1, outcome=Outcome(result=how))
    store.save_attempt(AttemptResult(attempt=made, trace=trace, grade=grade))


def versus(comparison: Comparison) -> VariantComparison:
    return VariantComparison(
        first="old",
        second="new",
        primary="pass rate",
        comparison=comparison,
        words=(),
        table=PairTable(both=0, only_first=0, only_second=0, neither=0),
        tasks=(),
        secondary=(),
        ratios={},
    )


def drawn(macro: str, *given: object) -> str:
    """What a macro says, without its tags."""
    made = template_environment().get_template("figure_macros.html").make_module()
    return " ".join(Markup(getattr(made, macro)(*given)).striptags().split())


@pytest.mark.parametrize(("days", "said"), [(1, "one day, "), (7, "the week of ")])
def test_one_day_is_told_as_a_list_and_not_drawn(days: int, said: str) -> None:
    """A chart over time needs two moments."""
    first, later = datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC)
    points = [
        UsePoint(at=first, name="aider", value=2.0),
        UsePoint(at=first, name="codex", value=7.0),
    ]
    use = UseByDay(days=days, sessions=(), cost={}, tokens=(), since=first, until=later)
    shown = drawn("bars", points, "Sessions by agent", use)
    assert shown == f"All in {said}2026-03-02: 7 codex 2 aider"
    points.append(UsePoint(at=later, name="codex", value=1.0))
    assert "All in" not in drawn("bars", points, "Sessions by agent", use)


def repeats(tasks: int, passed: int, failed: int) -> Mapping[str, Sequence[float]]:
    return {f"t{n}": (1.0,) * passed + (0.0,) * failed for n in range(tasks)}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"t": (1,)}, {"t": (1,)}, "There is not enough data to say whether new or old is better "
         "on this task: pass rate 100 % against 100 %."),
        ({"t": (1,)}, {"u": (1,)}, "There is not enough data to compare new with old."),
        (repeats(9, 3, 0), repeats(9, 0, 3), "old is better than new on these 9 tasks: "
         "pass rate 100 % against 0 %."),
        (repeats(9, 0, 3), repeats(6, 3, 0), "new is better than old on these 6 tasks: "
         "pass rate 100 % against 0 %."),
        (repeats(99, 50, 50), repeats(99, 50, 50), "new and old differ by no more than 5 points "
         "on these 99 tasks: pass rate 50 % against 50 %."),
    ],
)  # fmt: skip
def test_a_verdict_names_the_better_one_first_and_claims_no_more_than_it_knows(
    first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]], said: str
) -> None:
    assert drawn("verdict", versus(compare_rates(first, second))) == said


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (0.1, "rate", "They are 10 points apart (95 % bounds: −57 to +77 points)."),
        (-0.1, "rate", "They are 10 points apart (95 % bounds: −57 to +77 points)."),
        (0.1, "mean", "They are 0.1 min apart (95 % bounds: −0.57 to +0.77 min)."),
    ],
)
def test_bounds_around_nothing_have_their_signs(value: float, kind: str, said: str) -> None:
    """Either side may be ahead: 57 to 77 points would say that one is for certain."""
    here = Estimate(value=value, low=value - 0.67, high=value + 0.67, n=2, method="m")
    held = Comparison(tasks=2, margin=0.05, first=0.5, second=0.5, here=here,
                      here_word="not enough data")  # fmt: skip
    pair = msgspec.structs.replace(versus(held), kind=kind, unit="min")
    assert drawn("apart", pair).startswith(said)


def test_a_distance_is_never_told_as_negative() -> None:
    held = compare_rates(repeats(9, 3, 0), repeats(9, 0, 3))
    assert re.fullmatch(
        r"They are 100 points apart \(95 % bounds: \d+ to 100 points\)\. "
        r"On similar tasks: \d+ to 100 points\.",
        drawn("apart", versus(held)),
    )
    few = compare_rates(repeats(5, 3, 0), repeats(5, 0, 3))
    assert "Unknown yet for similar tasks." in drawn("apart", versus(few))


def test_what_is_known_to_make_no_difference_elsewhere_is_not_called_unknown() -> None:
    near = Estimate(value=0.02, low=0.004, high=0.036, n=50, method="m")
    far = Estimate(value=0.02, low=-0.01, high=0.05, n=50, method="m")
    held = Comparison(
        tasks=50, margin=0.05, first=0.5, second=0.52, here=near, here_word="better",
        alike=far, alike_word="no difference larger than the margin",
    )  # fmt: skip
    assert drawn("apart", versus(held)) == (
        "They are 2 points apart (95 % bounds: 0.4 to 4 points). "
        "On similar tasks they differ by no more than 5 points."
    )


def test_small_shares_and_differences_are_not_rounded_to_none() -> None:
    shares = (0, 0.0001, 0.004, 0.5, 0.996, 0.99999, 1)
    told = ["0 %", "0.1 %", "0.4 %", "50 %", "99.6 %", "99.9 %", "100 %"]
    assert [format_percent(share) for share in shares] == told
    differences = (0, 0.00001, -0.004, 0.0096, -1)
    told = ["0 points", "+0.1 points", "−0.4 points", "+1 point", "−100 points"]
    assert [format_points(share, signed=True) for share in differences] == told


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (0, "$0.00"), (0.00001, "< $0.0001"), (0.0042, "$0.0042"), (0.01, "$0.01"),
        (0.0125, "$0.0125"), (0.1, "$0.10"), (1234.5, "$1,234.50"),
    ],
)  # fmt: skip
def test_lists_and_figures_tell_money_in_one_way(amount: float, said: str) -> None:
    figure = MetricValue(metric="cost", value=amount, low=amount, high=1)
    assert format_money(amount) == format_metric_value(figure, COST) == said
    assert format_bounds(figure, COST) == f"{said}–$1.00"


def test_a_cost_is_the_same_in_every_place(client: TestClient) -> None:
    assert "$0.31" in client.get(f"/experiments/{EXPERIMENT}").text
    for path in ("/", "/attempts", f"/experiments/{EXPERIMENT}"):
        assert set(re.findall(r"\$0\.01\d*", client.get(path).text)) == {"$0.01"}, path


def test_an_experiment_says_when_it_began(client: TestClient) -> None:
    (course,) = client.get("/api/experiments").json()["courses"]
    rows = client.get(f"/api/attempts?experiment={EXPERIMENT}").json()["lines"]
    assert course["begun"] == min(line["row"]["started"] for line in rows)
    began = f'<time datetime="{course["begun"].replace("Z", "+00:00")}"'
    assert client.get("/experiments").text.count(began) == 1
    assert f"<dt>Started</dt><dd>{began}" in client.get(f"/experiments/{EXPERIMENT}").text


def test_an_experiment_without_an_attempt_has_not_begun() -> None:
    with open_store(":memory:") as opened:
        opened.save_experiment(Experiment(id="e", tasks=("d",), variants=("v",)))
        with shown(opened) as client:
            assert "<dt>Started</dt><dd>–</dd>" in client.get("/experiments/e").text


def test_the_only_one_at_work_needs_no_name(client: TestClient) -> None:
    page = client.get(f"/attempts/{SPIRAL}/iterations").text
    assert '<h2 id="lane1">Iterations</h2>' in page


def test_rates_of_variants_are_told_as_shares(client: TestClient) -> None:
    page = client.get("/compare?variants=steady&variants=hasty").text
    table = page[page.index("<h2>How they work</h2>") :]
    cell = '<td class="number"(?: data-label="[^"]*")?>'
    assert re.search(rf"{cell}\d+ %</td>{cell}\d+ %</td>", table)
    assert not re.search(rf"{cell}[+-]?[01]\.\d\d</td>", table)


def test_words_of_the_trade_are_explained_where_they_stand(client: TestClient) -> None:
    page = client.get("/rules").text
    assert "A rule that gates can fail a build" in page
    assert "on public sessions from findings that were read one by one" in page
    page = client.get("/review").text
    assert ">blind</span>" in page
    assert "<span>the variant is hidden</span>" in page


def test_what_cannot_be_compared_yet_leaves_others_to_choose() -> None:
    with open_store(":memory:") as opened:
        tried(opened, "old", "one", "pass")
        tried(opened, "new", "two", "pass")
        with shown(opened) as client:
            page = client.get("/compare")
            asked = client.get("/compare?variants=old&variants=new")
    assert page.status_code == 200
    assert page.text.count('value="old" selected') == 1
    assert asked.status_code == 200
    assert "They share no task" in asked.text


def test_whoever_has_only_sessions_is_offered_the_agents_with_the_most() -> None:
    with open_store(":memory:") as opened:
        agents = ("codex", "codex", "claude-code", "aider", "aider", "aider")
        for number, agent in enumerate(agents):
            attempt = Attempt(id=f"s{number}", origin="production", exit="finished")
            trace = Trace(reader="r", reader_version=1)
            session = Session(id=attempt.id, agent=agent, trace=trace)
            opened.pulls.save_pull_attempt(attempt, session, "T")
        with shown(opened) as client:
            page = client.get("/compare").text
    assert 'href="/compare?variants=agent%3Aaider&amp;variants=agent%3Acodex"' in page
    assert ">aider (3) and codex (2)</a>" in page


@pytest.mark.parametrize(("days", "offered"), [((1, 10), 2), ((1, 2), 0), ((200, 210), 0)])
def test_times_to_compare_are_offered_where_both_have_work(
    days: tuple[int, int], offered: int
) -> None:
    with open_store(":memory:") as opened:
        for ago in days:
            started = datetime.now(UTC) - timedelta(days=ago)
            attempt = Attempt(
                id=f"s{ago}", origin="production", exit="finished", started=started, ended=started
            )
            trace = Trace(reader="r", reader_version=1)
            session = Session(id=attempt.id, agent="codex", trace=trace)
            opened.pulls.save_pull_attempt(attempt, session, "T")
        with shown(opened) as client:
            choices = client.get("/api/compare").json()["choices"]
            times = [name for one in choices if one["kind"] == "Times" for name, _ in one["names"]]
            assert len(times) == offered
            if times:
                asked = "&".join(f"variants={name}" for name in times)
                assert "matches no attempt" not in client.get(f"/compare?{asked}").text


def test_no_ratio_is_rounded_to_nothing() -> None:
    macros = template_environment().get_template("compare_macros.html").module
    assert str(macros.times(0.00351)) == "0.004"  # type: ignore[attr-defined]
    assert str(macros.times(0.5)) == "0.50"  # type: ignore[attr-defined]


def test_more_repeats_that_came_to_the_same_are_no_difference() -> None:
    with open_store(":memory:") as opened:
        tried(opened, "old", "one", "pass")
        tried(opened, "new", "one", "pass")
        again = Attempt(
            id="again", origin="experiment", task="one", task_digest="done", variant="new",
            number=2, exit="finished",
        )  # fmt: skip
        grade = Grade(attempt="again", grading="g", version=1, outcome=Outcome(result="pass"))
        opened.save_attempt(AttemptResult(attempt=again, grade=grade))
        with shown(opened) as client:
            (line,) = client.get("/api/compare").json()["pairs"][0]["tasks"]
    assert (len(line["first"]), len(line["second"]), line["differs"]) == (1, 2, False)


def test_a_variant_is_listed_although_nothing_of_it_could_be_scored() -> None:
    with open_store(":memory:") as opened:
        tried(opened, "lone", "one", "unscored")
        with shown(opened) as client:
            page = client.get("/").text
    assert "No variant was tried yet" not in page
    assert 'href="/attempts?variant=lone"' in page


def test_what_was_found_is_counted_as_the_list_behind_it_counts(store: Store) -> None:
    with open_store(":memory:") as opened:
        for digest in ("first", "second"):
            tried(opened, "same & <name>", "one", "fail", store.load_trace(SPIRAL), digest)
        with shown(opened) as client:
            found = client.get("/api/overview").json()["numbers"]["found"]
            counts = {one["rule"]: one["attempts"] for one in found}
            link = "/attempts?variant=same+%26+%3Cname%3E&amp;rule=spiral"
            assert client.get("/").text.count(f'href="{link}"') == 1
            listed = client.get(f"/api{link.replace('&amp;', '&')}").json()["lines"]
    assert counts["spiral"] == len(listed) == 2


def test_the_overview_counts_the_newest_version_of_each_variant_as_its_verdict_does() -> None:
    """Before its settings changed, `a` passed all and `b` none; now it is the other way round."""
    with open_store(":memory:") as store:
        for version, good in (("1", "a"), ("2", "b")):
            for name in "ab":
                for task in range(6):
                    how: Result = "pass" if name == good else "fail"
                    tried(store, name, f"t{task}", how, digest=f"{name}{version}")
        store.save_experiment(Experiment(id="e", tasks=("t0",), variants=("a2", "b2")))
        with shown(store) as client:
            view = client.get("/api/overview").json()["numbers"]
            page = client.get("/").text
        cells = {row["name"]: row["cells"][0]["figure"] for row in view["variants"]["rows"]}
        assert {name: (one["value"], one["attempts"]) for name, one in cells.items()} == {
            "a": (0, 6),
            "b": (1, 6),
        }
        assert view["older"] == 12
        assert "12 attempts of older versions not included" in page
        assert "pass rate 100 % against 0 %" in page
