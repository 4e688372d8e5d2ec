"""The dev and held-out sets of a project: their content, and whether they still fit the work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from statistics import median

from msgspec.structs import replace

from closeloop.git import try_git_text
from closeloop.records.attempt import AttemptRow, Proof
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import ExperimentResults
from closeloop.records.finding import Measurement
from closeloop.records.record import Record, Time, content_digest
from closeloop.records.settings import Settings
from closeloop.records.task import SplitMethod, Task, TaskSplit
from closeloop.text.patches import parse_patch

# What may be shown of held-out tasks: that they exist, and how many attempts passed.
#
# People tune for a set that they have read. So its tasks are shown under an alias, and what an
# attempt at one reported, changed or broke is left out wherever records are printed.


ALIAS_PREFIX = "sealed-"
HIDDEN_TEXT = "(sealed)"


def task_alias(digest: str) -> str:
    """Return the public name of a held-out task."""
    return ALIAS_PREFIX + digest[:8]


def is_alias(name: str) -> bool:
    return name.startswith(ALIAS_PREFIX)


def held_out_digests(tasks: Sequence[Task]) -> frozenset[str]:
    """Return the digests of held-out tasks."""
    return frozenset(task.digest for task in tasks if task.split == "held-out")


def require_unsealed(task: Task | None) -> None:
    """Refuse to show an attempt at a held-out task, or to work with the task itself."""
    if task is not None and task.split == "held-out":
        raise BadInput(
            "This task is held out and stays sealed: `closeloop task sets` shows the "
            "results of the set. To see the task, set its `split` to dev."
        )


def hide_task(task: Task) -> Task:
    """Return a held-out task reduced to its existence; a dev task unchanged."""
    if task.split != "held-out":
        return task
    return Task(
        id=task_alias(task.digest),
        prompt=HIDDEN_TEXT,
        split=task.split,
        ambiguous=task.ambiguous,
        digest=task.digest,
        grading=task.grading,
    )


def hide_attempt(row: AttemptRow, sealed: Collection[str]) -> AttemptRow:
    """Return an attempt without what it reveals of a sealed task."""
    if row.task_digest is None or row.task_digest not in sealed:
        return row
    return replace(
        row,
        title=task_alias(row.task_digest),
        detail=row.detail and HIDDEN_TEXT,
        task=task_alias(row.task_digest),
        repo=None,
        cause=row.cause and HIDDEN_TEXT,
        outcome_cause=row.outcome_cause and HIDDEN_TEXT,
        reason=row.reason and HIDDEN_TEXT,
    )


def hide_measurement(measurement: Measurement) -> Measurement:
    """Return the numbers and which rules matched, without the evidence."""
    return replace(
        measurement,
        findings=tuple(
            replace(finding, message=HIDDEN_TEXT, places=(), lane=None)
            for finding in measurement.findings
        ),
        unmeasured=tuple(replace(item, reason=HIDDEN_TEXT) for item in measurement.unmeasured),
        lanes=(),
        modes=tuple(replace(tag, reason=HIDDEN_TEXT) for tag in measurement.modes),
        ending=measurement.ending and replace(measurement.ending, reason=HIDDEN_TEXT),
    )


def hide_proof(proof: Proof, task: Task) -> Proof:
    """Return only whether a held-out task is sound."""
    if task.split != "held-out":
        return proof
    reasons = (HIDDEN_TEXT,) if proof.reasons else ()
    return replace(
        proof, task=task_alias(task.digest), reasons=reasons, before=None, reference=None
    )


def hide_results(results: ExperimentResults) -> ExperimentResults:
    """Return an experiment's results as they may be printed."""
    sealed = held_out_digests(results.tasks)
    if not sealed:
        return results
    aliases = {task.id: task_alias(task.digest) for task in results.tasks if task.digest in sealed}
    hidden_attempts = {row.id for row in results.attempts if row.task_digest in sealed}
    return replace(
        results,
        tasks=tuple(hide_task(task) for task in results.tasks),
        attempts=tuple(hide_attempt(row, sealed) for row in results.attempts),
        measurements={
            name: hide_measurement(measurement) if name in hidden_attempts else measurement
            for name, measurement in results.measurements.items()
        },
        insights=tuple(
            insight for insight in results.insights if insight.attempt not in hidden_attempts
        ),
        skipped={
            aliases.get(name, name): HIDDEN_TEXT if name in aliases else reason
            for name, reason in results.skipped.items()
        },
    )


def split_results(results: ExperimentResults) -> tuple[ExperimentResults, ExperimentResults]:
    """Return the results of dev tasks and of held-out ones, which are hidden already."""
    sealed = held_out_digests(results.tasks)
    dev, held_out = (
        replace(
            results,
            tasks=tuple(task for task in results.tasks if (task.digest in sealed) is is_sealed),
            attempts=tuple(
                row for row in results.attempts if (row.task_digest in sealed) is is_sealed
            ),
            skipped={
                name: reason
                for name, reason in results.skipped.items()
                if is_alias(name) is is_sealed
            },
        )
        for is_sealed in (False, True)
    )
    return dev, held_out


# Choose the tasks to hold out: the newest, or a share of every kind; never part of a family.


TaskFamily = tuple[Task, ...]
TaskTime = Callable[[Task], datetime | None]

NO_AREA = "–"
AREA_DEPTH = 2
_COMMIT_ID = re.compile(r"\b[0-9a-f]{12,40}\b")
_PARENT_TASK = re.compile(r"\btask:([\w.-]+)")


def choose_held_out(
    tasks: Sequence[Task], method: SplitMethod, share: float, when: TaskTime
) -> frozenset[str]:
    """Return the digests of the tasks to hold out. Held-out tasks stay held out.

    Tasks without a check are not chosen: people must see a result to score it.
    """
    if not 0 < share < 1:
        raise BadInput("--share must be more than 0 and less than 1, such as 0.3.")
    all_families = group_families(tasks)
    held_families = [
        family for family in all_families if any(task.split == "held-out" for task in family)
    ]
    free_families = [
        family
        for family in all_families
        if family not in held_families and all(task.acceptance.is_given for task in family)
    ]
    needed_count = max(1, round(share * len(tasks))) - sum(map(len, held_families))
    if needed_count > 0 and len(all_families) < 2:
        raise BadInput(
            "All tasks are about the same work, and one family cannot be split: create more tasks."
        )
    if needed_count > 0 and not free_families:
        raise BadInput("No task with a check is left to hold out: create more tasks.")
    chosen_families = (
        _choose_newest(free_families, needed_count, when)
        if method == "time"
        else _choose_spread(free_families, needed_count)
    )
    if len(held_families) + len(chosen_families) == len(all_families):
        chosen_families = chosen_families[:-1]
    return frozenset(
        task.digest for family in (*held_families, *chosen_families) for task in family
    )


def group_families(tasks: Sequence[Task]) -> list[TaskFamily]:
    """Group tasks that share a commit, a reference or a parent: one would reveal another."""
    root: dict[str, str] = {}

    def find(key: str) -> str:
        while root.setdefault(key, key) != key:
            key = root[key]
        return key

    for task in tasks:
        first_key, *other_keys = _family_keys(task)
        for other_key in other_keys:
            root[find(other_key)] = find(first_key)
    tasks_by_root: dict[str, list[Task]] = {}
    for task in tasks:
        tasks_by_root.setdefault(find(next(_family_keys(task))), []).append(task)
    return [tuple(family) for family in tasks_by_root.values()]


def task_area(task: Task) -> str:
    """Return the part of the repository that the change belongs to, two folders deep."""
    patch = task.reference or task.acceptance.patch
    if patch is None:
        return NO_AREA
    return main_area(file.path for file in parse_patch(patch).files)


def main_area(paths: Iterable[str]) -> str:
    """Return the folder of most of these files."""
    folders = Counter(area_folder(path) for path in paths)
    # Among equals the first by name: the same on every machine.
    return min(folders, key=lambda name: (-folders[name], name)) if folders else NO_AREA


def area_folder(path: str) -> str:
    return "/".join(PurePosixPath(path).parent.parts[:AREA_DEPTH]) or "."


def _family_keys(task: Task) -> Iterator[str]:
    yield f"task:{task.id}"
    yield from (f"task:{name}" for name in _PARENT_TASK.findall(task.origin))
    yield from (f"commit:{name[:12]}" for name in _COMMIT_ID.findall(task.origin))
    if task.reference is not None:
        yield f"reference:{content_digest(task.base, task.reference)}"


def _choose_newest(
    free: Sequence[TaskFamily], needed_count: int, when: TaskTime
) -> list[TaskFamily]:
    """Return the latest work, least likely to be known to a model and most like future work."""

    def age(family: TaskFamily) -> tuple[float, str]:
        times = [moment.timestamp() for task in family if (moment := when(task)) is not None]
        # Tasks without a date count as old.
        return (-max(times, default=0.0), family[0].digest)

    return _fill_share(sorted(free, key=age), needed_count)


def _fill_share(ordered: Sequence[TaskFamily], needed_count: int) -> list[TaskFamily]:
    chosen_families: list[TaskFamily] = []
    for family in ordered:
        missing_count = needed_count - sum(map(len, chosen_families))
        # Half a family too many is preferred to half a family too few.
        if len(family) <= 2 * missing_count:
            chosen_families.append(family)
    return chosen_families


def _choose_spread(free: Sequence[TaskFamily], needed_count: int) -> list[TaskFamily]:
    """Return evenly spaced families, sorted by kind: each kind gives its share."""
    total = sum(map(len, free))
    ordered = sorted(free, key=lambda family: (_family_stratum(family), family[0].digest))
    chosen_families: list[TaskFamily] = []
    seen_count = chosen_count = 0
    for family in ordered:
        seen_count += len(family)
        if needed_count > 0 and chosen_count + len(family) / 2 <= needed_count * seen_count / total:
            chosen_families.append(family)
            chosen_count += len(family)
    return chosen_families


def _family_stratum(family: TaskFamily) -> tuple[tuple[str, ...], str]:
    tags = {tag for task in family for tag in task.tags}
    return tuple(sorted(tags)), task_area(family[0])


SPLIT_NAMES: tuple[TaskSplit, ...] = ("dev", "held-out")
RECENT_DAYS = 90
RECENT_COMMITS = 300


class TaskFile(Record):
    """A task and the file that it is read from."""

    task: Task
    path: Path


class SetFacts(Record):
    """Statistics of one set, without its content."""

    name: TaskSplit
    tasks: int
    areas: dict[str, int]
    tags: dict[str, int]
    oldest: Time | None = None
    newest: Time | None = None
    median_days: float | None = None
    """Median age in days of the tasks' base commits."""
    gone: int = 0
    """Tasks that change a file which no longer exists."""
    gone_tasks: tuple[str, ...] = ()
    """Those of the dev set."""
    uncovered: float | None = None
    """Share of the changes of the last 90 days in areas without a task."""


def load_task_files(settings: Settings, root: Path) -> list[TaskFile]:
    """Load every task of the project, with its file."""
    from closeloop.sandbox.workspaces import resolve_commit
    from closeloop.tasks.task_files import load_tasks_by_file

    tasks_by_file = load_tasks_by_file(
        root / settings.tasks, root, resolve_commit, settings.commands.setup
    )
    return [TaskFile(task=task, path=path) for path, task in tasks_by_file.items()]


def visible_tasks(
    tasks: Sequence[Task], *, named: bool, held_out: bool, reason: str | None
) -> list[Task]:
    """Return the tasks that a run may use: dev tasks, or with a reason held-out ones."""
    chosen_tasks = list(tasks)
    if not named:
        wanted_split: TaskSplit = "held-out" if held_out else "dev"
        chosen_tasks = [task for task in tasks if task.split == wanted_split]
        if not chosen_tasks:
            raise BadInput(
                f"There are no {wanted_split} tasks: `closeloop task split` holds some "
                "out, and `split` in a task's file sets where it belongs."
            )
    unseals = any(task.split == "held-out" for task in chosen_tasks)
    if unseals and not (reason and reason.strip()):
        if held_out:
            raise BadInput("REASON is empty: say why the held-out tasks are run.")
        raise BadInput(
            "Some of these tasks are held out: run them with `closeloop task unseal REASON`."
        )
    if any(task.split == "held-out" and not task.acceptance.is_given for task in chosen_tasks):
        raise BadInput(
            "A held-out task has no check, and reviewers cannot see held-out tasks to "
            "score them: add an 'acceptance', or make it a dev task."
        )
    if reason is not None and not unseals:
        raise BadInput("A reason is only for held-out tasks, and these are none.")
    return chosen_tasks


def describe_sets(tasks: Sequence[Task], now: datetime) -> list[SetFacts]:
    """Return statistics of each set that has tasks."""
    when = read_base_times(tasks)
    present, work = _files_at_head(tasks), _recent_changes(tasks)
    return [
        _describe_set(
            name, [task for task in tasks if task.split == name], (now, when, present, work)
        )
        for name in SPLIT_NAMES
        if any(task.split == name for task in tasks)
    ]


def find_renewable_age(facts: Sequence[SetFacts]) -> float | None:
    """Return the median age of the oldest set; None if there are no recent commits to mine."""
    ages = (fact.median_days for fact in facts if fact.uncovered is not None)
    return max((age for age in ages if age is not None), default=None)


def read_base_times(tasks: Sequence[Task]) -> TaskTime:
    """Return a lookup of the time of a task's base commit; None if it is unknown.

    The time of a commit that closeloop made of copied files says nothing of the work in it.
    """
    from closeloop.tasks.task_files import COPIED_COMMIT_TIME

    copied_time = datetime.fromisoformat(COPIED_COMMIT_TIME)
    times_by_commit: dict[str, datetime] = {}
    for repo in list_local_repos(tasks):
        bases = sorted({task.base for task in tasks if task.repo == repo and task.base})
        log_output = try_git_text(
            repo,
            *("log", "--no-walk=unsorted", "--ignore-missing", "--format=%H %ct", "--stdin"),
            stdin="\n".join(bases),
        )
        for line in log_output.split("\n"):
            name, _, seconds = line.partition(" ")
            if seconds.strip().isdecimal():
                times_by_commit[name] = datetime.fromtimestamp(int(seconds), UTC)
    known_times = {
        name: commit_time
        for name, commit_time in times_by_commit.items()
        if commit_time != copied_time
    }
    return lambda task: known_times.get(task.base or "")


SetContext = tuple[datetime, TaskTime, Mapping[str, frozenset[str]], Mapping[str, Counter[str]]]
"""The current time, tasks' base times, and by repository the files at HEAD and recent work."""


def _describe_set(name: TaskSplit, tasks: Sequence[Task], context: SetContext) -> SetFacts:
    now, when, present, work = context
    times = sorted(moment for task in tasks if (moment := when(task)) is not None)
    stale_tasks = [task.id for task in tasks if _changes_lost_file(task, present)]
    areas = Counter(task_area(task) for task in tasks)
    recent: Counter[str] = sum(work.values(), Counter())
    changed_folders = {folder for task in tasks for folder in _touched_folders(task)}
    uncovered_changes = sum(
        count for folder, count in recent.items() if folder not in changed_folders
    )
    return SetFacts(
        name=name,
        tasks=len(tasks),
        areas=dict(areas.most_common()),
        tags=dict(Counter(tag for task in tasks for tag in task.tags).most_common()),
        oldest=times[0] if times else None,
        newest=times[-1] if times else None,
        median_days=median((now - moment).days for moment in times) if times else None,
        gone=len(stale_tasks),
        gone_tasks=tuple(stale_tasks) if name == "dev" else (),
        uncovered=uncovered_changes / recent.total() if recent and changed_folders else None,
    )


def _touched_folders(task: Task) -> Iterator[str]:
    """Yield the folders that the reference and the hidden tests touch."""
    for patch in filter(None, (task.reference, task.acceptance.patch)):
        yield from (area_folder(file.path) for file in parse_patch(patch).files)


def _changes_lost_file(task: Task, present: Mapping[str, frozenset[str]]) -> bool:
    """Return whether the reference changes a file that the repository no longer has."""
    files = present.get(task.repo or "")
    if task.reference is None or files is None:
        return False
    changed = (file for file in parse_patch(task.reference).files if file.status == "changed")
    return any(file.path not in files for file in changed)


def _files_at_head(tasks: Sequence[Task]) -> dict[str, frozenset[str]]:
    files_by_repo = {}
    for repo in list_local_repos(tasks):
        listing = try_git_text(repo, "ls-tree", "-r", "-z", "--name-only", "HEAD")
        if listing:
            files_by_repo[repo] = frozenset(listing.split("\0"))
    return files_by_repo


def _recent_changes(tasks: Sequence[Task]) -> dict[str, Counter[str]]:
    """Count recent changes by folder, for each repository."""
    changes_by_repo = {}
    for repo in list_local_repos(tasks):
        log = ("log", f"--since={RECENT_DAYS}.days", f"-n{RECENT_COMMITS}", "--no-merges")
        listing = try_git_text(repo, *log, "--name-only", "-z", "--format=", "HEAD")
        changes_by_repo[repo] = Counter(
            area_folder(path.strip()) for path in listing.split("\0") if path.strip()
        )
    return changes_by_repo


def list_local_repos(tasks: Sequence[Task]) -> list[str]:
    """Return the tasks' repositories that are on this machine."""
    from closeloop.tasks.task_files import is_repository_address

    repos = {task.repo for task in tasks if task.repo and not is_repository_address(task.repo)}
    return sorted(repo for repo in repos if _is_folder(repo))


def _is_folder(name: str) -> bool:
    """Return whether it is a folder; a name may be too long or invalid for a file."""
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False
