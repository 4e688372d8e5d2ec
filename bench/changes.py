"""Tiers 2 and 3 of a five-file change, beside what must be read and beside peers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

from harness import Bench, NotMeasured, commit_all, own_cpu_seconds, time_command
from source_tree import SourceWriter
from table import Row, build_row

MODULES, CHANGED, PACKAGE_MODULES = 1000, 5, 50
PACKAGE = "product"
ADDED = '''

def joined_{number}(parts, separator=", "):
    """All parts in one line."""
    kept = [str(part).strip() for part in parts if part is not None]
    if not kept:
        return ""
    return separator.join(kept)
'''


def make_repository(folder: Path, modules: int) -> None:
    """Modules in packages of 50, every other one of tests; then a change to five."""
    writer = SourceWriter(seed=5)
    for number in range(modules):
        path = folder / _path(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        imported = ".".join(_path(number // 2).with_suffix("").parts)
        path.write_text(writer.write_module(imported, is_test="tests" in path.parts))
    for package in (PACKAGE, f"{PACKAGE}/tests"):
        (folder / package).mkdir(exist_ok=True)
        (folder / package / "__init__.py").touch()
    commit_all(folder)
    for path in changed_modules(folder, modules):
        with path.open("a", encoding="utf-8") as file:
            file.write(ADDED.format(number=path.stem))


def _path(number: int) -> Path:
    part = number // PACKAGE_MODULES
    return Path(PACKAGE, *(["tests"] if part % 2 else []), f"part{part}", f"m{number}.py")


def changed_modules(folder: Path, modules: int) -> list[Path]:
    return [folder / _path(number) for number in range(modules // 10, modules, modules // CHANGED)]


def parse(folder: str) -> float:
    """CPU seconds of reading every module out of git, where the index has it from, and parsing."""
    import tree_sitter_python
    from tree_sitter import Language, Parser

    parser = Parser(Language(tree_sitter_python.language()))
    began = own_cpu_seconds()
    for content in _kept(Path(folder)):
        parser.parse(content)
    return own_cpu_seconds() - began


def _kept(folder: Path) -> Iterator[bytes]:
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--format=%(objectname)", "HEAD"],
        cwd=folder,
        check=True,
        capture_output=True,
    ).stdout
    command = ["git", "cat-file", "--batch"]
    with subprocess.Popen(command, cwd=folder, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin
        assert process.stdout
        for blob in listed.split():
            process.stdin.write(blob + b"\n")
            process.stdin.flush()
            size = int(process.stdout.readline().split()[2])
            yield process.stdout.read(size + 1)[:-1]


def index(folder: str, cache: str) -> float:
    """CPU seconds of an index made anew."""
    from closeloop.changes.change_sides import ChangeQuery, open_sides
    from closeloop.changes.repository_index import open_index
    from closeloop.records.settings import CheckSettings

    shutil.rmtree(cache, ignore_errors=True)
    began = own_cpu_seconds()
    with (
        open_sides(Path(folder), ChangeQuery()) as sides,
        open_index(sides, Path(cache), CheckSettings()) as opened,
    ):
        assert opened.paths()
    return own_cpu_seconds() - began


def check(folder: str, cache: str) -> float:
    """CPU seconds of tiers 2 and 3 of the change in the working tree, from the start of Python."""
    from closeloop.changes.change_sides import ChangeQuery, open_sides
    from closeloop.changes.repository_index import inspect_change, open_index
    from closeloop.changes.risk import assess_risk
    from closeloop.changes.risk.change_history import read_history
    from closeloop.changes.risk.risk_model import fit_risk_model
    from closeloop.plugins import load_plugins
    from closeloop.records.settings import CheckSettings

    settings, kept = CheckSettings(), Path(cache)
    with (
        open_sides(Path(folder), ChangeQuery()) as sides,
        open_index(sides, kept, settings) as opened,
    ):
        inspection = inspect_change(sides, opened, settings=settings)
        for one in load_plugins("checks"):
            one.check(inspection)
        history = read_history(sides.root, sides.base, kept)
        assess_risk(inspection, history=history, model=fit_risk_model(history).model)
    return own_cpu_seconds()


def peers(place: str, modules: int) -> float:
    """CPU seconds of griffe for breaks of the API, grimp for imports, tree-sitter for both ends."""
    import griffe
    import grimp
    import tree_sitter_python
    from tree_sitter import Language, Parser

    folder = Path(place)
    parser = Parser(Language(tree_sitter_python.language()))
    for path in changed_modules(folder, modules):
        name = f"HEAD:{path.relative_to(folder)}"
        old = subprocess.run(["git", "show", name], cwd=folder, check=True, capture_output=True)
        new = path.read_bytes()
        sides = []
        for content in (old.stdout, new):
            parser.parse(content)
            sides.append(griffe.visit(path.stem, path, content.decode("utf-8", "replace")))
        list(griffe.find_breaking_changes(*sides))
    sys.path.insert(0, str(folder))
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    for path in changed_modules(folder, modules):
        graph.find_downstream_modules(".".join(path.relative_to(folder).with_suffix("").parts))
    return own_cpu_seconds()


def measure(bench: Bench) -> Iterator[Row]:
    modules = bench.size(MODULES, 20)
    place = bench.input("product", lambda folder: make_repository(folder, modules))
    product, cache = str(place), str(bench.folder / "index")
    megabytes = sum(path.stat().st_size for path in place.rglob("*.py")) / 1e6
    built = bench.repeat(
        lambda: {
            "parse": bench.call("changes", "parse", product),
            "index": bench.call("changes", "index", product, cache),
        }
    )
    yield build_row(
        f"index of {modules:,} modules, {megabytes:.1f} MB, CPU", built["index"], "s",
        floor=built["parse"], against="git and tree-sitter on them", aim=2,
    )  # fmt: skip
    ruff = [str(Path(sys.executable).with_name("ruff")), "check", "--isolated", "--no-cache"]
    paths = [str(path) for path in changed_modules(place, modules)]
    checked = bench.repeat(
        lambda: {
            "ours": bench.call("changes", "check", product, cache),
            "ruff": time_command(*ruff, "--exit-zero", *paths),
        }
    )
    name = f"tiers 2 and 3 of {CHANGED} files, warm, CPU"
    yield build_row(
        name, checked["ours"], "s", floor=checked["ruff"], against="ruff on them", budget=1
    )
    try:
        peer = bench.peer_python(".venv-peer", "griffe", "grimp", "tree_sitter_python")
    except NotMeasured as reason:
        yield Row(f"{name}, beside peers", note=f"not measured: {reason}")
        return
    others = bench.repeat(
        lambda: {"cpu": bench.call("changes", "peers", product, modules, python=peer)}
    )
    peer_cpu = [sum(pair) for pair in zip(checked["ruff"], others["cpu"], strict=True)]
    yield build_row(
        f"{name}, beside peers", checked["ours"], "s", floor=peer_cpu,
        against="ruff, griffe, grimp and tree-sitter", aim=1.5,
    )  # fmt: skip
