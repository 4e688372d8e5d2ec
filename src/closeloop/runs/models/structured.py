"""Answers as data: JSON of a schema, checked, with one chance to repair it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from closeloop.model.chat import ChatMessage, ModelReply, ModelRequest
from closeloop.model.errors import MachineFailed
from closeloop.model.protocols import Model
from closeloop.runs.models.schema import problems

_FENCED = re.compile(r"```[a-zA-Z]*[ \t\r]*\n(.*?)```", re.DOTALL)


async def ask_json(model: Model, request: ModelRequest) -> ModelReply:
    """The model's reply with a `value` of the request's schema; MachineFailed when none comes."""
    assert request.schema is not None
    reply = await model.reply(request)
    value, wrong = read_json(reply, request.schema)
    if wrong and reply.stop != "refused":
        reply = await model.reply(_repair(request, reply, wrong))
        value, wrong = read_json(reply, request.schema)
    if reply.stop == "refused" and wrong:
        raise MachineFailed(f"{model.name} refused to answer: {_short(reply.text)}")
    if wrong:
        raise MachineFailed(
            f"{model.name} did not answer with the JSON that was asked for, "
            f"not even the second time ({'; '.join(wrong[:3])}): try another model."
        )
    return msgspec.structs.replace(reply, value=value)


def read_json(reply: ModelReply, schema: dict[str, Any]) -> tuple[Any, list[str]]:
    """The value in a reply, and what is wrong with it."""
    for text in _candidates(reply.text):
        try:
            value = msgspec.json.decode(text)
        except (ValueError, RecursionError):
            continue
        return value, problems(value, schema)
    cut = ", it was cut off" if reply.stop == "length" else ""
    return None, [f"the reply is not JSON{cut}"]


def _candidates(text: str) -> list[str]:
    """The text itself, else what it wraps: models talk around their JSON."""
    text = text.rpartition("</think>")[2].strip()
    fenced = _FENCED.findall(text)
    found = [text, *fenced[-1:]]
    for opening, closing in ("{}", "[]"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            found.append(text[start : end + 1])
    # What a program prints before its answer may hold brackets as well.
    found.append(text[text.rfind("\n{") + 1 : text.rfind("}") + 1])
    return found


def _repair(request: ModelRequest, reply: ModelReply, wrong: list[str]) -> ModelRequest:
    schema = msgspec.json.encode(request.schema).decode()
    said = ChatMessage(role="assistant", text=reply.text or "(nothing)", echo=reply.echo)
    asked = ChatMessage(
        role="user",
        text=f"That does not fit: {'; '.join(wrong)}. "
        f"Reply again, with nothing but one JSON value of this JSON schema:\n{schema}",
    )
    return msgspec.structs.replace(request, messages=(*request.messages, said, asked))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:199] + "…"
