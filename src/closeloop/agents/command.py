"""Any program: the prompt by argument, standard input or file, the trace by path or as printed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from closeloop.agents.agent_adapter import (
    PLACEHOLDER_KEY,
    Adapter,
    AgentCall,
    AgentCallRequest,
    AgentReport,
    openai_environment,
)
from closeloop.agents.headless_agent import AgentSettings, HeadlessAgent, split_setting
from closeloop.records.errors import BadInput
from closeloop.records.protocols import Recording

MAX_SUMMARY_CHARS = 30_000
"""Enough for the answer of a judge by a large rubric, and all that is kept of any agent."""
PROMPT_WAYS = ("argument", "stdin", "file")


def build_program_call(use: AgentCallRequest) -> AgentCall:
    program_arguments, prompt_way = (
        split_setting(use.settings["program"], "program")[1:],
        use.settings.get("prompt"),
    )
    files = {".agent/prompt.md": use.prompt}
    if use.system:
        files[".agent/system.md"] = use.system
    env = openai_environment(use) | {
        "ANTHROPIC_BASE_URL": use.address,
        "ANTHROPIC_API_KEY": PLACEHOLDER_KEY,
        "GOOGLE_GEMINI_BASE_URL": use.address,
        "GEMINI_API_KEY": PLACEHOLDER_KEY,
        "AGENT_MODEL": use.model,
        "AGENT_PROMPT": f"{use.home}/.agent/prompt.md",
        "AGENT_SYSTEM_PROMPT": f"{use.home}/.agent/system.md" if use.system else "",
        "AGENT_TURNS": str(use.turns),
    }
    if prompt_way == "stdin":
        return AgentCall(arguments=program_arguments, env=env, files=files, stdin=use.prompt)
    last_argument = env["AGENT_PROMPT"] if prompt_way == "file" else use.prompt
    return AgentCall(arguments=[*program_arguments, last_argument], env=env, files=files)


def read_program_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    text = printed[-4 * MAX_SUMMARY_CHARS :].decode(errors="replace").strip()
    return AgentReport(text=text[-MAX_SUMMARY_CHARS:] or None)


class CommandAgent(HeadlessAgent):
    """A program that nobody has written an adapter for."""

    def with_settings(self, settings: AgentSettings) -> HeadlessAgent:
        if not settings.get("program"):
            raise BadInput("The agent command needs the setting `program`: what to run.")
        if "arguments" in settings:
            raise BadInput("Put the `arguments` of the agent command into its `program`.")
        prompt_way, trace = settings.get("prompt", "argument"), settings.get("trace")
        if prompt_way not in PROMPT_WAYS:
            raise BadInput(
                f"The setting `prompt` must be one of {', '.join(PROMPT_WAYS)}, not {prompt_way!r}."
            )
        patterns = () if trace in (None, "stdout") else (str(trace),)
        adapter = msgspec.structs.replace(
            self.adapter, recordings=patterns, prints=trace == "stdout"
        )
        return HeadlessAgent(adapter).with_settings(settings)


agent = CommandAgent(
    Adapter(
        name="command",
        program="",
        install="which PROGRAM",
        call=build_program_call,
        understand=read_program_report,
        again=False,
        needs_model=False,
        settings=("prompt", "trace"),
    )
)
