"""The scripted model as a local HTTP server, for any agent with a configurable address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from closeloop.providers import anthropic, gemini, openai, responses
from closeloop.providers.scripted_model import Script, find_next_turn, reply_from_turn
from closeloop.providers.wire_format import ServedFormat
from closeloop.records.errors import BadInput, Fault

SERVED_FORMATS = (
    openai.OPENAI_SERVED_FORMAT,
    anthropic.ANTHROPIC_SERVED_FORMAT,
    responses.RESPONSES_SERVED_FORMAT,
    gemini.GEMINI_SERVED_FORMAT,
    gemini.GEMINI_STREAM_FORMAT,
)
MAX_REQUEST_BYTES = 32 << 20
"""Bytes of a request; agents send their whole conversation each time."""
BODY_SECONDS = 120.0
"""Seconds that a client may take to send a body."""


@asynccontextmanager
async def serve_script(script: Script, port: int = 0) -> AsyncIterator[str]:
    """Serve a script on this machine only, while the block runs; yields its address."""
    # Named: otherwise asyncio would delay small writes.
    with socket.socket(proto=socket.IPPROTO_TCP) as server_socket:
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server_socket.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            raise BadInput(
                f"Cannot listen on port {port}: choose another with --port, or 0 for a free one."
            ) from None
        server = _ScriptServer(
            uvicorn.Config(
                build_script_app(script),
                access_log=False,
                log_config=None,
                lifespan="off",
                # A connection closed during the next request would look like an error.
                timeout_keep_alive=600,
                timeout_graceful_shutdown=1,
            )
        )
        # A plain task, not a group: exceptions of the block are raised unchanged.
        running = asyncio.create_task(server.serve([server_socket]))
        try:
            await server.ready.wait()
            yield f"http://127.0.0.1:{server_socket.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


class _ScriptServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the surrounding program."""
        yield


def build_script_app(script: Script) -> Starlette:
    """Build the server's routes."""
    return Starlette(
        routes=[
            Route("/", _answer_alive, methods=["GET", "HEAD"]),
            Route("/v1/models", _make_models_route(script)),
            *(
                Route(served_format.path, _make_chat_route(script, served_format), methods=["POST"])
                for served_format in SERVED_FORMATS
            ),
        ]
    )


async def _answer_alive(request: Request) -> Response:
    return PlainTextResponse("A scripted model.\n")


def _make_models_route(script: Script):  # type: ignore[no-untyped-def]
    async def answer_models(request: Request) -> Response:
        model = {"id": script.name, "object": "model", "created": 0, "owned_by": "closeloop"}
        details = {
            "type": "model",
            "display_name": script.name,
            "created_at": "1970-01-01T00:00:00Z",
        }
        ends = {"has_more": False, "first_id": script.name, "last_id": script.name}
        return JSONResponse({"object": "list", "data": [{**model, **details}], **ends})

    return answer_models


def _make_chat_route(script: Script, served_format: ServedFormat):  # type: ignore[no-untyped-def]
    async def answer_chat(request: Request) -> Response:
        try:
            payload = await _read_payload(request)
            question = served_format.read(payload)
            turn = find_next_turn(script, question)
            await anyio.sleep(turn.delay)
            reply = reply_from_turn(script, turn, question)
        except Fault as fault:
            return JSONResponse(served_format.fault(str(fault)), status_code=400)
        except ClientDisconnect:
            return Response()  # the client has disconnected
        if served_format.streams or payload.get("stream"):
            events = iter(list(served_format.events(reply, payload)))
            return StreamingResponse(events, media_type="text/event-stream")
        return JSONResponse(served_format.answer(reply, payload))

    return answer_chat


async def _read_payload(request: Request) -> dict[str, object]:
    body = bytearray()
    with anyio.move_on_after(BODY_SECONDS) as timer:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_REQUEST_BYTES:
                raise BadInput(f"A request may be at most {MAX_REQUEST_BYTES >> 20} MB.")
    if timer.cancelled_caught:
        raise BadInput(f"The body did not arrive within {BODY_SECONDS:.0f} seconds.")
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except (ValueError, RecursionError):
        raise BadInput("The request is not a JSON object.") from None
