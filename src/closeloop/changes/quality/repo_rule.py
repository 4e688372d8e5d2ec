"""repo-rule: an added line goes against a rule that this repository has written down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from closeloop.changes.kinds import language_of
from closeloop.changes.quality.changed import Changed, changed, finding
from closeloop.model.finding import Finding, Rule, Unmeasured
from closeloop.model.globs import matches
from closeloop.model.inspection import Inspection, Language
from closeloop.model.settings import RepoRule

if TYPE_CHECKING:
    from ast_grep_py import SgNode

rules = (
    Rule(
        name="repo-rule",
        version=1,
        about="An added line goes against a rule of the repository's own.",
        severity="warning",
    ),
)

_BY_ENDING = {
    "c": "c", "h": "c", "cc": "cpp", "cpp": "cpp", "hpp": "cpp", "cs": "csharp", "css": "css",
    "ex": "elixir", "exs": "elixir", "hs": "haskell", "html": "html", "json": "json",
    "kt": "kotlin", "lua": "lua", "nix": "nix", "php": "php", "rb": "ruby", "scala": "scala",
    "sh": "bash", "sol": "solidity", "swift": "swift", "tf": "hcl", "yaml": "yaml", "yml": "yaml",
}  # fmt: skip
LANGUAGES = frozenset({*_BY_ENDING.values(), *get_args(Language)})
"""What ast-grep can parse; it panics when asked for another."""
MOST_FINDINGS = 20
"""Of one rule in one file."""
MOST_TEXT = 2_000_000


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Each rule over the added lines of the files that it holds for."""
    found: list[Finding | Unmeasured] = []
    if not inspection.settings.rules:
        return found
    files = list(changed(inspection))
    for rule in inspection.settings.rules:
        reason = _unusable(rule)
        if reason:
            found.append(Unmeasured(rule=rules[0].name, reason=f"{rule.name}: {reason}"))
            continue
        for file in files:
            if not rule.paths or matches(file.path, rule.paths):
                lines = sorted(set(_hits(rule, file)))[:MOST_FINDINGS]
                found += [_finding(rule, file.path, line) for line in lines]
    return found


def _finding(rule: RepoRule, path: str, line: int) -> Finding:
    message = f"{rule.message.rstrip('.')} ({rule.name})."
    return finding(rules[0], message, f"{path}:{line}", severity=rule.severity)


def _unusable(rule: RepoRule) -> str | None:
    """Why nothing can be looked for by it."""
    if (rule.pattern is None) == (rule.text is None):
        return "give it either a `pattern` or a `text`"
    if rule.language is not None and rule.language not in LANGUAGES:
        return f"no language {rule.language!r} is known: {', '.join(sorted(LANGUAGES))}"
    try:
        if rule.text is not None:
            _has(rule.text, "")
        if rule.pattern is not None:
            _tree("", rule.language or "python").find_all(pattern=rule.pattern)
    except RuntimeError as error:
        told = " ".join(str(error).split())
        return f"it cannot be read: {told[-200:]}"
    return None


def _hits(rule: RepoRule, file: Changed) -> Iterator[int]:
    if rule.text is not None:
        lines = {number: file.line(number).strip() for number in sorted(file.added)}
        anchored = any(sign in rule.text for sign in (r"\A", r"\z"))
        if anchored or _has(f"(?m){rule.text}", "\n".join(lines.values())):
            yield from (number for number, line in lines.items() if _has(rule.text, line))
    language = _language(file.path)
    text = "\n".join(file.lines) if rule.pattern else ""
    if not rule.pattern or language is None or len(text) > MOST_TEXT:
        return
    if rule.language not in (None, language):
        return
    for node in _tree(text, language).find_all(pattern=rule.pattern):
        place = node.range()
        inside = file.added.intersection(range(place.start.line + 1, place.end.line + 2))
        if inside:
            yield min(inside)


def _language(path: str) -> str | None:
    return language_of(path) or _BY_ENDING.get(path.rpartition(".")[2].lower())


def _has(expression: str, line: str) -> bool:
    """By the search of ast-grep, whose time grows with the line only, whatever is searched for."""
    return _tree(line.strip() or " ", "json").matches(regex=expression)


def _tree(text: str, language: str) -> SgNode:
    from ast_grep_py import SgRoot

    return SgRoot(text, language).root()
