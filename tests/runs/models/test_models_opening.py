from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from closeloop.providers import digest_model, find_model_settings, open_model
from closeloop.providers.model_opening import OpenModel
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest

KEY = "sk-very-secret-0123456789"
HELLO = ModelRequest(messages=(ChatMessage(role="user", text="Hello"),))
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
REPLY = {
    "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
}


def opened(settings: ModelSettings, folder: Path, **environ: str) -> OpenModel:
    return open_model("mine", settings, Limits(), environ=environ, folder=folder)


def ask(model: OpenModel, *requests: ModelRequest) -> list[ModelReply]:
    async def go() -> list[ModelReply]:
        try:
            return [await model.reply(request) for request in requests]
        finally:
            await model.close()

    return anyio.run(go)


def test_a_name_is_one_of_the_settings_a_provider_or_a_script() -> None:
    mine = ModelSettings(provider="openai", model="gpt-5", base_url="http://localhost:1")
    assert find_model_settings("mine", {"mine": mine}) == mine
    assert find_model_settings("openai/gpt-5", {}).provider == "openai"
    named = find_model_settings("anthropic/claude-opus-5-5", {})
    assert (named.provider, named.model) == ("anthropic", "claude-opus-5-5")
    assert find_model_settings("scripted:a/b.yaml", {}).model == "a/b.yaml"


@pytest.mark.parametrize("name", ["mien", "openai/", "scripted:", "gpt-5", "", "/", "a/b"])
def test_an_unknown_name_gets_its_nearest(name: str) -> None:
    mine = ModelSettings(provider="openai", model="gpt-5")
    with pytest.raises(BadInput, match="openai/NAME") as caught:
        find_model_settings(name, {"mine": mine})
    assert ("Did you mean 'mine'?" in str(caught.value)) == (name == "mien")


def test_a_mistyped_provider_gets_its_nearest() -> None:
    with pytest.raises(BadInput, match="Did you mean 'openai'"):
        find_model_settings("opneai/gpt-5", {})


def test_a_models_identity_is_its_script_or_its_address(tmp_path: Path) -> None:
    script = tmp_path / "a.yaml"
    script.write_text("dialogues: [{turns: [{say: a}]}]")
    settings = ModelSettings(provider="scripted", model="a.yaml")
    first = digest_model(settings, tmp_path)
    (tmp_path / "b.yaml").write_bytes(script.read_bytes())
    assert digest_model(ModelSettings(provider="scripted", model="b.yaml"), tmp_path) == first
    script.write_text("dialogues: [{turns: [{say: b}]}]")
    assert digest_model(settings, tmp_path) != first
    one = ModelSettings(provider="openai", model="gpt-5", key_env="A")
    other = ModelSettings(provider="openai", model="gpt-5", base_url="http://localhost:1")
    assert digest_model(one, tmp_path) != digest_model(other, tmp_path)
    cheaper = ModelSettings(provider="openai", model="gpt-5", key_env="B", input_price=1.0)
    assert digest_model(one, tmp_path) == digest_model(cheaper, tmp_path)
    with pytest.raises(BadInput, match="cannot be read"):
        digest_model(ModelSettings(provider="scripted", model="none.yaml"), tmp_path)


def test_a_missing_key_names_the_variable(tmp_path: Path) -> None:
    for provider, variable in (("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")):
        settings = ModelSettings(provider=provider, model="m")  # type: ignore[arg-type]
        with pytest.raises(BadInput, match=f"set {variable}"):
            opened(settings, tmp_path, **{variable: " "})
    with pytest.raises(BadInput, match="set MY_KEY"):
        opened(ModelSettings(provider="openai", model="m", key_env="MY_KEY"), tmp_path)


@pytest.mark.parametrize("bad", [f"{KEY}\nx", f"{KEY} {KEY}", f"{KEY}é", f"{KEY}\x00"])
def test_what_cannot_be_a_key_is_refused_without_being_quoted(bad: str, tmp_path: Path) -> None:
    settings = ModelSettings(provider="openai", model="m")
    with pytest.raises(BadInput, match="OPENAI_API_KEY") as caught:
        opened(settings, tmp_path, OPENAI_API_KEY=bad)
    assert KEY not in str(caught.value)


def test_a_key_may_lie_in_a_file(tmp_path: Path, provider: Any) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    provider.says(REPLY)
    settings = ModelSettings(
        provider="openai", model="m", base_url=provider.address, key_file="key"
    )
    model = opened(settings, tmp_path)
    assert KEY not in repr(model) + repr(vars(model))
    ask(model, HELLO)
    assert provider.headers[0]["authorization"] == f"Bearer {KEY}"
    missing = ModelSettings(provider="openai", model="m", key_file="none")
    with pytest.raises(BadInput, match="none"):
        opened(missing, tmp_path)


@pytest.mark.parametrize(
    "url",
    ["localhost:1", "ftp://a", "http://", "https://[", "http://a:99999", f"https://u:{KEY}@a"],
)
def test_a_bad_address_is_refused_without_quoting_secrets(url: str, tmp_path: Path) -> None:
    settings = ModelSettings(provider="openai", model="m", base_url=url)
    with pytest.raises(BadInput, match="base_url of 'mine'") as caught:
        opened(settings, tmp_path, OPENAI_API_KEY="k")
    assert KEY not in str(caught.value)


def test_a_money_limit_without_a_price_is_refused_at_once(tmp_path: Path) -> None:
    limits = Limits(money=1.0)
    environ = {"OPENAI_API_KEY": "k"}
    settings = ModelSettings(provider="openai", model="gpt-unheard-of")
    with pytest.raises(BadInput, match="input_price"):
        open_model("mine", settings, limits, environ=environ, folder=tmp_path)


def test_each_format_goes_to_its_own_path_and_keeps_the_addresss_own(
    tmp_path: Path, provider: Any
) -> None:
    message = {"content": [{"type": "text", "text": "Hi"}]}
    for kind, base, path, reply in (
        ("openai", "/v1", "/v1/chat/completions", REPLY),
        ("openai", "/gate/v1/?a=b", "/gate/v1/chat/completions?a=b", REPLY),
        ("anthropic", "", "/v1/messages", message),
        ("anthropic", "/v1", "/v1/messages", message),
    ):
        provider.says(reply)
        settings = ModelSettings(provider=kind, model="m", base_url=provider.address + base)  # type: ignore[arg-type]
        assert ask(opened(settings, tmp_path), HELLO)[0].text == "Hi"
        assert provider.paths[-1] == path
    assert provider.headers[-1]["anthropic-version"]


def test_a_reply_is_priced_by_the_settings(tmp_path: Path, provider: Any) -> None:
    provider.says(REPLY)
    settings = ModelSettings(
        provider="openai", model="m", base_url=provider.address, input_price=2.0, output_price=10.0
    )
    usage = ask(opened(settings, tmp_path), HELLO)[0].usage
    assert (usage.cost, usage.cost_from) == (0.003, "prices")


def test_calls_without_an_id_get_one_that_no_other_has(tmp_path: Path, provider: Any) -> None:
    call = {"function": {"name": "run", "arguments": "{}"}}
    provider.says({"choices": [{"message": {"tool_calls": [call, call]}}]})
    settings = ModelSettings(provider="openai", model="m", base_url=provider.address)
    later = ModelRequest(messages=HELLO.messages * 3)
    replies = ask(opened(settings, tmp_path), HELLO, later)
    assert len({call.id for reply in replies for call in reply.calls}) == 4


def test_a_server_is_asked_in_the_way_it_was_found_to_accept(tmp_path: Path, provider: Any) -> None:
    def picky(handler: Any) -> None:
        asked = provider.asked[-1]
        for name in ("response_format", "tool_choice", "max_tokens", "temperature"):
            if name in asked:
                instead = " use max_completion_tokens" if name == "max_tokens" else ""
                hint = f"{name} is not supported{instead}"
                return handler.send(400, b'{"error": {"message": "%s"}}' % hint.encode())
        return handler.send(200, b'{"choices": [{"message": {"content": "{\\"n\\": 1}"}}]}')

    provider.says(picky)
    settings = ModelSettings(provider="openai", model="m", base_url=provider.address)
    request = ModelRequest(messages=HELLO.messages, schema=SCHEMA, max_tokens=9, temperature=0.1)
    replies = ask(opened(settings, tmp_path), request, request)
    assert [reply.text for reply in replies] == ['{"n": 1}'] * 2
    first, *_, last = provider.asked
    assert "response_format" in first
    assert last["max_completion_tokens"] == 9
    assert "temperature" not in last
    assert len(provider.asked) == 7, "five refusals, then one request for each reply"


def test_a_server_that_refuses_everything_is_quoted_once_and_left(
    tmp_path: Path, provider: Any
) -> None:
    provider.says((400, {"error": "max_tokens and max_completion_tokens are both wrong"}))
    settings = ModelSettings(provider="openai", model="m", base_url=provider.address)
    request = ModelRequest(messages=HELLO.messages, max_tokens=9)
    with pytest.raises(MachineFailed, match="both wrong"):
        ask(opened(settings, tmp_path), request)
    assert len(provider.asked) == 2


def test_a_forced_tools_arguments_are_the_reply(tmp_path: Path, provider: Any) -> None:
    call = {"id": "c", "function": {"name": "answer", "arguments": '{"n": 2}'}}
    provider.says(
        (400, {"error": "no response_format"}),
        {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]},
    )
    settings = ModelSettings(provider="openai", model="m", base_url=provider.address)
    request = ModelRequest(messages=HELLO.messages, schema=SCHEMA)
    reply = ask(opened(settings, tmp_path), request)[0]
    assert reply == ModelReply(text='{"n":2}', stop="end")


def test_a_wrong_shape_names_the_server(tmp_path: Path, provider: Any) -> None:
    provider.says({"hello": "world"})
    settings = ModelSettings(provider="openai", model="m", base_url=provider.address)
    with pytest.raises(MachineFailed, match=r"127\.0\.0\.1:\d+ sent an invalid reply.*base_url"):
        ask(opened(settings, tmp_path), HELLO)


def test_a_script_needs_no_http_library(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("dialogues: [{turns: [{say: Hi}]}]")
    program = """
import sys, anyio
from pathlib import Path
from closeloop.records.trace import ChatMessage, ModelRequest
from closeloop.records.task import Limits
from closeloop.gateway import open_local_proxy
from closeloop.providers import find_model_settings
settings = find_model_settings("scripted:a.yaml", {})
request = ModelRequest(messages=(ChatMessage(role="user", text="?"),))
async def go():
    async with open_local_proxy(settings, Limits(), Path(sys.argv[1])) as door:
        return await door.reply(request)
assert anyio.run(go).text == "Hi"
heavy = {"httpx", "starlette", "uvicorn"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
