"""Keys and other secrets are nowhere but on the way to the provider."""

from __future__ import annotations

import io
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from gateway_client import ENVIRON, FORMATS, KEY, Talk, client, opened, upstream

from closeloop.gateway.exchange_ledger import redact_stream
from closeloop.gateway.passthrough_relay import KeyFilter
from closeloop.providers.model_opening import find_key
from closeloop.providers.provider_streams import read_provider_reply
from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import ModelSettings
from closeloop.records.trace import Exchange
from closeloop.store import open_store

GITHUB = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"


def pieces(text: str, size: int) -> list[str]:
    return [text[place : place + size] for place in range(0, len(text), size)]


def test_a_provider_that_repeats_the_key_tells_it_to_nobody(
    provider: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)

    def echo(handler: Any) -> None:
        said = json.dumps({"headers": provider.headers[-1], "content": []}).encode()
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for place in range(0, len(said), 7):
            part = said[place : place + 7]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            handler.wfile.flush()
        handler.wfile.write(b"0\r\n\r\n")

    def refuse(handler: Any) -> None:
        said = json.dumps({"error": {"message": f"Incorrect key {KEY}"}}).encode()
        handler.send(429 if len(provider.asked) < 8 else 401, said, retry_after="0")

    provider.says(echo, echo, echo, echo, refuse)

    async def go() -> list[Exchange]:
        kept: list[Exchange] = []
        for name in ("anthropic", "openai", "gemini"):
            async with opened(tmp_path, upstream(name, provider.address)) as door:
                async with client(door) as http:
                    for speaks in (name, "responses"):
                        talk = Talk(speaks)
                        talk.user("Hello")
                        response = await talk.ask(http)
                        assert KEY not in response.text + str(response.headers)
                kept += door.exchanges
        return kept

    found = enumerate(anyio.run(go), 1)
    kept = [msgspec.structs.replace(one, number=number) for number, one in found]
    assert KEY in str(provider.headers)
    assert len(kept) == 6
    logging.getLogger().removeHandler(handler)
    assert KEY not in caplog.text + stream.getvalue()
    assert KEY.encode() not in msgspec.json.encode([msgspec.to_builtins(one) for one in kept])
    store = tmp_path / "store.db"
    with open_store(str(store)) as opened_store:
        attempt = Attempt(id="a1", origin="experiment", exit="finished")
        opened_store.save_attempt(AttemptResult(attempt=attempt, exchanges=kept))
        again = list(opened_store.load_exchanges("a1"))
    assert again == kept
    for one in again:
        assert KEY.encode() not in one.request + one.response + str(one.cause).encode()
    assert KEY.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("store.db*"))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_key_is_found_however_it_is_cut(size: int) -> None:
    said = f"{KEY[:5]} is not it, {KEY}{KEY} and {KEY[:-1]}, {KEY[:9]}".encode()
    guard = KeyFilter(KEY)
    parts = [said[place : place + size] for place in range(0, len(said), size)]
    passed = b"".join([*map(guard.filter_chunk, parts), guard.flush_rest()])
    assert passed == said.replace(KEY.encode(), "…".encode())


@pytest.mark.parametrize("key", [None, "", "x", "any", "ollama"])
def test_a_word_that_is_no_secret_is_not_taken_out(key: str | None) -> None:
    guard = KeyFilter(key)
    said = b"ollama can do any of x"
    assert guard.filter_chunk(said) + guard.flush_rest() == said


@pytest.mark.parametrize("speaks", FORMATS)
def test_secrets_in_requests_and_answers_are_not_kept(speaks: str, tmp_path: Path) -> None:
    async def go() -> None:
        (tmp_path / "leaky.yaml").write_text(
            f"dialogues: [{{turns: [{{say: 'export GITHUB_TOKEN={GITHUB}', repeat: true}}]}}]"
        )
        settings = ModelSettings(provider="scripted", model="leaky.yaml")
        async with opened(tmp_path, settings) as door, client(door) as http:
            for stream in (False, True):
                talk = Talk(speaks, stream=stream)
                talk.user(f"My token is {GITHUB}, use it.")
                response = await talk.ask(http)
                assert GITHUB in response.text
        for one in door.exchanges:
            assert GITHUB.encode() not in one.request + one.response
            assert b"[redacted: github-token]" in one.request
            assert b"[redacted: " in one.response
            assert read_provider_reply(one.response).complete
            json.loads(one.request)

    anyio.run(go)


def events(speaks: str, parts: list[str]) -> bytes:
    def event(data: Any) -> bytes:
        return b"data: " + json.dumps(data).encode() + b"\n\n"

    match speaks:
        case "anthropic":
            start = {"type": "message_start", "message": {"role": "assistant", "content": []}}
            block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}
            deltas = [
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "text_delta", "text": part},
                }
                for part in parts
            ]
            return b"".join(map(event, [start, block, *deltas, {"type": "message_stop"}]))
        case "openai":
            chunks = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in parts]
            return b"".join(map(event, chunks)) + b"data: [DONE]\n\n"
        case "gemini":
            contents = [{"content": {"parts": [{"text": part}]}} for part in parts]
            return b"".join(event({"candidates": [content]}) for content in contents)
    deltas = [{"type": "response.output_text.delta", "delta": part} for part in parts]
    item = {"type": "message", "content": [{"type": "output_text", "text": "".join(parts)}]}
    done = {"type": "response.completed", "response": {"output": [item]}}
    return b"".join(map(event, [*deltas, done]))


@pytest.mark.parametrize("size", [3, 11])
@pytest.mark.parametrize("speaks", FORMATS)
def test_a_secret_that_comes_in_parts_is_not_kept(speaks: str, size: int) -> None:
    text = f"Two: {GITHUB} and {GITHUB[::-1]} and {GITHUB.replace('A', 'Z')}, é, done."
    stream = events(speaks, pieces(text, size))
    clean = redact_stream(stream)
    told = json.dumps(read_provider_reply(clean).answer, ensure_ascii=False)
    assert GITHUB not in told
    assert told.count("[redacted: github-token]") == 2
    if speaks != "responses":
        assert GITHUB[::-1] in told
        assert "é, done." in told
    left = clean.decode().replace('"', "")
    assert all(part not in left for part in pieces(GITHUB, 20))


def test_a_stream_without_secrets_is_kept_byte_for_byte() -> None:
    for speaks in FORMATS:
        stream = events(speaks, pieces("Nothing to see here, é.", 2)).replace(b"\n\n", b"\r\n\r\n")
        assert redact_stream(stream) == stream


# Where keys lie


def settings(**more: Any) -> ModelSettings:
    return ModelSettings(provider="openai", model="m", **more)


def test_a_key_comes_from_the_keyring_where_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = types.ModuleType("keyring")
    ring.get_password = lambda service, user: {("a/b", "me"): f" {KEY}\n"}.get((service, user))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", ring)
    found = find_key("x", settings(key_keyring="a/b/me"), "USUAL", ENVIRON, tmp_path)
    assert (found.key, found.source_name) == (KEY, "the keyring's a/b/me")
    assert find_key("x", settings(key_keyring="a/you"), "USUAL", {}, tmp_path).key is None
    with pytest.raises(BadInput, match="'service/user'"):
        find_key("x", settings(key_keyring="me"), "USUAL", {}, tmp_path)

    def locked(service: str, user: str) -> str:
        raise RuntimeError(KEY)

    ring.get_password = locked  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match=r"cannot be read \(RuntimeError\)") as caught:
        find_key("x", settings(key_keyring="a/you"), "USUAL", {}, tmp_path)
    assert KEY not in str(caught.value)


def test_without_the_keyrings_package_one_is_told_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(BadInput, match="install the package keyring"):
        find_key("x", settings(key_keyring="a/me"), "USUAL", {}, tmp_path)
