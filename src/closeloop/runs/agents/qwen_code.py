"""Qwen Code."""

from __future__ import annotations

import json

from closeloop.runs.agents.adapter import Adapter, Call, Use, openai
from closeloop.runs.agents.claude_code import understand
from closeloop.runs.agents.headless import Headless

SETTINGS = {
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}


def call(use: Use) -> Call:
    files = {".qwen/settings.json": json.dumps(SETTINGS)}
    if use.system:
        files[".qwen/QWEN.md"] = use.system
    arguments = ["--auth-type", "openai", "--yolo", "--output-format", "stream-json"]
    arguments += ["--model", use.model, "--max-session-turns", str(use.turns)]
    arguments += ["--continue"] if use.again else []
    env = openai(use) | {"OPENAI_MODEL": use.model}
    return Call(arguments=arguments, env=env, files=files, stdin=use.prompt)


agent = Headless(
    Adapter(
        name="qwen-code",
        program="qwen",
        package="@qwen-code/qwen-code",
        install="npm install -g @qwen-code/qwen-code",
        call=call,
        understand=understand,
        recordings=(".qwen/projects/*/chats/*.jsonl", ".qwen/projects/*/subagents/*.json*"),
    )
)
