"""Gemini CLI."""

from __future__ import annotations

import json
from collections.abc import Sequence

from closeloop.agents.agent_adapter import (
    PLACEHOLDER_KEY,
    Adapter,
    AgentCall,
    AgentCallRequest,
    AgentReport,
    find_text,
    iterate_last_json_lines,
)
from closeloop.agents.headless_agent import HeadlessAgent
from closeloop.records.protocols import Recording


def build_gemini_call(use: AgentCallRequest) -> AgentCall:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "telemetry": {"enabled": False},
        "model": {"name": use.model, "maxSessionTurns": use.turns},
    }
    files = {".gemini/settings.json": json.dumps(settings)}
    if use.system:
        files[".gemini/GEMINI.md"] = use.system
    arguments = ["--yolo", "--skip-trust", "--output-format", "stream-json", "--model", use.model]
    arguments += ["--resume", "latest"] if use.again else []
    env = {"GOOGLE_GEMINI_BASE_URL": use.address, "GEMINI_API_KEY": PLACEHOLDER_KEY}
    return AgentCall(arguments=arguments, env=env, files=files, stdin=use.prompt)


def read_gemini_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    """Words come in pieces, with the turn's end after them."""
    text_pieces: list[str] = []
    error_report = AgentReport()
    for event in iterate_last_json_lines(printed):
        if event.get("type") == "result" and event.get("status") == "error":
            cause = find_text(event, "error", "message") or "it reports an error"
            error_report = AgentReport(exit="crashed", cause=cause)
        elif event.get("type") == "message" and event.get("role") == "assistant":
            text_pieces.append(find_text(event, "content") or "")
        elif text_pieces:
            break
    text = "".join(reversed(text_pieces)) or None
    return AgentReport(text=text, exit=error_report.exit, cause=error_report.cause)


agent = HeadlessAgent(
    Adapter(
        name="gemini-cli",
        program="gemini",
        package="@google/gemini-cli",
        install="npm install -g @google/gemini-cli",
        call=build_gemini_call,
        understand=read_gemini_report,
        recordings=(".gemini/tmp/*/chats/*.json*",),
    )
)
