"""Any program: the prompt by argument, standard input or file, the trace by path or as printed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from closeloop.model.errors import BadInput
from closeloop.model.protocols import Recording
from closeloop.runs.agents.adapter import KEY, Adapter, Call, Said, Use, openai
from closeloop.runs.agents.headless import Headless, Settings, words

LAST_WORDS = 30_000
"""Enough for the answer of a judge by a large rubric, and all that is kept of any agent."""
WAYS = ("argument", "stdin", "file")


def call(use: Use) -> Call:
    given, way = words(use.settings["program"], "program")[1:], use.settings.get("prompt")
    files = {".agent/prompt.md": use.prompt}
    if use.system:
        files[".agent/system.md"] = use.system
    env = openai(use) | {
        "ANTHROPIC_BASE_URL": use.address,
        "ANTHROPIC_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": use.address,
        "GEMINI_API_KEY": KEY,
        "AGENT_MODEL": use.model,
        "AGENT_PROMPT": f"{use.home}/.agent/prompt.md",
        "AGENT_SYSTEM_PROMPT": f"{use.home}/.agent/system.md" if use.system else "",
        "AGENT_TURNS": str(use.turns),
    }
    if way == "stdin":
        return Call(arguments=given, env=env, files=files, stdin=use.prompt)
    last = env["AGENT_PROMPT"] if way == "file" else use.prompt
    return Call(arguments=[*given, last], env=env, files=files)


def understand(printed: bytes, recordings: Sequence[Recording]) -> Said:
    text = printed[-4 * LAST_WORDS :].decode(errors="replace").strip()
    return Said(text=text[-LAST_WORDS:] or None)


class AnyProgram(Headless):
    """A program that nobody has written an adapter for."""

    def with_settings(self, settings: Settings) -> Headless:
        if not settings.get("program"):
            raise BadInput("The agent command needs the setting `program`: what to run.")
        if "arguments" in settings:
            raise BadInput("Put the `arguments` of the agent command into its `program`.")
        way, trace = settings.get("prompt", "argument"), settings.get("trace")
        if way not in WAYS:
            raise BadInput(f"The setting `prompt` must be one of {', '.join(WAYS)}, not {way!r}.")
        patterns = () if trace in (None, "stdout") else (str(trace),)
        adapter = msgspec.structs.replace(
            self.adapter, recordings=patterns, prints=trace == "stdout"
        )
        return Headless(adapter).with_settings(settings)


agent = AnyProgram(
    Adapter(
        name="command",
        program="",
        install="which PROGRAM",
        call=call,
        understand=understand,
        again=False,
        needs_model=False,
        settings=("prompt", "trace"),
    )
)
