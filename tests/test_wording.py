"""Text that users read is plain English: help, messages, pages, rules, README and docs.

A failure names the phrase and the usual term of the field. Prompts to models are exempt: their
wording is part of a version.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from closeloop.cli import COMMAND_CHAPTERS, COMMAND_GROUPS, GLOBAL_FLAGS_HELP

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "closeloop"
BANNED = {
    r"\b(?:is|are|was|were|be|been|being) told\b": "is given, is reported, is informed",
    r"\bheld against\b": "compared with",
    r"\b(?:what became|became) of\b": "the outcome of",
    r"\b(?:what came|came|comes|come) of (?:it|that|them|each|one|every)\b": "the outcome",
    r"\bwhat (?:came|comes) (?:again|back)\b": "repeated, returned",
    r"\bcannot be had\b": "is not available; a port is already in use",
    r"\bin hand\b": "running",
    r"\bnobody decided\b": "no changes merged or closed yet",
    r"\bwhat was not so\b": "a false claim",
    r"\bwhen it speaks\b": "precision",
    r"\bof what is there\b": "recall",
    r"\bfour times in five\b": "with 80 % power",
    r"\bst(?:and|ands|ood) in the way\b": "blocks",
    r"\b(?:six|tokens|files|lines) in all\b": "in total",
    r"(?<!here )\bis no (?:address|CSV|event|file|git|JSON|label|language|name|number|patch|pull"
    r"|rate|recording|regular|run|score|share|text|threshold|time|UTF-8)\b": "is not a",
    r"\bname another\b": "choose another, give another",
    r"\btype more of it\b": "give more characters",
    r"\bbegins several\b": "is a prefix of several",
    r"\b(?:is|are|was|were) there already\b": "already exists",
    r"\blies in no git\b": "is not in a git repository",
    r"\b(?:makes|brings) (?:some|one)\b": "creates, adds",
    r"\bgo(?:es)? on with\b": "continues",
    r"\bwhen not given\b": "by default",
    r"\bmay be given again\b": "repeatable",
    r"\bsays nothing of\b": "does not report",
    r"\bhow far to trust\b": "its agreement with people",
    r"\b(?:foretold|foretells?)\b": "predicted",
    r"\b(?:un)?caged?\b": "sandbox",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bt(?:akes|ook) of what\b": "relative to",
    r"\btasks like these\b": "similar tasks",
    r"\bas it stands\b": "in its current state",
    r"\bwhat reviewers taught\b": "team rules",
    r"\bfor want of\b": "without",
    r"\b(?:likest|likeness(?:es)?)\b": "similarity",
    r"\bwants? the contrary\b": "contradicts",
    r"\b(?:object|line|document) an attempt\b(?!,)": "per attempt",
    r"\bare the least\b": "at least … are needed",
    r"\bnobody knows\b": "unknown",
    r"\bspeaks? of\b": "refers to",
    r"\bspeaks? for failure\b": "is a sign of failure",
    r"\bhow sure that is\b": "with an interval",
    r"\b(?:tell|tells) (?:\w+ ){0,3}(?:apart|from)\b": "distinguish",
}
PROMPT_MODULES = {
    *("agents/builtin.py", "agents/headless_agent.py", "judges/change_review.py"),
    *("judges/checks.py", "judges/judge_panel.py", "judges/looking.py"),
    *("judges/trace_questions.py", "orchestration/plan_request.py"),
    *("orchestration/subtask_loop.py", "reviews/rule_learning.py", "tasks/stress.py"),
}
"""Modules whose texts are mostly prompts."""


def find_banned(text: str) -> list[str]:
    """`'held against': write 'compared with'` for each phrase of the list in a text."""
    joined = " ".join(text.split())
    return [
        f"{match[0]!r}: write {plain!r} (…{joined[max(0, match.start() - 40) : match.end() + 40]}…)"
        for pattern, plain in BANNED.items()
        for match in re.finditer(pattern, joined, re.IGNORECASE)
    ]


def prose_of_page(markdown: str) -> str:
    """A page without inline code and code blocks; commands and their output stay."""
    prose = re.sub(r"^```(?!console).*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", prose)


def text_of_template(template: str) -> str:
    """What a template prints: its markup, and the phrases in its expressions."""
    code = re.compile(r"\{#.*?#\}|\{[%{].*?[%}]\}", re.DOTALL)
    blocks = [block for block in code.findall(template) if not block.startswith("{#")]
    phrases = [phrase for block in blocks for phrase in re.findall(r'"([^"]*)"', block)]
    return " ".join((code.sub(" ", template), *(one for one in phrases if " " in one)))


def list_literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every string that is no docstring; values in it are left out."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            skipped |= {part for part in node.values if isinstance(part, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.lineno, node.value


def test_messages_are_plain_english() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name in PROMPT_MODULES:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [
            f"{name}:{line}: {banned}"
            for line, text in list_literals(tree)
            if " " in text and not re.search(r"BEGIN |\\b|\(\?", text)
            for banned in find_banned(text)
        ]
    assert not found, "\n".join(found)


COMMANDS = {
    name: (target, about)
    for commands in COMMAND_CHAPTERS.values()
    for name, (target, about) in commands.items()
}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_plain_english(command: str) -> None:
    target, about = COMMANDS[command]
    module, _, function = target.partition(":")
    help_text = inspect.getdoc(getattr(importlib.import_module(module), function))
    assert help_text, "a command has help"
    assert not find_banned(f"{about} {help_text}")


def test_help_of_groups_is_plain_english() -> None:
    assert not find_banned(" ".join((*COMMAND_GROUPS.values(), GLOBAL_FLAGS_HELP)))


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "web" / "templates").glob("*.html")), ids=lambda path: path.name
)
def test_pages_are_plain_english(path: Path) -> None:
    assert not find_banned(text_of_template(path.read_text(encoding="utf-8")))


def test_rule_pages_and_the_demo_are_plain_english() -> None:
    found = [
        f"{name}: {banned}" for name, text in list_shipped_texts() for banned in find_banned(text)
    ]
    assert not found, "\n".join(found)


def list_shipped_texts() -> Iterator[tuple[str, str]]:
    """Name and text of the module docstrings that are rule pages, and of the demo's files."""
    for path in sorted((SOURCE / "process" / "detectors").glob("*.py")):
        page = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        yield path.name, prose_of_page(page or "")
    for path in sorted((SOURCE / "demo").glob("*.toml")):
        yield path.name, path.read_text(encoding="utf-8")


PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("page", PAGES)
def test_docs_are_plain_english(page: str) -> None:
    found = find_banned(prose_of_page((ROOT / page).read_text(encoding="utf-8")))
    assert not found, "\n".join(found)
