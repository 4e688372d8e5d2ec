"""Judges that are ready to be asked: a way of asking, a model behind a door, rubrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from closeloop import plugins
from closeloop.judges.rubric import identity, load_rubric
from closeloop.model.errors import BadInput
from closeloop.model.evaluation import Case, JudgeVersion, Output, PlanTask, Rubric
from closeloop.model.protocols import Judge, Model
from closeloop.model.record import Record, digest
from closeloop.model.settings import Settings
from closeloop.model.variant import Limits
from closeloop.runs.models.opening import digest_of, settings_of

if TYPE_CHECKING:
    from closeloop.runs.gateway import Gateway

Door = Callable[[], AbstractAsyncContextManager[Model]]
"""A new one for every question: a context of its own, and one failure shuts no other."""


class OpenJudge(Record):
    """One who judges."""

    judge: Judge
    model: str
    """Its name."""
    model_digest: str | None = None
    door: Door
    rubric: Rubric
    """For tasks that name none."""
    named: Callable[[str], Rubric] | None = None
    """Finds the one that a task names."""
    temperature: float = 0.1
    samples: int = 1


class Bench(Record):
    """All who judge together: one, or a panel."""

    judges: tuple[OpenJudge, ...]
    concurrency: int = 8


def open_bench(
    settings: Settings,
    gateway: Gateway | None,
    root: Path,
    *,
    models: Sequence[str] = (),
    rubric: str | None = None,
    samples: int | None = None,
) -> Bench:
    """As the settings say, unless told otherwise; without a gateway, only to know who they are."""
    own = settings.judge
    names = tuple(models) or own.models
    if not names:
        raise BadInput("Name the model that judges: --model, or judge.models in closeloop.toml.")
    many = own.samples if samples is None else samples
    if many < 1:
        raise BadInput("The number of samples must be at least 1.")
    named = cache(lambda name: rubric_of(name, settings, root))
    return Bench(
        judges=tuple(
            OpenJudge(
                judge=plugins.find("judges", own.judge),
                model=name,
                model_digest=digest_of(settings_of(name, settings.models), root),
                door=door_to(name, settings, gateway) if gateway else unopened,
                rubric=named(rubric or own.rubric),
                # What is asked for on the command line holds for all.
                named=None if rubric else named,
                temperature=own.temperature,
                samples=many,
            )
            for name in names
        ),
        concurrency=own.concurrency,
    )


def door_to(name: str, settings: Settings, gateway: Gateway) -> Door:
    """Doors to a model, within the limits that one evaluation has."""
    model = settings_of(name, settings.models)
    limits = Limits(money=settings.limits.money, tokens=settings.limits.tokens)
    gateway.prepare(name, model, limits)
    return lambda: gateway.open(name, model, limits, first=True)


def unopened() -> AbstractAsyncContextManager[Model]:
    raise AssertionError("nobody is to be asked")


def rubric_of(name: str, settings: Settings, root: Path) -> Rubric:
    """With the thresholds and weights that the project sets."""
    rubric = load_rubric(name, root)
    own = settings.judge
    return replace(
        rubric,
        pass_at=rubric.pass_at if own.pass_at is None else own.pass_at,
        floor=rubric.floor if own.floor is None else own.floor,
        weights={**rubric.weights, **own.weights},
    )


def rubric_for(task: PlanTask, opened: OpenJudge) -> Rubric:
    """The task's own, or the judge's."""
    if task.rubric is None or opened.named is None:
        return opened.rubric
    return opened.named(task.rubric)


def version_of(opened: OpenJudge, rubric: Rubric) -> JudgeVersion:
    """Rubric, prompt, model and parameters, hashed."""
    judge = opened.judge
    task = PlanTask(id="", prompt="")
    empty = Case(request="", plan=(), task=task, output=Output(task=""))
    asked = judge.pose(empty, rubric, opened.temperature).request
    prompt = digest(judge.name, judge.version, asked.system, asked.schema)[:16]
    parts = (identity(rubric), prompt, opened.model, opened.model_digest, opened.temperature)
    return JudgeVersion(
        id=digest(*parts)[:12],
        judge=f"{judge.name} {judge.version}",
        rubric=rubric.name,
        rubric_digest=parts[0],
        prompt=prompt,
        model=opened.model,
        model_digest=opened.model_digest,
        temperature=opened.temperature,
        pass_at=rubric.pass_at,
        floor=rubric.floor,
    )


def bench_version(bench: Bench) -> JudgeVersion:
    """Of all together, by the rubric that holds for tasks that name none."""
    return panel_version([version_of(one, one.rubric) for one in bench.judges])


def panel_version(members: Sequence[JudgeVersion]) -> JudgeVersion:
    """Who judges together is a judge of its own."""
    if len(members) == 1:
        return members[0]
    ids = tuple(sorted(one.id for one in members))
    return replace(
        members[0],
        id=digest("panel", *ids)[:12],
        judge=f"panel of {len(members)}",
        model=", ".join(one.model for one in members),
        model_digest=None,
        members=ids,
    )
