"""Ask git about somebody's repository: nothing in it is changed, nothing it names is run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.record import Record

SECONDS = 600.0
COMMAND = (
    *("git", "--no-pager", "--no-optional-locks", "--no-replace-objects", "--literal-pathspecs"),
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
)
ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    # What a partial clone lacks would be fetched, by commands that its configuration names.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "LC_ALL": "C",
}

REFETCH = "`git fetch --refetch --no-filter` brings it"
"""What a partial clone left out."""
_LACKS = re.compile(
    r"from promisor remote|\bbad object |\b(?:unable to (?:read|find)|not read|bad|missing)"
    r"(?: [a-z]+){0,3} [('\"]?[0-9a-f]{40}"
)
"""With the name of what it is: such words may stand in a path."""
_SHA256 = re.compile(rb"^\s*objectformat\s*=\s*\"?sha256", re.IGNORECASE | re.MULTILINE)


class Failed(MachineFailed):
    """Git ended with an error."""


class Repository(Record):
    """Where a repository keeps its things."""

    root: Path
    """Its work tree; of a bare one, the repository itself."""
    folder: Path
    """What is its own where several work trees share the rest."""
    shared: Path
    bare: bool
    object_format: str

    @property
    def shallow(self) -> frozenset[str]:
        """Commits whose parents were left out of the clone."""
        try:
            return frozenset((self.shared / "shallow").read_text("ascii", "replace").split())
        except FileNotFoundError:
            return frozenset()


def find(start: Path) -> Repository | None:
    """The repository that a folder belongs to, if it belongs to one.

    Git would believe a configured `core.worktree`, which may lead anywhere.
    """
    if not start.is_dir():
        raise BadInput(f"{start} is not a folder: name one with a git repository.")
    start = start.resolve()
    for root in (start, *start.parents):
        for folder, bare in ((_linked(root / ".git"), False), (root, True)):
            if os.path.lexists(folder / "HEAD") and (shared := _shared(folder)):
                config = (shared / "config").read_bytes() if (shared / "config").is_file() else b""
                return Repository(
                    root=root,
                    folder=folder,
                    shared=shared,
                    bare=bare,
                    object_format="sha256" if _SHA256.search(config) else "sha1",
                )
    return None


def _linked(place: Path) -> Path:
    """Where a `.git` that is a file, as in submodules and linked work trees, leads to."""
    if not place.is_file():
        return place
    target = os.fsdecode(place.read_bytes()[:10_000]).removeprefix("gitdir:").strip()
    return Path(os.path.normpath(place.parent / target))


def _shared(folder: Path) -> Path | None:
    common = folder / "commondir"
    named = os.fsdecode(common.read_bytes()[:10_000]).strip() if common.is_file() else "."
    shared = Path(os.path.normpath(folder / named))
    return shared if (shared / "objects").is_dir() else None


def run(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> bytes:
    """What git answers; Failed when it refuses."""
    try:
        ran = subprocess.run(
            [*COMMAND, *arguments],
            cwd=folder,
            env=environment(env),
            input=stdin,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MachineFailed(f"`git {arguments[0]}` took over {SECONDS:.0f} seconds.") from None
    except FileNotFoundError:
        raise MachineFailed("Git is not installed: install it, then try again.") from None
    if ran.returncode != 0:
        raise Failed(f"Git says: {said(ran.stderr) or f'{arguments[0]} failed'}")
    return ran.stdout


def run_in(repository: Repository, *arguments: str) -> bytes:
    """What git answers of a repository, which it is not left to look for."""
    return run(repository.root, *arguments, env={"GIT_DIR": str(repository.folder)})


def ask(repository: Repository, *arguments: str) -> str | None:
    """What git answers of a repository, or None where it has no answer."""
    try:
        return text(run_in(repository, *arguments)).removesuffix("\n") or None
    except Failed:
        return None


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The user's own, without what a hook or a shell says of another repository."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**own, **ENVIRONMENT, **(more or {})}


def said(errors: bytes) -> str:
    """The line of git's complaint that tells most."""
    lines = errors.decode("utf-8", "replace").splitlines()
    telling = [line for line in lines if line.startswith(("error: ", "fatal: "))] or lines or [""]
    return re.sub(r"^(error|fatal): ", "", telling[0])[:300].rstrip(".")


def lacks(complaint: str) -> bool:
    """Whether git complains of content that it ought to have, as in a partial clone."""
    return _LACKS.search(complaint) is not None


def text(name: bytes) -> str:
    """A path as text: what is not UTF-8 is escaped, as in a parsed patch."""
    return name.decode("utf-8", "backslashreplace")
