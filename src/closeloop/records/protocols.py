"""Protocols of plug-ins. This module imports nothing but this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from closeloop.records.attempt import Attempt, Exit, Grade, Usage
from closeloop.records.change import Change, Inspection, TraceReading
from closeloop.records.errors import Fault, OutOfBudget
from closeloop.records.evaluation import JudgeCase, PosedQuestion, Rubric, RubricAnswer
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.record import Record
from closeloop.records.score import ScoreDefinition
from closeloop.records.task import Limits, Task, Variant
from closeloop.records.trace import Exchange, ModelReply, ModelRequest, Session, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ProcessResult(Record):
    """The result of one command."""

    exit_code: int | None
    """None if a limit or the machine ended it."""
    output: str
    """Standard output and error in order, middle truncated, undecodable bytes replaced."""
    seconds: float
    stopped: str | None = None
    """`out of time`, `idle`, `too many processes`, `too much memory`, `too much disk`,
    `too many files`."""
    dropped_bytes: int = 0
    """Bytes left out of the middle of the output."""


class Sandbox(Protocol):
    """A workspace seen from inside its sandbox; everything an agent does goes through it."""

    @property
    def root(self) -> str:
        """Path of the workspace as commands see it."""
        ...

    async def run(
        self,
        command: str | Sequence[str],
        *,
        seconds: float | None = None,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ProcessResult:
        """Run a program, or a shell line (one string), until it and its children end."""
        ...

    async def read(self, path: str, limit: int = ...) -> bytes:
        """Content of a file; OSError if it cannot be read or exceeds the limit."""
        ...

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file and its parent folders; OSError if refused."""
        ...


class Model(Protocol):
    """A model: a provider, a local server or a script."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Answer one turn. Raises OutOfBudget, or MachineFailed if the provider is unavailable."""
        ...


class ModelProxy(Model, Protocol):
    """One attempt's access to its model: counted, recorded and limited.

    A program in a sandbox connects to `socket` and may use any provider's format; built-in agents
    call `reply`.
    """

    @property
    def socket(self) -> str:
        """Path of a Unix socket in its own folder, which a sandbox can expose to its programs."""
        ...

    @property
    def address(self) -> str:
        """The same on loopback, `http://127.0.0.1:PORT/SECRET`, for programs outside a sandbox."""
        ...

    @property
    def usage(self) -> Usage:
        """Total usage so far."""
        ...

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """All exchanges so far, in order of the requests."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a request is waiting for an answer."""
        ...

    async def closed(self) -> OutOfBudget | Fault:
        """Wait until the proxy closes and return the reason; waits for ever if it never does."""
        ...


class Recording(Record):
    """A file that an agent wrote about its work, as found in its sandbox."""

    path: str
    """Relative, below the agent's home or workspace."""
    content: bytes


class Assignment(Record):
    """An agent's task, with its sandbox, model and limits."""

    prompt: str
    system: str | None
    """The variant's system prompt; None is the agent's default."""
    sandbox: Sandbox
    model: Model | None
    model_proxy: ModelProxy | None = None
    """The same model as an HTTP address, for agents that are separate programs."""
    variant: Variant
    limits: Limits
    answer: Callable[[str], str | None]
    """The user's answer to a question, or None."""
    feedback: bool = False
    """Whether to ask the agent at the end what it lacked."""


class Work(Record):
    """The result of an agent's work."""

    exit: Exit
    trace: Trace
    usage: Usage = Usage()
    cause: str | None = None
    summary: str | None = None
    recordings: tuple[Recording, ...] = ()
    """The agent's own files. The trace is read from them if it is empty."""
    feedback: str | None = None
    """What the agent said it lacked, if asked."""


class RecordingSource(Protocol):
    """A file that may be a recording, read as far as its beginning."""

    @property
    def path(self) -> Path: ...

    @property
    def head(self) -> bytes:
        """The first bytes, decompressed if the whole file is compressed."""
        ...

    @property
    def lines(self) -> Sequence[Any]:
        """The first JSON values of a file with one per line; empty for other files."""
        ...

    @property
    def document(self) -> Any:
        """The file as one JSON value; None for other files, or if it is too large."""
        ...

    @property
    def skipped(self) -> dict[str, int]:
        """Unreadable parts so far, with counts; readers add to it."""
        ...

    def records(self) -> Iterator[Any]:
        """Every JSON value of a file with one per line; bad lines are counted and skipped."""
        ...

    def beside(self, path: Path) -> RecordingSource:
        """Another file of the same recording."""
        ...


class Reader(Protocol):
    """Reads one native format, recognised by content, never by file name."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def recognises(self, source: RecordingSource) -> bool:
        """Whether the content has this format; must be quick."""
        ...

    def read(self, source: RecordingSource) -> Iterator[Session]:
        """Yield the sessions of a recording.

        Unexpected content becomes a note or is counted as skipped.
        """
        ...


class MultiFileReader(Reader, Protocol):
    """A reader of recordings that span several files."""

    def parts(self, source: RecordingSource) -> Sequence[Path]:
        """The other files of this recording, in a fixed order."""
        ...

    def owner(self, source: RecordingSource) -> Path | None:
        """The file whose recording includes this one, if present."""
        ...


class Detector(Protocol):
    """One rule over a trace. Pure: equal traces give equal findings in equal order."""

    @property
    def rule(self) -> Rule: ...

    def detect(
        self, reading: TraceReading, limits: Mapping[str, float]
    ) -> Sequence[Finding] | Unmeasured:
        """Return the findings under these thresholds, or why this trace cannot show any."""
        ...


class ChangeCheck(Protocol):
    """One check of a change: code quality, names, scope. Pure, given the inspection."""

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules it may report."""
        ...

    def check(self, inspection: Inspection) -> Sequence[Finding | Unmeasured]:
        """Findings with `places` as `path:line` after the change, or why it could not be
        checked."""
        ...


class Judge(Protocol):
    """How a rubric is put to a model and its answer is read. Pure: the caller asks the model."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def pose(self, case: JudgeCase, rubric: Rubric, temperature: float) -> PosedQuestion:
        """Build the request: instructions that depend on the rubric alone, then the case as
        data."""
        ...

    def read(
        self, value: Any, posed: PosedQuestion, rubric: Rubric
    ) -> Sequence[RubricAnswer] | str:
        """One answer for each check, from a reply that fits the schema; or why it is invalid."""
        ...


class Encoder(Protocol):
    """Turns texts into vectors; near vectors mean similar texts. It retrieves and never decides."""

    @property
    def id(self) -> str:
        """Its name and version; only vectors with equal id are compared."""
        ...

    @property
    def floor(self) -> float:
        """Minimum similarity, by meaning and words, of a text and a rule that it may restate."""
        ...

    @property
    def alike(self) -> float:
        """Similarity from which two texts mostly mean the same."""
        ...

    def ready(self) -> bool:
        """Whether everything it needs is installed."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one unit vector per text; zeros for a text without content."""
        ...


class Agent(Protocol):
    """An agent plug-in: works on an assignment in its sandbox."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str | None:
        """The version that will run, if known beforehand."""
        ...

    def prompt(self, system: str | None) -> tuple[str, str]:
        """Return the system prompt and the tools, as text: the identity of the prompt."""
        ...

    async def work(self, assignment: Assignment) -> Work:
        """Do the work.

        An agent's failure is its exit; raise MachineFailed only for machine faults.
        """
        ...


class ScoredAttempt(Record):
    """A scorer's input: everything stored about one attempt."""

    attempt: Attempt
    task: Task | None = None
    trace: Trace | None = None
    change: Change | None = None
    grade: Grade | None = None


class Scorer(Protocol):
    """A team's own scorer: installed as a plug-in, run when its score is needed."""

    name: str
    scores: tuple[ScoreDefinition, ...]

    def score_attempt(self, shown: ScoredAttempt) -> Mapping[str, float | str | None]:
        """Values by the names of `scores`; a missing name or None is an abstention."""
        ...
