"""Which family a model is of: judges are kinder to their own."""

from __future__ import annotations

import re

_FAMILIES = {
    "anthropic": r"claude|fable|opus|sonnet|haiku",
    "openai": r"gpt|chatgpt|\bo[1-9]\b|codex|davinci",
    "google": r"gemini|gemma|palm",
    "meta": r"llama",
    "mistral": r"mistral|mixtral|codestral|devstral|magistral|ministral",
    "alibaba": r"qwen|qwq",
    "deepseek": r"deepseek",
    "xai": r"grok",
    "moonshot": r"kimi|moonshot",
    "zhipu": r"\bglm",
    "microsoft": r"\bphi-?\d",
    "huggingface": r"smollm",
}
_FAMILY_PATTERNS = [
    (name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _FAMILIES.items()
]


def find_model_family(model: str) -> str | None:
    """By the model's name; the distilled one is of both, so the first named counts."""
    places = [
        (found.start(), name) for name, known in _FAMILY_PATTERNS if (found := known.search(model))
    ]
    return min(places)[1] if places else None


def is_same_family(judge: str, author: str | None) -> bool | None:
    """None where either is not known."""
    if author is None:
        return None
    if judge == author:
        return True
    judge_family, author_family = find_model_family(judge), find_model_family(author)
    return None if judge_family is None or author_family is None else judge_family == author_family
