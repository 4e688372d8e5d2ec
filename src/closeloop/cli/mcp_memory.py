"""What reviewers taught, as a resource of the Model Context Protocol."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

ADDRESS = "closeloop://context"
LONGEST_TASK = 4_000
ABOUT = (
    "What the reviewers of this repository taught, and what agents lacked here, quoted and with "
    "its origin. Read it before you begin; with the request at the end of the address, what "
    "matters to it comes first."
)


def resources() -> dict[str, Any]:
    """The handlers that a server needs to offer it."""
    import anyio.to_thread
    from mcp import MCPError, types

    async def listed(context: Any, params: Any) -> types.ListResourcesResult:
        one = types.Resource(
            name="context", uri=ADDRESS, description=ABOUT, mime_type="text/markdown"
        )
        return types.ListResourcesResult(resources=[one])

    async def templates(context: Any, params: Any) -> types.ListResourceTemplatesResult:
        one = types.ResourceTemplate(
            name="context for a task",
            uri_template=f"{ADDRESS}/{{task}}",
            description=ABOUT,
            mime_type="text/markdown",
        )
        return types.ListResourceTemplatesResult(resource_templates=[one])

    async def read(
        context: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        from closeloop.model.errors import Fault

        address, _, task = params.uri.removeprefix(ADDRESS).partition("/")
        if address or not params.uri.startswith(ADDRESS):
            told = f"Nothing is at {quote(params.uri[:200])}: read {ADDRESS}."
            raise MCPError(types.INVALID_PARAMS, told)
        try:
            text = await anyio.to_thread.run_sync(told_of, unquote(task)[:LONGEST_TASK])
        except Fault as fault:
            raise MCPError(types.INTERNAL_ERROR, str(fault)) from None
        content = types.TextResourceContents(uri=params.uri, mime_type="text/markdown", text=text)
        return types.ReadResourceResult(contents=[content])

    return {
        "on_list_resources": listed,
        "on_list_resource_templates": templates,
        "on_read_resource": read,
    }


def told_of(task: str) -> str:
    """As `closeloop context` prints it."""
    from closeloop.cli.shelves import opened
    from closeloop.reviewing.hydrating import Work, hydrate

    with opened() as at:
        work = Work(repo=at.repo, text=task, names=(str(at.root),))
        found = hydrate(at.shelf, work, at.settings.memory, datetime.now(UTC))
    return found.text or "No rule is active here yet.\n"
