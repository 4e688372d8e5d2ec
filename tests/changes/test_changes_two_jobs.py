"""two-jobs: a class or module that falls into parts is told once, when it comes to that."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import said, told

from closeloop.changes.quality import two_jobs

CHECKING = """\
    def read(self, task):
        self.rules.append(task)
        self.errors.clear()

    def check(self):
        return [rule for rule in self.rules if rule not in self.errors]

    def explain(self):
        return "; ".join(self.errors) or self.rules
"""
SAVING = """\
    def connect(self):
        self.link = self.address.open()

    def save(self, task):
        self.link.put(self.address, task)

    def load(self, key):
        return self.link.get(self.address, key)
"""
START = "class TaskHandler:\n"
JOINED = SAVING.replace("def save(self, task):", "def save(self, task):\n        self.check()")


def test_a_class_that_checks_and_saves_is_told(tmp_path: Path) -> None:
    after = {"a.py": f"{START}{CHECKING}\n{SAVING}"}
    (one,) = said(two_jobs, tmp_path, {"x.py": "x = 1\n"}, after)
    assert told([one]) == [("info", "a.py:1")]
    assert one.message == (
        "`TaskHandler` does 2 jobs: `read`, `check`, `explain` and `connect`, `save`, `load` share"
        " no field and do not call each other: consider splitting it."
    )


def test_the_change_that_adds_the_second_job_is_told_where_it_begins(tmp_path: Path) -> None:
    before, after = f"{START}{CHECKING}", f"{START}{CHECKING}\n{SAVING}"
    assert told(said(two_jobs, tmp_path, {"a.py": before}, {"a.py": after})) == [
        ("info", "a.py:11")
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{START}{CHECKING}\n{JOINED}", id="one calls the other"),
        pytest.param(f"class TaskHandler(Base):\n{CHECKING}\n{SAVING}", id="a base class"),
        pytest.param(f"{START}{CHECKING}", id="one job"),
        pytest.param(
            START + "".join(f"    def m{n}(self):\n        return self.f{n}\n" for n in range(9)),
            id="a collection",
        ),
    ],
)
def test_what_belongs_together_is_fine(tmp_path: Path, text: str) -> None:
    assert not said(two_jobs, tmp_path, {"x.py": "x = 1\n"}, {"a.py": text})


def test_what_was_so_before_is_not_told_again(tmp_path: Path) -> None:
    before = f"{START}{CHECKING}\n{SAVING}"
    after = before.replace("self.rules.append(task)", "self.rules.insert(0, task)")
    assert not said(two_jobs, tmp_path, {"a.py": before}, {"a.py": after})


def chain(prefix: str, module: str) -> str:
    calls = [f"{module}.run", *(f"{prefix}{number}" for number in range(4))]
    return "".join(
        f"def {prefix}{number}(x):\n    return {call}(x)\n\n\n" for number, call in enumerate(calls)
    )


def test_a_module_of_two_parts_with_their_own_imports_is_told(tmp_path: Path) -> None:
    text = "import json\nimport socket\n\n\n" + chain("parse", "json") + chain("send", "socket")
    (one,) = said(two_jobs, tmp_path, {"x.py": "x = 1\n"}, {"a.py": text})
    assert "This module does 2 jobs" in one.message


def test_a_module_whose_parts_use_each_other_is_fine(tmp_path: Path) -> None:
    text = "import json\nimport socket\n\n\n" + chain("parse", "json") + chain("send", "socket")
    joined = text + "def both(x):\n    return parse4(send4(x))\n"
    assert not said(two_jobs, tmp_path, {"x.py": "x = 1\n"}, {"a.py": joined})
