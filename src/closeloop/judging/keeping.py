"""Evaluations kept as they come: they are paid for, and a kill loses only what is under way."""

from __future__ import annotations

from collections.abc import Sequence

from anyio import to_thread
from msgspec.structs import replace

from closeloop.judging.bench import Bench
from closeloop.judging.evaluate import evaluate_cases
from closeloop.model.errors import Fault
from closeloop.model.evaluation import Case, Evaluation, Evaluations, JudgeVersion
from closeloop.store import Store


async def evaluate_and_keep(
    bench: Bench, cases: Sequence[Case], store: Store, attempts: Sequence[str] = ()
) -> tuple[Evaluations, Fault | None]:
    """Judge each case and keep it as it ends; and why that could not be, where it is so."""
    keeper = Keeper(store, attempts)
    made = await evaluate_cases(bench, cases, keeper.keep)
    return await to_thread.run_sync(keeper.settle, made)


class Keeper:
    """Takes each evaluation; a store that is away for a while stops no judge."""

    def __init__(self, store: Store, attempts: Sequence[str] = ()) -> None:
        self._store = store
        self._attempts = attempts
        """Ids of those that are judged, in the order of the cases, where they are attempts."""

    def owned(self, number: int, one: Evaluation) -> Evaluation:
        """With the attempt that it is of."""
        return replace(one, attempt=self._attempts[number]) if self._attempts else one

    def keep(self, number: int, one: Evaluation, by: JudgeVersion) -> None:
        """One, as soon as it is there; if that fails, `settle` tries again."""
        single = Evaluations(
            judges=(by,),
            evaluations=(self.owned(number, one),),
            passed=one.passed,
            summary=one.summary,
        )
        try:
            self._store.judged.save(single)
        except Fault:
            return

    def settle(self, made: Evaluations) -> tuple[Evaluations, Fault | None]:
        """All of them, and why they could not be kept, where that is so."""
        each = enumerate(made.evaluations)
        whole = replace(made, evaluations=tuple(self.owned(number, one) for number, one in each))
        try:
            self._store.judged.save(whole)  # those that are kept already stay as they are
        except Fault as fault:
            return whole, fault
        return whole, None
