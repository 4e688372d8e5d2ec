"""All errors that closeloop raises deliberately.

Fault
├── BadInput       the user's input is wrong             exit 2
│   ├── ReadOnlyStore  the store cannot be written
│   └── TraceNotStored the store has an attempt without its trace
├── PluginFailed   a plug-in raised                      exit 3
└── MachineFailed  sandbox, disk, network, database      exit 4

An agent that performs badly is data, never an error. OutOfBudget ends an attempt and is separate.
A message is one sentence that says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable


class Fault(Exception):
    """Base of all errors that closeloop raises deliberately. Its text says what to do."""

    exit_code = 1


class BadInput(Fault):
    """The input is wrong: the user must act."""

    exit_code = 2


class ReadOnlyStore(BadInput):
    """The operation needs to write, and the store is read-only."""


class TraceNotStored(BadInput):
    """The store has the row of an attempt, but not what was recorded of it."""


class PluginFailed(Fault):
    """A plug-in raised an exception: its author must act."""

    exit_code = 3


class MachineFailed(Fault):
    """The sandbox, disk, network, a provider or the database failed."""

    exit_code = 4


class OutOfBudget(Exception):
    """The attempt used up its money or token budget: an exit, not a fault."""


MANY_NAMES = 30
"""With more names than this, a message lists only the nearest."""


def unknown_name_error(
    kind: str, name: str, known_names: Iterable[str], list_command: str | None = None
) -> BadInput:
    """Build `No agent named 'claud'. Did you mean 'claude-code'? Known: claude-code, codex.`

    If there are many names, the message refers to the command `list_command`.
    """
    import difflib

    names = sorted(set(known_names))
    if list_command and len(names) > MANY_NAMES:
        nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        guess = f" Did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
        return BadInput(f"No {kind} named {name!r}.{guess} `{list_command}` lists them.")
    close_matches = difflib.get_close_matches(name, names, n=1)
    suggestion = f" Did you mean {close_matches[0]!r}?" if close_matches else ""
    no_names_advice = "This project has none: add one, or change to the project that has it."
    known_note = f"Known: {', '.join(names)}." if names else no_names_advice
    return BadInput(f"No {kind} named {name!r}.{suggestion} {known_note}")
