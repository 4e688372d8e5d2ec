"""The published table of coverage: complete, within its limits, and made by this code."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    # Not by its name: hypothesis takes a module `coverage` for the one that measures lines.
    spec = importlib.util.spec_from_file_location("cover", ROOT / "quality" / "coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_published_bounds_hold_what_they_promise(coverage: ModuleType) -> None:
    page = coverage.PAGE.read_text(encoding="utf-8")
    for field in ("rate_here", "difference_here"):
        part = page.partition(f"**{coverage.TITLES[field]}**")[2].partition("**")[0]
        shares = re.findall(r"([\d.]+) %( ¹)? (?=\|)", part)
        assert len(shares) == 4 * len(coverage.TASKS) * len(coverage.REPEATS)
        for share, few in shares:
            assert 93 <= float(share) <= (100 if few else 99.5)


@pytest.mark.parametrize("place", [(0.5, 0.0, 5, 1), (0.95, 0.1, 10, 5), (0.5, 0.1, 20, 3)])
def test_a_cell_simulated_now_is_within_the_limits(
    coverage: ModuleType, place: tuple[float, float, int, int]
) -> None:
    cell = coverage.cell(*place, 400)
    assert 0.92 <= cell.rate_here <= 1
    assert 0.92 <= cell.difference_here <= 1
    assert 0.91 <= cell.rate_alike <= 1
    assert 0.91 <= cell.difference_alike <= 1


def test_help_does_not_load_the_mathematics() -> None:
    code = (
        "import sys; from closeloop.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'numpy', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_estimators_loads_nothing_heavy() -> None:
    names = ", ".join(
        f"closeloop.statistics.{path.stem}"
        for path in sorted((ROOT / "src/closeloop/statistics").glob("*.py"))
        if path.stem != "__init__"
    )
    code = f"import sys, {names}; assert not {{'numpy', 'scipy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
