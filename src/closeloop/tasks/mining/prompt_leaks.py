"""Whether a request gives the answer away."""

from __future__ import annotations

import re
from collections.abc import Iterator

from closeloop.tasks.mining.patch_words import (
    PatchLines,
    find_defined_names,
    find_identifiers,
    find_used_names,
    split_patch_lines,
    strip_comments,
)

MIN_LINE_CHARS = 12
MIN_KEPT_CHARS = 40
"""Characters that can stand without telling how it was done."""
COMPOUND_NAME = re.compile(r".*(?:_|[a-z][A-Z]|\d).*")
_SENTENCE_BREAK = re.compile(r"((?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[ \n]+(?=[A-Z`\"'])|\n(?=[-*] ))")
_CODE_SIGN = re.compile(r"[=(){}\[\];.<>]|\w_\w")
_QUOTED_CODE = re.compile(r"`([^`\n]{3,200})`")
_FIX_INTRO = re.compile(
    r"(?i)(?:to )?(?:fix|solve|mend|address)(?:ed)?(?: this| it| that| the \w+)?(?::|,? by )"
    r"|this (?:fix|patch|commit|change|pr|revision) (?:updates|captures|moves|replaces|rewrites"
    r"|refactors|modifies|extracts) "
    r"|(?:\w+ )?(?:changes|implementation details|how)(?: made)?:"
    r"|(?:this|it|the \w+) (?:is|was|has been) (?:fixed|solved) by "
    r"|the (?:fix|solution) (?:is|was) "
    r"|(?:fix|solution|implementation):|internally,? this change "
)
"""How a sentence begins that tells the way instead of the aim, as do the others behind it."""
_WORK_REPORT = re.compile(
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


def find_leaks(prompt: str, source: str, tests: str, *, title: bool = False) -> list[str]:
    """What of the fix is in the request: whole lines of code, and names that only the fix brings.

    Names and lines that the tests have too are no answer: they are what is asked for. A title may
    name what is used, though not what is invented.
    """
    fix, proof = split_patch_lines(source), split_patch_lines(tests)
    prompt_text = _collapse_spaces(prompt)
    test_text = _collapse_spaces("\n".join((*proof.added, *proof.removed, *proof.kept)))
    leaked_lines = []
    for line in dict.fromkeys(_collapse_spaces(line) for line in fix.added):
        is_code = len(line) >= MIN_LINE_CHARS and _CODE_SIGN.search(line)
        if is_code and line in prompt_text and line not in test_text:
            leaked_lines.append(line)
    if not title:
        leaked_lines += _leaked_fragments(prompt, fix, test_text)
    old = find_identifiers(fix.removed) | find_identifiers(fix.kept)
    test_names = find_identifiers((*proof.added, *proof.removed, *proof.kept))
    new_names = find_used_names(fix.added)
    if title:
        new_names = find_defined_names(source) | {
            name for name in new_names if name.startswith("_")
        }
    own_names = {name for name in new_names - old - test_names if COMPOUND_NAME.fullmatch(name)}
    own_names -= {name for name in own_names if name.startswith("__") and name.endswith("__")}
    return [*leaked_lines, *sorted(own_names & find_identifiers(tuple(prompt.split("\n"))))]


def remove_leaks(prompt: str, source: str, tests: str) -> str:
    """The request without the sentences that give the answer away."""
    kept: list[str] = []
    for paragraph in prompt.split("\n\n"):
        sound = ""
        for sentence, gap in _split_sentences(paragraph):
            title = not kept and not sound
            if not find_leaks(sentence, source, tests, title=title):
                sound += sentence + gap
        kept.append(sound.strip("\n").rstrip())
    return "\n\n".join(filter(None, kept))


def remove_solution(message: str, tests: str) -> str:
    """What somebody wrote who had done the work, without how it was done."""
    kept: list[str] = []
    for paragraph in message.split("\n\n"):
        sound = ""
        for sentence, gap in _split_sentences(paragraph):
            enough = len(f"{kept}{sound}") > MIN_KEPT_CHARS
            if enough and _FIX_INTRO.match(sentence):
                break
            if not (enough and _reports_work(sentence, tests)):
                sound += sentence + gap
        kept.append(sound.strip("\n").rstrip())
    return "\n\n".join(filter(None, kept))


def _reports_work(sentence: str, tests: str) -> bool:
    """Whether it tells how the code was changed, and nothing that the tests use."""
    return _WORK_REPORT.match(sentence) is not None and not any(
        piece in tests for piece in _QUOTED_CODE.findall(sentence)
    )


def _leaked_fragments(prompt: str, fix: PatchLines, public: str) -> list[str]:
    """Pieces of code, set as such, that the fix brings and nothing else has."""
    quoted = [piece.strip() for piece in _QUOTED_CODE.findall(prompt)]
    if not quoted:
        return []
    new = _collapse_spaces("\n".join(strip_comments(fix.added)))
    old = _collapse_spaces("\n".join((*fix.removed, *fix.kept)))
    new_pieces = [one for one in quoted if one in new and one not in old and one not in public]
    return [
        piece
        for piece in new_pieces
        if len(piece) >= 5 and _CODE_SIGN.search(piece.removesuffix("()"))
    ]


def _split_sentences(paragraph: str) -> Iterator[tuple[str, str]]:
    """Each with the space behind it."""
    parts = [*_SENTENCE_BREAK.split(paragraph), ""]
    yield from zip(parts[::2], parts[1::2], strict=True)


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())
