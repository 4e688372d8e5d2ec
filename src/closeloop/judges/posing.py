"""A question with its data before it, and the seal that its answer must repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from closeloop.judges.fences import Block, everything, fenced, seal_of
from closeloop.model.chat import ChatMessage, ModelRequest
from closeloop.model.evaluation import Posed


def with_data(asked: ModelRequest, last: str, *groups: Sequence[Block]) -> Posed:
    """One message: the blocks, group after group, and the last line with the seal of them all.

    Groups before the last have seals of their own: where other questions share them, caches hit.
    """
    blocks = [one for group in groups for one in group]
    seal = seal_of(blocks)
    *shared, own = groups
    parts = [*(fenced(group, seal_of(group)) for group in shared), fenced(own, seal)]
    text = "\n".join([*parts, last.format(seal=seal)])
    return Posed(
        request=replace(asked, messages=(ChatMessage(role="user", text=text),)),
        seal=seal,
        shown=everything(blocks),
        cut=sum(one.left_out for one in blocks),
    )


def unsealed(value: Any, posed: Posed) -> str | None:
    """Why an answer is none: it may be an echo of what is judged."""
    if value["seal"].strip() == posed.seal:
        return None
    return "the reply does not carry the seal of what was asked"
