"""OpenCode."""

from __future__ import annotations

import json
from collections.abc import Sequence

from closeloop.model.protocols import Recording
from closeloop.runs.agents.adapter import KEY, Adapter, Call, Said, Use, lines, text_in
from closeloop.runs.agents.headless import Headless

OFF = ("AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "MODELS_FETCH", "SHARE")


def call(use: Use) -> Call:
    model = {"name": use.model, "limit": {"context": 200_000, "output": 16_000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "gateway",
        "options": {"baseURL": f"{use.address}/v1", "apiKey": KEY},
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
    env = {f"OPENCODE_DISABLE_{name}": "1" for name in OFF}
    return Call(arguments=arguments, env=env, files=files, stdin=use.prompt)


def understand(printed: bytes, recordings: Sequence[Recording]) -> Said:
    for event in lines(printed):
        if event.get("type") == "error":
            error = event.get("error")
            cause = text_in(error, "data", "message") or text_in(error, "name")
            return Said(exit="crashed", cause=cause or "it reports an error")
        if event.get("type") == "text":
            return Said(text=text_in(event, "part", "text"))
    return Said()


agent = Headless(
    Adapter(
        name="opencode",
        program="opencode",
        package="opencode-ai",
        install="npm install -g opencode-ai",
        call=call,
        understand=understand,
        recordings=(".local/share/opencode/opencode.db*", ".local/share/opencode/storage/*.json"),
    )
)
