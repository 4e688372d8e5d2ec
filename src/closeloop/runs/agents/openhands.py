"""OpenHands."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from closeloop.model.protocols import Recording
from closeloop.runs.agents.adapter import KEY, Adapter, Call, Said, Use, joined, text_in
from closeloop.runs.agents.headless import Headless


def call(use: Use) -> Call:
    files = {".openhands/prompt.md": use.prompt}
    if use.system:  # a skill without triggers is always told
        files[".openhands/skills/system.md"] = f"---\nname: system\n---\n{use.system}"
    arguments = ["--headless", "--json", "--yolo", "--override-with-envs"]
    arguments += ["--file", f"{use.home}/.openhands/prompt.md"]
    arguments += ["--resume", "--last"] if use.again else []
    env = {
        "LLM_API_KEY": KEY,
        "LLM_BASE_URL": f"{use.address}/v1",
        "LLM_MODEL": f"openai/{use.model}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENHANDS_SUPPRESS_BANNER": "1",
        "DO_NOT_TRACK": "1",
    }
    return Call(arguments=arguments, env=env, files=files)


def understand(printed: bytes, recordings: Sequence[Recording]) -> Said:
    """The last event that speaks, or tells of an error."""
    for recording in reversed(recordings):
        try:
            event = msgspec.json.decode(recording.content)
        except (ValueError, RecursionError):
            continue
        kind = text_in(event, "kind")
        if kind == "ConversationErrorEvent":
            return Said(exit="crashed", cause=text_in(event, "detail") or "it reports an error")
        if text_in(event, "action", "kind") == "FinishAction":
            return Said(text=text_in(event, "action", "message"))
        if kind == "MessageEvent" and event.get("source") == "agent":
            message = event.get("llm_message")
            return Said(text=joined(message.get("content") if isinstance(message, dict) else None))
    return Said()


agent = Headless(
    Adapter(
        name="openhands",
        program="openhands",
        package="openhands",
        install="pipx install --python python3.12 openhands",
        oldest="1.0",
        call=call,
        understand=understand,
        recordings=(".openhands/conversations/*/events/*.json",),
    )
)
