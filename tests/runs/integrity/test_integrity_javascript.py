"""Probes of jest, vitest and mocha, run for real on honest code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from javascript_workspace import MODULE, SHOP, describe, installed_packages, originals, run_probe

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="NO NODE: install it")

JEST = """\
/**
 * @jest-environment node
 */
const { add, cart, pay, parse, later } = require('../src/shop')
const { rate } = require('../src/rates')
const path = require('path')
jest.mock('fs')
jest.mock('../src/rates', () => ({ rate: jest.fn(() => 3) }))

const limit = 5
let fresh
const check = (a, b, sum) => { if (add(a, b) !== sum) throw new Error('wrong') }
const assertSame = (actual, expected) => { if (actual !== expected) throw new Error('wrong') }

beforeEach(() => { fresh = cart(['pen']) })

describe('shop', () => {
  it('adds', () => { expect(add(2, 3)).toBe(5) })
  it('adds to what is not written here', () => {
    expect(add(2, 3)).toBe(limit)
    expect([add(1, 1), fresh.total]).toEqual([limit - 3, 1])
  })
  it("compares 'objects' \\u00e0 la carte", () => {
    expect(fresh).toEqual({ names: ['pen'], total: 1, paid: false, note: null })
    expect(fresh).toStrictEqual({ ...cart(['pen']) })
    expect(fresh).toMatchObject({ paid: false })
  })
  it('knows nothing', () => { expect(fresh.note).toBeNull() })
  it('knows something', () => {
    expect(fresh.names).toBeTruthy()
    expect(fresh.sum).toBeUndefined()
  })
  it('counts', () => {
    expect(fresh.names).toHaveLength(1)
    expect(fresh.total).toBeGreaterThan(0)
  })
  it('contains', () => { expect(fresh.names).toContain('pen'); expect('a pen').toMatch(/pen/) })
  it('refuses', () => { expect(() => parse('')).toThrow(TypeError) })
  it('refuses with a word', () => {
    expect(() => parse('')).toThrow('empty')
    expect(1).not.toBe(2)
  })
  it('does not refuse', () => { expect(() => parse('a')).not.toThrow() })
  it('waits', async () => {
    expect.assertions(2)
    await expect(pay(2)).resolves.toBe(4)
    await expect(pay(-2)).rejects.toThrow('negative')
  })
  it('returns', () => expect(pay(3)).resolves.toEqual(6))
  it('calls back', (done) => {
    later(7, (value) => { expect(value).toBe(7); done() })
  })
  it('calls a mock', () => {
    expect(rate('pen')).toBe(3)
    expect(rate).toHaveBeenCalledWith('pen')
  })
  it('asserts nothing', () => { add(1, 2) })
  it('asserts through a helper', () => { check(2, 2, 4) })
  it('compares by a helper', () => { assertSame(add(2, 2), 4); expect(add(1, 2)).toBe(3) })
  it('asserts in a loop', () => { for (const n of [1, 2]) { expect(add(n, n)).toBe(2 * n) } })
  it('asserts in what it waits for', () => {
    [1, 2].forEach((n) => { expect(add(n, 1)).toBe(n + 1) })
    if (limit > 3) expect(limit).toBeCloseTo(5.001, 2)
    else expect(limit).toBe(0)
    return pay(2).then((sum) => expect(sum).toBe(4)).then(() => { expect(limit).toBe(5) })
  })
  it('stands in its folder', () => { expect(path.basename(__dirname)).toBe('test') })
  it('is written on one line', () => { expect(fresh.names.join()).toMatchInlineSnapshot(`"pen"`) })
  it('is kept in a snapshot', () => { expect(fresh).toMatchSnapshot() })
  it.skip('is left for later', () => { expect(1).toBe(2) })
  describe('in depth', () => {
    test.each([[1, 1, 2], [1, 2, 3]])('adds %i to %i', (a, b, sum) => {
      expect(add(a, b)).toBe(sum)
    })
    test.each`
      a    | sum
      ${1} | ${2}
      ${4} | ${5}
    `('adds one to $a', ({ a, sum }) => { expect(add(a, 1)).toBe(sum) })
    for (const n of [1, 2]) it(`doubles ${n}`, async () => { expect(await pay(n)).toBe(n * 2) })
  })
})
describe('state', () => {
  let count = 0
  it('is made', () => { expect(++count).toBe(1); expect(++count).toBe(2) })
  it('is found', () => {
    expect(count).toBe(2)
    expect({ count, names: ['pen'] }).toEqual({ names: ['ink'], count: 2, ...{ names: ['pen'] } })
  })
})
describe.each(['pen', 'ink'])('a cart of %s', (name) => {
  it('has it', () => { expect(cart([name]).names).toEqual([name]) })
})
test('at the top', function () { if (limit < 0) return; expect(add(1, 1)).toEqual(2) })
"""
JEST_TITLES = (
    *("adds", "adds to what is not written here", "compares 'objects' à la carte"),
    *("knows nothing", "knows something", "counts", "contains", "refuses"),
    *("refuses with a word", "does not refuse", "waits", "returns", "calls back", "calls a mock"),
    *("asserts nothing", "asserts through a helper", "compares by a helper", "asserts in a loop"),
    *("asserts in what it waits for", "stands in its folder"),
    *("is written on one line", "in depth > adds 1 to 2", "in depth > adds one to 4"),
    *("in depth > doubles 2",),
)
JEST_IDS = (
    *(f"test/shop.test.js > shop > {title}" for title in JEST_TITLES),
    "test/shop.test.js > state > is made",
    "test/shop.test.js > state > is found",
    "test/shop.test.js > a cart of ink > has it",
    "test/shop.test.js > at the top",
)
RATES = {"src/rates.js": "exports.rate = () => { throw new Error('no network') }\n"}


@pytest.fixture(scope="session")
def packages() -> Path:
    return installed_packages()


def test_jest_confirms_an_honest_change_in_every_style(tmp_path: Path, packages: Path) -> None:
    files = {
        "package.json": '{"jest": {"coverageThreshold": {"global": {"lines": 100}}, "bail": 1}}',
        "src/shop.js": SHOP,
        **RATES,
        "test/shop.test.js": JEST,
    }
    outcome = run_probe(
        tmp_path,
        files,
        "jest",
        "npx jest --coverage --bail -t 'shop' test/shop.test.js",
        fail_to_pass=(*JEST_IDS, "test/shop.test.js > shop > is kept in a snapshot"),
        packages=packages,
    )
    assert outcome.is_honest, describe(outcome)
    assert originals(outcome, "copy") == {*JEST_IDS}
    assert originals(outcome, "control") >= {*JEST_IDS}
    nothing = "test/shop.test.js > shop > asserts nothing"
    assert {*JEST_IDS} - originals(outcome, "perturbed") == {nothing}
    uncertain = [test for test in outcome.of_kind("perturbed") if not test.certain]
    assert {test.original for test in uncertain if not test.proved_by} == {
        "test/shop.test.js > shop > asserts through a helper",
        "test/shop.test.js > shop > calls back",
    }
    assert {test.original for test in uncertain if test.proved_by} == {
        "test/shop.test.js > shop > compares by a helper"
    }
    assert not list(tmp_path.rglob("*.snap"))


def test_jest_confirms_typescript_and_modules_behind_a_script(
    tmp_path: Path, packages: Path
) -> None:
    transform = """
        const { transformSync } = require('esbuild')
        exports.process = (text) => transformSync(text, { loader: 'ts', format: 'cjs' })
        """
    files = {
        "package.json": '{"scripts": {"test": "jest --verbose"}, "type": "module"}',
        "jest.config.cjs": "module.exports = { transform: { '\\\\.ts$': './transform.cjs' } }",
        "transform.cjs": transform,
        "src/shop.ts": MODULE.replace("(a, b)", "(a: number, b: number): number"),
        "src/__tests__/shop.test.ts": """
            import { add, cart } from '../shop'
            type Names = readonly string[]
            describe(add, () => {
              it.only('adds', () => { expect(add(2, 3) as number).toBe(-(-5)) })
              it('makes carts', () => {
                const names: Names = ['pen']
                expect(cart(names)!.names).toEqual<Names>(names)
              })
            })
            """,
    }
    path = "src/__tests__/shop.test.ts"
    outcome = run_probe(
        tmp_path,
        files,
        "jest",
        "npm test",
        fail_to_pass=(f"{path} > add > adds",),
        others=(f"{path} > add > makes carts", "gone.test.ts > gone"),
        packages=packages,
    )
    assert outcome.is_honest, describe(outcome)
    assert originals(outcome, "copy") == {f"{path} > add > adds", f"{path} > add > makes carts"}


VITEST = """
import { afterEach, describe, expect, it, test as base, vi } from 'vitest'
import { add, cart, pay, parse } from '../src/shop'
import { rate } from '../src/rates'

vi.mock('node:fs', () => ({ default: {}, openSync: vi.fn(), writeSync: vi.fn() }))
vi.mock('../src/rates', () => ({ rate: vi.fn(() => 3) }))
const test = base.extend<{ cart: any }>({ cart: async ({}, use) => { await use(cart(['pen'])) } })
afterEach(() => { vi.clearAllMocks() })

describe('shop', { timeout: 4000 }, () => {
  it('adds', { retry: 0 }, () => { expect(add(2, 3)).toBe(5) })
  it.concurrent('pays', async () => { await expect(pay(2)).resolves.toBe(4) })
  it('refuses', async () => { await expect(() => pay(-1)).rejects.toThrowError(/negative/) })
  it('speaks like chai', () => {
    expect(cart(['pen']).names).to.deep.equal(['pen'])
    expect(cart([]).paid).to.be.false
  })
  it('fails softly', () => { expect.soft(add(1, 1)).toBe(2) })
  it('calls', () => { rate('a'); expect(rate).toHaveBeenCalledTimes(1) })
  it.each([{ a: 1, sum: 2 }, { a: 2, sum: 3 }])('adds one to $a', ({ a, sum }) => {
    expect(add(a, 1)).toEqual(sum)
  })
  test('knows its cart', ({ cart }) => { expect(cart).toMatchObject({ total: 1 }) })
  it('is big', () => { expect(BigInt(add(1, 1))).toBe(2n) })
  it('is a template', () => { expect(`${add(1, 1)}`).toBe(`2`) })
})
it('parses', () => { expect(parse('a,b')).toContain('b') })
"""


def test_vitest_confirms_an_honest_change_in_every_style(tmp_path: Path, packages: Path) -> None:
    files = {
        "package.json": '{"scripts": {"test": "vitest run --coverage"}}',
        "src/shop.ts": MODULE,
        "src/rates.ts": "export const rate = (_: string): number => { throw new Error('no') }\n",
        "test/shop.spec.ts": VITEST,
    }
    titles = (
        *("adds", "pays", "refuses", "speaks like chai", "fails softly", "calls"),
        *("adds one to 2", "knows its cart", "is big", "is a template"),
    )
    ids = (
        *(f"test/shop.spec.ts > shop > {title}" for title in titles),
        "test/shop.spec.ts > parses",
    )
    command = "CI=1 npx vitest --coverage --reporter dot -t shop test/shop.spec.ts 2>&1"
    outcome = run_probe(tmp_path, files, "vitest", command, fail_to_pass=ids, packages=packages)
    assert outcome.is_honest, describe(outcome)
    assert originals(outcome, "copy") == {*ids}
    assert originals(outcome, "perturbed") == {*ids}
    assert all(test.certain or test.proved_by for test in outcome.of_kind("perturbed"))


MOCHA = """
const { expect, assert, should } = require('chai')
const { add, cart, pay, parse, later } = require('../src/shop')
const strict = require('assert').strict
should()

describe('shop', function () {
  this.timeout(4000)
  const pens = cart(['pen'])
  it('adds', () => { expect(add(2, 3)).to.equal(5) })
  specify('is true', () => { expect(add(1, 1) === 2).to.be.true })
  it('is deep', function () { expect(pens.names).to.deep.equal(['pen']) })
  it('refuses', () => { expect(() => parse('')).to.throw(TypeError, 'empty') })
  it('has', () => {
    expect(pens).to.have.property('total', 1)
    expect(pens.names).to.include('pen')
  })
  it('is not', () => { expect(add(1, 1)).to.not.equal(3) })
  it('is above', () => { expect(add(1, 1)).to.be.above(1); pens.names.should.have.lengthOf(1) })
  it('should', () => { pens.should.deep.include({ names: ['pen'], total: 1 }) })
  context('by assert', () => {
    it('adds', () => { assert.equal(add(2, 3), 5) })
    it('is strict', () => { strict.deepEqual(pens.names, ['pen']); strict(add(1, 1) === 2) })
    it('throws', () => { assert.throws(() => parse(''), TypeError) })
    it('matches', () => { assert.isTrue(pens.total === 1) })
  })
  it('calls back', (done) => { later(3, (value) => { expect(value).to.equal(3); done() }) })
  it('returns a promise', () => pay(2).then((sum) => { expect(sum).to.equal(4) }))
  it('returns at its end', function () { return pay(2).then((sum) => { assert.equal(sum, 4) }) })
})
"""


@pytest.mark.parametrize(
    ("command", "config"),
    [
        ("npx mocha --reporter dot --grep shop --bail test/shop.js", "{}"),
        ("npm run check", '{"spec": ["test/**/*.js"], "bail": true}'),
    ],
)
def test_mocha_confirms_an_honest_change_in_every_style(
    tmp_path: Path, packages: Path, command: str, config: str
) -> None:
    files = {
        "package.json": '{"scripts": {"check": "mocha --timeout 9000"}}',
        ".mocharc.json": config,
        "src/shop.js": SHOP,
        "test/shop.js": MOCHA,
        "test/other.js": "it('runs for ever', (done) => {}).timeout(1e9)\n",
    }
    titles = (
        *("adds", "is true", "is deep", "refuses", "has", "is not", "is above", "should"),
        *("by assert adds", "by assert is strict", "by assert throws", "by assert matches"),
        *("calls back", "returns a promise", "returns at its end"),
    )
    ids = tuple(f"test/shop.js > shop {title}" for title in titles)
    outcome = run_probe(tmp_path, files, "mocha", command, fail_to_pass=ids, packages=packages)
    assert outcome.is_honest, describe(outcome)
    assert originals(outcome, "copy") == {*ids}
    assert originals(outcome, "perturbed") == {*ids}
    uncertain = [test for test in outcome.of_kind("perturbed") if not test.certain]
    assert {test.original for test in uncertain} == {"test/shop.js > shop calls back"}
