"""Run some files with jest, vitest, mocha or Node's own runner, by a reporter of ours.

Reporters write lines of plain text to a named pipe. Each line begins with a seal that the reporter
made up when it was loaded, before any code under test: nothing else in the process knows it, and
it is in no file. They keep what they need of the language, as code under test may replace it.
A test that was skipped is not reported: it neither passed nor failed.

Assertions report by themselves, from whatever process or sandbox they run in, by lines that begin
with `#`. Others can write such lines too, but nobody knows what to write: an assertion that must
fail looks like one that must hold.
"""

from __future__ import annotations

import json
import re
import shlex
import urllib.parse
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePosixPath

from closeloop.grading.integrity.javascript_recorder import read_records
from closeloop.grading.integrity.probe import ProbeRequest
from closeloop.grading.testing.runner_instrumentation import (
    RunnerCall,
    ShellWord,
    add_script_arguments,
    runner_calls,
    write_hiding_script,
)
from closeloop.records.record import Record
from closeloop.records.task import TestRunner

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
# The older interface hands over tasks, the newer one test cases; some versions call both.
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
# A file whose failed test leaves a server behind would never end: files are told to end, where
# they understand it. Node itself must not be: then it forgets the end of its report.
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

# Options that choose other tests, report elsewhere or stop early; 1: with a value behind them.
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
"""Options behind which no value stands."""
_JEST_OPTIONS = "--coverage=false --bail=0 --watchAll=false --ci --forceExit"
_REDIRECTION = re.compile(r"\d*[<>]")


class RunnerInvocation(Record):
    """How a probe is run."""

    command: str
    env: dict[str, str] = {}
    files: dict[str, str] = {}


def invoke_runner(
    request: ProbeRequest, files: list[str], prefix: str, early: str
) -> RunnerInvocation | None:
    """The test command for some files alone, with a reporter of tests whose title has a prefix.

    `early` runs first in each process. None for a command that gives no place to say so.
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
    written = {path.removeprefix(f"{root}/"): text for path, text in texts.items()}
    env = {"NODE_OPTIONS": f"--require {json.dumps(preload)}"}
    paths = [f"{root}/{file}" for file in files]
    options, chosen = _arguments(runner, paths, reporter, prefix)
    calls = [call for call in runner_calls(command) if call.runner == runner]
    if calls:
        for call in reversed(calls):
            command = _rewritten(command, call, options, chosen)
        return RunnerInvocation(command=command, env=env, files=written)
    if runner == "node":
        env["NODE_OPTIONS"] += f" {options}"
        changed = add_script_arguments(command, chosen)
        return RunnerInvocation(command=changed, env=env, files=written)
    changed = add_script_arguments(command, f"{options} {chosen}")
    return None if changed == command else RunnerInvocation(command=changed, env=env, files=written)


def _arguments(runner: TestRunner, files: list[str], reporter: str, prefix: str) -> tuple[str, str]:
    """Options, and what names the files: jest and vitest find a part of a path anywhere."""
    stems = " ".join(PurePosixPath(file).name.partition(".")[0] for file in files)
    paths = " ".join(map(shlex.quote, files))
    path = shlex.quote(reporter)
    match runner:
        case "jest":
            # A list of reporters takes all words behind it, so that an option must follow.
            return f"--reporters={path} {_JEST_OPTIONS}", stems
        case "vitest":
            return f"--run --reporter={path} --coverage.enabled=false --bail=0", stems
        case "mocha":
            # A project's own list of files is added to ours: its tests are not to run.
            return f"--reporter {path} --no-bail --exit --fgrep {prefix}", paths
        case _:
            address = f"file://{urllib.parse.quote(reporter)}"
            return f"--test-reporter={address} --test-reporter-destination=stdout", paths


def _rewritten(command: str, call: RunnerCall, options: str, chosen: str) -> str:
    """The line with one call of a runner changed: its own files and filters left out."""
    words = _own_words(call)
    end = next((before.end for before, word in pairwise(words) if word.text == "--"), words[-1].end)
    edits = [(start, stop, "") for start, stop in _words_to_drop(command, call, words)]
    if call.runner == "node":
        place = call.words[call.at].end
        edits += [(place, place, f" {options}"), (end, end, f" {chosen}")]
    else:
        edits.append((end, end, f" {options} {chosen}"))
    pieces, at = [], 0
    for start, stop, text in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [command[at:start], text]
        at = stop
    return "".join((*pieces, command[at:]))


def _own_words(call: RunnerCall) -> tuple[ShellWord, ...]:
    """The runner and what it is told; the options of Node stand on both sides of `--test`."""
    names = [word.text.rsplit("/", 1)[-1] for word in call.words]
    if call.runner == "node":
        return call.words[next(at for at, name in enumerate(names) if name in ("node", "tsx")) :]
    return call.words[call.at :]


def _words_to_drop(
    command: str, call: RunnerCall, words: tuple[ShellWord, ...]
) -> Iterator[tuple[int, int]]:
    """Spans of files and of filters. What may be the value of an option stays."""
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
    """Status and title of each test, status and `#` with label of each assertion.

    None for a report that is cut off, or that others wrote to.
    """
    lines = report.decode("utf-8", "replace").split("\n")
    held = read_records(line for line in lines if line.startswith("# "))
    lines = [line for line in lines if not line.startswith("# ")]
    seal, _, begin = lines[0].partition(" ")
    if begin != "begin" or lines[-1] != "" or len(lines) < 3:
        return None
    words = [line.split(" ", 2) for line in lines[1:-1]]
    if any(len(line) != 3 or line[0] != seal for line in words):
        return None
    *results, (_, ending, count) = words
    if held is None or ending != "end" or count != str(len(results)):
        return None
    return [*held, *((status, title) for _, status, title in results)]
