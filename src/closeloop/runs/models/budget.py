"""A budget: one attempt's use of a model, counted and kept within its limits."""

from __future__ import annotations

from closeloop.model.attempt import Usage
from closeloop.model.chat import ModelReply, ModelRequest
from closeloop.model.errors import BadInput, OutOfBudget
from closeloop.model.protocols import Model
from closeloop.model.usage import total
from closeloop.model.variant import Limits


def budgeted(model: Model, limits: Limits) -> Budgeted:
    """The model for one attempt: it stops when the attempt's tokens or money are used up."""
    return Budgeted(model, limits)


class Budgeted:
    """Counts every reply once. Tokens are all that went in, cached or not, and came out."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model = model
        self._limits = limits
        self.usage = Usage()
        self.tokens = 0
        self.spent = 0.0
        """What is known to have been paid; `usage.cost` is None when that is not all."""
        self._replies = 0

    @property
    def name(self) -> str:
        return self._model.name

    async def reply(self, request: ModelRequest) -> ModelReply:
        """One turn, unless the budget is used up already."""
        limits = self._limits
        if limits.tokens is not None and self.tokens >= limits.tokens:
            raise OutOfBudget(f"{self.tokens:,} of {limits.tokens:,} tokens are used.")
        if limits.money is not None and self.spent >= limits.money:
            raise OutOfBudget(f"${self.spent:.2f} of ${limits.money:.2f} are spent.")
        reply = await self._model.reply(request)
        usage = reply.usage
        self.usage = usage if self._replies == 0 else total((self.usage, usage))
        self._replies += 1
        self.tokens += tokens_of(usage)
        self.spent += usage.cost or 0.0
        if limits.money is not None and usage.cost is None:
            raise BadInput(
                f"The money limit needs the price of {self.name!r}: "
                "give its input_price and output_price, or set no money limit."
            )
        if limits.tokens is not None and usage.output_tokens is None:
            raise BadInput(f"{self.name!r} does not count its tokens: set no token limit for it.")
        return reply


def tokens_of(usage: Usage) -> int:
    """All tokens of a usage, as far as they are known."""
    return (
        (usage.input_tokens or 0)
        + (usage.cache_read_tokens or 0)
        + (usage.cache_write_tokens or 0)
        + (usage.output_tokens or 0)
    )
