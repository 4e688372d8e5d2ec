"""concatenated-sql: a value is written into a query's text, where a parameter belongs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from closeloop.changes.quality.changed_file import (
    ChangedFile,
    is_example_file,
    list_changed_files,
    make_check_finding,
    shorten_line,
)
from closeloop.records.change import Inspection
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.record import Record
from closeloop.text.code_patterns import parse_python

rules = (
    Rule(
        name="concatenated-sql",
        version=1,
        about="A value is concatenated into the text of a query instead of passed as a parameter.",
        severity="error",
        gates=True,
    ),
)

_STATEMENT = (
    r"(?:select|insert\s+(?:or\s+\w+\s+)?into|update|delete\s+from|replace\s+into"
    r"|merge\s+into|with\s+\w+\s+as)\b"
)
_SQL = re.compile(rf"\s*{_STATEMENT}", re.IGNORECASE)
_VALUE_PLACE = re.compile(
    r"(?:[^<>=!]=|<>|!=|[<>]=?|\b(?:i?like|between|glob))\s*\(?'?%?$|\bvalues\s*\([^()]*$",
    re.IGNORECASE,
)
"""Matches text that precedes a value, not the name of a table or column."""
_QUERY_METHODS = (
    *("execute", "executemany", "executescript", "exec_driver_sql", "raw", "query"),
    *("fetch", "fetchrow", "fetchval", "fetch_all", "fetch_one", "read_sql", "read_sql_query"),
)
_QUERY_KEYWORDS = frozenset(("sql", "query", "statement", "operation"))
_WRAPPERS = frozenset(("text", "dedent", "cleandoc", "strip", "raw"))
_SAFE_CALLS = re.compile(r"(?i)(?:int|float|len|bool|\w*(?:quote|escape|literal|ident|bind)\w*)")
_PLACEHOLDER = re.compile(r"(?i)\w*(?:place_?holder|param|marker|qmark|slot|bind|arg_list)\w*")
_CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]*")
_FIELD = re.compile(r"%(?:\(\w+\))?[sdrfi]|\{[^{}]*\}")
_NUMBERS = frozenset(("int", "float", "bool", "Decimal", "date", "datetime", "UUID"))
_MAX_DEPTH = 40

Piece = str | ast.expr
"""A piece of a query: its own text, or a value written into it."""


class _WrittenQuery(Record):
    """A query with a value in its text."""

    line: int
    lines: tuple[int, ...]
    """Lines of its parts."""
    value: str
    from_outside: bool
    """Whether the value is, or derives from, a parameter of the function."""


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Check product code; queries that the file already had are not reported."""
    findings: list[Finding] = []
    for file in list_changed_files(inspection, "source"):
        if file.after is None or is_example_file(file.path) or not _adds_query(file):
            continue
        if file.after.language == "python":
            findings += _check_python(file, inspection)
        else:
            findings += _check_lines(file)
    return findings


_QUERY_CALL = re.compile(r"(?i)\.(?:execute|query|raw|exec|fetch|read_sql|prepare|create)\w*\(")
NEAR_LINES = 5
"""Maximum distance in lines between a changed line and a query that it may affect."""
_QUERY_TEXT = re.compile(rf"[\"'`]\s*{_STATEMENT}", re.IGNORECASE)


def _adds_query(file: ChangedFile) -> bool:
    """Return whether the file runs queries and a changed line is near one; most have none."""
    text = "\n".join(file.lines)
    if _QUERY_CALL.search(text) is None or _QUERY_TEXT.search(text) is None:
        return False
    near_lines = {line + step for line in file.added for step in range(-NEAR_LINES, NEAR_LINES + 1)}
    near_text = "\n".join(file.line_at(line) for line in sorted(near_lines))
    return _QUERY_TEXT.search(near_text) is not None or _QUERY_CALL.search(near_text) is not None


def _check_python(file: ChangedFile, inspection: Inspection) -> Iterator[Finding]:
    queries = _list_queries("\n".join(file.lines).encode("utf-8", "surrogateescape"))
    if all(file.added.isdisjoint(query.lines) for query in queries):
        return
    before = inspection.sides.read("before", file.old_path)
    old = Counter(query.value for query in _list_queries(before or b""))
    for query in queries:
        if old[query.value] > 0:
            old[query.value] -= 1
        elif not file.added.isdisjoint(query.lines):
            yield make_check_finding(
                rules[0],
                f"`{shorten_line(query.value)}` is concatenated into the text of a "
                "query: pass it as a parameter.",
                f"{file.path}:{query.line}",
                severity="error" if query.from_outside else "warning",
            )


def _list_queries(source: bytes) -> list[_WrittenQuery]:
    """Return queries with a value in their text, by the syntax tree; none if it does not parse."""
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    module_values = _assigned_values(tree.body)
    queries: list[_WrittenQuery] = []
    functions: list[tuple[ast.AST, Mapping[str, list[ast.expr]], Mapping[str, str]]] = [
        (tree, module_values, {})
    ]
    while functions:
        scope, values, parameters = functions.pop()
        for node in _walk_scope(scope):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = {**module_values, **_assigned_values(node.body)}
                functions.append((node, inner, {**parameters, **_parameter_types(node)}))
            elif isinstance(node, ast.Call) and (query := _query_argument(node)) is not None:
                queries += _find_values(node, query, values, parameters)
    return sorted(queries, key=lambda query: query.line)


def _walk_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or module, without the bodies of nested functions."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(node))


def _assigned_values(body: Sequence[ast.stmt]) -> dict[str, list[ast.expr]]:
    """Return the values assigned to each name, followed by those appended to it."""
    values: dict[str, list[ast.expr]] = {}
    for node in _walk_scope(ast.Module(body=list(body), type_ignores=[])):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(node.value)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign) and isinstance(node.target, ast.Name):
            if node.value is not None:
                values.setdefault(node.target.id, []).append(node.value)
        elif isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
            items = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List) else [node.iter]
            values.setdefault(node.target.id, []).extend(items)
    for assigned in values.values():
        assigned.sort(key=lambda value: value.lineno)
    return values


def _parameter_types(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    signature = function.args
    arguments = [
        *signature.posonlyargs,
        *signature.args,
        *signature.kwonlyargs,
        signature.vararg,
        signature.kwarg,
    ]
    return {
        argument.arg: ast.unparse(argument.annotation) if argument.annotation else ""
        for argument in arguments
        if argument is not None and argument.arg not in ("self", "cls")
    }


def _query_argument(call: ast.Call) -> ast.expr | None:
    """Return the argument that is run as a query."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _QUERY_METHODS:
        return None
    if call.args:
        return call.args[0]
    return next(
        (keyword.value for keyword in call.keywords if keyword.arg in _QUERY_KEYWORDS), None
    )


def _find_values(
    call: ast.Call,
    query: ast.expr,
    values: Mapping[str, list[ast.expr]],
    parameters: Mapping[str, str],
) -> Iterator[_WrittenQuery]:
    pieces = list(_split_query(query, values, 0))
    if not pieces or not isinstance(pieces[0][0], str) or not _SQL.match(pieces[0][0]):
        return
    lines = tuple({call.lineno, *(line for _, line in pieces)})
    text = ""
    for piece, line in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        quoted = text.count("'") % 2 == 1
        if (quoted or _VALUE_PLACE.search(text)) and not _is_safe(piece, values, parameters, 0):
            yield _WrittenQuery(
                line=line,
                lines=(*lines, line),
                value=ast.unparse(piece),
                from_outside=_is_from_parameter(piece, parameters),
            )
        text += "x"


def _split_query(
    node: ast.expr, values: Mapping[str, list[ast.expr]], depth: int
) -> Iterator[tuple[Piece, int]]:
    """Yield the texts and values of a query in order, each with its line."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value, node.lineno
    elif (formatted := _formatted_text(node)) is not None:
        yield from _fill_fields(*formatted, node.lineno)
    elif depth < _MAX_DEPTH and (parts := _query_parts(node, values)) is not None:
        step = 10 if isinstance(node, ast.Name) else 1
        for part in parts:
            yield from _split_query(part, values, depth + step)
    else:
        node = node.value if isinstance(node, ast.FormattedValue) else node
        yield node, node.lineno


def _query_parts(node: ast.expr, values: Mapping[str, list[ast.expr]]) -> Sequence[ast.expr] | None:
    """Return the parts of a composed text, in order; None if it is a value."""
    if isinstance(node, ast.JoinedStr):
        return node.values
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return node.left, node.right
    if isinstance(node, ast.Call) and _called_name(node) in _WRAPPERS:
        inner = node.args[0] if node.args else getattr(node.func, "value", None)
        return [inner] if isinstance(inner, ast.expr) else []
    if isinstance(node, ast.Name) and _is_text(values.get(node.id, ())):
        return values[node.id]
    return None


def _is_text(assigned: Sequence[ast.expr]) -> bool:
    """Return whether a name holds a text that this function composes."""
    first = assigned[0] if assigned else None
    while isinstance(first, ast.BinOp):
        first = first.left
    if isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute):
        first = first.func.value
    return isinstance(first, ast.JoinedStr) or (
        isinstance(first, ast.Constant) and isinstance(first.value, str)
    )


def _formatted_text(node: ast.expr) -> tuple[str, list[ast.expr]] | None:
    """Return the template and the values of a `%` or `.format` expression."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        text, filled = node.left, node.right
        values = list(filled.elts) if isinstance(filled, ast.Tuple) else [filled]
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "format"
    ):
        text, values = node.func.value, [*node.args, *(keyword.value for keyword in node.keywords)]
    else:
        return None
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return text.value, values
    return None


def _fill_fields(text: str, values: Sequence[ast.expr], line: int) -> Iterator[tuple[Piece, int]]:
    """Yield fields by position; named fields are assumed to be in the order of the values."""
    parts = _FIELD.split(text)
    for number, part in enumerate(parts):
        yield part, line
        if number < len(parts) - 1 and number < len(values):
            yield values[number], line


def _called_name(call: ast.Call) -> str:
    return _last_name(call.func)


def _last_name(node: ast.expr) -> str:
    """Return `name` for `name` and `some.name`; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_safe(
    node: ast.expr, values: Mapping[str, list[ast.expr]], parameters: Mapping[str, str], depth: int
) -> bool:
    """Return whether it is a constant, a number, a placeholder, or deliberately escaped."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        name = _called_name(node)
        source_text = ast.unparse(node)
        is_placeholder_list = name == "join" and ("?" in source_text or "%s" in source_text)
        return _SAFE_CALLS.fullmatch(name) is not None or is_placeholder_list
    if isinstance(node, ast.IfExp):
        return all(
            _is_safe(branch, values, parameters, depth) for branch in (node.body, node.orelse)
        )
    name = _last_name(node)
    if not name:
        return isinstance(node, ast.BinOp) and _is_safe(node.left, values, parameters, depth)
    if _CONSTANT.fullmatch(name) or _PLACEHOLDER.fullmatch(name):
        return True
    if isinstance(node, ast.Name):
        if parameters.get(name, "").partition(" ")[0] in _NUMBERS:
            return True
        assigned = values.get(name, ()) if depth < 3 and name not in parameters else ()
        return bool(assigned) and all(
            _is_safe(value, values, parameters, depth + 1) for value in assigned
        )
    return False


def _is_from_parameter(node: ast.expr, parameters: Mapping[str, str]) -> bool:
    """Return whether a parameter, or a part of it, is written unchanged."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in parameters


# Other languages, by the text of the call: a template, format or concatenation with a value.

_VALUE_BEFORE = r"(?:[^<>=!\s]\s*=|<>|!=|[<>]=?|\bi?like|\bbetween|')\s*'?%?"
_TEMPLATE = re.compile(
    rf"\.(?:query|execute|raw|exec|unsafe|all|get|run|prepare)\w*\(\s*`\s*{_STATEMENT}[^`]*?"
    rf"{_VALUE_BEFORE}\$\{{(?!(?-i:\s*[A-Z][A-Z0-9_]*\s*\}}))([^{{}}`]+)\}}",
    re.IGNORECASE,
)
_SUM = re.compile(
    rf"\.(?:query|execute|raw|exec|prepareStatement|create(?:Native)?Query)\w*\(\s*"
    rf"([\"'])\s*{_STATEMENT}(?:(?!\1).)*?{_VALUE_BEFORE}\1\s*\+\s*([a-z]\w*(?:\.\w+)*)",
    re.IGNORECASE,
)
_SPRINTF = re.compile(
    rf"\.(?:Query|QueryRow|Exec)(?:Context)?\((?:\w+,\s*)?fmt\.Sprintf\(\s*[\"`]\s*{_STATEMENT}"
    rf"[^\"`]*?{_VALUE_BEFORE}%[svq]",
    re.IGNORECASE,
)
_PATTERNS = {
    "javascript": (_TEMPLATE, _SUM),
    "typescript": (_TEMPLATE, _SUM),
    "tsx": (_TEMPLATE, _SUM),
    "go": (_SPRINTF, _SUM),
    "java": (_SUM,),
}
_CALL_LINES = 8
"""Maximum lines read of a call."""


def _check_lines(file: ChangedFile) -> Iterator[Finding]:
    patterns = _PATTERNS.get(file.after.language, ()) if file.after else ()
    for number in sorted(file.added) if patterns else ():
        if not _QUERY_CALL.search(file.line_at(number)):
            continue
        text = "\n".join(file.line_at(number + step) for step in range(_CALL_LINES))
        for pattern in patterns:
            match = pattern.search(text)
            if match and "\n" not in text[: match.start()]:
                yield make_check_finding(
                    rules[0],
                    "A value is concatenated into the text of a query: pass it as a parameter.",
                    f"{file.path}:{number}",
                    severity="warning",
                )
                break
