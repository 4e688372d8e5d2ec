"""Whether an action breaks a constraint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from closeloop.process.edit_contents import (
    deletes_path,
    diff_edit,
    is_scratch_path,
    is_source_path,
    is_test_source,
    list_code_changes,
)
from closeloop.process.measures.verification import is_run
from closeloop.process.rule_helpers import cache_on_reading
from closeloop.process.standing_changes import StandingChanges
from closeloop.process.text_words import MAX_TEXT_CHARS
from closeloop.process.user_constraints import (
    ALL_TESTS,
    MAX_CONSTRAINTS,
    ConstraintKind,
    UserConstraint,
    parse_constraints,
)
from closeloop.records.inspection import (
    LaneReading,
    TraceStep,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    Command,
    Edit,
    Message,
)
from closeloop.text.wording import matches_globs

# How long what the user forbade or demanded holds.


@cache_on_reading
def list_constraints(lane: LaneReading) -> Sequence[UserConstraint]:
    """What the user's messages state, each with where it ends."""
    messages = lane.users
    placed_constraints: list[UserConstraint] = []
    for place, message in enumerate(messages):
        for one in parse_constraints(message.text):
            if len(placed_constraints) < MAX_CONSTRAINTS:
                end = _find_constraint_end(one, messages[place + 1 : place + 1 + MAX_CONSTRAINTS])
                placed_constraints.append(_place_constraint(one, message.number, end))
    return placed_constraints


def constraints_from_brief(brief: str, number: int) -> Sequence[UserConstraint]:
    """What a brief states holds for the whole of the child's work."""
    return [_place_constraint(one, number, None) for one in parse_constraints(brief)]


def _place_constraint(one: UserConstraint, number: int, until: int | None) -> UserConstraint:
    return UserConstraint(
        kind=one.kind,
        words=one.words,
        objects=one.objects,
        passing=one.passing,
        number=number,
        until=until,
    )


def _find_constraint_end(one: UserConstraint, later: Sequence[Message]) -> int | None:
    """Where the user speaks of the object again, other than to forbid it once more."""
    words = _LIFTING_WORDS.get(one.kind, ()) or tuple(
        name.rstrip("*/").rpartition("/")[2].lower().removeprefix("the ").rstrip("s")
        for name in one.objects
    )
    for message in later:
        is_repeated = any(other.kind == one.kind for other in parse_constraints(message.text))
        if is_repeated:
            continue
        if one.passing or (one.kind == "only" and message.intent not in ("answer", "interrupt")):
            return message.number
        lowercase_text = message.text[:MAX_TEXT_CHARS].lower()
        if any(word in lowercase_text for word in words if word):
            return message.number
    return None


_LIFTING_WORDS: dict[ConstraintKind, tuple[str, ...]] = {
    "dependencies": ("install", "dependenc", "package", "librar"),
    "no new files": ("create", "new file", "write"),
    "signature": ("signature", "parameter", "argument"),
    "tabs": ("tabs", "spaces", "indent"),
    "spaces": ("tabs", "spaces", "indent"),
}


_FUNCTION_SIGNATURE = re.compile(
    r"\b(?:def|function|func|fn)\s+(?:\([^()]{0,80}\)\s*)?(\w+)\s*\(([^()]{0,600})\)"
)
_ADDS_PACKAGE = re.compile(
    r"\b(?:(?:npm|yarn|pnpm|bun|poetry|uv|pdm|cargo|bundle)\s+add|npm\s+(?:install|i)|go\s+get"
    r"|composer\s+require)\s+(?:(?!-g\b|--global\b|--help\b|--dry-run\b)-\S+\s+)*(?!-)[\w@]"
)
_VERSION_OPERATOR = r"(?:[=<>~!]=|[<>@])"
_QUOTED_PACKAGE = re.compile(
    rf"['\"]([A-Za-z][\w.-]*)(?:\[[^\]]*\])?\s*{_VERSION_OPERATOR}[^'\"]*['\"],?\Z"
)
_TOML_PACKAGE = re.compile(r"([A-Za-z][\w-]*)\s*=\s*(?:\"[\^~>=<*]*\d|\"\*|\{.*\bversion\b)")
_REQUIREMENT_LINE = re.compile(r"([A-Za-z][\w.-]*)(?:\[.*\])?\s*(?:[=<>~!]=|\Z)")
_JSON_PACKAGE = re.compile(r'"([@\w./-]+)":\s*"(?:[\^~>=]*\d|workspace:|\*|latest|git|npm:)')
_MANIFESTS = (
    (re.compile(r"requirements[\w-]*\.(?:txt|in)\Z"), (_REQUIREMENT_LINE,)),
    (re.compile(r"package\.json\Z"), (_JSON_PACKAGE,)),
    (re.compile(r"(?:pyproject\.toml|setup\.py|setup\.cfg)\Z"), (_QUOTED_PACKAGE, _TOML_PACKAGE)),
    (re.compile(r"Cargo\.toml\Z"), (_TOML_PACKAGE,)),
    (re.compile(r"go\.mod\Z"), (re.compile(r"(?:require\s+)?(\S+\.\S+)\s+v\d"),)),
    (re.compile(r"Gemfile\Z"), (re.compile(r"gem\s+['\"]([\w-]+)"),)),
)
_NOT_PACKAGES = frozenset(
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
_RUN_DEMAND = re.compile(r"\b(?:execut\w+|run|bash\w*|python)\b", re.IGNORECASE)
_MAX_LINE_CHARS = 300
_MIN_INDENTED_LINES = 3
"""Indented lines that an edit must add to say how it indents."""


class ConstraintBreach(Record):
    """An action, and what of it the constraint forbids."""

    step: TraceStep
    what: str


def find_breaches(
    constraint: UserConstraint, lane: LaneReading, standing: StandingChanges
) -> Iterator[ConstraintBreach]:
    """Actions of a lane that break the constraint while it holds, in order."""
    end = constraint.until or float("inf")
    if constraint.kind == "reproduce first":
        yield from _find_early_changes(constraint, lane, standing)
        return
    finder = _BREACH_FINDERS.get(constraint.kind)
    if finder is None:
        yield from _find_file_breaches(constraint, lane, standing)
        return
    steps = lane.commands if constraint.kind == "command" else lane.steps
    for step in steps if constraint.kind in _COMMAND_KINDS else lane.edits:
        if constraint.number < step.number < end:
            what = finder(constraint, step)
            if what is not None:
                yield ConstraintBreach(step=step, what=what)


def _find_early_changes(
    constraint: UserConstraint, lane: LaneReading, standing: StandingChanges
) -> Iterator[ConstraintBreach]:
    """Changes of code that was there, where nothing had been run."""
    end = constraint.until or float("inf")
    trials = (step for step in lane.steps if constraint.number < step.number and is_run(step))
    run = next(trials, None)
    if run is None and not lane.commands and not _RUN_DEMAND.search(constraint.words):
        # It may have had no way to run anything.
        return
    end = min(end, run.number) if run is not None else end
    answered = max((step.index for step in lane.steps if step.failed is not None), default=-1)
    for step in list_code_changes(lane):
        path = next((path for path in step.written if _was_there(path, standing)), None)
        if path is not None and step.index <= answered and constraint.number < step.number < end:
            yield ConstraintBreach(step=step, what=f"changed {path} before anything had been run")


def _was_there(path: str, standing: StandingChanges) -> bool:
    """The file was there before the agent came, and stays changed; a test may be the very step."""
    return (
        path in standing.changed
        and path not in standing.made
        and is_source_path(path)
        and not is_scratch_path(path)
        and not is_test_source(path)
    )


def _find_file_breaches(
    constraint: UserConstraint, lane: LaneReading, standing: StandingChanges
) -> Iterator[ConstraintBreach]:
    """Changes of files that the constraint protects."""
    end = constraint.until or float("inf")
    is_forbidden: dict[str, bool] = {}
    for step in lane.changes:
        if step.event.lane == lane.lane.id and constraint.number < step.number < end:
            for path in step.written:
                if path not in is_forbidden:
                    is_forbidden[path] = _is_forbidden_change(path, constraint, standing)
            hit = next((path for path in step.written if is_forbidden[path]), None)
            gone = hit is not None and deletes_path(step, hit)
            if hit is not None and (constraint.kind != "keep" or gone):
                yield ConstraintBreach(step=step, what=f"{'deleted' if gone else 'changed'} {hit}")
    for path, step in standing.handed_in.items() if constraint.kind != "keep" else ():
        in_time = step.event.lane == lane.lane.id and constraint.number < step.number < end
        if in_time and _is_forbidden_change(path, constraint, standing):
            yield ConstraintBreach(step=step, what=f"changed {path}")


def _is_forbidden_change(path: str, constraint: UserConstraint, standing: StandingChanges) -> bool:
    """The constraint forbids to change this file, and the change stands."""
    if path not in standing.changed and path not in standing.handed_in:
        return False
    if is_scratch_path(path):
        return False
    kind, objects = constraint.kind, constraint.objects
    is_own_file = path in standing.made and standing.made[path] > constraint.number
    if kind == "no edits":
        return is_source_path(path) or not _is_about_code(constraint.words.lower())
    if kind == "no new files":
        return is_own_file and (not objects or matches_globs(path, objects))
    if ALL_TESTS in objects:
        return is_test_source(path) and not is_own_file
    inside = _matches_objects(path, objects)
    return not inside if kind == "only" else inside and not is_own_file


def _is_about_code(words: str) -> bool:
    """`Do not write code yet` leaves a plan to be written."""
    return "code" in words and not any(word in words for word in ("file", "any", "change", "edit"))


def _matches_objects(path: str, objects: Sequence[str]) -> bool:
    """One of the names means it, from any folder on; most are no globs, which take longer."""
    globs = [name for name in objects if any(sign in name for sign in "*?[")]
    folders = f"/{path}/"
    return any(f"/{name.strip('/')}/" in folders for name in objects if name not in globs) or (
        bool(globs) and matches_globs(path, globs_in_any_folder(globs))
    )


def globs_in_any_folder(globs: Sequence[str]) -> tuple[str, ...]:
    """The globs, from any folder on: people name files by their last part."""
    return tuple(glob for one in globs for glob in (one, f"**/{one}"))


def _find_command_breach(constraint: UserConstraint, step: TraceStep) -> str | None:
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


def _find_package_breach(constraint: UserConstraint, step: TraceStep) -> str | None:
    event = step.event
    if isinstance(event, Command):
        if step.failed is not True and (match := _ADDS_PACKAGE.search(event.command)):
            start = event.command[match.start() :].split("\n", 1)[0]
            return f"ran `{start[:60]}`"
        return None
    if isinstance(event, Edit) and step.changed:
        for name, patterns in _MANIFESTS:
            if name.search(event.path):
                added = _list_added_packages(event, patterns)
                return f"added {added[0]} to {step.written[0]}" if added else None
    return None


def _list_added_packages(event: Edit, patterns: Sequence[re.Pattern[str]]) -> list[str]:
    lines = diff_edit(event)
    # A file that was written anew lists what was there before, too.
    if lines is None or event.action == "create":
        return []
    removed_text = " ".join(lines.removed)
    short_lines = [line for line in lines.added if len(line) < _MAX_LINE_CHARS]
    package_matches = (pattern.match(line) for line in short_lines for pattern in patterns)
    names = [one[1] for one in package_matches if one]
    return [name for name in names if name not in removed_text and name not in _NOT_PACKAGES]


def _find_signature_breach(constraint: UserConstraint, step: TraceStep) -> str | None:
    event = step.event
    if not isinstance(event, Edit) or not step.changed or not is_source_path(event.path):
        return None
    if event.before is not None and event.after is not None:
        before, after = event.before, event.after
    elif (lines := diff_edit(event)) is not None:
        before, after = "\n".join(lines.removed), "\n".join(lines.added)
    else:
        return None
    old_signatures = {
        name: "".join(given.split()) for name, given in _FUNCTION_SIGNATURE.findall(before)
    }
    for name, given in _FUNCTION_SIGNATURE.findall(after):
        applies = name in constraint.objects or (
            not constraint.objects and not name.startswith(("_", "test"))
        )
        if applies and name in old_signatures and old_signatures[name] != "".join(given.split()):
            return f"changed the signature of {name}"
    return None


def _find_indentation_breach(constraint: UserConstraint, step: TraceStep) -> str | None:
    event = step.event
    if not isinstance(event, Edit) or not step.changed or not is_source_path(event.path):
        return None
    if event.after is not None:
        lines = event.after[:20_000].splitlines()
    else:
        patch = (event.patch or "")[:20_000].splitlines()
        lines = [line[1:] for line in patch if line.startswith("+")]
    tabs = sum(line.startswith("\t") for line in lines)
    spaces = sum(line.startswith("  ") and not line.lstrip().startswith("*") for line in lines)
    wrong, right = (spaces, tabs) if constraint.kind == "tabs" else (tabs, spaces)
    if wrong < _MIN_INDENTED_LINES or right:
        return None
    return f"indented {step.written[0]} with {'spaces' if constraint.kind == 'tabs' else 'tabs'}"


_COMMAND_KINDS = ("command", "dependencies")
_BREACH_FINDERS: dict[ConstraintKind, Callable[[UserConstraint, TraceStep], str | None]] = {
    "command": _find_command_breach,
    "dependencies": _find_package_breach,
    "signature": _find_signature_breach,
    "tabs": _find_indentation_breach,
    "spaces": _find_indentation_breach,
}
