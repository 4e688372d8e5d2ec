"""Structured answers: JSON that is validated by a schema, with one repair."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.errors import BadInput, Fault, MachineFailed, OutOfBudget
from closeloop.records.protocols import Model
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest
from closeloop.text.wording import truncate_words

# Does a value match a JSON schema? The part of the language that msgspec writes and we use.

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
"""Keywords that do not restrict values."""
_KNOWN_KEYWORDS = _ANNOTATION_KEYWORDS | {
    *("$ref", "anyOf", "allOf", "type", "enum", "const"),
    *("properties", "required", "additionalProperties"),
    *("items", "minItems", "maxItems", "minLength", "maxLength", "pattern"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}


def find_schema_problems(value: Any, schema: dict[str, Any]) -> list[str]:
    """List at most ten schema violations with their location; BadInput for an unsupported
    schema."""
    violations = []
    for problem in _check_value(value, schema, schema, "$"):
        violations.append(problem)
        if len(violations) == 10:
            break
    return violations


def _check_value(value: Any, schema: Any, root: dict[str, Any], path: str) -> Iterator[str]:
    if isinstance(schema, bool):
        if not schema:
            yield f"{path} should not be there"
        return
    unknown_keywords = schema.keys() - _KNOWN_KEYWORDS
    if unknown_keywords:
        raise BadInput(
            f"JSON schemas with {min(unknown_keywords)!r} are not supported: write the "
            "schema without it."
        )
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if kinds and not any(_is_of_type(value, kind) for kind in kinds):
        yield f"{path} should be {' or '.join(kinds)}"
        return
    yield from _check_choices(value, schema, path)
    yield from _check_subschemas(value, schema, root, path)
    if isinstance(value, dict):
        yield from _check_object(value, schema, root, path)
    elif isinstance(value, list):
        yield from _check_array(value, schema, root, path)
    elif isinstance(value, str):
        yield from _check_string(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _check_number(value, schema, path)


def _check_choices(value: Any, schema: Any, path: str) -> Iterator[str]:
    if "enum" in schema and not any(_equal_in_json(value, choice) for choice in schema["enum"]):
        yield f"{path} should be one of {schema['enum']}"
    if "const" in schema and not _equal_in_json(value, schema["const"]):
        yield f"{path} should be {schema['const']!r}"


def _check_subschemas(value: Any, schema: Any, root: dict[str, Any], path: str) -> Iterator[str]:
    """Yield violations of subschemas."""
    if "$ref" in schema:
        yield from _check_value(value, _resolve_reference(schema["$ref"], root), root, path)
    for part in schema.get("allOf", ()):
        yield from _check_value(value, part, root, path)
    parts = schema.get("anyOf")
    if parts is not None and not any(_fits_schema(value, part, root) for part in parts):
        yield f"{path} fits none of {len(parts)} choices"


def _check_string(value: str, schema: Any, path: str) -> Iterator[str]:
    yield from _check_bounds(
        len(value), schema, ("minLength", "maxLength"), f"the length of {path}"
    )
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path} should match {schema['pattern']}"


def _check_object(
    value: dict[str, Any], schema: Any, root: dict[str, Any], path: str
) -> Iterator[str]:
    yield from (
        f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value
    )
    properties = schema.get("properties", {})
    for name, part in value.items():
        part_schema = properties.get(name, schema.get("additionalProperties", True))
        yield from _check_value(part, part_schema, root, f"{path}.{name}")


def _check_array(value: list[Any], schema: Any, root: dict[str, Any], path: str) -> Iterator[str]:
    yield from _check_bounds(len(value), schema, ("minItems", "maxItems"), f"the length of {path}")
    for index, part in enumerate(value):
        yield from _check_value(part, schema.get("items", True), root, f"{path}[{index}]")


def _check_number(value: float, schema: Any, path: str) -> Iterator[str]:
    yield from _check_bounds(value, schema, ("minimum", "maximum"), path)
    if value <= schema.get("exclusiveMinimum", float("-inf")):
        yield f"{path} should be more than {schema['exclusiveMinimum']}"
    if value >= schema.get("exclusiveMaximum", float("inf")):
        yield f"{path} should be less than {schema['exclusiveMaximum']}"


def _check_bounds(value: float, schema: Any, names: tuple[str, str], subject: str) -> Iterator[str]:
    minimum, maximum = schema.get(names[0]), schema.get(names[1])
    if minimum is not None and value < minimum:
        yield f"{subject} should be at least {minimum}"
    if maximum is not None and value > maximum:
        yield f"{subject} should be at most {maximum}"


def _fits_schema(value: Any, schema: Any, root: dict[str, Any]) -> bool:
    return next(_check_value(value, schema, root, "$"), None) is None


def _is_of_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    is_whole = isinstance(value, float) and value.is_integer() and kind == "integer"
    return is_whole or isinstance(value, _JSON_TYPES.get(kind, ()))


def _equal_in_json(one: Any, other: Any) -> bool:
    """Compare as JSON does: 1 equals 1.0, and neither equals true."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _resolve_reference(reference: str, root: dict[str, Any]) -> Any:
    target: Any = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        if name:
            target = target.get(name) if isinstance(target, dict) else None
    if not reference.startswith("#") or target is None:
        raise BadInput(f"The JSON schema refers to {reference!r}, which is not in it.")
    return target


_FENCED = re.compile(r"```[a-zA-Z]*[ \t\r]*\n(.*?)```", re.DOTALL)


async def ask_json(model: Model, request: ModelRequest) -> ModelReply:
    """Return the model's reply with a `value` of the request's schema; MachineFailed if there is
    none."""
    assert request.schema is not None
    reply = await model.reply(request)
    value, problems_found = read_json_reply(reply, request.schema)
    if problems_found and reply.stop != "refused":
        reply = await model.reply(_build_repair_request(request, reply, problems_found))
        value, problems_found = read_json_reply(reply, request.schema)
    if reply.stop == "refused" and problems_found:
        raise MachineFailed(f"{model.name} refused to answer: {truncate_words(reply.text, 200)}")
    if problems_found:
        raise MachineFailed(
            f"{model.name} did not reply with the requested JSON in two tries "
            f"({'; '.join(problems_found[:3])}): try another model."
        )
    return msgspec.structs.replace(reply, value=value)


def read_json_reply(reply: ModelReply, schema: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return the value of a reply and its schema violations."""
    for text in _json_candidates(reply.text):
        try:
            value = msgspec.json.decode(text)
        except (ValueError, RecursionError):
            continue
        return value, find_schema_problems(value, schema)
    cut_note = ", it was cut off" if reply.stop == "length" else ""
    return None, [f"the reply is not JSON{cut_note}"]


def _json_candidates(text: str) -> list[str]:
    """Return the text itself, else the JSON inside it: models add text around their JSON."""
    text = text.rpartition("</think>")[2].strip()
    fenced = _FENCED.findall(text)
    candidates = [text, *fenced[-1:]]
    for opening, closing in ("{}", "[]"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            candidates.append(text[start : end + 1])
    # Output before the answer may contain brackets too.
    candidates.append(text[text.rfind("\n{") + 1 : text.rfind("}") + 1])
    return candidates


def _build_repair_request(
    request: ModelRequest, reply: ModelReply, problems: list[str]
) -> ModelRequest:
    schema = msgspec.json.encode(request.schema).decode()
    reply_message = ChatMessage(role="assistant", text=reply.text or "(nothing)", echo=reply.echo)
    repair_message = ChatMessage(
        role="user",
        text=f"That does not fit: {'; '.join(problems)}. "
        f"Reply again, with nothing but one JSON value of this JSON schema:\n{schema}",
    )
    return msgspec.structs.replace(
        request, messages=(*request.messages, reply_message, repair_message)
    )


# One question to a model, with one chance to repair an invalid reply.

Answer = TypeVar("Answer")

# In our own words: the original error may quote the judged work.
REPAIR_REQUEST = (
    "That was not the JSON that was asked for. Answer once more, with nothing but one JSON object "
    "of the schema, and with the seal copied exactly."
)


class ModelAnswer(Generic[Answer]):
    """An answer, or why there is none."""

    def __init__(self, answer: Answer | None, why: str | None, usage: Usage) -> None:
        self.answer = answer
        self.why = why
        self.usage = usage


async def ask_with_repair(
    model: Model, request: ModelRequest, read: Callable[[Any], Answer | str]
) -> ModelAnswer[Answer]:
    """Ask, and convert the reply by `read`; a string from `read` says why it is invalid."""
    usages: list[Usage] = []
    problem = ""
    current_request = request
    assert request.schema is not None
    for _ in range(2):
        try:
            reply = await model.reply(current_request)
        except BadInput:
            raise
        except (Fault, OutOfBudget) as fault:
            return ModelAnswer(None, str(fault), sum_usage(usages))
        usages.append(reply.usage)
        if reply.stop == "refused":
            return ModelAnswer(None, "the model refused to answer", sum_usage(usages))
        value, problems = read_json_reply(reply, request.schema)
        answer = "; ".join(problems[:3]) if problems else read(value)
        if not isinstance(answer, str):
            return ModelAnswer(answer, None, sum_usage(usages))
        problem = answer
        reply_message = ChatMessage(
            role="assistant", text=reply.text or "(nothing)", echo=reply.echo
        )
        repair_message = ChatMessage(role="user", text=REPAIR_REQUEST)
        current_request = replace(
            request, messages=(*request.messages, reply_message, repair_message)
        )
    return ModelAnswer(None, f"the model gave no valid reply: {problem}"[:500], sum_usage(usages))
