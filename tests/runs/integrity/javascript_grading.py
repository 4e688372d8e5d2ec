"""Judge many small JavaScript changes by few runs: each has a file of the product and of tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec
from javascript_workspace import run_room, write_files

from closeloop.grading.integrity.confirm import ProbeRun, confirm_tests
from closeloop.grading.integrity.javascript import ROOMS
from closeloop.grading.integrity.probe import ProbeRequest
from closeloop.records.attempt import IntegrityCheck
from closeloop.records.task import TestRunner

COMMANDS: dict[TestRunner, str] = {
    "jest": "jest -i",
    "vitest": "vitest run",
    "mocha": "mocha test/",
    "node": "node --test test/",
}
TOKEN = "5eed"


class ScriptChange(msgspec.Struct):
    """A change of a file `src/NAME`, and the tests that it is to pass."""

    runner: TestRunner
    test: str
    """The text of the test file. NAME stands for what the files are called."""
    base: str
    source: str
    titles: tuple[str, ...] = ("total",)
    """Of the tests that decide, as ids have them."""
    reference: str | None = None
    support: str | None = None
    """A module beside the test, `./NAME_support`."""
    is_module: bool = False
    """Whether these are modules of Node: their files end with `.mjs`."""


class ScriptGrader:
    """Runs the probes of some changes together, and says of each what it came to."""

    def __init__(self, folder: Path, packages: Path, changes: Mapping[str, ScriptChange]) -> None:
        self.folder = folder
        self.packages = packages
        self.changes = changes
        self.names = {title: f"shop{number}" for number, title in enumerate(changes)}
        self.runs: dict[tuple[str, int], ProbeRun] = {}
        self.outputs: list[str] = []

    def check(self, title: str) -> list[IntegrityCheck]:
        """What confirming says of one change, as if it were graded alone."""
        change = self.changes[title]

        async def probe(patch: str | None, token: str, room: int) -> ProbeRun:
            return self._pick(self._run(patch or "base", room), title)

        reference = "reference" if change.reference is not None else None
        ids = self._list_ids(title)
        return asyncio.run(confirm_tests(probe, "source", reference, ids))

    def _list_ids(self, title: str) -> list[str]:
        change, path = self.changes[title], self._test_path(title)
        return [f"{path} > {name}" for name in change.titles]

    def _test_path(self, title: str) -> str:
        change = self.changes[title]
        return f"test/{self.names[title]}.test.{'mjs' if change.is_module else 'js'}"

    @property
    def runner(self) -> TestRunner:
        return next(iter(self.changes.values())).runner

    def run_plainly(self) -> subprocess.CompletedProcess[bytes]:
        """The tests of all changes as their runner alone sees them."""
        folder = self.folder / "plain"
        files, helpers = self._list_texts("source")
        write_files(folder, {**files, **helpers})
        (folder / "node_modules").symlink_to(self.packages / "node_modules")
        return subprocess.run(
            ["sh", "-c", COMMANDS[self.runner]],
            cwd=folder,
            env={**os.environ, "PATH": f"{folder}/node_modules/.bin:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )

    def _list_texts(self, variant: str) -> tuple[dict[str, str], dict[str, str]]:
        """The files of the changes that such a run is about, and their helpers."""
        files, helpers = {"package.json": "{}"}, dict[str, str]()
        for title, change in self._select_changes(variant).items():
            files |= self._list_files(title, getattr(change, variant))
            if change.support is not None:
                helpers[self._support_path(title)] = change.support
        return files, helpers

    def _select_changes(self, variant: str) -> dict[str, ScriptChange]:
        """All of them; as a control, those that are compared with the base, or a reference."""
        return {
            title: change
            for title, change in self.changes.items()
            if variant == "source" or (variant == "base") == (change.reference is None)
        }

    def _run(self, variant: str, room: int) -> ProbeRun:
        """All changes that such a run is about at once, in one room."""
        if (variant, room) not in self.runs:
            files, helpers = self._list_texts(variant)
            request = ProbeRequest(
                command=COMMANDS[self.runner],
                runner=self.runner,
                fail_to_pass=tuple(
                    test for one in self._select_changes(variant) for test in self._list_ids(one)
                ),
                sources={**files, **helpers},
                helpers=helpers,
                folder="",
                root=str(self.folder / f"{variant}{room}"),
                pipe="",
                token=TOKEN,
                room=room,
            )
            outcome = run_room(request, self.packages)
            self.outputs.append(outcome.output[-4000:])
            self.runs[variant, room] = ProbeRun(
                tests=tuple(outcome.tests),
                results=outcome.results,
                exit_code=outcome.exit_codes[0],
                rooms=ROOMS,
            )
        return self.runs[variant, room]

    def _support_path(self, title: str) -> str:
        suffix = "mjs" if self.changes[title].is_module else "js"
        return f"test/{self.names[title]}_support.{suffix}"

    def _list_files(self, title: str, text: str) -> dict[str, str]:
        change, name = self.changes[title], self.names[title]
        suffix = "mjs" if change.is_module else "js"
        test = change.test.replace("NAME", name)
        return {f"src/{name}.{suffix}": text.replace("NAME", name), self._test_path(title): test}

    def _pick(self, run: ProbeRun, title: str) -> ProbeRun:
        """What a run says of one change by its own tests: controls beside them are left out."""
        ids = self._list_ids(title)
        tests = tuple(test for test in run.tests if test.original in ids)
        return msgspec.structs.replace(run, tests=tests)
