"""What an attempt is found by: a title, and the words of its work."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from closeloop.records.attempt import Attempt
from closeloop.records.record import Record
from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Message, Read, ToolUse, Trace
from closeloop.text.client_markup import strip_client_markup
from closeloop.text.wording import compile_lazily, truncate_at_word, truncate_words

MAX_TITLE_CHARS = 100
NO_REQUEST = "(no request recorded)"
MAX_DETAIL_CHARS = 240
MAX_REQUEST_CHARS = 20_000
MAX_REQUEST_LINE_CHARS = 400
MAX_TITLE_LINES = 60
MIN_WRAPPED_CHARS = 60
"""Shorter lines end where their author wanted."""
_SLASH_COMMAND = compile_lazily(r"<command-name>\s*(/?[^<\n]{1,80}?)\s*</command-name>")
_REQUEST_ELEMENT = compile_lazily(
    r"<(pr_description|issue_description|issue|problem_statement|task_description|user_query)>"
    r"(.*?)(?:</\1>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
"""Elements in which harnesses put the request, among their own instructions."""
_REQUEST_HEADING = compile_lazily(
    r"^#{1,4} *(?:problem statement|issue description|user request|task description)[ \t:]*$",
    re.MULTILINE | re.IGNORECASE,
)
_LIST_NUMBER = compile_lazily(r"\d{1,3}[.)]\s+")
_CONTINUATION = compile_lazily(r"(?!\d{1,3}[.)]\s|```)[^\W_]|(?!```)[`'\"(“‘]")
"""The start of a line that continues a sentence: no list, heading or fence."""
_NO_TITLE = compile_lazily(
    r"\W*$|\(no content\)$|\[\[ ## [\w ]+ ## \]\]$|</?[\w:-]+(?: [^<>]*)?>$|```"
    r"|(?:hi|hello|hey|please|thanks)\b[\s,.!]*$"
    r"|(?:title|task|issue|problem|description|request|user request|summary)\s*:?\s*$"
    r"|(?:.*\b(?:following|below|text|here|description|issue|task|request)\b.*|[^.!?]{0,40}):$",
    re.IGNORECASE,
)
"""Lines without content: greetings, labels and announcements."""
_TITLE_LABEL = compile_lazily(
    r"^(?:title|task|issue|problem|request|user request)\s*:\s+", re.IGNORECASE
)


def describe_attempt(
    attempt: Attempt, trace: Trace | None, title: str | None = None
) -> tuple[str | None, str | None]:
    """Return the title and the rest of the request, redacted if the trace is."""
    request = find_request(trace) if trace else ""
    known_title = title or attempt.task
    if known_title:
        return truncate_at_word(known_title, MAX_TITLE_CHARS), _shorten_detail(request)
    lines = request.splitlines()
    for number, line in enumerate(lines[:MAX_TITLE_LINES]):
        plain_line = _plain_line(line)
        if not _NO_TITLE.match(plain_line[:MAX_REQUEST_LINE_CHARS]):
            wrapped_count = _count_wrapped_lines(lines[number:MAX_TITLE_LINES])
            text = " ".join((plain_line, *map(str.strip, lines[number + 1 :][:wrapped_count])))
            first = truncate_at_word(text, MAX_TITLE_CHARS)
            cut = text[len(first) - 1 :] if first.endswith("…") else ""
            return first, _shorten_detail("\n".join((cut, *lines[number + 1 + wrapped_count :])))
    if request:
        return truncate_at_word(request, MAX_TITLE_CHARS), None
    return (_title_without_request(trace) if trace and trace.events else None), None


def _count_wrapped_lines(lines: Sequence[str]) -> int:
    """Return how many of the lines after the first continue its sentence: text wrapped by hand."""
    count = 0
    for line, next_line in pairwise(lines):
        ends = len(line) < MIN_WRAPPED_CHARS or line.rstrip().endswith((".", "!", "?", ":"))
        if ends or line.startswith("#") or not _CONTINUATION.match(next_line):
            break
        count += 1
    return count


def _title_without_request(trace: Trace) -> str:
    """Say that no request is recorded, and name the first file changed, or the first action."""
    edits = (event.path for event in trace.events if isinstance(event, Edit))
    actions = (
        " ".join(text.split())
        for event in trace.events
        if not isinstance(event, Message)
        for text in _event_texts(event)[:1]
    )
    action = next(edits, None) or next(filter(None, actions), None)
    title = f"{NO_REQUEST} {action}" if action else NO_REQUEST
    return truncate_at_word(title, MAX_TITLE_CHARS)


def find_request(trace: Trace) -> str:
    """Return the user's first request without the client's additions; empty if there is none.

    A slash command without words is represented by its name.
    """
    root = next((lane.id for lane in trace.lanes if lane.parent is None), None)
    messages = [
        event
        for event in trace.events[:MAX_TITLE_LINES]
        if isinstance(event, Message)
        and event.role == "user"
        and event.lane == (root or event.lane)
    ]
    messages.sort(key=lambda message: message.intent != "request")
    for message in messages:
        text = message.text[:MAX_REQUEST_CHARS]
        command = _SLASH_COMMAND.search(text)
        if element := _REQUEST_ELEMENT.search(text):
            text = element[2]
        elif heading := _REQUEST_HEADING.search(text):
            text = text[heading.end() :]
        request = strip_client_markup(text)
        if command:
            return f"{command[1]} {request}".strip()
        if request and not _NO_TITLE.match(request[:MAX_REQUEST_LINE_CHARS]):
            return request
    # The user only sent a greeting.
    texts = (strip_client_markup(message.text[:MAX_REQUEST_CHARS]) for message in messages)
    return next(filter(None, texts), "")


def _plain_line(line: str) -> str:
    """Return a line without the marks of a heading, list or quotation."""
    plain = line.strip().lstrip("#>*-–• \t")
    if number := _LIST_NUMBER.match(plain):
        plain = plain[number.end() :]
    return _TITLE_LABEL.sub("", plain.rstrip("*_`# \t").lstrip("*_ "))


def _shorten_detail(text: str) -> str | None:
    return truncate_words(text[: 4 * MAX_DETAIL_CHARS], MAX_DETAIL_CHARS) or None


# The words that an attempt can be found by, as they are in the record: redacted.

MAX_MESSAGE_CHARS = 4_000
MAX_COMMAND_CHARS = 1_000
"""Characters of one message or command; pasted content comes later in it."""
MAX_SEARCH_CHARS = 500_000
"""Characters of one attempt; a longer one is found by its beginning."""


def collect_search_text(attempt: Attempt, trace: Trace | None, title: str | None) -> str:
    """Collect requests, messages, commands and paths of an attempt, each once."""
    parts: dict[str, None] = dict.fromkeys(filter(None, (title, attempt.task, attempt.repo)))
    chars_left = MAX_SEARCH_CHARS
    for event in trace.events if trace else ():
        for part in _event_texts(event):
            if part not in parts:
                parts[part] = None
                chars_left -= len(part)
        if chars_left < 0:
            break
    else:
        parts |= dict.fromkeys(filter(None, (attempt.summary, attempt.cause)))
    return "\n".join(parts)[:MAX_SEARCH_CHARS]


def _event_texts(event: AnyEvent) -> tuple[str, ...]:
    match event:
        case Message(role=role, text=text):
            return (text[:MAX_MESSAGE_CHARS],) if role != "system" else ()
        case Command(command=command):
            return (command[:MAX_COMMAND_CHARS],)
        case Edit(path=path) | Read(path=path):
            return (path,)
        case Handoff(brief=brief, report=report):
            return (brief[:MAX_MESSAGE_CHARS], (report or "")[:MAX_MESSAGE_CHARS])
        case ToolUse(name=name, arguments=arguments):
            values = (arguments or {}).values()
            return (name, *(value[:MAX_COMMAND_CHARS] for value in values if type(value) is str))
        case _:
            return ()


# Words as both engines index them, and a typed query as words and phrases.

MAX_PHRASES = 16
_SEPARATORS = {code: " " for code in range(128) if not chr(code).isalnum()}
_MARKS = compile_lazily("[\u0300-\u036f\u3099\u309a]+")
_IDEOGRAPH = compile_lazily("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
"""Written without spaces: each is a word, and several in a row are a phrase."""
_BETWEEN_WORDS = compile_lazily(r"[\W_]+")
_TYPED_PART = compile_lazily(r'"([^"]*)"?|(\S+)')
_WORD_START, _WORD_END = r"(?<![^\W_])", r"(?![^\W_])"


class SearchPhrase(Record):
    """Adjacent words without characters that a query could interpret."""

    words: tuple[str, ...]
    is_whole: bool
    """Whether the last word is complete, as in quotes; otherwise it may continue."""


class SearchSnippet(Record):
    """A piece of the text around a match."""

    before: str
    match: str
    after: str


def fold_words(text: str) -> str:
    """Fold to lower case without accents, with spaces for everything else."""
    if not text.isascii():
        text = _MARKS.sub("", unicodedata.normalize("NFKD", text))
        text = _BETWEEN_WORDS.sub(" ", _IDEOGRAPH.sub(r" \g<0> ", text))
    return text.lower().translate(_SEPARATORS)


def parse_search(typed: str) -> tuple[SearchPhrase, ...]:
    """Parse a query: words, their beginnings, and phrases in quotes, all required."""
    phrases: dict[SearchPhrase, None] = {}
    for quoted, bare in _TYPED_PART.findall(typed):
        words = tuple(fold_words(quoted or bare).split())
        if words:
            phrases[SearchPhrase(words=words, is_whole=bool(quoted))] = None
    return tuple(phrases)[:MAX_PHRASES]


MAX_BEFORE_CHARS, MAX_AFTER_CHARS = 60, 140


def find_snippet(text: str, phrases: Sequence[SearchPhrase]) -> SearchSnippet | None:
    """Return the first matching phrase in a text; None if accents hide it."""
    for phrase in phrases:
        if match := _phrase_pattern(phrase).search(text):
            start, end = max(0, match.start() - MAX_BEFORE_CHARS), match.end() + MAX_AFTER_CHARS
            before, after = text[start : match.start()], text[match.end() : end]
            if start > 0:
                before = "…" + before.partition(" ")[2]
            if end < len(text):
                after = after.rpartition(" ")[0] + "…"
            return SearchSnippet(
                before=_one_line(before), match=_one_line(match[0]), after=_one_line(after)
            )
    return None


def _phrase_pattern(phrase: SearchPhrase) -> re.Pattern[str]:
    expression = phrase.words[0]
    for word, next_word in pairwise(phrase.words):
        is_separated = not (_IDEOGRAPH.match(word) and _IDEOGRAPH.match(next_word))
        expression += (r"[\W_]{1,20}" if is_separated else r"[\W_]{0,20}") + next_word
    if not _IDEOGRAPH.match(phrase.words[0]):
        expression = _WORD_START + expression
    if phrase.is_whole and not _IDEOGRAPH.match(phrase.words[-1]):
        expression += _WORD_END
    return re.compile(expression, re.IGNORECASE)


def _one_line(text: str) -> str:
    """Join lines, keeping spaces at the ends."""
    return re.sub(r"\s+", " ", text)
