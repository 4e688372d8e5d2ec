"""concatenated-sql: values in a query's text are told; parameters and constants are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import said, told

from closeloop.changes.quality import concatenated_sql


def write_function(*lines: str, start: str = "def find(db, name, other):") -> str:
    return "\n    ".join((start, *lines)) + "\n"


BAD = {
    "f-string": write_function("db.execute(f\"SELECT id FROM users WHERE name = '{name}'\")"),
    "bare f-string": write_function('db.execute(f"SELECT id FROM users WHERE id = {name}")'),
    "plus": write_function('db.execute("SELECT id FROM users WHERE n = \'" + name + "\'")'),
    "percent": write_function("db.execute(\"DELETE FROM users WHERE name = '%s'\" % name)"),
    "format": write_function("db.execute(\"UPDATE users SET name = '{}'\".format(name))"),
    "like": write_function("db.execute(f\"SELECT 1 FROM users WHERE name LIKE '%{name}%'\")"),
    "values": write_function('db.execute(f"INSERT INTO users VALUES ({name}, {other})")'),
    "variable": write_function(
        'query = "SELECT * FROM users WHERE mail = \'"',
        "query += name.args['mail'] + \"'\"",
        "db.execute(query)",
    ),
    "text": write_function("db.execute(text(f\"SELECT 1 FROM users WHERE n = '{name}'\"))"),
}
GOOD = {
    "parameter": write_function('db.execute("SELECT id FROM users WHERE n = ?", (name,))'),
    "named": write_function('db.execute("SELECT 1 FROM users WHERE n = :n", {"n": name})'),
    "driver format": write_function('db.execute("SELECT 1 FROM users WHERE n = %s", (name,))'),
    "table": write_function('db.execute(f"SELECT * FROM [{name}] WHERE id = ?", (1,))'),
    "columns": write_function(
        'names = ", ".join(other)', 'db.execute(f"SELECT {names} FROM users")'
    ),
    "placeholders": write_function(
        'marks = ", ".join("?" for _ in other)',
        'db.execute(f"SELECT * FROM users WHERE id IN ({marks})", other)',
    ),
    "fragment": write_function(
        'where = "active = 1" if other else "1 = 1"',
        'db.execute(f"SELECT * FROM users WHERE {where}")',
    ),
    "constant": write_function("db.execute(f\"SELECT * FROM bills WHERE state = '{STATE}'\")"),
    "local constant": write_function(
        'state = "open"', "db.execute(f\"SELECT * FROM bills WHERE state = '{state}'\")"
    ),
    "number": write_function(
        'db.execute(f"SELECT * FROM bills WHERE id = {top}")', start="def f(db, top: int):"
    ),
    "made a number": write_function('db.execute(f"SELECT 1 FROM bills WHERE id = {int(name)}")'),
    "quoted": write_function('db.execute(f"SELECT 1 FROM bills WHERE id = {db.quote(name)}")'),
    "bind name": write_function('db.execute(f"SELECT 1 FROM b WHERE {name} = :{name}", other)'),
    "no query": write_function('db.execute(f"with job = {name}")', 'log(f"a = {name}")'),
    "sql objects": write_function(
        'db.execute(sql.SQL("SELECT 1 FROM b WHERE id = {}").format(sql.Literal(name)))'
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_value_in_the_text_of_a_query_is_an_error(name: str, tmp_path: Path) -> None:
    found = said(concatenated_sql, tmp_path, {"a.py": "x = 1\n"}, {"shop/b.py": BAD[name]})
    assert {one.severity for one in found} == {"error"}
    assert "pass it as a parameter" in found[0].message


@pytest.mark.parametrize("name", GOOD)
def test_parameters_constants_and_names_of_tables_are_fine(name: str, tmp_path: Path) -> None:
    assert not said(concatenated_sql, tmp_path, {"a.py": "x = 1\n"}, {"shop/b.py": GOOD[name]})


def test_what_the_file_did_before_is_not_told_again(tmp_path: Path) -> None:
    before, line = BAD["f-string"], "\n\ndef other(db):\n    return db.execute('SELECT 1')\n"
    assert not said(concatenated_sql, tmp_path, {"b.py": before}, {"b.py": before + line})


def test_tests_and_migrations_may_write_values(tmp_path: Path) -> None:
    after = {"tests/test_b.py": BAD["f-string"], "shop/migrations/0002_b.py": BAD["f-string"]}
    assert not said(concatenated_sql, tmp_path, {"a.py": "x = 1\n"}, after)


QUERY = "SELECT * FROM u WHERE n = "
OTHER = {
    "a.ts": f"export const find = (db, n) =>\n  db.query(`{QUERY}'${{n}}'`);\n",
    "a.js": f'function find(db, n) {{\n  db.query("{QUERY}\'" + n + "\'");\n}}\n',
    "a.go": f"package a\n\nfunc f() {{\n\tdb.Query(fmt.Sprintf(\"{QUERY}'%s'\", n))\n}}\n",
    "A.java": f'class A {{\n  void f() {{\n    s.executeQuery("{QUERY}\'" + n);\n  }}\n}}\n',
}


@pytest.mark.parametrize("path", OTHER)
def test_other_languages_are_told_as_warnings(path: str, tmp_path: Path) -> None:
    found = said(concatenated_sql, tmp_path, {"x.py": "x = 1\n"}, {path: OTHER[path]})
    assert [severity for severity, _ in told(found)] == ["warning"]


@pytest.mark.parametrize(
    "line",
    [
        "db.query(`SELECT * FROM u WHERE n = $1`, [n]);",
        "db.query(`SELECT ${columns} FROM ${table} WHERE n = ?`, [n]);",
        "sql`SELECT * FROM u WHERE n = ${n}`;",
        "db.query(`SELECT * FROM u WHERE n = ${STATE}`);",
    ],
)
def test_scripts_with_parameters_are_fine(line: str, tmp_path: Path) -> None:
    after = {"a.ts": f"export function f(db, n) {{\n  {line}\n}}\n"}
    assert not said(concatenated_sql, tmp_path, {"x.py": "x = 1\n"}, after)
