"""Run probes of JavaScript projects as grading does: files, a named pipe, one command."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import msgspec
import pytest

from closeloop.grading.integrity.confirm import ACCEPTED_RESULTS
from closeloop.grading.integrity.javascript import ROOMS, build_probe, read_results
from closeloop.grading.integrity.probe import Probe, ProbeRequest, ProbeTest, Results
from closeloop.records.task import TestRunner
from patience import PATIENCE

PACKAGES = ("jest@29.7.0", "vitest@3.2.4", "mocha@10.8.2", "chai@4.5.0")
NO_PACKAGES = "NO JEST, VITEST AND MOCHA: npm cannot install them here"


SHOP = """
exports.add = (a, b) => a + b
exports.cart = (names) => ({ names, total: names.length, paid: false, note: null })
exports.pay = async (sum) => { if (sum < 0) throw new RangeError('negative sum'); return sum * 2 }
exports.parse = (text) => { if (!text) throw new TypeError('empty text'); return text.split(',') }
exports.later = (value, done) => setTimeout(() => done(value), 1)
"""
MODULE = re.sub(r"exports\.(\w+) =", r"export const \1 =", SHOP)


class Outcome(msgspec.Struct):
    """What came of a probe in its rooms."""

    tests: list[ProbeTest] = []
    results: Results = {}
    exit_codes: list[int] = []
    output: str = ""

    @property
    def violations(self) -> list[ProbeTest]:
        """Tests that came out as they must not, or did not report."""
        return [test for test in self.tests if not self.is_right(test)]

    def is_right(self, test: ProbeTest) -> bool:
        status = self.results.get(test.name)
        if status is None:
            return test.optional
        return status == "passed" if test.expect == "pass" else status not in ACCEPTED_RESULTS

    @property
    def is_honest(self) -> bool:
        return not self.violations and all(code != 0 for code in self.exit_codes)

    def of_kind(self, kind: str) -> list[ProbeTest]:
        return [test for test in self.tests if test.kind == kind]

    def merge(self, other: Outcome) -> Outcome:
        """What came of the rooms of both."""
        return Outcome(
            tests=[*self.tests, *other.tests],
            results={**self.results, **other.results},
            exit_codes=[*self.exit_codes, *other.exit_codes],
            output=self.output + other.output,
        )


def installed_packages() -> Path:
    """A folder with jest, vitest and mocha below `node_modules`; installed once a machine."""
    if shutil.which("npm") is None:
        pytest.skip(NO_PACKAGES)
    name = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "closeloop-tests" / f"node-{name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others wait for it, rather than install it, too
        if not folder.is_dir():
            _install_packages(folder)
    return folder


def _install_packages(folder: Path) -> None:
    fresh = Path(tempfile.mkdtemp(dir=folder.parent))
    (fresh / "package.json").write_text("{}")
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES]
    ran = subprocess.run(
        [*install, "--prefer-offline"], cwd=fresh, capture_output=True, check=False
    )
    if ran.returncode != 0:
        shutil.rmtree(fresh)
        pytest.skip(f"{NO_PACKAGES}: {ran.stderr.decode()[-300:]}")
    fresh.rename(folder)


def write_files(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def run_probe(
    folder: Path,
    files: dict[str, str],
    runner: TestRunner,
    command: str,
    *,
    fail_to_pass: tuple[str, ...],
    others: tuple[str, ...] = (),
    token: str = "5eed",
    packages: Path | None = None,
) -> Outcome:
    """Probe a project in both rooms, each a workspace of its own, and put what came together."""
    outcome = Outcome()
    for room in range(ROOMS):
        request = ProbeRequest(
            command=command,
            runner=runner,
            fail_to_pass=fail_to_pass,
            others=others,
            sources=files,
            folder="",
            root=str(folder / f"room{room}"),
            pipe="",
            token=token,
            room=room,
        )
        outcome = outcome.merge(run_room(request, packages))
    return outcome


def run_room(request: ProbeRequest, packages: Path | None = None) -> Outcome:
    """Write the sources of a request as a project, and probe it."""
    root = Path(request.root)
    write_files(root, dict(request.sources))
    if packages is not None:
        (root / "node_modules").symlink_to(packages / "node_modules")
    own = root / f".probe-{secrets.token_hex(8)}"
    own.mkdir()
    pipe = own / "pipe"
    probe = build_probe(msgspec.structs.replace(request, folder=str(own), pipe=str(pipe)))
    assert probe is not None, "no probe can be made"
    assert probe.rooms == ROOMS
    write_files(root, dict(probe.files))
    os.mkfifo(pipe)
    report, ran = _run(root, pipe, probe)
    return Outcome(
        tests=list(probe.tests),
        results=read_results(report),
        exit_codes=[ran.returncode],
        output=(ran.stdout + ran.stderr).decode("utf-8", "replace"),
    )


def _run(
    folder: Path, pipe: Path, probe: Probe
) -> tuple[bytes, subprocess.CompletedProcess[bytes]]:
    """The command, and all that is written to its pipe until it has ended."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    held = os.open(pipe, os.O_WRONLY)
    os.set_blocking(reader, True)
    chunks: list[bytes] = []

    def drain() -> None:
        while chunk := os.read(reader, 65536):
            chunks.append(chunk)

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        ran = subprocess.run(
            ["sh", "-c", probe.command],
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{folder}/node_modules/.bin:{os.environ['PATH']}",
                **probe.env,
            },
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
        )
    finally:
        os.close(held)
        thread.join()
        os.close(reader)
    return b"".join(chunks), ran


def describe(outcome: Outcome) -> str:
    """For the message of a failed test."""
    lines = [
        json.dumps({"result": outcome.results.get(test.name), **msgspec.to_builtins(test)})
        for test in outcome.violations
    ]
    return "\n".join([f"exit codes {outcome.exit_codes}", *lines, outcome.output[-6000:]])


def originals(outcome: Outcome, kind: str) -> set[str]:
    """The tests of which something in a probe was made."""
    return {test.original or "" for test in outcome.of_kind(kind)}
