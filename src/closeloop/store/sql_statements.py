"""SQL statements: tables, queries and changes, rendered once to text for SQLite and PostgreSQL.

A table that a subquery shares with the statement around it is taken from there, as SQL does with
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from closeloop.store.sql_expressions import (
    ColumnType,
    Label,
    Query,
    Raw,
    RenderedStatement,
    Rendering,
    SqlExpression,
    SqlParameter,
    SubqueryValue,
    Wrapped,
    as_operand,
    literal_column,
    quote_name,
)

# Tables, and other sources of rows.


class ColumnCollection:
    """The columns of a table by name, as attributes or keys, in their order."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self._by_name = {column.name: column for column in columns}

    def __getattr__(self, name: str) -> Column:
        try:
            return self._by_name[name]
        except KeyError:
            raise AttributeError(f"There is no column {name!r}.") from None

    def __getitem__(self, name: str) -> Column:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Column]:
        return iter(self._by_name.values())

    def keys(self) -> list[str]:
        return list(self._by_name)


class FromItem:
    """Anything that can stand in FROM."""

    c: ColumnCollection
    base_name = "anon"

    def render_from(self, rendering: Rendering) -> str:
        raise NotImplementedError

    def render_name(self, rendering: Rendering) -> str:
        """Return the name that qualifies its columns."""
        return rendering.name_alias(self)

    def list_tables(self) -> tuple[FromItem, ...]:
        return (self,)

    def _copy_columns(self, columns: Iterable[SqlExpression]) -> ColumnCollection:
        return ColumnCollection(
            Column(column.name or "", column.type, table=self) for column in columns
        )


class Column(SqlExpression):
    """A column of a table."""

    name: str

    def __init__(
        self,
        name: str,
        kind: type[ColumnType] | ColumnType,
        *,
        table: FromItem | None = None,
        primary_key: bool = False,
        nullable: bool = True,
    ) -> None:
        self.name = name
        self.type = kind() if isinstance(kind, type) else kind
        self.table = table
        self.primary_key = primary_key
        self.nullable = nullable and not primary_key

    def render(self, rendering: Rendering) -> str:
        if self.table is None:
            return quote_name(self.name)
        return f"{self.table.render_name(rendering)}.{quote_name(self.name)}"

    def find_tables(self) -> Iterator[FromItem]:
        if self.table is not None:
            yield self.table


class MetaData:
    """All tables by name."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}


class Table(FromItem):
    """A table of the database."""

    def __init__(self, name: str, metadata: MetaData, *columns: Column) -> None:
        self.name = self.base_name = name
        self.columns = columns
        for column in columns:
            column.table = self
        self.c = ColumnCollection(columns)
        self.primary_key = [column for column in columns if column.primary_key]
        metadata.tables[name] = self

    def render_from(self, rendering: Rendering) -> str:
        return quote_name(self.name)

    def render_name(self, rendering: Rendering) -> str:
        return quote_name(self.name)

    def alias(self) -> Alias:
        return Alias(self)


class Alias(FromItem):
    """A table under an alias, so that it can be joined with itself."""

    def __init__(self, table: Table) -> None:
        self.base_name = table.name
        self._table = table
        self.c = self._copy_columns(table.c)

    def render_from(self, rendering: Rendering) -> str:
        return f"{quote_name(self._table.name)} AS {self.render_name(rendering)}"


class Subquery(FromItem):
    """A query in FROM."""

    def __init__(self, query: Select) -> None:
        self._query = query
        self.c = self._copy_columns(query.selected_columns)

    def render_from(self, rendering: Rendering) -> str:
        return f"({rendering.render_apart(self._query)}) AS {self.render_name(rendering)}"


class RecursiveRows(FromItem):
    """A recursive CTE: the rows of a query, and those that a second query derives from them."""

    def __init__(self, first: Select) -> None:
        self._first = first
        self.following: Select | None = None
        self.c = self._copy_columns(first.selected_columns)

    def union_all(self, following: Select) -> RecursiveRows:
        self.following = following
        return self

    def render_from(self, rendering: Rendering) -> str:
        name = self.render_name(rendering)
        if name not in rendering.common_tables and self.following is not None:
            rendering.common_tables[name] = ""  # named by the second query
            columns = ", ".join(quote_name(column.name) for column in self.c)
            queries = (rendering.render_apart(query) for query in (self._first, self.following))
            rendering.common_tables[name] = f"{name}({columns}) AS ({' UNION ALL '.join(queries)})"
        return name


class RawTable(FromItem):
    """A table given as raw SQL, specific to its engine."""

    def __init__(self, sql: Raw) -> None:
        self._sql = sql

    def render_from(self, rendering: Rendering) -> str:
        return self._sql.render(rendering)


class Join(FromItem):
    """An inner or left outer join of two items."""

    def __init__(
        self, left: FromItem, right: FromItem, condition: SqlExpression, *, outer: bool
    ) -> None:
        self._left = left
        self._right = right
        self._condition = condition
        self._outer = outer

    def render_from(self, rendering: Rendering) -> str:
        operator = "LEFT OUTER JOIN" if self._outer else "JOIN"
        left_sql, right_sql = self._left.render_from(rendering), self._right.render_from(rendering)
        return f"{left_sql} {operator} {right_sql} ON {self._condition.render(rendering)}"

    def list_tables(self) -> tuple[FromItem, ...]:
        return (*self._left.list_tables(), *self._right.list_tables())


# Statements.


class Select(Query):
    """A query. Its methods return an extended copy."""

    def __init__(self, columns: Iterable[Any]) -> None:
        self.selected_columns: tuple[SqlExpression, ...] = tuple(_expand_columns(columns))
        self._from: tuple[FromItem, ...] = ()
        self._where: tuple[SqlExpression, ...] = ()
        self._group_by: tuple[SqlExpression, ...] = ()
        self._having: tuple[SqlExpression, ...] = ()
        self._order_by: tuple[SqlExpression, ...] = ()
        self._limit: SqlExpression | None = None
        self._distinct = False
        self._rendered: dict[str, RenderedStatement] = {}

    def _with(self, **changes: Any) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, _rendered={}, **changes)
        return copy

    def where(self, *conditions: SqlExpression) -> Self:
        return self._with(_where=(*self._where, *conditions)) if conditions else self

    def order_by(self, *keys: SqlExpression | None) -> Self:
        """Sort by these keys after the existing ones; None removes all."""
        clears_order = any(key is None for key in keys)
        return self._with(_order_by=() if clears_order else (*self._order_by, *keys))

    def group_by(self, *keys: SqlExpression) -> Self:
        return self._with(_group_by=(*self._group_by, *keys))

    def having(self, *conditions: SqlExpression) -> Self:
        return self._with(_having=(*self._having, *conditions))

    def limit(self, rows: int | None) -> Self:
        return self._with(_limit=None if rows is None else SqlParameter(None, rows))

    def distinct(self) -> Self:
        return self._with(_distinct=True)

    def select_from(self, item: FromItem | Raw) -> Self:
        return self._with(_from=(*self._from, RawTable(item) if isinstance(item, Raw) else item))

    def join(self, right: FromItem, condition: SqlExpression) -> Self:
        return self._join(right, condition, outer=False)

    def outerjoin(self, right: FromItem, condition: SqlExpression) -> Self:
        return self._join(right, condition, outer=True)

    def join_from(self, left: FromItem, right: FromItem, condition: SqlExpression) -> Self:
        return self.select_from(left)._join(right, condition, outer=False)

    def outerjoin_from(self, left: FromItem, right: FromItem, condition: SqlExpression) -> Self:
        return self.select_from(left)._join(right, condition, outer=True)

    def _join(self, right: FromItem, condition: SqlExpression, *, outer: bool) -> Self:
        items = self._from or [item for item in self._find_from() if item is not right][:1]
        *earlier_items, left = items
        return self._with(_from=(*earlier_items, Join(left, right, condition, outer=outer)))

    def with_only_columns(self, *columns: Any, maintain_column_froms: bool = False) -> Self:
        """Replace the columns; `maintain_column_froms` keeps the tables of the old ones."""
        kept_from = {"_from": tuple(self._find_from())} if maintain_column_froms else {}
        return self._with(selected_columns=tuple(_expand_columns(columns)), **kept_from)

    def add_columns(self, *columns: Any) -> Self:
        return self._with(selected_columns=(*self.selected_columns, *_expand_columns(columns)))

    def subquery(self) -> Subquery:
        return Subquery(self)

    def cte(self, *, recursive: bool) -> RecursiveRows:
        return RecursiveRows(self)

    def _find_from(self) -> list[FromItem]:
        """Return the explicit FROM items, then other tables of columns and conditions."""
        items = list(self._from)
        known_tables = {table for item in items for table in item.list_tables()}
        for expression in (*self.selected_columns, *self._where):
            for table in expression.find_tables():
                if table not in known_tables:
                    known_tables.add(table)
                    items.append(table)
        return items

    def render(self, rendering: Rendering, outer_tables: frozenset[FromItem]) -> str:
        items = self._find_from()
        if len(items) > 1:
            items = [item for item in items if item not in outer_tables] or items
        tables = [table for item in items for table in item.list_tables()]
        labels, rendering.labels = rendering.labels, frozenset()
        rendering.enter(tables)
        parts = ["SELECT DISTINCT" if self._distinct else "SELECT"]
        parts.append(
            ", ".join(
                _render_selected(selected_column, rendering)
                for selected_column in self.selected_columns
            )
        )
        if items:
            parts.append("FROM " + ", ".join(item.render_from(rendering) for item in items))
        if self._where:
            parts.append("WHERE " + _render_all(self._where, rendering))
        # By the expression: a column of that name would take precedence over the label.
        if self._group_by:
            parts.append("GROUP BY " + ", ".join(key.render(rendering) for key in self._group_by))
        if self._having:
            parts.append("HAVING " + _render_all(self._having, rendering))
        if self._order_by:
            rendering.labels = frozenset(
                selected_column
                for selected_column in self.selected_columns
                if isinstance(selected_column, Label)
            )
        if self._order_by:
            parts.append(
                "ORDER BY " + ", ".join(_render_order(key, rendering) for key in self._order_by)
            )
        if self._limit is not None:
            parts.append("LIMIT " + self._limit.render(rendering))
        rendering.leave()
        rendering.labels = labels
        return " ".join(parts)

    def render_statement(self, dialect: str, keys: tuple[str, ...]) -> RenderedStatement:
        rendered = self._rendered.get(dialect)
        if rendered is None:
            rendering = Rendering(dialect)
            sql = self.render(rendering, frozenset())
            if rendering.common_tables:
                sql = f"WITH RECURSIVE {', '.join(rendering.common_tables.values())} {sql}"
            rendered = RenderedStatement(sql, rendering, self.selected_columns)
            self._rendered[dialect] = rendered
        return rendered


def _expand_columns(columns: Iterable[Any]) -> Iterator[SqlExpression]:
    for column in columns:
        if isinstance(column, FromItem):
            yield from column.c
        else:
            yield as_operand(column)


def _render_selected(column: SqlExpression, rendering: Rendering) -> str:
    sql = column.render(rendering)
    return f"{sql} AS {quote_name(column.name)}" if isinstance(column, Label) else sql


def _render_order(key: SqlExpression, rendering: Rendering) -> str:
    """Render a sort key without parentheses around `x DESC NULLS LAST`."""
    if isinstance(key, Wrapped) and isinstance(key.inner, Wrapped) and not key.before:
        return f"{_render_order(key.inner, rendering)}{key.after}"
    return key.render(rendering)


def _render_all(conditions: Sequence[SqlExpression], rendering: Rendering) -> str:
    return " AND ".join(condition.render_operand(rendering) for condition in conditions)


def select(*columns: Any) -> Select:
    """Return a query of columns, tables or expressions."""
    return Select(columns)


def exists() -> SubqueryValue:
    """Return an EXISTS, to which conditions are added with `where`."""
    return SubqueryValue(select(literal_column("1")), "EXISTS ")


class DataChange:
    """Base of the statements that write."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._where: tuple[SqlExpression, ...] = ()
        self._values: dict[str, SqlExpression] = {}
        self._rendered: dict[tuple[str, tuple[str, ...]], RenderedStatement] = {}

    def _with(self, **changes: Any) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, _rendered={}, **changes)
        return copy

    def where(self, *conditions: SqlExpression) -> Self:
        return self._with(_where=(*self._where, *conditions))

    def values(self, **values: Any) -> Self:
        return self._with(_values=self._values | self._convert_values(values))

    def _convert_values(self, values: dict[str, Any]) -> dict[str, SqlExpression]:
        return {name: as_operand(value, self.table.c[name].type) for name, value in values.items()}

    def render_statement(self, dialect: str, keys: tuple[str, ...]) -> RenderedStatement:
        """Render it to text; `keys` are the columns passed on execution."""
        rendered = self._rendered.get((dialect, keys))
        if rendered is None:
            rendering = Rendering(dialect)
            rendering.enter([self.table])
            rendered = self._render(rendering, keys)
            self._rendered[dialect, keys] = rendered
        return rendered

    def _render(self, rendering: Rendering, keys: tuple[str, ...]) -> RenderedStatement:
        raise NotImplementedError

    def _render_where(self, rendering: Rendering) -> str:
        return f" WHERE {_render_all(self._where, rendering)}" if self._where else ""


class Insert(DataChange):
    """An INSERT."""

    _conflict: tuple[tuple[str, ...], dict[str, SqlExpression], SqlExpression | None] | None = None
    _ignores_known = False
    _returning: tuple[Column, ...] = ()

    @property
    def excluded(self) -> ColumnCollection:
        """The values of the row that could not be inserted."""
        return ExcludedRow(self.table).c

    def returning(self, *columns: Column) -> Self:
        return self._with(_returning=columns)

    def on_conflict_do_nothing(self) -> Self:
        return self._with(_ignores_known=True)

    def on_conflict_do_update(
        self,
        *,
        index_elements: Sequence[str],
        set_: dict[str, Any],
        where: SqlExpression | None = None,
    ) -> Self:
        conflict = (tuple(index_elements), self._convert_values(set_), where)
        return self._with(_conflict=conflict)

    def _render(self, rendering: Rendering, keys: tuple[str, ...]) -> RenderedStatement:
        columns = self.table.c
        values = self._values or {key: SqlParameter(key, None, columns[key].type) for key in keys}
        names = ", ".join(map(quote_name, values))
        rendered_values = ", ".join(value.render(rendering) for value in values.values())
        sql = f"INSERT INTO {quote_name(self.table.name)} ({names}) VALUES ({rendered_values})"  # noqa: S608
        if self._ignores_known:
            sql += " ON CONFLICT DO NOTHING"
        if self._conflict is not None:
            keys, updates, where = self._conflict
            assignments = ", ".join(
                f"{quote_name(name)} = {value.render(rendering)}" for name, value in updates.items()
            )
            sql += f" ON CONFLICT ({', '.join(map(quote_name, keys))}) DO UPDATE SET {assignments}"
            sql += f" WHERE {where.render(rendering)}" if where is not None else ""
        if self._returning:
            sql += " RETURNING " + ", ".join(quote_name(column.name) for column in self._returning)
        return RenderedStatement(sql, rendering, self._returning or None)


class ExcludedRow(FromItem):
    """The row that could not be inserted, `excluded` in SQL."""

    def __init__(self, table: Table) -> None:
        self.c = self._copy_columns(table.c)

    def render_name(self, rendering: Rendering) -> str:
        return "excluded"


class Update(DataChange):
    """An UPDATE."""

    def _render(self, rendering: Rendering, keys: tuple[str, ...]) -> RenderedStatement:
        assignments = ", ".join(
            f"{quote_name(name)} = {value.render(rendering)}"
            for name, value in self._values.items()
        )
        sql = (
            f"UPDATE {quote_name(self.table.name)} SET {assignments}{self._render_where(rendering)}"  # noqa: S608
        )
        return RenderedStatement(sql, rendering, None)


class Delete(DataChange):
    """A DELETE."""

    def _render(self, rendering: Rendering, keys: tuple[str, ...]) -> RenderedStatement:
        sql = f"DELETE FROM {quote_name(self.table.name)}{self._render_where(rendering)}"  # noqa: S608
        return RenderedStatement(sql, rendering, None)


Statement = Select | DataChange | Raw


def insert(table: Table) -> Insert:
    """Return an INSERT of the rows passed on execution, or of the values set on it."""
    return Insert(table)


def update(table: Table) -> Update:
    return Update(table)


def delete(table: Table) -> Delete:
    return Delete(table)
