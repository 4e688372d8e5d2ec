"""What judges said of outputs, what people said of the same, and what came of comparing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import Connection, func, insert, select

from closeloop.model.analysis import Analysis, TraceAnswer
from closeloop.model.calibration import Calibration, Label
from closeloop.model.evaluation import Evaluation, Evaluations, JudgeVersion, Preference
from closeloop.store import facts
from closeloop.store import judged_tables as tables
from closeloop.store.bodies import pack, unpack
from closeloop.store.part import Part
from closeloop.store.rows import plain


class Judged(Part):
    """The part of an open store that is about judges."""

    def save(self, made: Evaluations) -> None:
        """All of a plan in one transaction; what is known already stays as it is."""
        judges = [_judge_columns(one) for one in made.judges]
        rows = [_columns(one) for one in made.evaluations]

        def work(on: Connection) -> None:
            facts.append_each(on, tables.judges, ("id",), judges)
            facts.add_new(on, tables.evaluations, rows)

        self._write(work)

    def evaluations(
        self, *, attempt: str | None = None, judge: str | None = None
    ) -> list[Evaluation]:
        """Of an attempt, of a judge's version, or all; the newest first."""
        table = tables.evaluations
        query = select(table.c.body).order_by(table.c.number.desc())
        if judge is not None:
            query = query.where(table.c.judge == judge)

        def work(on: Connection) -> list[bytes]:
            chosen = query
            if attempt is not None:
                chosen = query.where(table.c.attempt == facts.full_id(on, attempt))
            return list(on.execute(chosen).scalars())

        return [unpack(body, Evaluation) for body in self._read(work)]

    def evaluation(self, name: str) -> Evaluation | None:
        """One, by its id."""
        table = tables.evaluations
        return self._record(select(table.c.body).where(table.c.id == plain(name)), Evaluation)

    def verdicts(self, judge: str) -> list[tuple[str, Evaluation]]:
        """What one version said, by item: the attempt where there is one, else the evaluation."""
        newest: dict[str, Evaluation] = {}
        for one in self.evaluations(judge=judge):
            newest.setdefault(one.attempt or one.id, one)
        return list(newest.items())

    def save_preferences(self, made: Sequence[Preference]) -> None:
        rows = [
            {
                "judge": one.judge,
                "task": plain(one.task),
                "winner": one.winner,
                "flipped": one.flipped,
                "body": pack(one),
            }
            for one in made
        ]
        if rows:
            self._write(lambda on: on.execute(insert(tables.preferences), rows) and None)

    def preferences(self, judge: str) -> list[Preference]:
        """Of a judge's version, the newest first."""
        table = tables.preferences
        query = select(table.c.body).where(table.c.judge == judge).order_by(table.c.number.desc())
        return self._records(query, Preference)

    def versions(self) -> list[JudgeVersion]:
        """All that ever judged, the newest first."""
        table = tables.judges
        query = select(table.c.body).order_by(table.c.number.desc())
        return list({one.id: one for one in self._records(query, JudgeVersion)}.values())

    def save_labels(self, labels: Sequence[Label]) -> None:
        """Add what people say; of one person and item the newest counts."""
        shown = ("item", "rubric", "person")
        rows = [
            {**asdict(label), **{name: plain(getattr(label, name)) for name in shown}}
            for label in labels
        ]
        key = ("item", "rubric", "asked", "person", "golden")
        self._write(lambda on: facts.append_each(on, tables.labels, key, rows))

    def labels(self, rubric: str) -> list[Label]:
        """Those that count, of one rubric."""
        table = tables.labels
        key = (table.c.item, table.c.asked, table.c.person, table.c.golden)
        newest = select(func.max(table.c.number)).where(table.c.rubric == rubric).group_by(*key)
        query = select(*(table.c[name] for name in Label.__struct_fields__))
        query = query.where(table.c.number.in_(newest)).order_by(table.c.number)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [Label(**row) for row in rows]

    def save_calibration(self, made: Calibration) -> None:
        columns = {
            "judge": made.judge.id,
            "rubric": made.judge.rubric,
            "at": made.at,
            "body": pack(made),
        }
        self._write(lambda on: on.execute(insert(tables.calibrations), columns) and None)

    def calibration(self, judge: str) -> Calibration | None:
        """The newest of a judge's version."""
        table = tables.calibrations
        query = select(table.c.body).where(table.c.judge == judge)
        return self._record(query.order_by(table.c.number.desc()).limit(1), Calibration)

    # Questions to traces

    def save_analysis(self, made: Analysis) -> None:
        """Add a question under its name; it replaces, from now on, an older one."""
        columns = {"name": plain(made.name), "body": pack(made)}
        self._write(lambda on: facts.append(on, tables.analyses, ("name",), columns))

    def analyses(self) -> dict[str, Analysis]:
        """By name, those that count."""
        table = tables.analyses
        query = select(table.c.body).order_by(table.c.number)
        return {one.name: one for one in self._records(query, Analysis)}

    def save_answers(self, judge: str, made: Sequence[TraceAnswer]) -> None:
        """What one judge says of traces; the first answer stays."""
        rows = [
            {"judge": judge, "attempt": one.attempt, "verdict": one.verdict, "body": pack(one)}
            for one in made
        ]
        self._write(lambda on: facts.add_new(on, tables.answers, rows))

    def found(self, attempt: str | None = None) -> dict[str, list[TraceAnswer]]:
        """Every yes of any judge, by attempt; of one, or of all."""
        table = tables.answers
        query = select(table.c.body).where(table.c.verdict == "yes").order_by(table.c.number)
        if attempt is not None:
            query = query.where(table.c.attempt == attempt)
        found: dict[str, list[TraceAnswer]] = {}
        for answer in self._records(query, TraceAnswer):
            found.setdefault(answer.attempt, []).append(answer)
        return found

    def answers(self, judge: str) -> dict[str, TraceAnswer]:
        """By attempt."""
        table = tables.answers
        query = select(table.c.body).where(table.c.judge == judge)
        return {one.attempt: one for one in self._records(query, TraceAnswer)}


def _judge_columns(one: JudgeVersion) -> dict[str, Any]:
    return {
        "id": one.id,
        "rubric": plain(one.rubric),
        "model": plain(one.model),
        "body": pack(one),
    }


def _columns(one: Evaluation) -> dict[str, Any]:
    return {
        "id": one.id,
        "at": one.at,
        "attempt": one.attempt,
        "task": plain(one.task),
        "judge": one.judge,
        "passed": one.passed,
        "score": one.score,
        "completeness": one.score_of("completeness"),
        "quality": one.score_of("quality"),
        "relevance": one.score_of("relevance"),
        "same_family": one.same_family,
        "issues": len(one.issues),
        "seconds": one.seconds,
        "input_tokens": one.usage.input_tokens,
        "output_tokens": one.usage.output_tokens,
        "cost": one.usage.cost,
        "body": pack(one),
    }
