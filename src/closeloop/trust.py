"""Which settings apply: those that loosen security only from a trusted configuration.

A change under check may rewrite `closeloop.toml`. What it sets there about its own sandbox, about
keys, addresses, files outside of the repository, money, or the threshold for its own verdict is
ignored: these settings keep the values that they have without the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import NODEFAULT

from closeloop.records.record import Record
from closeloop.records.settings import Settings

LOOSENING_SETTINGS: Mapping[str, str] = {
    "sandbox.kind": "confines commands",
    "sandbox.read": "lets commands read more files",
    "sandbox.env": "passes variables to commands",
    "sandbox.hosts": "lets commands reach hosts",
    "models.*.provider": "sets who receives keys and code",
    "models.*.model": "sets who receives keys and code",
    "models.*.base_url": "sets who receives keys and code",
    "models.*.key_env": "sets which secret is sent",
    "models.*.key_file": "sets which secret is sent",
    "models.*.key_keyring": "sets which secret is sent",
    "models.*.input_price": "limits spending",
    "models.*.output_price": "limits spending",
    "models.*.cache_read_price": "limits spending",
    "models.*.cache_write_price": "limits spending",
    "variants.*.agent": "sets a program that runs",
    "variants.*.model": "sets who receives code",
    "variants.*.prompt": "names a file that is read and sent",
    "variants.*.settings": "configures a program that runs",
    "variants.*.limits": "limits an agent",
    "variants.*.resources": "limits an agent",
    "limits.seconds": "limits an agent",
    "limits.idle_seconds": "limits an agent",
    "limits.command_seconds": "limits an agent",
    "limits.turns": "limits an agent",
    "limits.tokens": "limits an agent",
    "limits.money": "limits spending",
    "limits.memory_bytes": "limits an agent",
    "limits.processes": "limits an agent",
    "limits.disk_bytes": "limits an agent",
    "limits.files": "limits an agent",
    "limits.output_bytes": "limits an agent",
    "experiments.*.budget": "limits spending",
    "run.budget": "limits spending",
    "deliver.budget": "limits spending",
    "retries": "limits spending",
    "store_wait_seconds": "limits the wait for a database",
    "tasks": "names a folder that is read",
    "store": "names a database that is read and written",
    "cache": "names a folder that is read and written",
    "executor.kind": "sets where code runs",
    "executor.address": "sets where code runs",
    "check.gate": "decides the verdict",
    "check.block_at": "decides the verdict",
    "check.hold_at": "decides the verdict",
    "check.risk_levels": "decides the verdict",
    "check.risk_rows": "decides the verdict",
    "check.advisories": "names a file that is read",
    "check.online": "allows network access",
    "check.indexes": "sets who receives the list of dependencies",
    "check.osv": "sets who receives the list of dependencies",
    "check.fix_cycles": "limits spending",
    "check.model": "sets who receives code",
    "judge.models": "sets who receives code",
    "judge.rubric": "names a file that is read and sent",
    "judge.judge": "sets a program that runs",
    "judge.variant": "sets a program that runs",
    "judge.samples": "limits spending",
    "judge.confirm": "lets text in the work influence the judge",
    "orchestrate.planner": "sets who receives code",
    "orchestrate.workers": "sets programs that run",
    "orchestrate.judges": "sets who receives code",
    "orchestrate.max_retries": "limits spending",
    "orchestrate.seconds": "limits spending",
    "orchestrate.budget": "limits spending",
    "serve.user_header": "sets who may log in",
    "serve.user_scopes": "sets who may log in",
    "serve.proxies": "sets who may log in",
    "serve.hosts": "sets who may log in",
    "pulls.github_secret_env": "sets which deliveries are trusted",
    "pulls.gitlab_token_env": "sets which deliveries are trusted",
    "webhooks.*.url": "sets who receives events",
    "webhooks.*.secret_env": "sets which secret is used",
    "webhooks.*.events": "sets which events are sent",
    "memory.encoder": "sets who receives code",
    "memory.model": "sets who receives code",
    "memory.questions": "limits spending",
    "memory.activate": "activates rules without a person",
}
"""What each setting that loosens security does; `*` stands for user-defined names."""

HARMLESS_SETTINGS = frozenset(
    {
        # The commands run code of the tree in any case, in the sandbox.
        *("commands.setup", "commands.test", "commands.lint", "commands.types"),
        *("commands.build", "commands.others", "check.commands", "check.timeout", "check.tests"),
        "check.coverage",
        *("run.jobs", "run.seed", "run.feedback"),
        # Findings and exclusions: both appear in every report.
        *("rules", "silence", "check.rules", "check.generated", "check.vendored"),
        *("check.complexity", "check.function_lines", "check.class_methods"),
        *("check.copied_tokens", "check.max_files", "check.max_modules", "check.layers"),
        *("models.*.timeout", "models.*.retries", "models.*.concurrency"),
        *("models.*.requests_per_minute", "models.*.tokens_per_minute"),
        *("variants.*.jobs", "variants.*.feedback"),
        *("experiments.*.tasks", "experiments.*.variants", "experiments.*.repeats"),
        *("experiments.*.seed", "experiments.*.jobs", "experiments.*.feedback"),
        *("judge.temperature", "judge.concurrency", "judge.pass_at", "judge.floor"),
        "judge.weights",
        *("orchestrate.stop_when_ignored", "orchestrate.concurrency", "orchestrate.pass_at"),
        *("orchestrate.floor", "orchestrate.weights"),
        *("pulls.agents.*.authors", "pulls.agents.*.labels", "pulls.agents.*.branches"),
        "pulls.agents.*.co_authors",
        *("review.double", "review.golden", "review.seed", "review.questions"),
        *("due.commits", "due.days", "pulls.unreviewed_completes"),
        *("scores.*.kind", "scores.*.unit", "scores.*.low", "scores.*.high", "scores.*.better"),
        *("scores.*.labels", "scores.*.says"),
        *("memory.tokens", "memory.control", "memory.seed", "memory.hydrate"),
    }
)


class EffectiveSettings(Record):
    """The settings that apply, and the names of the tree's settings that were ignored."""

    settings: Settings
    ignored: tuple[str, ...] = ()


def restrict_settings(tree: Settings, trusted: Settings) -> EffectiveSettings:
    """Take what loosens security from the trusted settings, and everything else from the tree's."""
    ignored: list[str] = []
    settings: Settings = _restrict(tree, trusted, "", "", ignored)
    return EffectiveSettings(settings=settings, ignored=tuple(ignored))


def _restrict(tree: Any, trusted: Any, key: str, name: str, ignored: list[str]) -> Any:
    """Return a record with its loosening fields as trusted; `name` has real names, `key` has
    `*`."""
    changes: dict[str, Any] = {}
    for field in type(tree).__struct_fields__:
        inner_key, inner_name = f"{key}{field}", f"{name}{field}"
        tree_value, trusted_value = getattr(tree, field), getattr(trusted, field)
        if isinstance(tree_value, msgspec.Struct):
            changes[field] = _restrict(
                tree_value, trusted_value, f"{inner_key}.", f"{inner_name}.", ignored
            )
        elif isinstance(tree_value, dict) and _has_records(inner_key):
            changes[field] = _restrict_entries(
                tree_value, trusted_value, inner_key, inner_name, ignored
            )
        elif inner_key in LOOSENING_SETTINGS and tree_value != trusted_value:
            changes[field] = trusted_value
            ignored.append(inner_name)
    return msgspec.structs.replace(tree, **changes)


def _restrict_entries(
    tree: Mapping[str, Any], trusted: Mapping[str, Any], key: str, name: str, ignored: list[str]
) -> dict[str, Any]:
    """Return the named records: the trusted ones, and new ones that loosen nothing."""
    entries = dict(trusted)
    for entry, record in tree.items():
        inner_key, inner_name = f"{key}.*.", f"{name}.{entry}."
        if entry in trusted:
            entries[entry] = _restrict(record, trusted[entry], inner_key, inner_name, ignored)
        elif _loosens_security(record, inner_key):
            ignored.append(inner_name.removesuffix("."))
        else:
            entries[entry] = record
    return entries


def _loosens_security(record: Any, key: str) -> bool:
    """Return whether a record sets anything that loosens security."""
    return any(
        f"{key}{field.name}" in LOOSENING_SETTINGS
        and (field.default is NODEFAULT or getattr(record, field.name) != field.default)
        and (field.default_factory is NODEFAULT or getattr(record, field.name))
        for field in msgspec.structs.fields(record)
    )


def _has_records(key: str) -> bool:
    return any(
        setting.startswith(f"{key}.*.") for setting in (*LOOSENING_SETTINGS, *HARMLESS_SETTINGS)
    )


def list_setting_names(kind: type = Settings, prefix: str = "") -> Iterator[str]:
    """Yield the name of every setting, with `*` for user-defined names."""
    for name, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from list_setting_names(hint, f"{prefix}{name}.")
        elif (record := _record_of_entries(hint)) is not None:
            yield from list_setting_names(record, f"{prefix}{name}.*.")
        else:
            yield f"{prefix}{name}"


def _record_of_entries(hint: Any) -> type | None:
    """Return the record type that a table of named records holds."""
    inner = get_args(hint)[-1:]
    is_table = getattr(hint, "__origin__", None) is dict
    if is_table and isinstance(inner[0], type) and issubclass(inner[0], msgspec.Struct):
        record: type = inner[0]
        return record
    return None
