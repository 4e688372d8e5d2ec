"""Files that may be recordings, as readers see them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from closeloop.traces import file_source
from closeloop.traces.file_source import FileSource
from closeloop.traces.untrusted_json import decode_json

LINES = st.sampled_from(
    [b'{"a":1}', b'{"b":"' + b"x" * 40 + b'"}', b"[1, 2]", b" ", b"", b'{"a":1}\r', b'{"half":',
     b"no JSON", b"3", b'\xef\xbb\xbf{"a":1}', b'{"\xff":1}',
     b'{"a":"\\ud83d"}']
)  # fmt: skip
CONTENTS = st.lists(LINES, max_size=30).map(b"\n".join) | st.binary(max_size=60)
SIZES = st.tuples(st.integers(1, 120), st.integers(2, 64))


def one_by_one(content: bytes) -> tuple[list[Any], int]:
    """What a file with one value a line holds, and how many lines are none."""
    values, bad = [], 0
    for line in content.split(b"\n"):
        if line.strip():
            try:
                values.append(decode_json(line.removeprefix(file_source.UTF8_BOM)))
            except (msgspec.DecodeError, UnicodeDecodeError):
                bad += 1
    return values, bad


@settings(max_examples=300)
@given(CONTENTS, SIZES, st.booleans(), st.booleans())
def test_every_line_is_a_record_or_counted(
    tmp_path_factory: pytest.TempPathFactory,
    content: bytes,
    sizes: tuple[int, int],
    looked: bool,
    packed: bool,
) -> None:
    assume(not content.startswith(file_source.ZSTD_MAGIC))
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(zstandard.compress(content) if packed else content)
    values, bad = one_by_one(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_source, "HEAD_BYTES", sizes[0])
        patch.setattr(file_source, "BLOCK_BYTES", sizes[1])
        file = FileSource(path)
        if looked:
            assert all(value in values for value in file.lines)
        # Whoever asks again gets them anew.
        for _ in range(2):
            file.skipped.clear()
            assert list(file.records()) == values
            assert file.skipped == ({"a line that is not JSON": bad} if bad else {})


@settings(max_examples=200)
@given(CONTENTS, st.integers(1, 120), st.booleans())
def test_a_document_is_the_whole_file_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, head: int, looked: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "document"
    path.write_bytes(content)
    os.utime(path, ns=(0, hash(content) & 0xFFFFFFFFFFFF))
    text = content.removeprefix(file_source.UTF8_BOM)
    try:
        whole = decode_json(text) if text.lstrip()[:1] in (b"{", b"[") else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        whole = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_source, "HEAD_BYTES", head)
        file = FileSource(path)
        if looked:
            list(file.records())
        spaces = len(content.removeprefix(file_source.UTF8_BOM)) - len(text.lstrip())
        if head > spaces + len(file_source.UTF8_BOM):
            assert file.document == whole


def test_a_line_that_is_too_long_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_source, "HEAD_BYTES", 4)
    monkeypatch.setattr(file_source, "BLOCK_BYTES", 8)
    monkeypatch.setattr(file_source, "MAX_LINE_BYTES", 32)
    (tmp_path / "file").write_bytes(b'{"a":1}\n"' + b"x" * 200 + b'"\n{"b":2}\n')
    file = FileSource(tmp_path / "file")
    assert list(file.records()) == [{"a": 1}, {"b": 2}]
    assert file.skipped == {"a line that is too long": 1}


@pytest.mark.parametrize("order", ["little", "big"])
@settings(max_examples=60)
@given(st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=90)), max_size=9), SIZES)
def test_lines_and_documents_in_utf_16_are_read(
    tmp_path_factory: pytest.TempPathFactory,
    order: str,
    values: list[dict[str, str]],
    sizes: tuple[int, int],
) -> None:
    mark, coding = file_source.UTF16_BOMS[order == "big"], f"utf-16-{order[0]}e"
    path = tmp_path_factory.getbasetemp() / "wide"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_source, "HEAD_BYTES", sizes[0] + 8)
        path.write_bytes(mark + "\r\n".join(map(json.dumps, values)).encode(coding))
        assert list(FileSource(path).records()) == values
        path.write_bytes(mark + json.dumps(values, ensure_ascii=False).encode(coding))
        assert FileSource(path).document == values


def test_utf_16_that_breaks_off_costs_one_line(tmp_path: Path) -> None:
    path = tmp_path / "wide"
    path.write_bytes(file_source.UTF16_BOMS[0] + '{"a":1}\n{"b":"é'.encode("utf-16-le")[:-1])
    file = FileSource(path)
    assert list(file.records()) == [{"a": 1}]
    assert file.skipped == {"a line that is not JSON": 1}


def test_a_document_of_many_small_values_is_too_large_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "heavy"
    path.write_bytes(b'{"trajectory":[' + b"{}," * (3 << 20) + b"{}]}")
    file = FileSource(path)
    assert file.document is None
    assert file.skipped == {"a document that is too large": 1}
    path.write_bytes(b'["' + b"{},[" * (1 << 17) + b'"]')
    assert FileSource(path).document is not None


@pytest.mark.parametrize("packed", [False, True])
def test_a_first_line_that_is_longer_than_the_head_is_seen(tmp_path: Path, packed: bool) -> None:
    values = [{"a": "x" * file_source.HEAD_BYTES}, {"b": 2}]
    content = b"\n".join(map(msgspec.json.encode, values))
    path = tmp_path / "lines"
    path.write_bytes(zstandard.compress(content) if packed else content)
    file = FileSource(path)
    assert list(file.lines) == values[:1]
    assert file.document is None
    assert list(file.records()) == values
    assert file.skipped == {}
    for end in (b"", b"\n", b"\n\r\n"):
        path.write_bytes(msgspec.json.encode(values) + end)
        assert list(FileSource(path).lines) == []
        assert FileSource(path).document == values


def test_a_session_without_end_is_read_as_far_as_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "endless"
    path.write_bytes(b'{"a":"' + b"x" * 100 + b'"}\n' * 1 + b"{}\n" * 500_000)
    file = FileSource(path)
    assert len(list(file.records())) > 100_000
    assert file.skipped == {"the rest of a session that is too large": 1}


def test_values_that_share_a_line_or_spread_over_some_are_records(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"a":1}\n{"b":2}{"c":3}\n{"d":\n4}\n')
    file = FileSource(path)
    assert list(file.records()) == [{"a": 1}, {"b": 2}, {"c": 3}, {"d": 4}]
    assert file.skipped == {}


def test_a_file_that_is_gone_is_counted(tmp_path: Path) -> None:
    file = FileSource(tmp_path / "none")
    assert list(file.records()) == []
    assert (file.head, list(file.lines), file.document) == (b"", [], None)
    assert file.skipped == {"a file that cannot be read to its end": 1}


def test_a_document_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "document"
    for when, words in enumerate(("one", "two")):
        path.write_bytes(msgspec.json.encode([words * file_source.HEAD_BYTES]))
        os.utime(path, ns=(0, when))
        assert FileSource(path).document == [words * file_source.HEAD_BYTES]
