"""Programs that show, write, move and fetch files."""

from __future__ import annotations

import re

from closeloop.process.shell.code_writes import list_patched_files, list_written_files
from closeloop.process.shell.command_effects import (
    FILE_NAME,
    CommandEffects,
    has_flag,
    list_operands,
)
from closeloop.process.shell.command_splitting import ShellCommand, ShellWords, word_set

_SHOW_VALUES = word_set("-n -c -s -w -b -v -l -d -f -k -t --lines --bytes -r --range")
_GREP_VALUES = word_set(
    "-A -B -C -m -e -f -g -t -T -j -M -d --include --exclude --exclude-dir --glob --type --regexp "
    "--max-count --context --after-context --before-context --iglob --type-not --max-depth"
)
_SED_VALUES = word_set("-e -f --expression --file -l")
_AWK_VALUES = word_set("-F -v -f")
_COPY_VALUES = word_set("-m -g -o -S")
_FILE_VALUES = word_set("-m -s -t -d -r -g -o --mode --reference --size")
_DJANGO_COMMANDS = word_set("makemigrations migrate startapp startproject loaddata collectstatic")
_IN_PLACE = re.compile(r"-[nErsuz]*i|--in-place").match
_HEALTH_URL = re.compile(
    r"(?:^|//)(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?::\w+)?"
    r"(?:/?$|/.*(?:health|ready|status|ping|alive|version))"
)


def show_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    if not part.out:
        sheet.record_reads(list_operands(words))
        sheet.record_reads(part.given)


def show_part_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    if not part.out:
        sheet.record_reads(list_operands(words, _SHOW_VALUES))
        sheet.record_reads(part.given)


def tail_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    names = [name for name in list_operands(words, _SHOW_VALUES) if name[:1] != "+"]
    if (
        has_flag(words[1:], "fF")
        or "--follow" in words
        or any(name.endswith((".log", ".out")) for name in names)
    ):
        sheet.waits = True
    if not part.out:
        sheet.record_reads(names)


def grep_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    if part.out or has_flag(words[1:], "rRlLcq") or "--files" in words:
        return
    names = list_operands(words, _GREP_VALUES)
    if "-e" not in words and "-f" not in words and "--regexp" not in words:
        names = names[1:]
    sheet.record_reads([name for name in names if FILE_NAME.search(name)])


def sed_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    names = list_operands(words, _SED_VALUES)
    if not ("-e" in words or "-f" in words or "--expression" in words):
        # On macOS `-i` has a value, which is mostly empty.
        names = [name for name in names if name][1:]
    if any(map(_IN_PLACE, words)):
        sheet.record_writes(names) if names else sheet.record_unnamed_change()
    elif not part.out:
        sheet.record_reads(names)


def awk_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    names = list_operands(words, _AWK_VALUES)
    if not part.out:
        sheet.record_reads(names if "-f" in words else names[1:])


def perl_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    rest = iter(words[1:])
    in_place, names, code = False, [], False
    for word in rest:
        if word[:1] != "-":
            names.append(word)
        elif word[-1:] in ("e", "E"):
            code = True
            next(rest, None)
        in_place = in_place or re.match(r"-[a-z0-9]*i", word) is not None
    if in_place:
        sheet.record_writes(names) if names else sheet.record_unnamed_change()
    elif code and not part.out:
        sheet.record_reads(names)


def write_all_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    sheet.record_writes(list_operands(words, _FILE_VALUES) or [""])


def write_last_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    if "-t" in words[:-1]:
        sheet.record_writes([words[words.index("-t") + 1]])
    else:
        sheet.record_writes(list_operands(words, _COPY_VALUES)[-1:])


def change_mode_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    sheet.record_writes(list_operands(words)[1:])


def patch_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    if "--dry-run" not in words:
        text = part.body or (words[1] if len(words) > 1 and "***" in words[1] else "")
        sheet.record_writes(list_patched_files(text) or [""])


def code_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    """Code on the command line, or fed by a heredoc."""
    code = part.body
    for i, word in enumerate(words[1:-1], 1):
        if word in ("-c", "-e", "--eval", "-p"):
            code = words[i + 1]
            break
        if word[:1] != "-":
            break
    if code:
        sheet.record_writes(list_written_files(code))
    elif len(words) > 2 and words[1].endswith("manage.py") and words[2] in _DJANGO_COMMANDS:
        sheet.record_unnamed_change()


def tar_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    if len(words) > 1 and not set("xc").isdisjoint(words[1].lstrip("-")[:6]):
        sheet.record_unnamed_change()


def unpack_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    if not has_flag(words[1:], "ltpZ"):
        sheet.record_unnamed_change()


def curl_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    wget = words[0].endswith("wget")
    for i, word in enumerate(words[:-1]):
        if word in ("-o", "--output", "-O", "--output-document"):
            if word == "-O" and not wget:
                sheet.record_unnamed_change()
            elif words[i + 1] != "-":
                sheet.record_writes([words[i + 1]])
    if any(map(_HEALTH_URL.search, words[1:])):
        sheet.waits = True
    elif wget and "--spider" not in words and not has_flag(words, "O"):
        sheet.record_unnamed_change()


def dd_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    sheet.record_writes(word[3:] for word in words if word.startswith("of="))
