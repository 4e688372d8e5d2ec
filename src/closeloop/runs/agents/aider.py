"""Aider."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.model.protocols import Recording
from closeloop.runs.agents.adapter import Adapter, Call, Said, Use, openai
from closeloop.runs.agents.headless import Headless

OPTIONS = (
    *("--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"),
    *("--no-gitignore", "--no-show-release-notes", "--no-pretty", "--no-fancy-input"),
)
LAST_WORDS = 2000


def call(use: Use) -> Call:
    folder = f"{use.home}/.aider"
    kept = ("chat-history", "input-history", "llm-history")
    files = {".aider/prompt.md": use.prompt}
    arguments = [
        *OPTIONS,
        "--model",
        f"openai/{use.model}",
        "--message-file",
        f"{folder}/prompt.md",
    ]
    for name in kept:  # beside the code they would be part of the change
        arguments += [f"--{name}-file", f"{folder}/{name}.md"]
    # Its cache of the repository lies in there, whatever it is told.
    arguments += ["--map-tokens", "0"]
    arguments += ["--restore-chat-history", "--chat-mode", "ask"] if use.again else []
    if use.system:
        files[".aider/system.md"] = use.system
        arguments += ["--read", f"{folder}/system.md"]
    if test := use.settings.get("test"):
        arguments += ["--auto-test", "--test-cmd", str(test)]
    if edited := use.settings.get("files"):
        arguments += str(edited).split()
    return Call(arguments=arguments, env=openai(use), files=files)


def understand(printed: bytes, recordings: Sequence[Recording]) -> Said:
    """What stands in the chat after the last thing that a user said; remarks are the program's."""
    for recording in recordings:
        if recording.path.endswith("chat-history.md"):
            chat = recording.content[-1 << 20 :].decode(errors="replace").splitlines()
            spoken: list[str] = []
            remarks: list[str] = []
            for line in reversed(chat):
                if line.startswith(("#### ", "# aider chat")):
                    break
                (remarks if line.startswith("> ") else spoken).append(line)
            text = "\n".join(reversed(spoken)).strip()
            failed = [line[2:].strip() for line in remarks if "litellm." in line]
            if failed and not text:
                return Said(exit="crashed", cause=failed[-1])
            return Said(text=text[-LAST_WORDS:].strip() or None)
    return Said()


agent = Headless(
    Adapter(
        name="aider",
        program="aider",
        package="aider-chat",
        install="pipx install aider-chat",
        call=call,
        understand=understand,
        recordings=(".aider/chat-history.md",),
        settings=("test", "files"),
    )
)
