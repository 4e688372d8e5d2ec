"""A repository has one name, whichever address a clone was made from."""

from __future__ import annotations

import pytest

from closeloop.text.wording import repository_name, truncate_at_word


@pytest.mark.parametrize(
    "address",
    [
        "https://github.com/ann/tally",
        "https://github.com/ann/tally.git",
        "https://token@github.com/ann/tally.git/",
        "ssh://git@github.com:22/ann/tally.git",
        "git@github.com:ann/tally.git",
        "ann/tally",
    ],
)
def test_every_address_of_a_repository_has_one_name(address: str) -> None:
    assert repository_name(address) == "ann/tally"


@pytest.mark.parametrize("path", ["/home/ann/tally", "tally", ".", "", "https://github.com/"])
def test_what_is_no_address_stays_as_it_is(path: str) -> None:
    assert repository_name(path) == path


def test_a_text_is_cut_between_two_words() -> None:
    assert truncate_at_word("It does not say what was asked for", 24) == "It does not say what…"
    assert truncate_at_word("It says  so", 11) == "It says so"
    assert truncate_at_word("x" * 30, 24) == "x" * 23 + "…"
    assert truncate_at_word("so it goes on…", 20) == "so it goes on…"
