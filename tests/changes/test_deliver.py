"""From a request to a pull request: checked, mended, documented, and opened once."""

from __future__ import annotations

from pathlib import Path

from delivered_project import (
    CALC,
    DOUBLE,
    FEEDBACK,
    REQUEST,
    WORSE,
    WRONG,
    ask,
    build,
    hosted,
    plant_hooks,
    work_tree,
    writes,
)

from closeloop.store import open_store
from small_project import git


def test_a_request_becomes_a_pull_request_with_its_report_and_its_label(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE))
    mark = plant_hooks(project)
    with hosted(project) as github:
        before = work_tree(project)
        result = ask(project, environ=github.environ)
    assert (result.state, result.cycles, result.reasons) == ("delivered", 0, ())
    assert result.pull is not None
    (pull,) = github.pulls
    assert (pull["title"], pull["base"], pull["draft"]) == (REQUEST, "main", False)
    assert result.pull.url == pull["html_url"]
    assert github.labels == ["risk:low"] == [*result.pull.labels]
    assert f"Attempt-Id: {result.attempt}" in pull["body"].splitlines()
    assert "Unresolved" not in pull["body"]
    assert result.branch is not None
    assert (
        pull["head"]["ref"]
        == result.branch.name
        == f"closeloop/add-double-a-to-calc-py/{result.id}"
    )
    assert git(github.bare, "show", f"{result.branch.name}:calc.py") == DOUBLE
    assert git(project, "rev-parse", result.branch.name).strip() == github.head
    trailers = git(project, "log", "-1", "--format=%(trailers:only)", result.branch.name)
    assert [line.partition(":")[0] for line in trailers.split("\n") if line] == [
        "Task-Id", "Prompt-Version", "Attempt-Id",
    ]  # fmt: skip
    assert work_tree(project) == before
    assert not mark.exists()


def test_what_was_delivered_is_an_attempt_with_cost_report_and_what_the_agent_lacked(
    tmp_path: Path, store_url: str
) -> None:
    project = build(tmp_path / "project", first=writes(DOUBLE), store=store_url)
    result = ask(project)
    with open_store(store_url) as store:
        (row,) = store.list_attempts()
        assert (row.id, row.origin, row.variant_name) == (result.attempt, "production", "worker")
        assert row.task == "add-double-a-to-calc-py"
        assert row.cost == result.cost
        assert row.cost
        (report,) = store.reports.list_reports(10, attempt=row.id)
        assert (report.level, report.title) == ("low", REQUEST)
        (insight,) = store.experiments.list_insights(attempt=row.id)
        assert (insight.type, insight.text) == ("agent_self_feedback", FEEDBACK)
        change = store.load_change(row.id)
        assert change is not None
        assert [file.path for file in change.files] == ["calc.py"]
        assert store.load_attempt(row.id).branch == result.branch.name
        kinds = [event.kind for event in store.events.list_after(0)]
    steps = ["requested", "worked", "checked", "saved", "branched", "ended"]
    assert [kind for kind in kinds if kind != "attempt.ended"] == [f"delivery.{s}" for s in steps]


def test_what_breaks_goes_back_to_the_agent_with_the_output(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(WRONG), fixes=(writes(DOUBLE),))
    with hosted(project) as github:
        result = ask(project, environ=github.environ)
    assert (result.state, result.cycles, result.verdict) == ("delivered", 1, "pass")
    (pull,) = github.pulls
    assert "Fix cycles: 1." in pull["body"]
    assert git(github.bare, "show", f"{result.branch.name}:calc.py") == DOUBLE
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        (row,) = store.list_attempts()
        trace = store.load_trace(row.id)
        assert trace is not None
        assert [event.number for event in trace.events] == [*range(1, len(trace.events) + 1)]
        prompts = [one.text for one in trace.events if getattr(one, "role", "") == "user"]
        assert prompts[0] == REQUEST
        assert any("BEGIN output" in one and "found: - b" in one for one in prompts)
        exchanges = [*store.load_exchanges(row.id)]
        assert [one.number for one in exchanges] == [*range(1, len(exchanges) + 1)]
        assert row.turns == len(exchanges)
        kinds = [one.kind for one in store.events.list_after(0)]
    assert kinds.count("delivery.fixed") == 1
    assert kinds.count("delivery.checked") == 2


def test_what_is_never_mended_is_written_down_after_two_cycles(tmp_path: Path) -> None:
    again = writes(WORSE.replace("* b", "* b "))
    project = build(tmp_path / "project", first=writes(WRONG), fixes=(writes(WORSE), again))
    with hosted(project) as github:
        result = ask(project, environ=github.environ)
    assert (result.state, result.cycles, result.verdict) == ("unresolved", 2, "block")
    (pull,) = github.pulls
    assert "### Unresolved" in pull["body"]
    assert "found: - b" in pull["body"]
    assert "no better" in pull["body"]
    assert git(github.bare, "show", f"{result.branch.name}:calc.py") == WRONG
    assert pull["draft"] is False
    (run,) = github.runs.values()
    assert run["conclusion"] == "failure"


def test_what_was_mended_in_part_is_delivered_with_what_is_left(tmp_path: Path) -> None:
    broken = WRONG.replace("def double", "def twice")
    mended = (writes(WRONG), writes(WRONG))
    project = build(tmp_path / "project", first=writes(broken), fixes=mended)
    with (project / "closeloop.toml").open("a") as file:
        file.write('[check.commands]\ndouble = "! grep twice calc.py"\n')
    result = ask(project)
    assert (result.state, result.cycles) == ("unresolved", 2)
    assert result.branch is not None
    assert git(project, "show", f"{result.branch.name}:calc.py") == WRONG
    assert result.report is not None
    assert [run.name for run in result.report.tools if run.after == "failed"] == ["test"]


def test_a_critical_change_is_a_draft_that_waits_for_a_person(tmp_path: Path) -> None:
    schema = writes("CREATE TABLE a (x TEXT);\n", "schema.sql")
    project = build(tmp_path / "project", first=schema)
    with hosted(project) as github:
        result = ask(project, environ=github.environ)
        assert (result.state, result.risk) == ("held", "critical")
        (pull,) = github.pulls
        assert pull["draft"] is True
        assert "**Blocked:**" in pull["body"]
        assert "Unresolved" not in pull["body"]
        assert result.reasons == ("its risk is critical, which needs a person's approval",)
        assert sorted(github.labels) == ["hold", "risk:critical"]


def test_where_there_are_no_drafts_the_label_holds_it(tmp_path: Path) -> None:
    schema = writes("CREATE TABLE a (x TEXT);\n", "schema.sql")
    project = build(tmp_path / "project", first=schema)
    with hosted(project) as github:
        github.drafts = False
        result = ask(project, environ=github.environ)
    assert result.pull is not None
    assert result.pull.draft is False
    assert "hold" in github.labels
    assert (
        "This repository has no draft pull requests: only the label shows that it is blocked."
        in result.notes
    )


def test_a_hold_can_be_turned_off(tmp_path: Path) -> None:
    schema = writes("CREATE TABLE a (x TEXT);\n", "schema.sql")
    project = build(tmp_path / "project", first=schema)
    with (project / "closeloop.toml").open("a") as file:
        file.write('[check]\nhold_at = "never"\n')
    assert ask(project).state == "delivered"


def test_an_agent_that_changes_nothing_delivers_nothing(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=[{"say": "I would rather not."}])
    result = ask(project)
    assert (result.state, result.branch, result.pull) == ("nothing", None, None)
    assert "changed nothing" in result.reasons[0]
    assert git(project, "branch", "--list", "closeloop/*") == ""


def test_work_of_the_user_that_is_not_committed_is_left_alone(tmp_path: Path) -> None:
    project = build(tmp_path / "project", first=writes(CALC + "# more\n"))
    (project / "calc.py").write_text("# work of the user\n")
    before = work_tree(project)
    ask(project)
    assert work_tree(project) == before
