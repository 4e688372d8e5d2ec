"""Compile all tests as pytest would, once for all its processes, on every processor.

Each worker rewrites the assertions of every file by itself, for more than half of the time that
it takes to find the tests. What is written is what pytest writes, and it looks at it as at its own.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc_fp, get_cache_dir

TESTS = Path(__file__).parent


def compile_test(path: Path) -> None:
    compiled = get_cache_dir(path) / f"{path.stem}{PYC_TAIL}"
    compiled.parent.mkdir(exist_ok=True)
    source, code = _rewrite_test(path, None)  # type: ignore[arg-type]
    with compiled.with_suffix(f".{os.getpid()}").open("wb") as file:
        _write_pyc_fp(file, source, code)
    Path(file.name).replace(compiled)


if __name__ == "__main__":
    paths = [*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")]
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_test, paths, chunksize=8))
