"""Work that no machine checks: blind, side by side, with the team's questions, by single keys."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from team import AGENTS, day

from closeloop.cli import main
from closeloop.records.attempt import AWAITING_REVIEW, Attempt, Grade, Outcome
from closeloop.records.change import Change, FileChange
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import ModelSettings, ReviewSettings, Settings
from closeloop.records.task import Task, Variant
from closeloop.records.team_rules import HumanReview
from closeloop.records.trace import Lane, Message, ToolUse, Trace, Turn
from closeloop.reviews.review_queue import (
    MASK,
    ReviewQueue,
    list_waiting_items,
    load_blind_trace,
    load_review_item,
    make_name_mask,
    next_item,
    submit_review,
)
from closeloop.store import Store, open_store

SINGLE = ReviewSettings(double=0.0, golden=0.0)
VARIANTS = {
    "careful": Variant(
        name="careful", agent="claude-code", model="anthropic/claude-sonnet-4-5", digest="v-careful"
    ),
    "hasty": Variant(name="hasty", agent="codex", model="house", digest="v-hasty"),
}
MODELS = {"house": ModelSettings(provider="openai", model="gpt-5")}
PATCH = "--- a/shop.py\n+++ b/shop.py\n@@ -1 +1,2 @@\n x = 1\n+y = 2  # by Claude\n"
DONE = {"merge": True}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / ".closeloop" / "closeloop.db"))


def queue_of(store: Store, **review: object) -> ReviewQueue:
    settings = Settings(models=MODELS, review=ReviewSettings(double=0.0, golden=0.0, **review))
    return ReviewQueue(store=store, settings=settings, agents=AGENTS)


def left(store: Store, task: str, variant: str, answer: str = "Done.", **given: object) -> str:
    """What a variant left for a prompt; its attempt's id."""
    name = f"{task}-{variant}-{given.get('number', 1)}"
    store.save_task(
        Task(id=task, prompt=f"Do {task}.", digest=f"d-{task}", repo="/r", rubric="Short.")
    )
    store.save_variant(VARIANTS[variant])
    attempt = Attempt(
        id=name,
        origin="experiment",
        task=task,
        task_digest=f"d-{task}",
        variant=VARIANTS[variant].digest,
        summary=answer,
        started=day(len(store.list_attempts())),
        **{"exit": "finished", **given},
    )
    trace = Trace(
        reader="claude-code",
        reader_version=1,
        lanes=(Lane(id="root", agent="claude-code", turns=(Turn(model="claude-sonnet-4-5"),)),),
        events=(
            Message(number=1, lane="root", role="system", text="Be careful."),
            Message(number=2, lane="root", role="agent", text="I, Claude, begin."),
            ToolUse(number=3, lane="root", name="ask", arguments={"of": ["GPT-5", 1]}),
        ),
    )
    change = Change(patch=PATCH, files=(FileChange(path="shop.py", status="changed", added=1),))
    grade = Grade(
        attempt=name,
        grading=f"g-{task}",
        version=1,
        outcome=Outcome(result="unscored", cause=AWAITING_REVIEW),
    )
    store.save_attempt(AttemptResult(attempt=attempt, trace=trace, change=change, grade=grade))
    return name


def answers(item: str, who: str = "ann", **said: object) -> HumanReview:
    return HumanReview(item=item, reviewer=who, at=day(9), **{**DONE, **said})


def test_attempts_at_one_prompt_come_together_in_an_order_that_tells_nothing(store):
    for variant in VARIANTS:
        for number in range(16):
            left(store, f"t{number:02}", variant)
    waiting = list_waiting_items(store)
    tasks = [name.split("-")[0] for name in waiting]
    assert tasks == sorted(tasks)
    firsts = {name.split("-")[1] for name in waiting[::2]}
    assert firsts == {*VARIANTS}, "each variant comes first now and then"


def test_what_others_left_stands_beside_it_without_a_name(store):
    names = {left(store, "fix", variant, "By claude-sonnet-4-5, careful.") for variant in VARIANTS}
    left(store, "fix", "hasty", "Another repeat.", number=2)
    queue = queue_of(store)
    first = next_item(queue, "ann", day(9))
    (other,) = first.others
    assert {first.output.label, other.label} == {"A", "B"}
    assert first.output.answer == f"By {MASK}, {MASK}."
    assert first.output.patch == PATCH.replace("Claude", MASK)
    assert (first.rubric, first.checks, first.blind) == ("Short.", "no automatic check", True)
    submit_review(queue, answers(first.id))
    second = next_item(queue, "ann", day(9))
    assert {first.id, second.id} == names
    assert (second.output, second.others) == (other, (first.output,))
    for secret in ("claude", "codex", "careful", "hasty", "gpt", "sonnet"):
        shown = str(first).replace(first.id, "").lower()
        assert secret not in shown


def test_the_trace_is_shown_without_names_and_without_the_system_prompt(store):
    names = [left(store, "fix", variant) for variant in VARIANTS]
    queue = queue_of(store)
    for label in ("", "A", "B"):
        trace = load_blind_trace(queue, names[0], label)
        assert [event.number for event in trace.events] == [2, 3]
        assert trace.events[0].text == f"I, {MASK}, begin."
        assert trace.events[1].arguments == {"of": [MASK, 1]}
        assert (trace.reader, trace.lanes[0].agent, trace.lanes[0].turns) == ("", None, ())
    with pytest.raises(BadInput, match="no attempt 'C' to compare with"):
        load_blind_trace(queue, names[0], "C")


def test_a_name_that_the_request_or_the_code_uses_is_part_of_the_subject():
    mask = make_name_mask(VARIANTS.values(), MODELS)
    added = "+client = codex()  # Claude\n"
    assert mask.hide_in_patch(added, "Fix it.") == f"+client = {MASK}()  # {MASK}\n"
    assert mask.hide_in_patch(added, "Call codex.") == f"+client = codex()  # {MASK}\n"
    used = f" import codex\n{added}"
    assert mask.hide_in_patch(used, "Fix it.") == f" import codex\n+client = codex()  # {MASK}\n"
    assert mask.hide_in_patch("+careful = 1\n", "") == "+careful = 1\n", "a variant's name is ours"
    for said in ("Claude Code", "GPT-5", "gpt5", "claude sonnet 4.5", "OpenAI", "Codex"):
        assert mask.hide_in_words(f"I am {said}.").replace(MASK, "").strip("I am.") == ""
    for plain in ("encoded", "code", "decodex", "a model", "carefully"):
        assert mask.hide_in_words(plain) == plain


def test_a_file_that_is_called_after_an_agent_is_shown_without_its_name():
    mask = make_name_mask(VARIANTS.values(), MODELS)
    path = ".codex/notes.md"
    patch = f"diff --git a/{path} b/{path}\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+Done.\n"
    hidden = mask.hide_in_patch(patch, "Fix it.")
    assert hidden == patch.replace("codex", MASK)
    assert mask.hide_in_paths([path], patch, "Fix it.") == (f".{MASK}/notes.md",)
    changed = patch.replace("/dev/null", f"a/{path}")
    assert mask.hide_in_patch(changed, "Fix it.") == changed, "it was there before"


def test_nobody_is_asked_about_a_replay(store, monkeypatch):
    first = left(store, "fix", "hasty")
    variant = Variant(name="again", agent="codex", model=f"recorded:{first}", digest="v-again")
    monkeypatch.setitem(VARIANTS, "again", variant)
    replay = left(store, "fix", "again")
    assert list_waiting_items(store) == [first]
    for one in (first, replay):
        assert load_review_item(queue_of(store), one).others == ()


def test_an_answer_to_a_question_that_is_not_asked_is_refused(store):
    item = left(store, "fix", "hasty")
    with pytest.raises(BadInput, match="no question 'contained'"):
        submit_review(queue_of(store), answers(item, contained=True))
    assert store.scores.list_scores(item) == []


def test_short_names_of_variants_are_left_in_words():
    mask = make_name_mask([Variant(name="a", agent="builtin", model="scripted:a.yaml")], {})
    assert mask.hide_in_words("a word by a.yaml") == f"a word by {MASK}"


def test_the_first_question_is_whether_one_would_merge_it(store):
    name = left(store, "fix", "careful")
    asked = load_review_item(queue_of(store), name).questions
    assert [(one.name, one.optional) for one in asked] == [
        ("merge", False),
        ("found-right-files", True),
        ("asked-when-unclear", True),
        ("follows-conventions", True),
        ("completeness", True),
        ("quality", True),
        ("relevance", True),
    ]
    own = queue_of(store, questions={"no-new-dependency": "Does it do without a new dependency?"})
    asked = load_review_item(own, name).questions
    assert [one.name for one in asked][:3] == ["merge", "no-new-dependency", "completeness"]
    submit_review(own, answers(name, answers={"no-new-dependency": "partly"}))
    with pytest.raises(BadInput, match=r"no question 'no-fun' about .*Known: no-new-dependency"):
        submit_review(own, answers(name, answers={"no-fun": "yes"}))


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ({"No fun": "x"}, "must consist of lower-case letters"),
        ({"would-merge": "x"}, "is a built-in question"),
        ({"notes": "x"}, "is a built-in question"),
        ({"fun": " "}, "has no text"),
    ],
)
def test_a_question_of_the_teams_own_needs_a_name_of_its_own(store, question, why):
    name = left(store, "fix", "careful")
    with pytest.raises(BadInput, match=why):
        load_review_item(queue_of(store, questions=question), name)


def test_work_that_did_not_finish_or_left_nothing_is_asked_about_too(store):
    """To leave it out would flatter whoever fails most."""
    name = left(store, "fix", "careful", "", exit="out_of_time", cause="claude-code took 9 h")
    item = load_review_item(queue_of(store), name)
    assert list_waiting_items(store) == [name]
    assert item.output.ended == f"out of time: {MASK} took 9 h"
    assert item.output.answer == ""


def test_answers_become_scores_of_the_person(store):
    name = left(store, "fix", "careful")
    said = answers(
        name,
        merge=False,
        dimensions={"quality": "partly"},
        answers={"follows-conventions": "yes"},
        tags=("scope creep",),
    )
    submit_review(queue_of(store), said)
    found = {one.name: (one.value, one.by) for one in store.scores.list_scores(name)}
    assert {one.source for one in store.scores.list_scores(name)} == {"person"}
    assert found["would-merge"] == (0.0, "ann")
    assert found["quality"] == (0.5, "ann")
    assert found["follows-conventions"] == (1.0, "ann")
    assert found["scope-creep"] == (1.0, "ann")


def test_a_later_answer_of_the_same_person_replaces_the_earlier(store):
    name = left(store, "fix", "careful")
    queue = queue_of(store)
    submit_review(queue, answers(name, merge=False))
    submit_review(queue, answers(name, "bob", merge=False))
    submit_review(queue, answers(name, merge=True))
    kept = {one.reviewer: one.merge for one in store.reviews.list_reviews(item=name)}
    assert kept == {"ann": True, "bob": False}
    scores = [one for one in store.scores.list_scores(name) if one.name == "would-merge"]
    assert {one.by: one.value for one in scores} == {"ann": 1.0, "bob": 0.0}
    labels = {one.person: one.label for one in store.judged.list_labels("code-change")}
    assert labels == {"ann": "pass", "bob": "fail"}


# At the keyboard, and by programs


@pytest.fixture
def project(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "closeloop.toml").write_text("[review]\ndouble = 0.0\ngolden = 0.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    for variant in VARIANTS:
        left(store, "fix", variant, f"The answer of {variant}.")
    return tmp_path


def typed(monkeypatch: pytest.MonkeyPatch, keys: str, *arguments: str, code: int = 0) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{key}\n" for key in keys.split(" "))))
    with pytest.raises(SystemExit) as ended:
        main(["review", "--reviewer", "ann", *arguments])
    assert ended.value.code == code


def test_one_key_says_that_all_is_good(store, project, monkeypatch, capsys):
    typed(monkeypatch, "n p a d t a q")
    said = capsys.readouterr().out
    assert f"The answer of {MASK}." in said
    assert "which you are asked about" in said
    assert f"I, {MASK}, begin." in said
    first, second = sorted(store.reviews.list_reviews(), key=lambda one: one.at)
    assert (first.state, first.merge) == ("done", False)
    assert first.answers == {
        "found-right-files": "partly",
        "asked-when-unclear": "yes",
        "follows-conventions": "yes",
    }
    assert (second.state, second.merge) == ("done", True)
    assert second.dimensions == dict.fromkeys(("completeness", "quality", "relevance"), "yes")
    assert "The review queue is empty." in said


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"mrge": True}, "no field 'mrge'. Did you mean 'merge'?"),
        ({"state": "done"}, "no field 'state'"),
        ({"merge": "perhaps"}, "'merge' must be true or false"),
        ({"merge": 2}, "'merge' must be true or false"),
        ({"outside": "some"}, "'outside' cannot be 'some'"),
        ({"dimensions": {"quality": "great"}}, "'dimensions.quality' cannot be 'great'"),
        ({"dimensions": {"qualty": "yes"}}, "no criterion 'qualty'"),
        ({"answers": {"fun": "yes"}}, "There is no question 'fun'"),
        ({"tags": ["bad luck"]}, "'tags"),
        ({"seconds": -1}, "must be from 0 to 86400"),
        ({"seconds": 1e9}, "must be from 0 to 86400"),
        ({"notes": "x" * 20_001}, "'notes' has more than 20,000 characters"),
        ({"tags": ["scope crep"]}, "'tags[0]' cannot be 'scope crep'. Did you mean 'scope creep'?"),
        ({"item": "nobody"}, "nobody"),
        ({"merge": None}, "A required answer is missing: Would you merge it"),
        (["x"], "must contain one JSON object with answers, or a list"),
        ([], "must contain one JSON object with answers, or a list"),
    ],
)
def test_answers_that_are_not_right_are_refused_in_a_sentence(
    store, project, monkeypatch, capsys, given, why
):
    wrong = {"item": "fix-careful-1", **DONE, **given} if isinstance(given, dict) else given
    right = {"item": "fix-hasty-1", **DONE}
    for content in (wrong, [right, wrong] if isinstance(given, dict) else wrong):
        (project / "answers.json").write_text(json.dumps(content))
        typed(monkeypatch, "", "--answers", "answers.json", code=2)
        said = capsys.readouterr().err.strip()
        assert why in said
        assert len(said.splitlines()) == 1
    assert store.reviews.list_reviews() == []
    assert store.judged.list_labels("code-change") == []


def test_answers_for_several_items_are_saved_together(store, project, monkeypatch):
    given = [
        {"item": "fix-careful-1", "merge": True, "answers": {"follows-conventions": "no"}},
        {"item": "fix-hasty-1", "merge": False},
    ]
    (project / "answers.json").write_text(json.dumps(given))
    typed(monkeypatch, "", "--answers", "answers.json")
    assert {one.item: one.merge for one in store.reviews.list_reviews()} == {
        "fix-careful-1": True,
        "fix-hasty-1": False,
    }
