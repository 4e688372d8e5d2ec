"""What the user forbids: what can be checked is found, and the rest is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story import story

from closeloop.process.trace_reading import build_reading
from closeloop.process.user_constraints import ALL_TESTS, list_constraints, parse_constraints
from closeloop.records.change import LaneReading


@pytest.mark.parametrize(
    ("text", "kind", "objects"),
    [
        ("Don't touch config.py.", "leave", ("config.py",)),
        ("Fix it, but do not modify the tests.", "leave", (ALL_TESTS,)),
        ("DO NOT MODIFY: setup.cfg, tox.ini", "leave", ("setup.cfg", "tox.ini")),
        ("Never modify:\n- a.py\n- b/c.ts\nThanks", "leave", ("a.py", "b/c.ts")),
        ("Leave src/legacy/ alone.", "leave", ("src/legacy",)),
        ("Fix it without changing `api/v1.py`.", "leave", ("api/v1.py",)),
        ("db/schema.sql is off limits.", "leave", ("db/schema.sql",)),
        ("Do not delete or modify db/data.json.", "leave", ("db/data.json",)),
        ("Don't touch anything in src/legacy/ please.", "leave", ("src/legacy",)),
        ("We should not touch the .env file.", "leave", (".env",)),
        ("Don't remove `old.py`.", "keep", ("old.py",)),
        ("Only change `src/api.py`.", "only", ("src/api.py",)),
        ("Edit only a.py and b.py, please.", "only", ("a.py", "b.py")),
        ("Don't touch anything outside of packages/core.", "only", ("packages/core",)),
        ("Keep your changes within the billing folder.", "only", ("billing",)),
        ("Do not add dependencies.", "dependencies", ()),
        ("No new dependencies please", "dependencies", ()),
        ("Never run git push.", "command", ("git", "push")),
        ("Please never force-push.", "command", ("git", "push", "--force")),
        ("Don't push to main.", "command", ("git", "push", "main")),
        ("Don't commit anything unless I ask.", "command", ("git", "commit")),
        ("You must not run `terraform apply`.", "command", ("terraform", "apply")),
        ("Never run `npm ci`, we need to keep the lock file.", "command", ("npm", "ci")),
        ("Use pnpm, not npm.", "command", ("npm",)),
        ("Keep the signature of `load`.", "signature", ("load",)),
        ("Do not create new files.", "no new files", ()),
        ("Do not edit files.", "no edits", ()),
        ("Don't make any changes yet, first show me a plan.", "no edits", ()),
        ("Use tabs.", "tabs", ()),
        ("Spaces, not tabs!", "spaces", ()),
    ],
)
def test_it_is_found(text: str, kind: str, objects: tuple[str, ...]) -> None:
    assert [(one.kind, one.objects) for one in parse_constraints(text)] == [(kind, objects)]


@pytest.mark.parametrize(
    "text",
    [
        "You don't have to modify the tests.",
        "I don't touch config.py usually.",
        "The old code did not change config.py.",
        "Don't edit a.py if it is generated.",
        "Only change a.py if you must.",
        "Don't change the behaviour.",
        "Update the title, but don't change the branch name.",
        "Why don't we keep it as it is?",
        "```\n# do not edit config.py\n```",
        "> do not edit config.py",
        "<pr_description>Never change models.py by hand.</pr_description>",
        "It works with spaces.",
        "Use spaces around operators.",
        "Add a test for it. Do not modify the tests that are there.",
        "Do not change the behaviour of api.py.",
        "Leave a comment in a.py as it is useful.",
        "Do not move the file to src/new/.",
        "Do not commit to a design yet.",
        "Don't push users to upgrade.",
        "Do not use python 2 syntax.",
        "No packages were found.",
        "Admins can only edit settings.json.",
        "We never change config.py in production.",
        "Scripts that never modify config.py are fine.",
        "Only change frontend and/or backend code.",
        "",
    ],
)
def test_what_is_no_checkable_constraint(text: str) -> None:
    assert parse_constraints(text) == ()


@pytest.mark.parametrize(
    ("text", "is_order"),
    [
        ("Steps:\n1. Reproduce the error.\n2. Edit the code.", True),
        ("1. Look around.\n2. Write a failing test\n3. Then fix it.", True),
        ("Please reproduce the bug before you change anything.", True),
        ("First, reproduce the crash.", True),
        ("Recommended steps:\n1. Reproduce the error.\n2. Edit the code.", False),
        ("1. You could reproduce it.\n2. Fix it.", False),
        ("1. Fix it.\n2. Reproduce the error to see that it is gone.", False),
        ("I could not reproduce it the first time.", False),
        ("Meet the <issue> below.\n1. Reproduce the error.\n2. Edit the code.", True),
        ("<issue>\n1. Reproduce the error.\n2. Edit the code.\n</issue>\nSolve it.", False),
    ],
)
def test_an_order_of_steps_is_a_constraint(text: str, is_order: bool) -> None:
    kinds = [one.kind for one in parse_constraints(text)]
    assert ("reproduce first" in kinds) == is_order


def test_the_client_forbids_nothing() -> None:
    reminder = "<system-reminder>Do not touch config.py.</system-reminder>\nFix it."
    assert parse_constraints(reminder) == ()
    (one,) = parse_constraints(f"{reminder} Don't touch a.py.")
    assert one.objects == ("a.py",)


def test_what_follows_a_quoted_line_is_read() -> None:
    text = "> do not edit config.py\n\nThat is old. Do not touch db/schema.sql."
    assert [one.objects for one in parse_constraints(text)] == [("db/schema.sql",)]
    text = "You wrote:\n> <code>\nNever modify models.py."
    assert [one.objects for one in parse_constraints(text)] == [("models.py",)]


def _said(*texts: str) -> LaneReading:
    return build_reading(story([{"user": text} for text in texts])).lanes["root"]


def test_a_phase_ends_when_the_user_says_go() -> None:
    (one,) = list_constraints(_said("Don't edit files yet, plan first.", "Go ahead."))
    assert (one.passing, one.until) == (True, 2)


def test_it_is_lifted_where_the_user_speaks_of_its_object_again() -> None:
    (one,) = list_constraints(_said("Don't push.", "Looks good.", "Now push it."))
    assert one.until == 3


def test_to_ask_for_tests_lifts_that_they_be_left_alone() -> None:
    (one,) = list_constraints(
        _said("Do not modify the tests.", "Now extend the test for empty rows.")
    )
    assert one.until == 2


def test_to_say_it_again_does_not_lift_it() -> None:
    said = list_constraints(_said("Don't touch config.py.", "I said: don't touch config.py!"))
    assert [one.until for one in said] == [None, None]


@given(st.text(max_size=400))
def test_any_text_can_be_read(text: str) -> None:
    parse_constraints(text)


def test_a_long_hostile_text_takes_no_time() -> None:
    parse_constraints(
        "do not change " + "a/" * 9000 + "\nonly change " + "x " * 9000 + "keep " * 3000
    )
