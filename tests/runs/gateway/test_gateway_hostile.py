"""Whatever an agent sends: the gateway stays up, and no attempt reaches another's door."""

from __future__ import annotations

import json
import stat
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import httpx
import pytest
from gateway_client import ENVIRON, FORMATS, SCRIPT, Talk, client, opened, path_of, text_of

from closeloop.gateway import Gateway
from closeloop.gateway.proxy_server import MAX_REQUEST_BYTES
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from patience import PATIENCE, SCALES

BODIES = [
    b"",
    b"null",
    b"[]",
    b"7",
    b"\xff\xfe\x00",
    b'{"messages": "x", "input": 7, "contents": 7}',
    b'{"messages": [{"role": 7}], "input": [{"type": 7}], "contents": [7]}',
    b'{"messages": [], "messages": [[]], "input": [null], "contents": [{"parts": [{"text": 7}]}]}',
    b"[" * 100_000,
    b'{"messages": ' + b"[" * 100_000,
    b'{"a": ' * 50_000,
    b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
    b'{"model": "' + b"x" * 1_000_000,
]


@pytest.mark.parametrize("speaks", FORMATS)
def test_what_is_no_request_is_refused_and_the_door_stays_open(speaks: str, tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as door, client(door, caged=True) as http:
            for body in BODIES:
                response = await http.post(path_of(speaks, stream=False), content=body)
                assert response.status_code == 400
                assert response.json()["error"]["message"]
            talk = Talk(speaks)
            talk.user("Hello")
            assert text_of(speaks, await talk.turn(http)) == "Hello."
        assert len(door.exchanges) == len(BODIES) + 1

    anyio.run(go)


def test_a_request_that_is_too_long_is_not_kept(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as door, client(door) as http:
            for size in (MAX_REQUEST_BYTES + 1, 3 * MAX_REQUEST_BYTES):
                response = await http.post("/v1/messages", content=b" " * size)
                assert response.status_code == 413
                assert "32 MB" in response.json()["error"]["message"]

            async def endless() -> Any:
                for _ in range(200):
                    yield b" " * (1 << 20)

            try:
                response = await http.post("/v1/messages", content=endless())
                assert response.status_code == 413
            except httpx.TransportError:
                pass  # hung up on: as good
            talk = Talk("anthropic")
            talk.user("Hello")
            await talk.turn(http)
        assert len(door.exchanges) == 1

    anyio.run(go)


def test_a_request_of_the_longest_length_is_answered(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as door, client(door) as http:
            talk = Talk("anthropic")
            talk.user("x" * (MAX_REQUEST_BYTES - 1000))
            assert text_of("anthropic", await talk.turn(http)) == "Hello."
        assert json.loads(door.exchanges[0].request)["messages"] == talk.said

    anyio.run(go)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../v1/messages/../../etc/passwd",
        "/v1/%2e%2e/messages",
        "//v1/messages",
        "/v1/messages%00",
        "/v1/messages/batches",
        "/v1/files",
        "/v1beta/models/x:embedContent",
        "/v1beta/models/../../x:generateContent",
        "/v1/v1/v1/messages",
        "/admin",
    ],
)
def test_there_is_nothing_at_other_paths(path: str, tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as door, await anyio.connect_unix(door.socket) as stream:
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"
            await stream.send(head.encode() + b"{}")
            assert (await stream.receive()).startswith(b"HTTP/1.1 404")
        assert len(door.exchanges) == 0

    anyio.run(go)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nx: " + b"y" * 200_000,
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nanthropic-beta: a\r\n\tb\x00c\r\n\r\n",
    ],
)
def test_what_is_no_http_ends_only_its_own_connection(sent: bytes, tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as door:
            stream = await anyio.connect_unix(door.socket)
            await stream.send(sent)
            with anyio.fail_after(PATIENCE):
                answer = await stream.receive()
            assert b"400" in answer.split(b"\r\n")[0]
            await stream.aclose()
            async with client(door, caged=True) as http:
                assert (await http.head("/")).status_code == 200

    anyio.run(go)


def test_an_attempt_cannot_reach_anothers_door(tmp_path: Path) -> None:
    (tmp_path / "careful.yaml").write_bytes(SCRIPT)

    async def go() -> None:
        model = ModelSettings(provider="scripted", model="careful.yaml")
        async with (
            Gateway(ENVIRON, tmp_path) as gateway,
            gateway.open_proxy("mine", model, Limits()) as mine,
            gateway.open_proxy("mine", model, Limits()) as other,
            client(mine, caged=True) as caged,
            client(mine) as free,
        ):
            secret = other.address.rpartition("/")[2]
            talk = Talk("anthropic")
            talk.user("Hello")
            base = mine.address.rpartition("/")[0]
            guesses = [secret[:-1], secret + "x", secret.lower(), "", "..", "%2e", secret[::-1]]
            for guess in guesses:
                response = await free.post(f"{base}/{guess}/v1/messages", json=talk.payload())
                assert response.status_code == 404
            # Through one's own socket a secret is only a wrong path.
            response = await caged.post(f"/{secret}/v1/messages", json=talk.payload())
            assert response.status_code == 404
            headers = {"host": "other", "x-forwarded-for": "other", "authorization": secret}
            assert (await talk.ask(caged, **headers)).status_code == 200
            assert (len(mine.exchanges), len(other.exchanges)) == (1, 0)
            for door in (mine, other):
                folder = Path(door.socket).parent
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
                assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
                assert [each.name for each in folder.iterdir()] == ["model.sock"]
        assert not Path(mine.socket).parent.parent.exists()

    anyio.run(go)


def test_a_long_path_to_the_sockets_is_no_hindrance(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)

    async def go() -> None:
        async with opened(tmp_path, sockets=deep) as door:
            short.symlink_to(Path(door.socket).parent)
            transport = httpx.AsyncHTTPTransport(uds=str(short / "model.sock"))
            reached = {"base_url": "http://x", "timeout": PATIENCE}
            async with httpx.AsyncClient(transport=transport, **reached) as http:
                assert (await http.head("/")).status_code == 200
        assert not deep.exists()

    with TemporaryDirectory() as folder:
        short = Path(folder) / "s"
        anyio.run(go)


def test_an_attempt_leaves_no_more_than_so_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeloop.gateway.exchange_ledger.MAX_KEPT_BYTES", 100_000)
    monkeypatch.setattr("closeloop.gateway.exchange_ledger.MAX_ENTRIES", 5)

    async def go() -> None:
        async with opened(tmp_path) as door, client(door) as http:
            for number in range(8):
                talk = Talk("anthropic")
                talk.user(str(number) * 60_000)
                await talk.turn(http)
        assert len(door.exchanges) == 5
        assert sum(len(one.request) for one in door.exchanges) < 150_000
        assert door.usage.output_tokens == 8 * 2

    anyio.run(go)


def test_a_crowd_at_one_door_is_turned_away_and_its_long_requests_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeloop.gateway.proxy_server.MAX_REQUESTS_AT_ONCE", 4)
    statuses: list[int] = []

    async def ask(http: httpx.AsyncClient, size: int) -> None:
        talk = Talk("anthropic")
        talk.user("x" * size)
        statuses.append((await talk.ask(http)).status_code)

    async def go(delay: float) -> bool:
        """Whether all came while the first four were being answered."""
        script = f"dialogues: [{{turns: [{{say: Hi, delay: {delay}, repeat: true}}]}}]"
        (tmp_path / "slow.yaml").write_text(script)
        settings = ModelSettings(provider="scripted", model="slow.yaml")
        async with opened(tmp_path, settings) as door, client(door, caged=True) as http:
            statuses.clear()
            async with anyio.create_task_group() as group:
                for _ in range(10):
                    group.start_soon(ask, http, 10)
            if sorted(statuses) != [200] * 4 + [429] * 6:
                return False
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(ask, http, 2 << 20)
            assert statuses[10:] == [200] * 3
        times = [one.at for one in list(door.exchanges)[4:]]
        # One after the other: each was read only when the one before had its answer.
        assert all((two - one).total_seconds() >= delay for one, two in pairwise(times))
        return True

    assert any(anyio.run(go, 0.2 * scale) for scale in SCALES), statuses


def test_a_gateway_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    async def go() -> str:
        with anyio.CancelScope() as scope:
            async with opened(tmp_path) as door:
                path = door.socket
                assert door.address
                scope.cancel()
                await anyio.sleep(1)
        return path

    path = anyio.run(go)
    assert not Path(path).parent.parent.exists()


def test_a_body_that_takes_long_to_record_holds_no_other_attempt_up(tmp_path: Path) -> None:
    """To look for secrets in this one takes seconds."""
    (tmp_path / "careful.yaml").write_bytes(SCRIPT)
    heavy = json.dumps({"messages": [{"role": "user", "content": "api_key = " * (1 << 20)}]})
    order: list[str] = []

    async def go() -> None:
        model = ModelSettings(provider="scripted", model="careful.yaml")
        async with (
            Gateway(ENVIRON, tmp_path) as gateway,
            gateway.open_proxy("mine", model, Limits()) as mine,
            gateway.open_proxy("other", model, Limits()) as other,
            client(mine, caged=True) as hostile,
            client(other, caged=True) as http,
            anyio.create_task_group() as group,
        ):

            async def send() -> None:
                await hostile.post("/v1/messages", content=heavy)
                order.append("hostile")

            group.start_soon(send)
            while not (mine.busy or order):  # noqa: ASYNC110 - the door has no event for it
                await anyio.sleep(0.001)
            assert (await http.get("/v1/models")).status_code == 200
            order.append("other")
        assert len(mine.exchanges) == 1

    anyio.run(go)
    assert order == ["other", "hostile"]
