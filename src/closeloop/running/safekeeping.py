"""Keep what came of tries: together what comes together, and in a file what no database takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex

import anyio
from anyio import to_thread

from closeloop.model.errors import Fault, MachineFailed
from closeloop.model.evaluation import Evaluations, JudgeVersion
from closeloop.model.orchestration import Assessment, Tried
from closeloop.model.record import Record
from closeloop.store import Store
from closeloop.store.bodies import pack, unpack

ENDING = ".unsaved"


class Judged(Record):
    """A verdict, with the judges that gave it."""

    assessment: Assessment
    judges: tuple[JudgeVersion, ...] = ()


class Batch(Record):
    """What is saved in one go."""

    tried: tuple[Tried, ...] = ()
    judged: tuple[Judged, ...] = ()


class Safe:
    """Takes tries and verdicts of one plan; each is kept when `keep` returns."""

    def __init__(self, store: Store, folder: Path, plan: str) -> None:
        self._store = store
        self._folder = folder
        self._plan = plan
        self._waiting: list[Tried | Judged] = []
        self._turn = anyio.Lock()
        self._broken: Fault | None = None

    async def keep(self, one: Tried | Judged) -> None:
        """Whoever gets the turn saves all that wait; a kill loses none that is saved."""
        with anyio.CancelScope(shield=True):
            self._waiting.append(one)
            async with self._turn:
                if any(each is one for each in self._waiting):
                    batch, self._waiting = self._waiting, []
                    await to_thread.run_sync(self._save, batch)
            if self._broken is not None:
                raise self._broken

    def _save(self, waiting: Sequence[Tried | Judged]) -> None:
        batch = Batch(
            tried=tuple(one for one in waiting if isinstance(one, Tried)),
            judged=tuple(one for one in waiting if isinstance(one, Judged)),
        )
        if self._broken is None:
            try:
                save(batch, self._store)
            except Fault as fault:
                self._broken = MachineFailed(
                    f"{str(fault).rstrip('.')}; what is finished lies safe in {self._folder}: "
                    f"`closeloop orchestrate --resume {self._plan}` goes on with it."
                )
            else:
                return
        try:
            put_by(batch, self._folder, self._plan)
        except OSError as error:
            self._broken = MachineFailed(
                f"{str(self._broken).partition(';')[0]}, nor can {self._folder} be written "
                f"({error.strerror}): make room, then `closeloop orchestrate --resume {self._plan}`"
                " does the last tries again."
            )


def put_by(batch: Batch, folder: Path, plan: str) -> None:
    """In a file, which is whole or not there, even where the machine is lost next."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{plan}-{token_hex(4)}"
    with file.open("wb") as opened:
        opened.write(pack(batch))
        opened.flush()
        os.fsync(opened.fileno())
    file.rename(file.with_suffix(ENDING))


def save(batch: Batch, store: Store) -> None:
    """Everything in two transactions: what judges said, and what that makes of the tries."""
    judges = {one.id: one for judged in batch.judged for one in judged.judges}
    said = [judged.assessment.evaluation for judged in batch.judged]
    if judges:
        store.judged.save(
            Evaluations(
                judges=tuple(judges.values()),
                evaluations=tuple(one for one in said if one is not None),
                passed=None,
                summary="",
            )
        )
    store.plans.save(batch.tried, [judged.assessment for judged in batch.judged])


def recover(store: Store, folder: Path, plan: str) -> int:
    """Save what lies in files because no database took it; how many there were."""
    files = sorted(folder.glob(f"{plan}-*{ENDING}"))
    for file in files:
        try:
            batch = unpack(file.read_bytes(), Batch)
        except MachineFailed as fault:
            raise MachineFailed(
                f"{file} is damaged: delete it, and what it held is done again."
            ) from fault
        save(batch, store)
        file.unlink()
    return len(files)
