"""repo-rule: an added line violates a written rule of this repository."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from closeloop.changes.file_kinds import language_of
from closeloop.changes.quality.changed_file import (
    ChangedFile,
    list_changed_files,
    make_check_finding,
)
from closeloop.records.change import Inspection, Language
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.settings import RepoRule
from closeloop.text.wording import INSTALL_CHECK_TOOLS, matches_globs

if TYPE_CHECKING:
    from ast_grep_py import SgNode

rules = (
    Rule(
        name="repo-rule",
        version=1,
        about="An added line violates a rule of the repository.",
        severity="warning",
    ),
)

_LANGUAGES_BY_ENDING = {
    "c": "c", "h": "c", "cc": "cpp", "cpp": "cpp", "hpp": "cpp", "cs": "csharp", "css": "css",
    "ex": "elixir", "exs": "elixir", "hs": "haskell", "html": "html", "json": "json",
    "kt": "kotlin", "lua": "lua", "nix": "nix", "php": "php", "rb": "ruby", "scala": "scala",
    "sh": "bash", "sol": "solidity", "swift": "swift", "tf": "hcl", "yaml": "yaml", "yml": "yaml",
}  # fmt: skip
LANGUAGES = frozenset({*_LANGUAGES_BY_ENDING.values(), *get_args(Language)})
"""Languages that ast-grep parses; it panics on any other."""
_CAUSE = re.compile(r"\s*(?:\d+:|error:) *(\S.*)")
MAX_FINDINGS = 20
"""Maximum findings of one rule in one file."""
MAX_TEXT_CHARS = 2_000_000


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Apply each rule to the added lines of the files it covers."""
    findings: list[Finding | Unmeasured] = []
    if not inspection.settings.rules:
        return findings
    files = list(list_changed_files(inspection))
    for rule in inspection.settings.rules:
        reason = unusable_reason(rule)
        if reason:
            findings.append(Unmeasured(rule=rules[0].name, reason=f"{rule.name}: {reason}"))
            continue
        for file in files:
            if not rule.paths or matches_globs(file.path, rule.paths):
                lines = sorted(set(find_matches(rule, file)))[:MAX_FINDINGS]
                findings += [_rule_finding(rule, file.path, line) for line in lines]
    return findings


def _rule_finding(rule: RepoRule, path: str, line: int) -> Finding:
    message = f"{rule.message.rstrip('.')} ({rule.name})."
    return make_check_finding(rules[0], message, f"{path}:{line}", severity=rule.severity)


def unusable_reason(rule: RepoRule) -> str | None:
    """Return why the rule cannot be applied; None if it can."""
    if (rule.pattern is None) == (rule.text is None):
        return "give it either a `pattern` or a `text`"
    if rule.language is not None and rule.language not in LANGUAGES:
        return (
            f"the language {rule.language!r} is not supported: use {', '.join(sorted(LANGUAGES))}"
        )
    try:
        if rule.text is not None:
            _matches_regex(rule.text, "")
        if rule.pattern is not None:
            _parse_root("", rule.language or "python").find_all(pattern=rule.pattern)
    except ImportError:
        return f"ast-grep is not installed: {INSTALL_CHECK_TOOLS}"
    except RuntimeError as error:
        return f"it cannot be read: {_last_cause(str(error))}"
    return None


def _last_cause(complaint: str) -> str:
    """Return the library's error message from a chain of causes that ends in a backtrace."""
    lines = complaint.partition("Stack backtrace:")[0].strip().split("\n")
    causes = [match[1] for line in lines if (match := _CAUSE.match(line))]
    return (causes or lines)[-1][:200].rstrip(".")


def find_matches(rule: RepoRule, file: ChangedFile) -> Iterator[int]:
    if rule.text is not None:
        lines = {number: file.line_at(number).strip() for number in sorted(file.added)}
        anchored = any(sign in rule.text for sign in (r"\A", r"\z"))
        if anchored or _matches_regex(f"(?m){rule.text}", "\n".join(lines.values())):
            yield from (number for number, line in lines.items() if _matches_regex(rule.text, line))
    language = ast_grep_language(file.path)
    text = "\n".join(file.lines) if rule.pattern else ""
    if not rule.pattern or language is None or len(text) > MAX_TEXT_CHARS:
        return
    if rule.language not in (None, language):
        return
    for node in _parse_root(text, language).find_all(pattern=rule.pattern):
        span = node.range()
        added_lines = file.added.intersection(range(span.start.line + 1, span.end.line + 2))
        if added_lines:
            yield min(added_lines)


def ast_grep_language(path: str) -> str | None:
    return language_of(path) or _LANGUAGES_BY_ENDING.get(path.rpartition(".")[2].lower())


def _matches_regex(expression: str, line: str) -> bool:
    """Match with ast-grep's engine, which is linear in the line's length for any expression."""
    return _parse_root(line.strip() or " ", "json").matches(regex=expression)


def _parse_root(text: str, language: str) -> SgNode:
    from ast_grep_py import SgRoot

    return SgRoot(text, language).root()
