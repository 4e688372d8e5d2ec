"""The same traces as an Inspect log, read by Inspect in an environment of its own."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from harness import own_cpu_seconds


def make_log(traces: str, log: str) -> None:
    """A log of traces given as JSON lines, as `export --table events` writes them."""
    from inspect_ai.event import InfoEvent, ToolEvent
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalSample,
        EvalSpec,
        write_eval_log,
    )
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser

    samples = defaultdict(list)
    for line in Path(traces).read_text().splitlines():
        event = json.loads(line)
        samples[event["attempt"]].append(event)
    made = []
    for name, events in samples.items():
        messages, told = [], []
        for event in events:
            if event["kind"] == "message":
                kind = ChatMessageUser if event["role"] == "user" else ChatMessageAssistant
                messages.append(kind(content=event["text"]))
            elif event["kind"] in ("thought", "note"):
                told.append(InfoEvent(data=event["text"]))
            else:
                rest = {k: v for k, v in event.items() if k not in ("kind", "output", "text")}
                result = event.get("output") or event.get("text") or ""
                told.append(
                    ToolEvent(id=str(event["number"]), function=event["kind"], arguments=rest,
                              result=result)
                )  # fmt: skip
        made.append(
            EvalSample(id=name, epoch=1, input="", target="", messages=messages, events=told)
        )
    spec = EvalSpec(created="2026-11-15T00:00:00+00:00", task="t", model="mockllm/model",
                    dataset=EvalDataset(), config=EvalConfig())  # fmt: skip
    write_eval_log(EvalLog(eval=spec, samples=made, status="success"), log)


def read_log(log: str) -> float:
    """CPU seconds of reading all of it."""
    from inspect_ai.log import read_eval_log

    begun = own_cpu_seconds()
    found = read_eval_log(log)
    used = own_cpu_seconds() - begun
    assert found.samples
    return used
