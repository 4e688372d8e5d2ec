"""The sets of a project, dev and held-out: what is in them, and whether they still fit the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from closeloop.git import try_text
from closeloop.model.errors import BadInput
from closeloop.model.patches import parse
from closeloop.model.record import Record, Time
from closeloop.model.task import Split, Task
from closeloop.tasks.files import Resolve, is_address, load_files
from closeloop.tasks.split import When, area, folder

SETS: tuple[Split, ...] = ("dev", "held-out")
RECENT_DAYS = 90
RECENT_COMMITS = 300


class Kept(Record):
    """A task and the file that it is read from."""

    task: Task
    path: Path


class SetFacts(Record):
    """One set, in numbers; never what is in it."""

    name: Split
    tasks: int
    areas: dict[str, int]
    tags: dict[str, int]
    oldest: Time | None = None
    newest: Time | None = None
    median_days: float | None = None
    """Age of the commits that the tasks start from."""
    gone: int = 0
    """Tasks that change a file which is no longer there."""
    gone_tasks: tuple[str, ...] = ()
    """Which, of dev."""
    uncovered: float | None = None
    """Of what was changed in the last 90 days, the share in areas without a task."""


def read_kept(place: Path, root: Path, resolve: Resolve) -> list[Kept]:
    """Every task of a folder, with its file."""
    found = load_files(place, root, resolve)
    return [Kept(task=task, path=path) for path, task in found.items()]


def admitted(
    tasks: Sequence[Task], *, named: bool, held_out: bool, reason: str | None
) -> list[Task]:
    """The tasks that a run may have: those of dev, or with a reason those held out."""
    if named and held_out:
        raise BadInput("Give either --held-out, or the names of tasks.")
    chosen = list(tasks)
    if not named:
        wanted: Split = "held-out" if held_out else "dev"
        chosen = [task for task in tasks if task.split == wanted]
        if not chosen:
            raise BadInput(
                f"There are no {wanted} tasks: `closeloop sets split` holds some out, "
                "`split` in a task's file says where it belongs."
            )
    looks = any(task.split == "held-out" for task in chosen)
    if looks and not (reason and reason.strip()):
        raise BadInput("Held-out tasks are among these: say why you look, with --reason.")
    if reason is not None and not looks:
        raise BadInput("--reason is for held-out tasks, and none is among these: add --held-out.")
    return chosen


def facts_of(tasks: Sequence[Task], now: datetime) -> list[SetFacts]:
    """What there is to say of each set that has tasks."""
    when = times_of(tasks)
    present, work = _present(tasks), _recent(tasks)
    return [
        _facts(name, [task for task in tasks if task.split == name], (now, when, present, work))
        for name in SETS
        if any(task.split == name for task in tasks)
    ]


def times_of(tasks: Sequence[Task]) -> When:
    """When the commit was made that a task starts from; None where that is not known."""
    known: dict[str, datetime] = {}
    for repo in _local(tasks):
        bases = sorted({task.base for task in tasks if task.repo == repo and task.base})
        told = try_text(
            repo,
            *("log", "--no-walk=unsorted", "--ignore-missing", "--format=%H %ct", "--stdin"),
            stdin="\n".join(bases),
        )
        for line in told.split("\n"):
            name, _, seconds = line.partition(" ")
            if seconds.strip().isdecimal():
                known[name] = datetime.fromtimestamp(int(seconds), UTC)
    return lambda task: known.get(task.base or "")


Surroundings = tuple[datetime, When, Mapping[str, frozenset[str]], Mapping[str, Counter[str]]]
"""The time, when tasks began, and by repository the files at HEAD and where work went on."""


def _facts(name: Split, tasks: Sequence[Task], around: Surroundings) -> SetFacts:
    now, when, present, work = around
    times = sorted(moment for task in tasks if (moment := when(task)) is not None)
    gone = [task.id for task in tasks if _lost(task, present)]
    areas = Counter(area(task) for task in tasks)
    recent: Counter[str] = sum(work.values(), Counter())
    touched = {place for task in tasks for place in _touched(task)}
    elsewhere = sum(count for place, count in recent.items() if place not in touched)
    return SetFacts(
        name=name,
        tasks=len(tasks),
        areas=dict(areas.most_common()),
        tags=dict(Counter(tag for task in tasks for tag in task.tags).most_common()),
        oldest=times[0] if times else None,
        newest=times[-1] if times else None,
        median_days=median((now - moment).days for moment in times) if times else None,
        gone=len(gone),
        gone_tasks=tuple(gone) if name == "dev" else (),
        uncovered=elsewhere / recent.total() if recent and touched else None,
    )


def _touched(task: Task) -> Iterator[str]:
    """The folders that the reference and the hidden tests are about."""
    for patch in filter(None, (task.reference, task.acceptance.patch)):
        yield from (folder(file.path) for file in parse(patch).files)


def _lost(task: Task, present: Mapping[str, frozenset[str]]) -> bool:
    """Whether the reference changes a file that the repository no longer has."""
    files = present.get(task.repo or "")
    if task.reference is None or files is None:
        return False
    changed = (file for file in parse(task.reference).files if file.status == "changed")
    return any(file.path not in files for file in changed)


def _present(tasks: Sequence[Task]) -> dict[str, frozenset[str]]:
    found = {}
    for repo in _local(tasks):
        listed = try_text(repo, "ls-tree", "-r", "-z", "--name-only", "HEAD")
        if listed:
            found[repo] = frozenset(listed.split("\0"))
    return found


def _recent(tasks: Sequence[Task]) -> dict[str, Counter[str]]:
    """How often files of each folder were changed lately."""
    found = {}
    for repo in _local(tasks):
        log = ("log", f"--since={RECENT_DAYS}.days", f"-n{RECENT_COMMITS}", "--no-merges")
        listed = try_text(repo, *log, "--name-only", "-z", "--format=", "HEAD")
        found[repo] = Counter(folder(path.strip()) for path in listed.split("\0") if path.strip())
    return found


def _local(tasks: Sequence[Task]) -> list[str]:
    repos = {task.repo for task in tasks if task.repo and not is_address(task.repo)}
    return sorted(repo for repo in repos if _is_folder(repo))


def _is_folder(name: str) -> bool:
    """A name may be too long for a file, or hold what no file's name may."""
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False
