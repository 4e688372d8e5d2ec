"""What Maven's Surefire, Gradle and the JUnit console print, and `dotnet test`."""

from __future__ import annotations

import re

from closeloop.process.failures import source_places
from closeloop.process.failures.failure_collector import FailureCollector, split_by_headers

marks = ("<<< FAILURE!", "<<< ERROR!", "BUILD ", "\nTests run: ", "[ERROR] ", "Failed!  - ")

_SUREFIRE_FAILURE = re.compile(
    r"^(?:\[ERROR\] {1,4})?(\S[^\n]{0,300}?) {1,2}(?:-- )?Time elapsed: [\d.,]+ s(?:ec)? {0,2}"
    r"<<< (?:FAILURE|ERROR)![^\n]*\n",
    re.MULTILINE,
)
_LISTED_FAILURE = re.compile(
    r"^\[ERROR\] {2,4}([\w.$]+\.[\w$]+)(?::\d+)?(?:->[\w.:]+)? (?:» )?([^\n]+)", re.MULTILINE
)
_GRADLE_FAILURE = re.compile(r"^(\S[^\n>]*(?: > [^\n>]+)+) FAILED\n", re.MULTILINE)
_JUNIT_FAILURE = re.compile(r"^\d+\) ([\w$\[\]]+\([\w.$]+\))\n", re.MULTILINE)
_DOTNET_FAILURE = re.compile(r"^ {2}Failed (\S[^\n]*?) \[[^\]\n]*\]\n", re.MULTILINE)
_CLASS_AND_TEST = re.compile(r"([\w$\[\]]+)\(([\w.$]+)\)\Z")
_STACK_FRAME = re.compile(
    r"\n[ \t]+at (?:[\w.@]+/)?([\w.$]+)\((\w+\.(?:java|kt|scala|groovy)):\d+\)"
)
_LIBRARIES = (
    "java.", "jdk.", "sun.", "org.junit.", "org.opentest4j.", "org.apache.maven.", "org.gradle.",
)  # fmt: skip
_FAILED_COUNT = re.compile(r"Tests run: \d+, Failures: (\d+), Errors: (\d+)")


def read_verdict(text: str) -> bool | None:
    tail = "\n" + text[-6000:]
    if "BUILD FAIL" in tail or "<<< FAILURE!" in tail or "\nFailed!  - " in tail:
        return False
    counts = _FAILED_COUNT.findall(tail)
    if any(failures != "0" or errors != "0" for failures, errors in counts):
        return False
    passed = counts or "BUILD SUCCESS" in tail or "\nPassed!  - " in tail
    return True if passed else None


def collect_failures(text: str, found: FailureCollector) -> None:
    for pattern in (_SUREFIRE_FAILURE, _GRADLE_FAILURE, _JUNIT_FAILURE, _DOTNET_FAILURE):
        for header, body in split_by_headers(pattern, text):
            if not header[1].startswith(("Tests run:", "> Task")):
                _add_failure(_test_name(header[1]), body, found)
    if not found.errors:
        for name, message in _LISTED_FAILURE.findall(text):
            found.add_test(name, message)
    if not found.errors:
        source_places.collect_failures(text, found)


def _test_name(title: str) -> str:
    match = _CLASS_AND_TEST.match(title)
    return f"{match[2]}.{match[1]}" if match else title


def _add_failure(name: str, body: str, found: FailureCollector) -> None:
    body = body[:8000]
    message_text = body.partition("Error Message:\n")[2] or body
    found.add_test(name, message_text.lstrip().partition("\n")[0])
    for function, path in _STACK_FRAME.findall("\n" + body):
        if not function.startswith(_LIBRARIES):
            found.add_path(path)
            found.add_symbol(function.rpartition(".")[2])
    found.add_test_name(re.split(r"[.>:]", name)[-1].strip().rstrip("()"))
