"""Steps that people labelled: the trajectories of sola-st/llm-agents-study, as traces.

A folder of that study holds, for each of three agents, `<agent>_csv/<relation>/<run>.csv` (a label
a row) and `trajectories/<agent>/parsed/<view>/<run>` (the steps as text). Row j of `action_action`
relates action j to action j + 1.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from closeloop.records.record import Record
from closeloop.records.trace import AnyEvent, Command, Edit, Lane, Read, Thought, ToolUse, Trace
from closeloop.traces.tool_calls import CallOrigin, event_from_call

AGENTS = ("autocoderover", "openhands", "repairagent")
_ADDED = {"insertions": "new_lines", "modifications": "modified_line"}
_REFUSED = (
    "Error:",
    "Failure:",
    "ERROR:",
    "Your fix did not target",
    "The fix you passed is empty",
)
_FAILING = re.compile(r"There are (\d+) failing test cases")


class Run(Record):
    """One trajectory, with the labels of its steps."""

    agent: str
    name: str
    trace: Trace
    steps: list[tuple[int, ...]]
    """Numbers of the events of each step."""
    actions: list[str]
    """Each step's action as the study writes it."""
    labels: dict[str, list[str]]
    """By relation."""


class _Told(Record):
    thought: str
    action: str
    result: str


def runs(folder: Path) -> Iterator[Run]:
    """All trajectories of the folder that have labels, in a fixed order."""
    for agent in AGENTS:
        for path in sorted((folder / f"{agent}_csv" / "action_action").glob("*.csv")):
            views = folder / "trajectories" / agent / "parsed"
            named = [*views.glob(f"thoughts_actions/{path.stem}*")]
            named += views.glob(f"thoughts_actions/experiment_*_{path.stem}")
            if named:
                told = list(_steps(views, named[0].name))
                labels = {
                    kind.name: (kind / path.name).read_text(encoding="utf-8").split()[1:]
                    for kind in sorted((folder / f"{agent}_csv").iterdir())
                    if kind.name != "actions_categories" and (kind / path.name).exists()
                }
                yield _run(agent, path.stem, told, labels)


def _steps(views: Path, name: str) -> Iterator[_Told]:
    """Thought, action and result of each step, from two of the study's views."""
    results = _parts(views / "results_actions" / name, "Result at iteration")
    for number, text in enumerate(_parts(views / "thoughts_actions" / name, "iteration")):
        # The one agent names both parts on lines of their own, the others put them in one.
        parts = re.split(r"; Action=|\nAction at Iteration \d+: ?", text, maxsplit=1)
        result = results[number] if number < len(results) else ""
        cut = re.split(r"\n?; (?:Next action|Action at iteration)|\nAction at Iteration", result)
        yield _Told(
            thought=parts[0].removeprefix(" Thought=").strip(),
            action=parts[-1].strip().removesuffix("---").strip(),
            result=cut[0].strip(),
        )


def _parts(path: Path, word: str) -> list[str]:
    """What stands under `word 0:`, `word 1:`, … each looked for after the one before."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    parts: list[str] = []
    at = -1
    while found := re.compile(
        rf"^(?:Thought (?:and Action )?at )?{word} {len(parts) + (at >= 0)}:", re.I | re.M
    ).search(text, max(at, 0)):
        if at >= 0:
            parts.append(text[at : found.start()])
        at = found.end()
    return [*parts, text[at:]] if at >= 0 else []


def _run(agent: str, name: str, told: list[_Told], labels: dict[str, list[str]]) -> Run:
    events: list[AnyEvent] = []
    steps = []
    for step in told:
        events.append(Thought(number=len(events) + 1, lane="root", text=step.thought))
        made = list(_events(agent, step, len(events) + 1))
        events += made
        steps.append(tuple(event.number for event in made))
    trace = Trace(reader="people", reader_version=1, lanes=(Lane(id="root"),), events=tuple(events))
    actions = [step.action for step in told]
    return Run(agent=agent, name=name, trace=trace, steps=steps, actions=actions, labels=labels)


def _events(agent: str, step: _Told, number: int) -> Iterator[AnyEvent]:
    place: dict[str, Any] = {"number": number, "lane": "root"}
    call = _call(step.action)
    refused = next((True for word in _REFUSED if word in step.result[:300]), False)
    if call is None:
        refused |= "is not precise" in step.result[:100]
        yield ToolUse(**place, name=step.action, output=step.result, ok=False if refused else None)
    elif agent == "openhands":
        yield _with_result(event_from_call(*call, CallOrigin(**place)), step.result, refused)
    elif call[0] == "write_fix":
        yield from _fix(call[1], step.result, refused, place)
    elif call[0] == "read_range":
        given = call[1]
        yield Read(
            **place,
            path=str(given.get("filepath")),
            first_line=_number(given.get("startline")),
            last_line=_number(given.get("endline")),
            text=step.result,
            ok=not refused,
            error=step.result if refused else None,
        )
    elif call[0] == "run_tests":
        yield Command(**place, command="mvn test", output=step.result, exit_code=_exit(step.result))
    else:
        yield ToolUse(**place, name=call[0], arguments=call[1], output=step.result, ok=not refused)


def _call(action: str) -> tuple[str, dict[str, Any]] | None:
    """A tool's name and arguments, where the action is written as such."""
    try:
        given = ast.literal_eval(action)
        arguments = given.get("args", given.get("arguments"))
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        return str(given["name"]), dict(arguments)
    except (SyntaxError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _with_result(event: AnyEvent, result: str, refused: bool) -> AnyEvent:
    known: dict[str, Any] = {name: getattr(event, name) for name in event.__struct_fields__}
    if isinstance(event, Command):
        return Command(**known | {"output": result})
    if isinstance(event, Read):
        lines = known | {"text": result, "ok": not refused, "error": result if refused else None}
        return Read(**lines)
    if isinstance(event, Edit):
        return Edit(**known | {"ok": not refused, "error": result if refused else None})
    return event


def _fix(
    given: Mapping[str, Any], result: str, refused: bool, place: dict[str, Any]
) -> Iterator[AnyEvent]:
    """A fix is written, and where it is accepted the tests are run on it."""
    files = [one for one in given.get("changes_dicts") or () if isinstance(one, dict)]
    yield Edit(
        **place,
        path=" ".join(str(one.get("file_name")) for one in files),
        before=json.dumps([_place(one) for one in files]),
        after="\n".join(line for one in files for line in _added(one)),
        ok=not refused,
        error=result if refused else None,
    )
    if not refused:
        place = place | {"number": place["number"] + 1}
        yield Command(**place, command="mvn test", output=result, exit_code=_exit(result))


def _place(one: Mapping[str, Any]) -> list[Any]:
    """Where the fix goes: what it names of the file as it is."""
    changes = [
        (kind, change.get("line_number"))
        for kind in _ADDED
        for change in one.get(kind) or ()
        if isinstance(change, dict)
    ]
    return [one.get("target_lines"), one.get("deletions") or [], changes]


def _added(one: Mapping[str, Any]) -> Iterator[str]:
    for kind, key in _ADDED.items():
        for change in one.get(kind) or ():
            if isinstance(change, dict):
                lines = change.get(key) or ()
                yield from map(str, [lines] if isinstance(lines, str) else lines)


def _exit(result: str) -> int:
    found = _FAILING.search(result)
    return int(found is None or found[1] != "0")


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else None
