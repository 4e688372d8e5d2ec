"""How tests are written in many languages, told line by line; each line without its indentation."""

from __future__ import annotations

import re

SKIPPED_TEST = re.compile(
    r"@(?:pytest\.mark\.|unittest\.)?(?:skip|xfail|expectedFailure)\b(?!if|If|Unless)"
    r"|^(?:self\.skipTest|pytest\.(?:skip|xfail))\(|^t\.Skip(?:f|Now)?\("
    r"|\b(?:it|test|describe|context)\.(?:skip|only|todo)\((?!\s*(?:!|\(|process\b|\w+ [!=]==? ))"
    r"|^(?:xit|xtest|xdescribe|fit|fdescribe)\("
    r"|^#\[ignore|^@(?:Disabled|Ignore)\b|markTest(?:Skipped|Incomplete)\("
)
ASSERTION = re.compile(
    r"^(?:await )?(?:assert\b|self\.assert|self\.fail|expect\(|assert[A-Z_(!.]"
    r"|t\.(?:Error|Fatal)|require\.)"
    r"|\bpytest\.raises\("
)
WEAK_ASSERTION = re.compile(
    r"^assert (?:True|1)\b|assertTrue\(True\)|(?:is not None|assertIsNotNone\(|toBeDefined\(\)"
    r"|toBeTruthy\(\)|not\.toBeNull\(\)|toBeInstanceOf\(|isinstance\()"
)
TEST_START = re.compile(
    r"^(?:async )?def (test\w*)|^func (Test\w+)|^fn (test\w*)"
    r"|^(?:it|test)\(\s*['\"`]([^'\"`]{3,80})"
)
COVERAGE_FLOOR = re.compile(
    r"\b(fail_under|cov-fail-under|branches|functions|lines|statements|minimum_coverage)\b"
    r"\W{1,5}(\d+(?:\.\d+)?)"
)


def starting_test(line: str) -> str | None:
    """The test that begins on this line."""
    match = TEST_START.match(line)
    return next((group for group in match.groups() if group), None) if match else None
