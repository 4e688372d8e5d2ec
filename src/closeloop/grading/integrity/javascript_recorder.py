"""By what assertions of JavaScript tests report, out of the reach of the code under test.

The recorder takes what it needs of Node before any code under test runs: when a process starts, and
where a command leaves no room for that, as the first thing that a test file loads. It is handed on
by a property that nobody can replace. Its lines are numbered: one that is held back leaves a gap.
It also notices when what asserts was replaced, or what writes.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable

from closeloop.records.record import Record

# Prototypes may be patched by the time that it is called: no methods but those it has kept.
_KEEPER = """\
(load) => {
  const fs = load('fs'), key = Symbol.for(__KEY__)
  if (fs[key]) return fs[key]
  const { openSync, writeSync, fstatSync } = fs
  const { freeze, defineProperty, entries, getOwnPropertyDescriptor: about } = Object
  const inner = typeof process.binding === 'function' ? process.binding('fs') : {}
  const base = process.pid + '.' + process.hrtime.bigint() + '.'
  const watch = (list, object) => {
    if (object) for (const [name, value] of entries(object))
      if (typeof value === 'function') list.push([object, name, value])
    return list
  }
  const assert = load('assert')
  const seen = watch(watch([], assert), assert && assert.strict)
  const written = []
  for (const name of ['writeString', 'fstat']) written.push([inner, name, inner[name]])
  const isWhole = (list) => {
    for (let at = 0; at < list.length; at++) {
      const property = about(list[at][0], list[at][1])
      if ((property && property.value) !== list[at][2]) return false
    }
    return true
  }
  let made = 0
  const make = (scope) => {
    const opened = openSync(__PIPE__, 'a'), { ino } = fstatSync(opened), name = base + made++ + ' '
    const jest = scope[Symbol.for('$$jest-matchers-object')]
    const near = watch([[scope.Object, 'is', scope.Object.is]], jest && jest.matchers)
    if (typeof scope.expect === 'function') near.push([scope, 'expect', scope.expect])
    let count = 0
    const record = (label, held) => {
      const isOpen = isWhole(written) && fstatSync(opened).ino === ino
      if (!isOpen) throw new Error('the report was cut off')
      writeSync(opened, '# ' + name + ++count + (held ? ' passed ' : ' failed ') + label + '\\n')
    }
    record.isIntact = () => isWhole(seen) && isWhole(near)
    record.default = record
    return freeze(record)
  }
  defineProperty(fs, key, { value: make })
  return make
}"""
# Tests may replace the modules that they import, and functions of these: what is needed is taken
# from Node itself where it can be.
_LOAD = """\
((load) => (name) => load(name))(
  process.getBuiltinModule || (typeof jest === 'object' && jest.requireActual) || require)"""
_HANDED = "(typeof __KEPT__ === 'function' ? __KEPT__ : (__KEEPER__)(__LOAD__))(globalThis)"
# What a test file of Node tells its parent would be lost if it ended before the pipe is empty.
_EARLY = """\
Object.defineProperty(globalThis, '__KEPT__', { value: (__KEEPER__)(require) })
const { getBuiltinModule: value } = process
if (value) Object.defineProperty(process, 'getBuiltinModule', { value, enumerable: true })
if (process.env.NODE_TEST_CONTEXT && process.stdout._handle && process.stdout._handle.setBlocking)
  process.stdout._handle.setBlocking(true)
"""


class Recorder(Record):
    """The same for all files of one probe."""

    word: str
    """A random name for what is handed on."""
    pipe: str

    def render_early(self) -> str:
        """What a process runs before anything else."""
        return self._fill(_EARLY)

    def bind_in_file(self, name: str, path: str, *, is_module: bool) -> tuple[str, dict[str, str]]:
        """A first statement for a file, and a file beside it: it makes a recorder of this name.

        What a module imports is run before its own statements, so that it must be imported first.
        """
        if not is_module:
            return f"var {name} = {self._fill(_HANDED)};\n", {}
        beside = posixpath.join(posixpath.dirname(path), f"{name}.cjs")
        text = self._fill(f"module.exports = {_HANDED}\n")
        return f"import {name} from './{name}.cjs';\n", {beside: text}

    def _fill(self, text: str) -> str:
        text = text.replace("__KEEPER__", _KEEPER).replace("__LOAD__", _LOAD)
        text = text.replace("__KEPT__", self.word).replace("__KEY__", json.dumps(self.word))
        return text.replace("__PIPE__", json.dumps(self.pipe))


def read_records(lines: Iterable[str]) -> list[tuple[str, str]] | None:
    """Status and label of each line of a recorder; None where one is missing or not ours."""
    counts: dict[str, int] = {}
    records = []
    for line in lines:
        words = line.split(" ")
        if len(words) != 5:
            return None
        _, name, number, status, label = words
        counts[name] = counts.get(name, 0) + 1
        if number != str(counts[name]):
            return None
        records.append((status, f"#{label}"))
    return records
