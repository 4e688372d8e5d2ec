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
    from closeloop.cli.config import NAME, repository
    from closeloop.cli.console import say, say_json
    from closeloop.model.errors import BadInput, MachineFailed
    from closeloop.tasks.configure import render_config
    from closeloop.tasks.discover import discover

    if not path.is_dir():
        raise BadInput(f"{path} is not a folder: name one inside a git repository.")
    root = repository(path.resolve())
    if root is None:
        raise BadInput(f"{path.resolve()} lies in no git repository: make one with `git init`.")
    file = root / NAME
    if file.exists() and not force:
        raise BadInput(f"{file} is there already: edit it, or replace it with --force.")
    found = discover(root)
    try:
        file.write_text(render_config(found), encoding="utf-8")
    except OSError as error:
        raise MachineFailed(f"{error.filename} cannot be written: {error.strerror}.") from error
    if json:
        say_json({"file": str(file), "found": found})
        return
    say(f"Wrote {file}")
    for name in ("setup", "test", "lint", "types", "build"):
        value = getattr(found.commands, name)
        line = " && ".join(value) if isinstance(value, tuple) else value
        say(f"  {name:6} {line}  ({found.sources[name]})" if line else f"  {name:6} not found")
    if found.seen:
        say(f"  Also seen: {', '.join(found.seen[:8])}{' …' if len(found.seen) > 8 else ''}")
    say("Next: look it over, then make tasks of past work with `closeloop mine`,")
    say("or write one with `closeloop task new NAME`.")
