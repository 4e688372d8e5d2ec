"""How many made-up names of Python are found? Plausible ones, planted in real commits.

    python quality/planted_names.py [--plants N] [--tell] REPOSITORY …

Unlike the slips of `names.py`, these are what a model invents: the right object with a keyword,
method, name or module that it does not have. One is planted in each commit, in turn a keyword, a
member, an imported name and a module, and only where a reader of the repository could decide it:
the function is defined once, there or in the standard library, and takes no `**kwargs`; the member
is looked up on a standard module, on `self` or on a value of an own class. The same commits
without a plant must be silent.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib
import inspect
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import names as slips

from closeloop.changes.change_sides import ChangeQuery
from closeloop.changes.names.suspect_names import load_standard_library
from closeloop.records.change import Inspection
from closeloop.records.record import Record

KINDS = ("keyword", "member", "import", "module")
PLANTS = 15
"""A repository."""
_FORMS = {
    "keyword": ("default_{}", "{}_mode", "max_{}", "{}_name", "use_{}"),
    "member": ("{}_all", "get_{}", "{}_safe", "{}_or_none", "to_{}"),
    "import": ("{}_all", "get_{}", "{}_factory", "{}Base", "make_{}"),
    "module": ("{}_utils", "{}helpers", "{}_core", "fast{}"),
}


class Plant(Record):
    """A made-up name, and what was said of it: None where it was missed."""

    commit: str
    spot: slips.Spot
    made: str
    severity: str | None = None
    said: str | None = None


class Planting(Record):
    """What came out for one repository."""

    repository: str
    commits: int
    flagged: tuple[tuple[str, str, str], ...]
    """Commit, severity and message, of commits as they are."""
    plants: tuple[Plant, ...]


def plant_names(repository: Path, cache: Path, count: int) -> Planting:
    """Walk back through a repository until so many names are planted."""
    commits, flagged, plants = 0, [], list[Plant]()
    for commit in slips._commits(repository):
        if len(plants) == count:
            break
        with slips._opened(repository, cache, ChangeQuery(range=commit)) as inspection:
            chance = random.Random(commit)  # noqa: S311
            chosen = _choose(inspection, chance, len(plants)) if inspection else None
            if inspection is None or chosen is None:
                continue
            commits += 1
            flagged += [(commit, one.severity, one.message) for one in slips._found(inspection)]
        plants += _check_plant(repository, cache, commit, *chosen)
    return Planting(
        repository=slips._name(repository),
        commits=commits,
        flagged=tuple(flagged),
        plants=tuple(plants),
    )


def _choose(
    inspection: Inspection, chance: random.Random, number: int
) -> tuple[slips.Spot, str] | None:
    spots = list(_spots(inspection))
    for turn in range(len(KINDS)):
        kind = KINDS[(number + turn) % len(KINDS)]
        mine = [one for one in spots if one.kind == kind]
        for spot in chance.sample(mine, len(mine)):
            made = chance.choice(_FORMS[kind]).format(spot.text)
            if slips._is_new(made, spot, inspection):
                return spot, made
    return None


def _spots(inspection: Inspection) -> Iterator[slips.Spot]:
    """Names on added lines of Python that can be decided, each alone on its line."""
    for file in inspection.files:
        content = inspection.sides.read("after", file.path) or b""
        added = inspection.added.get(file.path, frozenset())
        if not file.path.endswith(".py") or slips.is_test_input(file.path) or not added:
            continue
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):
            continue
        lines = content.decode("utf-8", "replace").split("\n")
        for line, kind, text in _decidable(tree, inspection):
            alone = re.findall(rf"\b{re.escape(text)}\b", lines[line - 1])
            if line in added and len(text) >= slips.SHORTEST and len(alone) == 1:
                yield slips.Spot(
                    path=file.path,
                    line=line,
                    kind=kind,
                    text=text,
                    language="python",
                    decidable=True,
                )


def _decidable(tree: ast.Module, inspection: Inspection) -> Iterator[tuple[int, str, str]]:
    nodes = list(ast.walk(tree))
    optional = {
        inner
        for node in nodes
        if isinstance(node, ast.Try)
        for one in node.body
        for inner in ast.walk(one)
    }
    imports = (node for node in nodes if node not in optional)
    yield from (spot for node in imports for spot in _imported(node, inspection))
    modules = _standard_modules(nodes)
    receivers = {"self", *modules, *_own_instances(nodes, inspection)}
    foreign = set(_foreign_names(nodes, inspection))
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.value.id in receivers and node.end_lineno:
                yield node.end_lineno, "member", node.attr
        elif (
            isinstance(node, ast.Call)
            and not (isinstance(node.func, ast.Name) and node.func.id in foreign)
            and _takes_fixed_keywords(node.func, modules, inspection)
        ):
            yield from ((one.lineno, "keyword", one.arg) for one in node.keywords if one.arg)


def _imported(node: ast.AST, inspection: Inspection) -> Iterator[tuple[int, str, str]]:
    standard = load_standard_library("python")
    if isinstance(node, ast.Import):
        for one in node.names:
            if one.name in standard:
                yield node.lineno, "module", one.name.rpartition(".")[2]
    elif isinstance(node, ast.ImportFrom):
        own = node.level or _is_own_module(node.module or "", inspection)
        if own or node.module in standard:
            if node.module:
                yield node.lineno, "module", node.module.rpartition(".")[2]
            yield from ((one.lineno, "import", one.name) for one in node.names)


def _standard_modules(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """Standard modules, by the name that the file gives them."""
    standard = load_standard_library("python")
    return {
        one.asname or one.name: one.name
        for node in nodes
        if isinstance(node, ast.Import)
        for one in node.names
        if one.name in standard
    }


def _foreign_names(nodes: Sequence[ast.AST], inspection: Inspection) -> Iterator[str]:
    """Names that a file imports from packages: `setup` of setuptools is no own function."""
    for node in nodes:
        is_import = isinstance(node, ast.ImportFrom) and not node.level
        if is_import and not _is_own_module(node.module or "", inspection):
            yield from (one.asname or one.name for one in node.names)


def _own_instances(nodes: Sequence[ast.AST], inspection: Inspection) -> Iterator[str]:
    """Names that are given a value of an own class."""
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Name) and _has_one_type(called.id, inspection):
                yield from (one.id for one in node.targets if isinstance(one, ast.Name))


def _is_own_module(module: str, inspection: Inspection) -> bool:
    place = module.replace(".", "/")
    tree = inspection.sides.tree("after")
    ends = (".py", "/__init__.py")
    return any(f"{root}{place}{end}" in tree for root in ("", "src/") for end in ends)


def _has_one_type(name: str, inspection: Inspection) -> bool:
    found = [path for path, _ in inspection.index.defined(name) if path.endswith(".py")]
    module = inspection.index.module(found[0]) if len(found) == 1 else None
    return module is not None and any(one.name == name for one in module.types)


def _takes_fixed_keywords(
    called: ast.expr, modules: Mapping[str, str], inspection: Inspection
) -> bool:
    """Whether the one function, method or class that is called says what it takes."""
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        if called.value.id in modules:
            return _is_fixed_standard(modules[called.value.id], called.attr)
        name = called.attr if called.value.id == "self" else None
    else:
        name = called.id if isinstance(called, ast.Name) else None
    if name is None:
        return False
    if hasattr(builtins, name):
        return _is_fixed_standard("builtins", name)
    found = {path for path, _ in inspection.index.defined(name) if path.endswith(".py")}
    module = inspection.index.module(found.pop()) if len(found) == 1 else None
    functions = [
        one
        for one in (module.functions if module else ())
        if one.name == name or one.qualified == f"{name}.__init__"
    ]
    # A test that calls a fixture calls what the fixture returns.
    if any("fixture" in decorator for one in functions for decorator in one.decorators):
        return False
    return len(functions) == 1 and not any("**" in one for one in functions[0].parameters)


def _is_fixed_standard(module: str, name: str) -> bool:
    """As its documentation says of `subprocess`, though its source takes anything."""
    if module == "subprocess":
        return True
    try:
        signature = inspect.signature(getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError, TypeError, ValueError):
        return False
    return all(one.kind is not one.VAR_KEYWORD for one in signature.parameters.values())


def _check_plant(
    repository: Path, cache: Path, commit: str, spot: slips.Spot, made: str
) -> Iterator[Plant]:
    patch = slips._git(repository, "diff", "--binary", "--full-index", f"{commit}^1", commit)
    with tempfile.NamedTemporaryFile(suffix=".patch") as file:
        changed = slips._mutated(patch, spot, made)
        if changed is None:
            return
        file.write(changed)
        file.flush()
        wanted = ChangeQuery(patch=Path(file.name), base=f"{commit}^1")
        with slips._opened(repository, cache, wanted) as inspection:
            found = slips._found(inspection) if inspection else []
    here = [
        one for one in found if f"{spot.path}:{spot.line}" in one.places and made in one.message
    ]
    worst = min(here, key=lambda one: one.severity, default=None)
    yield Plant(
        commit=commit,
        spot=spot,
        made=made,
        severity=worst.severity if worst else None,
        said=worst.message if worst else None,
    )


def describe_results(results: Sequence[Planting]) -> str:
    """The table, by repository and by kind of name."""
    rows = [
        "| repository | clean commits flagged | found | as errors |",
        "| --- | --- | --- | --- |",
    ]
    for one in results:
        alarms = len({commit for commit, *_ in one.flagged})
        rows.append(f"| {one.repository} | {alarms} of {one.commits} | {_shares(one.plants)} |")
    every = [plant for one in results for plant in one.plants]
    alarms = sum(len({commit for commit, *_ in one.flagged}) for one in results)
    commits = sum(one.commits for one in results)
    rows.append(f"| all | {alarms} of {commits} | {_shares(every)} |")
    by_kind = {kind: [one for one in every if one.spot.kind == kind] for kind in KINDS}
    rows += [f"| {kind} | | {_shares(plants)} |" for kind, plants in by_kind.items()]
    return "\n".join(rows)


def _shares(plants: Sequence[Plant]) -> str:
    counts = Counter(one.severity for one in plants)
    return f"{len(plants) - counts[None]} of {len(plants)} | {counts['error']}"


def list_lapses(one: Planting) -> Iterator[str]:
    for commit, severity, message in one.flagged:
        yield f"ALARM {one.repository} {commit[:10]} {severity}: {message}"
    for plant in one.plants:
        if plant.severity != "error":
            where = f"{plant.spot.path}:{plant.spot.line} {plant.spot.kind}"
            names = f"{plant.spot.text} → {plant.made}"
            what = plant.severity or "MISSED"
            yield f"{what} {one.repository} {plant.commit[:10]} {where} {names} {plant.said or ''}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("repositories", type=Path, nargs="+")
    options.add_argument("--plants", type=int, default=PLANTS, help="a repository")
    options.add_argument("--tell", action="store_true", help="tell every miss and false alarm")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        results = [
            plant_names(one, Path(cache), given.plants)
            for one in slips.repositories(given.repositories)
        ]
    told = [line for one in results for line in list_lapses(one)] if given.tell else []
    sys.stdout.write("\n".join([*told, describe_results(results)]) + "\n")


if __name__ == "__main__":
    main()
