"""The same traces as an Inspect log, read by Inspect in its own environment: prints CPU seconds.

python bench/peer_logs.py make TRACES LOG      TRACES: a JSON line a trace, as `export --jsonl`
python bench/peer_logs.py read LOG
"""

from __future__ import annotations

import json
import resource
import sys
from collections import defaultdict
from pathlib import Path


def cpu() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def make(traces: Path, log: Path) -> None:
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
    for line in traces.open():
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
    write_eval_log(EvalLog(eval=spec, samples=made, status="success"), str(log))


def read(log: Path) -> float:
    from inspect_ai.log import read_eval_log

    begun = cpu()
    found = read_eval_log(str(log))
    used = cpu() - begun
    assert found.samples
    return used


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), Path(sys.argv[3]))
        print(0)
    else:
        print(read(Path(sys.argv[2])))
