"""Run a probe in a clean room: read the tests, write the probe's files, collect its report."""

from __future__ import annotations

import io
import re
import shlex
import tarfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType

import anyio.to_thread

from closeloop.grading.integrity.probe import ROOMS, Probe, ProbeRequest, ProbeTest, Results
from closeloop.grading.integrity.restore import find_test_folder
from closeloop.grading.testing.runner_instrumentation import detect_runner
from closeloop.grading.testing.suite_run import MAX_REPORT_BYTES
from closeloop.grading.touched_paths import path_in_test_id
from closeloop.records.record import Record, content_digest
from closeloop.records.task import Acceptance, TestRunner
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox

SOURCE_LIMIT = 64 << 20
MAX_HELPER_BYTES = 4 << 20
PYTHON_SUFFIXES = ("py",)
SCRIPT_SUFFIXES = ("js", "mjs", "cjs", "jsx", "ts", "mts", "cts", "tsx")
WHOLE_LANGUAGE = {"go": ("*_test.go", "go.mod"), "cargo": ("*.rs", "Cargo.toml")}
"""Where a test's id does not name its file: what to look through."""
# The pipe's other end is ours: whatever a test does, what was written there stays written.
PIPED = """
mkfifo -- {pipe} && exec 3>&1 || exit 125
cat {pipe} >&3 & reader=$!
exec 4>{pipe}
(
{command}
) >{output} 2>&1 3>&- 4>&-
code=$?
exec 4>&-
( sleep 5; kill $reader ) >/dev/null 2>&1 3>&- & killer=$!
wait $reader; kill $killer 2>/dev/null
exit $code
"""


class ProbeRun(Record):
    """What a probe came to in one room."""

    tests: tuple[ProbeTest, ...] = ()
    """None: no probe could be made of these tests."""
    results: Results = {}
    exit_code: int | None = None
    stopped: str | None = None
    output: str = ""
    """The last of what it printed."""
    rooms: int = 1
    """How many rooms the whole probe takes."""


async def run_probe(
    cage: WorkspaceSandbox,
    acceptance: Acceptance,
    chosen: tuple[Sequence[str], Sequence[str]],
    test_folders: Iterable[str],
    token: str,
    room: int,
) -> ProbeRun:
    """Make one room's part of a probe of these tests (those that a pass hangs on, and others).

    Rooms beyond the first two are of further rounds, with new coins, for what a pass hangs on.
    """
    assert acceptance.run is not None
    fail_to_pass, others = chosen
    number, room = divmod(room, ROOMS)
    if number:
        token, others = content_digest(token, number)[:32], ()
    runner = detect_runner(acceptance.run) or acceptance.runner or _guess_runner(fail_to_pass)
    if runner is None or runner == "junit":
        return ProbeRun()
    # Everything random follows from the token: nothing in the workspace may show it.
    folder = f".closeloop-{content_digest('folder', token, str(room))[:32]}"
    files = {_file_of(test, runner) for test in (*fail_to_pass, *others)}
    sources = await _read_sources(cage, runner, files)
    beside = {*test_folders, *filter(None, map(find_test_folder, sources))}
    request = ProbeRequest(
        command=acceptance.run,
        runner=runner,
        fail_to_pass=tuple(fail_to_pass),
        others=tuple(others),
        sources=sources,
        helpers=await _read_helpers(cage, runner, beside, sources),
        folder=f"{cage.root}/{folder}",
        root=cage.root,
        pipe=f"{cage.root}/{folder}/pipe",
        token=token,
        room=room,
    )
    maker = _find_probe_maker(runner)
    probe = await anyio.to_thread.run_sync(maker.build_probe, request)
    if probe is None:
        return ProbeRun()
    await _write_files(cage, {**probe.files, f"{folder}/output": ""})
    ended = await cage.execute_command(
        _build_command_line(probe, request),
        seconds=2 * acceptance.timeout,
        env=probe.env,
        keep=MAX_REPORT_BYTES,
    )
    try:
        output = (await cage.read(f"{folder}/output", MAX_REPORT_BYTES)).decode(errors="replace")
    except OSError:
        output = ""
    return ProbeRun(
        tests=probe.tests,
        results=await anyio.to_thread.run_sync(maker.read_results, ended.output.content),
        exit_code=ended.exit_code,
        stopped=ended.stopped,
        output=output[-2_000:],
        rooms=probe.rooms,
    )


async def _read_sources(
    cage: WorkspaceSandbox, runner: TestRunner, files: Iterable[str]
) -> dict[str, str]:
    """The texts of the files that tests are in, as they stand in the clean room."""
    if runner in WHOLE_LANGUAGE:
        patterns = [f"-name {shlex.quote(name)}" for name in WHOLE_LANGUAGE[runner]]
    else:
        patterns = [f"-path {shlex.quote('*/' + _escape_glob(file))}" for file in sorted(files)]
    return await _read_texts(cage, patterns, SOURCE_LIMIT)


async def _read_helpers(
    cage: WorkspaceSandbox, runner: TestRunner, test_folders: Iterable[str], known: Collection[str]
) -> dict[str, str]:
    """The other modules in folders of tests; none where there is more than can be looked at."""
    if runner in WHOLE_LANGUAGE:
        return {}
    is_python = runner in ("pytest", "unittest")
    patterns = [
        f"-path {shlex.quote(f'./{_escape_glob(folder)}/*.{suffix}')}"
        for folder in sorted(test_folders)
        for suffix in (PYTHON_SUFFIXES if is_python else SCRIPT_SUFFIXES)
    ]
    patterns += ["-name conftest.py"] if is_python else []
    texts = await _read_texts(cage, patterns, MAX_HELPER_BYTES)
    return {path: text for path, text in texts.items() if path not in known}


async def _read_texts(
    cage: WorkspaceSandbox, patterns: Sequence[str], max_bytes: int
) -> dict[str, str]:
    """The texts of all files that one of these tests of `find` knows."""
    if not patterns:
        return {}
    skipped = " -o ".join(f"-name {name}" for name in (".git", "node_modules", "target", "vendor"))
    search = f"find . \\( {skipped} \\) -prune -o -type f \\( {' -o '.join(patterns)} \\) -print0"
    ended = await cage.execute_command(f"{search} | tar --null -T - -cf -", keep=max_bytes)
    return await anyio.to_thread.run_sync(_unpack_texts, ended.output.content)


def _unpack_texts(archive: bytes) -> dict[str, str]:
    texts: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isreg() else None
                if file is not None:
                    with suppress(UnicodeDecodeError):
                        texts[member.name.removeprefix("./")] = file.read().decode()
    except tarfile.TarError:
        return {}
    return texts


async def _write_files(cage: WorkspaceSandbox, files: Mapping[str, str]) -> None:
    """All at once, as an archive that is unpacked inside."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, text in files.items():
            content = text.encode("utf-8", "surrogateescape")
            about = tarfile.TarInfo(path)
            about.size, about.mode = len(content), 0o644
            tar.addfile(about, io.BytesIO(content))
    ran = await cage.run("tar --no-same-owner -xf -", stdin=packed.getvalue())
    if ran.exit_code != 0:
        raise OSError(f"A probe could not be written: {ran.output.strip()[-300:]}")


def _build_command_line(probe: Probe, request: ProbeRequest) -> str:
    return PIPED.format(
        pipe=shlex.quote(request.pipe),
        output=shlex.quote(f"{request.folder}/output"),
        command=probe.command,
    )


def _find_probe_maker(runner: TestRunner) -> ModuleType:
    """The module that makes probes for a runner; grammars are loaded with it."""
    from closeloop.grading.integrity import golang, javascript, python, rust

    return {"pytest": python, "unittest": python, "go": golang, "cargo": rust}.get(
        runner, javascript
    )


def _guess_runner(tests: Sequence[str]) -> TestRunner | None:
    """Whose ids these are, where the command hides its runner."""
    return "pytest" if any(".py::" in test for test in tests) else None


def _file_of(test: str, runner: TestRunner) -> str:
    if runner == "unittest":
        return "/".join(test.split(".")[:-2]) + ".py"
    return path_in_test_id(test)


def _escape_glob(file: str) -> str:
    return re.sub(r"([*?\[\\])", r"\\\1", file)
