from __future__ import annotations

import anyio
import pytest

from closeloop.providers.model_prices import Budget, ModelPrices, add_cost, find_model_prices
from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.errors import BadInput, OutOfBudget
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits


def spend(budget: Budget, *usages: Usage) -> int:
    """Use these, the last one for ever; how many turns there were before the budget was gone."""
    for turn in range(9):
        try:
            budget.require_turn()
        except OutOfBudget:
            return turn
        budget.charge_reply(usages[min(turn, len(usages) - 1)])
    return 9


def test_a_used_up_token_budget_stops_the_next_request_before_it_is_sent() -> None:
    budget = Budget("m", Limits(tokens=25))
    used = Usage(input_tokens=5, output_tokens=3, cache_read_tokens=2, cost=0.0)
    assert spend(budget, used) == 3
    with pytest.raises(OutOfBudget, match="30 of 25 tokens"):
        budget.require_turn()
    assert budget.usage == Usage(
        input_tokens=15, output_tokens=9, cache_read_tokens=6, cost=0.0, cost_from="prices"
    )


def test_a_used_up_money_budget_stops_the_next_request_before_it_is_sent() -> None:
    budget = Budget("m", Limits(money=1.0))
    assert spend(budget, Usage(output_tokens=1, cost=0.5, cost_from="reported")) == 2
    with pytest.raises(OutOfBudget, match=r"\$1.00 of \$1.00"):
        budget.require_turn()
    assert (budget.usage.cost, budget.usage.cost_from) == (1.0, "reported")


def test_turns_are_counted_when_they_are_begun() -> None:
    budget = Budget("m", Limits(turns=3))
    assert spend(budget, Usage()) == 3
    with pytest.raises(OutOfBudget, match="3 of 3 turns"):
        budget.require_turn()


def test_a_budget_of_nothing_sends_nothing() -> None:
    for limits in (Limits(tokens=0), Limits(money=0.0)):
        assert spend(Budget("m", limits), Usage()) == 0


def test_what_nobody_reported_stays_unknown() -> None:
    budget = Budget("m", Limits())
    assert budget.usage == Usage()
    spend(budget, Usage())
    assert budget.usage == Usage()


def test_a_cost_that_is_partly_unknown_is_unknown_and_what_is_known_is_kept() -> None:
    paid = Usage(output_tokens=1, cost=0.5, cost_from="prices")
    for usages in ((paid, Usage(output_tokens=1), paid), (Usage(output_tokens=1), paid, paid)):
        budget = Budget("m", Limits(turns=3))
        spend(budget, *usages)
        assert budget.usage == Usage(output_tokens=3)
        assert budget.spent == 1.0


def test_a_limit_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(BadInput, match="input_price"):
        spend(Budget("m", Limits(money=1.0)), Usage(output_tokens=1))
    with pytest.raises(BadInput, match="does not report its tokens"):
        spend(Budget("m", Limits(tokens=1)), Usage(cost=0.1))


def test_reported_and_computed_costs_add_up_to_a_computed_one() -> None:
    both = sum_usage([Usage(cost=1.0, cost_from="reported"), Usage(cost=2.0, cost_from="prices")])
    assert both == Usage(cost=3.0, cost_from="prices")
    assert sum_usage([]) == Usage()


def prices(model: str, **given: float) -> ModelPrices | None:
    return find_model_prices(ModelSettings(provider="openai", model=model, **given))  # type: ignore[arg-type]


def test_a_model_is_priced_by_its_longest_name_and_its_snapshots_alike() -> None:
    assert prices("gpt-5-mini-2025-08-07") == prices("gpt-5-mini") != prices("gpt-5")
    assert prices("claude-opus-4-1-20250805") == prices("claude-opus-4-1")
    assert prices("claude-sonnet-4-5@20250929") == prices("claude-sonnet-4-5-latest")


@pytest.mark.parametrize(
    "name", ["gpt-5.9", "gpt-5-huge", "gpt-5mini", "my-gpt-5", "", "claude-opus-4-9"]
)
def test_a_model_that_only_looks_like_another_has_no_price(name: str) -> None:
    assert prices(name) is None


def test_the_settings_prices_win() -> None:
    assert prices("own", input_price=1.0, output_price=2.0) == ModelPrices(input=1.0, output=2.0)
    assert prices("own", input_price=1.0) is None
    known = prices("gpt-5", input_price=9.0)
    assert known is not None
    assert (known.input, known.output) == (9.0, 10.0)


def test_cost_counts_each_kind_of_token_at_its_price() -> None:
    usage = Usage(
        input_tokens=1_000_000,
        output_tokens=1_000_000,
        cache_read_tokens=1_000_000,
        cache_write_tokens=1_000_000,
    )
    table = ModelPrices(input=1.0, output=10.0, cache_read=100.0, cache_write=1000.0)
    assert add_cost(usage, table).cost == 1111.0
    assert add_cost(usage, ModelPrices(input=1.0, output=10.0)).cost == 13.0
    assert add_cost(usage, None) == usage
    assert add_cost(Usage(input_tokens=1), table) == Usage(input_tokens=1)
    reported = Usage(input_tokens=1, output_tokens=1, cost=7.0, cost_from="reported")
    assert add_cost(reported, table) == reported


def test_one_who_hung_up_before_an_answer_lets_nobody_in_before_a_cost_is_known() -> None:
    budget = Budget("m", Limits(money=1.0))

    async def is_held_back() -> bool:
        async with budget.hold_turn():
            budget.add_usage(Usage())
            with anyio.move_on_after(0.01) as waiting:
                await budget.wait_for_room()
            return waiting.cancelled_caught

    assert anyio.run(is_held_back)
