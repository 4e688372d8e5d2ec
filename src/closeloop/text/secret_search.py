"""Find secrets in any text: a quick search for the few words that every secret is near."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from typing import Any

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from closeloop.text import secret_forms

SecretSpan = tuple[int, int, str]
"""Where a secret begins and ends, and the rule that says so."""

_CompiledForm = tuple[str, re.Pattern[bytes], int, float]
_WORDS_PER_GROUP = 60
"""Up to about this many words at once are searched for at memory speed."""
_MAX_PASSES = 8
_MAX_URL_BYTES = len("://") + 80 + len(":") + 120 * len("%20")
"""As far before its `@` as `secrets.URL_PASSWORD` reaches."""
_SEPARATORS = secret_forms.NAME_SEPARATORS.encode()


def find_secrets(data: bytes) -> Iterator[SecretSpan]:
    """Every secret, in the order of the words that lead to them."""
    for searcher, forms in _build_searchers():
        for word, start, end in searcher.find_matches_as_indexes(data):
            for form in forms[word]:
                span = form(data, start, end)
                if span is not None:
                    yield span
    yield from _search_urls(data)


def redact_secrets(data: bytes, counts: dict[str, int]) -> bytes:
    """The same with `[redacted: RULE]` for every secret; they are added to the counts."""
    for _ in range(_MAX_PASSES):
        spans = sorted(find_secrets(data), key=lambda each: (each[0], -each[1]))
        if not spans:
            return data
        kept, place = [], 0
        for start, end, rule in spans:
            if start >= place:
                kept += [data[place:start], f"[redacted: {rule}]".encode()]
                counts[rule] = counts.get(rule, 0) + 1
                place = end
        data = b"".join([*kept, data[place:]])
    return data


def _match_form(form: _CompiledForm, data: bytes, start: int, end: int) -> SecretSpan | None:
    """A secret that is known by its own form."""
    rule, pattern, back, entropy = form
    for place in range(max(start - back, 0), start + 1) if back else (start,):
        if match := pattern.match(data, place):
            group = 1 if pattern.groups else 0
            if (
                entropy == 0
                or secret_forms.shannon_entropy(match[group].decode("latin-1")) >= entropy
            ):
                return (*match.span(group), rule)
            return None
    return None


def _match_assignment(data: bytes, start: int, end: int) -> SecretSpan | None:
    """A secret that is known by the name it is given to."""
    end = start + len(data[start:end].rstrip(_SEPARATORS))
    if data[end : end + 1].islower():
        return None  # `secrets`, `passwords`: many names, or another word
    word = data[start:end]
    password = word.lower() in secret_forms.PASSWORD_WORDS
    if match := secret_forms.QUOTED_VALUE.match(data, end):
        listed = b"," in data[match.start(2) - 3 : match.start(2)]
        by_people = password and not match[1] and not listed
    elif data[max(start - 2, 0) : start] == b"--" and (
        match := secret_forms.FLAG_VALUE.match(data, end)
    ):
        by_people = password
    elif match := secret_forms.BARE_VALUE.match(data, end):
        # NAME=value in capitals is how shells and .env files say it; code seldom does.
        shouted = word.isupper() and data[end : end + 1] == b"="
        by_people = password and shouted and not match[1]
    elif data[end : end + 1] in (b" ", b"\t"):
        return _match_prose(data, end, password=password)
    elif password and (match := secret_forms.VALUE_ATTRIBUTE.match(data, end)):
        by_people = True
    else:
        return None
    place = match.span(match.re.groups)
    value = match[match.re.groups].decode("latin-1")
    if not (
        secret_forms.is_random(value)
        or (by_people and secret_forms.is_password(value))
        or (secret_forms.is_service_key(value) and _names_service(data, start))
    ):
        return None
    if secret_forms.HARMLESS_PREFIX.search(data[max(start - 11, 0) : start]):
        return None
    return (*place, "password" if password else "assignment")


def _names_service(data: bytes, start: int) -> bool:
    """Whether the name of a value begins with the name of a service."""
    return secret_forms.SERVICE_NAME.search(data[max(start - 40, 0) : start]) is not None


def _match_prose(data: bytes, end: int, *, password: bool) -> SecretSpan | None:
    """`The token is …`: a full stop after it is none of it."""
    match = secret_forms.PROSE_VALUE.match(data, end)
    if match is None:
        return None
    value = match[1].rstrip(b".,;:!?").decode("latin-1")
    if secret_forms.is_random(value) or (password and secret_forms.is_said_password(value)):
        rule = "password" if password else "assignment"
        return match.start(1), match.start(1) + len(value), rule
    return None


def _match_nearby(form: _CompiledForm, data: bytes, start: int, end: int) -> SecretSpan | None:
    """A secret that only counts as one where a word stands near it."""
    rule, pattern, _, entropy = form
    reach = secret_forms.NEAR_BYTES
    for match in pattern.finditer(data, max(start - reach, 0), end + reach):
        if secret_forms.shannon_entropy(match[0].decode("latin-1")) >= entropy:
            return (*match.span(), rule)
    return None


def _match_base64_token(data: bytes, start: int, end: int) -> SecretSpan | None:
    """A JSON web token in base64."""
    match = secret_forms.JWT_IN_BASE64.match(data, start)
    if match is None:
        return None
    letters = re.sub(rb"\\.", b"", match[0]).rstrip(b"=")
    decoded = base64.urlsafe_b64decode(letters.replace(b"+", b"-").replace(b"/", b"_") + b"==")
    return (*match.span(), "json-web-token") if secret_forms.JWT.match(decoded) else None


def _match_kubernetes(data: bytes, start: int, end: int) -> SecretSpan | None:
    """The values of a `kind: Secret`, before or after it in the same document."""
    above = data.rfind(b"---", max(start - 2000, 0), start)
    below = data.find(b"---", end, end + 2000)
    place = max(start - 2000, 0) if above < 0 else above
    match = secret_forms.KUBERNETES_DATA.search(data, place, end + 2000 if below < 0 else below)
    return None if match is None else (*match.span(1), "kubernetes-secret")


def _search_urls(data: bytes) -> Iterator[SecretSpan]:
    """Texts are full of addresses, and few have an `@`: only the last before one may matter."""
    end = 0
    while (at := data.find(b"@", end)) >= 0:
        start = data.rfind(b"://", max(end, at - _MAX_URL_BYTES), at)
        if start >= 0 and (span := _match_url_password(data, start)) is not None:
            yield span
        end = at + 1


def _match_url_password(data: bytes, start: int) -> SecretSpan | None:
    """`scheme://user:password@host`."""
    match = secret_forms.URL_PASSWORD.match(data, start)
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


def _match_header(data: bytes, start: int, end: int) -> SecretSpan | None:
    """`Authorization: Bearer …` and `Basic …`."""
    basic = data[start:end].lower() == b"basic"
    match = (secret_forms.BASIC_CREDENTIALS if basic else secret_forms.BEARER_TOKEN).match(
        data, end
    )
    if match is None or not secret_forms.is_random(match[1].decode("latin-1")):
        return None
    return (*match.span(1), "authorization")


def _password_matcher(
    pattern: re.Pattern[bytes], rule: str
) -> Callable[[bytes, int, int], SecretSpan | None]:
    """A password that a command line or a file of logins has at a known place."""

    def match_password(data: bytes, start: int, end: int) -> SecretSpan | None:
        match = pattern.match(data, start)
        if match is None or not secret_forms.is_chosen_password(match[1].decode("latin-1")):
            return None
        return (*match.span(1), rule)

    return match_password


def _match_docker_auth(data: bytes, start: int, end: int) -> SecretSpan | None:
    """`"auth": "…"`, a user's name and password in base64."""
    match = secret_forms.DOCKER_AUTH.match(data, start)
    if match is None:
        return None
    try:
        user, colon, word = base64.b64decode(match[1], validate=True).decode().partition(":")
    except ValueError:
        return None
    chosen = user.isprintable() and colon and secret_forms.is_chosen_password(word)
    return (*match.span(1), "docker-auth") if chosen else None


def _as_matcher(form: Any) -> Any:
    return form if callable(form) else partial(_match_form, form)


@cache
def _build_searchers() -> list[tuple[BytesAhoCorasick, list[tuple[Any, ...]]]]:
    """Groups of words, each with what may stand there."""
    table: dict[str, list[Any]] = {}
    for form in secret_forms.SECRET_FORMS:
        pattern = re.compile(form.pattern.encode())
        for word in form.words.split():
            table.setdefault(word, []).append((form.rule, pattern, form.back, form.entropy))
    for form in secret_forms.NEARBY_FORMS:
        near = (form.rule, re.compile(form.pattern.encode()), 0, form.entropy)
        for word in form.words.split():
            table.setdefault(word, []).append(partial(_match_nearby, near))
    table["ZXlK"] = [_match_base64_token]
    table["kind: Secret"] = [_match_kubernetes]
    for word in secret_forms.secret_name_words():
        table.setdefault(word, []).append(_match_assignment)
    for word in ("Bearer", "bearer", "Basic", "basic"):
        table.setdefault(word, []).append(_match_header)
    table["curl "] = [_password_matcher(secret_forms.CURL_USER, "curl-user")]
    table["sshpass "] = [_password_matcher(secret_forms.SSHPASS_PASSWORD, "sshpass")]
    for word in ("machine", "default login"):
        table[word] = [_password_matcher(secret_forms.NETRC_PASSWORD, "netrc")]
    for word in secret_forms.MYSQL_PROGRAMS.split():
        table[f"{word} "] = [_password_matcher(secret_forms.MYSQL_PASSWORD, "mysql-password")]
    for quote in "\"'\\":
        table[f"auth{quote}"] = [_match_docker_auth]
    # A word that begins another must also find what the longer one stands for, and the reverse.
    shorter_forms = {
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
    starts = [0, *range(short, len(words), _WORDS_PER_GROUP), len(words)]
    groups = [words[first:last] for first, last in pairwise(starts)]
    return [
        (
            BytesAhoCorasick(
                [word.encode() for word in group],
                matchkind=MatchKind.LeftmostLongest,
                implementation=Implementation.DFA,
            ),
            [tuple(map(_as_matcher, (*table[word], *shorter_forms[word]))) for word in group],
        )
        for group in groups
    ]
