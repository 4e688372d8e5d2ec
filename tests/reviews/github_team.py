"""A team on GitHub, acted out: every act makes the deliveries and answers that GitHub would."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from closeloop.records.pull_request import Fact
from closeloop.reviews.host_pulls import GITHUB_EVENTS, read_github_event

REPO = "ann/tally"
START = datetime(2026, 1, 5, 9, tzinfo=UTC)
CLAUDE = "Co-Authored-By: Claude <noreply@anthropic.com>"
MAIN = "main"


class Team:
    """One repository and its people. An hour passes between acts."""

    def __init__(self, start: datetime = START) -> None:
        self.now = start
        self.deliveries: list[tuple[str, dict[str, Any]]] = []
        self.pulls: dict[int, dict[str, Any]] = {}
        self.commits: dict[int, list[dict[str, Any]]] = {}
        self.reviews: dict[int, list[dict[str, Any]]] = {}
        self.remarks: dict[int, list[dict[str, Any]]] = {}
        self.talk: dict[int, list[dict[str, Any]]] = {}
        self.runs: dict[str, list[dict[str, Any]]] = {}
        self._ids = iter(range(1, 1_000_000))

    def wait(self, **time: float) -> None:
        self.now += timedelta(**time)

    def _at(self) -> str:
        return self.now.strftime("%Y-%m-%dT%H:%M:%SZ")

    def _tell(self, event: str, by: str | None, **payload: Any) -> None:
        repository = {
            "full_name": REPO,
            "default_branch": MAIN,
            "pushed_at": int(self.now.timestamp()),
        }
        common = {"repository": repository, "sender": user(by)}
        # As it is now: later acts change what is told later.
        told = msgspec.json.decode(msgspec.json.encode({**payload, **common}))
        self.deliveries.append((event, told))

    def _touch(self, number: int) -> dict[str, Any]:
        self.wait(hours=1)
        pull = self.pulls[number]
        pull["updated_at"] = self._at()
        return pull

    # Acts

    def open(self, author: str | None, message: str = "Add a thing", **given: Any) -> int:
        """A branch with one commit, put up; `branch`, `labels`, `title`, `body`, `files`, `sha`."""
        self.wait(hours=1)
        number = len(self.pulls) + 1
        branch = given.get("branch", f"topic-{number}")
        self.commits[number], self.reviews[number] = [], []
        self.remarks[number], self.talk[number] = [], []
        self.pulls[number] = {
            "number": number,
            "title": given.get("title", message.splitlines()[0]),
            "body": given.get("body"),
            "state": "open",
            "draft": given.get("draft", False),
            "user": user(author),
            "labels": [{"name": name} for name in given.get("labels", ())],
            "head": {"ref": branch, "sha": "", "repo": {"full_name": REPO}},
            "base": {"ref": MAIN, "sha": "0" * 40},
            "created_at": self._at(),
            "updated_at": self._at(),
            "closed_at": None,
            "merged_at": None,
            "merge_commit_sha": None,
            "html_url": f"https://github.com/{REPO}/pull/{number}",
        }
        self._commit(number, given.get("by", author), message, given)
        self._tell("pull_request", author, action="opened", pull_request=self.pulls[number])
        return number

    def push(self, number: int, by: str | None, message: str, **given: Any) -> str:
        """Another commit; `forced` replaces all that was there, `files` are what it changes."""
        pull = self._touch(number)
        before = pull["head"]["sha"]
        if given.get("forced"):
            self.commits[number] = []
        sha = self._commit(number, by, message, given)
        self._tell(
            "pull_request", by, action="synchronize", pull_request=pull, before=before, after=sha
        )
        return sha

    def _commit(self, number: int, by: str | None, message: str, given: dict[str, Any]) -> str:
        pull, files = self.pulls[number], given.get("files", ["src/a/b.py"])
        before = pull["head"]["sha"] or "0" * 40
        made = hashlib.sha1(f"{number} {next(self._ids)} {message}".encode()).hexdigest()
        sha: str = given.get("sha", made)
        pull["head"]["sha"] = sha
        author = {"name": by or "Ghost", "email": f"{by}@example.org", "username": by}
        pushed = {
            "id": sha,
            "message": message,
            "timestamp": self._at(),
            "author": author,
            "added": [],
            "removed": [],
            "modified": files,
        }
        dated = {"name": author["name"], "email": author["email"], "date": self._at()}
        self.commits[number].append(
            {
                "sha": sha,
                "commit": {"message": message, "author": dated, "committer": dated},
                "author": user(by),
                "parents": [{"sha": before}],
                "files": [{"filename": path, "additions": 3, "deletions": 1} for path in files],
            }
        )
        self._tell(
            "push",
            by,
            ref=f"refs/heads/{pull['head']['ref']}",
            before=before,
            after=sha,
            forced=given.get("forced", False),
            deleted=False,
            commits=[pushed],
            head_commit=pushed,
        )
        return sha

    def check(self, number: int, conclusion: str | None = "success", name: str = "tests") -> None:
        self.wait(minutes=10)
        sha = self.pulls[number]["head"]["sha"]
        run = {
            "id": next(self._ids),
            "name": name,
            "head_sha": sha,
            "status": "completed" if conclusion else "in_progress",
            "conclusion": conclusion,
            "started_at": self._at(),
            "completed_at": self._at() if conclusion else None,
            "pull_requests": [],
        }
        self.runs.setdefault(sha, []).append(run)
        self._tell("check_run", "ci[bot]", action="completed", check_run=run)

    def review(
        self, number: int, by: str | None, state: str, *lines: tuple[str, int, str], **given: str
    ) -> int:
        """A review with comments on lines: path, line, words; `body`, and the `hunk` of those."""
        pull = self._touch(number)
        name = next(self._ids)
        sha = pull["head"]["sha"]
        one = {
            "id": name,
            "user": user(by),
            "body": given.get("body", ""),
            "state": state,
            "submitted_at": self._at(),
            "commit_id": sha,
        }
        self.reviews[number].append(one)
        self._tell("pull_request_review", by, action="submitted", pull_request=pull, review=one)
        for path, line, words in lines:
            remark = {
                "id": next(self._ids),
                "user": user(by),
                "body": words,
                "created_at": self._at(),
                "updated_at": self._at(),
                "path": path,
                "line": line,
                "diff_hunk": given.get("hunk", "@@ -1 +1 @@"),
                "commit_id": sha,
                "pull_request_review_id": name,
            }
            self.remarks[number].append(remark)
            self._tell(
                "pull_request_review_comment",
                by,
                action="created",
                pull_request=pull,
                comment=remark,
            )
        return name

    def say(self, number: int, by: str | None, words: str) -> int:
        """A comment on the whole."""
        self._touch(number)
        name = next(self._ids)
        remark = {
            "id": name,
            "user": user(by),
            "body": words,
            "created_at": self._at(),
            "updated_at": self._at(),
        }
        self.talk[number].append(remark)
        issue = {"number": number, "pull_request": {}}
        self._tell("issue_comment", by, action="created", issue=issue, comment=remark)
        return name

    def unsay(self, number: int, name: int) -> None:
        self.wait(hours=1)
        (remark,) = [one for one in self.talk[number] if one["id"] == name]
        self.talk[number].remove(remark)
        issue = {"number": number, "pull_request": {}}
        self._tell("issue_comment", "ann", action="deleted", issue=issue, comment=remark)

    def merge(self, number: int, by: str = "ann", sha: str | None = None) -> str:
        pull = self._touch(number)
        sha = sha or hashlib.sha1(f"merge {number}".encode()).hexdigest()
        pull |= {"state": "closed", "closed_at": self._at(), "merged_at": self._at()}
        pull |= {"merge_commit_sha": sha, "merged_by": user(by)}
        pull["changed_files"] = len(
            {f["filename"] for c in self.commits[number] for f in c["files"]}
        )
        self._tell("pull_request", by, action="closed", pull_request=pull)
        return sha

    def close(self, number: int, by: str = "ann") -> None:
        pull = self._touch(number)
        pull |= {"state": "closed", "closed_at": self._at()}
        self._tell("pull_request", by, action="closed", pull_request=pull)

    def land(self, message: str, by: str = "ann") -> None:
        """A commit straight on the main line."""
        self.wait(hours=1)
        sha = hashlib.sha1(f"{next(self._ids)} {message}".encode()).hexdigest()
        who = {"name": by, "email": f"{by}@example.org", "username": by}
        pushed = {"id": sha, "message": message, "timestamp": self._at(), "author": who}
        self._tell(
            "push",
            by,
            ref=f"refs/heads/{MAIN}",
            before="1" * 40,
            after=sha,
            forced=False,
            deleted=False,
            commits=[pushed],
            head_commit=pushed,
        )

    def lose(self, login: str) -> None:
        """An account is deleted: from now on it is nobody's."""
        for pull in self.pulls.values():
            if pull["user"] and pull["user"]["login"] == login:
                pull["user"] = None

    # What became of it

    def bodies(self) -> list[tuple[str, bytes]]:
        return [(event, msgspec.json.encode(payload)) for event, payload in self.deliveries]

    def facts(self) -> list[Fact]:
        """What all deliveries tell, in the order of the acts."""
        return [
            fact
            for event, body in self.bodies()
            if event in GITHUB_EVENTS
            for fact in read_github_event(event, body, self.now)
        ]


def user(login: str | None) -> dict[str, str] | None:
    if login is None:
        return None
    return {"login": login, "type": "Bot" if login.endswith("[bot]") else "User"}
