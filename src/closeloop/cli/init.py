"""`closeloop init`: look at a repository and write its closeloop.toml."""

from __future__ import annotations

from pathlib import Path


def init(
    path: Path = Path(),
    *,
    force: bool = False,
    json: bool = False,
) -> None:
    """Find the project's test, lint, type and build commands and write closeloop.toml.

    Parameters
    ----------
    path
        A folder of the git repository; its closeloop.toml goes to the repository's root.
    force
        Replace a closeloop.toml that is there already.
    json
        Print one JSON document instead of text.
    """
    from closeloop.cli.config import CONFIG_NAME, find_repository_root
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import BadInput, MachineFailed
    from closeloop.tasks.config_template import render_config
    from closeloop.tasks.project_discovery import discover_commands

    if not path.is_dir():
        raise BadInput(f"{path} is not a folder: name one inside a git repository.")
    root = find_repository_root(path.resolve())
    if root is None:
        raise BadInput(f"{path.resolve()} lies in no git repository: make one with `git init`.")
    file = root / CONFIG_NAME
    if file.exists() and not force:
        raise BadInput(f"{file} is there already: edit it, or replace it with --force.")
    discovery = discover_commands(root)
    try:
        file.write_text(render_config(discovery), encoding="utf-8")
    except OSError as error:
        raise MachineFailed(f"{error.filename} cannot be written: {error.strerror}.") from error
    if json:
        print_json({"file": str(file), "found": discovery})
        return
    print_line(f"Wrote {file}")
    for name in ("setup", "test", "lint", "types", "build"):
        value = getattr(discovery.commands, name)
        line = " && ".join(value) if isinstance(value, tuple) else value
        print_line(
            f"  {name:6} {line}  ({discovery.sources[name]})" if line else f"  {name:6} not found"
        )
    if discovery.seen:
        print_line(
            f"  Also seen: {', '.join(discovery.seen[:8])}{' …' if len(discovery.seen) > 8 else ''}"
        )
    print_line("Next: look it over, then make tasks of past work with `closeloop mine`,")
    print_line("or write one with `closeloop task new NAME`.")
