"""What probes of JavaScript tests consist of: names, commands, reports."""

from __future__ import annotations

import random
import re
import shutil
import subprocess

import pytest

from closeloop.grading.integrity.javascript import ROOMS, build_probe, read_results
from closeloop.grading.integrity.javascript_source import (
    change_value,
    first_child,
    make_changer,
    parse_script,
)
from closeloop.grading.integrity.probe import Probe, ProbeRequest, apply_edits


def request(**changes: object) -> ProbeRequest:
    given = {
        "command": "npx jest",
        "runner": "jest",
        "fail_to_pass": ("a.test.js > adds",),
        "sources": {"a.test.js": "it('adds', () => { expect(1).toBe(1) })\n"},
        "folder": "/work/.probe",
        "root": "/work",
        "pipe": "/work/.probe/pipe",
        "token": "5eed",
    }
    return ProbeRequest(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"fail_to_pass": ("b.test.js > adds",)},
        {"fail_to_pass": ("a.test.js > subtracts",)},
        {"fail_to_pass": ("a.test.js",)},
        {"sources": {"a.test.js": "it('adds', () => { this is not JavaScript"}},
        {"sources": {"a.test.js": "it('adds', () => { expect(a).toMatchSnapshot('name') })"}},
        {"sources": {"a.test.js": "it.failing('adds', () => { expect(1).toBe(2) })"}},
        {"command": "make test"},
    ],
)
def test_no_probe_is_made_of_what_cannot_be_found_or_told(changes: dict[str, object]) -> None:
    assert build_probe(request()) is not None
    assert build_probe(request(**changes)) is None


def build_rooms(source: str, token: str = "5eed") -> list[tuple[Probe, str]]:
    """Both rooms' probes of the test `adds`, each with the text of its copy."""
    rooms = []
    for room in range(ROOMS):
        probe = build_probe(request(sources={"a.test.js": source}, token=token, room=room))
        assert probe is not None
        copies = [path for path in probe.files if path.startswith(".probe/") or path == "a.test.js"]
        (copy,) = {*probe.files} - {*copies}
        rooms.append((probe, probe.files[copy]))
    return rooms


THREE = """it('adds', async () => {
  expect(add(1)).toBe(100)
  await expect(add(2)).resolves.toEqual('seven')
  if (add(3)) assert.throws(() => add(4), RangeError)
})
"""


@pytest.mark.parametrize("token", ["a", "b", "c"])
def test_each_assertion_is_right_in_one_room_and_wrong_in_the_other(token: str) -> None:
    rooms = build_rooms(THREE, token)
    for assertion in (r"toBe\(100\)", r"toEqual\('seven'\)", r"add\(4\), RangeError\)"):
        assert [bool(re.search(assertion, text)) for _, text in rooms] in ([1, 0], [0, 1])
    kinds = [[test.kind for test in probe.tests if test.name.startswith("#")] for probe, _ in rooms]
    pairs = [{*pair} for pair in zip(*kinds, strict=True)]
    assert pairs == [*([{"copy", "perturbed"}] * 3), {"control"}, {"control"}]
    names = [{test.name for test in probe.tests} for probe, _ in rooms]
    assert not names[0] & names[1]
    optional = [test.optional for test in rooms[0][0].tests if test.name.startswith("#")]
    assert optional == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("assertion", "shows"),
    [
        ("expect(add(1)).toBeGreaterThan(2)", True),
        ("expect(add(1)).not.toBe(2)", True),
        ("expect(add(1)).not.toBeNull()", True),
        ("expect(add(1)).not.toThrow()", True),
        ("assert.notEqual(add(1), 2)", True),
        ("expect(add(1)).to.be.above(2)", True),
        ("expect(add(1)).toBe(2)", False),
        ("expect(add(1)).not.toBeTruthy()", False),
        ("assert.equal(add(1), 2)", False),
        ("assert(add(1))", False),
    ],
)
def test_an_assertion_that_nearly_every_value_meets_proves_little(
    assertion: str, shows: bool
) -> None:
    for probe, _ in build_rooms(f"it('adds', () => {{ {assertion} }})"):
        claims = [test for test in probe.tests if test.opposite and test.kind != "control"]
        assert {claim.shows for claim in claims} == {shows}


def test_a_room_holds_a_test_once_and_nothing_to_compare_it_with() -> None:
    for probe, text in build_rooms(THREE):
        assert text.count("add(1)") == 1
        assert probe.files["a.test.js"] == "// @ts-nocheck\n"


def test_values_that_only_a_run_shows_go_through_the_same_function_right_or_wrong() -> None:
    rooms = build_rooms("it('adds', () => { expect(add(1)).toBe(limit) })")
    calls = [re.search(r"toBe\(\w+\(\d+, limit\)\)", text) for _, text in rooms]
    assert all(calls), calls


@pytest.mark.parametrize(
    "body",
    [
        "expect(add(1)).resolves.toBe(2)",
        "wait(() => { expect(add(1)).toBe(2) })",
        "retry(() => { expect(add(1)).toBe(2) })",
        "expectFailure(() => { expect(add(1)).toBe(2) })",
        "try { expect(add(1)).toBe(2) } catch {}",
        "const done = expect(add(1)).toBe(2)",
    ],
)
def test_assertions_whose_failure_others_see_stay_as_they_are(body: str) -> None:
    for _, text in build_rooms(f"it('adds', () => {{ {body} }})"):
        assert body in text


@pytest.mark.parametrize(
    ("body", "assertion"),
    [
        ("expect.soft(add(1)).toBe(200)", "expect(add(1)).toBe(200)"),
        ("expect(add(1)).toMatchInlineSnapshot(`200`)", "toMatchInlineSnapshot(`200`)"),
        ("try { expect(add(1)).toBe(200) } finally { end() }", "toBe(200)"),
        ("try { expect(add(1)).toBe(200) } catch (e) { done(e) }", "toBe(200)"),
        ("try { add(1) } catch (e) { expect(e.code).toBe(200) }", "toBe(200)"),
        ("switch (add(0)) { case 0: expect(add(1)).toBe(200); break }", "toBe(200)"),
        ("load((value) => { expect(value).toBe(200) })", "toBe(200)"),
        ("load((value) => expect(value).toBe(200))", "toBe(200)"),
        ("new Promise((end) => { later(() => { expect(1).toBe(200); end() }) })", "toBe(200)"),
        ("const check = () => { expect(add(1)).toBe(200) }; check()", "toBe(200)"),
        ("function check() { expect(add(1)).toBe(200) }; check()", "toBe(200)"),
        ("t.test('a', () => { expect(add(1)).toBe(200) })", "toBe(200)"),
        ("t.assert.equal(add(1), 200)", "t.assert.equal(add(1), 200)"),
        ("expect(add).toHaveBeenCalledExactlyOnceWith(200)", "OnceWith(200)"),
        ("expect(add(1)).toHaveProperty('a', 200)", "('a', 200)"),
        ("sinon.assert.calledWith(add, 200)", "calledWith(add, 200)"),
        ("return Promise.all([expect(add(1)).resolves.toBe(200)])", "resolves.toBe(200)"),
        ("add(0) && expect(add(1)).toBe(200)", "toBe(200)"),
        ("assert(add(1) === 200 && add(2))", "assert(add(1) === 200)"),
        ("assert(add(1) && (add(2) === 200 && add(3)), 'no')", "assert(add(2) === 200, 'no')"),
        ("expect([add(1), 5]).toEqual([200, 5])", ".toEqual(200)"),
        ("assert.deepEqual({ a: 5, b: add(1) }, { a: 5, b: 200 })", "['b'], 200)"),
    ],
)
def test_assertions_anywhere_in_a_test_are_made_wrong_in_one_room(
    body: str, assertion: str
) -> None:
    texts = [text for _, text in build_rooms(f"it('adds', (t) => {{ {body} }})")]
    assert sorted(assertion in text for text in texts) == [False, True], texts


HELPERS = {
    "in the file": {"a.test.js": "function check(n) { expect(add(n)).toBe(200) }\n"},
    "hooks": {"a.test.js": "afterEach(() => { expect(add(1)).toBe(200) })\n"},
    "of another module": {
        "a.test.js": "import { check } from './support'\n",
        "support.ts": "export const check = (n) => { expect(add(n)).toBe(200) }\n",
    },
    "of a module behind it, by another name": {
        "a.test.js": "const { check: checks } = require('./support/index.js')\n",
        "support/index.js": "exports.check = (n) => require('./deep').verify(n)\n",
        "support/deep.js": "exports.verify = (n) => expect(add(n)).toBe(200)\n",
    },
}


@pytest.mark.parametrize("files", HELPERS.values(), ids=HELPERS)
def test_assertions_beside_a_test_are_made_wrong_in_one_room(files: dict[str, str]) -> None:
    body = "it('adds', () => { check(1); checks(2) })\n"
    sources = {"a.test.js": files["a.test.js"] + body}
    helpers = {path: text for path, text in files.items() if path not in sources}
    rights = []
    for room in range(ROOMS):
        probe = build_probe(request(sources=sources, helpers=helpers, room=room))
        assert probe is not None
        rights.append(sum("toBe(200)" in text for text in probe.files.values()))
        claims = [test for test in probe.tests if test.kind in ("copy", "perturbed")]
        assert [(one.original, one.optional, one.certain) for one in claims if one.opposite] == [
            ("a.test.js > adds", True, False)
        ]
    assert sorted(rights) == [0, 1]


def test_a_helper_that_something_expects_to_fail_stays_as_it_is() -> None:
    source = """
        function check(n) { expect(add(n)).toBe(200) }
        it('adds', () => { expect(() => check(1)).toThrow() })
        """
    for _, text in build_rooms(source):
        assert "{ expect(add(n)).toBe(200) }" in text


def test_a_test_of_a_helper_does_not_show_which_value_is_right() -> None:
    firsts = set()
    for token in "abcdefgh":
        for _, text in build_rooms("it('adds', () => { check(add(1), 100) })", token):
            pairs = re.findall(r"await check\((-?\d+), (-?\d+)\)", text)
            assert sorted(first == second for first, second in pairs) == [False, True]
            firsts.add(pairs[0][0] == "100")
    assert firsts == {True, False}


@pytest.mark.parametrize(
    ("source", "leading"),
    [
        ("export const one = 1\n", "export * from './COPY'"),
        ("export default 1\n", "export { default } from './COPY'\nexport * from './COPY'"),
        ("exports.one = 1\n", "module.exports = require('./COPY')"),
        ("", ""),
    ],
)
def test_an_original_leads_to_its_copy_if_it_exports_something(source: str, leading: str) -> None:
    probe = build_probe(request(sources={"a.test.js": f"{source}{THREE}"}))
    assert probe is not None
    text = re.sub(r"\./\w+\.test\.js", "./COPY", probe.files["a.test.js"])
    assert text.removeprefix("// @ts-nocheck\n").strip() == leading


LITERALS = (
    *("5", "-3", "0", "0.5", "-1.25", "1e3", "0x1f", "12n", "-4n", "99999999999", "'pen'", "''"),
    *("'Pen 7'", "`a b`", r"'it\'s'", "null", "undefined", "true", "false", "[]", "{}", "[1, [2]]"),
    *("{ a: 1, ...{ b: 2 }, c: null }", "{ a: 1, ...{ a: 3 } }", "/pen+s/", "/^a (b|c)?$/"),
)


@pytest.mark.skipif(shutil.which("node") is None, reason="NO NODE: install it")
def test_changed_values_are_equal_to_none_of_their_originals() -> None:
    rng, lines = random.Random(7), ["const { notDeepStrictEqual: differ } = require('assert')"]
    for literal in LITERALS:
        statement = first_child(parse_script("a.js", f"({literal})".encode()))
        value = first_child(first_child(statement))
        assert value is not None
        for far in [False, True] * 10:
            if (change := change_value(value, rng, far=far)) is not None:
                changed = apply_edits(f"({literal})".encode(), [change[0]]).decode()
                lines.append(f"differ({changed}, ({literal}))")
    changer = make_changer(rng)
    lines.append(changer.render_source(rng))
    same, other = (changer.open_call(rng, changes=changes) for changes in (False, True))
    for value in (*LITERALS, "NaN", "1e300", "new Error('a')", "new Date()", "[undefined]"):
        lines.append(f"{{ const value = ({value}); differ({other}value), value)")
        lines.append(f"if (!Object.is({same}value), value)) throw value }}")
    ran = subprocess.run(["node", "-e", "\n".join(lines)], capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()


def test_a_probe_is_the_same_for_the_same_token_and_another_for_another() -> None:
    first = build_probe(request())
    assert first == build_probe(request())
    other = build_probe(request(token="0ther"))
    assert first is not None
    assert other is not None
    assert not {test.name for test in first.tests} & {test.name for test in other.tests}
    assert {*first.files} & {*other.files} == {
        "a.test.js",
        ".probe/reporter.cjs",
        ".probe/early.cjs",
    }


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("src/a.test.ts", r"src/\w{12}\.test\.ts"),
        ("src/a.unit.spec.js", r"src/\w{12}\.unit\.spec\.js"),
        ("lib/a_test.js", r"lib/\w{12}_test\.js"),
        ("lib/cartSpec.js", r"lib/\w{12}Spec\.js"),
        ("test/test-a.mjs", r"test/test-\w{12}\.mjs"),
        ("test.js", r"\w{12}\.test\.js"),
        ("test/cart.js", r"test/\w{12}\.js"),
    ],
)
def test_copies_are_named_so_that_the_same_patterns_find_them(path: str, pattern: str) -> None:
    text = "it('adds', () => { expect(1).toBe(1) })\n"
    probe = build_probe(request(fail_to_pass=(f"{path} > adds",), sources={path: text}))
    assert probe is not None
    copies = [name for name in probe.files if not name.startswith(".probe/") and name != path]
    assert len(copies) == 1
    assert re.fullmatch(pattern, copies[0]), copies


@pytest.mark.parametrize(
    ("runner", "command", "kept"),
    [
        ("jest", "A=1 npx jest -c j.js --coverage src -t x && echo", "A=1 npx jest -c j.js --rep"),
        ("jest", "cd a && yarn jest --watchAll b | cat", "cd a && yarn jest --reporters=/work/"),
        ("jest", "npx jest a -- b", "npx jest --reporters=/work/.probe/reporter.cjs"),
        ("vitest", "vitest run a --config v.ts --bail 1", "vitest run --config v.ts --run"),
        ("mocha", "mocha -r ts-node/register -R dot 't/*.ts'", "mocha -r ts-node/register --rep"),
        ("mocha", "mocha --spec a.js --exit > out b.js", "mocha --exit > out --reporter"),
        ("node", "node --import tsx --test a b", "node --import tsx --test --test-reporter="),
    ],
)
def test_launchers_and_settings_stay_while_files_and_filters_of_the_command_go(
    runner: str, command: str, kept: str
) -> None:
    probe = build_probe(request(runner=runner, command=command))
    assert probe is not None
    assert probe.command.startswith(kept), probe.command


def test_a_report_is_believed_only_whole_and_from_one_hand() -> None:
    good = b"5 begin\n5 passed a\n5 failed b\n5 end 2\n"
    assert read_results(good) == {"a": "passed", "b": "failed"}
    for bad in (
        b"",
        b"5 begin\n",
        good[:-1],
        good.replace(b"5 end 2\n", b""),
        good.replace(b"end 2", b"end 1"),
        good.replace(b"5 passed", b"6 passed"),
        good + good.replace(b"5", b"6"),
        good + b"{}\n",
        b"\xff\xff\n" + good,
    ):
        assert read_results(bad) == {}
    claimed = b"# x 1 passed c\n5 begin\n# x 2 failed d\n5 passed a\n# y 1 passed d\n5 end 1\n"
    results = {"a": "passed", "#c": "passed", "#d": "mixed"}
    assert read_results(claimed) == results
    assert read_results(claimed + b"# x 3 failed e\n") == {**results, "#e": "failed"}
    for bad in (b"# passed\n", b"# x 4 failed e\n", b"# x 2 failed e\n", b"# z 2 failed e\n"):
        assert read_results(claimed + bad) == {}
    twice = b"5 begin\n5 passed a\n5 failed a\n5 passed b\n5 passed b\n5 end 4\n"
    assert read_results(twice) == {"a": "mixed", "b": "passed"}
