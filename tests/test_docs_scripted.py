"""The examples of docs/scripted-model.md do what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import anyio
import msgspec

from closeloop.providers.model_opening import find_model_settings, open_model
from closeloop.records.settings import Settings
from closeloop.records.task import Limits
from closeloop.records.trace import ChatMessage, ModelRequest, ToolSpec

PAGE = (Path(__file__).parent.parent / "docs" / "scripted-model.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found, language
    return found


def test_the_settings_on_the_page_play_the_script_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "careful.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
    for text in blocks("toml"):
        settings = msgspec.convert(tomllib.loads(text), Settings)
        for name in settings.models:
            open_model(
                name,
                find_model_settings(name, settings.models),
                Limits(),
                environ={},
                folder=tmp_path,
            )
    settings = msgspec.convert(tomllib.loads(blocks("toml")[0]), Settings)
    name = settings.variants["careful"].model
    assert name is not None
    model = open_model(
        name, find_model_settings(name, settings.models), Limits(), environ={}, folder=tmp_path
    )
    read = ToolSpec(name="read", description="", parameters={"required": ["path"]})
    messages: tuple[ChatMessage, ...] = (ChatMessage(role="user", text="Fix the rounding"),)
    done = []
    for came in ("AssertionError", "AssertionError", "1 passed", ""):
        reply = anyio.run(model.reply, ModelRequest(messages=messages, tools=(read,)))
        done.append([call.name for call in reply.calls])
        said = ChatMessage(role="assistant", text=reply.text, calls=reply.calls)
        messages = (*messages, said, ChatMessage(role="tool", text=came))
    assert done == [["run", "read"], ["edit"], ["edit"], ["finish"]]


def test_the_program_on_the_page_serves_it(tmp_path: Path) -> None:
    (tmp_path / "careful.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
    (tmp_path / "main.py").write_text(blocks("python")[0], encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert ran.stdout.startswith("http://127.0.0.1:")
    assert ran.stderr == ""
