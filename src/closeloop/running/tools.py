"""What attempts are made with on this machine, opened once."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from closeloop.model.errors import BadInput, Fault
from closeloop.model.record import Record
from closeloop.model.settings import SandboxSettings, Settings
from closeloop.model.task import Task
from closeloop.running.safekeeping import ATTEMPTS
from closeloop.runs.gateway.gateway import Gateway, Recorded
from closeloop.runs.sandbox.ladder import find_sandbox
from closeloop.runs.sandbox.place import describe_guards
from closeloop.runs.variants import Crew, assemble
from closeloop.runs.workspaces import Base, Workspaces


class Tools(Record):
    """A machine's means to make attempts."""

    settings: Settings
    root: Path
    workspaces: Workspaces
    gateway: Gateway
    """The one way from agents to their models."""
    crews: Mapping[str, Crew]
    """By the variant's digest."""
    bases: dict[str, Base | None]
    """Those made or found so far, by the task's digest."""


@asynccontextmanager
async def open_tools(
    settings: Settings,
    root: Path,
    variants: Sequence[str],
    environ: Mapping[str, str],
    recorded: Recorded,
) -> AsyncIterator[Tools]:
    """Open workspaces and gateway for these variants; everything is closed again at the end."""
    crews: dict[str, Crew] = {}
    for crew in (assemble(name, settings, root) for name in dict.fromkeys(variants)):
        twin = crews.setdefault(crew.variant.digest, crew)
        if twin is not crew:
            names = f"{twin.variant.name!r} and {crew.variant.name!r}"
            raise BadInput(f"The variants {names} are the same in all but name: run one of them.")
    async with AsyncExitStack() as opened:
        workspaces = await opened.enter_async_context(open_workspaces(settings, root))
        gateway = await opened.enter_async_context(
            Gateway(environ, root, recorded=recorded, sockets=workspaces.folder())
        )
        for crew in crews.values():
            if crew.model is not None:
                gateway.prepare(crew.variant.model or "", crew.model, crew.variant.limits)
        yield Tools(
            settings=settings,
            root=root,
            workspaces=workspaces,
            gateway=gateway,
            crews=crews,
            bases={},
        )


def open_workspaces(settings: Settings, root: Path) -> Workspaces:
    """Workspaces in the project's cache folder, in the sandbox that the settings name."""
    cache = root / (settings.cache or ".closeloop/cache")
    demand_secrecy(settings, root, cache)
    return Workspaces(cache, settings.sandbox)


def demand_secrecy(settings: Settings, root: Path, cache: Path) -> None:
    """BadInput where agents could read what they are graded by, or what others did."""
    hidden = {
        "the tasks": root / settings.tasks,
        "other attempts": cache,
        "attempts put aside": root / ATTEMPTS,
    }
    if "://" not in settings.store:
        hidden["the store"] = root / settings.store
    for name in settings.sandbox.read:
        shown = Path(name).expanduser().resolve()
        for what, place in hidden.items():
            if place.resolve().is_relative_to(shown):
                raise BadInput(
                    f"`sandbox.read` names {name}, where agents would find {what}: "
                    "name a folder that holds only what they need."
                )


def guarded(workspaces: Workspaces) -> str:
    """How commands are caged here, what is enforced and what is not."""
    return describe_guards(workspaces.guards)


@functools.cache
def describe_sandbox(settings: SandboxSettings) -> str:
    """The sandbox that runs would have on this machine, without opening any workspace."""
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        try:
            return describe_guards(find_sandbox(settings, Path(folder)).guards)
        except (Fault, OSError) as fault:
            return str(fault)


async def base_of(task: Task, workspaces: Workspaces) -> Base | None:
    """The tree that the task starts from; None for a question without a repository."""
    if task.repo is None or task.base is None:
        return None
    return await workspaces.base(task.repo, task.base, task.setup)
