"""Single keys from the keyboard; a line's first letter where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

ENTER = "\n"
END = "\x04"
"""Nothing more will come: the end of the input, or Control-D."""


def key() -> str:
    """The next key, in lower case."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return END if not line else (line.strip()[:1].lower() or ENTER)
    with _unbuffered():
        pressed = sys.stdin.read(1)
    return {"\r": ENTER, "": END}.get(pressed, pressed.lower())


def line() -> str | None:
    """A line of text; None at the end of the input."""
    text = sys.stdin.readline()
    return text.strip() if text else None


@contextmanager
def _unbuffered() -> Iterator[None]:
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
