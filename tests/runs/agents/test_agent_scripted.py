"""The built-in agent driven by a script, from the file to the change."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_desk import Desk

from closeloop.providers.model_opening import find_model_settings, open_model
from closeloop.records.trace import Command, Edit, Handoff, Read

SCRIPT = """\
name: careful
dialogues:
  - prompt: "Review"
    turns:
      - do: {read: greet.py}
      - when: "Hello"
        say: "greet.py says Hello."
  - prompt: "Do it"
    turns:
      - say: "Let me see it fail."
        do: {run: {command: "python3 check.py"}}
      - when: "exit code 1"
        do: {edit: {path: greet.py, old: "Helo", new: "Hello"}}
      - do: {run: "python3 check.py"}
      - when: "exit code 1"
        do: {finish: {summary: "It still fails.", done: false}}
      - when: "exit code 0"
        do: {delegate: "Review greet.py."}
      - when: "says Hello"
        do: {finish: {summary: "Fixed, checked and reviewed."}}
"""


def test_a_script_closes_the_loop(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> None:
    (desk.folder / "greet.py").write_text("WORD = 'Helo'\n")
    (desk.folder / "check.py").write_text("import greet\nassert greet.WORD == 'Hello'\n")
    scripts: Path = tmp_path_factory.mktemp("scripts")
    (scripts / "careful.yaml").write_text(SCRIPT)
    settings = find_model_settings("scripted:careful.yaml", {})
    model = open_model("careful", settings, desk.limits, environ={}, folder=scripts)
    work = desk.work(model=model)
    assert (work.exit, work.cause) == ("finished", None)
    assert work.summary == "Fixed, checked and reviewed."
    actions = [e for e in work.trace.events if isinstance(e, (Command, Edit, Handoff, Read))]
    assert [type(action) for action in actions] == [Command, Edit, Command, Handoff, Read]
    assert [actions[0].exit_code, actions[2].exit_code] == [1, 0]
    assert actions[3].report == "greet.py says Hello."
    assert work.usage.output_tokens is not None
