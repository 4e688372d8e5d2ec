"""Claude Code."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.model.protocols import Recording
from closeloop.runs.agents.adapter import KEY, Adapter, Call, Said, Use, lines, text_in
from closeloop.runs.agents.headless import Headless

QUIET = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_AUTOUPDATER",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_TELEMETRY",
    "IS_SANDBOX",  # as root it works without asking only in a sandbox, which it is in
)


def call(use: Use) -> Call:
    arguments = ["-p", "--output-format", "stream-json", "--verbose", "--model", use.model]
    arguments += ["--permission-mode", "bypassPermissions", "--max-turns", str(use.turns)]
    arguments += ["--append-system-prompt", use.system] if use.system else []
    arguments += ["--continue"] if use.again else []
    env = dict.fromkeys(QUIET, "1") | {
        "ANTHROPIC_BASE_URL": use.address,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_SMALL_FAST_MODEL": use.model,
        "CLAUDE_CONFIG_DIR": f"{use.home}/.claude",
    }
    return Call(arguments=arguments, env=env, stdin=use.prompt)


def understand(printed: bytes, recordings: Sequence[Recording]) -> Said:
    for event in lines(printed):
        if event.get("type") != "result":
            continue
        text = text_in(event, "result")
        if event.get("subtype") == "error_max_turns":
            return Said(text=text, exit="out_of_budget", cause="turn limit")
        if event.get("is_error"):
            return Said(text=text, exit="crashed", cause=text or text_in(event, "subtype"))
        return Said(text=text)
    return Said()


agent = Headless(
    Adapter(
        name="claude-code",
        program="claude",
        package="@anthropic-ai/claude-code",
        install="npm install -g @anthropic-ai/claude-code",
        call=call,
        understand=understand,
        recordings=(".claude/projects/*.jsonl",),
    )
)
