"""What somebody typed after a command, looked at before anything is done with it."""

from __future__ import annotations

from closeloop.records.errors import BadInput


def require_positive_flags(**flags: float | None) -> None:
    """BadInput for a flag that is given and counts nothing."""
    for name, value in flags.items():
        if value is not None and not value > 0:
            raise BadInput(f"--{name} must be more than 0.")


def require_margin(margin: float | None) -> None:
    if margin is not None and not 0 < margin < 1:
        raise BadInput(f"A margin of {margin:g} is none: give one between 0 and 1, such as 0.05.")


def require_utf8_text(text: str, name: str) -> None:
    """BadInput for another encoding: no model could be sent it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{name} is not UTF-8 text: type it as UTF-8.") from None


def split_list_flag(text: str, mark: str = ",") -> list[str]:
    """The parts of what is one word to a shell."""
    return [part.strip() for part in text.split(mark) if part.strip()]
