"""`closeloop agents`: which agents are on this machine, and how to get the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any


def agents(*, json: bool = False) -> None:
    """List every agent that `--agent` knows: its version and place, or the line that installs it.

    Parameters
    ----------
    json
        Print one JSON document instead of a table.
    """
    from rich.table import Table

    from closeloop import plugins
    from closeloop.cli.console import make_visible, print_json, print_parts

    with ThreadPoolExecutor() as pool:  # a program that tells its version may take seconds
        descriptions = list(pool.map(_describe_agent, plugins.load_plugins("agents")))
    if json:
        print_json(descriptions)
        return
    table = Table(box=None)
    for name in ("agent", "version", "where", "to install it"):
        table.add_column(name, no_wrap=name != "to install it")
    for description in descriptions:
        cells = (
            description["name"],
            description["version"] or "–",
            description["path"] or "–",
            description["install"] or "",
        )
        table.add_row(*map(make_visible, cells))
    print_parts(table)


def _describe_agent(agent: Any) -> dict[str, Any]:
    """What is known of an agent; a program of others must be found first."""
    adapter = getattr(agent, "adapter", None)
    installation = agent.locate_program() if adapter else None
    is_missing = adapter is not None and adapter.program and installation is None
    return {
        "name": agent.name,
        "installed": not is_missing,
        "version": agent.version,
        "path": installation.path if installation else None,
        "install": adapter.install if adapter and is_missing else None,
    }
