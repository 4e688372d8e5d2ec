"""Write the pages that are made of the code: `make docs`. A rule's docstring is its page."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import closeloop
from closeloop import plugins
from closeloop.cli import COMMAND_CHAPTERS
from closeloop.process.rulebook import RuleQuality, decide_gate, describe_readers, quality_by_rule
from closeloop.records.estimate import Rate
from closeloop.records.finding import Rule

DOCS = Path(__file__).resolve().parent
RULES = DOCS / "rules"
COMMANDS_HEAD = """\
# Commands

This page is generated from the help texts: `closeloop help COMMAND` prints the same. Commands look
for `closeloop.toml` in the current folder and the folders above it.

Every command also takes `-q` (`--quiet`: no progress and no warnings), `-v` (`--verbose`: settings
file, store, duration and tracebacks) and `--set KEY=VALUE`, which overrides one
[setting](configuration.md), such as `--set run.jobs=4`. With `--json` a list is
`{"items": [...], "total": 12}`, and an error is
`{"error": {"kind": "input", "message": "...", "exit_code": 2}}`.

Exit codes: 0 success, 1 the answer is no (a check blocks, a gate fails), 2 wrong input, 3 a plug-in
failed, 4 the machine failed or there is too little data.

`eval "$(closeloop admin completion bash)"` completes commands and options, also for zsh and fish.
"""

API_HEAD = """\
# Python API

This page is generated from the docstrings of what `import closeloop` exports;
[notebook.md](notebook.md) shows how it is used. Records are frozen: `msgspec.structs.replace` makes
a changed copy, and `msgspec.to_builtins` a dictionary. An unknown value is `None`. Defaults are
shown where they are not empty.
"""
API_CHAPTERS = {
    "Projects": ("open", "Project", "ResultTable", "compare", "CompareReport"),
    "Sessions": ("read", "read_all", "measure", "Session", "Trace", "Measurement"),
    "Changes": ("check", "Change", "ChangeReport"),
    "Recording": ("record", "recording"),
    "Tasks and attempts": (
        *("open_store", "load_tasks", "Task", "Variant", "Attempt", "Grade"),
        *("Score", "ScoreDefinition"),
    ),
    "Plug-ins": ("Agent", "Assignment", "Work", "ScoredAttempt", "check_agent", "check_scorer"),
    "Errors": ("Fault", "BadInput", "PluginFailed", "MachineFailed"),
}
MAX_DEFAULT_CHARS = 40
EMPTY_DEFAULTS = ("None", "()", "{}", "''", "False")


def render_rule_pages() -> dict[Path, str]:
    """The page of every rule that ships: its docstring, and how often it was right."""
    known = quality_by_rule()
    return {
        RULES / f"{one.rule.name}.md": f"# {one.rule.name}\n\n{inspect.getdoc(one)}\n\n"
        + render_rule_quality(one.rule, known.get(one.rule.name))
        for one in plugins.load_plugins("detectors")
    }


def render_rule_quality(rule: Rule, quality: RuleQuality | None) -> str:
    """The last section: both sets, and what follows for the gate."""
    read = quality.read if quality else None
    gate = decide_gate(rule, read)
    rows = (
        ("real sessions, read one by one", read.precision if read else None,
         read.recall if read else None),
        ("labelled examples", quality.precision if quality else None,
         quality.recall if quality else None),
    )  # fmt: skip
    return "\n".join(
        (
            "## How often it is right",
            "",
            "| | precision | recall |",
            "| --- | --- | --- |",
            *(f"| {name} | {_rate(first)} | {_rate(second)} |" for name, first, second in rows),
            "",
            f"Version {rule.version} {'gates' if gate.gates else 'advises'}: {gate.reason}"
            " ([how this is read](../reading-findings.md)).",
            *(("", describe_readers(quality.readers)) if quality and quality.readers else ()),
            "",
        )
    )


def _rate(rate: Rate | None) -> str:
    return "–" if rate is None else f"{rate.hits:g} of {rate.of} ({rate.low:.2f}–{rate.high:.2f})"


def render_commands_page() -> str:
    """Every command with its arguments, from the docstrings that `--help` prints."""
    index = [
        f"| {chapter} | "
        + ", ".join(f"[{name}](#closeloop-{name.replace(' ', '-')})" for name in commands)
        + " |"
        for chapter, commands in COMMAND_CHAPTERS.items()
    ]
    sections = [
        render_command(name, target)
        for commands in COMMAND_CHAPTERS.values()
        for name, (target, _) in commands.items()
    ]
    table = "\n".join(("| for | commands |", "| --- | --- |", *index))
    return "\n".join((COMMANDS_HEAD, table, "", *sections))


def render_command(name: str, target: str) -> str:
    """One command: what it does, and a row for each argument."""
    module, _, attribute = target.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    about, _, described = (inspect.getdoc(function) or "").partition("\n\nParameters\n")
    texts = dict(re.findall(r"^(\w+)\n((?:    .*\n?)+)", described, re.MULTILINE))
    rows = [
        f"| `{_argument_name(one)}` | {_describe_argument(one, texts)} |"
        for one in inspect.signature(function).parameters.values()
    ]
    head = ("| argument | meaning |", "| --- | --- |") if rows else ()
    return "\n".join((f"## closeloop {name}", "", about, "", *head, *rows, *([""] if rows else ())))


def _argument_name(parameter: inspect.Parameter) -> str:
    if parameter.kind is not parameter.KEYWORD_ONLY:
        return parameter.name.upper()
    return "--" + parameter.name.rstrip("_").replace("_", "-")


def _describe_argument(parameter: inspect.Parameter, texts: Mapping[str, str]) -> str:
    if parameter.name == "json" and "json" not in texts:
        return "Print one JSON document instead."
    text = " ".join(texts[parameter.name].split()).replace("|", "\\|")
    default = parameter.default
    if default in (None, False, "", inspect.Parameter.empty):
        return text
    shown = ", ".join(default) if isinstance(default, tuple) else default
    return f"{text} Default: `{shown}`."


def render_api_page() -> str:
    """Every name that closeloop exports: signature, docstring, and the fields of records."""
    chapters = [
        "\n".join((f"## {chapter}\n", *(render_api_name(name) for name in names)))
        for chapter, names in API_CHAPTERS.items()
    ]
    return "\n".join((API_HEAD, *chapters))


def render_api_name(name: str) -> str:
    """One exported function, class or record."""
    value = getattr(closeloop, name)
    lines = [f"### {name}", "", inspect.getdoc(value) or "", ""]
    if not inspect.isclass(value):
        signature = f"closeloop.{name}{_render_signature(value)}"
        wrapped = textwrap.wrap(signature, 100, subsequent_indent="    ")
        lines[2:2] = ["```text", *wrapped, "```", ""]
    elif hasattr(value, "__struct_fields__"):
        lines += render_record_fields(value)
    elif methods := list_public_members(value):
        lines += ["| member | meaning |", "| --- | --- |", *methods, ""]
    return "\n".join(lines)


def render_record_fields(record: type[Any]) -> list[str]:
    """A table of the fields that are explained in the source, and a list of the others."""
    rows, others = [], []
    for name, (kind, about) in read_record_fields(record).items():
        if about:
            rows.append(_table_row(f"`{name}`", f"`{kind}`", about))
        else:
            others.append(f"`{name}: {kind}`")
    table = ["| field | type | meaning |", "| --- | --- | --- |", *rows, ""] if rows else []
    return [*table, *((f"{'Other fields' if rows else 'Fields'}: {', '.join(others)}.", ""))]


def read_record_fields(record: type[Any]) -> dict[str, tuple[str, str]]:
    """Each field with its type, a default that is not empty, and the string below it."""
    fields = {}
    for base in reversed(record.__mro__):
        if not base.__module__.startswith("closeloop.") or not hasattr(base, "__struct_fields__"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, below in zip(body.body, [*body.body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            kind = ast.unparse(node.annotation)
            default = "None" if node.value is None else ast.unparse(node.value)
            stated = default not in EMPTY_DEFAULTS and len(default) <= MAX_DEFAULT_CHARS
            about = (
                " ".join(str(below.value.value).split())
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                else ""
            )
            fields[node.target.id] = (f"{kind} = {default}" if stated else kind, about)
    return {name: fields[name] for name in record.__struct_fields__}


def list_public_members(cls: type[Any]) -> list[str]:
    """A table row for each public method and property that the class itself defines."""
    return [
        _table_row(
            f"`{name}{'' if isinstance(value, property) else _render_signature(value)}`",
            " ".join((inspect.getdoc(value) or "").split()),
        )
        for name, value in vars(cls).items()
        if (inspect.isfunction(value) or isinstance(value, property)) and not name.startswith("_")
    ]


def _render_signature(function: Any) -> str:
    """As in the source, without `self`; a long default is left out."""
    signature = inspect.signature(function)
    parameters = [
        one
        if one.default is one.empty or len(repr(one.default)) <= MAX_DEFAULT_CHARS
        else one.replace(default=...)
        for one in signature.parameters.values()
        if one.name != "self"
    ]
    shown = str(signature.replace(parameters=parameters))
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", shown).replace("Ellipsis", "…")


def _table_row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def render_pages() -> dict[Path, str]:
    """All pages that are made of the code."""
    return render_rule_pages() | {
        DOCS / "commands.md": render_commands_page(),
        DOCS / "python-api.md": render_api_page(),
    }


def main() -> int:
    """Write what differs, and name it."""
    for path, text in render_pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
