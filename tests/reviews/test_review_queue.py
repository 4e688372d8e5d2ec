"""The review queue: who gets what, what is asked, and what becomes of the answers."""

from __future__ import annotations

import io
import json
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from team import AGENTS, REPO, day, learned, pull_request

from closeloop.cli import main
from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.change import Change, FileChange
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import HumanLabel
from closeloop.records.experiment_plan import AttemptResult, Trial, TrialAssignment
from closeloop.records.pull_request import CiCheck, Fact, PullDescription, Push
from closeloop.records.settings import ReviewSettings, Settings
from closeloop.records.task import Task, Variant
from closeloop.records.team_rules import HumanReview
from closeloop.reviews.pull_lifecycle import refresh_pull, save_facts
from closeloop.reviews.review_queue import (
    ReviewQueue,
    assign_reviewer,
    list_pulls_awaiting_change,
    load_review_item,
    needs_two_reviews,
    next_item,
    queue_status,
    save_draft,
    submit_review,
)
from closeloop.reviews.rule_learning import LearningSummary
from closeloop.store import Store, open_store
from closeloop.text.patches import parse_patch

PATCH = """diff --git a/shop.py b/shop.py
--- a/shop.py
+++ b/shop.py
@@ -1 +1 @@
-price = 1
+price = 2
"""
SINGLE = Settings(review=ReviewSettings(double=0.0, golden=0.0))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / ".closeloop" / "closeloop.db"))


def queue_of(store: Store, settings: Settings = SINGLE) -> ReviewQueue:
    return ReviewQueue(store=store, settings=settings, agents=AGENTS)


def attempt(store: Store, name: str, outcome: str = "pass", **facts: object) -> None:
    """An attempt of the variant `secret-variant` at a task, graded."""
    task = Task(id="net-price", prompt="Round half a cent up.", scope=("src/**",), digest="t1")
    store.save_task(task)
    store.save_variant(Variant(name="secret-variant", agent="secret-agent", digest="v1"))
    files = (FileChange(path="src/shop.py", status="changed", added=1),)
    store.save_attempt(
        AttemptResult(
            attempt=Attempt(
                id=name,
                origin="experiment",
                task="net-price",
                task_digest="t1",
                variant="v1",
                exit="finished",
                started=day(int(name[-1], 16)),
            ),
            change=Change(files=files, patch="+x = 1\n"),
        )
    )
    result = Outcome(result=outcome)
    store.save_grade(Grade(attempt=name, grading="g", version=1, outcome=result, **facts))


def answers(name: str, reviewer: str = "ann", **said: object) -> HumanReview:
    known = {"contained": True, "outside": "none", "approach": True, "merge": True}
    return HumanReview(item=name, reviewer=reviewer, at=day(9), **{**known, **said})


def test_a_secret_in_the_notes_is_not_kept_while_they_are_written_either(store):
    attempt(store, "a1")
    token = "ghp_aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0cF1bD2"
    save_draft(queue_of(store), answers("a1", notes=f"Use {token}", state="draft"))
    (draft,) = store.reviews.list_reviews()
    assert (draft.item, draft.notes) == ("a1", "Use [redacted: github-token]")


def test_what_fails_its_checks_is_put_before_nobody(store):
    attempt(store, "a1", "fail")
    sha = "c0ffee" * 7
    for number, result in ((1, "failed"), (2, "running"), (3, "passed")):
        pull_request(store, number, day(0))
        whats = (
            PullDescription(
                title="T", author="robot", branch=f"agent/{number}", opened=day(0), head=sha
            ),
            Push(after=sha, at=day(0)),
            CiCheck(sha=sha, name="ci", result=result, at=day(1)),
        )
        facts = [
            Fact(source="github", repo=REPO, pull=number, sha=sha, at=day(1), key=key, what=what)
            for key, what in zip((f"{number}d", f"{number}p", f"{number}c"), whats, strict=True)
        ]
        save_facts(facts, store, AGENTS)
        assert store.pulls.load_pull(REPO, number).last_push == result
    queue = queue_of(store)
    assert next_item(queue, "ann", day(9)) is None
    assert list_pulls_awaiting_change(store) == [f"{REPO}#3"]
    assert queue_status(queue, "ann", day(9)).without_change == 1
    store.pulls.save_change(REPO, 3, sha, parse_patch(PATCH), day(2))
    refresh_pull(REPO, 3, store, AGENTS)
    item = next_item(queue, "ann", day(9))
    assert (item.id, item.output.files) == (f"{REPO}#3", ("shop.py",))
    assert "+price = 2" in item.output.patch
    assert next_item(queue, "bob", day(9)) is None


def test_attempts_at_held_out_tasks_are_shown_to_nobody(store):
    attempt(store, "a1")
    sealed = Task(id="net-price", prompt="Round half a cent up.", digest="t1", split="held-out")
    store.save_task(sealed)
    queue = queue_of(store)
    assert next_item(queue, "ann", day(9)) is None
    with pytest.raises(BadInput, match="stays sealed"):
        load_review_item(queue, "a1")


def test_nothing_of_an_item_tells_which_variant_made_it(store):
    attempt(store, "a1", out_of_scope=("README.md",))
    shown = next_item(queue_of(store), "ann", day(9))
    assert shown.blind
    assert shown.outside == ("README.md",)
    assert shown.suggested == ("scope creep",)
    assert "secret" not in str(shown)


def test_a_pull_request_of_a_trial_is_shown_without_the_page_that_names_its_author(store):
    pull_request(store, 1, day(0))
    store.trials.start_trial(
        Trial(name="t", shares={"a": 0.5, "b": 0.5}, metric="m", started=day(0))
    )
    store.trials.save_assignment(TrialAssignment(trial="t", key="agent/1", variant="a", at=day(0)))
    shown = load_review_item(queue_of(store), f"{REPO}#1")
    assert (shown.blind, shown.url) == (True, None)
    assert "robot" not in str(shown)


def test_what_reviewers_said_of_a_pull_request_suggests_tags(store):
    pull_request(store, 1, day(0), "This method does not exist in our version.", "Out of scope.")
    learned(store)
    shown = load_review_item(queue_of(store), f"{REPO}#1")
    assert shown.suggested == ("hallucinated API", "scope creep")


def test_an_item_goes_to_one_person_until_a_day_has_passed(store):
    attempt(store, "a1")
    queue = queue_of(store)
    assert next_item(queue, "ann", day(9)).id == "a1"
    assert next_item(queue, "ann", day(9)).id == "a1", "it is still hers"
    assert next_item(queue, "bob", day(9)) is None
    assert next_item(queue, "bob", day(9) + timedelta(hours=25)).id == "a1"


def test_a_share_is_looked_at_by_two_people_and_by_no_third(store):
    policy = ReviewSettings(double=0.5, golden=0.0, seed=3)
    names = [f"{number:x}a{number % 16:x}" for number in range(16)]
    for name in names:
        attempt(store, name)
    queue = queue_of(store, Settings(review=policy))
    seen: dict[str, list[str]] = {}
    for who in ("ann", "bob", "cem"):
        while (found := next_item(queue, who, day(9))) is not None:
            seen.setdefault(found.id, []).append(who)
            submit_review(queue, answers(found.id, who))
    assert {name: len(who) for name, who in seen.items()} == {
        name: 2 if needs_two_reviews(name, policy) else 1 for name in names
    }
    assert 2 <= sum(needs_two_reviews(name, policy) for name in names) <= 14


def test_golden_items_are_mixed_in_and_look_like_any_other(store):
    for number in range(1, 9):
        attempt(store, f"a{number}")
    attempt(store, "b9")
    rubric = SINGLE.judge.rubric
    store.judged.save_labels(
        [HumanLabel(item="b9", rubric=rubric, label="fail", person="truth", golden=True)]
    )
    queue = queue_of(store, Settings(review=ReviewSettings(double=0.0, golden=0.4)))
    order = []
    while (found := next_item(queue, "ann", day(9))) is not None:
        order.append(found.id)
        assert "golden" not in str(found)
        submit_review(queue, answers(found.id))
    assert "b9" in order
    assert sorted(order) == sorted({*order})


def test_a_named_reviewer_gets_the_item_and_nobody_else(store):
    attempt(store, "a1")
    attempt(store, "a2")
    queue = queue_of(store)
    assign_reviewer(queue, "a1", "bob", day(8))
    assert next_item(queue, "ann", day(9)).id == "a2"
    assert next_item(queue, "bob", day(9)).id == "a1"


def test_answers_are_labels_and_notes_are_corrections(store):
    attempt(store, "a1")
    queue = queue_of(store)
    degrees = {"quality": "no", "relevance": "partly"}
    notes = "This duplicates our helper."
    submit_review(queue, answers("a1", merge=False, notes=notes, dimensions=degrees))
    labels = store.judged.list_labels(SINGLE.judge.rubric)
    assert {(one.asked, one.label) for one in labels} == {("overall", "fail"), ("quality", "fail")}
    (correction,) = store.memory.list_corrections()
    assert correction.suggested == ("context blindness",)
    assert correction.attempt == "a1"
    assert [event.kind for event in store.events.list_after(0)][-1] == "review.answered"


def test_a_note_is_learned_from_once_and_again_when_it_is_changed(store):
    attempt(store, "a1")
    queue = queue_of(store)
    submit_review(
        queue, answers("a1", merge=False, notes="Use the project's logger instead of print.")
    )
    assert learned(store).proposed == 1
    assert learned(store) == LearningSummary()
    submit_review(
        queue, answers("a1", merge=False, notes="Keep functions under fifty lines, please.")
    )
    assert learned(store).proposed == 1
    assert len(store.memory.list_rules()) == 2


@pytest.mark.parametrize("missing", ["contained", "outside", "approach", "merge"])
def test_a_question_left_open_is_bad_input(store, missing):
    attempt(store, "a1")
    with pytest.raises(BadInput):
        submit_review(queue_of(store), answers("a1", **{missing: None}))


def test_the_queue_says_how_much_is_left(store):
    attempt(store, "a1")
    attempt(store, "a2")
    submit_review(queue_of(store), answers("a1"))
    found = queue_status(queue_of(store), "ann", day(9))
    assert (found.items, found.reviewed, found.mine) == (2, 1, 1)


# At the keyboard


@pytest.fixture
def project(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "closeloop.toml").write_text("[review]\ndouble = 0.0\ngolden = 0.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    attempt(store, "a1", out_of_scope=("README.md",))
    return tmp_path


def typed(monkeypatch: pytest.MonkeyPatch, keys: str, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{key}\n" for key in keys.split(" "))))
    with pytest.raises(SystemExit) as left:
        main(["review", "--reviewer", "ann", *arguments])
    return left.value.code


def test_the_three_questions_and_the_verdict_are_answered_by_keys(
    store, project, monkeypatch, capsys
):
    assert typed(monkeypatch, "d y n b y y n p y  2  Too_much", "a1") == 0
    said = capsys.readouterr().out
    for question in ("intended scope?", "changed correctly?", "team would take?", "Merge it?"):
        assert question in said
    assert "+x = 1" in said
    (kept,) = store.reviews.list_reviews()
    assert (kept.state, kept.contained, kept.outside, kept.approach) == ("done", True, "yes", True)
    assert kept.merge is False
    assert kept.dimensions == {"completeness": "partly", "quality": "yes"}
    assert kept.tags == ("instruction drift", "scope creep")
    assert kept.notes == "Too_much"


def test_one_can_go_back_and_see_the_diff_from_the_tags_too(store, project, monkeypatch, capsys):
    assert typed(monkeypatch, "y n y y y y y d b n  Fine", "a1") == 0
    assert "+x = 1" in capsys.readouterr().out
    (kept,) = store.reviews.list_reviews()
    assert (kept.dimensions["relevance"], kept.notes) == ("no", "Fine")


def test_quitting_keeps_the_answers_and_the_same_command_goes_on(
    store, project, monkeypatch, capsys
):
    typed(monkeypatch, "y n q")
    (draft,) = store.reviews.list_reviews()
    assert (draft.state, draft.contained, draft.outside) == ("draft", True, "no")
    capsys.readouterr()
    typed(monkeypatch, "n y y y y  ")
    said = capsys.readouterr().out
    assert "You have already answered 2 of 7." in said
    assert "intended scope?" not in said
    (kept,) = store.reviews.list_reviews()
    assert (kept.state, kept.outside, kept.approach, kept.merge) == ("done", "no", False, True)
    assert "The review queue is empty." in said


def test_answers_count_until_all_of_them_are_given_anew(store, project, monkeypatch, capsys):
    typed(monkeypatch, "y n y y y y y  ", "a1")
    capsys.readouterr()
    typed(monkeypatch, "n q", "a1")
    assert "Your earlier answers still count." in capsys.readouterr().out
    (kept,) = store.reviews.list_reviews()
    assert (kept.state, kept.contained, kept.merge) == ("done", True, True)
    typed(monkeypatch, "n n n n y y y  ", "a1")
    (kept,) = store.reviews.list_reviews()
    assert (kept.state, kept.contained, kept.merge) == ("done", False, False)


def test_the_end_of_the_input_is_a_quit(store, project, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(SystemExit) as left:
        main(["review", "--reviewer", "ann"])
    assert left.value.code == 0
    assert store.reviews.list_reviews() == []


def test_programs_get_the_item_and_send_the_answers(store, project, monkeypatch, capsys):
    typed(monkeypatch, "", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert shown["id"] == "a1"
    given = {"contained": True, "outside": "yes", "approach": True, "merge": True}
    (project / "answers.json").write_text(json.dumps(given))
    assert typed(monkeypatch, "", "a1", "--answers", "answers.json") == 0
    assert store.reviews.list_reviews()[0].merge is True
    (project / "answers.json").write_text('{"merge": "perhaps"}')
    assert typed(monkeypatch, "", "a1", "--answers", "answers.json") == 2
    (project / "answers.json").write_text("[" * 5000)
    assert typed(monkeypatch, "", "a1", "--answers", "answers.json") == 2


def test_what_came_of_a_task_that_was_held_out_later_holds_nobody_up(store):
    attempt(store, "a1")
    sha = "c0ffee" * 7
    described = PullDescription(
        title="T", author="robot", branch="closeloop/net-price/a1", opened=day(0), head=sha
    )
    fact = Fact(source="github", repo=REPO, pull=1, sha=sha, at=day(1), key="1d", what=described)
    save_facts([fact], store, AGENTS)
    known = {"rubric": SINGLE.judge.rubric, "asked": "overall", "label": "pass", "golden": True}
    store.judged.save_labels([HumanLabel(item="a1", person="ann", at=day(1), **known)])
    golden = Settings(review=ReviewSettings(double=0.0, golden=1.0))
    assert store.pulls.load_pull(REPO, 1).attempt == "a1"
    assert next_item(queue_of(store), "ann", day(9)) is not None
    task = Task(id="net-price", prompt="Round half a cent up.", digest="t1", split="held-out")
    store.save_task(task)
    for settings in (SINGLE, golden):
        assert next_item(queue_of(store, settings), "bob", day(9)) is None
