"""`closeloop token`: who may use the dashboard and its API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from closeloop.model.access import SCOPES, Scope, Token

if TYPE_CHECKING:
    from closeloop.store import Store

LONGEST_NAME = 80


def token(
    action: Literal["new", "list", "revoke"] = "list",
    name: str | None = None,
    /,
    *,
    scope: tuple[Scope, ...] = ("read", "review"),
    json: bool = False,
) -> None:
    """Make, list and revoke tokens for `closeloop serve`.

    Parameters
    ----------
    action
        What to do: new, list or revoke.
    name
        What the new token is called, or the id of the one to revoke.
    scope
        What it may do: read, review, ingest or admin; may be given again.
    json
        Print JSON instead of text.
    """
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say, say_json
    from closeloop.model.errors import BadInput

    if action != "list" and not (name and name.strip()):
        raise BadInput(f"Say which: `closeloop token {action} NAME`.")
    found = load(Path.cwd())
    opening = flow.open_named_store if action == "new" else flow.open_kept_store
    with opening(found.settings, found.root) as store:
        if action == "new":
            _make(store, (name or "").strip()[:LONGEST_NAME], scope, json=json)
            return
        if action == "revoke":
            from datetime import UTC, datetime

            store.access.revoke(name or "", datetime.now(UTC))
            say_json({"revoked": name}) if json else say(f"{name} opens nothing any more.")
            return
        known = store.access.tokens()
    if json:
        say_json(known)
    elif known:
        _show(known)
    else:
        say("There are no tokens: `closeloop token new NAME` makes one.")


def _make(store: Store, name: str, scopes: tuple[Scope, ...], *, json: bool) -> None:
    import secrets
    from datetime import UTC, datetime

    from msgspec.structs import asdict

    from closeloop.cli.console import say, say_json

    secret = f"closeloop_{secrets.token_urlsafe(32)}"
    made = Token(
        id=secrets.token_hex(4),
        name=name,
        scopes=tuple(one for one in SCOPES if one in scopes),
        at=datetime.now(UTC),
    )
    store.access.add(made, secret)
    if json:
        say_json({**asdict(made), "secret": secret})
        return
    say(f"{made.id} may {', '.join(made.scopes)}. Its secret is shown only now:")
    say(f"  {secret}")


def _show(known: list[Token]) -> None:
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import show, visible

    table = Table(box=None)
    for title in ("token", "name", "may", "made", "revoked"):
        table.add_column(title, no_wrap=title != "name")
    for one in known:
        revoked = f"{one.revoked:%Y-%m-%d %H:%M}" if one.revoked else ""
        made = f"{one.at:%Y-%m-%d %H:%M}"
        table.add_row(one.id, Text(visible(one.name)), ", ".join(one.scopes), made, revoked)
    show(table)
