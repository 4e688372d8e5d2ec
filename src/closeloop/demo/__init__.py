"""The sample project of `closeloop demo`: a repository with a history, tasks, models, settings.

Every commit id is the same on every machine. Building it again replaces what it made.
"""

from __future__ import annotations

import os
import shutil
from email.message import Message
from email.parser import BytesParser
from email.utils import parseaddr
from pathlib import Path

from closeloop.git import GitFailed, run_git
from closeloop.records.errors import BadInput, MachineFailed

DATA = Path(__file__).resolve().parent
HEAD = "2835da3ed787ba4829dc083db5b1d2b2a0e89eca"
TAGS = {
    "v0.5.0": "9fa065f34ea4f40c165f7b91cc583733f4bf7a70",
    "missing-cent": "cba355d5abfc1f96cf0812619ea867fede2b07ba",
    "v0.5.1": "3cded17d1f00cda82103bbb9714c2e579809e4ac",
    "v0.6.0": HEAD,
}
MARK = ".closeloop-demo"
"""Marks a folder that may be replaced."""
PARTS = ("closeloop.toml", "models", "tasks")
SETTINGS = ("core.autocrlf=false", "core.hooksPath=/dev/null", "commit.gpgSign=false", "gc.auto=0")


def build_demo(folder: Path) -> Path:
    """Build and return the folder with `project` (the repository), `tasks`, `models`,
    `closeloop.toml`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / MARK).exists():
            raise BadInput(f"{folder} is not empty, and not a demo: choose another folder.")
        (folder / MARK).touch()
        for name in PARTS:
            replace_path(DATA / name, folder / name)
        if not is_built(folder / "project"):
            remove_path(folder / "project")
            replay_history(folder / "project")
    except OSError as error:
        raise MachineFailed(f"The demo could not be written to {folder}: {error}.") from error
    return folder


def is_built(project: Path) -> bool:
    """Return whether the repository has all its commits and tags, with the newest checked out."""
    if not (project / ".git").is_dir():
        return False
    try:
        commits = git_text(project, "rev-parse", "HEAD", *TAGS).split()
    except GitFailed:
        return False
    return commits == [HEAD, *TAGS.values()]


def replay_history(project: Path) -> None:
    """Apply the patches, each committed by its author at its time."""
    new_project = project.with_name("project.new")
    remove_path(new_project)
    new_project.mkdir()
    git_text(new_project, "init", "--quiet", "--template=")
    git_text(new_project, "symbolic-ref", "HEAD", "refs/heads/main")
    for patch in sorted((DATA / "history").glob("*.patch")):
        header = BytesParser().parsebytes(patch.read_bytes(), headersonly=True)
        git_text(new_project, "am", "--quiet", str(patch), committer=header)
    if (head := git_text(new_project, "rev-parse", "HEAD")) != HEAD:
        raise MachineFailed(f"The demo's history is {head}, not {HEAD}: reinstall closeloop.")
    for tag, commit in TAGS.items():
        git_text(new_project, "tag", tag, commit)
    new_project.rename(project)


def git_text(folder: Path, *arguments: str, committer: Message | None = None) -> str:
    """Return git's output, independent of the machine's configuration."""
    environ = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    if committer is not None:
        name, address = parseaddr(committer["From"])
        environ |= {
            "GIT_COMMITTER_NAME": name,
            "GIT_COMMITTER_EMAIL": address,
            "GIT_COMMITTER_DATE": committer["Date"],
        }
    options = [text for setting in SETTINGS for text in ("-c", setting)]
    return run_git(folder, *options, *arguments, env=environ).decode().strip()


def replace_path(source: Path, target: Path) -> None:
    remove_path(target)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
