"""A name that the agent made up: nothing had shown it, and a failing result says so."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter

from ahocorasick_rs import AhoCorasick

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.record import Record
from closeloop.model.steps import LaneReading, Reading, Step
from closeloop.model.trace import AnyEvent, Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.process.edits import lines_of
from closeloop.process.missing_names import Missing, Sort, missing_names
from closeloop.process.telling import short

rule = Rule(
    name="hallucinated-name",
    version=2,
    about="A name is used that nothing ever showed, and a failing result says it does not exist.",
    severity="warning",
    mode="hallucinated API",
    gates=True,
)
MOST = 40
"""So many names of one lane are looked into."""
_LOOKED_INTO = 200
_BACK = 40
"""So many earlier changes may have brought a name in."""
_TEXT = 100_000
_LEAST_LINES = 3

_DEFINITION = (
    # def NAME, class NAME, func (s *Server) NAME, const NAME, …
    r"\b(?:def|class|function|fn|func|const|let|var|type|interface|struct|enum|trait|mod"
    r"|macro_rules!)\s+(?:\([^()]{0,80}\)\s*)?NAME\b"
    # NAME = 1, self.NAME: int = 1
    r"|(?:^|[\s.{,(])NAME\s*(?::\s*[\w\[\]., |]{1,80})?\s*=(?!=)"
    # A method of a JavaScript class.
    r"|(?:^|\s)NAME\s*\([^()]{0,200}\)\s*(?::[^{};]{0,60})?\{"
    # setattr(a, "NAME", 1), {"NAME": 1}
    r"|['\"]NAME['\"]\s*[,:)]"
)


# A bare word may be a slip of the pen; a call of what was never there is more than that.
_BEHIND: Mapping[Sort, re.Pattern[str]] = {
    "name": re.compile(r"\s*\("),
    "keyword": re.compile(r"\s*="),
}
_NO_MORE = re.compile(r"(?!\w)")
_NO_WORD, _NO_OPTION = re.compile(r"\W?\Z"), re.compile(r"[^\w-]?\Z")
"""What may stand before a name, and before an option."""


class _Used(Record):
    missing: Missing
    failing: Step
    step: Step
    """What brought the name in."""


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """One finding for each name, where it first failed."""
    used: dict[str, _Used] = {}
    for lane in reading.lanes.values():
        for one in islice(_uses(lane), MOST):
            used.setdefault(one.missing.name, one)
    if not used:
        return []
    reads = [step for lane in reading.lanes.values() for step in lane.steps if step.read]
    if reads and all(_shown(step.event) is None for step in reads):
        return Unmeasured(rule=rule.name, reason="the trace does not hold what the agent was shown")
    _drop_known(reading, used)
    findings = [_finding(one) for one in used.values()]
    return sorted(findings, key=lambda finding: min(finding.events))


def _uses(lane: LaneReading) -> Iterator[_Used]:
    """Names said not to exist that this lane itself had brought in."""
    looked_into: set[str] = set()
    steps = lane.steps if None in [step.failed for step in lane.steps] else lane.failing
    for step in steps:
        if step.failed is False:
            continue
        output = getattr(step.event, "output", None)
        if not output or not (step.failed or _broke_off(step, output)):
            continue
        for missing in missing_names(output):
            if missing.name in looked_into:
                continue
            looked_into.add(missing.name)
            end = bisect_left(lane.changes, step.number, key=attrgetter("event.number"))
            brought = _brought(missing, step, lane.changes[max(0, end - _BACK) : end])
            if brought is not None:
                yield _Used(missing=missing, failing=step, step=brought)
        if len(looked_into) > _LOOKED_INTO:
            return


def _broke_off(step: Step, output: str) -> bool:
    """Where no exit code is known: a program's own last words."""
    shows = step.doing is None or step.doing.searches or bool(step.read)
    return not shows and "Traceback (most recent call last)" in output


def _brought(missing: Missing, failing: Step, changes: Sequence[Step]) -> Step | None:
    if missing.sort == "option":
        return failing if _uses_name(getattr(failing.event, "command", ""), missing) else None
    name = missing.name.rpartition(".")[2]
    for step in reversed(changes):
        if name in _written(step.event) and _uses_name(_added(step.event), missing):
            return step
    return failing if _uses_name(_script(failing.event), missing) else None


def _added(event: AnyEvent) -> str:
    """What an action wrote."""
    if isinstance(event, Edit):
        lines = lines_of(event)
        return "\n".join(lines.added) if lines else event.after or ""
    return _script(event)


def _script(event: AnyEvent) -> str:
    """The program that a command line carries with it; a line or two only ask what is there."""
    if not isinstance(event, Command) or not ("<<" in event.command or " -c " in event.command):
        return ""
    long = event.command.count("\n") + event.command.count(";") >= _LEAST_LINES
    return event.command if long else ""


def _uses_name(text: str, missing: Missing) -> bool:
    name = missing.name
    if missing.sort == "module":
        name = name.rpartition(".")[2]
    if name not in text:
        return False
    behind = _BEHIND.get(missing.sort, _NO_MORE)
    before = _NO_OPTION if missing.sort == "option" else _NO_WORD
    at = text.find(name, 0, _TEXT)
    while at >= 0:
        if before.match(text[at - 1 : at]) and behind.match(text, at + len(name), _TEXT):
            return True
        at = text.find(name, at + 1, _TEXT)
    return False


def _drop_known(reading: Reading, used: dict[str, _Used]) -> None:
    """Leave out what had been shown before, and what the agent defines itself, before or after."""
    ends: dict[str, list[str]] = {}
    for name in used:
        ends.setdefault(name.rpartition(".")[2], []).append(name)
    search = AhoCorasick(list(ends))

    def named(text: str) -> list[_Used]:
        there = set(search.find_matches_as_strings(text[:_TEXT], overlapping=True))
        return [used[name] for end in there for name in ends[end] if name in used]

    for event in reading.trace.events:
        shown = _shown(event)
        for one in named(shown) if shown else ():
            # What an edit replaced was there before it; what a command printed was not.
            if event.number <= one.step.number - (not isinstance(event, Edit)):
                del used[one.missing.name]
        written = _written(event)[:_TEXT]
        for one in named(written) if written else ():
            if _defines(written, one.missing):
                del used[one.missing.name]
        if not used:
            return


def _written(event: AnyEvent) -> str:
    if isinstance(event, Edit):
        return event.after or event.patch or ""
    return event.command if isinstance(event, Command) and "<<" in event.command else ""


def _shown(event: AnyEvent) -> str | None:
    """What the agent, or the user, saw there and had not written itself."""
    if isinstance(event, Read):
        return event.text
    if isinstance(event, Command | ToolUse):
        return event.output
    if isinstance(event, Message):
        return event.text if event.role != "agent" else None
    if isinstance(event, Handoff):
        return f"{event.brief}\n{event.report or ''}"
    if isinstance(event, Edit):
        return event.before if event.patch is None else _context(event.patch[:_TEXT])
    return None


def _context(patch: str) -> str:
    return "\n".join(line for line in patch.splitlines() if not line.startswith("+"))


def _defines(text: str, missing: Missing) -> bool:
    name = re.escape(missing.name.rpartition(".")[2])
    if missing.sort == "keyword":
        made = rf"\bdef\s+\w+\s*\([^()]{{0,600}}\b{name}\b|\*\*\w+|\b{name}\s*:\s*\w"
    else:
        made = _DEFINITION.replace("NAME", name)
    if missing.sort == "name":
        made += rf"|\b(?:import|use)\b[^\n]*\b{name}\b"
    return re.search(made, text, re.MULTILINE) is not None


def _finding(one: _Used) -> Finding:
    where = one.step.written[0] if one.step.written else "a command"
    return found(
        rule,
        f"`{short(one.missing.name, 60)}`, used in {short(where)}, does not exist: "
        f"{short(one.missing.words)}",
        sorted({one.step.number, one.failing.number}),
        lane=one.failing.event.lane,
        confidence=0.9,
    )
