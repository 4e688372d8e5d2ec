"""What `cargo test` and cargo-nextest print; rustc's errors are read as places."""

from __future__ import annotations

import re

from closeloop.process.failures import places
from closeloop.process.failures.found import Found, is_foreign

marks = ("test result: ", "error: could not compile", "error[E", "panicked at ")

_OUTPUT = re.compile(r"^---- (\S+)(?: - .*)? stdout ----\n", re.MULTILINE)
_NAMED = re.compile(
    r"^(?:test (\S+)(?: - [^\n]*?)? \.\.\. FAILED| +FAIL \[[^\]\n]*\] \S+ (\S+))", re.MULTILINE
)
_PANIC = re.compile(r"panicked at (?:'([^\n]{0,500}?)', )?([^\s:,]+):\d+:\d+:?(?:\n([^\n]+))?")
_FRAME = re.compile(r"\n +\d+: ([^\n]+)\n +at ([^\s:]+):\d+")


def verdict(text: str) -> bool | None:
    if "test result: FAILED" in text or "error: could not compile" in text:
        return False
    return True if "test result: ok" in text else None


def gather(text: str, found: Found) -> None:
    for match in _NAMED.finditer(text):
        name = match[1] or match[2]
        found.test(name)
        found.tested(name.rpartition("::")[2])
    for header, body in _blocks(text):
        _failure(header, body, found)
    if not found.errors and "error" in text:
        places.gather(text, found)
    if not found.errors and (panic := _PANIC.search(text)):
        found.test(f"{panic[2]}: panic", panic[1] or panic[3] or "")
        found.path(panic[2])


def _blocks(text: str) -> list[tuple[str, str]]:
    pieces = _OUTPUT.split(text)
    return list(zip(pieces[1::2], pieces[2::2], strict=False))


def _failure(name: str, body: str, found: Found) -> None:
    body = body.partition("\n\n\nfailures:")[0]
    panic = _PANIC.search(body)
    if panic is None:
        error = re.search(r"^Error: .*", body, re.MULTILINE)
        found.test(name, error[0] if error else "")
        return
    found.test(name, panic[1] or panic[3] or "")
    for function, path in _FRAME.findall(body[:8000]):
        if not is_foreign(path):
            found.path(path.removeprefix("./"))
            found.symbol(function.replace("::{{closure}}", "").rpartition("::")[2])
    found.path(panic[2])
    found.tested(name.rpartition("::")[2])
