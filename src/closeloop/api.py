"""closeloop in Python: open a project's results as tables, read and measure recorded sessions.

Everything here is exported by `closeloop` itself: `closeloop.open()`, `closeloop.read(path)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from closeloop.records.attempt import TableName
from closeloop.records.change import ChangeReport, CheckTier
from closeloop.records.errors import BadInput
from closeloop.records.estimate import CompareReport
from closeloop.records.finding import Measurement
from closeloop.records.record import html_table
from closeloop.records.score import ScoreSource
from closeloop.records.trace import Session, Trace

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from closeloop.cli.config import ProjectConfiguration
    from closeloop.metrics.data_tables import ColumnType, TableRow
    from closeloop.process.rulebook import Rulebook
    from closeloop.store import Store

__all__ = ["Project", "ResultTable", "check", "compare", "measure", "open", "read", "read_all"]

Result = TypeVar("Result")
MAX_HTML_ROWS = 20
MAX_CELL_CHARS = 120
ALL_TIERS: tuple[CheckTier, ...] = ("tools", "quality", "risk")


class ResultTable(Sequence["TableRow"]):
    """The rows of one table: a sequence of dictionaries, each with every column.

    An unknown value is None.
    """

    def __init__(
        self, name: TableName, columns: Mapping[str, ColumnType], rows: list[TableRow]
    ) -> None:
        self.name = name
        self.columns = tuple(columns)
        self._types = columns
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[TableRow]:
        return iter(self._rows)

    @overload
    def __getitem__(self, index: int) -> TableRow: ...
    @overload
    def __getitem__(self, index: slice) -> ResultTable: ...
    def __getitem__(self, index: int | slice) -> TableRow | ResultTable:
        if isinstance(index, slice):
            return ResultTable(self.name, self._types, self._rows[index])
        return self._rows[index]

    def __repr__(self) -> str:
        return f"<ResultTable {self.name}: {len(self)} rows, {len(self.columns)} columns>"

    def _repr_html_(self) -> str:
        """Return a notebook's view: the columns that hold something, and the first rows,
        escaped."""
        visible_rows = self._rows[:MAX_HTML_ROWS]
        columns = [
            name for name in self.columns if any(row[name] is not None for row in visible_rows)
        ]
        cells = [[_shorten_cell(row[name]) for name in columns] for row in visible_rows]
        return f"<p>{len(self)} {self.name}</p>{html_table(columns, cells)}"

    def to_records(self) -> list[TableRow]:
        """Return copies of the rows, as a list of dictionaries."""
        return [dict(row) for row in self._rows]

    def to_arrow(self) -> pyarrow.Table:
        """Return a `pyarrow.Table` with typed columns; needs `closeloop[parquet]`."""
        from closeloop.metrics.data_tables import arrow_table

        return arrow_table(self._rows, self._types)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a `pandas.DataFrame` with typed columns; needs `closeloop[notebook]`."""
        try:
            import pandas
        except ImportError:
            raise BadInput("to_pandas() needs pandas: pip install 'closeloop[notebook]'.") from None
        kinds = {
            "integer": "Int64",
            "number": "float64",
            "boolean": "boolean",
            "time": "datetime64[us, UTC]",
        }
        frame = pandas.DataFrame(self._rows, columns=list(self.columns), dtype=object)
        return frame.astype(
            {name: kinds[kind] for name, kind in self._types.items() if kind in kinds}
        )


def _shorten_cell(value: Any) -> str | None:
    if value is None:
        return None
    text = str(value)
    return text if len(text) <= MAX_CELL_CHARS else f"{text[: MAX_CELL_CHARS - 1]}…"


class Project:
    """The stored results of one project. Each call opens and closes the store."""

    def __init__(self, configuration: ProjectConfiguration) -> None:
        self.configuration = configuration
        self.root = configuration.root

    def __repr__(self) -> str:
        return f"<Project {self.root}>"

    def attempts(self) -> ResultTable:
        """Return every attempt: task, variant, agent, model, outcome, cost, tokens, seconds."""
        return self._load_table("attempts")

    def findings(self, *attempts: str) -> ResultTable:
        """Return the findings of rules and judges, with the numbers of the events they cite."""
        return self._load_table("findings", attempts)

    def events(self, *attempts: str) -> ResultTable:
        """Return every event of the traces: messages, commands, edits, reads, handoffs."""
        return self._load_table("events", attempts)

    def scores(self, *attempts: str) -> ResultTable:
        """Return every score: computed, or given by people, judges and programs."""
        return self._load_table("scores", attempts)

    def add_scores(
        self, scores: Sequence[Mapping[str, Any]], *, by: str, source: ScoreSource = "code"
    ) -> int:
        """Add scores, each with `attempt`, `name` and `value`; return how many are new.

        All of them are saved, or none: raises BadInput if one is invalid.
        """
        from datetime import UTC, datetime

        from closeloop.metrics.score_columns import ScoreIntake, convert_rows, project_scores

        catalogue = project_scores(self.configuration.settings)
        intake = ScoreIntake(catalogue=catalogue, source=source, by=by, now=datetime.now(UTC))
        row_names = [f"score {number}" for number in range(1, len(scores) + 1)]
        rows = convert_rows(zip(row_names, scores, strict=True))
        return self._with_store(
            lambda store, rulebook: store.scores.add_scores(
                intake.read_rows(rows, store, row_names)
            )
        )

    def pulls(self) -> ResultTable:
        """Return every known pull request: author, agent, state, review rounds, size."""
        return self._load_table("pulls")

    def trace(self, attempt: str) -> Trace:
        """Return the trace of an attempt, by its id or the beginning of it."""
        from closeloop.tasks.task_sets import require_unsealed

        def load_trace(store: Store, rulebook: Rulebook) -> Trace | None:
            digest = store.load_attempt(attempt).task_digest
            require_unsealed(store.load_task(digest) if digest else None)
            return store.load_trace(attempt)

        trace = self._with_store(load_trace)
        if trace is None:
            raise BadInput(f"Attempt {attempt} has no trace.")
        return trace

    def compare(
        self, *names: str, scores: Sequence[str] = (), margin: float = 0.05
    ) -> CompareReport:
        """Compare variants, agents, models or periods by name; the first is the baseline."""
        from closeloop.cli.console import require_margin
        from closeloop.metrics.score_columns import project_scores
        from closeloop.metrics.variant_comparison import compare_by_name

        require_margin(margin)
        catalogue = project_scores(self.configuration.settings)
        return self._with_store(
            lambda store, rulebook: compare_by_name(
                store, rulebook, names, margin=margin, scores=scores, catalogue=catalogue
            )
        )

    def _load_table(self, name: TableName, attempts: Sequence[str] = ()) -> ResultTable:
        from closeloop.metrics.data_tables import list_table_rows, table_columns

        rows = self._with_store(
            lambda store, rulebook: list(list_table_rows(name, store, rulebook, attempts))
        )
        return ResultTable(name, table_columns(name), rows)

    def _with_store(self, use: Callable[[Store, Rulebook], Result]) -> Result:
        from closeloop.metrics.attempt_measuring import project_rulebook
        from closeloop.store.store import open_existing_store

        settings = self.configuration.settings
        with open_existing_store(settings, self.root) as store:
            return use(store, project_rulebook(settings))


def open(folder: str | os.PathLike[str] = ".") -> Project:  # noqa: A001 - called closeloop.open
    """Open the project of a folder, found by its closeloop.toml or git repository."""
    from closeloop.cli.config import load_project
    from closeloop.records.settings import has_store
    from closeloop.store.store import missing_store_error

    folder_path = Path(folder)
    if not folder_path.is_dir():
        raise BadInput(f"{folder_path} is not a folder: give a folder in a project.")
    configuration = load_project(folder_path)
    if not has_store(configuration.settings, configuration.root):
        raise missing_store_error(str(configuration.root / configuration.settings.store))
    return Project(configuration)


def read(path: str | os.PathLike[str]) -> Session:
    """Read the recorded session in a file or folder, in any format that `import` reads.

    Secrets are removed. Raises BadInput if there is no session, or more than one.
    """
    sessions = read_all(path)
    if len(sessions) > 1:
        raise BadInput(f"{path} contains {len(sessions)} sessions: use closeloop.read_all(path).")
    return sessions[0]


def read_all(path: str | os.PathLike[str]) -> list[Session]:
    """Read every recorded session in a file or folder; nothing is stored."""
    from msgspec.structs import replace

    from closeloop.flow import import_sessions
    from closeloop.records.trace import SessionFilter
    from closeloop.store import make_store

    source_path = Path(path)
    if not source_path.exists():
        raise BadInput(f"There is no file or folder {source_path}.")
    sessions = []
    with make_store(":memory:") as store:
        # One process: a script without a `__main__` guard would be started again in others.
        summary = import_sessions(
            [source_path],
            store,
            session_filter=SessionFilter(),
            jobs=1,
            report_progress=lambda tally: None,
        )
        for row in store.list_attempts():
            session, trace = store.load_session(row.id), store.load_trace(row.id)
            if session is not None and trace is not None:
                sessions.append(replace(session, trace=trace))
    if not sessions:
        reason = next(iter(summary.troubles), "no known format")
        raise BadInput(f"No session could be read from {source_path}: {reason}.")
    return sessions


def measure(recorded: Session | Trace) -> Measurement:
    """Measure a trace: iterations, findings with the events they cite, process score.

    The rules and thresholds are those of the project in the current folder.
    """
    from closeloop.cli.config import load_project
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.process.trace_measurement import measure_reading
    from closeloop.process.trace_reading import build_reading

    trace = recorded.trace if isinstance(recorded, Session) else recorded
    rulebook = project_rulebook(load_project(Path.cwd()).settings)
    return measure_reading(build_reading(trace, rulebook.own_checks), rulebook)


def compare(*names: str, scores: Sequence[str] = (), margin: float = 0.05) -> CompareReport:
    """Compare variants of the project in the current folder: `open().compare(…)`."""
    return open().compare(*names, scores=scores, margin=margin)


def check(
    change: str | None = None,
    *,
    base: str | None = None,
    patch: str | os.PathLike[str] | None = None,
    tiers: Sequence[CheckTier] = ALL_TIERS,
) -> ChangeReport:
    """Check a change of the repository in the current folder, without modifying it.

    `change` is a range such as main..feature, a branch or a commit; without it and without
    `patch`, the working tree is checked.
    """
    from closeloop.changes.change_sides import ChangeQuery
    from closeloop.cli.check import (
        build_check_order,
        load_check_configuration,
        require_one_change,
        run_check,
    )
    from closeloop.concurrency import run_event_loop

    patch_file = None if patch is None else Path(patch)
    require_one_change(change, patch_file)
    query = ChangeQuery(range=change, patch=patch_file, base=base)
    configuration = load_check_configuration(query)
    order = build_check_order(configuration, query, tuple(tiers), None)
    # A notebook's thread has an event loop that is running.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run_event_loop, run_check, order, configuration, None).result()
