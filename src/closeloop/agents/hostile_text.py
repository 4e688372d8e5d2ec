"""What a model sent is hostile: made valid and bounded here before anything is done with it."""

from __future__ import annotations

import re

import msgspec

from closeloop.records.chat import ModelReply, ModelToolCall

MAX_RESULT_CHARS = 30_000
"""Characters of one tool result, as the model and the trace get it."""
MAX_MESSAGE_CHARS = 1_000_000
"""Characters of one message, and bytes of one call's arguments."""
INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")
"""Providers refuse to see a tool's name with such characters again."""
CUT_OFF_MESSAGE = "the reply was cut off at the length limit in this call; send it again, smaller"


def shorten_middle(text: str, limit: int = MAX_RESULT_CHARS) -> str:
    """The text, or its head and tail with a word on how much is missing between."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def replace_surrogates(text: str) -> str:
    """The text with lone surrogates replaced, so that it can be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def clean_for_storage(text: str) -> str:
    """The text, fit for a column of a database: valid, bounded and without NUL."""
    return shorten_middle(replace_surrogates(text).replace("\0", "\ufffd"))


def sanitise_reply(reply: ModelReply) -> ModelReply:
    """The reply, fit to be kept, sent back and acted on."""
    calls = [_sanitise_call(call) for call in reply.calls]
    if calls and reply.stop == "length":
        calls[-1] = msgspec.structs.replace(calls[-1], arguments={}, malformed=CUT_OFF_MESSAGE)
    text = shorten_middle(replace_surrogates(reply.text), MAX_MESSAGE_CHARS).strip()
    return msgspec.structs.replace(reply, text=text, calls=tuple(calls))


def _sanitise_call(call: ModelToolCall) -> ModelToolCall:
    """The call; as a malformed one when its arguments cannot be written down again."""
    malformed, arguments = call.malformed, call.arguments
    try:
        size = len(msgspec.json.encode(arguments))
        if size > MAX_MESSAGE_CHARS:
            malformed = f"{size} bytes of arguments, of {MAX_MESSAGE_CHARS} allowed"
    except (TypeError, ValueError, RecursionError) as error:
        malformed = f"arguments that cannot be written as JSON: {error}"
    if malformed is not None:
        arguments, malformed = {}, shorten_middle(replace_surrogates(malformed), 1_000)
    return ModelToolCall(
        id=replace_surrogates(call.id)[:200],
        name=INVALID_NAME_CHARS.sub("_", call.name)[:64] or "_",
        arguments=arguments,
        malformed=malformed,
    )
