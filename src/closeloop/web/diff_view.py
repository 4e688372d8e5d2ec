"""A patch and a check's report as pages show them, with findings beside their lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher, unified_diff
from functools import cache
from itertools import accumulate, zip_longest
from typing import Any, Literal

from markupsafe import Markup, escape
from msgspec.structs import replace

from closeloop.changes.report_formats import (
    describe_change_size,
    describe_report_grade,
    describe_tool_state,
    first_source_place,
    is_tool_worse,
    plural_phrase,
    report_subject,
    unmeasured_by_reason,
)
from closeloop.records.change import (
    Change,
    ChangeReport,
    FileChange,
    RecoveredFile,
    ReportRow,
    ReportVerdict,
    Risk,
    ToolRun,
)
from closeloop.records.finding import SEVERITIES, Finding, Unmeasured
from closeloop.records.record import Record
from closeloop.records.trace import Edit, Trace
from closeloop.text.patches import has_line_counts
from closeloop.text.untrusted import make_visible

MAX_LINES = 4000
MAX_LINE_CHARS = 1000
_HUNK_HEADER = re.compile(r"@@ -(\d{1,9})(?:,\d{1,9})? \+(\d{1,9})(?:,\d{1,9})? @@")


class DiffLine(Record):
    kind: Literal["same", "plus", "minus", "hunk"]
    old: int | None
    new: int | None
    text: str
    findings: tuple[int, ...] = ()
    """Indices in the list of findings."""
    event: int | None = None
    """Event of the trace that the hunk was recovered from; None if the diff has another source."""


class DiffFile(Record):
    """One file of a change."""

    path: str
    old_path: str | None
    status: str
    added: int | None
    removed: int | None
    """Lines; None if unknown, which differs from 0."""
    binary: bool
    note: str | None
    marks: tuple[str, ...]
    """Notes about the whole file: outside the scope, restored before grading."""
    lines: tuple[DiffLine, ...]
    left_out: int
    """Number of lines that are not shown."""
    findings: tuple[int, ...] = ()
    """Indices of findings about the whole file, or about lines that the diff does not show."""


def build_diff_files(
    change: Change, findings: Sequence[Finding], marks: Iterable[tuple[str, str]]
) -> tuple[DiffFile, ...]:
    """Build the view of every file of a change, up to the page's limits."""
    finding_indices = _index_finding_places(findings)
    marks_by_path: dict[str, list[str]] = {}
    for path, mark in marks:
        marks_by_path.setdefault(path, []).append(mark)
    bodies = _split_patch_bodies(change.patch)
    lines_left, files_built = MAX_LINES, []
    for file, body in zip(change.files, [*bodies, *[[]] * len(change.files)], strict=False):
        files_built.append(
            _build_diff_file(
                file,
                body,
                lines_left,
                finding_indices.get(file.path, {}),
                marks_by_path.get(file.path, ()),
            )
        )
        lines_left = max(0, lines_left - len(body))
    return tuple(files_built)


def build_recovered_files(
    files: Sequence[RecoveredFile], findings: Sequence[Finding] = ()
) -> tuple[DiffFile, ...]:
    """Build diffs of files from a recording's edits, without line numbers; findings are by file."""
    finding_indices = _index_finding_places(findings)
    lines_left, files_built = MAX_LINES, []
    for file in files:
        lines: list[DiffLine] = []
        for hunk in file.hunks:
            text = f"event {hunk.event}"
            lines.append(DiffLine(kind="hunk", old=None, new=None, text=text, event=hunk.event))
            lines += [_recovered_line(line) for line in hunk.lines]
        files_built.append(
            DiffFile(
                path=file.path,
                old_path=None,
                status=file.status,
                added=file.added,
                removed=file.removed,
                binary=False,
                note=None
                if file.is_complete
                else "The recording does not contain all lines of this file.",
                marks=(),
                lines=tuple(lines[:lines_left]),
                left_out=max(0, len(lines) - lines_left),
                findings=tuple(
                    sorted(
                        {
                            index
                            for indices in finding_indices.get(file.path, {}).values()
                            for index in indices
                        }
                    )
                ),
            )
        )
        lines_left = max(0, lines_left - len(lines))
    return tuple(files_built)


def _recovered_line(line: str) -> DiffLine:
    kinds: dict[str, Literal["plus", "minus"]] = {"+": "plus", "-": "minus"}
    text = line[1 : MAX_LINE_CHARS + 1]
    return DiffLine(kind=kinds.get(line[:1], "same"), old=None, new=None, text=text)


def locate_findings(
    findings: Iterable[Finding], trace: Trace, files: Sequence[DiffFile]
) -> tuple[Finding, ...]:
    """Return the findings with a place in a file; one that cites an edit gets the line it wrote."""
    edits = {event.number: event for event in trace.events if isinstance(event, Edit)}
    located_findings = []
    for finding in findings:
        if finding.places:
            located_findings.append(finding)
            continue
        cited = [edits[number] for number in finding.events if number in edits]
        places = [place for edit in cited if (place := _place_of_edit(edit, files)) is not None]
        if places:
            located_findings.append(replace(finding, places=tuple(dict.fromkeys(places))))
    return tuple(located_findings)


def _place_of_edit(edit: Edit, files: Sequence[DiffFile]) -> str | None:
    """Return the first changed line that an edit wrote; its file if no such line remains."""
    edited_path = edit.path.replace("\\", "/")
    file = next((file for file in files if f"/{edited_path}".endswith(f"/{file.path}")), None)
    if file is None:
        return None
    old = set((edit.before or "").splitlines())
    text = edit.after if edit.after is not None else edit.patch or ""
    written_lines = {line.removeprefix("+") for line in text.splitlines()} - old
    line = next(
        (
            line.new
            for line in file.lines
            if line.kind == "plus" and line.text in written_lines and line.text.strip()
        ),
        None,
    )
    return file.path if line is None else f"{file.path}:{line}"


def diff_from_edit(edit: Edit) -> DiffFile | None:
    """Build a diff from an edit in a trace; None if the edit has no lines."""
    if edit.patch is not None:
        body = edit.patch.split("\n")
        if "@@ " not in edit.patch:
            body = [line for line in body if line[:1] in ("+", "-", " ")]
    elif edit.before is None and edit.after is None:
        return None
    else:
        before, after = (edit.before or "").splitlines(), (edit.after or "").splitlines()
        body = list(unified_diff(before, after, lineterm="", n=2))[2:]
    lines = tuple(_build_diff_lines(body[:MAX_LINES], {}))
    return DiffFile(
        path=edit.path,
        old_path=None,
        status=edit.action,
        added=sum(line.kind == "plus" for line in lines),
        removed=sum(line.kind == "minus" for line in lines),
        binary=False,
        note=None,
        marks=(),
        lines=lines,
        left_out=max(0, len(body) - MAX_LINES),
    )


def _build_diff_file(
    file: FileChange,
    body: list[str],
    room: int,
    findings: dict[int, tuple[int, ...]],
    marks: Sequence[str],
) -> DiffFile:
    lines = tuple(_build_diff_lines(body[:room], findings))
    shown_findings = {index for line in lines for index in line.findings}
    all_findings = {index for indices in findings.values() for index in indices}
    return DiffFile(
        path=file.path,
        old_path=file.old_path,
        status=file.status,
        added=file.added if has_line_counts(file) else None,
        removed=file.removed if has_line_counts(file) else None,
        binary=file.binary,
        note=file.note,
        marks=tuple(marks),
        lines=lines,
        left_out=max(0, len(body) - room),
        findings=tuple(sorted(all_findings - shown_findings)),
    )


def _split_patch_bodies(patch: str) -> list[list[str]]:
    """Return the hunks of each file, in the order of the patch."""
    bodies: list[list[str]] = []
    body: list[str] = []
    in_file = False
    for line in patch.split("\n"):
        if line.startswith("diff --git ") or (line.startswith("--- ") and not in_file):
            if line.startswith("diff --git ") or not bodies or body:
                body = []
                bodies.append(body)
            in_file = line.startswith("diff --git ")
        elif line.startswith("@@ ") or (body and line[:1] in ("+", "-", " ", "\\")):
            body.append(line)
            in_file = True
    return bodies


def _build_diff_lines(
    body: Iterable[str], findings: dict[int, tuple[int, ...]]
) -> Iterable[DiffLine]:
    old = new = 0
    for line in body:
        text = line[:MAX_LINE_CHARS]
        if hunk := _HUNK_HEADER.match(line):
            old, new = int(hunk[1]), int(hunk[2])
            yield DiffLine(kind="hunk", old=None, new=None, text=text)
        elif line.startswith("+"):
            yield DiffLine(
                kind="plus", old=None, new=new, text=text[1:], findings=findings.get(new, ())
            )
            new += 1
        elif line.startswith("-"):
            yield DiffLine(kind="minus", old=old, new=None, text=text[1:])
            old += 1
        elif line.startswith("\\"):
            yield DiffLine(kind="hunk", old=None, new=None, text=text)
        else:
            yield DiffLine(
                kind="same", old=old, new=new, text=text[1:], findings=findings.get(new, ())
            )
            old, new = old + 1, new + 1


def _index_finding_places(findings: Sequence[Finding]) -> dict[str, dict[int, tuple[int, ...]]]:
    """Index findings by path and line: their indices in the list; line 0 is the whole file."""
    places_by_path: dict[str, dict[int, tuple[int, ...]]] = {}
    for index, finding in enumerate(findings):
        for source_place in finding.places:
            path, _, line = source_place.rpartition(":")
            if not path or not line.isdecimal():
                path, line = source_place, "0"
            lines = places_by_path.setdefault(path, {})
            lines[int(line)] = (*lines.get(int(line), ()), index)
    return places_by_path


# The view of a check report: by tier, and by file and line.

MAX_FINDINGS = 500


class TierView(Record):
    """One tier of a report, summarised in a line."""

    name: str
    state: Literal["good", "bad", "open"]
    """`open`: not run, or with advisory findings only."""
    text: str


class Spot(Record):
    """A finding and the line that it is about."""

    line: int | None
    finding: Finding


class FileSpots(Record):
    """The findings in one file, from top to bottom."""

    path: str
    spots: tuple[Spot, ...]


class ReportView(Record):
    """One stored report."""

    row: ReportRow
    subject: str
    surface: str
    verdict: ReportVerdict
    reasons: tuple[str, ...]
    tiers: tuple[TierView, ...]
    tools: tuple[ToolRun, ...]
    files: tuple[FileSpots, ...]
    elsewhere: tuple[Finding, ...]
    """Findings that name no place."""
    silenced: int
    more: int
    """Number of findings that are not shown."""
    risk: Risk | None
    grade: str | None
    """For an attempt's change: the result of its task's own acceptance."""
    unmeasured: tuple[Unmeasured, ...]


def build_report_view(row: ReportRow, report: ChangeReport) -> ReportView:
    counted_findings = [finding for finding in report.findings if finding.silenced is None]
    shown_findings = counted_findings[:MAX_FINDINGS]
    return ReportView(
        row=row,
        subject=report_subject(report),
        surface=describe_change_size(report),
        verdict=report.verdict,
        reasons=report.reasons,
        tiers=tuple(_tier_views(report, counted_findings)),
        tools=report.tools,
        files=_findings_by_file(shown_findings),
        elsewhere=tuple(
            shown_finding for shown_finding in shown_findings if not shown_finding.places
        ),
        silenced=len(report.findings) - len(counted_findings),
        more=len(counted_findings) - len(shown_findings),
        risk=report.risk,
        grade=describe_report_grade(report.grade) if report.grade else None,
        unmeasured=tuple(unmeasured_by_reason(report)),
    )


def _tier_views(report: ChangeReport, findings: Sequence[Finding]) -> Iterator[TierView]:
    if "tools" in report.tiers:
        yield _tools_tier(report)
    if "quality" in report.tiers:
        yield _quality_tier(findings)
    if "risk" in report.tiers:
        yield _risk_tier(report)


def _tools_tier(report: ChangeReport) -> TierView:
    tools = report.tools
    if not tools:
        return TierView(name="Tools", state="open", text="none was run")
    worse = [
        f"{tool.name}"
        f" ({f'{len(tool.broke)} broke' if tool.broke else describe_tool_state(tool.after)})"
        for tool in tools
        if is_tool_worse(tool)
    ]
    if worse:
        return TierView(name="Tools", state="bad", text=f"worse than before in {', '.join(worse)}")
    text = f"{plural_phrase(len(tools), 'tool')}, none worse"
    if report.verdict == "unverified":
        return TierView(name="Tools", state="open", text=f"{text}, but no test ran")
    return TierView(name="Tools", state="good", text=text)


def _quality_tier(findings: Sequence[Finding]) -> TierView:
    counts = {name: sum(finding.severity == name for finding in findings) for name in SEVERITIES}
    nouns = {"error": "error", "warning": "warning", "info": "remark"}
    text = ", ".join(plural_phrase(count, nouns[name]) for name, count in counts.items() if count)
    state: Literal["good", "bad", "open"] = (
        "bad" if counts["error"] else "open" if findings else "good"
    )
    return TierView(name="Quality", state=state, text=text or "no findings")


def _risk_tier(report: ChangeReport) -> TierView:
    if report.risk is None:
        return TierView(name="Risk", state="open", text="not assessed")
    level = report.risk.level
    state: Literal["good", "bad", "open"] = "good" if level == "low" else "open"
    if level in ("high", "critical"):
        state = "bad"
    return TierView(name="Risk", state=state, text=level)


def _findings_by_file(findings: Sequence[Finding]) -> tuple[FileSpots, ...]:
    files: dict[str, list[Spot]] = {}
    for finding in findings:
        if (place := first_source_place(finding)) is not None:
            files.setdefault(place.path, []).append(Spot(line=place.line, finding=finding))
    return tuple(
        FileSpots(path=path, spots=tuple(sorted(spots, key=lambda spot: spot.line or 0)))
        for path, spots in sorted(files.items())
    )


# Syntax colours of code, and marks of what changed in a line.


MAX_COLOURED_CHARS = 60_000
"""Characters of a file; longer ones are shown without syntax colours."""
MAX_MARKED_CHARS = 400
"""Characters of a line; in longer ones no changed words are marked."""
MIN_LIKENESS = 0.4
"""Similarity below which two lines count as unrelated, not as one changed line."""
TOKEN_CLASSES = {
    "Keyword": "k",
    "Literal.String": "s",
    "Comment": "c",
    "Literal.Number": "n",
    "Name.Function": "f",
    "Name.Class": "f",
    "Name.Decorator": "f",
    "Name.Tag": "f",
    "Name.Builtin": "b",
    "Name.Attribute": "b",
}
"""CSS class by name of a token kind."""

LANGUAGES = {
    "py": "python", "pyi": "python", "js": "javascript", "jsx": "javascript",
    "mjs": "javascript", "cjs": "javascript", "ts": "typescript", "tsx": "typescript",
    "go": "go", "rs": "rust", "java": "java", "kt": "kotlin", "swift": "swift", "c": "c",
    "h": "c", "cc": "cpp", "cpp": "cpp", "hpp": "cpp", "cs": "csharp", "rb": "ruby",
    "php": "php", "sql": "sql", "sh": "bash", "bash": "bash", "css": "css", "html": "html",
    "json": "json", "toml": "toml", "yaml": "yaml", "yml": "yaml", "makefile": "make",
    "dockerfile": "docker",
}  # fmt: skip
"""Language by file extension."""

CodePiece = tuple[str, str]
"""A text and its CSS class, which is empty for most."""
_PIECE = Markup('<span class="tok-{}">{}</span>')
_MARKED = Markup("<mark>{}</mark>")
_WORD = re.compile(r"\w+|\s+|.")


def colour_diff(file: DiffFile) -> list[Markup]:
    """Return the code of each diff line as HTML, with changed words marked."""
    pieces = _colour_lines(file)
    changed_spans: dict[int, list[tuple[int, int]]] = {}
    for old, new in pair_lines(file.lines):
        if old is not None and new is not None and old != new:
            changed_spans[old], changed_spans[new] = _changed_spans(
                file.lines[old].text, file.lines[new].text
            )
    return [
        _render_line(pieces.get(index, [(line.text, "")]), changed_spans.get(index, ()))
        for index, line in enumerate(file.lines)
    ]


def pair_lines(lines: Sequence[DiffLine]) -> list[tuple[int | None, int | None]]:
    """Return the rows of a side-by-side diff: index of the line before and after, None if
    missing."""
    rows: list[tuple[int | None, int | None]] = []
    removed_lines: list[int] = []
    added_lines: list[int] = []

    def add_changed() -> None:
        rows.extend(zip_longest(removed_lines, added_lines))
        removed_lines.clear()
        added_lines.clear()

    for index, line in enumerate(lines):
        if line.kind == "minus":
            if added_lines:
                add_changed()
            removed_lines.append(index)
        elif line.kind == "plus":
            added_lines.append(index)
        else:
            add_changed()
            rows.append((index, index))
    add_changed()
    return rows


def _changed_spans(before: str, after: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the changed spans of a line before and after; none if the lines are unrelated."""
    if max(len(before), len(after)) > MAX_MARKED_CHARS:
        return [], []
    if SequenceMatcher(None, before, after, autojunk=False).ratio() < MIN_LIKENESS:
        return [], []
    old_words, new_words = _WORD.findall(before), _WORD.findall(after)
    old, new = ([0, *accumulate(map(len, words))] for words in (old_words, new_words))
    matcher = SequenceMatcher(None, old_words, new_words, autojunk=False)
    changes = [opcode for opcode in matcher.get_opcodes() if opcode[0] != "equal"]
    return (
        [(old[start], old[end]) for _, start, end, _, _ in changes if end > start],
        [(new[start], new[end]) for _, _, _, start, end in changes if end > start],
    )


def _render_line(pieces: Sequence[CodePiece], marked: Sequence[tuple[int, int]]) -> Markup:
    html, offset = Markup(""), 0
    for text, kind in pieces:
        for part, is_marked in _cut_piece(text, offset, marked):
            escaped = escape(make_visible(part))
            coloured = _PIECE.format(kind, escaped) if kind else escaped
            html += _MARKED.format(coloured) if is_marked else coloured
        offset += len(text)
    return html


def _cut_piece(
    text: str, offset: int, marked: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, bool]]:
    """Split a piece that begins at offset `offset` of its line; yield each part and whether it is
    marked."""
    position = 0
    for start, end in marked:
        first, last = max(start - offset, position), min(end - offset, len(text))
        if first < last:
            if position < first:
                yield text[position:first], False
            yield text[first:last], True
            position = last
    if position < len(text):
        yield text[position:], False


def _colour_lines(file: DiffFile) -> dict[int, list[CodePiece]]:
    """Return the coloured pieces by line index; each side of each hunk is lexed as one text."""
    if sum(len(line.text) for line in file.lines) > MAX_COLOURED_CHARS:
        return {}
    lexer = find_lexer(file.path)
    if lexer is None:
        return {}
    coloured: dict[int, list[CodePiece]] = {}
    for kinds in (("same", "minus"), ("same", "plus")):
        line_indices: list[int] = []
        for index, line in [*enumerate(file.lines), (len(file.lines), None)]:
            if line is not None and line.kind in kinds:
                line_indices.append(index)
            elif line is None or line.kind == "hunk":
                texts = [file.lines[index].text for index in line_indices]
                coloured |= dict(zip(line_indices, _colour_text(lexer, texts), strict=True))
                line_indices = []
    return coloured


def _colour_text(lexer: Any, lines: Sequence[str]) -> list[list[CodePiece]]:
    """Return the pieces of each line; a line that the lexer splits elsewhere stays plain."""
    rows: list[list[CodePiece]] = [[]]
    for kind, text in lexer.get_tokens("\n".join(lines)):
        token_class = _token_class(str(kind).removeprefix("Token."))
        for number, part in enumerate(text.split("\n")):
            if number:
                rows.append([])
            if part:
                rows[-1].append((part, token_class))
    if len(rows) < len(lines):
        return [[(line, "")] for line in lines]
    return [
        row if "".join(text for text, _ in row) == line else [(line, "")]
        for line, row in zip(lines, rows, strict=False)
    ]


@cache
def _token_class(kind: str) -> str:
    return next((name for start, name in TOKEN_CLASSES.items() if kind.startswith(start)), "")


@cache
def _load_lexer(language: str) -> Any:
    from pygments.lexers import get_lexer_by_name

    return get_lexer_by_name(language, stripnl=False, ensurenl=False)


def find_lexer(path: str) -> Any:
    """Return the lexer for a file by its name; None if its language is not coloured."""
    name = path.rpartition("/")[2].lower()
    language = LANGUAGES.get(name.rpartition(".")[2])
    return None if language is None else _load_lexer(language)
