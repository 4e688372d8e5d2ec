"""`closeloop script`: a scripted model as a server, for any agent to talk to."""

from __future__ import annotations

from pathlib import Path


def script(file: Path, *, port: int = 0) -> None:
    """Serve a scripted model on this machine until it is stopped.

    Parameters
    ----------
    file
        The script, in YAML.
    port
        Where to listen on 127.0.0.1; a free port when not given.
    """
    import anyio

    from closeloop.cli.console import say
    from closeloop.runs.models.scripts import load_script
    from closeloop.runs.models.serve import serve

    loaded = load_script(file)

    async def go() -> None:
        async with serve(loaded, port=port) as address:
            say(f"{loaded.name} answers at {address}")
            say(f"  OPENAI_BASE_URL={address}/v1  ANTHROPIC_BASE_URL={address}")
            await anyio.sleep_forever()

    anyio.run(go)
