"""What plug-ins are: small protocols that import nothing but this package."""

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
from closeloop.records.trace import (
    Exchange,
    ModelReply,
    ModelRequest,
    Session,
    Trace,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ProcessResult(Record):
    """What became of one command."""

    exit_code: int | None
    """None when a limit or the machine ended it."""
    output: str
    """Standard output and error as they came, head and tail kept, undecodable bytes replaced."""
    seconds: float
    stopped: str | None = None
    """`out of time`, `idle`, `too many processes`, `too much memory`, `too much disk`,
    `too many files`."""
    dropped_bytes: int = 0
    """How much of the middle of the output was left out."""


class Sandbox(Protocol):
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
    ) -> ProcessResult:
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


class ModelProxy(Model, Protocol):
    """One attempt's way to its model: counted, recorded and kept within its limits.

    A program in a cage finds it at `socket`, speaking any of the providers' formats; an agent of
    ours calls `reply`.
    """

    @property
    def socket(self) -> str:
        """Path of a Unix socket in a folder of its own, which a cage may show to its programs."""
        ...

    @property
    def address(self) -> str:
        """The same on loopback, `http://127.0.0.1:PORT/SECRET`, for what is not in a cage."""
        ...

    @property
    def usage(self) -> Usage:
        """All that was used so far."""
        ...

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """Everything that went through so far, in the order it was asked."""
        ...

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer now."""
        ...

    async def closed(self) -> OutOfBudget | Fault:
        """Wait until nothing more will go through, and say why; without a reason, for ever."""
        ...


class Recording(Record):
    """A file that an agent left about its work, as it was found in its cage."""

    path: str
    """Relative, below the agent's home or workspace."""
    content: bytes


class Assignment(Record):
    """What an agent works on, and with which sandbox, model and limits."""

    prompt: str
    system: str | None
    """The variant's system prompt; None is the agent's own."""
    cage: Sandbox
    model: Model | None
    door: ModelProxy | None = None
    """The same model as an HTTP address, for agents that are other programs."""
    variant: Variant
    limits: Limits
    answer: Callable[[str], str | None]
    """The user's answer to a question, or None when there is none."""
    feedback: bool = False
    """Whether to ask, when the work is done, what the agent lacked."""


class Work(Record):
    """The result of an agent's work."""

    exit: Exit
    trace: Trace
    usage: Usage = Usage()
    cause: str | None = None
    summary: str | None = None
    recordings: tuple[Recording, ...] = ()
    """The agent's own files; the trace is read from them when it is empty."""
    feedback: str | None = None
    """What the agent said it lacked, where it was asked."""


class RecordingSource(Protocol):
    """A file that may be a recording, opened as far as its beginning."""

    @property
    def path(self) -> Path: ...

    @property
    def head(self) -> bytes:
        """The first bytes, unpacked where the file is packed as a whole."""
        ...

    @property
    def lines(self) -> Sequence[Any]:
        """The first JSON values of a file with one a line; none for other files."""
        ...

    @property
    def document(self) -> Any:
        """The file as one JSON value; None for other files, or where it is too large."""
        ...

    @property
    def skipped(self) -> dict[str, int]:
        """What could not be read so far, and how often; readers add to it."""
        ...

    def records(self) -> Iterator[Any]:
        """Every JSON value of a file with one a line; bad lines are counted and passed over."""
        ...

    def beside(self, path: Path) -> RecordingSource:
        """Another file of the same recording."""
        ...


class Reader(Protocol):
    """Reads one native format. Found by what files contain, never by their names."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def recognises(self, source: RecordingSource) -> bool:
        """Whether this is its format, by content alone and quickly."""
        ...

    def read(self, source: RecordingSource) -> Iterator[Session]:
        """The sessions of a recording. What is odd is kept as a note or counted as skipped."""
        ...


class MultiFileReader(Reader, Protocol):
    """A reader of recordings in several files; without one of these, it stands for no file."""

    def parts(self, source: RecordingSource) -> Sequence[Path]:
        """The other files that belong to this recording, in a fixed order."""
        ...

    def owner(self, source: RecordingSource) -> Path | None:
        """The file whose recording this one is only a part of, where it is there."""
        ...


class Detector(Protocol):
    """One rule over a trace. Pure: the same trace gives the same findings, in the same order."""

    @property
    def rule(self) -> Rule: ...

    def detect(
        self, reading: TraceReading, limits: Mapping[str, float]
    ) -> Sequence[Finding] | Unmeasured:
        """What it finds by those thresholds, or why this trace cannot show it."""
        ...


class ChangeCheck(Protocol):
    """One look at a change: code quality, names, scope. Pure, given the inspection."""

    @property
    def rules(self) -> Sequence[Rule]:
        """What it may find."""
        ...

    def check(self, inspection: Inspection) -> Sequence[Finding | Unmeasured]:
        """Findings with `places` as `path:line` after the change, or why it could not look."""
        ...


class Judge(Protocol):
    """How a rubric is put to a model and its answer read. Pure: asking is done for it."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def pose(self, case: JudgeCase, rubric: Rubric, temperature: float) -> PosedQuestion:
        """The request: instructions that depend on the rubric alone, then the case as data."""
        ...

    def read(
        self, value: Any, posed: PosedQuestion, rubric: Rubric
    ) -> Sequence[RubricAnswer] | str:
        """One answer for each check, from a reply that fits the schema; or why it is none."""
        ...


class Encoder(Protocol):
    """Turns texts into vectors whose nearness is likeness of meaning. It retrieves, it never
    decides."""

    @property
    def id(self) -> str:
        """Its name with what it was made of; only vectors of one id are held against each other."""
        ...

    @property
    def floor(self) -> float:
        """The least likeness, by meaning and words, of a text and a rule that it may restate."""
        ...

    @property
    def alike(self) -> float:
        """The likeness from which on two texts mostly say the same."""
        ...

    def ready(self) -> bool:
        """Whether all that it needs is here."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row for each text, of length one; of zeros for a text that says nothing."""
        ...


class Agent(Protocol):
    """What an agent plug-in implements: it works on an assignment in its sandbox."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str | None:
        """The version that will run, where it is known beforehand."""
        ...

    def prompt(self, system: str | None) -> tuple[str, str]:
        """Return the system prompt and the tools, as text: the identity of the prompt."""
        ...

    async def work(self, assignment: Assignment) -> Work:
        """Do the work. An agent's failure is its exit; raise MachineFailed only for ours."""
        ...


class ScoredAttempt(Record):
    """What a scorer gets: everything stored of one attempt."""

    attempt: Attempt
    task: Task | None = None
    trace: Trace | None = None
    change: Change | None = None
    grade: Grade | None = None


class Scorer(Protocol):
    """A team's own way to score: installed as a plug-in, run where its score is asked for."""

    name: str
    scores: tuple[ScoreDefinition, ...]

    def score_attempt(self, shown: ScoredAttempt) -> Mapping[str, float | str | None]:
        """Values by the names of `scores`; a name that is left out, or None, is no say."""
        ...
