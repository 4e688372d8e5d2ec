"""The OpenAPI 3.1 document of an API, made from the records that go in and come out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from closeloop import __version__
from closeloop.records.record import Record

JSON_MEDIA_TYPE = "application/json"
TEXT_SCHEMA = {"type": "string"}
COMPONENT_REF = "#/components/schemas/{name}"
_PATH_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


class Problem(Record):
    """Why there is no answer."""

    message: str
    """One sentence that says what to do."""


class ApiOperation(Record):
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


def build_openapi_document(
    operations: Sequence[ApiOperation], title: str = "closeloop"
) -> dict[str, Any]:
    """The whole of it; every record once, by its name."""
    kinds = [kind for one in operations for kind in _operation_types(one).values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=COMPONENT_REF)
    schema_iterator = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        schema = {name: next(schema_iterator) for name in _operation_types(operation)}
        path = _PATH_PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method] = _describe_operation(
            operation, schema, components
        )
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


def _operation_types(one: ApiOperation) -> dict[str, Any]:
    parts = {"answer": one.answer, "body": one.body, "query": one.query}
    parts["problem"] = Problem if one.faults else None
    return {name: kind for name, kind in parts.items() if kind is not None}


def _describe_operation(
    one: ApiOperation, schema: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    description: dict[str, Any] = {"operationId": one.name, "summary": one.summary}
    in_path = _PATH_PARAMETER.findall(one.path)
    fields: dict[str, Any] = {}
    if "query" in schema:
        fields = components[schema["query"]["$ref"].rpartition("/")[2]]
    query_schemas, required = fields.get("properties", {}), fields.get("required", [])
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": query_schemas.get(name, TEXT_SCHEMA),
        }
        for name in in_path
    ]
    parameters += [
        {"name": name, "in": "query", "required": name in required, "schema": part}
        for name, part in query_schemas.items()
        if name not in in_path and not part.get("readOnly")
    ]
    if parameters:
        description["parameters"] = parameters
    if "body" in schema:
        description["requestBody"] = {
            "required": True,
            "content": {JSON_MEDIA_TYPE: {"schema": schema["body"]}},
        }
    success_response = (
        _describe_response("The answer.", schema["answer"]) if "answer" in schema else None
    )
    description["responses"] = (
        {"200": success_response} if success_response else {"204": {"description": "It is done."}}
    )
    description["responses"] |= {
        str(status): _describe_response(HTTPStatus(status).phrase, schema["problem"])
        for status in one.faults
    }
    return description


def _describe_response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {JSON_MEDIA_TYPE: {"schema": schema}}}
