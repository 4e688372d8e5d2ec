"""Package managers, task runners and formatters: what they change."""

from __future__ import annotations

import re

from closeloop.process.shell.sheet import FILE, Effect, Sheet, operands
from closeloop.process.shell.split import Part, Words, wordset

_PACKAGE_VALUES = wordset("-C --prefix --cwd --filter -F -w --workspace --directory --dir")
_PACKAGES = wordset(
    "i install ci add uninstall remove rm un update up upgrade link unlink dedupe init create dlx "
    "import patch version"
)
_FIXING = re.compile(
    r"(?:^|[:_-])(?:fix|format|fmt|prettier|codegen|generate|gen|migrate|clean)(?:$|[:_-](?!check))"
)
_GO = wordset("get install generate fmt fix")
_CARGO = wordset("add remove install update new init fix")
_CHECK_ONLY = wordset("--check --diff --check-only -c --list-different -d -l --dry-run -n")


def on_words(names: str) -> Effect:
    """It changes the workspace or the environment if its first word is one of these."""
    wanted = wordset(names)

    def effect(words: Words, _part: Part, sheet: Sheet) -> None:
        named = operands(words, _PACKAGE_VALUES)
        if named and named[0] in wanted and "--dry-run" not in words:
            sheet.changed()

    return effect


def package_scripts(words: Words, part: Part, sheet: Sheet) -> None:
    names = operands(words, _PACKAGE_VALUES)
    if names[:1] in (["run"], ["run-script"]):
        names = names[1:]
    elif not names and words[0].endswith("yarn") and len(words) == 1:
        sheet.changed()
    elif names and names[0] in _PACKAGES:
        sheet.changed()
        return
    if names and _FIXING.search(names[0]):
        sheet.changed()


def tasks(words: Words, _part: Part, sheet: Sheet) -> None:
    if any(_FIXING.search(name) or name == "install" for name in operands(words)):
        sheet.changed()


def formats(*needed: str) -> Effect:
    """A formatter or fixer: it writes if told to, or unless told only to check."""
    wanted = frozenset(needed)

    def effect(words: Words, _part: Part, sheet: Sheet) -> None:
        told = not wanted.isdisjoint(words) if wanted else _CHECK_ONLY.isdisjoint(words)
        if told and "--version" not in words:
            sheet.wrote(name for name in operands(words) if FILE.search(name))
            sheet.changed()

    return effect


def ruff(words: Words, part: Part, sheet: Sheet) -> None:
    if "format" in words[1:2]:
        formats()(words, part, sheet)
    elif "--diff" not in words:
        formats("--fix", "--fix-only", "--unsafe-fixes")(words, part, sheet)


def go(words: Words, _part: Part, sheet: Sheet) -> None:
    named = operands(words, _PACKAGE_VALUES)
    if named and (
        named[0] in _GO or (named[0] == "mod" and named[1:2] in (["tidy"], ["init"], ["edit"]))
    ):
        sheet.changed()


def cargo(words: Words, part: Part, sheet: Sheet) -> None:
    sub = next((word for word in words[1:] if word[:1] not in "-+"), "")
    if sub in _CARGO or ("--fix" in words or (sub == "fmt" and "--check" not in words)):
        sheet.changed()
