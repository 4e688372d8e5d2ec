"""Build requests: the words of whoever asked for the work, without the answer."""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from textwrap import dedent

from closeloop.records.record import Record
from closeloop.text.code_patterns import parse_python
from closeloop.text.wording import compile_lazily

# String literals in code, without a parser: of most languages, joined, with their gaps.


MIN_TEXT_CHARS = 8
MIN_EDGE_CHARS = 4
"""Minimum characters at each end of a text that begins and ends inside a template."""
_LITERAL = compile_lazily(
    r"(?P<long>\"{3}|'{3})|(?P<prefix>\b[rRbBuUfF]{1,2})?"
    r"(?:\"(?P<double>(?:[^\"\\\n]|\\.){0,1000})\"|'(?P<single>(?:[^'\\\n]|\\.){0,1000})'"
    r"|`(?P<back>[^`\n]{0,1000})`)"
)
"""Literals on one line: of one that spans lines, a patch may have only the end."""
_JOINT = compile_lazily(r"\s*(?:\\\n\s*)?(?:(?:\+|\.\.)\s*)?", re.DOTALL)
_PLACEHOLDER = compile_lazily(
    r"\$\{[^{}]{0,200}\}|(?<!\{)\{[^{}\s][^{}]{0,200}\}|\{\}"
    r"|%(?:\(\w{1,60}\))?[-+# 0-9.*]{0,8}[sdrifgxXeEcqvwtTpo](?![A-Za-z])"
)
_KINDS = ("double", "single", "back")
_ESCAPE = compile_lazily(r"\\(.)", re.DOTALL)
_ESCAPED_SIGNS = {"n": "\n", "t": "\t"}


def iter_literals(text: str) -> Iterator[str]:
    """Yield the string literals of code; adjacent or concatenated ones as one."""
    joined, end = "", -1
    for match in _LITERAL.finditer(text):
        if match["long"]:
            continue
        body = next((match[name] for name in _KINDS if match[name] is not None), "")
        if "r" not in (match["prefix"] or "").lower() and match["back"] is None:
            body = _ESCAPE.sub(lambda sign: _ESCAPED_SIGNS.get(sign[1], sign[1]), body)
        if end >= 0 and _JOINT.fullmatch(text, end, match.start()):
            joined += body
        else:
            if joined:
                yield joined
            joined = body
        end = match.end()
    if joined:
        yield joined


def remove_strings(text: str) -> str:
    """Return code without its strings: their content is no name."""
    return _LITERAL.sub('""', text)


def split_fixed_parts(text: str) -> list[str]:
    """Return the parts of a text around the gaps that a program fills."""
    return [part.replace("{{", "{").replace("}}", "}") for part in _PLACEHOLDER.split(text)]


def find_message(test_text: str, template: str) -> str | None:
    """Return the part of a test's text that a program's template produces; None if none."""
    if is_message(test_text) and test_text in template:
        return test_text
    parts = split_fixed_parts(template)
    fixed = max(parts, key=len)
    if is_message(fixed) or (len("".join(parts)) >= MIN_TEXT_CHARS and " " in template.strip()):
        pattern = r"[^\n]{0,200}?".join(map(re.escape, parts))
        ending = r"[^\n]{0,200}" if len(parts) > 1 and not parts[-1] else ""
        if match := re.search(f"{pattern}{ending}(?!\\w)", test_text):
            return match[0].strip()
    return test_text if _spans_gap(test_text, parts) else None


def is_message(text: str) -> bool:
    """Return whether a text looks like a message: it has a space, and some length."""
    return len(text.strip()) >= MIN_TEXT_CHARS and " " in text.strip()


def _spans_gap(test_text: str, parts: list[str]) -> bool:
    """Return whether a text comes from the middle of a template, with gaps filled."""
    for first, part in enumerate(parts[:-1]):
        suffixes = (part[start:] for start in range(len(part)))
        head = next((suffix for suffix in suffixes if test_text.startswith(suffix)), "")
        position = len(head)
        for later in parts[first + 1 :] if position >= MIN_EDGE_CHARS else ():
            prefixes = (later[:end] for end in range(len(later), 0, -1))
            tail = next((prefix for prefix in prefixes if test_text.endswith(prefix, position)), "")
            if len(tail) >= MIN_EDGE_CHARS and len(head) + len(tail) >= MIN_TEXT_CHARS:
                return True
            position = test_text.find(later, position) + len(later)
            if position < len(later) + len(head):
                break
    return False


# Whether a request reveals the answer.
#
# Read a patch without a parser: the words, names and texts of its lines.

MAX_LINE_CHARS = 2_000
MAX_TEXTS = 400
MAX_MESSAGES = 24
_IDENTIFIER = compile_lazily(r"[A-Za-z_][A-Za-z0-9_]{2,80}")
_NAME_IN_USE = compile_lazily(
    r"(?:[.@(\[]|\b(?:def|class|import|func|function|fn|type|const|let|var) )"
    r"([A-Za-z_][A-Za-z0-9_]{2,80})\b(?![ ][a-z])|\b([A-Za-z_][A-Za-z0-9_]{2,80})(?=\(|\[| ?=[^=])"
)
_DEFINITION = compile_lazily(
    r"\b(?:def|class|func|function|fn)(?: \([^()]{1,80}\))? ([A-Za-z]\w{2,80})\b"
)
_OWN_NAME = compile_lazily(r"(?<![.\w])([A-Za-z_]\w{2,80})\b|\.([A-Za-z_]\w{2,80})\b(?!\()")
_COMMENT = compile_lazily(r"^\s*(?:#|//|\*|/\*)|\s(?:#|//)\s.*$")
_REMARK = compile_lazily(r"^\s*(?:#(?![\[!]|include|define)|//|/?\*(?:\s|\*|$)).*|\s(?:#|//)\s.*$")


class PatchLines(Record):
    """The lines of a patch, by sign."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def iter_patch_lines(patch: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of all hunks in order, each with its sign."""
    in_hunk = False
    for line in patch.split("\n"):
        if line.startswith(("diff --git ", "GIT binary patch")):
            in_hunk = False
        elif line.startswith("@@ -"):
            in_hunk = True
        elif in_hunk and line[:1] in ("+", "-", " "):
            yield line[0], line[1 : MAX_LINE_CHARS + 1]


@lru_cache(maxsize=8)
def split_patch_lines(patch: str) -> PatchLines:
    """Return the lines of all hunks, by their signs."""
    lines_by_sign: dict[str, list[str]] = {"+": [], "-": [], " ": []}
    for sign, line in iter_patch_lines(patch):
        lines_by_sign[sign].append(line)
    return PatchLines(
        added=tuple(lines_by_sign["+"]),
        removed=tuple(lines_by_sign["-"]),
        kept=tuple(lines_by_sign[" "]),
    )


@lru_cache(maxsize=32)
def find_identifiers(lines: tuple[str, ...]) -> frozenset[str]:
    """Return identifiers of three letters or more, outside comments."""
    return frozenset(name for line in lines for name in _IDENTIFIER.findall(_COMMENT.sub("", line)))


@lru_cache(maxsize=32)
def find_used_names(lines: tuple[str, ...]) -> frozenset[str]:
    """Return names in positions that only code has: called, assigned, imported, after a dot."""
    return frozenset(
        next(filter(None, groups)) for line in lines for groups in _NAME_IN_USE.findall(line)
    )


@lru_cache(maxsize=8)
def strip_comments(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return lines without comments and interpreter examples."""
    example = re.compile(r"\s*(?:>>>|\.\.\.) ")
    previous_lines = ("", *lines)
    code_lines = (
        line
        for previous, line in zip(previous_lines, lines, strict=False)
        if not example.match(f"{previous} ")
    )
    return tuple(_REMARK.sub("", line) for line in code_lines if not example.match(line))


def find_introduced_names(source: str, tests: str) -> frozenset[str]:
    """Return names that both the fix and its tests introduce: what the tests require.

    A name that the fix only calls after a dot belongs to something else. Helpers that the tests
    define for themselves do not count either.
    """
    fix, proof = split_patch_lines(source), split_patch_lines(tests)
    old_names = (
        find_identifiers(fix.removed)
        | find_identifiers(fix.kept)
        | find_identifiers(proof.removed)
        | find_identifiers(proof.kept)
    )
    fix_code, test_code = (
        tuple(remove_strings("\n".join(lines)).split("\n")) for lines in (fix.added, proof.added)
    )
    own_names = {
        defined or assigned for line in fix_code for defined, assigned in _OWN_NAME.findall(line)
    }
    return (
        (find_used_names(fix_code) & find_used_names(test_code) & own_names)
        - old_names
        - frozenset(dir(builtins))
        - (find_defined_names(tests) - find_defined_names(source))
    )


def find_defined_names(patch: str) -> frozenset[str]:
    """Return the names of functions and classes that a patch adds."""
    return frozenset(
        name for line in split_patch_lines(patch).added for name in _DEFINITION.findall(line)
    )


def find_expected_messages(source: str, tests: str) -> tuple[str, ...]:
    """Return texts that the tests expect and the fix introduces: nobody could guess them.

    Also those that the fix composes: by f-strings, `%`, `format`, or from several literals.
    """
    fix, proof = split_patch_lines(source), split_patch_lines(tests)
    old_text = "\n".join((*fix.removed, *fix.kept))
    old_templates = {*iter_literals("\n".join(fix.removed)), *iter_literals("\n".join(fix.kept))}
    new_templates = [
        (text, _list_words(text))
        for text in dict.fromkeys(iter_literals("\n".join(strip_comments(fix.added))))
        if text not in old_templates and " " in text.strip()
    ]
    # Lines without quotes may be part of a multi-line text.
    unquoted = (line.strip() for line in proof.added if not re.search("[\"'`]", line))
    texts = [*iter_literals("\n".join(proof.added)), *unquoted]
    messages: dict[str, None] = {}
    for text in dict.fromkeys(texts[:MAX_TEXTS]):
        words = _list_words(text)
        for template, template_words in new_templates[:MAX_TEXTS]:
            message = find_message(text, template) if words & template_words else None
            if message and message not in old_text:
                messages[message] = None
    whole_messages = sorted(
        message for message in messages if not _is_part_of_other(message, messages)
    )
    return tuple(whole_messages[:MAX_MESSAGES])


def _list_words(text: str) -> set[str]:
    return {*re.findall(r"\w{3,}", text)}


def _is_part_of_other(text: str, others: Iterable[str]) -> bool:
    return any(text != other and text in other for other in others)


# Examples from the tests, for messages that say too little.


MAX_EXAMPLES = 3
MAX_EXAMPLE_LINES = 24
_HEAD_LINES, _TAIL_LINES = 6, 8
"""Lines shown of the beginning and end of a longer test that a change extends."""
_TEST_START = compile_lazily(
    r"(?P<indent>[ \t]*)(?:(?P<python>(?:async )?def )(?P<function>test\w*)\("
    r"|func (?P<go>Test\w+)\(\w+ \*testing\.T\)"
    r"|t\.Run\(\"(?P<subtest>[^\"\n]{1,200})\", func\("
    r"|(?:it|test)(?:\.\w+)?\(\s*(?P<quote>['\"`])(?P<title>[^\n]{1,200}?)(?P=quote)\s*,)"
)
_TABLE_START = compile_lazily(
    r"(\t| {0,4})(?:(?:export )?(?:var|const|let) )?\w+(?:: [^=\n]+)? :?= ?"
    r"(?:[\[{]|(?:\[\]|map\[).*\{)$"
)
"""A list at the top of a file, such as the cases that a test in Go or TypeScript reads."""
_ASSERTION = compile_lazily(
    r"\bassert|\braises\(|\bexpect\(|\bt\.(?:Err|Fatal|Fail)|\b(?:require|should)\b"
)


class ShownTest(Record):
    """A test that a change adds or extends: it shows what the change is for."""

    name: str
    """As its runner names it; empty for rows of a table that tests read."""
    code: str


def find_examples(text: str, added: Collection[int]) -> Iterator[ShownTest]:
    """Yield the tests of a file that have added lines and an assertion, if they can be shown, and
    the added rows of its tables."""
    lines = text.split("\n")
    shown_to = 0
    for number, line in enumerate(lines, 1):
        if table := _TABLE_START.match(line):
            yield from _show_rows(lines, number, len(table[1]), added)
        start = _TEST_START.match(line) if number > shown_to else None
        span = _find_test_span(lines, number, start) if start else range(0)
        new = [one for one in span if one in added and lines[one - 1].strip()]
        if start is None or not new:
            continue
        shown = [lines[one - 1] for one in span]
        if start["python"] and not _is_whole("\n".join(shown)):
            continue
        if len(shown) > MAX_EXAMPLE_LINES and not {*span} <= {*added}:
            head, tail = span[:_HEAD_LINES], span[-_TAIL_LINES:]
            middle = [lines[one - 1] for one in new if head[-1] < one < tail[0]]
            middle += ["…"] if middle else []
            shown = [*shown[:_HEAD_LINES], "…", *middle, *shown[-_TAIL_LINES:]]
        code = dedent("\n".join(shown)).strip()
        if len(shown) <= MAX_EXAMPLE_LINES and _ASSERTION.search(code):
            subtest = (start["subtest"] or "").replace(" ", "_")
            name = start["function"] or start["go"] or subtest or start["title"]
            yield ShownTest(name=name, code=code)
            shown_to = span[-1]


def _show_rows(
    lines: Sequence[str], number: int, indent: int, added: Collection[int]
) -> Iterator[ShownTest]:
    """Yield the first added rows of the table that begins on a line."""
    ends = (one for one in range(number, len(lines)) if _is_left(lines[one], indent))
    # In Go, the type of the rows may come first: `}{` is where they begin.
    end = next((one for one in ends if lines[one].strip() != "}{"), number)
    rows = [lines[one] for one in range(number, end) if one + 1 in added and lines[one].strip()]
    if rows:
        gap = f"{lines[number - 1][:indent]}…"
        shown = (lines[number - 1], gap, *rows[:MAX_EXAMPLE_LINES], gap, lines[end])
        yield ShownTest(name="", code=dedent("\n".join(shown)))


def _find_test_span(lines: Sequence[str], number: int, start: re.Match[str]) -> range:
    """Return the numbers of a test's lines, with Python's decorators; none if it does not end."""
    indent, first = len(start["indent"]), number
    end = next((one for one in range(number, len(lines)) if _is_left(lines[one], indent)), None)
    if not start["python"]:
        closes = end is not None and lines[end].startswith(f"{start['indent']}}}")
        return range(number, end + 2) if end is not None and closes else range(0)
    end = len(lines) if end is None else end
    while end > number and not lines[end - 1].strip():
        end -= 1
    while first > 1 and lines[first - 2].strip() and not _ends_block(lines[first - 2], indent):
        first -= 1
    return range(first, end + 1)


def _is_whole(code: str) -> bool:
    """Return whether Python code has its end: not so if a string has lines further left."""
    try:
        parse_python(dedent(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _is_left(line: str, indent: int) -> bool:
    """Return whether a line is not further in, and not the end of a signature."""
    text = line.lstrip()
    return text != "" and len(line) - len(text) <= indent and not text.startswith(")")


def _ends_block(line: str, indent: int) -> bool:
    """Return whether a line above a function is no part of its decorators."""
    return _is_left(line, indent) and not line.lstrip().startswith(("@", "]", "}"))


MIN_LINE_CHARS = 12
MIN_KEPT_CHARS = 40
"""Minimum characters kept before sentences that describe the solution are removed."""
COMPOUND_NAME = compile_lazily(r".*(?:_|[a-z][A-Z]|[A-Z]{2}[a-z]|\d).*")
_SENTENCE_BREAK = compile_lazily(
    r"((?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[ \n]+(?=[A-Z`\"'])|\n(?=[-*] ))"
)
_CODE_SIGN = compile_lazily(r"[=(){}\[\];.<>]|\w_\w")
_QUOTED_CODE = compile_lazily(r"`([^`\n]{3,200})`")
_FIX_INTRO = compile_lazily(
    r"(?i)(?:to )?(?:fix|solve|mend|address)(?:ed)?(?: this| it| that| the \w+)?(?::|,? by )"
    r"|this (?:fix|patch|commit|change|pr|revision) (?:updates|captures|moves|replaces|rewrites"
    r"|refactors|modifies|extracts) "
    r"|(?:\w+ )?(?:changes|implementation details|how)(?: made)?:"
    r"|(?:this|it|the \w+) (?:is|was|has been) (?:fixed|solved) by "
    r"|the (?:fix|solution) (?:is|was) "
    r"|(?:fix|solution|implementation):|internally,? this change "
)
"""Beginning of a sentence that describes the solution, as do the sentences after it."""
_WORK_REPORT = compile_lazily(
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
"""In a message's body, a report of what was done to the code; a request uses other words."""


def find_leaks(prompt: str, source: str, tests: str, *, title: bool = False) -> list[str]:
    """Return what the request reveals of the fix: whole lines of code, and names only it adds.

    Names and lines that the tests have too are no leak: they are requested. A title may name what
    is used, but not what is new.
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
    """Return the request without the sentences that reveal the answer."""
    kept_paragraphs: list[str] = []
    for paragraph in prompt.split("\n\n"):
        kept_text = ""
        for sentence, gap in _split_sentences(paragraph):
            title = not kept_paragraphs and not kept_text
            if not find_leaks(sentence, source, tests, title=title):
                kept_text += sentence + gap
        kept_paragraphs.append(kept_text.strip("\n").rstrip())
    return "\n\n".join(filter(None, kept_paragraphs))


def remove_solution(message: str, tests: str) -> str:
    """Return a message by whoever did the work, without how it was done."""
    kept_paragraphs: list[str] = []
    for paragraph in message.split("\n\n"):
        kept_text = ""
        for sentence, gap in _split_sentences(paragraph):
            has_enough = len(f"{kept_paragraphs}{kept_text}") > MIN_KEPT_CHARS
            if has_enough and _FIX_INTRO.match(sentence):
                break
            if not (has_enough and _reports_work(sentence, tests)):
                kept_text += sentence + gap
        kept_paragraphs.append(kept_text.strip("\n").rstrip())
    return "\n\n".join(filter(None, kept_paragraphs))


def _reports_work(sentence: str, tests: str) -> bool:
    """Return whether it says how the code was changed, and names nothing that the tests use."""
    return _WORK_REPORT.match(sentence) is not None and not any(
        piece in tests for piece in _QUOTED_CODE.findall(sentence)
    )


def _leaked_fragments(prompt: str, fix: PatchLines, public: str) -> list[str]:
    """Return pieces formatted as code that only the fix contains."""
    quoted = [piece.strip() for piece in _QUOTED_CODE.findall(prompt)]
    if not quoted:
        return []
    new = _collapse_spaces("\n".join(strip_comments(fix.added)))
    old = _collapse_spaces("\n".join((*fix.removed, *fix.kept)))
    new_pieces = [
        piece for piece in quoted if piece in new and piece not in old and piece not in public
    ]
    return [
        piece
        for piece in new_pieces
        if len(piece) >= 5 and _CODE_SIGN.search(piece.removesuffix("()"))
    ]


def _split_sentences(paragraph: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence with the space after it."""
    parts = [*_SENTENCE_BREAK.split(paragraph), ""]
    yield from zip(parts[::2], parts[1::2], strict=True)


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())


# Build requests: the requester's words, without the answer.


MIN_PROMPT_WORDS = 4
"""Minimum words of a request; one fewer if it has a name that the tests use."""
MIN_NAMED_WORDS = 2
"""Minimum words if the names to use, with their places, say the rest."""
MIN_WRAPPED_CHARS = 50
MAX_CODE_SPANS = 6_000
MAX_PROMPT_CHARS = 6_000
DEFAULT_TITLE = "Make the examples below hold."
NAMES_HEADING = "Names to use: "
MESSAGES_HEADING = "Messages, word for word:"
EXAMPLES_HEADING = "Examples of what must hold:"
"""Headings of a request's last parts: what the tests expect."""
TEST_BEHAVIOUR = r" (?:being|are|is|not|never|always|get(?:ting)?) "
"""After *tests*: then tests are the project's subject, as in a test runner."""
_TRAILER = compile_lazily(
    r"(?im)^[ \t]*(?:[a-z]{3,20}(?:-[a-z]{2,20})?-(?:by|with)|change-id|reviewed-on|git-svn-id"
    r"|differential revision|cc|pr-url|refs?|see(?: also)?|bug)\s*:.*$"
)
_NUMBER = (
    r"(?:\b[\w.-]{1,60}/[\w.-]{1,60}|\b[\w-]{1,60})?#\d+\b|\b(?:gh|bpo)-\d+\b|\b(?:issue|pr)-?\d+\b"
)
_MARK = r"(?:[:{](?:issue|pr|ghsa|gh|pull|user|commit)[:}]`[^`]{0,200}`|`#\d{1,9}`_{0,2})"
_COMMIT = (
    r"\b(?:commit\s[0-9a-f]{7,40}|(?<!\d{9}-)(?=[0-9a-f]{0,40}\d)(?=\d{0,40}[a-f])[0-9a-f]{7,40})\b"
    r"(?![.=]\w)"
)
_TRACKED = (
    r"[^\s>)\],`]{1,300}(?:/(?:commits?|issues?|pulls?|pull-?requests?|merge_requests|compare"
    r"|discussions)/|/issue\d|[/=](?=[0-9a-f]{0,40}\d)(?=\d{0,40}[a-f])[0-9a-f]{7,40}\b(?!\.))"
)
_HOSTED = rf"https?://(?:{_TRACKED}|(?:gist\.|www\.)?git(?:hub|lab)\.com/)[^\s>)\]'\"`]{{0,500}}"
"""Addresses about the work itself; others are part of the text."""
_SEE = (
    r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?|see(?: also)?|refs?|references"
    r"|relat(?:ed|ing) to|cf|per|for|from|in|pr|via|issues?|and|follow[- ]?up(?: to)?)\b"
)
_REFERENCE_ASIDE = compile_lazily(
    rf"(?i)\s{{0,9}}\((?:(?:{_NUMBER}|{_MARK}|{_COMMIT}|{_SEE})[ ,;:.&/]{{0,3}}){{1,9}}\)"
)
_EARLIER_CHANGE = compile_lazily(
    r"(?i)\b(by|of|when|since|than|until|before|after|like|with|to|because|as|from|completes|extends"
    rf"|mirrors|continues)\s(?:issue\s)?(?:{_NUMBER}|{_MARK}|{_COMMIT})(?=[,:]? [a-z])"
)
_THIS_CHANGE = compile_lazily(rf"(?i)\b(the|this|that) (?:{_NUMBER}|{_MARK}|{_COMMIT})(?= [a-z])")
_CLOSING_REFERENCE = compile_lazily(
    rf"(?i)[ \t,;:–-]{{0,9}}(?:{_SEE}[ \t:.]{{0,9}}){{0,4}}(?:{_NUMBER}|{_MARK}\.?)"
)
_LINK = compile_lazily(r"\[([^\[\]]{0,200})\]\(\s?https?://[^\s)]{1,500}\)")
_NAMED_LINK = compile_lazily(r"`([^`<\n]{1,100}?)\s{0,3}<https?://[^>`\s]{1,500}>`_{1,2}")
_IMAGE = compile_lazily(r"!\[[^\[\]]{0,200}\]\([^\s)]{1,500}\)|<!--.{0,2000}?-->", re.DOTALL)
_CHECKLIST_ITEM = compile_lazily(r"(?m)^[ \t]*[-*] \[[ xX]\].*(?:\n(?![ \t]*(?:[-*#]|$)).*){0,5}")
"""A checklist item of a pull request template: what its author declares."""
_EMPTY_SECTION = compile_lazily(r"(?m)^#{1,6}[ \t][^\n]*\n*(?=#{1,6}[ \t]|\Z)")
_FORM_HEADING = compile_lazily(
    r"(?i)(?:#{1,6} *|\*\*)(?:\d+[.)] *)?[^\w\n]{0,4}(?:"
    r"(?P<about_work>(?:pr |pull request )?(?:check ?list|to ?do)[\w ]{0,30}"
    r"|types? of changes?|how (?:has|have|was|did|can|to) [\w ,'/]{0,40}test\w*"
    r"|test(?:ing|s| plan| steps)"
    r"|(?:related|linked|fixed|closes?) (?:issues?|tickets?|prs?|pull requests?)[\w ]{0,30}"
    r"|(?:does this|is this) [\w ]{0,30}breaking change|screenshots?[\w ()]{0,30}|environment"
    r"|additional (?:context|information|notes)|other information"
    r"|(?:notes? (?:for|to) )?reviewers?"
    r"|(?:your|system) (?:environment|info\w*)|versions?|issue number)"
    r"|(?:pr |short |brief |bug )?(?:description|summary|overview|details|motivation|context"
    r"|background|purpose|proposal|problem|goal)[\w ]{0,30}"
    r"|what (?:does|do|is|kind|changes?|did) [\w ,'/]{0,60}|why[\w ,']{0,60}|describe [\w ,']{0,60}"
    r"|is your feature request [\w ,']{0,60}|(?:steps )?to reproduce[\w ]{0,30}"
    r"|(?:expected|actual|current|new) (?:behaviou?r|results?|outcome)|(?:proposed )?changes?"
    r")\W{0,6}"
)
"""Headings of common templates for pull requests and issues."""
_FORM_PROSE = compile_lazily(
    r"(?im)^(?:please (?:include|describe|provide|add|make sure|check|delete|fill"
    r"|explain|list|note that)"
    r"|a clear and concise description|(?:fixes|closes) # ?\(?issue\)?|delete options that are not)"
    r"[^\n]{0,400}\n?"
)
_URL = compile_lazily(
    r"(?<=\n\n)[ \t]{0,9}<?https?://\S{1,500}(?=\n\n|\n?\Z)"
    rf"|`{_HOSTED}`|(?:\[[^\]\n]{{1,60}}\]: )?\(?<?{_HOSTED}>?\)?"
)
_ABOUT_URL = compile_lazily(
    r"(?im)^[^\w\n]{0,9}(?:relat\w{1,5} to|refs?|references?|from|via|in|part of"
    r"|follow[- ]?up (?:to|of)|amends|reverts|(?:this (?:is|was) )?(?:based|built) (?:up)?on"
    r"(?: the \w{1,20})?(?: (?:in|of|by|from))?)[^\w\n]{1,3}"
    rf"(?:https?://\S{{1,500}}|(?:{_NUMBER})\.?)$"
)
_SEE_URL = compile_lazily(
    r"(?i)(?:for more \w+,? )?\bsee(?: also)?:?"
    r"(?:(?:,| and| or)? https?://[^\s>)\]`]{1,500}){1,9}"
)
_EARLIER_CHANGE_URL = compile_lazily(
    r"(?im)\b(by|of|since|than|with|to|as|from|in)\s"
    r"https?://[^\s>)\],]{1,500}/(?:commit|issues|pull|merge_requests)/\w{1,40}(?=,? [a-z]|\.?$)"
)
_COMMIT_HASH = compile_lazily(f"(?i){_COMMIT}")
_EMPTY_BRACKETS = compile_lazily(r"(?m)(?:(?<=\s)|^)\([ \t,;/&+]{0,9}\)")
_ROLE_REFERENCE = compile_lazily(
    r"(?::[a-z:]{1,30}:|\{[a-z:]{1,30}\})`~?\.?([^`<]{1,200}?)(?:\s*<[^>`]{1,200}>)?`"
)
_CODE_SPAN = compile_lazily(
    r"(?<![`:}])(`{1,2})(?!`)([^`\n]{1,300})\1(?![`_])|[:}]`[^`]{1,300}`|`[^`\n]{1,300}`_"
)
"""Code, except references, whose ends do not begin one."""
_ONLY_REFERENCES = compile_lazily(rf"(?i)(?:{_NUMBER}|{_COMMIT}|[ ,;]){{1,20}}|{_HOSTED}")
_ANSWER_URL = compile_lazily(rf"https?://{_TRACKED}")
_STASH_MARK = compile_lazily("[\ue000-\uf8ff]")
_STASH_START = 0xE000
"""Start of Unicode's private use area of 6,400 characters: each stands for a piece of code."""
_DIFF = compile_lazily(
    r"(?m)^(?:diff --git|index [0-9a-f]{7}|@@ -|\+\+\+ |--- [ab]/).*(?:\n[ +-].*){0,500}$"
)
_FENCED_DIFF = compile_lazily(r"```(?:diff|patch)\n.{0,20000}?```", re.DOTALL)
_PREFIX = compile_lazily(
    r"^(?:(?:fix|feat|perf|refactor|bugfix|feature|chore|test|docs?)(?:\(([\w ,./-]*)\))?!?: *"
    r"|issue \d+: *|\[[\w #./-]{1,30}\] *|:[a-z_]{2,30}: *|[^\w`\"'(\[{<@.]{1,3}(?=\w))",
    re.IGNORECASE,
)
_CHORE = compile_lazily(
    r"(?im)^[ \t]*(?:[-*•][ \t]*)?(?:failing tests? for .{0,200}"
    r"|(?:update|create|delete) [\w/-]{1,99}\.\w{1,5}|(?:add|update|fix|write|adjust"
    r"|improve|refine|more|also add|new)\w*\s+(?:(?:a|an|the|some|more|unit|regression"
    r"|missing|failing|first|new|for|required|round-trip|comprehensive|indentation|in|api)\s+){0,9}"
    r"(?:tests?|test cases?|changelog|change ?log|changes(?:\.rst|\.md)?|news(?:fragment)?|docs?"
    r"|documentation|docstrings?|typos?|lint\w*|pre-commit(?! hook)|coverage|type hints?|authors?)"
    rf"\b(?!{TEST_BEHAVIOUR}| (?:that|which) .{{20,300}}\n[a-z]).{{0,300}}"
    r"|apply suggestions from code review.*|co-authored.*"
    r"|merge (?:pull request|branch|remote|commit from).*"
    r"|\[pre-commit\.ci[^\]]{0,20}\].*|wip\b.*|review(?: comments| feedback)?\.?|fixup!?.*"
    r"|squash!?.*|\W{0,4}generated with.*|ai (?:helped|assisted)\b.{0,60}|---+|(?<![ \t])#\s.*"
    r"|.{0,80}[\w.+-]{1,60}@[\w.-]{1,60}>?|for more information,? see:?"
    r"|(?:tests?|docs?|changelog|lint|format(?:ting)?|typos?)\.?)[ \t]*$"
)
_THANKS = compile_lazily(
    r"(?im)(?:(?<=[.)] )|^)(?:(?:many )?thanks|thank you|thx)\b[^.]{0,150}(?:\.|$)"
)
_CREDIT = compile_lazily(
    r"(?im)(?:(?<=[.!?])[ ,;–-]{1,4}|(?P<within>(?<=[)`])[ ,;–-]{1,4}|[,;–-]{1,2} )|(?<=\()|^)"
    r"(?:(?:PRs?|patch(?:es)?|idea|fix|issue|bug) )?"
    r"(?:(?:reported|submitted|suggested|contributed|raised|spotted|provided|PRs?|patch(?:es)?) "
    r"by (?:[^.!?()\n]|\n(?!\s|[-*])){1,100}|reported|submitted|part of"
    r"|(?:nice work|(?:good|great|nice) catch)[^.!?\n]{0,40})"
    r"(?(within)(?=[.!)]|$)|(?:[.!]|$|(?=\))))"
)
_BY_AUTHOR = compile_lazily(
    r" {0,3}\(@[\w-]{1,40}\)"
    r"| {0,3}[-–—]? {0,3}\bby \[?@[\w-]{1,40}\]?(?: in \[[^\]\n]{0,80}\])?"
)
_WITH_TESTS = compile_lazily(
    r"(?i)(?:[,;]? (?:and|with|plus|&)|[,;])(?: (?:add(?:s|ed|ing)?|tighten(?:ed)? up|fix(?:ed)?))?"
    r"(?: (?:more|new|some|a|the|unit|regression|comprehensive|corresponding)){0,3}"
    r" tests?(?: cases?)?(?: (?:for|in) .{1,60})?\.?$"
)
_SPACED_PUNCTUATION = compile_lazily(r"(`[^`\n]*`|\"[^\"\n]*\")|(?<=\S) +([,;)]|[.:](?= |$))")
_PAST_VERB = compile_lazily(
    r"(?i)(fix|add|implement|support|allow|prevent|correct|accept|extend|return|respect|restrict"
    r"|(handl|remov|improv|chang|updat|ensur|enabl|replac|rais|preserv|escap|mak))"
    r"(?:ed|ing|e?s(?! (?:for|to|in|from|of|on|with|and|or|are|were|have|can|do)\b)) (?=[\w`'\"@])"
)
"""A report of what was done; a request says *fix*, not *fixed*."""
_FINITE_VERB = compile_lazily(
    r"(?i)\b(?:is|are|was|were|am|do|did|have|had|can|cannot|could|will|would|should|must|may|might"
    r"|\w+n['’]t|lost|broke|threw|made|gave|got|kept|took|led|went|left|let|became|\w{2,}ed"
    r"|(?:doe|ha|fail|break|crashe|raise|return|forget|lose|throw|hang|leak|work|error|freeze"
    r"|cause|make|give|get|lead|panic|overflow|deadlock|duplicate)s)\b"
    r"|\b\w+(?<![sui])s (?=\S)"
)
"""A word that may be a finite verb: one of the usual ones, or a word in -s before another word."""
_WIDE_GAP = compile_lazily(r"(?<=\S)[ \t]{20,}")
_BLANK_LINES = compile_lazily(r"\n{3,}")


def clean_message(text: str) -> str:
    """Return a message without what points to the answer: hashes, numbers, addresses, diffs."""
    text = _STASH_MARK.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text, spans = _stash_code(_WIDE_GAP.sub(" ", text[: 4 * MAX_PROMPT_CHARS]))
    original = {*text.split("\n")}
    text = _NAMED_LINK.sub(r"\1", text)
    text = _LINK.sub(r"\1", _CHECKLIST_ITEM.sub("", _IMAGE.sub("", text)))
    text = _ABOUT_URL.sub("", _SEE_URL.sub("", text))
    text = _EARLIER_CHANGE_URL.sub(r"\1 an earlier change", text)
    text = _EARLIER_CHANGE.sub(r"\1 an earlier change", _REFERENCE_ASIDE.sub("", text))
    text = _THIS_CHANGE.sub(r"\1 earlier change", text)
    for pattern in (
        _FENCED_DIFF,
        _TRAILER,
        _DIFF,
        _THANKS,
        _URL,
        _CLOSING_REFERENCE,
        _CREDIT,
        _BY_AUTHOR,
    ):
        text = _WIDE_GAP.sub(" ", pattern.sub("", text))
    text = _COMMIT_HASH.sub("an earlier commit", text)
    text = re.sub(r"(?<![^\n.!?]\n)(?<!.)a(?=n earlier commit)", "A", text)
    text = re.sub(r"(?<=\()[,;]\s{1,9}|[,;]\s{1,9}(?=\))", "", text)
    text = re.sub(r"(?<!`)``(?!`)", "`", _ROLE_REFERENCE.sub(r"`\1`", text))
    lines = (line if line in original else _tidy_line(line) for line in text.split("\n"))
    text = "\n".join(line.rstrip() for line in lines if not _is_debris(line, line in original))
    text = _CHORE.sub("", re.sub(r"(?<=[^.\s/])\.\.(?=\s|$)", ".", text))
    text = _BLANK_LINES.sub("\n\n", _EMPTY_SECTION.sub("", text)).strip()
    return _STASH_MARK.sub(lambda match: spans[ord(match[0]) - _STASH_START], text)[
        :MAX_PROMPT_CHARS
    ]


def _tidy_line(line: str) -> str:
    """Return a line without punctuation left around what was removed."""
    return re.sub(
        r"^\s{0,9}[—–:] ",
        "",
        _SPACED_PUNCTUATION.sub(r"\1\2", _EMPTY_BRACKETS.sub("", line)).rstrip(),
    )


def _stash_code(text: str) -> tuple[str, list[str]]:
    """Replace each piece of code by a mark; return the text and the pieces."""
    spans: list[str] = []

    def stash(match: re.Match[str]) -> str:
        leads = match[1] and (_ONLY_REFERENCES.fullmatch(match[2]) or _ANSWER_URL.search(match[2]))
        if not match[1] or leads or len(spans) == MAX_CODE_SPANS:
            return match[0]
        spans.append(match[2])
        return f"{match[1]}{chr(_STASH_START + len(spans) - 1)}{match[1]}"

    return _CODE_SPAN.sub(stash, text), spans


def drop_squashed_commits(message: str) -> str:
    """Return a squashed pull request's message without those of its later commits."""
    paragraphs = re.split(r"\n\s*\n", message)
    steps = [number for number, text in enumerate(paragraphs) if re.fullmatch(r"\* .*", text)]
    if not steps or steps[0] == 0:
        return message
    end = steps[1] if len(steps) > 1 else len(paragraphs)
    return "\n\n".join(text for text in paragraphs[:end] if not text.startswith("* "))


def request_from_message(message: str, changelog: str = "") -> str:
    """Return the request made by a message and the changelog entry of the same work."""
    subject, _, body = clean_message(drop_squashed_commits(message)).partition("\n")
    subject = subject.strip(" ;…")
    prefix = _PREFIX.match(subject)
    area = prefix[1].strip() if prefix and prefix[1] else ""
    area = f"{area}: " if not re.fullmatch(r"(?:[A-Z]{2,10}-)?\d*", area) else ""
    subject = _WITH_TESTS.sub("", subject[prefix.end() :] if prefix else subject)
    subject = area + _imperative_sentence(subject, begins=not area)
    request_parts = [subject, _unwrap_paragraphs(body.strip())]
    note = _unwrap_paragraphs(clean_message(changelog))
    if note and not _covers_note(" ".join(request_parts), note):
        request_parts.append(_imperative_sentence(note))
    return "\n\n".join(filter(None, request_parts))


def compose_prompt(
    message: str,
    source: str,
    tests: str,
    names: Sequence[str],
    texts: Sequence[str],
    *,
    completed: bool = False,
) -> str | None:
    """Compose the request; None if too little is left once the answer is removed.

    Names, formatted as code, and texts are those that the tests expect: a colleague would be given
    them. A request that examples will complete may say as little as it likes.
    """
    prompt = remove_leaks(message, source, tests)
    words = re.findall(r"[^\W\d_]\w+", prompt)
    test_names = find_identifiers(split_patch_lines(tests).added)
    names_known = any(map(COMPOUND_NAME.fullmatch, {*words} & test_names))
    # Without its title, the remaining text lacks context.
    min_words = 2 * MIN_PROMPT_WORDS
    if prompt[:8] == message[:8]:
        min_words = MIN_NAMED_WORDS if names else MIN_PROMPT_WORDS - names_known
    if len(words) < min_words and not completed:
        return None
    prompt = re.sub(r"^[—–-]{1,3} ", "", prompt) if words else DEFAULT_TITLE
    labels = [name if "`" in name else f"`{name}`" for name in names]
    missing_labels = [label for label in labels if not is_label_told(label, prompt)]
    if missing_labels:
        prompt += f"\n\n{NAMES_HEADING}{', '.join(missing_labels)}."
    missing_texts = [text for text in texts if text not in prompt]
    if missing_texts:
        prompt += f"\n\n{MESSAGES_HEADING}\n" + "\n".join(f"- `{text}`" for text in missing_texts)
    return prompt


def is_brief(prompt: str) -> bool:
    """Return whether a request is a short title alone, so that examples should explain it."""
    return len(re.findall(r"[^\W\d_]\w+", prompt)) < 2 * MIN_PROMPT_WORDS


def add_examples(prompt: str, examples: Sequence[ShownTest]) -> str:
    """Return a request with its shortest examples."""
    chosen = sorted(examples, key=lambda example: len(example.code))[:MAX_EXAMPLES]
    blocks = (f"```\n{example.code}\n```" for example in examples if example in chosen)
    return "\n\n".join((prompt, EXAMPLES_HEADING, *blocks))


def is_label_told(label: str, text: str) -> bool:
    """Return whether a text contains each name of a label, `load` or `load` of `src/store.ts`."""
    return all(
        re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text)
        for name in re.findall(r"`([^`]+)`", label)
    )


def remove_form_lines(message: str, forms: Sequence[str]) -> str:
    """Return a message without the text of the project's templates.

    For common templates, questions are removed, and sections about the work itself with their
    answers.
    """
    form_lines = {_form_line(line) for form in forms for line in form.splitlines()} - {""}
    title, *lines = message.split("\n")
    kept_lines, drops = [title], False
    for line in lines:
        heading = _FORM_HEADING.fullmatch(line.strip())
        if heading is not None:
            drops = heading["about_work"] is not None
        elif re.match(r"#{1,6} ", line):
            drops = False
        if heading is None and not drops and _form_line(line) not in form_lines:
            kept_lines.append(line)
    return _FORM_PROSE.sub("", "\n".join(kept_lines)).strip("\n")


def _form_line(line: str) -> str:
    """Return a template line without its markup."""
    return re.sub(r"[^\w ]", "", line).strip().lower() if len(line.split()) > 1 else ""


def _imperative_sentence(text: str, begins: bool = True) -> str:
    """Return the beginning of a request in the imperative."""
    verb = _PAST_VERB.match(text)
    if verb and not (verb[0].lower().endswith("ing ") and _has_finite_verb(text[verb.end() :])):
        text = f"{verb[1]}{'e' if verb[2] else ''} {text[verb.end() :]}"
    return text[:1].upper() + text[1:] if begins and re.match(r"[a-z]+ ", text) else text


def _has_finite_verb(text: str) -> bool:
    """Return whether the first sentence may have a finite verb, so that a gerund is its subject.

    *Adding an item twice forgets the first one* reports a fault; *adding refunds* reports a change.
    """
    sentence = re.split(r"[.!?](?:\s|$)|\n", re.sub(r"`[^`\n]*`", "``", text), maxsplit=1)[0]
    return _FINITE_VERB.search(sentence) is not None


def _unwrap_paragraphs(text: str) -> str:
    """Join each paragraph into one line; lists and code stay as they are."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.split("\n")
        shaped = any(re.match(r"\s{2,}|\s*([-*+>|]|\d+[.)])\s|```", line) for line in lines)
        paragraphs.append(paragraph if shaped else _join_lines(lines))
    return "\n\n".join(filter(str.strip, paragraphs))


def _join_lines(lines: Sequence[str]) -> str:
    """Join wrapped lines; a short line before a new sentence was not wrapped."""
    text, last = "", ""
    for line in map(str.strip, lines):
        wrapped = len(last) >= MIN_WRAPPED_CHARS or not line[:1].isupper()
        text += (" " if wrapped else "\n") + line
        last = line
    return text.strip()


def _is_debris(line: str, whole: bool) -> bool:
    """Return whether a line is only a remainder of a removed reference; `whole` may be a brace."""
    return (
        bool(line.strip())
        and not (whole and re.search(r"[\](){}\[]", line))
        and not _STASH_MARK.search(line)
        and not line.lstrip().startswith("```")
        and re.fullmatch(
            r"(?i)\W*(?:(?:closes?|fix(?:es|ed)?|resolves?|see|refs?|issue|pr|and|gh|of|to|from|in"
            r"|re(?:vert|produce|place|late|introduce)[sd]?|supersed\w*|extracted|follow[- ]?up"
            r"|part|address(?:es)?|backports?|amends?|continues|this|it|tickets?)\W*)*",
            line,
        )
        is not None
    )


def _covers_note(text: str, noted: str) -> bool:
    """Return whether a text already has most words of a note."""
    note_words = {word.lower() for word in re.findall(r"\w{4,}", noted)}
    text_words = {word.lower() for word in re.findall(r"\w{4,}", text)}
    return len(note_words - text_words) <= len(note_words) / 4
