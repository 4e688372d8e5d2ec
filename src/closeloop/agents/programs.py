"""Wrapped coding agents: how each is called, and what its last output means."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from closeloop.agents.headless_agent import (
    PLACEHOLDER_KEY,
    Adapter,
    AgentCall,
    AgentCallRequest,
    AgentReport,
    AgentSettings,
    HeadlessAgent,
    find_text,
    iterate_last_json_lines,
    join_text_parts,
    openai_environment,
    split_setting,
)
from closeloop.records.errors import BadInput
from closeloop.records.protocols import Recording

# Aider.


AIDER_OPTIONS = (
    *("--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"),
    *("--no-gitignore", "--no-show-release-notes", "--no-pretty", "--no-fancy-input"),
)
MAX_AIDER_SUMMARY_CHARS = 2000


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
    for name in history_names:  # in the repository they would be part of the change
        arguments += [f"--{name}-file", f"{folder}/{name}.md"]
    # Its cache of the repository is always in there.
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
    """Return the chat after the user's last message; remarks are the program's."""
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
            return AgentReport(text=text[-MAX_AIDER_SUMMARY_CHARS:].strip() or None)
    return AgentReport()


aider = HeadlessAgent(
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


# Claude Code.


QUIET_VARIABLES = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_AUTOUPDATER",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_TELEMETRY",
    "IS_SANDBOX",  # as root it works without confirmation only in a sandbox, which this is
)


def build_claude_call(use: AgentCallRequest) -> AgentCall:
    arguments = ["-p", "--output-format", "stream-json", "--verbose", "--model", use.model]
    arguments += ["--permission-mode", "bypassPermissions", "--max-turns", str(use.turns)]
    arguments += ["--append-system-prompt", use.system] if use.system else []
    arguments += ["--continue"] if use.again else []
    env = dict.fromkeys(QUIET_VARIABLES, "1") | {
        "ANTHROPIC_BASE_URL": use.address,
        "ANTHROPIC_API_KEY": PLACEHOLDER_KEY,
        "ANTHROPIC_SMALL_FAST_MODEL": use.model,
        "CLAUDE_CONFIG_DIR": f"{use.home}/.claude",
    }
    return AgentCall(arguments=arguments, env=env, stdin=use.prompt)


def read_claude_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    for event in iterate_last_json_lines(printed):
        if event.get("type") != "result":
            continue
        text = find_text(event, "result")
        if event.get("subtype") == "error_max_turns":
            return AgentReport(text=text, exit="out_of_budget", cause="turn limit")
        if event.get("is_error"):
            return AgentReport(text=text, exit="crashed", cause=text or find_text(event, "subtype"))
        return AgentReport(text=text)
    return AgentReport()


claude_code = HeadlessAgent(
    Adapter(
        name="claude-code",
        program="claude",
        package="@anthropic-ai/claude-code",
        install="npm install -g @anthropic-ai/claude-code",
        call=build_claude_call,
        understand=read_claude_report,
        recordings=(".claude/projects/*.jsonl",),
    )
)


# Codex.


# Codex runs in our sandbox: its own would need namespaces that ours does not provide.
CODEX_CONFIG = """\
model = {model}
model_provider = "gateway"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[model_providers.gateway]
name = "gateway"
base_url = {address}
wire_api = "responses"
env_key = "GATEWAY_KEY"
[analytics]
enabled = false
"""


def build_codex_call(use: AgentCallRequest) -> AgentCall:
    arguments = ["exec", *(["resume", "--last"] if use.again else [])]
    arguments += ["--json", "--skip-git-repo-check", "-"]
    config = CODEX_CONFIG.format(
        model=json.dumps(use.model), address=json.dumps(f"{use.address}/v1")
    )
    files = {".codex/config.toml": config}
    if use.system:
        files[".codex/AGENTS.md"] = use.system
    env = {"CODEX_HOME": f"{use.home}/.codex", "GATEWAY_KEY": PLACEHOLDER_KEY}
    return AgentCall(arguments=arguments, env=env, files=files, stdin=use.prompt)


def read_codex_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    for event in iterate_last_json_lines(printed):
        if event.get("type") == "turn.failed":
            cause = find_text(event, "error", "message") or "the turn failed"
            return AgentReport(exit="crashed", cause=cause)
        item = event.get("item")
        if isinstance(item, dict) and item.get("type") == "agent_message":
            return AgentReport(text=find_text(item, "text"))
    return AgentReport()


codex = HeadlessAgent(
    Adapter(
        name="codex",
        program="codex",
        package="@openai/codex",
        install="npm install -g @openai/codex",
        oldest="0.118",
        call=build_codex_call,
        understand=read_codex_report,
        recordings=(".codex/sessions/*.jsonl",),
        done=b'{"type":"turn.completed"',
    )
)


# Gemini CLI.


def build_gemini_call(use: AgentCallRequest) -> AgentCall:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "telemetry": {"enabled": False},
        "model": {"name": use.model, "maxSessionTurns": use.turns},
    }
    files = {".gemini/settings.json": json.dumps(settings)}
    if use.system:
        files[".gemini/GEMINI.md"] = use.system
    arguments = ["--yolo", "--skip-trust", "--output-format", "stream-json", "--model", use.model]
    arguments += ["--resume", "latest"] if use.again else []
    env = {"GOOGLE_GEMINI_BASE_URL": use.address, "GEMINI_API_KEY": PLACEHOLDER_KEY}
    return AgentCall(arguments=arguments, env=env, files=files, stdin=use.prompt)


def read_gemini_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    """Join the message, which arrives in pieces before the turn's end."""
    text_pieces: list[str] = []
    error_report = AgentReport()
    for event in iterate_last_json_lines(printed):
        if event.get("type") == "result" and event.get("status") == "error":
            cause = find_text(event, "error", "message") or "it reports an error"
            error_report = AgentReport(exit="crashed", cause=cause)
        elif event.get("type") == "message" and event.get("role") == "assistant":
            text_pieces.append(find_text(event, "content") or "")
        elif text_pieces:
            break
    text = "".join(reversed(text_pieces)) or None
    return AgentReport(text=text, exit=error_report.exit, cause=error_report.cause)


gemini_cli = HeadlessAgent(
    Adapter(
        name="gemini-cli",
        program="gemini",
        package="@google/gemini-cli",
        install="npm install -g @google/gemini-cli",
        call=build_gemini_call,
        understand=read_gemini_report,
        recordings=(".gemini/tmp/*/chats/*.json*",),
    )
)


# mini-swe-agent.


LIMIT_STATUSES = {"LimitsExceeded", "StepLimitExceeded", "CostLimitExceeded"}


def build_mini_call(use: AgentCallRequest) -> AgentCall:
    folder = f"{use.home}/.mini"
    arguments = ["--model", f"openai/{use.model}", "--yolo", "--exit-immediately"]
    arguments += ["--output", f"{folder}/work.traj.json", f"--task={use.prompt}"]
    arguments += ["--config", "mini.yaml", "--config", f"agent.step_limit={use.turns}"]
    if use.system:
        template = json.dumps(f"{{% raw %}}{use.system}{{% endraw %}}")
        arguments += ["--config", f"agent.system_template={template}"]
    env = openai_environment(use) | {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": folder,
    }
    return AgentCall(arguments=arguments, env=env)


def read_mini_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    for recording in recordings:
        try:
            info = msgspec.json.decode(recording.content).get("info")
        except (ValueError, RecursionError, AttributeError):
            continue
        status, text = find_text(info, "exit_status"), find_text(info, "submission")
        if status in LIMIT_STATUSES:
            return AgentReport(text=text, exit="out_of_budget", cause="turn limit")
        if status and status != "Submitted":
            return AgentReport(text=text, exit="crashed", cause=status)
        return AgentReport(text=text)
    return AgentReport()


mini_swe_agent = HeadlessAgent(
    Adapter(
        name="mini-swe-agent",
        program="mini",
        package="mini-swe-agent",
        install="pipx install mini-swe-agent && pipx inject mini-swe-agent mcp",
        oldest="2.0",
        call=build_mini_call,
        understand=read_mini_report,
        recordings=(".mini/*.traj.json",),
        again=False,
    )
)


# OpenCode.


DISABLED_FEATURES = ("AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "MODELS_FETCH", "SHARE")


def build_opencode_call(use: AgentCallRequest) -> AgentCall:
    model = {"name": use.model, "limit": {"context": 200_000, "output": 16_000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "gateway",
        "options": {"baseURL": f"{use.address}/v1", "apiKey": PLACEHOLDER_KEY},
        "models": {use.model: model},
    }
    config = {
        "provider": {"gateway": provider},
        "model": f"gateway/{use.model}",
        "small_model": f"gateway/{use.model}",
        "permission": "allow",
        "autoupdate": False,
        "share": "disabled",
    }
    files = {".config/opencode/opencode.json": json.dumps(config)}
    if use.system:
        files[".config/opencode/AGENTS.md"] = use.system
    arguments = ["run", "--format", "json", *(["--continue"] if use.again else [])]
    env = {f"OPENCODE_DISABLE_{name}": "1" for name in DISABLED_FEATURES}
    return AgentCall(arguments=arguments, env=env, files=files, stdin=use.prompt)


def read_opencode_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    for event in iterate_last_json_lines(printed):
        if event.get("type") == "error":
            error = event.get("error")
            cause = find_text(error, "data", "message") or find_text(error, "name")
            return AgentReport(exit="crashed", cause=cause or "it reports an error")
        if event.get("type") == "text":
            return AgentReport(text=find_text(event, "part", "text"))
    return AgentReport()


opencode = HeadlessAgent(
    Adapter(
        name="opencode",
        program="opencode",
        package="opencode-ai",
        install="npm install -g opencode-ai",
        call=build_opencode_call,
        understand=read_opencode_report,
        recordings=(".local/share/opencode/opencode.db*", ".local/share/opencode/storage/*.json"),
    )
)


# OpenHands.


def build_openhands_call(use: AgentCallRequest) -> AgentCall:
    files = {".openhands/prompt.md": use.prompt}
    if use.system:  # a skill without triggers is always included
        files[".openhands/skills/system.md"] = f"---\nname: system\n---\n{use.system}"
    arguments = ["--headless", "--json", "--yolo", "--override-with-envs"]
    arguments += ["--file", f"{use.home}/.openhands/prompt.md"]
    arguments += ["--resume", "--last"] if use.again else []
    env = {
        "LLM_API_KEY": PLACEHOLDER_KEY,
        "LLM_BASE_URL": f"{use.address}/v1",
        "LLM_MODEL": f"openai/{use.model}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENHANDS_SUPPRESS_BANNER": "1",
        "DO_NOT_TRACK": "1",
    }
    return AgentCall(arguments=arguments, env=env, files=files)


def read_openhands_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    """Return the last event with a message or an error."""
    for recording in reversed(recordings):
        try:
            event = msgspec.json.decode(recording.content)
        except (ValueError, RecursionError):
            continue
        kind = find_text(event, "kind")
        if kind == "ConversationErrorEvent":
            return AgentReport(
                exit="crashed", cause=find_text(event, "detail") or "it reports an error"
            )
        if find_text(event, "action", "kind") == "FinishAction":
            return AgentReport(text=find_text(event, "action", "message"))
        if kind == "MessageEvent" and event.get("source") == "agent":
            message = event.get("llm_message")
            return AgentReport(
                text=join_text_parts(message.get("content") if isinstance(message, dict) else None)
            )
    return AgentReport()


openhands = HeadlessAgent(
    Adapter(
        name="openhands",
        program="openhands",
        package="openhands",
        install="pipx install --python python3.12 openhands",
        oldest="1.0",
        call=build_openhands_call,
        understand=read_openhands_report,
        recordings=(".openhands/conversations/*/events/*.json",),
    )
)


# pi.


def build_pi_call(use: AgentCallRequest) -> AgentCall:
    prices = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    model = {"id": use.model, "cost": prices, "contextWindow": 200_000, "maxTokens": 16_000}
    provider = {
        "baseUrl": f"{use.address}/v1",
        "api": "openai-completions",
        "apiKey": PLACEHOLDER_KEY,
    }
    files = {
        ".pi/agent/models.json": json.dumps(
            {"providers": {"gateway": {**provider, "models": [model]}}}
        )
    }
    arguments = ["--provider", "gateway", "--model", use.model, "--mode", "json", "-p"]
    arguments += ["--append-system-prompt", use.system] if use.system else []
    arguments += ["--continue"] if use.again else []
    return AgentCall(arguments=arguments, env={"PI_OFFLINE": "1"}, files=files, stdin=use.prompt)


def read_pi_report(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
    for event in iterate_last_json_lines(printed):
        message = event.get("message")
        if event.get("type") != "message_end" or find_text(message, "role") != "assistant":
            continue
        if find_text(message, "stopReason") == "error":
            cause = find_text(message, "errorMessage") or "it reports an error"
            return AgentReport(exit="crashed", cause=cause)
        return AgentReport(
            text=join_text_parts(message.get("content")) if isinstance(message, dict) else None
        )
    return AgentReport()


pi = HeadlessAgent(
    Adapter(
        name="pi",
        program="pi",
        package="@mariozechner/pi-coding-agent",
        install="npm install -g @mariozechner/pi-coding-agent",
        call=build_pi_call,
        understand=read_pi_report,
        recordings=(".pi/agent/sessions/*.jsonl",),
    )
)


# Qwen Code.


QWEN_SETTINGS = {
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}


def build_qwen_call(use: AgentCallRequest) -> AgentCall:
    files = {".qwen/settings.json": json.dumps(QWEN_SETTINGS)}
    if use.system:
        files[".qwen/QWEN.md"] = use.system
    arguments = ["--auth-type", "openai", "--yolo", "--output-format", "stream-json"]
    arguments += ["--model", use.model, "--max-session-turns", str(use.turns)]
    arguments += ["--continue"] if use.again else []
    env = openai_environment(use) | {"OPENAI_MODEL": use.model}
    return AgentCall(arguments=arguments, env=env, files=files, stdin=use.prompt)


qwen_code = HeadlessAgent(
    Adapter(
        name="qwen-code",
        program="qwen",
        package="@qwen-code/qwen-code",
        install="npm install -g @qwen-code/qwen-code",
        call=build_qwen_call,
        understand=read_claude_report,
        recordings=(".qwen/projects/*/chats/*.jsonl", ".qwen/projects/*/subagents/*.json*"),
    )
)


# Any program: prompt by argument, standard input or file; trace from a path or its output.


MAX_SUMMARY_CHARS = 30_000
"""Enough for a judge's answer by a large rubric; nothing longer is stored of any agent."""
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
    """A program without an adapter."""

    def with_settings(self, settings: AgentSettings) -> HeadlessAgent:
        if not settings.get("program"):
            raise BadInput("The agent command needs the setting `program`: the program to run.")
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


command = CommandAgent(
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
