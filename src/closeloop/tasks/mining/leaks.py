"""Whether a request gives the answer away."""

from __future__ import annotations

import re
from collections.abc import Iterator

from closeloop.tasks.mining.code import defined, names, sides, used

SHORTEST_LINE = 12
_COMPOUND = re.compile(r".*(?:_|[a-z][A-Z]|\d).*")
_SENTENCE = re.compile(r"((?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[ \n]+(?=[A-Z`\"'])|\n(?=[-*] ))")
_CODE = re.compile(r"[=(){}\[\];.<>]|\w_\w")


def leaked(prompt: str, source: str, tests: str, *, title: bool = False) -> list[str]:
    """What of the fix is in the request: whole lines of code, and names that only the fix brings.

    Names and lines that the tests have too are no answer: they are what is asked for. A title may
    name what is used, though not what is invented.
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
    brought = used(fix.added)
    if title:
        brought = defined(source) | {name for name in brought if name.startswith("_")}
    own = {name for name in brought - old - asked if _COMPOUND.fullmatch(name)}
    return [*found, *sorted(own & names(tuple(prompt.split("\n"))))]


def without_leaks(prompt: str, source: str, tests: str) -> str:
    """The request without the sentences that give the answer away."""
    kept: list[str] = []
    for paragraph in prompt.split("\n\n"):
        sound = ""
        for sentence, gap in _sentences(paragraph):
            title = not kept and not sound
            if not leaked(sentence, source, tests, title=title):
                sound += sentence + gap
        kept.append(sound.strip())
    return "\n\n".join(filter(None, kept))


def _sentences(paragraph: str) -> Iterator[tuple[str, str]]:
    """Each with the space behind it."""
    parts = [*_SENTENCE.split(paragraph), ""]
    yield from zip(parts[::2], parts[1::2], strict=True)


def _plain(text: str) -> str:
    return " ".join(text.split())
