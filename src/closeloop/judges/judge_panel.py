"""Judges that are ready to be asked: a way of asking, a model behind a door, rubrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from closeloop import plugins
from closeloop.grading.variants import resolve_variant
from closeloop.judges.masked_work import MASKING_VERSION
from closeloop.judges.rubric import digest_rubric, load_rubric, require_valid_rubric
from closeloop.providers.model_opening import digest_model, find_model_settings
from closeloop.records.attempt import Usage
from closeloop.records.errors import BadInput, PluginFailed
from closeloop.records.evaluation import (
    JudgeCase,
    JudgeVersion,
    PosedQuestion,
    Rubric,
    Subtask,
    TaskOutput,
)
from closeloop.records.protocols import Judge, Model
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import (
    JudgeConfirmation,
    JudgeSettings,
    OrchestrateSettings,
    Settings,
)
from closeloop.records.task import Limits

if TYPE_CHECKING:
    from closeloop.gateway import Gateway

ModelOpener = Callable[[Usage], AbstractAsyncContextManager[Model]]
"""A new one for every question: a context of its own, and one failure shuts no other.

It is told what the same evaluation used before, as the limits hold for all of it.
"""


class LookingModel(Model, Protocol):
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
    door: ModelOpener
    rubric: Rubric
    """For tasks that name none."""
    agent: str | None = None
    """Who looks at the files and answers, exactly; None asks the model itself."""
    look: Callable[[JudgeCase, Usage], AbstractAsyncContextManager[LookingModel]] | None = None
    """Opens that agent's eyes on a case."""
    named: Callable[[str], Rubric] | None = None
    """Finds the one that a task names."""
    temperature: float = 0.1
    samples: int = 1
    confirm: JudgeConfirmation = "addressed"


class JudgePanel(Record):
    """All who judge together: one, or a panel."""

    judges: tuple[OpenJudge, ...]
    concurrency: int = 8


def open_judge_panel(
    settings: Settings,
    gateway: Gateway | None,
    root: Path,
    *,
    models: Sequence[str] = (),
    rubric: str | None = None,
    samples: int | None = None,
) -> JudgePanel:
    """As the settings say, unless told otherwise; without a gateway, only to know who they are."""
    judge_settings = settings.judge
    resolved_variant = (
        resolve_variant(judge_settings.variant, settings, root) if judge_settings.variant else None
    )
    # An agent that is told nothing of files need not look for any.
    judge_name = (
        "looking" if resolved_variant and judge_settings.judge == "checks" else judge_settings.judge
    )
    variant_models = (
        (resolved_variant.variant.model,)
        if resolved_variant and resolved_variant.variant.model
        else ()
    )
    names = tuple(models) or judge_settings.models or variant_models
    if not names:
        raise BadInput(
            "Name the model that judges: `judge --model`, `orchestrate --judge`, or judge.models "
            "in closeloop.toml."
        )
    sample_count = judge_settings.samples if samples is None else samples
    if sample_count < 1:
        raise BadInput("The number of samples must be at least 1.")
    find_named_rubric = cache(
        lambda name: load_project_rubric(require_rubric_in_project(name, root), settings, root)
    )
    return JudgePanel(
        judges=tuple(
            OpenJudge(
                judge=plugins.load_plugin("judges", judge_name),
                model=name,
                model_digest=digest_model(find_model_settings(name, settings.models), root),
                door=make_model_opener(name, settings, gateway) if gateway else refuse_to_open,
                agent=f"{resolved_variant.agent.name} {resolved_variant.variant.digest[:12]}"
                if resolved_variant
                else None,
                rubric=load_project_rubric(rubric or judge_settings.rubric, settings, root),
                # What is asked for on the command line holds for all.
                named=None if rubric else find_named_rubric,
                temperature=judge_settings.temperature,
                samples=sample_count,
                confirm=judge_settings.confirm,
            )
            for name in names
        ),
        concurrency=judge_settings.concurrency,
    )


def make_model_opener(name: str, settings: Settings, gateway: Gateway) -> ModelOpener:
    """Doors to a model, within the limits that one evaluation has."""
    model = find_model_settings(name, settings.models)
    limits = Limits(money=settings.limits.money, tokens=settings.limits.tokens)
    gateway.prepare_model(name, model, limits)
    return lambda before: gateway.open_proxy(name, model, limits, first=True, before=before)


def refuse_to_open(before: Usage) -> AbstractAsyncContextManager[Model]:
    raise AssertionError("nobody is to be asked")


def load_project_rubric(name: str, settings: Settings, root: Path) -> Rubric:
    """With the thresholds and weights that the project sets."""
    rubric = load_rubric(name, root)
    adjusted_rubric = replace(rubric, **merge_thresholds(rubric, settings.judge))
    require_valid_rubric(adjusted_rubric, "The settings of the judge")
    return adjusted_rubric


def merge_thresholds(
    held: Rubric | JudgeSettings, said: JudgeSettings | OrchestrateSettings
) -> dict[str, Any]:
    """What it takes to pass: as it is held, but for what is said otherwise."""
    return {
        "pass_at": held.pass_at if said.pass_at is None else said.pass_at,
        "floor": held.floor if said.floor is None else said.floor,
        "weights": {**held.weights, **said.weights},
    }


def require_rubric_in_project(name: str, root: Path) -> str:
    """A plan is not always the user's own: its rubrics lie in the project, or nowhere."""
    try:
        path = (root / name).resolve()
        inside = len(name) < 256 and path.is_relative_to(root.resolve())
    except (OSError, ValueError):
        inside = False
    if not inside:
        raise BadInput(f"The rubric {name[:80]!r} does not lie in the project: name one that does.")
    return name


def rubric_for_task(task: Subtask, opened: OpenJudge) -> Rubric:
    """The task's own, or the judge's."""
    if task.rubric is None or opened.named is None:
        return opened.rubric
    return opened.named(task.rubric)


def build_question(opened: OpenJudge, case: JudgeCase, rubric: Rubric) -> PosedQuestion:
    """The question; a judge is a plug-in, and may raise anything."""
    try:
        return opened.judge.pose(case, rubric, opened.temperature)
    except Exception as error:
        raise make_judge_failure(opened.judge, error) from error


def make_judge_failure(judge: Judge, error: Exception) -> PluginFailed:
    return PluginFailed(
        f"The judge {judge.name!r} raised {type(error).__name__} ({error}): mend it, or choose "
        "another with judge.judge."
    )


def describe_confirmation(opened: OpenJudge) -> list[str]:
    """How it confirms what it favours, as a part of its version."""
    return [] if opened.confirm == "never" else [f"confirms {MASKING_VERSION} {opened.confirm}"]


def build_judge_version(opened: OpenJudge, rubric: Rubric) -> JudgeVersion:
    """Rubric, prompt, model and parameters, hashed."""
    judge = opened.judge
    task = Subtask(id="", prompt="")
    empty = JudgeCase(request="", plan=(), task=task, output=TaskOutput(task=""))
    request = build_question(opened, empty, rubric).request
    prompt = content_digest(judge.name, judge.version, request.system, request.schema)[:16]
    parts = (digest_rubric(rubric), prompt, opened.model, opened.model_digest, opened.temperature)
    marks = [opened.agent] if opened.agent else []
    marks += describe_confirmation(opened)
    judge_name = f"{judge.name} {judge.version}"
    return JudgeVersion(
        id=content_digest(*parts, *marks)[:12],
        judge=f"{judge_name}, {opened.agent}" if opened.agent else judge_name,
        rubric=rubric.name,
        rubric_digest=parts[0],
        prompt=prompt,
        model=opened.model,
        model_digest=opened.model_digest,
        temperature=opened.temperature,
        pass_at=rubric.pass_at,
        floor=rubric.floor,
    )


def build_panel_version(bench: JudgePanel) -> JudgeVersion:
    """Of all together, by the rubric that holds for tasks that name none."""
    return merge_judge_versions([build_judge_version(one, one.rubric) for one in bench.judges])


def merge_judge_versions(members: Sequence[JudgeVersion]) -> JudgeVersion:
    """Who judges together is a judge of its own."""
    if len(members) == 1:
        return members[0]
    ids = tuple(sorted(one.id for one in members))
    return replace(
        members[0],
        id=content_digest("panel", *ids)[:12],
        judge=f"panel of {len(members)}",
        model=", ".join(one.model for one in members),
        model_digest=None,
        members=ids,
    )


# Which family a model is of: judges are kinder to their own.

_FAMILIES = {
    "anthropic": r"claude|fable|opus|sonnet|haiku",
    "openai": r"gpt|chatgpt|\bo[1-9]\b|codex|davinci",
    "google": r"gemini|gemma|palm",
    "meta": r"llama",
    "mistral": r"mistral|mixtral|codestral|devstral|magistral|ministral",
    "alibaba": r"qwen|qwq",
    "deepseek": r"deepseek",
    "xai": r"grok",
    "moonshot": r"kimi|moonshot",
    "zhipu": r"\bglm",
    "microsoft": r"\bphi-?\d",
    "huggingface": r"smollm",
}
_FAMILY_PATTERNS = [
    (name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _FAMILIES.items()
]


def find_model_family(model: str) -> str | None:
    """By the model's name; the distilled one is of both, so the first named counts."""
    places = [
        (found.start(), name) for name, known in _FAMILY_PATTERNS if (found := known.search(model))
    ]
    return min(places)[1] if places else None


def is_same_family(judge: str, author: str | None) -> bool | None:
    """None where either is not known."""
    if author is None:
        return None
    if judge == author:
        return True
    judge_family, author_family = find_model_family(judge), find_model_family(author)
    return None if judge_family is None or author_family is None else judge_family == author_family
