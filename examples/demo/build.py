"""Make the demo in a folder of its own: the project with its history, tasks, models, settings.

    python build.py FOLDER

Every commit id comes out the same on every machine. Making it again replaces what it made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from email.message import Message
from email.parser import BytesParser
from email.utils import parseaddr
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEAD = "3bfee8fe8f611321cbfc0953b13d3d730815ceb6"
TAGS = {
    "v0.5.0": "652112952bf82f37b416ad35a8da73800d14b83a",
    "missing-cent": "04fe86aa672af5c930e862745301bfea9cfab240",
    "v0.5.1": "ca505365b65b6f97046165f362c6424ea08b66ef",
    "v0.6.0": HEAD,
}
MARK = ".closeloop-demo"
"""Says that a folder is ours to replace."""
PARTS = ("closeloop.toml", "models", "tasks")
SETTINGS = ("core.autocrlf=false", "core.hooksPath=/dev/null", "commit.gpgSign=false", "gc.auto=0")


def build(folder: Path) -> Path:
    """The folder with `project` (the repository), `tasks`, `models` and `closeloop.toml`."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / MARK).exists():
        raise SystemExit(f"{folder} is not empty, and not a demo: name another folder.")
    (folder / MARK).touch()
    for name in PARTS:
        copy(HERE / name, folder / name)
    if not is_built(folder / "project"):
        remove(folder / "project")
        replay(folder / "project")
    return folder


def is_built(project: Path) -> bool:
    if not (project / ".git").is_dir():
        return False
    found = git(project, "rev-parse", "HEAD", *TAGS).stdout.split()
    return found == [HEAD, *TAGS.values()]


def replay(project: Path) -> None:
    """Apply the history, one commit after the other, each committed by its author at its time."""
    making = project.with_name("project.new")
    remove(making)
    making.mkdir()
    git(making, "init", "--template=", check=True)
    git(making, "symbolic-ref", "HEAD", "refs/heads/main", check=True)
    for patch in sorted((HERE / "history").glob("*.patch")):
        header = BytesParser().parsebytes(patch.read_bytes(), headersonly=True)
        git(making, "am", "--quiet", str(patch), committer=header, check=True)
    if (head := git(making, "rev-parse", "HEAD").stdout) != HEAD:
        raise SystemExit(f"The history came out as {head}, not {HEAD}: were the patches changed?")
    for tag, commit in TAGS.items():
        git(making, "tag", tag, commit, check=True)
    making.rename(project)


def git(
    folder: Path, *arguments: str, committer: Message | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run git as on a machine where nobody configured anything."""
    with tempfile.TemporaryDirectory() as home:
        environ = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
        environ |= {
            "HOME": home,
            "XDG_CONFIG_HOME": home,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "LC_ALL": "C",
        }
        if committer is not None:
            name, address = parseaddr(committer["From"])
            environ |= {
                "GIT_COMMITTER_NAME": name,
                "GIT_COMMITTER_EMAIL": address,
                "GIT_COMMITTER_DATE": committer["Date"],
            }
        options = [text for setting in SETTINGS for text in ("-c", setting)]
        done = subprocess.run(
            ["git", *options, *arguments],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
    if check and done.returncode:
        raise SystemExit(f"git {arguments[0]} failed: {done.stderr.strip()}")
    done.stdout = done.stdout.strip()
    return done


def copy(source: Path, target: Path) -> None:
    remove(target)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python build.py FOLDER")
    try:
        build(Path(sys.argv[1]).absolute())
    except OSError as error:
        raise SystemExit(f"The demo could not be made: {error}.") from error
