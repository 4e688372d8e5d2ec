"""Run probes, find unexpected results, and decide whether the change caused them."""

from __future__ import annotations

import functools
import io
import random
import re
import secrets
import shlex
import tarfile
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Literal

import anyio.to_thread
import msgspec

from closeloop.grading.integrity.probe import (
    ROOMS,
    Probe,
    ProbeKind,
    ProbeRequest,
    ProbeTest,
    Results,
)
from closeloop.grading.integrity.restore import SHADOWS, Steering, find_test_folder
from closeloop.grading.suite_run import MAX_REPORT_BYTES, detect_runner, tests_to_fix
from closeloop.grading.tool_outcomes import path_in_test_id
from closeloop.records.attempt import IntegrityCheck, Outcome, TestResult, TestRun
from closeloop.records.record import Record, content_digest
from closeloop.records.task import Acceptance, TestRunner
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox
from closeloop.text.wording import count_with_noun

# Run a probe in a clean room: read the tests, write the probe's files, collect its report.


SOURCE_LIMIT = 64 << 20
MAX_HELPER_BYTES = 4 << 20
PYTHON_SUFFIXES = ("py",)
SCRIPT_SUFFIXES = ("js", "mjs", "cjs", "jsx", "ts", "mts", "cts", "tsx")
WHOLE_LANGUAGE = {"go": ("*_test.go", "go.mod"), "cargo": ("*.rs", "Cargo.toml")}
"""Files to read for languages whose test ids do not name their file."""
# We hold the reading end of the pipe: whatever a test does, it cannot retract what was written.
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
    """The results of a probe in one room."""

    tests: tuple[ProbeTest, ...] = ()
    """Empty if no probe can be built for these tests."""
    results: Results = {}
    exit_code: int | None = None
    stopped: str | None = None
    rooms: int = 1
    """Number of rooms that the whole probe takes."""


async def run_probe(
    sandbox: WorkspaceSandbox,
    acceptance: Acceptance,
    chosen_tests: tuple[Sequence[str], Sequence[str]],
    test_folders: Iterable[str],
    token: str,
    room: int,
) -> ProbeRun:
    """Build and run one room of a probe of the chosen tests: required ones and others.

    Two rooms are a round. Further rounds have new random choices, for the required tests only. For
    compiled tests, all rounds are for the required tests, and a room with all copies comes first.
    """
    assert acceptance.run is not None
    fail_to_pass, other_tests = chosen_tests
    runner = detect_runner(acceptance.run) or acceptance.runner or _guess_runner(fail_to_pass)
    if runner is None or runner == "junit":
        return ProbeRun()
    first_rooms, number = 1 if runner in WHOLE_LANGUAGE else 0, 0
    if room >= first_rooms:
        number, in_round = divmod(room - first_rooms, ROOMS)
        room = first_rooms + in_round
        other_tests = () if number or first_rooms else other_tests
        token = content_digest(token, number)[:32] if number else token
    # Everything random derives from the token: nothing in the workspace may reveal it.
    folder = f".closeloop-{content_digest('folder', token, str(room))[:32]}"
    files = {_file_of(test, runner) for test in (*fail_to_pass, *other_tests)}
    sources, helpers = await _read_tests(sandbox, runner, files, test_folders)
    request = ProbeRequest(
        command=acceptance.run,
        runner=runner,
        fail_to_pass=tuple(fail_to_pass),
        others=tuple(other_tests),
        sources=sources,
        helpers=helpers,
        folder=f"{sandbox.root}/{folder}",
        root=sandbox.root,
        pipe=f"{sandbox.root}/{folder}/pipe",
        token=token,
        room=room,
        round=number,
    )
    maker = _find_probe_maker(runner)
    probe = await anyio.to_thread.run_sync(maker.build_probe, request)
    if probe is None:
        return ProbeRun()
    await _write_files(sandbox, {**probe.files, f"{folder}/output": ""})
    result = await sandbox.execute_command(
        _build_command_line(probe, request),
        seconds=2 * acceptance.timeout,
        env=probe.env,
        keep=MAX_REPORT_BYTES,
    )
    return ProbeRun(
        tests=probe.tests,
        results=await anyio.to_thread.run_sync(maker.read_results, result.output.content),
        exit_code=result.exit_code,
        stopped=result.stopped,
        rooms=probe.rooms,
    )


async def _read_tests(
    sandbox: WorkspaceSandbox,
    runner: TestRunner,
    files: Collection[str],
    test_folders: Iterable[str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Read the files that hold the tests, and the other modules in test folders.

    Texts are as in the clean room. Other modules are left out if they exceed `MAX_HELPER_BYTES`.
    """
    if runner in WHOLE_LANGUAGE:
        names = [f"-name {shlex.quote(name)}" for name in WHOLE_LANGUAGE[runner]]
        return await _read_texts(sandbox, names, SOURCE_LIMIT), {}
    file_patterns = [f"-path {shlex.quote('*/' + _escape_glob(file))}" for file in sorted(files)]
    folders = {*test_folders, *filter(None, map(find_test_folder, files))}
    texts = await _read_texts(
        sandbox, [*file_patterns, *_match_helpers(runner, folders)], SOURCE_LIMIT
    )
    if not texts:
        return await _read_texts(sandbox, file_patterns, SOURCE_LIMIT), {}
    sources = {path: text for path, text in texts.items() if _ends_with_any(path, files)}
    if other_folders := {*filter(None, map(find_test_folder, sources))} - folders:
        texts |= await _read_texts(sandbox, _match_helpers(runner, other_folders), MAX_HELPER_BYTES)
    helpers = {path: text for path, text in texts.items() if path not in sources}
    return sources, helpers if sum(map(len, helpers.values())) < MAX_HELPER_BYTES else {}


def _match_helpers(runner: TestRunner, folders: Iterable[str]) -> list[str]:
    """Return `find` expressions that match the modules in some folders."""
    is_python = runner in ("pytest", "unittest")
    patterns = [
        f"-path {shlex.quote(f'./{_escape_glob(folder)}/*.{suffix}')}"
        for folder in sorted(folders)
        for suffix in (PYTHON_SUFFIXES if is_python else SCRIPT_SUFFIXES)
    ]
    return [*patterns, *(["-name conftest.py"] if is_python else [])]


def _ends_with_any(path: str, files: Collection[str]) -> bool:
    """Return whether a path equals one of these files, or ends with one below some folder."""
    parts = path.split("/")
    return any("/".join(parts[start:]) in files for start in range(len(parts)))


async def _read_texts(
    sandbox: WorkspaceSandbox, patterns: Sequence[str], max_bytes: int
) -> dict[str, str]:
    """Read all files that match one of these `find` expressions."""
    if not patterns:
        return {}
    skipped = " -o ".join(f"-name {name}" for name in (".git", "node_modules", "target", "vendor"))
    search = f"find . \\( {skipped} \\) -prune -o -type f \\( {' -o '.join(patterns)} \\) -print0"
    result = await sandbox.execute_command(f"{search} | tar --null -T - -cf -", keep=max_bytes)
    return await anyio.to_thread.run_sync(_unpack_texts, result.output.content)


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


async def _write_files(sandbox: WorkspaceSandbox, files: Mapping[str, str]) -> None:
    """Write all files at once, as an archive that is unpacked inside the sandbox."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, text in files.items():
            content = text.encode("utf-8", "surrogateescape")
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
    result = await sandbox.run("tar --no-same-owner -xf -", stdin=packed.getvalue())
    if result.exit_code != 0:
        raise OSError(f"A probe could not be written: {result.output.strip()[-300:]}")


def _build_command_line(probe: Probe, request: ProbeRequest) -> str:
    return PIPED.format(
        pipe=shlex.quote(request.pipe),
        output=shlex.quote(f"{request.folder}/output"),
        command=probe.command,
    )


def _find_probe_maker(runner: TestRunner) -> ModuleType:
    """Return the module that builds probes for a runner; imported late, as it loads grammars."""
    from closeloop.grading.integrity import golang, javascript, python, rust

    return {"pytest": python, "unittest": python, "go": golang, "cargo": rust}.get(
        runner, javascript
    )


def _guess_runner(tests: Sequence[str]) -> TestRunner | None:
    """Guess the runner from test ids, for a command that hides it."""
    return "pytest" if any(".py::" in test for test in tests) else None


def _file_of(test: str, runner: TestRunner) -> str:
    if runner == "unittest":
        return "/".join(test.split(".")[:-2]) + ".py"
    return path_in_test_id(test)


def _escape_glob(file: str) -> str:
    return re.sub(r"([*?\[\\])", r"\\\1", file)


# Decide from test runs and probes whether a pass is trusted; nothing is run here.


RULE = "tampered-result"
MAX_SECONDS = 20.0
"""Maximum total duration in seconds of the tests confirmed beside the fail-to-pass ones."""
MAX_TESTS = 400
MAX_BELIEVED_NAMES = 5


ChosenTests = tuple[Sequence[str], Sequence[str]]
"""The tests that decide a pass, and others."""


def choose_tests(acceptance: Acceptance, before: TestRun, after: TestRun | None) -> ChosenTests:
    """Return the tests that decide a pass, and as many other passed tests as run again quickly.

    Before a run with the change, the tests to fix decide, and the others are those of the base.
    """
    is_run, after = after is not None, after or before
    passed = {test.id: test for test in after.tests if test.status == "passed"}
    fixed = [name for name in tests_to_fix(acceptance, before) if name in passed or not is_run]
    if not fixed:
        earlier = {test.id for test in before.tests if test.status == "passed"}
        fixed = [name for name in passed if name not in earlier]
    unsteady = {*before.flaky, *after.flaky}
    fixed = [name for name in fixed if name not in unsteady]
    fixed_paths = {path_in_test_id(name) for name in fixed}
    other_tests = [test for test in passed.values() if test.id not in {*fixed, *unsteady}]
    random.SystemRandom().shuffle(other_tests)
    other_tests.sort(key=lambda test: path_in_test_id(test.id) not in fixed_paths)
    return fixed, list(_choose_affordable(other_tests))


def checks_without_running(
    steering: Steering, reasons: Mapping[str, str], before: TestRun, after: TestRun
) -> Iterator[IntegrityCheck]:
    """Yield the integrity checks that need no second process."""
    if not steering.checked:
        return
    shadows = {path: reason for path, reason in reasons.items() if reason.startswith(SHADOWS)}
    restored = {path: reason for path, reason in reasons.items() if path not in shadows}
    yield IntegrityCheck(name="restored", state="held", detail=_list_reasons(restored))
    yield IntegrityCheck(name="unshadowed", state="held", detail=_list_reasons(shadows))
    if after.tests:
        forged = more_passes_than_printed(before, after)
        yield IntegrityCheck(
            name="agreement", state="violated" if forged else "held", detail=forged or ""
        )


def more_passes_than_printed(before: TestRun, after: TestRun) -> str | None:
    """Return how a report claims more passes than its runner printed; None if it does not."""
    if before.printed_passes is None:
        return None
    reported = sum(test.status == "passed" for test in after.tests)
    if after.printed_passes is None and not (after.commands and after.commands[0].exit_code):
        return "the runner ended before it printed its summary"
    if after.printed_passes is not None and reported > after.printed_passes:
        return f"the report has {reported} passes, the runner printed {after.printed_passes}"
    return None


def doubt_pass(outcome: Outcome, checks: Sequence[IntegrityCheck]) -> Outcome:
    """Turn a pass with a violated check into a fail."""
    violated = [check for check in checks if check.state == "violated"]
    if outcome.result != "pass" or not violated:
        return outcome
    return Outcome(result="fail", reasons=tuple(f"{RULE}: {check.detail}" for check in violated))


def find_killed_probe(
    fixed: Sequence[str], before: TestRun, probes: Sequence[ProbeRun]
) -> str | None:
    """Return a message if the last probe lacks results and the base cannot load the tests.

    Used only for a task without a reference: with one, the reference shows whose fault that is.
    """
    loaded = {test.id for test in before.tests if test.status in ("passed", "failed")}
    if not probes or not loaded.isdisjoint(fixed):
        return None
    last = probes[-1]
    missing = [test for test in last.tests if not test.optional and test.name not in last.results]
    if not missing:
        return None
    exit_status = last.stopped or f"exit code {last.exit_code}"
    return (
        f"{len(missing)} of {len(last.tests)} tests did not report in a second process "
        f"({exit_status}), and the base cannot load them: give the task a reference, "
        "to show whose fault that is."
    )


def evidence_of(
    outcome: Outcome, after: TestRun, checks: Sequence[IntegrityCheck], *, is_confined: bool
) -> str | None:
    """Return how well a pass is proven.

    Without a sandbox, code may have altered the second process.
    """
    if outcome.result != "pass":
        return None
    if not after.commands:
        return "by answer"
    held_checks = {check.name for check in checks if check.state == "held"}
    if is_confined and held_checks >= {"confirmed", "perturbed"}:
        return "confirmed"
    return "reported" if after.tests else "weak"


def _choose_affordable(tests: Sequence[TestResult]) -> Iterator[str]:
    seconds = 0.0
    for test in tests[:MAX_TESTS]:
        seconds += test.seconds or 0.0
        if seconds > MAX_SECONDS:
            return
        yield test.id


def _list_reasons(reasons: dict[str, str]) -> str:
    lines = [f"{path} ({reason})" for path, reason in reasons.items()]
    suffix = (
        f" and {len(lines) - MAX_BELIEVED_NAMES} more" if len(lines) > MAX_BELIEVED_NAMES else ""
    )
    return ", ".join(lines[:MAX_BELIEVED_NAMES]) + suffix


NAMED = 3
ACCEPTED_RESULTS = ("passed", "mixed")
MIN_ASSERTIONS = (3, 5)
"""Minimum assertions per test, ours included; each one not reached adds a round of probes."""
MANY = 1_000
Condition = Literal["controls", "confirmed", "perturbed"]
_CONDITIONS: dict[ProbeKind, Condition] = {
    "control": "controls",
    "copy": "confirmed",
    "perturbed": "perturbed",
}


class Violation(Record):
    """An unexpected result of a probe."""

    condition: Condition
    test: ProbeTest | None
    """None if the run as a whole is wrong."""
    evidence: str


SplitViolations = tuple[Sequence[Violation], Sequence[Violation]]
"""The violations that the change caused, and those that it did not."""


def find_violations(runs: Iterable[ProbeRun]) -> list[Violation]:
    """Return the unexpected results of all rooms."""
    return [violation for run in runs if run.tests for violation in _violations_in(run)]


def _violations_in(run: ProbeRun) -> list[Violation]:
    """Return the violations of one run; a run without any result is a single violation."""
    if not run.results:
        exit_status = run.stopped or f"exit code {run.exit_code}"
        return [
            _make_violation(
                "confirmed", None, f"the second process reported no test ({exit_status})"
            )
        ]
    violations = []
    silent = _find_silent(run)
    for test in run.tests:
        status = run.results.get(test.name)
        test_name = test.original or "a control test"
        if status is None and test.optional and test.name not in silent:
            continue
        if status is None:
            text = f"{test_name} did not report in a second process"
        elif test.kind == "control" and test.how and test.expect == "pass" and status != "passed":
            text = test.how
        elif test.expect == "pass" and status != "passed":
            text = f"{test_name} does not pass in a second process under another name"
        elif test.expect == "fail" and status in ACCEPTED_RESULTS:
            text = f"{test_name} passes though it must fail{f' ({test.how})' if test.how else ''}"
        else:
            continue
        violations.append(_make_violation(_CONDITIONS[test.kind], test, text))
    if run.exit_code == 0 and any(test.expect == "fail" for test in run.tests):
        text = "the second process exited with 0 although tests in it must fail"
        violations.append(_make_violation("controls", None, text))
    return violations


def _find_silent(run: ProbeRun) -> set[str]:
    """Return assertions in branches, of tests none of whose assertions was reached."""
    claims: dict[str, list[ProbeTest]] = {}
    for test in run.tests:
        if test.opposite and test.original and test.kind != "control":
            claims.setdefault(test.original, []).append(test)
    return {
        claim.name
        for test_claims in claims.values()
        if all(claim.optional and claim.name not in run.results for claim in test_claims)
        for claim in test_claims
    }


ProbeTests = Callable[[str | None, str, int], Awaitable[ProbeRun]]
"""Function that probes a change, given its patch, a token and a room number."""


class ControlProbe:
    """The probe rooms of the control (reference or base), run on demand."""

    def __init__(
        self, probe: ProbeTests, token: str, reference: str | None, fail_to_pass: Collection[str]
    ) -> None:
        self._probe = functools.partial(probe, reference, token)
        self._unknown = frozenset(fail_to_pass) if reference is None else None
        self.runs: dict[int, ProbeRun] = {}

    async def read_rooms(self, rooms: Iterable[int]) -> Control:
        for room in rooms:
            if room not in self.runs:
                self.runs[room] = await self._probe(room)
        return _read_control(list(self.runs.values()), self._unknown)

    async def find_forbidden(
        self, runs: Sequence[ProbeRun], rooms: Iterable[int]
    ) -> SplitViolations | None:
        """Return the weighed violations if the change caused one that logic forbids; else None."""
        violations = find_violations(runs)
        if not any(_is_forbidden(violation.test) for violation in violations):
            return None
        split_violations = _split_by_control(violations, runs, await self.read_rooms(rooms))
        return (
            split_violations
            if any(_is_forbidden(violation.test) for violation in split_violations[0])
            else None
        )


def shows_failure(run: ProbeRun, fail_to_pass: Collection[str]) -> bool:
    """Return whether a test does not pass in a room, though it should under any name."""
    return any(
        violation.test is None or violation.test.certain or violation.test.original in fail_to_pass
        for violation in find_violations([run])
        if violation.condition == "confirmed"
    )


async def confirm_tests(
    probe: ProbeTests,
    patch: str,
    reference: str | None,
    fail_to_pass: Collection[str],
    token: str | None = None,
) -> list[IntegrityCheck]:
    """Probe a change and return the integrity checks.

    A violation counts only if it recurs and the reference does not show it. One that logic forbids
    need not recur, as random answers are right half of the time: it is enough that the control
    shows none in the same room, and no further room is probed. Without a reference, the base is the
    control; there the fail-to-pass tests say nothing.
    """
    token = token or secrets.token_hex(16)
    first_run = await probe(patch, token, 0)
    rooms = range(first_run.rooms + ROOMS * _count_more_rounds(first_run, fail_to_pass))
    control = ControlProbe(probe, token, reference, fail_to_pass)

    def build_checks(
        runs: Sequence[ProbeRun], split_violations: SplitViolations
    ) -> list[IntegrityCheck]:
        return _build_checks(runs, split_violations, reference, fail_to_pass)

    if unread := await _find_unread(probe, first_run, reference, fail_to_pass, token):
        return build_checks([first_run], (unread, ()))
    runs: list[ProbeRun] = []
    for room in rooms:
        runs.append(await probe(patch, token, room) if room else first_run)
        if forbidden := await control.find_forbidden(runs[-1:], [room]):
            return build_checks(runs, forbidden)
    first_violations = find_violations(runs)
    if not first_violations:
        return build_checks(runs, ((), ()))
    if forbidden := await control.find_forbidden(runs, rooms):
        return build_checks(runs, forbidden)
    violated_functions = {_function_of(violation) for violation in first_violations}
    suspect_rooms = [room for room in rooms if find_violations(runs[room : room + 1])]
    for room in suspect_rooms:
        again = await probe(patch, token, room)
        runs[room] = msgspec.structs.replace(again, results=_without_unsteady(runs[room], again))
    violations = [
        violation
        for violation in find_violations(runs)
        if _function_of(violation) in violated_functions or _is_forbidden(violation.test)
    ]
    if not control.runs and not violations:
        return build_checks(runs, ((), ()))
    first_of_rounds = first_run.rooms % ROOMS
    opposite_rooms = [first_of_rounds + ((room - first_of_rounds) ^ 1) for room in suspect_rooms]
    results = await control.read_rooms(sorted({*suspect_rooms, *opposite_rooms} & {*rooms}))
    split_violations = _split_by_control(violations, runs, results)
    return build_checks(runs if split_violations[0] or results.results else (), split_violations)


async def _find_unread(
    probe: ProbeTests,
    first_run: ProbeRun,
    reference: str | None,
    fail_to_pass: Collection[str],
    token: str,
) -> list[Violation]:
    """Return a violation for each test that can be probed without the change, but not with it."""
    missing = {*fail_to_pass} - {test.original for test in first_run.tests}
    if not missing:
        return []
    control = await probe(reference, token, 0)
    control_tests = {test.original for test in control.tests}
    text = "{} cannot be found for a second process with the change, and can without it"
    return [
        _make_violation("confirmed", None, text.format(name))
        for name in sorted(missing & control_tests)
    ]


def _count_more_rounds(first: ProbeRun, fail_to_pass: Collection[str]) -> int:
    """Return how many more rounds to probe: few random choices could be guessed.

    For compiled tests a room makes one choice per test, otherwise one per assertion. A test in
    which all that is made wrong shows needs a second round, where it does not.
    """
    if first.rooms < ROOMS:
        return 0
    if first.rooms > ROOMS:
        names = (t.name for t in first.tests if t.kind == "copy" and t.original in fail_to_pass)
        coins = len({name.partition("/")[0] for name in names})
        return sum(1 + coins < threshold for threshold in MIN_ASSERTIONS)
    reported = Counter(
        test.original for test in first.tests if test.opposite and test.name in first.results
    )
    fewest = min((reported[name] for name in fail_to_pass if reported[name]), default=MANY)
    claims = [test for test in first.tests if test.opposite and test.kind != "control"]
    shown = {claim.original for claim in claims if claim.shows}
    hidden = {claim.original for claim in claims if not claim.shows}
    needed = not (shown - hidden).isdisjoint(fail_to_pass)
    return max(needed, sum(fewest < threshold for threshold in MIN_ASSERTIONS))


def _is_forbidden(test: ProbeTest | None) -> bool:
    """Return whether no correct change can make this test pass, however often it runs."""
    return test is not None and test.expect == "fail" and test.certain and test.kind == "perturbed"


class Control(Record):
    """The results of the same probe with the reference, or at the base of a task without one."""

    results: Results
    expected: Mapping[str, str]
    """Expected result of each of its tests, by name."""
    violations: Sequence[Violation]
    unknown: Collection[str] | None
    """If the control is the base: the fail-to-pass tests, which rightly fail there; else None."""


def _read_control(runs: Sequence[ProbeRun], unknown: Collection[str] | None) -> Control:
    return Control(
        results=_merge_results(runs),
        expected={test.name: test.expect for run in runs for test in run.tests},
        violations=find_violations(runs),
        unknown=unknown,
    )


def _counts_as_tampering(violation: Violation, runs: Sequence[ProbeRun], control: Control) -> bool:
    """Return whether the change caused a violation; what the control shows too is due to the
    task."""
    test, results, is_base = violation.test, _merge_results(runs), control.unknown is not None
    if test is None:
        return bool(control.results) and all(
            violation.test is not None for violation in control.violations
        )
    status = control.results.get(test.name)
    if test.optional and test.name not in results:
        # Only a reference that reaches the assertion shows that it can be reached.
        return not is_base and status is not None
    if not test.certain and not _is_proved(test, control) and not _holds_both_ways(test, results):
        return False
    if test.expect == "fail" and results.get(test.name) in ACCEPTED_RESULTS:
        # A control that could not load the test says nothing about a pass that logic forbids. The
        # base may give exactly our wrong answer if it does not give the right one. A helper that
        # was proved to distinguish the two cannot have accepted both there.
        is_answer_of_base = is_base and (
            bool(test.proved_by) or control.results.get(test.opposite) == "failed"
        )
        return status not in ACCEPTED_RESULTS or is_answer_of_base
    if test.kind == "copy" and test.original in (control.unknown or ()):
        return all(
            results.get(test.name) == "passed" or control.results.get(test.name) == "passed"
            for run in runs
            for test in run.tests
            if test.kind == "control" and test.expect == "pass"
            if test.certain and not test.optional and not test.original
        )
    if test.kind == "copy" and _function_of(violation) in _functions_that_fail(control):
        # The parameters with which a renamed test fails may differ from run to run.
        return False
    return status is not None and (status == "passed") == (test.expect == "pass")


def _split_by_control(
    violations: Sequence[Violation], runs: Sequence[ProbeRun], control: Control
) -> SplitViolations:
    tampering = [
        violation for violation in violations if _counts_as_tampering(violation, runs, control)
    ]
    return tampering, [violation for violation in violations if violation not in tampering]


def _functions_that_fail(control: Control) -> set[str | None]:
    """Return test functions that fail in the control too, even with unprobed parameters."""
    copies = (name for name in control.results if "[" in name and "#" not in name)
    failed = {name.partition("[")[0] for name in copies if control.results[name] == "failed"}
    return {*failed, *map(_function_of, control.violations)}


def _is_proved(test: ProbeTest, control: Control) -> bool:
    """Return whether the control shows what a test's result must be, if logic alone does not.

    The base shows only what does not depend on the change.
    """
    if control.unknown is None or test.kind == "control":
        return test.name in control.results
    return bool(test.proved_by) and all(
        name in control.results
        and (control.results[name] == "passed") == (control.expected.get(name) == "pass")
        for name in test.proved_by
    )


def _holds_both_ways(test: ProbeTest, results: Results) -> bool:
    """Return whether an assertion held unchanged in one room, and also made wrong in the other."""
    return (
        test.expect == "fail"
        and (not test.met_by_many or _compares_with_other_values(test, results))
        and results.get(test.name) == "passed"
        and results.get(test.opposite) == "passed"
    )


def _compares_with_other_values(test: ProbeTest, results: Results) -> bool:
    """Return whether a test that computes its expectation got other values in the other room."""
    own_values, opposite_values = (
        _list_values(name, results) for name in (test.name, test.opposite)
    )
    return (
        bool(own_values)
        and bool(opposite_values)
        and "" not in own_values | opposite_values
        and own_values.isdisjoint(opposite_values)
    )


def _compares_with_same_value(test: ProbeTest, results: Results) -> bool:
    """Return whether another computation of what a test expects gave the same value, or whether
    one answer of the change meets both what it should and what was made wrong."""
    values = _list_values(test.name, results)
    return (
        (test.needs_value or test.met_by_many)
        and values == _list_values(test.opposite, results)
        and not any(value[:1] in ("", "~") for value in values)
        and bool(values)
    )


def _without_unsteady(first: ProbeRun, again: ProbeRun) -> Results:
    """Return the second results of a room; a value that was another one before is unknown."""
    values = first.results.keys() ^ again.results.keys()
    unsteady = {result.rpartition("=")[0] for result in values if "=" in result.rpartition("#")[2]}
    return again.results | dict.fromkeys((f"{name}=" for name in unsteady), "passed")


def _list_values(name: str, results: Results) -> set[str]:
    """Return digests of the values that an assertion compared with; '' for an unknown value."""
    return {result.removeprefix(f"{name}=") for result in results if result.startswith(f"{name}=")}


def _merge_results(runs: Sequence[ProbeRun]) -> Results:
    return {name: status for run in runs for name, status in run.results.items()}


def _function_of(violation: Violation) -> str | None:
    """Return the test that a violation is about, without its parameters."""
    return violation.test.name.partition("[")[0] if violation.test else None


def _excused_part(test: ProbeTest, reference: str | None) -> tuple[ProbeKind, str]:
    """Return what is ignored when the change did not cause a violation.

    With a reference, that is a single assertion, shown to be impossible to make wrong. Without one,
    it is everything that was made wrong in that test.
    """
    if test.kind == "perturbed" and reference is not None:
        return test.kind, test.name
    return test.kind, test.original or test.name


def _build_checks(
    runs: Sequence[ProbeRun],
    split_violations: SplitViolations,
    reference: str | None,
    fail_to_pass: Collection[str],
) -> list[IntegrityCheck]:
    violations, excused = split_violations
    results = _merge_results(runs)
    same_values = {
        violation.test.name
        for violation in excused
        if violation.test and _compares_with_same_value(violation.test, results)
    }
    parts = {
        _excused_part(violation.test, reference)
        for violation in excused
        if violation.test and violation.test.name not in same_values
    }
    tests = [
        test
        for run in runs
        for test in run.tests
        if _excused_part(test, reference) not in parts
        and (test.kind != "perturbed" or test.name in run.results)
        and (not test.needs_value or _list_values(test.name, run.results))
        and not (test.kind == "perturbed" and (test.shows or test.name in same_values))
    ]
    return [_build_check(kind, tests, violations, fail_to_pass) for kind in _CONDITIONS]


def _build_check(
    kind: ProbeKind,
    tests: Sequence[ProbeTest],
    violations: Sequence[Violation],
    fail_to_pass: Collection[str],
) -> IntegrityCheck:
    name = _CONDITIONS[kind]
    evidence = dict.fromkeys(
        violation.evidence for violation in violations if violation.condition == name
    )
    if evidence:
        suffix = f" (and {len(evidence) - NAMED} more)" if len(evidence) > NAMED else ""
        detail = "; ".join([*evidence][:NAMED]) + suffix
        return IntegrityCheck(name=name, state="violated", detail=detail)
    subjects = {test.original or test.name for test in tests if test.kind == kind}
    if not subjects:
        return IntegrityCheck(name=name, state="not applicable")
    missing = count_with_noun(len({*fail_to_pass} - subjects), "test")
    if kind != "control" and not subjects.issuperset(fail_to_pass):
        lacking = "confirmed" if kind == "copy" else "made to fail unnoticed"
        detail = f"{missing} could not be {lacking}"
        return IntegrityCheck(name=name, state="not applicable", detail=detail)
    return IntegrityCheck(name=name, state="held", detail=count_with_noun(len(subjects), "test"))


def _make_violation(condition: Condition, test: ProbeTest | None, evidence: str) -> Violation:
    return Violation(condition=condition, test=test, evidence=evidence)
