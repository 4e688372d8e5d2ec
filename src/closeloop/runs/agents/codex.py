"""Codex."""

from __future__ import annotations

import json
from collections.abc import Sequence

from closeloop.model.protocols import Recording
from closeloop.runs.agents.adapter import KEY, Adapter, Call, Said, Use, lines, text_in
from closeloop.runs.agents.headless import Headless

# Our cage is around it: its own would need namespaces that a cage does not give.
CONFIG = """\
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


def call(use: Use) -> Call:
    arguments = ["exec", *(["resume", "--last"] if use.again else [])]
    arguments += ["--json", "--skip-git-repo-check", "-"]
    config = CONFIG.format(model=json.dumps(use.model), address=json.dumps(f"{use.address}/v1"))
    files = {".codex/config.toml": config}
    if use.system:
        files[".codex/AGENTS.md"] = use.system
    env = {"CODEX_HOME": f"{use.home}/.codex", "GATEWAY_KEY": KEY}
    return Call(arguments=arguments, env=env, files=files, stdin=use.prompt)


def understand(printed: bytes, recordings: Sequence[Recording]) -> Said:
    for event in lines(printed):
        if event.get("type") == "turn.failed":
            cause = text_in(event, "error", "message") or "the turn failed"
            return Said(exit="crashed", cause=cause)
        item = event.get("item")
        if isinstance(item, dict) and item.get("type") == "agent_message":
            return Said(text=text_in(item, "text"))
    return Said()


agent = Headless(
    Adapter(
        name="codex",
        program="codex",
        package="@openai/codex",
        install="npm install -g @openai/codex",
        oldest="0.118",
        call=call,
        understand=understand,
        recordings=(".codex/sessions/*.jsonl",),
        done=b'{"type":"turn.completed"',
    )
)
