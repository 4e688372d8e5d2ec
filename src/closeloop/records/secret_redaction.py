"""Take secrets out of what is to be kept.

A whole record is looked through at once, as JSON, for the few words that every secret is near;
only where that finds something are its texts taken one by one. What is found is replaced by
`[redacted: RULE]`, so that a second look finds nothing.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from closeloop.records.attempt import Grade, Proof, TestRun
from closeloop.records.patch_redaction import redact_path
from closeloop.records.record import Record
from closeloop.records.recorded_texts import join_surrogates
from closeloop.records.secret_search import find_secrets, redact_secrets

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
