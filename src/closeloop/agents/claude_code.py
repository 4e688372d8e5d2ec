"""Claude Code."""

from __future__ import annotations

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

QUIET_VARIABLES = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_AUTOUPDATER",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_TELEMETRY",
    "IS_SANDBOX",  # as root it works without asking only in a sandbox, which it is in
)


def build_claude_call(use: AgentCallRequest) -> AgentCall:
    arguments = ["-p", "--output-format", "stream-json", "--verbose", "--model", use.model]
    arguments += ["--permission-mode", "bypassPermissions", "--max-turns", str(use.turns)]
    arguments += ["--append-system-prompt", use.system] if use.system else []
    arguments += ["--continue"] if use.again else []
    env = dict.fromkeys(QUIET_VARIABLES, "1") | {
        "ANTHROPIC_BASE_URL": use.address,
        "ANTHROPIC_API_KEY": PLACEHOLDER_KEY,
        "ANTHROPIC_SMALL_FAST_MODEL": use.model,
        "CLAUDE_CONFIG_DIR": f"{use.home}/.claude",
    }
    return AgentCall(arguments=arguments, env=env, stdin=use.prompt)


def read_claude_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    for event in iterate_last_json_lines(printed):
        if event.get("type") != "result":
            continue
        text = find_text(event, "result")
        if event.get("subtype") == "error_max_turns":
            return AgentReport(text=text, exit="out_of_budget", cause="turn limit")
        if event.get("is_error"):
            return AgentReport(text=text, exit="crashed", cause=text or find_text(event, "subtype"))
        return AgentReport(text=text)
    return AgentReport()


agent = HeadlessAgent(
    Adapter(
        name="claude-code",
        program="claude",
        package="@anthropic-ai/claude-code",
        install="npm install -g @anthropic-ai/claude-code",
        call=build_claude_call,
        understand=read_claude_report,
        recordings=(".claude/projects/*.jsonl",),
    )
)
