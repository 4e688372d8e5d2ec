"""What the parts of the bench share: sizes, repeats, processes of their own, a common floor.

python bench/harness.py MODULE FUNCTION ARGUMENTS

calls a function of a module beside this one, with a JSON list, and prints what it returns as JSON.
Only the standard library is used here: peers run it in environments of their own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
REFERENCE = "500,000 turns of a Python loop"
GIT_IDENTITY = {
    "GIT_AUTHOR_NAME": "bench",
    "GIT_AUTHOR_EMAIL": "bench@example.org",
    "GIT_AUTHOR_DATE": "2026-01-05T09:00:00Z",
    "GIT_COMMITTER_NAME": "bench",
    "GIT_COMMITTER_EMAIL": "bench@example.org",
    "GIT_COMMITTER_DATE": "2026-01-05T09:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
ENVIRONMENT = {
    **os.environ,
    **GIT_IDENTITY,
    # As where it is installed: there, bytecode is written once.
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
}


class NotMeasured(Exception):
    """Why a part, or a line of it, cannot be measured on this machine."""


class Bench:
    """One run: where its inputs are, how large they are, how often each thing is measured."""

    def __init__(self, folder: Path, *, is_smoke: bool = False, repeats: int = 3) -> None:
        self.folder = folder
        self.is_smoke = is_smoke
        self._repeats = 1 if is_smoke else repeats

    def size(self, full: int, smoke: int) -> int:
        return smoke if self.is_smoke else full

    def input(self, name: str, make: Callable[[Path], object]) -> Path:
        """A file or folder of the run's own, made by whichever part needs it first."""
        path = self.folder / name
        if not path.exists():
            make(path)
        return path

    def repeat(
        self, work: Callable[[], dict[str, float]], *, warm_up: Callable[[], object] | None = None
    ) -> dict[str, list[float]]:
        """Every number that some work returns, of each repeat after a warm-up; and `reference`."""
        if not self.is_smoke:
            (warm_up or work)()
        columns: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(self._repeats):
            columns["reference"].append(time_reference())
            for name, value in work().items():
                columns[name].append(value)
        return columns

    def call(self, module: str, function: str, *arguments: Any, python: str | None = None) -> Any:
        """What a function returns in a process of its own; in a smoke run, in this one."""
        if self.is_smoke and python is None:
            return getattr(import_module(module), function)(*arguments)
        script = [python or sys.executable, str(HERE / "harness.py")]
        return json.loads(run([*script, module, function, json.dumps(arguments)]).splitlines()[-1])

    def require_full(self, what: str) -> None:
        if self.is_smoke:
            raise NotMeasured(f"{what} is left out of a smoke run")

    def peer_python(self, environment: str, *modules: str) -> str:
        """The interpreter of a peer's environment, which `make bench` makes where it can."""
        self.require_full("a peer")
        python = ROOT / environment / "bin" / "python"
        names = ", ".join(modules)
        try:
            run([str(python), "-P", "-c", f"import {names}"])
        except (OSError, RuntimeError) as error:
            raise NotMeasured(f"{environment} with {names} is not installed") from error
        return str(python)


def time_reference() -> float:
    """CPU seconds of a fixed piece of Python: the floor of what has no other."""
    started, total = time.process_time(), 0
    for number in range(500_000):
        total = (total * 31 + number) % 1_000_003
    return time.process_time() - started


def run(command: list[str], cwd: Path | None = None) -> str:
    """What a command prints; the last line of its errors where it fails."""
    ran = subprocess.run(
        command, check=False, capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd
    )
    if ran.returncode:
        lines = (ran.stderr or ran.stdout).strip().splitlines() or ["no output"]
        raise RuntimeError(f"{Path(command[0]).name} exited with {ran.returncode}: {lines[-1]}")
    return ran.stdout


def time_command(*command: str) -> float:
    """CPU seconds of a command and of what it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(list(command))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def time_wall(work: Callable[[], object]) -> float:
    """Seconds by the clock: of what runs in a sandbox, not all CPU time is reported to us."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def own_cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_memory_bytes() -> int:
    """The most memory that this process had."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    # Elsewhere it counts what the parent had when it started this one, too; in bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int:
    """The memory that this process has now, or where the system does not say, has had."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return peak_memory_bytes()
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def commit_all(folder: Path) -> None:
    """Make a repository of a folder, with one commit."""
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "All"]):
        run(["git", *arguments], folder)


if __name__ == "__main__":
    chosen, function, arguments = sys.argv[1:]
    print(json.dumps(getattr(import_module(chosen), function)(*json.loads(arguments))))
