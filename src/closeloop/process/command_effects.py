"""Effects of git on the work tree. What only changes the history has none."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice

from msgspec.structs import replace

from closeloop.process.check_commands import ShellCommand, ShellWords, word_set
from closeloop.records.change import ShellEdit
from closeloop.text.wording import compile_lazily

# What programs do to the files of a workspace, recorded command by command.


# A workspace may be in a temporary folder, recognisable by a part of its path.
PROJECT_FOLDER = r"(?:workspaces?|repos?|worktrees?|projects?|checkouts?|testbed)/"
_TEMPORARY_FOLDER = compile_lazily(
    r"/(?:dev|proc)/|(?:/private)?/(?:tmp|var/tmp|var/folders)(?:/|$)"
    rf"(?!.*/?{PROJECT_FOLDER})"
)
UNKNOWN_PATH = compile_lazily(r"[$*?{}\[\]`<>]")
_TEMPORARY_NAME = compile_lazily(r"\$.*(?:te?mp|log)", re.I)
FILE_NAME = compile_lazily(r"\.[A-Za-z]\w{0,11}$|(?:^|/)(?:[A-Z]+file|README|LICENSE|CHANGELOG)$")


class CommandEffects:
    """The effects of a line, while they are collected."""

    directory = ""
    writes = False
    waits = False
    temporary = False
    """Whether a temporary file was created, so that variables are assumed to name it."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.read: list[str] = []
        self.restored: list[str] = []
        self.edits: list[ShellEdit] = []
        self.runs: list[str] = []

    def resolve_path(self, name: str) -> str:
        """Resolve a path relative to where the line began."""
        return posixpath.normpath(posixpath.join(self.directory, name)) if self.directory else name

    def enter_folder(self, name: str) -> None:
        if not UNKNOWN_PATH.search(name) and name[:1] != "-":
            self.directory = posixpath.join(self.directory, name)

    def record_unnamed_change(self) -> None:
        """Record a change that the line does not name."""
        if not _TEMPORARY_FOLDER.match(self.directory):
            self.writes = True

    def record_writes(self, names: Iterable[str]) -> None:
        for name in names:
            if not name or UNKNOWN_PATH.search(name):
                is_temporary = "$" in name and (self.temporary or _TEMPORARY_NAME.search(name))
                if not is_temporary and not _TEMPORARY_FOLDER.match(name):
                    self.record_unnamed_change()
            elif not _TEMPORARY_FOLDER.match(path := self.resolve_path(name)):
                self.writes = True
                self.written.append(path)

    def record_restores(self, names: Iterable[str]) -> None:
        before = len(self.written)
        self.record_writes(names)
        self.restored += self.written[before:]

    def record_edits(self, edits: Iterable[ShellEdit]) -> None:
        for edit in edits:
            if edit.path and "$" not in edit.path:
                path = self.resolve_path(edit.path)
                self.edits.append(edit if path == edit.path else replace(edit, path=path))

    def record_reads(self, names: Iterable[str]) -> None:
        for name in names:
            if name and name != "-" and not UNKNOWN_PATH.search(name) and name[:5] != "/dev/":
                self.read.append(self.resolve_path(name))


ProgramEffect = Callable[[ShellWords, ShellCommand, CommandEffects], None]


def list_operands(words: ShellWords, values: frozenset[str] = frozenset()) -> ShellWords:
    """Return the words after the first that are neither options nor their values."""
    names: ShellWords = []
    remaining = iter(words)
    next(remaining, None)
    for word in remaining:
        if word[:1] != "-" or word == "-":
            names.append(word)
        elif word in values:
            next(remaining, None)
        elif word == "--":
            names.extend(remaining)
    return names


@lru_cache(maxsize=32)
def _flag_matcher(letters: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(rf"-\w*[{letters}]").match


def has_flag(words: ShellWords, letters: str) -> bool:
    """Whether one of the letters is among the short options."""
    return any(map(_flag_matcher(letters), words))


# Programs that wait, or query a status.

_POLL_VALUES = word_set("-n -f --namespace --file --context -R --repo")


def wait_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    effects.waits = True


def waiting_subcommand_effect(*pairs: str) -> ProgramEffect:
    """Return the effect of a program that waits or polls with one of these subcommands."""
    prefixes = tuple(tuple(prefix.split()) for prefix in pairs)

    def effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
        names = tuple(list_operands(words, _POLL_VALUES)[:2])
        if any(names[: len(prefix)] == prefix for prefix in prefixes):
            effects.waits = True

    return effect


def is_poll(words: ShellWords) -> bool:
    """Whether an unknown program asks for a status."""
    is_query = len(words) > 1 and words[1] in ("wait", "status", "logs", "watch")
    return is_query and words[0] not in ("hg", "svn", "jj")


def nc_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    effects.waits = has_flag(words[1:], "z")


# The files that a piece of code or a patch, given on a command line, writes.

_LONGEST, _MOST, _TRIES = 200_000, 200, 20
_QUOTED_PATH = r"""r?["']([^"'\n]{1,300})["']"""
_PATCHED_FILE = compile_lazily(
    r"^(?:\*\*\* (?:Add|Update|Delete) File: |\*\*\* Move to: |\+\+\+ (?:b/)?)([^\t\n]+)", re.M
)
# Each begins with a few fixed letters, which makes the search fast.
_OPEN_CALL = compile_lazily(
    rf"""open\(\s*(?:{_QUOTED_PATH}|(\w+)\b(?!\.))?[^\n]{{0,120}}?,\s*(?:mode\s*=\s*)?"""
    r"""["'](?:[rbt]*[wax][bt]*\+?|r[bt]*\+[bt]*)["']"""
)
_WRITING_METHOD = compile_lazily(
    r"""\.(?:(?:write_text|write_bytes|unlink|rename|touch)\(|open\(\s*(?:mode\s*=\s*)?["'][wax])"""
)
_METHOD_OWNER = compile_lazily(rf"(?:Path\(\s*{_QUOTED_PATH}[^()\n]{{0,80}}\)|(?<!\w)(\w+))$")
_NODE_WRITE = compile_lazily(rf"File(?:Sync)?\(\s*(?:{_QUOTED_PATH}|(\w+))")
_IN_PLACE_INPUT = compile_lazily(
    rf"(?:fileinput\.(?:input|FileInput)|FileInput)\((?:files=)?\[?{_QUOTED_PATH}[^)\n]*inplace"
)
_FILE_CALL = compile_lazily(
    r"(?:shutil\.(?:copy\w*|move|rmtree)|os\.(?:remove|rename|replace|unlink|makedirs|mkdir))\("
)
_PATH_LITERAL = compile_lazily(rf"(?:(?:pathlib\.)?Path\(\s*)?{_QUOTED_PATH}")


def list_patched_files(text: str) -> list[str]:
    """Return the files that a patch changes."""
    names = (name.strip() for name in _PATCHED_FILE.findall(text))
    return [name for name in dict.fromkeys(names) if name != "/dev/null"]


def list_written_files(code: str) -> list[str]:
    """Return the files that code writes, `""` for an unnamed one."""
    code = code[:_LONGEST]
    writes = dict.fromkeys(_find_writes(code))
    return list(dict.fromkeys(name or _variable_path(variable, code) for name, variable in writes))


def _variable_path(variable: str, code: str) -> str:
    """Return the path that a variable is set to: `p = Path("a.py")`, `const f='a.js'`."""
    for operator in (" = ", "="):
        begin, start = variable + operator, -1
        for _ in range(_TRIES if variable else 0):
            start = code.find(begin, start + 1)
            if start < 0:
                break
            value = _PATH_LITERAL.match(code, start + len(begin))
            if value and not (start and (code[start - 1].isalnum() or code[start - 1] in "_.")):
                return value[1]
    return ""


def _find_writes(code: str) -> Iterator[tuple[str, str]]:
    """Yield each as its path or the variable that holds it."""
    for call in islice(_OPEN_CALL.finditer(code), _MOST):
        start = call.start()
        # `tarfile.open` and the like; what `Path(…).open` writes is found below.
        if code[start - 1 : start] not in (".", "_") or code[max(0, start - 7) : start].endswith(
            ("io.", "codecs.")
        ):
            yield call[1] or "", call[2] or ""
    for method in islice(_WRITING_METHOD.finditer(code), _MOST):
        start = method.start()
        owner = _METHOD_OWNER.search(code, max(0, start - 400), start)
        yield (owner[1] or "", owner[2] or "") if owner else ("", "")
    if "writeFile" in code or "appendFile" in code:
        yield from _NODE_WRITE.findall(code)
    if "inplace" in code:
        yield from ((name, "") for name in _IN_PLACE_INPUT.findall(code))
    if ("shutil." in code or "os." in code) and _FILE_CALL.search(code):
        yield "", ""


# Programs that show, write, move and fetch files.

_SHOW_VALUES = word_set("-n -c -s -w -b -v -l -d -f -k -t --lines --bytes -r --range")
_GREP_VALUES = word_set(
    "-A -B -C -m -e -f -g -t -T -j -M -d --include --exclude --exclude-dir --glob --type --regexp "
    "--max-count --context --after-context --before-context --iglob --type-not --max-depth"
)
_SED_VALUES = word_set("-e -f --expression --file -l")
_AWK_VALUES = word_set("-F -v -f")
_PATCH_VALUES = word_set("-i -d -o -p -F -r -B -D -z")
_CONTENT_VALUES = word_set("-Value -Encoding -Force -NoNewline -InputObject")
_COPY_VALUES = word_set("-m -g -o -S")
_FILE_VALUES = word_set("-m -s -t -d -r -g -o --mode --reference --size")
_DJANGO_COMMANDS = word_set("makemigrations migrate startapp startproject loaddata collectstatic")
_IN_PLACE = compile_lazily(r"-[nErsuz]*i|--in-place").match
_HEALTH_URL = compile_lazily(
    r"(?:^|//)(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?::\w+)?"
    r"(?:/?$|/.*(?:health|ready|status|ping|alive|version))"
)


def show_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    if not part.out:
        effects.record_reads(list_operands(words))
        effects.record_reads(part.inputs)


def show_part_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    if not part.out:
        effects.record_reads(list_operands(words, _SHOW_VALUES))
        effects.record_reads(part.inputs)


def tail_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    names = [name for name in list_operands(words, _SHOW_VALUES) if name[:1] != "+"]
    if (
        has_flag(words[1:], "fF")
        or "--follow" in words
        or any(name.endswith((".log", ".out")) for name in names)
    ):
        effects.waits = True
    if not part.out:
        effects.record_reads(names)


def grep_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    if part.out or has_flag(words[1:], "rRlLcq") or "--files" in words:
        return
    names = list_operands(words, _GREP_VALUES)
    if "-e" not in words and "-f" not in words and "--regexp" not in words:
        names = names[1:]
    effects.record_reads([name for name in names if FILE_NAME.search(name)])


def sed_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    names = list_operands(words, _SED_VALUES)
    if not ("-e" in words or "-f" in words or "--expression" in words):
        # On macOS `-i` has a value, which is mostly empty.
        names = [name for name in names if name][1:]
    if any(map(_IN_PLACE, words)):
        effects.record_writes(names) if names else effects.record_unnamed_change()
    elif not part.out:
        effects.record_reads(names)


def awk_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    names = list_operands(words, _AWK_VALUES)
    if not part.out and "inplace" not in words:
        effects.record_reads(names if "-f" in words else names[1:])


def perl_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    arguments = iter(words[1:])
    in_place, names, code = False, [], False
    for word in arguments:
        if word[:1] != "-":
            names.append(word)
        elif word[-1:] in ("e", "E"):
            code = True
            next(arguments, None)
        in_place = in_place or re.match(r"-[a-z0-9]*i", word) is not None
    if in_place:
        effects.record_writes(names) if names else effects.record_unnamed_change()
    elif code and not part.out:
        effects.record_reads(names)


def write_all_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    effects.record_writes(list_operands(words, _FILE_VALUES) or [""])


def write_last_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    if "-t" in words[:-1]:
        effects.record_writes([words[words.index("-t") + 1]])
    else:
        effects.record_writes(list_operands(words, _COPY_VALUES)[-1:])


def change_mode_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    effects.record_writes(list_operands(words)[1:])


def patch_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    if "--dry-run" not in words:
        text = part.body or (words[1] if len(words) > 1 and "***" in words[1] else "")
        patched_file = list_operands(words, _PATCH_VALUES)[:1] if words[0] == "patch" else []
        effects.record_writes(list_patched_files(text) or patched_file or [""])


def code_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    """Handle code on the command line or in a heredoc."""
    code = part.body
    for i, word in enumerate(words[1:-1], 1):
        if word in ("-c", "-e", "--eval", "-p"):
            code = words[i + 1]
            break
        if word[:1] != "-":
            break
    if code:
        effects.record_writes(list_written_files(code))
    elif len(words) > 2 and words[1].endswith("manage.py") and words[2] in _DJANGO_COMMANDS:
        effects.record_unnamed_change()


def tar_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    if len(words) > 1 and not set("xc").isdisjoint(words[1].lstrip("-")[:6]):
        effects.record_unnamed_change()


def unpack_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    if not has_flag(words[1:], "ltpZ"):
        effects.record_unnamed_change()


def curl_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    wget = words[0].endswith("wget")
    for i, word in enumerate(words[:-1]):
        if word in ("-o", "--output", "-O", "--output-document"):
            if word == "-O" and not wget:
                effects.record_unnamed_change()
            elif words[i + 1] != "-":
                effects.record_writes([words[i + 1]])
    if any(map(_HEALTH_URL.search, words[1:])):
        effects.waits = True
    elif wget and "--spider" not in words and not has_flag(words, "O"):
        effects.record_unnamed_change()


def set_content_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    """Handle PowerShell's `Set-Content -Path f`, in which the path may also stand alone."""
    options = [word.lower() for word in words]
    for name in ("-path", "-filepath", "-literalpath"):
        if name in options[:-1]:
            effects.record_writes([words[options.index(name) + 1]])
            return
    effects.record_writes(list_operands(words, _CONTENT_VALUES)[:1])


def in_place_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    """Handle `yq -i expression f`, which prints without `-i`."""
    if has_flag(words[1:], "i") or "--inplace" in words:
        effects.record_writes(list_operands(words)[-1:])


def dd_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    effects.record_writes(word[3:] for word in words if word.startswith("of="))


# What git does to the work tree. Commands that only change the history have no effect here.


_GIT_VALUES = word_set("-C -c --git-dir --work-tree")
_GIT_SHOW_VALUES = word_set("--format --pretty")
_GIT_RESTORE_VALUES = word_set("-s --source")
_GIT_DRY_OPTIONS = word_set("--cached --dry-run -n --abort --check --stat --numstat --summary")


def git_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    i = 1
    while i < len(words) and words[i][:1] == "-":
        i += 2 if words[i] in _GIT_VALUES else 1
    effect = _GIT_EFFECTS.get(words[i]) if i < len(words) else None
    if effect is not None:
        effect(words[i:], part, effects)


def _git_show_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    for name in list_operands(words, _GIT_SHOW_VALUES):
        _, colon, path = name.partition(":")
        if colon and path and not part.out and not UNKNOWN_PATH.search(path):
            # Relative to the top of the repository, whatever the current folder is.
            effects.read.append(path)


def _git_checkout_effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
    if "--" in words:
        effects.record_restores(words[words.index("--") + 1 :])
    elif words[0] == "restore":
        if "--staged" not in words or "--worktree" in words:
            effects.record_restores(list_operands(words, _GIT_RESTORE_VALUES) or [""])
    elif not has_flag(words[1:], "bBc") and "--create" not in words and len(words) > 1:
        effects.record_restores([name for name in words[1:] if FILE_NAME.search(name)] or [""])


def _git_change_effect(words: ShellWords, part: ShellCommand, effects: CommandEffects) -> None:
    if not _GIT_DRY_OPTIONS.isdisjoint(words):
        return
    if words[0] in ("rm", "mv"):
        effects.record_writes(list_operands(words))
    elif words[0] == "apply":
        patch_effect(words, part, effects)
    else:
        effects.record_unnamed_change()


def _git_word_effect(names: str, *, unless: bool = False) -> ProgramEffect:
    """Return the effect of a git command that changes the tree if one of the words is present.

    With `unless`, it changes the tree if none is.
    """
    expected_words = word_set(names)

    def effect(words: ShellWords, _part: ShellCommand, effects: CommandEffects) -> None:
        if expected_words.isdisjoint(words) == unless:
            effects.record_unnamed_change()

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
