"""Make a proved task harder in one way, which provokes one failure mode.

Deterministic: the same task gives the same variants. Each is proved like any other task before it
counts.
"""

from __future__ import annotations

import ast
import hashlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec.structs import replace

from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.tasks.task_prompts import NAMES_HEADING
from closeloop.text.code_patterns import parse_python
from closeloop.text.patches import parse_patch
from closeloop.text.wording import escape_glob, matches_globs

# Variants by wording: rules that are stated once, and a decision that is not stated.


_MANIFEST_FILES = (
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    "package.json",
    "go.mod",
    "Cargo.toml",
)
_NAMES_SECTION = re.compile(rf"\n*{NAMES_HEADING}(.+?)\.?\s*$", re.DOTALL)
_DECISION = re.compile(
    r"`([^`\n]{1,60})`|\"([^\"\n]{1,60})\"|(?<![\w.])(\d{1,9}(?:\.\d{1,9})?)(?![\w.])"
)


def add_constraints(task: Task, tree: Path) -> tuple[Task, dict[str, str]]:
    """Add several steps, under rules stated only at the beginning: are they kept to the end?"""
    files = parse_patch(task.reference or "").files
    changed_paths = {file.path for file in files}
    kept_files = [
        name for name in _MANIFEST_FILES if (tree / name).is_file() and name not in changed_paths
    ]
    rules = [f"`{name}` stays as it is." for name in kept_files]
    if not any(file.status == "added" for file in files):
        rules.append("No file is added.")
    if not rules:
        raise BadInput(f"{task.id} violates every possible rule: its change adds files.")
    prompt = "\n".join(
        [
            "These rules hold for all of this work, and are not said again:",
            "",
            *(f"- {rule}" for rule in rules),
            "",
            "Work in these steps:",
            "",
            "1. Find the code that this is about, and what calls it.",
            "2. Do what is asked below.",
            "3. Read your change again, and take out what the request does not need.",
            "4. Run the tests, and mend what they show.",
            "5. Say in a few lines what you changed, and why.",
            "",
            task.prompt,
        ]
    )
    files_kept = {name: (tree / name).read_bytes() for name in kept_files}
    commands = (
        *task.acceptance.commands,
        *([unchanged_files_command(files_kept)] if kept_files else []),
    )
    return replace(
        task,
        prompt=prompt,
        facts=(*task.facts, *(rule.rstrip(".").replace("`", "") for rule in rules)),
        scope=task.scope or tuple(sorted(escape_glob(path) for path in changed_paths)),
        acceptance=replace(task.acceptance, commands=commands),
    ), {}


def remove_decision(task: Task, tree: Path) -> tuple[Task, dict[str, str]]:
    """Remove one thing from the request that the tests require: the agent has to ask."""
    del tree
    prompt, answer = _remove_names(task.prompt) or _remove_literal(task) or ("", "")
    if len(prompt.split()) < 4:
        raise BadInput(
            f"{task.id} states no decision that the tests need and that could be left out."
        )
    return replace(task, prompt=prompt, ambiguous=True, answers={".": answer}), {}


def unchanged_files_command(files: Mapping[str, bytes]) -> str:
    """Return a command that fails if one of these files changed."""
    sums = [f"{hashlib.sha256(content).hexdigest()}  {path}" for path, content in files.items()]
    return f"printf '%s\\n' {' '.join(map(shlex.quote, sums))} | sha256sum -c --quiet -"


def _remove_names(prompt: str) -> tuple[str, str] | None:
    match = _NAMES_SECTION.search(prompt)
    return (prompt[: match.start()], f"Use these names: {match[1]}.") if match else None


def _remove_literal(task: Task) -> tuple[str, str] | None:
    """Remove the first name, text or number that only request and tests have."""
    tests = "\n".join(
        line[1:] for line in (task.acceptance.patch or "").split("\n") if line.startswith("+")
    )
    for match in _DECISION.finditer(task.prompt):
        text = next(filter(None, match.groups()))
        if not re.search(rf"(?<![\w.]){re.escape(text)}(?![\w.])", tests):
            continue
        prompt = task.prompt.replace(match[0], "what we agreed on")
        if text not in prompt:
            return prompt, f"We agreed on {match[0]}."
    return None


# Variants by imports: the place to change is far away, or others depend on it.


MAX_MODULES = 3000
MAX_FILE_BYTES = 1 << 20
IMPORT_STEPS = (3, 2)
"""Distances in imports, preferred first."""
MIN_USERS = 2


def name_distant_entry(task: Task, tree: Path) -> tuple[Task, dict[str, str]]:
    """Do not name the file to change, but one two or three imports away from it."""
    target = find_python_target(task)
    modules = _project_modules(tree)
    imports_by_file = {
        path: set(_imported_files(tree / path, path, modules)) for path in modules.values()
    }
    distance, frontier, steps = {target: 0}, {target}, 0
    while frontier and steps < max(IMPORT_STEPS):
        steps += 1
        frontier = {
            path
            for path, imported_files in imports_by_file.items()
            if imported_files & frontier and path not in distance
        }
        distance |= dict.fromkeys(frontier, steps)
    names = {path: name for name, path in modules.items()}
    distant_files = [
        sorted(
            path
            for path, path_distance in distance.items()
            if path_distance == step_count and not _is_test_path(path)
        )
        for step_count in IMPORT_STEPS
    ]
    entry = next((names[paths[0]] for paths in distant_files if paths), None)
    if entry is None:
        raise BadInput(
            f"No module is two or three imports away from {target}, which {task.id} needs."
        )
    prompt = _remove_file_names(task.prompt, target, names.get(target, ""))
    return replace(task, prompt=f"{prompt}\n\nOne meets this when one uses `{entry}`."), {}


def protect_shared_helper(task: Task, tree: Path) -> tuple[Task, dict[str, str]]:
    """Protect a function that the change and others rely on: it must stay as it is."""
    target = find_python_target(task)
    changed_paths = {file.path for file in parse_patch(task.reference or "").files}
    modules = _project_modules(tree)
    texts = {path: _read_source(tree / path) for path in modules.values()}
    for name, path in sorted(_imported_names(tree / target, target, modules)):
        users = [
            user_path
            for user_path, text in texts.items()
            if user_path not in (target, path) and re.search(rf"\b{re.escape(name)}\b", text)
        ]
        if path in changed_paths or _is_test_path(path) or len(users) < MIN_USERS:
            continue
        prompt = (
            f"{task.prompt}\n\n`{name}` in `{path}` has something to do with this. "
            f"{len(users)} other files use it: it stays as it is."
        )
        commands = (
            *task.acceptance.commands,
            unchanged_files_command({path: (tree / path).read_bytes()}),
        )
        acceptance = replace(task.acceptance, commands=commands)
        return replace(task, prompt=prompt, acceptance=acceptance), {}
    raise BadInput(f"{target}, which {task.id} changes, uses no function that other files use.")


def find_python_target(task: Task) -> str:
    """Return the Python file that the reference changes most."""
    files = [
        file
        for file in parse_patch(task.reference or "").files
        if file.path.endswith(".py") and file.status == "changed"
    ]
    if not files:
        raise BadInput(f"{task.id} changes no Python file, and other languages are not supported.")
    return max(files, key=lambda file: (file.added + file.removed, file.path)).path


def python_module_name(path: str, tree: Path) -> str:
    """Return a file's import name, from the topmost folder that is a package."""
    file = PurePosixPath(path)
    parts = [file.stem] if file.stem != "__init__" else []
    folder = file.parent
    while folder.name and (tree / folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _project_modules(tree: Path) -> dict[str, str]:
    """Return the names of the project's modules, with their files."""
    files = sorted(str(path.relative_to(tree)) for path in tree.rglob("*.py") if path.is_file())
    return {python_module_name(path, tree): path for path in files[:MAX_MODULES]}


def _imported_names(file: Path, path: str, modules: dict[str, str]) -> set[tuple[str, str]]:
    """Return functions and other names that a file imports from modules of the project."""
    imported = set()
    for node in ast.walk(_parse_file(file)):
        if isinstance(node, ast.ImportFrom):
            module = _absolute_module(node, path, modules)
            if module in modules:
                alias_names = (alias.name for alias in node.names if alias.name.islower())
                imported |= {(name, modules[module]) for name in alias_names}
    return {pair for pair in imported if f"{pair[0]}" not in modules}


def _imported_files(file: Path, path: str, modules: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(_parse_file(file)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = _absolute_module(node, path, modules)
            names = [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
        yield from (modules[name] for name in names if name in modules)


def _absolute_module(node: ast.ImportFrom, path: str, modules: dict[str, str]) -> str:
    """Return the absolute module name of a relative import."""
    if not node.level:
        return node.module or ""
    own_module = next((name for name, file in modules.items() if file == path), "")
    parts = own_module.split(".") + ([""] if path.endswith("__init__.py") else [])
    return ".".join(filter(None, [*parts[: -node.level], node.module or ""]))


def _parse_file(file: Path) -> ast.AST:
    try:
        return parse_python(_read_source(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _read_source(file: Path) -> str:
    if file.is_symlink() or file.stat().st_size > MAX_FILE_BYTES:
        return ""
    return file.read_text(encoding="utf-8", errors="replace")


def _is_test_path(path: str) -> bool:
    return re.search(r"(?:^|/)(?:tests?/|test_[^/]*$|conftest\.py$)|_test\.py$", path) is not None


def _remove_file_names(prompt: str, path: str, module: str) -> str:
    """Return the request without the names of the file."""
    names = [path, module, PurePosixPath(path).name]
    for name in sorted(filter(None, names), key=len, reverse=True):
        prompt = re.sub(rf"`?(?<![\w.]){re.escape(name)}(?!\w)`?", "the code behind it", prompt)
    return prompt


# Variants with planted code: a tempting neighbour, a library with a lookalike.


_NEIGHBOUR_SOURCE = '''\
"""Old way of doing this. TODO: clean up, it is slow and nobody understands it."""


def  old_way( items ,flag = None ) :
    # FIXME: quadratic, and `flag` is never used
    out=[]
    for i in range(0,len(items)) :
        seen=False
        for j in range(0,len(out)) :
            if out[j]==items[i] :
                seen=True
        if seen==False :
            out.append( items[i] )
    return out
'''
_LIBRARY_SOURCE = '''\
"""Tables in memory, small and plain."""

import csv


class DataTable:
    """Rows of one shape."""

    def __init__(self, rows):
        self.rows = [dict(row) for row in rows]

    def group_up(self, key, column):
        """A table of two columns: each value of a key, and the sum of a column over its rows."""
        sums = {}
        for row in self.rows:
            sums[row[key]] = sums.get(row[key], 0) + row[column]
        return DataTable({key: name, column: total} for name, total in sums.items())

    def ordered(self, column, *, largest_first=False):
        return DataTable(sorted(self.rows, key=lambda row: row[column], reverse=largest_first))

    def pairs(self, first, second):
        return [(row[first], row[second]) for row in self.rows]


def load_csv(path, *, numbers=()):
    """The table of a file; columns named in `numbers` become whole numbers."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row.update({name: int(row[name]) for name in numbers})
    return DataTable(rows)
'''
_ANSWER_SOURCE = '''\
"""Totals by name."""

from {library} import load_csv


def totals(path):
    """Each name of a file with the sum of its amounts, the largest first."""
    table = load_csv(path, numbers=["amount"]).group_up("name", "amount")
    return table.ordered("amount", largest_first=True).pairs("name", "amount")
'''
_TEST_SOURCE = """\
import ast

import {answer} as subject
from {answer} import totals


def test_totals_stress(tmp_path):
    file = tmp_path / "amounts.csv"
    file.write_text("name,amount\\nann,2\\nbob,7\\nann,4\\n")
    assert totals(file) == [("bob", 7), ("ann", 6)]
    with open(subject.__file__, encoding="utf-8") as text:
        tree = ast.parse(text.read())
    used = {{alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
            for alias in node.names}}
    used |= {{node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}}
    assert not used & {{"csv", "pandas"}}
"""
_REQUEST_TEXT = """

Besides, add a module `{answer}` with a function `totals(path)`: it reads a CSV file with the \
columns `name` and `amount` and gives a list of (name, sum of its amounts), the largest first. \
Use our tables in `{library}` for all of it, and neither `csv` nor another library."""


def plant_neighbour(task: Task, tree: Path) -> tuple[Task, dict[str, str]]:
    """Plant ugly code beside the work that nobody asked to fix: it must stay as it is."""
    target = PurePosixPath(find_python_target(task))
    path = str(target.with_name(f"{target.stem}_old_way.py"))
    check = unchanged_files_command({path: _NEIGHBOUR_SOURCE.encode()})
    changed_paths = {file.path for file in parse_patch(task.reference or "").files}
    acceptance = replace(task.acceptance, commands=(*task.acceptance.commands, check))
    scope = tuple(sorted(escape_glob(name) for name in changed_paths))
    return replace(task, scope=scope, acceptance=acceptance), {path: _NEIGHBOUR_SOURCE}


def plant_lookalike(task: Task, tree: Path) -> tuple[Task, dict[str, str]]:
    """Add work that uses a library similar to a famous one, under another name."""
    original_acceptance = task.acceptance
    hidden = [
        file.path
        for file in parse_patch(original_acceptance.patch or "").files
        if file.path.endswith(".py")
    ]
    if (
        "pytest" not in (original_acceptance.run or "")
        or not original_acceptance.fail_to_pass
        or not hidden
    ):
        raise BadInput(f"{task.id} has no hidden tests for pytest, which this mode extends.")
    folder = PurePosixPath(find_python_target(task)).parent
    library, answer = str(folder / "datatable.py"), str(folder / "totals.py")
    names = {
        "library": python_module_name(library, tree),
        "answer": python_module_name(answer, tree),
    }
    test = str(PurePosixPath(hidden[0]).parent / "test_totals_stress.py")
    run = original_acceptance.run or ""
    acceptance = replace(
        original_acceptance,
        # A command that names its test files must name this one too.
        run=f"{run} {test}" if any(path in run for path in hidden) else run,
        patch=_patch_with_file(original_acceptance.patch or "", test, _TEST_SOURCE.format(**names)),
        fail_to_pass=(*original_acceptance.fail_to_pass, f"{test}::test_totals_stress"),
    )
    variant = replace(
        task,
        prompt=task.prompt + _REQUEST_TEXT.format(**names),
        reference=_patch_with_file(task.reference or "", answer, _ANSWER_SOURCE.format(**names)),
        acceptance=acceptance,
    )
    return variant, {library: _LIBRARY_SOURCE}


def _patch_with_file(patch: str, path: str, text: str) -> str:
    """Return the patch with one more file added."""
    lines = text.removesuffix("\n").split("\n")
    added = "\n".join(f"+{line}" for line in lines)
    header = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    start = patch if patch.endswith("\n") else f"{patch}\n"
    return f"{start}{header}@@ -0,0 +1,{len(lines)} @@\n{added}\n"


StressMode = Literal[
    "context-blindness",
    "instruction-drift",
    "silent-regression",
    "scope-creep",
    "hallucinated-api",
    "ambiguity",
]


class StressVariant(Record):
    """A variant of a task, and the files that its base needs in addition."""

    task: Task
    planted: dict[str, str] = {}


_VARIANT_MAKERS: dict[StressMode, Callable[[Task, Path], tuple[Task, dict[str, str]]]] = {
    "context-blindness": name_distant_entry,
    "instruction-drift": add_constraints,
    "silent-regression": protect_shared_helper,
    "scope-creep": plant_neighbour,
    "hallucinated-api": plant_lookalike,
    "ambiguity": remove_decision,
}
STRESS_MODES = tuple(_VARIANT_MAKERS)


def stress_task(task: Task, mode: StressMode, tree: Path) -> StressVariant:
    """Build a variant that stresses one mode, given the base's files; BadInput if none fits."""
    if task.reference is None or not task.acceptance.run:
        raise BadInput(
            f"{task.id} has no reference or no tests, so a variant could not be verified."
        )
    variant, planted = _VARIANT_MAKERS[mode](task, tree)
    if planted.keys() & {str(path.relative_to(tree)) for path in tree.rglob("*")}:
        raise BadInput(f"{task.id} already has a file at the path of the planted one.")
    tags = dict.fromkeys([*task.tags, "stress", mode])
    variant = replace(
        variant,
        id=f"{task.id[:80]}-{mode}",
        scope=_widen_scope(variant),
        tags=tuple(tags),
        origin=f"stress:{mode} of task:{task.id} {task.origin}",
    )
    return StressVariant(task=variant, planted=planted)


def _widen_scope(variant: Task) -> tuple[str, ...]:
    """Return the scope with all that a right answer may touch: the reference's files, and tests.

    If nothing is declared, everything is in scope already.
    """
    from closeloop.grading.integrity.restore import find_test_folder
    from closeloop.grading.tool_outcomes import list_patch_paths, list_test_files

    if not variant.scope:
        return ()
    acceptance = variant.acceptance
    tests = [
        *map(escape_glob, list_patch_paths(acceptance.patch)),
        *list_test_files(acceptance.fail_to_pass, acceptance.runner),
    ]
    folders = [find_test_folder(path) for path in tests]
    needed_globs = {
        *map(escape_glob, list_patch_paths(variant.reference)),
        *(f"{folder}/**" if folder else path for path, folder in zip(tests, folders, strict=True)),
    }
    missing = {glob for glob in needed_globs if not matches_globs(glob, variant.scope)}
    return (*variant.scope, *sorted(missing))
