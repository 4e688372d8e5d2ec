"""OpenHands' events, in order: actions, and observations that name the action they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from closeloop.model.attempt import Exit, Usage
from closeloop.model.protocols import Source
from closeloop.model.trace import AnyEvent, Command, Edit, Handoff, Read, ToolUse, Turn
from closeloop.traces.builder import ROOT
from closeloop.traces.openhands.skills import arguments_of, skill_of
from closeloop.traces.telling import Teller, text_of, usage_of, with_total
from closeloop.traces.untrusted import (
    amount,
    between,
    count,
    exit_code,
    items,
    mapping,
    moment,
    raw,
    text,
)

_STATES: dict[str, Exit] = {
    "error": "crashed",
    "rejected": "gave_up",
    "stopped": "gave_up",
    "rate_limited": "machine",
}
_FAILED = ("ERROR:", "[Your proposed edit has introduced new syntax error", "[Cell execution error")
_USAGES = ("prompt_tokens", "completion_tokens", "cache_read_tokens", "cache_write_tokens")


class Stream:
    """A session in the making. Delegates speak in the same stream until they report."""

    def __init__(self, reader: str, version: int, source: Source) -> None:
        self.teller = Teller(reader, version, source)
        self.actions: dict[int, AnyEvent] = {}
        self.waiting: AnyEvent | None = None
        self.delegates: list[tuple[AnyEvent, str, dict[str, float]]] = []
        self.responses: dict[str, int] = {}
        self.counted: dict[str, float] = {}
        self.asked = False
        self.requested = False
        self.system: str | None = None
        self.version: str | None = None
        self.model: str | None = None
        self.started: datetime | None = None
        self.last: datetime | None = None
        self.state: tuple[str, str | None] = ("", None)
        self.summary: str | None = None

    def tell(self, told: Any) -> None:
        """One event, whatever it is."""
        event = mapping(told)
        self.teller.at = moment(event.get("timestamp"))
        self.started = self.started or self.teller.at
        self.last = self.teller.at or self.last
        kind, seen = event.get("action"), event.get("observation")
        if isinstance(kind, str):
            given = event.get("args")
            self._action(kind, event, given if isinstance(given, dict) else event)
        elif isinstance(seen, str):
            more = event.get("extras")
            self._observation(seen, event, more if isinstance(more, dict) else event)
        else:
            self.teller.note(raw(told), "unknown: event")

    # Actions

    def _action(self, kind: str, event: dict[str, Any], given: dict[str, Any]) -> None:
        mine = event.get("source", "agent") == "agent"
        thought = given.get("thought")
        if mine and kind not in ("system", "message", "recall", "null", "change_agent_state"):
            self._provider(event)
            if isinstance(thought, str) and kind not in ("finish", "think"):
                self.teller.thought(thought)
        if tell := _DOINGS.get(kind):
            done = tell(self, event, given)
        elif kind in ("null", "start", "recall"):
            self.teller.skip("an empty event" if kind != "recall" else "a copy of a message")
            return
        elif kind in _ASIDES:
            self.teller.note(_told(given), kind)
            return
        else:
            plain = {key: value for key, value in given.items() if key != "thought"}
            done = self.teller.other(kind, plain, _call(event))
        if done is not None:
            number = event.get("id")
            if isinstance(number, int):
                self.actions[number] = done
            self.waiting = done

    def _system(self, event: dict[str, Any], given: dict[str, Any]) -> None:
        if self.system is None and isinstance(given.get("content"), str):
            self.system = self.teller.clean(given["content"])
        self.version = self.version or self.teller.known(given.get("openhands_version"))

    def _message(self, event: dict[str, Any], given: dict[str, Any]) -> None:
        said = text_of(given.get("content"))
        if event.get("source", "agent" if self.requested else "user") != "agent":
            intent = "answer" if self.asked else None if self.requested else "request"
            self.teller.user(said, intent)  # type: ignore[arg-type]
            self.requested, self.asked = True, False
            return
        self._provider(event)
        self.asked = bool(given.get("wait_for_response")) and "?" in said
        self.teller.agent(said, "question" if self.asked else None)
        self.summary = self.teller.clean(said)

    def _run(self, event: dict[str, Any], given: dict[str, Any]) -> AnyEvent:
        line = text(given.get("command")) or ""
        return self.teller.command(line, _call(event), self.teller.known(given.get("cwd")))

    def _cell(self, event: dict[str, Any], given: dict[str, Any]) -> AnyEvent:
        code = text(given.get("code")) or ""
        if found := skill_of(code):
            return self.teller.call(*found, _call(event))
        return self.teller.other("run_ipython", {"code": code}, _call(event))

    def _read(self, event: dict[str, Any], given: dict[str, Any]) -> AnyEvent:
        lines = [n for n in items(given.get("view_range"))[:2] if isinstance(n, int) and n > 0]
        return self.teller.add(
            Read(
                **self.teller.place(_call(event)),
                path=self.teller.clean(text(given.get("path")) or ""),
                first_line=lines[0] if lines else None,
                last_line=lines[1] if len(lines) > 1 else None,
            )
        )

    def _write(self, event: dict[str, Any], given: dict[str, Any]) -> AnyEvent:
        return self._changed(event, given, "create", None, given.get("content"))

    def _edit(self, event: dict[str, Any], given: dict[str, Any]) -> AnyEvent:
        code = given.get("translated_ipython_code")
        if isinstance(code, str):
            given = {**given, **arguments_of(code)}
        if given.get("command") == "view":
            return self._read(event, given)
        create = given.get("command") == "create"
        after = given.get("file_text") if create else given.get("new_str")
        after = after if isinstance(after, str) else text(given.get("content"))
        return self._changed(
            event, given, "create" if create else "change", given.get("old_str"), after
        )

    def _changed(
        self, event: Any, given: dict[str, Any], action: Any, before: Any, after: Any
    ) -> AnyEvent:
        return self.teller.add(
            Edit(
                **self.teller.place(_call(event)),
                path=self.teller.clean(text(given.get("path")) or ""),
                action=action,
                before=self.teller.clean(before) if isinstance(before, str) else None,
                after=self.teller.clean(after) if isinstance(after, str) else None,
            )
        )

    def _delegate(self, event: dict[str, Any], given: dict[str, Any]) -> AnyEvent:
        inputs = mapping(given.get("inputs"))
        brief = text(inputs.get("task")) or (raw(inputs) if inputs else "")
        lane = f"delegate-{len(self.delegates) + self.teller.builder.number}"
        self.teller.builder.lane(lane, self.teller.lane, self.teller.known(given.get("agent")))
        done = self.teller.add(
            Handoff(**self.teller.place(_call(event)), brief=self.teller.clean(brief), child=lane)
        )
        self.delegates.append((done, self.teller.lane, self.counted))
        self.teller.lane, self.teller.turn = lane, None
        return done

    def _think(self, event: dict[str, Any], given: dict[str, Any]) -> None:
        self.teller.thought(text(given.get("thought")) or "", _call(event))

    def _claim(self, event: dict[str, Any], given: dict[str, Any]) -> None:
        outputs = mapping(given.get("outputs"))
        words = (given.get("final_thought"), given.get("thought"), outputs.get("content"))
        said = next((one for one in words if isinstance(one, str) and one.strip()), "")
        said = said or text(event.get("message")) or "finish"
        self.teller.agent(said, "claim", _call(event))
        if self.teller.lane == ROOT:
            self.summary = self.teller.clean(said)
            self.state = ("finished", None)

    def _reject(self, event: dict[str, Any], given: dict[str, Any]) -> None:
        said = text(mapping(given.get("outputs")).get("reason")) or text(given.get("thought"))
        self.teller.note(said or "reject", "reject")
        if self.teller.lane == ROOT:
            self.state = ("rejected", said)

    def _condensed(self, event: dict[str, Any], given: dict[str, Any]) -> None:
        self.teller.note(text(given.get("summary")) or raw(given), "compaction")

    # Observations

    def _observation(self, seen: str, event: dict[str, Any], more: dict[str, Any]) -> None:
        said = text_of(event.get("content"))
        action = self._cause(event)
        if seen == "delegate" and self.delegates:
            self._returned(said or raw(mapping(more.get("outputs"))), event)
        elif seen == "agent_state_changed":
            state = text(more.get("agent_state")) or ""
            self.state = (state, text(more.get("reason")))
            self.teller.note(f"{state} {more.get('reason') or ''}".strip(), "state")
        elif seen == "user_rejected":
            if action is not None:
                self.teller.refused(action, said)
            self.teller.user(said or "rejected", "correction")
        elif action is None:
            if seen in ("null", "think"):
                self.teller.skip("an empty event")
            else:
                about = seen if seen in ("error", "recall") else f"unknown: {seen}"
                self.teller.note(said or raw(event), about)
        else:
            self._finish(action, seen, said, more)

    def _cause(self, event: Mapping[str, Any]) -> AnyEvent | None:
        cause, waiting = event.get("cause"), self.waiting
        if isinstance(cause, int):
            return self.actions.pop(cause, None)
        if "id" in event or waiting is None:
            return None
        # Files without ids: what comes next is the result.
        self.waiting = None
        return waiting

    def _finish(self, action: AnyEvent, seen: str, said: str, more: dict[str, Any]) -> None:
        failed = seen == "error" or said.startswith(_FAILED)
        ok: bool | None = not failed
        if seen == "run_ipython" and isinstance(action, ToolUse):
            ok = False if "Traceback (most recent call last)" in said else None
        facts: dict[str, object] = {"seconds": between(action.at, self.teller.at)}
        done = self.teller.result(action, said, ok)
        if isinstance(done, Command):
            stated = mapping(more.get("metadata")).get("exit_code", more.get("exit_code"))
            code = exit_code(stated)
            # -1 says that it was still running.
            if code is not None and code != -1:
                facts |= {"exit_code": code, "exit_from": "stated"}
        elif isinstance(done, Edit):
            facts |= self._edited(done, said, more, failed=failed)
        self.teller.more(done, **facts)

    def _edited(
        self, edit: Edit, said: str, more: dict[str, Any], *, failed: bool
    ) -> dict[str, object]:
        """What the observation knows of a file before and after."""
        facts: dict[str, object] = {}
        patch = text(more.get("diff")) or (said if said.startswith("--- ") else None)
        if patch and not failed:
            facts["patch"] = self.teller.clean(patch)
        # Some versions say of every file that it was not there.
        new = more.get("prev_exist") is False and edit.before is None
        if new and not failed and not more.get("old_content"):
            facts["action"] = "create"
        if edit.after is None and isinstance(more.get("new_content"), str):
            facts["after"] = self.teller.clean(more["new_content"])
            if isinstance(more.get("old_content"), str):
                facts["before"] = self.teller.clean(more["old_content"])
        return facts

    def _returned(self, said: str, event: Mapping[str, Any]) -> None:
        action, lane, counted = self.delegates.pop()
        if counted and self.counted["prompt_tokens"] < counted["prompt_tokens"]:
            self.counted = counted
        self.teller.lane, self.teller.turn = lane, action.turn
        done = self.teller.result(action, said, ok=None)
        self.teller.more(done, seconds=between(action.at, self.teller.at))

    # Usage and end

    def _provider(self, event: Mapping[str, Any]) -> None:
        """A provider's message is counted once, whether by its own usage or by a growing total."""
        answer = mapping(mapping(event.get("tool_call_metadata")).get("model_response"))
        known = text(answer.get("id"))
        model = self.teller.known(answer.get("model"))
        self.model = self.model or model
        metrics = mapping(event.get("llm_metrics"))
        usage = self._grown(metrics) if metrics else self._stated(answer.get("usage"))
        if known is not None and known in self.responses:
            self.teller.turn = self.responses[known]
            return
        turn = self.teller.provider(Turn(usage=usage, model=model, at=self.teller.at))
        if known is not None:
            self.responses[known] = turn

    def _stated(self, told: object) -> Usage:
        """What an answer itself says; a growing total will hold it too."""
        for key in _USAGES[:2] if self.counted else ():
            self.counted[key] += count(mapping(told).get(key)) or 0
        return usage_of(told)

    def _grown(self, metrics: Mapping[str, Any]) -> Usage:
        """What was added since the total was last told."""
        told = mapping(metrics.get("accumulated_token_usage"))
        now: dict[str, float] = {key: count(told.get(key)) or 0 for key in _USAGES}
        now["cost"] = amount(metrics.get("accumulated_cost")) or 0.0
        if self.counted and now["prompt_tokens"] < self.counted["prompt_tokens"]:
            # A delegate with a count of its own.
            self.counted = dict.fromkeys(now, 0)
        grown = {key: max(value - self.counted.get(key, 0), 0) for key, value in now.items()}
        self.counted = now
        return usage_of({key: int(grown[key]) for key in _USAGES}, round(grown["cost"], 9))

    def usage(self, metrics: Mapping[str, Any]) -> Usage:
        """Of all turns; where none was told, what the evaluation counted."""
        turns = self.teller.builder.usage()
        if turns.input_tokens is None and turns.output_tokens is None:
            turns = usage_of(metrics.get("accumulated_token_usage"))
        return with_total(turns, metrics.get("accumulated_cost"))

    def ended(self, error: str | None) -> tuple[Exit, str | None]:
        """How it ended, by the evaluation's word or the agent's last state."""
        if error:
            limits = ("maximum iteration", "max budget", "budget")
            spent = any(limit in error.lower() for limit in limits)
            return ("out_of_budget" if spent else "crashed"), error
        state, reason = self.state
        return _STATES.get(state, "finished"), (reason or state) if state in _STATES else None


_DOINGS: dict[str, Callable[[Stream, dict[str, Any], dict[str, Any]], AnyEvent | None]] = {
    "system": Stream._system,
    "message": Stream._message,
    "run": Stream._run,
    "run_ipython": Stream._cell,
    "read": Stream._read,
    "write": Stream._write,
    "edit": Stream._edit,
    "delegate": Stream._delegate,
    "think": Stream._think,
    "finish": Stream._claim,
    "reject": Stream._reject,
    "condensation": Stream._condensed,
}
_ASIDES = frozenset(
    {"change_agent_state", "condensation_request", "loop_recovery", "pause", "resume"}
)


def _call(event: Mapping[str, Any]) -> str | None:
    return text(mapping(event.get("tool_call_metadata")).get("tool_call_id"))


def _told(given: Mapping[str, Any]) -> str:
    return text(given.get("agent_state")) or raw(given)
