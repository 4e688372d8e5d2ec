"""Make a variant from what people wrote: which agent, model and prompt, exactly."""

from __future__ import annotations

from pathlib import Path

import msgspec

from closeloop import plugins
from closeloop.model.errors import BadInput, unknown
from closeloop.model.protocols import Agent
from closeloop.model.reading import read_change
from closeloop.model.record import Record, digest
from closeloop.model.settings import ModelSettings, Settings, VariantSettings
from closeloop.model.variant import PromptVersion, Variant
from closeloop.runs.models import opening


class Crew(Record):
    """A variant with what its names stand for."""

    variant: Variant
    agent: Agent
    model: ModelSettings | None
    prompt: PromptVersion
    system: str | None
    """The system prompt people gave; None is the agent's own."""
    written: VariantSettings = VariantSettings()
    """As it stands in the settings, with what is no part of its identity."""


def assemble(name: str, settings: Settings, folder: Path) -> Crew:
    """The variant of that name in the settings, ready to be opened."""
    if name not in settings.variants:
        raise unknown("variant", name, settings.variants)
    written = settings.variants[name]
    agent: Agent = plugins.find("agents", written.agent)
    if hasattr(agent, "with_settings"):
        agent = agent.with_settings(written.settings)
    model = opening.settings_of(written.model, settings.models) if written.model else None
    system = _system_prompt(folder / Path(written.prompt).expanduser()) if written.prompt else None
    # What memory tells differs from task to task; that it may tell makes another prompt.
    told = {"memory.hydrate": True} if settings.memory.hydrate else {}
    prompt = prompt_version(agent, system, written.settings | told)
    parts = {
        "name": name,
        "agent": written.agent,
        "agent_version": agent.version,
        "model": written.model,
        "model_digest": opening.digest_of(model, folder) if model else None,
        "prompt": prompt.id,
        "settings": written.settings,
        "limits": read_change(settings.limits, written.limits, f"variant {name!r}", "limits"),
    }
    # A name is what people call it: renaming a variant does not make it another one.
    identity = digest({key: value for key, value in parts.items() if key not in ("name", "model")})
    variant = msgspec.convert({**parts, "digest": identity}, Variant)
    return Crew(
        variant=variant, agent=agent, model=model, prompt=prompt, system=system, written=written
    )


def prompt_version(
    agent: Agent, system: str | None, settings: dict[str, str | int | float | bool]
) -> PromptVersion:
    """Everything deterministic that the model is told before the task: any byte changes the id."""
    text, tools = agent.prompt(system)
    written = msgspec.json.encode(settings, order="deterministic").decode()
    return PromptVersion(id=digest(text, tools, written), text=text, tools=tools, settings=written)


def with_context(crew: Crew, context: str) -> str | None:
    """The system prompt, and at its end what reviewers taught; None is the agent's own alone."""
    if not context:
        return crew.system
    own, _ = crew.agent.prompt(crew.system)
    return f"{own.rstrip()}\n\n{context}".lstrip()


def _system_prompt(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The prompt {path} cannot be read: {error}.") from error
