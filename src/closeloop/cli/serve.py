"""Servers that run until stopped: the dashboard, a gateway, a scripted model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from closeloop.cli.console import JsonFlag
from closeloop.records.settings import ACCESS_SCOPES, AccessScope, AccessToken
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from starlette.types import ASGIApp

    from closeloop.cli.config import ProjectConfiguration
    from closeloop.records.attempt import Usage
    from closeloop.records.settings import Settings
    from closeloop.records.trace import Exchange
    from closeloop.store import Store
    from closeloop.web.page import PageContext
    from closeloop.web.webhooks import WebhookConfiguration


REQUEST_WAIT_SECONDS = 5.0
"""Seconds that a request waits for an unavailable database."""


def serve(*, port: int = 4318, host: str = "127.0.0.1", token: str | None = None) -> None:
    """Show the dashboard and receive OpenTelemetry traces of agents, until stopped.

    On this machine alone, a store is created only in a project: closeloop.toml or a git repository.

    Parameters
    ----------
    port
        The port to listen on; 0 picks a free one.
    host
        The address to listen on. Addresses other than this machine's own need a token or a login
        proxy.
    token
        A token with full access, sent as `Authorization: Bearer TOKEN`; CLOSELOOP_TOKEN by default.
    """
    import threading

    from msgspec.structs import replace

    from closeloop.cli.config import current_user, load_project
    from closeloop.cli.console import print_line
    from closeloop.cli.judge import open_configured_panel
    from closeloop.records.errors import BadInput
    from closeloop.records.settings import has_store
    from closeloop.store.store import missing_store_error, open_project_store
    from closeloop.web.app import LOOPBACK, build_web_app
    from closeloop.web.page import PageContext
    from closeloop.web.pages import warm_up_pages
    from closeloop.web.submissions import SubmissionEvaluator
    from closeloop.web.webhooks import WebhookMiddleware

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # receiving has priority over learning
    token = token or os.environ.get("CLOSELOOP_TOKEN") or None
    is_open = token is None and host in LOOPBACK
    project = load_project(Path.cwd())
    # Senders wait only some seconds, and retry when asked to.
    wait_seconds = min(project.settings.store_wait_seconds, REQUEST_WAIT_SECONDS)
    settings = replace(project.settings, store_wait_seconds=wait_seconds)
    panel_opener = partial(open_configured_panel, project, (), None, None)
    receives = host not in LOOPBACK or _is_project(project)
    if not receives and not has_store(settings, project.root):
        raise missing_store_error(str(project.root / settings.store))
    with open_project_store(settings, project.root, may_be_read_only=True) as store:
        if not (is_open or token or project.settings.serve.user_header or _has_valid_token(store)):
            raise BadInput(
                f"Anyone who can reach {host} could read and write the store: create a "
                "token with `closeloop admin token new`, or set CLOSELOOP_TOKEN."
            )
        page_context = PageContext(store, project.settings, project.root)
        page_context.user = current_user()
        threading.Thread(target=warm_up_pages, args=(page_context,), daemon=True).start()
        app = build_web_app(
            store,
            token=token,
            is_open=is_open,
            page_context=page_context,
            evaluator=SubmissionEvaluator(panel_opener),
        )
        with _bind_socket(host, port) as bound_socket:
            _print_addresses(host, bound_socket)
            _run_server(
                WebhookMiddleware(app, store, _build_webhook_secrets(project, page_context)),
                page_context,
                bound_socket,
            )
    print_line("Dashboard stopped.")


def _is_project(project: ProjectConfiguration) -> bool:
    """Check whether the folder is a project: a configured one, a git repository, or one with its
    own store."""
    from closeloop.records.settings import Settings

    is_repository = (project.root / ".git").exists()
    return project.file is not None or is_repository or project.settings.store != Settings().store


def _build_webhook_secrets(
    project: ProjectConfiguration, page_context: PageContext
) -> WebhookConfiguration:
    """Return the webhooks' secrets, and the function that learns from deliveries."""
    from msgspec.structs import replace

    from closeloop.changes.code_host import open_code_host
    from closeloop.cli.check import cache_folder
    from closeloop.cli.config import ReviewContext
    from closeloop.cli.learn import run_learning
    from closeloop.reviews.pull_board import RiskAssessment

    review_context, model = (
        ReviewContext(project, page_context.store),
        project.settings.memory.model,
    )
    learn = partial(run_learning, review_context, None, model, page_context.stopping.is_set)
    return replace(
        webhook_secrets_from_settings(project.settings, os.environ),
        learn=learn,
        open_host=partial(open_code_host, environ=os.environ),
        clones=(project.root,),
        risk=RiskAssessment(
            cache=cache_folder(project, os.environ), settings=project.settings.check
        ),
    )


def _has_valid_token(store: Store) -> bool:
    return any(token.revoked is None for token in store.access.list_tokens())


def _bind_socket(host: str, port: int) -> socket:
    import errno
    import socket

    from closeloop.records.errors import BadInput

    server_socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server_socket.bind((host, port))
        server_socket.listen()  # connections made before the server accepts wait in the queue
    except (OSError, OverflowError) as error:
        server_socket.close()
        if not isinstance(error, OverflowError) and error.errno == errno.EADDRINUSE:
            advice = f"Port {port} is already in use: try --port {port + 1}."
        else:
            advice = f"Cannot listen on {host} port {port}: choose another with --host or --port."
        raise BadInput(advice) from error
    return server_socket


def _print_addresses(host: str, listener: socket) -> None:
    from closeloop.cli.console import print_line

    host_text = f"[{host}]" if ":" in host else host
    address = f"http://{host_text}:{listener.getsockname()[1]}"
    print_line(f"closeloop listens at {address}")
    print_line(f"  dashboard: open {address} in a browser")
    print_line(f"  OTEL_EXPORTER_OTLP_ENDPOINT={address}")


def _run_server(app: ASGIApp, page_context: PageContext, listener: socket) -> None:
    """Serve until stopped; then end open event streams, so that they do not delay the exit."""
    import uvicorn

    class StoppableServer(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            page_context.stopping.set()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        proxy_headers=False,  # trusted proxies are set in [serve]
        timeout_graceful_shutdown=5,
    )
    # uvicorn sends itself the signal again once it has shut down.
    with suppress(KeyboardInterrupt):
        StoppableServer(config).run([listener])


# Settings and environment for a server's webhooks.


def webhook_secrets_from_settings(
    settings: Settings, environ: Mapping[str, str]
) -> WebhookConfiguration:
    """Return the secrets of code hosts, and the receivers of events."""
    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.reviews.webhook_delivery import build_target
    from closeloop.web.webhooks import WebhookConfiguration

    pulls = settings.pulls
    return WebhookConfiguration(
        github=environ.get(pulls.github_secret_env) or None,
        gitlab=environ.get(pulls.gitlab_token_env) or None,
        agents=merge_known_agents(pulls.agents),
        targets=tuple(
            build_target(name, target_settings, environ.get(target_settings.secret_env))
            for name, target_settings in settings.webhooks.items()
        ),
    )


# `closeloop admin token`: who may use the dashboard and its API.

MAX_TOKEN_NAME_CHARS = 80


def token(
    action: Literal["new", "list", "revoke"] = "list",
    name: str | None = None,
    /,
    *,
    scope: tuple[AccessScope, ...] = ("read", "review"),
    json: bool = False,
) -> None:
    """Create, list and revoke access tokens for `closeloop serve`.

    Parameters
    ----------
    action
        new, list or revoke.
    name
        The name of the new token, or the id of the token to revoke.
    scope
        What the token allows: read, review, ingest or admin; repeatable.
    json
        Print one JSON document instead.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import BadInput
    from closeloop.store.store import open_existing_store, open_project_store, open_store_if_any

    if action != "list" and not (name and name.strip()):
        raise BadInput(f"Give a name: `closeloop admin token {action} NAME`.")
    project = load_project(Path.cwd())
    store_openers = {"new": open_project_store, "list": open_store_if_any}
    store_opener = store_openers.get(action, open_existing_store)
    with store_opener(project.settings, project.root) as store:
        if action == "new":
            _make_token(store, (name or "").strip()[:MAX_TOKEN_NAME_CHARS], scope, json=json)
            return
        if action == "revoke":
            from datetime import UTC, datetime

            store.access.revoke_token(name or "", datetime.now(UTC))
            print_json({"revoked": name}) if json else print_line(f"Revoked {name}.")
            return
        tokens = store.access.list_tokens()
    if json:
        print_json(tokens)
    elif tokens:
        _print_tokens(tokens)
    else:
        print_line("There are no tokens: create one with `closeloop admin token new NAME`.")


def _make_token(store: Store, name: str, scopes: tuple[AccessScope, ...], *, json: bool) -> None:
    import secrets
    from datetime import UTC, datetime

    from msgspec.structs import asdict

    from closeloop.cli.console import print_json, print_line

    secret = f"closeloop_{secrets.token_urlsafe(32)}"
    new_token = AccessToken(
        id=secrets.token_hex(4),
        name=name,
        scopes=tuple(scope for scope in ACCESS_SCOPES if scope in scopes),
        at=datetime.now(UTC),
    )
    store.access.save_token(new_token, secret)
    if json:
        print_json({**asdict(new_token), "secret": secret})
        return
    print_line(
        f"Token {new_token.id} allows {', '.join(new_token.scopes)}. Its secret is shown only once:"
    )
    print_line(f"  {secret}")


def _print_tokens(tokens: list[AccessToken]) -> None:
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import make_visible, print_parts

    table = Table(box=None)
    for title in ("token", "name", "may", "made", "revoked"):
        table.add_column(title, no_wrap=title != "name")
    for known_token in tokens:
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


# `closeloop admin gateway`: a model for any agent, judge or script, metered and recorded.

ADDRESS_HELP = """\
  Claude Code           ANTHROPIC_BASE_URL={address}
                        ANTHROPIC_API_KEY=any
  Codex                 [model_providers.gateway] base_url = "{address}/v1"
                        wire_api = "responses"
  Gemini CLI            GOOGLE_GEMINI_BASE_URL={address}
                        GEMINI_API_KEY=any
  OpenCode, Qwen, pi    OPENAI_BASE_URL={address}/v1
  Aider, mini           OPENAI_API_BASE={address}/v1
                        OPENAI_API_KEY=any
"""


def gateway(*, model: str, port: int = 0, record: Path | None = None) -> None:
    """Serve a model to agents on this machine, in their own API formats, until stopped.

    Parameters
    ----------
    model
        A name from closeloop.toml, provider/model, scripted:FILE or recorded:ATTEMPT.
    port
        The port to listen on, at 127.0.0.1; a free port by default.
    record
        Append every request and reply to this file, which `closeloop import` reads.
    """

    import anyio

    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_line, print_warning
    from closeloop.gateway import Gateway
    from closeloop.providers.model_opening import find_model_settings
    from closeloop.records.errors import Fault
    from closeloop.records.task import Limits
    from closeloop.store.store import open_project_store

    project = load_project(Path.cwd())
    settings = find_model_settings(model, project.settings.models)

    def load_recorded_exchanges(attempt: str) -> list[Exchange]:
        with open_project_store(project.settings, project.root) as store:
            return list(store.load_exchanges(attempt))

    async def serve_model(listener: Callable[[Exchange], None]) -> Usage:
        model_gateway = Gateway(
            os.environ, project.root, recorded=load_recorded_exchanges, port=port
        )
        # It belongs to no attempt and serves until it is stopped.
        endless = Limits(turns=1 << 53)
        async with (
            model_gateway as proxies,
            proxies.open_proxy(model, settings, endless, listener) as model_proxy,
        ):
            print_line(f"{model_proxy.name} answers at {model_proxy.address}")
            print_line(ADDRESS_HELP.format(address=model_proxy.address))
            try:
                reason = await model_proxy.closed()
            except anyio.get_cancelled_exc_class():
                return model_proxy.usage
        if isinstance(reason, Fault):
            raise reason
        print_warning(str(reason))
        return model_proxy.usage

    with open_exchange_recorder(record) as listener:
        usage = anyio.run(serve_model, listener)
    print_line(
        f"{count_with_noun(usage.input_tokens or 0, 'token')} in, {usage.output_tokens or 0:,} out."
    )


@contextmanager
def open_exchange_recorder(file: Path | None) -> Iterator[Callable[[Exchange], None]]:
    """Return a function that appends each exchange to a file at once, or discards it."""
    from closeloop.records.errors import BadInput
    from closeloop.traces.readers.gateway import encode_exchange_line

    if file is None:
        yield lambda exchange: None
        return
    try:
        with file.open("ab", buffering=0) as output:

            def write_exchange(exchange: Exchange) -> None:
                output.write(encode_exchange_line(exchange))

            yield write_exchange
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}.") from error


# `closeloop admin script`: a scripted model as a server, for any agent to talk to.


def script(file: Path, *, port: int = 0) -> None:
    """Serve a scripted model to agents on this machine, until stopped.

    Parameters
    ----------
    file
        The script, a YAML file.
    port
        The port to listen on, at 127.0.0.1; a free port by default.
    """
    import anyio

    from closeloop.cli.console import print_line
    from closeloop.providers.script_server import serve_script
    from closeloop.providers.scripted_model import load_script

    model_script = load_script(file)

    async def serve_model_script() -> None:
        async with serve_script(model_script, port=port) as address:
            print_line(f"{model_script.name} answers at {address}")
            print_line(f"  OPENAI_BASE_URL={address}/v1  ANTHROPIC_BASE_URL={address}")
            await anyio.sleep_forever()

    with suppress(KeyboardInterrupt):
        anyio.run(serve_model_script)


# `closeloop admin app`: a GitHub App of your own, whose webhooks `closeloop serve` receives


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
    from closeloop.cli.console import print_json, print_line, write_named_file

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
    import anyio

    from closeloop.changes.code_host import GITHUB_API, register_app, save_registered_app
    from closeloop.cli.console import print_json, print_line

    api = os.environ.get("GITHUB_API_URL") or GITHUB_API
    registered = anyio.run(register_app, code, api)
    folder = out or Path.home() / ".config" / "closeloop"
    key_file, variables_file = save_registered_app(registered, folder)
    if json:
        print_json({"app": registered.id, "key": key_file, "variables": variables_file})
        return
    print_line(f"The app is {registered.slug}. Install it: {registered.html_url}/installations/new")
    print_line(f"Its key is in {key_file}; start closeloop with the variables in {variables_file}.")
