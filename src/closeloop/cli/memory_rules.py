"""`closeloop memory`: what people say of rules, and of remarks that may restate them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from closeloop.cli.console import say, say_json, warn
from closeloop.cli.shelves import me, opened

if TYPE_CHECKING:
    from closeloop.model.memory import LearnedRule, RepeatState, RuleState
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
    from closeloop.reviewing.memory import add

    with opened(make=True) as at:
        held = None if repo == "*" else repo or at.repo
        made = add(at.store, text, held, by or me(), datetime.now(UTC))
        warn_of_contraries(at.store, made)
        tell(made, json=json)


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
    tell(put_into(rule, "active", by), json=json)


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
    tell(put_into(rule, "retired", by), json=json)


def put_into(rule: str, state: RuleState, by: str | None) -> LearnedRule:
    from closeloop.reviewing.memory import find, put

    with opened() as at:
        found = find(at.store, rule)
        if state == "active":
            warn_of_contraries(at.store, found)
        return put(at.store, found, state, by or me(), datetime.now(UTC))


def warn_of_contraries(store: Store, rule: LearnedRule) -> None:
    """Agents who are told both can follow neither."""
    from closeloop.reviewing.memory import contraries

    for other in contraries(store, rule):
        warn(f"It wants the contrary of {other.id}, {other.text!r}: retire one of them.")


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
    from closeloop.reviewing.memory import find, reword

    with opened() as at:
        tell(reword(at.store, find(at.store, rule), text, path or ()), json=json)


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
    from closeloop.reviewing.memory import find, join

    with opened() as at:
        gone, kept = find(at.store, rule), find(at.store, into)
        join(at.store, gone, kept, by or me(), datetime.now(UTC))
        tell(find(at.store, kept.id), json=json)


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
    decided(remark, "confirmed", by, json=json)


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
    decided(remark, "denied", by, json=json)


def decided(remark: str, state: RepeatState, by: str | None, *, json: bool) -> None:
    from closeloop.reviewing.learning import deliver
    from closeloop.reviewing.lives import shown
    from closeloop.reviewing.memory import decide

    with opened() as at:
        found = decide(at.store, remark, state, by or me())
        one = found[0]
        if one.pull is not None:
            pull = shown(one.repo, one.pull, at.store, at.agents)
            if pull.attempt:
                deliver(at.store, pull)
    say_json(found) if json else say(f"{state}: {' '.join(one.text.split())}")


def tell(rule: LearnedRule, *, json: bool) -> None:
    say_json(rule) if json else say(f"{rule.id} is {rule.state}: {rule.text}")
