"""`closeloop admin app`: a GitHub App of your own, created from a manifest."""

from __future__ import annotations

from pathlib import Path

from closeloop.cli.console import JsonFlag, print_json, print_line


def manifest(
    *,
    url: str,
    name: str = "closeloop",
    organisation: str | None = None,
    push: bool = False,
    out: Path = Path("github-app.html"),
    json: JsonFlag = False,
) -> None:
    """Write an HTML page with a button that creates a GitHub App with the right permissions.

    Parameters
    ----------
    url
        The URL under which GitHub reaches `closeloop serve`; starts with https.
    name
        The name of the app, unique on GitHub.
    organisation
        The organisation that owns the app; your account by default.
    push
        Also allow it to push branches, as `closeloop deliver` does.
    out
        The file to write.
    """
    import secrets

    from closeloop.changes.code_host import build_app_manifest, render_manifest_form
    from closeloop.cli.console import write_named_file

    content = build_app_manifest(name, url, may_push=push)
    if json:
        print_json(content)
        return
    write_named_file(
        out, render_manifest_form(content, secrets.token_hex(8), organisation).encode()
    )
    print_line(f"Open {out} in a browser and press the button. GitHub then sends you to {url}")
    print_line("with ?code=… in the URL: run `closeloop admin app register CODE` within one hour.")


def register(code: str, *, out: Path | None = None, json: JsonFlag = False) -> None:
    """Exchange GitHub's code for the key of the app, and save it readable only by you.

    Parameters
    ----------
    code
        The value of ?code= in the URL that GitHub redirected you to.
    out
        The folder for the key; ~/.config/closeloop by default.
    """
    import os

    import anyio

    from closeloop.changes.code_host import GITHUB_API, register_app, save_registered_app

    api = os.environ.get("GITHUB_API_URL") or GITHUB_API
    registered = anyio.run(register_app, code, api)
    folder = out or Path.home() / ".config" / "closeloop"
    key_file, variables_file = save_registered_app(registered, folder)
    if json:
        print_json({"app": registered.id, "key": key_file, "variables": variables_file})
        return
    print_line(f"The app is {registered.slug}. Install it: {registered.html_url}/installations/new")
    print_line(f"Its key is in {key_file}; start closeloop with the variables in {variables_file}.")
