"""Make a variant from what people wrote: which agent, model and prompt, exactly."""

from __future__ import annotations

from pathlib import Path

import msgspec

from closeloop import plugins
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.protocols import Agent
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import ModelSettings, Settings, VariantSettings
from closeloop.records.task import PromptVersion, Variant
from closeloop.text.untrusted import read_changed_record


class ResolvedVariant(Record):
    """A variant with what its names stand for."""

    variant: Variant
    agent: Agent
    model: ModelSettings | None
    prompt: PromptVersion
    system: str | None
    """The system prompt people gave; None is the agent's own."""
    written: VariantSettings = VariantSettings()
    """As it stands in the settings, with what is no part of its identity."""


def resolve_variant(name: str, settings: Settings, folder: Path) -> ResolvedVariant:
    """The variant of that name in the settings, ready to be opened."""
    from closeloop.providers import model_opening

    if name not in settings.variants:
        raise unknown_name_error("variant", name, settings.variants)
    variant_settings = settings.variants[name]
    agent: Agent = plugins.load_plugin("agents", variant_settings.agent)
    if hasattr(agent, "with_settings"):
        agent = agent.with_settings(variant_settings.settings)
    model = (
        model_opening.find_model_settings(variant_settings.model, settings.models)
        if variant_settings.model
        else None
    )
    system = (
        _read_system_prompt(folder / Path(variant_settings.prompt).expanduser())
        if variant_settings.prompt
        else None
    )
    # What memory tells differs from task to task; that it may tell makes another prompt.
    context_settings = {"memory.hydrate": True} if settings.memory.hydrate else {}
    prompt = prompt_version(agent, system, variant_settings.settings | context_settings)
    parts = {
        "name": name,
        "agent": variant_settings.agent,
        "agent_version": agent.version,
        # Whatever a recording is called here, everybody must see that it is one.
        "model": f"recorded:{model.model}"
        if model and model.provider == "recorded"
        else variant_settings.model,
        "model_digest": model_opening.digest_model(model, folder) if model else None,
        "prompt": prompt.id,
        "settings": variant_settings.settings,
        "limits": read_changed_record(
            settings.limits, variant_settings.limits, f"variant {name!r}", "limits"
        ),
    }
    # A name is what people call it: renaming a variant does not make it another one.
    identity = content_digest(
        {key: value for key, value in parts.items() if key not in ("name", "model")}
    )
    variant = msgspec.convert({**parts, "digest": identity}, Variant)
    return ResolvedVariant(
        variant=variant,
        agent=agent,
        model=model,
        prompt=prompt,
        system=system,
        written=variant_settings,
    )


def prompt_version(
    agent: Agent, system: str | None, settings: dict[str, str | int | float | bool]
) -> PromptVersion:
    """Everything deterministic that the model is told before the task: any byte changes the id."""
    text, tools = agent.prompt(system)
    settings_json = msgspec.json.encode(settings, order="deterministic").decode()
    return PromptVersion(
        id=content_digest(text, tools, settings_json),
        text=text,
        tools=tools,
        settings=settings_json,
    )


def add_agent_context(crew: ResolvedVariant, context: str) -> str | None:
    """The system prompt, and at its end what reviewers taught; None is the agent's own alone."""
    if not context:
        return crew.system
    own, _ = crew.agent.prompt(crew.system)
    return f"{own.rstrip()}\n\n{context}".lstrip()


def _read_system_prompt(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"The prompt {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"The prompt {path} is not UTF-8 text: save it as UTF-8.") from error
