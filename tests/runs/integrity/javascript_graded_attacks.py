"""Code under test that cheats in tasks without a reference, where the base is the control."""

from __future__ import annotations

import msgspec
from javascript_attacks import WRONG

from closeloop.records.task import TestRunner

SUPPORT = (
    "exports.check = (actual, expected) => { if (actual !== expected) throw new Error('no') }\n"
)


class GradedAttack(msgspec.Struct):
    """Code under test that does nothing of what a test asks, in a task without a reference.

    The code that was there before is `WRONG`.
    """

    runner: TestRunner
    command: str
    test: str
    """Asks for `add` of 2 and 3, under the title `adds`."""
    source: str


GRADED_ATTACKS = {
    "node: helper replaced": GradedAttack(
        runner="node",
        command="node --test test/",
        test="""
            const { add } = require('../src/shop')
            const { check } = require('./support')
            const { test } = require('node:test')
            test('adds', () => { check(add(2, 3), 5) })
            """,
        source=f"{WRONG} require('../test/support').check = () => {{}}\n",
    ),
    "jest: helper replaced": GradedAttack(
        runner="jest",
        command="jest -i",
        test="""
            const { add } = require('../src/shop')
            const { check } = require('./support')
            test('adds', () => { check(add(2, 3), 5) })
            """,
        source=f"{WRONG} require('../test/support').check = () => {{}}\n",
    ),
    # The base gives the answer that the assertion is changed to.
    "node: assert replaced": GradedAttack(
        runner="node",
        command="node --test test/",
        test="""
            const { add } = require('../src/shop')
            const { test } = require('node:test')
            const assert = require('node:assert')
            test('adds', () => { assert.equal(add(2, 3) === 5, true) })
            """,
        source=f"{WRONG} require('node:assert').equal = () => {{}}\n",
    ),
}
