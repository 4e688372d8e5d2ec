"""Codex."""

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

# Our cage is around it: its own would need namespaces that a cage does not give.
CODEX_CONFIG = """\
model = {model}
model_provider = "gateway"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[model_providers.gateway]
name = "gateway"
base_url = {address}
wire_api = "responses"
env_key = "GATEWAY_KEY"
[analytics]
enabled = false
"""


def build_codex_call(use: AgentCallRequest) -> AgentCall:
    arguments = ["exec", *(["resume", "--last"] if use.again else [])]
    arguments += ["--json", "--skip-git-repo-check", "-"]
    config = CODEX_CONFIG.format(
        model=json.dumps(use.model), address=json.dumps(f"{use.address}/v1")
    )
    files = {".codex/config.toml": config}
    if use.system:
        files[".codex/AGENTS.md"] = use.system
    env = {"CODEX_HOME": f"{use.home}/.codex", "GATEWAY_KEY": PLACEHOLDER_KEY}
    return AgentCall(arguments=arguments, env=env, files=files, stdin=use.prompt)


def read_codex_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    for event in iterate_last_json_lines(printed):
        if event.get("type") == "turn.failed":
            cause = find_text(event, "error", "message") or "the turn failed"
            return AgentReport(exit="crashed", cause=cause)
        item = event.get("item")
        if isinstance(item, dict) and item.get("type") == "agent_message":
            return AgentReport(text=find_text(item, "text"))
    return AgentReport()


agent = HeadlessAgent(
    Adapter(
        name="codex",
        program="codex",
        package="@openai/codex",
        install="npm install -g @openai/codex",
        oldest="0.118",
        call=build_codex_call,
        understand=read_codex_report,
        recordings=(".codex/sessions/*.jsonl",),
        done=b'{"type":"turn.completed"',
    )
)
