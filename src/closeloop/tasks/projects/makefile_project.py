"""Make: the targets that people name alike."""

from __future__ import annotations

import re

from closeloop.tasks.projects.manifest_folder import DetectedProject, ManifestFolder, ProjectCommand

_TARGET = re.compile(r"^([A-Za-z0-9][\w ./-]*?)\s*::?(?!=)", re.MULTILINE)


def probe_makefile(folder: ManifestFolder) -> DetectedProject | None:
    """The Makefile's targets for testing, linting, types and building."""
    name = folder.find_first("GNUmakefile", "makefile", "Makefile")
    if name is None:
        return None
    targets = {
        target for line in _TARGET.findall(folder.read_text(name)) for target in line.split()
    }

    def command(*wanted: str) -> ProjectCommand | None:
        target = next((target for target in wanted if target in targets), None)
        return ProjectCommand(line=f"make {target}", source=name) if target else None

    project = DetectedProject(
        kind="Make",
        test=command("test", "tests", "check"),
        lint=command("lint"),
        types=command("typecheck", "type-check", "types", "typing", "mypy"),
        build=command("build"),
    )
    return project if project != DetectedProject(kind="Make") else None
