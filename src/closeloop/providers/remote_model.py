"""A model behind HTTP, whichever format its server speaks."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import msgspec

from closeloop.providers.format_dialect import (
    ANSWER_TOOL,
    Dialect,
    ProviderFormat,
    RetryListener,
    adapt_dialect,
    ignore_retry,
)
from closeloop.providers.model_prices import add_cost, find_model_prices
from closeloop.providers.provider_connection import ProviderConnection, RequestRejected
from closeloop.records.chat import ModelReply, ModelRequest
from closeloop.records.errors import MachineFailed
from closeloop.records.settings import ModelSettings


class RemoteModel:
    """Shared by many attempts; it remembers what its server accepts."""

    def __init__(
        self,
        settings: ModelSettings,
        speech: ProviderFormat,
        wire: ProviderConnection,
        base: str,
        dialect: Dialect,
    ) -> None:
        self.name = settings.model
        self.provider = settings.provider
        self.prices = find_model_prices(settings)
        self.wire = wire
        self.base = base
        self._format = speech
        self._dialect = dialect

    async def close(self) -> None:
        await self.wire.close()

    async def reply(
        self, request: ModelRequest, retried: RetryListener = ignore_retry
    ) -> ModelReply:
        """One turn, asked for in the way the server is known to understand."""
        answer, dialect = await self._ask_adapting(request, retried)
        try:
            reply = self._format.decode(answer)
        except MachineFailed as fault:
            raise MachineFailed(f"{self.wire.server} sent a wrong answer. {fault}") from None
        if request.schema is not None and dialect.rung == "tool":
            reply = _tool_call_as_text(reply)
        return msgspec.structs.replace(
            reply,
            calls=tuple(
                call
                if call.id
                else msgspec.structs.replace(call, id=f"call-{len(request.messages)}-{index}")
                for index, call in enumerate(reply.calls)
            ),
            usage=add_cost(reply.usage, self.prices),
        )

    async def _ask_adapting(
        self, request: ModelRequest, retried: RetryListener
    ) -> tuple[Any, Dialect]:
        dialect: Dialect | None = self._dialect
        tried_dialects: list[Dialect] = []
        first_rejection: RequestRejected | None = None
        while dialect is not None and dialect not in tried_dialects:
            tried_dialects.append(dialect)
            try:
                payload = self._format.encode(request, self.name, dialect)
                answer = await self.wire.post_json(payload, retried)
            except RequestRejected as rejection:
                first_rejection = first_rejection or rejection
                dialect = adapt_dialect(dialect, request, self._format.rungs, rejection.complaint)
            else:
                if first_rejection is not None:
                    self._dialect = dialect
                return answer, dialect
        assert first_rejection is not None
        raise first_rejection


def _tool_call_as_text(reply: ModelReply) -> ModelReply:
    """The forced tool's arguments are the reply's text."""
    for call in reply.calls:
        if call.name == ANSWER_TOOL:
            text = call.malformed or msgspec.json.encode(call.arguments).decode()
            stop: Any = "end" if reply.stop == "tools" else reply.stop
            return msgspec.structs.replace(reply, text=text, calls=(), stop=stop, echo=None)
    return reply


def join_format_url(base: str, path: str) -> str:
    """Where a path of a format is on a server, whether or not its address holds the version."""
    parts = urlsplit(base)
    before = parts.path.rstrip("/")
    version = re.match(r"/v1(beta)?(?=/)", path)
    if version and before.endswith(version[0]):
        path = path.removeprefix(version[0])
    return parts._replace(path=before + path).geturl()
