"""What the scripted model says to each agent, in that agent's own tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Turn = dict[str, Any]
WORDS = "Half a cent goes up now; the tests pass."
LACKED = "Nothing said which way half a cent goes; the tests did."


@dataclass(frozen=True)
class Project:
    """A small repository with one bug and a test that shows it."""

    name: str
    files: dict[str, str]
    source: str
    wrong: str
    right: str
    test: str
    run: str
    fails: str
    more: str = ""

    @property
    def prompt(self) -> str:
        return f"Prices in {self.source} lose half a cent: round it up, so that the tests pass."


def python() -> Project:
    test = (
        "import unittest\n\nfrom billing import rounded\n\n\n"
        "class Rounding(unittest.TestCase):\n    def test_half_a_cent_goes_up(self):\n"
        "        self.assertEqual(rounded(0.125), 0.13)\n\n"
        "    def test_whole_cents_stay(self):\n        self.assertEqual(rounded(1.25), 1.25)\n"
    )
    return Project(
        name="python",
        files={
            "billing.py": "def rounded(amount):\n    return int(amount * 100) / 100\n",
            "test_billing.py": test,
            ".gitignore": "__pycache__/\n",
        },
        source="billing.py",
        wrong="int(amount * 100)",
        right="int(amount * 100 + 0.5)",
        test="python3 -m unittest -q",
        run="python3 -m unittest",
        fails="test_billing.Rounding.test_half_a_cent_goes_up",
    )


def node() -> Project:
    test = (
        'const test = require("node:test");\nconst assert = require("node:assert");\n'
        'const { rounded } = require("./billing.js");\n\n'
        'test("half a cent goes up", () => assert.strictEqual(rounded(0.125), 0.13));\n'
        'test("whole cents stay", () => assert.strictEqual(rounded(1.25), 1.25));\n'
    )
    source = "exports.rounded = (amount) => Math.floor(amount * 100) / 100;\n"
    report = "--test-reporter=junit --test-reporter-destination=report.xml"
    return Project(
        name="node",
        files={"billing.js": source, "billing.test.js": test, ".gitignore": "report.xml\n"},
        source="billing.js",
        wrong="Math.floor(amount * 100)",
        right="Math.floor(amount * 100 + 0.5)",
        test="node --test",
        run=f"node --test {report}",
        fails="test::half a cent goes up",
        more="  runner: junit\n  report: report.xml\n",
    )


@dataclass(frozen=True)
class Tools:
    """How an agent's own tools are called; what it has no tool for, it does in a shell."""

    run: Callable[[str], Turn]
    edit: Callable[[str, str, str], Turn] | None = None
    read: Callable[[str], Turn] | None = None


ABOUT = {"description": "Look"}
SAFE = {"security_risk": "LOW", "summary": "Look"}
TOOLS = {
    "claude-code": Tools(
        lambda line: {"Bash": {"command": line, **ABOUT}},
        lambda path, old, new: {"Edit": {"file_path": path, "old_string": old, "new_string": new}},
        lambda path: {"Read": {"file_path": path}},
    ),
    "codex": Tools(lambda line: {"exec_command": {"cmd": line}}),
    "gemini-cli": Tools(
        lambda line: {"run_shell_command": {"command": line, **ABOUT}},
        lambda path, old, new: {
            "replace": {
                "file_path": path, "old_string": old, "new_string": new, "instruction": "Round up",
            }
        },
        lambda path: {"read_file": {"file_path": path}},
    ),
    "mini-swe-agent": Tools(lambda line: {"bash": {"command": line}}),
    "opencode": Tools(
        lambda line: {"bash": {"command": line, **ABOUT}},
        lambda path, old, new: {"edit": {"filePath": path, "oldString": old, "newString": new}},
        lambda path: {"read": {"filePath": path}},
    ),
    "openhands": Tools(
        lambda line: {"terminal": {"command": line, **SAFE}},
        lambda path, old, new: {
            "file_editor": {
                "command": "str_replace", "path": path, "old_str": old, "new_str": new, **SAFE,
            }
        },
    ),
    "pi": Tools(
        lambda line: {"bash": {"command": line}},
        lambda path, old, new: {
            "edit": {"path": path, "edits": [{"oldText": old, "newText": new}]}
        },
        lambda path: {"read": {"path": path}},
    ),
    "qwen-code": Tools(
        lambda line: {"run_shell_command": {"command": line, "is_background": False, **ABOUT}},
        lambda path, old, new: {"edit": {"file_path": path, "old_string": old, "new_string": new}},
        lambda path: {"read_file": {"file_path": path}},
    ),
}  # fmt: skip


def turns(project: Project, tools: Tools) -> list[Turn]:
    """A failing test, a look, an edit, a passing test, last words."""
    run, path = tools.run, f"/workspace/{project.source}"
    old, new = project.wrong.replace("*", r"\*"), project.right
    by_hand = run(f"sed -i 's/{old}/{new}/' {project.source}")
    look = tools.read(path) if tools.read else run(f"cat {project.source}")
    edit = tools.edit(path, project.wrong, project.right) if tools.edit else by_hand
    return [
        {"say": "First I see what fails.", "do": run(f"{project.test} 2>&1")},
        {"say": "Now the code.", "do": look},
        {"say": "It cuts.", "do": edit},
        {"say": "And again.", "do": run(f"{project.test} 2>&1")},
        {"say": WORDS},
        {"when": "which information", "say": LACKED},
    ]


def aider(project: Project) -> list[dict[str, Any]]:
    """It asks for edits as text, and runs the tests itself."""

    def change(before: str, after: str) -> str:
        kind = "python" if project.name == "python" else "javascript"
        line = next(line for line in project.files[project.source].splitlines() if before in line)
        body = f"<<<<<<< SEARCH\n{line}\n=======\n{line.replace(before, after)}\n>>>>>>> REPLACE"
        return f"{project.source}\n```{kind}\n{body}\n```"

    nearly = project.right.replace("0.5", "0.4")
    second = change(project.wrong, project.right).replace(project.wrong, nearly)
    return [
        {"prompt": "diff --git", "turns": [{"say": "fix: Round half a cent up", "repeat": True}]},
        {
            "turns": [
                {"when": "lose half a cent", "say": f"It cuts.\n\n{change(project.wrong, nearly)}"},
                # Aider answers a test's output itself, and asks with a reminder.
                {
                    "when": "AssertionError|not ok|If your code changes add new",
                    "say": f"Still too little.\n\n{second}",
                    "repeat": True,
                },
                {"when": "which information", "say": LACKED},
            ]
        },
    ]


def dialogues(agent: str, project: Project) -> list[dict[str, Any]]:
    """The whole script for one agent on one repository."""
    if agent == "aider":
        return aider(project)
    told = turns(project, TOOLS[agent])
    always = {"turns": [{"say": "Half a cent", "repeat": True}]}
    match agent:
        case "claude-code":
            return [{"prompt": "lose half a cent", "turns": told}, always]
        case "mini-swe-agent":
            last = {"bash": {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; git diff"}}
            return [{"turns": [*told[:4], {"say": WORDS, "do": last}]}]
        case "opencode":
            return [{"prompt": "(?i)title", **always}, {"turns": told}]
        case "qwen-code":  # which puts words into the model's mouth before it asks anything
            return [{"turns": [{"say": "Go on."}, *told]}]
    return [{"turns": told}]
