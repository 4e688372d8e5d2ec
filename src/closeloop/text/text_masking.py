"""Code without the words its author chose: what is left of work when nobody can speak through it.

Masking goes by what is kept, not by what looks dangerous. Kept are punctuation, the words of a
closed vocabulary (keywords, built-in names, common names of test libraries), and names, texts and
numbers that stand in texts of others, such as the request. Comments go, strings become `text_1`,
names become `name_1`, numbers `number_1`, the same ones alike. So two changes that differ only in
words of their author are the same change after masking, whatever those words say. Every line stays
a line.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from posixpath import basename

from closeloop.records.record import Record
from closeloop.text.wording import compile_lazily

# The closed vocabulary of masked work: words that stay, and words that address somebody.


_KEYWORDS_TEXT = """
False None True and as assert async await break case class continue def del elif else except
finally for from global if import in is lambda match nonlocal not or pass raise return try type
while with yield self cls super const let var function new this typeof instanceof export default
extends implements interface enum switch throw catch null undefined true false void static public
private protected abstract readonly of get set delete debugger require module exports func package
go defer chan select range map struct fallthrough nil iota make append cap copy fn mut pub impl
trait use mod crate where unsafe ref move dyn loop Some Ok Err Self Option Result Vec Box String
str usize isize u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 bool char byte rune int8 int16 int32 int64
uint uint8 uint16 uint32 uint64 float32 float64 unwrap clone iter final throws synchronized
boolean double long short Integer Boolean List Map Set begin end do then fi done esac echo exit
include define ifdef ifndef endif namespace template typename using unsigned signed sizeof goto
extern inline virtual override union
"""
_BUILT_IN_NAMES_TEXT = """
abs all any bin bytearray bytes callable chr classmethod complex dict dir divmod enumerate eval
exec filter float format frozenset getattr hasattr hash hex id input int isinstance issubclass len
list locals max memoryview min next object oct open ord pow print property repr reversed round
setattr slice sorted staticmethod sum tuple vars zip ArithmeticError AssertionError AttributeError
BaseException Exception FileNotFoundError ImportError IndexError KeyError KeyboardInterrupt
LookupError ModuleNotFoundError NameError NotImplemented NotImplementedError OSError OverflowError
PermissionError RecursionError RuntimeError StopIteration SyntaxError SystemExit TimeoutError
TypeError UnicodeDecodeError UnicodeEncodeError UnicodeError ValueError ZeroDivisionError Warning
DeprecationWarning UserWarning __init__ __new__ __call__ __enter__ __exit__ __aenter__ __aexit__
__iter__ __next__ __len__ __getitem__ __setitem__ __delitem__ __contains__ __eq__ __ne__ __lt__
__le__ __gt__ __ge__ __hash__ __repr__ __str__ __bool__ __add__ __sub__ __mul__ __getattr__
__setattr__ __name__ __main__ __all__ __file__ __doc__ __class__ __dict__ __slots__ __version__
__future__ annotations capitalize casefold count decode encode endswith extend find index insert
isalnum isalpha isdigit isspace items join keys ljust lower lstrip partition pop popitem remove
replace reverse rfind rjust rpartition rsplit rstrip setdefault sort split splitlines startswith
strip title translate update upper values zfill Any Callable ClassVar Generic Iterable Iterator
Literal Mapping Optional Protocol Sequence TYPE_CHECKING TypeVar Union abc collections contextlib
dataclass dataclasses datetime functools itertools json logging math operator os path pathlib Path
random re subprocess sys time typing unittest TestCase Array Date Error JSON Math Number Object
Promise Proxy RegExp Symbol concat console forEach includes indexOf isArray length lastIndexOf log
parse push reduce shift some splice stringify substring toFixed toLowerCase toString toUpperCase
trim unshift window document fmt errors strings strconv Println Printf Sprintf Errorf pytest
raises fixture parametrize mark monkeypatch tmp_path capsys skip xfail setUp tearDown assertEqual
assertNotEqual assertTrue assertFalse assertIn assertIsNone assertRaises describe it test expect
toBe toEqual toThrow beforeEach afterEach assert_eq assert_ne cfg testing
"""
_USUAL_NAMES_TEXT = """
a b c d f i j k n m x z _ args kwargs key value item node line text data path file name size start
stop left first last total amount price user config options settings result error message
callback cache timeout logger request response client server host port url headers body token width
height color row column table parent child children root buffer stream handler event state
"""
"""Nouns that cannot form an instruction, and letters that do not spell one."""
LANGUAGE_WORDS = frozenset(f"{_KEYWORDS_TEXT} {_BUILT_IN_NAMES_TEXT} {_USUAL_NAMES_TEXT}".split())
KEYWORDS = frozenset(_KEYWORDS_TEXT.split())

_SPEAKING_WORDS_TEXT = """
yes yeah true false pass passes passed passing fail fails failed all any every each none answer
answers answered check checks checked verdict verdicts score scores scored judge judges judged
judging grade grades graded grader evaluate evaluated evaluation evaluator rubric criteria criterion
approve approved approves accept accepted accepts correct complete completed perfect right good fine
best better ignore ignored disregard override instruction instructions obey follow system assistant
user human reviewer reviewers review findings must should always never you your please not
"""
SPEAKING_WORDS = frozenset(_SPEAKING_WORDS_TEXT.split())
"""Words of judging; of others' names that are such words, only a few stay close together."""


KEPT_NUMBERS = frozenset(map(str, range(17))) | {"0.0", "0.5", "1.0", "100", "1000"}
_CODE_SUFFIXES_TEXT = """
py pyi js jsx ts tsx mjs cjs go rs java kt c h cc cpp hpp cs rb php swift scala sh bash sql lua r
jl vue svelte css scss html xml json yaml yml toml ini cfg lock mod sum gradle dart ex exs erl hs
ml clj tf proto graphql ipynb
"""
CODE_SUFFIXES = frozenset(_CODE_SUFFIXES_TEXT.split())
PROSE_SUFFIXES = frozenset({"md", "markdown", "rst", "txt", "adoc", "org", "tex", "po", "rtf"})
_PATH_WORDS_TEXT = """
src lib pkg cmd app tests test docs doc scripts bin internal main index conftest setup __init__
__main__ pyproject package Makefile Dockerfile Cargo go
"""
PATH_WORDS = frozenset(_PATH_WORDS_TEXT.split())
_SLASH_COMMENTS_TEXT = """
js jsx ts tsx mjs cjs go rs java kt c h cc cpp hpp cs php swift scala css scss dart gradle proto
vue svelte
"""
_SLASH_COMMENTS = frozenset(_SLASH_COMMENTS_TEXT.split())
_DASH_COMMENTS = frozenset({"sql", "lua", "hs"})

TEXT_LINE = "(text)"
_WORD = compile_lazily(r"[^\W\d]\w*")
_CODE_TOKEN = compile_lazily(
    r"(?P<space>[ \t]+)"
    r"|(?P<number>(?:0[xXobOB][0-9a-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*)"
    r"|(?P<word>[^\W\d]\w*)"
    r"|(?P<sign>[!-/:-@\[-^`{-~])"
    r"|(?P<other>.)",
    re.DOTALL,
)
_STRING_END = {
    quote: compile_lazily(rf"(?:\\.|(?!{quote})[^\\])*({quote})", re.DOTALL)
    for quote in ('"""', "'''", '"', "'", "`")
}
_RUST_CHARACTER = compile_lazily(r"'(?:\\.[^']{0,8}|[^'\\])'")
_TEXT_STARTS = frozenset("#/<-'\"`")
"""Characters with which a comment or a string may begin."""
_BLOCK_ENDS = {"/*": "*/", "<!--": "-->"}


class KnownTexts(Record):
    """Texts by others, which stay visible in masked work."""

    words: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    """Texts between quotes."""
    numbers: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()


# Names in the prose of a request: what is written as code. Its other words could form sentences to
# a judge.

_NAME_PART = compile_lazily(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
MAX_NAME_PARTS = 3
MAX_SPEAKING_WORDS = 2
SPEAKING_WINDOW_LINES = 6
"""Window in lines for the limited number of judging words that others use as names."""

_CODE_SPAN = compile_lazily(r"```\w{0,20}\n(.{1,4000}?)```|`([^`\n]{1,200})`", re.DOTALL)
_CALL_SPAN = compile_lazily(r"(?<![\w.])[^\W\d][\w.]{0,80}\([^()\n]{0,80}\)")
_CODE_NAME = compile_lazily(
    r"(?<!\w)(?:[^\W\d_]{1,40}_\w{1,80}|_\w{1,80}|[^\W\d_]{1,40}(?:\.[^\W\d]\w{0,80}){1,8}"
    r"|[a-z]{1,40}[A-Z]\w{0,80})(?!\w)"
)
_QUOTED_SPAN = compile_lazily(r"\"([^\"\n]{1,80})\"|'([^'\n]{1,80})'(?!\w)|“([^”\n]{1,80})”")
_PATH = compile_lazily(
    r"(?<![\w./-])(?:[\w.-]{1,80}(?:/[\w.-]{1,80}){1,12}|[\w-]{1,80}\.[A-Za-z]{1,8})(?![\w/])"
)
_NUMBER = compile_lazily(r"(?<![\w.])\d[\d_]{0,20}(?:\.\d{1,20})?(?!\w)")
MAX_KNOWN_CHARS = 200_000
"""Characters of others' text that are searched for names."""


def collect_known_texts(prose: Iterable[str], code: Iterable[str] = ()) -> KnownTexts:
    """Collect names, texts, numbers and paths that others wrote; from prose, only code."""
    words: set[str] = set()
    texts: set[str] = set()
    numbers: set[str] = set()
    paths: set[str] = set()
    for text in (prose_text[:MAX_KNOWN_CHARS] for prose_text in prose):
        spans = [first or second for first, second in _CODE_SPAN.findall(text)]
        spans += _CALL_SPAN.findall(text) + _CODE_NAME.findall(text)
        words.update(word for span in spans for word in _WORD.findall(span))
        texts.update(part for groups in _QUOTED_SPAN.findall(text) for part in groups if part)
        texts.update(spans)
        numbers.update(_NUMBER.findall(text))
        paths.update(_PATH.findall(text))
    for patch in code:
        for line in split_patch_lines(patch):
            paths.update(_header_paths(line))
        collector = CodeMasker(KnownTexts(), keep_all=True)
        for _ in mask_patch_lines(split_patch_lines(patch), collector):
            pass
        words |= collector.seen_words
        texts |= collector.seen_texts
        numbers |= collector.seen_numbers
    return KnownTexts(
        words=frozenset(words),
        texts=frozenset(texts),
        numbers=frozenset(numbers),
        paths=frozenset(paths),
    )


class CodeMasker:
    """Masks code line by line; equal words get equal placeholders."""

    def __init__(self, known_texts: KnownTexts, *, keep_all: bool = False) -> None:
        self.known = known_texts
        words = {word.lower() for word in known_texts.words if len(word) > 2}
        self._parts = (words | {"test"}) - SPEAKING_WORDS
        """Words of others, of which names may be composed."""
        self.seen_words: set[str] = set()
        self.seen_texts: set[str] = set()
        self.seen_numbers: set[str] = set()
        self.hidden: list[str] = []
        """Masked comments and strings, in order."""
        self.placeholders: dict[str, str] = {}
        self.suffix = ""
        self._counts = Counter[str]()
        self._keep = keep_all
        self.open_text: str | None = None
        """The quote or comment that is open at the end of the last line."""
        self.open_before: str | None = None
        """The same for the removed side of a patch."""
        self._spoken = deque[frozenset[str]](maxlen=SPEAKING_WINDOW_LINES)
        """Of the last lines, others' words that could address a judge."""

    def start_file(self, path: str) -> None:
        self.suffix = _path_suffix(path)
        self.open_text = None

    def start_hunk(self, lines: Sequence[str]) -> None:
        """Guess whether the first line is inside a text that began before.

        A wrong guess hides code, or shows a text as code, of which only words in the vocabulary
        remain.
        """
        self.open_text = self.open_before = None
        for quote in ('"""', "'''"):
            quote_lines = [number for number, line in enumerate(lines) if line.count(quote) % 2]
            if len(quote_lines) % 2 == 0:
                continue
            first_line = lines[quote_lines[0]].strip()
            line_before = lines[quote_lines[0] - 1].rstrip() if quote_lines[0] else ""
            begins = re.match(rf"[rRbBuUfF]{{0,2}}{quote}[^\s]", first_line) is not None
            assigned = re.search(rf"[=(,:] *[rRbBuUfF]{{0,2}}{quote}", first_line) is not None
            if not (begins or assigned or line_before.endswith((":", "(", "=", ","))):
                self.open_text = self.open_before = quote

    def mask_patch_line(self, sign: str, line: str, base_known: bool) -> str:
        """Mask one line of a patch; what a removed line opens is not open afterwards."""
        open_before, count = self.open_text, len(self.hidden)
        if sign == "-":
            self.open_text = self.open_before
        masked = self.mask_line(line)
        if sign == "-":
            self.open_text, self.open_before = open_before, self.open_text
        elif sign == " ":
            self.open_before = self.open_text
        if sign == "+" or not base_known:
            return masked
        del self.hidden[count:]
        if self._spoken:
            self._spoken[-1] = frozenset()  # text of the base is not the author's
        return line

    def mask_line(self, line: str) -> str:
        """Mask one line of code, without its sign."""
        if self.suffix in PROSE_SUFFIXES:
            self.hidden.append(line.strip())
            return TEXT_LINE if line.strip() else ""
        parts: list[str] = []
        position = 0
        self._spoken.append(frozenset())
        if self.open_text is not None:
            position = self._close_text(line, 0)
            parts.append(TEXT_LINE if line[:position].strip() else "")
        while position < len(line):
            position = self._mask_token(line, position, parts)
        masked = _WORDS_IN_A_ROW.sub(_hide_prose, _shorten_runs("".join(parts))).rstrip()
        if not self._keep:
            masked = _VALUES_IN_A_ROW.sub(self._hide_values, masked)
            masked = _WORDS_IN_A_LIST.sub(self._hide_repeated_words, masked)
            masked = _CONSTANTS_IN_A_ROW.sub(self._hide_values, masked)
        return TEXT_LINE if _SIGNS_ALONE.fullmatch(masked) else masked

    def _mask_token(self, line: str, position: int, parts: list[str]) -> int:
        if line[position] not in _TEXT_STARTS:
            token = _CODE_TOKEN.match(line, position)
            assert token is not None
            parts.append(self._mask_plain(token))
            return token.end()
        if comment_start := self._comment_mark(line, position):
            end = _BLOCK_ENDS.get(comment_start)
            stop = line.find(end, position + len(comment_start)) if end else -1
            if end and stop < 0:
                self.open_text = comment_start
            stop = len(line) if stop < 0 else stop + len(end or "")
            if line[position:stop].strip(comment_start + " "):
                self.hidden.append(line[position:stop])
                parts.append(
                    f"{comment_start} {TEXT_LINE}" + (f" {end}" if end and stop < len(line) else "")
                )
            return stop
        quote = next(
            (
                string_start
                for string_start in _STRING_END
                if line.startswith(string_start, position)
            ),
            None,
        )
        is_lifetime = (
            quote == "'" and self.suffix == "rs" and not _RUST_CHARACTER.match(line, position)
        )
        if quote is None or is_lifetime:
            parts.append(line[position])
            return position + 1
        return self._mask_string(line, position, quote, parts)

    def _comment_mark(self, line: str, position: int) -> str | None:
        if line.startswith("<!--", position):
            return "<!--"
        has_slash_comments = self.suffix in _SLASH_COMMENTS or not self.suffix
        if has_slash_comments and line.startswith(("//", "/*"), position):
            return line[position : position + 2]
        if self.suffix in _DASH_COMMENTS and line.startswith("--", position):
            return "--"
        starts_comment = line[position] == "#" and (position == 0 or line[position - 1].isspace())
        return "#" if starts_comment and self.suffix not in _SLASH_COMMENTS else None

    def _mask_string(self, line: str, position: int, quote: str, parts: list[str]) -> int:
        match = _STRING_END[quote].match(line, position + len(quote))
        if match is None:
            text, stop = line[position + len(quote) :], len(line)
            if len(quote) == 3 or quote == "`":
                self.open_text = quote
        else:
            text, stop = line[position + len(quote) : match.start(1)], match.end()
        self.seen_texts.add(text)
        masked = text
        if not self._keep and text not in self.known.texts and re.search(r"[^\W_]|\\|[^ -~]", text):
            self.hidden.append(text)
            masked = self._placeholder("text", text)
        parts.append(f"{quote}{masked[:60]}{quote if match else ''}")
        return stop

    def _close_text(self, line: str, position: int) -> int:
        opening = self.open_text or ""
        end = _BLOCK_ENDS.get(opening)
        if end is not None:
            stop = line.find(end, position)
            stop = -1 if stop < 0 else stop + len(end)
        else:
            match = _STRING_END[opening].match(line, position)
            stop = match.end() if match else -1
        self.hidden.append(line[position : len(line) if stop < 0 else stop].strip())
        if stop < 0:
            return len(line)
        self.open_text = None
        return stop

    def _mask_plain(self, token: re.Match[str]) -> str:
        text = token[0]
        match token.lastgroup:
            case "space":  # as indentation; within a line it could draw letters
                return text[:60] if token.start() == 0 else " "
            case "sign":
                return text
            case "number":
                self.seen_numbers.add(text)
                is_known = text in KEPT_NUMBERS or text in self.known.numbers
                return text if is_known or self._keep else self._placeholder("number", text)
            case "word":
                self.seen_words.add(text)
                return self.mask_word(text)
        return ""

    def mask_word(self, word: str) -> str:
        if self._keep or word in LANGUAGE_WORDS:
            return word
        if word in self.known.words and self._is_no_speech(word):
            return word
        if self._is_put_together(word):
            return word
        if word[:4] in ("test", "Test"):
            kind = word[:4]
        elif word.endswith("Error"):
            kind = "Error"
        elif word.isupper() and len(word) > 1:
            kind = "NAME"
        else:
            kind = "Name" if word[0].isupper() else "name"
        return self._placeholder(kind, word)

    def _is_no_speech(self, word: str) -> bool:
        """Whether a name of others may stay: several judging words close together may not."""
        lowered = word.lower()
        if lowered in SPEAKING_WORDS and self._spoken:
            recent_words = frozenset().union(*self._spoken) | {lowered}
            if len(recent_words) > MAX_SPEAKING_WORDS:
                return False
            self._spoken[-1] |= {lowered}
        return True

    def _is_put_together(self, word: str) -> bool:
        """Whether a name is composed of a few words of others: `test_gross`, `totalPrice`."""
        parts = [part.lower() for part in _NAME_PART.findall(word)]
        return 1 < len(parts) <= MAX_NAME_PARTS and self._parts.issuperset(parts)

    def mask_path(self, path: str) -> str:
        """Keep common folders, the extension and the mark of a test; mask the rest."""
        if path in self.known.paths or path == "/dev/null":
            return path
        *folders, name = path.split("/")
        stem, _, suffix = name.rpartition(".") if "." in name else (name, "", "")
        ending = f".{suffix}" if suffix in CODE_SUFFIXES | PROSE_SUFFIXES else ""
        if stem.endswith((".test", ".spec")):
            stem, ending = stem[:-5], f".test{ending}"
        masked = [self._mask_path_part(folder) for folder in folders[-8:]]
        return "/".join([*masked, self._mask_path_part(stem) + ending])

    def _mask_path_part(self, part: str) -> str:
        if part in PATH_WORDS or part in self.known.words or self._is_put_together(part):
            return part
        return self._placeholder("test_file" if part.startswith("test_") else "file", part)

    def _hide_values(self, row: re.Match[str]) -> str:
        return self._placeholder("values", row[0])

    def _hide_repeated_words(self, row: re.Match[str]) -> str:
        """Hide a list that repeats a few words: it could spell a text as dots and dashes do."""
        words = _WORD_OR_BRACKETS.findall(row[0])
        is_code = len(set(words)) * MIN_REPEATS <= len(words)
        return self._hide_values(row) if is_code else row[0]

    def _placeholder(self, kind: str, text: str) -> str:
        key = f"{kind}\0{text}"
        if key not in self.placeholders:
            self._counts[kind] += 1
            self.placeholders[key] = f"{kind}_{self._counts[kind]}"
        return self.placeholders[key]


def _shorten_runs(text: str) -> str:
    """Shorten repeated signs and gaps, which can draw pictures."""
    text = re.sub(r"([,;.:|*#=~^-])(?: +\1)+", r"\1", text)
    return re.sub(r"([!-/:-@\[-`{-~])\1{3,}", r"\1\1\1", text)


_SIGNS_ALONE = compile_lazily(r"(?=(?:[^!-/:<-@^`|~]*[!-&*+./:<-@^`|~-]){6})[^\w()]+")
"""Signs without a name between them, except brackets and commas, such as Morse code."""
_VALUES_IN_A_ROW = compile_lazily(
    r"(?<![\w.])(?:(?:\d[\d.]*|[Tt]rue|[Ff]alse|[A-Za-z_])(?!\w)[^\w\"'`]{1,4}){7,}"
    r"(?:\d[\d.]*|[Tt]rue|[Ff]alse|[A-Za-z_])(?!\w)"
)
"""Values that may stay alone, but in such a row that they could spell or draw a text."""
MIN_REPEATS = 3
_WORD_OR_BRACKETS = compile_lazily(r"\w+|\[\]|\{\}|\(\)")
_WORDS_IN_A_LIST = compile_lazily(
    r"(?:(?:[\"'`]?\b\w++[\"'`]?|\[\]|\{\}|\(\))[ ,;:|&]{1,4}){7,}"
    r"(?:[\"'`]?\b\w++[\"'`]?|\[\]|\{\}|\(\))"
)
_CONSTANTS_IN_A_ROW = compile_lazily(
    r"\b(?:(?:and|or|not|is|in|&&|\|\|) +)*(?:[Tt]rue|[Ff]alse|None|null|nil|\d+)"
    r"(?:(?: +(?:and|or|not|is|in|&&|\|\|))+ +(?:[Tt]rue|[Ff]alse|None|null|nil|\d+)){2,}\b"
)
"""An expression of three and more constants is one constant."""
_WORDS_IN_A_ROW = compile_lazily(r"(?<![\w.])[^\W\d]\w*(?: +[^\W\d]\w*){2,}")


def _hide_prose(match: re.Match[str]) -> str:
    """Hide three adjacent names without anything between them, which are not code."""
    runs = groupby(match[0].split(), key=KEYWORDS.__contains__)
    return " ".join(
        TEXT_LINE if not keywords and len(words) > 2 else " ".join(words)
        for keywords, words in ((keywords, list(words)) for keywords, words in runs)
    )


def _path_suffix(path: str) -> str:
    name = basename(path)
    return name.rpartition(".")[2].lower() if "." in name else ""


# Patches: headers, line prefixes, and lines of two sides.

_HEADER_PATH = compile_lazily(r"^(?:---|\+\+\+) (?:\"?[ab]/)?([^\t\n\"]+)")
_HUNK_HEADER = compile_lazily(r"^@@ -[\d,]{1,20} \+[\d,]{1,20} @@")
_HUNK_COUNTS = compile_lazily(r"[-+]\d+(?:,(\d+))?")
_GIT_FACT = compile_lazily(r"^(?:new|deleted) file mode \d{6}$|^Binary files ")


def _header_paths(line: str) -> Iterator[str]:
    if (match := _HEADER_PATH.match(line)) is not None:
        yield match[1].strip()


def mask_patch(
    patch: str, known_texts: KnownTexts, *, is_base_known: bool
) -> tuple[str, CodeMasker]:
    """A patch without the words of its author.

    Where closeloop made the patch itself, lines that it does not add are those of the base: they
    stay as they are, and so do their names. Elsewhere they may be the author's too.
    """
    masker = CodeMasker(known_texts)
    lines = split_patch_lines(patch)
    return "\n".join(_join_text_lines(mask_patch_lines(lines, masker, is_base_known))), masker


def split_patch_lines(patch: str) -> list[str]:
    """Split lines as git does: after any other line separator the author's text continues."""
    lines = patch.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def find_file_starts(lines: Sequence[str]) -> list[int]:
    """Return the positions of each file's `--- ` and `+++ ` lines; lines of hunks may look
    alike."""
    return [
        number
        for number, in_hunk in enumerate(_lie_in_hunks(lines))
        if not in_hunk
        and lines[number].startswith("--- ")
        and number + 1 < len(lines)
        and lines[number + 1].startswith("+++ ")
    ]


def split_patch_files(patch: str) -> Iterator[str]:
    """Yield the patch of each file, with git's lines before its paths."""
    lines = split_patch_lines(patch)
    path_lines, in_header, start = set(find_file_starts(lines)), False, 0
    for number, line in enumerate(lines):
        is_git_header = line.startswith("diff --git ")  # no line of a hunk begins like this
        if is_git_header or (number in path_lines and not in_header):
            yield "\n".join(lines[start:number])
            start = number
        in_header = is_git_header or (in_header and number not in path_lines)
    yield "\n".join(lines[start:])


def _lie_in_hunks(lines: Iterable[str]) -> Iterator[bool]:
    """Yield for each line whether it belongs to a hunk by the hunk's header."""
    old_left = new_left = 0
    for line in lines:
        sign = line[:1]
        in_hunk = (old_left > 0 or new_left > 0) and sign in ("+", "-", " ", "\\", "")
        if not in_hunk:
            header = _HUNK_HEADER.match(line)
            counts = _HUNK_COUNTS.findall(header[0])[:2] if header else ()
            old_left, new_left = (int(count or 1) for count in counts) if counts else (0, 0)
        elif sign != "\\":
            old_left, new_left = old_left - (sign != "+"), new_left - (sign != "-")
        yield in_hunk


def mask_patch_lines(
    lines: list[str], masker: CodeMasker, is_base_known: bool = False
) -> Iterator[str]:
    old_path, starts = "", set(find_file_starts(lines))
    for number, line in enumerate(lines):
        if number in starts:
            old_path = next(_header_paths(line), "")
            new_path = next(_header_paths(lines[number + 1]), old_path)
            masker.start_file(new_path if new_path != "/dev/null" else old_path)
            yield f"--- {_mask_header_path(old_path, masker, is_base_known)}"
        elif number - 1 in starts:
            path = next(_header_paths(line), "")
            yield f"+++ {_mask_header_path(path, masker, is_base_known and path == old_path)}"
        elif (header := _HUNK_HEADER.match(line)) is not None:
            hunk = _hunk_lines(lines, number + 1, starts)
            masker.start_hunk([hunk_line[1:] for hunk_line in hunk if hunk_line[:1] != "-"])
            yield header[0]
        elif line[:1] in ("+", "-", " "):
            yield line[0] + masker.mask_patch_line(line[0], line[1:], is_base_known)
        elif _GIT_FACT.match(line):
            yield line.partition(" files ")[0]
        elif line.strip() and not line.startswith(("diff --git ", "index ", "\\")):
            masker.hidden.append(line.strip())


def _mask_header_path(path: str, masker: CodeMasker, is_trusted: bool) -> str:
    if is_trusted:
        return path
    masked = masker.mask_path(path)
    if masked != path:
        masker.hidden.append(path)
    return masked


def _hunk_lines(lines: list[str], start: int, files: Collection[int]) -> Iterator[str]:
    for number in range(start, len(lines)):
        line = lines[number]
        if line[:1] not in ("+", "-", " ", "\\") or number in files:
            return
        yield line


_BARE_WORD = compile_lazily(r"[+ -]\s*(?:(\w+);?|(?:[Tt]rue|[Ff]alse|None|null|nil|\d+),)")
_BLOCK_WORDS = frozenset({"end", "fi", "done", "esac", "begin", "do", "then"})
_CONSTANT_STORE = compile_lazily(
    r"([+ -]\s*\w[\w.]+ = |[+ -]\s*[a-z] = )(?:[\"']?\w+[\"']?|-?[\d.]+|\[\]|\{\}|\(\));?"
)


def _drop_lines_without_effect(lines: Iterable[str]) -> Iterator[str]:
    """Leave out what does nothing in code: its words or number could spell a text.

    That is added blank lines, all but the first of adjacent lines of one known word (`pass`), and
    all but the last of adjacent assignments of constants to one name.
    """
    bare_sign, pending_store, pending_line = "", "", ""
    for line in lines:
        if line.strip() in ("+", "-"):
            continue
        word = _BARE_WORD.fullmatch(line)
        is_bare = word is not None and (word[1] is None or word[1] in LANGUAGE_WORDS - _BLOCK_WORDS)
        repeated, bare_sign = is_bare and bare_sign == line[0], line[0] if is_bare else ""
        if repeated:
            continue
        store = _CONSTANT_STORE.fullmatch(line)
        if pending_line and (store is None or store[1] != pending_store):
            yield pending_line
        pending_store, pending_line = (store[1], line) if store else ("", "")
        if store is None:
            yield line
    if pending_line:
        yield pending_line


def _join_text_lines(lines: Iterable[str]) -> Iterator[str]:
    """Replace many lines of only text by one, whose number could count."""
    last, count = "", 0
    for line in _drop_lines_without_effect(lines):
        bare = line[:1] in ("+", "-", " ") and line[1:].strip() in (TEXT_LINE, f"# {TEXT_LINE}")
        if bare and line == last:
            count += 1
            continue
        if count:
            yield f"{last[:1]}(and {count} more)"
        last, count = (line if bare else ""), 0
        yield line
    if count:
        yield f"{last[:1]}(and {count} more)"
