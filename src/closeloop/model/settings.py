"""Settings: what `closeloop.toml` may say. Read once, at the door, and handed down."""

from __future__ import annotations

from typing import Any, Literal

from closeloop.model.evaluation import CriterionName
from closeloop.model.record import Record
from closeloop.model.variant import Limits

SandboxKind = Literal["auto", "bwrap", "landlock", "none"]
ExecutorKind = Literal["local", "ray"]
Provider = Literal["openai", "anthropic", "gemini", "scripted", "recorded"]


class ModelSettings(Record, forbid_unknown_fields=True):
    """Where a model is and how to pay for it. The key itself is never kept, only where it lies."""

    provider: Provider
    model: str
    """The provider's name for it; for `scripted`, the path of the script; for `recorded`, the id
    of the attempt whose model is to be played again."""
    base_url: str | None = None
    """Another server that speaks the provider's format."""
    key_env: str | None = None
    """Environment variable that holds the key; the provider's usual one when not given."""
    key_file: str | None = None
    key_keyring: str | None = None
    """`service/user` in the system's keyring, where the package keyring is installed."""
    input_price: float | None = None
    output_price: float | None = None
    cache_read_price: float | None = None
    cache_write_price: float | None = None
    """US dollars per million tokens."""
    timeout: float = 600.0
    retries: int = 4
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    """Shared fairly by all attempts of a run; None is no limit of ours."""


class VariantSettings(Record, forbid_unknown_fields=True):
    """A variant as people write it."""

    agent: str = "builtin"
    model: str | None = None
    prompt: str | None = None
    """Path of a file with the system prompt."""
    settings: dict[str, str | int | float | bool] = {}
    limits: dict[str, Any] = {}
    """Those of the project's limits that differ for this variant."""
    jobs: int | None = None
    """How many of its attempts run at once, at the most."""
    feedback: bool = False
    """Ask the agent at the end what it lacked."""
    resources: dict[str, float] = {}
    """What an attempt needs of a Ray node: `CPU`, `GPU`, `memory`, or a label of your own."""


class ExperimentSettings(Record, forbid_unknown_fields=True):
    """An experiment as people write it."""

    tasks: tuple[str, ...] = ()
    """Ids or files of tasks; none named is all of them."""
    variants: tuple[str, ...] = ()
    """Names of variants; none named is all of them."""
    repeats: int = 1
    seed: int = 0
    jobs: int | None = None
    feedback: bool = False
    budget: float | None = None
    """US dollars for all attempts together."""


class Commands(Record, forbid_unknown_fields=True):
    """The project's own commands, found by `closeloop init`."""

    setup: tuple[str, ...] = ()
    test: str | None = None
    lint: str | None = None
    types: str | None = None
    build: str | None = None
    others: tuple[str, ...] = ()
    """More commands that check the work."""


class SandboxSettings(Record, forbid_unknown_fields=True):
    """How agents are caged."""

    kind: SandboxKind = "auto"
    read: tuple[str, ...] = ()
    """More paths that commands may read, such as a toolchain in the home folder."""
    env: tuple[str, ...] = ()
    """Names of environment variables handed on to commands."""
    hosts: tuple[str, ...] = ()
    """Hosts that commands may reach by HTTPS, such as a package registry: `host`, `*.host`, or
    `host:port`; none named is none."""


class ExecutorSettings(Record, forbid_unknown_fields=True):
    """Where attempts are made."""

    kind: ExecutorKind = "local"
    address: str | None = None
    """Of a Ray cluster; one is started on this machine when none is given."""


class Silence(Record, forbid_unknown_fields=True):
    """Findings that are not to be counted, and why."""

    rule: str
    reason: str
    task: str | None = None
    """A glob over task ids; None is every task."""
    path: str | None = None
    """A glob over the files that the cited events touch; None is any."""


class RepoRule(Record, forbid_unknown_fields=True):
    """A rule of the repository's own, over added lines: a pattern of code, or a text."""

    name: str
    message: str
    pattern: str | None = None
    """A pattern of code in ast-grep's notation: `print($$$)`."""
    text: str | None = None
    """A regular expression over an added line."""
    language: str | None = None
    """Of a pattern; by the file's name when not given."""
    paths: tuple[str, ...] = ()
    """Globs of the files it holds for; none given is all."""
    severity: Literal["error", "warning", "info"] = "warning"


class CheckSettings(Record, forbid_unknown_fields=True):
    """How changes are validated."""

    gate: Literal["strict", "regression_only", "informational"] = "regression_only"
    """Block on anything red, on what the change broke, or on nothing."""
    block_at: Literal["error", "warning", "never"] = "error"
    """The lowest severity of a finding that blocks."""
    hold_at: Literal["medium", "high", "critical", "never"] = "never"
    """The lowest risk level that blocks."""
    commands: dict[str, str] = {}
    """More tools to run, by name: `security = "bandit -r src"`."""
    timeout: float = 900.0
    """Seconds that one run of a tool may take."""
    tests: Literal["auto", "all", "selected"] = "auto"
    """Which tests run: all, those that reach the change, or those when the suite is slow."""
    fix_cycles: int = 2
    """How often an agent is asked to mend what the tools say, where one is named."""
    model: str | None = None
    """Who reviews what tools cannot see; nobody, unless one is named."""
    complexity: int = 15
    function_lines: int = 80
    class_methods: int = 25
    """Above these, and worse than before, a changed function or class is told."""
    copied_tokens: int = 60
    """So many tokens in a row that the repository already has are a copy."""
    generated: tuple[str, ...] = ()
    vendored: tuple[str, ...] = ()
    """Globs of files that nobody here writes, beside those known by name and content."""
    rules: tuple[RepoRule, ...] = ()


class JudgeSettings(Record, forbid_unknown_fields=True):
    """How outputs are judged."""

    models: tuple[str, ...] = ()
    """Who judges; several are a panel, and each has a vote."""
    rubric: str = "code-change"
    """A built-in one, or the path of a file."""
    judge: str = "checks"
    """The way of asking: a plug-in's name."""
    samples: int = 1
    """How often each model is asked about each output."""
    temperature: float = 0.1
    concurrency: int = 8
    pass_at: float | None = None
    floor: float | None = None
    """The score to pass, and the least of any criterion; None is as the rubric says."""
    weights: dict[CriterionName, float] = {}
    """Of criteria, where they differ from the rubric's."""


class Settings(Record, forbid_unknown_fields=True):
    """All of `closeloop.toml`."""

    tasks: str = "tasks"
    store: str = ".closeloop/closeloop.db"
    """A path, or `postgresql://…`."""
    cache: str | None = None
    """Where base trees are kept; `.closeloop/cache` when not given."""
    commands: Commands = Commands()
    limits: Limits = Limits()
    sandbox: SandboxSettings = SandboxSettings()
    executor: ExecutorSettings = ExecutorSettings()
    models: dict[str, ModelSettings] = {}
    variants: dict[str, VariantSettings] = {}
    experiments: dict[str, ExperimentSettings] = {}
    retries: int = 2
    """How often an attempt that could not be scored is begun again."""
    rules: dict[str, dict[str, bool | float]] = {}
    """By rule: `enabled`, and thresholds that differ from the rule's own."""
    silence: tuple[Silence, ...] = ()
    check: CheckSettings = CheckSettings()
    judge: JudgeSettings = JudgeSettings()
