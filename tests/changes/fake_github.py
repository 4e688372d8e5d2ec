"""A GitHub of one repository over real HTTP: its rules, its pages, its limits, its bad days."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from patience import PATIENCE

BOT, PERSON = "github-actions[bot]", "mallory"
TOKEN = "t0ken-that-nobody-may-see"
REPO, NUMBER = "ann/tally", 7
PAGE = 100

Trouble = Callable[[], Response]


def answer(status: int, message: str = "", **headers: str) -> Trouble:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: JSONResponse({"message": message}, status, names)


class FakeGitHub:
    """What the repository holds. Tests look at it, and set what goes wrong."""

    def __init__(self, head: str) -> None:
        self.head = head
        self.login: str | None = BOT
        self.comments: dict[int, dict[str, Any]] = {}
        self.runs: dict[int, dict[str, Any]] = {}
        self.annotations: dict[int, list[dict[str, Any]]] = {}
        self.known_labels: dict[str, dict[str, Any]] = {}
        self.labels: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.writes = True
        self.checks = True
        self.before: list[tuple[str, Trouble]] = []
        """Answered instead, once each: `POST /check-runs` and what comes back."""
        self.after: list[tuple[str, Trouble]] = []
        """Done, and then answered with this: an answer that was lost."""
        self.asked: list[str] = []
        self.address = ""
        self._ids = iter(range(1, 1_000_000))
        self._lock = threading.Lock()

    # What tests put there

    def write(self, body: str, login: str = PERSON) -> int:
        number = next(self._ids)
        kind = "Bot" if login.endswith("[bot]") else "User"
        self.comments[number] = {
            "id": number,
            "body": body,
            "html_url": f"https://github.com/{REPO}/pull/{NUMBER}#issuecomment-{number}",
            "user": {"login": login, "type": kind},
        }
        return number

    def label(self, name: str, login: str) -> None:
        self.labels.append(name)
        self.events.append({"event": "labeled", "label": {"name": name}, "actor": {"login": login}})

    def bodies(self, login: str = BOT) -> list[str]:
        return [one["body"] for one in self.comments.values() if one["user"]["login"] == login]

    def changes(self) -> list[str]:
        return [line for line in self.asked if not line.startswith("GET") and "graphql" not in line]

    # What it does

    async def serve(self, request: Request) -> Response:
        payload = await request.json() if await request.body() else None
        line = f"{request.method} {request.url.path}"
        with self._lock:
            self.asked.append(line)
            if trouble := _next(self.before, line):
                return trouble()
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return answer(401, "Bad credentials")()
            made = self._answer(request, payload)
            return trouble() if (trouble := _next(self.after, line)) else made

    def _answer(self, request: Request, payload: Any) -> Response:
        path = request.url.path.removeprefix("/api/v3")
        if request.url.path in ("/graphql", "/api/graphql"):
            if self.login is None:
                return answer(403, "Resource not accessible by integration")()
            return JSONResponse({"data": {"viewer": {"login": self.login}}})
        path = path.removeprefix(f"/repos/{REPO}/")
        for method, pattern, handler in self._routes():
            found = re.fullmatch(pattern, path)
            if found and method == request.method:
                if method != "GET" and not self.writes:
                    return answer(403, "Resource not accessible by integration")()
                return handler(request, payload, *(unquote(part) for part in found.groups()))
        return answer(404, f"Not Found: {path}")()

    def _routes(self) -> list[tuple[str, str, Callable[..., Response]]]:
        issue = f"issues/{NUMBER}"
        return [
            ("GET", f"pulls/{NUMBER}", lambda *_: JSONResponse({"head": {"sha": self.head}})),
            ("GET", f"{issue}/comments", lambda r, _: self._page(r, [*self.comments.values()])),
            ("POST", f"{issue}/comments", self._comment),
            ("PATCH", r"issues/comments/(\d+)", self._edit),
            ("DELETE", r"issues/comments/(\d+)", self._delete),
            ("GET", f"{issue}/labels", lambda r, _: self._page(r, _named(self.labels))),
            ("POST", f"{issue}/labels", self._add_labels),
            ("DELETE", f"{issue}/labels/(.+)", self._take_label),
            ("GET", f"{issue}/events", lambda r, _: self._page(r, self.events)),
            ("GET", r"labels/([^/]+)", self._known),
            ("POST", "labels", self._make_label),
            ("GET", r"commits/([0-9a-f]+)/check-runs", self._listed_runs),
            ("POST", "check-runs", self._run),
            ("PATCH", r"check-runs/(\d+)", self._more),
        ]

    def _page(self, request: Request, items: list[Any], wrap: str | None = None) -> Response:
        """A page, and where the next one is."""
        number = int(request.query_params.get("page", "1"))
        size = int(request.query_params.get("per_page", "30"))
        assert size <= PAGE
        part = items[(number - 1) * size : number * size]
        headers = {}
        if number * size < len(items):
            url = request.url.include_query_params(page=number + 1)
            headers["link"] = f'<{url}>; rel="next", <{url}>; rel="last"'
        return JSONResponse({wrap: part} if wrap else part, headers=headers)

    def _comment(self, _: Request, payload: Any) -> Response:
        if len(payload["body"]) > 65_536:
            return answer(422, "Body is too long (maximum is 65536 characters)")()
        return JSONResponse(self.comments[self.write(payload["body"], BOT)], 201)

    def _edit(self, _: Request, payload: Any, number: str) -> Response:
        if int(number) not in self.comments:
            return answer(404, "Not Found")()
        self.comments[int(number)]["body"] = payload["body"]
        return JSONResponse(self.comments[int(number)])

    def _delete(self, _: Request, __: Any, number: str) -> Response:
        return Response(None, 204 if self.comments.pop(int(number), None) else 404)

    def _known(self, _: Request, __: Any, name: str) -> Response:
        found = self.known_labels.get(name)
        return JSONResponse(found) if found else answer(404, "Not Found")()

    def _make_label(self, _: Request, payload: Any) -> Response:
        if payload["name"] in self.known_labels:
            return answer(422, "Validation Failed")()
        assert re.fullmatch("[0-9a-f]{6}", payload["color"])
        assert len(payload["description"]) <= 100
        self.known_labels[payload["name"]] = payload
        return JSONResponse(payload, 201)

    def _add_labels(self, _: Request, payload: Any) -> Response:
        for name in payload["labels"]:
            assert name in self.known_labels, "GitHub would make it grey"
            if name not in self.labels:
                self.label(name, BOT)
        return JSONResponse(_named(self.labels))

    def _take_label(self, _: Request, __: Any, name: str) -> Response:
        if name not in self.labels:
            return answer(404, "Label does not exist")()
        self.labels.remove(name)
        return JSONResponse(_named(self.labels))

    def _listed_runs(self, request: Request, _: Any, head: str) -> Response:
        name = request.query_params["check_name"]
        found = [
            run
            for run in reversed(self.runs.values())
            if run["head_sha"] == head and run["name"] == name
        ]
        return self._page(request, found, "check_runs")

    def _run(self, _: Request, payload: Any) -> Response:
        if not self.checks:
            return answer(403, "You must authenticate via a GitHub App.")()
        if {"name", "head_sha"} - payload.keys() or (wrong := _wrong(payload)):
            return answer(422, f"Invalid request. {wrong}")()
        number = next(self._ids)
        self.annotations[number] = []
        self.runs[number] = {
            "id": number,
            "html_url": f"https://github.com/{REPO}/runs/{number}",
            "status": "queued",
        }
        return self._take(number, payload)

    def _more(self, _: Request, payload: Any, number: str) -> Response:
        if wrong := _wrong(payload):
            return answer(422, f"Invalid request. {wrong}")()
        return self._take(int(number), payload)

    def _take(self, number: int, payload: Any) -> Response:
        notes = self.annotations[number]
        notes += payload.get("output", {}).get("annotations", [])
        run = self.runs[number] | payload
        run["output"] = run.get("output", {}) | {"annotations_count": len(notes)}
        run["output"].pop("annotations", None)
        self.runs[number] = run
        return JSONResponse(run)


def _wrong(payload: Any) -> str:
    """What GitHub's published rules for check runs have against a request."""
    shown = payload.get("output")
    if payload.get("status") not in ("queued", "in_progress", "completed"):
        return "status"
    conclusions = ("failure", "neutral", "success", "cancelled", None)
    if payload.get("conclusion") not in conclusions:
        return "conclusion"
    if (payload["status"] == "completed") != ("conclusion" in payload):
        return "a conclusion belongs to a completed run"
    return _wrong_output(shown) if shown is not None else ""


def _wrong_output(shown: Any) -> str:
    if not shown.get("title") or not shown.get("summary"):
        return "output needs title and summary"
    if len(shown["summary"]) > 65_535:
        return "Only 65535 characters are allowed"
    if len(shown["annotations"]) > 50:
        return "annotations: no more than 50 items are allowed"
    for note in shown["annotations"]:
        wanted = {"path", "start_line", "end_line", "annotation_level", "message"}
        if wanted - note.keys() or note["annotation_level"] not in ("notice", "warning", "failure"):
            return "annotations"
        if len(note["message"].encode()) > 65_536 or len(note.get("title", "")) > 255:
            return "annotations are too long"
    return ""


def _named(labels: list[str]) -> list[dict[str, str]]:
    return [{"name": name} for name in labels]


def _next(troubles: list[tuple[str, Trouble]], line: str) -> Trouble | None:
    """The first trouble that is meant for this request, used up."""
    for number, (pattern, trouble) in enumerate(troubles):
        if re.search(pattern, line):
            del troubles[number]
            return trouble
    return None


@contextmanager
def serving(github: FakeGitHub) -> Iterator[FakeGitHub]:
    """The server on a port of its own, in a thread, while the block runs."""
    every = ["GET", "POST", "PATCH", "DELETE"]
    application = Starlette(routes=[Route("/{path:path}", github.serve, methods=every)])
    quiet = {"log_config": None, "lifespan": "off", "timeout_keep_alive": 600}
    server = uvicorn.Server(uvicorn.Config(application, port=0, **quiet))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        github.address = f"http://127.0.0.1:{port}"
        yield github
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
