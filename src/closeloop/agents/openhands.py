"""OpenHands."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from closeloop.agents.agent_adapter import (
    PLACEHOLDER_KEY,
    Adapter,
    AgentCall,
    AgentCallRequest,
    AgentReport,
    find_text,
    join_text_parts,
)
from closeloop.agents.headless_agent import HeadlessAgent
from closeloop.records.protocols import Recording


def build_openhands_call(use: AgentCallRequest) -> AgentCall:
    files = {".openhands/prompt.md": use.prompt}
    if use.system:  # a skill without triggers is always told
        files[".openhands/skills/system.md"] = f"---\nname: system\n---\n{use.system}"
    arguments = ["--headless", "--json", "--yolo", "--override-with-envs"]
    arguments += ["--file", f"{use.home}/.openhands/prompt.md"]
    arguments += ["--resume", "--last"] if use.again else []
    env = {
        "LLM_API_KEY": PLACEHOLDER_KEY,
        "LLM_BASE_URL": f"{use.address}/v1",
        "LLM_MODEL": f"openai/{use.model}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENHANDS_SUPPRESS_BANNER": "1",
        "DO_NOT_TRACK": "1",
    }
    return AgentCall(arguments=arguments, env=env, files=files)


def read_openhands_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    """The last event that speaks, or tells of an error."""
    for recording in reversed(recordings):
        try:
            event = msgspec.json.decode(recording.content)
        except (ValueError, RecursionError):
            continue
        kind = find_text(event, "kind")
        if kind == "ConversationErrorEvent":
            return AgentReport(
                exit="crashed", cause=find_text(event, "detail") or "it reports an error"
            )
        if find_text(event, "action", "kind") == "FinishAction":
            return AgentReport(text=find_text(event, "action", "message"))
        if kind == "MessageEvent" and event.get("source") == "agent":
            message = event.get("llm_message")
            return AgentReport(
                text=join_text_parts(message.get("content") if isinstance(message, dict) else None)
            )
    return AgentReport()


agent = HeadlessAgent(
    Adapter(
        name="openhands",
        program="openhands",
        package="openhands",
        install="pipx install --python python3.12 openhands",
        oldest="1.0",
        call=build_openhands_call,
        understand=read_openhands_report,
        recordings=(".openhands/conversations/*/events/*.json",),
    )
)
