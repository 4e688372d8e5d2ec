"""A plan that somebody hands in, looked through before anything is paid for."""

from __future__ import annotations

import re
from collections.abc import Collection

from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.orchestration import OrchestrationPlan
from closeloop.records.record_reading import parse_json, read_record
from closeloop.records.task_order import sort_by_dependencies

MAX_BLUEPRINT_BYTES = 4 << 20
MAX_SUBTASKS = 200
MAX_ID_CHARS = 64
_ID_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_ID_CHARS - 1}}}")


def read_blueprint(content: bytes, name: str, variants: Collection[str]) -> OrchestrationPlan:
    """A plan from JSON; a fault names the field."""
    if len(content) > MAX_BLUEPRINT_BYTES:
        raise BadInput(f"{name} is over {MAX_BLUEPRINT_BYTES >> 20} MB: a plan is shorter.")
    blueprint = read_record(parse_json(content, name), OrchestrationPlan, name)
    check_blueprint(blueprint, name, variants)
    return blueprint


def check_blueprint(blueprint: OrchestrationPlan, name: str, variants: Collection[str]) -> None:
    """BadInput for a plan that cannot be carried out."""
    if not blueprint.request.strip():
        raise BadInput(f"{name} has no request: say what is wanted in the end.")
    if not blueprint.plan:
        raise BadInput(f"{name} has no tasks: add some to `plan`.")
    if len(blueprint.plan) > MAX_SUBTASKS:
        raise BadInput(f"{name} has {len(blueprint.plan)} tasks: {MAX_SUBTASKS} are the most.")
    for task in blueprint.plan:
        if not _ID_PATTERN.fullmatch(task.id):
            raise BadInput(
                f"{name}: the id {task.id[:80]!r} should be up to {MAX_ID_CHARS} letters, digits, "
                "dots, dashes and underscores."
            )
        if not task.prompt.strip():
            raise BadInput(f"{name}: task {task.id!r} asks for nothing: give it a prompt.")
        if task.variant is not None and task.variant not in variants:
            raise unknown_name_error("variant", task.variant, variants)
    sort_by_dependencies(blueprint.plan)
