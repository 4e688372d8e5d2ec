"""Package managers, task runners and formatters: what they change."""

from __future__ import annotations

import re

from closeloop.process.shell.command_effects import (
    FILE_NAME,
    CommandEffects,
    ProgramEffect,
    list_operands,
)
from closeloop.process.shell.command_splitting import ShellCommand, ShellWords, word_set

_PACKAGE_VALUES = word_set("-C --prefix --cwd --filter -F -w --workspace --directory --dir")
_PACKAGE_COMMANDS = word_set(
    "i install ci add uninstall remove rm un update up upgrade link unlink dedupe init create dlx "
    "import patch version"
)
_FIXING_TASK = re.compile(
    r"(?:^|[:_-])(?:fix|format|fmt|prettier|codegen|generate|gen|migrate|clean)(?:$|[:_-](?!check))"
)
_GO_COMMANDS = word_set("get install generate fmt fix")
_CARGO_COMMANDS = word_set("add remove install update new init fix")
_CHECK_ONLY_OPTIONS = word_set("--check --diff --check-only -c --list-different -d -l --dry-run -n")


def subcommand_effect(names: str) -> ProgramEffect:
    """It changes the workspace or the environment if its first word is one of these."""
    wanted = word_set(names)

    def effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
        named = list_operands(words, _PACKAGE_VALUES)
        if named and named[0] in wanted and "--dry-run" not in words:
            sheet.record_unnamed_change()

    return effect


def package_script_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    names = list_operands(words, _PACKAGE_VALUES)
    if names[:1] in (["run"], ["run-script"]):
        names = names[1:]
    elif not names and words[0].endswith("yarn") and len(words) == 1:
        sheet.record_unnamed_change()
    elif names and names[0] in _PACKAGE_COMMANDS:
        sheet.record_unnamed_change()
        return
    if names and _FIXING_TASK.search(names[0]):
        sheet.record_unnamed_change()


def task_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    if any(_FIXING_TASK.search(name) or name == "install" for name in list_operands(words)):
        sheet.record_unnamed_change()


def formatter_effect(*needed: str) -> ProgramEffect:
    """A formatter or fixer: it writes if told to, or unless told only to check."""
    wanted = frozenset(needed)

    def effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
        told = not wanted.isdisjoint(words) if wanted else _CHECK_ONLY_OPTIONS.isdisjoint(words)
        if told and "--version" not in words:
            sheet.record_writes(name for name in list_operands(words) if FILE_NAME.search(name))
            sheet.record_unnamed_change()

    return effect


def ruff_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    if "format" in words[1:2]:
        formatter_effect()(words, part, sheet)
    elif "--diff" not in words:
        formatter_effect("--fix", "--fix-only", "--unsafe-fixes")(words, part, sheet)


def go_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    named = list_operands(words, _PACKAGE_VALUES)
    if named and (
        named[0] in _GO_COMMANDS
        or (named[0] == "mod" and named[1:2] in (["tidy"], ["init"], ["edit"]))
    ):
        sheet.record_unnamed_change()


def cargo_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    sub = next((word for word in words[1:] if word[:1] not in "-+"), "")
    if sub in _CARGO_COMMANDS or ("--fix" in words or (sub == "fmt" and "--check" not in words)):
        sheet.record_unnamed_change()
