"""Open a change: its diff, and the content of any file before and after it."""

from __future__ import annotations

import difflib
import io
import re
import shlex
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from closeloop import git
from closeloop.changes import shadow_repository
from closeloop.changes.file_kinds import classify_file, is_lfs_pointer
from closeloop.changes.shadow_repository import ShadowRepository, TreeDiff, TreeEntry, open_shadow
from closeloop.records.change import Change, ChangeSide, FileChange
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record, content_digest
from closeloop.sandbox.workspaces import Workspace, WorkspaceBase, WorkspacePool
from closeloop.text.patches import LineNumbers, find_changed_lines, parse_patch
from closeloop.text.wording import matches_globs

# A patch from a file, applied to our own index.

MAX_PATCH_BYTES = 200_000_000


def index_patch(shadow: ShadowRepository, patch: Path, base: str) -> list[FileChange]:
    """Load the base into our index and apply the patch; return files whose content is not known."""
    content, change = _read_patch(patch)
    shadow.run_git_reading("read-tree", base)
    entries = shadow.list_entries(None)
    changed_paths = {path for file in change.files for path in (file.path, file.old_path) if path}
    shadow.copy_blobs(entry.id for path, entry in entries.items() if path in changed_paths)
    has_binary_content = b"GIT binary patch" in content
    bare = [file for file in change.files if file.binary and not has_binary_content]
    _apply_patch(shadow, patch, content, bare)
    return [replace(file, note="binary: the patch does not contain its content") for file in bare]


def diff_standalone_patch(shadow: ShadowRepository, patch: Path) -> TreeDiff:
    """Read a patch without a repository; content is known only for files that it adds."""
    content, change = _read_patch(patch)
    unknown_files = [file for file in change.files if file.status != "added" or file.binary]
    _apply_patch(shadow, patch, content, unknown_files)
    added_diff = shadow_repository.diff_trees(shadow, None, None)
    unknown = {path: None for file in unknown_files for path in (file.path, file.old_path) if path}
    return replace(
        added_diff,
        files=change.files,
        patch=change.patch,
        before=unknown,
        after={**added_diff.after, **unknown},
    )


def _read_patch(patch: Path) -> tuple[bytes, Change]:
    try:
        with patch.open("rb") as file:
            content = file.read(MAX_PATCH_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{patch} cannot be read: {error.strerror}.") from None
    if len(content) > MAX_PATCH_BYTES:
        raise BadInput(f"{patch} is larger than {MAX_PATCH_BYTES:,} bytes: check it in parts.")
    return content, parse_patch(content.decode("utf-8", "replace"))


def _apply_patch(
    shadow: ShadowRepository, patch: Path, content: bytes, without: list[FileChange]
) -> None:
    if not content.strip():
        return
    apply = ("apply", "--cached", "--whitespace=nowarn")
    excluded = [f"--exclude={_escape_glob(file.path)}" for file in without]
    try:
        shadow.run_git_writing(*apply, "-p1", *excluded, stdin=content)
    except git.GitFailed as failure:
        # Plain `diff -u` writes paths without the prefixes `a/` and `b/`.
        try:
            shadow.run_git_writing(*apply, "-p0", *excluded, stdin=content)
        except git.GitFailed:
            raise BadInput(
                f"{patch.name} does not apply ({failure}): give the commit it was made "
                "from with --base."
            ) from None


def _escape_glob(name: str) -> str:
    """Return a glob that matches only this name."""
    return re.sub(r"([*?\[\\])", r"\\\1", name)


# Resolve the two commits of a change.

DEEPEN_ADVICE = "run `git fetch --unshallow`, or `--deepen=100` (in a workflow: `fetch-depth: 0`)"
SINCE_PATTERN = re.compile(r"(HEAD|@)[~^][~^\d]*")
COMMIT_PATTERN = re.compile(r"[0-9a-f]{7,64}")


class CommitRange(Record):
    """The first and last commit of a change."""

    base: str | None
    """None stands for the empty tree before the first commit."""
    head: str
    title: str


def resolve_range(repository: git.GitRepository, revision: str, base: str | None) -> CommitRange:
    """Resolve `main..feature`, `HEAD~3` (all since), a branch (all since it forked), or a
    commit."""
    left, dots, right = revision.partition("..")
    if dots and base:
        raise BadInput(
            f"{revision!r} already has a base: leave out {base!r}, or give one end only."
        )
    if dots or base:
        old, new = base or left or "HEAD", right.removeprefix(".") or "HEAD" if dots else revision
        start, head = resolve_commits(repository, old, new)
        return CommitRange(
            base=_merge_base(repository, old, start, head), head=head, title=f"{old}..{new}"
        )
    (head,) = resolve_commits(repository, revision)
    if SINCE_PATTERN.fullmatch(revision):
        return resolve_range(repository, f"{revision}..HEAD", None)
    trunk = _target_branch(repository, revision)
    if trunk:
        return resolve_range(repository, f"{trunk}..{revision}", None)
    return CommitRange(
        base=_parent_commit(repository, head), head=head, title=f"commit {head[:10]}"
    )


def find_merge_base(repository: git.GitRepository, old: str) -> str:
    """Return the merge base of the current commit and `old`."""
    start, head = resolve_commits(repository, old, "HEAD")
    return _merge_base(repository, old, start, head)


def _merge_base(repository: git.GitRepository, old: str, start: str, head: str) -> str:
    merge_base = start if start == head else git.query_git(repository, "merge-base", start, head)
    if merge_base in (start, head):
        return merge_base
    cut = repository.shallow_commits
    if merge_base is None:
        if cut:
            raise BadInput(f"This shallow clone does not contain {old!r}: {DEEPEN_ADVICE}.")
        raise BadInput(f"{old!r} has no history in common with the change: choose another base.")
    between = git.query_git(repository, "rev-list", start, head, f"^{merge_base}") if cut else None
    if between and not cut.isdisjoint(between.split()):
        raise BadInput(
            f"This shallow clone does not contain the common ancestor with {old!r}: "
            f"{DEEPEN_ADVICE}."
        )
    return merge_base


def resolve_commits(repository: git.GitRepository, *names: str) -> list[str]:
    """Return the commits with these names; BadInput suggests the nearest existing name."""
    for name in names:
        if name.startswith("-") or "\0" in name:
            raise _unknown_revision(repository, name)
    expressions = [f"{name}^{{commit}}" for name in names]
    try:
        return git.decode_git_path(git.run_git_in(repository, "rev-parse", *expressions)).split()
    except git.GitFailed:
        for name, question in zip(names, expressions, strict=True):
            if git.query_git(repository, "rev-parse", "--verify", "-q", question) is None:
                raise _unknown_revision(repository, name) from None
        raise


def _unknown_revision(repository: git.GitRepository, name: str) -> BadInput:
    # This fails with the reason if the repository itself cannot be read.
    branch_output = git.decode_git_path(
        git.run_git_in(repository, "for-each-ref", "--format=%(refname:short)")
    )
    if name == "HEAD" or not branch_output:
        return BadInput(f"{repository.root} has no commits yet: create one, then try again.")
    if repository.shallow_commits:
        return BadInput(f"This shallow clone has no {name!r}: {DEEPEN_ADVICE}.")
    if COMMIT_PATTERN.fullmatch(name):
        return BadInput(f"There is no commit {name!r} here: fetch it, or choose another one.")
    known_names = branch_output.split()
    similar_names = difflib.get_close_matches(name, known_names, n=1, cutoff=0.5)
    similar_names = [known_name for known_name in known_names if known_name.endswith(f"/{name}")][
        :1
    ] or similar_names
    hint = (
        f"did you mean {similar_names[0]!r}?"
        if similar_names
        else "`git branch -a` lists the branches."
    )
    return BadInput(f"There is no branch, tag or commit {name!r} here: {hint}")


def _target_branch(repository: git.GitRepository, name: str) -> str | None:
    """Return the branch that a branch will be merged into; None if the name is not a branch."""
    full = (
        git.query_git(repository, "rev-parse", "--symbolic-full-name", "--verify", "-q", name) or ""
    )
    if name in ("HEAD", "@") or not full.startswith(("refs/heads/", "refs/remotes/")):
        return None
    branch = full.split("/", 2)[2]
    default = _default_branch(repository)
    upstream = git.query_git(repository, "rev-parse", "--abbrev-ref", "-q", f"{name}@{{upstream}}")
    if default and branch not in (default, default.removeprefix("origin/"), f"origin/{default}"):
        # A remote branch of the same name is usually only a copy.
        return upstream if upstream and not upstream.endswith(f"/{branch}") else default
    if upstream:
        return upstream
    raise BadInput(
        f"The branch that {name!r} started from is unknown: give both ends, as in A..{name}."
    )


def _default_branch(repository: git.GitRepository) -> str | None:
    origin_head = git.query_git(
        repository, "symbolic-ref", "--short", "-q", "refs/remotes/origin/HEAD"
    )
    for name in (origin_head, "origin/main", "origin/master", "main", "master"):
        if name and git.query_git(repository, "rev-parse", "--verify", "-q", f"{name}^{{commit}}"):
            return name
    return None


def _parent_commit(repository: git.GitRepository, commit: str) -> str | None:
    if commit in repository.shallow_commits:
        raise BadInput(
            f"This shallow clone does not contain the parent of {commit[:10]}: {DEEPEN_ADVICE}."
        )
    return git.query_git(repository, "rev-parse", "--verify", "-q", f"{commit}^1")


class ChangeQuery(Record):
    """Which change to open: the working tree's, unless a range or a patch is named."""

    range: str | None = None
    """`main..feature`; `HEAD~3`, all since; a branch, all since it forked; or one commit."""
    patch: Path | None = None
    base: str | None = None
    """What to compare with; default: the current commit."""
    staged: bool = False
    """Use only the index, not the rest of the working tree."""
    index: Path | None = None
    """The index of a commit in progress, if git uses another one."""
    left_out: tuple[str, ...] = ()
    """Untracked files of the working tree that are not part of the change."""

    @property
    def is_worktree(self) -> bool:
        """Whether it is the change of the working tree."""
        return self.range is None and self.patch is None and not self.staged


class NoChange(BadInput):
    """There is no difference."""


class ChangeSides:
    """Both sides of a change. Contents are read on demand, by one process."""

    change: Change
    title: str
    base: str | None
    """The commit before the change; None before the first commit, or without a repository."""
    head: str | None
    """The commit after the change; None for a working tree or a patch."""
    root: Path
    """The repository's root; without a repository, the folder that was given."""

    def __init__(
        self, shadow: ShadowRepository, root: Path, title: str, change_diff: TreeDiff
    ) -> None:
        self.change = Change(
            base=change_diff.base,
            head=change_diff.head,
            files=change_diff.files,
            patch=change_diff.patch,
        )
        self.base, self.head, self.title, self.root = (
            change_diff.base,
            change_diff.head,
            title,
            root,
        )
        self._shadow, self._change_diff = shadow, change_diff
        self._entries: dict[ChangeSide, Mapping[str, TreeEntry]] = {}
        self._trees: dict[ChangeSide, Mapping[str, str]] = {}

    @cached_property
    def changed_lines(self) -> tuple[LineNumbers, LineNumbers]:
        """Return, by path, the added lines as numbered after, and the removed lines as before."""
        return find_changed_lines(self.change)

    def read(self, side: ChangeSide, path: str) -> bytes | None:
        """Return a file's content; None if missing, a link, a submodule, or over 5 MB."""
        changed = self._change_diff.before if side == "before" else self._change_diff.after
        entry = changed[path] if path in changed else self.list_entries(side).get(path)
        return self.read_blob(entry.id) if entry and entry.mode.startswith("100") else None

    def read_blob(self, blob: str) -> bytes | None:
        """Return content by blob id (for a link, its target); None if unavailable."""
        return self._shadow.blobs.read(blob)

    def tree(self, side: ChangeSide) -> Mapping[str, str]:
        """Return the blob id of every regular file on that side; all zeros for one not read."""
        if side not in self._trees:
            entries = self.list_entries(side).items()
            plain = {path: entry.id for path, entry in entries if entry.mode.startswith("100")}
            self._trees[side] = plain
        return self._trees[side]

    def entries_at_commit(self, commit: str) -> Mapping[str, TreeEntry]:
        """Return every entry of a commit; empty if the repository does not have it."""
        if commit == self.base:
            return self.list_entries("before")
        try:
            return self._shadow.list_entries(commit)
        except git.GitFailed:
            return {}

    def list_entries(self, side: ChangeSide) -> Mapping[str, TreeEntry]:
        """Return every entry on that side with its mode, including links and submodules."""
        if side not in self._entries:
            change_diff, list_tree = self._change_diff, self._shadow.list_entries
            if side == "before":
                self._entries[side] = list_tree(change_diff.base) if change_diff.base else {}
            else:
                after = {**list_tree(change_diff.head), **change_diff.after}
                self._entries[side] = {path: entry for path, entry in after.items() if entry}
        return self._entries[side]


@contextmanager
def open_sides(root: Path, query: ChangeQuery) -> Iterator[ChangeSides]:
    """Open the change in the repository around `root`; BadInput says why there is none."""
    repository = git.find_repository(root)
    if repository is None and (query.patch is None or query.base):
        raise BadInput(
            f"{root} is not a git repository: run this in one, or give a patch with --patch."
        )
    if bool(query.range) + bool(query.patch) + query.staged > 1:
        raise BadInput("Give only one of a range, a patch and --staged.")
    with open_shadow(repository, query.is_worktree) as shadow:
        if repository is None:
            assert query.patch
            change_diff, title = (diff_standalone_patch(shadow, query.patch), query.patch.name)
        else:
            change_diff, title = _diff_for_query(repository, shadow, query)
        if not change_diff.files:
            raise NoChange(f"No change in {title}: nothing differs from its base.")
        yield ChangeSides(shadow, repository.root if repository else root, title, change_diff)


def list_untracked_files(root: Path) -> tuple[str, ...]:
    """Return the untracked files of a repository, relative to its root."""
    repository = git.find_repository(root)
    if repository is None or repository.bare:
        return ()
    options = ("ls-files", "-z", "-o", "--exclude-standard")
    return tuple(filter(None, (git.query_git(repository, *options) or "").split("\0")))


def find_commit_before(root: Path, query: ChangeQuery) -> str | None:
    """Return the commit before a change, whose configuration is trusted; None if there is none."""
    repository = git.find_repository(root)
    if repository is None:
        return None
    if query.range is not None:
        return resolve_range(repository, query.range, query.base).base
    if query.base and query.patch:
        return resolve_commits(repository, query.base)[0]
    if query.base:
        return find_merge_base(repository, query.base)
    return git.query_git(repository, "rev-parse", "--verify", "-q", "HEAD^{commit}")


def _diff_for_query(
    repository: git.GitRepository, shadow: ShadowRepository, query: ChangeQuery
) -> tuple[TreeDiff, str]:
    if query.range is not None:
        ends = resolve_range(repository, query.range, query.base)
        return shadow_repository.diff_trees(shadow, ends.base, ends.head), ends.title
    if query.patch:
        (base,) = resolve_commits(repository, query.base or "HEAD")
        base_text = f" on {query.base}" if query.base else ""
        unknown_files = index_patch(shadow, query.patch, base)
        return shadow_repository.diff_trees(
            shadow, base, None, unknown_files
        ), f"{query.patch.name}{base_text}"
    if repository.bare:
        raise BadInput(f"{repository.root} is bare and has no working tree: give a range.")
    if query.staged:
        shadow_repository.index_staged_files(repository, shadow, query.index)
        base_commit = find_merge_base(repository, query.base) if query.base else None
        base_commit = base_commit or git.query_git(
            repository, "rev-parse", "--verify", "-q", "HEAD^{commit}"
        )
        return shadow_repository.diff_trees(shadow, base_commit, None), "the staged changes"
    base = find_merge_base(repository, query.base or "HEAD")
    unknown_files = shadow_repository.index_worktree(repository, shadow, query.left_out)
    title = f"working tree compared with {query.base}" if query.base else "working tree"
    return shadow_repository.diff_trees(shadow, base, None, unknown_files), title


# Workspaces for tools: prepared bases, each side of the change written over them, missing content.


BATCH_BYTES = 32 << 20
UNPACK_COMMAND = "tar -xf - --no-same-owner"
REMOVE_COMMAND = "xargs -0 -r rm -rf --"


class CheckContext(Record):
    """Both sides of a change, ready to be opened as workspaces."""

    workspaces: WorkspacePool
    bases: Mapping[ChangeSide, WorkspaceBase]
    """The prepared base that each side is written over, as close to it as possible."""
    sides: ChangeSides
    setup: tuple[str, ...] = ()
    """Setup commands, run again if a side differs from its base in manifests or lock files."""
    unready: Mapping[ChangeSide, str] = {}
    """Sides that cannot be set up, with the output of the setup."""
    bare: frozenset[ChangeSide] = frozenset()
    """Sides whose base was not set up: every workspace runs the setup itself."""
    timeout: float = 900.0
    report_progress: Callable[[str], None] = lambda text: None


async def apply_side(context: CheckContext, workspace: Workspace, side: ChangeSide) -> None:
    """Turn a workspace of its base into one side of the change."""
    base = context.bases[side]
    paths = differing_paths(context.sides, base.commit, side)
    if paths:
        entries = context.sides.list_entries(side)
        await _run_with_stdin(
            workspace, REMOVE_COMMAND, b"".join(path.encode() + b"\0" for path in paths)
        )
        for archive in _build_archives(
            context.sides, [(path, entries.get(path)) for path in paths]
        ):
            await _run_with_stdin(workspace, UNPACK_COMMAND, archive)
    if side in context.bare or needs_setup(paths):
        await workspace.set_up(context.setup)


def differing_paths(sides: ChangeSides, commit: str, side: ChangeSide) -> list[str]:
    """Return paths that differ between one side and a commit, except those with `..` or `.git`."""
    commit_entries, side_entries = sides.entries_at_commit(commit), sides.list_entries(side)
    paths = {
        path
        for path in commit_entries.keys() | side_entries.keys()
        if commit_entries.get(path) != side_entries.get(path)
    }
    return sorted(path for path in paths if not {"..", ".git"} & set(path.lower().split("/")))


def needs_setup(paths: Iterable[str]) -> bool:
    """Return whether the paths include a file that setup reads."""
    return any(classify_file(path) in ("manifest", "lockfile") for path in paths)


async def _run_with_stdin(workspace: Workspace, command: str, stdin: bytes) -> None:
    result = await workspace.sandbox.run(command, stdin=stdin)
    if result.exit_code != 0:
        output = result.stopped or result.output.strip()[-300:]
        raise MachineFailed(f"The change could not be written into a workspace: {output}")


def _build_archives(
    sides: ChangeSides, entries: Sequence[tuple[str, TreeEntry | None]]
) -> Iterable[bytes]:
    """Yield the readable files as tar archives of limited size."""
    now, file = int(time.time()), io.BytesIO()
    archive = tarfile.open(fileobj=file, mode="w")  # noqa: SIM115 - begun anew when it is full
    for path, entry in entries:
        content = sides.read_blob(entry.id) if entry and entry.mode != "160000" else None
        if entry is None or content is None:
            continue
        member = tarfile.TarInfo(path)
        member.mtime, member.mode = now, 0o755 if entry.mode == "100755" else 0o644
        if entry.mode == "120000":
            member.type, member.linkname = tarfile.SYMTYPE, content.decode("utf-8", "replace")
            archive.addfile(member)
            continue
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
        if file.tell() > BATCH_BYTES:
            archive.close()
            yield file.getvalue()
            file = io.BytesIO()
            archive = tarfile.open(fileobj=file, mode="w")  # noqa: SIM115
    archive.close()
    yield file.getvalue()


# Prepared bases, shared between commits: setup runs only if it would differ.
#
# Installing dependencies reads manifests and lock files. While those stay the same, what was
# installed for one commit serves its neighbours, and only their files are written over it.

PREPARED_VERSION = 1
MAX_DIFFERING_FILES = 2_000
"""Maximum files that differ from a prepared commit; above this, build a new base."""
_INSTALL_COMMAND = re.compile(
    r"(?:\S*/)?(?:"
    r"python[\d.]* -m venv|virtualenv|uv venv|uv sync|(?:poetry|pdm|bundle|composer) install"
    r"|npm (?:ci|install|i)|pnpm (?:install|i)|yarn(?: install)?|go mod download|cargo fetch"
    r"|pipenv install|hatch env create|go vet|go test -exec=true"
    r"|cargo test(?: --workspace)? --no-run|pre-commit install-hooks"
    r")(?: [^&|;<>`$]*)?"
)
_PIP_INSTALL = re.compile(
    r"(?:(?:\S*/)?python[\d.]* -m pip|(?:\S*/)?pip[\d.]*|(?:\S*/)?uv pip) install (.*)"
)
_REFERENCE_OPTIONS = ("-e", "--editable", "-r", "--requirement", "-c", "--constraint", "--python")
_SHELL_OPERATORS = ("|", "||", ";", "&", "<", ">", ">>")
_INSTALL_SCRIPTS = re.compile(rb'"(?:(?:pre|post)?install|(?:pre|post)?prepare)"\s*:')
_NATIVE_SOURCE = re.compile(r".*\.(?:c|cc|cpp|cxx|h|hpp|pyx|pxd|rs|f90|m)")


async def prepare_base(
    workspaces: WorkspacePool,
    sides: ChangeSides,
    side: ChangeSide,
    setup: Sequence[str],
    cache: Path,
    report: Callable[[str], None] = lambda text: None,
) -> WorkspaceBase:
    """Prepare a base for one side of a change: its own commit, or one with the same setup.

    A base that was set up with the change is not reused by others: the change's code may have run
    and left something in a cache.
    """
    own_commit = sides.base if side == "before" else sides.head
    assert own_commit is not None
    repo = str(sides.root)
    note = (
        cache
        / "prepared"
        / content_digest(PREPARED_VERSION, repo, list(setup), _setup_inputs(sides, side, setup))[
            :32
        ]
    )
    with suppress(OSError, UnicodeDecodeError):
        commit = note.read_text("ascii")
        if (
            sides.entries_at_commit(commit)
            and len(differing_paths(sides, commit, side)) <= MAX_DIFFERING_FILES
        ):
            return await workspaces.prepare_base(repo, commit, setup, report=report)
    trusted = side == "before"
    base = await workspaces.prepare_base(
        repo, own_commit, setup, is_shareable=trusted, report=report
    )
    if trusted:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(own_commit, "ascii")
    return base


def _setup_inputs(sides: ChangeSides, side: ChangeSide, setup: Sequence[str]) -> object:
    """Return what setup depends on: some files if it only installs dependencies, else all."""
    if not setup:
        return None
    tree = sides.tree(side)
    if not all(installs_only(line) for line in setup) or _has_install_scripts(sides, side):
        return sides.base if side == "before" else sides.head
    setup_words = {word for line in setup for word in line.split()}
    return [
        (path, blob)
        for path, blob in sorted(tree.items())
        if path in setup_words
        or classify_file(path) in ("manifest", "lockfile")
        or _NATIVE_SOURCE.fullmatch(path)
    ]


def installs_only(line: str) -> bool:
    """Return whether a command only installs dependencies, and the project at most by reference."""
    parts = [part.strip() for part in line.removesuffix(" || true").split("&&")]
    return all(part.startswith("cd ") or _is_install_command(part) for part in parts)


def _is_install_command(command: str) -> bool:
    if _INSTALL_COMMAND.fullmatch(command):
        return True
    match = _PIP_INSTALL.fullmatch(command)
    return match is not None and all(_are_references(match[1]))


def _are_references(arguments: str) -> Iterator[bool]:
    """Yield for each path given to pip whether it is installed in place instead of copied."""
    try:
        words = shlex.split(arguments)
    except ValueError:
        yield False
        return
    before = ""
    for word in words:
        copied = word.startswith((".", "/")) and before not in _REFERENCE_OPTIONS
        yield not copied and word not in _SHELL_OPERATORS and not set(word) & set("`$")
        before = word


def _has_install_scripts(sides: ChangeSides, side: ChangeSide) -> bool:
    """Return whether installing runs the project's own scripts."""
    content = sides.read(side, "package.json")
    return content is not None and _INSTALL_SCRIPTS.search(content) is not None


# Content that a workspace lacks, reported before tests fail because of it.

SUBMODULE_MODE = "160000"
MAX_READ_FILES = 200
MAX_GLOBS = 100
_CONSEQUENCE = "checks that need this content fail, with or without this change"


def describe_missing_content(sides: ChangeSides) -> Iterator[str]:
    """Yield a sentence for each kind of content that is missing on either side."""
    modules = _submodule_paths(sides, "after")
    if modules:
        yield f"{_subject_phrase(modules, 'submodule')} empty in the workspaces: {_CONSEQUENCE}"
    pointers = list(_lfs_pointer_paths(sides))
    if pointers:
        yield (
            f"{_subject_phrase(pointers, 'file')} stored in Git LFS and missing in the "
            f"workspaces: {_CONSEQUENCE}"
        )
    large = [
        file.path
        for file in sides.change.files
        if (entry := sides.list_entries("after").get(file.path))
        and entry.mode != SUBMODULE_MODE
        and sides.read_blob(entry.id) is None
    ]
    if large:
        yield f"{_subject_phrase(large, 'changed file')} too large and not copied to the workspaces"


def _submodule_paths(sides: ChangeSides, side: ChangeSide) -> list[str]:
    return [
        path for path, entry in sides.list_entries(side).items() if entry.mode == SUBMODULE_MODE
    ]


def _lfs_pointer_paths(sides: ChangeSides) -> Iterator[str]:
    """Yield files assigned to LFS whose content is a pointer; only the first few are read."""
    tree = sides.tree("after")
    globs: list[str] = []
    for path in tree:
        if path == ".gitattributes" or path.endswith("/.gitattributes"):
            folder = path.removesuffix(".gitattributes")
            lines = (sides.read("after", path) or b"").splitlines()
            words = [line.split() for line in lines if b"filter=lfs" in line]
            globs += [
                _root_glob(folder, pattern)
                for pattern, *attributes in words
                if b"filter=lfs" in attributes
            ]
    globs = [glob for glob in globs if len(glob) < 300 and glob.count("*") <= 6][:MAX_GLOBS]
    lfs_paths = [path for path in tree if matches_globs(path, globs)] if globs else []
    yield from (
        path
        for path in lfs_paths[:MAX_READ_FILES]
        if is_lfs_pointer(sides.read("after", path) or b"")
    )


def _root_glob(folder: str, pattern: bytes) -> str:
    """Return a pattern of an attributes file as seen from the root; without a folder it matches
    any."""
    text = pattern.decode("utf-8", "replace")
    return f"{folder}{text.removeprefix('/')}" if "/" in text else f"{folder}**/{text}"


def _subject_phrase(paths: Sequence[str], noun: str) -> str:
    if len(paths) == 1:
        return f"the {noun} {paths[0]} is"
    return f"{len(paths)} {noun}s ({paths[0]}, …) are"
