"""Variants by what imports what: the place to change is far away, or others depend on it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from closeloop.python_trees import parse_python
from closeloop.records.errors import BadInput
from closeloop.records.task import Task
from closeloop.tasks.stress.prompt_variants import unchanged_files_command
from closeloop.text.patches import parse_patch

MAX_MODULES = 3000
MAX_FILE_BYTES = 1 << 20
IMPORT_STEPS = (3, 2)
"""So many imports away, the farther the better."""
MIN_USERS = 2


def name_distant_entry(task: Task, tree: Path) -> tuple[Task, dict[str, str]]:
    """The file to change is not named, and two or three imports from what is named."""
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
            for path, used in imports_by_file.items()
            if used & frontier and path not in distance
        }
        distance |= dict.fromkeys(frontier, steps)
    names = {path: name for name, path in modules.items()}
    distant_files = [
        sorted(
            path for path, away in distance.items() if away == wanted and not _is_test_path(path)
        )
        for wanted in IMPORT_STEPS
    ]
    entry = next((names[paths[0]] for paths in distant_files if paths), None)
    if entry is None:
        raise BadInput(
            f"Nothing is two or three imports away from {target}, which {task.id} needs."
        )
    prompt = _remove_file_names(task.prompt, target, names.get(target, ""))
    return replace(task, prompt=f"{prompt}\n\nOne meets this when one uses `{entry}`."), {}


def protect_shared_helper(task: Task, tree: Path) -> tuple[Task, dict[str, str]]:
    """A function that the change leans on, and others too: it must stay as it is."""
    target = find_python_target(task)
    touched = {file.path for file in parse_patch(task.reference or "").files}
    modules = _project_modules(tree)
    texts = {path: _read_source(tree / path) for path in modules.values()}
    for name, path in sorted(_imported_names(tree / target, target, modules)):
        users = [
            other
            for other, text in texts.items()
            if other not in (target, path) and re.search(rf"\b{re.escape(name)}\b", text)
        ]
        if path in touched or _is_test_path(path) or len(users) < MIN_USERS:
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
    raise BadInput(f"{target}, which {task.id} changes, uses no function that others use too.")


def find_python_target(task: Task) -> str:
    """The Python file that the reference changes most."""
    files = [
        file
        for file in parse_patch(task.reference or "").files
        if file.path.endswith(".py") and file.status == "changed"
    ]
    if not files:
        raise BadInput(f"{task.id} changes no Python file, and others cannot be looked into.")
    return max(files, key=lambda file: (file.added + file.removed, file.path)).path


def python_module_name(path: str, tree: Path) -> str:
    """What a file is imported as: from the topmost folder that is a package."""
    file = PurePosixPath(path)
    parts = [file.stem] if file.stem != "__init__" else []
    folder = file.parent
    while folder.name and (tree / folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _project_modules(tree: Path) -> dict[str, str]:
    """Names of the project's modules, and their files."""
    files = sorted(str(path.relative_to(tree)) for path in tree.rglob("*.py") if path.is_file())
    return {python_module_name(path, tree): path for path in files[:MAX_MODULES]}


def _imported_names(file: Path, path: str, modules: dict[str, str]) -> set[tuple[str, str]]:
    """Functions and the like that a file takes from modules of the project."""
    imported = set()
    for node in ast.walk(_parse_file(file)):
        if isinstance(node, ast.ImportFrom):
            module = _absolute_module(node, path, modules)
            if module in modules:
                taken = (alias.name for alias in node.names if alias.name.islower())
                imported |= {(name, modules[module]) for name in taken}
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
    """The module that is meant, where it is said from here on."""
    if not node.level:
        return node.module or ""
    own = next((name for name, file in modules.items() if file == path), "")
    parts = own.split(".") + ([""] if path.endswith("__init__.py") else [])
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
    """The request without the names of the file."""
    names = [path, module, PurePosixPath(path).name]
    for name in sorted(filter(None, names), key=len, reverse=True):
        prompt = re.sub(rf"`?(?<![\w.]){re.escape(name)}(?!\w)`?", "the code behind it", prompt)
    return prompt
