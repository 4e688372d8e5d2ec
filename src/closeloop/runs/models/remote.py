"""A model behind HTTP, whichever format its server speaks."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import msgspec

from closeloop.model.chat import ModelReply, ModelRequest
from closeloop.model.errors import MachineFailed
from closeloop.model.settings import ModelSettings
from closeloop.runs.models.dialect import ANSWER, Dialect, Format, Retried, adapt, nobody
from closeloop.runs.models.prices import priced, prices_of
from closeloop.runs.models.wire import Rejected, Wire


class RemoteModel:
    """Shared by many attempts; it remembers what its server accepts."""

    def __init__(
        self, settings: ModelSettings, speech: Format, wire: Wire, base: str, dialect: Dialect
    ) -> None:
        self.name = settings.model
        self.provider = settings.provider
        self.prices = prices_of(settings)
        self.wire = wire
        self.base = base
        self._format = speech
        self._dialect = dialect

    async def close(self) -> None:
        await self.wire.close()

    async def reply(self, request: ModelRequest, retried: Retried = nobody) -> ModelReply:
        """One turn, asked for in the way the server is known to understand."""
        answer, dialect = await self._ask(request, retried)
        try:
            reply = self._format.decode(answer)
        except MachineFailed as fault:
            raise MachineFailed(f"{self.wire.server} sent a wrong answer. {fault}") from None
        if request.schema is not None and dialect.rung == "tool":
            reply = _spoken(reply)
        return msgspec.structs.replace(
            reply,
            calls=tuple(
                call
                if call.id
                else msgspec.structs.replace(call, id=f"call-{len(request.messages)}-{index}")
                for index, call in enumerate(reply.calls)
            ),
            usage=priced(reply.usage, self.prices),
        )

    async def _ask(self, request: ModelRequest, retried: Retried) -> tuple[Any, Dialect]:
        dialect: Dialect | None = self._dialect
        tried: list[Dialect] = []
        first: Rejected | None = None
        while dialect is not None and dialect not in tried:
            tried.append(dialect)
            try:
                payload = self._format.encode(request, self.name, dialect)
                answer = await self.wire.post(payload, retried)
            except Rejected as rejection:
                first = first or rejection
                dialect = adapt(dialect, request, self._format.rungs, rejection.complaint)
            else:
                if first is not None:
                    self._dialect = dialect
                return answer, dialect
        assert first is not None
        raise first


def _spoken(reply: ModelReply) -> ModelReply:
    """The forced tool's arguments are the reply's text."""
    for call in reply.calls:
        if call.name == ANSWER:
            text = call.malformed or msgspec.json.encode(call.arguments).decode()
            stop: Any = "end" if reply.stop == "tools" else reply.stop
            return msgspec.structs.replace(reply, text=text, calls=(), stop=stop, echo=None)
    return reply


def url_of(base: str, path: str) -> str:
    """Where a path of a format is on a server, whether or not its address holds the version."""
    parts = urlsplit(base)
    before = parts.path.rstrip("/")
    version = re.match(r"/v1(beta)?(?=/)", path)
    if version and before.endswith(version[0]):
        path = path.removeprefix(version[0])
    return parts._replace(path=before + path).geturl()
