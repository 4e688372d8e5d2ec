"""Probes for jest, vitest, mocha and Node's own runner.

A room holds each deciding test once, in a copy of its file with a random name and random titles.
Some of its assertions are made wrong; in the other room, the others are. Each copy also holds
control tests. Meanwhile the original files only re-export their copies, so that code under test
finds nothing to compare a test with.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import re
import shlex
import urllib.parse
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from closeloop.grading.integrity.javascript_claims import (
    NameMaker,
    ProbedFile,
    ProbeKit,
    ScriptModule,
    SharedClaims,
    assert_equal,
    expect_claims,
    names_in,
    read_test_files,
    write_claims,
)
from closeloop.grading.integrity.javascript_source import (
    Declaration,
    drop_edit,
    random_word,
    rename_edits,
)
from closeloop.grading.integrity.probe import (
    ROOMS,
    Probe,
    ProbeRequest,
    ProbeTest,
    Results,
    SourceEdit,
    apply_edits,
    choose_perturbed,
    insert_text,
    node_text,
)
from closeloop.grading.runner_reports import Status
from closeloop.grading.suite_run import (
    RunnerCall,
    ShellWord,
    add_script_arguments,
    runner_calls,
    write_hiding_script,
)
from closeloop.records.record import Record
from closeloop.records.task import TestRunner

if TYPE_CHECKING:
    from tree_sitter import Node


# The recorder by which JavaScript assertions report, out of reach of the code under test.
#
# It stores the functions of Node that it needs before any code under test runs: when a process
# starts, or, if the command does not allow that, as the first thing that a test file loads. It is
# passed on by a read-only property. Its lines are numbered: a suppressed line leaves a gap. It
# also detects whether the functions that assert or write were replaced.


# Prototypes may be patched by the time it is called, so it uses only methods that it has stored.
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
# Tests may replace modules that they import, and functions of these: what is needed is taken
# from Node itself if possible.
_LOAD = """\
((load) => (name) => load(name))(
  process.getBuiltinModule || (typeof jest === 'object' && jest.requireActual) || require)"""
_HANDED = "(typeof __KEPT__ === 'function' ? __KEPT__ : (__KEEPER__)(__LOAD__))(globalThis)"
# The report of a Node test file to its parent would be lost if it ended before the pipe is empty.
_EARLY = """\
Object.defineProperty(globalThis, '__KEPT__', { value: (__KEEPER__)(require) })
const { getBuiltinModule: value } = process
if (value) Object.defineProperty(process, 'getBuiltinModule', { value, enumerable: true })
if (process.env.NODE_TEST_CONTEXT && process.stdout._handle && process.stdout._handle.setBlocking)
  process.stdout._handle.setBlocking(true)
"""


class Recorder(Record):
    """The recorder that all files of one probe share."""

    word: str
    """Random name of the global property that hands the recorder on."""
    pipe: str

    def render_early(self) -> str:
        """Return the script that each process runs before anything else."""
        return self._fill(_EARLY)

    def bind_in_file(self, name: str, path: str, *, is_module: bool) -> tuple[str, dict[str, str]]:
        """Return a first statement for a file that binds a recorder, and a helper file for modules.

        The imports of a module run before its own statements, so it must import the recorder first.
        """
        if not is_module:
            return f"var {name} = {self._fill(_HANDED)};\n", {}
        helper_path = posixpath.join(posixpath.dirname(path), f"{name}.cjs")
        text = self._fill(f"module.exports = {_HANDED}\n")
        return f"import {name} from './{name}.cjs';\n", {helper_path: text}

    def _fill(self, text: str) -> str:
        text = text.replace("__KEEPER__", _KEEPER).replace("__LOAD__", _LOAD)
        text = text.replace("__KEPT__", self.word).replace("__KEY__", json.dumps(self.word))
        return text.replace("__PIPE__", json.dumps(self.pipe))


def read_records(lines: Iterable[str]) -> list[tuple[str, str]] | None:
    """Return status and label of each recorder line; None if one is missing or malformed."""
    counts: dict[str, int] = {}
    records = []
    for line in lines:
        fields = line.split(" ")
        if len(fields) != 5:
            return None
        _, name, number, status, label = fields
        counts[name] = counts.get(name, 0) + 1
        if number != str(counts[name]):
            return None
        records.append((status, f"#{label}"))
    return records


# Run some files with jest, vitest, mocha or Node's own runner, with our own reporter.
#
# Reporters write lines of plain text to a named pipe. Each line begins with a random seal that the
# reporter generates when it is loaded, before any code under test: nothing else in the process
# knows it, and it is in no file. They store the built-ins that they need, as code under test may
# replace them. A skipped test is not reported: it neither passed nor failed.
#
# Assertions report individually, from whatever process or sandbox they run in, by lines that
# begin with `#`. Other code can write such lines too, but does not know what to write: an
# assertion that must fail looks like one that must hold.


_PIPE = """\
const { openSync, writeSync, constants } = fs
const pipe = openSync(__PIPE__, constants.O_WRONLY)
const prefix = __PREFIX__
const seal = crypto.randomBytes(16).toString('hex')
let count = 0
const write = (text) => writeSync(pipe, seal + ' ' + text + '\\n')
const isOurs = (title) => {
  if (typeof title !== 'string') return false
  for (let at = 0; at < prefix.length; at++) if (title[at] !== prefix[at]) return false
  return true
}
const report = (title, status) => {
  if (!status || !isOurs(title)) return
  count++
  write(status + ' ' + title)
}
const end = () => write('end ' + count)
write('begin')
"""
_REQUIRED = "const fs = require('fs')\nconst crypto = require('crypto')\n"
_IMPORTED = "import fs from 'node:fs'\nimport crypto from 'node:crypto'\n"
_JEST = """\
const statuses = { passed: 'passed', failed: 'failed' }
module.exports = class {
  onTestResult(test, file) {
    for (const { title, status } of file.testResults) report(title, statuses[status])
  }
  onRunComplete() { end() }
}
"""
_MOCHA = """\
module.exports = function (runner) {
  runner.on('pass', (test) => report(test.title, 'passed'))
  runner.on('fail', (test) => { if (test.type === 'test') report(test.title, 'failed') })
  runner.on('end', end)
}
"""
# The older interface passes tasks, the newer one test cases; some versions call both.
_VITEST = """\
const statuses = { pass: 'passed', passed: 'passed', fail: 'failed', failed: 'failed' }
const reportTask = (task) => {
  if (task.tasks) return task.tasks.forEach(reportTask)
  report(task.name, statuses[task.result?.state])
}
let ended = false
export default class {
  onFinished(files) {
    if (ended) return
    ended = true
    files.forEach(reportTask)
    end()
  }
  onTestRunEnd(modules) {
    if (ended) return
    ended = true
    for (const module of modules)
      for (const test of module.children.allTests())
        report(test.name, statuses[test.result().state])
    end()
  }
}
"""
# A file whose failed test leaves a server running would never end: files get the option to exit,
# if the version has it. Node itself must not get it: it would omit the end of its report.
_NODE = """\
const [major, minor] = process.versions.node.split('.').map(Number)
if (major > 20 || (major === 20 && minor > 13)) process.execArgv.push('--test-force-exit')
export default async function* (events) {
  for await (const { type, data } of events) {
    if ((type !== 'test:pass' && type !== 'test:fail') || data.details?.type === 'suite') continue
    if (data.skip !== undefined || data.todo !== undefined) continue
    report(data.name, type === 'test:pass' ? 'passed' : 'failed')
  }
  end()
}
"""
_REPORTERS: dict[TestRunner, tuple[str, str]] = {
    "jest": ("cjs", f"{_REQUIRED}{_PIPE}{_JEST}"),
    "mocha": ("cjs", f"{_REQUIRED}{_PIPE}{_MOCHA}"),
    "vitest": ("mjs", f"{_IMPORTED}{_PIPE}{_VITEST}"),
    "node": ("mjs", f"{_IMPORTED}{_PIPE}{_NODE}"),
}

# Options that select other tests, report elsewhere or stop early; 1: a value follows.
_DROPPED: dict[TestRunner, dict[str, int]] = {
    "jest": {
        **dict.fromkeys(("-t", "--testNamePattern", "--reporters", "--outputFile"), 1),
        **dict.fromkeys(
            ("--testPathPattern", "--testPathPatterns", "--changedSince", "--shard"), 1
        ),
        **dict.fromkeys(("--json", "--coverage", "--collectCoverage", "--watch", "--watchAll"), 0),
        **dict.fromkeys(("-o", "--onlyChanged", "-f", "--onlyFailures", "--lastCommit", "--ci"), 0),
        **dict.fromkeys(("--findRelatedTests", "--runTestsByPath", "-b", "--bail"), 0),
        **dict.fromkeys(("-u", "--updateSnapshot", "--forceExit"), 0),
    },
    "vitest": {
        **dict.fromkeys(("-t", "--testNamePattern", "--reporter", "--outputFile", "--shard"), 1),
        **dict.fromkeys(("--bail",), 1),
        **dict.fromkeys(("--coverage", "-w", "--watch", "--changed", "-u", "--update", "--ui"), 0),
        **dict.fromkeys(("--run",), 0),
    },
    "mocha": {
        **dict.fromkeys(("-g", "--grep", "-f", "--fgrep", "-R", "--reporter", "--spec"), 1),
        **dict.fromkeys(("-O", "--reporter-option", "--reporter-options"), 1),
        **dict.fromkeys(("-i", "--invert", "-b", "--bail", "-w", "--watch", "--dry-run"), 0),
    },
    "node": {
        **dict.fromkeys(("--test-reporter", "--test-reporter-destination", "--test-shard"), 1),
        **dict.fromkeys(("--test-name-pattern", "--test-skip-pattern"), 1),
        **dict.fromkeys(("--test-only", "--watch", "--experimental-test-coverage"), 0),
    },
}
_FLAGS = {
    *("-i", "--runInBand", "--verbose", "--silent", "--detectOpenHandles", "--passWithNoTests"),
    *("--colors", "--color", "--globals", "--exit", "--recursive", "--parallel", "--check-leaks"),
    *("--test", "--enable-source-maps", "--full-trace", "--inline-diffs", "--expose-gc"),
    *("--experimental-strip-types", "--experimental-vm-modules", "--experimental-modules"),
    *("--experimental-test-module-mocks", "--allow-only", "--typecheck", "--dom", "--diff"),
}
"""Options that take no value."""
_JEST_OPTIONS = "--coverage=false --bail=0 --watchAll=false --ci --forceExit"
_REDIRECTION = re.compile(r"\d*[<>]")


class RunnerInvocation(Record):
    """The command, environment and files that run a probe."""

    command: str
    env: dict[str, str] = {}
    files: dict[str, str] = {}


def invoke_runner(
    request: ProbeRequest, files: list[str], prefix: str, early: str
) -> RunnerInvocation | None:
    """Build the test command for some files, with a reporter of tests whose title has a prefix.

    `early` runs first in each process. Return None if the command cannot be extended.
    """
    command, runner = request.command, request.runner
    suffix, text = _REPORTERS[runner]
    reporter = f"{request.folder}/reporter.{suffix}"
    text = text.replace("__PIPE__", json.dumps(request.pipe))
    text = text.replace("__PREFIX__", json.dumps(prefix))
    if runner == "jest":
        count = len(_JEST_OPTIONS.split()) + 1
        text = write_hiding_script(f"--reporters={reporter}", 0, count) + text
    root = request.root.rstrip("/")
    preload = f"{request.folder}/early.cjs"
    texts = {reporter: text, preload: early}
    probe_files = {path.removeprefix(f"{root}/"): text for path, text in texts.items()}
    env = {"NODE_OPTIONS": f"--require {json.dumps(preload)}"}
    paths = [f"{root}/{file}" for file in files]
    options, selection = _arguments(runner, paths, reporter, prefix)
    calls = [call for call in runner_calls(command) if call.runner == runner]
    if calls:
        for call in reversed(calls):
            command = _rewritten(command, call, options, selection)
        return RunnerInvocation(command=command, env=env, files=probe_files)
    if runner == "node":
        env["NODE_OPTIONS"] += f" {options}"
        changed = add_script_arguments(command, selection)
        return RunnerInvocation(command=changed, env=env, files=probe_files)
    changed = add_script_arguments(command, f"{options} {selection}")
    return (
        None
        if changed == command
        else RunnerInvocation(command=changed, env=env, files=probe_files)
    )


def _arguments(runner: TestRunner, files: list[str], reporter: str, prefix: str) -> tuple[str, str]:
    """Return the options, and the file arguments; jest and vitest match part of a path anywhere."""
    stems = " ".join(PurePosixPath(file).name.partition(".")[0] for file in files)
    paths = " ".join(map(shlex.quote, files))
    path = shlex.quote(reporter)
    match runner:
        case "jest":
            # A list of reporters takes all following words, so an option must come next.
            return f"--reporters={path} {_JEST_OPTIONS}", stems
        case "vitest":
            return f"--run --reporter={path} --coverage.enabled=false --bail=0", stems
        case "mocha":
            # The project's own list of files is added to ours; its tests must not run.
            return f"--reporter {path} --no-bail --exit --fgrep {prefix}", paths
        case _:
            address = f"file://{urllib.parse.quote(reporter)}"
            return f"--test-reporter={address} --test-reporter-destination=stdout", paths


def _rewritten(command: str, call: RunnerCall, options: str, selection: str) -> str:
    """Rewrite one runner call of the line, without its own files and filters."""
    words = _own_words(call)
    end = next((before.end for before, word in pairwise(words) if word.text == "--"), words[-1].end)
    edits = [(start, stop, "") for start, stop in _words_to_drop(command, call, words)]
    if call.runner == "node":
        position = call.words[call.at].end
        edits += [(position, position, f" {options}"), (end, end, f" {selection}")]
    else:
        edits.append((end, end, f" {options} {selection}"))
    pieces, offset = [], 0
    for start, stop, text in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [command[offset:start], text]
        offset = stop
    return "".join((*pieces, command[offset:]))


def _own_words(call: RunnerCall) -> tuple[ShellWord, ...]:
    """Return the runner's words and arguments; Node's options are on both sides of `--test`."""
    names = [word.text.rsplit("/", 1)[-1] for word in call.words]
    if call.runner == "node":
        return call.words[
            next(index for index, name in enumerate(names) if name in ("node", "tsx")) :
        ]
    return call.words[call.at :]


def _words_to_drop(
    command: str, call: RunnerCall, words: tuple[ShellWord, ...]
) -> Iterator[tuple[int, int]]:
    """Yield the spans of files and filters. Words that may be the value of an option are kept."""
    dropped = _DROPPED[call.runner]
    keeps_value = drops_value = False
    for before, word in pairwise(words):
        option, equals, _ = word.text.partition("=")
        if word.text == "--":
            return
        if word.text.startswith("-"):
            drops = option in dropped
            drops_value = drops and not equals and dropped[option] == 1
            keeps_value = not drops and not equals and not _is_flag(option)
        elif _REDIRECTION.match(command[word.start : word.end]):
            drops, drops_value = False, False
            keeps_value = command[word.end - 1] in "<>"
        else:
            drops = drops_value or not (keeps_value or _is_subcommand(call, word.text))
            keeps_value = drops_value = False
        if drops:
            yield before.end, word.end


def _is_flag(option: str) -> bool:
    return option in _FLAGS or option.startswith("--no-")


def _is_subcommand(call: RunnerCall, word: str) -> bool:
    return call.runner == "vitest" and word in ("run", "related", "dev", "watch")


def read_lines(report: bytes) -> list[tuple[str, str]] | None:
    """Return status and title of each test, and status and `#` with label of each assertion.

    None for a report that is truncated or that others wrote to.
    """
    lines = report.decode("utf-8", "replace").split("\n")
    records = read_records(line for line in lines if line.startswith("# "))
    lines = [line for line in lines if not line.startswith("# ")]
    seal, _, begin = lines[0].partition(" ")
    if begin != "begin" or lines[-1] != "" or len(lines) < 3:
        return None
    fields_by_line = [line.split(" ", 2) for line in lines[1:-1]]
    if any(len(fields) != 3 or fields[0] != seal for fields in fields_by_line):
        return None
    *results, (_, ending, count) = fields_by_line
    if records is None or ending != "end" or count != str(len(results)):
        return None
    return [*records, *((status, title) for _, status, title in results)]


_LEADING_COMMENT = re.compile(rb"(?:#![^\n]*\n)?\s*(?:/\*.*?\*/)?", re.DOTALL)
_EXPORTING = re.compile(rb"\bexports\b\s*[.=\[]")
_READS_ITS_NAME = re.compile(
    rb"\bt\.(?:name|fullName|filePath)\b|__filename|import\.meta\.(?:url|filename)"
    rb"|currentTestName|this\.test\b|expect\.getState|\.stack\b|toMatch(?:File)?Snapshot"
)
"""Ways to read a test's title, its file or its lines."""


def build_probe(request: ProbeRequest) -> Probe | None:
    """Build a probe.

    None without the source of a deciding test, or if the command cannot be extended.
    """
    names = NameMaker(f"{request.token} {request.room}")
    files: dict[str, str] = {}
    copies: list[str] = []
    tests: list[ProbeTest] = []
    test_files = read_test_files(request)
    deciding = [(file.path, start) for file in test_files for start in sorted(file.deciding)]
    changed = choose_perturbed(deciding, request.token)
    shared = SharedClaims(test_files, changed, names, request)
    recorder = Recorder(word=random_word(names.rng), pipe=request.pipe)
    changes_by_path = {file.path: _change_tests(file, changed, shared) for file in test_files}
    for test_file in test_files:
        edits, changed_tests = changes_by_path[test_file.path]
        kit = shared.kits[test_file.path]
        controls = list(_make_controls(test_file, names))
        edits += [*shared.list_edits(test_file.path), *(edit for edit, _ in controls)]
        copies.append(names.make_path(test_file.path))
        files |= _render_file(test_file, copies[-1], edits, kit, recorder)
        tests += [*changed_tests, *(control for _, control in controls)]
        if test_file.deciding:
            files[test_file.path] = _lead_to(copies[-1], test_file)
    for path, module in shared.helpers.items():
        if edits := shared.list_edits(path):
            files |= _render_file(module, path, edits, shared.kits[path], recorder)
    names.rng.shuffle(copies)
    invocation = invoke_runner(request, copies, names.prefix, recorder.render_early())
    if invocation is None or not any(test.kind == "copy" for test in tests):
        return None
    return Probe(
        files={**files, **invocation.files},
        command=invocation.command,
        env=invocation.env,
        tests=tuple(tests),
        rooms=ROOMS,
    )


def read_results(report: bytes) -> Results:
    """Read the lines of reporter and assertions; no results if others wrote to the report."""
    results: Results = {}
    statuses = {status: status for status in get_args(Status)}
    for status_text, name in read_lines(report) or ():
        if (status := statuses.get(status_text)) is not None:
            results[name] = status if results.get(name, status) == status else "mixed"
    return results


def _change_tests(
    test_file: ProbedFile, changed: Collection[tuple[str, int]], shared: SharedClaims
) -> tuple[list[SourceEdit], list[ProbeTest]]:
    """Rename all tests of a file and make chosen ones wrong.

    Tests that cannot be copied are dropped.
    """
    kit = shared.kits[test_file.path]
    edits: list[SourceEdit] = []
    tests: list[ProbeTest] = []
    originals = {**test_file.others, **test_file.deciding}
    for declaration in test_file.declarations:
        if declaration.kind == "test" and not declaration.is_fit:
            edits.append(drop_edit(declaration))
            continue
        title, start = kit.names.make_title(), declaration.call.start_byte
        edits += rename_edits(declaration, title)
        if start not in originals:
            continue
        expected, shared_tests = list[ProbeTest](), list[ProbeTest]()
        steady, first = not _sees_its_name(declaration), originals[start][0]
        if (test_file.path, start) in changed:
            claimed = write_claims(declaration, kit)
            edits += claimed.edits
            expected += expect_claims(claimed.claims, first, steady=steady)
            shared_tests += shared.expect_shared(names_in(declaration.call), first, steady=steady)
        # If its last assertion is uncertain, so is the test's result.
        doubt = expected[-1] if expected else None
        copy = ProbeTest(
            name=title,
            kind="copy",
            expect="pass",
            original=first,
            certain=steady and (doubt is None or doubt.certain),
            proved_by=() if doubt is None else doubt.proved_by,
        )
        tests += [copy, *expected, *shared_tests]
        # A table turns one test into several; what a part asserts, the whole asserts too.
        parent_starts = [parent.call.start_byte for parent in declaration.parents]
        wholes = [
            name
            for parent_start in parent_starts
            if (test_file.path, parent_start) in changed
            for name in originals[parent_start]
        ]
        tests += _repeat_for(originals[start][1:], [copy, *expected, *shared_tests])
        tests += _repeat_for(wholes, expected)
    return edits, tests


def _repeat_for(originals: Iterable[str], tests: Iterable[ProbeTest]) -> Iterator[ProbeTest]:
    """Repeat expected results for other tests that depend on the same declaration."""
    for original, test in itertools.product(originals, tests):
        if test.original is not None:
            yield msgspec.structs.replace(test, original=original)


def _render_file(
    module: ScriptModule, path: str, edits: list[SourceEdit], kit: ProbeKit, recorder: Recorder
) -> dict[str, str]:
    """Return a file with its edits, our functions and `@ts-nocheck`, and the file that it needs."""
    content = module.content
    comment = _LEADING_COMMENT.match(content)
    unchecked = insert_text(comment.end() if comment is not None else 0, "// @ts-nocheck\n")
    helper_files: dict[str, str] = {}
    if any(kit.record in edit.text for edit in edits):
        first, helper_files = recorder.bind_in_file(
            kit.record, path, is_module=_is_module(module.root)
        )
        opening = insert_text(_find_first_statement(module.root), first)
        ending = insert_text(len(content), kit.changer.render_source(kit.names.rng))
        edits = [opening, *edits, ending]
    edited = apply_edits(content, [unchecked, *edits])
    return {path: edited.decode("utf-8", "surrogateescape"), **helper_files}


def _sees_its_name(declaration: Declaration) -> bool:
    """Return whether a test may have another result in another file or under another title."""
    return _READS_ITS_NAME.search(declaration.call.text or b"") is not None


def _is_module(root: Node) -> bool:
    return any(child.type in ("import_statement", "export_statement") for child in root.children)


def _find_first_statement(root: Node) -> int:
    """Return where a file's code begins, after comments and `'use strict'`."""
    for child in root.named_children:
        directive = child.named_children[:1] if child.type == "expression_statement" else []
        if child.type not in ("comment", "hash_bang_line") and not any(
            node.type == "string" for node in directive
        ):
            return child.start_byte
    return root.end_byte


def _lead_to(copy: str, test_file: ProbedFile) -> str:
    """Return the text that replaces a test file: it re-exports what the copy exports."""
    module, comment = f"./{PurePosixPath(copy).name}", "// @ts-nocheck\n"
    exports = [child for child in test_file.root.children if child.type == "export_statement"]
    if any(node_text(node).startswith("export default") for node in exports):
        comment += f"export {{ default }} from '{module}'\n"
    if exports:
        return f"{comment}export * from '{module}'\n"
    if _EXPORTING.search(test_file.content):
        return f"{comment}module.exports = require('{module}')\n"
    return comment


def _declares(node: Node, test_file: ProbedFile) -> bool:
    return any(
        node.start_byte <= declaration.call.start_byte < node.end_byte
        for declaration in test_file.declarations
    )


def _make_controls(
    test_file: ProbedFile, names: NameMaker
) -> Iterator[tuple[SourceEdit, ProbeTest]]:
    """Yield tests that must pass or fail whatever the code does, in the file's style of
    assertion."""
    word, other_word = random_word(names.rng), random_word(names.rng)
    bodies: list[tuple[str, Literal["pass", "fail"]]] = [
        (
            assert_equal(
                test_file.assertion, f"'{word}' + '{other_word}'", f"'{word}{other_word}'"
            ),
            "pass",
        ),
        (assert_equal(test_file.assertion, f"'{word}'", f"'{other_word}'"), "fail"),
        (f"throw new Error('{word}')", "fail"),
    ]
    nodes = test_file.root.named_children
    positions = [node.start_byte for node in nodes if _declares(node, test_file)]
    positions.append(len(test_file.content))
    for body, expect in bodies:
        title = names.make_title()
        text = f";{test_file.test_function}('{title}', async () => {{ {body} }});\n"
        control = ProbeTest(name=title, kind="control", expect=expect)
        yield insert_text(names.rng.choice(positions), text), control
