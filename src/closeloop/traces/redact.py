"""Take secrets out of what is to be kept.

A whole record is looked through at once, as JSON, for the few words that every secret is near;
only where that finds something are its texts taken one by one. What is found is replaced by
`[redacted: RULE]`, so that a second look finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from closeloop.model.record import Record
from closeloop.traces import secrets

Kept = TypeVar("Kept", bound=Record)
Found = tuple[int, int, str]
"""Where a secret begins and ends, and the rule that says so."""

_Form = tuple[str, re.Pattern[bytes], int, float]
_GROUP = 48
"""Up to about this many words at once are searched for at memory speed."""
_MOST_PASSES = 8
_SEPARATORS = secrets.SEPARATORS.encode()


def redact(record: Kept) -> tuple[Kept, dict[str, int]]:
    """The record without secrets, and how many were taken out by which rule."""
    counts: dict[str, int] = {}
    try:
        if next(find(msgspec.json.encode(record)), None) is None:
            return record, counts
    except (UnicodeEncodeError, RecursionError):
        pass  # not everything can be encoded, but every text can be looked at
    return _clean(record, counts), counts


def find(data: bytes) -> Iterator[Found]:
    """Every secret, in the order of the words that lead to them."""
    for searcher, forms in _searchers():
        for word, start, end in searcher.find_matches_as_indexes(data):
            yield from _at(data, forms[word], start, end)


def redact_text(text: str, counts: dict[str, int]) -> str:
    """The text without secrets; they are added to the counts."""
    data = text.encode("utf-8", "surrogatepass")
    for _ in range(_MOST_PASSES):
        found = sorted(find(data), key=lambda each: (each[0], -each[1]))
        if not found:
            return text
        pieces, place = [], 0
        for start, end, rule in found:
            if start >= place:
                pieces += [data[place:start], f"[redacted: {rule}]".encode()]
                counts[rule] = counts.get(rule, 0) + 1
                place = end
        data = b"".join([*pieces, data[place:]])
        text = data.decode("utf-8", "surrogatepass")
    return text


def _clean(value: Any, counts: dict[str, int]) -> Any:
    """A value with all texts in it redacted; itself where that changes nothing."""
    match value:
        case str():
            return redact_text(value, counts)
        case msgspec.Struct():
            before = {name: getattr(value, name) for name in value.__struct_fields__}
            after = {name: _clean(each, counts) for name, each in before.items()}
            changed = {name: each for name, each in after.items() if each is not before[name]}
            return msgspec.structs.replace(value, **changed) if changed else value
        case dict():
            return {_clean(key, counts): _named(key, each, counts) for key, each in value.items()}
        case list() | tuple():
            cleaned = [_clean(each, counts) for each in value]
            if all(one is other for one, other in zip(cleaned, value, strict=True)):
                return value
            return type(value)(cleaned)
    return value


def _named(key: Any, value: Any, counts: dict[str, int]) -> Any:
    """A value that stands under a name, which may be a secret's."""
    if isinstance(key, str) and isinstance(value, str) and len(value) <= 512:
        pair = msgspec.json.encode({key.encode("utf-8", "replace").decode(): "?"})
        written = value.encode("utf-8", "replace")
        for start, end, rule in find(pair.replace(b'"?"', b'"' + written + b'"')):
            if end - start == len(written):
                counts[rule] = counts.get(rule, 0) + 1
                return f"[redacted: {rule}]"
    return _clean(value, counts)


def _at(data: bytes, forms: tuple[Any, ...], start: int, end: int) -> Iterator[Found]:
    for form in forms:
        found = form(data, start, end) if callable(form) else _formed(data, form, start)
        if found is not None:
            yield found


def _formed(data: bytes, form: _Form, start: int) -> Found | None:
    """A secret that is known by its own form."""
    rule, pattern, back, entropy = form
    for place in range(max(start - back, 0), start + 1) if back else (start,):
        if match := pattern.match(data, place):
            group = 1 if pattern.groups else 0
            if entropy == 0 or secrets.entropy(match[group].decode("latin-1")) >= entropy:
                return (*match.span(group), rule)
            return None
    return None


def _assigned(data: bytes, start: int, end: int) -> Found | None:
    """A secret that is known by the name it is given to."""
    end = start + len(data[start:end].rstrip(_SEPARATORS))
    if data[end : end + 1].islower():
        return None  # `secrets`, `passwords`: many names, or another word
    word = data[start:end]
    password = word.lower() in secrets.PASSWORDS
    if match := secrets.QUOTED_VALUE.match(data, end):
        listed = b"," in data[match.start(2) - 3 : match.start(2)]
        by_people = password and not match[1] and not listed
    elif data[max(start - 2, 0) : start] == b"--" and (
        match := secrets.FLAG_VALUE.match(data, end)
    ):
        by_people = password
    elif match := secrets.BARE_VALUE.match(data, end):
        # NAME=value in capitals is how shells and .env files say it; code seldom does.
        shouted = word.isupper() and data[end : end + 1] == b"="
        by_people = password and shouted and not match[1]
    else:
        return None
    place = match.span(match.re.groups)
    value = match[match.re.groups].decode("latin-1")
    if not (secrets.is_random(value) or (by_people and secrets.is_password(value))):
        return None
    if secrets.HARMLESS.search(data[max(start - 11, 0) : start]):
        return None
    return (*place, "password" if password else "assignment")


def _in_address(data: bytes, start: int, end: int) -> Found | None:
    """`scheme://user:password@host`."""
    match = secrets.URL_PASSWORD.match(data, start)
    if match is None:
        return None
    user, value = match[0][3:].split(b":", 1)[0].lower(), match[1].lower()
    common = value == user or value in (
        b"password",
        b"pass",
        b"passwd",
        b"pwd",
        b"secret",
        b"token",
    )
    return None if common or len({*value}) < 3 else (*match.span(1), "url-password")


def _in_header(data: bytes, start: int, end: int) -> Found | None:
    """`Authorization: Bearer …` and `Basic …`."""
    basic = data[start:end].lower() == b"basic"
    match = (secrets.BASIC if basic else secrets.BEARER).match(data, end)
    if match is None or not secrets.is_random(match[1].decode("latin-1")):
        return None
    return (*match.span(1), "authorization")


def _in_curl(data: bytes, start: int, end: int) -> Found | None:
    """`curl -u user:password`."""
    match = secrets.CURL_USER.match(data, start)
    if match is None or not secrets.is_password(match[1].decode("latin-1") + "1"):
        return None
    return (*match.span(1), "curl-user")


@cache
def _searchers() -> list[tuple[BytesAhoCorasick, list[tuple[Any, ...]]]]:
    """Groups of words, each with what may stand there."""
    table: dict[str, list[Any]] = {}
    for form in secrets.FORMS:
        pattern = re.compile(form.pattern.encode())
        for word in form.words.split():
            table.setdefault(word, []).append((form.rule, pattern, form.back, form.entropy))
    for word in secrets.names():
        table.setdefault(word, []).append(_assigned)
    for word in ("Bearer", "bearer", "Basic", "basic"):
        table.setdefault(word, []).append(_in_header)
    table["://"] = [_in_address]
    table["curl "] = [_in_curl]
    # A word that begins another must also find what the longer one stands for, and the reverse.
    for word, forms in table.items():
        forms += [
            form
            for other, others in list(table.items())
            if other != word and word.startswith(other)
            for form in others
            if not callable(form)
        ]
    # Words of one length together: the search looks at as many letters as the shortest has.
    words = sorted(table, key=lambda word: (min(len(word), 4), word))
    short = sum(len(word) < 4 for word in words)
    starts = [0, *range(short, len(words), _GROUP), len(words)]
    groups = [words[first:last] for first, last in pairwise(starts)]
    return [
        (
            BytesAhoCorasick(
                [word.encode() for word in group],
                matchkind=MatchKind.LeftmostLongest,
                implementation=Implementation.DFA,
            ),
            [tuple(table[word]) for word in group],
        )
        for group in groups
    ]
