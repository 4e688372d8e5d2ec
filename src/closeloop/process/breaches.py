"""Whether an action breaks a constraint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from closeloop.model.globs import matches
from closeloop.model.record import Record
from closeloop.model.steps import LaneReading, Step
from closeloop.model.trace import Command, Edit
from closeloop.process.constraints import TESTS, Constraint, Kind
from closeloop.process.edits import deletes, is_scratch, is_source, is_test, lines_of
from closeloop.process.standing import Standing

_FUNCTION = re.compile(
    r"\b(?:def|function|func|fn)\s+(?:\([^()]{0,80}\)\s*)?(\w+)\s*\(([^()]{0,600})\)"
)
_ADDS_PACKAGE = re.compile(
    r"\b(?:(?:npm|yarn|pnpm|bun|poetry|uv|pdm|cargo|bundle)\s+add|npm\s+(?:install|i)|go\s+get"
    r"|composer\s+require)\s+(?:(?!-g\b|--global\b|--help\b|--dry-run\b)-\S+\s+)*(?!-)[\w@]"
)
_VERSIONED = r"(?:[=<>~!]=|[<>@])"
_PINNED = re.compile(rf"['\"]([A-Za-z][\w.-]*)(?:\[[^\]]*\])?\s*{_VERSIONED}[^'\"]*['\"],?\Z")
_VALUED = re.compile(r"([A-Za-z][\w-]*)\s*=\s*(?:\"[\^~>=<*]*\d|\"\*|\{.*\bversion\b)")
_LISTED = re.compile(r"([A-Za-z][\w.-]*)(?:\[.*\])?\s*(?:[=<>~!]=|\Z)")
_IN_JSON = re.compile(r'"([@\w./-]+)":\s*"(?:[\^~>=]*\d|workspace:|\*|latest|git|npm:)')
_MANIFESTS = (
    (re.compile(r"requirements[\w-]*\.(?:txt|in)\Z"), (_LISTED,)),
    (re.compile(r"package\.json\Z"), (_IN_JSON,)),
    (re.compile(r"(?:pyproject\.toml|setup\.py|setup\.cfg)\Z"), (_PINNED, _VALUED)),
    (re.compile(r"Cargo\.toml\Z"), (_VALUED,)),
    (re.compile(r"go\.mod\Z"), (re.compile(r"(?:require\s+)?(\S+\.\S+)\s+v\d"),)),
    (re.compile(r"Gemfile\Z"), (re.compile(r"gem\s+['\"]([\w-]+)"),)),
)
_NO_PACKAGE = frozenset(
    (
        "version",
        "edition",
        "rust-version",
        "python",
        "requires-python",
        "node",
        "npm",
        "line-length",
    )
)
_LONGEST_LINE = 300
_LEAST_LINES = 3
"""Indented lines that an edit must add to say how it indents."""


class Breach(Record):
    """An action, and what of it the constraint forbids."""

    step: Step
    what: str


def breaches(constraint: Constraint, lane: LaneReading, standing: Standing) -> Iterator[Breach]:
    """Actions of a lane that break the constraint while it holds, in order."""
    end = constraint.until or float("inf")
    look = _LOOKS.get(constraint.kind)
    if look is None:
        bad: dict[str, bool] = {}
        for step in lane.changes:
            if step.event.lane == lane.lane.id and constraint.number < step.number < end:
                for path in step.written:
                    if path not in bad:
                        bad[path] = _is_bad(path, constraint, standing)
                hit = next((path for path in step.written if bad[path]), None)
                if hit is not None and (constraint.kind != "keep" or deletes(step)):
                    yield Breach(
                        step=step, what=f"{'deleted' if deletes(step) else 'changed'} {hit}"
                    )
        return
    steps = lane.commands if constraint.kind == "command" else lane.steps
    for step in steps if constraint.kind in _OF_COMMANDS else lane.edits:
        if constraint.number < step.number < end:
            what = look(constraint, step)
            if what is not None:
                yield Breach(step=step, what=what)


def _is_bad(path: str, constraint: Constraint, standing: Standing) -> bool:
    """The constraint forbids to change this file, and the change stands."""
    if path not in standing.changed or is_scratch(path):
        return False
    kind, objects = constraint.kind, constraint.objects
    own = path in standing.made and standing.made[path] > constraint.number
    if kind == "no edits":
        return is_source(path) or not _is_of_code(constraint.words.lower())
    if kind == "no new files":
        return own and (not objects or matches(path, objects))
    if TESTS in objects:
        return is_test(path) and not own
    inside = _is_inside(path, objects)
    return not inside if kind == "only" else inside and not own


def _is_of_code(words: str) -> bool:
    """`Do not write code yet` leaves a plan to be written."""
    return "code" in words and not any(word in words for word in ("file", "any", "change", "edit"))


def _is_inside(path: str, objects: Sequence[str]) -> bool:
    """One of the names means it, from any folder on; most are no globs, which take longer."""
    globs = [name for name in objects if any(sign in name for sign in "*?[")]
    folders = f"/{path}/"
    return any(f"/{name.strip('/')}/" in folders for name in objects if name not in globs) or (
        bool(globs) and matches(path, anywhere(globs))
    )


def anywhere(globs: Sequence[str]) -> tuple[str, ...]:
    """The globs, from any folder on: people name files by their last part."""
    return tuple(glob for one in globs for glob in (one, f"**/{one}"))


def _command(constraint: Constraint, step: Step) -> str | None:
    event, words = step.event, constraint.objects
    if not isinstance(event, Command) or step.doing is None or words[0] not in event.command:
        return None
    if not any(program.split()[0] == words[0] for program in step.doing.programs if program):
        return None
    if event.stopped == "not executed" or "--dry-run" in event.command or "--help" in event.command:
        return None
    options = r"(?:\s+(?:-[Cc]\s+\S+|--?[\w-]+(?:=\S+)?))*"
    line = rf"(?<![\w./-]){re.escape(words[0])}"
    if len(words) > 1:
        line += rf"{options}\s+{re.escape(words[1])}(?![\w-])"
    for more in words[2:]:
        wanted = r"(?:--force(?:-with-lease)?|-f)" if more == "--force" else re.escape(more)
        line += rf"[^;&|\n]{{0,200}}?(?<![\w/]){wanted}(?![\w/])"
    return f"ran `{' '.join(words)}`" if re.search(line, event.command) else None


def _package(constraint: Constraint, step: Step) -> str | None:
    event = step.event
    if isinstance(event, Command):
        if step.failed is not True and (found := _ADDS_PACKAGE.search(event.command)):
            start = event.command[found.start() :].split("\n", 1)[0]
            return f"ran `{start[:60]}`"
        return None
    if isinstance(event, Edit) and step.changed:
        for name, patterns in _MANIFESTS:
            if name.search(event.path):
                added = _packages(event, patterns)
                return f"added {added[0]} to {step.written[0]}" if added else None
    return None


def _packages(event: Edit, patterns: Sequence[re.Pattern[str]]) -> list[str]:
    lines = lines_of(event)
    # A file that was written anew lists what was there before, too.
    if lines is None or event.action == "create":
        return []
    gone = " ".join(lines.removed)
    short = [line for line in lines.added if len(line) < _LONGEST_LINE]
    found = (pattern.match(line) for line in short for pattern in patterns)
    names = [one[1] for one in found if one]
    return [name for name in names if name not in gone and name not in _NO_PACKAGE]


def _signature(constraint: Constraint, step: Step) -> str | None:
    event = step.event
    if not isinstance(event, Edit) or not step.changed or not is_source(event.path):
        return None
    if event.before is not None and event.after is not None:
        before, after = event.before, event.after
    elif (lines := lines_of(event)) is not None:
        before, after = "\n".join(lines.removed), "\n".join(lines.added)
    else:
        return None
    old = {name: "".join(given.split()) for name, given in _FUNCTION.findall(before)}
    for name, given in _FUNCTION.findall(after):
        meant = name in constraint.objects or (
            not constraint.objects and not name.startswith(("_", "test"))
        )
        if meant and name in old and old[name] != "".join(given.split()):
            return f"changed the signature of {name}"
    return None


def _indentation(constraint: Constraint, step: Step) -> str | None:
    event = step.event
    if not isinstance(event, Edit) or not step.changed or not is_source(event.path):
        return None
    if event.after is not None:
        lines = event.after[:20_000].splitlines()
    else:
        patch = (event.patch or "")[:20_000].splitlines()
        lines = [line[1:] for line in patch if line.startswith("+")]
    tabs = sum(line.startswith("\t") for line in lines)
    spaces = sum(line.startswith("  ") and not line.lstrip().startswith("*") for line in lines)
    wrong, right = (spaces, tabs) if constraint.kind == "tabs" else (tabs, spaces)
    if wrong < _LEAST_LINES or right:
        return None
    return f"indented {step.written[0]} with {'spaces' if constraint.kind == 'tabs' else 'tabs'}"


_OF_COMMANDS = ("command", "dependencies")
_LOOKS: dict[Kind, Callable[[Constraint, Step], str | None]] = {
    "command": _command,
    "dependencies": _package,
    "signature": _signature,
    "tabs": _indentation,
    "spaces": _indentation,
}
