"""pi."""

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
    join_text_parts,
)
from closeloop.agents.headless_agent import HeadlessAgent
from closeloop.records.protocols import Recording


def build_pi_call(use: AgentCallRequest) -> AgentCall:
    prices = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    model = {"id": use.model, "cost": prices, "contextWindow": 200_000, "maxTokens": 16_000}
    provider = {
        "baseUrl": f"{use.address}/v1",
        "api": "openai-completions",
        "apiKey": PLACEHOLDER_KEY,
    }
    files = {
        ".pi/agent/models.json": json.dumps(
            {"providers": {"gateway": {**provider, "models": [model]}}}
        )
    }
    arguments = ["--provider", "gateway", "--model", use.model, "--mode", "json", "-p"]
    arguments += ["--append-system-prompt", use.system] if use.system else []
    arguments += ["--continue"] if use.again else []
    return AgentCall(arguments=arguments, env={"PI_OFFLINE": "1"}, files=files, stdin=use.prompt)


def read_pi_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    for event in iterate_last_json_lines(printed):
        message = event.get("message")
        if event.get("type") != "message_end" or find_text(message, "role") != "assistant":
            continue
        if find_text(message, "stopReason") == "error":
            cause = find_text(message, "errorMessage") or "it reports an error"
            return AgentReport(exit="crashed", cause=cause)
        return AgentReport(
            text=join_text_parts(message.get("content")) if isinstance(message, dict) else None
        )
    return AgentReport()


agent = HeadlessAgent(
    Adapter(
        name="pi",
        program="pi",
        package="@mariozechner/pi-coding-agent",
        install="npm install -g @mariozechner/pi-coding-agent",
        call=build_pi_call,
        understand=read_pi_report,
        recordings=(".pi/agent/sessions/*.jsonl",),
    )
)
