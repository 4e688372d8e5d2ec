"""hallucinated-name: names that do not exist, neither in the repository nor in its libraries.

nowhere   no file, no library and no line of the change has the name
imported  a package that is neither here, nor installed, nor declared
typed     a type checker cannot find it, and did not complain before
flags     an option that the project's own command line does not have
settings  a key or option of another tool, one slip from what stood there before
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from closeloop.changes.names.diagnostic_filter import filter_diagnostics
from closeloop.changes.names.name_search import MAX_SEARCHES, NameSearch
from closeloop.changes.names.option_names import find_unknown_flags, find_unknown_settings
from closeloop.changes.names.suspect_names import Suspect
from closeloop.changes.names.type_diagnostics import find_new_diagnostics
from closeloop.changes.names.type_folders import TypeCheckerUnusable
from closeloop.changes.names.undeclared_imports import MANIFESTS, find_undeclared_imports
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.inspection import (
    Inspection,
)
from closeloop.records.record import content_digest

rules = (
    Rule(
        name="hallucinated-name",
        version=1,
        about="A name is used that exists neither in the repository nor in its libraries.",
        severity="error",
        mode="hallucinated API",
        gates=True,
    ),
)

MAX_PLACES = 10
MAX_UNDEFINED_NAMES = 4


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """One finding for each name that is not there, with the places that use it."""
    search = NameSearch(inspection)
    nowhere = [*search.find_suspects(), *find_undeclared_imports(search)]
    unmeasured: list[Finding | Unmeasured] = []
    typed: list[Suspect] = []
    try:
        # One for each repository: what another one left there would resolve as its own.
        root = content_digest(str(inspection.sides.root.resolve()))[:16]
        folder = Path(inspection.index.shelf.path).parent / "types" / root
        typed = list(filter_diagnostics(find_new_diagnostics(inspection, folder), search))
    except TypeCheckerUnusable as why:
        unmeasured.append(Unmeasured(rule=rules[0].name, reason=f"Python's types: {why}"))
    if search.searched > MAX_SEARCHES:
        reason = "so many names exist nowhere that not all of them were searched for"
        unmeasured.append(Unmeasured(rule=rules[0].name, reason=reason))
    flags = [*find_unknown_flags(inspection), *find_unknown_settings(inspection)]
    return [*_build_findings(nowhere, typed, flags), *unmeasured]


def _broken_files(suspects: Iterable[Suspect]) -> set[str]:
    """Samples and fragments, which never run: much of what they use is defined nowhere."""
    undefined: dict[str, set[str]] = defaultdict(set)
    for one in suspects:
        if one.near is None and _is_bare_name(one):
            undefined[one.use.path].add(one.use.text)
    return {path for path, texts in undefined.items() if len(texts) > MAX_UNDEFINED_NAMES}


def _is_bare_name(one: Suspect) -> bool:
    return one.where is None and one.use.receiver is None and one.use.kind in ("call", "name")


def _build_findings(
    nowhere: Sequence[Suspect], typed: Sequence[Suspect], flags: Sequence[Suspect]
) -> Iterator[Finding]:
    by_name: dict[tuple[str, str], list[Suspect]] = defaultdict(list)
    broken = _broken_files((*nowhere, *typed))
    for one in (*nowhere, *typed, *flags):
        if not (one.use.path in broken and _is_bare_name(one)):
            by_name[one.use.path, one.use.text].append(one)
    agreed = {_use_key(one) for one in nowhere} & {_use_key(one) for one in typed}
    for suspects in by_name.values():
        certain = any(one.certain or _use_key(one) in agreed for one in suspects)
        yield _build_finding(suspects, certain)


def _use_key(one: Suspect) -> tuple[str, int, str]:
    return one.use.path, one.use.line, one.use.text


def _build_finding(suspects: Sequence[Suspect], certain: bool) -> Finding:
    rule = rules[0]
    best = max(suspects, key=lambda one: (bool(one.near), bool(one.where), one.certain))
    places = dict.fromkeys(f"{one.use.path}:{one.use.line}" for one in suspects)
    return Finding(
        rule=rule.name,
        version=rule.version,
        severity="error" if certain else "warning",
        mode=rule.mode,
        message=_describe_suspect(best),
        places=tuple(places)[:MAX_PLACES],
        confidence=0.95 if certain else 0.7,
        source="check",
    )


def _describe_suspect(suspect: Suspect) -> str:
    use = suspect.use
    if suspect.reason:
        text = suspect.reason.rstrip(".")
    elif use.kind == "keyword" and suspect.where:
        text = f"`{suspect.where}` takes no argument `{use.text}`"
    elif use.kind == "import" and suspect.where == MANIFESTS:
        text = f"`{use.text}` is imported, and no manifest declares it"
    elif use.kind == "option" and suspect.where:
        text = f"`{suspect.where}` has no option `{use.text}`"
    elif suspect.where:
        text = f"`{use.text}` does not exist in `{suspect.where}`"
    elif use.receiver is None and use.kind in ("call", "name"):
        text = f"`{use.text}` is not defined"
    elif use.kind == "option":
        text = f"`{use.text}` stands nowhere else in the repository's settings"
    else:
        text = f"`{use.text}` exists nowhere in the repository or its libraries"
    return f"{text}; did you mean `{suspect.near}`?" if suspect.near else f"{text}."
