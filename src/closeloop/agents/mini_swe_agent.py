"""mini-swe-agent."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from closeloop.agents.agent_adapter import (
    Adapter,
    AgentCall,
    AgentCallRequest,
    AgentReport,
    find_text,
    openai_environment,
)
from closeloop.agents.headless_agent import HeadlessAgent
from closeloop.records.protocols import Recording

LIMIT_STATUSES = {"LimitsExceeded", "StepLimitExceeded", "CostLimitExceeded"}


def build_mini_call(use: AgentCallRequest) -> AgentCall:
    folder = f"{use.home}/.mini"
    arguments = ["--model", f"openai/{use.model}", "--yolo", "--exit-immediately"]
    arguments += ["--output", f"{folder}/work.traj.json", f"--task={use.prompt}"]
    arguments += ["--config", "mini.yaml", "--config", f"agent.step_limit={use.turns}"]
    if use.system:
        template = json.dumps(f"{{% raw %}}{use.system}{{% endraw %}}")
        arguments += ["--config", f"agent.system_template={template}"]
    env = openai_environment(use) | {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": folder,
    }
    return AgentCall(arguments=arguments, env=env)


def read_mini_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    for recording in recordings:
        try:
            info = msgspec.json.decode(recording.content).get("info")
        except (ValueError, RecursionError, AttributeError):
            continue
        status, text = find_text(info, "exit_status"), find_text(info, "submission")
        if status in LIMIT_STATUSES:
            return AgentReport(text=text, exit="out_of_budget", cause="turn limit")
        if status and status != "Submitted":
            return AgentReport(text=text, exit="crashed", cause=status)
        return AgentReport(text=text)
    return AgentReport()


agent = HeadlessAgent(
    Adapter(
        name="mini-swe-agent",
        program="mini",
        package="mini-swe-agent",
        install="pipx install mini-swe-agent && pipx inject mini-swe-agent mcp",
        oldest="2.0",
        call=build_mini_call,
        understand=read_mini_report,
        recordings=(".mini/*.traj.json",),
        again=False,
    )
)
