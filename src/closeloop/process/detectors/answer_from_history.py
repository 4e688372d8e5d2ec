"""The agent looked the answer up in later commits, upstream or in a newer release.

## What it looks for

- A look beyond the present commit (`git log --all`, `git reflog`, `git fsck`), and then the
  content of a commit that it showed (`git show`, `checkout`, `cherry-pick`, `diff`). The look
  alone is not enough.
- The change itself fetched from upstream: a pull request, a commit or a patch at its address.
- A release of the very project fetched (`pip download`, or `pip install` of a given version),
  told by the folders in which the agent changes code.
- The very file that is changed, read from an installed copy in `site-packages`.

Plain `git log`, `git blame`, `git diff` and `git show` of what they showed are how one learns why
code is as it is. It keeps quiet where the user speaks of commits, branches, releases, pull
requests and the like.

## Why it matters

In an evaluation the result says nothing about the agent then. Closeloop's own workspaces hold no
later commits; imported runs may have had them.

## Bad

```text
#1  user: "2 * Point raises a TypeError. Please repair it."
#2  git log --all --oneline    9f3c2ab Support 2 * Point (#1234)
#3  git show 9f3c2ab
#4  edit geometry/point.py
```

## Good

```text
#2  git blame geometry/point.py
#3  pytest -q tests/test_point.py    TypeError: unsupported operand
#4  edit geometry/point.py
```

## When it can be measured

In every trace that holds events.

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

It advises: in everyday work, looking at other branches and at upstream is often right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from closeloop.process.edit_contents import is_source_path, list_trace_changes
from closeloop.process.rule_helpers import collect_user_requests, contains_request, truncate_line
from closeloop.process.text_words import mentions_any
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
    TraceStep,
)
from closeloop.records.trace import (
    Command,
    Read,
    ToolUse,
)

rule = Rule(
    name="answer-from-history",
    version=1,
    about="The agent looked the answer up in later commits, upstream or in a newer release.",
    severity="error",
)

MAX_OUTPUT_CHARS = 100_000
_HISTORY_WORDS = ("--all", "reflog", "fsck", "--remotes", "--branches", "log -g")
_WHOLE_HISTORY = re.compile(
    r"\bgit\b[^\n;|&]{0,80}?\s(?:reflog|fsck|log\s+-g)\b"
    r"|\bgit\b[^\n;|&]{0,80}?\s(?:log|rev-list|show-branch)\b"
    r"[^\n;|&]{0,200}?\s--(?:all|remotes|branches)\b"
)
_COMMIT_USE = re.compile(
    r"\bgit\b[^\n;|&]{0,80}?\s"
    r"(?:show|checkout|cherry-pick|diff|restore|cat-file|format-patch|archive)\s([^\n;|&]{0,400})"
)
_COMMIT_HASH = re.compile(r"\b[0-9a-f]{7,40}\b")
_UPSTREAM_URL = re.compile(
    r"(?:github|gitlab)\.com/[\w.-]+/[\w.-]+/(?:-/)?(?:pull|commit|merge_requests|compare)/[\w./-]+"
    r"|api\.github\.com/repos/[\w.-]+/[\w.-]+/(?:pulls|commits)/\w+"
    r"|patch-diff\.githubusercontent\.com/\S+"
)
_PIP_COMMAND = re.compile(r"\bpip3?\s+(?:download|install)\s([^\n;|&]*)")
_NEWER_RELEASE = re.compile(r"(?:^|\s)(?:-U|--upgrade|--target|-t|--no-deps|-d|--dest)\b|[=>]=")
_VERSION_START = re.compile(r"[=<>~!\[]")
_FETCH_WORDS = ("curl ", "wget ", "requests.get", "urlopen", "http ")
_HISTORY_WISH = re.compile(
    r"\b(?:git|commits?|branch\w*|merge|rebase|histor\w+|pull request|prs?|release\w*|changelog"
    r"|tags?|cherry-?pick|revert|upstream|backport|bisect|recover|worktree|diff|review)\b"
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Content taken from where the finished work may lie, unless the user spoke of it."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    findings = [
        finding for lane in reading.lanes.values() for finding in _findings_in_lane(reading, lane)
    ]
    if findings and contains_request(collect_user_requests(reading), _HISTORY_WISH):
        return []
    return sorted(findings, key=lambda finding: finding.events)


def _findings_in_lane(reading: TraceReading, lane: LaneReading) -> Iterator[Finding]:
    looks: list[TraceStep] = []
    copies: list[TraceStep] = []
    for step in lane.commands:
        command = step.event.command if isinstance(step.event, Command) else ""
        if "git" in command:
            yield from _git_findings(step, command, looks)
        if "pip" in command or "site-packages/" in command:
            copies.append(step)
    for step in lane.tools:
        arguments = step.event.arguments if isinstance(step.event, ToolUse) else None
        address = arguments.get("url") if arguments else None
        if isinstance(address, str):
            yield from _upstream_findings(step, address)
    copies += [
        step
        for step in chain(lane.reads, lane.failing)
        if isinstance(step.event, Read) and "site-packages/" in step.event.path
    ]
    if copies:
        yield from _copy_findings(copies, _changed_sources(reading))


def _git_findings(step: TraceStep, command: str, looks: list[TraceStep]) -> Iterator[Finding]:
    if mentions_any(command, _HISTORY_WORDS) and _WHOLE_HISTORY.search(command):
        looks.append(step)
    elif looks and (match := _COMMIT_USE.search(command)):
        yield from _taken_commit_findings(step, _COMMIT_HASH.findall(match[1]), looks)
    if "http" in command and mentions_any(command, _FETCH_WORDS):
        yield from _upstream_findings(step, command)


def _taken_commit_findings(
    step: TraceStep, commits: Sequence[str], looks: Sequence[TraceStep]
) -> Iterator[Finding]:
    """A commit that a look beyond the present one had shown."""
    for look in looks[-20:]:
        shown = (getattr(look.event, "output", None) or "")[:MAX_OUTPUT_CHARS]
        commit = next((name for name in commits if name[:7] in shown), None)
        if commit is not None:
            message = f"Commit {commit[:12]} was looked at after the whole history had shown it"
            yield _build_finding(step, message, 0.8, look)
            return


def _upstream_findings(step: TraceStep, text: str) -> Iterator[Finding]:
    match = None if step.failed else _UPSTREAM_URL.search(text)
    if match is not None:
        yield _build_finding(
            step, f"The change itself was looked up at {truncate_line(match[0])}", 0.8
        )


def _changed_sources(reading: TraceReading) -> set[str]:
    return {
        path
        for step in list_trace_changes(reading)
        for path in step.written
        if is_source_path(path)
    }


def _copy_findings(steps: Sequence[TraceStep], changed: set[str]) -> Iterator[Finding]:
    """Another copy of the very project: a release that was fetched, or an installed one."""
    folders = {part for path in changed for part in path.split("/")[:-1]}
    ends = {
        path[at:] for path in changed for at in _path_starts(path) if "site-packages" not in path
    }
    for step in steps:
        command = step.event.command if isinstance(step.event, Command) else ""
        word = None if step.failed else _find_own_release(command, folders)
        inner = [path.rpartition("site-packages/") for path in _raw_read_paths(step)]
        if word is not None:
            yield _build_finding(
                step, f"The project itself was fetched as a release: {truncate_line(word)}", 0.8
            )
        elif any(cut and "/" in name and name in ends for _, cut, name in inner):
            yield _build_finding(
                step,
                f"An installed copy of the project was read: {truncate_line(inner[0][2])}",
                0.6,
            )


def _raw_read_paths(step: TraceStep) -> tuple[str, ...]:
    """Paths as they were given: an installed copy may have been taken for the project itself."""
    if isinstance(step.event, Read):
        return (step.event.path,)
    return step.doing.read if step.doing else ()


def _path_starts(path: str) -> list[int]:
    """Where a path's last four parts begin."""
    cuts = [0, *(at + 1 for at, sign in enumerate(path) if sign == "/")]
    return cuts[-5:]


def _find_own_release(command: str, folders: set[str]) -> str | None:
    match = _PIP_COMMAND.search(command)
    if match is None or not ("download" in match[0] or _NEWER_RELEASE.search(match[1])):
        return None
    for word in match[1].split():
        name = _VERSION_START.split(word, maxsplit=1)[0].replace("-", "_").lower()
        if name in folders and not word.startswith(("-", ".", "/")):
            return word
    return None


def _build_finding(
    step: TraceStep, message: str, confidence: float, look: TraceStep | None = None
) -> Finding:
    events = [step.number, *([look.number] if look else [])]
    return make_finding(rule, f"{message}.", events, lane=step.event.lane, confidence=confidence)
