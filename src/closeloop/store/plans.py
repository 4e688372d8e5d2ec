"""Orchestrated plans: what was to be done, every try, every verdict, and how it ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, func, insert, select

from closeloop.model.attempt import Usage
from closeloop.model.errors import BadInput
from closeloop.model.exchange import Exchange
from closeloop.model.orchestration import (
    Assessment,
    Ending,
    Execution,
    Orchestration,
    PlanRow,
    PlanStory,
    Tried,
    Try,
)
from closeloop.model.trace import Trace
from closeloop.model.usage import total
from closeloop.store import facts, jobs, private
from closeloop.store import plan_tables as tables
from closeloop.store.bodies import compress, decompress, encode, pack, unpack
from closeloop.store.exchanges import Packed, Unpacked, packed
from closeloop.store.part import Part
from closeloop.store.rows import amount, count, line, plain


class Plans(Part):
    """The part of an open store that is about orchestrated plans."""

    def begin(self, plan: Orchestration) -> None:
        columns = {
            "id": plan.id,
            "at": plan.at,
            "state": "begun",
            "request": line(plan.request),
            "tasks": len(plan.tasks),
            "body": pack(plan),
        }
        self._write(lambda on: facts.append(on, tables.plans, ("id",), columns))

    def save(self, tried: Sequence[Tried], assessed: Sequence[Assessment]) -> None:
        """Tries and verdicts in one transaction; a try that is known already stays as it is."""
        split = [private.split_execution(one.execution) for one in tried]
        executions = [
            _execution_columns(replace(one, execution=shown))
            for one, (shown, _) in zip(tried, split, strict=True)
        ]
        exact = [row for _, row in split if row is not None]
        verdicts = [_task_columns(one) for one in assessed]

        def work(on: Connection) -> None:
            facts.add_new(on, tables.executions, executions)
            private.add(on, exact)
            if verdicts:
                on.execute(insert(tables.tasks), verdicts)

        self._write(work)

    def end(self, plan: Orchestration, ending: Ending) -> None:
        """Add how it ended, and a row for every task that nobody tried."""
        columns = {
            "id": plan.id,
            "at": ending.at,
            "state": "ended",
            "request": line(plan.request),
            "tasks": len(plan.tasks),
            "overall_pass": ending.passed,
            "summary": plain(ending.summary),
            "attempt": ending.attempt,
            **_used(ending.usage),
            "duration": ending.seconds,
            "body": pack(ending),
        }
        untried = [_untried_columns(ending, task, why) for task, why in ending.not_begun.items()]

        def work(on: Connection) -> None:
            facts.append(on, tables.plans, ("id",), columns)
            facts.append_each(on, tables.tasks, ("plan", "task"), untried)

        self._write(work)

    def listed(self, limit: int, among: Collection[str] | None = None) -> list[PlanRow]:
        """The newest first, of all or of some."""
        table, tries = tables.plans, tables.executions
        first = select(table).where(table.c.state == "begun").order_by(table.c.number.desc())
        if among is not None:
            first = first.where(table.c.id.in_(among))
        names = [name for name in table.c.keys() if name != "body"]  # noqa: SIM118 - not a mapping

        def work(on: Connection) -> tuple[Any, Any, Any]:
            begun = on.execute(first.with_only_columns(table.c.id, *_shown()).limit(limit))
            rows = begun.mappings().all()
            ids = [row["id"] for row in rows]
            ended = select(*(table.c[name] for name in names)).where(
                table.c.state == "ended", table.c.id.in_(ids)
            )
            counts = select(tries.c.plan, func.count().label("tries"), func.sum(tries.c.cost))
            counts = counts.where(tries.c.plan.in_(ids)).group_by(tries.c.plan)
            return (
                rows,
                on.execute(ended.order_by(table.c.number)).mappings().all(),
                on.execute(counts).all(),
            )

        rows, ended, counts = self._read(work)
        last = {row["id"]: row for row in ended}
        many = {plan: (tries, cost) for plan, tries, cost in counts}
        return [_row(row, last.get(row["id"]), many.get(row["id"], (0, None))) for row in rows]

    def under_way(self) -> frozenset[str]:
        """The ids of those that somebody carries out now."""
        keys = [key.split("/") for key in self._read(jobs.in_hand)]
        return frozenset(key[1] for key in keys if key[0] == "plan")

    def full_id(self, start: str) -> str:
        """The id that is, or alone begins with, what a person typed."""
        table = tables.plans
        near = select(table.c.id).where(table.c.id >= start, table.c.id < start + "\U0010ffff")
        ids = self._read(lambda on: list(on.execute(near.distinct().limit(3)).scalars()))
        if not ids:
            raise BadInput(f"No plan begins with {start!r}: `closeloop plans` lists them.")
        if len(ids) > 1 and start not in ids:
            raise BadInput(f"{start!r} begins several plans, {', '.join(ids)}: type more of it.")
        return start if start in ids else str(ids[0])

    def exact_story(self, plan: str) -> PlanStory:
        """The same with the patches byte for byte: to go on with it, never to show it."""
        story = self.story(plan)

        def exact(one: Try, on: Connection) -> Try:
            kept = private.exact_patch(on, one.execution)
            if kept is None:
                return one
            execution = replace(one.execution, patch=kept.patch, files=kept.files)
            return replace(one, execution=execution)

        tries = self._read(lambda on: tuple(exact(one, on) for one in story.tries))
        return replace(story, tries=tries)

    def story(self, plan: str) -> PlanStory:
        """All that is kept of a plan but the traces, without secrets."""
        name = self.full_id(plan)
        begun, ended = tables.plans.c, tables.plans.alias().c
        tries, verdicts = tables.executions.c, tables.tasks.c
        queries = (
            select(begun.body).where(begun.id == name, begun.state == "begun"),
            select(ended.body)
            .where(ended.id == name, ended.state == "ended")
            .order_by(ended.number.desc())
            .limit(1),
            select(tries.body).where(tries.plan == name).order_by(tries.started, tries.number),
            select(verdicts.body)
            .where(verdicts.plan == name, verdicts["try"] > 0)
            .order_by(verdicts.number),
        )

        def work(on: Connection) -> list[list[bytes]]:
            return [list(on.execute(query).scalars()) for query in queries]

        first, last, bodies, said = self._read(work)
        verdicts_on: dict[tuple[str, int], list[Assessment]] = {}
        for verdict in (unpack(body, Assessment) for body in said):
            verdicts_on.setdefault((verdict.task, verdict.number), []).append(verdict)
        executions = [unpack(body, Execution) for body in bodies]
        return PlanStory(
            plan=unpack(first[-1], Orchestration),
            tries=tuple(
                _try(one, verdicts_on.get((one.task, one.number), [])) for one in executions
            ),
            ending=unpack(last[0], Ending) if last else None,
        )

    def traces(self, plan: str) -> dict[tuple[str, int], Trace]:
        """By task and try."""
        table = tables.executions.c
        query = select(table.task, table["try"], table.trace).where(table.plan == plan)
        rows = self._read(lambda on: on.execute(query).all())
        return {(task, number): unpack(body, Trace) for task, number, body in rows if body}

    def exchanges(self, plan: str, task: str, number: int) -> Sequence[Exchange]:
        """What went between a sub-agent and its model."""
        table = tables.executions.c
        query = select(table.exchanges).where(
            table.plan == plan, table.task == task, table["try"] == number
        )
        body = self._read(lambda on: on.execute(query).scalar())
        return () if body is None else unpack_exchanges(body)


def pack_exchanges(made: Sequence[Exchange]) -> bytes | None:
    """Every piece once: an agent sends most of what it said again and again."""
    return compress(encode(packed("", made))) if made else None


def unpack_exchanges(body: bytes) -> Sequence[Exchange]:
    return Unpacked(msgspec.msgpack.decode(decompress(body), type=Packed))


def _try(execution: Execution, verdicts: Sequence[Assessment]) -> Try:
    """With the newest verdict; what the others took was paid all the same."""
    if not verdicts:
        return Try(execution=execution)
    made = {one.evaluation.id: one.evaluation.usage for one in verdicts if one.evaluation}
    last = verdicts[-1].evaluation
    before = total(usage for name, usage in made.items() if last is None or name != last.id)
    return Try(execution=execution, assessment=verdicts[-1], judged_before=before)


def _shown() -> Iterator[Any]:
    return (tables.plans.c[name] for name in ("at", "request", "tasks"))


def _row(begun: Any, ended: Any, tried: tuple[int, float | None]) -> PlanRow:
    tries, cost = tried
    known = {} if ended is None else ended
    return PlanRow(
        id=begun["id"],
        at=begun["at"],
        request=begun["request"],
        tasks=begun["tasks"],
        ended=ended is not None,
        passed=known.get("overall_pass"),
        summary=known.get("summary"),
        seconds=known.get("duration"),
        tries=tries,
        cost=known.get("cost") if ended is not None else cost,
    )


def _execution_columns(one: Tried) -> dict[str, Any]:
    made = one.execution
    return {
        "plan": made.plan,
        "task": made.task,
        "try": made.number,
        "agent": line(made.agent),
        "model": line(made.model),
        "exit": made.exit,
        "started": made.started,
        "duration": made.seconds,
        **_used(made.usage),
        "body": pack(made),
        "trace": None if one.trace is None else pack(one.trace),
        "exchanges": one.exchanges,
    }


def _task_columns(one: Assessment) -> dict[str, Any]:
    judged = one.evaluation
    texts = [issue.text for issue in one.issues] or ([one.why] if one.why else [])
    return {
        "plan": one.plan,
        "task": one.task,
        "try": one.number,
        "at": one.at,
        "pass": one.passed,
        "score": one.score,
        "completeness": judged and judged.score_of("completeness"),
        "quality": judged and judged.score_of("quality"),
        "relevance": judged and judged.score_of("relevance"),
        "issues": _list(texts),
        "ignored_feedback": one.ignored,
        "evaluation": judged and judged.id,
        **_used(judged.usage if judged else Usage()),
        "body": pack(one),
    }


def _untried_columns(ending: Ending, task: str, why: str) -> dict[str, Any]:
    none = Assessment(
        plan=ending.plan, task=task, number=0, passed=None, why=f"not begun: {why}", at=ending.at
    )
    return _task_columns(none)


def _used(usage: Usage) -> dict[str, Any]:
    """As orchestrators count: all that the model was sent is prompt, cached or not."""
    sent = (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    known = [tokens for tokens in sent if tokens is not None]
    return {
        "prompt_tokens": count(sum(known)) if known else None,
        "completion_tokens": count(usage.output_tokens),
        "cost": amount(usage.cost),
    }


def _list(texts: Sequence[str]) -> str:
    """JSON, as columns can hold it."""
    return msgspec.json.encode([plain(text) for text in texts]).decode()
