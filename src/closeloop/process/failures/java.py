"""What Maven's Surefire, Gradle and the JUnit console print, and `dotnet test`."""

from __future__ import annotations

import re

from closeloop.process.failures import places
from closeloop.process.failures.found import Found, parts

marks = ("<<< FAILURE!", "<<< ERROR!", "BUILD ", "\nTests run: ", "[ERROR] ", "Failed!  - ")

_SUREFIRE = re.compile(
    r"^(?:\[ERROR\] {1,4})?(\S[^\n]{0,300}?) {1,2}(?:-- )?Time elapsed: [\d.,]+ s(?:ec)? {0,2}"
    r"<<< (?:FAILURE|ERROR)![^\n]*\n",
    re.MULTILINE,
)
_LISTED = re.compile(
    r"^\[ERROR\] {2,4}([\w.$]+\.[\w$]+)(?::\d+)?(?:->[\w.:]+)? (?:» )?([^\n]+)", re.MULTILINE
)
_GRADLE = re.compile(r"^(\S[^\n>]*(?: > [^\n>]+)+) FAILED\n", re.MULTILINE)
_JUNIT = re.compile(r"^\d+\) ([\w$\[\]]+\([\w.$]+\))\n", re.MULTILINE)
_DOTNET = re.compile(r"^ {2}Failed (\S[^\n]*?) \[[^\]\n]*\]\n", re.MULTILINE)
_CLASS_AND_TEST = re.compile(r"([\w$\[\]]+)\(([\w.$]+)\)\Z")
_FRAME = re.compile(r"\n[ \t]+at (?:[\w.@]+/)?([\w.$]+)\((\w+\.(?:java|kt|scala|groovy)):\d+\)")
_LIBRARIES = (
    "java.", "jdk.", "sun.", "org.junit.", "org.opentest4j.", "org.apache.maven.", "org.gradle.",
)  # fmt: skip
_FAILED_COUNT = re.compile(r"Tests run: \d+, Failures: (\d+), Errors: (\d+)")


def verdict(text: str) -> bool | None:
    tail = "\n" + text[-6000:]
    if "BUILD FAIL" in tail or "<<< FAILURE!" in tail or "\nFailed!  - " in tail:
        return False
    counts = _FAILED_COUNT.findall(tail)
    if any(failures != "0" or errors != "0" for failures, errors in counts):
        return False
    passed = counts or "BUILD SUCCESS" in tail or "\nPassed!  - " in tail
    return True if passed else None


def gather(text: str, found: Found) -> None:
    for pattern in (_SUREFIRE, _GRADLE, _JUNIT, _DOTNET):
        for header, body in parts(pattern, text):
            if not header[1].startswith(("Tests run:", "> Task")):
                _failure(_name(header[1]), body, found)
    if not found.errors:
        for name, message in _LISTED.findall(text):
            found.test(name, message)
    if not found.errors:
        places.gather(text, found)


def _name(title: str) -> str:
    match = _CLASS_AND_TEST.match(title)
    return f"{match[2]}.{match[1]}" if match else title


def _failure(name: str, body: str, found: Found) -> None:
    body = body[:8000]
    said = body.partition("Error Message:\n")[2] or body
    found.test(name, said.lstrip().partition("\n")[0])
    for function, path in _FRAME.findall("\n" + body):
        if not function.startswith(_LIBRARIES):
            found.path(path)
            found.symbol(function.rpartition(".")[2])
    found.tested(re.split(r"[.>:]", name)[-1].strip().rstrip("()"))
