"""Tiers 2 and 3 of a five-file change in 3,000 modules, beside what must be read and its peers.

python bench/changes.py make FOLDER         a repository out of the sources that Python comes with
python bench/changes.py parse FOLDER        reads and parses every module: the floor of the index
python bench/changes.py index FOLDER CACHE  reads every module into the index
python bench/changes.py check FOLDER CACHE  tiers 2 and 3 of the change in the working tree
python bench/changes.py peers FOLDER        griffe, grimp and tree-sitter on the same change
"""

from __future__ import annotations

import ast
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

MODULES, LARGEST, CHANGED, TIMES = 3000, 100_000, 5, 3
PACKAGE = "product"
GIT = ["git", "-c", "user.name=bench", "-c", "user.email=bench@example.org"]
ADDED = '''

def joined_{number}(parts, separator=", "):
    """All parts in one line."""
    kept = [str(part).strip() for part in parts if part is not None]
    if not kept:
        return ""
    return separator.join(kept)
'''


def make(folder: Path) -> None:
    """3,000 modules in packages of 50, every other one of tests; then a change to five."""
    folder.mkdir()
    warnings.simplefilter("ignore")
    for number, source in enumerate(_installed()):
        path = folder / _path(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        module = ".".join(_path(number // 2).with_suffix("").parts)
        path.write_bytes(f"import {module}\n".encode() + source)
    for package in (PACKAGE, f"{PACKAGE}/tests"):
        (folder / package / "__init__.py").touch()
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "All"]):
        subprocess.run([*GIT, *arguments], cwd=folder, check=True)
    for path in changed(folder):
        with path.open("a", encoding="utf-8") as file:
            file.write(ADDED.format(number=path.stem))


def _installed() -> Iterator[bytes]:
    """Different sources of a usual size, always in the same order."""
    seen: set[bytes] = set()
    for name in ("stdlib", "purelib"):
        for path in sorted(Path(sysconfig.get_path(name)).rglob("*.py")):
            content = path.read_bytes() if path.stat().st_size < LARGEST else b""
            # A `from __future__` must stay first.
            if b"\ndef " not in content or b"__future__" in content or content in seen:
                continue
            try:
                ast.parse(content)
            except (SyntaxError, ValueError):
                continue
            seen.add(content)
            yield content
            if len(seen) == MODULES:
                return


def _path(number: int) -> Path:
    part = number // 50
    return Path(PACKAGE, *(["tests"] if part % 2 else []), f"part{part}", f"m{number}.py")


def changed(folder: Path) -> list[Path]:
    return [folder / _path(number) for number in range(MODULES // 10, MODULES, MODULES // CHANGED)]


def parse(folder: Path) -> None:
    """Out of git, as the index has it from there."""
    import tree_sitter_python
    from tree_sitter import Language, Parser

    parser = Parser(Language(tree_sitter_python.language()))
    for content in _kept(folder):
        parser.parse(content)


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


def index(folder: Path, cache: Path) -> None:
    from closeloop.changes.index import open_index
    from closeloop.changes.sources import Wanted, open_sides
    from closeloop.model.settings import CheckSettings

    with (
        open_sides(folder, Wanted()) as sides,
        open_index(sides, cache, CheckSettings()) as opened,
    ):
        assert len(opened.paths()) >= MODULES


def check(folder: Path, cache: Path) -> None:
    from closeloop.changes.index import open_index
    from closeloop.changes.inspect import inspect
    from closeloop.changes.risk import assess
    from closeloop.changes.risk.fit import fit
    from closeloop.changes.risk.history import read_history
    from closeloop.changes.sources import Wanted, open_sides
    from closeloop.model.settings import CheckSettings
    from closeloop.plugins import every

    settings = CheckSettings()
    with open_sides(folder, Wanted()) as sides, open_index(sides, cache, settings) as opened:
        inspection = inspect(sides, opened, settings=settings)
        for one in every("checks"):
            one.check(inspection)
        history = read_history(sides.root, sides.base, cache)
        assess(inspection, history=history, model=fit(history).model)


def peers(folder: Path) -> None:
    """Breaks of the API by griffe, the import graph by grimp, both ends parsed by tree-sitter."""
    import griffe
    import grimp
    import tree_sitter_python
    from tree_sitter import Language, Parser

    parser = Parser(Language(tree_sitter_python.language()))
    for path in changed(folder):
        name = f"HEAD:{path.relative_to(folder)}"
        old = subprocess.run(["git", "show", name], cwd=folder, check=True, capture_output=True)
        new = path.read_bytes()
        modules = []
        for content in (old.stdout, new):
            parser.parse(content)
            modules.append(griffe.visit(path.stem, path, content.decode("utf-8", "replace")))
        list(griffe.find_breaking_changes(*modules))
    sys.path.insert(0, str(folder))
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    for path in changed(folder):
        graph.find_downstream_modules(".".join(path.relative_to(folder).with_suffix("").parts))


def measure(folder: Path, peer: str | None) -> Iterator[tuple[str, str, float, float]]:
    """What is measured, against what, the ratio and the aim."""
    product = folder / "product"
    make(product)
    own = [sys.executable, __file__]

    def index_anew() -> float:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        return _cpu([*own, "index", str(product), str(folder / "cache")])

    floor = min(_cpu([*own, "parse", str(product)]) for _ in range(TIMES))
    built = min(index_anew() for _ in range(TIMES))
    yield (
        f"index of {MODULES:,} modules, CPU",
        "reading and parsing them (git, tree-sitter)",
        built / floor,
        2,
    )
    command = [*own, "check", str(product), str(folder / "cache")]
    _cpu(command)
    used = min(_cpu(command) for _ in range(TIMES))
    yield "  tiers 2 and 3 of five files, warm, CPU", "a budget of 1 s", used, 1
    paths = [str(path) for path in changed(product)]
    ruff = [
        str(Path(sys.executable).with_name("ruff")),
        "check",
        "--isolated",
        "--no-cache",
        "--exit-zero",
    ]
    theirs = min(_cpu([*ruff, *paths]) for _ in range(TIMES))
    if peer and subprocess.run([peer, "-c", "import griffe, grimp"], check=False).returncode == 0:
        theirs += min(_cpu([peer, __file__, "peers", str(product)]) for _ in range(TIMES))
        yield "  the same", "ruff, griffe, grimp and tree-sitter on it", used / theirs, 1.5
    else:
        print("griffe and grimp are left out: they could not be installed")


def _cpu(argv: list[str]) -> float:
    """CPU seconds, with bytecode as where it is installed: there it is written once."""
    kept = {
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "closeloop-bench-bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, **kept})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    match sys.argv[1:]:
        case "make", folder:
            make(Path(folder))
        case "parse", folder:
            parse(Path(folder))
        case "index", folder, cache:
            index(Path(folder), Path(cache))
        case "check", folder, cache:
            check(Path(folder), Path(cache))
        case "peers", folder:
            peers(Path(folder))
        case _:
            sys.exit(__doc__)
