"""What a model thinks: how a remark reads as a rule, and whether it restates another.

Remarks are data: they stand in fences, the answer is of a schema, and a program looks at it before
it is used.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from closeloop.model.chat import ChatMessage, ModelRequest
from closeloop.model.errors import MachineFailed
from closeloop.model.fences import DATA_RULE, fence_texts
from closeloop.model.memory import Canonical, Example, LearnedRule
from closeloop.model.protocols import Model
from closeloop.reviews.polarity import relation
from closeloop.reviews.repeats import Opinion
from closeloop.reviews.rules import written
from closeloop.reviews.words import same_words
from closeloop.runs.models.structured import ask_json

SHOWN = 2_000
LONGEST = 300
RULE = (
    "You are given a reviewer's remark on a change to a program. If it asks for something that "
    "holds beyond this one change, put it into one short imperative sentence that the author of "
    "another change can follow, in the remark's language; keep names of code, and keep what is "
    "wanted wanted and what is not wanted unwanted. Otherwise say that it teaches nothing. "
    f"{DATA_RULE}"
)
SAME = (
    "You are given a rule and a reviewer's remark. Say `same` if whoever follows the rule would "
    "have made the remark unnecessary, `opposite` if the remark wants what the rule forbids or "
    f"forbids what it wants, and `other` in every other case. {DATA_RULE}"
)
_TEXT = {"type": "string"}
RULE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "teaches": {"type": "boolean"},
        "rule": _TEXT,
        "verb": _TEXT,
        "object": _TEXT,
        "scope": _TEXT,
        "polarity": {"type": "string", "enum": ["do", "avoid"]},
    },
    "required": ["teaches", "rule", "verb", "object", "scope", "polarity"],
    "additionalProperties": False,
}
SAME_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"relation": {"type": "string", "enum": ["same", "opposite", "other"]}},
    "required": ["relation"],
    "additionalProperties": False,
}


async def as_rule(model: Model, example: Example, plain: LearnedRule | None) -> LearnedRule | None:
    """The rule in a model's words; as patterns have it, where those turn the remark round."""
    value = await _asked(model, RULE, {"remark": example.text}, RULE_SCHEMA)
    if value is None:
        return plain
    text = " ".join(str(value["rule"]).split())
    if not value["teaches"]:
        return None
    if not same_words(text) or len(text) > LONGEST or relation(text, example.text) == "opposite":
        return plain
    parts = Canonical(
        verb=value["verb"][:LONGEST] or None,
        object=value["object"][:LONGEST],
        scope=value["scope"][:LONGEST] or None,
        polarity=value["polarity"],
        by="model",
    )
    return replace(written(text, example), canonical=parts)


async def opinion(model: Model, rule: str, remark: str) -> Opinion | None:
    """What a model thinks a remark is to a rule; None where it gives no answer."""
    value = await _asked(model, SAME, {"rule": rule, "remark": remark}, SAME_SCHEMA)
    found: Opinion | None = value and value["relation"]
    return found


async def _asked(model: Model, system: str, shown: dict[str, str], schema: Any) -> Any:
    message = ChatMessage(role="user", text=fence_texts(shown, max_chars=SHOWN))
    request = ModelRequest(messages=(message,), system=system, schema=schema, temperature=0.0)
    try:
        return (await ask_json(model, request)).value
    except MachineFailed:
        return None
