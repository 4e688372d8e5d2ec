"""copied-code: code is added that the repository already has."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import takewhile

from closeloop.changes.file_kinds import classify_file
from closeloop.changes.quality.changed_file import (
    ChangedFile,
    enclosing_function,
    is_example_file,
    list_changed_files,
    make_check_finding,
    split_git_lines,
)
from closeloop.records.change import Inspection, SourceFunction, SourceModule
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.record import Record

rules = (
    Rule(
        name="copied-code",
        version=2,
        about="Added code duplicates code elsewhere in the repository.",
        severity="warning",
        mode="context blindness",
        gates=True,
        thresholds={"copied_tokens": 60},
    ),
)

_TOKEN = re.compile(r"\w+|[^\w\s]")
_COMMENT = re.compile(r"(?:^|(?<=\s))(?:#|//)[^\n]*")
_SHAPE_TOKEN = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|`[^`]*`|\.?\w+\(?|[^\w\s]")
_BOILERPLATE = re.compile(
    r"__\w+__|constructor|equals|hashCode|toString|compareTo|clone|drop|fmt|String|Error"
    r"|(?:Unm|M)arshal\w+"
)
"""Boilerplate that a language requires of every class."""
_MAX_GAP_LINES = 15
"""Maximum comment lines between statements in the original that the copy may lack."""
ALIKE, SAME = 0.92, 0.98
"""Minimum similarity of two functions to count as a repetition, and as identical."""
MAX_TEXT_CHARS = 5_000
MAX_RUNS = 30
MAX_PLACES = 50
"""Maximum places of a fingerprint; one that occurs more often is the language's idiom."""

CodeSpot = tuple[str, int]
"""A path and a line."""


class _FingerprintRun(Record):
    """Consecutive fingerprints that occur in both places."""

    first: int
    last: int
    """Indices of the first and last fingerprint in their file."""
    original: CodeSpot
    """Place of the first one in the original."""
    reached: CodeSpot
    """Place of the last one in the original."""


class _FunctionPair(Record):
    """Two functions and what they share."""

    copy: SourceFunction
    original: SourceFunction
    alike: float
    tokens: int


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Compare fingerprints that renaming does not change; moved code is not a copy."""
    files = [
        file
        for file in list_changed_files(inspection, "source")
        if file.after and file.after.prints and not is_example_file(file.path)
    ]
    new_prints = _new_fingerprints(inspection)
    fingerprints = {
        hashed
        for file in files
        if file.after
        for hashed, line in zip(file.after.prints, file.after.print_lines, strict=True)
        if line in file.added and hashed in new_prints
    }
    if not fingerprints:
        return []
    originals = _find_originals(inspection.index.copies(sorted(fingerprints)), fingerprints)
    return [
        copy
        for file in files
        if file.after
        for copy in _find_copies(file, file.after, originals, inspection)
    ]


def _new_fingerprints(inspection: Inspection) -> set[int]:
    """Return fingerprints that occur more often than before; moved code adds none."""
    counts: Counter[int] = Counter()
    for (side, _), module in inspection.modules.items():
        counts.update(dict.fromkeys(module.prints, 0))
        for hashed in module.prints:
            counts[hashed] += 1 if side == "after" else -1
    return {hashed for hashed, count in counts.items() if count > 0}


def _find_originals(
    spots_by_print: Mapping[int, Sequence[CodeSpot]], fingerprints: Iterable[int]
) -> dict[int, list[CodeSpot]]:
    """Return the places of each fingerprint in code that counts, unless it is ubiquitous."""
    originals = {}
    counts = {
        path: classify_file(path) == "source" and not is_example_file(path)
        for path in {path for spots in spots_by_print.values() for path, _ in spots}
    }
    for hashed in fingerprints:
        spots = spots_by_print.get(hashed, ())
        if 1 < len(spots) <= MAX_PLACES:
            originals[hashed] = sorted(spot for spot in spots if counts[spot[0]])
    return originals


def _find_copies(
    file: ChangedFile,
    module: SourceModule,
    originals: Mapping[int, Sequence[CodeSpot]],
    inspection: Inspection,
) -> Iterator[Finding]:
    reported: set[str] = set()
    for run in _find_runs(file, module, originals, inspection)[:MAX_RUNS]:
        path, original_line = run.original
        copied_lines = module.print_lines[run.first], module.print_lines[run.last]
        copy = enclosing_function(module.functions, *copied_lines)
        source = inspection.index.module(path)
        original = (
            enclosing_function(source.functions, original_line, run.reached[1]) if source else None
        )
        if not (copy and source and original) or copy.qualified in reported:
            continue
        if path == file.path and original.first_line == copy.first_line:
            continue
        if _is_boilerplate(copy, original) or _are_twins(file, copy, (path, original), inspection):
            continue
        lines = split_git_lines(inspection.sides.read("after", path))
        copy_text, original_text = (
            _function_body(file.lines, module, copy),
            _function_body(lines, source, original),
        )
        similarity = _code_similarity(copy_text, original_text)
        if similarity >= ALIKE:
            tokens = len(_TOKEN.findall(copy_text))
        else:
            first = module.print_lines[run.first]
            tokens = _count_shared_tokens(
                "\n".join(file.lines[first - 1 : copy.last_line]),
                "\n".join(lines[original_line - 1 : original.last_line]),
            )
        if tokens >= inspection.settings.copied_tokens:
            reported.add(copy.qualified)
            same_names = _outside_names(copy_text, module, copy) == _outside_names(
                original_text, source, original
            )
            # Code that uses another constant or function is not a copy.
            similarity = similarity if same_names else min(similarity, SAME - 0.01)
            pair = _FunctionPair(copy=copy, original=original, alike=similarity, tokens=tokens)
            yield _copy_finding(file, module.print_lines[run.first], run, pair, inspection)


def _copy_finding(
    file: ChangedFile, first: int, run: _FingerprintRun, pair: _FunctionPair, inspection: Inspection
) -> Finding:
    path, original_line = run.original
    copy, original = pair.copy, pair.original
    place = f"{path}:{original_line if pair.alike < ALIKE else original.first_line}"
    if pair.alike < ALIKE:
        message = (
            f"About {pair.tokens} tokens of `{copy.qualified}` duplicate "
            f"`{original.qualified}` in {place}: share them."
        )
        return make_check_finding(rules[0], message, f"{file.path}:{first}", place, confidence=0.8)
    line = f"{file.path}:{copy.first_line}"
    if pair.alike < SAME:
        message = (
            f"`{copy.qualified}` is nearly identical to `{original.qualified}` in "
            f"{place}: share the common part."
        )
        return make_check_finding(rules[0], message, line, place, confidence=0.8)
    # Two classes may both need the method; and entirely new code has no original to reuse.
    implements = "." in copy.qualified and copy.name == original.name
    existed = original_line not in inspection.added.get(path, frozenset())
    certain = pair.tokens >= 2 * inspection.settings.copied_tokens and existed and not implements
    return make_check_finding(
        rules[0],
        f"`{copy.qualified}` duplicates `{original.qualified}` in {place}: use that.",
        line,
        place,
        severity="error" if certain else "warning",
    )


def _function_body(lines: Sequence[str], module: SourceModule, function: SourceFunction) -> str:
    """Return a function's text from its first statement; its calls of itself have one name."""
    body_lines = [
        line for line in module.print_lines if function.first_line <= line <= function.last_line
    ]
    body = lines[min(body_lines, default=function.first_line) - 1 : function.last_line]
    return re.sub(rf"\b{re.escape(function.name)}\(", "itself(", "\n".join(body))


def _code_similarity(text: str, other_text: str) -> float:
    """Return the similarity of two texts, ignoring variable names; 0 if it is low."""
    match = SequenceMatcher(None, _token_shapes(text), _token_shapes(other_text), autojunk=False)
    # Each is an upper bound of the next, and faster.
    if match.real_quick_ratio() < ALIKE or match.quick_ratio() < ALIKE:
        return 0.0
    return match.ratio()


def _outside_names(text: str, module: SourceModule, function: SourceFunction) -> set[str]:
    """Return names in the function that are not its own, which a copy cannot rename."""
    own_names = set(re.findall(r"\w+", " ".join((function.name, *function.parameters))))
    inner_names = [
        name for name in module.names if function.first_line <= name.line <= function.last_line
    ]
    own_names |= {name.text for name in inner_names if name.kind == "definition"}
    return {token for token in _split_tokens(text) if token.isidentifier()} - own_names


def _count_shared_tokens(text: str, other_text: str) -> int:
    """Count the leading tokens that both have in common."""
    pairs = zip(_split_tokens(text), _token_shapes(text), _token_shapes(other_text), strict=False)
    shared_tokens = takewhile(lambda pair: pair[1] == pair[2], pairs)
    return sum(len(_TOKEN.findall(token)) for token, _, _ in shared_tokens)


def _token_shapes(text: str) -> list[str]:
    return [_token_shape(token) for token in _split_tokens(text)]


def _split_tokens(text: str) -> list[str]:
    return _SHAPE_TOKEN.findall(_COMMENT.sub("", text[:MAX_TEXT_CHARS]))


def _token_shape(token: str) -> str:
    """Return a token's shape: all names are equal, and all strings."""
    if token.isidentifier() and not keyword.iskeyword(token):
        return "name"
    return "text" if token[0] in "\"'`" and len(token) > 1 else token


def _find_runs(
    file: ChangedFile,
    module: SourceModule,
    originals: Mapping[int, Sequence[CodeSpot]],
    inspection: Inspection,
) -> list[_FingerprintRun]:
    """Return runs of matching fingerprints, longest first."""
    runs: list[_FingerprintRun] = []
    open_: dict[str, _FingerprintRun] = {}
    for index, (hashed, line) in enumerate(zip(module.prints, module.print_lines, strict=True)):
        going: dict[str, _FingerprintRun] = {}
        if line in file.added:
            for path, original_line in originals.get(hashed, ()):
                if (path, original_line) == (file.path, line):
                    continue
                if _is_later_copy((path, original_line), (file.path, line), inspection):
                    continue
                run = open_.get(path)
                step = line - module.print_lines[index - 1] if index else 0
                if run and run.reached[1] < original_line <= run.reached[1] + step + _MAX_GAP_LINES:
                    going[path] = _FingerprintRun(
                        first=run.first,
                        last=index,
                        original=run.original,
                        reached=(path, original_line),
                    )
                else:
                    going.setdefault(
                        path,
                        _FingerprintRun(
                            first=index,
                            last=index,
                            original=(path, original_line),
                            reached=(path, original_line),
                        ),
                    )
        runs += [run for path, run in open_.items() if path not in going]
        open_ = going
    runs += open_.values()
    return sorted(runs, key=lambda run: (run.first - run.last, run.first, run.original))


def _is_later_copy(original: CodeSpot, copy: CodeSpot, inspection: Inspection) -> bool:
    """Return whether both are new and this one comes first: only the other is reported."""
    path, line = original
    return line in inspection.added.get(path, frozenset()) and original > copy


def _is_boilerplate(copy: SourceFunction, original: SourceFunction) -> bool:
    return copy.name == original.name and _BOILERPLATE.fullmatch(copy.name) is not None


def _are_twins(
    file: ChangedFile,
    copy: SourceFunction,
    original: tuple[str, SourceFunction],
    inspection: Inspection,
) -> bool:
    """Return whether they were already alike, or both existed and were changed alike."""
    path, function = original
    source = inspection.index.module(path)
    changed_too = any(
        function.first_line <= line <= function.last_line
        for line in inspection.added.get(path, frozenset())
    )
    old = inspection.modules.get(("before", path), None if changed_too else source)
    if not file.before or old is None:
        return False
    old_copies = [
        function for function in file.before.functions if function.qualified == copy.qualified
    ]
    old_originals = [
        candidate for candidate in old.functions if candidate.qualified == function.qualified
    ]
    if old_copies and old_originals and changed_too:
        return True
    shared = {
        hashed
        for old_copy in old_copies
        for hashed in _function_fingerprints(file.before, old_copy)
    }
    return any(shared & _function_fingerprints(old, old_original) for old_original in old_originals)


def _function_fingerprints(module: SourceModule, function: SourceFunction) -> set[int]:
    return {
        hashed
        for hashed, line in zip(module.prints, module.print_lines, strict=True)
        if function.first_line <= line <= function.last_line
    }
