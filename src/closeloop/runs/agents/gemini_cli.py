"""Gemini CLI."""

from __future__ import annotations

import json
from collections.abc import Sequence

from closeloop.model.protocols import Recording
from closeloop.runs.agents.adapter import KEY, Adapter, Call, Said, Use, lines, text_in
from closeloop.runs.agents.headless import Headless


def call(use: Use) -> Call:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "telemetry": {"enabled": False},
        "model": {"name": use.model, "maxSessionTurns": use.turns},
    }
    files = {".gemini/settings.json": json.dumps(settings)}
    if use.system:
        files[".gemini/GEMINI.md"] = use.system
    arguments = ["--yolo", "--skip-trust", "--output-format", "stream-json", "--model", use.model]
    arguments += ["--resume", "latest"] if use.again else []
    env = {"GOOGLE_GEMINI_BASE_URL": use.address, "GEMINI_API_KEY": KEY}
    return Call(arguments=arguments, env=env, files=files, stdin=use.prompt)


def understand(printed: bytes, recordings: Sequence[Recording]) -> Said:
    """Words come in pieces, with the turn's end after them."""
    pieces: list[str] = []
    said = Said()
    for event in lines(printed):
        if event.get("type") == "result" and event.get("status") == "error":
            cause = text_in(event, "error", "message") or "it reports an error"
            said = Said(exit="crashed", cause=cause)
        elif event.get("type") == "message" and event.get("role") == "assistant":
            pieces.append(text_in(event, "content") or "")
        elif pieces:
            break
    text = "".join(reversed(pieces)) or None
    return Said(text=text, exit=said.exit, cause=said.cause)


agent = Headless(
    Adapter(
        name="gemini-cli",
        program="gemini",
        package="@google/gemini-cli",
        install="npm install -g @google/gemini-cli",
        call=call,
        understand=understand,
        recordings=(".gemini/tmp/*/chats/*.json*",),
    )
)
