"""Single keys from the keyboard; a line's first letter where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

ENTER = "\n"
END_OF_INPUT = "\x04"
"""Nothing more will come: the end of the input, or Control-D."""


def read_key() -> str:
    """The next key, in lower case."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return END_OF_INPUT if not line else (line.strip()[:1].lower() or ENTER)
    with _unbuffered_input():
        pressed = sys.stdin.read(1)
    return {"\r": ENTER, "": END_OF_INPUT}.get(pressed, pressed.lower())


def read_line() -> str | None:
    """A line of text; None at the end of the input."""
    text = sys.stdin.readline()
    return text.strip() if text else None


@contextmanager
def _unbuffered_input() -> Iterator[None]:
    """Keys as they are pressed; Control-C still stops us."""
    try:
        import termios
        import tty
    except ImportError:  # where keys come by the line, they do so
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
