"""What git does to the work tree. What only changes the history changes nothing here."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.shell.command_effects import (
    FILE_NAME,
    UNKNOWN_PATH,
    CommandEffects,
    ProgramEffect,
    has_flag,
    list_operands,
    patch_effect,
    show_effect,
)
from closeloop.process.shell.command_splitting import ShellCommand, ShellWords, word_set

_GIT_VALUES = word_set("-C -c --git-dir --work-tree")
_GIT_SHOW_VALUES = word_set("--format --pretty")
_GIT_RESTORE_VALUES = word_set("-s --source")
_GIT_DRY_OPTIONS = word_set("--cached --dry-run -n --abort --check --stat --numstat --summary")


def git_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    i = 1
    while i < len(words) and words[i][:1] == "-":
        i += 2 if words[i] in _GIT_VALUES else 1
    effect = _GIT_EFFECTS.get(words[i]) if i < len(words) else None
    if effect is not None:
        effect(words[i:], part, sheet)


def _git_show_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    for name in list_operands(words, _GIT_SHOW_VALUES):
        _, colon, path = name.partition(":")
        if colon and path and not part.out and not UNKNOWN_PATH.search(path):
            # Told from the top of the repository, wherever the line stands.
            sheet.read.append(path)


def _git_checkout_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    if "--" in words:
        sheet.record_restores(words[words.index("--") + 1 :])
    elif words[0] == "restore":
        if "--staged" not in words or "--worktree" in words:
            sheet.record_restores(list_operands(words, _GIT_RESTORE_VALUES) or [""])
    elif not has_flag(words[1:], "bBc") and "--create" not in words and len(words) > 1:
        sheet.record_restores([name for name in words[1:] if FILE_NAME.search(name)] or [""])


def _git_change_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    if not _GIT_DRY_OPTIONS.isdisjoint(words):
        return
    if words[0] in ("rm", "mv"):
        sheet.record_writes(list_operands(words))
    elif words[0] == "apply":
        patch_effect(words, part, sheet)
    else:
        sheet.record_unnamed_change()


def _git_word_effect(wanted: str, *, unless: bool = False) -> ProgramEffect:
    """It changes the tree if one of the words is there, or unless one is."""
    words_wanted = word_set(wanted)

    def effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
        if words_wanted.isdisjoint(words) == unless:
            sheet.record_unnamed_change()

    return effect


_GIT_EFFECTS: Mapping[str, ProgramEffect] = {
    "show": _git_show_effect,
    "blame": show_effect,
    "checkout": _git_checkout_effect,
    "switch": _git_checkout_effect,
    "restore": _git_checkout_effect,
    "reset": _git_word_effect("--hard --merge --keep"),
    "stash": _git_word_effect("list show drop clear", unless=True),
    "worktree": _git_word_effect("add remove"),
    "submodule": _git_word_effect("add update"),
    **dict.fromkeys(
        word_set("apply revert merge rebase pull cherry-pick clean am rm mv clone"),
        _git_change_effect,
    ),
}
