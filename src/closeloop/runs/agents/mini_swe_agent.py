"""mini-swe-agent."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from closeloop.model.protocols import Recording
from closeloop.runs.agents.adapter import Adapter, Call, Said, Use, openai, text_in
from closeloop.runs.agents.headless import Headless

LIMITS = {"LimitsExceeded", "StepLimitExceeded", "CostLimitExceeded"}


def call(use: Use) -> Call:
    folder = f"{use.home}/.mini"
    arguments = ["--model", f"openai/{use.model}", "--yolo", "--exit-immediately"]
    arguments += ["--output", f"{folder}/work.traj.json", f"--task={use.prompt}"]
    arguments += ["--config", "mini.yaml", "--config", f"agent.step_limit={use.turns}"]
    if use.system:
        template = json.dumps(f"{{% raw %}}{use.system}{{% endraw %}}")
        arguments += ["--config", f"agent.system_template={template}"]
    env = openai(use) | {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": folder,
    }
    return Call(arguments=arguments, env=env)


def understand(printed: bytes, recordings: Sequence[Recording]) -> Said:
    for recording in recordings:
        try:
            told = msgspec.json.decode(recording.content).get("info")
        except (ValueError, RecursionError, AttributeError):
            continue
        status, text = text_in(told, "exit_status"), text_in(told, "submission")
        if status in LIMITS:
            return Said(text=text, exit="out_of_budget", cause="turn limit")
        if status and status != "Submitted":
            return Said(text=text, exit="crashed", cause=status)
        return Said(text=text)
    return Said()


agent = Headless(
    Adapter(
        name="mini-swe-agent",
        program="mini",
        package="mini-swe-agent",
        install="pipx install mini-swe-agent && pipx inject mini-swe-agent mcp",
        oldest="2.0",
        call=call,
        understand=understand,
        recordings=(".mini/*.traj.json",),
        again=False,
    )
)
