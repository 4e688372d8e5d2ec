"""The subset of GitHub's API that the tests play, against the published description."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from closeloop.changes.report_publishing import _OpenedPullRequest as OpenedPullRequest
from closeloop.reviews.host_pulls import (
    GithubComment,
    GithubCommit,
    GithubFile,
    GithubPull,
    GithubReview,
)
from closeloop.reviews.pull_backfill import _CommitCheckRuns as CommitCheckRuns
from closeloop.reviews.pull_backfill import _UpdatedIssue as UpdatedIssue

PUBLISHED = Path(os.environ.get("CLOSELOOP_GITHUB_OPENAPI", "api.github.com.json"))
SUBSET = json.loads(Path(__file__).with_name("code_host_schemas.json").read_text(encoding="utf-8"))[
    "github"
]
REST = [known for known in SUBSET if not known["call"].endswith(" /graphql")]
"""GraphQL is described elsewhere."""
SAMPLES = {"ref": "a" * 40, "sha": "a" * 40, "commit_sha": "a" * 40}

pytestmark = pytest.mark.skipif(
    not PUBLISHED.is_file(),
    reason="CLOSELOOP_GITHUB_OPENAPI names no api.github.com.json (npm pack @octokit/openapi)",
)


@cache
def load_published() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return loaded


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with its reference followed."""
    while "$ref" in schema:
        found: Any = load_published()
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        schema = found
    return schema


def list_variants(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema, or each of those that it allows or is made of."""
    schema = resolve(schema)
    parts = [one for key in ("oneOf", "anyOf", "allOf") for one in schema.get(key, ())]
    if "properties" in schema or not parts:
        yield schema
    for part in parts:
        yield from list_variants(part)


def json_types(schema: dict[str, Any]) -> set[str]:
    types: set[str] = set()
    schema = resolve(schema)
    if schema.get("nullable"):
        types.add("null")
    for one in list_variants(schema):
        by_value = (
            "string" if any(isinstance(value, str) for value in one.get("enum", ())) else None
        )
        said = one.get("type", "object" if "properties" in one else by_value)
        types |= {*said} if isinstance(said, list) else {said} if said else set()
        if one.get("nullable") or None in one.get("enum", ()):
            types.add("null")
    return types


def find_properties(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields of an object, or of the objects of a list."""
    fields: dict[str, dict[str, Any]] = {}
    for one in list_variants(schema):
        if one.get("type") == "array":
            fields |= find_properties(one["items"])
        fields |= one.get("properties", {})
    return fields


def required_fields(schema: dict[str, Any]) -> set[str]:
    """What every object that fits must have."""
    schema = resolve(schema)
    required = {*schema.get("required", ())}
    for part in schema.get("allOf", ()):
        required |= required_fields(part)
    for key in ("oneOf", "anyOf"):
        if parts := schema.get(key):
            required |= set.intersection(*map(required_fields, parts))
    return required


def find_operation(call: str) -> dict[str, Any]:
    """The published operation that a call of the subset means: the most literal one that fits."""
    method, pattern = call.split(" ", 1)
    fitting = []
    for path, operations in load_published()["paths"].items():
        sample = re.sub(r"\{(\w+)\}", lambda name: SAMPLES.get(name[1], "1"), path)
        if method.lower() in operations and re.fullmatch(pattern, sample):
            fitting.append((path.count("{"), path, operations[method.lower()]))
    assert fitting, f"{call} is not published"
    operation: dict[str, Any] = min(fitting, key=lambda one: one[:2])[2]
    return operation


def body_schema(described: dict[str, Any]) -> dict[str, Any]:
    content = resolve(described)["content"]
    schema: dict[str, Any] = content.get("application/json", next(iter(content.values())))["schema"]
    return schema


@pytest.mark.parametrize("known", REST, ids=lambda known: known["call"])
def test_an_operation_is_as_published(known: dict[str, Any]) -> None:
    operation = find_operation(known["call"])
    assert str(known["status"]) in operation["responses"], [*operation["responses"]]
    differences = []
    if known.get("response"):
        fields = find_properties(body_schema(operation["responses"][str(known["status"])]))
        differences += compare_types("response", known["response"], fields)
    if known.get("request"):
        schema = body_schema(operation["requestBody"])
        fields = find_properties(schema)
        differences += compare_types("request", known["request"], fields)
        required = required_fields(schema)
        always = {*known["request"]} - {*known.get("optional", ())}
        differences += [f"request: {name} is required" for name in sorted(required - always)]
    assert differences == []


def compare_types(
    kind: str, known: dict[str, str], fields: dict[str, dict[str, Any]]
) -> Iterator[str]:
    for name, types in known.items():
        if name not in fields:
            yield f"{kind}: {name} is not published"
            continue
        published = json_types(fields[name])
        if kind == "response" and {*types.split("|")} != published:
            yield f"{kind}: {name} is {types} and published as {'|'.join(sorted(published))}"
        if kind == "request" and not {*types.split("|")} <= published:
            yield f"{kind}: {name} is {types} and published as {'|'.join(sorted(published))}"


READ: list[tuple[str, str, type, set[str]]] = [
    ("GET /repos/1/1/pulls/1", "200", GithubPull, set()),
    ("GET /repos/1/1/pulls", "200", UpdatedIssue, {"pull_request"}),
    ("GET /repos/1/1/issues", "200", UpdatedIssue, set()),
    ("GET /repos/1/1/pulls/1/commits", "200", GithubCommit, set()),
    ("GET /repos/1/1/commits/" + "a" * 40, "200", GithubCommit, set()),
    ("GET /repos/1/1/pulls/1/reviews", "200", GithubReview, set()),
    ("GET /repos/1/1/pulls/1/comments", "200", GithubComment, set()),
    (
        "GET /repos/1/1/issues/1/comments",
        "200",
        GithubComment,
        {"path", "line", "original_line", "diff_hunk", "commit_id"}
        | {"pull_request_review_id", "in_reply_to_id"},
    ),
    ("GET /repos/1/1/pulls/1/files", "200", GithubFile, set()),
    (
        f"GET /repos/1/1/commits/{'a' * 40}/check-runs",
        "200",
        CommitCheckRuns,
        {"created_at", "updated_at"},
    ),
    ("POST /repos/1/1/pulls", "201", OpenedPullRequest, set()),
]
"""What closeloop reads of which answer, and the fields that only other answers have."""


@pytest.mark.parametrize(
    ("call", "status", "record", "elsewhere"), READ, ids=[read[0] for read in READ]
)
def test_what_is_read_of_an_answer_is_published(
    call: str, status: str, record: type, elsewhere: set[str]
) -> None:
    operation = find_operation(call)
    schema = body_schema(operation["responses"][status])
    assert [*unreadable_fields(record, schema, elsewhere)] == []


def unreadable_fields(record: type, schema: dict[str, Any], elsewhere: set[str]) -> Iterator[str]:
    """Fields of a record that are not published, or may be null where no null is read."""
    published = find_properties(schema)
    for field in msgspec.structs.fields(record):
        name, types = field.encode_name, list_types(field.type)
        if name not in published:
            if name not in elsewhere:
                yield f"{record.__name__}.{name} is not published"
            continue
        if "null" in json_types(published[name]) and type(None) not in types:
            yield f"{record.__name__}.{name} may be null"
        for inner in types:
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from unreadable_fields(inner, published[name], elsewhere)


def list_types(kind: Any) -> list[Any]:
    """A type, or all that a union or a tuple is made of."""
    parts = get_args(kind)
    return [one for part in parts for one in list_types(part)] if parts else [kind]
