"""The new closeloop.toml says what was found, and everything in it can be read."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.cli.config import read_config_file
from closeloop.records.settings import CommandSettings, Settings
from closeloop.tasks.project_discovery import Discovery, render_config

lines = st.text(st.characters(codec="utf-8"), min_size=1)


@given(st.builds(CommandSettings, setup=st.lists(lines).map(tuple), test=st.none() | lines), lines)
@settings(deadline=None)
def test_whatever_was_found_is_read_back(
    tmp_path_factory: object, commands: CommandSettings, place: str
) -> None:
    found = Discovery(commands=commands, sources={"test": place}, seen=(place,) * 10)
    file = tmp_path_factory.mktemp("c") / "closeloop.toml"  # type: ignore[attr-defined]
    file.write_bytes(render_config(found).encode())
    assert read_config_file(file) == Settings(commands=commands)


def test_everything_that_is_explained_can_be_said(tmp_path: Path) -> None:
    """Uncomment all of it: what the examples say must load."""
    text = render_config(Discovery(commands=CommandSettings()))
    file = tmp_path / "closeloop.toml"
    file.write_text(re.sub(r"^# (\[[\w.]+\]|\w+ = .*)$", r"\1", text, flags=re.MULTILINE))
    settings = read_config_file(file)
    assert settings.commands.setup == ("make setup",)
    assert settings.models["large"].provider == "anthropic"
    assert settings.variants["large"].model == "large"
    assert (settings.limits.seconds, settings.sandbox.env) == (28800, ("LANG",))
    unsaid = {"seconds", "idle_seconds", "command_seconds", "turns"}
    assert all(
        getattr(settings.limits, name) == getattr(Settings().limits, name) for name in unsaid
    )
    assert (settings.tasks, settings.store, settings.retries) == ("tasks", Settings().store, 2)


def test_it_says_where_a_command_was_found_and_what_else_is_there() -> None:
    found = Discovery(
        commands=CommandSettings(test="go test ./..."),
        sources={"test": "go.mod"},
        seen=tuple(f"p{n} (Go)" for n in range(10)),
    )
    text = render_config(found)
    assert '# run all tests (found in go.mod)\ntest = "go test ./..."\n' in text
    assert "p7 (Go) and 2 more." in text
    assert '# lint = "make lint"' in text
