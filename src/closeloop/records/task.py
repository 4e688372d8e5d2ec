"""A task: what an agent is asked, and how we know that it did it."""

from __future__ import annotations

from typing import Literal

from closeloop.records.record import Record

TaskSplit = Literal["dev", "held-out"]
TestRunner = Literal[
    "pytest", "unittest", "jest", "vitest", "mocha", "node", "go", "cargo", "junit"
]


class Acceptance(Record):
    """What must hold after the change. At least one of tests, commands and answer is given."""

    run: str | None = None
    """The command that runs the tests, from the root of the repository."""
    runner: TestRunner | None = None
    """How to read its results; recognised from the command when not given."""
    report: str | None = None
    """Where the command leaves JUnit XML (a glob), when the runner is `junit`."""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] | None = None
    """None: every test that passes at the base commit and is not flaky."""
    patch: str | None = None
    """Hidden tests: a patch the agent never sees, applied before grading."""
    commands: tuple[str, ...] = ()
    """Commands that must exit with 0 after the change."""
    answer: str | None = None
    """A regular expression that the agent's last message must match."""
    timeout: float = 600.0
    """Seconds that one run of the tests, or one command, may take."""

    @property
    def names_tests(self) -> bool:
        """Whether single tests are asked for; else the whole suite must pass."""
        return bool(self.fail_to_pass) or self.pass_to_pass is not None


class Task(Record):
    """One request on one repository at one commit."""

    id: str
    prompt: str
    prompt_by: Literal["person", "model"] = "person"
    """Who put the request into words: a model, where a mined one was reworded."""
    repo: str | None = None
    """Path or address of a git repository; None for a question that needs no code."""
    base: str | None = None
    """The full id of the commit the agent starts from."""
    setup: tuple[str, ...] = ()
    """Commands that prepare the base tree once; they may use the network."""
    scope: tuple[str, ...] = ()
    """Globs of the files the change may touch; none given means anywhere."""
    acceptance: Acceptance = Acceptance()
    protected: tuple[str, ...] = ()
    """Globs of files put back to the base before grading."""
    reference: str | None = None
    """The known good change, as a patch."""
    rubric: str | None = None
    facts: tuple[str, ...] = ()
    """Texts that must survive every handoff."""
    ambiguous: bool = False
    """The request lacks a decision: a question before the first edit is right."""
    answers: dict[str, str] = {}
    """What the user says when asked: regular expression over the question → answer."""
    tags: tuple[str, ...] = ()
    split: TaskSplit = "dev"
    origin: str = "written"
    version: int = 1
    digest: str = ""
    """Identity of what the agent is given: prompt, repository, base, setup, answers."""
    grading: str = ""
    """Identity of how it is graded; when only this changes, attempts are regraded, not rerun."""
