"""Rubrics are files; one that could not decide anything is refused with what to mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from closeloop.judges.rubric import digest_rubric, load_rubric, parse_rubric
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import CRITERIA

CHECK = """
[[checks]]
id = "{id}"
criterion = "{criterion}"
question = "Is it?"
yes = "It is."
no = "It is not."
{more}
"""


def rubric(*, head: str = "", more: str = "", skip: str = "") -> bytes:
    checks = [
        CHECK.format(id=f"is-{name}", criterion=name, more=more)
        for name in CRITERIA
        if name != skip
    ]
    return f'name = "mine"\nabout = "Mine."\n{head}\n{"".join(checks)}'.encode()


@pytest.mark.parametrize("name", ["code-change", "analysis", "documentation"])
def test_the_built_in_rubrics_can_be_loaded(name: str) -> None:
    found = load_rubric(name, Path())
    assert found.name == name
    assert (found.pass_at, found.floor) == (0.7, 0.5)


def test_the_one_for_code_asks_what_maintainers_ask() -> None:
    ids = {check.id for check in load_rubric("code-change", Path()).checks}
    dimensions = {"right-files", "asked-when-unclear", "conventions", "would-merge"}
    assert ids >= dimensions | {"like-the-reference"}


def test_a_file_is_read_from_the_folder_and_any_change_is_another_rubric(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(rubric())
    first = load_rubric("mine.toml", tmp_path)
    (tmp_path / "mine.toml").write_bytes(rubric(head="pass_at = 0.8"))
    second = load_rubric("mine.toml", tmp_path)
    assert digest_rubric(first) != digest_rubric(second)
    assert digest_rubric(first) == digest_rubric(parse_rubric(rubric(), "x"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "UTF-8"),
        (b"name = ", "not valid TOML"),
        (b"x = 1", "no field 'x'"),
        (b'name = "a"\nabout = "b"\nchecks = []', "for completeness"),
        (rubric(skip="quality"), "for quality"),
        (rubric(more='needs = "change"'), "for completeness"),
        (rubric(more="weight = 0"), "weight"),
        (rubric(more="weight = nan"), "weight"),
        (rubric(more="weight = inf"), "weight"),
        (rubric(more="colour = 1"), "colour"),
        (rubric(head="pass_at = 7"), "between 0 and 1"),
        (rubric(head="floor = nan"), "between 0 and 1"),
        (rubric().replace(b"is-quality", b"is-completeness"), "two checks"),
        (rubric().replace(b"is-quality", b"Is it?"), "needs an id"),
        (rubric().replace(b'criterion = "quality"', b'criterion = "beauty"'), "beauty"),
        (b"#" * (300 << 10), "too large"),
    ],
)
def test_a_rubric_that_makes_no_sense_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_rubric(content, "mine.toml")


def test_a_name_that_is_not_known_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Did you mean 'analysis'"):
        load_rubric("analysys", tmp_path)
    with pytest.raises(BadInput, match="cannot be read"):
        load_rubric("none.toml", tmp_path)
