"""The edits that a Python script makes to files, as far as its text tells them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from closeloop.python_trees import parse_python
from closeloop.records.inspection import FileEdit
from closeloop.records.record import Record

MAX_CODE_CHARS = 100_000
"""Longer scripts are not read."""
_WRITE_HINTS = ("write_text(", ".write(", ".writelines(")
_ADDING_CALLS = frozenset(("append", "insert", "extend"))
_TEXT_CALLS = frozenset(("Path", "dedent", "PosixPath"))


def recover_code_edits(code: str, *, only_rewrites: bool = False) -> list[FileEdit]:
    """Files that the code writes: whole texts, replacements, or the lines that it adds.

    With `only_rewrites`, only those that it also reads: what a script makes anew is its output.
    """
    if len(code) > MAX_CODE_CHARS or not any(hint in code for hint in _WRITE_HINTS):
        return []
    try:
        script = _ScriptReading()
        edits = list(script.list_edits(parse_python(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [edit for edit in edits if not only_rewrites or edit.path in script.read_paths]


class _OpenFile(Record):
    path: str
    mode: str


class _ScriptReading:
    """What is known while a script is read from its first line to its last."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.files: dict[str, _OpenFile] = {}
        self.replacements: list[tuple[str | None, str]] = []
        self.added: list[str] = []
        self.read_paths: set[str] = set()

    def list_edits(self, tree: ast.Module) -> Iterator[FileEdit]:
        for node in sorted(_list_nodes(tree), key=_node_end):
            if isinstance(node, ast.Assign):
                self._note_assignment(node)
            elif isinstance(node, ast.withitem):
                self._note_open_file(node.optional_vars, node.context_expr)
            elif isinstance(node, ast.Call):
                yield from self._edits_of_call(node)

    def _note_assignment(self, node: ast.Assign) -> None:
        target = node.targets[0]
        text = self._text_of(node.value)
        if isinstance(target, ast.Name):
            if text is None:
                self.texts.pop(target.id, None)
            else:
                self.texts[target.id] = text
            self._note_open_file(target, node.value)
        self.added += _new_lines(node.value)

    def _note_open_file(self, target: ast.expr | None, value: ast.expr) -> None:
        opened = self._opened_file(value)
        if opened is not None and isinstance(target, ast.Name):
            self.files[target.id] = opened

    def _opened_file(self, node: ast.expr) -> _OpenFile | None:
        """`open(path, "w")`, `Path(path).open("w")`."""
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

    def _edits_of_call(self, node: ast.Call) -> Iterator[FileEdit]:
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
        """Calls that read a file, or make the text that is written later."""
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

    def _flush_edits(self, path: str, mode: str, arguments: list[ast.expr]) -> Iterator[FileEdit]:
        text = self._text_of(arguments[0]) if arguments else None
        self.added += _new_lines(arguments[0]) if arguments else ()
        if text is not None and path not in self.read_paths:
            yield (
                FileEdit(path=path, before="", after=text)
                if "a" in mode
                else FileEdit(path=path, action="create", after=text)
            )
        elif self.replacements:
            for before, after in self.replacements:
                if before is None:
                    yield FileEdit(path=path, patch=_added_lines([after]))
                else:
                    yield FileEdit(path=path, before=before, after=after)
        else:
            yield FileEdit(path=path, patch=_added_lines(self.added) or None)
        self.replacements, self.added = [], []

    def _text_of(self, node: ast.expr) -> str | None:
        """The text that an expression stands for, where the script says it."""
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
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            return self._text_of(node.args[0]) if called in _TEXT_CALLS else None
        return None


def _added_lines(texts: Iterable[str]) -> str:
    """As a patch writes them."""
    return "\n".join(f"+{line}" for text in texts for line in text.splitlines())


def _list_nodes(tree: ast.Module) -> Iterator[ast.Assign | ast.Call | ast.withitem]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Call | ast.withitem):
            yield node


def _node_end(node: ast.Assign | ast.Call | ast.withitem) -> tuple[int, int, int]:
    """What is inside comes first; a file is open once its expression was seen."""
    place: ast.expr | ast.stmt = node.context_expr if isinstance(node, ast.withitem) else node
    return place.end_lineno or 0, place.end_col_offset or 0, isinstance(node, ast.withitem)


def _new_lines(node: ast.expr) -> Iterator[str]:
    """Texts of whole lines in an expression: what such scripts put between the old lines."""
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
