"""A repository that has every setting by which git starts a program, each leaving a marker file."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import small_project

HOOKS = (
    *("pre-commit", "post-checkout", "post-commit", "post-index-change", "reference-transaction"),
    *("applypatch-msg", "pre-auto-gc", "post-merge", "post-rewrite", "fsmonitor-watchman"),
)
SIGNATURE = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n"


def build(folder: Path, markers: Path) -> Path:
    """Make the small project hostile: whatever its configuration starts writes into `markers`."""
    markers.mkdir()
    small_project.build(folder)
    later = (folder / "calculator.py").read_text().replace("a - b", "a + b")
    (folder / "calculator.py").write_text(later)
    (folder / "test_calculator.py").write_text(small_project.TESTS + "\n\nx = 1\n")
    (folder / "version.txt").write_text("$Format:%G? %GG$\n")
    (folder / ".gitattributes").write_text(
        "*.py filter=evil diff=evil\nversion.txt filter=evil=odd export-subst\n"
    )
    start = small_project.git(folder, "rev-parse", "HEAD").strip()
    task = folder / "tasks" / "fix.md"
    task.write_text(task.read_text().replace("---\n", f"---\nbase: {start}\n", 1))
    small_project.git(folder, "add", "*.py", "version.txt", ".gitattributes")
    small_project.git(folder, "commit", "-qm", "Fix add, and its test")
    with (folder / "closeloop.toml").open("a") as file:
        file.write(f'[commands]\ntest = "{small_project.PYTEST}"\n')
    _sign_head(folder)
    _add_submodule(folder)
    _configure(folder, markers)
    # A file that is touched but not changed is what makes git read it through its filter.
    (folder / "calculator.py").write_text(later)
    (folder / "test_calculator.py").write_text(small_project.TESTS + "\n\nx = 2\n")
    (folder / "version.txt").write_text("2\n")
    return folder


def _program(markers: Path, name: str) -> str:
    script = markers.parent / "programs" / name
    script.parent.mkdir(exist_ok=True)
    script.write_text(f"#!/bin/sh\ntouch '{markers}/{name}'\ncat\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def _configure(folder: Path, markers: Path) -> None:
    settings = {
        "core.fsmonitor": "fsmonitor",
        "core.pager": "pager",
        "pager.log": "pager",
        "core.editor": "editor",
        "core.sshCommand": "ssh",
        "core.askPass": "askpass",
        "core.gitProxy": "proxy",
        "core.alternateRefsCommand": "alternates",
        "credential.helper": "!credential",
        "diff.external": "external-diff",
        "diff.evil.command": "diff-driver",
        "diff.evil.textconv": "textconv",
        "filter.evil.clean": "clean",
        "filter.evil.smudge": "smudge",
        "filter.evil.process": "process",
        "filter.evil=odd.clean": "odd-clean",
        "filter.evil=odd.smudge": "odd-smudge",
        "gpg.program": "gpg",
        "interactive.diffFilter": "diff-filter",
        "merge.evil.driver": "merge",
        "remote.origin.uploadpack": "upload-pack",
        "uploadpack.packObjectsHook": "pack-objects",
        "tar.tar.command": "tar",
    }
    plain = {
        "log.showSignature": "true",
        "diff.submodule": "log",
        "submodule.recurse": "true",
        "status.submoduleSummary": "true",
        "filter.evil.required": "true",
        "filter.evil=odd.required": "true",
        "remote.origin.url": "ssh://git@example.invalid/owner/project",
        "remote.origin.promisor": "true",
        "remote.origin.partialclonefilter": "blob:none",
        "core.hooksPath": str(folder / ".git" / "hooks"),
    }
    for key, name in settings.items():
        mark = name.removeprefix("!")
        value = _program(markers, mark)
        plain[key] = f"!{value}" if name.startswith("!") else value
    for key, value in plain.items():
        section, _, name = key.rpartition(".")
        section, _, inner = section.partition(".")
        # Written by hand: git would read the configuration, and start what it names.
        with (folder / ".git" / "config").open("a") as file:
            header = f'[{section} "{inner}"]' if inner else f"[{section}]"
            file.write(f'{header}\n\t{name} = "{value}"\n')
    hooks = folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in HOOKS:
        (hooks / hook).write_bytes(Path(_program(markers, f"hook-{hook}")).read_bytes())
        (hooks / hook).chmod(0o755)


def _sign_head(folder: Path) -> None:
    """Give the last commit a signature, which some settings have a program look at."""
    written = small_project.git(folder, "cat-file", "commit", "HEAD")
    head, _, message = written.partition("\n\n")
    made = subprocess.run(
        ["git", "-C", str(folder), "hash-object", "-t", "commit", "-w", "--stdin"],
        input=f"{head}\n{SIGNATURE}\n{message}",
        capture_output=True,
        text=True,
        check=True,
    )
    small_project.git(folder, "reset", "-q", "--soft", made.stdout.strip())


def _add_submodule(folder: Path) -> None:
    """A repository inside, whose own configuration a command that recurses would obey."""
    inner = folder / "vendored"
    inner.mkdir()
    small_project.git(inner, "init", "-q")
    (inner / "file.py").write_text("y = 1\n")
    small_project.git(inner, "add", ".")
    small_project.git(inner, "commit", "-qm", "Vendored")
    small_project.git(folder, "add", "vendored")
    small_project.git(folder, "commit", "-qm", "Vendor a module")
    (inner / "file.py").write_text("y = 2\n")
    with (inner / ".git" / "config").open("a") as file:
        program = folder.parent / "programs" / "submodule"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ntouch '{folder.parent}/markers/submodule'\n")
        program.chmod(0o755)
        file.write(f'[core]\n\tfsmonitor = "{program}"\n')
