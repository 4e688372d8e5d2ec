"""Every error closeloop raises on purpose.

Fault
├── BadInput       the user gave us something wrong      exit 2
│   ├── ReadOnlyStore  the store cannot be written
│   └── TraceNotStored the store has an attempt without its trace
├── PluginFailed   a plug-in raised                      exit 3
└── MachineFailed  sandbox, disk, network, database      exit 4

An agent doing badly is data, never one of these; OutOfBudget, which ends an attempt, stands
apart. A message is one sentence that says what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Fault(Exception):
    """The base of all errors that closeloop raises on purpose. Its text says what to do."""

    exit_code = 1


class BadInput(Fault):
    """The input is wrong: the user must act."""

    exit_code = 2


class ReadOnlyStore(BadInput):
    """What was asked needs to write, and the store can only be read."""


class TraceNotStored(BadInput):
    """The store has the row of an attempt, but not what was recorded of it."""


class PluginFailed(Fault):
    """A plug-in raised an exception: its author must act."""

    exit_code = 3


class MachineFailed(Fault):
    """The sandbox, disk, network, a provider or the database failed."""

    exit_code = 4


class OutOfBudget(Exception):
    """The attempt used all the money or tokens it was given: its exit, not a fault."""


MANY_NAMES = 30
"""More names than this are too many to read in a message: the nearest are named instead."""


def unknown_name_error(
    kind: str, name: str, known: Iterable[str], listing: str | None = None
) -> BadInput:
    """`No agent named 'claud'. Did you mean 'claude-code'? Known: claude-code, codex.`

    Where there are very many, the command `listing` lists them.
    """
    names = sorted(set(known))
    if listing and len(names) > MANY_NAMES:
        nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        guess = f" Did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
        return BadInput(f"No {kind} named {name!r}.{guess} `{listing}` lists them.")
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    no_names_advice = "None exists here: add one, or change to the project that has it."
    listed = f"Known: {', '.join(names)}." if names else no_names_advice
    return BadInput(f"No {kind} named {name!r}.{hint} {listed}")
