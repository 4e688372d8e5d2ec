"""A GitHub that answers about a team's pull requests over HTTP, and may refuse for a while."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from github_team import REPO, Team
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from patience import PATIENCE

TOKEN = "t0ken"


class Api:
    """What is asked, and what goes wrong: `refusals` are answered first, one each."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.asked: list[str] = []
        self.refusals: list[Response] = []
        self.page = 100
        self.has_issues = True
        self.address = ""

    async def answer(self, request: Request) -> Response:
        path = request.url.path.removeprefix(f"/repos/{REPO}/")
        self.asked.append(path)
        if self.refusals:
            return self.refusals.pop(0)
        if path == "issues" and not self.has_issues:
            return JSONResponse({"message": "Issues are disabled for this repo"}, 410)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"message": "Bad credentials"}, 401)
        for pattern, answer in self._routes():
            if found := re.fullmatch(pattern, path):
                told = answer(*found.groups())
                return self._paged(request, told) if isinstance(told, list) else JSONResponse(told)
        return JSONResponse({"message": "Not Found"}, 404)

    def _routes(self) -> list[tuple[str, Callable[..., Any]]]:
        team = self.team
        every = {one["sha"]: one for commits in team.commits.values() for one in commits}
        return [
            ("issues", self._issues),
            ("pulls", lambda: [one for one in self._issues() if one["number"] != 999]),
            (r"pulls/(\d+)", lambda number: team.pulls[int(number)]),
            (
                r"pulls/(\d+)/commits",
                lambda number: [_bare(one) for one in team.commits[int(number)]],
            ),
            (r"pulls/(\d+)/reviews", lambda number: team.reviews[int(number)]),
            (r"pulls/(\d+)/comments", lambda number: team.remarks[int(number)]),
            (r"issues/(\d+)/comments", lambda number: team.talk[int(number)]),
            (r"pulls/(\d+)/files", lambda number: _files(team.commits[int(number)])),
            (r"commits/(\w+)", lambda sha: every[sha]),
            (r"commits/(\w+)/check-runs", lambda sha: {"check_runs": team.runs.get(sha, [])}),
        ]

    def _issues(self) -> list[dict[str, Any]]:
        listed = [
            {"number": number, "updated_at": pull["updated_at"], "pull_request": {}}
            for number, pull in self.team.pulls.items()
        ]
        issue = {"number": 999, "updated_at": "2026-01-05T09:00:00Z"}
        return sorted([issue, *listed], key=lambda one: one["updated_at"])

    def _paged(self, request: Request, told: list[Any]) -> Response:
        query = request.query_params
        if since := query.get("since"):
            told = [one for one in told if one["updated_at"] >= since]
        number = int(query.get("page", "1"))
        size = min(int(query.get("per_page", "30")), self.page)
        headers = {}
        if number * size < len(told):
            headers["link"] = f'<{request.url.include_query_params(page=number + 1)}>; rel="next"'
        return JSONResponse(told[(number - 1) * size : number * size], headers=headers)


def _bare(commit: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in commit.items() if name != "files"}


def _files(commits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({file["filename"]: file for one in commits for file in one["files"]}.values())


@contextmanager
def serving(app: Callable[[Request], Any]) -> Iterator[str]:
    """The address of a server that answers with a function, while the block runs."""
    every = Starlette(routes=[Route("/{path:path}", app, methods=["GET", "POST"])])
    quiet = {"log_config": None, "lifespan": "off", "timeout_keep_alive": 600}
    server = uvicorn.Server(uvicorn.Config(every, port=0, **quiet))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
