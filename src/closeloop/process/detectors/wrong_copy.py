"""Another copy of the code is run than the one that was changed.

## What it looks for

Python files of the project were changed in one folder, and later runs load the same package from
another folder: their output (a traceback, a warning, the package that a test runner says it tests),
or the earlier output of a script in the same folder, names files below another root, such as the
installed copy. No later run is known to have loaded the changed copy, and the agent continues or
ends; or it changed the code again because of the other copy's output, before it set the path.

Also without file names: a script ran, the code was changed because of its output, then the agent
set the path to the changed copy (`PYTHONPATH`, `pip install -e`), and the same script printed
something else although nothing else was changed, or although changes had made no difference before.

Nothing is reported if

- the agent also wrote to the other copy, installed the changed one before the run or in the same
  command, or set the path of modules;
- a later run printed files of the changed copy, or ran successfully in its folder;
- the command ran elsewhere: in a container, on another machine;
- the agent immediately continued to fix what it had seen, and nothing ran since.

## Why it matters

The output of such a run does not depend on the change: a failure stays however the code is fixed,
and a success means nothing.

## Bad

```text
#4  edit /srv/shop/cart/totals.py
#5  python /srv/reproduce.py     File "/opt/shop/cart/totals.py", line 12: KeyError
#6  edit /srv/shop/cart/totals.py
#7  python /srv/reproduce.py     File "/opt/shop/cart/totals.py", line 12: KeyError
```

## Good

```text
#5  python /srv/reproduce.py     File "/opt/shop/cart/totals.py", line 12: KeyError
#6  PYTHONPATH=/srv python /srv/reproduce.py     total: 12
```

## When it can be measured

If a change names its file by a full path, or from the folder of the project: then only installed
copies are recognised. Only Python is supported.

## Thresholds and silencing

It has no thresholds.

```toml
[[silence]]
rule = "wrong-copy"
task = "installed-*"
reason = "these tests run what is installed"
```

## How sure it is

It may gate.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from closeloop.process.edit_contents import find_created_files, list_code_changes
from closeloop.process.failure_collector import normalise_output
from closeloop.process.rule_helpers import cite_row
from closeloop.process.verification import EVENT_NUMBER, is_run
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit

rule = Rule(
    name="wrong-copy",
    version=5,
    about="Another copy of the code is run than the one that was changed.",
    severity="error",
    gates=True,
)

MAX_OUTPUT_CHARS = 20_000
"""Characters of a run's output that are examined."""
MAX_CITED = 8
MAX_PATHS = 20
"""Changed files, and runs of one script, that are compared."""
_SHOWN_FILE = re.compile(
    r'^\s*(?:File "(/[^"\n]+\.py)", line \d|(/[^\s:"]+\.py):\d+: )', re.MULTILINE
)
"""A file in a traceback or a warning."""
_TESTED_PACKAGE = " installed in '"
_SHOWN_PACKAGE = re.compile(rf"{_TESTED_PACKAGE}(/[^'\n]+)'")
"""The package that a test runner says it tests."""
_UNKNOWN_ROOT = "/?"
"""Stands before a path that was named relative to the folder of the project."""
_ELSEWHERE = re.compile(
    r"\b(?:docker|podman|ssh|kubectl|vagrant|devcontainer|nix|wsl|modal|lima)\b"
)
_REPAIR = re.compile(
    r"\bPYTHONPATH=|\bpip3? install\b|\bsetup\.py (?:develop|install|build)|sys\.path"
    r"|\buv (?:pip|sync)|\bpoetry install"
)
_INSTALL = re.compile(
    r"\bpip3? install\b[^;&|\n]*\s(?:-e\b|--editable\b|\.?\.?/|\.(?:\[|\s|$))"
    r"|\bsetup\.py (?:develop|install)\b|\bpoetry install\b|\buv sync\b"
)
"""Installs the project itself, not only its dependencies."""
_PATH_WORDS = ("PYTHONPATH=", "install", "develop", "uv sync")
_HERE = (".", "$PWD", "$(pwd)")
_SEARCH_PATH = re.compile(r"sys\.path\.(?:insert|append)\([^)\n]{0,40}['\"]([^'\"\n]+)['\"]")
_PYTHON_PATH = re.compile(r"\bPYTHONPATH=[\"']?([^\s\"';&]+)")
_COMMON_FOLDERS = frozenset((
    "src", "lib", "libs", "test", "tests", "unit", "integration", "utils", "util", "common", "core",
    "models", "api", "app", "apps", "helpers", "scripts", "tools", "python", "packages", "main",
))  # fmt: skip
"""Common folder names, which prove nothing if two paths share them."""
_PACKAGE_FILE = "__init__.py"
_LIBRARY_FOLDERS = frozenset(("site-packages", "dist-packages", "vendor", "node_modules"))


class CopyRun(Record):
    """A run of a copy of the code other than the changed one."""

    step: TraceStep
    change: TraceStep
    """The last change of that package before it."""
    path: str
    """The changed file."""
    changed_root: str
    other_root: str
    """Root folders of the two copies."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find runs of a copy other than the changed one, by lane."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    return [finding for lane in reading.lanes.values() for finding in _findings_in_lane(lane)]


def _findings_in_lane(lane: LaneReading) -> Iterator[Finding]:
    copy_runs = list(_runs_of_copies(lane))
    if not copy_runs:
        if late_repair := _find_late_repair(lane):
            yield late_repair
        return
    first = copy_runs[0]
    wrong_steps = [
        copy_run.step for copy_run in copy_runs if copy_run.other_root == first.other_root
    ]
    if _is_settled(lane, first, wrong_steps[-1]) and not _was_misled(lane, first):
        return
    location = f" in {first.changed_root or '/'}" if first.changed_root != _UNKNOWN_ROOT else ""
    yield make_finding(
        rule,
        f"{first.path.removeprefix(f'{_UNKNOWN_ROOT}/')} was changed{location}, but the copy in "
        f"{first.other_root or '/'} was run.",
        [first.change.number, *cite_row([step.number for step in wrong_steps], MAX_CITED)],
        lane=lane.lane.id,
        confidence=0.9,
    )


def _runs_of_copies(lane: LaneReading) -> Iterator[CopyRun]:
    """Yield runs that load files of a copy other than the one changed before.

    The output of the run, or of an earlier run of the same script, names them.
    """
    changes = _list_named_changes(lane)
    if not changes:
        return
    is_rooted = any(next(_full_paths(step), None) for step in changes)
    last_changes: dict[str, TraceStep] = {}
    loaded: dict[frozenset[str], Sequence[str]] = {}
    paths = [path for step in changes for path in _named_paths(step)][:MAX_PATHS]
    settings = [step.number for step in lane.changes if _may_set_root(step, paths)]
    change_count = 0
    for step in lane.commands:
        event = step.event
        if not isinstance(event, Command):
            continue
        if _sets_any_path(event, loaded) and step.number > changes[0].number:
            return
        output = event.output or ""
        names_files = ".py" in output and (is_rooted or "-packages/" in output)
        names_files = names_files or _TESTED_PACKAGE in output
        if not (output if loaded else names_files) or not is_run(step):
            continue
        if _ELSEWHERE.search(event.command):
            continue
        if settings and settings[0] < step.number:
            # An earlier load is no longer evidence.
            loaded, settings = {}, [number for number in settings if number > step.number]
        names, scripts = _name_scripts(step), _locate_scripts(step)
        # A script's own lines do not show what it loads.
        files = _shown_files(output) if names_files else ()
        shown_paths: Sequence[str] = [
            path for path in files if path.rpartition("/")[2] not in names
        ]
        if shown_paths and scripts:
            loaded[scripts] = shown_paths
        shown_paths = shown_paths or loaded.get(scripts, ())
        if not shown_paths:
            continue
        change_count = _note_changes(changes, change_count, step, last_changes)
        yield from _match_copies(step, last_changes, shown_paths)


def _list_named_changes(lane: LaneReading) -> Sequence[TraceStep]:
    """List changes of files that the agent did not create.

    Empty if no run can be recognised as a run of another copy.
    """
    changes = [step for step in list_code_changes(lane) if next(_named_paths(step), None)]
    if not changes:
        return ()
    if not any(next(_full_paths(step), None) for step in changes):
        start = bisect_right(lane.commands, changes[0].number, key=EVENT_NUMBER)
        if not any(map(_names_installed_file, lane.commands[start:])):
            return ()
    created_files = find_created_files(lane.changes)
    return [step for step in changes if created_files.keys().isdisjoint(step.written)]


def _sets_any_path(event: Command, loaded: dict[frozenset[str], Sequence[str]]) -> bool:
    """Whether the project is installed; if a path is set, what was loaded before is void."""
    if loaded and _REPAIR.search(event.command):
        loaded.clear()
    return any(word in event.command for word in _PATH_WORDS[1:]) and bool(
        _INSTALL.search(event.command)
    )


def _note_changes(
    changes: Sequence[TraceStep],
    count: int,
    last_step: TraceStep,
    last_changes: dict[str, TraceStep],
) -> int:
    """Record changes up to a step, each file's last one last; return how many there are."""
    while count < len(changes) and changes[count].number <= last_step.number:
        for path in _named_paths(changes[count]):
            last_changes.pop(path, None)
            last_changes[path] = changes[count]
        count += 1
    return count


def _name_scripts(step: TraceStep) -> frozenset[str]:
    return (
        frozenset(name.rpartition("/")[2] for name in step.effect.runs)
        if step.effect
        else frozenset()
    )


def _locate_scripts(step: TraceStep) -> frozenset[str]:
    """Return the folders of the scripts that it runs, which Python searches first.

    If folders are unknown, return the names of the scripts.
    """
    if step.effect and all(name.startswith("/") for name in step.effect.runs):
        return frozenset(f"{name.rpartition('/')[0]}/" for name in step.effect.runs)
    return _name_scripts(step)


def _match_copies(
    step: TraceStep, changes: dict[str, TraceStep], shown_paths: Sequence[str]
) -> Iterator[CopyRun]:
    """Yield the run if a file that it shows belongs to another copy of what was changed last."""
    for changed, change in reversed(changes.items()):
        for path in shown_paths:
            if roots := _split_roots(changed, path):
                changed_root, other_root = roots
                if not any(
                    _is_of_copy(shown_path, changed_root, _top(changed, changed_root))
                    for shown_path in shown_paths
                ):
                    yield CopyRun(
                        step=step,
                        change=change,
                        path=changed,
                        changed_root=changed_root,
                        other_root=other_root,
                    )
                return


def _is_of_copy(path: str, root: str, package: str) -> bool:
    """Whether it may belong to the changed copy; with an unknown root, it must not be installed."""
    if root != _UNKNOWN_ROOT:
        return path.startswith(f"{root}/{package}/")
    return f"/{package}/" in path and _LIBRARY_FOLDERS.isdisjoint(path.split("/"))


def _top(path: str, root: str) -> str:
    """Return the folder below the root that contains the path."""
    return path[len(root) + 1 :].partition("/")[0]


def _names_installed_file(step: TraceStep) -> bool:
    """Whether the output may name a file of an installed copy; a quick test."""
    output = step.event.output if isinstance(step.event, Command) else None
    return output is not None and ("-packages/" in output or _TESTED_PACKAGE in output)


def _shown_files(output: str) -> Sequence[str]:
    text = output[:MAX_OUTPUT_CHARS]
    paths = [match[1] or match[2] for match in _SHOWN_FILE.finditer(text)]
    if _TESTED_PACKAGE in text:
        paths += [f"{path}/{_PACKAGE_FILE}" for path in _SHOWN_PACKAGE.findall(text)]
    return list(dict.fromkeys(map(posixpath.normpath, paths)))


def _full_paths(step: TraceStep) -> Iterator[str]:
    """Yield changed Python files by full path, if known."""
    if isinstance(step.event, Edit):
        paths: Sequence[str] = (step.event.path,)
    else:
        paths = step.effect.written if step.effect else ()
    return (path for path in paths if path.startswith("/") and path.endswith(".py"))


def _named_paths(step: TraceStep) -> Iterator[str]:
    """Yield changed Python files, also those with paths relative to the project."""
    if isinstance(step.event, Edit):
        paths: Sequence[str] = (step.event.path,)
    else:
        paths = step.effect.written if step.effect else ()
    for path in paths:
        if path.endswith(".py") and "/" in path and not path.startswith(("..", "~", "$")):
            yield path if path.startswith("/") else f"{_UNKNOWN_ROOT}/{path.removeprefix('./')}"


@lru_cache(maxsize=4096)
def _split_roots(changed: str, shown_path: str) -> tuple[str, str] | None:
    """Return the prefixes before the part that two paths share; None if they are one copy."""
    changed_parts, shown_parts = changed.split("/"), shown_path.split("/")
    for shown_index in range(1, len(shown_parts) - 1):
        if shown_parts[shown_index] not in changed_parts:
            continue
        changed_index = changed_parts.index(shown_parts[shown_index])
        if changed_parts[changed_index - 1] == shown_parts[shown_index - 1]:
            if changed_parts[:changed_index] == shown_parts[:shown_index]:
                continue
            return None
        length = _shared_length(changed_parts[changed_index:], shown_parts[shown_index:])
        folders = changed_parts[
            changed_index : changed_index + min(length, len(changed_parts) - changed_index - 1)
        ]
        is_whole = changed_index + length == len(changed_parts) and shown_index + length == len(
            shown_parts
        )
        is_enough = (
            is_whole
            or len(folders) > 1
            or _is_package(changed_parts[:changed_index], folders, shown_parts)
        )
        if changed_parts[1] == _UNKNOWN_ROOT[1:]:
            is_top = shown_parts[shown_index + 1 :] == [_PACKAGE_FILE]
            is_enough = _is_installed(shown_parts) and changed_index == 2 and (is_enough or is_top)
        if is_enough and not _COMMON_FOLDERS.issuperset(folders):
            return "/".join(changed_parts[:changed_index]), "/".join(shown_parts[:shown_index])
        return None
    return None


def _is_installed(folders: Sequence[str]) -> bool:
    return not _LIBRARY_FOLDERS.isdisjoint(folders)


def _is_package(root: Sequence[str], folders: Sequence[str], shown_parts: Sequence[str]) -> bool:
    """Whether one shared folder identifies a copy: the checkout is named after it.

    Folders of one project may share a name, and so may a project and a library that it wraps.
    """
    if not folders or root[1:2] == shown_parts[1:2] or _is_installed(shown_parts):
        return False
    return any(folders[0].strip("_") in name for name in root[-2:])


def _shared_length(changed_parts: Sequence[str], shown_parts: Sequence[str]) -> int:
    length = 0
    for part, shown_part in zip(changed_parts, shown_parts, strict=False):
        if part != shown_part:
            break
        length += 1
    return length


def _is_settled(lane: LaneReading, first: CopyRun, last: TraceStep) -> bool:
    """Whether the other copy was written to, or something may have run the changed one later."""
    if any(
        path.startswith(f"{first.other_root}/") and not path.startswith(f"{first.changed_root}/")
        for step in lane.changes
        for path in _full_paths(step)
    ):
        return True
    later = lane.steps[last.index + 1 :]
    if not later and not any(message.number > last.number for message in lane.messages):
        return True
    return any(_sets_path(step) or _may_run(step, last, first.changed_root) for step in later)


def _was_misled(lane: LaneReading, first: CopyRun) -> bool:
    """Whether the changed copy was changed again because of the other one's output."""
    later = lane.steps[first.step.index + 1 :]
    repair = next((step for step in later if _sets_path(step)), None)
    return repair is not None and any(
        path.startswith(f"{first.changed_root}/")
        for step in list_code_changes(lane)
        if first.step.number < step.number < repair.number
        for path in _named_paths(step)
    )


def _find_late_repair(lane: LaneReading) -> Finding | None:
    """Report a path that was set late, after which the same script printed something else."""
    if not any(map(_may_set_path, lane.changes)) and not any(map(_may_set_path, lane.commands)):
        return None
    created_files = find_created_files(lane.changes)
    changes = [
        step
        for step in list_code_changes(lane)
        if next(_full_paths(step), None) and created_files.keys().isdisjoint(step.written)
    ]
    runs: dict[frozenset[str], list[TraceStep]] = {}
    is_set = False
    paths = list(dict.fromkeys(path for step in changes for path in _full_paths(step)))[:MAX_PATHS]
    for step in lane.steps[changes[0].index + 1 :] if changes else ():
        is_set = is_set or _sets_root(step, paths)
        scripts = _name_scripts(step)
        if not scripts or not isinstance(step.event, Command) or not is_run(step):
            continue
        if not is_set:
            runs.setdefault(scripts, []).append(step)
        elif scripts in runs:
            wrong_runs = runs[scripts][-MAX_PATHS:]
            if not _shows_repair(changes, wrong_runs, step):
                return None
            path = next(_full_paths(changes[0]))
            return make_finding(
                rule,
                f"{path} was changed, but {' '.join(sorted(scripts))} ran without the "
                f"path to it: it was set at #{step.number}, and the output differs "
                "since then.",
                [changes[0].number, *(step.number for step in wrong_runs[:MAX_CITED]), step.number],
                lane=lane.lane.id,
                confidence=0.9,
            )
    return None


def _may_set_path(step: TraceStep) -> bool:
    """Whether a step contains words that setting the path requires; a quick test."""
    if isinstance(step.event, Command):
        return any(word in step.event.command for word in _PATH_WORDS)
    return any("sys.path" in (edit.after or "") for edit in step.edits)


def _shows_repair(
    changes: Sequence[TraceStep], wrong_runs: Sequence[TraceStep], right_run: TraceStep
) -> bool:
    """Whether the path, and not a change of code, made the output differ.

    Code was changed after the first wrong run, and either nothing was changed since the last one or
    changes had made no difference before.
    """
    outputs = [_output_of(step) for step in (*wrong_runs, right_run)]
    if outputs[-1] == outputs[-2] or not _changed_between(changes, wrong_runs[0], right_run):
        return False
    return not _changed_between(changes, wrong_runs[-1], right_run) or any(
        output == later_output
        and output
        and _changed_between(changes, wrong_runs[first], wrong_runs[first + 1 + offset])
        for first, output in enumerate(outputs[:-2])
        for offset, later_output in enumerate(outputs[first + 1 : -1])
    )


def _changed_between(changes: Sequence[TraceStep], first: TraceStep, last: TraceStep) -> bool:
    index = bisect_right(changes, first.number, key=EVENT_NUMBER)
    return index < len(changes) and changes[index].number < last.number


def _output_of(step: TraceStep) -> str:
    event = step.event
    return normalise_output((event.output or "")[-2000:]) if isinstance(event, Command) else ""


def _may_set_root(step: TraceStep, paths: Sequence[str]) -> bool:
    """Whether a step may make modules load from the changed copy; a quick test."""
    if isinstance(step.event, Command) or not _may_set_path(step):
        return False
    names_path = any(_SEARCH_PATH.search(edit.after or "") for edit in step.edits)
    return not names_path or _sets_root(step, paths)


def _sets_root(step: TraceStep, paths: Sequence[str]) -> bool:
    """Whether it makes modules load from the changed copy."""
    event = step.event
    if isinstance(event, Command) and _INSTALL.search(event.command):
        return step.failed is not True
    if isinstance(event, Command):
        search_paths = _PYTHON_PATH.findall(event.command)
    else:
        search_paths = [
            path for edit in step.edits for path in _SEARCH_PATH.findall(edit.after or "")
        ]
    folders = [folder.rstrip("/") for text in search_paths for folder in text.split(":") if folder]
    return any(
        folder in _HERE or path.startswith(f"{folder}/") for folder in folders for path in paths
    )


def _sets_path(step: TraceStep) -> bool:
    if isinstance(step.event, Command) and _REPAIR.search(step.event.command):
        return True
    return any("sys.path" in (edit.after or "") for edit in step.edits)


def _may_run(step: TraceStep, wrong: TraceStep, changed_root: str) -> bool:
    """Whether it printed files of the changed copy, or something else succeeded in its folder."""
    event = step.event
    if not isinstance(event, Command) or not is_run(step):
        return False
    if f'File "{changed_root}/' in (event.output or "")[:MAX_OUTPUT_CHARS]:
        return True
    scripts = {*step.effect.runs} if step.effect else set()
    if scripts and wrong.effect and scripts <= {*wrong.effect.runs}:
        return False
    return step.failed is not True
