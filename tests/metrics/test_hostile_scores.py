"""Scores that are forged, malformed or of attempts that do not count: refused, or left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from scripted_work import BOOK, START, add_attempt, add_task, add_variant

from closeloop.metrics import score_columns
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.metrics.report_content import as_html, build_report_content
from closeloop.metrics.score_columns import (
    GivenScore,
    ScoreIntake,
    attach_scores,
    build_catalogue,
    parse_score,
    project_scores,
    read_score_file,
    summarise_scores,
)
from closeloop.metrics.variant_comparison import compare_by_name
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import Evaluations, JudgeVersion
from closeloop.records.protocols import ScoredAttempt
from closeloop.records.score import Score, ScoreDefinition, ScoreSettings
from closeloop.records.settings import ReviewSettings, Settings
from closeloop.records.task import Acceptance, Experiment
from closeloop.store import Store, open_store
from command_line import typed

CATALOGUE = build_catalogue(
    {
        "readability": ScoreSettings(kind="ordinal", low=1, high=5, better="more"),
        "nits": ScoreSettings(kind="count", better="less"),
        "minutes": ScoreSettings(kind="amount", unit="min", better="less"),
        "verdict": ScoreSettings(kind="label", labels=("ship", "fix")),
        "word": ScoreSettings(kind="label"),
    }
)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def give(store: Store, attempt: str, name: str, value: float, by: str = "ann") -> None:
    one = Score(attempt=attempt, name=name, value=value, source="person", by=by, at=START)
    store.scores.add_scores([one])


def intake(by: str = "ann") -> ScoreIntake:
    return ScoreIntake(catalogue=CATALOGUE, source="person", by=by, now=START)


def tried(store: Store, task: str, variant: str = "a", **more: object) -> str:
    made = add_task(store, task, acceptance=Acceptance(), **more)
    return add_attempt(store, made, add_variant(store, variant), None).id


# What is no value


@pytest.mark.parametrize(
    ("name", "written"),
    [
        # On a scale from 1 to 5 a yes would be the worst mark.
        ("readability", "yes"),
        ("readability", True),
        ("nits", "partly"),
        ("nits", False),
        ("minutes", "1_0"),
        ("minutes", "１２"),
        ("minutes", "inf"),
        ("minutes", "1e308"),
        ("minutes", 10**400),
        ("word", True),
        ("word", 1.0),
        ("word", "a\x1b[31mb"),
        ("word", "a\nb"),
        ("word", "x" * 201),
    ],
)
def test_what_is_not_of_the_kind_of_a_score_is_refused(name: str, written: object) -> None:
    with pytest.raises(BadInput):
        parse_score(CATALOGUE.definitions[name], written)


def test_a_yes_is_a_rate_and_zero_has_no_sign() -> None:
    assert parse_score(CATALOGUE.definitions["would-merge"], True) == (1.0, None)
    value, _ = parse_score(CATALOGUE.definitions["would-merge"], "-0.0")
    assert str(value) == "0.0"


@pytest.mark.parametrize("by", [" ", "ev\x1b[31mil", "a\nb", "x" * 201])
def test_who_scores_has_a_name_that_can_be_read(store: Store, by: str) -> None:
    row = GivenScore(attempt=tried(store, "t"), name="quality", value=1, by=by)
    with pytest.raises(BadInput, match="not a valid name for a scorer"):
        intake(by="").read_rows([row], store)


def test_blanks_around_a_name_make_no_other_person(store: Store) -> None:
    row = GivenScore(attempt=tried(store, "t"), name="quality", value=1, by=" ann ")
    assert [one.by for one in intake().read_rows([row], store)] == ["ann"]


# What is no file


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("a.csv", "attempt,name,value,value\nA,quality,0.1,0.9\n", "names a column twice"),
        ("a.csv", 'attempt,name,value,note\nA,quality,1,"open\nA,quality,0,\n', "not valid CSV"),
        ("a.csv", f"attempt,name,value,note\nA,quality,1,{'x' * 140_000}\n", "not valid CSV"),
        ("a.jsonl", "[" * 100_000, "not valid JSON"),
    ],
)
def test_a_malformed_file_is_refused_in_a_sentence(
    tmp_path: Path, file: str, content: str, says: str
) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(BadInput, match=says):
        read_score_file(tmp_path / file)


def test_a_line_of_json_may_hold_any_character(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '\n{"attempt": "A", "name": "quality", "value": 1, "note": "a\u2028b\x85c"}\r\n',
        encoding="utf-8",
        newline="",
    )
    (row,), (line,) = read_score_file(tmp_path / "a.jsonl")
    assert row.note == "a\u2028b\x85c"
    assert line.endswith("a.jsonl, line 2")


def test_the_bad_row_of_a_file_is_named_by_its_line(store: Store, tmp_path: Path) -> None:
    attempt = tried(store, "t")
    file = tmp_path / "a.csv"
    file.write_text(f"attempt,name,value\n{attempt},quality,1\n{attempt},quality,7\n")
    rows, lines = read_score_file(file)
    with pytest.raises(BadInput, match=r"a\.csv, line 3: quality=7 is out of range.*saved\.$"):
        intake().read_rows(rows, store, lines)
    assert store.scores.list_scores(attempt) == []


# Which attempts count


def test_scores_lists_what_metrics_count(store: Store) -> None:
    """Held-out attempts, replays and tries that were made again are in neither."""
    counted = tried(store, "open")
    sealed = tried(store, "sealed", split="held-out")
    replay = add_attempt(
        store,
        add_task(store, "open", acceptance=Acceptance()),
        add_variant(store, "again", model=f"recorded:{counted}"),
        None,
    ).id
    for attempt in (counted, sealed, replay):
        give(store, attempt, "quality", 1)
    give(store, sealed, "nits", 3)
    work = attach_scores(load_attempt_table(store, BOOK), store, CATALOGUE, ["quality"])
    (figure,) = compute_metrics(work, (), ["quality"]).figures
    listed = {
        one.definition.name: (one.attempts, one.coverage)
        for one in summarise_scores(work, store, CATALOGUE)
        if one.last
    }
    assert listed == {"quality": (figure.attempts, figure.coverage)} == {"quality": (1, 1.0)}


def test_a_value_outside_its_range_is_not_known_to_any_number(store: Store) -> None:
    """A program may write one into the store itself, and a range may be declared anew."""
    one, other = tried(store, "one"), tried(store, "other")
    for name in ("would-merge", "quality", "scope-creep"):
        give(store, one, name, 7.0)
        give(store, other, name, 1.0)
    work = attach_scores(load_attempt_table(store, BOOK), store, CATALOGUE)
    found = {figure.metric: figure for figure in compute_metrics(work, ()).figures}
    for name in ("would-merge", "quality", "scope creep"):
        assert (found[name].value, found[name].attempts) == (1.0, 1), name
    assert "1 score of quality outside its range, from 0 to 1, were left out." in work.notes
    as_html(build_report_content(work, ()))


def test_a_comparison_names_the_side_that_nobody_scored(store: Store) -> None:
    give(store, tried(store, "one", "a"), "quality", 1.0)
    tried(store, "one", "b")
    with pytest.raises(BadInput, match=r"^quality is unknown for 'b': add it with"):
        compare_by_name(store, BOOK, ("a", "b"), scores=("quality",), catalogue=CATALOGUE)


def test_a_label_that_nobody_gave_is_not_known_and_another_word_is_refused(store: Store) -> None:
    tried(store, "t")
    work = load_attempt_table(store, BOOK)
    (figure,) = compute_metrics(
        attach_scores(work, store, CATALOGUE, ["verdict"]), (), ["verdict"]
    ).figures
    assert (figure.metric, figure.value, figure.coverage) == ("verdict", None, 0.0)
    with pytest.raises(BadInput, match="shpi"):
        attach_scores(work, store, CATALOGUE, ["verdict=shpi"])


class FickleScorer:
    """A scorer whose next version fails."""

    name = "fickle"
    scores = (ScoreDefinition(name="fickle", kind="count", better="less"),)
    fails = False

    def score_attempt(self, shown: ScoredAttempt) -> Mapping[str, float | str | None]:
        if self.fails:
            raise RuntimeError("no luck")
        return {"fickle": 1}


def test_what_an_older_version_of_a_scorer_said_counts_no_longer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried(store, "t")
    scorer = FickleScorer()
    catalogue = build_catalogue({}, [scorer])

    def value() -> float | None:
        work = attach_scores(load_attempt_table(store, BOOK), store, catalogue, ["fickle"])
        (figure,) = compute_metrics(work, (), ["fickle"]).figures
        return figure.value

    assert value() == 1.0
    monkeypatch.setattr(score_columns, "digest_code", lambda module: "another version")
    scorer.fails = True
    assert value() is None


# What was asked for is told, and what cannot be known is not


def test_what_nothing_tests_has_no_regression_that_could_be_counted(store: Store) -> None:
    """Reviewed and right, but whether it broke something nobody could see: not 0 of 1."""
    give(store, tried(store, "prompt"), "would-merge", 1)
    figures = {
        one.metric: (one.value, one.n)
        for one in compute_metrics(load_attempt_table(store, BOOK), ()).figures
    }
    assert figures["task completion rate"] == (1.0, 1)
    assert figures["regression introduction rate"] == (None, 0)


def test_a_score_that_was_asked_for_is_told_even_where_it_says_what_the_primary_does(
    store: Store,
) -> None:
    for task in ("t1", "t2"):
        for variant, value in (("a", 0.0), ("b", 1.0)):
            attempt = tried(store, task, variant)
            give(store, attempt, "would-merge", value)
            give(store, attempt, "quality", value)
    report = compare_by_name(store, BOOK, ["a", "b"], scores=["would-merge", "quality"])
    (quality,) = [one for one in report.pairs[0].secondary if one.metric == "quality"]
    assert (quality.first, quality.second) == (0.0, 1.0)
    html = as_html(build_report_content(load_attempt_table(store, BOOK), (), report)).decode()
    assert "<code>closeloop compare a b --score would-merge</code>" in html


# Replays, on the command line


def test_a_replay_is_exported_by_name_and_passes_no_gate_and_no_review(tmp_path: Path) -> None:
    (tmp_path / "closeloop.toml").write_text("")
    (tmp_path / ".closeloop").mkdir()
    with open_store(str(tmp_path / ".closeloop/closeloop.db")) as store:
        first = tried(store, "prompt")
        task = add_task(store, "prompt", acceptance=Acceptance())
        variant = add_variant(store, "again", model=f"recorded:{first}")
        replay = add_attempt(store, task, variant, None).id
        for attempt in (first, replay):
            give(store, attempt, "quality", 1)
        experiment = Experiment(id="e1", tasks=(task.digest,), variants=(variant.digest,))
        store.save_experiment(experiment)
    rows = typed(tmp_path, "export", "--table", "scores", replay).stdout.splitlines()
    assert [json.loads(row)["attempt"] for row in rows if '"quality"' in row] == [replay]
    assert f'"attempt":"{replay}"' not in typed(tmp_path, "export", "--table", "scores").stdout
    gated = typed(tmp_path, "gate", "--threshold", "passed=0.5")
    assert (gated.returncode, gated.stdout) == (2, "")
    assert "has no attempts that count" in gated.stderr


# Who may say what


def test_nobody_gives_the_scores_of_a_judge_that_closeloop_asks(store: Store) -> None:
    attempt = tried(store, "t")
    judge = JudgeVersion(
        id="j1", judge="c", rubric="r", rubric_digest="d", prompt="p", model="m", temperature=0.1
    )
    store.judged.save_evaluations(
        Evaluations(judges=(judge,), evaluations=(), passed=False, summary="")
    )
    forged = ScoreIntake(catalogue=CATALOGUE, source="judge", by="eve", now=START)
    row = GivenScore(attempt=attempt, name="would-merge", value=1, by="j1")
    with pytest.raises(BadInput, match="only that command sets its scores"):
        forged.read_rows([row], store)
    assert forged.read_rows([replace(row, by="ours")], store)[0].by == "ours"


def test_a_question_of_reviews_is_declared_as_a_rate_or_not_at_all() -> None:
    asked = ReviewSettings(questions={"has-risk": "Is it risky?"})
    less = Settings(review=asked, scores={"has-risk": ScoreSettings(kind="rate", better="less")})
    assert project_scores(less).definitions["has-risk"].better == "less"
    scale = ScoreSettings(kind="ordinal", low=1, high=5)
    with pytest.raises(BadInput, match="whose answers are a rate"):
        project_scores(Settings(review=asked, scores={"has-risk": scale}))
    with pytest.raises(BadInput, match="whose answers are a rate"):
        project_scores(Settings(scores={"found-right-files": scale}))


def test_a_gate_says_how_few_have_the_score_that_it_asks_for(tried_project: Path) -> None:
    with open_store(str(tried_project / ".closeloop/closeloop.db")) as store:
        for row in store.list_attempts():
            if row.task == "question":
                give(store, row.id, "would-merge", 1)
    done = typed(tried_project, "gate", "--threshold", "would-merge=0.8")
    assert done.returncode == 0
    assert "2 of 3 attempts of 'closer' have no would-merge" in done.stdout


def test_what_a_score_means_is_told_before_anybody_gave_it(tmp_path: Path) -> None:
    (tmp_path / "closeloop.toml").write_text(
        '[scores.nits]\nkind = "count"\nsays = "Small faults."\n'
    )
    for name, says in (("nits", "Small faults."), ("would-merge", "merged as it is")):
        told = typed(tmp_path, "metrics", "--definitions", "--score", name)
        assert (told.returncode, says in told.stdout) == (0, True), told.stderr
