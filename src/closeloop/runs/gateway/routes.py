"""What an agent asks for, by its path: one of the formats, or what surrounds them."""

from __future__ import annotations

import re
from typing import Literal

from closeloop.model.record import Record
from closeloop.runs.models.served import anthropic, gemini, openai, responses
from closeloop.runs.models.served.speech import Speech

Kind = Literal["chat", "count", "models", "alive"]
"""`count` asks how many tokens a request has, `alive` whether somebody is there."""


class Route(Record):
    """What a path means."""

    kind: Kind
    speech: Speech = openai.SPEECH


_FIXED = {
    "": Route(kind="alive"),
    "/chat/completions": Route(kind="chat"),
    "/responses": Route(kind="chat", speech=responses.SPEECH),
    "/messages": Route(kind="chat", speech=anthropic.SPEECH),
    "/messages/count_tokens": Route(kind="count", speech=anthropic.SPEECH),
    "/models": Route(kind="models"),
}
_GEMINI = {
    "generateContent": Route(kind="chat", speech=gemini.SPEECH),
    "streamGenerateContent": Route(kind="chat", speech=gemini.STREAMED),
    "countTokens": Route(kind="count", speech=gemini.SPEECH),
}
_VERSION = re.compile(r"/v1(?:beta|alpha)?(?=/|$)")
NAMED = re.compile(r"/models/([^/:]{1,200}):(\w{1,40})$")
"""A model and a method in a path."""
_MODEL = re.compile(r"/models/[^:]{1,200}")


def route(path: str) -> Route | None:
    """What a path asks for; clients put the version before it, or twice, or not at all."""
    for _ in range(2):
        path = _VERSION.sub("", path, count=1) if _VERSION.match(path) else path
    path = path.rstrip("/")
    if found := _FIXED.get(path):
        return found
    if method := NAMED.fullmatch(path):
        return _GEMINI.get(method[2])
    return Route(kind="models") if _MODEL.fullmatch(path) else None
