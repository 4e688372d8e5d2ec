"""Find secrets in any text: a quick search for the few words that every secret is near."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from typing import Any

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from closeloop.model import secrets

Found = tuple[int, int, str]
"""Where a secret begins and ends, and the rule that says so."""

_Form = tuple[str, re.Pattern[bytes], int, float]
_GROUP = 60
"""Up to about this many words at once are searched for at memory speed."""
_MOST_PASSES = 8
_LONGEST_ADDRESS = len("://") + 80 + len(":") + 120 * len("%20")
"""As far before its `@` as `secrets.URL_PASSWORD` reaches."""
_SEPARATORS = secrets.SEPARATORS.encode()


def find(data: bytes) -> Iterator[Found]:
    """Every secret, in the order of the words that lead to them."""
    for searcher, forms in _searchers():
        for word, start, end in searcher.find_matches_as_indexes(data):
            for form in forms[word]:
                found = form(data, start, end)
                if found is not None:
                    yield found
    yield from _in_addresses(data)


def without(data: bytes, counts: dict[str, int]) -> bytes:
    """The same with `[redacted: RULE]` for every secret; they are added to the counts."""
    for _ in range(_MOST_PASSES):
        found = sorted(find(data), key=lambda each: (each[0], -each[1]))
        if not found:
            return data
        kept, place = [], 0
        for start, end, rule in found:
            if start >= place:
                kept += [data[place:start], f"[redacted: {rule}]".encode()]
                counts[rule] = counts.get(rule, 0) + 1
                place = end
        data = b"".join([*kept, data[place:]])
    return data


def _formed(form: _Form, data: bytes, start: int, end: int) -> Found | None:
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
    elif data[end : end + 1] in (b" ", b"\t"):
        return _in_prose(data, end, password=password)
    elif password and (match := secrets.VALUE_ATTRIBUTE.match(data, end)):
        by_people = True
    else:
        return None
    place = match.span(match.re.groups)
    value = match[match.re.groups].decode("latin-1")
    if not (
        secrets.is_random(value)
        or (by_people and secrets.is_password(value))
        or (secrets.is_service_key(value) and _names_service(data, start))
    ):
        return None
    if secrets.HARMLESS.search(data[max(start - 11, 0) : start]):
        return None
    return (*place, "password" if password else "assignment")


def _names_service(data: bytes, start: int) -> bool:
    """Whether the name of a value begins with the name of a service."""
    return secrets.SERVICE_NAME.search(data[max(start - 40, 0) : start]) is not None


def _in_prose(data: bytes, end: int, *, password: bool) -> Found | None:
    """`The token is …`: a full stop after it is none of it."""
    match = secrets.PROSE_VALUE.match(data, end)
    if match is None:
        return None
    value = match[1].rstrip(b".,;:!?").decode("latin-1")
    if secrets.is_random(value) or (password and secrets.is_said_password(value)):
        rule = "password" if password else "assignment"
        return match.start(1), match.start(1) + len(value), rule
    return None


def _near(form: _Form, data: bytes, start: int, end: int) -> Found | None:
    """A secret that only counts as one where a word stands near it."""
    rule, pattern, _, entropy = form
    reach = secrets.NEAR_BYTES
    for match in pattern.finditer(data, max(start - reach, 0), end + reach):
        if secrets.entropy(match[0].decode("latin-1")) >= entropy:
            return (*match.span(), rule)
    return None


def _in_base64(data: bytes, start: int, end: int) -> Found | None:
    """A JSON web token in base64."""
    match = secrets.JWT_IN_BASE64.match(data, start)
    if match is None:
        return None
    letters = re.sub(rb"\\.", b"", match[0]).rstrip(b"=")
    decoded = base64.urlsafe_b64decode(letters.replace(b"+", b"-").replace(b"/", b"_") + b"==")
    return (*match.span(), "json-web-token") if secrets.JWT.match(decoded) else None


def _in_kubernetes(data: bytes, start: int, end: int) -> Found | None:
    """The values of a `kind: Secret`, before or after it in the same document."""
    above = data.rfind(b"---", max(start - 2000, 0), start)
    below = data.find(b"---", end, end + 2000)
    place = max(start - 2000, 0) if above < 0 else above
    match = secrets.KUBERNETES_DATA.search(data, place, end + 2000 if below < 0 else below)
    return None if match is None else (*match.span(1), "kubernetes-secret")


def _in_addresses(data: bytes) -> Iterator[Found]:
    """Texts are full of addresses, and few have an `@`: only the last before one may matter."""
    end = 0
    while (at := data.find(b"@", end)) >= 0:
        start = data.rfind(b"://", max(end, at - _LONGEST_ADDRESS), at)
        if start >= 0 and (found := _in_address(data, start)) is not None:
            yield found
        end = at + 1


def _in_address(data: bytes, start: int) -> Found | None:
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


def _given_to(pattern: re.Pattern[bytes], rule: str) -> Callable[[bytes, int, int], Found | None]:
    """A password that a command line or a file of logins has at a known place."""

    def found(data: bytes, start: int, end: int) -> Found | None:
        match = pattern.match(data, start)
        if match is None or not secrets.is_chosen(match[1].decode("latin-1")):
            return None
        return (*match.span(1), rule)

    return found


def _in_docker_config(data: bytes, start: int, end: int) -> Found | None:
    """`"auth": "…"`, a user's name and password in base64."""
    match = secrets.DOCKER_AUTH.match(data, start)
    if match is None:
        return None
    try:
        user, colon, word = base64.b64decode(match[1], validate=True).decode().partition(":")
    except ValueError:
        return None
    chosen = user.isprintable() and colon and secrets.is_chosen(word)
    return (*match.span(1), "docker-auth") if chosen else None


def _searched(form: Any) -> Any:
    return form if callable(form) else partial(_formed, form)


@cache
def _searchers() -> list[tuple[BytesAhoCorasick, list[tuple[Any, ...]]]]:
    """Groups of words, each with what may stand there."""
    table: dict[str, list[Any]] = {}
    for form in secrets.FORMS:
        pattern = re.compile(form.pattern.encode())
        for word in form.words.split():
            table.setdefault(word, []).append((form.rule, pattern, form.back, form.entropy))
    for form in secrets.NEAR:
        near = (form.rule, re.compile(form.pattern.encode()), 0, form.entropy)
        for word in form.words.split():
            table.setdefault(word, []).append(partial(_near, near))
    table["ZXlK"] = [_in_base64]
    table["kind: Secret"] = [_in_kubernetes]
    for word in secrets.names():
        table.setdefault(word, []).append(_assigned)
    for word in ("Bearer", "bearer", "Basic", "basic"):
        table.setdefault(word, []).append(_in_header)
    table["curl "] = [_given_to(secrets.CURL_USER, "curl-user")]
    table["sshpass "] = [_given_to(secrets.SSHPASS, "sshpass")]
    for word in ("machine", "default login"):
        table[word] = [_given_to(secrets.NETRC, "netrc")]
    for word in secrets.MYSQL_PROGRAMS.split():
        table[f"{word} "] = [_given_to(secrets.MYSQL, "mysql-password")]
    for quote in "\"'\\":
        table[f"auth{quote}"] = [_in_docker_config]
    # A word that begins another must also find what the longer one stands for, and the reverse.
    begun = {
        word: [
            form
            for size in range(1, len(word))
            for form in table.get(word[:size], ())
            if not callable(form)
        ]
        for word in table
    }
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
            [tuple(map(_searched, (*table[word], *begun[word]))) for word in group],
        )
        for group in groups
    ]
