"""Fix cycles: what the tools say goes back to an agent, a few times at most."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from closeloop.checking.tools import Bench, Tool, Tried, attempt, has_broken, put, telling
from closeloop.model.protocols import Agent, Assignment, Model
from closeloop.model.record import Record
from closeloop.model.report import ToolRun
from closeloop.model.variant import Variant

PROMPT = """\
A change to this repository, already in the working tree, breaks checks that passed without it.
Mend the change so that they pass again. Do not weaken, skip or delete tests, do not silence the
tools, and change nothing else.

"""
MOST_OUTPUT = 12_000


class Fixer(Record):
    """Who mends, and with which model."""

    agent: Agent
    model: Model | None
    variant: Variant
    system: str | None = None


class Mended(Record):
    """What came of it."""

    runs: tuple[ToolRun, ...]
    patch: str
    """From the base to the mended change; empty where nothing was mended."""


async def mend(
    bench: Bench, tools: Sequence[Tool], runs: Sequence[ToolRun], fixer: Fixer, cycles: int
) -> Mended:
    """Up to so many tries, each told what still fails; the repository itself is left alone."""
    limits = fixer.variant.limits
    current, patch = list(runs), ""
    async with bench.workspaces.open(bench.base, limits) as workspace:
        await put(bench, workspace.cage)
        for cycle in range(1, cycles + 1):
            bench.tell(f"an agent mends what broke, try {cycle} of {cycles}")
            assignment = Assignment(
                prompt=prompt_of(current),
                system=fixer.system,
                cage=workspace.cage,
                model=fixer.model,
                variant=fixer.variant,
                limits=limits,
                answer=lambda question: None,
            )
            await fixer.agent.work(assignment)
            patch = await workspace.diff()
            for place, tool in enumerate(tools):
                if has_broken(current[place]):
                    # Elsewhere: what tools leave behind is no part of the change.
                    tried = await attempt(bench, tool, changed=True, patch=patch)
                    current[place] = _after(current[place], tried, cycle)
            if not any(has_broken(run) for run in current):
                break
    return Mended(runs=tuple(current), patch=patch)


def prompt_of(runs: Sequence[ToolRun]) -> str:
    """What broke, trimmed to what matters."""
    parts = [
        f"`{run.command}` {run.after}:\n\n{run.output or 'it printed nothing'}"
        for run in runs
        if has_broken(run)
    ]
    return PROMPT + "\n\n".join(parts)[:MOST_OUTPUT]


def _after(run: ToolRun, tried: Tried, cycle: int) -> ToolRun:
    """The run as it is now: what still fails of what had broken, or newly does."""
    old = {name.split(": ", 1)[0] for name in (*run.broke, *run.already)}
    already = set(run.already)
    broke = [name for name in tried.failures if name not in already]
    newly = len([name for name in broke if name not in old])
    note = f"mending broke {newly} more" if newly else run.note
    return msgspec.structs.replace(
        run,
        after=tried.state,
        broke=tuple(broke),
        output=telling(tried, broke),
        tries=cycle + 1,
        note="mended by an agent" if tried.state == "passed" else note,
    )
