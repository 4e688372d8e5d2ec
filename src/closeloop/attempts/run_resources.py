"""The resources of attempts on this machine, opened once."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from anyio import to_thread

from closeloop.attempts.attempt_saving import ATTEMPTS_FOLDER
from closeloop.gateway.model_gateway import ExchangeLookup, Gateway
from closeloop.grading import task_proof
from closeloop.grading.variants import ResolvedVariant, resolve_variant
from closeloop.providers.model_opening import MissingKey
from closeloop.providers.model_prices import find_model_prices
from closeloop.records.attempt import AttemptRow, Proof
from closeloop.records.errors import BadInput, Fault
from closeloop.records.experiment_plan import (
    ExperimentForecast,
    ExperimentPlan,
    ExperimentState,
    ExperimentStatus,
    RunProgress,
    ScheduledAttempt,
)
from closeloop.records.record import Record
from closeloop.records.settings import ModelSettings, SandboxSettings, Settings
from closeloop.records.task import Experiment, Task
from closeloop.sandbox.machine_view import describe_sandbox_limits
from closeloop.sandbox.sandbox_ladder import find_sandbox
from closeloop.sandbox.workspaces import WorkspaceBase, WorkspacePool
from closeloop.statistics.rate_comparison import detectable_difference, detectable_on_these_tasks
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.tasks.task_sets import hide_task
from closeloop.text.redaction import redact_proof


class RunResources(Record):
    """The resources of attempts on one machine."""

    settings: Settings
    root: Path
    workspaces: WorkspacePool
    gateway: Gateway
    """The only connection of agents to their models."""
    resolved_variants: Mapping[str, ResolvedVariant]
    """By the variant's digest."""
    bases: dict[str, WorkspaceBase | None]
    """Prepared bases by the task's digest."""


@asynccontextmanager
async def open_run_resources(
    settings: Settings,
    root: Path,
    variants: Sequence[str],
    environ: Mapping[str, str],
    recorded: ExchangeLookup,
) -> AsyncIterator[RunResources]:
    """Open workspaces and gateway for these variants; everything is closed at the end."""
    resolved_variants: dict[str, ResolvedVariant] = {}
    for resolved in (resolve_variant(name, settings, root) for name in dict.fromkeys(variants)):
        twin = resolved_variants.setdefault(resolved.variant.digest, resolved)
        if twin is not resolved:
            names = f"{twin.variant.name!r} and {resolved.variant.name!r}"
            raise BadInput(f"The variants {names} differ only in their names: run one of them.")
    async with AsyncExitStack() as exit_stack:
        workspaces = await exit_stack.enter_async_context(open_workspaces(settings, root))
        gateway = await exit_stack.enter_async_context(
            Gateway(environ, root, recorded=recorded, sockets=workspaces.name_new_folder())
        )
        for resolved_variant in resolved_variants.values():
            if resolved_variant.model is not None:
                prepare_variant_model(gateway, resolved_variant)
            elif resolved_variant.variant.agent == "builtin":
                from closeloop.agents.builtin import missing_model_error  # loads the agent

                raise missing_model_error(resolved_variant.variant.name)
        yield RunResources(
            settings=settings,
            root=root,
            workspaces=workspaces,
            gateway=gateway,
            resolved_variants=resolved_variants,
            bases={},
        )


def prepare_variant_model(gateway: Gateway, resolved_variant: ResolvedVariant) -> None:
    """Check that a variant's model can be used; without a key, say what can be run."""
    variant, model = resolved_variant.variant, resolved_variant.model
    assert model is not None, "the variant has a model"
    try:
        gateway.prepare_model(variant.model or "", model, variant.limits)
    except MissingKey as fault:
        raise BadInput(
            f"{fault} Without a key, `closeloop run --agent noop --agent reference` runs the "
            "controls on your tasks."
        ) from fault


def open_workspaces(settings: Settings, root: Path) -> WorkspacePool:
    """Open workspaces in the project's cache folder, in the configured sandbox."""
    cache = root / (settings.cache or ".closeloop/cache")
    require_hidden_folders(settings, root, cache)
    return WorkspacePool(cache, settings.sandbox)


def require_hidden_folders(settings: Settings, root: Path, cache: Path) -> None:
    """Raise BadInput if agents could read their acceptance tests or others' work."""
    hidden_paths = {
        "the tasks": root / settings.tasks,
        "other attempts": cache,
        "unsaved attempts": root / ATTEMPTS_FOLDER,
    }
    if "://" not in settings.store:
        hidden_paths["the store"] = root / settings.store
    for name in settings.sandbox.read:
        readable_folder = Path(name).expanduser().resolve()
        for description, path in hidden_paths.items():
            if path.resolve().is_relative_to(readable_folder):
                raise BadInput(
                    f"`sandbox.read` contains {name}, where agents would find {description}: "
                    "choose a folder with only what they need."
                )


def sandbox_description(workspaces: WorkspacePool) -> str:
    """Describe how commands are confined: what is enforced and what is not."""
    return _describe_limits(workspaces.sandbox_limits)


_describe_limits = functools.cache(describe_sandbox_limits)


@functools.cache
def describe_sandbox(settings: SandboxSettings) -> str:
    """Describe the sandbox of runs on this machine, without opening a workspace."""
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        try:
            return describe_sandbox_limits(find_sandbox(settings, Path(folder)).sandbox_limits)
        except (Fault, OSError) as fault:
            return str(fault)


# Prepare tasks for attempts: their base tree, and their test results before any change.


ProgressCallback = Callable[[RunProgress], None]


async def prepare_task(task: Task, tools: RunResources, store: Store) -> Proof:
    """Prepare the task's base tree and its test results there, once."""
    try:
        base = tools.bases[task.digest] = await prepare_task_base(task, tools.workspaces)
    except BadInput as fault:
        return task_proof.unready_proof(task, fault)
    proof = await to_thread.run_sync(store.load_proof, task.grading)
    if proof is None or proof.version != task_proof.GRADER_VERSION:
        proof = await task_proof.check_gradable(tools.workspaces, base, task)
        # The cause may be outside the task, such as a tool that is not installed yet.
        if proof.state != "unproved":
            await to_thread.run_sync(save_usable_proof, proof, store)
    return proof


def save_usable_proof(proof: Proof, store: Store) -> None:
    """Save a proof, unless a machine fault may have affected it."""
    test_runs = (proof.before, proof.reference)
    if not any(run is not None and run.trouble is not None for run in test_runs):
        store.save_proof(redact_proof(proof))


async def prove_tasks(
    tasks: Sequence[Task],
    store: Store,
    workspaces: WorkspacePool,
    *,
    repeats: int,
    report_progress: ProgressCallback,
) -> list[Proof]:
    """Prove each task by its controls, and save the results."""
    proofs = []
    for task in tasks:
        report_progress(RunProgress(stage="preparing", task=task.id))
        try:
            base = await prepare_task_base(task, workspaces)
            proof = await task_proof.prove_task(workspaces, base, task, repeats)
            save_usable_proof(proof, store)
        except BadInput as fault:
            proof = task_proof.unready_proof(task, fault)
        store.save_task(task)
        report_progress(RunProgress(stage="prepared", task=task.id))
        proofs.append(proof)
    return proofs


async def prepare_task_base(task: Task, workspaces: WorkspacePool) -> WorkspaceBase | None:
    """Prepare the tree that the task starts from; None for a question without a repository."""
    if task.repo is None or task.base is None:
        return None
    return await workspaces.prepare_base(task.repo, task.base, task.setup)


# The status of experiments, and forecasts before one begins.


def list_experiment_statuses(store: Store) -> list[ExperimentStatus]:
    """List every experiment, newest first."""
    claimed_jobs = store.experiments.list_claimed_jobs()
    return [
        read_experiment_status(store, experiment, claimed_jobs)
        for experiment in store.list_experiments()
    ]


def read_experiment_status(
    store: Store, experiment: Experiment, running_keys: Sequence[str]
) -> ExperimentStatus:
    """Return one experiment's status, given the keys of all work in progress."""
    filled = store.counts.count_filled_slots(experiment)
    running = sum(_belongs_to(key, experiment) for key in running_keys)
    spent = store.experiments.total_cost(experiment)
    tasks = [store.load_task(digest) for digest in experiment.tasks]
    variants = [store.load_variant(digest) for digest in experiment.variants]
    total = experiment.repeats * sum(
        variant is None or task is None or variant.can_attempt(task)
        for task in tasks
        for variant in variants
    )
    state: ExperimentState = "stopped"
    if filled == total:
        state = "done"
    elif store.experiments.is_paused(experiment.id):
        state = "paused"
    elif running:
        state = "running"
    elif experiment.budget is not None and (spent or 0.0) >= experiment.budget:
        state = "spent"
    shared = store.experiments.shared_cost(experiment)
    begun = store.experiments.first_start_time(experiment.id)
    if spent is None and begun is None and shared is not None:
        spent = 0.0  # others made all of its attempts
    return ExperimentStatus(
        experiment=experiment,
        tasks=tuple(hide_task(task).id for task in tasks if task),
        variants=tuple(variant.name for variant in variants if variant),
        total=total,
        done=filled,
        running=running,
        not_run=max(0, total - filled - running),
        for_review=_count_for_review(store, experiment, tasks),
        cost=spent,
        shared_cost=shared,
        begun=begun,
        state=state,
    )


def _count_for_review(store: Store, experiment: Experiment, tasks: Sequence[Task | None]) -> int:
    """Count the attempts at tasks without a check that no person has reviewed."""
    digests = [task.digest for task in tasks if task and not task.acceptance.is_given]
    if not digests:
        return 0
    rows = store.list_attempts(task_digests=digests, variants=experiment.variants)
    waiting = {
        row.id
        for row in rows
        if row.is_for_review and row.replay_of is None and row.number <= experiment.repeats
    }
    span = AttemptSpan(attempts=tuple(waiting))
    return len(waiting - store.scores.load_merging_shares(span).keys())


def _belongs_to(key: str, experiment: Experiment) -> bool:
    """Whether a job's key is that of a slot of the experiment: task, variant, repeat, retry."""
    task, variant, number = (*key.split("/"), "", "")[:3]
    is_member = task in experiment.tasks and variant in experiment.variants
    return is_member and int(number) <= experiment.repeats


MIN_FINISHED_ATTEMPTS = 2
MIN_FINISHED_SHARE = 0.2
"""Of the attempts of a run: before so many are finished, no remaining time is stated."""
PAUSE_SECONDS = 600
"""A longer time without an attempt is a pause, which does not count in the pace."""


def estimate_seconds_left(elapsed_seconds: float, finished: int, remaining: int) -> float | None:
    """Return the seconds until the last attempt ends; None while too few are finished.

    The pace is wall time per finished attempt, which includes how many run at once.
    """
    min_finished = max(MIN_FINISHED_ATTEMPTS, MIN_FINISHED_SHARE * (finished + remaining))
    return elapsed_seconds / finished * remaining if finished >= min_finished else None


def count_working_seconds(rows: Iterable[AttemptRow]) -> float:
    """Return the wall time from the first attempt to the end of the last, without pauses."""
    spans = sorted(
        (row.started.timestamp(), row.started.timestamp() + (row.seconds or 0.0))
        for row in rows
        if row.started is not None
    )
    total, end = 0.0, -PAUSE_SECONDS - 1.0
    for start, stop in spans:
        total += stop - start if start - end > PAUSE_SECONDS else max(0.0, stop - end)
        end = max(end, stop)
    return total


# The forecast of a plan before it begins: statistical power, duration and cost.


def forecast_run(
    plan: ExperimentPlan,
    missing: Iterable[ScheduledAttempt],
    resolved_variants: Mapping[str, ResolvedVariant],
    store: Store,
    jobs: int,
) -> ExperimentForecast:
    """Forecast from earlier attempts of the same variants, else the same agents and models."""
    missing_counts = Counter(slot.variant.digest for slot in missing)
    averages = {
        variant.digest: store.experiments.average_attempt(variant) for variant in plan.variants
    }
    paid_variants = [
        resolved
        for resolved in resolved_variants.values()
        if resolved.model is not None and is_paid_model(resolved.model)
    ]
    seconds: float | None = 0.0
    cost: float | None = 0.0
    for digest, count in missing_counts.items():
        average, model = averages[digest], resolved_variants[digest].model
        is_free = model is None or not is_paid_model(model)
        average_cost = 0.0 if is_free and average.cost is None else average.cost
        seconds = _add_product(seconds, count, average.seconds)
        cost = _add_product(cost, count, average_cost)
    is_comparison, size = len(plan.variants) > 1, (len(plan.tasks), plan.experiment.repeats)
    effect_here = detectable_on_these_tasks(*size, comparisons=max(1, len(plan.variants) - 1))
    return ExperimentForecast(
        attempts=sum(1 for _ in plan.list_slots()),
        missing=sum(missing_counts.values()),
        tasks=size[0],
        repeats=size[1],
        effect=detectable_difference(*size) if is_comparison else None,
        effect_here=effect_here if is_comparison else None,
        seconds=None if seconds is None else seconds / jobs,
        cost=cost,
        paid=tuple(dict.fromkeys(resolved.variant.model or "" for resolved in paid_variants)),
    )


def _add_product(total: float | None, count: int, amount: float | None) -> float | None:
    return None if total is None or amount is None else total + count * amount


def is_paid_model(model: ModelSettings) -> bool:
    """Whether it costs money: neither local models nor one's own servers do."""
    if model.provider in ("scripted", "recorded"):
        return False
    if model.base_url is None:
        return True
    host = urlsplit(model.base_url).hostname or ""
    try:
        is_local = ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost" or host.endswith(".localhost")
    return not is_local and find_model_prices(model) is not None


def require_prices(budget: float | None, resolved_variants: Mapping[str, ResolvedVariant]) -> None:
    """Require known prices for a budget in money."""
    for resolved in resolved_variants.values() if budget is not None else ():
        model = resolved.model
        if model is not None and is_paid_model(model) and find_model_prices(model) is None:
            raise BadInput(
                f"The budget needs the price of {resolved.variant.model!r}: set its "
                "input_price and output_price, or no budget."
            )
