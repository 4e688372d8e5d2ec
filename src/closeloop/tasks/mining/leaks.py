"""Whether a request gives the answer away."""

from __future__ import annotations

import re
from collections.abc import Iterator

from closeloop.tasks.mining.code import Sides, defined, names, sides, uncommented, used

SHORTEST_LINE = 12
ENOUGH = 40
"""Characters that can stand without telling how it was done."""
COMPOUND = re.compile(r".*(?:_|[a-z][A-Z]|\d).*")
_SENTENCE = re.compile(r"((?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[ \n]+(?=[A-Z`\"'])|\n(?=[-*] ))")
_CODE = re.compile(r"[=(){}\[\];.<>]|\w_\w")
_QUOTED = re.compile(r"`([^`\n]{3,200})`")
_MENDED = re.compile(
    r"(?i)(?:to )?(?:fix|solve|mend|address)(?:ed)?(?: this| it| that| the \w+)?(?::|,? by )"
    r"|this (?:fix|patch|commit|change|pr|revision) (?:updates|captures|moves|replaces|rewrites"
    r"|refactors|modifies|extracts) "
    r"|(?:\w+ )?(?:changes|implementation details|how)(?: made)?:"
    r"|(?:this|it|the \w+) (?:is|was|has been) (?:fixed|solved) by "
    r"|the (?:fix|solution) (?:is|was) "
    r"|(?:fix|solution|implementation):|internally,? this change "
)
"""How a sentence begins that tells the way instead of the aim, as do the others behind it."""
_WORKED = re.compile(
    r"(?:Instead,? )?(?:Use|Replace|Switch|Move|Build|Store|Cache|Wrap|Compute|Collect|Capture"
    r"|Copy|Refactor|Extract|Rewrite|Register|Track|Anchor|Compare(?!d? to )|Call|Guard|Scale"
    r"|Introduce)"
    r"(?:e?d|s)? (?!with\b|of\b)"
    r"|The (?:\w+ )?tests? |(?:[-*] )?(?:Also )?(?:[Aa]dd|[Uu]pdat|[Aa]djust|[Ee]xten|[Ee]nhanc)\w*"
    r" (?:[\w-]+ ){0,3}(?:[A-Z]\w*\.)?[Tt]ests?(?:\b|_)"
    r"|I(?:'ve| have)? (?:not |also |only |just )?(?:added(?! the ability| support| an? option)"
    r"|changed|moved|removed|replaced|made|gone|refactored|tested|updated|chose|decided) "
    r"|[^.\n]{0,99}\b(?:full|whole|entire|other|existing) (?:test )?(?:suite|tests)\b[^.\n]{0,40}"
    r" pass"
)
"""In a message's body, what was done to the code; what it is to do is said in other words."""


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
    if not title:
        found += _fragments(prompt, fix, public)
    old = names(fix.removed) | names(fix.kept)
    asked = names((*proof.added, *proof.removed, *proof.kept))
    brought = used(fix.added)
    if title:
        brought = defined(source) | {name for name in brought if name.startswith("_")}
    own = {name for name in brought - old - asked if COMPOUND.fullmatch(name)}
    own -= {name for name in own if name.startswith("__") and name.endswith("__")}
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
        kept.append(sound.strip("\n").rstrip())
    return "\n\n".join(filter(None, kept))


def without_the_way(message: str, tests: str) -> str:
    """What somebody wrote who had done the work, without how it was done."""
    kept: list[str] = []
    for paragraph in message.split("\n\n"):
        sound = ""
        for sentence, gap in _sentences(paragraph):
            enough = len(f"{kept}{sound}") > ENOUGH
            if enough and _MENDED.match(sentence):
                break
            if not (enough and _is_work(sentence, tests)):
                sound += sentence + gap
        kept.append(sound.strip("\n").rstrip())
    return "\n\n".join(filter(None, kept))


def _is_work(sentence: str, tests: str) -> bool:
    """Whether it tells how the code was changed, and nothing that the tests use."""
    return _WORKED.match(sentence) is not None and not any(
        piece in tests for piece in _QUOTED.findall(sentence)
    )


def _fragments(prompt: str, fix: Sides, public: str) -> list[str]:
    """Pieces of code, set as such, that the fix brings and nothing else has."""
    quoted = [piece.strip() for piece in _QUOTED.findall(prompt)]
    if not quoted:
        return []
    new = _plain("\n".join(uncommented(fix.added)))
    old = _plain("\n".join((*fix.removed, *fix.kept)))
    found = [one for one in quoted if one in new and one not in old and one not in public]
    return [piece for piece in found if len(piece) >= 5 and _CODE.search(piece.removesuffix("()"))]


def _sentences(paragraph: str) -> Iterator[tuple[str, str]]:
    """Each with the space behind it."""
    parts = [*_SENTENCE.split(paragraph), ""]
    yield from zip(parts[::2], parts[1::2], strict=True)


def _plain(text: str) -> str:
    return " ".join(text.split())
