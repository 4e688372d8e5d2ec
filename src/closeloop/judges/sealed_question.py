"""A question with its data before it, and the seal that its answer must repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from closeloop.records.chat import ChatMessage, ModelRequest
from closeloop.records.evaluation import PosedQuestion, QuestionSeals
from closeloop.text.untrusted import TextBlock, draw_seal, fence_blocks, texts_by_kind


def build_sealed_question(
    asked: ModelRequest,
    last: str,
    own: Sequence[TextBlock],
    common: Sequence[TextBlock] = (),
    seals: QuestionSeals | None = None,
) -> PosedQuestion:
    """One message: what questions of one evaluation share, what this one is about, the last line.

    Without seals, they are drawn: nobody who wrote what is asked about can know them.
    """
    blocks = [*common, *own]
    shared = draw_seal(blocks, seals.common if seals else None)
    seal = draw_seal(blocks, seals.own if seals else None)
    parts = [fence_blocks(common, shared), fence_blocks(own, seal), last.format(seal=seal)]
    text = "\n".join(part for part in parts if part)
    return PosedQuestion(
        request=replace(asked, messages=(ChatMessage(role="user", text=text),)),
        seal=seal,
        shown=texts_by_kind(blocks),
        cut=sum(one.left_out for one in blocks),
    )


def find_seal_fault(value: Any, posed: PosedQuestion) -> str | None:
    """Why an answer is none: it may be an echo of what is judged."""
    if value["seal"].strip() == posed.seal:
        return None
    return "the reply does not carry the seal of what was asked"


# Quotes that must be there, character by character.

MIN_QUOTE_CHARS = 6
"""Shorter ones are found anywhere, unless they are all there is."""


def find_quote_fault(
    quotes: Sequence[str], shown: Mapping[str, str], kinds: Sequence[str]
) -> str | None:
    """Why quotes do not carry a verdict: one is nowhere, or none is from where one must be."""
    if not quotes:
        return "no evidence is given"
    places = [_parts_with_quote(quote, shown) for quote in quotes]
    for quote, found in zip(quotes, places, strict=True):
        if not found:
            return f"the quote {quote[:80]!r} is not in what was shown"
    if not any(kind in kinds for found in places for kind in found):
        return "no quote is from the work"
    return None


def _parts_with_quote(quote: str, shown: Mapping[str, str]) -> list[str]:
    if len(quote) < MIN_QUOTE_CHARS:
        return [kind for kind, text in shown.items() if text.strip() == quote]
    return [kind for kind, text in shown.items() if quote in text]
