"""What reviewers taught, as a resource of the Model Context Protocol."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

RESOURCE_URI = "closeloop://context"
MAX_TASK_CHARS = 4_000
RESOURCE_DESCRIPTION = (
    "What the reviewers of this repository taught, and what agents lacked here, quoted and with "
    "its origin. Read it before you begin; with the request at the end of the address, what "
    "matters to it comes first."
)


def resource_handlers() -> dict[str, Any]:
    """The handlers that a server needs to offer it."""
    import anyio.to_thread
    from mcp import MCPError, types

    async def list_resources(context: Any, params: Any) -> types.ListResourcesResult:
        resource = types.Resource(
            name="context",
            uri=RESOURCE_URI,
            description=RESOURCE_DESCRIPTION,
            mime_type="text/markdown",
        )
        return types.ListResourcesResult(resources=[resource])

    async def list_templates(context: Any, params: Any) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            name="context for a task",
            uri_template=f"{RESOURCE_URI}/{{task}}",
            description=RESOURCE_DESCRIPTION,
            mime_type="text/markdown",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        context: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        from closeloop.records.errors import Fault

        address, _, task = params.uri.removeprefix(RESOURCE_URI).partition("/")
        if address or not params.uri.startswith(RESOURCE_URI):
            problem = f"Nothing is at {quote(params.uri[:200])}: read {RESOURCE_URI}."
            raise MCPError(types.INVALID_PARAMS, problem)
        try:
            text = await anyio.to_thread.run_sync(
                render_context_for_task, unquote(task)[:MAX_TASK_CHARS]
            )
        except Fault as fault:
            raise MCPError(types.INTERNAL_ERROR, str(fault)) from None
        content = types.TextResourceContents(uri=params.uri, mime_type="text/markdown", text=text)
        return types.ReadResourceResult(contents=[content])

    return {
        "on_list_resources": list_resources,
        "on_list_resource_templates": list_templates,
        "on_read_resource": read_resource,
    }


def render_context_for_task(task: str) -> str:
    """As `closeloop context` prints it."""
    from closeloop.cli.review_context import open_review_context
    from closeloop.reviews.agent_context import UpcomingWork, give_context

    with open_review_context() as at:
        work = UpcomingWork(repo=at.repo, text=task, names=(str(at.root),))
        agent_context = give_context(at.rule_index, work, at.settings.memory, datetime.now(UTC))
    return agent_context.text or "No rule is active here yet.\n"
