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

    from closeloop.cli.console import print_line
    from closeloop.providers.model_scripts import load_script
    from closeloop.providers.script_server import serve_script

    model_script = load_script(file)

    async def serve_model_script() -> None:
        async with serve_script(model_script, port=port) as address:
            print_line(f"{model_script.name} answers at {address}")
            print_line(f"  OPENAI_BASE_URL={address}/v1  ANTHROPIC_BASE_URL={address}")
            await anyio.sleep_forever()

    anyio.run(serve_model_script)
