"""SWE-agent's trajectories, 0.6 to 1.x: a step is an action with its observation."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from closeloop.model.attempt import Exit, Usage
from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.model.trace import AnyEvent, Edit, Read, Turn
from closeloop.traces import single
from closeloop.traces.shells import words as shell_words
from closeloop.traces.telling import Teller, identity, text_of
from closeloop.traces.untrusted import amount, count, decoded, items, mapping, raw, text

name = "swe-agent"
version = 2
parts, owner = single.parts, single.owner

WORDS_CHARACTERS = 200_000
_OWN = frozenset(
    {"open", "filemap", "goto", "scroll_up", "scroll_down", "create", "edit", "insert"}
    | {"str_replace_editor", "submit"}
)
_ROLES = frozenset({"system", "user", "assistant", "tool"})
EXITS: dict[str, Exit] = {
    "exit_cost": "out_of_budget",
    "exit_context": "out_of_budget",
    "exit_total_execution_time": "out_of_time",
    "exit_command_timeout": "out_of_time",
    "exit_forfeit": "gave_up",
    "exit_command": "gave_up",
    "exit_format": "gave_up",
    "exit_api": "machine",
    "exit_environment_error": "machine",
    "skipped": "gave_up",
}
_REFUSED = (
    "Your proposed edit has introduced new syntax error(s)",
    "Your changes have NOT been applied",
    "Your edit was not applied",
    "Your search and replace strings are the same",
    "No replacement was performed",
    "No file open",
    "Usage: ",
    "usage: ",
    "Error: ",
    "ERROR:",
    "Invalid `",
    "The path ",
    "File already exists",
)
_DONE = (
    "File updated.",
    "Text replaced.",
    "Replaced ",
    "[File: ",
    "has been edited.",
    "File created successfully",
    "Last edit to ",
)


def recognises(source: Source) -> bool:
    head = source.head
    if b'"trajectory"' not in head and b'"history"' not in head and b'"attempts"' not in head:
        return False
    told = mapping(source.document)
    attempts = items(told.get("attempts"))
    return _is_run(told) or any(isinstance(one, dict) and _is_run(one) for one in attempts[:3])


def _is_run(told: Mapping[str, Any]) -> bool:
    steps = told.get("trajectory")
    first = items(told.get("history"))[:1]
    spoken = all(text(mapping(item).get("role")) in _ROLES for item in first)
    if isinstance(steps, list):
        shaped = all(
            "action" in mapping(step) and "observation" in mapping(step) for step in steps[:2]
        )
        return shaped and spoken and bool(steps or first) and isinstance(told.get("info"), dict)
    # Demonstrations may have nothing but the history.
    return (
        bool(first)
        and spoken
        and "agent" in mapping(first[0])
        and "message_type" in mapping(first[0])
    )


def read(source: Source) -> Iterator[Session]:
    told = mapping(source.document)
    attempts = [
        one for one in items(told.get("attempts")) if isinstance(one, dict) and _is_run(one)
    ]
    # With several attempts, the file itself is a copy of the chosen one.
    for run in attempts or [told]:
        yield _run(run, source)


def _run(told: dict[str, Any], source: Source) -> Session:
    teller = Teller(name, version, source)
    info, history = mapping(told.get("info")), items(told.get("history"))
    system, request = _opening(history)
    teller.user(request, "request")
    steps = told.get("trajectory")
    steps = steps if isinstance(steps, list) else _steps(history)
    shell = _Shell(teller)
    for step in steps:
        if isinstance(step, dict):
            shell.step(step)
        else:
            teller.note(raw(step), "unknown: step")
    status = text(info.get("exit_status"))
    ended, cause = _ended(status) if info else ("finished", None)
    summary = teller.claim(status or "") if ended == "finished" and status else None
    if submission := text(info.get("submission")):
        teller.note(submission, "submission")
    facts = _facts(told.get("replay_config"), teller)
    return Session(
        id=_identity(request, steps),
        agent=name,
        agent_version=teller.known(info.get("swe_agent_version")),
        system=teller.known(system),
        exit=ended,
        cause=cause and teller.clean(cause),
        usage=_usage(info.get("model_stats")),
        summary=summary,
        directory=shell.directory,
        trace=teller.trace(),
        **facts,
    )


def _opening(history: list[Any]) -> tuple[str, str]:
    """The system prompt, and the first message of the user that is no demonstration."""
    system = request = ""
    for item in history:
        message = mapping(item)
        role, said = message.get("role"), text_of(message.get("content"))
        if role == "system" and not system:
            system = said
        elif role == "user" and not message.get("is_demo"):
            request = said
            break
        elif role == "assistant" and not message.get("is_demo"):
            break
    return system, request


def _steps(history: list[Any]) -> list[Any]:
    """Steps as the history of a demonstration tells them."""
    steps: list[dict[str, Any]] = []
    for item in history:
        message = mapping(item)
        if message.get("is_demo"):
            continue
        if message.get("role") == "assistant":
            said = text_of(message.get("content"))
            steps.append(
                {"thought": message.get("thought") or said, "action": message.get("action")}
            )
        elif steps and message.get("message_type") == "observation":
            steps[-1]["observation"] = text_of(message.get("content"))
    return steps


def _identity(request: str, steps: list[Any]) -> str:
    """No id is written. Times of execution tell runs apart; without them, only all of it does."""
    told = [mapping(step) for step in steps]
    timed = [step for step in told[:3] if amount(step.get("execution_time"))]
    facts = [
        [str(step.get(key)) for key in ("response", "observation", "execution_time")]
        for step in (timed[:1] or told)
    ]
    return identity(name, request, facts)


def _ended(status: str | None) -> tuple[Exit, str | None]:
    if status == "submitted":
        return "finished", None
    if not status:
        return "crashed", "no exit status"
    # `submitted (exit_cost)`: what there was at the limit was handed in.
    inner = status.removeprefix("submitted (").removesuffix(")").split(" ")[0]
    return EXITS.get(inner, "crashed"), status


def _usage(told: object) -> Usage:
    """Counted by the agent for all calls; nothing where it made none."""
    stats = mapping(told)
    sent, received = count(stats.get("tokens_sent")), count(stats.get("tokens_received"))
    cost = amount(stats.get("instance_cost")) or None
    if not sent and not received:
        sent = received = None
    return Usage(
        input_tokens=sent,
        output_tokens=received,
        cost=cost,
        cost_from="reported" if cost else None,
    )


def _facts(told: object, teller: Teller) -> dict[str, Any]:
    """What the configuration says; newer versions write it as a text."""
    config = mapping(decoded(told) if isinstance(told, str) else told)
    model = mapping(mapping(config.get("agent")).get("model")).get("name")
    problem = mapping(config.get("problem_statement"))
    commit = mapping(mapping(config.get("env")).get("repo")).get("base_commit")
    instance = teller.known(problem.get("id"))
    return {
        "model": teller.known(model),
        "commit": teller.known(commit) if commit != "HEAD" else None,
        "links": {"instance": instance} if instance else {},
    }


class _Shell:
    """The agent's shell, with a file open in its editor."""

    def __init__(self, teller: Teller) -> None:
        self.teller = teller
        self.directory: str | None = None
        self.place = ""
        self.open = ""

    def step(self, step: dict[str, Any]) -> None:
        """An action and what came of it."""
        state = step.get("state")
        state = mapping(decoded(state) if isinstance(state, str) else state)
        self.place = self.teller.known(state.get("working_dir")) or self.place
        opened = self.teller.known(state.get("open_file"))
        self.open = opened if opened and opened != "n/a" else self.open
        self.directory = self.directory or self.place or None
        action = text(step.get("action")) or ""
        thought = text(step.get("thought")) or ("" if action else text(step.get("response")) or "")
        observation = step.get("observation")
        output = observation if isinstance(observation, str) else None
        if not action.strip() and (output or "").startswith(("Exited", "Environment died")):
            self.teller.turn = None
            self.teller.note(thought or output or "", "limit")
            return
        self.teller.provider(Turn())
        for block in items(step.get("thinking_blocks")):
            self.teller.thought(text(mapping(block).get("thinking")) or "")
        if action.strip().split(" ")[0] == "submit":
            self.teller.agent(thought)
        else:
            self.teller.thought(thought)
        if not action.strip():
            self.teller.note(output or "no action", "format error")
            return
        event = self._event(action)
        if output is not None and not (output == "" and "state" in step and not state):
            # An action that was refused has neither an observation nor a state.
            self._finish(event, output)
        if taken := amount(step.get("execution_time")):
            self.teller.more(event, seconds=taken)

    def _event(self, action: str) -> AnyEvent:
        line, _, rest = action.strip().partition("\n")
        program = line.split(" ", 1)[0]
        words: list[str] = []
        if program in _OWN:
            words = _words(line if program != "str_replace_editor" and rest else action)
        if words and not {"&&", "||", ";", "|", ">"} & set(words):
            match program:
                case "open" | "filemap" if len(words) > 1:
                    if program == "open":
                        self.open = self._absolute(words[1])
                    return self._read(words[1], _number(words[2:]))
                case "goto" | "scroll_up" | "scroll_down" if self.open:
                    return self._read(self.open, None)
                case "create" if len(words) == 2:
                    self.open = self._absolute(words[1])
                    return self._edit(words[1], None, None, "create")
                case "edit" | "insert" if self.open:
                    return self._change(program, words[1:], action)
                case "str_replace_editor" if len(words) > 2:
                    return self._editor(words)
                case "submit":
                    return self.teller.other(
                        "submit", {"text": " ".join(words[1:])} if words[1:] else {}
                    )
        return self.teller.command(action.strip("\n"), directory=self.place or None)

    def _read(self, path: str, first: int | None) -> AnyEvent:
        return self.teller.add(
            Read(**self.teller.place(), path=self._absolute(path), first_line=first)
        )

    def _edit(self, path: str, before: str | None, after: str | None, action: Any) -> AnyEvent:
        return self.teller.add(
            Edit(
                **self.teller.place(),
                path=self._absolute(path),
                action=action,
                before=None if before is None else self.teller.clean(before),
                after=None if after is None else self.teller.clean(after),
            )
        )

    def _change(self, program: str, words: list[str], action: str) -> AnyEvent:
        """`edit A:B` or `edit` with lines below, `edit OLD NEW`, `edit TEXT`, `insert TEXT`."""
        body = action.strip("\n").partition("\n")[2]
        lines = body.removesuffix("end_of_edit").removesuffix("\n")
        ranged = bool(words) and ":" in words[0] and words[0].replace(":", "").isdigit()
        if program == "edit" and (not words or ranged):
            return self._edit(self.open, None, lines, "change")
        whole = _words(action)[1:] if body else words
        if program == "edit" and len(whole) > 1:
            return self._edit(self.open, whole[0], whole[1], "change")
        return self._edit(self.open, None, whole[0] if whole else lines, "change")

    def _editor(self, words: list[str]) -> AnyEvent:
        given: dict[str, Any] = {"command": words[1], "path": words[2]}
        for flag, value in itertools.pairwise(words[3:]):
            if flag.startswith("--"):
                given.setdefault(flag[2:], value)
        return self.teller.call("str_replace_editor", given)

    def _absolute(self, path: str) -> str:
        return self.teller.clean(posixpath.normpath(posixpath.join(self.place, path)))

    def _finish(self, event: AnyEvent, output: str) -> None:
        start = output.lstrip()[:400]
        if isinstance(event, Edit | Read):
            refused = start.startswith(_REFUSED) or "NOT been applied" in output
            missing = isinstance(event, Read) and start.startswith("File ") and "not found" in start
            done = any(sign in output for sign in _DONE) or isinstance(event, Read)
            self.teller.result(event, output, False if refused or missing else done or None)
            return
        finished = self.teller.result(event, output)
        late = "EXECUTION TIMED OUT" in output[-200:] or (
            start.startswith("The command ") and "was cancelled because it took more than" in output
        )
        if late and hasattr(finished, "stopped"):
            self.teller.more(finished, stopped="out of time")


def _words(line: str) -> list[str]:
    """As a shell takes it apart; nothing for what is too long to be worth it."""
    if len(line) > WORDS_CHARACTERS:
        return []
    try:
        return shell_words(line)
    except ValueError:
        return line.split()


def _number(words: list[str]) -> int | None:
    return int(words[0]) if words and words[0].isdecimal() and len(words[0]) < 10 else None
