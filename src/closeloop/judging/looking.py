"""An agent as a judge: it may look at the files, and the sandbox keeps it from changing any."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from posixpath import normpath

import anyio
import msgspec
from msgspec.structs import replace

from closeloop.judges.looking import MOST_FILES
from closeloop.judging.bench import Bench
from closeloop.model.attempt import Usage
from closeloop.model.chat import ModelReply, ModelRequest
from closeloop.model.errors import BadInput, Fault, MachineFailed, PluginFailed
from closeloop.model.evaluation import Case
from closeloop.model.fences import shown
from closeloop.model.protocols import Assignment, Door, Work
from closeloop.model.record import Record
from closeloop.model.settings import ModelSettings, Settings
from closeloop.runs.gateway import Gateway
from closeloop.runs.models.opening import settings_of
from closeloop.runs.models.structured import read_json
from closeloop.runs.sandbox.cage import Cage
from closeloop.runs.variants import Crew, assemble
from closeloop.runs.workspaces import Workspace, Workspaces

GRACE_SECONDS = 30.0
LARGEST_FILE = 1 << 20
ANSWER = "\n\nYour last message must be one JSON object of this schema, and nothing else:\n"

# Agents obey such files wherever they find them, and these are written by whoever is judged.
ORDERS = (
    *("AGENTS.md", "AGENTS.override.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md", "QWEN.md"),
    *(".claude", ".codex", ".gemini", ".qwen", ".opencode", ".openhands", ".pi", ".agents"),
    *(".aider*", ".cursor", ".cursorrules", ".mcp.json", "opencode.json*"),
    *("copilot-instructions.md", ".env"),
)


class Means(Record):
    """What looking takes."""

    gateway: Gateway
    workspaces: Workspaces
    root: Path


class Looker(Record):
    """Who looks, and by which model."""

    crew: Crew
    model: str
    settings: ModelSettings
    means: Means


class Looking:
    """A model to whoever asks: it answers when the agent has looked."""

    def __init__(self, looker: Looker, cage: Cage, door: Door) -> None:
        self.name = looker.model
        self.seen: dict[str, str] = {}
        """The files that its last answer names, to look up quotes in."""
        self._crew = looker.crew
        self._cage = cage
        self._door = door

    @property
    def usage(self) -> Usage:
        """All that the agent used, however it ended."""
        return self._door.usage

    async def reply(self, request: ModelRequest) -> ModelReply:
        """One piece of work, of which only the last message counts."""
        work = await self._work(request)
        if work.exit != "finished":
            raise MachineFailed(
                f"The agent that judges did not finish, {work.cause or work.exit}: try again."
            )
        reply = ModelReply(text=work.summary or "")
        self.seen = await self._named(reply, request)
        return reply

    async def _work(self, request: ModelRequest) -> Work:
        agent, variant = self._crew.agent, self._crew.variant
        assignment = Assignment(
            prompt=prompt_of(request),
            system=request.system,
            cage=self._cage,
            model=self._door,
            door=self._door,
            variant=variant,
            limits=variant.limits,
            answer=lambda question: None,
        )
        try:
            with anyio.fail_after(variant.limits.seconds + GRACE_SECONDS):
                return await agent.work(assignment)
        except TimeoutError:
            raise MachineFailed("The agent that judges ran out of time: give it more.") from None
        except Fault:
            raise
        except Exception as error:  # an agent is a plug-in, and may raise anything
            raise PluginFailed(
                f"The agent {agent.name!r} raised {type(error).__name__} ({error}): mend it."
            ) from error

    async def _named(self, reply: ModelReply, request: ModelRequest) -> dict[str, str]:
        value, wrong = read_json(reply, request.schema or {})
        names = [] if wrong else value.get("files", [])
        found = {}
        for name in map(normpath, names[:MOST_FILES]):
            if name.startswith(("/", "..")):
                continue  # it may have written that itself
            try:
                content = await self._cage.read(name, LARGEST_FILE)
            except (OSError, ValueError):
                continue  # then no quote is found in it
            found[f"file {name}"] = shown(content.decode("utf-8", "replace"))
        return found


def prompt_of(request: ModelRequest) -> str:
    """The case, all that was said of it, and what the answer must be like."""
    said = "\n\n".join(message.text for message in request.messages)
    return said + ANSWER + msgspec.json.encode(request.schema).decode()


def with_eyes(bench: Bench, settings: Settings, means: Means) -> Bench:
    """The bench with its agents ready to look, where the settings name one."""
    if settings.judge.variant is None:
        return bench
    if not means.workspaces.guards.files:
        raise BadInput(
            "A judge that looks at files needs a sandbox that keeps it from writing them: "
            "install bubblewrap, or unset judge.variant."
        )
    crew = assemble(settings.judge.variant, settings, means.root)

    def looker(model: str) -> Looker:
        chosen = settings_of(model, settings.models)
        means.gateway.prepare(model, chosen, crew.variant.limits)
        return Looker(crew=crew, model=model, settings=chosen, means=means)

    judges = (replace(one, look=partial(look, looker(one.model))) for one in bench.judges)
    return replace(bench, judges=tuple(judges))


@asynccontextmanager
async def look(looker: Looker, case: Case, before: Usage) -> AsyncIterator[Looking]:
    """A workspace with the change in it, frozen; an empty one where there is no repository."""
    workspaces, gateway = looker.means.workspaces, looker.means.gateway
    limits, site = looker.crew.variant.limits, case.site
    async with AsyncExitStack() as opened:
        base = None
        if site is not None:
            base = await workspaces.base(site.repo, site.commit, site.setup)
        workspace = await opened.enter_async_context(workspaces.open(base, limits))
        if site is not None:
            change = case.output.change if site.change is None else site.change
            await prepare(workspace, [*site.beneath, change or ""])
        way = gateway.open(looker.model, looker.settings, limits, first=True, before=before)
        door = await opened.enter_async_context(way)
        yield Looking(looker, workspace.cage.frozen(), door)


async def prepare(workspace: Workspace, patches: Sequence[str]) -> None:
    """The change in its place, and no orders to the agent that judges it."""
    await workspace.apply("".join(patches))
    named = " -o ".join(f"-name '{name}'" for name in ORDERS)
    ran = await workspace.cage.run(rf"find . \( {named} \) -prune -exec rm -rf {{}} +")
    if ran.exit_code != 0:
        raise MachineFailed(f"The judge's workspace could not be prepared: {ran.output[-200:]}")
