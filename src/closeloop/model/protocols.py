"""What plug-ins are: small protocols that import nothing but this package."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from closeloop.model.attempt import Exit, Usage
from closeloop.model.chat import ModelReply, ModelRequest
from closeloop.model.record import Record
from closeloop.model.trace import Trace
from closeloop.model.variant import Limits, Variant


class Ran(Record):
    """What became of one command."""

    exit_code: int | None
    """None when a limit or the machine ended it."""
    output: str
    """Standard output and error as they came, head and tail kept, undecodable bytes replaced."""
    seconds: float
    stopped: str | None = None
    """`out of time`, `idle`, `too many processes`, `too much memory`, `too much disk`."""
    dropped_bytes: int = 0
    """How much of the middle of the output was left out."""


class Cage(Protocol):
    """A workspace seen from inside its sandbox: everything an agent does happens through it."""

    @property
    def root(self) -> str:
        """The workspace's path as commands see it."""
        ...

    async def run(
        self,
        command: str | Sequence[str],
        *,
        seconds: float | None = None,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run a program, or a shell line (one string), until it and its children end."""
        ...

    async def read(self, path: str, limit: int = ...) -> bytes:
        """A file's content; OSError when it cannot be read or is over the limit."""
        ...

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file and the folders above it; OSError when that is refused."""
        ...


class Model(Protocol):
    """Something that answers: a provider, a local server, a script."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: ModelRequest) -> ModelReply:
        """One turn. Raises OutOfBudget, or MachineFailed when the provider cannot be had."""
        ...


class Assignment(Record):
    """What an agent is given to work on."""

    prompt: str
    system: str | None
    """The variant's system prompt; None is the agent's own."""
    cage: Cage
    model: Model | None
    variant: Variant
    limits: Limits
    answer: Callable[[str], str | None]
    """The user's answer to a question, or None when there is none."""
    progress: Callable[[Trace], Awaitable[None]] | None = None


class Work(Record):
    """What an agent did."""

    exit: Exit
    trace: Trace
    usage: Usage = Usage()
    cause: str | None = None
    summary: str | None = None


class Agent(Protocol):
    """Works on an assignment inside its cage until it is done or stopped."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str | None:
        """Of the agent that will run, where that can be known beforehand."""
        ...

    def prompt(self, system: str | None) -> tuple[str, str]:
        """The system prompt it will really use, and its tools, as text: the prompt's identity."""
        ...

    async def work(self, assignment: Assignment) -> Work:
        """What the agent does wrong is its exit; MachineFailed says that we failed it."""
        ...
