"""OpenCode."""

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

DISABLED_FEATURES = ("AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "MODELS_FETCH", "SHARE")


def build_opencode_call(use: AgentCallRequest) -> AgentCall:
    model = {"name": use.model, "limit": {"context": 200_000, "output": 16_000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "gateway",
        "options": {"baseURL": f"{use.address}/v1", "apiKey": PLACEHOLDER_KEY},
        "models": {use.model: model},
    }
    config = {
        "provider": {"gateway": provider},
        "model": f"gateway/{use.model}",
        "small_model": f"gateway/{use.model}",
        "permission": "allow",
        "autoupdate": False,
        "share": "disabled",
    }
    files = {".config/opencode/opencode.json": json.dumps(config)}
    if use.system:
        files[".config/opencode/AGENTS.md"] = use.system
    arguments = ["run", "--format", "json", *(["--continue"] if use.again else [])]
    env = {f"OPENCODE_DISABLE_{name}": "1" for name in DISABLED_FEATURES}
    return AgentCall(arguments=arguments, env=env, files=files, stdin=use.prompt)


def read_opencode_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    for event in iterate_last_json_lines(printed):
        if event.get("type") == "error":
            error = event.get("error")
            cause = find_text(error, "data", "message") or find_text(error, "name")
            return AgentReport(exit="crashed", cause=cause or "it reports an error")
        if event.get("type") == "text":
            return AgentReport(text=find_text(event, "part", "text"))
    return AgentReport()


agent = HeadlessAgent(
    Adapter(
        name="opencode",
        program="opencode",
        package="opencode-ai",
        install="npm install -g opencode-ai",
        call=build_opencode_call,
        understand=read_opencode_report,
        recordings=(".local/share/opencode/opencode.db*", ".local/share/opencode/storage/*.json"),
    )
)
