"""The same attempts as in attempts.py made by Inspect AI, in an environment of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness import own_cpu_seconds


def main(turns: int, samples: int) -> float:
    """CPU seconds of one sample."""
    from inspect_ai import Task, eval  # noqa: A004
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    scratch = Path(tempfile.mkdtemp())
    (scratch / "notes.txt").write_text("a line\n" * 20)

    @tool
    def read():  # type: ignore[no-untyped-def]
        async def execute(path: str) -> str:
            """Read a file.

            Args:
                path: The file.
            """
            return (scratch / path).read_text()

        return execute

    def counted(output: ModelOutput) -> ModelOutput:
        # With usage given the mock does not count tokens, for which it would need a download.
        output.usage = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
        return output

    def outputs():  # type: ignore[no-untyped-def]
        name = "mockllm/model"
        while True:
            for _ in range(turns - 1):
                yield counted(ModelOutput.for_tool_call(name, "read", {"path": "notes.txt"}))
            yield counted(ModelOutput.from_content(name, "The answer is 42"))

    dataset = MemoryDataset([Sample(input="What is it?", target="42") for _ in range(samples)])
    solver = [use_tools(read()), generate()] if turns > 1 else [generate()]
    task = Task(dataset=dataset, solver=solver, scorer=match())
    # One sample at a time: the mock hands out its replies in order, whoever asks.
    model = get_model("mockllm/model", custom_outputs=outputs())
    before = own_cpu_seconds()
    logs = eval(task, model=model, display="none", log_dir=str(scratch / "logs"), max_samples=1)
    used = own_cpu_seconds() - before
    assert logs[0].status == "success", logs[0].error
    return used / samples
