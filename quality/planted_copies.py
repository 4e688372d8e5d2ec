"""How many copies under other names are found? Real functions, copied with their own names changed.

    python quality/planted_copies.py [--copies N] [--tell] REPOSITORY …

A function of Python's is written again in a file of its own, with its name, its parameters and its
variables consistently renamed after those of another function of the repository: `user` may become
`account`. Only functions of at least `check.copied_tokens` tokens, docstrings aside, are taken.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.file_kinds import classify_file
from closeloop.changes.quality import copied_code
from closeloop.changes.quality.changed_file import is_example_file
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.records.estimate import wilson_rate
from closeloop.records.finding import Finding
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings

COPIES = 40
"""A repository."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_STRING = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_WORDS = (
    "account",
    "user",
    "form",
    "forms",
    "inside",
    "iso",
    "classes",
    "input",
    "assets",
    "asked",
)
"""Names that begin with a keyword, beside those of other functions."""


class RealFunction(Record):
    """A function at the top of a module, with the names that are its own."""

    path: str
    name: str
    text: str
    own: tuple[str, ...]


def list_functions(repository: Path, settings: CheckSettings) -> Iterator[RealFunction]:
    """Functions that are long enough to be told when they are copied."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=repository, check=True, capture_output=True, text=True
    )
    for path in listed.stdout.split():
        if classify_file(path) != "source" or is_example_file(path):
            continue
        text = (repository / path).read_text("utf-8", "replace")
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("test"):
                written = ast.get_source_segment(text, node) or ""
                statements = node.body[ast.get_docstring(node) is not None :]
                code = "\n".join(map(ast.unparse, statements))
                if len(_TOKEN.findall(_STRING.sub("''", code))) >= settings.copied_tokens:
                    yield RealFunction(
                        path=path, name=node.name, text=written, own=tuple(_own_names(node))
                    )


def _own_names(function: ast.FunctionDef) -> Iterator[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names = {one.arg for one in [*every, arguments.vararg, arguments.kwarg] if one}
    outside: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            outside.update(node.names)
    yield from sorted(names - outside)


def rename_names(function: RealFunction, names: Sequence[str], seed: int) -> str:
    """The same function under other names."""
    chance = random.Random(seed)  # noqa: S311
    used = set(re.findall(r"\w+", function.text))
    free = [name for name in dict.fromkeys([*_WORDS, *names]) if name not in used]
    chance.shuffle(free)
    renamed = dict(zip(function.own, free, strict=False))
    lines = function.text.encode().split(b"\n")
    tree = ast.parse(function.text)
    spots: list[tuple[int, int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in renamed:
            spots.append((node.lineno, node.col_offset, node.id))
        elif isinstance(node, ast.arg) and node.arg in renamed:
            spots.append((node.lineno, node.col_offset, node.arg))
    for line, column, name in sorted(spots, reverse=True):
        row = lines[line - 1]
        end = column + len(name.encode())
        if row[column:end] == name.encode():
            lines[line - 1] = row[:column] + renamed[name].encode() + row[end:]
    text = b"\n".join(lines).decode()
    return re.sub(rf"\bdef {function.name}\b", f"def {function.name}_again", text, count=1)


def find_copies(repository: Path, copies: int, seed: int = 21) -> Iterator[tuple[str, str | None]]:
    """Each function that was copied, and the severity of what was said of it; None is nothing."""
    settings = CheckSettings()
    functions = list(list_functions(repository, settings))
    random.Random(seed).shuffle(functions)  # noqa: S311
    names = sorted({name for one in functions for name in one.own})
    planted = {}
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "repository")
        command = ["git", "clone", "-q", "--shared", str(repository), str(clone)]
        subprocess.run(command, check=True, capture_output=True)
        for number, one in enumerate(functions[:copies]):
            path = f"{one.path.rpartition('/')[0] or '.'}/again_{number}.py".removeprefix("./")
            (clone / path).write_text(rename_names(one, names, number) + "\n", "utf-8")
            planted[path] = f"{one.path}:{one.name}"
        with (
            open_sides(clone, ChangeQuery()) as sides,
            open_index(sides, Path(folder, "cache"), settings) as index,
        ):
            said = copied_code.check(inspect_change(sides, index, settings=settings))
    told = {
        finding.places[0].rpartition(":")[0]: finding.severity
        for finding in said
        if isinstance(finding, Finding)
    }
    for path, name in planted.items():
        yield name, told.get(path)


def main() -> None:
    """Print how many copies were found, by repository."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("repositories", nargs="+", type=Path)
    options.add_argument("--copies", type=int, default=COPIES)
    options.add_argument("--tell", action="store_true", help="name those that were missed")
    given = options.parse_args()
    sys.stdout.write("| repository | copies | found | as errors |\n" + "| --- " * 4 + "|\n")
    every: list[tuple[str, str | None]] = []
    for repository in given.repositories:
        found = list(find_copies(repository, given.copies))
        every += found
        sys.stdout.write(_row(repository.name, found) + "\n")
        for name, severity in found if given.tell else ():
            if severity is None:
                sys.stdout.write(f"  missed: {name}\n")
    sys.stdout.write(_row("all", every) + "\n")


def _row(name: str, found: Sequence[tuple[str, str | None]]) -> str:
    hits = sum(severity is not None for _, severity in found)
    errors = sum(severity == "error" for _, severity in found)
    rate = wilson_rate(hits, len(found))
    share = f"{rate.value:.2f} ({rate.low:.2f}–{rate.high:.2f})" if rate else "–"
    return f"| {name} | {len(found)} | {hits}: {share} | {errors} |"


if __name__ == "__main__":
    main()
