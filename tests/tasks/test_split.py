"""Which tasks are held out: kin together, the newest or a share of every kind, always the same."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.records.errors import BadInput
from closeloop.records.task import Acceptance, Task
from closeloop.tasks.task_files import load_task, set_task_field, text_with_field, with_digests
from closeloop.tasks.task_sets import choose_held_out, group_families, task_area

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def patch(path: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"


def task(name: str, **fields: object) -> Task:
    made = Task(id=name, prompt=name, acceptance=Acceptance(run="pytest"), **fields)
    return with_digests(made)


def on_day(day: int) -> datetime:
    return EPOCH + timedelta(days=day)


def test_time_holds_out_the_newest():
    tasks = [task(f"t{day}") for day in range(10)]
    held = choose_held_out(tasks, "time", 0.3, lambda one: on_day(int(one.id[1:])))
    assert {one.id for one in tasks if one.digest in held} == {"t7", "t8", "t9"}


def test_tags_hold_out_a_share_of_every_kind():
    tasks = [
        task(f"{tag}{number}", tags=(tag,), reference=patch(f"src/{place}/x{number}{tag}.py"))
        for tag in ("multi-file", "ambiguous")
        for place in ("billing", "mail")
        for number in range(10)
    ]
    tasks = list({one.id: one for one in tasks}.values())
    held = choose_held_out(tasks, "tags", 0.5, lambda one: None)
    counts = Counter(one.tags[0] for one in tasks if one.digest in held)
    assert counts == {"multi-file": 5, "ambiguous": 5}


def test_what_comes_from_one_commit_stays_together():
    commit = "3f2c1a9b0d4e5f60718293a4b5c6d7e8f9012345"
    kin = [
        task("a", origin=f"git:{commit}"),
        task("b", origin=f"stress scope-creep of task:a git:{commit}"),
        task("c", origin="stress drift of task:b"),
        task("d", origin=f"pull:7 {commit[:12]}"),
    ]
    other = task("e")
    assert sorted(map(len, group_families([*kin, other]))) == [1, 4]


def test_what_has_the_same_reference_stays_together():
    assert (
        len(group_families([task("a", reference=patch("x")), task("b", reference=patch("x"))])) == 1
    )


def test_one_family_cannot_be_split():
    with pytest.raises(BadInput, match="same work"):
        choose_held_out(
            [task("a"), task("b", origin="stress drift of task:a")], "time", 0.5, on_day
        )


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 9)), max_size=30),
    st.floats(0.01, 0.99),
    st.sampled_from(["time", "tags"]),
)
def test_no_family_is_on_both_sides_and_nothing_held_out_comes_back(drawn, share, by):
    tasks = [
        task(
            f"t{number}",
            origin=f"git:{kin:012x}",
            split="held-out" if held else "dev",
            tags=(f"g{day % 3}",),
        )
        for number, (kin, held, day) in enumerate(drawn)
    ]
    days = {one.id: on_day(day) for one, (_, _, day) in zip(tasks, drawn, strict=True)}
    try:
        held = choose_held_out(tasks, by, share, lambda one: days[one.id])
    except BadInput:
        assert len(group_families(tasks)) < 2
        return
    assert all(one.digest in held for one in tasks if one.split == "held-out")
    for family in group_families(tasks):
        assert len({one.digest in held for one in family}) == 1
    assert choose_held_out(tasks, by, share, lambda one: days[one.id]) == held


def test_an_area_is_the_folder_of_most_files():
    assert task_area(task("a", reference=patch("src/billing/deep/x.py"))) == "src/billing"
    assert task_area(task("b", reference=patch("x.py"))) == "."
    assert task_area(task("c")) == "–"


WRITTEN = """---
# why this is here
id: x
tags:
- old
-  other
split: dev   # for now
acceptance:
  run: pytest
---
Do it.

split: not a field
"""


def test_a_field_is_changed_and_the_rest_stays(tmp_path: Path):
    path = tmp_path / "x.md"
    path.write_text(WRITTEN)
    set_task_field(path, "split", "held-out")
    set_task_field(path, "tags", ("multi-file", "silent regression: yes"))
    made = load_task(path, Path.cwd(), lambda repo, revision: "0" * 40)
    assert (made.split, made.tags) == ("held-out", ("multi-file", "silent regression: yes"))
    assert "# why this is here" in path.read_text()
    assert path.read_text().endswith("Do it.\n\nsplit: not a field\n")
    set_task_field(path, "tags", None)
    assert "multi-file" not in path.read_text()
    assert [found.name for found in tmp_path.iterdir()] == ["x.md"]


def test_line_ends_stay_as_they_are():
    edited = text_with_field(WRITTEN.replace("\n", "\r\n"), "split", "held-out", "x.md")
    assert "\n" not in edited.replace("\r\n", "")


def test_what_cannot_be_edited_safely_is_left_to_people():
    with pytest.raises(BadInput, match="closeloop cannot edit"):
        text_with_field('---\n{id: x, "split": dev}\n---\nDo it.\n', "split", "held-out", "x.md")
