"""Find and read `closeloop.toml`, once: flag > environment > project > user's folder > default.

How far the project's file is trusted depends on who may have written it: `load_project` is for a
folder of the user's own, `load_for_change_check` for a change under check.
"""

from __future__ import annotations

import gc
import getpass
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from closeloop.cli.console import print_detail, read_file_content
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.settings import Settings

if TYPE_CHECKING:
    from closeloop.git import GitRepository
    from closeloop.metrics.score_columns import ScoreCatalogue
    from closeloop.process.rulebook import Rulebook
    from closeloop.records.protocols import Encoder
    from closeloop.reviews.authorship import AgentSignsByName
    from closeloop.reviews.rule_index import RuleIndex
    from closeloop.store import Store


CONFIG_NAME = "closeloop.toml"
MAX_CONFIG_BYTES = 1 << 20
TomlTable = Mapping[str, Any]
SETTINGS_VARIABLE = "CLOSELOOP_SET"
"""Settings that override closeloop.toml, one per line: `run.jobs=4`. `--set` adds to it."""


class ProjectConfiguration(Record):
    """The configuration of a folder.

    Paths in the settings are relative to the root, or absolute.
    """

    file: Path | None
    """None if there is no closeloop.toml."""
    root: Path
    settings: Settings
    store_shipped: bool = False
    """Whether git tracks the store, so that a change could contain one."""
    rewritten_commands: tuple[str, ...] = ()
    """Those of setup and test that the change under check alters."""
    ignored_settings: tuple[str, ...] = ()
    """Settings that the change under check may have written, and that are therefore not trusted."""
    trusted_commit: str | None = None
    """The commit before the change under check."""


def load_project(folder: Path, *, environ: Mapping[str, str] = os.environ) -> ProjectConfiguration:
    """Load the configuration of a folder of the user's own."""
    folder = folder.absolute()
    file = find_config_file(folder)
    users = read_user_table(environ)
    settings = (
        settings_from_tables(users, read_toml_table(file), str(file))
        if file
        else settings_from_tables(users)
    )
    if file and not is_owned_by_user(file):
        from closeloop.trust import restrict_settings

        effective = restrict_settings(settings, settings_from_tables(users))
        settings = effective.settings
        reason = f"{file} belongs to another user"
        warn_of_ignored_settings(effective.ignored, reason, "in a file that you own", environ)
    root = file.parent if file else find_repository_root(folder) or folder
    print_detail(f"settings: {file or 'defaults, as there is no closeloop.toml'}")
    settings = apply_environment(_expand_paths(settings, root), folder, environ)
    if "://" not in settings.store:
        print_detail(f"store: {root / settings.store}")
    return ProjectConfiguration(file=file, root=root, settings=settings)


def load_for_change_check(
    folder: Path,
    commit: str | None,
    *,
    only_commit: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> ProjectConfiguration:
    """Load a check's configuration; what loosens security comes from the commit before the change.

    The change may have written the file in the folder. With `only_commit`, that file is not read at
    all. Without a commit before the change, only the user's own configuration is trusted.
    """
    from closeloop.git import find_repository
    from closeloop.trust import restrict_settings

    folder = folder.resolve()
    repo = find_repository(folder)
    file = committed = None
    if repo and commit:
        file, committed = find_committed_config(repo, commit, folder)
    file = file or find_config_file(folder)
    if file and repo and not file.is_relative_to(repo.root):
        return load_project(
            folder, environ=environ
        )  # outside the repository, so no change can contain it
    users = read_user_table(environ)
    before = settings_from_tables(
        users, _committed_table(committed, commit), f"{CONFIG_NAME} of {commit}"
    )
    ignored: tuple[str, ...] = ()
    if only_commit:
        settings = before
        _warn_of_unread_file(file, committed, commit)
    else:
        table = read_toml_table(file) if file and file.is_file() else {}
        effective = restrict_settings(settings_from_tables(users, table, str(file)), before)
        settings, ignored = effective.settings, effective.ignored
    root = file.parent if file else (repo.root if repo else folder)
    settings = apply_environment(_expand_paths(settings, root), folder, environ)
    rewritten = [
        f"commands.{name}"
        for name in ("setup", "test")
        if getattr(before.commands, name) not in ((), None, getattr(settings.commands, name))
    ]
    configuration = ProjectConfiguration(
        file=file,
        root=root,
        settings=settings,
        rewritten_commands=tuple(rewritten),
        ignored_settings=ignored,
        trusted_commit=commit,
    )
    return ignore_tracked_store(configuration, repo) if repo and not repo.bare else configuration


def find_committed_config(
    repo: GitRepository, commit: str, folder: Path
) -> tuple[Path | None, bytes]:
    """Find the nearest closeloop.toml of a commit, from a folder upwards, with its content."""
    from closeloop.git import run_git_in

    subfolder = folder.relative_to(repo.root)
    names = [str(parent / CONFIG_NAME) for parent in (subfolder, *subfolder.parents)]
    output = run_git_in(repo, "ls-tree", "-z", "--name-only", "--full-tree", commit, "--", *names)
    tracked_names = {os.fsdecode(name) for name in output.split(b"\0")}
    for name in names:
        if name in tracked_names:
            return repo.root / name, run_git_in(repo, "cat-file", "blob", f"{commit}:{name}")
    return None, b""


def _committed_table(content: bytes | None, commit: str | None) -> TomlTable:
    """Parse a committed file; empty if it is invalid, which loosens nothing."""
    from closeloop.cli.console import print_warning

    try:
        table = parse_toml_table(content or b"", f"{CONFIG_NAME} of commit {commit}")
        settings_from_tables({}, table, f"{CONFIG_NAME} of commit {commit}")
    except BadInput as fault:
        print_warning(f"{fault} It is ignored.")
        return {}
    return table


def _warn_of_unread_file(file: Path | None, committed: bytes | None, commit: str | None) -> None:
    from closeloop.cli.console import print_warning

    content = read_file_content(file, MAX_CONFIG_BYTES + 1) if file and file.is_file() else b""
    if content != (committed or b""):
        print_warning(
            f"{CONFIG_NAME} of the pull request is ignored until it is merged, because "
            f"its author can write anything into it: {CONFIG_NAME} of the target "
            f"branch (commit {(commit or '')[:12]}) is used."
        )


def ignore_tracked_store(
    project: ProjectConfiguration, repo: GitRepository
) -> ProjectConfiguration:
    """Remove a store and a cache that git tracks: a change could ship their content."""
    from closeloop.cli.console import print_warning
    from closeloop.git import run_git_in

    settings = project.settings
    paths_by_setting = {
        name: path.relative_to(repo.root)
        for name, value in (("store", settings.store), ("cache", settings.cache))
        if value and "://" not in value
        for path in [Path(os.path.normpath(project.root / value))]
        if path.is_relative_to(repo.root) and os.path.lexists(path)
    }
    if not paths_by_setting:
        return project
    top_folders = {path.parts[0] for path in paths_by_setting.values() if path.parts}
    output = run_git_in(repo, "ls-files", "-z", "--", *sorted(top_folders))
    tracked = [os.fsdecode(path) for path in output.split(b"\0") if path]
    for name, setting_path in paths_by_setting.items():
        parent_paths = {str(parent) for parent in setting_path.parents}
        if any(path in parent_paths or path.startswith(str(setting_path)) for path in tracked):
            print_warning(
                f"The {name} {setting_path} is ignored: git tracks it, so a change could include "
                "its own."
            )
            if name == "cache":
                settings = msgspec.structs.replace(settings, cache=None)
            else:
                project = msgspec.structs.replace(project, store_shipped=True)
    return msgspec.structs.replace(project, settings=settings)


def warn_of_ignored_settings(
    names: Sequence[str], reason: str, trusted_place: str | None, environ: Mapping[str, str]
) -> None:
    """Print in one line which settings are ignored, and where they would be trusted."""
    from closeloop.cli.console import print_warning

    if names:
        them = "them" if len(names) > 1 else "it"
        trusted_places = " or ".join(
            filter(None, (trusted_place, f"in {user_config_file(environ)}"))
        )
        print_warning(
            f"Ignored in {CONFIG_NAME}: {', '.join(names)}. {reason}; put {them} {trusted_places} "
            f"to use {them}."
        )


def is_owned_by_user(file: Path) -> bool:
    """Check that no other user could have written it: a parent folder may belong to another
    user."""
    user = os.geteuid()
    return user == 0 or file.stat().st_uid in (user, 0)


def user_config_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the user's own configuration, for all projects."""
    home = environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "closeloop" / "config.toml"


def read_user_table(environ: Mapping[str, str]) -> TomlTable:
    """Read the user's own configuration; error messages name its file."""
    file = user_config_file(environ)
    if not file.is_file():
        return {}
    table = read_toml_table(file)
    settings_from_tables({}, table, str(file))
    return table


def apply_environment(settings: Settings, folder: Path, environ: Mapping[str, str]) -> Settings:
    """Return the settings with overrides from the environment."""
    overrides = {"store": environ.get("CLOSELOOP_STORE"), "cache": environ.get("CLOSELOOP_CACHE")}
    # Paths typed in a shell are relative to the current folder, not to the settings file.
    changes = {
        name: value if "://" in value else str(folder / Path(value).expanduser())
        for name, value in overrides.items()
        if value
    }
    settings = msgspec.structs.replace(settings, **changes)
    if (address := environ.get("RAY_ADDRESS")) and settings.executor.address is None:
        executor = msgspec.structs.replace(settings.executor, address=address)
        settings = msgspec.structs.replace(settings, executor=executor)
    return apply_overrides(settings, environ.get(SETTINGS_VARIABLE, "").splitlines())


def apply_overrides(settings: Settings, overrides: Sequence[str]) -> Settings:
    """Return the settings with overrides such as `run.jobs=4`; text needs no quotes."""
    if not overrides:
        return settings
    table: TomlTable = msgspec.to_builtins(settings)
    for line in overrides:
        key, _, value = line.partition("=")
        try:
            override = parse_toml_table(f"{key} = {value}".encode(), f"--set {line}")
        except BadInput:
            text = msgspec.json.encode(value.strip()).decode()
            override = parse_toml_table(f"{key} = {text}".encode(), f"--set {line}")
        table = merge_toml_tables(table, override)
    return settings_from_tables({}, table, "--set")


def _expand_paths(settings: Settings, root: Path) -> Settings:
    """Expand `~` to the home folder, and make relative paths start at the root."""

    def expand_path(path: str) -> str:
        return path if "://" in path else str(Path(path).expanduser())

    read_paths = tuple(str(root / expand_path(path)) for path in settings.sandbox.read)
    return msgspec.structs.replace(
        settings,
        tasks=expand_path(settings.tasks),
        store=expand_path(settings.store),
        cache=settings.cache and expand_path(settings.cache),
        sandbox=msgspec.structs.replace(settings.sandbox, read=read_paths),
    )


def find_config_file(folder: Path) -> Path | None:
    """Return the nearest closeloop.toml, from a folder upwards."""
    candidates = (parent / CONFIG_NAME for parent in (folder, *folder.parents))
    return next((file for file in candidates if file.is_file()), None)


def find_repository_root(folder: Path) -> Path | None:
    """Return the root of the git repository that contains a folder."""
    return next(
        (parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), None
    )


def read_config_file(file: Path) -> Settings:
    """Read the settings of one file."""
    return settings_from_tables({}, read_toml_table(file), str(file))


def read_toml_table(file: Path) -> TomlTable:
    """Read the table of one file."""
    return parse_toml_table(read_file_content(file, MAX_CONFIG_BYTES + 1), str(file))


def parse_toml_table(content: bytes, name: str) -> TomlTable:
    """Parse TOML; BadInput names the file."""
    import tomllib

    if len(content) > MAX_CONFIG_BYTES:
        raise BadInput(f"{name} is too large for a configuration file.")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadInput(f"{name} is not UTF-8 text: save it as UTF-8.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{name} is not valid TOML: {error}.") from error


def settings_from_tables(
    base: TomlTable,
    overriding: TomlTable = {},  # noqa: B006
    name: str = CONFIG_NAME,
) -> Settings:
    """Build settings from two tables; `overriding` has priority."""
    from closeloop.text.untrusted import read_record

    settings = read_record(merge_toml_tables(base, overriding), Settings, name)
    _require_sensible_limits(settings, name)
    return settings


def merge_toml_tables(base: TomlTable, overriding: TomlTable) -> dict[str, Any]:
    """Merge two tables: sections are merged, and values of `overriding` have priority."""
    merged = dict(base)
    for key, value in overriding.items():
        are_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge_toml_tables(merged[key], value) if are_tables else value
    return merged


def _require_positive_amounts(settings: Settings, name: str) -> None:
    for path, amount in (
        ("run.jobs", settings.run.jobs),
        ("run.budget", settings.run.budget),
        ("deliver.budget", settings.deliver.budget),
        ("check.max_files", settings.check.max_files),
        ("check.max_modules", settings.check.max_modules),
        ("due.commits", settings.due.commits),
        ("due.days", settings.due.days),
    ):
        if amount is not None and not amount > 0:
            raise BadInput(f"{name}: '{path}' must be more than 0.")


def _require_sensible_limits(settings: Settings, name: str) -> None:
    if settings.retries < 0:
        raise BadInput(f"{name}: 'retries' must not be negative.")
    _require_positive_amounts(settings, name)
    from closeloop.text.untrusted import read_changed_record

    for path, share in (
        ("review.double", settings.review.double),
        ("review.golden", settings.review.golden),
        ("memory.control", settings.memory.control),
    ):
        if not 0 <= share <= 1:
            raise BadInput(f"{name}: '{path}' must be between 0 and 1.")
    if settings.review.questions:
        from closeloop.reviews.review_queue import require_named_questions

        require_named_questions(settings.review, name)
    limits = {"limits": settings.limits}
    for variant, variant_settings in settings.variants.items():
        path = f"variants.{variant}.limits"
        limits[path] = read_changed_record(settings.limits, variant_settings.limits, name, path)
    for path, limit in limits.items():
        for field, value in msgspec.structs.asdict(limit).items():
            if value is not None and not value > 0:
                raise BadInput(f"{name}: '{path}.{field}' must be more than 0.")


# Shared by commands that print metrics: the store, and progress messages.


@contextmanager
def open_metrics_store(*, make: bool = False) -> Iterator[tuple[Store, Rulebook]]:
    """Open the project's store and its rules; with `make`, create the store if missing."""
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.store.store import open_existing_store, open_project_store

    project = load_project(Path.cwd())
    # Many small objects and no cycles: garbage collection would take a fifth of the time.
    gc.disable()
    try:
        store_opener = open_project_store if make else open_existing_store
        with store_opener(project.settings, project.root) as store:
            yield store, project_rulebook(project.settings)
    finally:
        gc.enable()


def load_project_scores() -> ScoreCatalogue:
    """Load the scores that the project declares."""
    from closeloop.metrics.score_columns import project_scores

    return project_scores(load_project(Path.cwd()).settings)


def print_measuring_progress(done: int, total: int) -> None:
    """Print a line now and then while new attempts are measured."""
    from closeloop.cli.console import print_warning

    print_warning(f"{done:,} of {total:,} new attempts measured.")


# Shared by commands about reviews and team rules: opening the store and other resources.


class ReviewContext:
    """The project's store, and resources that are opened on first use."""

    def __init__(self, project: ProjectConfiguration, store: Store) -> None:
        self.settings = project.settings
        self.root = project.root
        self.store = store

    @cached_property
    def encoder(self) -> Encoder:
        from closeloop.reviews.rule_index import open_encoder

        return open_encoder(self.settings, self.root, os.environ)

    @cached_property
    def rule_index(self) -> RuleIndex:
        from closeloop.reviews.rule_index import RuleIndex

        return RuleIndex(self.store, self.encoder)

    @cached_property
    def agents(self) -> AgentSignsByName:
        from closeloop.reviews.authorship import merge_known_agents

        return merge_known_agents(self.settings.pulls.agents)

    @cached_property
    def repo(self) -> str:
        """Return `owner/name` of this clone's origin, else its path."""
        from closeloop.reviews.agent_prompts import clone_repository_name

        return clone_repository_name(str(self.root))


@contextmanager
def open_review_context(
    *, make: bool = False, needed: bool = True, project: ProjectConfiguration | None = None
) -> Iterator[ReviewContext]:
    """Open and close the project's store; with `make`, create it if missing.

    If it is not `needed` and missing, an empty store in memory replaces it.
    """
    from closeloop.store.store import open_existing_store, open_project_store, open_store_if_any

    # For products as small as an encoder's, more threads only block each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    project = project or load_project(Path.cwd())
    opening = open_existing_store if needed else open_store_if_any
    if make:
        opening = open_project_store
    with opening(project.settings, project.root) as store:
        yield ReviewContext(project, store)


def current_user() -> str:
    """Return the default name of the user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"
