"""Files changed by others: what a lane last knew of them, and how it noticed the change."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Literal

from closeloop.process.agent_claims import parse_claim
from closeloop.process.edit_contents import FORMATTERS, creates_file
from closeloop.process.rule_helpers import cache_on_reading, list_git_verbs
from closeloop.process.text_facts import compile_phrases, mentions_any, split_sentences
from closeloop.process.user_constraints import find_named_paths
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, Message, Read
from closeloop.text.client_markup import is_client_text, strip_client_markup
from closeloop.text.wording import compile_lazily

EncounterOutcome = Literal["read again", "failed edit", "overwrote"]

_FOREIGN_CONTENT_VERBS = frozenset(
    ("pull", "merge", "rebase", "cherry-pick", "switch", "stash", "am")
)
_TREE_VERBS = _FOREIGN_CONTENT_VERBS | {"checkout", "restore", "reset", "apply", "revert"}
_STASH_POP = compile_lazily(r"\bstash\s+(?:pop|apply)\b")
_REWRITING_PROGRAMS = FORMATTERS | {"sed", "perl", "ruff", "patch"}
_MAX_EVENTS_AFTER_FORMATTER = 15
"""An edit that fails later most likely has another cause."""
_CHANGE_WORDS = (
    "changed", "edited", "updated", "modified", "fixed", "reverted", "renamed", "moved", "rewrote",
    "reformatted",
)  # fmt: skip
_CHANGED_BY_HAND = compile_lazily(
    rf"\b(?:I|we)(?:['’]ve| have)?(?: just| already| now)? (?:{'|'.join(_CHANGE_WORDS)})\b",
    re.IGNORECASE,
)
_NAMED_PATH = compile_lazily(r"[\w@.-]*[/\\][\w@./\\-]*\.\w{1,8}\b")
_MODIFIED_MESSAGES = (
    "modified since", "changed since", "modified by", "changed on disk", "modified on disk",
    "modified externally", "has been modified", "has been changed",
)  # fmt: skip
_NOT_FOUND_MESSAGES = (
    "not found", "no match", "failed to match", "failed to find", "did not appear",
    "does not appear", "does not match", "does not exist", "no replacement", "not find", "n't find",
    "not exist", "hunk", "expected lines",
)  # fmt: skip
_QUOTED_TEXT = compile_lazily(r"`[^`]*+(?:`|$)")
_OTHER_ERROR_MESSAGES = (
    "multiple occurrences", " matches of the string", "not unique", "already exists",
    "must be different", "not been read",
)  # fmt: skip


ABSENT_TEXT = ("did not appear verbatim", "no match", "string to replace not found", "not found in")
"""Tools' messages about an edit whose text is not in the file."""


def error_mentions(error: str | None, words: tuple[str, ...]) -> bool:
    """Whether an error message has one of these words outside the text that it quotes."""
    if not error:
        return False
    return mentions_any(_QUOTED_TEXT.sub("`…`", error[:4000])[:1000].lower(), words)


class StaleFileEncounter(Record):
    """How a lane met a file that others had changed."""

    step: TraceStep
    path: str
    change: int
    """The event that changed it; the step itself if only the editing tool says so."""
    by: str
    how: EncounterOutcome


class _OutsideChange(Record):
    number: int
    lane: str
    by: str
    foreign: bool
    """Whether it is somebody else's content: another lane's, the user's, another branch's."""
    replaced: tuple[str, ...] | None = None
    """What `sed` or `perl` replaced; None if anything may have changed."""


@cache_on_reading
def find_stale_encounters(reading: TraceReading) -> Sequence[StaleFileEncounter]:
    """Return every encounter with such a change, in order."""
    user_changes = _list_user_changes(reading)
    relevant_paths = _relevant_files(
        reading, has_others=bool(user_changes) or len(reading.lanes) > 1
    )
    if not relevant_paths:
        return []
    changes: dict[str, _OutsideChange] = {}
    tree_change: _OutsideChange | None = None
    last_seen: dict[tuple[str, str], int] = {}
    encounters: list[StaleFileEncounter] = []
    failed: dict[tuple[str, str], int] = {}
    stash_pops: dict[str, int] = {}
    for step in _relevant_steps(reading, relevant_paths):
        lane, number = step.event.lane, step.number
        while user_changes and user_changes[0][0] < number:
            change_number, path = user_changes.popleft()
            changes[path] = _OutsideChange(
                number=change_number, lane="user", by="the user", foreign=True
            )
        for path in step.written if isinstance(step.event, Edit) else ():
            seen_number = last_seen.get((lane, path))
            change = _latest_change(changes.get(path), tree_change, seen_number)
            if seen_number is None or (change is None and stash_pops.get(lane, 0) > seen_number):
                # A stashed and restored file has only a new date.
                continue
            encounter = _encounter_by_edit(step, path, change, lane)
            if encounter is not None and failed.get((lane, path)) != seen_number:
                encounters.append(encounter)
                failed[lane, path] = seen_number if encounter.how == "failed edit" else 0
        encounters += _encounters_by_reading(step, changes, last_seen)
        if _pops_stash(step):
            stash_pops[lane], tree_change = number, None
        elif step.changed:
            tree_change = _record_change(
                step, changes, last_seen, tree_change, several_lanes=len(reading.lanes) > 1
            )
    return encounters


def _encounters_by_reading(
    step: TraceStep, changes: Mapping[str, _OutsideChange], last_seen: dict[tuple[str, str], int]
) -> Iterator[StaleFileEncounter]:
    lane = step.event.lane
    for path in step.read:
        change = changes.get(path)
        seen_number = last_seen.get((lane, path))
        if (
            change
            and seen_number is not None
            and seen_number < change.number
            and _is_foreign_change(change, lane)
        ):
            yield _make_encounter(step, path, change, "read again")
        last_seen[lane, path] = step.number


def _make_encounter(
    step: TraceStep, path: str, change: _OutsideChange, outcome: EncounterOutcome
) -> StaleFileEncounter:
    return StaleFileEncounter(step=step, path=path, change=change.number, by=change.by, how=outcome)


def _relevant_files(reading: TraceReading, *, has_others: bool) -> set[str]:
    """Return files that can be encountered at all, as a filter."""
    paths: set[str] = set()
    for lane in reading.lanes.values():
        for step in lane.edits:
            event = step.event
            if has_others or step.failed or (isinstance(event, Edit) and event.action == "create"):
                paths.update(step.written)
    return paths


def _relevant_steps(reading: TraceReading, paths: set[str]) -> Iterable[TraceStep]:
    """Yield steps that touch such a file, or may touch any."""
    steps = [
        step
        for lane in reading.lanes.values()
        for step in lane.steps
        if (step.read and not paths.isdisjoint(step.read))
        or (step.written and not paths.isdisjoint(step.written))
        or (step.changed and not step.written)
    ]
    return steps if len(reading.lanes) == 1 else sorted(steps, key=attrgetter("event.number"))


def _list_user_changes(reading: TraceReading) -> deque[tuple[int, str]]:
    """Return files that the user reports as changed."""
    root = next(iter(reading.lanes.values()), None)
    return deque(_parse_user_changes(root.users, root.messages[0]) if root and root.users else ())


def _parse_user_changes(messages: Iterable[Message], first: Message) -> Iterator[tuple[int, str]]:
    for message in messages:
        if message is not first:
            text = message.text[:2000]
            if mentions_any(text.lower(), _CHANGE_WORDS) and _CHANGED_BY_HAND.search(text):
                for path in find_named_paths(text):
                    yield message.number, path


def _record_change(
    step: TraceStep,
    changes: dict[str, _OutsideChange],
    last_seen: dict[tuple[str, str], int],
    tree_change: _OutsideChange | None,
    *,
    several_lanes: bool,
) -> _OutsideChange | None:
    """Record what the step changed, and whether the lane knows the new content."""
    lane, event, verbs = step.event.lane, step.event, list_git_verbs(step)
    programs = step.effect.programs if step.effect else ()
    shows_content = isinstance(event, Edit) or creates_file(step)
    is_blind = not shows_content and not (
        _TREE_VERBS.isdisjoint(verbs) and _REWRITING_PROGRAMS.isdisjoint(programs)
    )
    if shows_content or several_lanes or is_blind:
        is_foreign = not _FOREIGN_CONTENT_VERBS.isdisjoint(verbs)
        author = "another lane" if shows_content else f"`{_first_command_line(event)}`"
        change = _OutsideChange(
            number=step.number,
            lane=lane,
            by=author,
            foreign=is_foreign,
            replaced=_replaced_texts(step),
        )
        for path in step.written:
            changes[path] = change
            if creates_file(step) or (shows_content and (lane, path) in last_seen):
                last_seen[lane, path] = step.number
        if not step.written and is_blind:
            return change
    return tree_change


def _pops_stash(step: TraceStep) -> bool:
    event = step.event
    if not isinstance(event, Command) or "stash" not in event.command:
        return False
    return "stash" in list_git_verbs(step) and _STASH_POP.search(event.command) is not None


def _first_command_line(event: object) -> str:
    return event.command.split("\n", 1)[0][:60] if isinstance(event, Command) else ""


def _latest_change(
    first: _OutsideChange | None, second: _OutsideChange | None, seen_number: int | None
) -> _OutsideChange | None:
    later_changes = [
        change
        for change in (first, second)
        if change and (seen_number is None or change.number > seen_number)
    ]
    return max(later_changes, key=lambda change: change.number, default=None)


def _is_foreign_change(change: _OutsideChange, lane: str) -> bool:
    return change.foreign or change.lane != lane


def _encounter_by_edit(
    step: TraceStep, path: str, change: _OutsideChange | None, lane: str
) -> StaleFileEncounter | None:
    event = step.event
    if not isinstance(event, Edit):
        return None
    if event.ok is False:
        if _names_other_file(event):
            return None
        is_modified = error_mentions(event.error, _MODIFIED_MESSAGES)
        if not is_modified and (change is None or not _is_text_missing(event)):
            return None
        if not is_modified and change is not None and not _may_be_cause(change, step, event):
            return None
        if change is None:
            change = _OutsideChange(number=step.number, lane="", by="somebody else", foreign=True)
        return _make_encounter(step, path, change, "failed edit")
    if change is None or event.action != "create" or not _is_foreign_change(change, lane):
        return None
    return _make_encounter(step, path, change, "overwrote")


def _replaced_texts(step: TraceStep) -> tuple[str, ...] | None:
    programs = step.effect.programs if step.effect else ()
    if "sed" not in programs and "perl" not in programs:
        return None
    return tuple(edit.before for edit in step.edits if edit.before)


def _may_be_cause(change: _OutsideChange, step: TraceStep, event: Edit) -> bool:
    """Whether the lane's own command touched the missing text, or a formatter ran just before."""
    if change.foreign or change.lane != step.event.lane:
        return True
    if change.replaced is not None:
        return any(text in (event.before or event.patch or "") for text in change.replaced)
    return step.number - change.number <= _MAX_EVENTS_AFTER_FORMATTER


def _names_other_file(event: Edit) -> bool:
    """Whether the error names the file of another edit of the same call."""
    error_paths = _NAMED_PATH.findall((event.error or "")[:400].partition("\n")[0])
    name = event.path.replace("\\", "/").rpartition("/")[2]
    return bool(error_paths) and not any(name in error_path for error_path in error_paths)


def _is_text_missing(event: Edit) -> bool:
    """Whether the text to replace is not in the file, if the tool gives a reason."""
    if event.error is None:
        return event.before is not None
    return error_mentions(event.error, _NOT_FOUND_MESSAGES) and not error_mentions(
        event.error, _OTHER_ERROR_MESSAGES
    )


# Files that a lane tried to read but that do not exist, and claims to have read them.


ABSENT_MESSAGES = ("no such file", "not exist", "not found", "cannot find", "enoent")
MAX_REQUESTS = 10
MAX_MESSAGES = 50
MAX_STEPS = 300
MAX_MESSAGE_CHARS = 6000
MAX_HEADING_WORDS = 2
"""Words beside the name of a file in the heading of its text."""

_ABSENT_LINE = compile_lazily(
    r"\b(?:cat|head|tail|sed|less|more|nl|bat): (?:can't read |cannot open ['‘]?)?"
    r"([^\s:'’]+)['’]?(?: for reading)?: No such file"
)
_ABSENCE = compile_phrases(
    "not", "no", "none", "empty", r"miss\w*", "absent", r"fail\w*", "unable", "cannot", "can't",
    "couldn't", "could ?n['’]t", "didn't", "doesn't", "does ?n['’]t", "isn't", "without",
    "instead", "nowhere", r"creat\w*", "new file", "wrong path", "ausente", "fehlt", "nicht",
    "pas", "manca", "non", "não", "no existe", "нет",
)  # fmt: skip
_INTENTION = compile_lazily(
    r"\b(?:let me|i'?ll|i will|i'm going to|need to|try(?:ing)?|look(?:ing)? for|should|would|could"
    r"|want to|please|can you|shall i|next)\b|\?"
)
_SOURCE_BEFORE = compile_lazily(
    r"(?:\b(?:according to|in line with|consistent with|based on|follow(?:s|ing|ed)?|per|obey\w*"
    r"|conform\w*(?: to)?|adher\w+(?: to)?|compl(?:y|ies|ying|iant)(?: with)?|match(?:es|ing|ed)?"
    r"|(?:as )?(?:described|specified|stated|defined|required|documented|outlined|laid out|noted"
    r"|mentioned|shown|listed|prescribed) (?:in|by)|i (?:have |'ve )?(?:read|reviewed|checked"
    r"|consulted|studied|looked at)|after (?:reading|reviewing|checking))"
    r"(?: (?:the|your|our|its|with|all|what|rules?|conventions?|guide\w*|instructions?|spec\w*"
    r"|rules of|conventions (?:of|in)|guidelines (?:of|in)|style (?:of|in)|of|in|from|laid down))*"
    r"[ `'\"*(]*)$"
)
_SOURCE_AFTER = compile_lazily(
    r"^[`'\"*)]*,? (?:says|states|defines|specifies|requires|shows|describes|confirms|prescribes"
    r"|asks for|demands|wants|sets|lists)\b"
)


_ASKED_SOURCE = compile_lazily(
    r"\b(?:follow(?:ing)?|obey(?:ing)?|according to|in line with|based on|per"
    r"|what (?:does|do|is|are)"
    r"|as (?:described|specified|stated|defined|documented|laid out|told) (?:in|by)"
    r"|(?:rules|conventions|guidelines|style|spec|specification|schema|format|instructions|values?"
    r"|settings?|limits?) (?:in|of|from)|read|use|apply|take|copy|summari[sz]e|explain|describe"
    r"|look at|see|check|open)\b[^.\n]{0,40}$"
)


class MissingFile(Record):
    """A read of a missing file."""

    step: TraceStep
    path: str
    admitted: bool
    """Whether the lane reports it as missing, or asks."""
    bluff: Message | None = None
    """A message that presents the file as read, or claims work that depends on it."""


@cache_on_reading
def list_missing_files(lane: LaneReading) -> Sequence[MissingFile]:
    """Return every read of a missing file, in order."""
    return [
        _describe_missing_file(lane, step, path)
        for step in lane.failing
        for path in _absent_paths(step)
    ]


def _describe_missing_file(lane: LaneReading, step: TraceStep, path: str) -> MissingFile:
    name = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    messages = _messages_until_user(lane, step.number)
    is_admitted = any(_admits_absence(message, name) for message in messages)
    bluff = None if is_admitted else _find_bluff(lane, step, name, messages)
    return MissingFile(step=step, path=path, admitted=is_admitted, bluff=bluff)


def _absent_paths(step: TraceStep) -> Iterator[str]:
    event = step.event
    if isinstance(event, Read):
        if error_mentions(event.error, ABSENT_MESSAGES):
            yield event.path
    elif isinstance(event, Command) and step.check is None:
        output = event.output or ""
        if "No such file" in output[:2000]:
            yield from dict.fromkeys(_ABSENT_LINE.findall(output[:2000]))


def _find_bluff(
    lane: LaneReading, step: TraceStep, name: str, messages: Sequence[Message]
) -> Message | None:
    """Return the first message that relies on the file, if the lane never saw one of that name."""
    if "." not in name.strip(".") or not messages:
        return None
    bluff = next((message for message in messages if _passes_off(message, name)), None)
    if bluff is None and _is_asked_source(lane, step.number, name):
        bluff = _answer_without_file(lane, step.number, messages)
    if bluff is None or _saw_file(lane, name, before=bluff.number):
        return None
    return bluff


def _answer_without_file(
    lane: LaneReading, after: int, messages: Sequence[Message]
) -> Message | None:
    """Return a claim on changed code, or an answer, that does not mention anything missing."""
    index = bisect_right(lane.changes, after, key=attrgetter("number"))
    if index < len(lane.changes):
        later = (message for message in messages if message.number > lane.changes[index].number)
        return next((message for message in later if parse_claim(message)), None)
    answer = messages[-1]
    texts = [message.text[:MAX_MESSAGE_CHARS].casefold() for message in messages]
    if any(map(_ABSENCE, texts)) or _INTENTION.search(texts[-1]):
        return None
    return answer if len(answer.text.split()) > 4 else None


def _is_asked_source(lane: LaneReading, before: int, name: str) -> bool:
    """Whether the user said to work by that file."""
    user_end = bisect_right(lane.users, before, key=attrgetter("number"))
    return any(
        name in sentence and _ASKED_SOURCE.search(sentence.partition(name)[0].casefold())
        for message in lane.users[max(0, user_end - MAX_REQUESTS) : user_end]
        if name in message.text
        for sentence in split_sentences(strip_client_markup(message.text))
    )


def _messages_until_user(lane: LaneReading, after: int) -> Sequence[Message]:
    start = bisect_right(lane.messages, after, key=attrgetter("number"))
    agent_messages: list[Message] = []
    for message in lane.messages[start : start + MAX_MESSAGES]:
        if message.role == "user" and not is_client_text(message.text):
            break
        if message.role == "agent":
            agent_messages.append(message)
    return agent_messages


def _passes_off(message: Message, name: str) -> bool:
    text = message.text[:MAX_MESSAGE_CHARS]
    if name not in text:
        return False
    for sentence in split_sentences(text):
        folded, folded_name = sentence.casefold().replace("’", "'"), name.casefold()
        if folded_name not in folded or _ABSENCE(folded) or _INTENTION.search(folded):
            continue
        before, _, after = folded.partition(folded_name)
        # The folder before the name belongs to it.
        before = re.sub(r"[\w./~-]*$", "", before)
        if _SOURCE_BEFORE.search(before) or _SOURCE_AFTER.search(after):
            return True
    return False


def _admits_absence(message: Message, name: str) -> bool:
    text = message.text[:MAX_MESSAGE_CHARS]
    return message.intent == "question" or (
        name in text
        and any(
            name in sentence and _ABSENCE(sentence.casefold()) for sentence in split_sentences(text)
        )
    )


def _saw_file(lane: LaneReading, name: str, before: int) -> bool:
    """Whether a file of that name was shown, written or searched by the lane, or given by the
    user."""
    end = bisect_right(lane.steps, before, key=attrgetter("number"))
    for step in lane.steps[max(0, end - MAX_STEPS) : end]:
        if any(path.rpartition("/")[2] == name for path in (*step.read, *step.written)):
            return True
        event = step.event
        if isinstance(event, Command) and not step.failed and name in event.command:
            return True
    user_end = bisect_right(lane.users, before, key=attrgetter("number"))
    users = lane.users[max(0, user_end - MAX_REQUESTS) : user_end]
    return any(name in message.text and _may_hold_file(message.text, name) for message in users)


def _may_hold_file(text: str, name: str) -> bool:
    """Whether a message may contain the file: its name heads a block, or what follows is long."""
    before, _, after = text.partition(name)
    first_line, _, rest = after.partition("\n")
    if len(rest) > MAX_MESSAGE_CHARS or "```" in rest:
        return True
    heading = [*before.rpartition("\n")[2].split(), *first_line.split()]
    return bool(rest.strip()) and len(heading) <= MAX_HEADING_WORDS
