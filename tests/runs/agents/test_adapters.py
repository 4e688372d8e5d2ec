"""Adapters: how each program is called, found, and understood, whatever it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop import plugins
from closeloop.agents.headless_agent import AgentCallRequest, HeadlessAgent, find_installed_program
from closeloop.records.protocols import Recording

AGENTS = {
    name: agent
    for name in plugins.installed_plugins("agents")
    if isinstance(agent := plugins.load_plugin("agents", name), HeadlessAgent)
}
SYSTEM = "Be kind {{ to }} everybody."


def use(**changes: object) -> AgentCallRequest:
    given = {
        "prompt": "--version", "system": SYSTEM, "model": "some-model",
        "address": "http://127.0.0.1:8017", "home": "/home/agent", "workspace": "/workspace",
        "turns": 17, "settings": {"program": "anything"},
    }  # fmt: skip
    return AgentCallRequest(**(given | changes))


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_every_agent_is_given_prompt_system_prompt_model_and_gateway(agent: HeadlessAgent) -> None:
    call = agent.adapter.call(use())
    told = [*call.arguments, *call.env.values(), *call.files.values(), call.stdin or ""]
    for wanted in (SYSTEM, "some-model", "http://127.0.0.1:8017"):
        assert any(wanted in text for text in told), wanted
    # A prompt that looks like an option is none.
    assert "--version" not in call.arguments or agent.name == "command"
    assert call.stdin == "--version" or any("--version" in text for text in told)


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_every_agent_writes_only_below_its_home_and_not_beside_the_code(
    agent: HeadlessAgent,
) -> None:
    call = agent.adapter.call(use())
    for path in call.files:
        assert path.startswith(".")
        assert ".." not in path
    assert not any("/workspace" in word for word in call.arguments)


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_a_session_is_gone_on_with_in_the_agents_own_way(agent: HeadlessAgent) -> None:
    first, again = (agent.adapter.call(use(again=again)).arguments for again in (False, True))
    assert (first != again) is agent.adapter.again


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_a_system_prompt_is_part_of_the_prompts_identity(agent: HeadlessAgent) -> None:
    assert agent.prompt("one") != agent.prompt("two")
    assert agent.prompt(None) == agent.prompt(None)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "item", "message", "content", "part", "error",
                                       "result", "role", "info", "kind", "action", "data"]),
                      inner | st.sampled_from(["result", "error", "text", "message", "assistant",
                                               "agent_message", "turn.failed", "message_end"]),
                      max_size=5),
    max_leaves=12,
)  # fmt: skip
printed = st.binary(max_size=50) | st.lists(values.map(json.dumps), max_size=4).map(
    lambda lines: "\n".join(lines).encode()
)


@given(st.sampled_from(list(AGENTS.values())), printed, st.lists(printed, max_size=2))
def test_whatever_is_printed_or_left_is_understood_without_an_error(
    agent: HeadlessAgent, said: bytes, left: list[bytes]
) -> None:
    recordings = [Recording(path="chat-history.md", content=content) for content in left]
    words = agent.adapter.understand(said, recordings)
    assert words.text is None or words.text.strip()


@pytest.mark.parametrize(
    ("name", "lines", "text", "exit_", "cause"),
    [
        ("claude-code", '{"type":"result","subtype":"success","is_error":false,"result":"Done."}',
         "Done.", None, None),
        ("claude-code", '{"type":"result","subtype":"error_max_turns","is_error":true}',
         None, "out_of_budget", "turn limit"),
        ("claude-code",
         '{"type":"result","subtype":"success","is_error":true,"result":"API Error"}',
         "API Error", "crashed", "API Error"),
        ("codex", '{"type":"item.completed","item":{"type":"agent_message","text":"One."}}\n'
         '{"type":"item.completed","item":{"type":"agent_message","text":"Two."}}\n'
         '{"type":"turn.completed"}', "Two.", None, None),
        ("codex", '{"type":"turn.failed","error":{"message":"stream"}}', None, "crashed", "stream"),
        ("gemini-cli",
         '{"type":"message","role":"assistant","content":"Old."}\n{"type":"tool_use"}\n'
         '{"type":"message","role":"assistant","content":"All "}\n'
         '{"type":"message","role":"assistant","content":"done."}\n'
         '{"type":"result","status":"success"}', "All done.", None, None),
        ("gemini-cli", '{"type":"result","status":"error","error":{"message":"quota"}}',
         None, "crashed", "quota"),
        ("opencode", '{"type":"text","part":{"text":"Done."}}', "Done.", None, None),
        ("opencode", '{"type":"error","error":{"name":"X","data":{"message":"gone"}}}',
         None, "crashed", "gone"),
        ("pi", '{"type":"message_end","message":{"role":"assistant","content":[{"type":"text",'
         '"text":"Done."}]}}', "Done.", None, None),
        ("pi", '{"type":"message_end","message":{"role":"assistant","content":[],'
         '"stopReason":"error","errorMessage":"401"}}', None, "crashed", "401"),
    ],
)  # fmt: skip
def test_last_words_and_troubles_are_told(
    name: str, lines: str, text: str | None, exit_: str | None, cause: str | None
) -> None:
    said = AGENTS[name].adapter.understand(b"noise\n" + lines.encode(), [])
    assert (said.text, said.exit, said.cause) == (text, exit_, cause)


@pytest.mark.parametrize(
    ("status", "exit_"),
    [("Submitted", None), ("LimitsExceeded", "out_of_budget"), ("X", "crashed")],
)
def test_mini_tells_its_end_in_its_file(status: str, exit_: str | None) -> None:
    left = Recording(path="a", content=json.dumps({"info": {"exit_status": status}}).encode())
    assert AGENTS["mini-swe-agent"].adapter.understand(b"", [left]).exit == exit_


def tree(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def test_a_node_program_is_shown_with_all_its_packages_and_not_started(tmp_path: Path) -> None:
    manifest = json.dumps({"name": "@a/tool", "version": "1.2.3"})
    inner = "node_modules/@a/tool"
    tree(
        tmp_path,
        {f"{inner}/cli.js": "#!/usr/bin/env sh\nexit 1\n", f"{inner}/package.json": manifest},
    )
    (tmp_path / "node_modules" / ".bin").mkdir()
    link = tmp_path / "node_modules" / ".bin" / "tool"
    link.symlink_to("../@a/tool/cli.js")
    found = find_installed_program(str(link), "@a/tool")
    assert found is not None
    assert (found.version, found.path) == ("1.2.3", str(tmp_path / inner / "cli.js"))
    assert found.shown[0] == str(tmp_path / "node_modules")


def test_a_python_program_is_shown_with_its_environment_and_its_interpreter(tmp_path: Path) -> None:
    python = tmp_path / "base" / "bin" / "python3"
    about = "venv/lib/python3.12/site-packages/a_tool-2.0.dist-info/METADATA"
    tree(tmp_path, {"base/bin/python3": "", "base/lib/python3.12/os.py": "", "base/secret": "",
                    "venv/pyvenv.cfg": "", "venv/bin/tool": f"#!{tmp_path}/venv/bin/python\n",
                    about: ""})  # fmt: skip
    (tmp_path / "venv" / "bin" / "python").symlink_to(python)
    found = find_installed_program(str(tmp_path / "venv" / "bin" / "tool"), "a-tool")
    assert found is not None
    assert found.version == "2.0"
    assert set(found.shown) == {str(tmp_path / part) for part in ("venv", "base/bin", "base/lib")}


def test_nothing_wide_is_ever_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tree(tmp_path, {"pyvenv.cfg": "", "bin/tool": "#!/bin/sh\n", ".ssh/id": "", "lib/x": ""})
    found = find_installed_program(str(tmp_path / "bin" / "tool"))
    assert found is not None
    assert not {"/", "/usr/..", str(tmp_path)} & {*found.shown}
    assert not any((Path(path) / ".ssh").exists() for path in found.shown)


def test_what_is_no_program_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    assert find_installed_program(str(tmp_path / "text")) is None
    assert find_installed_program(str(tmp_path)) is None
    assert find_installed_program("no-such-program-anywhere") is None
