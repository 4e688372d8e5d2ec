"""Evaluations kept as they come: they are paid for, and a kill loses only what is under way."""

from __future__ import annotations

from collections.abc import Sequence

from anyio import to_thread
from msgspec.structs import replace

from closeloop.judges.evaluator import evaluate_cases
from closeloop.judges.judge_panel import JudgePanel
from closeloop.records.errors import Fault
from closeloop.records.evaluation import Evaluation, Evaluations, JudgeCase, JudgeVersion
from closeloop.store import Store


async def evaluate_and_save(
    bench: JudgePanel, cases: Sequence[JudgeCase], store: Store, attempts: Sequence[str] = ()
) -> tuple[Evaluations, Fault | None]:
    """Judge each case and keep it as it ends; and why that could not be, where it is so."""
    saver = EvaluationSaver(store, attempts)
    evaluations = await evaluate_cases(bench, cases, saver.save_one)
    return await to_thread.run_sync(saver.save_all, evaluations)


class EvaluationSaver:
    """Takes each evaluation; a store that is away for a while stops no judge."""

    def __init__(self, store: Store, attempts: Sequence[str] = ()) -> None:
        self._store = store
        self._attempts = attempts
        """Ids of those that are judged, in the order of the cases, where they are attempts."""

    def with_attempt(self, number: int, one: Evaluation) -> Evaluation:
        """With the attempt that it is of."""
        return replace(one, attempt=self._attempts[number]) if self._attempts else one

    def save_one(self, number: int, one: Evaluation, by: JudgeVersion) -> None:
        """One, as soon as it is there; if that fails, `settle` tries again."""
        single = Evaluations(
            judges=(by,),
            evaluations=(self.with_attempt(number, one),),
            passed=one.passed,
            summary=one.summary,
        )
        try:
            self._store.judged.save_evaluations(single)
        except Fault:
            return

    def save_all(self, made: Evaluations) -> tuple[Evaluations, Fault | None]:
        """All of them, and why they could not be kept, where that is so."""
        numbered = enumerate(made.evaluations)
        with_attempts = replace(
            made, evaluations=tuple(self.with_attempt(number, one) for number, one in numbered)
        )
        try:
            self._store.judged.save_evaluations(
                with_attempts
            )  # those that are kept already stay as they are
        except Fault as fault:
            return with_attempts, fault
        return with_attempts, None
