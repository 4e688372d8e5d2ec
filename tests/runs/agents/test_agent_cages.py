"""What a program in its cage cannot reach, and what is seen when it tries."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from git_trees import git
from program_stage import Stage

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.machine_view import HostAllowlist
from closeloop.sandbox.workspaces import WorkspacePool
from closeloop.text.code_patterns import BAIT_PATTERN

CONNECTS = f"""#!{sys.executable} -IS
import os, socket, sys
def tries(host, port, by_proxy=True):
    proxy = os.environ.get("HTTPS_PROXY", "")
    if not by_proxy or not proxy:
        return socket.create_connection((host, port), 2).recv(100)
    far = socket.create_connection(("127.0.0.1", int(proxy.rpartition(":")[2])), 5)
    far.sendall(f"CONNECT {{host}}:{{port}} HTTP/1.1\\r\\n\\r\\n".encode())
    return b"".join(iter(lambda: far.recv(1000), b""))
"""


def test_other_attempts_the_tasks_and_history_cannot_be_read(stage: Stage) -> None:
    """The answer lies all over the machine, and in none of the places that a cage shows."""

    repo = stage.folder / "repo"
    git(repo, "checkout", "-qb", "later")
    for place in ("repo/answer.txt", "tasks.reference.patch", "hidden.tests.patch"):
        (stage.folder / place).write_text("the ANSWER\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "the ANSWER")
    git(repo, "checkout", "-q", "main")
    hunts = (
        f"{{ cat {repo}/answer.txt {stage.folder}/*.patch; git log --all -p; git reflog; "
        f"grep -rs 'the AN''SWER' {stage.folder} /tmp /var /home /run; "
        "find /tmp /var /home /run -name 'answer.txt' -exec cat {} + ; "
        "cat /proc/*/environ | tr '\\0' ' '; ls .git/refs/heads; } > out 2>&1; true"
    )
    opening = stage.workspaces.open(stage.base, Limits())
    with stage.portal.wrap_async_context_manager(opening) as other:
        stage.portal.call(other.sandbox.write, "answer.txt", b"the ANSWER")
        played = stage.play(hunts, modelless=True)
    assert played.work.exit == "finished"
    assert "No such file" in played.diff
    assert "the ANSWER" not in played.diff


@pytest.fixture
def server() -> Iterator[int]:
    """Says hello to everybody who comes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            while True:
                try:
                    client = listening.accept()[0]
                except OSError:
                    return
                client.sendall(b"hello")
                client.close()

        threading.Thread(target=greet, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def test_only_the_gateway_can_be_reached(stage: Stage, server: int) -> None:
    played = stage.play(
        CONNECTS
        + f"""
import urllib.request
print(urllib.request.urlopen(os.environ["ANTHROPIC_BASE_URL"]).status)
for host, port in (("127.0.0.1", {server}), ("10.0.0.1", 80), ("localhost", 22)):
    try:
        print(tries(host, port))
    except OSError as error:
        print(type(error).__name__)
"""
    )
    said = (played.work.summary or "").splitlines()
    assert said[0] == "200"
    assert "hello" not in (played.work.summary or "")
    assert len(said) == 4


def test_hosts_that_are_named_can_be_reached_and_others_are_refused_and_kept(
    stage: Stage, server: int, tmp_path: Path
) -> None:
    settings = SandboxSettings(hosts=(f"127.0.0.1:{server}",))
    program = stage.program(
        CONNECTS
        + f"""
print(tries("127.0.0.1", {server}))
print(tries("evil.example", 443))
print(tries("127.0.0.1", 22))
try:
    tries("127.0.0.1", {server}, by_proxy=False)
except OSError:
    print("not directly")
"""
    )
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(WorkspacePool(tmp_path / "c", settings)) as opened,
    ):
        repo = str(stage.folder / "repo")
        base = portal.call(
            opened.prepare_base, repo, git(stage.folder / "repo", "rev-parse", "main")
        )
        there = Stage(tmp_path, opened, base, portal)
        played = there.play(Path(program).read_text(), modelless=True)
    said = (played.work.summary or "").splitlines()
    assert "200 Connection established" in said[0]
    assert "hello" in said[0]
    assert "403" in said[1]
    assert "403" in said[2]
    assert said[3] == "not directly"
    assert played.refused == {"evil.example:443": 1, "127.0.0.1:22": 1}


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("registry.example", 443, True), ("REGISTRY.example.", 443, True),
        ("registry.example", 80, True), ("registry.example", 22, False),
        ("evil-registry.example", 443, False), ("registry.example.evil", 443, False),
        ("a.files.example", 443, True), ("files.example", 443, False),
        ("evilfiles.example", 443, False), ("odd.example", 8443, True), ("odd.example", 443, False),
        ("", 443, False),
    ],
)  # fmt: skip
def test_a_host_is_allowed_by_its_whole_name(host: str, port: int, allowed: bool) -> None:
    gate = HostAllowlist(("registry.example", "*.files.example", "odd.example:8443"), "")
    assert gate.allows_host(host, port) is allowed


@pytest.mark.parametrize("host", ["https://x.example", "x.example/simple", "*", "", "x:y", "a b"])
def test_a_host_that_is_none_is_told(host: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"as host, \*\.host or host:port"):
        WorkspacePool(tmp_path, SandboxSettings(hosts=(host,)))


def test_a_proxy_that_is_spoken_to_badly_only_hangs_up(tmp_path: Path) -> None:
    from closeloop.sandbox.machine_view import open_allowlist

    async def main() -> list[bytes]:
        answers = []
        async with open_allowlist(("x.example",), tmp_path / "hosts") as opened:
            for said in (b"\r\n\r\n", b"CONNECT\r\n\r\n", b"CONNECT x.example:y HTTP/1.1\r\n\r\n",
                         b"GET http://x.example/ HTTP/1.1\r\n\r\n", b"\x00" * 100_000, b"",
                         b"CONNECT x.example:99999999999999 HTTP/1.1\r\n\r\n"):  # fmt: skip
                async with await anyio.connect_unix(opened.socket) as stream:
                    if said:
                        await stream.send(said)
                    await stream.send_eof()
                    try:
                        answers.append(await stream.receive())
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        answers.append(b"")
        return answers

    answers = anyio.run(main)
    assert [answer[9:12] for answer in answers][:4] == [b"502", b"502", b"403", b"403"]
    assert b"200" not in b"".join(answers)


def test_whoever_opens_the_bait_is_seen(stage: Stage) -> None:
    played = stage.play("cat ~/.closeloop/reference.patch", modelless=True)
    again = stage.play("cat ~/.closeloop/reference.patch", modelless=True)
    assert BAIT_PATTERN.search(played.work.summary or "")
    assert played.work.summary != again.work.summary
    assert played.diff == ""


def test_bait_does_not_follow_a_link_that_setup_has_left(stage: Stage, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    try:
        workspaces = WorkspacePool(tmp_path / "cache", SandboxSettings())
    except MachineFailed as fault:
        pytest.skip(f"NOT TESTED HERE: {fault}")

    async def main() -> None:
        repo = stage.folder / "repo"
        setup = [f"ln -s {outside} ~/.closeloop"]
        async with workspaces:
            base = await workspaces.prepare_base(str(repo), git(repo, "rev-parse", "main"), setup)
            async with workspaces.open(base, Limits()) as workspace:
                await workspace.sandbox.run("true")

    anyio.run(main)
    assert list(outside.iterdir()) == []
