"""`closeloop gateway`: a model for any agent, judge or script, counted and recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.records.plural import count_with_noun

if TYPE_CHECKING:
    from collections.abc import Callable

    from closeloop.records.attempt import Usage
    from closeloop.records.exchange import Exchange

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
    """Serve a model on this machine until it is stopped, in the format of any agent.

    Parameters
    ----------
    model
        A name from closeloop.toml, provider/model, scripted:FILE or recorded:ATTEMPT.
    port
        Where to listen on 127.0.0.1; a free port when not given.
    record
        A file to add every request and answer to, which `closeloop import` reads.
    """
    import os

    import anyio

    from closeloop import flow
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_line, print_warning
    from closeloop.gateway import Gateway
    from closeloop.providers.model_opening import find_model_settings
    from closeloop.records.errors import Fault
    from closeloop.records.variant import Limits

    project = load_project(Path.cwd())
    settings = find_model_settings(model, project.settings.models)

    def load_recorded_exchanges(attempt: str) -> list[Exchange]:
        with flow.open_project_store(project.settings, project.root) as store:
            return list(store.load_exchanges(attempt))

    async def serve_model(listener: Callable[[Exchange], None]) -> Usage:
        model_gateway = Gateway(
            os.environ, project.root, recorded=load_recorded_exchanges, port=port
        )
        # Nobody's attempt: it serves until it is stopped.
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
    """What writes an exchange to a file at once, or to nowhere."""
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
