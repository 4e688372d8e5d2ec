"""Trials and which work fell to which variant: written once, before the work starts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from closeloop.records.experiment_plan import Trial, TrialAssignment
from closeloop.store.fact_rows import insert_new_rows
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.schema import assignments, trials
from closeloop.store.store_section import StoreSection


class TrialSection(StoreSection):
    """The part of an open store that is about trials."""

    def start_trial(self, trial: Trial) -> Trial:
        """The trial of that name: this one, or the one that was started before."""

        def work(on: Connection) -> Any:
            columns = {"name": trial.name, "body": pack_record(trial)}
            insert_new_rows(on, trials, [columns])
            query = select(trials.c.body).where(trials.c.name == trial.name)
            return on.execute(query).scalar_one()

        return unpack_record(self._write(work), Trial)

    def load_trial(self, name: str) -> Trial | None:
        query = select(trials.c.body).where(trials.c.name == name)
        return self._load_record(query, Trial)

    def list_trial_names(self) -> list[str]:
        query = select(trials.c.name).order_by(trials.c.number)
        trial_names: list[str] = self._read(lambda on: list(on.execute(query).scalars()))
        return trial_names

    def save_assignment(self, one: TrialAssignment) -> TrialAssignment:
        """What is written of that key: this, or what was written before."""
        fields = TrialAssignment.__struct_fields__

        def work(on: Connection) -> Any:
            columns = {name: getattr(one, name) for name in fields}
            insert_new_rows(on, assignments, [columns])
            query = select(*(assignments.c[name] for name in fields)).where(
                assignments.c.trial == one.trial, assignments.c.key == one.key
            )
            return on.execute(query).mappings().one()

        return TrialAssignment(**self._write(work))

    def list_assignments(self, trial: str) -> list[TrialAssignment]:
        """All of a trial, in the order they were made."""
        fields = [assignments.c[name] for name in TrialAssignment.__struct_fields__]
        query = select(*fields).where(assignments.c.trial == trial)
        query = query.order_by(assignments.c.number)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [TrialAssignment(**row) for row in rows]
