"""Real agents at work on two small repositories, with a scripted model: is all of it true?

    examples/agents/install .agents
    python examples/agents/demo.py .agents .closeloop/agents

Each agent meets a failing test, edits, and sees it pass, in its cage, by way of the gateway. Their
own recordings are read, measured and graded; the tokens that the gateway counted are held against
those that the model's server gave out. At the end each is asked in one more turn what it lacked:
that is stored, counted with what others said, and told to the next agent.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
from dialogues import LACKED, Project, dialogues, node, python

from closeloop.providers import script_server as serving
from closeloop.providers import scripted_model
from closeloop.providers.scripted_model import parse_script

PROGRAMS = {
    "aider": "bin/aider",
    "mini-swe-agent": "bin/mini",
    "openhands": "bin/openhands",
    "claude-code": "claude",
    "codex": "codex",
    "gemini-cli": "gemini",
    "opencode": "opencode",
    "pi": "pi",
    "qwen-code": "qwen",
}
PROVIDERS = {"claude-code": "anthropic", "gemini-cli": "gemini"}
COLUMNS = (
    "agent", "version", "repository", "exit", "outcome", "turns", "gateway", "server", "seconds",
    "findings", "lacked",
)  # fmt: skip
Served = Counter[str]


def program(folder: Path, agent: str) -> Path:
    name = PROGRAMS[agent]
    return folder / agent / (name if "/" in name else f"node_modules/.bin/{name}")


def lay_out(project: Project, folder: Path) -> None:
    """The repository, and a task that is graded by its tests."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tasks").mkdir(parents=True)
    repo = folder / "repo"
    repo.mkdir()
    for name, text in project.files.items():
        (repo / name).write_text(text)
    who = ["-c", "user.name=demo", "-c", "user.email=demo@localhost"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
        subprocess.run(["git", *who, *words], cwd=repo, check=True)
    task = (
        f"---\nrepo: ../repo\nscope: [{project.source}]\nacceptance:\n  run: {project.run}\n"
        f"{project.more}  fail_to_pass: ['{project.fails}']\n---\n{project.prompt}\n"
    )
    (folder / "tasks" / "half-a-cent.md").write_text(task)


def configuration(agents: dict[str, Path], addresses: dict[str, str], project: Project) -> str:
    lines = []
    for agent, path in agents.items():
        provider = PROVIDERS.get(agent, "openai")
        address = addresses[agent] + ("/v1" if provider == "openai" else "")
        settings = {"program": str(path)}
        if agent == "aider":
            settings |= {"arguments": "--edit-format diff", "files": project.source}
            settings["test"] = project.test
        lines += [
            f"[models.{agent}]", f'provider = "{provider}"', 'model = "scripted"',
            f"base_url = {json.dumps(address)}", f"[variants.{agent}]", f'agent = "{agent}"',
            f'model = "{agent}"', "feedback = true", f"[variants.{agent}.settings]",
            *(f"{name} = {json.dumps(value)}" for name, value in settings.items()),
        ]  # fmt: skip
    return "\n".join(["[limits]", "seconds = 300", "turns = 40", *lines, ""])


async def run(project: Project, agents: dict[str, Path], folder: Path) -> list[dict[str, Any]]:
    """All agents on one repository; a row for each."""
    lay_out(project, folder)
    served: Served = Counter()
    vars(serving)["reply_from_turn"] = partial(counted, served)
    async with AsyncExitStack() as opened:
        addresses = {}
        for agent in agents:
            told = {"name": agent, "dialogues": dialogues(agent, project)}
            script = parse_script(msgspec.json.encode(told), f"{agent}.yaml")
            addresses[agent] = await opened.enter_async_context(serving.serve_script(script))
        (folder / "closeloop.toml").write_text(configuration(agents, addresses, project))
        closeloop = shutil.which("closeloop") or "closeloop"
        ran = await anyio.run_process(
            [closeloop, "run", "--set", "run.jobs=2", "--yes", "--json"],
            cwd=folder, check=False, stderr=sys.stderr,
        )  # fmt: skip
    if not ran.stdout:
        sys.exit(ran.returncode or 4)
    return rows(json.loads(ran.stdout), project, served)


def counted(served: Served, script: Any, turn: Any, request: Any) -> Any:
    reply = scripted_model.reply_from_turn(script, turn, request)
    served[script.name] += (reply.usage.input_tokens or 0) + (reply.usage.output_tokens or 0)
    served[f"{script.name} asked"] += reply.text == LACKED
    return reply


def told_next(folder: Path, told: int) -> str:
    """What became of the answers: themes, and what the next agent would be told."""

    def answer(*words: str) -> Any:
        program = shutil.which("closeloop") or "closeloop"
        ran = subprocess.run([program, *words, "--json"], cwd=folder, check=True, stdout=-1)
        return json.loads(ran.stdout)

    themes = answer("learn", "insights")["items"]
    task = ("--repo", str(folder / "repo"), "--task", "Round half a cent up.")
    hints = answer("learn", "context", *task)
    counts = [theme["count"] for theme in themes]
    given = sum(LACKED in hint["text"] for hint in hints["hints"])
    well = sum(counts) == told and given == (told > 1)
    return (
        f"{folder.name}: {len(counts)} theme of {sum(counts)} attempts, {given} told to the next"
        f" agent: {'as it should be' if well else 'WRONG'}"
    )


def rows(results: dict[str, Any], project: Project, served: Served) -> list[dict[str, Any]]:
    told = {insight["attempt"] for insight in results["insights"]}
    versions = {one["name"]: one["agent_version"] for one in results["variants"]}
    made = []
    for row in results["attempts"]:
        found = (results["measurements"].get(row["id"]) or {}).get("findings", ())
        name = row["variant_name"]
        made.append(
            {
                "agent": name, "version": versions[name], "repository": project.name,
                "exit": row["exit"], "outcome": row["outcome"], "turns": row["turns"],
                "gateway": (row["input_tokens"] or 0) + (row["output_tokens"] or 0),
                "server": served[name], "seconds": round(row["seconds"] or 0, 1),
                "findings": " ".join(one["rule"] for one in found) or "none",
                "lacked": "told" if row["id"] in told else "–",
                "asked": served[f"{name} asked"],
                "cause": row["cause"] or row["reason"] or "",
            }
        )  # fmt: skip
    return sorted(made, key=lambda one: one["agent"])


def is_well(row: dict[str, Any]) -> bool:
    counted_alike = row["gateway"] == row["server"] > 0
    # What it lacked costs one turn, no more.
    if row["lacked"] == "told" and row["asked"] != 1:
        return False
    return counted_alike and row["outcome"] == "pass" and (row["turns"] or 0) > 1


def main(installed: Path, folder: Path, names: list[str]) -> int:
    there = {name: program(installed, name) for name in sorted(PROGRAMS)}
    agents = {name: path for name, path in there.items() if path.exists()}
    agents = {name: path for name, path in agents.items() if not names or name in names}
    if not agents:
        print(f"No agent is installed in {installed}: is `npm` there, and its registry in reach?")
        return 2
    table, lessons = [], []
    for project in (python(), node()):
        made = anyio.run(run, project, agents, folder / project.name)
        told = sum(row["lacked"] == "told" for row in made)
        lessons.append(told_next(folder / project.name, told))
        table += made
    wide = {name: max(len(name), *(len(str(row[name])) for row in table)) for name in COLUMNS}
    for row in ({name: name for name in COLUMNS}, *table):
        print("  ".join(str(row[name]).ljust(wide[name]) for name in COLUMNS).rstrip())
    print("\n".join(lessons))
    bad = [row for row in table if not is_well(row)]
    for row in bad:
        print(f"{row['agent']} on {row['repository']}: {row['cause'] or 'tokens or turns'}")
    print(f"{len(table) - len(bad)} of {len(table)} are as they should be: graded pass, several "
          f"turns read, tokens by the gateway = tokens by the server.")  # fmt: skip
    return 1 if bad or any("WRONG" in lesson for lesson in lessons) else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute(), sys.argv[3:]))
