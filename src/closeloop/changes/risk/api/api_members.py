"""What callers may rely on: names with their kinds and parameters, in any language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from closeloop.records.record import Record

Passing = Literal["position", "either", "keyword", "rest", "keywords"]
MemberKind = Literal["function", "property", "class", "value", "module", "unknown"]
"""Unknown: it is there, and no more can be said of it."""
ApiDifference = Literal["removed", "renamed", "signature", "default", "type"]


class Parameter(Record):
    """One parameter as callers see it."""

    name: str
    passing: Passing = "either"
    default: str | None = None
    """As written; None where it must be given."""
    type: str = ""


class Member(Record):
    """One name that callers may use."""

    kind: MemberKind
    line: int = 1
    parameters: tuple[Parameter, ...] | None = None
    """None for what cannot be called."""
    type: str = ""
    """What it returns or is, where the language holds callers to that."""
    deprecated: bool = False
    bases: tuple[str, ...] = ()
    members: Mapping[str, Member] = {}
    waiting: bool = False
    """Whether the result has to be awaited."""
    body: int = 0
    """Stands for the text of what it does, by which a renamed one is known."""


class ApiChange(Record):
    """One difference in what callers may rely on."""

    kind: ApiDifference
    name: str
    """As callers write it."""
    text: str
    breaking: bool
    announced: bool = False
    """Whether it was deprecated before."""
    place: str
    """Path and line, after the change where it is still there."""
