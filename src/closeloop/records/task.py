"""A task: a request and its acceptance; a variant: an agent with its model and settings."""

from __future__ import annotations

from typing import Literal

from closeloop.records.record import Record, Time

TaskSplit = Literal["dev", "held-out"]
SplitMethod = Literal["time", "tags"]
TestRunner = Literal[
    "pytest", "unittest", "jest", "vitest", "mocha", "node", "go", "cargo", "junit"
]


class Acceptance(Record):
    """What must hold after the change. At least one of tests, commands and answer is given."""

    run: str | None = None
    """The command that runs the tests, from the root of the repository."""
    runner: TestRunner | None = None
    """How to read its results; recognised from the command by default."""
    report: str | None = None
    """Where the command writes JUnit XML (a glob), if the runner is `junit`."""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] | None = None
    """None: every test that passes at the base commit and is not flaky."""
    patch: str | None = None
    """Hidden tests: a patch that the agent never sees, applied before grading."""
    commands: tuple[str, ...] = ()
    """Commands that must exit with 0 after the change."""
    answer: str | None = None
    """A regular expression that the agent's last message must match."""
    timeout: float = 600.0
    """Timeout in seconds of one run of the tests, or of one command."""

    @property
    def is_given(self) -> bool:
        """Whether it decides automatically; otherwise people and judges score the attempts."""
        return bool(self.run or self.commands or self.answer)

    @property
    def names_tests(self) -> bool:
        """Whether single tests are named; otherwise the whole suite must pass."""
        return bool(self.fail_to_pass) or self.pass_to_pass is not None


class Task(Record):
    """One request on one repository at one commit."""

    id: str
    prompt: str
    prompt_by: Literal["person", "model"] = "person"
    """Who worded the request: a model, if a mined one was reworded."""
    repo: str | None = None
    """Path or address of a git repository; None for a question without code."""
    base: str | None = None
    """Full id of the commit that the agent starts from."""
    setup: tuple[str, ...] = ()
    """Commands that prepare the base tree once; they may use the network."""
    scope: tuple[str, ...] = ()
    """Globs of the files the change may touch; empty means anywhere."""
    acceptance: Acceptance = Acceptance()
    protected: tuple[str, ...] = ()
    """Globs of files restored to the base before grading."""
    reference: str | None = None
    """A known good change, as a patch."""
    rubric: str | None = None
    facts: tuple[str, ...] = ()
    """Texts that must survive every handoff."""
    ambiguous: bool = False
    """Whether the request lacks a decision, so that the agent should ask before its first edit."""
    answers: dict[str, str] = {}
    """Replies to questions: regular expression over the question → answer."""
    tags: tuple[str, ...] = ()
    split: TaskSplit = "dev"
    origin: str = "written"
    version: int = 1
    digest: str = ""
    """Identity of the agent's input: prompt, repository, base, setup, answers."""
    grading: str = ""
    """Identity of the grading; if only this changes, attempts are regraded, not rerun."""


# A variant: which agent, exactly. An experiment: what to run it on.

REFERENCE_AGENT = "reference"
CONTROL_AGENTS = ("noop", REFERENCE_AGENT)
"""Controls: no change, and the task's reference change. A task set lies between them."""


PromptSource = Literal["variant", "gateway", "session", "file"]


class PromptVersion(Record):
    """A system prompt. For the built-in agent, any change of text, tools and settings changes the
    id.

    One seen at the gateway, in a session or in a file is identified by its text alone, without the
    parts that change from session to session; the text is the first one seen.
    """

    id: str
    text: str
    tools: str = ""
    settings: str = ""
    source: PromptSource = "variant"
    agent: str | None = None
    """The agent that used it, if it was seen."""
    name: str | None = None
    """Its given name."""


class PromptRollout(Record):
    """From when on the work of an agent that names no prompt runs under this one."""

    prompt: str
    agent: str
    repo: str | None = None
    """None is every repository."""
    since: Time


class Limits(Record, forbid_unknown_fields=True):
    """Limits of one attempt."""

    seconds: float = 8 * 3600.0
    idle_seconds: float = 1800.0
    command_seconds: float = 600.0
    turns: int = 200
    tokens: int | None = None
    money: float | None = None
    """In US dollars."""
    memory_bytes: int = 8 << 30
    processes: int = 512
    disk_bytes: int = 4 << 30
    files: int = 500_000
    """That the workspace may have more than at first, folders included."""
    output_bytes: int = 1 << 20
    """What is kept of one command's output: its head and its tail."""


class Variant(Record):
    """An agent with its model, prompt and settings."""

    name: str
    agent: str
    agent_version: str | None = None
    model: str | None = None
    """A name from the configuration, `provider/model`, `scripted:FILE` or `recorded:ATTEMPT`."""
    model_digest: str | None = None
    """Digest of the script's content, or of provider, model and address."""
    prompt: str | None = None
    """Id of the PromptVersion; None is the agent's default."""
    settings: dict[str, str | int | float | bool] = {}
    limits: Limits = Limits()
    digest: str = ""

    @property
    def replay_of(self) -> str | None:
        """The recorded attempt that answers in place of a model."""
        return find_replayed_attempt(self.model)

    @property
    def is_control(self) -> bool:
        """Whether it is a control and not an agent."""
        return self.agent in CONTROL_AGENTS

    def can_attempt(self, task: Task) -> bool:
        """Whether it can try a task: the control `reference` needs a change that decides it."""
        if self.agent != REFERENCE_AGENT:
            return True
        return task.reference is not None and task.acceptance.answer is None


def find_replayed_attempt(model: str | None) -> str | None:
    """The attempt behind `recorded:ATTEMPT`; None for every other model."""
    kind, _, attempt = (model or "").partition(":")
    return attempt or None if kind == "recorded" else None


class Experiment(Record):
    """Tasks × variants × repeats: a plan that can be resumed and cited."""

    id: str
    tasks: tuple[str, ...]
    """Task digests."""
    variants: tuple[str, ...]
    """Variant digests."""
    repeats: int = 1
    name: str | None = None
    """Its name in closeloop.toml."""
    seed: int = 0
    """Seed of the order in which attempts start."""
    feedback: bool = False
    """Whether each attempt ends with a question to the agent: what was missing?"""
    budget: float | None = None
    """US dollars for all attempts together; none starts once they are spent."""
