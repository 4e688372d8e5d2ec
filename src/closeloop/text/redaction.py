"""Take secrets out of what is to be kept: records, and the patches that agents leave."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from closeloop.records.attempt import Grade, Proof, TestRun
from closeloop.records.change import Change
from closeloop.records.record import Record
from closeloop.text.secret_search import find_secrets, redact_secrets
from closeloop.text.untrusted import join_surrogates

# Redact the patches that agents leave: lines, file names and the content of binary files.
#
# A redacted patch has the same lines and the same hunks as the patch it was made of, so that it
# can still be parsed and shown; only an exact patch can be applied where context lines hold a
# secret.

MAX_INFLATED_BYTES = 64 << 20
BINARY_LEFT_OUT = b"[redacted: binary content]"

_HUNK = re.compile(rb"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_BINARY_PART = re.compile(rb"(?:literal|delta) \d+")
_FILE = re.compile(rb"^diff --git ", re.MULTILINE)
_OLD, _NEW = b" -", b" +"

Span = tuple[int, int, str]
"""Where a secret begins and ends in a line, and its rule."""


def redact_change(change: Change) -> Change:
    """Return the change without secrets in its patch and file names; itself if it has none."""
    patch = redact_patch(change.patch)
    files = tuple(
        replace(
            file,
            path=redact_path(file.path),
            old_path=None if file.old_path is None else redact_path(file.old_path),
        )
        for file in change.files
    )
    if patch == change.patch and files == change.files:
        return change
    return replace(change, patch=patch, files=files)


def redact_path(path: str) -> str:
    """Return a path with `[redacted: RULE]` for every secret in the name of a folder or file."""
    return _decode_bytes(_redact_names(_encode_text(path)))


def redact_patch(patch: str) -> str:
    """Return a patch with `[redacted: RULE]` for every secret, line by line."""
    data = _encode_text(patch)
    redacted = b"\n".join(_redact_lines(data.split(b"\n"), known=None))
    return patch if redacted == data else _decode_bytes(redacted)


def redact_new_secrets(patch: str) -> str:
    """Return a patch that applies as before but brings no secret into the repository.

    Secrets in context lines and removed lines stay, as the repository holds them. Binary files
    with a secret in them are left out.
    """
    data = _encode_text(patch)
    places = [found.start() for found in _FILE.finditer(data)]
    starts = [0, *(place for place in places if place > 0)]
    sections = [
        data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)
    ]
    kept = []
    for section in sections:
        lines = section.split(b"\n")
        known = b"\n".join(_side_lines(lines, _OLD))
        is_new = any(line.startswith(b"new file mode ") for line in lines[:3])
        redacted = list(_redact_lines(lines, known=known, names=is_new))
        if BINARY_LEFT_OUT not in redacted:
            kept.append(b"\n".join(redacted))
    redacted_patch = b"".join(kept)
    return patch if redacted_patch == data else _decode_bytes(redacted_patch)


def _redact_lines(
    lines: list[bytes], known: bytes | None, *, names: bool = True
) -> Iterator[bytes]:
    """Redact the lines of a patch; `known` is what the repository holds and may keep."""
    at = 0
    while at < len(lines):
        line = lines[at]
        if header := _HUNK.match(line):
            end = _hunk_end(lines, at + 1, header)
            yield line if known is not None else redact_secrets(line, {})
            yield from _redact_hunk(lines[at + 1 : end], known)
            at = end
        elif _BINARY_PART.fullmatch(line):
            end = next((n for n in range(at + 1, len(lines)) if not lines[n]), len(lines))
            hidden = _holds_secret(lines[at + 1 : end])
            yield from [BINARY_LEFT_OUT] if hidden else lines[at:end]
            at = end
        else:
            yield _redact_names(line) if names else line
            at += 1


def _hunk_end(lines: list[bytes], at: int, header: re.Match[bytes]) -> int:
    """Return the index after the last line that a hunk's header promises."""
    old, new = (1 if size is None else int(size) for size in header.groups())
    while at < len(lines) and (old > 0 or new > 0 or lines[at][:1] == b"\\"):
        sign = lines[at][:1]
        if sign not in b"+-\\ \r":
            break
        old -= sign not in b"+\\" or not sign
        new -= sign not in b"-\\" or not sign
        at += 1
    return at


def _redact_hunk(lines: list[bytes], known: bytes | None) -> Iterator[bytes]:
    """Redact the lines of one hunk; the old and the new text are searched apart."""
    spans: list[list[Span]] = [[] for _ in lines]
    sides = (_NEW,) if known is not None else (_NEW, _OLD)
    for signs in sides:
        numbers = [number for number, line in enumerate(lines) if (line[:1] or b" ") in signs]
        text = b"\n".join(lines[number][1:] for number in numbers)
        for start, end, rule in find_secrets(text):
            if known is None:
                _mark_secret(spans, lines, numbers, (start, end, rule))
            elif text[start:end] not in known:
                added = [number for number in numbers if lines[number][:1] == b"+"]
                _mark_secret(spans, lines, numbers, (start, end, rule), only=added)
    for line, line_spans in zip(lines, spans, strict=True):
        yield line[:1] + _replace_spans(line[1:], line_spans) if line_spans else line


def _mark_secret(
    spans: list[list[Span]],
    lines: list[bytes],
    numbers: list[int],
    secret: Span,
    only: Iterable[int] | None = None,
) -> None:
    """Note a secret at every line that it stands on, by the text that these lines make up."""
    start, end, rule = secret
    place = 0
    for number in numbers:
        size = len(lines[number][1:])
        first, last = max(start - place, 0), min(end - place, size)
        if first < last and (only is None or number in only):
            spans[number].append((first, last, rule))
        place += size + 1
        if place >= end:
            break


def _replace_spans(text: bytes, spans: list[Span]) -> bytes:
    kept, place = [], 0
    for start, end, rule in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start >= place:
            kept += [text[place:start], f"[redacted: {rule}]".encode()]
        place = max(place, end)
    return b"".join([*kept, text[place:]])


def _side_lines(lines: list[bytes], signs: bytes) -> Iterator[bytes]:
    """The old or the new text of all hunks."""
    at = 0
    while at < len(lines):
        if header := _HUNK.match(lines[at]):
            end = _hunk_end(lines, at + 1, header)
            yield from (line[1:] for line in lines[at + 1 : end] if (line[:1] or b" ") in signs)
            at = end
        else:
            at += 1


def _redact_names(line: bytes) -> bytes:
    """Redact each part of a path by itself: a secret may be the whole name of a file."""
    return b"/".join(redact_secrets(part, {}) for part in line.split(b"/"))


def _holds_secret(lines: list[bytes]) -> bool:
    """Whether the base-85 lines of a binary file hold a secret, also in UTF-16."""
    try:
        packed = b"".join(base64.b85decode(line[1:])[: _line_bytes(line)] for line in lines)
        content = zlib.decompressobj().decompress(packed, MAX_INFLATED_BYTES)
    except (ValueError, zlib.error):
        return True  # nobody can say what it holds
    plain = content.replace(b"\0", b"")
    return (
        next(find_secrets(content), None) is not None or next(find_secrets(plain), None) is not None
    )


def _line_bytes(line: bytes) -> int:
    """How many bytes a base-85 line holds, by its first letter."""
    code = line[0]
    return code - ord("A") + 1 if code <= ord("Z") else code - ord("a") + 27


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decode_bytes(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


RecordType = TypeVar("RecordType", bound=Record)

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def redact_record(record: RecordType) -> tuple[RecordType, dict[str, int]]:
    """The record without secrets, and how many were taken out by which rule."""
    counts: dict[str, int] = {}
    try:
        if next(find_secrets(msgspec.json.encode(record)), None) is None:
            return record, counts
    except (UnicodeEncodeError, OverflowError, RecursionError):
        pass  # not everything can be encoded; what is returned can, unless it is nested too deeply
    return _redact_any(record, counts), counts


def redact_value(value: Any) -> Any:
    """Decoded JSON or msgpack without secrets."""
    return _redact_any(value, {})


def redact_json(body: bytes) -> bytes:
    """A JSON document without secrets; as it is where there are none."""
    if next(find_secrets(body), None) is None:
        return body
    try:
        return msgspec.json.encode(_redact_any(msgspec.json.decode(body), {}))
    except (ValueError, OverflowError, RecursionError):
        return redact_secrets(body, {})  # better broken than kept


def redact_text(text: str, counts: dict[str, int]) -> str:
    """The text without secrets; they are added to the counts."""
    data = text.encode("utf-8", "surrogatepass")
    rest = redact_secrets(data, counts)
    return text if rest == data else rest.decode("utf-8", "surrogatepass")


def redact_grade(grade: Grade) -> Grade:
    """Return a grade without secrets: in outputs, messages, names of tests and of files."""
    named = replace(
        grade,
        out_of_scope=tuple(map(redact_path, grade.out_of_scope)),
        restored=tuple(map(redact_path, grade.restored)),
    )
    return redact_record(named)[0]


def redact_proof(proof: Proof) -> Proof:
    """Return a proof without secrets in what its runs printed; later runs need their test ids."""
    return replace(
        redact_record(replace(proof, before=None, reference=None))[0],
        before=None if proof.before is None else _redact_run(proof.before),
        reference=None if proof.reference is None else _redact_run(proof.reference),
    )


def _redact_run(run: TestRun) -> TestRun:
    tests, flaky = run.tests, run.flaky
    bare = redact_record(replace(run, tests=(), flaky=()))[0]
    if all(test.message is None for test in tests):
        return replace(bare, tests=tests, flaky=flaky)
    said = tuple(replace(redact_record(test)[0], id=test.id) for test in tests)
    return replace(bare, tests=said, flaky=flaky)


def _redact_any(value: Any, counts: dict[str, int]) -> Any:
    """A value with all texts in it redacted, and fit to be kept; itself where that is the same."""
    match value:
        case str():
            return redact_text(join_surrogates(value), counts)
        case int() if not _LEAST <= value <= _MOST:
            return min(max(value, _LEAST), _MOST)
        case msgspec.Struct():
            before = {name: getattr(value, name) for name in value.__struct_fields__}
            after = {name: _redact_any(each, counts) for name, each in before.items()}
            changed = {name: each for name, each in after.items() if each is not before[name]}
            return msgspec.structs.replace(value, **changed) if changed else value
        case dict():
            return {
                _redact_any(key, counts): _redact_entry(key, each, counts)
                for key, each in value.items()
            }
        case list() | tuple():
            cleaned = [_redact_any(each, counts) for each in value]
            if all(one is other for one, other in zip(cleaned, value, strict=True)):
                return value
            return type(value)(cleaned)
    return value


def _redact_entry(key: Any, value: Any, counts: dict[str, int]) -> Any:
    """A value that stands under a name, which may be a secret's."""
    if isinstance(key, str) and isinstance(value, str) and len(value) <= 512:
        pair = msgspec.json.encode({key.encode("utf-8", "replace").decode(): "?"})
        written = value.encode("utf-8", "replace")
        for start, end, rule in find_secrets(pair.replace(b'"?"', b'"' + written + b'"')):
            if end - start == len(written):
                counts[rule] = counts.get(rule, 0) + 1
                return f"[redacted: {rule}]"
    return _redact_any(value, counts)
