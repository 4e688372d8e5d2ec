"""Mine a repository: rank its past work, prove each piece, write the tasks that hold."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import anyio
import msgspec
from anyio import to_thread

from closeloop.concurrency import unwrap_exception_group
from closeloop.git import try_git_text
from closeloop.grading import task_proof
from closeloop.providers.model_opening import open_model_by_name
from closeloop.providers.structured_reply import ask_json
from closeloop.records.attempt import Proof, TestRun
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.protocols import Model
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import CommandSettings, Settings
from closeloop.records.task import Acceptance, Task
from closeloop.records.trace import ChatMessage, ModelRequest
from closeloop.sandbox.workspaces import WorkspaceBase, WorkspacePool
from closeloop.store import Store
from closeloop.tasks import candidate_builder
from closeloop.tasks.candidate_builder import VAGUE_REASON, TaskCandidate
from closeloop.tasks.change_parts import CollectionRules, find_collection_rules
from closeloop.tasks.mining_environments import (
    QUICK_SECONDS,
    BrokenEnvironment,
    EnvironmentCache,
    MiningEnvironment,
    acceptance_for_command,
    choose_test_files,
    extract_error_line,
    first_command_output,
    make_plain_task,
    narrow_to_files,
    narrow_to_tests,
)
from closeloop.tasks.other_projects import ManifestFolder
from closeloop.tasks.required_names import describe_untold_names, find_untold_names
from closeloop.tasks.setup_recipes import (
    ConfiguredCommands,
    Recipe,
    describe_optional_modules,
    detect_edited_commands,
    list_recipes,
    package_cutoff_day,
)
from closeloop.tasks.task_exchange import find_steady_passes, passing_tests
from closeloop.tasks.task_files import render_task_files, with_digests
from closeloop.tasks.task_prompts import (
    MESSAGES_HEADING,
    NAMES_HEADING,
    ShownTest,
    add_examples,
    find_identifiers,
    find_leaks,
    split_patch_lines,
)
from closeloop.tasks.work_history import (
    GatheredWork,
    LedgerEntry,
    PastWork,
    append_entry,
    is_shallow_clone,
    read_ledger,
    with_source_tags,
)
from closeloop.text.code_patterns import find_missing_names
from closeloop.text.patches import parse_patch
from closeloop.text.redaction import redact_proof
from closeloop.text.untrusted import DATA_RULE, fence_texts
from closeloop.text.wording import count_with_noun

# Prove a candidate: run its tests without and with the work, repeatedly.


MAX_PROOFS = 2
"""Maximum proofs: the second one uses the tests that were stable in the first."""
TEST_FILES_SECONDS = 180.0
MAX_MESSAGES = 50
MAX_COMPLAINTS = 200
_MISSING_EXPORT = re.compile(
    r"does not provide an export named '(\w+)'|(?m:^\S+\.go:\d+:\d+: undefined: (?:\w+\.)?(\w+))"
)
UNTESTED_TAG = "untested-statement"
"""Some statement beside the tested fix can be changed without a test noticing."""
EXAMPLES_TAG = "examples-from-tests"
"""The message said little: the request quotes tests."""
LARGE_TAG = "large"
"""The reference changes more than `LARGE_FILES` files or `LARGE_LINES` lines of code."""
SELECTED_TAG = "selected-tests"
"""The command runs only some of the tests."""
FAILING_STATUSES = ("failed", "error")


class ProvedTask(Record):
    """A candidate that became a task."""

    task: Task
    proof: Proof


class RefusedCandidate(Record):
    """A candidate that did not become a task, and why."""

    why: str
    lasting: bool = True
    """Whether the reason is permanent."""
    output: str = ""
    """Output of tests of which none passes: it may show what they lack."""
    complaints: tuple[str, ...] = ()
    """Messages of tests that fail or are skipped with the work applied."""

    @property
    def may_lack_packages(self) -> bool:
        return bool(self.output or self.complaints)


async def prove_candidate(
    candidate: TaskCandidate, environments: EnvironmentCache, repeats: int
) -> ProvedTask | RefusedCandidate:
    """Prove a candidate: return the task, or why there is none."""
    if untold := find_untold_names(candidate.prompt, candidate.names):
        return RefusedCandidate(why=describe_untold_names(untold))
    environment = await environments.find_environment(candidate)
    if isinstance(environment, BrokenEnvironment):
        return RefusedCandidate(why=f"no environment: {environment.why}", lasting=False)
    try:
        base = await environments.open_base(environment, candidate.base)
    except BadInput as fault:
        reason = f"no environment: {extract_error_line(str(fault))}"
        return RefusedCandidate(why=reason, lasting=False)
    failing_tests = await _find_fail_to_pass(candidate, environments, environment, base)
    if isinstance(failing_tests, RefusedCandidate) and failing_tests.may_lack_packages:
        completed_environment = await environments.install_missing(
            environment, candidate, failing_tests.output, failing_tests.complaints
        )
        if completed_environment is not None:
            environment, base = completed_environment
            failing_tests = await _find_fail_to_pass(candidate, environments, environment, base)
    if isinstance(failing_tests, RefusedCandidate):
        return failing_tests
    if candidate.examples:
        shown = _failing_examples(candidate, failing_tests)
        if not shown and candidate.needs_examples:
            return RefusedCandidate(why=f"{VAGUE_REASON}, and no short test shows it")
        prompt = add_examples(candidate.prompt, shown) if shown else candidate.prompt
        candidate = msgspec.structs.replace(candidate, prompt=prompt, examples=shown)
    task = _build_task(candidate, environments.repo, environment, failing_tests)
    # The tests that must turn from failing to passing have been run once each way already.
    quick_command = narrow_to_tests(environment, candidate.test_files, failing_tests)
    files_command = narrow_to_files(environment, candidate.test_files)
    return await _prove_steady_task(
        task, environments.workspaces, base, max(1, repeats - 1), (quick_command, files_command)
    )


def _failing_examples(candidate: TaskCandidate, failing: Sequence[str]) -> tuple[ShownTest, ...]:
    """Return the examples that do not hold without the work, or else the rows of tables."""
    tests = tuple(
        example
        for example in candidate.examples
        if example.name
        and any(re.search(rf"{re.escape(example.name)}(?!\w)", test) for test in failing)
    )
    return tests or tuple(example for example in candidate.examples if not example.name)


async def _prove_steady_task(
    task: Task,
    workspaces: WorkspacePool,
    base: WorkspaceBase,
    repeats: int,
    narrowed_commands: tuple[str, str],
) -> ProvedTask | RefusedCandidate:
    """Run the controls, and again with the tests that were stable in the first proof.

    `narrowed_commands` run the fail-to-pass tests, and their files.
    """
    quick, files_command = narrowed_commands
    for _ in range(MAX_PROOFS):
        proof = await task_proof.prove_task(workspaces, base, task, repeats, quick)
        if proof.state == "proved" and not _has_flaky_tests(proof):
            break
        steady_task = _with_steady_tests(task, proof) or _with_own_files(task, proof, files_command)
        if steady_task is None:
            break
        task = steady_task
    if proof.state != "proved":
        return RefusedCandidate(
            why=proof.reasons[0] if proof.reasons else "it could not be verified"
        )
    if proof.reasons:
        task = msgspec.structs.replace(task, tags=(*task.tags, UNTESTED_TAG))
    return ProvedTask(task=task, proof=proof)


async def _find_fail_to_pass(
    candidate: TaskCandidate,
    environments: EnvironmentCache,
    environment: MiningEnvironment,
    base: WorkspaceBase,
) -> tuple[str, ...] | RefusedCandidate:
    """Return tests of the changed files that fail without the work and pass with it: one run
    each."""
    run = narrow_to_files(environment, candidate.test_files)
    task = make_plain_task(
        environments.repo, candidate.base, environment.recipe, run, TEST_FILES_SECONDS
    )
    acceptance = msgspec.structs.replace(task.acceptance, patch=candidate.tests)
    task = msgspec.structs.replace(task, acceptance=acceptance, reference=candidate.source)
    after = await task_proof.run_reference_tests(environments.workspaces, base, task)
    if after.trouble is not None:
        return RefusedCandidate(why=after.trouble, lasting=False)
    if after.commands[0].stopped:
        reason = (
            f"its test files take longer than {TEST_FILES_SECONDS:.0f} seconds, and "
            "cannot be run separately"
        )
        return RefusedCandidate(why=reason, lasting=False)
    passing = passing_tests(after)
    if not passing:
        output = first_command_output(after)
        reason = f"none of its tests passes with the change ({extract_error_line(output)})"
        return RefusedCandidate(
            why=f"{reason}: this machine may lack something",
            output=output,
            complaints=_list_complaints(after),
        )
    before = await task_proof.run_base_tests(environments.workspaces, base, task)
    if before.trouble is not None:
        return RefusedCandidate(why=before.trouble, lasting=False)
    if untold := _find_unnamed_imports(candidate, before):
        return RefusedCandidate(why=describe_untold_names(untold))
    newly_passing = passing - passing_tests(before)
    fail_to_pass = tuple(test.id for test in after.tests if test.id in newly_passing)
    if fail_to_pass:
        return fail_to_pass
    broken = sum(test.status in FAILING_STATUSES for test in after.tests)
    skipped = sum(test.status == "skipped" for test in after.tests)
    suffix = f", and {broken} also fail with it: they may need a network" if broken else ""
    suffix += f", and {skipped} are skipped: this machine may lack something" if skipped else ""
    output = describe_optional_modules(candidate.tests) if skipped else ""
    return RefusedCandidate(
        why=f"none of its tests fails without the change and passes with it{suffix}",
        output=output,
        complaints=_list_complaints(after),
    )


def _list_complaints(run: TestRun) -> tuple[str, ...]:
    """Return the messages of tests that did not pass."""
    messages = (test.message for test in run.tests if test.status != "passed")
    return tuple(dict.fromkeys(message for message in messages if message))[:MAX_COMPLAINTS]


def _find_unnamed_imports(candidate: TaskCandidate, before: TestRun) -> list[str]:
    """Return modules that the tests could not load at the base and the request does not name."""
    messages = [test.message or "" for test in before.tests if test.status in FAILING_STATUSES]
    messages += [command.output for command in before.commands if command.exit_code]
    missing = {
        name.name.rpartition(".")[2]
        for message in messages[:MAX_MESSAGES]
        for name in find_missing_names(message)
        if name.sort in ("import", "module")
    }
    missing |= {
        quoted_name or plain_name
        for message in messages[:MAX_MESSAGES]
        for quoted_name, plain_name in _MISSING_EXPORT.findall(message)
    }
    added_names = find_identifiers(split_patch_lines(candidate.source).added)
    prompt_names = find_identifiers(tuple(re.findall(r"\w+", candidate.prompt)))
    return [f"`{name}`" for name in sorted((missing & added_names) - prompt_names)]


def _build_task(
    candidate: TaskCandidate,
    repo: Path,
    environment: MiningEnvironment,
    fail_to_pass: tuple[str, ...],
) -> Task:
    """Build the task with all tests if they are quick, else with a command that selects some."""
    # By the tests' own durations: the rest of a run's time depends on how busy the machine is.
    runs_all = environment.seconds is not None and sum(environment.files.values()) <= QUICK_SECONDS
    run = environment.recipe.test
    if not runs_all:
        run = narrow_to_files(
            environment, choose_test_files(repo, environment, candidate, candidate.commit)
        )
    tags = ["mined", *(["multi-file"] if len(candidate.source_files) > 1 else [])]
    tags += [LARGE_TAG] if candidate.large else []
    tags += [] if runs_all or run == environment.recipe.test else [SELECTED_TAG]
    names = (re.sub(r"[^a-z0-9]+", "-", name.lower()) for name in environment.recipe.left_out)
    tags += [f"without-{name.strip('-')}" for name in names]
    tags += [EXAMPLES_TAG] if candidate.examples else []
    # Slower machines than this one must be able to grade it.
    timeout = max(120.0, 10 * (environment.seconds or 60.0))
    acceptance = acceptance_for_command(run, float(round(timeout)))
    task = Task(
        id=make_task_id(candidate),
        prompt=candidate.prompt,
        prompt_by=candidate.prompt_by,
        repo=str(repo),
        base=candidate.base,
        setup=environment.recipe.setup,
        acceptance=msgspec.structs.replace(
            acceptance, fail_to_pass=fail_to_pass, patch=candidate.tests
        ),
        reference=candidate.source,
        tags=tuple(tags),
        scope=candidate.scope,
        origin=f"mined:{candidate.commit}",
    )
    return with_digests(task)


def make_task_id(candidate: TaskCandidate) -> str:
    """Return a readable id, with the commit's prefix to keep it unique."""
    subject = candidate.prompt.partition("\n")[0]
    words = re.findall(r"[a-z0-9]+", subject.lower().replace("'", ""))
    return "-".join([*words[:6], candidate.commit[:8]])[:100]


def _has_flaky_tests(proof: Proof) -> bool:
    runs = (proof.before, proof.reference)
    return any(run is not None and run.flaky for run in runs)


def _with_own_files(task: Task, proof: Proof, files_command: str) -> Task | None:
    """Return the task with the files of its tests alone, if the suite does not end without the
    work: a test that fails may break what comes after it."""
    before = proof.before
    if before is None or before.trouble or before.tests or task.acceptance.run == files_command:
        return None
    acceptance = msgspec.structs.replace(task.acceptance, run=files_command)
    tags = tuple(dict.fromkeys((*task.tags, SELECTED_TAG)))
    return with_digests(msgspec.structs.replace(task, acceptance=acceptance, tags=tags))


def _with_steady_tests(task: Task, proof: Proof) -> Task | None:
    """Return the task with only the stable tests that gave the expected result every time."""
    before, after = proof.before, proof.reference
    if before is None or after is None or before.trouble or after.trouble:
        return None
    passing_before, passing_after = find_steady_passes(before, after)
    fail_to_pass = tuple(
        name
        for name in task.acceptance.fail_to_pass
        if name in passing_after and name not in passing_before
    )
    always_passing = passing_before & passing_after
    pass_to_pass = tuple(test.id for test in before.tests if test.id in always_passing)
    if not fail_to_pass or (fail_to_pass, pass_to_pass) == (
        task.acceptance.fail_to_pass,
        task.acceptance.pass_to_pass,
    ):
        return None
    acceptance: Acceptance = msgspec.structs.replace(
        task.acceptance, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass
    )
    return with_digests(msgspec.structs.replace(task, acceptance=acceptance))


# Let a model reword a request as a user would. It sees only the request, never the fix.


RewordCandidate = Callable[[TaskCandidate], Awaitable[TaskCandidate]]
MIN_REQUEST_CHARS = 20
MAX_REQUEST_CHARS = 4_000
MAX_DESCRIPTION_CHARS = 24_000
SYSTEM_PROMPT = (
    "You are given the description of a change that was made to a program. Write the request that "
    "a user or colleague would have made before it: what is wrong or missing, and what should be "
    "so instead. Keep every name, option, value and message that the description has, exactly as "
    "written. Add no facts, propose no solution, mention no commits, tests or reviews. Two to "
    f"eight sentences. {DATA_RULE}"
)
REPLY_SCHEMA = {
    "type": "object",
    "properties": {"request": {"type": "string"}},
    "required": ["request"],
    "additionalProperties": False,
}


@asynccontextmanager
async def open_rewording(
    name: str, settings: Settings, root: Path, environ: Mapping[str, str]
) -> AsyncIterator[RewordCandidate]:
    """Open the model of that name and yield a function that rewords candidates."""
    async with open_model_by_name(name, settings, root, environ) as model:
        yield lambda candidate: reword_candidate(model, candidate)


async def reword_candidate(model: Model, candidate: TaskCandidate) -> TaskCandidate:
    """Return the candidate with a request in a user's words; unchanged if the result is not
    good, or if its tests say more than its words."""
    if candidate.needs_examples:
        return candidate
    data = fence_texts({"description": candidate.prompt}, max_chars=MAX_DESCRIPTION_CHARS)
    message = ChatMessage(role="user", text=data)
    request = ModelRequest(
        messages=(message,), system=SYSTEM_PROMPT, schema=REPLY_SCHEMA, temperature=0.0
    )
    try:
        reply = await ask_json(model, request)
    except MachineFailed:
        return candidate
    text = str(reply.value["request"]).strip()
    if not MIN_REQUEST_CHARS <= len(text) <= MAX_REQUEST_CHARS or find_leaks(
        text, candidate.source, candidate.tests
    ):
        return candidate
    # Names and texts that the tests require must be in the request, even if the model dropped them.
    _, heading, list_text = candidate.prompt.partition(f"\n\n{NAMES_HEADING}")
    if not heading:
        _, heading, list_text = candidate.prompt.partition(f"\n\n{MESSAGES_HEADING}")
    prompt = f"{text}{heading}{list_text}"
    if find_untold_names(prompt, candidate.names):
        return candidate
    return msgspec.structs.replace(candidate, prompt=prompt, prompt_by="model")


# Mine a repository: rank its past work, prove each candidate, write the proved tasks.


MAX_FAILED_ENVIRONMENTS = 12
"""Maximum consecutive environments that fail; after that older ones are not tried."""

_TEST_NAME = re.compile(r"(?i)(?:test|spec)[^/]*\.\w+$")
NEAR_BEST_COUNT = 8
"""Number of top candidates considered equal: those without a new environment come first."""


class MiningContext(Record):
    """The repository, folders and resources of a mining run."""

    repo: Path
    tasks: Path
    """The folder that the tasks are written to."""
    ledger: Path
    commands: CommandSettings
    workspaces: WorkspacePool
    store: Store
    reword: RewordCandidate | None = None
    gathered: GatheredWork | None = None
    """The work to try, if it does not come from the history alone."""


class MiningOptions(Record):
    """Options of one mining run."""

    limit: int = 20
    """Maximum mined tasks in total, including earlier runs."""
    since: str | None = None
    seconds: float | None = None
    repeats: int = 3
    jobs: int | None = None
    named: bool = False
    """Whether the user named the commits: all are tried, and the limit counts new tasks alone."""


class MiningEvent(Record):
    """A progress event."""

    stage: Literal["surveyed", "trying", "proved", "refused"]
    commit: str | None = None
    about: str = ""
    """First line of the commit message, or the reason for refusal."""
    task: str | None = None


class MiningResult(Record):
    """Result of a mining run."""

    tasks: tuple[str, ...] = ()
    """Ids of the tasks of this run."""
    before: int = 0
    """Number of tasks mined earlier."""
    lost: int = 0
    """Tasks mined earlier whose base commit is gone, since the history was rewritten."""
    tried: int = 0
    candidates: int = 0
    left: int = 0
    """Candidates that were not tried to the end."""
    passed_over: dict[str, int] = {}
    """Reason → number of pieces of work excluded without running anything."""
    refused: dict[str, str] = {}
    """Commit → why it did not become a task, in this run."""
    environments: int = 0
    seconds: float = 0.0
    shallow: bool = False


class _MiningRun:
    """State of a mining run."""

    def __init__(
        self,
        context: MiningContext,
        commands: ConfiguredCommands,
        options: MiningOptions,
        report: Callable[[MiningEvent], None],
    ) -> None:
        self.context, self.known, self.options, self.report_progress = (
            context,
            commands,
            options,
            report,
        )
        self.environments = EnvironmentCache(context.workspaces, context.repo, commands)
        self.entries = read_ledger(context.ledger)
        self.commands = content_digest(context.commands.setup, context.commands.test)[:32]
        proved = [entry for entry in self.entries.values() if entry.state == "proved"]
        reachable = _reachable_entries(proved, context.repo)
        self.before = sum(_task_exists(entry, context.tasks) for entry in reachable)
        """Tasks mined earlier, which count towards the limit."""
        self.lost = sum(_task_exists(entry, context.tasks) for entry in proved) - self.before
        self.limit = options.limit - (0 if options.named else self.before)
        self.changes = {
            entry.change
            for entry in reachable
            if not options.named or _task_exists(entry, context.tasks)
        }
        self.tasks: list[str] = []
        self.refused: dict[str, str] = {}
        self.rotten = 0
        self.scope = anyio.CancelScope()
        gathered = context.gathered.works if context.gathered else ()
        self.works_by_commit = {sourced.work.commit: sourced for sourced in gathered}

    def needs_trial(self, work: PastWork) -> bool:
        """Return whether to try a commit.

        Unless the user named it, a task that somebody deleted is not made again, and what was
        refused is tried again only after the configured commands have changed.
        """
        entry = self.entries.get(work.commit)
        if entry is None or entry.state == "failed":
            return True
        if self.options.named:
            return entry.state == "refused" or not _task_exists(entry, self.context.tasks)
        return entry.state == "refused" and entry.commands not in (None, self.commands)

    async def try_work(self, work: PastWork) -> None:
        """Try one piece of work and record the result."""
        self.report_progress(
            MiningEvent(stage="trying", commit=work.commit, about=work.message.partition("\n")[0])
        )
        start = time.monotonic()
        try:
            outcome = await self._prove_work(work)
        except (BadInput, MachineFailed) as fault:
            outcome = RefusedCandidate(why=str(fault), lasting=False)
        if isinstance(outcome, RefusedCandidate):
            self._record_refusal(work, outcome, time.monotonic() - start)
        elif len(self.tasks) < self.limit:
            await self._accept_task(work, outcome, time.monotonic() - start)

    async def _prove_work(self, work: PastWork) -> ProvedTask | RefusedCandidate:
        repo = self.context.repo
        with candidate_builder.open_manifests(repo, work.commit) as folder:
            rules = rules_for_recipes(folder, list_recipes(folder, self.known, work.at))
        candidate = candidate_builder.build_candidate(repo, work, rules)
        if isinstance(candidate, str):
            return RefusedCandidate(why=candidate)
        change = _change_digest(candidate.source)
        if change in self.changes:
            return RefusedCandidate(why="the same change is already a task")
        self.changes.add(change)
        if self.context.reword is not None:
            candidate = await self.context.reword(candidate)
        outcome = await prove_candidate(candidate, self.environments, self.options.repeats)
        if isinstance(outcome, RefusedCandidate):
            self.changes.discard(change)
        return outcome

    async def _accept_task(self, work: PastWork, proved_task: ProvedTask, seconds: float) -> None:
        task = with_source_tags(proved_task.task, self.works_by_commit.get(work.commit))
        self.tasks.append(task.id)
        # In a thread: proofs under way go on while this one waits for the database.
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._save_task, task, proved_task.proof)
        self.rotten = 0
        change = _change_digest(task.reference or "")
        self._append_entry(work, seconds, "proved", task=task.id, change=change, base=work.base)
        self.report_progress(MiningEvent(stage="proved", commit=work.commit, task=task.id))
        if len(self.tasks) >= self.limit:
            self.scope.cancel()

    def _save_task(self, task: Task, proof: Proof) -> None:
        self.context.store.save_task(task)
        self.context.store.save_proof(redact_proof(proof))
        write_task_files(task, self.context.tasks)

    def _record_refusal(self, work: PastWork, refusal: RefusedCandidate, seconds: float) -> None:
        self.refused[work.commit] = refusal.why
        self._append_entry(
            work, seconds, "refused" if refusal.lasting else "failed", why=refusal.why[:1000]
        )
        self.report_progress(MiningEvent(stage="refused", commit=work.commit, about=refusal.why))
        self.rotten = self.rotten + 1 if refusal.why.startswith("no environment") else 0
        if self.rotten >= MAX_FAILED_ENVIRONMENTS:
            self.scope.cancel()

    def _append_entry(
        self,
        work: PastWork,
        seconds: float,
        state: Literal["proved", "refused", "failed"],
        **more: str,
    ) -> None:
        entry = LedgerEntry(
            commit=work.commit,
            state=state,
            commands=self.commands,
            at=datetime.now(UTC),
            seconds=round(seconds, 1),
        )
        append_entry(self.context.ledger, msgspec.structs.replace(entry, **more))


async def mine_tasks(
    context: MiningContext, options: MiningOptions, report: Callable[[MiningEvent], None]
) -> MiningResult:
    """Mine tasks until the limit, the time limit, or the end of the work is reached."""
    start = time.monotonic()
    if not try_git_text(str(context.repo), "rev-parse", "--verify", "HEAD"):
        raise BadInput(f"{context.repo} has no commits to create tasks from.")
    with candidate_builder.open_manifests(context.repo, "HEAD") as folder:
        commands = detect_edited_commands(context.commands, folder)
        head_recipes = list_recipes(folder, commands, datetime.now(UTC))
        rules = rules_for_recipes(folder, head_recipes)
    if not head_recipes:
        raise BadInput(
            f"No test command was found for {context.repo}: set it as `test` under "
            "[commands] in closeloop.toml."
        )
    survey = _gather_work(context, rules, options)
    mining_run = _MiningRun(context, commands, options, report)
    untried_work = [work for work in survey.works if mining_run.needs_trial(work)]
    untried_count = len(untried_work)
    candidates = count_with_noun(len(survey.works), "candidate")
    report(MiningEvent(stage="surveyed", about=f"{untried_count} of {candidates} to try"))
    if mining_run.limit > 0:
        await _try_all_work(mining_run, untried_work)
    return MiningResult(
        tasks=tuple(mining_run.tasks),
        before=mining_run.before,
        lost=mining_run.lost,
        tried=len(mining_run.tasks) + len(mining_run.refused),
        candidates=len(survey.works),
        left=untried_count - len(mining_run.tasks) - len(mining_run.refused),
        passed_over=dict(Counter(survey.passed_over.values())),
        refused=mining_run.refused,
        environments=mining_run.environments.made,
        seconds=time.monotonic() - start,
        shallow=is_shallow_clone(context.repo),
    )


def rules_for_recipes(folder: ManifestFolder, recipes: Sequence[Recipe]) -> CollectionRules:
    """Return which files are tests: those of the likeliest recipe whose runner is recognised, and
    those that a recipe's command names."""
    runners = (acceptance_for_command(recipe.test, 1.0).runner for recipe in recipes)
    rules = find_collection_rules(folder, next(filter(None, runners), None))
    words = {word.removeprefix("./") for recipe in recipes for word in recipe.test.split()}
    named_files = tuple(path for path in folder.files if path in words and _TEST_NAME.search(path))
    return msgspec.structs.replace(rules, files=named_files)


def _gather_work(
    context: MiningContext, rules: CollectionRules, options: MiningOptions
) -> candidate_builder.WorkSurvey:
    """Return the gathered work, or the whole history."""
    if context.gathered is None:
        return candidate_builder.survey_work(context.repo, rules, options.since, datetime.now(UTC))
    return candidate_builder.WorkSurvey(
        works=tuple(sourced.work for sourced in context.gathered.works),
        passed_over=context.gathered.passed_over,
    )


async def _try_all_work(mining_run: _MiningRun, works: list[PastWork]) -> None:
    """Try several at once, each taking the best that is left."""
    installed_days: set[str] = set()

    async def worker() -> None:
        while works:
            work = works.pop(_choose_next(works, installed_days))
            installed_days.add(package_cutoff_day(work.at))
            await mining_run.try_work(work)

    if mining_run.options.seconds is not None:
        mining_run.scope.deadline = anyio.current_time() + mining_run.options.seconds
    with unwrap_exception_group(), mining_run.scope:
        async with anyio.create_task_group() as group:
            for _ in range(mining_run.options.jobs or os.cpu_count() or 1):
                group.start_soon(worker)


def _choose_next(works: Sequence[PastWork], installed_days: Collection[str]) -> int:
    """Return the first of the best few whose packages are installed, else the best."""
    indexes = (
        index
        for index, work in enumerate(works[:NEAR_BEST_COUNT])
        if package_cutoff_day(work.at) in installed_days
    )
    return next(indexes, 0)


def write_task_files(task: Task, folder: Path) -> Path:
    """Write a task's files atomically, the task's own file last."""
    files = render_task_files(task, folder)
    main = folder / f"{task.id}.md"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in reversed(files):
            part = folder / f".{name}.part"
            part.write_text(files[name], encoding="utf-8", newline="")
            part.replace(folder / name)
    except OSError as error:
        raise MachineFailed(f"{main} cannot be written: {error.strerror}.") from error
    return main


def _task_exists(entry: LedgerEntry, tasks: Path) -> bool:
    return (tasks / f"{entry.task}.md").is_file()


def _reachable_entries(entries: Sequence[LedgerEntry], repo: Path) -> list[LedgerEntry]:
    """Return entries whose task's base commit still exists."""
    bases = "".join(f"{base}\n" for base in {entry.base for entry in entries} if base)
    git_output = try_git_text(str(repo), "cat-file", "--batch-check", stdin=bases) if bases else ""
    known_commits = {line.split()[0] for line in git_output.splitlines() if " commit " in line}
    return [entry for entry in entries if not entry.base or entry.base in known_commits]


def _change_digest(patch: str) -> str:
    """Return a digest that is equal for the same work on another branch, ignoring ids and lines."""
    lines, files = split_patch_lines(patch), parse_patch(patch).files
    return content_digest([file.path for file in files], lines.added, lines.removed)[:32]
