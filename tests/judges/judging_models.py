"""Models that judge as a test needs it: by a function of what they are asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from closeloop.judges import checks
from closeloop.judges.judge_panel import JudgePanel, OpenJudge
from closeloop.judges.rubric import load_rubric
from closeloop.records.attempt import Usage
from closeloop.records.evaluation import Rubric, Subtask, TaskOutput
from closeloop.records.settings import JudgeConfirmation
from closeloop.records.trace import ModelReply, ModelRequest
from closeloop.text.untrusted import find_seals

CODE = load_rubric("code-change", Path())
TASK = Subtask(id="add", prompt="Write add(a, b), which returns the sum.\nNo dependencies.")
GOOD = TaskOutput(task="add", text="Done.", change="+def add(a, b):\n+    return a + b\n")
BAD = TaskOutput(
    task="add", text="Done, I think.", change="+def add(a, b):\n+    raise SystemExit\n"
)


class Asked:
    """A model that answers by a function, and remembers what it was asked."""

    def __init__(self, answer: Callable[[ModelRequest], Any], name: str = "test-model") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._answer = answer

    async def reply(self, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        said = self._answer(request)
        if isinstance(said, ModelReply):
            return said
        text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
        return ModelReply(text=text, usage=Usage(input_tokens=100, output_tokens=10))


def opened(
    model: Asked, rubric: Rubric = CODE, samples: int = 1, *, confirm: JudgeConfirmation = "always"
) -> OpenJudge:
    def door(before: Usage) -> AbstractAsyncContextManager[Any]:
        return nullcontext(model)

    return OpenJudge(
        judge=checks,
        model=model.name,
        open_model=door,
        rubric=rubric,
        samples=samples,
        confirm=confirm,
    )


def bench(
    *models: Asked, rubric: Rubric = CODE, samples: int = 1, confirm: JudgeConfirmation = "always"
) -> JudgePanel:
    judges = (opened(model, rubric, samples, confirm=confirm) for model in models)
    return JudgePanel(judges=tuple(judges))


def seal_in(request: ModelRequest) -> str:
    """The one that the last line, which nobody but us writes, asks for."""
    return re.findall(r"seal ([0-9a-f]{16})", request.messages[0].text.splitlines()[-1])[0]


def outside(request: ModelRequest) -> str:
    """What a reader who knows fences by their seals takes for instructions."""
    text = request.messages[0].text
    seals = {*find_seals(text)}
    kept, until = [], None
    for line in text.split("\n"):
        if until is not None:
            until = None if line == until else until
            continue
        begins = re.fullmatch(r"BEGIN (.+) ([0-9a-f]{16})", line)
        if begins and begins[2] in seals:
            until = f"END {begins[1]} {begins[2]}"
        else:
            kept.append(line)
    assert until is None, "a fence is open at the end"
    return "\n".join(kept)


def all_of(verdict: str, quote: str, request: ModelRequest, **others: str) -> dict[str, Any]:
    """The same answer to every check of the request's schema, but for some."""
    assert request.schema is not None
    names = request.schema["properties"]["answers"]["required"]
    return {
        "seal": seal_in(request),
        "answers": {
            name: {
                "evidence": [quote],
                "reasoning": f"Because of {quote}.",
                "verdict": others.get(name.replace("-", "_"), verdict),
            }
            for name in names
        },
        "summary": "Looked at.",
    }


def fair(request: ModelRequest) -> dict[str, Any]:
    """Yes for work that adds, no for other work."""
    if "return a + b" in request.messages[0].text:
        return all_of("yes", "return a + b", request)
    return all_of("no", "returns the sum", request)
