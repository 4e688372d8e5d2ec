"""What git does to the work tree. What only changes the history changes nothing here."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.shell.files import patch, shows
from closeloop.process.shell.sheet import FILE, UNKNOWN, Effect, Sheet, has_flag, operands
from closeloop.process.shell.split import Part, Words, wordset

_GIT_VALUES = wordset("-C -c --git-dir --work-tree")
_GIT_SHOW_VALUES = wordset("--format --pretty")
_GIT_RESTORE_VALUES = wordset("-s --source")
_GIT_DRY = wordset("--cached --dry-run -n --abort --check --stat --numstat --summary")


def git(words: Words, part: Part, sheet: Sheet) -> None:
    i = 1
    while i < len(words) and words[i][:1] == "-":
        i += 2 if words[i] in _GIT_VALUES else 1
    effect = _GIT.get(words[i]) if i < len(words) else None
    if effect is not None:
        effect(words[i:], part, sheet)


def _git_show(words: Words, part: Part, sheet: Sheet) -> None:
    for name in operands(words, _GIT_SHOW_VALUES):
        _, colon, path = name.partition(":")
        if colon and path and not part.out and not UNKNOWN.search(path):
            # Told from the top of the repository, wherever the line stands.
            sheet.read.append(path)


def _git_checkout(words: Words, _part: Part, sheet: Sheet) -> None:
    if "--" in words:
        sheet.wrote(words[words.index("--") + 1 :])
    elif words[0] == "restore":
        if "--staged" not in words or "--worktree" in words:
            sheet.wrote(operands(words, _GIT_RESTORE_VALUES) or [""])
    elif not has_flag(words[1:], "bBc") and "--create" not in words and len(words) > 1:
        sheet.wrote([name for name in words[1:] if FILE.search(name)] or [""])


def _git_changes(words: Words, part: Part, sheet: Sheet) -> None:
    if not _GIT_DRY.isdisjoint(words):
        return
    if words[0] in ("rm", "mv"):
        sheet.wrote(operands(words))
    elif words[0] == "apply":
        patch(words, part, sheet)
    else:
        sheet.changed()


def _git_if(wanted: str, *, unless: bool = False) -> Effect:
    """It changes the tree if one of the words is there, or unless one is."""
    words_wanted = wordset(wanted)

    def effect(words: Words, _part: Part, sheet: Sheet) -> None:
        if words_wanted.isdisjoint(words) == unless:
            sheet.changed()

    return effect


_GIT: Mapping[str, Effect] = {
    "show": _git_show,
    "blame": shows,
    "checkout": _git_checkout,
    "switch": _git_checkout,
    "restore": _git_checkout,
    "reset": _git_if("--hard --merge --keep"),
    "stash": _git_if("list show drop clear", unless=True),
    "worktree": _git_if("add remove"),
    "submodule": _git_if("add update"),
    **dict.fromkeys(
        wordset("apply revert merge rebase pull cherry-pick clean am rm mv clone"), _git_changes
    ),
}
