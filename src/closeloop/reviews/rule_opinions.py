"""What a model thinks: how a remark reads as a rule, and whether it restates another.

Remarks are data: they stand in fences, the answer is of a schema, and a program looks at it before
it is used.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from closeloop.providers.structured_reply import ask_json
from closeloop.records.chat import ChatMessage, ModelRequest
from closeloop.records.errors import MachineFailed
from closeloop.records.fences import DATA_RULE, fence_texts
from closeloop.records.protocols import Model
from closeloop.records.team_rules import RuleExample, RuleParts, TeamRule
from closeloop.reviews.remark_polarity import compare_remarks
from closeloop.reviews.remark_words import comparable_words
from closeloop.reviews.repeated_remarks import ModelOpinion
from closeloop.reviews.rule_search import build_rule

MAX_SHOWN_CHARS = 2_000
MAX_RULE_CHARS = 300
RULE_PROMPT = (
    "You are given a reviewer's remark on a change to a program. If it asks for something that "
    "holds beyond this one change, put it into one short imperative sentence that the author of "
    "another change can follow, in the remark's language; keep names of code, and keep what is "
    "wanted wanted and what is not wanted unwanted. Otherwise say that it teaches nothing. "
    f"{DATA_RULE}"
)
SAME_PROMPT = (
    "You are given a rule and a reviewer's remark. Say `same` if whoever follows the rule would "
    "have made the remark unnecessary, `opposite` if the remark wants what the rule forbids or "
    f"forbids what it wants, and `other` in every other case. {DATA_RULE}"
)
_TEXT_SCHEMA = {"type": "string"}
RULE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "teaches": {"type": "boolean"},
        "rule": _TEXT_SCHEMA,
        "verb": _TEXT_SCHEMA,
        "object": _TEXT_SCHEMA,
        "scope": _TEXT_SCHEMA,
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


async def reword_as_rule(
    model: Model, example: RuleExample, plain: TeamRule | None
) -> TeamRule | None:
    """The rule in a model's words; as patterns have it, where those turn the remark round."""
    value = await _ask_model(model, RULE_PROMPT, {"remark": example.text}, RULE_SCHEMA)
    if value is None:
        return plain
    text = " ".join(str(value["rule"]).split())
    if not value["teaches"]:
        return None
    if (
        not comparable_words(text)
        or len(text) > MAX_RULE_CHARS
        or compare_remarks(text, example.text) == "opposite"
    ):
        return plain
    parts = RuleParts(
        verb=value["verb"][:MAX_RULE_CHARS] or None,
        object=value["object"][:MAX_RULE_CHARS],
        scope=value["scope"][:MAX_RULE_CHARS] or None,
        polarity=value["polarity"],
        by="model",
    )
    return replace(build_rule(text, example), canonical=parts)


async def ask_opinion(model: Model, rule: str, remark: str) -> ModelOpinion | None:
    """What a model thinks a remark is to a rule; None where it gives no answer."""
    value = await _ask_model(model, SAME_PROMPT, {"rule": rule, "remark": remark}, SAME_SCHEMA)
    answer: ModelOpinion | None = value and value["relation"]
    return answer


async def _ask_model(model: Model, system: str, shown: dict[str, str], schema: Any) -> Any:
    message = ChatMessage(role="user", text=fence_texts(shown, max_chars=MAX_SHOWN_CHARS))
    request = ModelRequest(messages=(message,), system=system, schema=schema, temperature=0.0)
    try:
        return (await ask_json(model, request)).value
    except MachineFailed:
        return None
