"""The agent looked up the solution in later commits, upstream or in a newer release.

## What it looks for

- The agent lists commits beyond the current one (`git log --all`, `git reflog`, `git fsck`), opens
  one of them (`git show`, `checkout`, `cherry-pick`, `diff`), and then changes a file that this
  commit changes. Commits of the session itself, commits that plain `git log` also lists, and
  commits below `HEAD` in the listing are not later commits.
- The agent downloads the change itself from upstream (a pull request, a commit or a patch of the
  same project) before it changes code of the project.
- The agent downloads a release of the same project (`pip download`, or `pip install` of a given
  version) and reads it. The project is recognised by the folders in which the agent changes code.

Plain `git log`, `git blame`, `git diff`, `git show HEAD`, the agent's own commits, and copies that
were installed before are normal ways to understand code. Nothing is reported if the user mentions
commits, branches, releases or pull requests.

## Why it matters

In an evaluation, such a result does not measure the agent. Closeloop's own workspaces contain no
later commits; imported runs may.

## Bad

```text
#1  user: "2 * Point raises a TypeError. Please repair it."
#2  git log --all --oneline    9f3c2ab Support 2 * Point (#1234)
#3  git show 9f3c2ab           diff --git a/geometry/point.py …
#4  edit geometry/point.py
```

## Good

```text
#2  git blame geometry/point.py
#3  pytest -q tests/test_point.py    TypeError: unsupported operand
#4  edit geometry/point.py
```

## When it can be measured

In every trace with events.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.answer-from-history]
enabled = false

[[silence]]
rule = "answer-from-history"
task = "backport-*"
reason = "upstream is the source there"
```

## How sure it is

It is advisory: in daily work, reading other branches and upstream is often right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from closeloop.process.edit_contents import is_source_path, list_trace_changes
from closeloop.process.rule_helpers import (
    cache_on_reading,
    collect_user_requests,
    contains_request,
    list_git_verbs,
    truncate_line,
)
from closeloop.process.text_facts import mentions_any
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.record import Record
from closeloop.records.trace import Command, Read, ToolUse
from closeloop.text.wording import compile_lazily

rule = Rule(
    name="answer-from-history",
    version=2,
    about="The agent looked up the solution in later commits, upstream or in a newer release.",
    severity="error",
)

MAX_OUTPUT_CHARS = 100_000
MAX_STEPS_LATER = 20
_HEAD_MARK = compile_lazily(r"\((?:[^()\n]*, )?HEAD\b[^()\n]*\)")
_READERS = frozenset(("unzip", "tar", "cat", "sed", "grep", "diff", "head", "less", "python", "rg"))
_HISTORY_WORDS = ("--all", "reflog", "fsck", "--remotes", "--branches", "log -g")
_WHOLE_HISTORY = compile_lazily(
    r"\bgit\b[^\n;|&]{0,80}?\s(?:reflog|fsck|log\s+-g)\b"
    r"|\bgit\b[^\n;|&]{0,80}?\s(?:log|rev-list|show-branch)\b"
    r"[^\n;|&]{0,200}?\s--(?:all|remotes|branches)\b"
)
_COMMIT_USE = compile_lazily(
    r"\bgit\b[^\n;|&]{0,80}?\s"
    r"(?:show|checkout|cherry-pick|diff|restore|cat-file|format-patch|archive)\s([^\n;|&]{0,400})"
)
_COMMIT_HASH = compile_lazily(r"\b[0-9a-f]{7,40}\b")
_UPSTREAM_URL = compile_lazily(
    r"(?:github|gitlab)\.com/[\w.-]+/[\w.-]+/(?:-/)?(?:pull|commit|merge_requests|compare)/[\w./-]+"
    r"|api\.github\.com/repos/[\w.-]+/[\w.-]+/(?:pulls|commits)/\w+"
    r"|patch-diff\.githubusercontent\.com/\S+"
)
_PIP_COMMAND = compile_lazily(r"\bpip3?\s+(?:download|install)\s([^\n;|&]*)")
_NEWER_RELEASE = compile_lazily(r"(?:^|\s)(?:-U|--upgrade|--target|-t|--no-deps|-d|--dest)\b|[=>]=")
_VERSION_START = compile_lazily(r"[=<>~!\[]")
_FETCH_WORDS = ("curl ", "wget ", "requests.get", "urlopen", "http ")
_HISTORY_WISH = compile_lazily(
    r"\b(?:git|commits?|branch\w*|merge|rebase|histor\w+|pull request|prs?|release\w*|changelog"
    r"|tags?|cherry-?pick|revert|upstream|backport|bisect|recover|worktree|diff|review)\b"
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find content taken from where the finished work may be, unless the user mentioned it."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    findings = [
        finding for lane in reading.lanes.values() for finding in _findings_in_lane(reading, lane)
    ]
    if findings and contains_request(collect_user_requests(reading), _HISTORY_WISH):
        return []
    return sorted(findings, key=lambda finding: finding.events)


def _findings_in_lane(reading: TraceReading, lane: LaneReading) -> Iterator[Finding]:
    history_steps: list[TraceStep] = []
    fetches: list[TraceStep] = []
    known_commits: set[str] = set()
    for step in lane.commands:
        command = step.event.command if isinstance(step.event, Command) else ""
        if "git" in command:
            yield from _git_findings(reading, step, command, history_steps, known_commits)
        if "pip" in command and not step.failed:
            fetches.append(step)
    for step in lane.tools:
        arguments = step.event.arguments if isinstance(step.event, ToolUse) else None
        address = arguments.get("url") if arguments else None
        if isinstance(address, str):
            yield from _upstream_findings(reading, step, address)
    for step in fetches:
        yield from _release_findings(reading, lane, step)


def _git_findings(
    reading: TraceReading,
    step: TraceStep,
    command: str,
    history_steps: list[TraceStep],
    known_commits: set[str],
) -> Iterator[Finding]:
    if mentions_any(command, _HISTORY_WORDS) and _WHOLE_HISTORY.search(command):
        history_steps.append(step)
    elif not list_git_verbs(step).isdisjoint(("log", "commit", "blame", "rev-parse")):
        known_commits.update(name[:7] for name in _COMMIT_HASH.findall(_output_of(step)))
    elif history_steps and (match := _COMMIT_USE.search(command)):
        names = [name for name in _COMMIT_HASH.findall(match[1]) if name[:7] not in known_commits]
        history_step = _find_later_commit(names, history_steps)
        if history_step is not None and _names_changed_file(reading, step):
            message = f"Commit {names[0][:12]} was opened after the whole history had listed it"
            yield _build_finding(step, message, 0.8, history_step)
    if "http" in command and mentions_any(command, _FETCH_WORDS) and "POST" not in command:
        yield from _upstream_findings(reading, step, command)


def _output_of(step: TraceStep) -> str:
    event = step.event
    return (event.output or "")[:MAX_OUTPUT_CHARS] if isinstance(event, Command) else ""


def _find_later_commit(
    names: Sequence[str], history_steps: Sequence[TraceStep]
) -> TraceStep | None:
    """Return the step that showed one of these commits, above `HEAD`."""
    for history_step in history_steps[-20:]:
        output = _output_of(history_step)
        head = _HEAD_MARK.search(output)
        later_output = output[: output.rfind("\n", 0, head.start()) + 1] if head else output
        if any(name[:7] in later_output for name in names):
            return history_step
    return None


def _names_changed_file(reading: TraceReading, step: TraceStep) -> bool:
    """Whether the commit's diff or the command names a file that the agent changes later."""
    event = step.event
    text = f"{event.command}\n{_output_of(step)}" if isinstance(event, Command) else ""
    return any(
        last > step.number and name in text for name, last in _last_changes(reading).files.items()
    )


def _upstream_findings(reading: TraceReading, step: TraceStep, text: str) -> Iterator[Finding]:
    match = None if step.failed else _UPSTREAM_URL.search(text)
    if match is not None and _is_own_project(reading, match[0], step.number):
        yield _build_finding(
            step, f"The change itself was looked up at {truncate_line(match[0])}", 0.8
        )


def _is_own_project(reading: TraceReading, address: str, number: int) -> bool:
    """Whether the address is a repository named like a folder in which code is changed next."""
    parts = re.split(r"[/.]", address.lower())
    folders = _last_changes(reading).folders
    return any(folders.get(part.replace("-", "_"), 0) > number for part in parts if len(part) > 2)


class _LastChanges(Record):
    """Names of source files and their parent folders, with the last change of each."""

    files: Mapping[str, int]
    folders: Mapping[str, int]


@cache_on_reading
def _last_changes(reading: TraceReading) -> _LastChanges:
    files: dict[str, int] = {}
    folders: dict[str, int] = {}
    for step in list_trace_changes(reading):
        for path in filter(is_source_path, step.written):
            *folder_names, name = path.split("/")
            files[name] = step.number
            for folder in folder_names:
                package = folder.lower().replace("-", "_")
                folders.update(dict.fromkeys((package, *package.split("__")), step.number))
    return _LastChanges(files=files, folders=folders)


def _release_findings(
    reading: TraceReading, lane: LaneReading, step: TraceStep
) -> Iterator[Finding]:
    """Find a release of the project itself that was fetched and then read."""
    command = step.event.command if isinstance(step.event, Command) else ""
    spec = _find_own_release(command, _last_changes(reading).folders, step.number)
    if spec is None:
        return
    name = _VERSION_START.split(spec, maxsplit=1)[0]
    for later in lane.steps[step.index + 1 : step.index + 1 + MAX_STEPS_LATER]:
        if _reads_release(later, name):
            message = (
                f"A release of the project itself was downloaded and read: {truncate_line(spec)}"
            )
            yield _build_finding(step, message, 0.8, later)
            return


def _reads_release(step: TraceStep, name: str) -> bool:
    """Whether it opens the fetched archive, or a file of the installed copy."""
    if step.failed:
        return False
    if any("site-packages/" in path for path in _raw_read_paths(step)):
        return True
    programs = step.effect.programs if step.effect else ()
    command = step.event.command if isinstance(step.event, Command) else ""
    is_reader = not _READERS.isdisjoint(programs)
    return is_reader and (f"{name}-" in command or f"/{name}/" in command or ".whl" in command)


def _raw_read_paths(step: TraceStep) -> tuple[str, ...]:
    """Return the paths as written, since a normalised one may hide an installed copy."""
    if isinstance(step.event, Read):
        return (step.event.path,)
    return step.effect.read if step.effect else ()


def _find_own_release(command: str, folders: Mapping[str, int], number: int) -> str | None:
    match = _PIP_COMMAND.search(command)
    if match is None or not ("download" in match[0] or _NEWER_RELEASE.search(match[1])):
        return None
    for requirement in match[1].split():
        name = _VERSION_START.split(requirement, maxsplit=1)[0].replace("-", "_").lower()
        if folders.get(name, 0) > number and not requirement.startswith(("-", ".", "/")):
            return requirement
    return None


def _build_finding(
    step: TraceStep, message: str, confidence: float, history_step: TraceStep | None = None
) -> Finding:
    events = [step.number, *([history_step.number] if history_step else [])]
    return make_finding(rule, f"{message}.", events, lane=step.event.lane, confidence=confidence)
