"""pi."""

from __future__ import annotations

import json
from collections.abc import Sequence

from closeloop.model.protocols import Recording
from closeloop.runs.agents.adapter import KEY, Adapter, Call, Said, Use, joined, lines, text_in
from closeloop.runs.agents.headless import Headless


def call(use: Use) -> Call:
    prices = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    model = {"id": use.model, "cost": prices, "contextWindow": 200_000, "maxTokens": 16_000}
    provider = {"baseUrl": f"{use.address}/v1", "api": "openai-completions", "apiKey": KEY}
    files = {
        ".pi/agent/models.json": json.dumps(
            {"providers": {"gateway": {**provider, "models": [model]}}}
        )
    }
    arguments = ["--provider", "gateway", "--model", use.model, "--mode", "json", "-p"]
    arguments += ["--append-system-prompt", use.system] if use.system else []
    arguments += ["--continue"] if use.again else []
    return Call(arguments=arguments, env={"PI_OFFLINE": "1"}, files=files, stdin=use.prompt)


def understand(printed: bytes, recordings: Sequence[Recording]) -> Said:
    for event in lines(printed):
        message = event.get("message")
        if event.get("type") != "message_end" or text_in(message, "role") != "assistant":
            continue
        if text_in(message, "stopReason") == "error":
            cause = text_in(message, "errorMessage") or "it reports an error"
            return Said(exit="crashed", cause=cause)
        return Said(text=joined(message.get("content")) if isinstance(message, dict) else None)
    return Said()


agent = Headless(
    Adapter(
        name="pi",
        program="pi",
        package="@mariozechner/pi-coding-agent",
        install="npm install -g @mariozechner/pi-coding-agent",
        call=call,
        understand=understand,
        recordings=(".pi/agent/sessions/*.jsonl",),
    )
)
