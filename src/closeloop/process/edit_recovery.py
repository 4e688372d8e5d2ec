"""The edits that a command line makes, with their text if the line contains it.

`cat > f <<EOF`, `echo … >> f`, `tee`, `dd`, `install`, `sed -i`, `perl -i`, `awk -i inplace`, `ed`,
`vim -es`, `patch`, `git apply`, `rm`, and code given to an interpreter (`recover_code_edits`). Only
texts are read: nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from msgspec.structs import replace

from closeloop.process.check_commands import ShellCommand, ShellWords, word_set
from closeloop.records.change import ShellEdit
from closeloop.records.record import Record
from closeloop.text.code_patterns import parse_python

# The edits that a Python script makes to files, as far as its text shows them.


MAX_CODE_CHARS = 100_000
"""Longer scripts are not read."""
_WRITE_HINTS = ("write_text(", ".write(", ".writelines(")
_ADDING_CALLS = frozenset(("append", "insert", "extend"))
_TEXT_CALLS = frozenset(("Path", "dedent", "PosixPath"))


def recover_code_edits(code: str, *, only_rewrites: bool = False) -> list[ShellEdit]:
    """Return the files that code writes: whole texts, replacements, or the lines that it adds.

    With `only_rewrites`, only files that it also reads: what a script creates is its output.
    """
    if len(code) > MAX_CODE_CHARS or not any(hint in code for hint in _WRITE_HINTS):
        return []
    try:
        script = _ScriptReading()
        edits = list(script.list_edits(parse_python(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        replace(edit, path=path)
        for edit in edits
        if not only_rewrites or edit.path in script.read_paths
        for path in script.looped_paths.get(edit.path, (edit.path,))
    ]


class _OpenFile(Record):
    path: str
    mode: str


class _ScriptReading:
    """The state while a script is read from start to end."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.files: dict[str, _OpenFile] = {}
        self.replacements: list[tuple[str | None, str]] = []
        self.added: list[str] = []
        self.read_paths: set[str] = set()
        self.lists: dict[str, tuple[str, ...]] = {}
        self.looped_paths: dict[str, tuple[str, ...]] = {}
        """By the first text of a loop, all texts that stand for it."""

    def list_edits(self, tree: ast.Module) -> Iterator[ShellEdit]:
        for node in sorted(_list_nodes(tree), key=_node_end):
            if isinstance(node, ast.Assign):
                self._note_assignment(node)
            elif isinstance(node, ast.withitem):
                self._note_open_file(node.optional_vars, node.context_expr)
            elif isinstance(node, ast.For):
                self._note_loop(node)
            elif isinstance(node, ast.Call):
                yield from self._edits_of_call(node)

    def _note_loop(self, node: ast.For) -> None:
        """Let the first text stand for all of `for path in ["a.py", "b.py"]`."""
        texts = (
            self.lists.get(node.iter.id, ())
            if isinstance(node.iter, ast.Name)
            else self._listed_texts(node.iter)
        )
        if texts and isinstance(node.target, ast.Name):
            self.texts[node.target.id] = texts[0]
            self.looped_paths[texts[0]] = texts

    def _listed_texts(self, node: ast.expr) -> tuple[str, ...]:
        elements = node.elts if isinstance(node, ast.List | ast.Tuple) else ()
        texts = [text for element in elements[:MAX_EDITS] if (text := self._text_of(element))]
        return tuple(texts) if len(texts) == len(elements) else ()

    def _note_assignment(self, node: ast.Assign) -> None:
        target = node.targets[0]
        text = self._text_of(node.value)
        if isinstance(target, ast.Name):
            if text is None:
                self.texts.pop(target.id, None)
            else:
                self.texts[target.id] = text
            if texts := self._listed_texts(node.value):
                self.lists[target.id] = texts
            self._note_open_file(target, node.value)
        self.added += _new_lines(node.value)

    def _note_open_file(self, target: ast.expr | None, value: ast.expr) -> None:
        open_file = self._opened_file(value)
        if open_file is not None and isinstance(target, ast.Name):
            self.files[target.id] = open_file

    def _opened_file(self, node: ast.expr) -> _OpenFile | None:
        """Return the file of `open(path, "w")` or `Path(path).open("w")`; None for other calls."""
        if not isinstance(node, ast.Call):
            return None
        arguments: list[ast.expr] = list(node.args)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "open":
            owner = node.func.value
            if not (isinstance(owner, ast.Name) and owner.id in ("io", "codecs")):
                arguments.insert(0, owner)
        elif not (isinstance(node.func, ast.Name) and node.func.id == "open"):
            return None
        path = self._text_of(arguments[0]) if arguments else None
        modes = [*arguments[1:2], *(word.value for word in node.keywords if word.arg == "mode")]
        mode = self._text_of(modes[0]) if modes else "r"
        return _OpenFile(path=path, mode=mode) if path and mode else None

    def _edits_of_call(self, node: ast.Call) -> Iterator[ShellEdit]:
        self._note_read(self._opened_file(node))
        if not isinstance(node.func, ast.Attribute):
            return
        name, owner, arguments = node.func.attr, node.func.value, node.args
        if name == "write_text" and (path := self._text_of(owner)):
            yield from self._flush_edits(path, "w", arguments)
        elif name in ("write", "writelines"):
            file = self.files.get(owner.id) if isinstance(owner, ast.Name) else None
            file = file or self._opened_file(owner)
            if file is not None and set(file.mode) & set("wax+"):
                yield from self._flush_edits(file.path, file.mode, arguments)
                if isinstance(owner, ast.Name):
                    self.files[owner.id] = replace(file, mode="a")
        else:
            self._note_text_call(name, owner, arguments)

    def _note_text_call(self, name: str, owner: ast.expr, arguments: list[ast.expr]) -> None:
        """Handle calls that read a file, or build the text that is written later."""
        if name == "replace" and len(arguments) > 1:
            before, after = map(self._text_of, arguments[:2])
            if before is not None and after is not None:
                self.replacements.append((before, after))
        elif name == "sub" and len(arguments) > 2 and (new := self._text_of(arguments[1])):
            self.replacements.append((None, new))
        elif name == "read_text":
            self.read_paths.add(self._text_of(owner) or "")
        elif name in _ADDING_CALLS:
            for argument in arguments:
                self.added += _new_lines(argument)

    def _note_read(self, file: _OpenFile | None) -> None:
        if file is not None and "r" in file.mode:
            self.read_paths.add(file.path)

    def _flush_edits(self, path: str, mode: str, arguments: list[ast.expr]) -> Iterator[ShellEdit]:
        text = self._text_of(arguments[0]) if arguments else None
        self.added += _new_lines(arguments[0]) if arguments else ()
        if text is not None and path not in self.read_paths:
            yield (
                ShellEdit(path=path, before="", after=text)
                if "a" in mode
                else ShellEdit(path=path, action="create", after=text)
            )
        elif self.replacements:
            for before, after in self.replacements:
                if before is None:
                    yield ShellEdit(path=path, patch=_added_lines([after]))
                else:
                    yield ShellEdit(path=path, before=before, after=after)
        else:
            yield ShellEdit(path=path, patch=_added_lines(self.added) or None)
        self.replacements, self.added = [], []

    def _text_of(self, node: ast.expr) -> str | None:
        """Return the text of an expression, if the script contains it."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            return self.texts.get(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div):
            left, right = self._text_of(node.left), self._text_of(node.right)
            if left is None or right is None:
                return None
            return f"{left}/{right}" if isinstance(node.op, ast.Div) else left + right
        if isinstance(node, ast.Call) and node.args:
            function_name = node.func.attr if isinstance(node.func, ast.Attribute) else None
            function_name = node.func.id if isinstance(node.func, ast.Name) else function_name
            return self._text_of(node.args[0]) if function_name in _TEXT_CALLS else None
        return None


def _added_lines(texts: Iterable[str]) -> str:
    """Return the texts as added lines of a patch."""
    return "\n".join(f"+{line}" for text in texts for line in text.splitlines())


_ReadNode = ast.Assign | ast.Call | ast.For | ast.withitem


def _list_nodes(tree: ast.Module) -> Iterator[_ReadNode]:
    for node in ast.walk(tree):
        if isinstance(node, _ReadNode):
            yield node


def _node_end(node: _ReadNode) -> tuple[int, int, int]:
    """Return a sort key by where a node ends, or the head of a loop: inner nodes come first."""
    positioned: ast.expr | ast.stmt = node.context_expr if isinstance(node, ast.withitem) else node
    if isinstance(node, ast.For):
        positioned = node.iter
    return (
        positioned.end_lineno or 0,
        positioned.end_col_offset or 0,
        isinstance(node, ast.withitem),
    )


def _new_lines(node: ast.expr) -> Iterator[str]:
    """Yield texts of whole lines in an expression, which such scripts insert."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and "\n" in node.value.strip(" \t"):
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
        text = "".join(part for part in parts if isinstance(part, str))
        if "\n" in text:
            yield text
    elif isinstance(node, ast.BinOp):
        yield from _new_lines(node.left)
        yield from _new_lines(node.right)
    elif isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from _new_lines(element)


# The edits of shell commands.


MAX_EDITS = 50
"""Edits of one command that are reported."""
_MAX_TEXT_CHARS = 200_000
_PATCHED_FILE = re.compile(
    r"^(?:diff --git [^\n]*\n(?:(?!diff --git |--- )[^\n]*\n)*)?"
    r"(?:--- [^\n]*\n\+\+\+ (?:b/)?([^\t\n]+)|\*\*\* (Add|Update|Delete) File: ([^\n]+))",
    re.MULTILINE,
)
_BACKSLASH = re.compile(r"\\([abefnrtv\\]|0[0-7]{0,3})")
_CONTROL_LETTERS = {"a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_FORMAT = re.compile(r"%(%|[sdib])")

# What a program prints, if its arguments determine it.


def printed_text(part: ShellCommand) -> str | None:
    """Return what the command prints: a heredoc through `cat`, the words of `echo` and `printf`."""
    program, words = part.words[0].rpartition("/")[2], part.words[1:]
    if program == "cat":
        is_fed = part.body is not None and all(word == "-" for word in words)
        return f"{part.body}\n" if is_fed else None
    if program == "echo":
        return _echoed_text(words)
    if program == "printf" and words:
        return _formatted_text(words)
    return None


def _echoed_text(words: ShellWords) -> str | None:
    end, escapes = "\n", False
    while words and words[0] in ("-n", "-e", "-en", "-ne", "-E"):
        end = "" if "n" in words[0] else end
        escapes = escapes or "e" in words[0]
        words = words[1:]
    text = " ".join(words)
    return None if "$(" in text else (_unescape_text(text) if escapes else text) + end


def _formatted_text(words: ShellWords) -> str | None:
    form, values = words[0], words[1:]
    if "$(" in form:
        return None
    form = _unescape_text(form)
    places = len(_FORMAT.findall(form)) - form.count("%%")
    # The format is used again until no value is left.
    starts = range(0, len(values) or 1, places) if places else (0,)
    return "".join(_fill_format(form, values[start : start + places]) for start in starts)


def _fill_format(form: str, values: ShellWords) -> str:
    remaining = iter(values)
    return _FORMAT.sub(lambda match: "%" if match[1] == "%" else next(remaining, ""), form)


def _unescape_text(text: str) -> str:
    return _BACKSLASH.sub(lambda match: _CONTROL_LETTERS.get(match[1], match[1]), text)


def redirect_edits(part: ShellCommand, text: str | None) -> Iterator[ShellEdit]:
    """Yield what is written to the files behind `>` and `>>`."""
    for name in part.out if text is not None else ():
        yield _written_edit(name, text, append=name in part.appended)


def _written_edit(name: str, text: str | None, *, append: bool) -> ShellEdit:
    if append:
        return ShellEdit(path=name, before="", after=text)
    return ShellEdit(path=name, action="create", after=text)


# `sed` and `perl`.

_SED_ADDRESS = re.compile(
    r"\s*(?:(?:\d+|\$|/(?:\\.|[^/\\])*/I?)(?:[,~]\+?(?:\d+|\$|/(?:\\.|[^/\\])*/))?)?\s*!?\s*\{?\s*"
)
_SED_TEXT = re.compile(r"[aic]\s*(?:\\\n?)?([^\n]*(?:(?<=\\)\n[^\n]*)*)")
_SUBSTITUTION_END = re.compile(r"[gpiImMewsx0-9]*\s*\}?\s*(?:[;\n]|$)")
_MAX_SED_COMMANDS = 100
_SUBSTITUTION_CALL = re.compile(
    r"""\bg?sub!?\(\s*/((?:\\.|[^/\\])+)/\s*,\s*(["'])((?:\\.|(?!\2)[^\\])*)\2"""
)
_RUBY_IN_PLACE = re.compile(r"-[apln]*i").match
_EDITOR_SAVE = re.compile(r"(?:^|\|)\s*(?:wq?|x|up(?:date)?)a?!?\s*$", re.MULTILINE)
_EDITOR_ADDRESS = re.compile(
    r"\s*(?:%|(?:\d+|[.$]|/(?:\\.|[^/\\])*/)?(?:[,;](?:\d+|[.$]|/(?:\\.|[^/\\])*/)?)?)\s*"
)
_IN_PLACE = re.compile(r"-[nErsuz]*i|--in-place").match
_SED_SCRIPTS = word_set("-e --expression")


def _sed_edits(part: ShellCommand, _fed: str | None) -> Iterator[ShellEdit]:
    words = part.words
    if not any(map(_IN_PLACE, words[1:])):
        return
    scripts, names = [], []
    extended = any(re.match(r"-[nirsuz]*[Er]", word) for word in words[1:])
    arguments = iter(words[1:])
    for word in arguments:
        if word in _SED_SCRIPTS:
            scripts.append(next(arguments, ""))
        elif word[:1] != "-" and word:
            names.append(word)
    if not scripts and names:
        scripts.append(names.pop(0))
    texts = [text for script in scripts for text in parse_sed_script(script, extended=extended)]
    for name in names:
        for before, after in texts or [(None, None)]:
            yield ShellEdit(path=name, before=before, after=after)


def parse_sed_script(script: str, *, extended: bool) -> Iterator[tuple[str | None, str | None]]:
    """Yield each command's replaced and new text, None if the script alone does not show it."""
    position = 0
    for _ in range(_MAX_SED_COMMANDS):
        address = _SED_ADDRESS.match(script, position)
        position = address.end() if address else position
        letter = script[position : position + 1]
        if not letter:
            return
        if letter == "s" and len(script) > position + 1:
            pattern, replacement, position = _split_substitution(script, position + 1)
            before = literal_from_pattern(pattern, extended=extended)
            after = None if before is None else _literal_replacement(replacement, before)
            yield (before, after) if after is not None else (None, None)
            end = _SUBSTITUTION_END.match(script, position)
        elif letter in "aic" and (text := _SED_TEXT.match(script, position)):
            new = _unescape_text(text[1].replace("\\\n", "\n").removeprefix("\\")) + "\n"
            yield "", new
            position, end = text.end(), None
        else:
            yield None, None
            end = re.compile(r"[^;\n]*[;\n]?").match(script, position)
        position = end.end() if end else position + 1


def _split_substitution(script: str, start: int) -> tuple[str, str, int]:
    """Return pattern and replacement of `s/…/…/`, and where the flags begin."""
    delimiter = script[start]
    texts: list[str] = []
    position = begin = start + 1
    while len(texts) < 2 and position < len(script):
        if script[position] == "\\":
            position += 1
        elif script[position] == delimiter:
            texts.append(script[begin:position].replace("\\" + delimiter, delimiter))
            begin = position + 1
        position += 1
    pattern, replacement = (*texts, script[begin:], "")[:2]
    return pattern, replacement, position


def literal_from_pattern(pattern: str, *, extended: bool) -> str | None:
    """Return the literal text of a pattern if there is only one; a dot stands for itself."""
    special = "*+?()[]{}|" if extended else "*[]"
    escaped_special = "wWsSbB<>123456789" if extended else "wWsSbB<>123456789(){}|+?"
    text = []
    chars = iter(pattern.removeprefix("^").removesuffix("$"))
    for char in chars:
        if char == "\\":
            following = next(chars, "")
            if following in escaped_special:
                return None
            text.append(_CONTROL_LETTERS.get(following, following))
        elif char in special:
            return None
        else:
            text.append(char)
    return "".join(text)


def _literal_replacement(text: str, before: str) -> str | None:
    if re.search(r"\\[1-9]|\$\d", text):
        return None
    text = re.sub(r"(?<!\\)&", lambda _: before, text)
    return re.sub(r"\\(.)", lambda match: _CONTROL_LETTERS.get(match[1], match[1]), text)


def _perl_edits(part: ShellCommand, _fed: str | None) -> Iterator[ShellEdit]:
    arguments = iter(part.words[1:])
    in_place, names, scripts = False, [], []
    for word in arguments:
        if word[:1] != "-":
            names.append(word)
            continue
        in_place = in_place or re.match(r"-[a-z0-9]*i", word) is not None
        if word[-1:] in ("e", "E"):
            scripts.append(next(arguments, ""))
    texts = [
        text
        for script in scripts
        for text in (
            parse_sed_script(script, extended=True)
            if script[:1] == "s"
            else _called_substitutions(script)
        )
    ]
    for name in names if in_place else ():
        yield from _text_edits(name, texts)


def _text_edits(name: str, texts: Sequence[tuple[str | None, str | None]]) -> Iterator[ShellEdit]:
    """Yield a file's replacements; an edit without text if none is known."""
    for before, after in texts or [(None, None)]:
        yield ShellEdit(path=name, before=before, after=after)


def _called_substitutions(script: str) -> Iterator[tuple[str, str]]:
    """Yield what `sub(/…/, "…")` and `gsub` of awk and Ruby replace, and by what."""
    for match in islice(_SUBSTITUTION_CALL.finditer(script), _MAX_SED_COMMANDS):
        before = literal_from_pattern(match[1], extended=True)
        after = None if before is None else _literal_replacement(match[3], before)
        if before is not None and after is not None:
            yield before, after


def _awk_edits(part: ShellCommand, _fed: str | None) -> Iterator[ShellEdit]:
    """Yield what `awk -i inplace` replaces; without it, awk only prints."""
    in_place, operands = False, []
    arguments = iter(part.words[1:])
    for word in arguments:
        if word == "-i":
            in_place = next(arguments, "").startswith("inplace") or in_place
        elif word in ("-F", "-v"):
            next(arguments, None)
        elif word[:1] != "-":
            operands.append(word)
    texts = list(_called_substitutions(operands[0])) if in_place and operands else []
    for name in operands[1:] if in_place else ():
        yield from _text_edits(name, texts)


def _ruby_edits(part: ShellCommand, fed: str | None) -> Iterator[ShellEdit]:
    if any(map(_RUBY_IN_PLACE, part.words)):
        yield from _perl_edits(part, fed)


def _editor_edits(part: ShellCommand, piped_text: str | None) -> Iterator[ShellEdit]:
    """Yield what `ed`, `ex` and `vim -es` replace, by commands that are fed, or behind `-c`."""
    scripts, names = [text for text in (part.body, piped_text) if text], []
    arguments = iter(part.words[1:])
    for word in arguments:
        if word in ("-c", "--cmd"):
            scripts.append(next(arguments, ""))
        elif word[:1] == "+":
            scripts.append(word[1:])
        elif word[:1] != "-":
            names.append(word)
    texts = [text for script in scripts for text in _editor_texts(script)]
    for name in names if any(map(_EDITOR_SAVE.search, scripts)) else ():
        yield from _text_edits(name, texts)


def _editor_texts(script: str) -> Iterator[tuple[str | None, str | None]]:
    """Yield what the `s`, `a`, `i` and `c` commands of a line editor replace and add."""
    lines = iter(script.splitlines()[:_MAX_SED_COMMANDS])
    for line in lines:
        command = _EDITOR_ADDRESS.sub("", line, count=1)
        if command[:1] == "s" and len(command) > 2 and not command[1].isalnum():
            yield from parse_sed_script(command.partition("|")[0], extended=False)
        elif command in ("a", "i", "c"):
            yield "", "".join(f"{text}\n" for text in iter(partial(next, lines, "."), "."))


# Patches, code, deletion.


def split_patch(text: str) -> Iterator[ShellEdit]:
    """Yield the change of a patch to each file."""
    text = text[:_MAX_TEXT_CHARS]
    headers = list(islice(_PATCHED_FILE.finditer(text), MAX_EDITS))
    for index, header in enumerate(headers):
        end = headers[index + 1].start() if index + 1 < len(headers) else len(text)
        body = text[header.start() : end]
        path = (header[1] or header[3] or "").strip()
        if path == "/dev/null":
            old_path = re.search(r"^--- (?:a/)?([^\t\n]+)", body, re.M)
            yield ShellEdit(
                path=old_path[1].strip() if old_path else "", action="delete", patch=body
            )
        elif header[2] == "Delete":
            yield ShellEdit(path=path, action="delete")
        elif header[2] == "Add" or re.search(r"^--- /dev/null", body, re.M):
            lines = [line[1:] for line in body.splitlines() if re.match(r"\+(?!\+\+ )", line)]
            yield ShellEdit(path=path, action="create", after="\n".join(lines) + "\n")
        else:
            yield ShellEdit(path=path, patch=body)


def _patch_edits(part: ShellCommand, piped_text: str | None) -> Iterator[ShellEdit]:
    words = part.words
    if words[0] == "git" and {"apply", "am"}.isdisjoint(words[:6]):
        yield from _git_removal_edits(words)
    elif "--dry-run" not in words and "--check" not in words:
        text = part.body or piped_text
        if not text and len(words) > 1 and "***" in words[1]:
            text = words[1]
        yield from split_patch(text or "")


def _git_removal_edits(words: ShellWords) -> Iterator[ShellEdit]:
    if "rm" in words[:4] and "--cached" not in words:
        names = words[words.index("rm") + 1 :]
        yield from (ShellEdit(path=name, action="delete") for name in names if name[:1] != "-")


def _removal_edits(part: ShellCommand, _fed: str | None) -> Iterator[ShellEdit]:
    for name in part.words[1:]:
        if name[:1] != "-":
            yield ShellEdit(path=name, action="delete")


def _tee_edits(part: ShellCommand, piped_text: str | None) -> Iterator[ShellEdit]:
    text = f"{part.body}\n" if part.body is not None else piped_text
    append = "-a" in part.words or "--append" in part.words
    for name in part.words[1:] if text is not None else ():
        if name[:1] != "-":
            yield _written_edit(name, text, append=append)


def _copy_edits(part: ShellCommand, piped_text: str | None) -> Iterator[ShellEdit]:
    """`install /dev/stdin f`, `cp /dev/stdin f` and `dd of=f` write what they are fed."""
    text = f"{part.body}\n" if part.body is not None else piped_text
    outputs = [word[3:] for word in part.words if word.startswith("of=")]
    if "/dev/stdin" in part.words[1:-1]:
        outputs.append(part.words[-1])
    for name in outputs if text is not None else ():
        yield _written_edit(name, text, append=False)


def _code_edits(part: ShellCommand, _fed: str | None) -> Iterator[ShellEdit]:
    code = part.body
    for index, word in enumerate(part.words[1:-1], 1):
        if word == "-c":
            code = part.words[index + 1]
            break
        if word[:1] != "-":
            return
    yield from recover_code_edits(code) if code else ()


LINE_EDITORS = ("ed", "ex", "vi", "vim", "nvim")
EDITING_PROGRAMS: Mapping[str, Callable[[ShellCommand, str | None], Iterator[ShellEdit]]] = {
    "sed": _sed_edits,
    "gsed": _sed_edits,
    "perl": _perl_edits,
    "ruby": _ruby_edits,
    **dict.fromkeys(("awk", "gawk"), _awk_edits),
    **dict.fromkeys(LINE_EDITORS, _editor_edits),
    **dict.fromkeys(("cp", "install", "dd"), _copy_edits),
    "patch": _patch_edits,
    "apply_patch": _patch_edits,
    "applypatch": _patch_edits,
    "git": _patch_edits,
    "rm": _removal_edits,
    "unlink": _removal_edits,
    "tee": _tee_edits,
    "python": _code_edits,
}


def recover_edits(parts: Sequence[ShellCommand], index: int, program: str) -> list[ShellEdit]:
    """Return the edits of one command of a line, with paths as written."""
    part = parts[index]
    edits = list(redirect_edits(part, printed_text(part))) if part.out else []
    recovery = EDITING_PROGRAMS.get(program)
    if recovery is not None:
        before = parts[index - 1] if index else None
        piped_text = printed_text(before) if before is not None and before.end == "|" else None
        edits += islice(recovery(part, piped_text), MAX_EDITS)
    return edits


SCRIPT_ENDINGS = (".py", ".sh", ".patch", ".diff")
SCRIPT_RUNNERS = word_set("python bash sh zsh patch git")


def list_run_scripts(part: ShellCommand, program: str) -> Sequence[str]:
    """Return the script that a command runs, or the patch that it applies."""
    words = [*part.words, *part.inputs]
    if program == "git":
        words = words[words.index("apply") :] if "apply" in words[:6] else []
    elif program not in SCRIPT_RUNNERS:
        words = ["", *words]
    return [word for word in words[1:4] if word.endswith(SCRIPT_ENDINGS) and "\n" not in word]
