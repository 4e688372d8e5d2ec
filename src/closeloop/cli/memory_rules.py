"""`closeloop memory`: what people say of rules, and of remarks that may restate them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from closeloop.cli.console import print_json, print_line, print_warning
from closeloop.cli.review_context import current_user, open_review_context

if TYPE_CHECKING:
    from closeloop.records.team_rules import RepeatState, RuleState, TeamRule
    from closeloop.store import Store


def add(text: str, *, repo: str | None = None, by: str | None = None, json: bool = False) -> None:
    """Write a rule down. Agents are told it from now on.

    Parameters
    ----------
    text
        The rule, in one sentence.
    repo
        The repository it holds for, as owner/name; this one when not given, `*` is every one.
    by
        Who says so; the user of this machine when not given.
    json
        Print one JSON document instead.
    """
    from closeloop.reviews.rule_editing import add_rule

    with open_review_context(make=True) as at:
        rule_repo = None if repo == "*" else repo or at.repo
        new_rule = add_rule(at.store, text, rule_repo, by or current_user(), datetime.now(UTC))
        warn_of_contrary_rules(at.store, new_rule)
        print_rule(new_rule, json=json)


def accept(rule: str, *, by: str | None = None, json: bool = False) -> None:
    """Let agents be told a rule.

    Parameters
    ----------
    rule
        By its id or the beginning of it.
    by
        Who says so; the user of this machine when not given.
    json
        Print one JSON document instead.
    """
    print_rule(change_rule_state(rule, "active", by), json=json)


def retire(rule: str, *, by: str | None = None, json: bool = False) -> None:
    """Take a rule back: agents are not told it any more, and nothing restates it.

    Parameters
    ----------
    rule
        By its id or the beginning of it.
    by
        Who says so; the user of this machine when not given.
    json
        Print one JSON document instead.
    """
    print_rule(change_rule_state(rule, "retired", by), json=json)


def change_rule_state(rule: str, state: RuleState, by: str | None) -> TeamRule:
    from closeloop.reviews.rule_editing import find_rule, set_rule_state

    with open_review_context() as at:
        learned_rule = find_rule(at.store, rule)
        if state == "active":
            warn_of_contrary_rules(at.store, learned_rule)
        return set_rule_state(
            at.store, learned_rule, state, by or current_user(), datetime.now(UTC)
        )


def warn_of_contrary_rules(store: Store, rule: TeamRule) -> None:
    """Agents who are told both can follow neither."""
    from closeloop.reviews.rule_editing import contrary_rules

    for other in contrary_rules(store, rule):
        print_warning(f"It wants the contrary of {other.id}, {other.text!r}: retire one of them.")


def reword(
    rule: str,
    text: str = "",
    *,
    path: list[str] | None = None,
    json: bool = False,
) -> None:
    """Say a rule in better words, or for which files it holds.

    Parameters
    ----------
    rule
        By its id or the beginning of it.
    text
        The better words; as they are when not given.
    path
        A glob of the files that it holds for; may be given again.
    json
        Print one JSON document instead.
    """
    from closeloop.reviews.rule_editing import find_rule, reword_rule

    with open_review_context() as at:
        print_rule(reword_rule(at.store, find_rule(at.store, rule), text, path or ()), json=json)


def join(rule: str, into: str, *, by: str | None = None, json: bool = False) -> None:
    """Make one rule of two that say the same: the first is retired, its examples go to the second.

    Parameters
    ----------
    rule
        The one that goes, by its id or the beginning of it.
    into
        The one that stays.
    by
        Who says so; the user of this machine when not given.
    json
        Print one JSON document instead.
    """
    from closeloop.reviews.rule_editing import find_rule, merge_rules

    with open_review_context() as at:
        merged_rule, remaining_rule = find_rule(at.store, rule), find_rule(at.store, into)
        merge_rules(at.store, merged_rule, remaining_rule, by or current_user(), datetime.now(UTC))
        print_rule(find_rule(at.store, remaining_rule.id), json=json)


def confirm(remark: str, *, by: str | None = None, json: bool = False) -> None:
    """Say that a remark restates the rule it is likest to: a repeated mistake.

    Parameters
    ----------
    remark
        By its id or the beginning of it: `closeloop memory repeats` lists them.
    by
        Who says so; the user of this machine when not given.
    json
        Print one JSON document instead.
    """
    record_repeat_decision(remark, "confirmed", by, json=json)


def deny(remark: str, *, by: str | None = None, json: bool = False) -> None:
    """Say that a remark restates none of the rules it is like.

    Parameters
    ----------
    remark
        By its id or the beginning of it: `closeloop memory repeats` lists them.
    by
        Who says so; the user of this machine when not given.
    json
        Print one JSON document instead.
    """
    record_repeat_decision(remark, "denied", by, json=json)


def record_repeat_decision(remark: str, state: RepeatState, by: str | None, *, json: bool) -> None:
    from closeloop.reviews.pull_updates import load_pull
    from closeloop.reviews.rule_editing import decide_repeat
    from closeloop.reviews.rule_learning import update_delivery

    with open_review_context() as at:
        repeats = decide_repeat(at.store, remark, state, by or current_user())
        first_repeat = repeats[0]
        if first_repeat.pull is not None:
            pull = load_pull(first_repeat.repo, first_repeat.pull, at.store, at.agents)
            if pull.attempt:
                update_delivery(at.store, pull)
    print_json(repeats) if json else print_line(f"{state}: {' '.join(first_repeat.text.split())}")


def print_rule(rule: TeamRule, *, json: bool) -> None:
    print_json(rule) if json else print_line(f"{rule.id} is {rule.state}: {rule.text}")
