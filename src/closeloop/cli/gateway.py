"""`closeloop gateway`: a model for any agent, judge or script, counted and recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.model.plural import plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from closeloop.model.attempt import Usage
    from closeloop.model.exchange import Exchange

ADDRESSES = """\
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
    from closeloop.cli.config import load
    from closeloop.cli.console import say, warn
    from closeloop.model.errors import Fault
    from closeloop.model.variant import Limits
    from closeloop.runs.gateway import Gateway
    from closeloop.runs.models.opening import settings_of

    found = load(Path.cwd())
    settings = settings_of(model, found.settings.models)

    def recorded(attempt: str) -> list[Exchange]:
        with flow.open_named_store(found.settings, found.root) as store:
            return list(store.exchanges(attempt))

    async def go(listener: Callable[[Exchange], None]) -> Usage:
        opened = Gateway(os.environ, found.root, recorded=recorded, port=port)
        # Nobody's attempt: it serves until it is stopped.
        endless = Limits(turns=1 << 53)
        async with opened as doors, doors.open(model, settings, endless, listener) as door:
            say(f"{door.name} answers at {door.address}")
            say(ADDRESSES.format(address=door.address))
            try:
                reason = await door.closed()
            except anyio.get_cancelled_exc_class():
                return door.usage
        if isinstance(reason, Fault):
            raise reason
        warn(str(reason))
        return door.usage

    with recording(record) as listener:
        used = anyio.run(go, listener)
    say(f"{plural(used.input_tokens or 0, 'token')} in, {used.output_tokens or 0:,} out.")


@contextmanager
def recording(file: Path | None) -> Iterator[Callable[[Exchange], None]]:
    """What writes an exchange to a file at once, or to nowhere."""
    from closeloop.model.errors import BadInput
    from closeloop.traces.readers.gateway import line

    if file is None:
        yield lambda exchange: None
        return
    try:
        with file.open("ab", buffering=0) as opened:

            def write(exchange: Exchange) -> None:
                opened.write(line(exchange))

            yield write
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}.") from error
