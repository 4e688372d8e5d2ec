"""Code as pages show it: words in the colours of their language, and what changed in a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import zip_longest
from typing import Any

from markupsafe import Markup, escape

from closeloop.text.untrusted import make_visible
from closeloop.web.diff_view import DiffFile, DiffLine

MAX_COLOURED_CHARS = 60_000
"""Of one file: longer ones are shown without colours."""
MAX_MARKED_CHARS = 400
"""Of a line: in longer ones no words are marked."""
MIN_LIKENESS = 0.4
"""Lines that share less are two lines, and no change of one."""
TOKEN_CLASSES = {
    "Keyword": "k",
    "Literal.String": "s",
    "Comment": "c",
    "Literal.Number": "n",
    "Name.Function": "f",
    "Name.Class": "f",
    "Name.Decorator": "f",
    "Name.Tag": "f",
    "Name.Builtin": "b",
    "Name.Attribute": "b",
}
"""By the name of a token's kind, the class that colours it."""

LANGUAGES = {
    "py": "python", "pyi": "python", "js": "javascript", "jsx": "javascript",
    "mjs": "javascript", "cjs": "javascript", "ts": "typescript", "tsx": "typescript",
    "go": "go", "rs": "rust", "java": "java", "kt": "kotlin", "swift": "swift", "c": "c",
    "h": "c", "cc": "cpp", "cpp": "cpp", "hpp": "cpp", "cs": "csharp", "rb": "ruby",
    "php": "php", "sql": "sql", "sh": "bash", "bash": "bash", "css": "css", "html": "html",
    "json": "json", "toml": "toml", "yaml": "yaml", "yml": "yaml", "makefile": "make",
    "dockerfile": "docker",
}  # fmt: skip
"""By the ending of a file's name."""

CodePiece = tuple[str, str]
"""A text and its class, which is empty for most."""
_PIECE = Markup('<span class="tok-{}">{}</span>')
_MARKED = Markup("<mark>{}</mark>")


def colour_diff(file: DiffFile) -> list[Markup]:
    """Of each line of a file's diff the code as HTML, changed words marked."""
    pieces = _colour_lines(file)
    marks: dict[int, list[tuple[int, int]]] = {}
    for old, new in pair_lines(file.lines):
        if old is not None and new is not None and old != new:
            marks[old], marks[new] = _changed_spans(file.lines[old].text, file.lines[new].text)
    return [
        _render_line(pieces.get(place, [(line.text, "")]), marks.get(place, ()))
        for place, line in enumerate(file.lines)
    ]


def pair_lines(lines: Sequence[DiffLine]) -> list[tuple[int | None, int | None]]:
    """Rows of a diff in two columns: places of the line before and after; None where none is."""
    rows: list[tuple[int | None, int | None]] = []
    removed: list[int] = []
    added: list[int] = []

    def add_changed() -> None:
        rows.extend(zip_longest(removed, added))
        removed.clear()
        added.clear()

    for place, line in enumerate(lines):
        if line.kind == "minus":
            if added:
                add_changed()
            removed.append(place)
        elif line.kind == "plus":
            added.append(place)
        else:
            add_changed()
            rows.append((place, place))
    add_changed()
    return rows


def _changed_spans(before: str, after: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The parts of a line that changed, before and after; none where it is another line."""
    if max(len(before), len(after)) > MAX_MARKED_CHARS:
        return [], []
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    if matcher.ratio() < MIN_LIKENESS:
        return [], []
    changes = [one for one in matcher.get_opcodes() if one[0] != "equal"]
    return (
        [(start, end) for _, start, end, _, _ in changes if end > start],
        [(start, end) for _, _, _, start, end in changes if end > start],
    )


def _render_line(pieces: Sequence[CodePiece], marked: Sequence[tuple[int, int]]) -> Markup:
    html, at = Markup(""), 0
    for text, kind in pieces:
        for part, is_marked in _cut_piece(text, at, marked):
            shown = escape(make_visible(part))
            coloured = _PIECE.format(kind, shown) if kind else shown
            html += _MARKED.format(coloured) if is_marked else coloured
        at += len(text)
    return html


def _cut_piece(text: str, at: int, marked: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """The parts of a piece that begins at a place of its line, and whether each is marked."""
    place = 0
    for start, end in marked:
        first, last = max(start - at, place), min(end - at, len(text))
        if first < last:
            if place < first:
                yield text[place:first], False
            yield text[first:last], True
            place = last
    if place < len(text):
        yield text[place:], False


def _colour_lines(file: DiffFile) -> dict[int, list[CodePiece]]:
    """By place, the words of a line; each side of each hunk is read as one text."""
    if sum(len(line.text) for line in file.lines) > MAX_COLOURED_CHARS:
        return {}
    lexer = find_lexer(file.path)
    if lexer is None:
        return {}
    coloured: dict[int, list[CodePiece]] = {}
    for kinds in (("same", "minus"), ("same", "plus")):
        places: list[int] = []
        for place, line in [*enumerate(file.lines), (len(file.lines), None)]:
            if line is not None and line.kind in kinds:
                places.append(place)
            elif line is None or line.kind == "hunk":
                texts = [file.lines[one].text for one in places]
                coloured |= dict(zip(places, _colour_text(lexer, texts), strict=True))
                places = []
    return coloured


def _colour_text(lexer: Any, lines: Sequence[str]) -> list[list[CodePiece]]:
    """The words of each line; a line that the lexer splits elsewhere is left plain."""
    rows: list[list[CodePiece]] = [[]]
    for kind, text in lexer.get_tokens("\n".join(lines)):
        token_class = _token_class(str(kind).removeprefix("Token."))
        for number, part in enumerate(text.split("\n")):
            if number:
                rows.append([])
            if part:
                rows[-1].append((part, token_class))
    if len(rows) < len(lines):
        return [[(line, "")] for line in lines]
    return [
        row if "".join(text for text, _ in row) == line else [(line, "")]
        for line, row in zip(lines, rows, strict=False)
    ]


@cache
def _token_class(kind: str) -> str:
    return next((name for start, name in TOKEN_CLASSES.items() if kind.startswith(start)), "")


@cache
def _load_lexer(language: str) -> Any:
    from pygments.lexers import get_lexer_by_name

    return get_lexer_by_name(language, stripnl=False, ensurenl=False)


def find_lexer(path: str) -> Any:
    """What reads the language of a file, by its name; None of a language that is not coloured."""
    name = path.rpartition("/")[2].lower()
    language = LANGUAGES.get(name.rpartition(".")[2])
    return None if language is None else _load_lexer(language)
