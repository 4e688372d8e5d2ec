"""What attempts are made with on this machine, opened once."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from closeloop.attempts.attempt_saving import ATTEMPTS_FOLDER
from closeloop.gateway.model_gateway import ExchangeLookup, Gateway
from closeloop.grading.variants import ResolvedVariant, resolve_variant
from closeloop.records.errors import BadInput, Fault
from closeloop.records.record import Record
from closeloop.records.settings import SandboxSettings, Settings
from closeloop.sandbox.sandbox_ladder import find_sandbox
from closeloop.sandbox.workspace_layout import describe_sandbox_limits
from closeloop.sandbox.workspaces import WorkspaceBase, WorkspacePool


class RunResources(Record):
    """A machine's means to make attempts."""

    settings: Settings
    root: Path
    workspaces: WorkspacePool
    gateway: Gateway
    """The one way from agents to their models."""
    crews: Mapping[str, ResolvedVariant]
    """By the variant's digest."""
    bases: dict[str, WorkspaceBase | None]
    """Those made or found so far, by the task's digest."""


@asynccontextmanager
async def open_run_resources(
    settings: Settings,
    root: Path,
    variants: Sequence[str],
    environ: Mapping[str, str],
    recorded: ExchangeLookup,
) -> AsyncIterator[RunResources]:
    """Open workspaces and gateway for these variants; everything is closed again at the end."""
    crews: dict[str, ResolvedVariant] = {}
    for crew in (resolve_variant(name, settings, root) for name in dict.fromkeys(variants)):
        twin = crews.setdefault(crew.variant.digest, crew)
        if twin is not crew:
            names = f"{twin.variant.name!r} and {crew.variant.name!r}"
            raise BadInput(f"The variants {names} are the same in all but name: run one of them.")
    async with AsyncExitStack() as opened:
        workspaces = await opened.enter_async_context(open_workspaces(settings, root))
        gateway = await opened.enter_async_context(
            Gateway(environ, root, recorded=recorded, sockets=workspaces.name_new_folder())
        )
        for crew in crews.values():
            if crew.model is not None:
                gateway.prepare_model(crew.variant.model or "", crew.model, crew.variant.limits)
        yield RunResources(
            settings=settings,
            root=root,
            workspaces=workspaces,
            gateway=gateway,
            crews=crews,
            bases={},
        )


def open_workspaces(settings: Settings, root: Path) -> WorkspacePool:
    """Workspaces in the project's cache folder, in the sandbox that the settings name."""
    cache = root / (settings.cache or ".closeloop/cache")
    require_hidden_folders(settings, root, cache)
    return WorkspacePool(cache, settings.sandbox)


def require_hidden_folders(settings: Settings, root: Path, cache: Path) -> None:
    """BadInput where agents could read what they are graded by, or what others did."""
    hidden = {
        "the tasks": root / settings.tasks,
        "other attempts": cache,
        "attempts put aside": root / ATTEMPTS_FOLDER,
    }
    if "://" not in settings.store:
        hidden["the store"] = root / settings.store
    for name in settings.sandbox.read:
        readable_folder = Path(name).expanduser().resolve()
        for what, place in hidden.items():
            if place.resolve().is_relative_to(readable_folder):
                raise BadInput(
                    f"`sandbox.read` names {name}, where agents would find {what}: "
                    "name a folder that holds only what they need."
                )


def sandbox_description(workspaces: WorkspacePool) -> str:
    """How commands are caged here, what is enforced and what is not."""
    return describe_sandbox_limits(workspaces.guards)


@functools.cache
def describe_sandbox(settings: SandboxSettings) -> str:
    """The sandbox that runs would have on this machine, without opening any workspace."""
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        try:
            return describe_sandbox_limits(find_sandbox(settings, Path(folder)).guards)
        except (Fault, OSError) as fault:
            return str(fault)
