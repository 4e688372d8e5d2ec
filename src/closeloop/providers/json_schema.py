"""Does a value fit a JSON schema? The part of the language that msgspec writes and we ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from closeloop.records.errors import BadInput

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
_ANNOTATION_KEYWORDS = {
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$defs",
    "$comment",
}
"""Say nothing about which values fit."""
_KNOWN_KEYWORDS = _ANNOTATION_KEYWORDS | {
    *("$ref", "anyOf", "allOf", "type", "enum", "const"),
    *("properties", "required", "additionalProperties"),
    *("items", "minItems", "maxItems", "minLength", "maxLength", "pattern"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}


def find_schema_problems(value: Any, schema: dict[str, Any]) -> list[str]:
    """What does not fit, each with its place, at most ten; BadInput for a schema we cannot read."""
    collected = []
    for problem in _check_value(value, schema, schema, "$"):
        collected.append(problem)
        if len(collected) == 10:
            break
    return collected


def _check_value(value: Any, schema: Any, root: dict[str, Any], at: str) -> Iterator[str]:
    if isinstance(schema, bool):
        if not schema:
            yield f"{at} should not be there"
        return
    unknown_keywords = schema.keys() - _KNOWN_KEYWORDS
    if unknown_keywords:
        raise BadInput(
            f"JSON schemas with {min(unknown_keywords)!r} cannot be checked: say it otherwise."
        )
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if kinds and not any(_is_of_type(value, kind) for kind in kinds):
        yield f"{at} should be {' or '.join(kinds)}"
        return
    yield from _check_choices(value, schema, at)
    yield from _check_subschemas(value, schema, root, at)
    if isinstance(value, dict):
        yield from _check_object(value, schema, root, at)
    elif isinstance(value, list):
        yield from _check_array(value, schema, root, at)
    elif isinstance(value, str):
        yield from _check_string(value, schema, at)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _check_number(value, schema, at)


def _check_choices(value: Any, schema: Any, at: str) -> Iterator[str]:
    if "enum" in schema and not any(_equal_in_json(value, choice) for choice in schema["enum"]):
        yield f"{at} should be one of {schema['enum']}"
    if "const" in schema and not _equal_in_json(value, schema["const"]):
        yield f"{at} should be {schema['const']!r}"


def _check_subschemas(value: Any, schema: Any, root: dict[str, Any], at: str) -> Iterator[str]:
    """What other schemas, named or listed by this one, say."""
    if "$ref" in schema:
        yield from _check_value(value, _resolve_reference(schema["$ref"], root), root, at)
    for part in schema.get("allOf", ()):
        yield from _check_value(value, part, root, at)
    parts = schema.get("anyOf")
    if parts is not None and not any(_fits_schema(value, part, root) for part in parts):
        yield f"{at} fits none of {len(parts)} choices"


def _check_string(value: str, schema: Any, at: str) -> Iterator[str]:
    yield from _check_bounds(len(value), schema, ("minLength", "maxLength"), f"the length of {at}")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{at} should match {schema['pattern']}"


def _check_object(
    value: dict[str, Any], schema: Any, root: dict[str, Any], at: str
) -> Iterator[str]:
    yield from (
        f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value
    )
    known = schema.get("properties", {})
    for name, part in value.items():
        rest = known.get(name, schema.get("additionalProperties", True))
        yield from _check_value(part, rest, root, f"{at}.{name}")


def _check_array(value: list[Any], schema: Any, root: dict[str, Any], at: str) -> Iterator[str]:
    yield from _check_bounds(len(value), schema, ("minItems", "maxItems"), f"the length of {at}")
    for index, part in enumerate(value):
        yield from _check_value(part, schema.get("items", True), root, f"{at}[{index}]")


def _check_number(value: float, schema: Any, at: str) -> Iterator[str]:
    yield from _check_bounds(value, schema, ("minimum", "maximum"), at)
    if value <= schema.get("exclusiveMinimum", float("-inf")):
        yield f"{at} should be more than {schema['exclusiveMinimum']}"
    if value >= schema.get("exclusiveMaximum", float("inf")):
        yield f"{at} should be less than {schema['exclusiveMaximum']}"


def _check_bounds(value: float, schema: Any, names: tuple[str, str], what: str) -> Iterator[str]:
    least, most = schema.get(names[0]), schema.get(names[1])
    if least is not None and value < least:
        yield f"{what} should be at least {least}"
    if most is not None and value > most:
        yield f"{what} should be at most {most}"


def _fits_schema(value: Any, schema: Any, root: dict[str, Any]) -> bool:
    return next(_check_value(value, schema, root, "$"), None) is None


def _is_of_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    whole = isinstance(value, float) and value.is_integer() and kind == "integer"
    return whole or isinstance(value, _JSON_TYPES.get(kind, ()))


def _equal_in_json(one: Any, other: Any) -> bool:
    """As JSON sees it: 1 is 1.0, and neither is true."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _resolve_reference(reference: str, root: dict[str, Any]) -> Any:
    referred: Any = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        if name:
            referred = referred.get(name) if isinstance(referred, dict) else None
    if not reference.startswith("#") or referred is None:
        raise BadInput(f"The JSON schema refers to {reference!r}, which is not in it.")
    return referred
