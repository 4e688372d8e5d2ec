"""Volatile text out, the rest untouched."""
# ruff: noqa: E501  (what tools print is quoted as they print it)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.process.failure_collector import (
    MAX_TEXT_CHARS,
    ORIGIN_MARK,
    is_same_message,
    message_skeleton,
    normalise_output,
    strip_terminal_codes,
)
from patience import takes


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 failed, 2 passed in 0.12s", "3 failed, 2 passed in 14.02s"),
        ("Time:        0.373 s, estimated 1 s", "Time:        1.2 s, estimated 2 s"),
        ("finished in 3 ms", "finished in 250 ms"),
        ("2024-01-02T03:04:05.123Z started", "2025-11-12T13:14:15Z started"),
        ("[10:11:12] building", "[23:59:01] building"),
        ("<Shape object at 0x7f1ed1879290>", "<Shape object at 0x7fdf1d9f9990>"),
        ("/tmp/pytest-of-root/pytest-4/t0/a", "/tmp/pytest-of-me/pytest-51/t0/a"),
        ("/var/folders/2y/rslg9f80000gn/T/x.txt", "/var/folders/9z/qqq1j50000gn/T/x.txt"),
        ("open /tmp/tmpab12cd_z/f", "open /tmp/tmpzz98yx7w/f"),
        ("/usr/bin/ld: /tmp/ccSo39Za.o: in function", "/usr/bin/ld: /tmp/ccXXXXXX.o: in function"),
        ("at commit 3f2a9bc", "at commit deadbeef1"),
        ("id 550e8400-e29b-41d4-a716-446655440000", "id 123e4567-e89b-12d3-a456-426614174000"),
        ("request 3f1ab-99c1", "request c07e2-1b44"),
        ("[1]\nnot found", "[2]\nnot found"),
        ("connect to localhost:5432", "connect to localhost:40123"),
        ("connect to 127.0.0.1:5432", "connect to 127.0.0.1:40123"),
        ("server has pid 12", "server has pid 40123"),
        ("goroutine 19 [running]:", "goroutine 7 [running]:"),
        ("thread 'a' (13428) panicked at x", "thread 'a' (99) panicked at x"),
        ("[ 33%] compiling", "[100%] compiling"),
        ("====== FAILURES ======", "============ FAILURES ============"),
        ("\x1b[31mFAIL\x1b[0m a.py", "FAIL a.py"),
        ("10%\r50%\r100% done", "100% done"),
    ],
)
def test_what_changes_from_run_to_run_is_gone(one: str, other: str) -> None:
    assert normalise_output(one) == normalise_output(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("FAILED a.py::test_x[10s]", "FAILED a.py::test_x[20s]"),
        ("test_timeout[1234567] failed", "test_timeout[1234568] failed"),
        ("7 failed, 2 passed", "6 failed, 2 passed"),
        ("ValueError: 3", "ValueError: 4"),
        ("facade", "decade"),
        ("dead-beef", "dead-face"),
        ("CVE-2024-12345", "CVE-2024-54321"),
        ("expected [1]", "expected [2]"),
        ("a\n[1]", "a\n[2]"),
        ("[1] 500", "[1] 600"),
    ],
)
def test_what_tells_failures_apart_stays(one: str, other: str) -> None:
    assert normalise_output(one) != normalise_output(other)


@pytest.mark.parametrize(
    ("message", "shape"),
    [
        ("assert 3 == 4", "assert # == #"),
        ("AssertionError: assert -1.5 == 4", "assert # == #"),
        ("assert [1, 2] == [1, 2, 3]", "assert [#] == [#]"),
        ("assert None == 4", "assert # == #"),
        ("KeyError: 'name'", "KeyError: ''"),
        ("ValueError: can't read \"x\"", "ValueError: can't read ''"),
        (
            "AttributeError: 'Shape' object has no attribute 'widht'",
            "AttributeError: 'Shape' object has no attribute 'widht'",
        ),
        ("FileNotFoundError: [Errno 2] No such file: '/tmp/x/a'", "FileNotFoundError: [Errno #] No such file: ''"),
        ("assertion `left == right` failed", "assertion `left == right` failed"),
        ("ParseError: bad int32 at line 3\nmore", "ParseError: bad int32 at line #"),
    ],
)  # fmt: skip
def test_a_skeleton_is_the_shape_of_a_message(message: str, shape: str) -> None:
    assert message_skeleton(message) == shape


def test_the_same_assertion_with_other_values_is_the_same_failure() -> None:
    assert message_skeleton("assert 3 == 4") == message_skeleton("assert 5 == 4")
    assert message_skeleton("assert 3 == 4") != message_skeleton("assert 3 in x")
    assert message_skeleton("TypeError: no") != message_skeleton("ValueError: no")
    assert message_skeleton("NameError: name 'a' is not defined") != message_skeleton(
        "NameError: name 'b' is not defined"
    )


def test_a_message_that_was_cut_is_like_the_whole_one() -> None:
    whole = message_skeleton("AttributeError: 'Shape' object has no attribute 'widht'")
    assert is_same_message(message_skeleton("AttributeError: 'Shape' object has no ..."), whole)
    assert is_same_message(whole, message_skeleton("AttributeErr..."))
    assert is_same_message(message_skeleton("FileNotFoundError: [Errno 2] No such file: '/tmp/py..."),
                 message_skeleton("FileNotFoundError: [Errno 2] No such file: '/tmp/pytest-1/a'"))  # fmt: skip
    assert not is_same_message(message_skeleton("TypeError: 'Shape' object has no ..."), whole)
    assert is_same_message("", whole)


def test_two_assertions_of_one_test_differ_by_the_line_they_come_from() -> None:
    one, other = (
        f"assert # == #{ORIGIN_MARK}assert a == 1",
        f"assert # == #{ORIGIN_MARK}assert b == 1",
    )
    assert not is_same_message(one, other)
    assert is_same_message(one, "assert # == #")


PIECES = """a 1 . , : :: / /tmp/ tmp 0x % = - _ # ' " ` ( ) [ ] s ms \x1b[3m f00dfeed1 12:34:56
2024-01-02 test_ port pid localhost: ... … x None"""
pieces = st.lists(st.sampled_from([*PIECES.split(), " ", "\n", "\r", "\t"]), max_size=40).map(
    "".join
)


@given(st.text() | pieces)
def test_to_normalise_twice_is_to_normalise_once(text: str) -> None:
    once = normalise_output(text)
    assert normalise_output(once) == once
    assert len(once) <= MAX_TEXT_CHARS
    assert "\x1b[" not in strip_terminal_codes(text)


@given(st.text() | pieces)
def test_a_skeleton_is_one_short_line(text: str) -> None:
    shape = message_skeleton(text)
    assert "\n" not in shape
    assert len(shape) <= 1000
    assert is_same_message(shape, shape)


@pytest.mark.parametrize("piece", ["a", "1", "::", "'", "/tmp/", " ", "-", "test_", "f1", "1-", "12:", "\n", "\r", "\x1b[", "#, "])  # fmt: skip
def test_no_text_takes_long(piece: str) -> None:
    def read(number: int) -> None:
        normalise_output(piece * (1_000_000 // len(piece) + number))
        message_skeleton(piece * (1_000_000 // len(piece) + number))

    assert takes(read, 2) < 2
