"""Settings of `closeloop.toml`. They are read once at start-up and passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from closeloop.records.change import RiskLevel
from closeloop.records.evaluation import CriterionName
from closeloop.records.record import Record, Time
from closeloop.records.score import ScoreSettings
from closeloop.records.task import Limits

# Access over HTTP.

AccessScope = Literal["read", "review", "ingest", "admin"]
ACCESS_SCOPES: tuple[AccessScope, ...] = get_args(AccessScope)


class AccessToken(Record):
    """A stored token. The secret itself was shown once and is not stored."""

    id: str
    name: str
    scopes: tuple[AccessScope, ...]
    at: Time
    revoked: Time | None = None


SandboxKind = Literal["auto", "bwrap", "landlock", "none"]
ExecutorKind = Literal["local", "ray"]
Provider = Literal["openai", "anthropic", "gemini", "scripted", "recorded"]


class ModelSettings(Record, forbid_unknown_fields=True):
    """A model's address, prices and the location of its key. The key itself is never stored."""

    provider: Provider
    model: str
    """The provider's name for it; for `scripted`, the path of the script; for `recorded`, the id of
    the attempt to replay."""
    base_url: str | None = None
    """Another server with the provider's format."""
    key_env: str | None = None
    """Environment variable with the key; the provider's usual one by default."""
    key_file: str | None = None
    key_keyring: str | None = None
    """`service/user` in the system's keyring, if the package keyring is installed."""
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
    """Requests at once, shared fairly by all attempts of a run; None is unlimited."""


class VariantSettings(Record, forbid_unknown_fields=True):
    """A variant as written in `closeloop.toml`."""

    agent: str = "builtin"
    model: str | None = None
    prompt: str | None = None
    """Path of a file with the system prompt."""
    settings: dict[str, str | int | float | bool] = {}
    limits: dict[str, Any] = {}
    """Limits that differ from the project's."""
    jobs: int | None = None
    """Maximum number of its attempts at once."""
    feedback: bool = False
    """Whether to ask the agent at the end what it lacked."""
    resources: dict[str, float] = {}
    """Resources of a Ray node that an attempt needs: `CPU`, `GPU`, `memory`, or your own label."""


class ExperimentSettings(Record, forbid_unknown_fields=True):
    """An experiment as written in `closeloop.toml`."""

    tasks: tuple[str, ...] = ()
    """Ids or files of tasks; empty is all."""
    variants: tuple[str, ...] = ()
    """Names of variants; empty is all."""
    repeats: int = 1
    seed: int | None = None
    jobs: int | None = None
    feedback: bool = False
    budget: float | None = None
    """US dollars for all attempts together. Missing values are taken from `[run]`."""


class RunSettings(Record, forbid_unknown_fields=True):
    """Defaults of every experiment that `closeloop run` runs."""

    jobs: int | None = None
    """Number of attempts at once; 16 by default, or the number of processors if larger."""
    seed: int = 0
    """Seed of the order in which attempts start."""
    feedback: bool = False
    """Whether to ask each agent at the end what it lacked."""
    budget: float | None = None
    """US dollars for all attempts of an experiment together."""


class DeliverSettings(Record, forbid_unknown_fields=True):
    """Settings of `closeloop deliver`."""

    budget: float | None = None
    """US dollars for one delivery."""


class CommandSettings(Record, forbid_unknown_fields=True):
    """The project's own commands, found by `closeloop init`."""

    setup: tuple[str, ...] = ()
    test: str | None = None
    lint: str | None = None
    types: str | None = None
    build: str | None = None
    others: tuple[str, ...] = ()
    """Further commands that check the work."""


class SandboxSettings(Record, forbid_unknown_fields=True):
    """Settings of the sandbox."""

    kind: SandboxKind = "auto"
    read: tuple[str, ...] = ()
    """Further paths that commands may read, such as a toolchain in the home folder."""
    env: tuple[str, ...] = ()
    """Names of environment variables passed on to commands."""
    hosts: tuple[str, ...] = ()
    """Hosts that commands may reach by HTTPS, such as a package registry: `host`, `*.host`, or
    `host:port`; none by default."""


class ExecutorSettings(Record, forbid_unknown_fields=True):
    """Where attempts run."""

    kind: ExecutorKind = "local"
    address: str | None = None
    """Address of a Ray cluster; by default one is started on this machine."""


class SilenceSettings(Record, forbid_unknown_fields=True):
    """Findings that are not counted, and why."""

    rule: str
    reason: str
    task: str | None = None
    """A glob over task ids; None is every task."""
    path: str | None = None
    """A glob over the files that the cited events touch; None is any."""


class RepoRule(Record, forbid_unknown_fields=True):
    """A rule of the repository over added lines: a code pattern or a text."""

    name: str
    message: str
    pattern: str | None = None
    """A code pattern in ast-grep's notation: `print($$$)`."""
    text: str | None = None
    """A regular expression over an added line."""
    language: str | None = None
    """Language of the pattern; by file name by default."""
    paths: tuple[str, ...] = ()
    """Globs of the files it applies to; empty is all."""
    severity: Literal["error", "warning", "info"] = "warning"


ImpactRow = Literal["none", "shared", "breaking"]
IMPACT_ROWS: tuple[ImpactRow, ...] = ("none", "shared", "breaking")


PackageIndex = Literal["pypi", "npm", "crates"]


class CheckSettings(Record, forbid_unknown_fields=True):
    """Settings of `closeloop check`."""

    gate: Literal["strict", "regression_only", "informational"] = "regression_only"
    """Block on anything red, on regressions and what cannot be compared, or on nothing."""
    block_at: Literal["error", "warning", "never"] = "error"
    """The lowest severity of a finding that blocks."""
    hold_at: Literal["medium", "high", "critical", "never"] | None = None
    """The lowest risk level that requires a person; None is never in `check`, and critical in
    `deliver`."""
    risk_levels: dict[ImpactRow, tuple[RiskLevel, RiskLevel, RiskLevel, RiskLevel]] = {}
    """Rows of the risk matrix that differ: the levels of a small, medium, large and huge change."""
    risk_rows: dict[str, ImpactRow] = {}
    """Facts that belong in another row of it: `ci = "shared"`."""
    advisories: str | None = None
    """A file, or a folder of files, with known vulnerabilities in the OSV format."""
    online: bool = False
    """Whether to query package indexes and OSV about dependencies that a change adds or bumps."""
    indexes: dict[PackageIndex, str] = {}
    """Addresses of package indexes to use instead of the public ones."""
    osv: str = "https://api.osv.dev"
    """Address of the vulnerability database."""
    commands: dict[str, str] = {}
    """Further tools to run, by name: `security = "bandit -r src"`."""
    timeout: float = 900.0
    """Timeout in seconds of one run of a tool."""
    coverage: bool = False
    """Whether to run the tests once more, to see which changed lines they execute."""
    tests: Literal["auto", "all", "selected"] = "auto"
    """Which tests run: all, those that reach the change, or those only if the suite is slow."""
    fix_cycles: int = 2
    """How often an agent is asked to fix tool failures and blocking findings, if one is named."""
    model: str | None = None
    """Model that reviews what tools cannot see; none by default."""
    complexity: int = 10
    function_lines: int = 80
    class_methods: int = 25
    """A changed function or class above these limits that got worse is reported."""
    max_files: int | None = None
    max_modules: int | None = None
    """Maximum width of a change; `closeloop metrics` suggests limits. None is unlimited."""
    copied_tokens: int = 60
    """This many consecutive tokens that the repository already has are a copy."""
    layers: tuple[str, ...] = ()
    """Globs of the repository's layers, highest first: no layer imports one above it."""
    generated: tuple[str, ...] = ()
    vendored: tuple[str, ...] = ()
    """Globs of files that are not maintained here, besides those known by name and content."""
    rules: tuple[RepoRule, ...] = ()


JudgeConfirmation = Literal["always", "never"]
"""Whether a judge is asked again about what it favours, with the author's words masked."""


class JudgeSettings(Record, forbid_unknown_fields=True):
    """Settings of judging."""

    models: tuple[str, ...] = ()
    """The judges' models; several form a panel with one vote each."""
    rubric: str = "code-change"
    """A built-in rubric, or the path of a file."""
    judge: str = "checks"
    """Name of the judge plug-in."""
    variant: str | None = None
    """Variant whose agent judges with read-only access to the files."""
    samples: int = 1
    """How often each model is asked about each output."""
    confirm: JudgeConfirmation = "always"
    """Whether to ask again about what passes, with the author's words masked."""
    temperature: float = 0.1
    concurrency: int = 8
    pass_at: float | None = None
    floor: float | None = None
    """Minimum score to pass, and of each criterion; None is the rubric's."""
    weights: dict[CriterionName, float] = {}
    """Weights of criteria that differ from the rubric's."""


class ServeSettings(Record, forbid_unknown_fields=True):
    """Who may use the dashboard besides this machine."""

    user_header: str | None = None
    """The header in which a proxy passes the logged-in user."""
    user_scopes: tuple[AccessScope, ...] = ("read", "review")
    """Scopes of such a user."""
    proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    """Addresses of trusted proxies."""
    hosts: tuple[str, ...] = ()
    """Further host names of the dashboard on this machine."""


class OrchestrateSettings(Record, forbid_unknown_fields=True):
    """How plans are made and carried out; `agent_config.json` may set the same."""

    planner: str | None = None
    """The planning model; the first worker's by default."""
    workers: tuple[str, ...] = ()
    """Variants that a planner may choose from; the first works on tasks that name none."""
    judges: tuple[str, ...] = ()
    """The judging models; by default those of `[judge]`, else the first worker's."""
    max_retries: int = 2
    """How often a failed task is tried again with feedback."""
    stop_when_ignored: bool = False
    """Whether to stop once every issue of the previous try is still there."""
    concurrency: int = 4
    """Number of sub-agents at once."""
    seconds: float | None = None
    """Time limit of the whole plan; nothing starts after it."""
    budget: float | None = None
    """US dollars for the whole plan; no try starts once they are spent."""
    pass_at: float | None = None
    floor: float | None = None
    weights: dict[CriterionName, float] = {}
    """Thresholds and weights that differ from those of `[judge]`."""


class AgentSigns(Record, forbid_unknown_fields=True):
    """Signs by which a pull request is recognised as one agent's work; `*` matches anything."""

    authors: tuple[str, ...] = ()
    """Accounts that open pull requests or write commits."""
    labels: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    co_authors: tuple[str, ...] = ()
    """Names or addresses in `Co-Authored-By:`."""


class PullSettings(Record, forbid_unknown_fields=True):
    """How pull requests are read."""

    agents: dict[str, AgentSigns] = {}
    """By agent name; replaces the built-in signs of that agent."""
    unreviewed_completes: bool = False
    """Whether a pull request merged without review counts as a completion."""
    github_secret_env: str = "CLOSELOOP_GITHUB_SECRET"  # noqa: S105
    gitlab_token_env: str = "CLOSELOOP_GITLAB_TOKEN"  # noqa: S105
    """Environment variables with the secrets that webhooks are signed or sent with."""


class WebhookSettings(Record, forbid_unknown_fields=True):
    """Where events are sent."""

    url: str
    secret_env: str = "CLOSELOOP_WEBHOOK_SECRET"  # noqa: S105
    """Environment variable with the signing key."""
    events: tuple[str, ...] = ("*",)
    """Kinds of events; `*` matches anything."""


class ReviewSettings(Record, forbid_unknown_fields=True):
    """Settings of the review queue."""

    double: float = 0.2
    """Share of items that two people review."""
    golden: float = 0.1
    """Share of items whose answer is known."""
    seed: int = 0
    """Seed of the random choice of both."""
    questions: dict[str, str] = {}
    """The team's own questions by name: each is answered yes, partly or no and becomes a score of
    that name."""


class MemorySettings(Record, forbid_unknown_fields=True):
    """How rules are learned from reviews and passed to agents."""

    encoder: str = "auto"
    """`minilm`, `ngrams`, another plug-in, or a model with embeddings; `auto` is the best
    available."""
    activate: Literal["person", "always"] = "person"
    """Whether a person must accept a rule before agents receive it."""
    model: str | None = None
    """Model that turns remarks into rules and compares remarks with rules; without one, patterns
    are used."""
    questions: int = 200
    """Maximum number of remarks that one run of learning asks the model to compare with rules."""
    tokens: int = 1500
    """Maximum number of tokens passed to an agent."""
    control: float = 0.0
    """Share of work that receives no rules, to measure their effect."""
    seed: int = 0
    hydrate: bool = False
    """Whether `run`, `orchestrate` and `deliver` add rules to system prompts too."""


class DueSettings(Record, forbid_unknown_fields=True):
    """When `closeloop task due` reports something."""

    commits: int = 200
    """A task whose base is this many commits behind is stale."""
    days: int = 92
    """Days after which a comparison on the whole set, and one on the held-out set, are due."""


class Settings(Record, forbid_unknown_fields=True):
    """All of `closeloop.toml`."""

    tasks: str = "tasks"
    store: str = ".closeloop/closeloop.db"
    """A path, or `postgresql://…`."""
    store_wait_seconds: float = 120.0
    """How long running work waits for a PostgreSQL server that went away."""
    cache: str | None = None
    """Folder of cached base trees; `.closeloop/cache` by default."""
    commands: CommandSettings = CommandSettings()
    limits: Limits = Limits()
    sandbox: SandboxSettings = SandboxSettings()
    executor: ExecutorSettings = ExecutorSettings()
    models: dict[str, ModelSettings] = {}
    variants: dict[str, VariantSettings] = {}
    experiments: dict[str, ExperimentSettings] = {}
    run: RunSettings = RunSettings()
    deliver: DeliverSettings = DeliverSettings()
    retries: int = 2
    """How often an attempt that could not be scored is retried."""
    rules: dict[str, dict[str, bool | float]] = {}
    """By rule: `enabled`, and thresholds that differ from the defaults."""
    silence: tuple[SilenceSettings, ...] = ()
    check: CheckSettings = CheckSettings()
    judge: JudgeSettings = JudgeSettings()
    orchestrate: OrchestrateSettings = OrchestrateSettings()
    serve: ServeSettings = ServeSettings()
    pulls: PullSettings = PullSettings()
    review: ReviewSettings = ReviewSettings()
    memory: MemorySettings = MemorySettings()
    due: DueSettings = DueSettings()
    webhooks: dict[str, WebhookSettings] = {}
    """By name: receivers of events."""
    scores: dict[str, ScoreSettings] = {}
    """By name: the meaning of a score that people or programs give."""


def has_store(settings: Settings, root: Path) -> bool:
    """Whether the store exists, for callers that must not create one."""
    return "://" in settings.store or (root / settings.store).exists()
