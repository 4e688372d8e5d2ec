"""Make a probe and run it as a grader does: files written, a named pipe held, a command run."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from closeloop.grading.integrity.probe import Probe, ProbeRequest, ProbeTest, Results


@dataclass(frozen=True)
class ProbeOutcome:
    """What a probe came to."""

    probe: Probe
    results: Results
    exit_code: int
    report: str
    output: str

    def violations(self, folder: str = "") -> list[tuple[str, str, str | None]]:
        """Kind, expectation and result of each test of a folder that did not come out as due."""
        found = []
        for test in self.probe.tests:
            status = self.results.get(test.name)
            is_met = status == "passed" if test.expect == "pass" else status not in (None, "passed")
            if not is_met and self._is_in(folder, test):
                found.append((test.kind, test.expect, status))
        return found

    def _is_in(self, folder: str, test: ProbeTest) -> bool:
        name = test.name.partition("/")[0].rpartition("::")[2]
        return any(
            name in text for path, text in self.probe.files.items() if path.startswith(folder)
        )


def write_files(root: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def read_sources(root: Path, *patterns: str) -> dict[str, str]:
    """The texts of files by pattern, by path from the root."""
    return {
        str(path.relative_to(root)): path.read_text()
        for pattern in patterns
        for path in root.rglob(pattern)
        if "target" not in path.parts
    }


def make_request(
    root: Path, runner: str, command: str, fail_to_pass: Iterable[str], sources: Mapping[str, str]
) -> ProbeRequest:
    folder = root / f".closeloop-{secrets.token_hex(8)}"
    return ProbeRequest(
        command=command,
        runner=runner,  # type: ignore[arg-type]
        fail_to_pass=tuple(fail_to_pass),
        sources=dict(sources),
        folder=str(folder),
        root=str(root),
        pipe=str(folder / "pipe"),
        token=secrets.token_hex(16),
    )


def run_probe(
    maker: ModuleType, request: ProbeRequest, env: Mapping[str, str] | None = None
) -> ProbeOutcome:
    """Build a probe and run it in the request's root."""
    probe = maker.build_probe(request)
    assert probe is not None
    write_files(Path(request.root), probe.files)
    Path(request.folder).mkdir(exist_ok=True)
    os.mkfifo(request.pipe)
    kept = Path(request.folder, "report")
    with kept.open("wb") as file:
        reader = subprocess.Popen(["cat", request.pipe], stdout=file)
    held = os.open(request.pipe, os.O_WRONLY)
    ran = subprocess.run(
        ["sh", "-c", probe.command],
        cwd=request.root,
        env={**os.environ, **(env or {}), **probe.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    os.close(held)
    reader.wait()
    report = kept.read_bytes()
    return ProbeOutcome(
        probe=probe,
        results=maker.read_results(report),
        exit_code=ran.returncode,
        report=report.decode("utf-8", "replace"),
        output=ran.stdout.decode("utf-8", "replace"),
    )
