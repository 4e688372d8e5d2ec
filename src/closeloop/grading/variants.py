"""Build a variant from its settings: exactly which agent, model and prompt."""

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
    """A variant with its agent, model and prompt loaded."""

    variant: Variant
    agent: Agent
    model: ModelSettings | None
    prompt: PromptVersion
    system: str | None
    """The configured system prompt; None: the agent's own."""
    written: VariantSettings = VariantSettings()
    """The settings as written, including what is not part of the variant's identity."""


def resolve_variant(name: str, settings: Settings, folder: Path) -> ResolvedVariant:
    """Return the variant of that name in the settings, ready to be opened."""
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
    # The context from memory differs between tasks; enabling it makes another prompt version.
    context_settings = {"memory.hydrate": True} if settings.memory.hydrate else {}
    prompt = prompt_version(agent, system, variant_settings.settings | context_settings)
    parts = {
        "name": name,
        "agent": variant_settings.agent,
        "agent_version": agent.version,
        # Whatever name a recording has here, it must be recognisable as one.
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
    # The name is only a label: renaming a variant does not make it another one.
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
    """Return the version of everything deterministic that the model gets before the task.

    Any changed byte changes its id.
    """
    text, tools = agent.prompt(system)
    settings_json = msgspec.json.encode(settings, order="deterministic").decode()
    return PromptVersion(
        id=content_digest(text, tools, settings_json),
        text=text,
        tools=tools,
        settings=settings_json,
    )


def add_agent_context(variant: ResolvedVariant, context: str) -> str | None:
    """Append the agent context to the system prompt; without context, None means the agent's
    own."""
    if not context:
        return variant.system
    prompt, _ = variant.agent.prompt(variant.system)
    return f"{prompt.rstrip()}\n\n{context}".lstrip()


def _read_system_prompt(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"The prompt {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"The prompt {path} is not UTF-8 text: save it as UTF-8.") from error
