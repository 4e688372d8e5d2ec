"""A question with its data before it, and the seal that its answer must repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from closeloop.model.chat import ChatMessage, ModelRequest
from closeloop.model.evaluation import Posed, Seals
from closeloop.model.fences import Block, draw_seal, everything, fenced


def with_data(
    asked: ModelRequest,
    last: str,
    own: Sequence[Block],
    common: Sequence[Block] = (),
    seals: Seals | None = None,
) -> Posed:
    """One message: what questions of one evaluation share, what this one is about, the last line.

    Without seals, they are drawn: nobody who wrote what is asked about can know them.
    """
    blocks = [*common, *own]
    shared = draw_seal(blocks, seals.common if seals else None)
    seal = draw_seal(blocks, seals.own if seals else None)
    parts = [fenced(common, shared), fenced(own, seal), last.format(seal=seal)]
    text = "\n".join(part for part in parts if part)
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
