"""Run probes of JavaScript projects as grading does: files, a named pipe, one command."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import msgspec
import pytest

from closeloop.model.task import Runner
from closeloop.runs.integrity.javascript import build_probe, read_results
from closeloop.runs.integrity.probe import Probe, ProbeRequest, ProbeTest, Results
from patience import PATIENCE

PACKAGES = ("jest@29.7.0", "vitest@3.2.4", "mocha@10.8.2", "chai@4.5.0")
NO_PACKAGES = "NO JEST, VITEST AND MOCHA: npm cannot install them here"


class Outcome(msgspec.Struct):
    """What came of a probe."""

    probe: Probe
    results: Results
    exit_code: int
    output: str

    @property
    def violations(self) -> list[ProbeTest]:
        """Tests that came out as they must not, or did not report."""
        return [test for test in self.probe.tests if not self.is_right(test)]

    def is_right(self, test: ProbeTest) -> bool:
        status = self.results.get(test.name)
        return status is not None and (status == "passed") == (test.expect == "pass")

    @property
    def has_right_exit_code(self) -> bool:
        codes = self.probe.exit_codes
        return self.exit_code in codes if codes else self.exit_code != 0

    @property
    def is_honest(self) -> bool:
        return not self.violations and self.has_right_exit_code

    def of_kind(self, kind: str) -> list[ProbeTest]:
        return [test for test in self.probe.tests if test.kind == kind]


def installed_packages() -> Path:
    """A folder with jest, vitest and mocha below `node_modules`; installed once a machine."""
    if shutil.which("npm") is None:
        pytest.skip(NO_PACKAGES)
    name = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "closeloop-tests" / f"node-{name}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        (fresh / "package.json").write_text("{}")
        install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES]
        ran = subprocess.run(
            [*install, "--prefer-offline"], cwd=fresh, capture_output=True, check=False
        )
        if ran.returncode != 0:
            shutil.rmtree(fresh)
            pytest.skip(f"{NO_PACKAGES}: {ran.stderr.decode()[-300:]}")
        try:
            fresh.rename(folder)
        except OSError:  # another process was quicker
            shutil.rmtree(fresh)
    return folder


def write_files(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def run_probe(
    folder: Path,
    files: dict[str, str],
    runner: Runner,
    command: str,
    *,
    fail_to_pass: tuple[str, ...],
    others: tuple[str, ...] = (),
    token: str = "5eed",
    packages: Path | None = None,
) -> Outcome:
    """Write a project, probe it, and compare."""
    write_files(folder, files)
    if packages is not None and not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(packages / "node_modules")
    own = folder / f".probe-{secrets.token_hex(8)}"
    own.mkdir()
    request = ProbeRequest(
        command=command,
        runner=runner,
        fail_to_pass=fail_to_pass,
        others=others,
        sources=files,
        folder=str(own),
        root=str(folder),
        pipe=str(own / "pipe"),
        token=token,
    )
    probe = build_probe(request)
    assert probe is not None, "no probe can be made"
    write_files(folder, dict(probe.files))
    os.mkfifo(own / "pipe")
    report, ran = _run(folder, own / "pipe", probe)
    output = (ran.stdout + ran.stderr).decode("utf-8", "replace")
    return Outcome(
        probe=probe, results=read_results(report), exit_code=ran.returncode, output=output
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
    return "\n".join([f"exit code {outcome.exit_code}", *lines, outcome.output[-6000:]])
