"""What an agent asks for, by its path: one of the formats, or what surrounds them."""

from __future__ import annotations

import re
from typing import Literal

from closeloop.providers.served import (
    served_anthropic,
    served_gemini,
    served_openai,
    served_responses,
)
from closeloop.providers.served.served_format import ServedFormat
from closeloop.records.record import Record

RouteKind = Literal["chat", "count", "models", "alive"]
"""`count` asks how many tokens a request has, `alive` whether somebody is there."""


class GatewayRoute(Record):
    """What a path means."""

    kind: RouteKind
    speech: ServedFormat = served_openai.OPENAI_SERVED_FORMAT


_FIXED_ROUTES = {
    "": GatewayRoute(kind="alive"),
    "/chat/completions": GatewayRoute(kind="chat"),
    "/responses": GatewayRoute(kind="chat", speech=served_responses.RESPONSES_SERVED_FORMAT),
    "/messages": GatewayRoute(kind="chat", speech=served_anthropic.ANTHROPIC_SERVED_FORMAT),
    "/messages/count_tokens": GatewayRoute(
        kind="count", speech=served_anthropic.ANTHROPIC_SERVED_FORMAT
    ),
    "/models": GatewayRoute(kind="models"),
}
_GEMINI_ROUTES = {
    "generateContent": GatewayRoute(kind="chat", speech=served_gemini.GEMINI_SERVED_FORMAT),
    "streamGenerateContent": GatewayRoute(kind="chat", speech=served_gemini.GEMINI_STREAM_FORMAT),
    "countTokens": GatewayRoute(kind="count", speech=served_gemini.GEMINI_SERVED_FORMAT),
}
_VERSION = re.compile(r"/v1(?:beta|alpha)?(?=/|$)")
MODEL_METHOD = re.compile(r"/models/([^/:]{1,200}):(\w{1,40})$")
"""A model and a method in a path."""
_MODEL_PATH = re.compile(r"/models/[^:]{1,200}")


def find_route(path: str) -> GatewayRoute | None:
    """What a path asks for; clients put the version before it, or twice, or not at all."""
    for _ in range(2):
        path = _VERSION.sub("", path, count=1) if _VERSION.match(path) else path
    path = path.rstrip("/")
    if fixed_route := _FIXED_ROUTES.get(path):
        return fixed_route
    if method := MODEL_METHOD.fullmatch(path):
        return _GEMINI_ROUTES.get(method[2])
    return GatewayRoute(kind="models") if _MODEL_PATH.fullmatch(path) else None
