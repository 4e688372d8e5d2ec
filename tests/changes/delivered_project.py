"""A small project whose requests are delivered, and a GitHub that takes its pull requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import anyio
import msgspec
import pytest
from fake_github import NUMBER, REPO, TOKEN, FakeGitHub, answer, serving
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from closeloop import flow
from closeloop.changes.code_host import APP_ID_VARIABLE, APP_KEY_VARIABLE
from closeloop.cli.config import load_project
from closeloop.orchestration.request_delivery import DeliveryRequest
from closeloop.records.orchestration import AskedWork, DeliveryProgress, DeliveryResult
from small_project import git

CALC = '"""Sums."""\n\n\ndef add(a: int, b: int) -> int:\n    return a + b\n'
DOUBLE = CALC + "\n\ndef double(a: int) -> int:\n    return a + a\n"
WRONG = DOUBLE.replace("return a + b", "return a - b")
WORSE = DOUBLE.replace("return a + b", "return a * b")
REQUEST = "Add double(a) to calc.py"
FEEDBACK = "I lacked a word on style."
CONFIGURATION = """\
store = "{store}"
[sandbox]
kind = "none"
[limits]
seconds = 600
[commands]
test = "sh test.sh"
[models.worker]
provider = "scripted"
model = "worker.json"
input_price = 1.0
output_price = 10.0
[variants.worker]
model = "worker"
"""


def writes(text: str, path: str = "calc.py", summary: str = "Done.") -> list[dict[str, Any]]:
    return [
        {"do": {"write": {"path": path, "text": text}}},
        {"do": {"finish": {"summary": summary}}},
        {"say": FEEDBACK},
    ]


def build(
    folder: Path,
    *,
    first: list[dict[str, Any]],
    fixes: tuple[list[dict[str, Any]], ...] = (),
    store: str = ".closeloop/closeloop.db",
    origin: str | None = None,
) -> Path:
    """The project, with what its scripted agent does: first, and in each fix cycle."""
    # A cycle is known by what the tests print, which tells what the last one left.
    dialogues = [
        {"prompt": f"breaks checks[\\s\\S]*{mark}", "turns": turns}
        for mark, turns in zip((r"found: - b", r"found: \* b"), fixes, strict=False)
    ]
    dialogues.append({"turns": first})
    files = {
        "calc.py": CALC,
        "test.sh": "grep -q 'a + b' calc.py && exit 0\nsed -n 's/.*return a/found:/p' calc.py\nexit 1\n",  # noqa: E501
        ".gitignore": ".closeloop/\n",
        "closeloop.toml": CONFIGURATION.format(store=store),
        "worker.json": msgspec.json.encode({"name": "worker", "dialogues": dialogues}).decode(),
    }
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "calc.py", "test.sh", ".gitignore")
    git(folder, "commit", "-qm", "Start")
    if origin:
        git(folder, "remote", "add", "origin", origin)
    return folder


def ask(
    project: Path,
    tell: Callable[[DeliveryProgress], None] = lambda progress: None,
    environ: dict[str, str] | None = None,
    asked: AskedWork = AskedWork(text=REQUEST),  # noqa: B008
    **more: Any,
) -> DeliveryResult:
    """What `closeloop deliver` does, as a library call."""
    found = load_project(project, environ={})
    request = DeliveryRequest(
        settings=found.settings,
        root=project,
        environ=environ or {},
        repo=project,
        variant="worker",
        asked=asked,
        **more,
    )
    return anyio.run(flow.deliver_request, request, tell)


class DeliveryGitHub(FakeGitHub):
    """The same GitHub, with branches, issues, and pull requests that can be opened."""

    def __init__(self, bare: Path) -> None:
        super().__init__("")
        self.bare = bare
        self.pulls: list[dict[str, Any]] = []
        self.issues: dict[int, dict[str, Any]] = {}
        self.drafts = True
        self.installed = True
        self.openings = 0
        """How often one was asked to be opened that could be."""
        self.empty_lists = 0
        """How often no pull request is listed: what was made a moment ago is not there yet."""

    @property
    def environ(self) -> dict[str, str]:
        return {"GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": self.address}

    def app_environ(self, key_file: Path) -> dict[str, str]:
        """The same without a token of anybody's: as an app that is installed here."""
        app = {APP_ID_VARIABLE: "4711", APP_KEY_VARIABLE: str(key_file), "GITHUB_TOKEN": ""}
        return app | {"GITHUB_API_URL": self.address}

    async def serve(self, request: Request) -> Response:
        """An app proves itself by a signature, and is given the token that all else is asked by."""
        signed = request.headers.get("authorization", "").startswith("Bearer ey")
        if signed and request.url.path == f"/repos/{REPO}/installation":
            return JSONResponse({"id": 12}) if self.installed else answer(404, "Not Found")()
        if signed and request.url.path == "/app/installations/12/access_tokens":
            return JSONResponse({"token": TOKEN}, 201)
        return await super().serve(request)

    def _routes(self) -> list[tuple[str, str, Callable[..., Response]]]:
        return [
            ("GET", r"commits/([0-9a-f]{40})", self._commit),
            ("GET", "pulls", self._listed_pulls),
            ("POST", "pulls", self._open_pull),
            ("GET", r"issues/(\d+)", self._issue),
            *super()._routes(),
        ]

    def _commit(self, _: Request, __: Any, sha: str) -> Response:
        try:
            git(self.bare, "cat-file", "-e", f"{sha}^{{commit}}")
        except CalledProcessError:
            return answer(422, f"No commit found for SHA: {sha}")()
        return JSONResponse({"sha": sha, "html_url": "…"})

    def _listed_pulls(self, request: Request, _: Any) -> Response:
        head = request.query_params["head"].partition(":")[2]
        assert request.query_params["state"] == "all"
        if self.empty_lists:
            self.empty_lists -= 1
            return JSONResponse([])
        return JSONResponse([one for one in self.pulls if one["head"]["ref"] == head])

    def _open_pull(self, _: Request, payload: Any) -> Response:
        if payload["head"] == payload["base"]:
            return answer(422, f"No commits between {payload['base']} and {payload['head']}")()
        self.openings += 1
        if payload["draft"] and not self.drafts:
            return answer(422, "Draft pull requests are not supported in this repository.")()
        if any(one["head"]["ref"] == payload["head"] for one in self.pulls):
            error = {"resource": "PullRequest", "code": "custom"}
            error["message"] = "A pull request already exists for ann:x."
            return JSONResponse({"message": "Validation Failed", "errors": [error]}, 422)
        self.head = git(self.bare, "rev-parse", f"refs/heads/{payload['head']}").strip()
        git(self.bare, "rev-parse", f"refs/heads/{payload['base']}")
        pull = payload | {
            "number": NUMBER,
            "html_url": f"{self.address}/{REPO}/pull/{NUMBER}",
            "head": {"ref": payload["head"], "sha": self.head},
        }
        self.pulls.append(pull)
        return JSONResponse(pull, 201)

    def _issue(self, _: Request, __: Any, number: str) -> Response:
        issue = self.issues.get(int(number))
        return JSONResponse(issue) if issue else answer(404, "Not Found")()


@contextmanager
def hosted(project: Path) -> Iterator[DeliveryGitHub]:
    """A GitHub that holds the project; git reaches it as a folder, the API over HTTP."""
    bare = project.parent / "hosted.git"
    git(project, "clone", "-q", "--bare", str(project), str(bare))
    with serving(DeliveryGitHub(bare)) as github, pytest.MonkeyPatch.context() as patch:
        origin = f"{github.address}/{REPO}.git"
        settings = project.parent / "gitconfig"
        settings.write_text(f'[url "{bare}"]\n\tinsteadOf = {origin}\n')
        patch.setenv("GIT_CONFIG_GLOBAL", str(settings))
        git(project, "remote", "add", "origin", origin)
        yield github


def work_tree(project: Path) -> dict[str, bytes]:
    """All that is the user's: files, index, HEAD and hooks; not objects, refs and our own."""
    own = (".closeloop", ".git/objects", ".git/refs", ".git/logs")
    return {
        name: path.read_bytes()
        for path in sorted(project.rglob("*"))
        if path.is_file() and not (name := str(path.relative_to(project))).startswith(own)
    }


def plant_hooks(project: Path) -> Path:
    """Hooks of every kind that leave a mark where they run."""
    mark = project.parent / "hook-ran"
    names = "pre-commit post-commit pre-push reference-transaction post-checkout commit-msg"
    for name in names.split():
        hook = project / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho {name} >> {mark}\n")
        os.chmod(hook, 0o755)  # noqa: PTH101
    return mark
