"""What Harbor's converters make of recordings, in Harbor's environment: JSON in, JSON out.

python bench/peer_harbor.py < [{"format": FORMAT, "files": [[PATH, NAME BESIDE THE FIRST], …]}, …]

Each recording is laid out as Harbor finds it after a run and converted the way Harbor does then;
what comes out is the ATIF it writes: [call id, tool, whether a result came] of each call, tokens.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import re
import sys
import tempfile
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Files = list[tuple[Path, str]]
Layout = Callable[[Path, Files], None]
_DRIVING = re.compile(
    r"^    (?:@.*\n    )*async def .*\n(?:.*\n)*?(?=    [@\w]|\S|\Z)", re.MULTILINE
)


def under(folder: str, name: str | None = None) -> Layout:
    """All files of a recording in one folder; the first under a name, where that matters."""

    def lay(logs: Path, files: Files) -> None:
        for number, (path, below) in enumerate(files):
            target = logs / folder / (name if name and number == 0 else below)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)

    return lay


def events(logs: Path, files: Files) -> None:
    """Events as OpenHands stores them; a file that holds them all is split into such."""
    folder = logs / "sessions" / "session" / "events"
    if len(files) > 1 or files[0][0].stem.isdecimal():
        under(str(folder))(logs, files)
        return
    folder.mkdir(parents=True)
    for number, event in enumerate(json.loads(files[0][0].read_bytes())):
        (folder / f"{number}.json").write_text(json.dumps(event))


AGENTS: dict[str, tuple[str, str, bool, Layout]] = {
    # format: module, class, whether a recording is one trajectory, where its files are looked for
    "claude-code": ("claude_code", "ClaudeCode", True, under("sessions/projects/p")),
    "codex": ("codex", "Codex", False, under("sessions/2026/01/01")),
    "copilot-cli": ("copilot_cli", "CopilotCli", True, under(".", "copilot-cli.jsonl")),
    "gemini": ("gemini_cli", "GeminiCli", False, under(".", "gemini-cli.trajectory.jsonl")),
    "mini-swe-agent": (
        "mini_swe_agent", "MiniSweAgent", True, under(".", "mini-swe-agent.trajectory.json"),
    ),
    "opencode-run": ("opencode", "OpenCode", True, under(".", "opencode.txt")),
    "openhands-events": ("openhands", "OpenHands", True, events),
    "pi": ("pi", "Pi", True, under("pi/sessions")),
    "qwen": ("qwen_code", "QwenCode", True, under("qwen-sessions/p/chats")),
    "swe-agent": ("swe_agent", "SweAgent", True, under(".", "swe-agent.trajectory.json")),
}  # fmt: skip


def agent_class(module: str, name: str) -> Any:
    """One of Harbor's agents, of which only the converter is used."""
    path = f"harbor.agents.installed.{module}"
    try:
        found = importlib.import_module(path)
    except SyntaxError:
        # Written for a newer Python, but only in the methods that drive the agent.
        spec = importlib.util.find_spec(path)
        assert spec is not None
        assert spec.origin is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules[path] = found
        source = _DRIVING.sub("", Path(spec.origin).read_text())
        exec(compile(source, spec.origin, "exec"), found.__dict__)
    made = getattr(found, name)
    made.__abstractmethods__ = frozenset()
    return made


def prepare() -> None:
    """Let Harbor be imported by an older Python, and without the client it calls models with."""
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined]
        typing.TypedDict = typing_extensions.TypedDict
    if importlib.util.find_spec("litellm") is None:
        client = types.ModuleType("litellm")
        client.model_cost = {}  # type: ignore[attr-defined]
        sys.modules["litellm"] = client
    logging.disable(logging.CRITICAL)


def converted(form: str, files: Files) -> dict[str, Any] | None:
    """The trajectory that Harbor writes; None where it writes none."""
    from harbor.models.agent.context import AgentContext

    module, name, _, lay = AGENTS[form]
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        lay(logs, files)
        agent_class(module, name)(logs_dir=logs).populate_context_post_run(AgentContext())
        written = logs / "trajectory.json"
        return json.loads(written.read_bytes()) if written.exists() else None


def calls(trajectory: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Every call of a trajectory and of those below it, and whether it has a result."""
    for step in trajectory["steps"]:
        if step.get("is_copied_context"):
            continue
        results = (step.get("observation") or {}).get("results") or []
        named = Counter(one.get("source_call_id") for one in results)
        told = []
        for call in reversed(step.get("tool_calls") or ()):
            # A result that names no call is the last one's.
            name = call["tool_call_id"]
            known = name if named[name] else None
            told.append((name, call["function_name"], named[known] > 0))
            named[known] -= 1
        yield from reversed(told)
    for inner in trajectory.get("subagent_trajectories") or ():
        yield from calls(inner)


def told(form: str, files: Files) -> dict[str, Any]:
    """A recording as Harbor tells it."""
    one = form == "atif" or AGENTS[form][2]
    found: list[tuple[str, str, bool]] = []
    tokens = 0
    for some in [files] if one else [[(path, path.name)] for path, _ in files]:
        try:
            trajectory = validated(some) if form == "atif" else converted(form, some)
        except ImportError:
            raise
        except Exception as error:
            return {"trouble": f"{type(error).__name__}: {error}".splitlines()[0]}
        if trajectory is None:
            return {"trouble": "no trajectory"}
        found += calls(trajectory)
        metrics = trajectory.get("final_metrics") or {}
        tokens += metrics.get("total_prompt_tokens") or 0
        tokens += metrics.get("total_completion_tokens") or 0
    return {"calls": found, "tokens": tokens}


def validated(files: Files) -> dict[str, Any]:
    """Harbor's own format, as its own model reads it; files that it names are its next steps."""
    from harbor.models.trajectories import Trajectory

    whole = [Trajectory.model_validate_json(path.read_bytes()).to_json_dict() for path, _ in files]
    return {**whole[0], "subagent_trajectories": [
        *(whole[0].get("subagent_trajectories") or ()), *whole[1:],
    ]}  # fmt: skip


if __name__ == "__main__":
    prepare()
    asked = json.load(sys.stdin)
    answers = [
        told(unit["format"], [(Path(path), below) for path, below in unit["files"]])
        for unit in asked
    ]
    json.dump(answers, sys.stdout)
