"""Scripts of judges: what the scripted model says when it is asked to judge."""

from __future__ import annotations

import msgspec
from judging_models import CODE

from closeloop.records.evaluation import Rubric

ASKED = r"with seal (?P<seal>[0-9a-f]{16}) as"


def says(verdict: str, quote: str, rubric: Rubric = CODE) -> str:
    answer = {"evidence": [quote], "reasoning": f"It shows {quote}.", "verdict": verdict}
    value = {
        "seal": r"\g<seal>",
        "answers": {check.id: answer for check in rubric.checks},
        "summary": "Read.",
    }
    # The scripted model repeats the seal; JSON would have escaped it.
    return msgspec.json.encode(value).decode().replace(r"\\g", r"\g")


def judge_script(*cases: tuple[str, str, str]) -> bytes:
    """Of (found in the prompt, verdict, quote) the first that fits answers."""
    dialogues = [
        {"prompt": found, "turns": [{"when": ASKED, "repeat": True, "say": says(verdict, quote)}]}
        for found, verdict, quote in cases
    ]
    return msgspec.json.encode({"name": "judge", "dialogues": dialogues})
