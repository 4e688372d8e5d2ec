"""A repository has one name, whichever address a clone was made from."""

from __future__ import annotations

import pytest

from closeloop.text.wording import repository_name


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
