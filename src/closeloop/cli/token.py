"""`closeloop token`: who may use the dashboard and its API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from closeloop.records.access_tokens import ACCESS_SCOPES, AccessScope, AccessToken

if TYPE_CHECKING:
    from closeloop.store import Store

MAX_TOKEN_NAME_CHARS = 80


def token(
    action: Literal["new", "list", "revoke"] = "list",
    name: str | None = None,
    /,
    *,
    scope: tuple[AccessScope, ...] = ("read", "review"),
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
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import BadInput

    if action != "list" and not (name and name.strip()):
        raise BadInput(f"Say which: `closeloop token {action} NAME`.")
    project = load_project(Path.cwd())
    store_opener = flow.open_project_store if action == "new" else flow.open_existing_store
    with store_opener(project.settings, project.root) as store:
        if action == "new":
            _make_token(store, (name or "").strip()[:MAX_TOKEN_NAME_CHARS], scope, json=json)
            return
        if action == "revoke":
            from datetime import UTC, datetime

            store.access.revoke_token(name or "", datetime.now(UTC))
            print_json({"revoked": name}) if json else print_line(f"{name} opens nothing any more.")
            return
        tokens = store.access.list_tokens()
    if json:
        print_json(tokens)
    elif tokens:
        _print_tokens(tokens)
    else:
        print_line("There are no tokens: `closeloop token new NAME` makes one.")


def _make_token(store: Store, name: str, scopes: tuple[AccessScope, ...], *, json: bool) -> None:
    import secrets
    from datetime import UTC, datetime

    from msgspec.structs import asdict

    from closeloop.cli.console import print_json, print_line

    secret = f"closeloop_{secrets.token_urlsafe(32)}"
    new_token = AccessToken(
        id=secrets.token_hex(4),
        name=name,
        scopes=tuple(one for one in ACCESS_SCOPES if one in scopes),
        at=datetime.now(UTC),
    )
    store.access.save_token(new_token, secret)
    if json:
        print_json({**asdict(new_token), "secret": secret})
        return
    print_line(f"{new_token.id} may {', '.join(new_token.scopes)}. Its secret is shown only now:")
    print_line(f"  {secret}")


def _print_tokens(known: list[AccessToken]) -> None:
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import make_visible, print_parts

    table = Table(box=None)
    for title in ("token", "name", "may", "made", "revoked"):
        table.add_column(title, no_wrap=title != "name")
    for known_token in known:
        revoked = f"{known_token.revoked:%Y-%m-%d %H:%M}" if known_token.revoked else ""
        made_at = f"{known_token.at:%Y-%m-%d %H:%M}"
        table.add_row(
            known_token.id,
            Text(make_visible(known_token.name)),
            ", ".join(known_token.scopes),
            made_at,
            revoked,
        )
    print_parts(table)
