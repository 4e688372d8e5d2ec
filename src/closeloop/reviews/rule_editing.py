"""What people do with rules: find, accept, retire, reword and merge them, and prove checks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from closeloop.changes.file_kinds import classify_file
from closeloop.changes.quality.changed_file import ChangedFile, split_git_lines
from closeloop.changes.quality.repo_rule import ast_grep_language, find_matches, unusable_reason
from closeloop.git import GitRepository, query_git, run_git_in
from closeloop.providers.structured_reply import ask_json
from closeloop.records.errors import BadInput, MachineFailed, unknown_name_error
from closeloop.records.protocols import Model
from closeloop.records.pull_request import PullRequest, ReviewComment
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import CheckSettings, RepoRule
from closeloop.records.team_rules import (
    CheckProof,
    RepeatedRemark,
    RepeatState,
    RuleExample,
    RuleState,
    TeamRule,
)
from closeloop.records.trace import ChatMessage, LogEvent, ModelRequest
from closeloop.reviews.agent_context import MAX_QUOTE_CHARS
from closeloop.reviews.remark_polarity import (
    build_rule_check,
    comparable_words,
    compare_remarks,
    escape_code,
    parse_rule_parts,
)
from closeloop.reviews.review_corrections import correction_id
from closeloop.reviews.rule_index import build_rule, is_touched
from closeloop.store import Store
from closeloop.text.untrusted import DATA_RULE, fence_texts
from closeloop.text.wording import count_with_noun, matches_globs


def find_rule(store: Store, start: str) -> TeamRule:
    """Return the rule with this id, or with the only id that begins with it."""
    matching_rules = [rule for rule in store.memory.list_rules() if rule.id.startswith(start)]
    if not start or len(matching_rules) != 1:
        if len(matching_rules) > 1:
            raise BadInput(f"{start!r} is a prefix of several rules: give more characters.")
        raise unknown_name_error("rule", start, [rule.id for rule in store.memory.list_rules()])
    return matching_rules[0]


def set_rule_state(
    store: Store, rule: TeamRule, state: RuleState, person: str, now: datetime
) -> TeamRule:
    """Save and return the rule in another state, with who changed it."""
    activated = rule.activated or (now if state == "active" else None)
    changed = replace(rule, state=state, since=now, by=person, activated=activated)
    store.memory.save_rule(changed)
    details: dict[str, Any] = {"rule": rule.id, "by": person, "text": rule.text}
    store.events.add([LogEvent(kind=f"rule.{state}", at=now, repo=rule.repo, details=details)])
    return changed


def contrary_rules(store: Store, rule: TeamRule) -> list[TeamRule]:
    """Return active rules of the same repository that want the opposite of this one."""
    return [
        other
        for other in store.memory.list_rules(repo=rule.repo, state="active")
        if other.id != rule.id and compare_remarks(other.text, rule.text) == "opposite"
    ]


def reword_rule(store: Store, rule: TeamRule, text: str, paths: Sequence[str]) -> TeamRule:
    """Save and return the rule with other words, or for other files."""
    text = _parse_sentence(text) if text else rule.text
    rule_paths = tuple(paths) or rule.paths
    changed = replace(
        rule,
        text=text,
        paths=rule_paths,
        canonical=parse_rule_parts(text) if text != rule.text else rule.canonical,
        # The proof was for another wording or other files.
        check=rule.check if text == rule.text and rule_paths == rule.paths else None,
    )
    if rule.check is not None and is_written_down(rule):
        changed = replace(changed, check=build_rule_check(rule.id, text, rule_paths))
    store.memory.save_rule(changed)
    return changed


def is_written_down(rule: TeamRule) -> bool:
    """Return whether a person wrote the rule, so that no pull request can prove its check."""
    return bool(rule.examples) and all(example.source == "person" for example in rule.examples)


def add_rule(
    store: Store,
    text: str,
    repo: str | None,
    person: str,
    now: datetime,
    source: Literal["person", "insight"] = "person",
) -> TeamRule:
    """Add a rule that a person writes; agents get it from now on."""
    text = _parse_sentence(text)
    key = content_digest(source, repo, comparable_words(text))[:16]
    origin = RuleExample(key=key, source=source, text=text, repo=repo, by=person, at=now)
    new_rule = build_rule(text, origin)
    if source == "person":
        new_rule = replace(new_rule, check=build_rule_check(new_rule.id, text, new_rule.paths))
    stored_rule = next((rule for rule in store.memory.list_rules() if rule.id == new_rule.id), None)
    return set_rule_state(store, stored_rule or new_rule, "active", person, now)


def merge_rules(store: Store, rule: TeamRule, target: TeamRule, person: str, now: datetime) -> None:
    """Merge a rule into another that says the same: move its examples, and retire it."""
    if rule.id == target.id:
        raise BadInput("Both are the same rule: give two different rules.")
    if compare_remarks(rule.text, target.text) == "opposite":
        raise BadInput(
            f"{rule.text!r} and {target.text!r} contradict each other: retire the one "
            "that does not apply."
        )
    moved = tuple(replace(example, put_by=person) for example in rule.examples)
    store.memory.save_examples(replace(target, examples=moved))
    set_rule_state(store, rule, "retired", person, now)


def decide_repeat(
    store: Store, key: str, state: RepeatState, person: str, rule: str | None = None
) -> list[RepeatedRemark]:
    """Record a person's decision on whether a remark restates a rule.

    `key` is the remark's key, or the start of it. Confirming takes the named rule, else the most
    similar one, makes the remark an example of it, and denies the other candidate rules, which are
    not proposed again. A rule that was proposed from this remark alone is retired.
    """
    repeats = [repeat for repeat in store.memory.list_repeats() if repeat.key.startswith(key)]
    if not key or len({repeat.key for repeat in repeats}) != 1:
        raise unknown_name_error(
            "remark", key, sorted({repeat.key for repeat in store.memory.list_repeats()})[:20]
        )
    matching = [repeat for repeat in repeats if rule is None or repeat.rule == rule]
    if not matching:
        raise unknown_name_error("rule", rule or "", [repeat.rule for repeat in repeats])
    best = max(matching, key=lambda repeat: repeat.likeness)
    chosen_rules = [best.rule] if state == "confirmed" else [repeat.rule for repeat in matching]
    decided = [
        replace(
            repeat,
            state=state if repeat.rule in chosen_rules else "denied",
            by="person",
            who=person,
        )
        for repeat in repeats
        if repeat.rule in chosen_rules or (state == "confirmed" and repeat.state == "candidate")
    ]
    decided.sort(key=lambda repeat: repeat.rule not in chosen_rules)
    store.memory.save_repeats(decided)
    corrections = store.memory.list_corrections(repo=best.repo, pull=best.pull)
    example = RuleExample(
        key=best.key,
        source="comment",
        text=best.text,
        repo=best.repo,
        pull=best.pull,
        path=best.path,
        by=next((remark.by for remark in corrections if remark.id == best.key), None),
        at=best.at,
        put_by=person,
        withdrawn=state != "confirmed",
    )
    learned_rule = find_rule(store, best.rule)
    was_put = any(example.key == best.key and example.put_by for example in learned_rule.examples)
    if state == "confirmed" or was_put:
        store.memory.save_examples(replace(learned_rule, examples=(example,)))
        taught = {best.key, *(known.key for known in learned_rule.examples)}
        _propose_own_rules(store, best, taught, propose=state != "confirmed")
    return decided


def _propose_own_rules(
    store: Store, repeat: RepeatedRemark, taught: set[str], *, propose: bool
) -> None:
    """Retire, or propose again, what was proposed from a remark and nobody changed.

    Retired is a rule all of whose remarks are examples of the rule that was confirmed (`taught`).
    """
    before: RuleState = "retired" if propose else "proposed"
    after: RuleState = "proposed" if propose else "retired"
    for rule in store.memory.list_rules(state=before):
        sources = {example.key for example in rule.examples}
        if (
            repeat.key in sources
            and rule.id != repeat.rule
            and not is_touched(rule)
            and (propose or sources <= taught)
        ):
            store.memory.save_learned_rule(replace(rule, state=after, examples=()))


def accept_repeated_rule(store: Store, rule: str, person: str, now: datetime) -> TeamRule:
    """Return the rule that a confirmed comment repeats, accepting it if it was only proposed."""
    repeated = find_rule(store, rule)
    if repeated.state != "proposed":
        return repeated
    if contrary := contrary_rules(store, repeated):
        raise BadInput(
            f"The repeat is confirmed, but its rule contradicts {contrary[0].text!r}, which is "
            "active: retire one of them."
        )
    return set_rule_state(store, repeated, "active", person, now)


def list_repeated_proposals(store: Store, repo: str | None = None) -> list[TeamRule]:
    """Return the proposed rules that a confirmed comment repeats."""
    repeats = store.memory.list_repeats(repo=repo)
    repeated = {repeat.rule for repeat in repeats if repeat.state == "confirmed"}
    proposed = store.memory.list_rules(repo=repo, state="proposed")
    return [rule for rule in proposed if rule.id in repeated]


def list_unconfirmed(store: Store, repo: str | None = None) -> list[RepeatedRemark]:
    """Return the unconfirmed remarks, each with the most similar rule, newest first."""
    return keep_likest(store.memory.list_repeats(repo=repo))


def leave_out_settled(repeats: Sequence[RepeatedRemark]) -> list[RepeatedRemark]:
    """Leave out candidates whose remark is confirmed to restate another rule."""
    settled = {repeat.key for repeat in repeats if repeat.state == "confirmed"}
    return [
        repeat for repeat in repeats if repeat.state != "candidate" or repeat.key not in settled
    ]


def keep_likest(repeats: Sequence[RepeatedRemark]) -> list[RepeatedRemark]:
    """Return the most similar rule for each unconfirmed remark, newest remark first."""
    best: dict[str, RepeatedRemark] = {}
    for repeat in leave_out_settled(repeats):
        best_repeat = best.get(repeat.key)
        if repeat.state == "candidate" and (
            best_repeat is None or repeat.likeness > best_repeat.likeness
        ):
            best[repeat.key] = repeat
    return sorted(best.values(), key=lambda repeat: repeat.at, reverse=True)


def keep_proved_check(store: Store, rule: TeamRule, proof: CheckProof) -> TeamRule:
    """Save and return a rule with its proved check; unproved checks are refused."""
    if not proof.proved or proof.check is None:
        raise BadInput(f"Only a verified check can be saved: {proof.why}.")
    changed = replace(rule, check=proof.check)
    store.memory.save_rule(changed)
    return changed


def with_learned_rules(settings: CheckSettings, store: Store, repo: str | None) -> CheckSettings:
    """Return the settings with the active rules that a program can check added to the project's
    own."""
    learned = [
        rule.check
        for rule in store.memory.list_rules(repo=repo, state="active")
        if rule.check is not None
    ]
    return replace(settings, rules=(*settings.rules, *learned)) if learned else settings


def _parse_sentence(text: str) -> str:
    line = " ".join(text.split())
    if not comparable_words(line):
        raise BadInput("The rule is empty: write one sentence.")
    if len(line) > MAX_QUOTE_CHARS:
        raise BadInput(f"A rule may have at most {MAX_QUOTE_CHARS} characters: shorten it.")
    return line


# Rules that a program can check: proposed by templates or a model, and proved before use.
#
# a rule ──► checks that may fit ──► does one fire on the code that the reviewer spoke of, and is
# it silent on the correction? ──► how often would it fire in the repository today?


MAX_CHECK_CHARS = 200
MAX_SHOWN_CHARS = 4_000
MAX_FILES = 20_000
MAX_FILE_BYTES = 1_000_000
MAX_PLACES = 5
MAX_COMPARED = 50_000_000
"""Maximum pairs of lines compared; takes seconds if all lines are alike."""
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
    """A file as reviewed, and as merged."""

    pull: int
    path: str
    reviewed: ChangedFile
    corrected: ChangedFile
    """With the lines that are new since the review."""


def propose_checks(rule: TeamRule, path: str | None) -> Iterator[RepoRule]:
    """Yield checks that may fit a rule by its words: banned calls, imports, types and words."""

    plain = RepoRule(name=rule.id, message=rule.text, paths=rule.paths)

    def check(**what: str) -> RepoRule:
        return replace(plain, **what)

    language = ast_grep_language(path) if path else None
    if _WILDCARD.search(rule.text):
        yield check(text=r"^(?:from\s+\S+\s+import\s+\*|import\s+(?:static\s+)?[\w.]+\.\*)")
    quoted = build_rule_check(rule.id, rule.text, rule.paths)
    words = [
        word for groups in _BANNED_WORD.findall(rule.text.replace("’", "'")) for word in groups
    ]
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
    """Return a check that a model proposes; it needs proof like any other."""
    added = "\n".join(code.reviewed.line_at(line) for line in sorted(code.reviewed.added))
    fenced = fence_texts({"rule": rule.text, "code": added}, max_chars=MAX_SHOWN_CHARS)
    message = ChatMessage(role="user", text=fenced)
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
    """Return the file of a rule's example, before and after; or why there is none."""
    keys = {example.key for example in rule.examples if example.pull == pull.number}
    comments = [
        comment for comment in pull.comments if correction_id(pull, "comment", comment.id) in keys
    ]
    comment = next((remark for remark in comments if remark.path and remark.hunk), None)
    if comment is None or comment.path is None:
        return f"no comment on #{pull.number} that led to the rule refers to a line of code"
    final = pull.merge_commit or pull.head
    after = _read_file(repository, final, comment.path)
    if final is None or after is None:
        return f"this clone does not contain {comment.path} as of #{pull.number}"
    reviewed = _reviewed_file(comment, _read_file(repository, comment.sha, comment.path))
    corrected = _changed_file(comment.path, after, list_new_lines(reviewed.lines, after))
    if not corrected.added and reviewed.lines == after:
        return f"{comment.path} was not changed on #{pull.number} after the comment"
    return ReviewedCode(pull=pull.number, path=comment.path, reviewed=reviewed, corrected=corrected)


def prove_check(check: RepoRule, code: ReviewedCode) -> CheckProof:
    """Return whether a check fires on the reviewed code and not on the corrected code."""
    proof = CheckProof(proved=False, why="", check=check, pull=code.pull)
    if (reason := reject_check(check)) is not None:
        return replace(proof, why=reason)
    lines = sorted(set(find_matches(check, code.reviewed)))
    if not lines:
        return replace(proof, why=f"it does not match the code that was criticised in #{code.pull}")
    fires = tuple(f"{code.path}:{line}" for line in lines)
    corrected_lines = {line.strip() for line in code.corrected.lines}
    stays = [line for line in lines if code.reviewed.line_at(line).strip() in corrected_lines]
    still_matching = sorted(set(find_matches(check, code.corrected)))
    if stays or still_matching:
        line = still_matching[0] if still_matching else stays[0]
        verdict = f"it also matches the correction, at {code.path}:{line}"
        return replace(proof, fires=fires, why=verdict)
    verdict = (
        f"it matches the code that was criticised in #{code.pull} and does not match the correction"
    )
    return replace(proof, proved=True, fires=fires, why=verdict)


def reject_check(check: RepoRule) -> str | None:
    """Return why a check is not tried at all; None if it is."""
    if len(check.pattern or check.text or "") > MAX_CHECK_CHARS:
        return f"a check may have at most {MAX_CHECK_CHARS} characters"
    if (check.text or "").strip() in ("", ".", ".*", ".+") and check.pattern is None:
        return "it matches everything"
    return unusable_reason(check)


def count_today(proof: CheckProof, root: Path, repository: GitRepository) -> CheckProof:
    """Return the proof with how often the check would fire in the tracked files as they are now."""
    check = proof.check
    if check is None or reject_check(check) is not None:
        return proof
    names = run_git_in(repository, "ls-files", "-z").decode(errors="surrogateescape").split("\0")
    locations: list[str] = []
    total = files = 0
    for name in names[:MAX_FILES]:
        file = root / name
        if not name or (check.paths and not matches_globs(name, check.paths)):
            continue
        if file.is_symlink() or not file.is_file() or file.stat().st_size > MAX_FILE_BYTES:
            continue
        content = file.read_bytes()
        if b"\0" in content[:8000]:
            continue
        lines = split_git_lines(content)
        matching_lines = sorted(
            set(find_matches(check, _changed_file(name, lines, range(len(lines)))))
        )
        total += len(matching_lines)
        files += bool(matching_lines)
        locations += [f"{name}:{line}" for line in matching_lines[: MAX_PLACES - len(locations)]]
    return replace(proof, today=total, files=files, places=tuple(locations))


def describe_proof(proof: CheckProof) -> str:
    """Return what a person should know before accepting the check."""
    if not proof.proved or proof.check is None:
        return f"No automatic check: {proof.why}."
    pattern = proof.check.pattern or proof.check.text
    today = (
        f"it has {count_with_noun(proof.today, 'match', 'matches')} today, in "
        f"{count_with_noun(proof.files, 'file')}"
        if proof.today
        else "it has no matches today"
    )
    return f"{pattern}: {proof.why}; {today}."


async def prove_rule(
    rule: TeamRule,
    pulls: Sequence[PullRequest],
    root: Path,
    repository: GitRepository,
    model: Model | None = None,
) -> CheckProof:
    """Return the first check that is proved on a pull request the rule came from, with its cost.

    A rule that a person wrote is checked by the code that it forbids by name.
    """
    if is_written_down(rule):
        if rule.check is None:
            why = "a person wrote the rule, and it forbids no code in backticks"
            return CheckProof(proved=False, why=why)
        why = "it is the code that the rule forbids by name"
        return count_today(CheckProof(proved=True, why=why, check=rule.check), root, repository)
    best = CheckProof(proved=False, why="it does not come from a known pull request")
    for pull in pulls:
        code = load_reviewed_code(rule, pull, repository)
        if isinstance(code, str):
            best = CheckProof(proved=False, why=code, pull=pull.number)
            continue
        checks = list(propose_checks(rule, code.path))
        if (
            model is not None
            and (model_check := await ask_for_check(model, rule, code)) is not None
        ):
            checks.append(model_check)
        if not checks:
            best = CheckProof(
                proved=False, why="its text names no code to search for", pull=pull.number
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


def _reviewed_file(comment: ReviewComment, full_lines: tuple[str, ...] | None) -> ChangedFile:
    """Return the file with the lines of the comment's hunk as added; the hunk alone if no more is
    known."""
    assert comment.path is not None
    hunk = (comment.hunk or "").splitlines()
    start = _HUNK_START.match(hunk[0]) if hunk else None
    after = [line for line in hunk[1 if start else 0 :] if not line.startswith(("-", "\\"))]
    added = [index for index, line in enumerate(after) if line.startswith("+")]
    if full_lines is not None and start is not None:
        first = int(start[1])
        if all(_line_of(full_lines, first + index) == after[index][1:] for index in added):
            return _changed_file(comment.path, full_lines, [first + index - 1 for index in added])
    return _changed_file(comment.path, tuple(line[1:] for line in after), added)


def _line_of(lines: Sequence[str], number: int) -> str | None:
    return lines[number - 1] if 0 < number <= len(lines) else None


def _changed_file(path: str, lines: tuple[str, ...], added: Sequence[int]) -> ChangedFile:
    return ChangedFile(
        path=path,
        old_path=path,
        kind=classify_file(path),
        lines=lines,
        added=frozenset(index + 1 for index in added),
    )


def list_new_lines(before: Sequence[str], after: Sequence[str]) -> list[int]:
    """Return the indexes of lines that are new in the second."""
    if len(before) * len(after) > MAX_COMPARED:
        old_lines = frozenset(before)
        return [index for index, line in enumerate(after) if line not in old_lines]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [
        index
        for kind, _, _, start, end in matcher.get_opcodes()
        if kind in ("insert", "replace")
        for index in range(start, end)
    ]
