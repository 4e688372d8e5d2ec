"""Whether a request gives the answer away."""

from __future__ import annotations

import re

from closeloop.tasks.mining.code import names, sides

SHORTEST_LINE = 12
_COMPOUND = re.compile(r".*(?:_|[a-z][A-Z]|\d).*")
_CODE = re.compile(r"[=(){}\[\];.<>]|\w_\w")


def leaked(prompt: str, source: str, tests: str) -> list[str]:
    """What of the fix is in the request: whole lines of code, and names that only the fix brings.

    Names and lines that the tests have too are no answer: they are what is asked for.
    """
    fix, proof = sides(source), sides(tests)
    told = _plain(prompt)
    public = _plain("\n".join((*proof.added, *proof.removed, *proof.kept)))
    found = []
    for line in dict.fromkeys(_plain(line) for line in fix.added):
        telling = len(line) >= SHORTEST_LINE and _CODE.search(line)
        if telling and line in told and line not in public:
            found.append(line)
    old = names(fix.removed) | names(fix.kept)
    asked = names((*proof.added, *proof.removed, *proof.kept))
    own = {name for name in names(fix.added) - old - asked if _COMPOUND.fullmatch(name)}
    return [*found, *sorted(own & names(tuple(prompt.split("\n"))))]


def without_leaks(prompt: str, source: str, tests: str) -> str:
    """The request without the sentences that give the answer away."""
    kept = []
    for paragraph in prompt.split("\n\n"):
        sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`\"'])|\n(?=[-*] )", paragraph)
        sound = [sentence for sentence in sentences if not leaked(sentence, source, tests)]
        joint = "\n" if paragraph.lstrip().startswith(("- ", "* ")) else " "
        if sound:
            kept.append(paragraph if len(sound) == len(sentences) else joint.join(sound))
    return "\n\n".join(kept).strip()


def _plain(text: str) -> str:
    return " ".join(text.split())
