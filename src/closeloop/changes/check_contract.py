"""What every check of changes must keep to, as a check that its author can run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.git import run_git
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.inspection import Inspection
from closeloop.records.protocols import ChangeCheck
from closeloop.records.settings import CheckSettings

FileContents = Mapping[str, str | bytes | None]
"""By path, what a file holds; None where it is not there."""
MAX_MESSAGE_CHARS = 1000
ODD_FILES: dict[str, tuple[str | bytes | None, str | bytes | None]] = {
    "broken.py": ("def f(:\n  pass\n", "def f((((:\n  retur\n\tx\n"),
    "latin.py": (b"# caf\xe9\n", b"x = '\xff\xfe'\ntry:\n    f()\nexcept:\n    pass\n"),
    "empty.py": ("x = 1\n", ""),
    "new_empty.ts": (None, ""),
    "long_line.py": ("x = 1\n", "x = '" + "a" * 100_000 + "'\n"),
    "no_end.go": ("package a\n", "package a\nfunc F() { return 1"),
    "nul.java": ("class A {}\n", b"class A {\0 void f() {} }\n"),
    "tests/test_gone.py": ("def test_a():\n    assert f() == 1\n", None),
    "conflict.py": ("x = 1\n", "<<<<<<< ours\nx = 1\n=======\nx = 2\n>>>>>>> theirs\n"),
    "data.bin": (b"\0\1\2", b"\0\1\3"),
}
"""Files that are hard to look at, before and after a change."""


def check_check(
    check: ChangeCheck,
    before: FileContents,
    after: FileContents,
    settings: CheckSettings | None = None,
) -> list[Finding]:
    """AssertionError where a check does not keep to the contract; else what it finds.

    It is shown the change from `before` to `after` in a real repository, a change of files that
    are hard to look at, and one of a text in which no check has anything to find.
    """
    for rule in check.rules:
        assert rule.name == "-".join(rule.name.lower().split()), "Names are in-small-letters."
        assert rule.version >= 1, "Versions count from 1."
        assert rule.about.strip(), "A rule says what it looks for."
    odd_before = {path: contents[0] for path, contents in ODD_FILES.items()}
    odd_after = {path: contents[1] for path, contents in ODD_FILES.items()}
    _check_change(check, odd_before, odd_after, settings)
    documents = _check_change(check, {"docs/a.md": "a\n"}, {"docs/a.md": "b\n"}, settings)
    assert not documents, "A change of a text has nothing that a check looks for."
    return _check_change(check, before, after, settings)


def _check_change(
    check: ChangeCheck, before: FileContents, after: FileContents, settings: CheckSettings | None
) -> list[Finding]:
    with open_change(before, after, settings) as inspection:
        first, second = list(check.check(inspection)), list(check.check(inspection))
        assert first == second, "The same change gives the same findings."
        findings = [one for one in first if isinstance(one, Finding)]
        for finding in findings:
            _check_finding(finding, check, inspection)
    for one in first:
        if isinstance(one, Unmeasured):
            assert one.reason, "What is not measured has its reason."
    return findings


def _check_finding(finding: Finding, check: ChangeCheck, inspection: Inspection) -> None:
    versions = {rule.name: rule.version for rule in check.rules}
    assert versions.get(finding.rule) == finding.version, "It names its rule."
    assert finding.source == "check", "Its source is a check."
    assert 0 < len(finding.message.strip()) < MAX_MESSAGE_CHARS, "It says briefly what is wrong."
    assert finding.places, "Every finding names a place."
    for place in finding.places:
        path, _, line = place.rpartition(":")
        known = any(inspection.sides.read(side, path) is not None for side in ("before", "after"))
        assert known, "It names files that are there."
        assert line.isdecimal(), "It names a line."
        assert int(line) >= 1, "Lines count from 1."


@contextmanager
def open_change(
    before: FileContents, after: FileContents, settings: CheckSettings | None = None
) -> Iterator[Inspection]:
    """The change from `before` to `after`, in a repository that is made for it."""
    settings = settings or CheckSettings()
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        repository = Path(folder) / "repository"
        _write_files(repository, before)
        run_git(repository, "init", "-q", "-b", "main")
        run_git(repository, "add", "-A")
        who = ("-c", "user.name=closeloop", "-c", "user.email=closeloop@localhost")
        run_git(repository, *who, "commit", "-q", "--allow-empty", "-m", "Before")
        _write_files(repository, after)
        with (
            open_sides(repository, ChangeQuery()) as sides,
            open_index(sides, Path(folder) / "cache", settings) as index,
        ):
            yield inspect_change(sides, index, settings=settings)


def _write_files(folder: Path, files: FileContents) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
