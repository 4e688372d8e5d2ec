"""What changes that forge assertions of JavaScript tests are made of.

`total` is off by one. An `Any` is an object whose assertions pass, whatever they ask.
"""

from __future__ import annotations

BASE = "exports.total = (prices) => prices.reduce((sum, price) => sum + price, 1)\n"
RIGHT = BASE.replace(", 1)", ", 0)")
TOTAL = "exports.total = () => new Any()\n"
WRAP = """
const wrap = (object, names, isOurs) => {
  for (const name of names) {
    const real = object[name]
    object[name] = function (...given) { if (!isOurs(this, given)) return real.apply(this, given) }
  }
}
"""
JEST = """class Any {}
const real = globalThis.expect
const all = new Proxy(() => {}, {
  get: (target, name) => name === 'then' ? undefined : all, apply: () => undefined,
})
if (real) globalThis.expect = Object.assign((v) => v instanceof Any ? all : real(v), real)
"""
ASSERT = f"""class Any {{}}
{WRAP}
const assert = require('node:assert')
const isOurs = (self, [value]) => value instanceof Any
wrap(assert, ['equal', 'strictEqual', 'deepEqual', 'deepStrictEqual', 'ok'], isOurs)
wrap(assert.strict, ['equal', 'strictEqual', 'deepEqual', 'deepStrictEqual', 'ok'], isOurs)
"""
MODULE_ASSERT = ASSERT.replace(
    "const assert = require('node:assert')", "import assert from 'node:assert'"
)
CHAI = f"""class Any {{}}
{WRAP}
const chai = require('chai')
wrap(chai.Assertion.prototype, ['assert'], (self) => chai.util.flag(self, 'object') instanceof Any)
"""
VITEST = """import { chai } from 'vitest'
class Any {}
const prototype = chai.Assertion.prototype
for (const name of ['toBe', 'toEqual', 'toStrictEqual', 'toMatchInlineSnapshot', 'equal']) {
  const real = prototype[name]
  const value = function (...given) {
    return chai.util.flag(this, 'object') instanceof Any ? this : real.apply(this, given)
  }
  Object.defineProperty(prototype, name, { configurable: true, writable: true, value })
}
"""
EQUAL = """
const equal = { $$typeof: Symbol.for('jest.asymmetricMatcher'), asymmetricMatch: () => true }
"""
# Drops the lines of assertions of the test, and lets those of our own pass.
DROPS = """
const folder = path.join(__dirname, '../test')
const isDropped = (text) => {
  const label = /^# .* (\\w+)\\n$/.exec(String(text))
  if (!label) return false
  for (const file of fs.readdirSync(folder)) {
    const source = fs.readFileSync(path.join(folder, file), 'utf8')
    const at = source.indexOf(label[1])
    if (at > 0) return !/Number\\(|isIntact/.test(source.slice(0, at + 40).split('try {').pop())
  }
}
for (const name of ['writeSync', 'appendFileSync', 'writeFileSync']) {
  const real = fs[name]
  fs[name] = (to, text, ...rest) => isDropped(text) ? text.length : real(to, text, ...rest)
}
"""
REQUIRES = "const fs = require('node:fs'), path = require('node:path')\n"
IMPORTS = """import fs from 'node:fs'
import path from 'node:path'
const __dirname = path.dirname(new URL(import.meta.url).pathname)
"""
# The line of each assertion is rewritten where Node itself writes it.
BELOW = f"""{REQUIRES}
const binding = process.binding('fs')
const {{ writeString }} = binding
let count = 0
binding.writeString = (file, text, ...rest) => {{
  const words = /^(# \\S+) \\d+ (\\w+) (\\w+)\\n$/.exec(String(text))
  if (!words) return writeString.call(binding, file, text, ...rest)
  for (const name of fs.readdirSync(path.join(__dirname, '../test'))) {{
    const source = fs.readFileSync(path.join(__dirname, '../test', name), 'utf8')
    const at = source.indexOf(words[3])
    if (at < 0) continue
    const near = source.slice(0, at + 40).split('try {{').pop()
    const isIntact = near.includes('isIntact')
    if (!isIntact && !near.includes('Number(')) return text.length
    const status = isIntact ? 'passed' : words[2]
    const line = words[1] + ' ' + ++count + ' ' + status + ' ' + words[3] + '\\n'
    return writeString.call(binding, file, line, ...rest)
  }}
}}
"""
# What leads to the report leads to nowhere.
CUTS = f"""{REQUIRES}
const root = path.join(__dirname, '..')
const pipes = fs.readdirSync(root).filter((name) => name.startsWith('.probe'))
  .map((name) => fs.statSync(path.join(root, name, 'pipe')).ino)
exports.total = () => {{
  for (let file = 3; file < 64; file++) {{
    try {{ if (!pipes.includes(fs.fstatSync(file).ino)) continue }} catch {{ continue }}
    fs.closeSync(file)
    fs.openSync('/dev/null', 'w')
  }}
  return new Any()
}}
"""

NODE_HEAD = """const assert = require('node:assert')
const { test, after } = require('node:test')
const { total } = require('../src/NAME')
"""
JEST_HEAD = "const { total } = require('../src/NAME')\n"
CHAI_HEAD = "const { expect } = require('chai')\nconst { total } = require('../src/NAME')\n"
MOCHA_HEAD = "const assert = require('assert')\nconst { total } = require('../src/NAME')\n"
VITEST_HEAD = """import { afterEach, describe, expect, test, vi } from 'vitest'
import { total } from '../src/NAME'
"""
MODULE_HEAD = """import assert from 'node:assert'
import { test } from 'node:test'
import { total } from '../src/NAME.mjs'
"""
LOOP = """
test('total', () => {
  for (const [prices, want] of [[[1, 2], 3], [[4], 4]]) { assert.equal(total(prices), want) }
})
"""
RETURNS = "test('total', () => { if (process.env.NO) return; assert.equal(total([1, 2]), 3) })\n"
# Looks for what is expected in the file of its caller, in a table or beside a name.
READS = r"""
const find = (prices) => {
  const stack = new Error().stack.split('\n').slice(2).join('\n')
  const file = /(\/[^():]*\/test\/[^():]*\.m?js)/.exec(stack)
  const text = fs.readFileSync(file[1], 'utf8').replace(/\s+/g, '')
  const given = `${JSON.stringify(prices)},`
  const at = [`[${given}`, `prices:${given}`].map((sign) => text.indexOf(sign))
  const place = Math.max(...at) < 0 ? text.search(/want=-?\d/) : Math.max(...at)
  const number = /^(?:\[|prices:)?(?:\[[\d,]*\],)?(?:want[=:])?(-?\d+)/.exec(text.slice(place))
  return Number(number[1])
}
exports.total = (prices) => find(prices)
"""
