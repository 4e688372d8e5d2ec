"""What an attempt is found by: a title that a person would say aloud, and the words of its work."""

from __future__ import annotations

import re
from itertools import islice

from closeloop.records.attempt import Attempt
from closeloop.records.trace import Message, Trace
from closeloop.text.client_markup import strip_client_markup
from closeloop.text.wording import truncate_at_word, truncate_words

MAX_TITLE_CHARS = 100
MAX_DETAIL_CHARS = 240
MAX_REQUEST_CHARS = 20_000
MAX_TITLE_LINES = 60
_SLASH_COMMAND = re.compile(r"<command-name>\s*(/?[^<\n]{1,80}?)\s*</command-name>")
_REQUEST_ELEMENT = re.compile(
    r"<(pr_description|issue_description|issue|problem_statement|task_description|user_query)>"
    r"(.*?)(?:</\1>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
"""Elements in which harnesses put the request itself, among instructions of their own."""
_LINE_MARKUP = re.compile(r"^(?:[#>*\-–•\s]+|\d{1,3}[.)]\s+)+|[*_`#\s]+$")
_NO_TITLE = re.compile(
    r"\W*$|\(no content\)$|\[\[ ## [\w ]+ ## \]\]$|</?[\w:-]+(?: [^<>]*)?>$|```|(?:hi|hello|hey|please|thanks)\b[\s,.!]*$"
    r"|(?:title|task|issue|problem|description|request|user request|summary)\s*:?\s*$"
    r"|(?:.*\b(?:following|below|text|here|description|issue|task|request)\b.*|[^.!?]{0,40}):$",
    re.IGNORECASE,
)
"""Lines that say nothing of what is asked: greetings, labels, and what only announces it."""
_TITLE_LABEL = re.compile(
    r"^(?:title|task|issue|problem|request|user request)\s*:\s+", re.IGNORECASE
)


def describe_attempt(
    attempt: Attempt, trace: Trace | None, title: str | None = None
) -> tuple[str | None, str | None]:
    """Its title and what the request says besides, both without secrets where the trace is."""
    request = find_request(trace) if trace else ""
    known_title = title or attempt.task
    if known_title:
        return truncate_at_word(known_title, MAX_TITLE_CHARS), _shorten_detail(request)
    lines = request.splitlines()
    for number, line in enumerate(lines[:MAX_TITLE_LINES]):
        plain_line = _TITLE_LABEL.sub("", _LINE_MARKUP.sub("", line))
        if not _NO_TITLE.match(plain_line):
            first = truncate_at_word(plain_line, MAX_TITLE_CHARS)
            cut = plain_line[len(first) - 1 :] if first.endswith("…") else ""
            return first, _shorten_detail("\n".join((cut, *lines[number + 1 :])))
    first_line = truncate_at_word(request, MAX_TITLE_CHARS) if request else None
    return first_line, None


def find_request(trace: Trace) -> str:
    """The user's first request, without what the client put around it; empty where nobody spoke.

    A slash command without words is named by its name.
    """
    root = next((lane.id for lane in trace.lanes if lane.parent is None), None)
    said = [
        event
        for event in trace.events[:MAX_TITLE_LINES]
        if isinstance(event, Message)
        and event.role == "user"
        and event.lane == (root or event.lane)
    ]
    # Where the recording holds no request, the agent's first words come nearest to it.
    answers = (
        event for event in trace.events if isinstance(event, Message) and event.role == "agent"
    )
    said.sort(key=lambda one: one.intent != "request")
    for message in (*said, *islice(answers, 5)):
        text = message.text[:MAX_REQUEST_CHARS]
        command = _SLASH_COMMAND.search(text)
        if element := _REQUEST_ELEMENT.search(text):
            text = element[2]
        words = strip_client_markup(text)
        if command:
            return f"{command[1]} {words}".strip()
        if words and not _NO_TITLE.match(words):
            return words
    return ""


def _shorten_detail(text: str) -> str | None:
    return truncate_words(text[: 4 * MAX_DETAIL_CHARS], MAX_DETAIL_CHARS) or None
