"""`closeloop memory`: learn from reviews, and see what was learned."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from closeloop.cli.console import say, say_json, show, visible
from closeloop.cli.shelves import Opened, opened
from closeloop.model.plural import plural

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.model.memory import LearnedRule, Repeat
    from closeloop.reviewing.learning import Learned


def learn(repo: str | None = None, *, model: str | None = None, json: bool = False) -> None:
    """Look at agents' pull requests that have changed: corrections, rules, and what came again.

    Parameters
    ----------
    repo
        Only of this repository, as owner/name.
    model
        This model puts remarks into rules, and says what it thinks of likenesses.
    json
        Print one JSON document instead.
    """
    with opened() as at:
        found = run_learning(at, repo, model or at.settings.memory.model)
    if json:
        say_json(found)
        return
    say(
        f"{plural(found.pulls, 'pull request')} had changed: "
        f"{plural(found.corrections, 'correction')}, {plural(found.proposed, 'rule')} proposed, "
        f"{plural(found.examples, 'more example')}, {plural(found.repeated, 'remark')} repeated, "
        f"{found.candidates} to be confirmed."
    )


def run_learning(
    at: Opened, repo: str | None, model: str | None, stopped: Callable[[], bool] = bool
) -> Learned:
    """With the rules as they are now, whatever was read of them before."""
    import anyio
    from msgspec.structs import replace

    from closeloop.reviewing.learning import School, learn
    from closeloop.reviewing.shelf import Shelf
    from closeloop.runs.models.opening import opened_model

    always = at.settings.memory.activate == "always"
    shelf = Shelf(at.store, at.encoder)
    school = School(shelf=shelf, agents=at.agents, always=always, stopped=stopped)

    async def go() -> Learned:
        if model is None:
            return await learn(school, repo)
        async with opened_model(model, at.settings, at.root, os.environ) as thinker:
            return await learn(replace(school, model=thinker), repo)

    return anyio.run(go)


def list_(
    repo: str | None = None,
    *,
    state: Literal["proposed", "active", "retired"] | None = None,
    json: bool = False,
) -> None:
    """List rules, the newest first.

    Parameters
    ----------
    repo
        Only those that hold for this repository, as owner/name.
    state
        Only those in this state.
    json
        Print one JSON document instead.
    """
    with opened() as at:
        rules = at.store.memory.rules(repo=repo, state=state)[::-1]
    if json:
        say_json(rules)
    elif rules:
        show(rules_table(rules))
    else:
        say("No rules yet: `closeloop memory learn` reads them from reviews.")


def rules_table(rules: list[LearnedRule]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("rule", "state", "said", "polarity", "text"):
        table.add_column(title, justify="right" if title == "said" else "left")
    for rule in rules:
        paths = f" ({', '.join(rule.paths)})" if rule.paths else ""
        table.add_row(
            rule.id,
            rule.state,
            f"{len(rule.examples)}×",
            rule.canonical.polarity or "–",
            Text(visible(f"{rule.text}{paths}")),
        )
    return table


def show_(rule: str, *, json: bool = False) -> None:
    """Show one rule with who said it, where and when, and how a program checks it.

    Parameters
    ----------
    rule
        By its id or the beginning of it.
    json
        Print one JSON document instead.
    """
    from closeloop.reviewing.memory import find

    with opened() as at:
        found = find(at.store, rule)
    if json:
        say_json(found)
        return
    parts = found.canonical
    say(found.text)
    say(f"{found.id} · {found.state} since {found.since:%Y-%m-%d} · {found.repo or 'everywhere'}")
    say(f"verb {parts.verb or '–'} · object {parts.object or '–'} · scope {parts.scope or '–'}")
    say(f"polarity {parts.polarity or '–'}, by {parts.by}")
    if found.paths:
        say(f"for {', '.join(found.paths)}")
    if found.check:
        say(f"checked by {found.check.text or found.check.pattern}")
    for one in found.examples:
        where = f" on #{one.pull}" if one.pull is not None else ""
        say(f"- {one.at:%Y-%m-%d} {one.by or 'somebody'}{where}: {' '.join(one.text.split())}")


def repeats(repo: str | None = None, *, json: bool = False) -> None:
    """List remarks that restate a rule which was there before the work: surely, or perhaps.

    Parameters
    ----------
    repo
        Only of this repository, as owner/name.
    json
        Print one JSON document instead.
    """
    with opened() as at:
        found = at.store.memory.repeats(repo=repo)
        texts = {rule.id: rule.text for rule in at.store.memory.rules()}
    if json:
        say_json(found)
    elif found:
        show(repeats_table(found, texts))
    else:
        say("Nothing was said twice, as far as is known.")


def repeats_table(found: list[Repeat], texts: dict[str, str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("remark", "held", "by", "like", "rule's age", "told?", "what was said", "rule"):
        table.add_column(title)
    for one in found:
        told = {None: "not known", True: "yes", False: "no"}[one.offered]
        table.add_row(
            one.key,
            one.state,
            one.by or (f"a model says {one.opinion}" if one.opinion else "–"),
            f"{one.likeness:.2f}",
            plural(round(one.rule_age / 86400), "day"),
            told,
            Text(visible(" ".join(one.text.split())[:200])),
            Text(visible(texts.get(one.rule, one.rule))),
        )
    return table


def corrections(repo: str | None = None, *, json: bool = False) -> None:
    """List what people did to agents' work: remarks, edits, reverts and later fixes.

    Parameters
    ----------
    repo
        Only of this repository, as owner/name.
    json
        Print one JSON document instead.
    """
    with opened() as at:
        found = at.store.memory.corrections(repo=repo)
    if json:
        say_json(found)
        return
    if not found:
        say("No corrections yet: `closeloop memory learn` reads them from reviews.")
    for one in found:
        tags = ", ".join(one.tags) or ", ".join(f"{mode}?" for mode in one.suggested)
        where = f"#{one.pull}" if one.pull is not None else one.attempt or ""
        said = " ".join(one.text.split())[:200]
        say(
            f"{one.at:%Y-%m-%d} {one.repo} {where} {one.kind}: {said}{f' [{tags}]' if tags else ''}"
        )
