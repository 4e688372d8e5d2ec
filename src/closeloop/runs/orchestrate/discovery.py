"""What a repository is, as far as that is cheap to know: told to whoever plans and works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from closeloop.model.plural import plural
from closeloop.model.settings import Commands
from closeloop.model.visible import on_one_line

MOST_NAMES = 60
MOST_KINDS = 8
GUIDES = ("AGENTS.md", "CLAUDE.md", "CONTRIBUTING.md", "README.md", "README.rst")


def about(paths: Sequence[str], commands: Commands) -> str:
    """A few lines: size, languages, what lies at the top, how it is checked, what to read."""
    if not paths:
        return "There is no code yet."
    # A name may be no UTF-8, or look like more than a name.
    paths = [on_one_line(path) for path in paths]
    kinds = Counter(PurePosixPath(path).suffix or "no ending" for path in paths)
    most = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(MOST_KINDS))
    top = sorted({path.partition("/")[0] + ("/" if "/" in path else "") for path in paths})
    more = f" and {len(top) - MOST_NAMES} more" if len(top) > MOST_NAMES else ""
    lines = [
        f"{plural(len(paths), 'file')}: {most}.",
        f"At the top: {', '.join(top[:MOST_NAMES])}{more}.",
    ]
    known = {
        "tests": commands.test,
        "linter": commands.lint,
        "types": commands.types,
        "build": commands.build,
    }
    lines += [f"Command for the {name}: `{command}`." for name, command in known.items() if command]
    guides = [name for name in GUIDES if name in paths]
    if guides:
        lines.append(f"Written for people who work here: {', '.join(guides)}.")
    return "\n".join(lines)
