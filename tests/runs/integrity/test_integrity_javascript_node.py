"""Probes of Node's own runner, run for real on honest code."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from javascript_workspace import MODULE, describe, originals, run_probe

from closeloop.grading.integrity.javascript import Recorder

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="NO NODE: install it")

NODE = """
import runner, { describe, it as example } from 'node:test'
import assert, { strictEqual } from 'node:assert/strict'
import { add, cart, pay, parse } from '../src/shop.mjs'
import { check } from './support.mjs'
import { pens } from './pens.test.mjs'

describe('shop', () => {
  example('adds', () => { assert.equal(add(2, 3), 5) })
  example('is ok', () => { assert.ok(add(1, 1) === 2) })
  example('is', { timeout: 4000 }, () => { assert(cart([]).paid === false, 'not paid') })
  example('is equal by name', () => { strictEqual(add(1, 1), 2) })
  example('throws', () => { assert.throws(() => parse(''), { name: 'TypeError' }) })
  example('rejects', async () => { await assert.rejects(pay(-1), /negative/) })
  example('matches', () => { assert.match(parse('ab,c')[0], /^ab$/) })
  example('waits', async () => { assert.deepStrictEqual(await pay(2), 4) })
  example('is not', () => { assert.notEqual(add(1, 1), 3) })
  example('is checked', async () => { check(add(1, 1), 2); await check(add(1, 2), 3) })
  example('returns a check', () => check(pens.total, 1))
  example('counts its assertions', (t) => { t.plan?.(0); assert.equal(pens.total, 1) })
  example('is an expression', () => assert.equal(add(1, 1), 2))
  example('branches', () => {
    if (pens.total > 1) assert.equal(1, 2)
    else assert.equal(pens.total, 1)
    for (const n of [1, 2]) assert.equal(add(n, 0), n)
    if (pens.total > 1) return assert.equal(1, 2)
    return assert.equal(pens.total, 1)
  })
  example('expects an assertion to fail', () => {
    let failed = false
    try { assert.equal(add(1, 1), 3) } catch { failed = true }
    assert(failed)
  })
  example('tries again', async () => {
    let tries = 0
    const retry = (step) => { try { return step() } catch { return retry(step) } }
    await retry(() => { assert.equal(++tries, 3) })
  })
  example('calls back', (t, done) => {
    setTimeout(() => { assert.equal(add(1, 1), 2); done() }, 1)
  })
})
runner('parts', async (t) => {
  await t.test('one', () => { assert.equal(add(1, 0), 1) })
  await t.test('two', async (t) => { await t.test('deep', () => { assert.equal(add(1, 1), 2) }) })
})
runner.it('stays open', () => { setInterval(() => {}, 1000).unref(); assert.equal(add(0, 0), 0) })
"""

PENS = """
import { test } from 'node:test'
import assert from 'node:assert/strict'
import { cart } from '../src/shop.mjs'
export const pens = cart(['pen'])
test('has pens', () => { assert.deepEqual(pens.names, ['pen']) })
"""
SUPPORT = """
export const check = (actual, expected) => { if (actual !== expected) throw new Error(`${actual}`) }
"""


@pytest.mark.parametrize(
    "command",
    [
        "node --test-reporter=tap --test --test-name-pattern=adds test/ >/dev/null",
        "npm test",
        "sh run.sh",
    ],
)
def test_node_confirms_an_honest_change_in_every_style(tmp_path: Path, command: str) -> None:
    files = {
        "package.json": '{"scripts": {"test": "node --test"}}',
        "run.sh": "node --no-warnings --test test/\n",
        "src/shop.mjs": MODULE,
        "test/shop.test.mjs": NODE,
        "test/pens.test.mjs": PENS,
        "test/support.mjs": SUPPORT,
    }
    titles = (
        *("adds", "is ok", "is", "is equal by name", "throws", "rejects", "matches", "waits"),
        *("is not", "is checked", "returns a check", "counts its assertions", "calls back"),
        *("is an expression", "branches", "expects an assertion to fail", "tries again"),
    )
    ids = (
        *(f"test/shop.test.mjs > shop > {title}" for title in titles),
        *("test/shop.test.mjs > parts > one", "test/shop.test.mjs > parts > two > deep"),
        *("test/shop.test.mjs > parts", "test/shop.test.mjs > stays open"),
        "test/pens.test.mjs > has pens",
    )
    outcome = run_probe(tmp_path, files, "node", command, fail_to_pass=ids)
    assert outcome.is_honest, describe(outcome)
    assert originals(outcome, "copy") == {*ids}
    assert originals(outcome, "control") >= {*ids}
    assert {*ids} - originals(outcome, "perturbed") == {"test/shop.test.mjs > shop > tries again"}
    assert all(test.certain or test.proved_by for test in outcome.of_kind("perturbed"))


def test_what_a_file_tells_its_runner_is_whole_however_slowly_it_is_read(tmp_path: Path) -> None:
    """A test file that is told to end writes its last results to a pipe and exits at once."""
    early = tmp_path / "early.cjs"
    early.write_text(Recorder(word="kept", pipe="/none").render_early())
    script = "process.stdout.write('x'.repeat(1e6)); process.exit()"
    with subprocess.Popen(
        ["node", "--require", str(early), "-e", script],
        env={**os.environ, "NODE_TEST_CONTEXT": "child-v8"},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        # More than a pipe holds is read only when the process waits for that, or has ended.
        first = process.stdout.read(1)
        assert len(first + process.stdout.read()) == 1_000_000
