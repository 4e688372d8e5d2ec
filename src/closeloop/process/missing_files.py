"""Files that a lane wanted to read and that are not there, and who passes them off as read."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from closeloop.process.agent_claims import parse_claim
from closeloop.process.rule_helpers import cache_on_reading
from closeloop.process.stale_files import error_mentions
from closeloop.process.text_words import compile_phrases, split_sentences
from closeloop.records.inspection import LaneReading, TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Command, Message, Read
from closeloop.text.client_markup import is_client_text, strip_client_markup

ABSENT_MESSAGES = ("no such file", "not exist", "not found", "cannot find", "enoent")
MAX_REQUESTS = 10
MAX_MESSAGES = 50
MAX_STEPS = 300
MAX_MESSAGE_CHARS = 6000

_ABSENT_LINE = re.compile(
    r"\b(?:cat|head|tail|sed|less|more|nl|bat): (?:can't read |cannot open ['‘]?)?"
    r"([^\s:'’]+)['’]?(?: for reading)?: No such file"
)
_ABSENCE = compile_phrases(
    "not", "no", "none", "empty", r"miss\w*", "absent", r"fail\w*", "unable", "cannot", "can't",
    "couldn't", "could ?n['’]t", "didn't", "doesn't", "does ?n['’]t", "isn't", "without",
    "instead", "nowhere", r"creat\w*", "new file", "wrong path", "ausente", "fehlt", "nicht",
    "pas", "manca", "non", "não", "no existe", "нет",
)  # fmt: skip
_INTENTION = re.compile(
    r"\b(?:let me|i'?ll|i will|i'm going to|need to|try(?:ing)?|look(?:ing)? for|should|would|could"
    r"|want to|please|can you|shall i|next)\b|\?"
)
_SOURCE_BEFORE = re.compile(
    r"(?:\b(?:according to|in line with|consistent with|based on|follow(?:s|ing|ed)?|per|obey\w*"
    r"|conform\w*(?: to)?|adher\w+(?: to)?|compl(?:y|ies|ying|iant)(?: with)?|match(?:es|ing|ed)?"
    r"|(?:as )?(?:described|specified|stated|defined|required|documented|outlined|laid out|noted"
    r"|mentioned|shown|listed|prescribed) (?:in|by)|i (?:have |'ve )?(?:read|reviewed|checked"
    r"|consulted|studied|looked at)|after (?:reading|reviewing|checking))"
    r"(?: (?:the|your|our|its|with|all|what|rules?|conventions?|guide\w*|instructions?|spec\w*"
    r"|rules of|conventions (?:of|in)|guidelines (?:of|in)|style (?:of|in)|of|in|from|laid down))*"
    r"[ `'\"*(]*)$"
)
_SOURCE_AFTER = re.compile(
    r"^[`'\"*)]*,? (?:says|states|defines|specifies|requires|shows|describes|confirms|prescribes"
    r"|asks for|demands|wants|sets|lists)\b"
)


_ASKED_SOURCE = re.compile(
    r"\b(?:follow(?:ing)?|obey(?:ing)?|according to|in line with|based on|per"
    r"|what (?:does|do|is|are)"
    r"|as (?:described|specified|stated|defined|documented|laid out|told) (?:in|by)"
    r"|(?:rules|conventions|guidelines|style|spec|specification|schema|format|instructions|values?"
    r"|settings?|limits?) (?:in|of|from)|read|use|apply|take|copy|summari[sz]e|explain|describe"
    r"|look at|see|check|open)\b[^.\n]{0,40}$"
)


class MissingFile(Record):
    """A read that found no file."""

    step: TraceStep
    path: str
    admitted: bool
    """The lane says that it is missing, or asks."""
    bluff: Message | None = None
    """Words that pass the file off as read, or claim the work that was to be done by it."""


@cache_on_reading
def list_missing_files(lane: LaneReading) -> Sequence[MissingFile]:
    """Every read of a file that was not there, in order."""
    return [
        _describe_missing_file(lane, step, path)
        for step in lane.failing
        for path in _absent_paths(step)
    ]


def _describe_missing_file(lane: LaneReading, step: TraceStep, path: str) -> MissingFile:
    name = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    messages = _messages_until_user(lane, step.number)
    admitted = any(_admits_absence(one, name) for one in messages)
    bluff = None if admitted else _find_bluff(lane, step, name, messages)
    return MissingFile(step=step, path=path, admitted=admitted, bluff=bluff)


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
    """The first message that relies on the file, where the lane never saw one of that name."""
    if "." not in name.strip(".") or not messages:
        return None
    bluff = next((one for one in messages if _passes_off(one, name)), None)
    if bluff is None and _is_asked_source(lane, step.number, name):
        bluff = _answer_without_file(lane, step.number, messages)
    if bluff is None or _saw_file(lane, name, before=bluff.number):
        return None
    return bluff


def _answer_without_file(
    lane: LaneReading, after: int, messages: Sequence[Message]
) -> Message | None:
    """A claim on changed code, or an answer, that does not say that anything is missing."""
    at = bisect_right(lane.changes, after, key=attrgetter("number"))
    if at < len(lane.changes):
        later = (one for one in messages if one.number > lane.changes[at].number)
        return next((one for one in later if parse_claim(one)), None)
    answer = messages[-1]
    texts = [one.text[:MAX_MESSAGE_CHARS].casefold() for one in messages]
    if any(map(_ABSENCE, texts)) or _INTENTION.search(texts[-1]):
        return None
    return answer if len(answer.text.split()) > 4 else None


def _is_asked_source(lane: LaneReading, before: int, name: str) -> bool:
    """The user said to work by that file."""
    spoken = bisect_right(lane.users, before, key=attrgetter("number"))
    return any(
        name in sentence and _ASKED_SOURCE.search(sentence.partition(name)[0].casefold())
        for message in lane.users[max(0, spoken - MAX_REQUESTS) : spoken]
        if name in message.text
        for sentence in split_sentences(strip_client_markup(message.text))
    )


def _messages_until_user(lane: LaneReading, after: int) -> Sequence[Message]:
    at = bisect_right(lane.messages, after, key=attrgetter("number"))
    said: list[Message] = []
    for message in lane.messages[at : at + MAX_MESSAGES]:
        if message.role == "user" and not is_client_text(message.text):
            break
        if message.role == "agent":
            said.append(message)
    return said


def _passes_off(message: Message, name: str) -> bool:
    text = message.text[:MAX_MESSAGE_CHARS]
    if name not in text:
        return False
    for sentence in split_sentences(text):
        plain, sought = sentence.casefold().replace("’", "'"), name.casefold()
        if sought not in plain or _ABSENCE(plain) or _INTENTION.search(plain):
            continue
        before, _, after = plain.partition(sought)
        # The folder that stands before the name belongs to it.
        before = re.sub(r"[\w./~-]*$", "", before)
        if _SOURCE_BEFORE.search(before) or _SOURCE_AFTER.search(after):
            return True
    return False


def _admits_absence(message: Message, name: str) -> bool:
    text = message.text[:MAX_MESSAGE_CHARS]
    return message.intent == "question" or (
        name in text
        and any(name in one and _ABSENCE(one.casefold()) for one in split_sentences(text))
    )


def _saw_file(lane: LaneReading, name: str, before: int) -> bool:
    """A file of that name was shown, written or searched by the lane, or told by the user."""
    end = bisect_right(lane.steps, before, key=attrgetter("number"))
    for step in lane.steps[max(0, end - MAX_STEPS) : end]:
        if any(one.rpartition("/")[2] == name for one in (*step.read, *step.written)):
            return True
        event = step.event
        if isinstance(event, Command) and not step.failed and name in event.command:
            return True
    spoken = bisect_right(lane.users, before, key=attrgetter("number"))
    users = lane.users[max(0, spoken - MAX_REQUESTS) : spoken]
    return any(name in message.text and "\n" in message.text.strip() for message in users)
