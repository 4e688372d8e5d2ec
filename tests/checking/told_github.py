"""A pull request of the fake GitHub, told of a report without waiting."""

from __future__ import annotations

from typing import Any

import anyio
from fake_github import NUMBER, REPO, TOKEN, FakeGitHub
from msgspec.structs import replace

from closeloop.checking.github import open_github
from closeloop.checking.publishing import Published, publish
from closeloop.checking.pullrequest import PullRequest
from closeloop.model.report import Report
from report_example import BAD, BASE, HEAD, finding

PULL = PullRequest(
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
    report: Report = BAD,
    *,
    pull: PullRequest = PULL,
    clock: Clock | None = None,
    prefix: str = "",
    **options: Any,
) -> Published:
    async def go() -> Published:
        api, pause = host.address + prefix, (clock or Clock()).pause
        async with open_github(REPO, TOKEN, api, pause) as hub:
            return await publish(hub, pull, report, **options)

    return anyio.run(go)
