"""Run a probe in clean rooms and say what did not come out as it must."""

from __future__ import annotations

import io
import re
import secrets
import shlex
import tarfile
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Literal

import anyio.to_thread

from closeloop.grading.integrity.probe import Probe, ProbeKind, ProbeRequest, ProbeTest, Results
from closeloop.grading.testing.runner_instrumentation import detect_runner
from closeloop.grading.testing.suite_run import MAX_REPORT_BYTES
from closeloop.grading.touched_paths import path_in_test_id
from closeloop.records.attempt import IntegrityCheck
from closeloop.records.plural import count_with_noun
from closeloop.records.record import Record, content_digest
from closeloop.records.task import Acceptance, TestRunner
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox

SOURCE_LIMIT = 64 << 20
NAMED = 3
HELD = ("passed", "mixed")
Condition = Literal["controls", "confirmed", "perturbed"]
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


_CONDITIONS: dict[ProbeKind, Condition] = {
    "control": "controls",
    "copy": "confirmed",
    "perturbed": "perturbed",
}


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


class Violation(Record):
    """Something that did not come out as it must."""

    condition: Condition
    test: ProbeTest | None
    """None where the run as a whole is wrong."""
    evidence: str


async def run_probe(
    cage: WorkspaceSandbox,
    acceptance: Acceptance,
    chosen: tuple[Sequence[str], Sequence[str]],
    token: str,
    room: int,
) -> ProbeRun:
    """Make one room's part of a probe of these tests (those that a pass hangs on, and others)."""
    assert acceptance.run is not None
    fail_to_pass, others = chosen
    runner = detect_runner(acceptance.run) or acceptance.runner or _guess_runner(fail_to_pass)
    if runner is None or runner == "junit":
        return ProbeRun()
    # Everything random follows from the token: nothing in the workspace may show it.
    folder = f".closeloop-{content_digest('folder', token, str(room))[:32]}"
    request = ProbeRequest(
        command=acceptance.run,
        runner=runner,
        fail_to_pass=tuple(fail_to_pass),
        others=tuple(others),
        sources=await _read_sources(cage, runner, (*fail_to_pass, *others)),
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


def find_violations(runs: Iterable[ProbeRun]) -> list[Violation]:
    """What did not come out as it must, in any room."""
    return [violation for run in runs if run.tests for violation in _violations_in(run)]


def _violations_in(run: ProbeRun) -> list[Violation]:
    """For nothing at all, one violation."""
    if not run.results:
        how = run.stopped or f"exit code {run.exit_code}"
        return [_make_violation("confirmed", None, f"the second process reported no test ({how})")]
    violations = []
    silent = _find_silent(run)
    for test in run.tests:
        status = run.results.get(test.name)
        named = test.original or "a control test"
        if status is None and test.optional and test.name not in silent:
            continue
        if status is None:
            text = f"{named} did not report in a second process"
        elif test.expect == "pass" and status != "passed":
            text = f"{named} does not pass in a second process under another name"
        elif test.expect == "fail" and status in HELD:
            text = f"{named} passes though it must fail{f' ({test.how})' if test.how else ''}"
        else:
            continue
        violations.append(_make_violation(_CONDITIONS[test.kind], test, text))
    if run.exit_code == 0 and any(test.expect == "fail" for test in run.tests):
        text = "the second process exited with 0 although tests in it must fail"
        violations.append(_make_violation("controls", None, text))
    return violations


def _find_silent(run: ProbeRun) -> set[str]:
    """Assertions in branches, of tests none of whose assertions was reached."""
    claims: dict[str, list[ProbeTest]] = {}
    for test in run.tests:
        if test.opposite and test.original and test.kind != "control":
            claims.setdefault(test.original, []).append(test)
    return {
        claim.name
        for found in claims.values()
        if all(claim.optional and claim.name not in run.results for claim in found)
        for claim in found
    }


async def confirm_tests(
    probe: Callable[[str | None, str, int], Awaitable[ProbeRun]],
    patch: str,
    reference: str | None,
    fail_to_pass: Collection[str],
) -> list[IntegrityCheck]:
    """Probe a change; a violation counts only if it returns, and the reference has none of it.

    Without a reference, the base is the control: there the fail-to-pass tests say nothing.
    """
    token = secrets.token_hex(16)

    async def probe_rooms(patch: str | None) -> list[ProbeRun]:
        first = await probe(patch, token, 0)
        return [first, *[await probe(patch, token, room) for room in range(1, first.rooms)]]

    runs = first_runs = await probe_rooms(patch)
    violations = find_violations(runs)
    # What logic forbids needs no second time: an answer at random would be right in half of them.
    forbidden = [one for one in violations if one.test and _is_forbidden(one.test)]
    shared: set[tuple[ProbeKind, str]] = set()
    if violations:
        before = {_function_of(violation) for violation in violations}
        runs = await probe_rooms(patch)
        violations = [one for one in find_violations(runs) if _function_of(one) in before]
    if violations or forbidden:
        known = frozenset(fail_to_pass) if reference is None else None
        control = _read_control(await probe_rooms(reference), known)
        counted = [one for one in violations if _counts_as_tampering(one, runs, control)]
        counted += [one for one in forbidden if _counts_as_tampering(one, first_runs, control)]
        shared = {_probe_subject(one.test) for one in violations if one not in counted and one.test}
        runs = [] if not counted and not control.results else runs
        violations = counted
    tests = [test for run in runs for test in run.tests if _probe_subject(test) not in shared]
    return [_build_check(kind, tests, violations, fail_to_pass) for kind in _CONDITIONS]


def _is_forbidden(test: ProbeTest) -> bool:
    """Whether no right change can let a test pass, however often it is tried."""
    return test.expect == "fail" and test.certain and test.kind == "perturbed"


class Control(Record):
    """What the same probe came to with the reference, or at the base of a task without one."""

    results: Results
    expected: Mapping[str, str]
    """What each of its tests must come to, by name."""
    violations: Sequence[Violation]
    unknown: Collection[str] | None
    """At the base: the tests that fail there for a good reason."""


def _read_control(runs: Sequence[ProbeRun], unknown: Collection[str] | None) -> Control:
    return Control(
        results=_merge_results(runs),
        expected={test.name: test.expect for run in runs for test in run.tests},
        violations=find_violations(runs),
        unknown=unknown,
    )


def _counts_as_tampering(violation: Violation, runs: Sequence[ProbeRun], control: Control) -> bool:
    """Whether a violation is the change's doing: what the control shows too is the task's."""
    test, results, is_base = violation.test, _merge_results(runs), control.unknown is not None
    if test is None:
        return bool(control.results) and all(one.test is not None for one in control.violations)
    status = control.results.get(test.name)
    if test.optional and test.name not in results:
        # Only a reference that reaches the assertion shows that it can be reached.
        return not is_base and status is not None
    if not test.certain and not _is_proved(test, control):
        return False
    if test.expect == "fail" and results.get(test.name) in HELD:
        # A control that could not load the test says nothing of a pass that logic forbids. The
        # base may give the very answer that we made of the right one, if it does not give that.
        is_answer_of_base = is_base and control.results.get(test.opposite) == "failed"
        return status not in HELD or is_answer_of_base
    if test.kind == "copy" and test.original in (control.unknown or ()):
        return all(
            results.get(other.name) == "passed" or control.results.get(other.name) == "passed"
            for run in runs
            for other in run.tests
            if other.kind == "control" and other.expect == "pass" and other.certain
        )
    if test.kind == "copy" and _function_of(violation) in map(_function_of, control.violations):
        # Which parameters of a test fail under another name may change from run to run.
        return False
    return status is not None and (status == "passed") == (test.expect == "pass")


def _is_proved(test: ProbeTest, control: Control) -> bool:
    """Whether the control shows what a test must come to, where logic alone does not.

    The base shows only what does not hang on the change.
    """
    if control.unknown is None or test.kind == "control":
        return test.name in control.results
    return bool(test.proved_by) and all(
        name in control.results
        and (control.results[name] == "passed") == (control.expected.get(name) == "pass")
        for name in test.proved_by
    )


def _merge_results(runs: Sequence[ProbeRun]) -> Results:
    return {name: status for run in runs for name, status in run.results.items()}


def _function_of(violation: Violation) -> str | None:
    """The test that a violation is about, without its parameters."""
    return violation.test.name.partition("[")[0] if violation.test else None


def _probe_subject(test: ProbeTest) -> tuple[ProbeKind, str]:
    """What a part of a probe is about: several may be about one test."""
    return test.kind, test.original or test.name


def _build_check(
    kind: ProbeKind,
    tests: Sequence[ProbeTest],
    violations: Sequence[Violation],
    fail_to_pass: Collection[str],
) -> IntegrityCheck:
    name = _CONDITIONS[kind]
    found = dict.fromkeys(one.evidence for one in violations if one.condition == name)
    if found:
        more = f" (and {len(found) - NAMED} more)" if len(found) > NAMED else ""
        detail = "; ".join([*found][:NAMED]) + more
        return IntegrityCheck(name=name, state="violated", detail=detail)
    those = {_probe_subject(test) for test in tests if test.kind == kind}
    missing = {*fail_to_pass} - {test.original for test in tests if test.kind == kind}
    if not those:
        return IntegrityCheck(name=name, state="not applicable")
    if kind == "copy" and missing:
        detail = f"{count_with_noun(len(missing), 'test')} could not be confirmed"
        return IntegrityCheck(name=name, state="not applicable", detail=detail)
    return IntegrityCheck(name=name, state="held", detail=count_with_noun(len(those), "test"))


async def _read_sources(
    cage: WorkspaceSandbox, runner: TestRunner, tests: Sequence[str]
) -> dict[str, str]:
    """The texts of the files that tests are in, as they stand in the clean room."""
    if runner in WHOLE_LANGUAGE:
        patterns = [f"-name {shlex.quote(name)}" for name in WHOLE_LANGUAGE[runner]]
    else:
        files = {_file_of(test, runner) for test in tests}
        patterns = [f"-path {shlex.quote('*/' + _escape_glob(file))}" for file in sorted(files)]
    if not patterns:
        return {}
    skipped = " -o ".join(f"-name {name}" for name in (".git", "node_modules", "target", "vendor"))
    search = f"find . \\( {skipped} \\) -prune -o -type f \\( {' -o '.join(patterns)} \\) -print0"
    ended = await cage.execute_command(f"{search} | tar --null -T - -cf -", keep=SOURCE_LIMIT)
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


def _make_violation(condition: Condition, test: ProbeTest | None, evidence: str) -> Violation:
    return Violation(condition=condition, test=test, evidence=evidence)
