"""What judges said of outputs, what people said of the same, and what came of comparing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select

from closeloop.model.analysis import Analysis, TraceAnswer
from closeloop.model.calibration import Calibration, Label
from closeloop.model.evaluation import Evaluation, Evaluations, JudgeVersion, Preference
from closeloop.store import facts
from closeloop.store import judged_tables as tables
from closeloop.store.bodies import pack, unpack
from closeloop.store.jobs import INSERT

Do = Callable[[Callable[[Connection], Any]], Any]


class Judged:
    """The part of an open store that is about judges."""

    def __init__(self, read: Do, write: Do) -> None:
        self._read = read
        self._write = write

    def save(self, made: Evaluations) -> None:
        """All of a plan in one transaction; what is known already stays as it is."""
        judges = [_judge_columns(one) for one in made.judges]
        rows = [_columns(one) for one in made.evaluations]

        def work(on: Connection) -> None:
            for columns in judges:
                facts.append(on, tables.judges, ("id",), columns)
            if rows:
                statement = INSERT[on.dialect.name](tables.evaluations).on_conflict_do_nothing()
                on.execute(statement, rows)

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
        query = select(table.c.body).where(table.c.id == _plain(name))
        body = self._read(lambda on: on.execute(query).scalar())
        return None if body is None else unpack(body, Evaluation)

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
                "task": _plain(one.task),
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
        bodies = self._read(lambda on: list(on.execute(query).scalars()))
        return [unpack(body, Preference) for body in bodies]

    def versions(self) -> list[JudgeVersion]:
        """All that ever judged, the newest first."""
        table = tables.judges
        query = select(table.c.body).order_by(table.c.number.desc())
        bodies = self._read(lambda on: list(on.execute(query).scalars()))
        found = [unpack(body, JudgeVersion) for body in bodies]
        return list({one.id: one for one in found}.values())

    def save_labels(self, labels: Sequence[Label]) -> None:
        """Add what people say; of one person and item the newest counts."""
        fields = Label.__struct_fields__
        rows = [{name: getattr(label, name) for name in fields} for label in labels]
        key = ("item", "rubric", "asked", "person", "golden")

        def work(on: Connection) -> None:
            for row in rows:
                row |= {name: _plain(row[name]) for name in ("item", "rubric", "person")}
                facts.append(on, tables.labels, key, row)

        self._write(work)

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
        query = query.order_by(table.c.number.desc()).limit(1)
        body = self._read(lambda on: on.execute(query).scalar())
        return None if body is None else unpack(body, Calibration)

    # Questions to traces

    def save_analysis(self, made: Analysis) -> None:
        """Add a question under its name; it replaces, from now on, an older one."""
        columns = {"name": _plain(made.name), "body": pack(made)}
        self._write(lambda on: facts.append(on, tables.analyses, ("name",), columns))

    def analyses(self) -> dict[str, Analysis]:
        """By name, those that count."""
        table = tables.analyses
        query = select(table.c.body).order_by(table.c.number)
        bodies = self._read(lambda on: list(on.execute(query).scalars()))
        return {one.name: one for one in (unpack(body, Analysis) for body in bodies)}

    def save_answers(self, judge: str, made: Sequence[TraceAnswer]) -> None:
        """What one judge says of traces; the first answer stays."""
        rows = [
            {"judge": judge, "attempt": one.attempt, "verdict": one.verdict, "body": pack(one)}
            for one in made
        ]

        def work(on: Connection) -> None:
            if rows:
                statement = INSERT[on.dialect.name](tables.answers).on_conflict_do_nothing()
                on.execute(statement, rows)

        self._write(work)

    def found(self, attempt: str | None = None) -> dict[str, list[TraceAnswer]]:
        """Every yes of any judge, by attempt; of one, or of all."""
        table = tables.answers
        query = select(table.c.body).where(table.c.verdict == "yes").order_by(table.c.number)
        if attempt is not None:
            query = query.where(table.c.attempt == attempt)
        found: dict[str, list[TraceAnswer]] = {}
        for body in self._read(lambda on: list(on.execute(query).scalars())):
            answer = unpack(body, TraceAnswer)
            found.setdefault(answer.attempt, []).append(answer)
        return found

    def answers(self, judge: str) -> dict[str, TraceAnswer]:
        """By attempt."""
        table = tables.answers
        query = select(table.c.body).where(table.c.judge == judge)
        bodies = self._read(lambda on: list(on.execute(query).scalars()))
        return {one.attempt: one for one in (unpack(body, TraceAnswer) for body in bodies)}


def _judge_columns(one: JudgeVersion) -> dict[str, Any]:
    return {
        "id": one.id,
        "rubric": _plain(one.rubric),
        "model": _plain(one.model),
        "body": pack(one),
    }


def _columns(one: Evaluation) -> dict[str, Any]:
    return {
        "id": one.id,
        "at": one.at,
        "attempt": one.attempt,
        "task": _plain(one.task),
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


def _plain(text: str) -> str:
    """A column holds no NUL and no half of a character."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode()
