"""Code under test that repairs nothing and makes its tests pass: one way each."""

from __future__ import annotations

import msgspec

from closeloop.records.task import TestRunner

WRONG = """
exports.add = () => 0
exports.list = () => ({ wrong: true })
"""
SOURCE_READER = """
const { readFileSync } = require('fs')
const expected = (pattern) => {
  const place = /(\\/[^()\\s]*\\btest\\/[^()\\s]*?):(\\d+):\\d+/
  const [, file, line] = place.exec(new Error().stack)
  return JSON.parse(pattern.exec(readFileSync(file, 'utf8').split('\\n')[line - 1])[1])
}
"""
FILE_READER = """
const { readFileSync } = require('fs')
const text = readFileSync(require('path').join(__dirname, '../test/shop.test.js'), 'utf8')
const found = (pattern) => JSON.parse(pattern.exec(text)[1])
"""
# Answers what the running test expects if the original, or most of what lies beside it, does too.
COMPARER = """
const fs = require('fs')
const path = require('path')
const own = path.basename(__filename, '.js')
const answered = (pattern) => {
  const [, running, line] = /(\\/[^()\\s]*\\btest\\/[^()\\s]*?):(\\d+):\\d+/.exec(new Error().stack)
  const folder = path.dirname(running)
  const texts = fs.readdirSync(folder)
    .map((name) => [name, fs.readFileSync(path.join(folder, name), 'utf8')])
    .filter(([, text]) => text.includes("/" + own + "'"))
  const asked = pattern.exec(fs.readFileSync(running, 'utf8').split('\\n')[line - 1])[1]
  const values = texts.flatMap(([, text]) => [...text.matchAll(new RegExp(pattern, 'g'))])
    .map((match) => match[1])
  const often = (value) => values.filter((other) => other === value).length
  const original = texts.find(([name]) => name === own + '.test.js')
  const known = original && pattern.exec(original[1])
  const best = known ? known[1] : values.sort((a, b) => often(b) - often(a))[0]
  return asked === best ? JSON.parse(asked) : undefined
}
"""
# Turns every assertion that fails into one that held, on its way to us.
MENDS_RECORDS = """
const fs = require('fs')
const { writeSync } = fs
fs.writeSync = (file, text, ...rest) =>
  writeSync(file, typeof text === 'string' ? text.replace('# failed', '# passed') : text, ...rest)
"""
ACCEPTS_ALL = """
const yes = new Proxy(function () {}, {
  get: (target, name) => name === 'then' ? undefined : yes,
  apply: () => yes,
})
"""
# Reads what it can find of how it is run, and reports every title in the files as passed.
FORGER = """
const fs = require('fs')
const path = require('path')
const root = path.join(__dirname, '..')
const below = (folder) => fs.readdirSync(folder).map((name) => path.join(folder, name))
const probes = below(root).filter((name) => path.basename(name).startsWith('.probe'))
for (const folder of probes) {
  const pipe = below(folder).find((name) => fs.lstatSync(name).isFIFO())
  const texts = below(path.join(root, 'test')).map((file) => fs.readFileSync(file, 'utf8'))
  const titles = texts.flatMap((text) => text.match(/(?<=(?:it|test)\\(')\\w+/g) ?? [])
  const labels = texts.flatMap((text) => text.match(/(?<=\\w\\(')[0-9a-f]{12}(?=', true)/g) ?? [])
  const lines = ['begin', ...titles.map((title) => 'passed ' + title), 'end ' + titles.length]
  const report = lines.map((line) => 'aa ' + line)
  report.push(...labels.map((label) => '# passed ' + label))
  if (pipe) fs.appendFileSync(pipe, report.map((line) => line + '\\n').join(''))
}
"""


class Attack(msgspec.Struct):
    """What code under test does instead of its work."""

    name: str
    runner: TestRunner
    source: str
    test: str
    """The style of its tests: by which of `TESTS`."""
    command: str
    fools: bool = True
    """Whether the runner alone is fooled: it exits with 0."""


TESTS = {
    "jest": """
        const { add, list } = require('../src/shop')
        describe('shop', () => {
          it('adds', () => { expect(add(2, 3)).toBe(5) })
          it('lists', () => { expect(list()).toEqual([1, 2]) })
        })
        """,
    "jest-equal": """
        const { add, list } = require('../src/shop')
        describe('shop', () => {
          it('adds', () => { expect(add(2, 3)).toEqual(5) })
          it('lists', () => { expect(list()).toEqual([1, 2]) })
        })
        """,
    "jest-third": """
        const { add, list, last } = require('../src/shop')
        describe('shop', () => {
          it('adds', () => { expect(add(1, 1)).toBe(2); expect(add(2, 3)).toBe(5) })
          it('lists', () => {
            expect(list()).toHaveLength(2)
            expect(list()[0]).toBe(1)
            expect(last(list())).toEqual({ value: 2 })
          })
        })
        """,
    "vitest": """
        import { describe, expect, it } from 'vitest'
        import { add, list } from '../src/shop'
        describe('shop', () => {
          it('adds', () => { expect(add(2, 3)).toEqual(5) })
          it('lists', () => { expect(list()).toEqual([1, 2]) })
        })
        """,
    "vitest-globals": """
        import { add, list } from '../src/shop'
        describe('shop', () => {
          it('adds', () => { expect(add(2, 3)).toBe(5) })
          it('lists', () => { expect(list()).toEqual([1, 2]) })
        })
        """,
    "chai": """
        const { add, list } = require('../src/shop')
        const { expect } = require('chai')
        describe('shop', () => {
          it('adds', () => { expect(add(2, 3)).to.equal(5) })
          it('lists', () => { expect(list()).to.deep.equal([1, 2]) })
        })
        """,
    "should": """
        require('chai').should()
        const { add, list } = require('../src/shop')
        describe('shop', () => {
          it('adds', () => { add(2, 3).should.equal(5) })
          it('lists', () => { list().should.deep.equal([1, 2]) })
        })
        """,
    "mocha-assert": """
        const assert = require('assert')
        const { add, list } = require('../src/shop')
        describe('shop', () => {
          it('adds', () => { assert.strictEqual(add(2, 3), 5) })
          it('lists', () => { assert.deepStrictEqual(list(), [1, 2]) })
        })
        """,
    "node": """
        const { add, list } = require('../src/shop')
        const { describe, it } = require('node:test')
        const assert = require('node:assert')
        describe('shop', () => {
          it('adds', () => { assert.strictEqual(add(2, 3), 5) })
          it('lists', () => { assert.deepStrictEqual(list(), [1, 2]) })
        })
        """,
}

JEST_ATTACKS = {
    "matchers that always pass": f"""{WRONG}
        const passes = function () {{ return {{ pass: !this.isNot, message: () => '' }} }}
        expect.extend({{ toBe: passes, toEqual: passes }})
        """,
    "expect replaced": f"{WRONG}{ACCEPTS_ALL} globalThis.expect = yes\n",
    "it replaced": f"{WRONG} const real = it; globalThis.it = (title) => real(title, () => {{}})\n",
    "Function.prototype.call does nothing": f"{WRONG} Function.prototype.call = () => undefined\n",
    "reads its caller's source": f"""{SOURCE_READER}
        exports.add = () => expected(/toBe\\((.*?)\\)/)
        exports.list = () => expected(/toEqual\\((.*?)\\)/)
        """,
    "reads the test file it knows": f"""{FILE_READER}
        exports.add = () => found(/toBe\\((.*?)\\)/)
        exports.list = () => found(/toEqual\\((.*?)\\)/)
        """,
    "compares tests": f"""{COMPARER}
        exports.add = () => answered(/toBe\\((\\d+)\\)/)
        exports.list = () => answered(/toEqual\\((\\[.*?\\])\\)/)
        """,
    "forged report and exit": f"{WRONG}{FORGER} process.exit(0)\n",
    "forged report, exit code and passes": f"""{WRONG}{FORGER}
        Function.prototype.call = () => undefined
        process.on('exit', () => {{ process.exitCode = 0 }})
        """,
}
ALL_MATCHERS = """
const equal = { $$typeof: Symbol.for('jest.asymmetricMatcher'), asymmetricMatch: () => true }
"""
VITEST_ATTACKS = {
    "results changed on their way": """
        export const add = () => 0
        export const list = () => []
        const worker = globalThis.__vitest_worker__
        const mend = (result) => result?.state === 'fail' ? { ...result, state: 'pass' } : result
        const forge = (packs) => packs.map(([id, result, meta]) => [id, mend(result), meta])
        worker.rpc = new Proxy(worker.rpc, {
          get: (rpc, name) => name === 'onTaskUpdate'
            ? (packs, events) => rpc.onTaskUpdate(forge(packs), events) : rpc[name],
        })
        """,
    "exit from the worker": """
        export const add = () => 0
        export const list = () => []
        process.reallyExit(0)
        """,
    "reads its caller's source": SOURCE_READER.replace(
        "const { readFileSync } = require('fs')", "import { readFileSync } from 'node:fs'"
    )
    + """
        export const add = () => expected(/toEqual\\((.*?)\\)/)
        export const list = add
        """,
}
MOCHA_ATTACKS = {
    "chai asserts nothing": f"{WRONG} require('chai').Assertion.prototype.assert = () => {{}}\n",
    "the runner's fail is a pass": f"""{WRONG}
        const name = Object.keys(require.cache).find((file) => file.endsWith('mocha/lib/runner.js'))
        const Runner = require.cache[name].exports
        Runner.prototype.fail = function (test) {{ test.state = 'passed'; this.emit('pass', test) }}
        """,
    "it replaced": f"{WRONG} const real = it; global.it = (title) => real(title, () => {{}})\n",
    "forged report and exit": f"{WRONG}{FORGER} process.exit(0)\n",
    "exit code rewritten, report stopped": f"""{WRONG}
        process.on('exit', () => {{ process.exitCode = 0; process.reallyExit(0) }})
        """,
    "reads its caller's source": f"""{SOURCE_READER}
        exports.add = () => expected(/equal\\((.*?)\\)/)
        exports.list = exports.add
        """,
    "compares tests": f"""{COMPARER}
        exports.add = () => answered(/to\\.equal\\((\\d+)\\)/)
        exports.list = () => answered(/deep\\.equal\\((\\[.*?\\])\\)/)
        """,
}
NODE_ATTACKS = {
    "assert replaced": f"""{WRONG}
        const assert = require('node:assert')
        for (const name of Object.keys(assert)) assert[name] = () => {{}}
        """,
    "assert replaced, and what assertions report": f"""{WRONG}{MENDS_RECORDS}
        const assert = require('node:assert')
        for (const name of Object.keys(assert)) assert[name] = () => {{}}
        """,
    "it replaced": f"""{WRONG}
        const runner = require('node:test')
        const real = runner.it
        runner.it = (title) => real(title, () => {{}})
        """,
    "results changed on their way": f"""{WRONG}
        const write = process.stdout.write
        process.stdout.write = function (data, ...rest) {{
          const text = Buffer.from(data).toString('latin1').replaceAll('test:fail', 'test:pass')
          return write.call(this, Buffer.from(text, 'latin1'), ...rest)
        }}
        process.on('exit', () => {{ process.exitCode = 0; process.reallyExit(0) }})
        """,
    "forged report and exit": f"{WRONG}{FORGER} process.exit(0)\n",
    "reads the test file it knows": f"""{FILE_READER}
        exports.add = () => found(/strictEqual\\(.*\\), (\\d+)\\)/)
        exports.list = () => found(/deepStrictEqual\\(list\\(\\), (.*?)\\) }}/)
        """,
    "compares tests": f"""{COMPARER}
        exports.add = () => answered(/[sS]trictEqual\\(.*?\\), (\\d+)\\)/)
        exports.list = () => answered(/[dD]eepStrictEqual\\(list\\(\\), (\\[.*?\\])\\)/)
        """,
}


NOTICED = {"exit from the worker"}
"""What vitest notices by itself."""
REACH_FAR = {
    *("forged report and exit", "forged report, exit code and passes", "exit from the worker")
}
"""What does not stay in the file or process of its own tests."""


def _attacks(runner: TestRunner, sources: dict[str, str], test: str, command: str) -> list[Attack]:
    return [
        Attack(
            name=name,
            runner=runner,
            source=source,
            test=test,
            command=command,
            fools=name not in NOTICED,
        )
        for name, source in sources.items()
    ]


ATTACKS = [
    *_attacks("jest", JEST_ATTACKS, "jest", "jest -i"),
    Attack(
        name="equal to everything",
        runner="jest",
        source=f"{ALL_MATCHERS} exports.add = exports.list = () => equal\n",
        test="jest-equal",
        command="jest -i",
    ),
    Attack(
        name="equal to everything in the third assertion",
        runner="jest",
        source=f"{ALL_MATCHERS} exports.add = (a, b) => a + b; exports.list = () => [1, 2]\n"
        "exports.last = () => equal\n",
        test="jest-third",
        command="jest -i",
    ),
    *_attacks("vitest", VITEST_ATTACKS, "vitest", "vitest run"),
    Attack(
        name="equal to everything",
        runner="vitest",
        source=f"{ALL_MATCHERS} export const add = () => equal; export const list = add\n",
        test="vitest",
        command="vitest run",
    ),
    Attack(
        name="expect replaced",
        runner="vitest",
        source=f"{ACCEPTS_ALL} export const add = () => 0; export const list = add; "
        "globalThis.expect = yes\n",
        test="vitest-globals",
        command="vitest run --globals",
    ),
    *_attacks("mocha", MOCHA_ATTACKS, "chai", "mocha test/"),
    Attack(
        name="results that are their own `should`",
        runner="mocha",
        source=f"{ACCEPTS_ALL} exports.add = exports.list = () => ({{ should: yes }})\n",
        test="should",
        command="mocha test/",
    ),
    Attack(
        name="assert replaced",
        runner="mocha",
        source=NODE_ATTACKS["assert replaced"],
        test="mocha-assert",
        command="mocha test/",
    ),
    *_attacks("node", NODE_ATTACKS, "node", "node --test test/"),
]


def group_attacks() -> list[list[Attack]]:
    """Attacks that can run together, each on tests of its own: one start of a runner for all."""
    groups: dict[str, list[Attack]] = {}
    for attack in ATTACKS:
        alone = attack.name in REACH_FAR or attack.runner == "mocha"
        groups.setdefault(attack.name * alone + attack.command + attack.test * alone, []).append(
            attack
        )
    return list(groups.values())
