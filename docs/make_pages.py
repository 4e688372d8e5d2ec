"""Write the pages that are made of the code: `make docs`. A rule's docstring is its page."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from closeloop import plugins

RULES = Path(__file__).resolve().parent / "rules"


def render_rule_pages() -> dict[Path, str]:
    """The page of every rule that ships."""
    return {
        RULES / f"{one.rule.name}.md": f"# {one.rule.name}\n\n{inspect.getdoc(one)}\n"
        for one in plugins.load_plugins("detectors")
    }


def main() -> int:
    """Write what differs, and name it."""
    for path, text in render_rule_pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
