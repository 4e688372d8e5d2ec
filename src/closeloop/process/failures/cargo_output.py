"""What `cargo test` and cargo-nextest print; rustc's errors are read as places."""

from __future__ import annotations

import re

from closeloop.process.failures import source_places
from closeloop.process.failures.failure_collector import FailureCollector, is_foreign_path

marks = ("test result: ", "error: could not compile", "error[E", "panicked at ")

_OUTPUT_HEADER = re.compile(r"^---- (\S+)(?: - .*)? stdout ----\n", re.MULTILINE)
_FAILED_TEST = re.compile(
    r"^(?:test (\S+)(?: - [^\n]*?)? \.\.\. FAILED| +FAIL \[[^\]\n]*\] \S+ (\S+))", re.MULTILINE
)
_PANIC = re.compile(r"panicked at (?:'([^\n]{0,500}?)', )?([^\s:,]+):\d+:\d+:?(?:\n([^\n]+))?")
_STACK_FRAME = re.compile(r"\n +\d+: ([^\n]+)\n +at ([^\s:]+):\d+")


def read_verdict(text: str) -> bool | None:
    if "test result: FAILED" in text or "error: could not compile" in text:
        return False
    return True if "test result: ok" in text else None


def collect_failures(text: str, found: FailureCollector) -> None:
    for match in _FAILED_TEST.finditer(text):
        name = match[1] or match[2]
        found.add_test(name)
        found.add_test_name(name.rpartition("::")[2])
    for header, body in _output_blocks(text):
        _add_failure(header, body, found)
    if not found.errors and "error" in text:
        source_places.collect_failures(text, found)
    if not found.errors and (panic := _PANIC.search(text)):
        found.add_test(f"{panic[2]}: panic", panic[1] or panic[3] or "")
        found.add_path(panic[2])


def _output_blocks(text: str) -> list[tuple[str, str]]:
    pieces = _OUTPUT_HEADER.split(text)
    return list(zip(pieces[1::2], pieces[2::2], strict=False))


def _add_failure(name: str, body: str, found: FailureCollector) -> None:
    body = body.partition("\n\n\nfailures:")[0]
    panic = _PANIC.search(body)
    if panic is None:
        error = re.search(r"^Error: .*", body, re.MULTILINE)
        found.add_test(name, error[0] if error else "")
        return
    found.add_test(name, panic[1] or panic[3] or "")
    for function, path in _STACK_FRAME.findall(body[:8000]):
        if not is_foreign_path(path):
            found.add_path(path.removeprefix("./"))
            found.add_symbol(function.replace("::{{closure}}", "").rpartition("::")[2])
    found.add_path(panic[2])
    found.add_test_name(name.rpartition("::")[2])
