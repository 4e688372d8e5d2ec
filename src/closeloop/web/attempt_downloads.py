"""One attempt as a file: its change as a patch, its trace in the formats of `closeloop export`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from closeloop.records.errors import Fault
from closeloop.records.trace import Trace
from closeloop.reviews.review_items import load_open_task
from closeloop.store import Store
from closeloop.traces.atif_export import export_atif
from closeloop.traces.otlp_export import export_otlp
from closeloop.traces.trace_export import ExportSource, export_jsonl
from closeloop.web.page import PageNotFound, fault_status, find_or_404
from closeloop.web.page_context import PageContext
from closeloop.web.render import render_template


def _join_lines(of: ExportSource, trace: Trace) -> bytes:
    lines: Iterator[bytes] = export_jsonl(of, trace)
    return b"".join(lines)


TRACE_FORMATS: dict[str, tuple[str, str, Callable[[ExportSource, Trace], bytes]]] = {
    "jsonl": ("events.jsonl", "application/x-ndjson", _join_lines),
    "atif": ("atif.json", "application/json", export_atif),
    "otlp": ("otlp.json", "application/json", export_otlp),
}
"""By name, how the file is called after the attempt's id, its kind, and what writes it."""


def download_routes(desk: PageContext) -> list[Route]:
    async def download(request: Request) -> Response:
        name, kind = request.path_params["attempt"], request.path_params["kind"]
        try:
            file, media_type, content = await anyio.to_thread.run_sync(
                build_download, desk.store, name, kind
            )
        except Fault as fault:
            text = render_template("refused.html", why=str(fault))
            return Response(text, fault_status(fault), media_type="text/html")
        headers = {
            "content-disposition": f'attachment; filename="{file}"',
            "cache-control": "private, no-cache",
        }
        return Response(content, headers=headers, media_type=media_type)

    return [Route("/attempts/{attempt}/export/{kind}", download, methods=["GET"])]


def build_download(store: Store, name: str, kind: str) -> tuple[str, str, bytes]:
    """The file's name, its media type and its content; PageNotFound where there is nothing."""
    attempt = find_or_404(store.load_attempt, name)
    load_open_task(store, attempt)
    if kind == "patch":
        change = store.load_change(attempt.id)
        if change is None or not change.patch:
            raise PageNotFound("This attempt has no change on record.")
        return f"{attempt.id}.patch", "text/x-diff", change.patch.encode("utf-8", "replace")
    if kind not in TRACE_FORMATS:
        raise PageNotFound(f"There is no export {kind!r}: {', '.join(('patch', *TRACE_FORMATS))}.")
    trace = store.load_trace(attempt.id)
    if trace is None:
        raise PageNotFound("This attempt has no trace on record.")
    ending, media_type, export = TRACE_FORMATS[kind]
    source = store.load_session(attempt.id) or attempt
    return f"{attempt.id}.{ending}", media_type, export(source, trace)
