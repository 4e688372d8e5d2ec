"""Answers as data: JSON of a schema, checked, with one chance to repair it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from closeloop.providers.json_schema import find_schema_problems
from closeloop.records.chat import ChatMessage, ModelReply, ModelRequest
from closeloop.records.errors import MachineFailed
from closeloop.records.protocols import Model

_FENCED = re.compile(r"```[a-zA-Z]*[ \t\r]*\n(.*?)```", re.DOTALL)


async def ask_json(model: Model, request: ModelRequest) -> ModelReply:
    """The model's reply with a `value` of the request's schema; MachineFailed when none comes."""
    assert request.schema is not None
    reply = await model.reply(request)
    value, problems_found = read_json_reply(reply, request.schema)
    if problems_found and reply.stop != "refused":
        reply = await model.reply(_build_repair_request(request, reply, problems_found))
        value, problems_found = read_json_reply(reply, request.schema)
    if reply.stop == "refused" and problems_found:
        raise MachineFailed(f"{model.name} refused to answer: {_shorten_line(reply.text)}")
    if problems_found:
        raise MachineFailed(
            f"{model.name} did not answer with the JSON that was asked for, "
            f"not even the second time ({'; '.join(problems_found[:3])}): try another model."
        )
    return msgspec.structs.replace(reply, value=value)


def read_json_reply(reply: ModelReply, schema: dict[str, Any]) -> tuple[Any, list[str]]:
    """The value in a reply, and what is wrong with it."""
    for text in _json_candidates(reply.text):
        try:
            value = msgspec.json.decode(text)
        except (ValueError, RecursionError):
            continue
        return value, find_schema_problems(value, schema)
    cut_note = ", it was cut off" if reply.stop == "length" else ""
    return None, [f"the reply is not JSON{cut_note}"]


def _json_candidates(text: str) -> list[str]:
    """The text itself, else what it wraps: models talk around their JSON."""
    text = text.rpartition("</think>")[2].strip()
    fenced = _FENCED.findall(text)
    candidates = [text, *fenced[-1:]]
    for opening, closing in ("{}", "[]"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            candidates.append(text[start : end + 1])
    # What a program prints before its answer may hold brackets as well.
    candidates.append(text[text.rfind("\n{") + 1 : text.rfind("}") + 1])
    return candidates


def _build_repair_request(
    request: ModelRequest, reply: ModelReply, wrong: list[str]
) -> ModelRequest:
    schema = msgspec.json.encode(request.schema).decode()
    reply_message = ChatMessage(role="assistant", text=reply.text or "(nothing)", echo=reply.echo)
    repair_message = ChatMessage(
        role="user",
        text=f"That does not fit: {'; '.join(wrong)}. "
        f"Reply again, with nothing but one JSON value of this JSON schema:\n{schema}",
    )
    return msgspec.structs.replace(
        request, messages=(*request.messages, reply_message, repair_message)
    )


def _shorten_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:199] + "…"
