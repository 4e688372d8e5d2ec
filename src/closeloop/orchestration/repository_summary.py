"""What a repository is, as far as that is cheap to know: told to whoever plans and works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from closeloop.records.plural import count_with_noun
from closeloop.records.settings import CommandSettings
from closeloop.records.visible_text import visible_line

MAX_NAMES = 60
MAX_KINDS = 8
GUIDE_FILES = ("AGENTS.md", "CLAUDE.md", "CONTRIBUTING.md", "README.md", "README.rst")


def describe_repository(paths: Sequence[str], commands: CommandSettings) -> str:
    """A few lines: size, languages, what lies at the top, how it is checked, what to read."""
    if not paths:
        return "There is no code yet."
    # A name may be no UTF-8, or look like more than a name.
    paths = [visible_line(path) for path in paths]
    kinds = Counter(PurePosixPath(path).suffix or "no ending" for path in paths)
    main_kinds = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(MAX_KINDS))
    top_names = sorted({path.partition("/")[0] + ("/" if "/" in path else "") for path in paths})
    rest_count = f" and {len(top_names) - MAX_NAMES} more" if len(top_names) > MAX_NAMES else ""
    lines = [
        f"{count_with_noun(len(paths), 'file')}: {main_kinds}.",
        f"At the top: {', '.join(top_names[:MAX_NAMES])}{rest_count}.",
    ]
    known_commands = {
        "tests": commands.test,
        "linter": commands.lint,
        "types": commands.types,
        "build": commands.build,
    }
    lines += [
        f"Command for the {name}: `{command}`."
        for name, command in known_commands.items()
        if command
    ]
    guides = [name for name in GUIDE_FILES if name in paths]
    if guides:
        lines.append(f"Written for people who work here: {', '.join(guides)}.")
    return "\n".join(lines)
