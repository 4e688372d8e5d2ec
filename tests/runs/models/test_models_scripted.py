from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from closeloop.providers.model_prices import ModelPrices
from closeloop.providers.scripted_model import (
    Script,
    ScriptedModel,
    find_next_turn,
    load_script,
    parse_script,
    reply_from_turn,
)
from closeloop.records.errors import BadInput, Fault, MachineFailed
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec

CAREFUL = """
name: careful
dialogues:
  - prompt: "rounding.*bug"
    turns:
      - say: Let me see the failing test.
        do:
          - run: {command: python -m pytest -q, seconds: 5}
          - read: src/billing.py
      - when: AssertionError
        repeat: true
        do: {run: {command: sed -i s/a/b/ x}}
      - when: passed
        do: {finish: {summary: Done.}}
      - say: I give up.
  - turns:
      - say: Hello.
"""
TOOLS = tuple(
    ToolSpec(name=name, description="", parameters={"type": "object", "required": [first]})
    for name, first in (("run", "command"), ("read", "path"), ("finish", "summary"))
)


def script(text: str) -> Script:
    return parse_script(text.encode(), "careful.yaml")


def play(script: Script, prompt: str, *results: str) -> list[ModelReply]:
    """The replies to a prompt and then to each result in turn."""
    messages = [ChatMessage(role="user", text=prompt)]
    replies = []
    for result in (*results, None):
        request = ModelRequest(messages=tuple(messages), tools=TOOLS)
        reply = reply_from_turn(script, find_next_turn(script, request), request)
        replies.append(reply)
        if result is not None:
            messages.append(ChatMessage(role="assistant", text=reply.text, calls=reply.calls))
            messages += [
                ChatMessage(role="tool", call=call.id, text=result) for call in reply.calls
            ] or [ChatMessage(role="user", text=result)]
    return replies


def test_a_turn_says_and_does_what_is_written() -> None:
    reply = play(script(CAREFUL), "Fix the rounding\nand the bug")[0]
    assert reply.text == "Let me see the failing test."
    assert reply.calls == (
        ModelToolCall(
            id="call-1-0", name="run", arguments={"command": "python -m pytest -q", "seconds": 5}
        ),
        ModelToolCall(id="call-1-1", name="read", arguments={"path": "src/billing.py"}),
    )
    assert (reply.stop, reply.model) == ("tools", "careful")
    assert reply.usage.input_tokens
    assert reply.usage.output_tokens
    assert reply.usage.cost == 0.0


def test_the_next_turn_is_the_first_that_matches_what_came() -> None:
    def told(*results: str) -> list[str]:
        replies = play(script(CAREFUL), "rounding bug", *results)
        return [reply.calls[0].name if reply.calls else reply.text for reply in replies]

    assert told("1 passed") == ["run", "finish"]
    failing = "AssertionError: 1 != 2"
    assert told(failing, failing, failing, "3 passed") == ["run", "run", "run", "run", "finish"]
    assert told("segmentation fault") == ["run", "I give up."]
    assert told(failing, "3 passed", failing) == ["run", "run", "finish", "I give up."]


def test_the_first_dialogue_whose_prompt_is_found_is_used() -> None:
    assert play(script(CAREFUL), "Something else")[0].text == "Hello."


def test_a_turn_may_repeat_what_came() -> None:
    text = r"dialogues: [{turns: [{when: 'id (?P<id>\w+)', say: 'It is \g<id>, not \g<x>.'}]}]"
    (reply,) = play(script(text), "The id a1.")
    assert reply.text == r"It is a1, not \g<x>."


def test_a_script_that_has_no_turn_says_where_and_for_what() -> None:
    with pytest.raises(MachineFailed) as caught:
        play(script(CAREFUL), "Something else", "\n  Go on!\nplease")
    assert str(caught.value) == "careful.yaml: dialogue 2 has no turn for 'Go on!': add one."
    only = script("dialogues: [{prompt: rounding, turns: [{say: Hi}]}]")
    with pytest.raises(MachineFailed, match=r"no dialogue matches 'Hello': add one"):
        play(only, "Hello")
    with pytest.raises(MachineFailed, match=r"dialogue 1 \(rounding\) has no turn"):
        play(only, "rounding", "more")


def test_a_turn_kept_as_several_messages_counts_once() -> None:
    text = script("dialogues: [{turns: [{say: one}, {say: two}, {say: three}]}]")
    messages = (
        ChatMessage(role="user", text="Go"),
        ChatMessage(role="assistant", text="on"),
        ChatMessage(role="assistant", text="e"),
        ChatMessage(role="user", text="Go on"),
    )
    assert find_next_turn(text, ModelRequest(messages=messages)).say == "two"


def test_a_bare_text_needs_a_tool_that_takes_one() -> None:
    text = script("dialogues: [{turns: [{do: {raed: a.py}}]}]")
    with pytest.raises(BadInput, match="Did you mean 'read'"):
        play(text, "Go")
    turn = find_next_turn(text, ModelRequest(messages=()))
    nothing = ToolSpec(name="raed", description="", parameters={})
    with pytest.raises(BadInput, match="does not take text"):
        reply_from_turn(text, turn, ModelRequest(messages=(), tools=(nothing,)))


def test_a_call_with_named_arguments_is_made_even_to_a_tool_that_is_not_there() -> None:
    text = script("dialogues: [{turns: [{do: {dance: {steps: [1, {a: null}]}}}]}]")
    assert play(text, "Go")[0].calls[0].arguments == {"steps": [1, {"a": None}]}


def test_delays_and_prices_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text("dialogues: [{turns: [{say: Hi, delay: 0.05}]}]")
    model = ScriptedModel(load_script(path), ModelPrices(input=1e6, output=1e6))
    request = ModelRequest(messages=(ChatMessage(role="user", text="Hello"),))
    began = time.monotonic()
    reply = anyio.run(model.reply, request)
    assert time.monotonic() - began >= 0.05
    assert model.name == "slow"
    assert (reply.usage.cost, reply.usage.cost_from) == (3.0, "prices")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: a script should be a map"),
        ("- a", ":1: a script should be a map"),
        ("dialoges: []", ":1: no key 'dialoges' in a script. Did you mean 'dialogues'?"),
        ("dialogues: []", ":1: `dialogues` should be a list with at least one item"),
        ("name: [a]\ndialogues: [{turns: [{say: a}]}]", "`name` should be text"),
        ("dialogues:\n  - turn: []", ":2: no key 'turn' in dialogue 1. Did you mean 'turns'?"),
        ("dialogues:\n  - turns:\n    - sya: a", ":3: no key 'sya' in a turn. Did you mean 'say'?"),
        (
            "dialogues:\n  - turns:\n    - say: a\n    - when: '('\n      say: b",
            ":4: `when` is not",
        ),
        ("dialogues:\n  - prompt: '['\n    turns: [{say: a}]", ":2: `prompt` is not a regular"),
        ("dialogues: [{turns: [{when: a}]}]", "should `say` or `do` something"),
        ("dialogues: [{turns: [{say: 1}]}]", "`say` should be text: put it in quotes"),
        ("dialogues: [{turns: [{say: yes}]}]", "`say` should be text: put it in quotes"),
        ("dialogues: [{turns: [{say: a, delay: soon}]}]", "`delay` should be a number"),
        ("dialogues: [{turns: [{say: a, delay: -1}]}]", "`delay` should be a number"),
        ("dialogues: [{turns: [{say: a, delay: .nan}]}]", "`delay` should be a number"),
        ("dialogues: [{turns: [{say: a, repeat: 1}]}]", "`repeat` should be true or false"),
        ("dialogues: [{turns: [{say: a, repeat: true}, {say: b}]}]", "give it a `when`"),
        ("dialogues: [{turns: [{do: run}]}]", "`do` should be a map"),
        ("dialogues: [{turns: [{do: [run]}]}]", "`do` should be a map"),
        ("dialogues: [{turns: [{do: {run: 5}}]}]", "put 5 in quotes"),
        ("dialogues: [{turns: [{do: {run: {seconds: .inf}}}]}]", "put 'inf' in quotes"),
        ("dialogues: [{turns: [{do: {run: {command: 2024-01-01}}}]}]", "'2024-01-01' in quotes"),
        (
            "dialogues:\n  - turns:\n    - do:\n        read: a\n        read: b",
            ":5: 'read' occurs twice: make it a list",
        ),
        ("dialogues: [{turns: [{say: a, no: b}]}]", "the key False is not text: quote it"),
        ("dialogues: [{turns: [{do: {run: {yes: a}}}]}]", "the key True is not text"),
        ("dialogues: [\n", ":2: "),
        ("a: &a [*a]", ":1: "),
        ("a: !!python/object:os.system {}", ":1: "),
        ("\x00", "not a YAML file"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_the_nearest_key(text: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        script(text)
    assert str(caught.value).startswith("careful.yaml:")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_script_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    for name in ("none.yaml", "latin.yaml", "."):
        with pytest.raises(BadInput):
            load_script(tmp_path / name)


def test_a_turn_is_found_fast_enough_to_measure_other_things() -> None:
    text = script(CAREFUL)
    messages = [ChatMessage(role="user", text="rounding bug")]
    for _ in range(5):
        messages.append(ChatMessage(role="assistant", text="x"))
        messages.append(ChatMessage(role="tool", text="AssertionError: 1 != 2"))
    request = ModelRequest(messages=tuple(messages), tools=TOOLS)
    best = 1.0
    for _ in range(200):
        began = time.perf_counter()
        reply_from_turn(text, find_next_turn(text, request), request)
        best = min(best, time.perf_counter() - began)
    assert best < 100e-6


def test_every_error_of_a_script_is_a_fault() -> None:
    for text in ("dialogues: [{turns: [{do: {}}]}]", "? [a]\n: b", "dialogues: {a: b}"):
        with pytest.raises(Fault):
            script(text)
