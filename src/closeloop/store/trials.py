"""Trials and which work fell to which variant: written once, before the work starts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from closeloop.model.trial import Lot, Trial
from closeloop.store.bodies import pack, unpack
from closeloop.store.facts import add_new
from closeloop.store.part import Part
from closeloop.store.schema import assignments, trials


class Trials(Part):
    """The part of an open store that is about trials."""

    def start(self, trial: Trial) -> Trial:
        """The trial of that name: this one, or the one that was started before."""

        def work(on: Connection) -> Any:
            columns = {"name": trial.name, "body": pack(trial)}
            add_new(on, trials, [columns])
            query = select(trials.c.body).where(trials.c.name == trial.name)
            return on.execute(query).scalar_one()

        return unpack(self._write(work), Trial)

    def named(self, name: str) -> Trial | None:
        query = select(trials.c.body).where(trials.c.name == name)
        return self._record(query, Trial)

    def names(self) -> list[str]:
        query = select(trials.c.name).order_by(trials.c.number)
        found: list[str] = self._read(lambda on: list(on.execute(query).scalars()))
        return found

    def assign(self, one: Lot) -> Lot:
        """What is written of that key: this, or what was written before."""
        fields = Lot.__struct_fields__

        def work(on: Connection) -> Any:
            columns = {name: getattr(one, name) for name in fields}
            add_new(on, assignments, [columns])
            query = select(*(assignments.c[name] for name in fields)).where(
                assignments.c.trial == one.trial, assignments.c.key == one.key
            )
            return on.execute(query).mappings().one()

        return Lot(**self._write(work))

    def assigned(self, trial: str) -> list[Lot]:
        """All of a trial, in the order they were made."""
        fields = [assignments.c[name] for name in Lot.__struct_fields__]
        query = select(*fields).where(assignments.c.trial == trial)
        query = query.order_by(assignments.c.number)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [Lot(**row) for row in rows]
