"""A GitLab of one project over real HTTP, as far as merge requests are opened there."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from patience import PATIENCE
from small_project import git

GROUP, TOKEN = "team/sums/calc", "gl-t0ken"


class FakeGitLab:
    def __init__(self, bare: Path) -> None:
        self.bare, self.address = bare, ""
        self.merge_requests: list[dict[str, Any]] = []

    @property
    def environ(self) -> dict[str, str]:
        return {"GITLAB_TOKEN": TOKEN, "GITLAB_API_URL": f"{self.address}/api/v4"}

    async def serve(self, request: Request) -> Response:
        if request.headers.get("private-token") != TOKEN:
            return JSONResponse({"message": "401 Unauthorized"}, 401)
        path = request.scope["raw_path"].decode().partition("?")[0]
        path = path.removeprefix(f"/api/v4/projects/{GROUP.replace('/', '%2F')}/")
        if found := re.fullmatch(r"repository/commits/([0-9a-f]{40})", path):
            return JSONResponse({"id": found[1]})
        if path != "merge_requests":
            return JSONResponse({"message": "404 Not found"}, 404)
        if request.method == "GET":
            branch = request.query_params["source_branch"]
            known = [one for one in self.merge_requests if one["source_branch"] == branch]
            return JSONResponse(known)
        payload = await request.json()
        if payload["source_branch"] == payload["target_branch"]:
            return JSONResponse({"message": ["You can't use same project/branch"]}, 409)
        git(self.bare, "rev-parse", f"refs/heads/{payload['source_branch']}")
        number = len(self.merge_requests) + 1
        made = payload | {
            "iid": number,
            "web_url": f"{self.address}/{GROUP}/-/merge_requests/{number}",
            "draft": payload["title"].startswith("Draft: "),
        }
        self.merge_requests.append(made)
        return JSONResponse(made, 201)


@contextmanager
def serving_gitlab(project: Path) -> Iterator[FakeGitLab]:
    """A GitLab that holds the project; git reaches it as a folder, the API over HTTP."""
    gitlab = FakeGitLab(project.parent / "hosted.git")
    git(project, "clone", "-q", "--bare", str(project), str(gitlab.bare))
    application = Starlette(routes=[Route("/{path:path}", gitlab.serve, methods=["GET", "POST"])])
    quiet = {"log_config": None, "lifespan": "off", "timeout_keep_alive": 600}
    server = uvicorn.Server(uvicorn.Config(application, port=0, **quiet))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        gitlab.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with pytest.MonkeyPatch.context() as patch:
            origin = f"{gitlab.address}/{GROUP}.git"
            settings = project.parent / "gitconfig"
            settings.write_text(f'[url "{gitlab.bare}"]\n\tinsteadOf = {origin}\n')
            patch.setenv("GIT_CONFIG_GLOBAL", str(settings))
            git(project, "remote", "add", "origin", origin)
            yield gitlab
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
