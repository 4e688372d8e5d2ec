"""`closeloop` as it is typed, in this process: a new one spends most of its time on imports."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from closeloop.cli import main


def typed(folder: Path, *arguments: str, **environ: str) -> CompletedProcess[str]:
    """How a command ends and what it prints, typed in a folder by somebody who has no keys."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in [name for name in os.environ if "API_KEY" in name]:
            patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
            main(arguments)
    assert isinstance(left.value.code, int)
    return CompletedProcess(arguments, left.value.code, *map(printed, (out, err)))


def printed(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
