"""The OpenAPI 3.1 document of an API, made from the records that go in and come out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from closeloop import __version__
from closeloop.model.record import Record

JSON = "application/json"
TEXT = {"type": "string"}
WHERE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


class Problem(Record):
    """Why there is no answer."""

    message: str
    """One sentence that says what to do."""


class Operation(Record):
    """One thing that can be asked for."""

    method: Literal["get", "post", "put", "patch", "delete"]
    path: str
    """As the router has it: `/api/evaluations/{id}`."""
    name: str
    summary: str
    """One line."""
    answer: Any = None
    """The type that comes out; None for nothing."""
    body: Any = None
    """The type that goes in, where one does."""
    query: type[Record] | None = None
    """A record whose fields are the parameters in the address, before and after its `?`."""
    faults: tuple[int, ...] = ()
    """Statuses that come with a problem."""


def document(operations: Sequence[Operation], title: str = "closeloop") -> dict[str, Any]:
    """The whole of it; every record once, by its name."""
    kinds = [kind for one in operations for kind in _named(one).values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=WHERE)
    found = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        schema = {name: next(found) for name in _named(one)}
        path = _PARAMETER.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method] = _operation(one, schema, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _named(one: Operation) -> dict[str, Any]:
    parts = {"answer": one.answer, "body": one.body, "query": one.query}
    parts["problem"] = Problem if one.faults else None
    return {name: kind for name, kind in parts.items() if kind is not None}


def _operation(
    one: Operation, schema: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    told: dict[str, Any] = {"operationId": one.name, "summary": one.summary}
    in_path = _PARAMETER.findall(one.path)
    fields: dict[str, Any] = {}
    if "query" in schema:
        fields = components[schema["query"]["$ref"].rpartition("/")[2]]
    asked, required = fields.get("properties", {}), fields.get("required", [])
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": asked.get(name, TEXT)}
        for name in in_path
    ]
    parameters += [
        {"name": name, "in": "query", "required": name in required, "schema": part}
        for name, part in asked.items()
        if name not in in_path and not part.get("readOnly")
    ]
    if parameters:
        told["parameters"] = parameters
    if "body" in schema:
        told["requestBody"] = {"required": True, "content": {JSON: {"schema": schema["body"]}}}
    good = _response("The answer.", schema["answer"]) if "answer" in schema else None
    told["responses"] = {"200": good} if good else {"204": {"description": "It is done."}}
    told["responses"] |= {
        str(status): _response(HTTPStatus(status).phrase, schema["problem"])
        for status in one.faults
    }
    return told


def _response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {JSON: {"schema": schema}}}
