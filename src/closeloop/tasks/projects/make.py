"""Make: the targets that people name alike."""

from __future__ import annotations

import re

from closeloop.tasks.projects.folder import Command, Folder, Project

_TARGET = re.compile(r"^([A-Za-z0-9][\w ./-]*?)\s*::?(?!=)", re.MULTILINE)


def look(folder: Folder) -> Project | None:
    """The Makefile's targets for testing, linting, types and building."""
    name = folder.first("GNUmakefile", "makefile", "Makefile")
    if name is None:
        return None
    targets = {target for line in _TARGET.findall(folder.text(name)) for target in line.split()}

    def command(*wanted: str) -> Command | None:
        target = next((target for target in wanted if target in targets), None)
        return Command(line=f"make {target}", source=name) if target else None

    project = Project(
        kind="Make",
        test=command("test", "tests", "check"),
        lint=command("lint"),
        types=command("typecheck", "type-check", "types", "typing", "mypy"),
        build=command("build"),
    )
    return project if project != Project(kind="Make") else None
