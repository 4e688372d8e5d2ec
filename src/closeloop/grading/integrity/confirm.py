"""Say what of a probe did not come out as it must, and whether that is the change's doing."""

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

    Two rooms are a round. Those of further rounds have new coins, for what a pass hangs on; where
    tests are compiled, all rounds are for that alone, and a room with all copies comes first.
    """
    assert acceptance.run is not None
    fail_to_pass, others = chosen
    runner = detect_runner(acceptance.run) or acceptance.runner or _guess_runner(fail_to_pass)
    if runner is None or runner == "junit":
        return ProbeRun()
    before, number = 1 if runner in WHOLE_LANGUAGE else 0, 0
    if room >= before:
        number, in_round = divmod(room - before, ROOMS)
        room = before + in_round
        others = () if number or before else others
        token = content_digest(token, number)[:32] if number else token
    # Everything random follows from the token: nothing in the workspace may show it.
    folder = f".closeloop-{content_digest('folder', token, str(room))[:32]}"
    files = {_file_of(test, runner) for test in (*fail_to_pass, *others)}
    sources, helpers = await _read_tests(cage, runner, files, test_folders)
    request = ProbeRequest(
        command=acceptance.run,
        runner=runner,
        fail_to_pass=tuple(fail_to_pass),
        others=tuple(others),
        sources=sources,
        helpers=helpers,
        folder=f"{cage.root}/{folder}",
        root=cage.root,
        pipe=f"{cage.root}/{folder}/pipe",
        token=token,
        room=room,
        round=number,
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
    return ProbeRun(
        tests=probe.tests,
        results=await anyio.to_thread.run_sync(maker.read_results, ended.output.content),
        exit_code=ended.exit_code,
        stopped=ended.stopped,
        rooms=probe.rooms,
    )


async def _read_tests(
    cage: WorkspaceSandbox, runner: TestRunner, files: Collection[str], test_folders: Iterable[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the files that tests are in, and of the other modules in folders of tests.

    As they stand in the clean room; no other modules where there is more than can be looked at.
    """
    if runner in WHOLE_LANGUAGE:
        names = [f"-name {shlex.quote(name)}" for name in WHOLE_LANGUAGE[runner]]
        return await _read_texts(cage, names, SOURCE_LIMIT), {}
    named = [f"-path {shlex.quote('*/' + _escape_glob(file))}" for file in sorted(files)]
    folders = {*test_folders, *filter(None, map(find_test_folder, files))}
    texts = await _read_texts(cage, [*named, *_match_helpers(runner, folders)], SOURCE_LIMIT)
    if not texts:
        return await _read_texts(cage, named, SOURCE_LIMIT), {}
    sources = {path: text for path, text in texts.items() if _ends_with_any(path, files)}
    if others := {*filter(None, map(find_test_folder, sources))} - folders:
        texts |= await _read_texts(cage, _match_helpers(runner, others), MAX_HELPER_BYTES)
    helpers = {path: text for path, text in texts.items() if path not in sources}
    return sources, helpers if sum(map(len, helpers.values())) < MAX_HELPER_BYTES else {}


def _match_helpers(runner: TestRunner, folders: Iterable[str]) -> list[str]:
    """Tests of `find` that know the modules in some folders."""
    is_python = runner in ("pytest", "unittest")
    patterns = [
        f"-path {shlex.quote(f'./{_escape_glob(folder)}/*.{suffix}')}"
        for folder in sorted(folders)
        for suffix in (PYTHON_SUFFIXES if is_python else SCRIPT_SUFFIXES)
    ]
    return [*patterns, *(["-name conftest.py"] if is_python else [])]


def _ends_with_any(path: str, files: Collection[str]) -> bool:
    """Whether a path is one of these files, or one of them in some folder."""
    parts = path.split("/")
    return any("/".join(parts[start:]) in files for start in range(len(parts)))


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


# From test runs and probes to whether a pass is believed: nothing is run here.


RULE = "tampered-result"
MAX_SECONDS = 20.0
"""Tests beside the fail-to-pass ones are confirmed while they take no longer than this."""
MAX_TESTS = 400
MAX_BELIEVED_NAMES = 5


ChosenTests = tuple[Sequence[str], Sequence[str]]
"""Those that a pass hangs on, and others."""


def choose_tests(acceptance: Acceptance, before: TestRun, after: TestRun) -> ChosenTests:
    """The tests that a pass hangs on, and others that passed, as many as are soon run again."""
    passed = {test.id: test for test in after.tests if test.status == "passed"}
    fixed = [name for name in tests_to_fix(acceptance, before) if name in passed]
    if not fixed:
        earlier = {test.id for test in before.tests if test.status == "passed"}
        fixed = [name for name in passed if name not in earlier]
    unsteady = {*before.flaky, *after.flaky}
    fixed = [name for name in fixed if name not in unsteady]
    near = {path_in_test_id(name) for name in fixed}
    rest = [test for test in passed.values() if test.id not in {*fixed, *unsteady}]
    random.SystemRandom().shuffle(rest)
    rest.sort(key=lambda test: path_in_test_id(test.id) not in near)
    return fixed, list(_choose_affordable(rest))


def checks_without_running(
    steering: Steering, aside: Mapping[str, str], before: TestRun, after: TestRun
) -> Iterator[IntegrityCheck]:
    """The conditions that need no second process."""
    if not steering.checked:
        return
    shadows = {path: why for path, why in aside.items() if why.startswith(SHADOWS)}
    others = {path: why for path, why in aside.items() if path not in shadows}
    yield IntegrityCheck(name="restored", state="held", detail=_list_reasons(others))
    yield IntegrityCheck(name="unshadowed", state="held", detail=_list_reasons(shadows))
    if after.tests:
        forged = more_passes_than_printed(before, after)
        yield IntegrityCheck(
            name="agreement", state="violated" if forged else "held", detail=forged or ""
        )


def more_passes_than_printed(before: TestRun, after: TestRun) -> str | None:
    """That a report counts passes which the runner did not print, where it prints them."""
    if before.printed_passes is None:
        return None
    reported = sum(test.status == "passed" for test in after.tests)
    if after.printed_passes is None and not (after.commands and after.commands[0].exit_code):
        return "the runner ended before it printed its summary"
    if after.printed_passes is not None and reported > after.printed_passes:
        return f"the report has {reported} passes, the runner printed {after.printed_passes}"
    return None


def doubt_pass(outcome: Outcome, checks: Sequence[IntegrityCheck]) -> Outcome:
    """A pass with a violated condition is a fail."""
    violated = [check for check in checks if check.state == "violated"]
    if outcome.result != "pass" or not violated:
        return outcome
    return Outcome(result="fail", reasons=tuple(f"{RULE}: {check.detail}" for check in violated))


def find_killed_probe(
    fixed: Sequence[str], before: TestRun, probes: Sequence[ProbeRun]
) -> str | None:
    """That a second process was cut short, where a base that cannot load the tests says nothing.

    Only for a task without a reference: with one, that is measured by the reference.
    """
    loaded = {test.id for test in before.tests if test.status in ("passed", "failed")}
    if not probes or not loaded.isdisjoint(fixed):
        return None
    last = probes[-1]
    missing = [test for test in last.tests if not test.optional and test.name not in last.results]
    if not missing:
        return None
    how = last.stopped or f"exit code {last.exit_code}"
    return (
        f"{len(missing)} of {len(last.tests)} tests did not report in a second process ({how}), "
        "and the base cannot load them: give the task a reference, to show whose fault that is."
    )


def evidence_of(
    outcome: Outcome, after: TestRun, checks: Sequence[IntegrityCheck], *, is_confined: bool
) -> str | None:
    """How a pass is known; code that ran without a sandbox may have changed the second process."""
    if outcome.result != "pass" or not after.commands:
        return None
    held = {check.name for check in checks if check.state == "held"}
    if is_confined and held >= {"confirmed", "perturbed"}:
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
    lines = [f"{path} ({why})" for path, why in reasons.items()]
    more = f" and {len(lines) - MAX_BELIEVED_NAMES} more" if len(lines) > MAX_BELIEVED_NAMES else ""
    return ", ".join(lines[:MAX_BELIEVED_NAMES]) + more


NAMED = 3
HELD = ("passed", "mixed")
ENOUGH = (3, 5)
"""Assertions of a test, one of ours among them: with fewer, it is probed once more for each."""
MANY = 1_000
Condition = Literal["controls", "confirmed", "perturbed"]
_CONDITIONS: dict[ProbeKind, Condition] = {
    "control": "controls",
    "copy": "confirmed",
    "perturbed": "perturbed",
}


class Violation(Record):
    """Something that did not come out as it must."""

    condition: Condition
    test: ProbeTest | None
    """None where the run as a whole is wrong."""
    evidence: str


Weighed = tuple[Sequence[Violation], Sequence[Violation]]
"""Those that are the change's doing, and those that are not."""


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
        elif test.kind == "control" and test.how and test.expect == "pass" and status != "passed":
            text = test.how
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


ProbeTests = Callable[[str | None, str, int], Awaitable[ProbeRun]]
"""Probes a change, by its patch, with a token, in a room."""


class ControlProbe:
    """The rooms of a change's control, probed when they are needed."""

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
    ) -> Weighed | None:
        """The violations of some rooms, if logic forbids one that is the change's doing."""
        violations = find_violations(runs)
        if not any(_is_forbidden(one.test) for one in violations):
            return None
        weighed = _split_by_control(violations, runs, await self.read_rooms(rooms))
        return weighed if any(_is_forbidden(one.test) for one in weighed[0]) else None


async def confirm_tests(
    probe: ProbeTests, patch: str, reference: str | None, fail_to_pass: Collection[str]
) -> list[IntegrityCheck]:
    """Probe a change; a violation counts only if it returns, and the reference has none of it.

    One that logic forbids need not return, as answers at random are right in half of them. It is
    enough that the control shows none in the same room: no further room is probed then.
    Without a reference, the base is the control: there the fail-to-pass tests say nothing.
    """
    token = secrets.token_hex(16)
    begun = await probe(patch, token, 0)
    rooms = range(begun.rooms + ROOMS * _count_more_rounds(begun, fail_to_pass))
    control = ControlProbe(probe, token, reference, fail_to_pass)

    def build_checks(runs: Sequence[ProbeRun], weighed: Weighed) -> list[IntegrityCheck]:
        return _build_checks(runs, weighed, reference, fail_to_pass)

    if unread := await _find_unread(probe, begun, reference, fail_to_pass, token):
        return build_checks([begun], (unread, ()))
    runs: list[ProbeRun] = []
    for room in rooms:
        runs.append(await probe(patch, token, room) if room else begun)
        if forbidden := await control.find_forbidden(runs[-1:], [room]):
            return build_checks(runs, forbidden)
    first = find_violations(runs)
    if not first:
        return build_checks(runs, ((), ()))
    if forbidden := await control.find_forbidden(runs, rooms):
        return build_checks(runs, forbidden)
    before = {_function_of(violation) for violation in first}
    suspect = [room for room in rooms if find_violations(runs[room : room + 1])]
    for room in suspect:
        runs[room] = await probe(patch, token, room)
    violations = [
        one
        for one in find_violations(runs)
        if _function_of(one) in before or _is_forbidden(one.test)
    ]
    if not control.runs and not violations:
        return build_checks(runs, ((), ()))
    first_of_rounds = begun.rooms % ROOMS
    opposite = [first_of_rounds + ((room - first_of_rounds) ^ 1) for room in suspect]
    results = await control.read_rooms(sorted({*suspect, *opposite} & {*rooms}))
    weighed = _split_by_control(violations, runs, results)
    return build_checks(runs if weighed[0] or results.results else (), weighed)


async def _find_unread(
    probe: ProbeTests,
    begun: ProbeRun,
    reference: str | None,
    fail_to_pass: Collection[str],
    token: str,
) -> list[Violation]:
    """Tests that a second process can be made of without the change, and not with it."""
    missing = {*fail_to_pass} - {test.original for test in begun.tests}
    if not missing:
        return []
    control = await probe(reference, token, 0)
    found = {test.original for test in control.tests}
    text = "{} cannot be found for a second process with the change, and can without it"
    return [
        _make_violation("confirmed", None, text.format(name)) for name in sorted(missing & found)
    ]


def _count_more_rounds(first: ProbeRun, fail_to_pass: Collection[str]) -> int:
    """How often more to probe where few coins are tossed: they could be guessed.

    Where tests are compiled a room tosses one for each test, else one for each assertion.
    """
    if first.rooms < ROOMS:
        return 0
    if first.rooms > ROOMS:
        names = (t.name for t in first.tests if t.kind == "copy" and t.original in fail_to_pass)
        coins = len({name.partition("/")[0] for name in names})
        return sum(1 + coins < enough for enough in ENOUGH)
    reported = Counter(
        test.original for test in first.tests if test.opposite and test.name in first.results
    )
    fewest = min((reported[name] for name in fail_to_pass if reported[name]), default=MANY)
    return sum(fewest < enough for enough in ENOUGH)


def _is_forbidden(test: ProbeTest | None) -> bool:
    """Whether no right change can let a test pass, however often it is tried."""
    return test is not None and test.expect == "fail" and test.certain and test.kind == "perturbed"


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
    if not test.certain and not _is_proved(test, control) and not _holds_both_ways(test, results):
        return False
    if test.expect == "fail" and results.get(test.name) in HELD:
        # A control that could not load the test says nothing of a pass that logic forbids. The
        # base may give the very answer that we made of the right one, if it does not give that.
        # A helper that was proved to tell the two apart cannot have accepted both there.
        is_answer_of_base = is_base and (
            bool(test.proved_by) or control.results.get(test.opposite) == "failed"
        )
        return status not in HELD or is_answer_of_base
    if test.kind == "copy" and test.original in (control.unknown or ()):
        return all(
            results.get(other.name) == "passed" or control.results.get(other.name) == "passed"
            for run in runs
            for other in run.tests
            if other.kind == "control" and other.expect == "pass"
            if other.certain and not other.optional and not other.original
        )
    if test.kind == "copy" and _function_of(violation) in _functions_that_fail(control):
        # Which parameters of a test fail under another name may change from run to run.
        return False
    return status is not None and (status == "passed") == (test.expect == "pass")


def _split_by_control(
    violations: Sequence[Violation], runs: Sequence[ProbeRun], control: Control
) -> Weighed:
    counted = [one for one in violations if _counts_as_tampering(one, runs, control)]
    return counted, [one for one in violations if one not in counted]


def _functions_that_fail(control: Control) -> set[str | None]:
    """Tests that fail in a control too, be it with parameters that were not chosen for a probe."""
    copies = (name for name in control.results if "[" in name and "#" not in name)
    failed = {name.partition("[")[0] for name in copies if control.results[name] == "failed"}
    return {*failed, *map(_function_of, control.violations)}


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


def _holds_both_ways(test: ProbeTest, results: Results) -> bool:
    """Whether an assertion held as it is in one room, and made wrong in the other, each time."""
    return (
        test.expect == "fail"
        and (not test.met_by_many or _compares_with_other_values(test, results))
        and results.get(test.name) == "passed"
        and results.get(test.opposite) == "passed"
    )


def _compares_with_other_values(test: ProbeTest, results: Results) -> bool:
    """Whether a test that computes what it expects came to other values in the other room."""
    here, there = (_list_values(name, results) for name in (test.name, test.opposite))
    return bool(here) and bool(there) and "" not in here | there and here.isdisjoint(there)


def _list_values(name: str, results: Results) -> set[str]:
    """What an assertion compared with, as digests; an empty one where it is not known."""
    return {one.removeprefix(f"{name}=") for one in results if one.startswith(f"{name}=")}


def _merge_results(runs: Sequence[ProbeRun]) -> Results:
    return {name: status for run in runs for name, status in run.results.items()}


def _function_of(violation: Violation) -> str | None:
    """The test that a violation is about, without its parameters."""
    return violation.test.name.partition("[")[0] if violation.test else None


def _excused_part(test: ProbeTest, reference: str | None) -> tuple[ProbeKind, str]:
    """What counts for nothing when a violation is not the change's doing.

    The reference shows that a single assertion cannot be made wrong. Without one, nothing that
    was made wrong in its test is believed.
    """
    if test.kind == "perturbed" and reference is not None:
        return test.kind, test.name
    return test.kind, test.original or test.name


def _build_checks(
    runs: Sequence[ProbeRun],
    weighed: Weighed,
    reference: str | None,
    fail_to_pass: Collection[str],
) -> list[IntegrityCheck]:
    counted, excused = weighed
    parts = {_excused_part(one.test, reference) for one in excused if one.test}
    tests = [
        test
        for run in runs
        for test in run.tests
        if _excused_part(test, reference) not in parts
        and (test.kind != "perturbed" or test.name in run.results)
        and (not test.needs_value or _list_values(test.name, run.results))
    ]
    return [_build_check(kind, tests, counted, fail_to_pass) for kind in _CONDITIONS]


def _build_check(
    kind: ProbeKind,
    tests: Sequence[ProbeTest],
    violations: Sequence[Violation],
    fail_to_pass: Collection[str],
) -> IntegrityCheck:
    name = _CONDITIONS[kind]
    evidence = dict.fromkeys(one.evidence for one in violations if one.condition == name)
    if evidence:
        more = f" (and {len(evidence) - NAMED} more)" if len(evidence) > NAMED else ""
        detail = "; ".join([*evidence][:NAMED]) + more
        return IntegrityCheck(name=name, state="violated", detail=detail)
    subjects = {test.original or test.name for test in tests if test.kind == kind}
    if not subjects:
        return IntegrityCheck(name=name, state="not applicable")
    missing = count_with_noun(len({*fail_to_pass} - subjects), "test")
    if kind != "control" and not subjects.issuperset(fail_to_pass):
        lacking = {"copy": "could not be confirmed", "perturbed": "could not be made to fail"}
        detail = f"{missing} {lacking[kind]}"
        return IntegrityCheck(name=name, state="not applicable", detail=detail)
    return IntegrityCheck(name=name, state="held", detail=count_with_noun(len(subjects), "test"))


def _make_violation(condition: Condition, test: ProbeTest | None, evidence: str) -> Violation:
    return Violation(condition=condition, test=test, evidence=evidence)
