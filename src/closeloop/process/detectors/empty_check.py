"""Everything that ran after the last change could not fail, but is taken as proof.

## What it looks for

The end of the root lane. Code was changed, something ran after the last change, and none of it can
show whether the change is right:

- **No test is called**: a test file runs as a plain Python script, prints nothing and ends. It
  defines tests but does not call them.
- **The output is the same as before**: a script of the agent also ran before the first change, was
  not changed since, and prints the same lines. It does not show the fault, or the fault still
  exists. Tests that passed before and pass again are fine.
- **The project is not used**: a script of the agent imports only the standard library, opens no
  file and starts no program. It tests a copy of the logic, or only prints. A script that the user
  names, or that is the only code in the session, is itself the requested code.
- **No value is shown**: a script of the agent calls the code but neither compares nor prints the
  result, and the request is not about a crash. A picture that is saved but not opened shows no
  value.

The agent then hands over without expressing doubt, or continues with something else, and makes no
new edit.

Nothing is reported if anything else ran after the last change (a check, a tool or a sub-agent), if
the agent then opened a file that the script may have written, if the text of the script is not
recorded, or if the agent says that it did not test its work.

## Why it matters

Such a run is always green. It hides from the agent and from the reader of its report that nothing
was tested.

## Bad

```text
#4  edit shop/cart.py
#5  python tests/test_cart.py     (prints nothing, exit code 0)
#6  "The tests pass: the total is right now."
```

## Good

```text
#4  edit shop/cart.py
#5  python -m pytest tests/test_cart.py     8 passed
#6  "The tests pass: the total is right now."
```

## When it can be measured

In every trace with events. Only Python scripts are examined.

## Thresholds and silencing

It has no thresholds.

```toml
[[silence]]
rule = "empty-check"
task = "sketch-*"
reason = "these are only to show the way"
```

## How sure it is

It may gate.
"""

from __future__ import annotations

import ast
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from closeloop.process.agent_claims import MAX_MESSAGE_CHARS, admits_problem, ends_work
from closeloop.process.check_commands import ShellCommand, split_commands
from closeloop.process.check_results import LOOK_PROGRAMS, prints_all_the_same, prints_nothing
from closeloop.process.edit_contents import (
    find_created_files,
    is_source_path,
    is_test_source,
    list_code_changes,
    list_file_edits,
)
from closeloop.process.rule_helpers import truncate_line
from closeloop.process.verification import EVENT_NUMBER, find_backing, is_run
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Command, Edit, Handoff, Message
from closeloop.text.wording import compile_lazily

rule = Rule(
    name="empty-check",
    version=6,
    about="Everything that ran after the last change could not fail, but is taken as proof.",
    severity="error",
    gates=True,
)

MAX_SCRIPT_CHARS = 20_000
"""Longer scripts are not examined."""
MAX_REQUEST_CHARS = 12_000
MAX_CITED = 5
MAX_RUNS = 20
"""Runs that are compared with later changes of their script."""
_NO_CALL = "it defines functions or classes without calling them"
_NOTHING_USED = "it does not use the project's code"
_NO_VALUE = "it prints no value and compares nothing: only an exception could make it fail"
_SAME_AS_BEFORE = "it prints the same as before the code was changed"
_SHOWING_CALL = compile_lazily(
    r"^(?:print|pprint|write\w*|save\w*|dump\w*|exit|_exit|main|run\w*|test\w*|check\w*|verify\w*"
    r"|assert\w*|show_\w+|execute\w*|call\w*|exec|eval|doctest|log|info|debug|warning|error)$"
)
"""Calls that may show or compare a value."""
_PICTURE_CALLS = frozenset(("savefig", "imsave"))
"""They create a picture, which nobody has seen if the agent opens no file."""
_CRASH = compile_lazily(
    r"Traceback|\b\w+(?:Error|Exception|Warning)\b|\b(?:crash|rais(?:es?|ed|ing)|throws?|exception"
    r"|fails?\b|cannot|can't|unable|not allowed|not accept|unexpected keyword|doesn't work)\w*"
)
"""A request about a crash, for which a run that ends shows something."""
_INLINE_CODE = compile_lazily(
    r"\b(?:python[\d.]*|node|ruby|php|perl)\s+(?:-\w+\s+)*(?:-[ce]\b|-?\s*<<)"
)
_STILL_THERE = compile_lazily(
    r"\b(?:still (?:shows?|prints?|gets?|sees?|there|wrong|the same)|persists?"
    r"|(?:can't|cannot|could not|couldn't) (?:\w+ )?(?:confirm|verify|test|see|check))\b"
)
_TEST_RESULTS = compile_lazily(r"\bRan \d+ tests?\b|\b\d+ (?:passed|passing)\b")
_IMPORTED = compile_lazily(r"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)
_REACHING_MODULES = frozenset((
    "subprocess", "importlib", "runpy", "socket", "urllib", "http", "ctypes", "pathlib", "glob",
    "shutil", "unittest", "doctest", "multiprocessing", "pkgutil", "fileinput", "sqlite3", "ftplib",
    "smtplib", "xmlrpc", "imp", "zipfile", "tarfile", "py_compile", "compileall",
))  # fmt: skip
"""Standard library modules by which a script may reach the project after all."""
_REACHING_NAMES = frozenset((
    "open", "exec", "eval", "__import__", "compile", "input",
    ".system", ".popen", ".stdin", ".argv", ".execv", ".execvp", ".spawnv", ".walk", ".listdir",
))  # fmt: skip


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report if nothing that ran since the root's last change can fail."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    exit_ = reading.attempt.exit if reading.attempt else None
    if exit_ not in (None, "finished") or not reading.lanes:
        return []
    root = next(iter(reading.lanes.values()))
    backing = find_backing(list_code_changes(root), ())
    if backing is None:
        return []
    runs = _list_runs(root, backing.last)
    reason = _explain_all(root, runs, backing.first) if runs else None
    if reason is None or not _goes_on(root, runs):
        return []
    return [
        make_finding(
            rule,
            f"`{_name_command(runs[-1])}` is all that ran after the last change, and {reason}.",
            [backing.last.number, *(step.number for step in runs[-MAX_CITED:])],
            lane=root.lane.id,
            confidence=0.9,
        )
    ]


def _name_command(step: TraceStep) -> str:
    return truncate_line(step.event.command) if isinstance(step.event, Command) else ""


def _list_runs(root: LaneReading, change: TraceStep) -> Sequence[TraceStep]:
    """Return everything that may have tried the code since then."""
    start = bisect_right(root.steps, change.number, key=EVENT_NUMBER)
    return [
        step
        for step in root.steps[start:]
        if isinstance(step.event, Handoff)
        or (is_run(step) and not _is_cut_off(step) and not ends_work(step.event))
    ]


def _is_cut_off(step: TraceStep) -> bool:
    """Whether the recording ends before its result."""
    return isinstance(step.event, Command) and step.event.output is None


def _explain_all(root: LaneReading, runs: Sequence[TraceStep], change: TraceStep) -> str | None:
    """Return why none of the runs can fail, for the last one; None if one may."""
    earlier = _runs_before(root, change)
    reason = None
    for step in runs:
        if step.failed and len(runs) <= MAX_RUNS and _is_script_changed(root, step, runs[-1]):
            # An error in the script itself may have made it fail: the final version is another
            # script.
            continue
        reason = _find_unchanged(root, step, earlier) or _explain_emptiness(root, step)
        if reason is None:
            return None
    return reason


def _runs_before(root: LaneReading, change: TraceStep) -> Mapping[str, TraceStep]:
    """Return the last runs before the first code change, by what they run."""
    end = bisect_left(root.commands, change.number, key=EVENT_NUMBER)
    return {_name_target(step): step for step in root.commands[:end] if is_run(step)}


def _name_target(step: TraceStep) -> str:
    if step.check is not None:
        return step.check.target
    return " ".join(step.event.command.split()) if isinstance(step.event, Command) else ""


def _find_unchanged(
    root: LaneReading, step: TraceStep, earlier: Mapping[str, TraceStep]
) -> str | None:
    """Whether the agent's own script printed the same before, and the agent ends with a message or
    call."""
    before = earlier.get(_name_target(step))
    if before is None or step.failed or before.failed or not _is_own_script(root, step):
        return None
    if not _hands_over_after(root, step):
        return None
    if not prints_all_the_same(before, step) or _prints_test_results(step):
        return None
    return None if _is_script_changed(root, before, step) else _SAME_AS_BEFORE


def _hands_over_after(root: LaneReading, step: TraceStep) -> bool:
    """Whether it ends by a message, or by the tool that ends the work."""
    return ends_work(root.steps[-1].event) or any(
        message.role == "agent" and message.number > step.number for message in root.messages
    )


def _is_script_changed(root: LaneReading, before: TraceStep, after: TraceStep) -> bool:
    """Whether the script under this name was changed in between."""
    scripts = {name.rpartition("/")[2] for name in (after.effect.runs if after.effect else ())}
    begin = bisect_right(root.changes, before.number, key=EVENT_NUMBER)
    end = bisect_left(root.changes, after.number, key=EVENT_NUMBER)
    return any(
        path.rpartition("/")[2] in scripts
        for step in root.changes[begin:end]
        if step.changed
        for path in step.written
    )


def _prints_test_results(step: TraceStep) -> bool:
    """Whether it prints test results: tests that passed before should pass again."""
    output = step.event.output if isinstance(step.event, Command) else None
    return _TEST_RESULTS.search(output or "") is not None


def _is_own_script(root: LaneReading, step: TraceStep) -> bool:
    scripts = step.effect.runs if step.effect else ()
    created = {path.rpartition("/")[2] for path in find_created_files(root.changes)}
    if scripts:
        return created.issuperset(name.rpartition("/")[2] for name in scripts)
    return isinstance(step.event, Command) and _INLINE_CODE.search(step.event.command) is not None


def _goes_on(root: LaneReading, runs: Sequence[TraceStep]) -> bool:
    """Whether the agent hands over without doubt or continues, without a new edit and without
    reading what the script may have created.
    """
    later = root.steps[runs[-1].index + 1 :]
    if any(isinstance(step.event, Edit) or _opens_product(step, runs[-1]) for step in later):
        return False
    messages = [
        message
        for message in root.messages
        if message.role == "agent" and message.number > runs[0].number
    ]
    if not messages:
        last = root.steps[-1]
        return ends_work(last.event) or last.index > runs[0].index + 1
    return not _has_doubt(messages[-1]) and not any(
        _STILL_THERE.search(message.text[:MAX_MESSAGE_CHARS].lower()) for message in messages
    )


def _opens_product(step: TraceStep, run: TraceStep) -> bool:
    """Whether it shows a file that the script may have created: not source code, or named in its
    output."""
    output = run.event.output if isinstance(run.event, Command) else None
    names = [path.rpartition("/")[2] for path in step.read if "." in path]
    return any(not is_source_path(name) or name in (output or "") for name in names)


def _has_doubt(message: Message) -> bool:
    lower_text = message.text[:MAX_MESSAGE_CHARS].lower()
    is_question = message.intent == "question" or lower_text.rstrip().endswith("?")
    return is_question or admits_problem(lower_text)


def _explain_emptiness(root: LaneReading, step: TraceStep) -> str | None:
    """Return why the run cannot fail; None if it may."""
    event = step.event
    if not isinstance(event, Command) or step.effect is None or step.failed or event.stopped:
        return None
    programs = {name for name in step.effect.programs if name not in LOOK_PROGRAMS}
    if programs != {"python"} or {*step.effect.checks} > {"script"}:
        return None
    reason = None
    for part in split_commands(event.command):
        if _is_python(part):
            reason = _explain_part(root, step, part)
            if reason is None:
                return None
    return reason


def _is_python(part: ShellCommand) -> bool:
    name = part.words[0].rpartition("/")[2] if part.words else ""
    return name.rstrip(".0123456789") == "python"


def _explain_part(root: LaneReading, step: TraceStep, part: ShellCommand) -> str | None:
    arguments = [argument for argument in part.words[1:] if argument not in ("-u", "-B", "-")]
    if arguments[:1] == ["-c"]:
        return _explain_text(root, step, arguments[1]) if len(arguments) > 1 else None
    if not arguments:
        return _explain_text(root, step, part.body) if part.body else None
    path = arguments[0]
    if not path.endswith(".py"):
        return None
    name = path.rpartition("/")[2]
    if name not in {
        created_file.rpartition("/")[2] for created_file in find_created_files(root.changes)
    }:
        silent = is_test_source(path) and len(arguments) == 1 and prints_nothing(step)
        return _NO_CALL if silent else None
    code = _find_script(root, step, name)
    if code is None:
        return None
    if prints_nothing(step) and "__main__" not in code and _only_defines(code):
        return _NO_CALL
    return None if _is_product(root, name) else _explain_text(root, step, code)


def _is_product(root: LaneReading, name: str) -> bool:
    """Whether a created script is what the user wanted: the user names it, or it is the only code
    of the session."""
    requests = (root.request, *(message.text for message in root.users))
    if any(_names_file(request[:MAX_REQUEST_CHARS], name) for request in requests if request):
        return True
    paths = {path for step in root.steps for path in (*step.written, *step.read)}
    return all(path.rpartition("/")[2] == name for path in paths if is_source_path(path))


def _names_file(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None


def _explain_text(root: LaneReading, step: TraceStep, code: str) -> str | None:
    if reason := _explain_code(code):
        return reason
    if not _shows_no_value(code) or _CRASH.search((root.request or "")[:MAX_REQUEST_CHARS]):
        return None
    if not prints_nothing(step) and "print(" not in code:
        return None
    target = _name_target(step)
    # Failures before it was rewritten are those of another script.
    failed_before = any(
        _name_target(failing_step) == target and not _is_script_changed(root, failing_step, step)
        for failing_step in root.failing[-MAX_RUNS:]
        if failing_step.number < step.number
    )
    return None if failed_before else _NO_VALUE


def _shows_no_value(code: str) -> bool:
    """Whether it calls the project without comparing, writing or printing the result."""
    tree = _parse_code(code)
    if tree is None or not tree.body or not _REACHING_NAMES.isdisjoint(_names_used(tree)):
        return False
    own_functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return not any(_may_show(node, own_functions) for node in ast.walk(tree))


def _may_show(node: ast.AST, own_functions: set[str]) -> bool:
    """Whether a value is compared, printed or written here; the script's own functions do not
    count."""
    if isinstance(node, ast.Assert | ast.Raise | ast.Try | ast.With | ast.While):
        return True
    if isinstance(node, ast.If):
        return "__name__" not in ast.unparse(node.test)
    if isinstance(node, ast.Import | ast.ImportFrom):
        modules = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        return any(name.partition(".")[0] in _REACHING_MODULES for name in modules)
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    name = node.func.id if isinstance(node.func, ast.Name) else name
    if name in ("print", "pprint"):
        return not all(isinstance(arg, ast.Constant) for arg in node.args)
    return (
        _SHOWING_CALL.search(name) is not None
        and name not in own_functions
        and name not in _PICTURE_CALLS
    )


def _find_script(root: LaneReading, run: TraceStep, name: str) -> str | None:
    """Return a script's text when it was run, if the trace contains all of it."""
    text: str | None = None
    for step in root.changes:
        if step.number > run.number:
            break
        if not step.changed:
            continue
        for path, edit in list_file_edits(step):
            if path.rpartition("/")[2] != name:
                continue
            if edit.action == "create":
                text = edit.after
            elif text is not None and edit.before and edit.after is not None:
                text = text.replace(edit.before, edit.after, 1) if edit.before in text else None
            else:
                text = None
    return text


@lru_cache(maxsize=256)
def _parse_code(code: str) -> ast.Module | None:
    try:
        return ast.parse(code) if len(code) <= MAX_SCRIPT_CHARS else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _only_defines(code: str) -> bool:
    """Whether it contains tests and no statement that runs them."""
    tree = _parse_code(code)
    if tree is None:
        return False
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    quiet = (*kinds, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    return any(isinstance(node, kinds) for node in tree.body) and all(
        isinstance(node, quiet)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in tree.body
    )


def _explain_code(code: str) -> str | None:
    if any(map(_uses_module, _IMPORTED.findall(code))):
        return None
    tree = _parse_code(code)
    if tree is None or not tree.body or any(map(_reaches_out, _names_used(tree))):
        return None
    return _NOTHING_USED


def _names_used(tree: ast.Module) -> Iterator[str]:
    """Yield imported modules (`re.`), names (`open`), and attributes (`.system`)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"{name.name.partition('.')[0]}." for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{(node.module or '').partition('.')[0]}." if not node.level else "."
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield f".{node.attr}"


def _reaches_out(name: str) -> bool:
    """Whether a script may use the project through this name."""
    return _uses_module(name[:-1]) if name.endswith(".") else name in _REACHING_NAMES


def _uses_module(name: str) -> bool:
    return name not in sys.stdlib_module_names or name in _REACHING_MODULES
