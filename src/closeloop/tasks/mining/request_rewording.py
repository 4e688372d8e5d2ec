"""Let a model put a request into a user's words. It is shown the request only, never the fix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from closeloop.providers.model_opening import open_model_by_name
from closeloop.providers.structured_reply import ask_json
from closeloop.records.chat import ChatMessage, ModelRequest
from closeloop.records.errors import MachineFailed
from closeloop.records.protocols import Model
from closeloop.records.settings import Settings
from closeloop.tasks.mining.candidate_builder import TaskCandidate
from closeloop.tasks.mining.prompt_leaks import find_leaks
from closeloop.tasks.mining.required_names import find_untold_names
from closeloop.tasks.mining.task_prompts import MESSAGES_HEADING, NAMES_HEADING
from closeloop.text.untrusted import DATA_RULE, fence_texts

RewordCandidate = Callable[[TaskCandidate], Awaitable[TaskCandidate]]
MIN_REQUEST_CHARS = 20
MAX_REQUEST_CHARS = 4_000
MAX_DESCRIPTION_CHARS = 24_000
SYSTEM_PROMPT = (
    "You are given the description of a change that was made to a program. Write the request that "
    "a user or colleague would have made before it: what is wrong or missing, and what should be "
    "so instead. Keep every name, option, value and message that the description has, exactly as "
    "written. Add no facts, propose no solution, mention no commits, tests or reviews. Two to "
    f"eight sentences. {DATA_RULE}"
)
REPLY_SCHEMA = {
    "type": "object",
    "properties": {"request": {"type": "string"}},
    "required": ["request"],
    "additionalProperties": False,
}


@asynccontextmanager
async def open_rewording(
    name: str, settings: Settings, root: Path, environ: Mapping[str, str]
) -> AsyncIterator[RewordCandidate]:
    """A way to reword candidates with the model of that name; it is closed again at the end."""
    async with open_model_by_name(name, settings, root, environ) as model:
        yield lambda candidate: reword_candidate(model, candidate)


async def reword_candidate(model: Model, candidate: TaskCandidate) -> TaskCandidate:
    """The candidate with a request in a user's words; as it was, where that gives nothing good."""
    data = fence_texts({"description": candidate.prompt}, max_chars=MAX_DESCRIPTION_CHARS)
    message = ChatMessage(role="user", text=data)
    request = ModelRequest(
        messages=(message,), system=SYSTEM_PROMPT, schema=REPLY_SCHEMA, temperature=0.0
    )
    try:
        reply = await ask_json(model, request)
    except MachineFailed:
        return candidate
    text = str(reply.value["request"]).strip()
    if not MIN_REQUEST_CHARS <= len(text) <= MAX_REQUEST_CHARS or find_leaks(
        text, candidate.source, candidate.tests
    ):
        return candidate
    # What the tests look for must be said, whether or not the model kept it.
    _, mark, kept = candidate.prompt.partition(f"\n\n{NAMES_HEADING}")
    if not mark:
        _, mark, kept = candidate.prompt.partition(f"\n\n{MESSAGES_HEADING}")
    prompt = f"{text}{mark}{kept}"
    if find_untold_names(prompt, candidate.names):
        return candidate
    return msgspec.structs.replace(candidate, prompt=prompt, prompt_by="model")
