"""One question to a model, with one chance to repair an answer that is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from closeloop.providers.structured_reply import read_json_reply
from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.chat import ChatMessage, ModelRequest
from closeloop.records.errors import BadInput, Fault, OutOfBudget
from closeloop.records.protocols import Model

Answer = TypeVar("Answer")

# In words of our own: what is wrong with a reply may quote what is judged.
REPAIR_REQUEST = (
    "That was not the JSON that was asked for. Answer once more, with nothing but one JSON object "
    "of the schema, and with the seal copied exactly."
)


class ModelAnswer(Generic[Answer]):
    """What came back: an answer, or why there is none."""

    def __init__(self, answer: Answer | None, why: str | None, usage: Usage) -> None:
        self.answer = answer
        self.why = why
        self.usage = usage


async def ask_with_repair(
    model: Model, request: ModelRequest, read: Callable[[Any], Answer | str]
) -> ModelAnswer[Answer]:
    """What `read` makes of a reply; where that is words, they say why it is no answer."""
    usages: list[Usage] = []
    why = ""
    current_request = request
    assert request.schema is not None
    for _ in range(2):
        try:
            reply = await model.reply(current_request)
        except BadInput:
            raise
        except (Fault, OutOfBudget) as fault:
            return ModelAnswer(None, str(fault), sum_usage(usages))
        usages.append(reply.usage)
        if reply.stop == "refused":
            return ModelAnswer(None, "the model refused to answer", sum_usage(usages))
        value, problems = read_json_reply(reply, request.schema)
        answer = "; ".join(problems[:3]) if problems else read(value)
        if not isinstance(answer, str):
            return ModelAnswer(answer, None, sum_usage(usages))
        why = answer
        reply_message = ChatMessage(
            role="assistant", text=reply.text or "(nothing)", echo=reply.echo
        )
        repair_message = ChatMessage(role="user", text=REPAIR_REQUEST)
        current_request = replace(
            request, messages=(*request.messages, reply_message, repair_message)
        )
    return ModelAnswer(
        None, f"the model gave no answer that can be read: {why}"[:500], sum_usage(usages)
    )
