"""unsafe-code: an added line opens a security hole: a shell, `eval`, an unverified connection."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from closeloop.changes.quality.changed_file import (
    ChangedFile,
    is_example_file,
    list_changed_files,
    make_check_finding,
)
from closeloop.records.change import Inspection
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.text.wording import INSTALL_CHECK_TOOLS

rules = (
    Rule(
        name="unsafe-code",
        version=1,
        about="An added line runs, loads or trusts unsafe input.",
        severity="warning",
    ),
)

# The reliable ones of ruff's S rules. Not: asserts, passwords by their name (leaked-secret),
# swallowed errors (suppressed-error), imports, programs without a path, audits of every call.
RUFF_RULES = (
    "S102,S103,S113,S201,S202,S301,S302,S306,S307,S321,S323,S324,S501,S502,S503,S504,S505,S506,"
    "S507,S508,S509,S601,S602,S604,S605,S609,S612,S701,S702"
)
RUFF_SECONDS = 30
MAX_FILES = 500
_SCRIPT_PATTERNS = (
    (re.compile(r"(?<![\w.])eval\((?!['\"`)])(?!.*\{$)"), "`eval` runs any code it is given"),
    (re.compile(r"\bnew Function\((?!\))"), "`new Function` runs any code it is given"),
    (
        re.compile(r"(?:\bchild_process\.|\bcp\.|(?<![.\w]))exec(?:Sync)?\(\s*`[^`]*\$\{"),
        "a shell command is built from values: use `execFile` with a list",
    ),
    (re.compile(r"\brejectUnauthorized: *false\b"), "certificates are not verified"),
    (
        re.compile(r"\bNODE_TLS_REJECT_UNAUTHORIZED\b['\"\]]*\s*=\s*['\"]?0"),
        "certificates are not verified",
    ),
)
_GO_PATTERNS = (
    (re.compile(r"\bInsecureSkipVerify: *true\b"), "certificates are not verified"),
    (
        re.compile(
            r"\bexec\.Command\(\"(?:ba)?sh\", *\"-c\", *(?:fmt\.Sprintf|\w+ *\+|\"[^\"]*\" *\+)"
        ),
        "a shell command is built from values: give `exec.Command` a list",
    ),
)
_LANGUAGE_PATTERNS = {
    "javascript": _SCRIPT_PATTERNS,
    "typescript": _SCRIPT_PATTERNS,
    "tsx": _SCRIPT_PATTERNS,
    "go": _GO_PATTERNS,
}


class _RuffLocation(msgspec.Struct):
    row: int


class _RuffDiagnostic(msgspec.Struct):
    code: str | None
    message: str
    filename: str
    location: _RuffLocation


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Check product code only; what the file did before is not reported."""
    files = [
        file
        for file in list_changed_files(inspection, "source")
        if file.after and not is_example_file(file.path)
    ]
    findings: list[Finding | Unmeasured] = [
        check_line for file in files for check_line in _check_lines(file)
    ]
    python = [file for file in files if file.path.endswith((".py", ".pyw"))][:MAX_FILES]
    try:
        findings += _check_with_ruff(python, inspection) if python else ()
    except FileNotFoundError as fault:
        findings.append(Unmeasured(rule=rules[0].name, reason=str(fault)))
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as fault:
        findings.append(Unmeasured(rule=rules[0].name, reason=f"ruff failed: {fault}"[:300]))
    return findings


def _check_lines(file: ChangedFile) -> Iterator[Finding]:
    table = _LANGUAGE_PATTERNS.get(file.after.language, ()) if file.after else ()
    for number in sorted(file.added) if table else ():
        line = file.line_at(number)
        if line.lstrip().startswith(("//", "*", "/*")):
            continue
        for pattern, message in table:
            if pattern.search(line):
                yield make_check_finding(
                    rules[0], f"{message[0].upper()}{message[1:]}.", f"{file.path}:{number}"
                )
                break


def _check_with_ruff(files: Sequence[ChangedFile], inspection: Inspection) -> Iterator[Finding]:
    diagnostics = _run_ruff(files, inspection)
    before = Counter((entry.filename, entry.code) for entry in diagnostics["before"])
    after = Counter((entry.filename, entry.code) for entry in diagnostics["after"])
    for diagnostic in diagnostics["after"]:
        file = files[int(Path(diagnostic.filename).stem)]
        new = (
            after[diagnostic.filename, diagnostic.code]
            > before[diagnostic.filename, diagnostic.code]
        )
        line = diagnostic.location.row
        if new and line in file.added and "nosec" not in file.line_at(line):
            message = diagnostic.message.rstrip(".")
            yield make_check_finding(
                rules[0], f"{message} (ruff {diagnostic.code}).", f"{file.path}:{line}"
            )


def _run_ruff(
    files: Sequence[ChangedFile], inspection: Inspection
) -> dict[str, list[_RuffDiagnostic]]:
    """Run ruff once on both sides and return its diagnostics."""
    with tempfile.TemporaryDirectory(prefix="closeloop-") as name:
        for side in ("before", "after"):
            folder = Path(name, side)
            folder.mkdir()
            for index, file in enumerate(files):
                path = file.old_path if side == "before" else file.path
                content = inspection.sides.read(side, path)
                if content is not None:
                    (folder / f"{index}.py").write_bytes(content)
        command = [find_ruff(), "check", "--isolated", "--no-cache", "--exit-zero", "--quiet"]
        process = subprocess.run(
            [*command, "--output-format", "json", "--select", RUFF_RULES, name],
            capture_output=True,
            timeout=RUFF_SECONDS,
            check=True,
        )
        diagnostics = msgspec.json.decode(process.stdout or b"[]", type=list[_RuffDiagnostic])
    sides: dict[str, list[_RuffDiagnostic]] = {"before": [], "after": []}
    for diagnostic in diagnostics:
        file_path = Path(diagnostic.filename)
        if diagnostic.code and diagnostic.code.startswith("S"):
            sides[file_path.parent.name].append(
                msgspec.structs.replace(diagnostic, filename=file_path.name)
            )
    return sides


def find_ruff() -> str:
    """Return ruff beside our interpreter, or on the path; raise FileNotFoundError if missing."""
    own_ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    program = str(own_ruff) if own_ruff.exists() else shutil.which("ruff")
    if program is None:
        raise FileNotFoundError(f"ruff is not installed: {INSTALL_CHECK_TOOLS}")
    return program
