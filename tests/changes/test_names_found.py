"""hallucinated-name: names that exist nowhere, and names that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import inspected

from closeloop.changes import names
from closeloop.records.finding import Finding

TEXT = "def squeeze(text):\n    return ' '.join(text.split())\n"
USER = "from shop import text\n\n\ndef label(name):\n    return text.squeeze(name)\n"
PROJECT = {"shop/__init__.py": "", "shop/text.py": TEXT, "shop/user.py": USER}


def found(folder: Path, changed: dict[str, str]) -> list[Finding]:
    with inspected(folder, PROJECT, changed) as inspection:
        return [one for one in names.check(inspection) if isinstance(one, Finding)]


def test_a_function_that_the_module_does_not_have(tmp_path: Path) -> None:
    changed = USER + "\n\ndef title(name):\n    return text.clean_up(name)\n"
    (finding,) = found(tmp_path, {"shop/user.py": changed})
    assert "clean_up" in finding.message
    assert finding.places == ("shop/user.py:9",)
    assert finding.mode == "hallucinated API"


@pytest.mark.parametrize(
    "added",
    [
        "def title(name):\n    return text.squeeze(name)\n",
        "def clean_up(name):\n    return name\n\n\ndef title(name):\n    return clean_up(name)\n",
        "import json\n\n\ndef title(name):\n    return json.dumps(name)\n",
        "def title(thing):\n    return thing.whatever_it_has()\n",
        "def made(kind):\n    return kind\n\n\n@made\nclass Tag:\n    pass\n\n\nTag(width=3)\n",
        "import inspect\n\n\ndef arguments(call):\n    return inspect.getargspec(call)\n",
    ],
    ids=[
        "real",
        "defined in the change",
        "standard library",
        "unknown receiver",
        "made by a decorator",
        "of an older Python",
    ],
)
def test_what_exists_or_cannot_be_known_is_left_alone(tmp_path: Path, added: str) -> None:
    assert found(tmp_path, {"shop/user.py": f"{USER}\n\n{added}"}) == []
