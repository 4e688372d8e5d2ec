"""Trees of files out of git and into it, for formats that carry a repository along."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from pathlib import Path

from closeloop.git import read_git_text
from closeloop.records.errors import BadInput

MAX_UNPACKED_BYTES = 2 << 30
_GIT_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "closeloop",
    "GIT_AUTHOR_EMAIL": "closeloop@localhost",
    "GIT_COMMITTER_NAME": "closeloop",
    "GIT_COMMITTER_EMAIL": "closeloop@localhost",
    # The same content is the same commit, whenever it is imported.
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def check_out_commit(repo: str, commit: str, folder: Path) -> None:
    """All files of a commit in an empty folder. Not `git archive`, which leaves out what it may."""
    index = folder.parent / f".{folder.name}.index"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _run_git(Path(repo), "read-tree", commit, GIT_INDEX_FILE=str(index))
        _run_git(
            Path(repo), "checkout-index", "-a", f"--prefix={folder}/", GIT_INDEX_FILE=str(index)
        )
    finally:
        index.unlink(missing_ok=True)


def pack_folder(folder: Path) -> bytes:
    """A folder as tar.gz, byte for byte the same for the same files."""

    def clear_ownership(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            archive.add(path, arcname=name, recursive=False, filter=clear_ownership)
    return buffer.getvalue()


def unpack_archive(archive: Path, folder: Path) -> None:
    """A tar's files below a folder; BadInput for one that would write elsewhere, or too much."""
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                total += member.size
                if total > MAX_UNPACKED_BYTES:
                    raise BadInput(f"{archive} unpacks to more than {MAX_UNPACKED_BYTES >> 30} GB.")
                extract_member(opened, member, folder.resolve())
    except (tarfile.TarError, OSError, EOFError, zlib.error, LookupError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(":.")
        raise BadInput(f"{archive} cannot be unpacked: {reason}.") from error


def extract_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Files, folders and links that stay below; `filter="data"` is not on every Python 3.11."""
    path = folder / member.name
    inside = path.parent.resolve().is_relative_to(folder) and ".." not in path.parts
    if not inside or ".git" in path.parts:
        raise BadInput(f"{member.name!r} would be written outside of its folder.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.issym():
        if not (path.parent / member.linkname).resolve().is_relative_to(folder):
            raise BadInput(f"{member.name!r} is a link that leads outside of its folder.")
        path.symlink_to(member.linkname)
    elif (content := archive.extractfile(member)) is not None and not path.is_symlink():
        path.write_bytes(content.read())
        path.chmod(0o755 if member.mode & 0o100 else 0o644)


def commit_folder(folder: Path) -> str:
    """Make a folder a repository with one commit, and say which."""
    _run_git(folder, "init", "-q", "-b", "main")
    _run_git(folder, "add", "-A", "-f")
    _run_git(folder, "commit", "-q", "--allow-empty", "--no-verify", "-m", "The task's environment")
    return _run_git(folder, "rev-parse", "HEAD").strip()


def patch_adding_files(folder: Path, files: dict[str, bytes]) -> str:
    """The patch that adds these files to a repository, which stays as it is."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    _run_git(folder, "add", "-f", "--", *files)
    patch = _run_git(folder, "diff", "--cached", "--binary", "HEAD")
    _run_git(folder, "reset", "-q", "--hard", "HEAD")
    return patch


def _run_git(folder: Path, *arguments: str, **environ: str) -> str:
    """Content of others: no filters of the user's own."""
    return read_git_text(folder, *arguments, env=_GIT_ENVIRONMENT | environ)
