"""Aider."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.agents.agent_adapter import (
    Adapter,
    AgentCall,
    AgentCallRequest,
    AgentReport,
    openai_environment,
)
from closeloop.agents.headless_agent import HeadlessAgent
from closeloop.records.protocols import Recording

AIDER_OPTIONS = (
    *("--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"),
    *("--no-gitignore", "--no-show-release-notes", "--no-pretty", "--no-fancy-input"),
)
MAX_SUMMARY_CHARS = 2000


def build_aider_call(use: AgentCallRequest) -> AgentCall:
    folder = f"{use.home}/.aider"
    history_names = ("chat-history", "input-history", "llm-history")
    files = {".aider/prompt.md": use.prompt}
    arguments = [
        *AIDER_OPTIONS,
        "--model",
        f"openai/{use.model}",
        "--message-file",
        f"{folder}/prompt.md",
    ]
    for name in history_names:  # beside the code they would be part of the change
        arguments += [f"--{name}-file", f"{folder}/{name}.md"]
    # Its cache of the repository lies in there, whatever it is told.
    arguments += ["--map-tokens", "0"]
    arguments += ["--restore-chat-history", "--chat-mode", "ask"] if use.again else []
    if use.system:
        files[".aider/system.md"] = use.system
        arguments += ["--read", f"{folder}/system.md"]
    if test := use.settings.get("test"):
        arguments += ["--auto-test", "--test-cmd", str(test)]
    if edited_files := use.settings.get("files"):
        arguments += str(edited_files).split()
    return AgentCall(arguments=arguments, env=openai_environment(use), files=files)


def read_aider_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    """What stands in the chat after the last thing that a user said; remarks are the program's."""
    for recording in recordings:
        if recording.path.endswith("chat-history.md"):
            chat = recording.content[-1 << 20 :].decode(errors="replace").splitlines()
            agent_lines: list[str] = []
            remarks: list[str] = []
            for line in reversed(chat):
                if line.startswith(("#### ", "# aider chat")):
                    break
                (remarks if line.startswith("> ") else agent_lines).append(line)
            text = "\n".join(reversed(agent_lines)).strip()
            failures = [line[2:].strip() for line in remarks if "litellm." in line]
            if failures and not text:
                return AgentReport(exit="crashed", cause=failures[-1])
            return AgentReport(text=text[-MAX_SUMMARY_CHARS:].strip() or None)
    return AgentReport()


agent = HeadlessAgent(
    Adapter(
        name="aider",
        program="aider",
        package="aider-chat",
        install="pipx install aider-chat",
        call=build_aider_call,
        understand=read_aider_report,
        recordings=(".aider/chat-history.md",),
        settings=("test", "files"),
    )
)
