"""Programs that show, write, move and fetch files."""

from __future__ import annotations

import re

from closeloop.process.shell.bodies import patched, written
from closeloop.process.shell.sheet import FILE, Sheet, has_flag, operands
from closeloop.process.shell.split import Part, Words, wordset

_SHOW_VALUES = wordset("-n -c -s -w -b -v -l -d -f -k -t --lines --bytes -r --range")
_GREP_VALUES = wordset(
    "-A -B -C -m -e -f -g -t -T -j -M -d --include --exclude --exclude-dir --glob --type --regexp "
    "--max-count --context --after-context --before-context --iglob --type-not --max-depth"
)
_SED_VALUES = wordset("-e -f --expression --file -l")
_AWK_VALUES = wordset("-F -v -f")
_COPY_VALUES = wordset("-m -g -o -S")
_FILE_VALUES = wordset("-m -s -t -d -r -g -o --mode --reference --size")
_MANAGE = wordset("makemigrations migrate startapp startproject loaddata collectstatic")
_IN_PLACE = re.compile(r"-[nErsuz]*i|--in-place").match
_HEALTH = re.compile(
    r"(?:^|//)(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?::\w+)?"
    r"(?:/?$|/.*(?:health|ready|status|ping|alive|version))"
)


def shows(words: Words, part: Part, sheet: Sheet) -> None:
    if not part.out:
        sheet.showed(operands(words))
        sheet.showed(part.given)


def shows_some(words: Words, part: Part, sheet: Sheet) -> None:
    if not part.out:
        sheet.showed(operands(words, _SHOW_VALUES))
        sheet.showed(part.given)


def tail(words: Words, part: Part, sheet: Sheet) -> None:
    names = [name for name in operands(words, _SHOW_VALUES) if name[:1] != "+"]
    if (
        has_flag(words[1:], "fF")
        or "--follow" in words
        or any(name.endswith((".log", ".out")) for name in names)
    ):
        sheet.waits = True
    if not part.out:
        sheet.showed(names)


def grep(words: Words, part: Part, sheet: Sheet) -> None:
    if part.out or has_flag(words[1:], "rRlLcq") or "--files" in words:
        return
    names = operands(words, _GREP_VALUES)
    if "-e" not in words and "-f" not in words and "--regexp" not in words:
        names = names[1:]
    sheet.showed([name for name in names if FILE.search(name)])


def sed(words: Words, part: Part, sheet: Sheet) -> None:
    names = operands(words, _SED_VALUES)
    if not ("-e" in words or "-f" in words or "--expression" in words):
        # On macOS `-i` has a value, which is mostly empty.
        names = [name for name in names if name][1:]
    if any(map(_IN_PLACE, words)):
        sheet.wrote(names) if names else sheet.changed()
    elif not part.out:
        sheet.showed(names)


def awk(words: Words, part: Part, sheet: Sheet) -> None:
    names = operands(words, _AWK_VALUES)
    if not part.out:
        sheet.showed(names if "-f" in words else names[1:])


def perl(words: Words, part: Part, sheet: Sheet) -> None:
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
        sheet.wrote(names) if names else sheet.changed()
    elif code and not part.out:
        sheet.showed(names)


def writes_all(words: Words, _part: Part, sheet: Sheet) -> None:
    sheet.wrote(operands(words, _FILE_VALUES) or [""])


def writes_last(words: Words, _part: Part, sheet: Sheet) -> None:
    if "-t" in words[:-1]:
        sheet.wrote([words[words.index("-t") + 1]])
    else:
        sheet.wrote(operands(words, _COPY_VALUES)[-1:])


def changes_mode(words: Words, _part: Part, sheet: Sheet) -> None:
    sheet.wrote(operands(words)[1:])


def patch(words: Words, part: Part, sheet: Sheet) -> None:
    if "--dry-run" not in words:
        text = part.body or (words[1] if len(words) > 1 and "***" in words[1] else "")
        sheet.wrote(patched(text) or [""])


def code(words: Words, part: Part, sheet: Sheet) -> None:
    """Code on the command line, or fed by a heredoc."""
    code = part.body
    for i, word in enumerate(words[1:-1], 1):
        if word in ("-c", "-e", "--eval", "-p"):
            code = words[i + 1]
            break
        if word[:1] != "-":
            break
    if code:
        sheet.wrote(written(code))
    elif len(words) > 2 and words[1].endswith("manage.py") and words[2] in _MANAGE:
        sheet.changed()


def tar(words: Words, _part: Part, sheet: Sheet) -> None:
    if len(words) > 1 and not set("xc").isdisjoint(words[1].lstrip("-")[:6]):
        sheet.changed()


def unpacks(words: Words, _part: Part, sheet: Sheet) -> None:
    if not has_flag(words[1:], "ltpZ"):
        sheet.changed()


def curl(words: Words, _part: Part, sheet: Sheet) -> None:
    wget = words[0].endswith("wget")
    for i, word in enumerate(words[:-1]):
        if word in ("-o", "--output", "-O", "--output-document"):
            if word == "-O" and not wget:
                sheet.changed()
            elif words[i + 1] != "-":
                sheet.wrote([words[i + 1]])
    if any(map(_HEALTH.search, words[1:])):
        sheet.waits = True
    elif wget and "--spider" not in words and not has_flag(words, "O"):
        sheet.changed()


def dd(words: Words, _part: Part, sheet: Sheet) -> None:
    sheet.wrote(word[3:] for word in words if word.startswith("of="))
