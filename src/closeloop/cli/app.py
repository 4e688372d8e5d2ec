"""`closeloop app`: a GitHub App of your own, made from a manifest."""

from __future__ import annotations

from pathlib import Path

from closeloop.cli.console import JsonFlag, print_json, print_line


def manifest(
    *,
    url: str,
    name: str = "closeloop",
    organisation: str | None = None,
    push: bool = False,
    to: Path = Path("github-app.html"),
    json: JsonFlag = False,
) -> None:
    """Write a page with one button, which makes a GitHub App: what it hears of and may do.

    Parameters
    ----------
    url
        Where GitHub reaches `closeloop serve`; begins with https.
    name
        What the app is called; no other on GitHub may be called so.
    organisation
        Whose app it is to be; yours when not given.
    push
        Let it push branches, too, as `closeloop deliver` does.
    to
        The file to write.
    """
    import secrets

    from closeloop.changes.host_credentials import build_app_manifest, render_manifest_form
    from closeloop.cli.console import write_named_file

    content = build_app_manifest(name, url, may_push=push)
    if json:
        print_json(content)
        return
    write_named_file(to, render_manifest_form(content, secrets.token_hex(8), organisation).encode())
    print_line(f"Open {to} in a browser and press the button. GitHub then sends you to {url}")
    print_line("with ?code=… in the address: run `closeloop app register CODE` within the hour.")


def register(code: str, *, to: Path | None = None, json: JsonFlag = False) -> None:
    """Trade the code that GitHub gave for the app's key, and write it where only you can read.

    Parameters
    ----------
    code
        What stands after ?code= in the address that GitHub sent you to.
    to
        The folder for the key; .config/closeloop in your home when not given.
    """
    import os

    import anyio

    from closeloop.changes.code_host import GITHUB_API
    from closeloop.changes.host_credentials import register_app, save_registered_app

    api = os.environ.get("GITHUB_API_URL") or GITHUB_API
    registered = anyio.run(register_app, code, api)
    folder = to or Path.home() / ".config" / "closeloop"
    key_file, variables_file = save_registered_app(registered, folder)
    if json:
        print_json({"app": registered.id, "key": key_file, "variables": variables_file})
        return
    print_line(f"The app is {registered.slug}. Install it: {registered.html_url}/installations/new")
    print_line(f"Its key is in {key_file}; start closeloop with the variables in {variables_file}.")
