"""A plan that somebody hands in, looked through before anything is paid for."""

from __future__ import annotations

import re
from collections.abc import Collection

from closeloop.model.dependencies import in_order
from closeloop.model.errors import BadInput, unknown
from closeloop.model.orchestration import Blueprint
from closeloop.model.reading import read_json, read_record

LARGEST = 4 << 20
MOST_TASKS = 200
LONGEST_ID = 64
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_ID - 1}}}")


def read_blueprint(content: bytes, name: str, variants: Collection[str]) -> Blueprint:
    """A plan from JSON; a fault names the field."""
    if len(content) > LARGEST:
        raise BadInput(f"{name} is over {LARGEST >> 20} MB: a plan is shorter.")
    blueprint = read_record(read_json(content, name), Blueprint, name)
    demand_sense(blueprint, name, variants)
    return blueprint


def demand_sense(blueprint: Blueprint, name: str, variants: Collection[str]) -> None:
    """BadInput for a plan that cannot be carried out."""
    if not blueprint.request.strip():
        raise BadInput(f"{name} has no request: say what is wanted in the end.")
    if not blueprint.plan:
        raise BadInput(f"{name} has no tasks: add some to `plan`.")
    if len(blueprint.plan) > MOST_TASKS:
        raise BadInput(f"{name} has {len(blueprint.plan)} tasks: {MOST_TASKS} are the most.")
    for task in blueprint.plan:
        if not _ID.fullmatch(task.id):
            raise BadInput(
                f"{name}: the id {task.id[:80]!r} should be up to {LONGEST_ID} letters, digits, "
                "dots, dashes and underscores."
            )
        if not task.prompt.strip():
            raise BadInput(f"{name}: task {task.id!r} asks for nothing: give it a prompt.")
        if task.variant is not None and task.variant not in variants:
            raise unknown("variant", task.variant, variants)
    in_order(blueprint.plan)
