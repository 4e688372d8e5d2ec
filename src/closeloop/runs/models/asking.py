"""One question to a model, with one chance to repair an answer that is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from closeloop.model.attempt import Usage
from closeloop.model.chat import ChatMessage, ModelRequest
from closeloop.model.errors import BadInput, Fault, OutOfBudget
from closeloop.model.protocols import Model
from closeloop.model.usage import total
from closeloop.runs.models.structured import read_json

Answer = TypeVar("Answer")

# In words of our own: what is wrong with a reply may quote what is judged.
REPAIR = (
    "That was not the JSON that was asked for. Answer once more, with nothing but one JSON object "
    "of the schema, and with the seal copied exactly."
)


class Told(Generic[Answer]):
    """What came back: an answer, or why there is none."""

    def __init__(self, answer: Answer | None, why: str | None, usage: Usage) -> None:
        self.answer = answer
        self.why = why
        self.usage = usage


async def ask(
    model: Model, request: ModelRequest, read: Callable[[Any], Answer | str]
) -> Told[Answer]:
    """What `read` makes of a reply; where that is words, they say why it is no answer."""
    used: list[Usage] = []
    why = ""
    asked = request
    assert request.schema is not None
    for _ in range(2):
        try:
            reply = await model.reply(asked)
        except BadInput:
            raise
        except (Fault, OutOfBudget) as fault:
            return Told(None, str(fault), total(used))
        used.append(reply.usage)
        if reply.stop == "refused":
            return Told(None, "the model refused to answer", total(used))
        value, wrong = read_json(reply, request.schema)
        answer = "; ".join(wrong[:3]) if wrong else read(value)
        if not isinstance(answer, str):
            return Told(answer, None, total(used))
        why = answer
        said = ChatMessage(role="assistant", text=reply.text or "(nothing)", echo=reply.echo)
        again = ChatMessage(role="user", text=REPAIR)
        asked = replace(request, messages=(*request.messages, said, again))
    return Told(None, f"the model gave no answer that can be read: {why}"[:500], total(used))
