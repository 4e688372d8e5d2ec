"""Rules that a program can check: proposed by templates or a model, and proved before they hold.

a rule ──► checks that may fit ──► does one fire on the code that the reviewer spoke of, and is it
silent on the correction? ──► how often would it fire in the repository today?
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from closeloop.changes.file_kinds import classify_file
from closeloop.changes.quality.changed_file import ChangedFile, split_git_lines
from closeloop.changes.quality.repo_rule import ast_grep_language, find_matches, unusable_reason
from closeloop.git import GitRepository, query_git, run_git_in
from closeloop.providers.structured_reply import ask_json
from closeloop.records.chat import ChatMessage, ModelRequest
from closeloop.records.errors import MachineFailed
from closeloop.records.protocols import Model
from closeloop.records.pull_request import PullRequest, ReviewComment
from closeloop.records.record import Record
from closeloop.records.settings import RepoRule
from closeloop.records.team_rules import CheckProof, TeamRule
from closeloop.reviews.remark_polarity import build_rule_check, escape_code
from closeloop.reviews.review_corrections import correction_id
from closeloop.text.untrusted import DATA_RULE, fence_texts
from closeloop.text.wording import count_with_noun, matches_globs

MAX_CHECK_CHARS = 200
MAX_SHOWN_CHARS = 4_000
MAX_FILES = 20_000
MAX_FILE_BYTES = 1_000_000
MAX_PLACES = 5
MAX_COMPARED = 50_000_000
"""Pairs of lines that are compared at the most: seconds, where all lines are alike."""
_BANNED_WORD = re.compile(
    r"\b(?:don't|do not|never|avoid|no|stop)(?: (?:use|using|call|calling|import|add|the|a))* "
    r"`?([\w.]{2,60})`?"
    r"|\b(?:instead of|rather than|in place of) (?:a |an |the )?`?([\w.]{2,60})`?",
    re.IGNORECASE,
)
_WILDCARD = re.compile(r"\b(?:wildcard|star)[ -]?imports?|\* imports?|import \*", re.IGNORECASE)
_HUNK_START = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)", re.MULTILINE)

CHECK_PROMPT = (
    "You are given a rule of a team and the code that broke it. Give one check that finds such "
    "code in single added lines: either `pattern`, a pattern of ast-grep such as print($$$), or "
    "`text`, a regular expression in the dialect of Rust (no look-around, no back-references), of "
    "at most 200 characters. It must be silent on code that keeps to the rule. Say `none` if no "
    f"such check exists. {DATA_RULE}"
)
CHECK_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["pattern", "text", "none"]},
        "value": {"type": "string"},
    },
    "required": ["kind", "value"],
    "additionalProperties": False,
}


class ReviewedCode(Record):
    """A file as a reviewer spoke of it, and as it was merged."""

    pull: int
    path: str
    reviewed: ChangedFile
    corrected: ChangedFile
    """With the lines that are new since the review."""


def propose_checks(rule: TeamRule, path: str | None) -> Iterator[RepoRule]:
    """Checks that may fit a rule by its words: banned calls, imports, types and words."""

    plain = RepoRule(name=rule.id, message=rule.text, paths=rule.paths)

    def check(**what: str) -> RepoRule:
        return replace(plain, **what)

    language = ast_grep_language(path) if path else None
    if _WILDCARD.search(rule.text):
        yield check(text=r"^(?:from\s+\S+\s+import\s+\*|import\s+(?:static\s+)?[\w.]+\.\*)")
    quoted = build_rule_check(rule.id, rule.text, rule.paths)
    words = [word for found in _BANNED_WORD.findall(rule.text.replace("’", "'")) for word in found]
    for word in dict.fromkeys(word.rstrip(".").removesuffix("()") for word in words if word):
        code = escape_code(word)
        if "import" in rule.text.lower():
            yield check(text=rf"^(?:import|from)\s+{code}\b|require\(\s*['\"]{code}['\"]")
        if re.search(r"\btypes?\b", rule.text, re.IGNORECASE):
            yield check(text=rf"[:<|,(]\s*{code}\b|\bas {code}\b")
        if language and word.replace(".", "").isidentifier():
            yield check(pattern=f"{word}($$$)", language=language)
        yield check(text=rf"\b{code}\s*\(")
        if quoted is None:
            yield check(text=rf"\b{code}\b")
    if quoted is not None:
        yield quoted


async def ask_for_check(model: Model, rule: TeamRule, code: ReviewedCode) -> RepoRule | None:
    """A check that a model proposes: as little to be believed as any other."""
    added = "\n".join(code.reviewed.line_at(at) for at in sorted(code.reviewed.added))
    shown = fence_texts({"rule": rule.text, "code": added}, max_chars=MAX_SHOWN_CHARS)
    message = ChatMessage(role="user", text=shown)
    request = ModelRequest(
        messages=(message,), system=CHECK_PROMPT, schema=CHECK_SCHEMA, temperature=0.0
    )
    try:
        value = (await ask_json(model, request)).value
    except MachineFailed:
        return None
    if value["kind"] == "none" or not value["value"].strip():
        return None
    check = RepoRule(name=rule.id, message=rule.text, paths=rule.paths)
    if value["kind"] == "pattern":
        return replace(check, pattern=value["value"], language=ast_grep_language(code.path))
    return replace(check, text=value["value"])


def load_reviewed_code(
    rule: TeamRule, pull: PullRequest, repository: GitRepository
) -> ReviewedCode | str:
    """The file that a rule's example is about, before and after; or why there is none to see."""
    keys = {one.key for one in rule.examples if one.pull == pull.number}
    said = [one for one in pull.comments if correction_id(pull, "comment", one.id) in keys]
    comment = next((one for one in said if one.path and one.hunk), None)
    if comment is None or comment.path is None:
        return f"no comment on #{pull.number} that taught it stands at a line of code"
    final = pull.merge_commit or pull.head
    after = _read_file(repository, final, comment.path)
    if final is None or after is None:
        return f"this clone does not have {comment.path} as #{pull.number} left it"
    reviewed = _reviewed_file(comment, _read_file(repository, comment.sha, comment.path))
    corrected = _changed_file(comment.path, after, list_new_lines(reviewed.lines, after))
    if not corrected.added and reviewed.lines == after:
        return f"{comment.path} was not changed on #{pull.number} after the comment"
    return ReviewedCode(pull=pull.number, path=comment.path, reviewed=reviewed, corrected=corrected)


def prove_check(check: RepoRule, code: ReviewedCode) -> CheckProof:
    """Whether a check fires on what was reviewed and not on what came of it."""
    proof = CheckProof(proved=False, why="", check=check, pull=code.pull)
    if (reason := reject_check(check)) is not None:
        return replace(proof, why=reason)
    lines = sorted(set(find_matches(check, code.reviewed)))
    if not lines:
        return replace(proof, why=f"it does not fire on the code that #{code.pull} was told of")
    fires = tuple(f"{code.path}:{line}" for line in lines)
    left = {line.strip() for line in code.corrected.lines}
    stays = [line for line in lines if code.reviewed.line_at(line).strip() in left]
    again = sorted(set(find_matches(check, code.corrected)))
    if stays or again:
        line = again[0] if again else stays[0]
        why = f"it fires on the correction too, at {code.path}:{line}"
        return replace(proof, fires=fires, why=why)
    why = f"it fires on the code that #{code.pull} was told of, and is silent on the correction"
    return replace(proof, proved=True, fires=fires, why=why)


def reject_check(check: RepoRule) -> str | None:
    """Why a check is not even tried."""
    if len(check.pattern or check.text or "") > MAX_CHECK_CHARS:
        return f"a check has at most {MAX_CHECK_CHARS} characters"
    if (check.text or "").strip() in ("", ".", ".*", ".+") and check.pattern is None:
        return "it matches everything"
    return unusable_reason(check)


def count_today(proof: CheckProof, root: Path, repository: GitRepository) -> CheckProof:
    """With how often it would fire in the files that git knows, as they are now."""
    check = proof.check
    if check is None or reject_check(check) is not None:
        return proof
    names = run_git_in(repository, "ls-files", "-z").decode(errors="surrogateescape").split("\0")
    places: list[str] = []
    total = files = 0
    for name in names[:MAX_FILES]:
        place = root / name
        if not name or (check.paths and not matches_globs(name, check.paths)):
            continue
        if place.is_symlink() or not place.is_file() or place.stat().st_size > MAX_FILE_BYTES:
            continue
        content = place.read_bytes()
        if b"\0" in content[:8000]:
            continue
        lines = split_git_lines(content)
        found = sorted(set(find_matches(check, _changed_file(name, lines, range(len(lines))))))
        total += len(found)
        files += bool(found)
        places += [f"{name}:{line}" for line in found[: MAX_PLACES - len(places)]]
    return replace(proof, today=total, files=files, places=tuple(places))


def describe_proof(proof: CheckProof) -> str:
    """What somebody should know before the check is accepted."""
    if not proof.proved or proof.check is None:
        return f"Not checked by a program: {proof.why}."
    what = proof.check.pattern or proof.check.text
    today = (
        f"it would fire {count_with_noun(proof.today, 'time')} today, in"
        f" {count_with_noun(proof.files, 'file')}"
        if proof.today
        else "it would not fire today"
    )
    return f"{what}: {proof.why}; {today}."


async def prove_rule(
    rule: TeamRule,
    pulls: Sequence[PullRequest],
    root: Path,
    repository: GitRepository,
    model: Model | None = None,
) -> CheckProof:
    """The first check that is proved on a pull request a rule came from, with what it costs."""
    best = CheckProof(proved=False, why="it came from no pull request that is known here")
    for pull in pulls:
        code = load_reviewed_code(rule, pull, repository)
        if isinstance(code, str):
            best = CheckProof(proved=False, why=code, pull=pull.number)
            continue
        checks = list(propose_checks(rule, code.path))
        if model is not None and (asked := await ask_for_check(model, rule, code)) is not None:
            checks.append(asked)
        if not checks:
            best = CheckProof(
                proved=False, why="its words name no code to look for", pull=pull.number
            )
        for check in checks:
            proof = prove_check(check, code)
            if proof.proved:
                return count_today(proof, root, repository)
            best = proof
    return best


def _read_file(repository: GitRepository, commit: str | None, path: str) -> tuple[str, ...] | None:
    if commit is None:
        return None
    text = query_git(repository, "cat-file", "blob", f"{commit}:{path}")
    return None if text is None else split_git_lines(text.encode())


def _reviewed_file(comment: ReviewComment, whole: tuple[str, ...] | None) -> ChangedFile:
    """The file with the lines of the comment's hunk as added; the hunk alone where that is all."""
    assert comment.path is not None
    hunk = (comment.hunk or "").splitlines()
    start = _HUNK_START.match(hunk[0]) if hunk else None
    after = [line for line in hunk[1 if start else 0 :] if not line.startswith(("-", "\\"))]
    added = [at for at, line in enumerate(after) if line.startswith("+")]
    if whole is not None and start is not None:
        first = int(start[1])
        if all(_line_of(whole, first + at) == after[at][1:] for at in added):
            return _changed_file(comment.path, whole, [first + at - 1 for at in added])
    return _changed_file(comment.path, tuple(line[1:] for line in after), added)


def _line_of(lines: Sequence[str], number: int) -> str | None:
    return lines[number - 1] if 0 < number <= len(lines) else None


def _changed_file(path: str, lines: tuple[str, ...], added: Sequence[int]) -> ChangedFile:
    return ChangedFile(
        path=path,
        old_path=path,
        kind=classify_file(path),
        lines=lines,
        added=frozenset(at + 1 for at in added),
    )


def list_new_lines(before: Sequence[str], after: Sequence[str]) -> list[int]:
    """The places of lines that are new in the second."""
    if len(before) * len(after) > MAX_COMPARED:
        known = frozenset(before)
        return [at for at, line in enumerate(after) if line not in known]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [
        at
        for kind, _, _, start, end in matcher.get_opcodes()
        if kind in ("insert", "replace")
        for at in range(start, end)
    ]
