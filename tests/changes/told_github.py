"""A pull request of the fake GitHub, told of a report without waiting."""

from __future__ import annotations

from typing import Any

import anyio
from fake_github import NUMBER, REPO, TOKEN, FakeGitHub
from msgspec.structs import replace

from closeloop.changes.code_host import open_github
from closeloop.changes.report_publishing import PublishedReport, WorkflowPull, publish_report
from closeloop.records.change import ChangeReport
from report_example import BAD, BASE, HEAD, finding

PULL = WorkflowPull(
    repo=REPO,
    number=NUMBER,
    base=BASE,
    head=HEAD,
    request="Parse dates",
    address=f"https://github.com/{REPO}",
)
MANY = replace(BAD, findings=tuple(finding(f"m{n}", f"src/{n}.py:{n + 1}") for n in range(120)))


class Clock:
    """Waits that take no time, and are counted."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def pause(self, seconds: float) -> None:
        self.waits.append(seconds)


def tell(
    host: FakeGitHub,
    report: ChangeReport = BAD,
    *,
    pull: WorkflowPull = PULL,
    clock: Clock | None = None,
    prefix: str = "",
    **options: Any,
) -> PublishedReport:
    async def go() -> PublishedReport:
        api, pause = host.address + prefix, (clock or Clock()).pause
        async with open_github(REPO, TOKEN, api, pause) as hub:
            return await publish_report(hub, pull, report, **options)

    return anyio.run(go)
