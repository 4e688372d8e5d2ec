from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.providers.structured_reply import ask_json, find_schema_problems, read_json_reply
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest
from patience import takes

SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "number", "minimum": 0, "maximum": 1}},
    "required": ["score"],
    "additionalProperties": False,
}
REQUEST = ModelRequest(messages=(ChatMessage(role="user", text="Judge."),), schema=SCHEMA)


class Saying:
    """A model that gives these replies."""

    name = "saying"

    def __init__(self, *replies: str | ModelReply) -> None:
        self.replies = list(replies)
        self.asked: list[ModelRequest] = []

    async def reply(self, request: ModelRequest) -> ModelReply:
        self.asked.append(request)
        reply = self.replies[len(self.asked) - 1]
        return ModelReply(text=reply) if isinstance(reply, str) else reply


def ask(model: Saying) -> Any:
    return anyio.run(ask_json, model, REQUEST).value


@pytest.mark.parametrize(
    "text",
    [
        '{"score": 0.5}',
        ' \n{"score": 0.5}\n',
        '```json\n{"score": 0.5}\n```',
        'Here it is:\n```\n{"score": 0.5}\n```\nDone.',
        'I think {"score": 0.5} is fair.',
        '<think>{"score": 9} or so</think>\n{"score": 0.5}',
        'Looked at {a, b}.\n{"score": 0.5}',
        '{"step": 1}\n{"step": 2}\n{\n  "score": 0.5\n}\n',
    ],
)
def test_json_is_found_in_what_models_wrap_it_in(text: str) -> None:
    assert ask(Saying(text)) == {"score": 0.5}


def test_a_reply_of_empty_lines_is_no_json_at_once() -> None:
    reply = ModelReply(text="```" + "\n" * 200_000)
    assert read_json_reply(reply, SCHEMA)[0] is None
    assert takes(lambda _: read_json_reply(reply, SCHEMA), 2) < 2


def test_one_repair_is_asked_for_with_what_is_wrong() -> None:
    model = Saying('{"score": 2}', '{"score": 1}')
    assert ask(model) == {"score": 1}
    said, asked = model.asked[1].messages[-2:]
    assert (said.role, said.text) == ("assistant", '{"score": 2}')
    assert "$.score should be at most 1" in asked.text
    assert '"maximum":1' in asked.text


def test_two_bad_answers_are_a_machine_fault_not_a_guess() -> None:
    model = Saying("maybe", "", '{"score": 1}')
    with pytest.raises(MachineFailed, match="the reply is not JSON"):
        ask(model)
    assert len(model.asked) == 2


def test_a_refusal_is_not_argued_with() -> None:
    model = Saying(ModelReply(text="I will not.", stop="refused"))
    with pytest.raises(MachineFailed, match="refused to answer: I will not"):
        ask(model)
    assert len(model.asked) == 1


def test_a_cut_off_reply_says_so() -> None:
    _, wrong = read_json_reply(ModelReply(text='{"score": 0.', stop="length"), SCHEMA)
    assert wrong == ["the reply is not JSON, it was cut off"]


@given(st.text() | st.text('{}[]"`\\:,0123 \n<>/think'))
def test_any_text_is_read_without_an_accident(text: str) -> None:
    value, wrong = read_json_reply(ModelReply(text=text), SCHEMA)
    assert wrong or set(value) == {"score"}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ["", "a"], [1, None, []]),
        ({"type": "integer"}, [1, 2.0], [1.5, True, "1"]),
        ({"type": "number"}, [1, 1.5], [False, "1"]),
        ({"type": "boolean"}, [True], [0, 1, "true"]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"enum": [1, "a"]}, [1, 1.0, "a"], [True, "b"]),
        ({"const": 0}, [0], [False, None]),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
            [["a"], ["a", "b"]],
            [[], ["a", "b", "c"], [1], "a"],
        ),
        (
            {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^a"},
            ["ab", "abc"],
            ["a", "abcd", "ba"],
        ),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, [0.5], [0, 1, 2]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["a", None], [1]),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1, 2], [0, 3]),
        (
            {
                "required": ["a"],
                "properties": {"a": {"type": "null"}},
                "additionalProperties": {"type": "integer"},
            },
            [{"a": None}, {"a": None, "b": 1}],
            [{}, {"a": 1}, {"a": None, "b": "c"}],
        ),
        (
            {
                "$ref": "#/$defs/tree",
                "$defs": {
                    "tree": {
                        "type": "object",
                        "properties": {"left": {"$ref": "#/$defs/tree"}},
                        "additionalProperties": False,
                    }
                },
            },
            [{}, {"left": {"left": {}}}],
            [{"left": {"right": {}}}, 1],
        ),
    ],
)
def test_a_schema_tells_good_from_bad(
    schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    assert [find_schema_problems(value, schema) for value in good] == [[]] * len(good)
    assert all(find_schema_problems(value, schema) for value in bad)


def test_a_schema_we_cannot_check_is_refused_rather_than_passed() -> None:
    for schema in (
        {"oneOf": []},
        {"properties": {"a": {"uniqueItems": True}}},
        {"$ref": "#/$defs/x"},
    ):
        with pytest.raises(BadInput):
            find_schema_problems({"a": 1}, schema)


def test_problems_say_where_and_are_not_endless() -> None:
    schema = {"type": "array", "items": {"type": "object", "required": ["a"]}}
    assert find_schema_problems([{"a": 1}, {}], schema) == ["$[1].a is missing"]
    assert len(find_schema_problems([{}] * 100, schema)) == 10


class Issue(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    line: int | None = None


class Verdict(msgspec.Struct, forbid_unknown_fields=True):
    score: float
    issues: list[Issue] = []


@given(
    st.recursive(
        st.none() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3) | st.booleans(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["score", "issues", "title", "line", "x"]), inner)
        ),
        max_leaves=12,
    )
)
def test_we_agree_with_msgspec_on_the_schemas_it_writes(value: Any) -> None:
    schema = msgspec.json.schema(Verdict)
    try:
        msgspec.convert(value, Verdict)
        fits = True
    except msgspec.ValidationError:
        fits = False
    if fits:
        assert find_schema_problems(value, schema) == []
    elif not find_schema_problems(value, schema):
        # JSON knows one kind of number: there 2.0 is an integer.
        assert ".0" in str(value)
