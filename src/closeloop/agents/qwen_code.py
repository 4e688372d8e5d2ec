"""Qwen Code."""

from __future__ import annotations

import json

from closeloop.agents.agent_adapter import Adapter, AgentCall, AgentCallRequest, openai_environment
from closeloop.agents.claude_code import read_claude_report
from closeloop.agents.headless_agent import HeadlessAgent

QWEN_SETTINGS = {
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}


def build_qwen_call(use: AgentCallRequest) -> AgentCall:
    files = {".qwen/settings.json": json.dumps(QWEN_SETTINGS)}
    if use.system:
        files[".qwen/QWEN.md"] = use.system
    arguments = ["--auth-type", "openai", "--yolo", "--output-format", "stream-json"]
    arguments += ["--model", use.model, "--max-session-turns", str(use.turns)]
    arguments += ["--continue"] if use.again else []
    env = openai_environment(use) | {"OPENAI_MODEL": use.model}
    return AgentCall(arguments=arguments, env=env, files=files, stdin=use.prompt)


agent = HeadlessAgent(
    Adapter(
        name="qwen-code",
        program="qwen",
        package="@qwen-code/qwen-code",
        install="npm install -g @qwen-code/qwen-code",
        call=build_qwen_call,
        understand=read_claude_report,
        recordings=(".qwen/projects/*/chats/*.jsonl", ".qwen/projects/*/subagents/*.json*"),
    )
)
