"""Every remark, edit, revert and fix on an agent's work is a correction, with suggested tags."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from team import REPO, day

from closeloop.records.pull_request import (
    AuthorshipSign,
    BackReference,
    FileEdit,
    HumanEdit,
    PullRequest,
    Review,
    ReviewComment,
)
from closeloop.reviews.remark_polarity import (
    build_rule_check,
    extract_rule_text,
    is_teaching_remark,
    parse_rule_parts,
)
from closeloop.reviews.review_corrections import list_corrections, suggest_failure_modes

PULL = PullRequest(
    repo=REPO,
    number=7,
    source="github",
    title="Change",
    state="merged",
    opened=day(0),
    told=day(9),
    attempt="a1",
    signs=(AuthorshipSign(kind="branch", value="agent/7"),),
    comments=(
        ReviewComment(id="1", by="ann", body="We already have a helper.", at=day(1), counts=True),
        ReviewComment(id="2", by="ann", body="See there.", at=day(1), counts=True, answers="1"),
        ReviewComment(id="3", by="robot", body="Done, I fixed it.", at=day(1)),
        ReviewComment(id="4", by="ann", body="Gone.", at=day(1), counts=True, deleted=True),
    ),
    reviews=(
        Review(
            id="5", by="bob", state="changes_requested", body="Split it.", at=day(2), counts=True
        ),
        Review(id="6", by="bob", state="approved", body="Nice work.", at=day(3), counts=True),
    ),
    edits=(
        HumanEdit(sha="c1", by="bob", at=day(4), title="Rename", files=(FileEdit(path="a.py"),)),
    ),
    pointers=(BackReference(kind="revert", how="message", by="#9", title="Revert it", at=day(5)),),
)


def test_what_people_did_is_a_correction_each_and_nothing_else_is():
    found = list_corrections(PULL)
    assert [(one.kind, one.by) for one in found] == [
        ("comment", "ann"),
        ("note", "bob"),
        ("edit", "bob"),
        ("revert", None),
    ]
    assert {(one.pull, one.attempt) for one in found} == {(7, "a1")}
    assert found[0].suggested == ("context blindness",)
    assert found[2].path == "a.py"
    assert found[3].suggested == ("silent regression",)
    assert found[3].at == day(5)
    assert [one.id for one in list_corrections(PULL)] == [one.id for one in found]


def test_a_persons_pull_request_corrects_no_agent():
    assert list_corrections(replace(PULL, signs=())) == []


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("There is no such method in this version.", "hallucinated API"),
        ("This is out of scope, please open a separate PR.", "scope creep"),
        ("We have a client for that, reuse it.", "context blindness"),
        ("That is not what the issue asks for; the ticket says otherwise.", "instruction drift"),
        ("This broke the nightly build.", "silent regression"),
    ],
)
def test_words_suggest_failure_modes(text, mode):
    assert mode in suggest_failure_modes(text)


def test_praise_suggests_none():
    assert suggest_failure_modes("Looks good to me, thank you!") == ()


@pytest.mark.parametrize(
    ("said", "rule", "verb", "polarity"),
    [
        ("nit: could you add a type annotation here?", "Add a type annotation here.", "add", "do"),
        ("We should never sleep in tests", "Never sleep in tests.", "sleep", "avoid"),
        ("> old text\n\nPlease avoid global state.", "Avoid global state.", "avoid", "avoid"),
        ("@bot I think we should use httpx instead of requests.", None, "use", "do"),
        ("Let's not add a new dependency.", "Let's not add a new dependency.", "add", "avoid"),
        ("avoid the any type", "Avoid the any type.", "avoid", "avoid"),
        ("Unused import.", "Unused import.", "avoid", "avoid"),
        ("Please add the missing docstring", "Add the missing docstring.", "add", "do"),
    ],
)
def test_a_remark_is_put_into_a_rule_by_patterns(said, rule, verb, polarity):
    text = extract_rule_text(said)
    assert is_teaching_remark(said)
    assert rule is None or text == rule
    found = parse_rule_parts(text)
    assert (found.verb, found.polarity) == (verb, polarity)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("Don't use `print()` here.", r"\bprint\("),
        ("Use `pathlib` instead of `os.path`.", r"\bos\.path\b"),
        ("Never write `# type: ignore`.", r"# type: ignore\b"),
        ("Avoid `$(rm -rf *)`.", r"\$\(rm -rf \*\)"),
        ("Use `pathlib`.", None),
        ("Keep functions short.", None),
    ],
)
def test_a_rule_that_forbids_code_by_name_can_be_checked(text, pattern):
    check = build_rule_check("r", text, ())
    assert (check.text if check else None) == pattern
