"""A variant: which agent, exactly. An experiment: what to run it on."""

from __future__ import annotations

from closeloop.records.record import Record


class PromptVersion(Record):
    """A rendered system prompt with its tools and settings; any byte changes the id."""

    id: str
    text: str
    tools: str = ""
    settings: str = ""


class Limits(Record, forbid_unknown_fields=True):
    """What one attempt may use before it is stopped."""

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
    """A name from the configuration, `provider/model`, or `scripted:FILE`."""
    model_digest: str | None = None
    """Of what the name stands for: the script's content, or provider, model and address."""
    prompt: str | None = None
    """Id of the PromptVersion; None is the agent's own."""
    settings: dict[str, str | int | float | bool] = {}
    limits: Limits = Limits()
    digest: str = ""


class Experiment(Record):
    """Tasks × variants × repeats: a plan one can resume and cite."""

    id: str
    tasks: tuple[str, ...]
    """Task digests."""
    variants: tuple[str, ...]
    """Variant digests."""
    repeats: int = 1
    name: str | None = None
    """What closeloop.toml calls it."""
    seed: int = 0
    """Gives the order in which attempts are begun."""
    feedback: bool = False
    """Each attempt ends with a question to the agent: what was missing?"""
    budget: float | None = None
    """US dollars for all attempts together: once they are spent, none is begun."""
