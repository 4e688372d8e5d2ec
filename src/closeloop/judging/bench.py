"""Judges that are ready to be asked: a way of asking, a model behind a door, rubrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from closeloop import plugins
from closeloop.judges.rubric import demand_sense, identity, load_rubric
from closeloop.model.attempt import Usage
from closeloop.model.errors import BadInput, PluginFailed
from closeloop.model.evaluation import Case, JudgeVersion, Output, PlanTask, Posed, Rubric
from closeloop.model.protocols import Judge, Model
from closeloop.model.record import Record, digest
from closeloop.model.settings import JudgeSettings, OrchestrateSettings, Settings
from closeloop.model.variant import Limits
from closeloop.runs.models.opening import digest_of, settings_of
from closeloop.runs.variants import assemble

if TYPE_CHECKING:
    from closeloop.runs.gateway import Gateway

Door = Callable[[Usage], AbstractAsyncContextManager[Model]]
"""A new one for every question: a context of its own, and one failure shuts no other.

It is told what the same evaluation used before, as the limits hold for all of it.
"""


class Looks(Model, Protocol):
    """An agent that answers when it has looked."""

    @property
    def seen(self) -> Mapping[str, str]:
        """The files that its last answer names, to look up quotes in."""
        ...

    @property
    def usage(self) -> Usage:
        """All that it used, however it ended."""
        ...


class OpenJudge(Record):
    """One who judges."""

    judge: Judge
    model: str
    """Its name."""
    model_digest: str | None = None
    door: Door
    rubric: Rubric
    """For tasks that name none."""
    agent: str | None = None
    """Who looks at the files and answers, exactly; None asks the model itself."""
    look: Callable[[Case, Usage], AbstractAsyncContextManager[Looks]] | None = None
    """Opens that agent's eyes on a case."""
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
    crew = assemble(own.variant, settings, root) if own.variant else None
    # An agent that is told nothing of files need not look for any.
    way = "looking" if crew and own.judge == "checks" else own.judge
    written = (crew.variant.model,) if crew and crew.variant.model else ()
    names = tuple(models) or own.models or written
    if not names:
        raise BadInput("Name the model that judges: --model, or judge.models in closeloop.toml.")
    many = own.samples if samples is None else samples
    if many < 1:
        raise BadInput("The number of samples must be at least 1.")
    named = cache(lambda name: rubric_of(within(name, root), settings, root))
    return Bench(
        judges=tuple(
            OpenJudge(
                judge=plugins.find("judges", way),
                model=name,
                model_digest=digest_of(settings_of(name, settings.models), root),
                door=door_to(name, settings, gateway) if gateway else unopened,
                agent=f"{crew.agent.name} {crew.variant.digest[:12]}" if crew else None,
                rubric=rubric_of(rubric or own.rubric, settings, root),
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
    return lambda before: gateway.open(name, model, limits, first=True, before=before)


def unopened(before: Usage) -> AbstractAsyncContextManager[Model]:
    raise AssertionError("nobody is to be asked")


def rubric_of(name: str, settings: Settings, root: Path) -> Rubric:
    """With the thresholds and weights that the project sets."""
    rubric = load_rubric(name, root)
    set_so = replace(rubric, **thresholds(rubric, settings.judge))
    demand_sense(set_so, "The settings of the judge")
    return set_so


def thresholds(
    held: Rubric | JudgeSettings, said: JudgeSettings | OrchestrateSettings
) -> dict[str, Any]:
    """What it takes to pass: as it is held, but for what is said otherwise."""
    return {
        "pass_at": held.pass_at if said.pass_at is None else said.pass_at,
        "floor": held.floor if said.floor is None else said.floor,
        "weights": {**held.weights, **said.weights},
    }


def within(name: str, root: Path) -> str:
    """A plan is not always the user's own: its rubrics lie in the project, or nowhere."""
    try:
        path = (root / name).resolve()
        inside = len(name) < 256 and path.is_relative_to(root.resolve())
    except (OSError, ValueError):
        inside = False
    if not inside:
        raise BadInput(f"The rubric {name[:80]!r} does not lie in the project: name one that does.")
    return name


def rubric_for(task: PlanTask, opened: OpenJudge) -> Rubric:
    """The task's own, or the judge's."""
    if task.rubric is None or opened.named is None:
        return opened.rubric
    return opened.named(task.rubric)


def posed(opened: OpenJudge, case: Case, rubric: Rubric) -> Posed:
    """The question; a judge is a plug-in, and may raise anything."""
    try:
        return opened.judge.pose(case, rubric, opened.temperature)
    except Exception as error:
        raise blamed(opened.judge, error) from error


def blamed(judge: Judge, error: Exception) -> PluginFailed:
    return PluginFailed(
        f"The judge {judge.name!r} raised {type(error).__name__} ({error}): mend it, or choose "
        "another with judge.judge."
    )


def version_of(opened: OpenJudge, rubric: Rubric) -> JudgeVersion:
    """Rubric, prompt, model and parameters, hashed."""
    judge = opened.judge
    task = PlanTask(id="", prompt="")
    empty = Case(request="", plan=(), task=task, output=Output(task=""))
    asked = posed(opened, empty, rubric).request
    prompt = digest(judge.name, judge.version, asked.system, asked.schema)[:16]
    parts = (identity(rubric), prompt, opened.model, opened.model_digest, opened.temperature)
    who = f"{judge.name} {judge.version}"
    return JudgeVersion(
        id=digest(*parts, *([opened.agent] if opened.agent else ()))[:12],
        judge=f"{who}, {opened.agent}" if opened.agent else who,
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
