"""Many attempts at once that wait for their model and for slow tests, beside the ideal schedule.

Half of the attempts repair the code, the others break it further. The ideal is the longer of two:
every slot busy with turns and then tests run once; and the turns of the first agent, then every
core busy with the processor time that all processes took after it. Grading runs tests several
times, so the second is the longer where many attempts share few cores; what an attempt takes of it
has a line of its own. On a machine that does other work it says too much.

CLOSELOOP_BENCH_LONG=1 adds cases that take ten minutes and more.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec

from harness import Bench, commit_all
from sandbox import find_sandbox_kind
from table import Row, build_row

TURNS, TURN_SECONDS, TEST_SECONDS, TASKS = 10, 2.0, 5.0, 8
CASES = ((64, 16, "sleeping"), (64, 64, "sleeping"), (32, 16, "computing"))
LONG_CASES = ((256, 256, "sleeping"), (64, 16, "computing"), (64, 64, "computing"))
TEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q -p no:cacheprovider"
SLOW_TESTS = {
    "sleeping": "import time\n\n\ndef test_slowly():\n    time.sleep({seconds})\n",
    "computing": (
        "import time\n\n\ndef test_slowly():\n"
        "    end = time.process_time() + {seconds}\n"
        "    while time.process_time() < end:\n        sum(range(10_000))\n"
    ),
}
CODE = "def total(items):\n    return sum(items) - 1\n"
TESTS = (
    "from totals import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n\n\n"
    "def test_type():\n    assert isinstance(total([4]), int)\n"
)
ANSWERS = {"right": "return sum(items)", "wrong": "return str(items)"}


def measure(bench: Bench) -> Iterator[Row]:
    kind = find_sandbox_kind(bench.folder / "cache")
    turn, seconds = (0.01, 0.01) if bench.is_smoke else (TURN_SECONDS, TEST_SECONDS)
    cases = CASES[:1] if bench.is_smoke else CASES
    if os.environ.get("CLOSELOOP_BENCH_LONG") and not bench.is_smoke:
        cases = (*cases, *LONG_CASES)
    for full, crowd, work in cases:
        attempts, slots = bench.size(full, 2), bench.size(crowd, 2)
        took, busy, busy_later = bench.call(
            "schedule", "run_schedule", attempts, slots, turn, work, seconds
        )
        in_slots = -(-attempts // slots) * (TURNS * turn + seconds)
        on_cores = TURNS * turn + busy_later / (os.cpu_count() or 1)
        name = f"{full} attempts of {TURNS} turns with {work} tests, {crowd} at once ({kind})"
        yield build_row(
            name, [took], "s", floor=[max(in_slots, on_cores)],
            against="the ideal schedule", aim=1.15,
        )  # fmt: skip
        yield build_row(f"{name}: processor time of one", [busy / attempts], "s")


def run_schedule(
    attempts: int, slots: int, turn_seconds: float, work: str, test_seconds: float
) -> tuple[float, float, float]:
    """Return the seconds of a whole experiment, and the processor seconds of the machine in it.

    The last are those after the turns of an agent: no grading can begin before.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        repo = root / "repo"
        (repo / "tests").mkdir(parents=True)
        (repo / "totals.py").write_text(CODE)
        (repo / "tests/test_totals.py").write_text(TESTS)
        (repo / "tests/test_slow.py").write_text(SLOW_TESTS[work].format(seconds=test_seconds))
        (repo / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
        commit_all(repo)
        for name, answer in ANSWERS.items():
            (root / f"{name}.yaml").write_text(_write_script(answer, turn_seconds))
        (root / "tasks").mkdir()
        for number in range(min(TASKS, attempts // len(ANSWERS))):
            (root / f"tasks/total-{number}.md").write_text(
                f"---\nid: total-{number}\nrepo: {repo}\nacceptance:\n  run: {TEST}\n"
                "  fail_to_pass: [tests/test_totals.py::test_total]\n---\n"
                f"Add up the items, request {number}.\n"
            )
        busy_then: list[float] = []
        timer = threading.Timer(
            TURNS * turn_seconds, lambda: busy_then.append(_read_busy_seconds())
        )
        start, busy = time.monotonic(), _read_busy_seconds()
        timer.start()
        anyio.run(_run_experiment, root, attempts, slots)
        took, busy_at_end = time.monotonic() - start, _read_busy_seconds()
        return took, busy_at_end - busy, busy_at_end - busy_then[0]


def _read_busy_seconds() -> float:
    """Processor seconds of all processes since the machine started."""
    fields = Path("/proc/stat").read_text("ascii").partition("\n")[0].split()[1:8]
    user, nice, system, _, _, interrupt, soft_interrupt = map(int, fields)
    ticks = user + nice + system + interrupt + soft_interrupt
    return ticks / os.sysconf("SC_CLK_TCK")


def _write_script(answer: str, turn_seconds: float) -> str:
    edit = {"path": "totals.py", "old": "return sum(items) - 1", "new": answer}
    turns = [{"do": {"run": {"command": "cat totals.py"}}} for _ in range(TURNS - 2)]
    turns += [{"do": {"edit": edit}}, {"say": "Done."}]
    dialogues = {"dialogues": [{"turns": [{**turn, "delay": turn_seconds} for turn in turns]}]}
    return msgspec.yaml.encode(dialogues).decode()


async def _run_experiment(root: Path, attempts: int, slots: int) -> None:
    from closeloop.attempts.experiment_run import (
        open_run,
        open_run_context,
        plan_experiment,
        run_attempts,
    )
    from closeloop.records.settings import ExperimentSettings, Settings, VariantSettings
    from closeloop.tasks.task_files import select_tasks

    variants = {name: VariantSettings(model=f"scripted:{name}.yaml") for name in ANSWERS}
    settings = Settings(variants=variants)
    tasks = select_tasks(settings, root, ())
    repeats = attempts // (len(tasks) * len(variants))
    async with open_run_context(settings, root, list(variants), {}) as context:
        plan = plan_experiment(context, tasks, ExperimentSettings(repeats=repeats))
        async with open_run(
            plan, context, jobs=slots, report_progress=lambda progress: None
        ) as run:
            await run_attempts(run)
        outcomes = [row.outcome for row in context.store.list_attempts()]
    assert len(outcomes) == attempts, outcomes
    assert sorted(set(outcomes)) == ["fail", "pass"], outcomes
