"""SQL expressions for SQLite and PostgreSQL: columns, conditions, functions and parameters.

They are built with Python's operators, and rendered to text with their parameters in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeloop.store.sql_statements import FromItem

ESCAPE_CHARACTER = "/"
MAX_LISTED_VALUES = 10_000
"""Longer lists are passed as one parameter: databases accept 32,766 or 65,535 in a statement."""
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
_PLACE = re.compile(r"\?\d+|%\(p\d+\)s")

# Column types.


class ColumnType:
    """How values are converted to and from the database; None for no conversion."""

    to_database: Callable[[Any], Any] | None = None
    from_database: Callable[[Any], Any] | None = None


class BigInteger(ColumnType):
    """A 64-bit integer."""


class Float(ColumnType):
    """A double-precision number."""


class Text(ColumnType):
    """Text."""


class LargeBinary(ColumnType):
    """Bytes."""


def _convert_boolean(value: Any) -> bool | None:
    return None if value is None else bool(value)


class Boolean(ColumnType):
    """A boolean; SQLite stores a number."""

    to_database = staticmethod(_convert_boolean)
    from_database = staticmethod(_convert_boolean)


ANY_TYPE = ColumnType()
_BOOLEAN = Boolean()
_CONSTANTS = {None: "NULL", True: "TRUE", False: "FALSE"}


# Expressions.


class SqlExpression:
    """A value in SQL. Operators and comparisons build further expressions."""

    type: ColumnType = ANY_TYPE
    name: str | None = None
    __hash__ = object.__hash__

    def render(self, rendering: Rendering) -> str:
        raise NotImplementedError

    def render_operand(self, rendering: Rendering) -> str:
        """Render it as an operand, in parentheses if needed."""
        return self.render(rendering)

    def find_tables(self) -> Iterator[FromItem]:
        """Yield the tables that it refers to, except inside subqueries."""
        return iter(())

    def _compare(self, operator: str, other: Any) -> SqlExpression:
        return Operation(operator, (self, as_operand(other, self.type)), _BOOLEAN)

    def __eq__(self, other: object) -> SqlExpression:  # type: ignore[override]
        return self.is_(None) if other is None else self._compare("=", other)

    def __ne__(self, other: object) -> SqlExpression:  # type: ignore[override]
        return self.is_not(None) if other is None else self._compare("!=", other)

    def __lt__(self, other: Any) -> SqlExpression:
        return self._compare("<", other)

    def __le__(self, other: Any) -> SqlExpression:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> SqlExpression:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> SqlExpression:
        return self._compare(">=", other)

    def __and__(self, other: SqlExpression) -> SqlExpression:
        return Operation("AND", (self, other), _BOOLEAN)

    def __or__(self, other: SqlExpression) -> SqlExpression:
        return Operation("OR", (self, other), _BOOLEAN)

    def __invert__(self) -> SqlExpression:
        return Wrapped("NOT (", self, ")", _BOOLEAN)

    def __add__(self, other: Any) -> SqlExpression:
        sign = "||" if isinstance(self.type, Text) else "+"
        return Operation(sign, (self, as_operand(other, self.type)), self.type)

    def __radd__(self, other: Any) -> SqlExpression:
        sign = "||" if isinstance(self.type, Text) else "+"
        return Operation(sign, (as_operand(other, self.type), self), self.type)

    def __sub__(self, other: Any) -> SqlExpression:
        return Operation("-", (self, as_operand(other, self.type)), self.type)

    def __truediv__(self, other: Any) -> SqlExpression:
        return Operation("/", (self, as_operand(other, self.type)), Float())

    def is_(self, value: bool | None) -> SqlExpression:
        return Wrapped("", self, f" IS {_CONSTANTS[value]}", _BOOLEAN)

    def is_not(self, value: bool | None) -> SqlExpression:
        return Wrapped("", self, f" IS NOT {_CONSTANTS[value]}", _BOOLEAN)

    def in_(self, values: Any) -> SqlExpression:
        return Membership(self, values, negated=False)

    def not_in(self, values: Any) -> SqlExpression:
        return Membership(self, values, negated=True)

    def startswith(self, start: str, *, autoescape: bool = False) -> SqlExpression:
        return self._like(_escape_pattern(start) if autoescape else start, "", "%")

    def contains(self, part: str, *, autoescape: bool = False) -> SqlExpression:
        return self._like(_escape_pattern(part) if autoescape else part, "%", "%")

    def _like(self, pattern: str, before: str, after: str) -> SqlExpression:
        return Operation("LIKE", (self, Pattern(None, before + pattern + after)), _BOOLEAN)

    def desc(self) -> SqlExpression:
        return Wrapped("", self, " DESC", self.type)

    def asc(self) -> SqlExpression:
        return Wrapped("", self, " ASC", self.type)

    def nulls_last(self) -> SqlExpression:
        return Wrapped("", self, " NULLS LAST", self.type)

    def distinct(self) -> SqlExpression:
        return Wrapped("DISTINCT ", self, "", self.type)

    def label(self, name: str) -> Label:
        return Label(self, name)


def _escape_pattern(text: str) -> str:
    for sign in (ESCAPE_CHARACTER, "%", "_"):
        text = text.replace(sign, ESCAPE_CHARACTER + sign)
    return text


def as_operand(value: Any, kind: ColumnType = ANY_TYPE) -> SqlExpression:
    if isinstance(value, SqlExpression):
        return value
    return value.scalar_subquery() if isinstance(value, Query) else SqlParameter(None, value, kind)


class SqlParameter(SqlExpression):
    """A bound value: its own, or one passed by name on execution."""

    def __init__(
        self,
        key: str | None,
        value: Any = None,
        kind: ColumnType = ANY_TYPE,
        *,
        is_list: bool = False,
    ) -> None:
        self.key = key
        self.value = value
        self.type = kind
        self.is_list = is_list

    def render(self, rendering: Rendering) -> str:
        return rendering.add_parameter(self)


class Pattern(SqlParameter):
    """The pattern of LIKE."""

    def render(self, rendering: Rendering) -> str:
        return f"{super().render(rendering)} ESCAPE '{ESCAPE_CHARACTER}'"


class Operation(SqlExpression):
    """Operands joined by one operator."""

    def __init__(
        self, operator: str, operands: Sequence[SqlExpression], kind: ColumnType = ANY_TYPE
    ) -> None:
        self.operator = operator
        self.operands = operands
        self.type = kind

    def render(self, rendering: Rendering) -> str:
        return f" {self.operator} ".join(
            operand.render_operand(rendering) for operand in self.operands
        )

    def render_operand(self, rendering: Rendering) -> str:
        return f"({self.render(rendering)})"

    def find_tables(self) -> Iterator[FromItem]:
        for operand in self.operands:
            yield from operand.find_tables()


class Wrapped(SqlExpression):
    """An expression with SQL before and after it."""

    def __init__(
        self, before: str, inner: SqlExpression, after: str, kind: ColumnType = ANY_TYPE
    ) -> None:
        self.before = before
        self.inner = inner
        self.after = after
        self.type = kind

    def render(self, rendering: Rendering) -> str:
        inner = (
            self.inner.render(rendering) if self.before else self.inner.render_operand(rendering)
        )
        return f"{self.before}{inner}{self.after}"

    def render_operand(self, rendering: Rendering) -> str:
        return f"({self.render(rendering)})"

    def find_tables(self) -> Iterator[FromItem]:
        return self.inner.find_tables()


class Membership(SqlExpression):
    """Whether a value, or a row of values, is in a list or query."""

    type = _BOOLEAN

    def __init__(self, inner: SqlExpression, values: Any, *, negated: bool) -> None:
        self.inner = inner
        self.values = values if isinstance(values, Query) else list(values)
        self.negated = negated

    def render(self, rendering: Rendering) -> str:
        operator = "NOT IN" if self.negated else "IN"
        if isinstance(self.values, Query):
            operand = self.inner.render_operand(rendering)
            return f"{operand} {operator} ({rendering.render_inner(self.values)})"
        if not self.values:
            return "1 = 1" if self.negated else "1 = 0"
        if len(self.values) > MAX_LISTED_VALUES and not isinstance(self.inner, ValueRow):
            return self._render_long_list(self.values, rendering)
        operand = self.inner.render_operand(rendering)
        return f"{operand} {operator} ({self._render_values(self.values, rendering)})"

    def _render_long_list(self, values: list[Any], rendering: Rendering) -> str:
        operand, convert = self.inner.render_operand(rendering), self.inner.type.to_database
        items = values if convert is None else [convert(value) for value in values]
        if rendering.dialect == "postgresql":
            array = rendering.add_parameter(SqlParameter(None, items))
            return f"{operand} <> ALL ({array})" if self.negated else f"{operand} = ANY ({array})"
        import json

        json_items = rendering.add_parameter(SqlParameter(None, json.dumps(items)))
        operator = "NOT IN" if self.negated else "IN"
        return f"{operand} {operator} (SELECT value FROM json_each({json_items}))"  # noqa: S608 - only rendered parts

    def _render_values(self, values: list[Any], rendering: Rendering) -> str:
        if not isinstance(self.inner, ValueRow):
            kind = self.inner.type
            return ", ".join(
                rendering.add_parameter(SqlParameter(None, value, kind)) for value in values
            )
        kinds = [item.type for item in self.inner.items]
        rows = (
            ", ".join(
                rendering.add_parameter(SqlParameter(None, value, kind))
                for value, kind in zip(row, kinds, strict=True)
            )
            for row in values
        )
        return "VALUES " + ", ".join(f"({row})" for row in rows)

    def render_operand(self, rendering: Rendering) -> str:
        return f"({self.render(rendering)})"

    def find_tables(self) -> Iterator[FromItem]:
        return self.inner.find_tables()


class ValueRow(SqlExpression):
    """Several values that are compared as one."""

    def __init__(self, items: Sequence[SqlExpression]) -> None:
        self.items = items

    def render(self, rendering: Rendering) -> str:
        return f"({', '.join(item.render(rendering) for item in self.items)})"

    def find_tables(self) -> Iterator[FromItem]:
        for item in self.items:
            yield from item.find_tables()


class Label(SqlExpression):
    """An expression with an alias, which ORDER BY uses as well."""

    def __init__(self, inner: SqlExpression, name: str) -> None:
        self.inner = inner
        self.name = name
        self.type = inner.type

    def render(self, rendering: Rendering) -> str:
        return (
            quote_name(self.name or "")
            if self in rendering.labels
            else self.inner.render(rendering)
        )

    def render_operand(self, rendering: Rendering) -> str:
        return (
            self.render(rendering)
            if self in rendering.labels
            else self.inner.render_operand(rendering)
        )

    def find_tables(self) -> Iterator[FromItem]:
        return self.inner.find_tables()


class FunctionCall(SqlExpression):
    """A call of a database function."""

    def __init__(self, name: str, arguments: Sequence[SqlExpression], kind: ColumnType) -> None:
        self.name = name
        self.arguments = arguments
        self.type = kind

    def render(self, rendering: Rendering) -> str:
        arguments = ", ".join(argument.render(rendering) for argument in self.arguments)
        return f"{self.name}({arguments or '*'})"

    def find_tables(self) -> Iterator[FromItem]:
        for argument in self.arguments:
            yield from argument.find_tables()


class _Functions:
    """Database functions by name: `func.max(column)`."""

    _KEEPS_TYPE = frozenset({"coalesce", "max", "min", "sum"})

    def __getattr__(self, name: str) -> Callable[..., FunctionCall]:
        def call_function(*arguments: Any) -> FunctionCall:
            operands = [as_operand(argument) for argument in arguments]
            kind = operands[0].type if name in self._KEEPS_TYPE else ANY_TYPE
            return FunctionCall(name, operands, kind)

        return call_function


func = _Functions()


class CaseExpression(SqlExpression):
    """A CASE: the value of the first condition that is true."""

    def __init__(self, whens: Sequence[tuple[SqlExpression, Any]], otherwise: Any) -> None:
        self.whens = [(condition, as_operand(value)) for condition, value in whens]
        self.otherwise = None if otherwise is None else as_operand(otherwise)
        self.type = self.whens[0][1].type

    def render(self, rendering: Rendering) -> str:
        parts = [
            f"WHEN {condition.render(rendering)} THEN {value.render(rendering)}"
            for condition, value in self.whens
        ]
        if self.otherwise is not None:
            parts.append(f"ELSE {self.otherwise.render(rendering)}")
        return f"CASE {' '.join(parts)} END"

    def find_tables(self) -> Iterator[FromItem]:
        for condition, value in self.whens:
            yield from condition.find_tables()
            yield from value.find_tables()
        if self.otherwise is not None:
            yield from self.otherwise.find_tables()


class Query:
    """A query, as expressions that contain it see it."""

    selected_columns: tuple[SqlExpression, ...]

    def where(self, *conditions: SqlExpression) -> Query:
        raise NotImplementedError

    def render(self, rendering: Rendering, outer_tables: frozenset[FromItem]) -> str:
        """Render it inside statements that have these tables."""
        raise NotImplementedError

    def scalar_subquery(self) -> SubqueryValue:
        return SubqueryValue(self)

    def exists(self) -> SubqueryValue:
        return SubqueryValue(self, "EXISTS ")


class SubqueryValue(SqlExpression):
    """The single value of a subquery, or whether it has any row."""

    def __init__(self, query: Query, keyword: str = "") -> None:
        self.query = query
        self.word = keyword
        self.type = _BOOLEAN if keyword else next(iter(query.selected_columns)).type

    def where(self, *conditions: SqlExpression) -> SubqueryValue:
        return SubqueryValue(self.query.where(*conditions), self.word)

    def render(self, rendering: Rendering) -> str:
        return f"{self.word}({rendering.render_inner(self.query)})"


class Raw(SqlExpression):
    """Raw SQL, with parameters such as `:name`."""

    def __init__(
        self,
        sql: str,
        parameters: dict[str, SqlParameter] | None = None,
        kind: ColumnType = ANY_TYPE,
    ) -> None:
        self.sql = sql
        self.parameters = parameters or {}
        self.type = kind
        self._rendered: dict[str, RenderedStatement] = {}

    def bindparams(self, *parameters: SqlParameter, **values: Any) -> Raw:
        """Return a copy with values for some parameters."""
        parameters_by_key = {parameter.key or "": parameter for parameter in parameters}
        parameters_by_key |= {key: SqlParameter(key, value) for key, value in values.items()}
        return Raw(self.sql, self.parameters | parameters_by_key, self.type)

    def render(self, rendering: Rendering) -> str:
        def render_parameter(match: re.Match[str]) -> str:
            key = match[1]
            return rendering.add_parameter(self.parameters.get(key) or SqlParameter(key))

        return _PARAMETER.sub(render_parameter, rendering.escape(self.sql))

    def render_operand(self, rendering: Rendering) -> str:
        return f"({self.render(rendering)})"

    def render_statement(self, dialect: str, keys: tuple[str, ...]) -> RenderedStatement:
        rendered = self._rendered.get(dialect)
        if rendered is None:
            rendering = Rendering(dialect)
            rendered = self._rendered[dialect] = RenderedStatement(
                self.render(rendering), rendering, None
            )
        return rendered


def text(sql: str) -> Raw:
    """Return raw SQL; `:name` is a parameter."""
    return Raw(sql)


def literal_column(sql: str, kind: type[ColumnType] = ColumnType) -> Raw:
    """Return a raw SQL expression."""
    return Raw(sql, kind=kind())


def bindparam(
    key: str, value: Any = None, type_: type[ColumnType] = ColumnType, *, expanding: bool = False
) -> SqlParameter:
    """Return a parameter passed by name on execution; an expanding one takes a list."""
    return SqlParameter(key, value, type_(), is_list=expanding)


def or_(*conditions: SqlExpression) -> SqlExpression:
    return Operation("OR", conditions, _BOOLEAN) if conditions else false()


def false() -> SqlExpression:
    return Raw("1 = 0", kind=_BOOLEAN)


def case(*whens: tuple[SqlExpression, Any], else_: Any = None) -> CaseExpression:
    return CaseExpression(whens, else_)


def tuple_(*items: SqlExpression) -> SqlExpression:
    """Return values that are compared as one."""
    return ValueRow(items)


def type_coerce(inner: SqlExpression, kind: type[ColumnType]) -> SqlExpression:
    """Return the expression with another type for its values."""
    return Wrapped("", inner, "", kind())


# Rendering to text.


def quote_name(name: str | None) -> str:
    escaped = (name or "").replace('"', '""')
    return f'"{escaped}"'


class Rendering:
    """The state while one statement is rendered: its parameters in order, and generated aliases."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.parameters: dict[SqlParameter, int] = {}
        """Each parameter with its position; one that is used several times is sent once."""
        self.common_tables: dict[str, str] = {}
        self.labels: frozenset[Label] = frozenset()
        """Labels in the list of columns, which can be referred to by name."""
        self._aliases: dict[FromItem, str] = {}
        self._around: list[frozenset[FromItem]] = []
        """The tables of the statements around the one being rendered."""

    def escape(self, sql: str) -> str:
        return sql.replace("%", "%%") if self.dialect == "postgresql" else sql

    def add_parameter(self, parameter: SqlParameter) -> str:
        # PostgreSQL must see that two places have the same value, as in SELECT and GROUP BY.
        position = self.parameters.setdefault(parameter, len(self.parameters))
        return _render_place(position, self.dialect)

    def name_alias(self, item: FromItem) -> str:
        if item not in self._aliases:
            self._aliases[item] = quote_name(f"{item.base_name}_{len(self._aliases) + 1}")
        return self._aliases[item]

    def render_inner(self, query: Query) -> str:
        """Render a subquery that shares tables with the statements around it."""
        return query.render(self, self._around[-1] if self._around else frozenset())

    def render_apart(self, query: Query) -> str:
        """Render a query in FROM, which sees no tables beside it."""
        self._around.append(frozenset())
        sql = query.render(self, frozenset())
        self._around.pop()
        return sql

    def enter(self, tables: Iterable[FromItem]) -> None:
        outer = self._around[-1] if self._around else frozenset()
        self._around.append(outer.union(tables))

    def leave(self) -> None:
        self._around.pop()


def _render_place(position: int, dialect: str) -> str:
    return f"?{position + 1}" if dialect == "sqlite" else f"%(p{position})s"


class RenderedStatement:
    """A statement as text, with its parameters and result columns."""

    def __init__(
        self, sql: str, rendering: Rendering, columns: Sequence[SqlExpression] | None
    ) -> None:
        self.sql = sql
        self.dialect = rendering.dialect
        self.parameters = list(rendering.parameters)
        self.names = None if columns is None else _name_results(columns)
        self.converters = [
            (position, column.type.from_database)
            for position, column in enumerate(columns or ())
            if column.type.from_database is not None
        ]
        self._has_lists = any(parameter.is_list for parameter in self.parameters)
        self._sources: list[tuple[Any, Any]] = [
            (parameter.key, parameter.value) for parameter in self.parameters
        ]
        """The name of each value, and the default sent if it is not passed."""
        keys: list[Any] = [parameter.key for parameter in self.parameters]
        self._keys = frozenset(keys)
        self._get_all = itemgetter(*keys) if len(keys) > 1 and all(keys) else None
        self._value_converters = [
            (position, parameter.type.to_database)
            for position, parameter in enumerate(self.parameters)
            if parameter.type.to_database is not None
        ]

    def bind_values(self, values_by_key: dict[str, Any] | None) -> tuple[str, Any]:
        """Return the text, and the values as the driver expects them."""
        passed_values = values_by_key or {}
        if self._get_all is not None and passed_values.keys() >= self._keys:
            values = list(self._get_all(passed_values))
        else:
            values = [passed_values.get(key, value) for key, value in self._sources]
        for position, convert in self._value_converters:
            values[position] = convert(values[position])
        if self._has_lists:
            return self._expand_lists(values)
        return self.sql, self._name_values(values)

    def _name_values(self, values: list[Any]) -> Any:
        if self.dialect == "sqlite":
            return values
        return {f"p{position}": value for position, value in enumerate(values)}

    def _expand_lists(self, values: list[Any]) -> tuple[str, Any]:
        """Expand each list into one parameter per item."""
        flat: list[Any] = []
        placeholders: list[str] = []
        for parameter, value in zip(self.parameters, values, strict=True):
            items = value if parameter.is_list else [value]
            positions = range(len(flat), len(flat) + len(items))
            item_placeholders = ", ".join(
                _render_place(position, self.dialect) for position in positions
            )
            placeholders.append(
                f"({item_placeholders or 'NULL'})" if parameter.is_list else item_placeholders
            )
            flat += items
        replacements = {
            _render_place(position, self.dialect): placeholder
            for position, placeholder in enumerate(placeholders)
        }
        sql = _PLACE.sub(lambda match: replacements[match[0]], self.sql)
        return sql, self._name_values(flat)


def _name_results(columns: Sequence[SqlExpression]) -> tuple[str, ...]:
    """Return the names of columns; duplicates are numbered."""
    names: list[str] = []
    for column in columns:
        base = name = column.name or "value"
        number = 0
        while name in names:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return tuple(names)
