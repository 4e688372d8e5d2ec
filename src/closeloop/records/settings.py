"""Settings: what `closeloop.toml` may say. Read once, at the door, and handed down."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from closeloop.records.change import RiskLevel
from closeloop.records.evaluation import CriterionName
from closeloop.records.record import Record, Time
from closeloop.records.score import ScoreSettings
from closeloop.records.task import Limits

# Who may do what over HTTP.

AccessScope = Literal["read", "review", "ingest", "admin"]
ACCESS_SCOPES: tuple[AccessScope, ...] = get_args(AccessScope)


class AccessToken(Record):
    """A token as it is known here: the secret itself was shown once and is kept nowhere."""

    id: str
    name: str
    scopes: tuple[AccessScope, ...]
    at: Time
    revoked: Time | None = None


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
    seed: int | None = None
    jobs: int | None = None
    feedback: bool = False
    budget: float | None = None
    """US dollars for all attempts together. What is not given is as in `[run]`."""


class RunSettings(Record, forbid_unknown_fields=True):
    """Defaults of every experiment that `closeloop run` runs."""

    jobs: int | None = None
    """How many attempts run at once; as many as there are processors when not given."""
    seed: int = 0
    """Of the order in which attempts start."""
    feedback: bool = False
    """Ask each agent at the end what it lacked."""
    budget: float | None = None
    """US dollars for all attempts of an experiment together."""


class DeliverSettings(Record, forbid_unknown_fields=True):
    """How `closeloop deliver` works."""

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


class SilenceSettings(Record, forbid_unknown_fields=True):
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


ImpactRow = Literal["none", "shared", "breaking"]
IMPACT_ROWS: tuple[ImpactRow, ...] = ("none", "shared", "breaking")


PackageIndex = Literal["pypi", "npm", "crates"]


class CheckSettings(Record, forbid_unknown_fields=True):
    """How changes are validated."""

    gate: Literal["strict", "regression_only", "informational"] = "regression_only"
    """Block on anything red, on what is not shown to be as good as before, or on nothing."""
    block_at: Literal["error", "warning", "never"] = "error"
    """The lowest severity of a finding that blocks."""
    hold_at: Literal["medium", "high", "critical", "never"] | None = None
    """The lowest risk level that waits for a person; None is never in `check`, and critical in
    `deliver`."""
    risk_levels: dict[ImpactRow, tuple[RiskLevel, RiskLevel, RiskLevel, RiskLevel]] = {}
    """Rows of the matrix of risk that differ: the levels of a small, medium, large, huge change."""
    risk_rows: dict[str, ImpactRow] = {}
    """Facts that are to be in another row of it: `ci = "shared"`."""
    advisories: str | None = None
    """A file, or a folder of files, with known vulnerabilities in the OSV format."""
    online: bool = False
    """Ask package indexes and OSV about dependencies that a change adds or bumps."""
    indexes: dict[PackageIndex, str] = {}
    """Addresses of package indexes that are asked instead of the public ones."""
    osv: str = "https://api.osv.dev"
    """The address that is asked for known vulnerabilities."""
    commands: dict[str, str] = {}
    """More tools to run, by name: `security = "bandit -r src"`."""
    timeout: float = 900.0
    """Seconds that one run of a tool may take."""
    coverage: bool = False
    """Run the tests once more, to see which changed lines they execute."""
    tests: Literal["auto", "all", "selected"] = "auto"
    """Which tests run: all, those that reach the change, or those when the suite is slow."""
    fix_cycles: int = 2
    """How often an agent is asked to mend what tools and blocking findings say, if one is named."""
    model: str | None = None
    """Who reviews what tools cannot see; nobody, unless one is named."""
    complexity: int = 10
    function_lines: int = 80
    class_methods: int = 25
    """Above these, and worse than before, a changed function or class is told."""
    max_files: int | None = None
    max_modules: int | None = None
    """How wide a change may be; `closeloop metrics` suggests limits. None is any."""
    copied_tokens: int = 60
    """So many tokens in a row that the repository already has are a copy."""
    layers: tuple[str, ...] = ()
    """Globs of the repository's layers, the highest first: none imports one above it."""
    generated: tuple[str, ...] = ()
    vendored: tuple[str, ...] = ()
    """Globs of files that nobody here writes, beside those known by name and content."""
    rules: tuple[RepoRule, ...] = ()


JudgeConfirmation = Literal["always", "never"]
"""Whether a judge is asked again about what it favours, with the words of whoever did the work
masked."""


class JudgeSettings(Record, forbid_unknown_fields=True):
    """How outputs are judged."""

    models: tuple[str, ...] = ()
    """Who judges; several are a panel, and each has a vote."""
    rubric: str = "code-change"
    """A built-in one, or the path of a file."""
    judge: str = "checks"
    """The way of asking: a plug-in's name."""
    variant: str | None = None
    """Whose agent judges, looking at the files, which it cannot change."""
    samples: int = 1
    """How often each model is asked about each output."""
    confirm: JudgeConfirmation = "always"
    """Ask again about what passes, with the words of whoever did the work masked."""
    temperature: float = 0.1
    concurrency: int = 8
    pass_at: float | None = None
    floor: float | None = None
    """The score to pass, and the least of any criterion; None is as the rubric says."""
    weights: dict[CriterionName, float] = {}
    """Of criteria, where they differ from the rubric's."""


class ServeSettings(Record, forbid_unknown_fields=True):
    """Who may use the dashboard besides this machine."""

    user_header: str | None = None
    """The header in which a proxy before it names the user it has logged in."""
    user_scopes: tuple[AccessScope, ...] = ("read", "review")
    """What such a user may do."""
    proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    """Addresses of proxies that are believed."""
    hosts: tuple[str, ...] = ()
    """More names under which the dashboard may be reached on this machine."""


class OrchestrateSettings(Record, forbid_unknown_fields=True):
    """How plans are made and carried out; `agent_config.json` may say the same."""

    planner: str | None = None
    """The model that plans; the first worker's own when not given."""
    workers: tuple[str, ...] = ()
    """Variants that a planner may choose from; the first works on tasks that name none."""
    judges: tuple[str, ...] = ()
    """The models that judge; those of `[judge]` when none is named, else the first worker's own."""
    max_retries: int = 2
    """How often a task that fails is tried again with what was wrong."""
    stop_when_ignored: bool = False
    """Try no more once all that was wrong is wrong again."""
    concurrency: int = 4
    """How many sub-agents work at once."""
    seconds: float | None = None
    """For the whole plan: after that nothing is begun."""
    budget: float | None = None
    """US dollars for the whole plan: once they are spent, no try is begun."""
    pass_at: float | None = None
    floor: float | None = None
    weights: dict[CriterionName, float] = {}
    """Thresholds and weights, where they differ from those of `[judge]`."""


class AgentSigns(Record, forbid_unknown_fields=True):
    """By what a pull request is known as the work of one agent; `*` stands for anything."""

    authors: tuple[str, ...] = ()
    """Accounts that open pull requests or write commits."""
    labels: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    co_authors: tuple[str, ...] = ()
    """Names or addresses in `Co-Authored-By:`."""


class PullSettings(Record, forbid_unknown_fields=True):
    """How pull requests are read."""

    agents: dict[str, AgentSigns] = {}
    """By the agent's name; those that are known already are replaced."""
    unreviewed_completes: bool = False
    """Whether a pull request that was merged without a review may be a completion."""
    github_secret_env: str = "CLOSELOOP_GITHUB_SECRET"  # noqa: S105
    gitlab_token_env: str = "CLOSELOOP_GITLAB_TOKEN"  # noqa: S105
    """Environment variables that hold what webhooks are signed or sent with."""


class WebhookSettings(Record, forbid_unknown_fields=True):
    """Where events are sent."""

    url: str
    secret_env: str = "CLOSELOOP_WEBHOOK_SECRET"  # noqa: S105
    """The environment variable that holds the key to sign with."""
    events: tuple[str, ...] = ("*",)
    """Which kinds; `*` stands for anything."""


class ReviewSettings(Record, forbid_unknown_fields=True):
    """How the review queue is worked off."""

    double: float = 0.2
    """The share of items that two people look at."""
    golden: float = 0.1
    """How often an item comes up of which the answer is known."""
    seed: int = 0
    """Gives the lots by which both are drawn."""
    questions: dict[str, str] = {}
    """The team's own questions, by name: each is answered yes, partly or no, and becomes a score
    of that name."""


class MemorySettings(Record, forbid_unknown_fields=True):
    """How rules are learned from reviews, and told to agents."""

    encoder: str = "auto"
    """`minilm`, `ngrams`, another plug-in, or a model that gives embeddings; `auto` is the best
    that is here."""
    activate: Literal["person", "always"] = "person"
    """Whether a person looks at a rule before agents are told it."""
    model: str | None = None
    """Who puts remarks into rules and says what it thinks of likenesses; patterns do without."""
    tokens: int = 1500
    """What an agent is told, at the most."""
    control: float = 0.0
    """The share of work that is told nothing, to see what memory is worth."""
    seed: int = 0
    hydrate: bool = False
    """Whether `run`, `orchestrate` and `deliver` tell their agents, too: in system prompts."""


class DueSettings(Record, forbid_unknown_fields=True):
    """When `closeloop task due` speaks up."""

    commits: int = 200
    """A task whose base is so many commits behind is stale."""
    days: int = 92
    """A comparison on the whole set, and a look at the held-out one, are due after so many."""


class Settings(Record, forbid_unknown_fields=True):
    """All of `closeloop.toml`."""

    tasks: str = "tasks"
    store: str = ".closeloop/closeloop.db"
    """A path, or `postgresql://…`."""
    store_wait_seconds: float = 120.0
    """How long work under way waits for a PostgreSQL that went away."""
    cache: str | None = None
    """Where base trees are kept; `.closeloop/cache` when not given."""
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
    """How often an attempt that could not be scored is begun again."""
    rules: dict[str, dict[str, bool | float]] = {}
    """By rule: `enabled`, and thresholds that differ from the rule's own."""
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
    """By name: who is told what happens."""
    scores: dict[str, ScoreSettings] = {}
    """By name: what a score that people or programs give means."""


def has_store(settings: Settings, root: Path) -> bool:
    """Whether there is one already, for those who make none."""
    return "://" in settings.store or (root / settings.store).exists()
