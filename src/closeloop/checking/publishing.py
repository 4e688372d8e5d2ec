"""Tell a pull request: a check run, one comment that is kept up to date, labels.

Everything is looked for before it is made, so that a run that was killed, repeated or raced by
another one leaves the same behind as one run does.
"""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec.structs import replace

from closeloop.changes.reports import checkrun
from closeloop.changes.reports.checkrun import BATCH, CheckRun
from closeloop.changes.reports.markdown import MARKER, comment
from closeloop.changes.reports.telling import is_clean
from closeloop.checking.github import GitHub, Lost, Refused
from closeloop.checking.pullrequest import PullRequest
from closeloop.model.errors import Fault
from closeloop.model.record import Record, digest
from closeloop.model.report import Report

NAME = "closeloop"
HOLD = "hold"
COLOURS = {
    "risk:low": "0e8a16",
    "risk:medium": "fbca04",
    "risk:high": "d93f0b",
    "risk:critical": "b60205",
    HOLD: "b60205",
}
MOVED_ON = "The pull request has moved on: comment and labels are left to its newer run."
ABOUT = {HOLD: "A person must look at it before it is merged"}


Kind = TypeVar("Kind")


class Published(Record):
    """What a pull request was told."""

    comment: str | None = None
    """The comment's address; None where there is none, as with a clean change."""
    check: str | None = None
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be done, and why."""


class _Author(Record):
    login: str
    type: str = ""


class _Comment(Record):
    id: int
    html_url: str
    body: str | None = None
    user: _Author | None = None


class _Output(Record):
    annotations_count: int = 0


class _Run(Record):
    id: int
    status: str
    html_url: str | None = None
    external_id: str | None = None
    output: _Output = _Output()


class _Runs(Record):
    check_runs: list[_Run]


class _Label(Record):
    name: str


class _Labelling(Record):
    event: str
    label: _Label | None = None
    actor: _Author | None = None


class _Head(Record):
    sha: str


class _Pull(Record):
    head: _Head


async def publish(
    hub: GitHub,
    pull: PullRequest,
    report: Report,
    summary: Path | None = None,
) -> Published:
    """Tell the pull request. What is refused goes to the file of the job's summary instead."""
    refused: dict[str, list[str]] = {}

    async def tried(what: str, doing: Awaitable[Kind]) -> Kind | None:
        try:
            return await doing
        except Fault as fault:
            refused.setdefault(_reason(fault, pull), []).append(what)
            return None

    page = comment(report, blobs=pull.blobs)
    run = checkrun.check_run(report, blobs=pull.blobs)
    told = Published(check=await tried("check run", put_check(hub, pull.head, run)))
    moved = await _moved_on(hub, pull)
    if not moved:
        me = await hub.login()
        wanted = {f"risk:{report.risk.level}"} if report.risk else set()
        wanted |= {HOLD} if report.held else set()
        quiet = is_clean(report)
        told = replace(
            told,
            comment=await tried("comment", put_comment(hub, pull, page, me, quiet=quiet)),
            labels=await tried("labels", put_labels(hub, pull, wanted, me)) or (),
        )
    notes = [f"Not written: {', '.join(what)}. {reason}." for reason, what in refused.items()]
    notes += [MOVED_ON] if moved else []
    if refused and summary:
        with summary.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{page}\n")
        notes.append("The report is in the summary of the job instead.")
    return replace(told, notes=tuple(notes))


async def put_check(hub: GitHub, head: str, run: CheckRun) -> str | None:
    """The check run of a commit, finished where an earlier run was cut off; its address."""
    identity = f"{NAME}-{digest(run.conclusion, run.title, run.annotations)[:32]}"
    about = {"name": NAME, "head_sha": head, "external_id": identity}

    async def settle() -> str | None:
        found = await _run_of(hub, head, identity)
        if found is None:
            first = about | _batch(run, 0)
            found = await hub.ask("POST", "check-runs", _Run, first, again=False)
            sent = BATCH
        else:
            sent = found.output.annotations_count
        done = found.status == "completed"
        while not done:
            # They are added to those there are: none is sent again before it is known to lack.
            path, more = f"check-runs/{found.id}", _batch(run, sent)
            await hub.ask("PATCH", path, _Run, more, again=False)
            done, sent = "conclusion" in more, sent + BATCH
        return found.html_url

    return await hub.settled(settle)


def _batch(run: CheckRun, sent: int) -> dict[str, Any]:
    """What is to be sent after so many annotations; with the last ones, the conclusion."""
    made: dict[str, Any] = {"status": "in_progress", "output": checkrun.output(run, sent)}
    if sent + BATCH >= len(run.annotations):
        made |= {"status": "completed", "conclusion": run.conclusion}
    return made


async def _run_of(hub: GitHub, head: str, identity: str) -> _Run | None:
    """Our last run, where it says the same; others that were cut off are called off."""
    path = f"commits/{head}/check-runs?check_name={NAME}&filter=all"
    ours = [
        run
        async for page in hub.pages(path, _Runs)
        for run in page.check_runs
        if (run.external_id or "").startswith(f"{NAME}-")
    ]
    last = max(ours, key=lambda run: run.id, default=None)
    same = last if last and last.external_id == identity else None
    for run in ours:
        if run is not same and run.status != "completed":
            over = {"status": "completed", "conclusion": "cancelled"}
            await hub.ask("PATCH", f"check-runs/{run.id}", _Run, over)
    return same


async def put_comment(
    hub: GitHub, pull: PullRequest, text: str, me: str | None, *, quiet: bool
) -> str | None:
    """Our one comment, with this text; a quiet one is not begun, only kept up to date."""
    made: dict[int, _Comment] = {}

    async def ours() -> list[_Comment]:
        """The oldest first, also one that is not listed yet."""
        listed = made | {one.id: one for one in await _comments_of(hub, pull, me)}
        return [listed[identity] for identity in sorted(listed)]

    async def settle() -> str | None:
        found = await ours()
        if not found and not quiet:
            path = f"issues/{pull.number}/comments"
            new = await hub.ask("POST", path, _Comment, {"body": text}, again=False)
            made[new.id] = new
            # Another run may have written at the same time: the oldest stays.
            found = await ours()
        if not found:
            return None
        first, *others = found
        if (first.body or "").split() != text.split():
            await _rewritten(hub, first, text, made)
        for other in others:
            await hub.remove(f"issues/comments/{other.id}")
        return first.html_url

    return await hub.settled(settle)


async def _rewritten(hub: GitHub, old: _Comment, text: str, made: dict[int, _Comment]) -> None:
    try:
        await hub.ask("PATCH", f"issues/comments/{old.id}", _Comment, {"body": text})
    except Refused as refused:
        if refused.status != 404:
            raise
        made.pop(old.id, None)
        raise Lost("the comment was taken away while it was being written") from None


async def _comments_of(hub: GitHub, pull: PullRequest, me: str | None) -> list[_Comment]:
    """Comments that we wrote. Anybody can write what ours begin with, so that is not enough."""

    def is_ours(author: _Author | None) -> bool:
        return author is not None and (author.login == me if me else author.type == "Bot")

    return [
        one
        async for page in hub.pages(f"issues/{pull.number}/comments", list[_Comment])
        for one in page
        if (one.body or "").startswith(MARKER) and is_ours(one.user)
    ]


async def put_labels(
    hub: GitHub, pull: PullRequest, wanted: set[str], me: str | None
) -> tuple[str, ...]:
    """The labels that are wanted, and none of the others that are ours to set."""
    path = f"issues/{pull.number}/labels"
    there = {one.name.lower() async for page in hub.pages(path, list[_Label]) for one in page}
    for name in sorted(there & COLOURS.keys() - wanted):
        if name != HOLD or await _held_by(hub, pull, me):
            await hub.remove(f"{path}/{quote(name, safe='')}")
    missing = sorted(wanted - there)
    for name in missing:
        await _known(hub, name)
    if missing:
        await hub.ask("POST", path, list[_Label], {"labels": missing})
    return tuple(sorted(wanted))


async def _known(hub: GitHub, name: str) -> None:
    """Make a label that the repository does not have."""
    try:
        await hub.ask("GET", f"labels/{quote(name, safe='')}", _Label)
    except Refused as refused:
        if refused.status != 404:
            raise
        about = ABOUT.get(name, f"How risky closeloop finds the change: {name[5:]}")
        payload = {"name": name, "color": COLOURS[name], "description": about}
        try:
            await hub.ask("POST", "labels", _Label, payload)
        except Refused as taken:
            if taken.status != 422:
                raise


async def _held_by(hub: GitHub, pull: PullRequest, me: str | None) -> bool:
    """Whether it was us who set the label: what a person holds is that person's to let go."""
    who = None
    async for page in hub.pages(f"issues/{pull.number}/events", list[_Labelling]):
        for one in page:
            if one.event == "labeled" and one.label and one.label.name.lower() == HOLD:
                who = one.actor.login if one.actor else None
    return who is not None and who == me


async def _moved_on(hub: GitHub, pull: PullRequest) -> bool:
    """Whether commits were added since: then what we found is no longer about its head."""
    try:
        now = await hub.ask("GET", f"pulls/{pull.number}", _Pull)
    except Fault:
        return False
    return now.head.sha != pull.head


def _reason(fault: Fault, pull: PullRequest) -> str:
    if isinstance(fault, Refused) and fault.status in (403, 404):
        if pull.fork:
            return f"{fault}: for a pull request from a fork the token only reads"
        return f"{fault}: give the job `permissions: {{checks: write, pull-requests: write}}`"
    return str(fault).rstrip(".")
