"""Which pull request a workflow was started for, read from the event that started it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from closeloop.records.errors import BadInput
from closeloop.records.record import Record

MAX_EVENT_BYTES = 25 << 20
"""Bytes; GitHub sends no larger events."""
MAX_REQUEST_CHARS = 20_000
"""Characters of what was asked for."""
WORKFLOW_ADVICE = "run it in a workflow that is started `on: pull_request`"

# Everything that ends up in an address or on a command line is held to its alphabet here.
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,100}/(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,100}\Z")]
_Commit = Annotated[str, Meta(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?\Z")]
_Address = Annotated[str, Meta(pattern=r"^https?://[A-Za-z0-9.:-]{1,255}/[A-Za-z0-9_./-]{1,300}\Z")]
_Number = Annotated[int, Meta(gt=0, lt=1 << 53)]


class WorkflowPull(Record):
    """A request to merge, as far as a check needs to know it."""

    repo: _Name
    """Where it is to be merged: `owner/name`."""
    number: _Number
    base: _Commit
    head: _Commit
    request: str
    """What it says it does: title and text. Written by anyone."""
    address: _Address | None = None
    """The repository's page."""
    fork: bool = False
    """Whether it comes from another repository: workflows then get a token that only reads."""

    @property
    def title(self) -> str:
        return f"#{self.number}"

    @property
    def files_url(self) -> str | None:
        """Where its files are shown as they are after the change."""
        return f"{self.address}/blob/{self.head}" if self.address else None


class _EventRepository(Record):
    full_name: _Name
    html_url: _Address | None = None


class _PullEnd(Record):
    sha: _Commit
    repo: _EventRepository | None = None
    """None where a fork was deleted since."""


class _EventPull(Record):
    number: _Number
    base: _PullEnd
    head: _PullEnd
    title: str = ""
    body: str | None = None


class _WorkflowEvent(Record):
    repository: _EventRepository
    pull_request: _EventPull | None = None


def read_pull_event(path: Path) -> WorkflowPull:
    """The pull request of an event; BadInput says why there is none."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_EVENT_BYTES + 1)
    except OSError as error:
        raise BadInput(
            f"The event {path} cannot be read ({error.strerror}): {WORKFLOW_ADVICE}."
        ) from None
    if len(content) > MAX_EVENT_BYTES:
        raise BadInput(
            f"The event {path} is over {MAX_EVENT_BYTES >> 20} MB: it is none of GitHub's."
        )
    try:
        event = msgspec.json.decode(content, type=_WorkflowEvent)
    except (ValueError, RecursionError) as error:
        message = str(error)[:200]
        raise BadInput(
            f"{path} is no event of a pull request ({message}): {WORKFLOW_ADVICE}."
        ) from None
    if event.pull_request is None:
        raise BadInput(f"The event {path} is about no pull request: {WORKFLOW_ADVICE}.")
    return _build_workflow_pull(event.repository, event.pull_request)


def _build_workflow_pull(repository: _EventRepository, pull: _EventPull) -> WorkflowPull:
    source = pull.head.repo.full_name if pull.head.repo else None
    address = repository.html_url
    if address and not address.endswith(f"/{repository.full_name}"):
        address = None
    return WorkflowPull(
        repo=repository.full_name,
        number=pull.number,
        base=pull.base.sha,
        head=pull.head.sha,
        request=f"{pull.title}\n\n{pull.body or ''}".strip()[:MAX_REQUEST_CHARS],
        address=address,
        fork=source != repository.full_name,
    )
