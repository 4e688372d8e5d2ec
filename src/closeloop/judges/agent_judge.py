"""An agent as a judge: it may read the files; the sandbox prevents changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from posixpath import normpath

import anyio
import msgspec
from msgspec.structs import replace

from closeloop.gateway import Gateway
from closeloop.grading.variants import ResolvedVariant, resolve_variant
from closeloop.judges.judge_panel import JudgePanel
from closeloop.judges.looking import MAX_FILES
from closeloop.providers.model_opening import find_model_settings
from closeloop.providers.structured_reply import read_json_reply
from closeloop.records.attempt import Usage
from closeloop.records.errors import BadInput, Fault, MachineFailed, PluginFailed
from closeloop.records.evaluation import JudgeCase
from closeloop.records.protocols import Assignment, ModelProxy, Work
from closeloop.records.record import Record
from closeloop.records.settings import ModelSettings, Settings
from closeloop.records.trace import ModelReply, ModelRequest
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox
from closeloop.sandbox.workspaces import Workspace, WorkspacePool
from closeloop.text.untrusted import reveal_hidden_text

GRACE_SECONDS = 30.0
MAX_FILE_BYTES = 1 << 20
ANSWER_INSTRUCTION = (
    "\n\nYour last message must be one JSON object of this schema, and nothing else:\n"
)

# Agents follow such files wherever they are, and the judged agent may have written them.
AGENT_FILES = (
    *("AGENTS.md", "AGENTS.override.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md", "QWEN.md"),
    *(".claude", ".codex", ".gemini", ".qwen", ".opencode", ".openhands", ".pi", ".agents"),
    *(".aider*", ".cursor", ".cursorrules", ".mcp.json", "opencode.json*"),
    *("copilot-instructions.md", ".env"),
)


class JudgeResources(Record):
    """What an agent that judges needs."""

    gateway: Gateway
    workspaces: WorkspacePool
    root: Path


class JudgeAgent(Record):
    """The agent that reads the files, and its model."""

    crew: ResolvedVariant
    model: str
    settings: ModelSettings
    means: JudgeResources


class AgentJudgeModel:
    """An agent behind the interface of a model: it answers after it has read the files."""

    def __init__(self, agent: JudgeAgent, sandbox: WorkspaceSandbox, proxy: ModelProxy) -> None:
        self.name = agent.model
        self.seen: dict[str, str] = {}
        """The files that its last answer names, to look up quotes in."""
        self._crew = agent.crew
        self._cage = sandbox
        self._door = proxy

    @property
    def usage(self) -> Usage:
        """Everything that the agent used, however it ended."""
        return self._door.usage

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Run the agent once; only its last message counts."""
        work = await self._run_agent(request)
        if work.exit != "finished":
            raise MachineFailed(
                f"The judging agent did not finish ({work.cause or work.exit}): try again."
            )
        reply = ModelReply(text=work.summary or "")
        self.seen = await self._read_named_files(reply, request)
        return reply

    async def _run_agent(self, request: ModelRequest) -> Work:
        agent, variant = self._crew.agent, self._crew.variant
        assignment = Assignment(
            prompt=build_judge_prompt(request),
            system=request.system,
            sandbox=self._cage,
            model=self._door,
            model_proxy=self._door,
            variant=variant,
            limits=variant.limits,
            answer=lambda question: None,
        )
        try:
            with anyio.fail_after(variant.limits.seconds + GRACE_SECONDS):
                return await agent.work(assignment)
        except TimeoutError:
            raise MachineFailed(
                "The judging agent ran out of time: raise its time limit."
            ) from None
        except Fault:
            raise
        except Exception as error:  # an agent is a plug-in, and may raise anything
            raise PluginFailed(
                f"The agent {agent.name!r} raised {type(error).__name__} ({error}): "
                "report it to its author."
            ) from error

    async def _read_named_files(self, reply: ModelReply, request: ModelRequest) -> dict[str, str]:
        value, wrong = read_json_reply(reply, request.schema or {})
        names = [] if wrong else value.get("files", [])
        files = {}
        for name in map(normpath, names[:MAX_FILES]):
            if name.startswith(("/", "..")):
                continue  # the judge itself may have written it
            try:
                content = await self._cage.read(name, MAX_FILE_BYTES)
            except (OSError, ValueError):
                continue  # then no quotation can match
            files[f"file {name}"] = reveal_hidden_text(content.decode("utf-8", "replace"))
        return files


def build_judge_prompt(request: ModelRequest) -> str:
    """Build the prompt: the case, the conversation so far, and the form of the answer."""
    messages = "\n\n".join(message.text for message in request.messages)
    return messages + ANSWER_INSTRUCTION + msgspec.json.encode(request.schema).decode()


def with_judge_agents(
    panel: JudgePanel, settings: Settings, resources: JudgeResources
) -> JudgePanel:
    """Return the panel with its agents ready to read files, if the settings name one."""
    if settings.judge.variant is None:
        return panel
    if not resources.workspaces.sandbox_limits.files:
        raise BadInput(
            "A judge that reads files needs a sandbox that makes them read-only: "
            "install bubblewrap, or unset judge.variant."
        )
    resolved_variant = resolve_variant(settings.judge.variant, settings, resources.root)

    def make_judge_agent(model: str) -> JudgeAgent:
        model_settings = find_model_settings(model, settings.models)
        resources.gateway.prepare_model(model, model_settings, resolved_variant.variant.limits)
        return JudgeAgent(
            crew=resolved_variant, model=model, settings=model_settings, means=resources
        )

    judges = (
        replace(judge, look=partial(open_agent_judge, make_judge_agent(judge.model)))
        for judge in panel.judges
    )
    return replace(panel, judges=tuple(judges))


@asynccontextmanager
async def open_agent_judge(
    agent: JudgeAgent, case: JudgeCase, before: Usage
) -> AsyncIterator[AgentJudgeModel]:
    """Open a read-only workspace with the change; an empty one without a repository."""
    workspaces, gateway = agent.means.workspaces, agent.means.gateway
    limits, site = agent.crew.variant.limits, case.site
    async with AsyncExitStack() as stack:
        base = None
        if site is not None:
            base = await workspaces.prepare_base(site.repo, site.commit, site.setup)
        workspace = await stack.enter_async_context(workspaces.open(base, limits))
        if site is not None:
            change = case.output.change if site.change is None else site.change
            await prepare_judge_workspace(workspace, [*site.beneath, change or ""])
        connection = gateway.open_proxy(
            agent.model, agent.settings, limits, first=True, usage_before=before
        )
        proxy = await stack.enter_async_context(connection)
        yield AgentJudgeModel(agent, workspace.sandbox.as_read_only(), proxy)


async def prepare_judge_workspace(workspace: Workspace, patches: Sequence[str]) -> None:
    """Apply the change, and remove instructions to the agent that judges it."""
    await workspace.apply_patch("".join(patches))
    name_tests = " -o ".join(f"-name '{name}'" for name in AGENT_FILES)
    removal = await workspace.sandbox.run(rf"find . \( {name_tests} \) -prune -exec rm -rf {{}} +")
    if removal.exit_code != 0:
        raise MachineFailed(f"The judge's workspace could not be prepared: {removal.output[-200:]}")
