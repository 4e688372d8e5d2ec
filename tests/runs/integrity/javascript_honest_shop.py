"""The code that honest changes repair."""

from __future__ import annotations

from javascript_forging import BASE, CHAI_HEAD, MOCHA_HEAD, NODE_HEAD, RIGHT, VITEST_HEAD
from javascript_grading import ScriptChange

from closeloop.records.task import TestRunner

MORE = """
const { EventEmitter } = require('node:events')
exports.later = (prices, done) => setTimeout(() => done(null, exports.total(prices)), 2)
exports.load = async (prices) => {
  if (!prices) throw Object.assign(new RangeError('no prices'), { code: 'E_NONE' })
  return { total: exports.total(prices), count: prices.length, items: [...prices] }
}
exports.store = () => {
  let state = 0
  const listeners = new Set()
  return {
    getState: () => state,
    subscribe: (listener) => { listeners.add(listener); return () => listeners.delete(listener) },
    add: (...prices) => {
      state += exports.total(prices)
      listeners.forEach((listener) => listener(state))
    },
  }
}
exports.Cart = class extends EventEmitter {
  add(...prices) { this.emit('total', exports.total(prices)); return this }
}
"""


def repair(
    runner: TestRunner,
    test: str,
    titles: str = "total",
    *,
    support: str | None = None,
    is_module: bool = False,
) -> ScriptChange:
    """A change that mends `total`; the titles of its tests are parted by `|`."""
    texts = [BASE + MORE, RIGHT + MORE]
    if runner == "vitest" or is_module:
        texts = [
            text.replace("const { EventEmitter } = require(", "import { EventEmitter } from (")
            .replace("from ('node:events')", "from 'node:events'")
            .replace("exports.total(", "total(")
            .replace("exports.", "export const ")
            for text in texts
        ]
    return ScriptChange(
        runner=runner,
        test=test,
        base=texts[0],
        source=texts[1],
        titles=tuple(titles.split("|")),
        support=support,
        is_module=is_module,
    )


JEST_ALL = "const { total, later, load, store, Cart } = require('../src/NAME')\n"
NODE_ALL = NODE_HEAD.replace("{ total }", "{ total, later, load, store, Cart }")
MOCHA_ALL = MOCHA_HEAD.replace("{ total }", "{ total, later, load, store, Cart }")
CHAI_ALL = CHAI_HEAD.replace("{ total }", "{ total, later, load, store, Cart }")
VITEST_ALL = VITEST_HEAD.replace("{ total }", "{ total, later, load, store, Cart }")
