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
    from closeloop.cli.console import say_json, show, visible

    with ThreadPoolExecutor() as pool:  # a program that tells its version may take seconds
        found = list(pool.map(_described, plugins.every("agents")))
    if json:
        say_json(found)
        return
    table = Table(box=None)
    for name in ("agent", "version", "where", "to install it"):
        table.add_column(name, no_wrap=name != "to install it")
    for one in found:
        cells = (one["name"], one["version"] or "–", one["path"] or "–", one["install"] or "")
        table.add_row(*map(visible, cells))
    show(table)


def _described(agent: Any) -> dict[str, Any]:
    """What is known of an agent; a program of others must be found first."""
    adapter = getattr(agent, "adapter", None)
    here = agent.installed() if adapter else None
    missing = adapter is not None and adapter.program and here is None
    return {
        "name": agent.name,
        "installed": not missing,
        "version": agent.version,
        "path": here.path if here else None,
        "install": adapter.install if adapter and missing else None,
    }
