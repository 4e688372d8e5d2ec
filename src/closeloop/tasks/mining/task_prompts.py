"""What to ask for: the words of whoever asked for the work, without the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from closeloop.tasks.mining import prompt_leaks
from closeloop.tasks.mining.prompt_leaks import COMPOUND_NAME, remove_leaks

MIN_PROMPT_WORDS = 4
"""One fewer where it has a name that the tests use."""
MIN_NAMED_WORDS = 2
"""Where the names to use, with their places, tell the rest."""
MIN_WRAPPED_CHARS = 50
MAX_CODE_SPANS = 6_000
MAX_PROMPT_CHARS = 6_000
NAMES_HEADING = "Names to use: "
MESSAGES_HEADING = "Messages, word for word:"
"""What the end of a request begins with, where the tests look for names and texts."""
TEST_BEHAVIOUR = r" (?:being|are|is|not|never|always|get(?:ting)?) "
"""Behind *tests*: then they are what the project is about, as in a runner of tests."""
_TRAILER = re.compile(
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
"""Where the work itself is told of; other addresses are part of what is said."""
_SEE = (
    r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?|see(?: also)?|refs?|references"
    r"|relat(?:ed|ing) to|cf|per|for|from|in|pr|via|issues?|and|follow[- ]?up(?: to)?)\b"
)
_REFERENCE_ASIDE = re.compile(
    rf"(?i)\s{{0,9}}\((?:(?:{_NUMBER}|{_MARK}|{_COMMIT}|{_SEE})[ ,;:.&/]{{0,3}}){{1,9}}\)"
)
_EARLIER_CHANGE = re.compile(
    r"(?i)\b(by|of|when|since|than|until|before|after|like|with|to|because|as|from|completes|extends"
    rf"|mirrors|continues)\s(?:issue\s)?(?:{_NUMBER}|{_MARK}|{_COMMIT})(?=[,:]? [a-z])"
)
_THIS_CHANGE = re.compile(rf"(?i)\b(the|this|that) (?:{_NUMBER}|{_MARK}|{_COMMIT})(?= [a-z])")
_CLOSING_REFERENCE = re.compile(
    rf"(?i)[ \t,;:–-]{{0,9}}(?:{_SEE}[ \t:.]{{0,9}}){{0,4}}(?:{_NUMBER}|{_MARK}\.?)"
)
_LINK = re.compile(r"\[([^\[\]]{0,200})\]\(\s?https?://[^\s)]{1,500}\)")
_NAMED_LINK = re.compile(r"`([^`<\n]{1,100}?)\s{0,3}<https?://[^>`\s]{1,500}>`_{1,2}")
_IMAGE = re.compile(r"!\[[^\[\]]{0,200}\]\([^\s)]{1,500}\)|<!--.{0,2000}?-->", re.DOTALL)
_CHECKLIST_ITEM = re.compile(r"(?m)^[ \t]*[-*] \[[ xX]\].*(?:\n(?![ \t]*(?:[-*#]|$)).*){0,5}")
"""Of a form that pull requests are written in: what its author declares."""
_EMPTY_SECTION = re.compile(r"(?m)^#{1,6}[ \t][^\n]*\n*(?=#{1,6}[ \t]|\Z)")
_FORM_HEADING = re.compile(
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
"""Headings of the forms for pull requests and issues that most projects use."""
_FORM_PROSE = re.compile(
    r"(?im)^(?:please (?:include|describe|provide|add|make sure|check|delete|fill"
    r"|explain|list|note that)"
    r"|a clear and concise description|(?:fixes|closes) # ?\(?issue\)?|delete options that are not)"
    r"[^\n]{0,400}\n?"
)
_URL = re.compile(
    r"(?<=\n\n)[ \t]{0,9}<?https?://\S{1,500}(?=\n\n|\n?\Z)"
    rf"|`{_HOSTED}`|(?:\[[^\]\n]{{1,60}}\]: )?\(?<?{_HOSTED}>?\)?"
)
_ABOUT_URL = re.compile(
    r"(?im)^[^\w\n]{0,9}(?:relat\w{1,5} to|refs?|references?|from|via|in|part of"
    r"|follow[- ]?up (?:to|of)|amends|reverts)[^\w\n]{1,3}https?://\S{1,500}$"
)
_SEE_URL = re.compile(
    r"(?i)(?:for more \w+,? )?\bsee(?: also)?:?"
    r"(?:(?:,| and| or)? https?://[^\s>)\]`]{1,500}){1,9}"
)
_EARLIER_CHANGE_URL = re.compile(
    r"(?im)\b(by|of|since|than|with|to|as|from|in)\s"
    r"https?://[^\s>)\],]{1,500}/(?:commit|issues|pull|merge_requests)/\w{1,40}(?=,? [a-z]|\.?$)"
)
_COMMIT_HASH = re.compile(f"(?i){_COMMIT}")
_EMPTY_BRACKETS = re.compile(r"(?m)(?:(?<=\s)|^)\([ \t,;/&+]{0,9}\)")
_ROLE_REFERENCE = re.compile(
    r"(?::[a-z:]{1,30}:|\{[a-z:]{1,30}\})`~?\.?([^`<]{1,200}?)(?:\s*<[^>`]{1,200}>)?`"
)
_CODE_SPAN = re.compile(
    r"(?<![`:}])(`{1,2})(?!`)([^`\n]{1,300})\1(?![`_])|[:}]`[^`]{1,300}`|`[^`\n]{1,300}`_"
)
"""Code, but for references, whose ends begin none."""
_ONLY_REFERENCES = re.compile(rf"(?i)(?:{_NUMBER}|{_COMMIT}|[ ,;]){{1,20}}|{_HOSTED}")
_ANSWER_URL = re.compile(rf"https?://{_TRACKED}")
_STASH_MARK = re.compile("[\ue000-\uf8ff]")
_STASH_START = 0xE000
"""Where Unicode has 6,400 characters that mean nothing: each stands for a piece of code."""
_DIFF = re.compile(
    r"(?m)^(?:diff --git|index [0-9a-f]{7}|@@ -|\+\+\+ |--- [ab]/).*(?:\n[ +-].*){0,500}$"
)
_FENCED_DIFF = re.compile(r"```(?:diff|patch)\n.{0,20000}?```", re.DOTALL)
_PREFIX = re.compile(
    r"^(?:(?:fix|feat|perf|refactor|bugfix|feature|chore|test|docs?)(?:\(([\w ,./-]*)\))?!?: *"
    r"|issue \d+: *|\[[\w #./-]{1,30}\] *|:[a-z_]{2,30}: *|[^\w`\"'(\[{<@.]{1,3}(?=\w))",
    re.IGNORECASE,
)
_CHORE = re.compile(
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
_THANKS = re.compile(r"(?im)(?:(?<=[.)] )|^)(?:many )?thanks\b[^.]{0,150}(?:\.|$)")
_CREDIT = re.compile(
    r"(?im)(?:(?<=[.!?])[ ,;–-]{1,4}|(?P<within>(?<=[)`])[ ,;–-]{1,4}|[,;–-]{1,2} )|(?<=\()|^)"
    r"(?:(?:PRs?|patch(?:es)?|idea|fix|issue|bug) )?"
    r"(?:(?:reported|submitted|suggested|contributed|raised|spotted|provided|PRs?|patch(?:es)?) "
    r"by (?:[^.!?()\n]|\n(?!\s|[-*])){1,100}|reported|submitted|part of"
    r"|(?:nice work|(?:good|great|nice) catch)[^.!?\n]{0,40})"
    r"(?(within)(?=[.!)]|$)|(?:[.!]|$|(?=\))))"
)
_BY_AUTHOR = re.compile(r" {0,3}[-–—]? {0,3}\bby \[?@[\w-]{1,40}\]?(?: in \[[^\]\n]{0,80}\])?")
_WITH_TESTS = re.compile(
    r"(?i)(?:[,;]? (?:and|with|plus|&)|[,;])(?: (?:add(?:s|ed|ing)?|tighten(?:ed)? up|fix(?:ed)?))?"
    r"(?: (?:more|new|some|a|the|unit|regression|comprehensive|corresponding)){0,3}"
    r" tests?(?: cases?)?(?: (?:for|in) .{1,60})?\.?$"
)
_SPACED_PUNCTUATION = re.compile(r"(`[^`\n]*`|\"[^\"\n]*\")|(?<=\S) +([,;)]|[.:](?= |$))")
_PAST_VERB = re.compile(
    r"(?i)(fix|add|implement|support|allow|prevent|correct|accept|extend|return|respect|restrict"
    r"|(handl|remov|improv|chang|updat|ensur|enabl|replac|rais|preserv|escap|mak))"
    r"(?:ed|ing|e?s(?! (?:for|to|in|from|of|on|with|and|or|are|were|have|can|do)\b)) (?=[\w`'\"@])"
)
"""A report of what was done; whoever asks for it says *fix*, not *fixed*."""
_WIDE_GAP = re.compile(r"(?<=\S)[ \t]{20,}")
_BLANK_LINES = re.compile(r"\n{3,}")


def clean_message(text: str) -> str:
    """A message without what only tells where the answer is: hashes, numbers, addresses, diffs."""
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
    return _STASH_MARK.sub(lambda mark: spans[ord(mark[0]) - _STASH_START], text)[:MAX_PROMPT_CHARS]


def _tidy_line(line: str) -> str:
    """A line without the signs that stood around what was taken out of it."""
    return re.sub(
        r"^\s{0,9}[—–:] ",
        "",
        _SPACED_PUNCTUATION.sub(r"\1\2", _EMPTY_BRACKETS.sub("", line)).rstrip(),
    )


def _stash_code(text: str) -> tuple[str, list[str]]:
    """A text with a mark for each piece of code, which stays as it is; and the pieces."""
    spans: list[str] = []

    def stash(found: re.Match[str]) -> str:
        leads = found[1] and (_ONLY_REFERENCES.fullmatch(found[2]) or _ANSWER_URL.search(found[2]))
        if not found[1] or leads or len(spans) == MAX_CODE_SPANS:
            return found[0]
        spans.append(found[2])
        return f"{found[1]}{chr(_STASH_START + len(spans) - 1)}{found[1]}"

    return _CODE_SPAN.sub(stash, text), spans


def drop_squashed_commits(message: str) -> str:
    """Of a squashed pull request, what comes before the messages of its later commits."""
    paragraphs = re.split(r"\n\s*\n", message)
    steps = [number for number, text in enumerate(paragraphs) if re.fullmatch(r"\* .*", text)]
    if not steps or steps[0] == 0:
        return message
    end = steps[1] if len(steps) > 1 else len(paragraphs)
    return "\n\n".join(text for text in paragraphs[:end] if not text.startswith("* "))


def request_from_message(message: str, changelog: str = "") -> str:
    """What a message, and what the change log says of the same work, ask for."""
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
    message: str, source: str, tests: str, names: Sequence[str], texts: Sequence[str]
) -> str | None:
    """The whole request; None where too little is left of it once the answer is out.

    Names, set as code, and texts are those that the tests look for: a colleague would be told them.
    """
    prompt = remove_leaks(message, source, tests)
    words = re.findall(r"[^\W\d_]\w+", prompt)
    test_names = prompt_leaks.find_identifiers(prompt_leaks.split_patch_lines(tests).added)
    names_known = any(map(COMPOUND_NAME.fullmatch, {*words} & test_names))
    # What is left without its title was said to those who had read that.
    fewest = 2 * MIN_PROMPT_WORDS
    if prompt[:8] == message[:8]:
        fewest = MIN_NAMED_WORDS if names else MIN_PROMPT_WORDS - names_known
    if len(words) < fewest:
        return None
    prompt = re.sub(r"^[—–-]{1,3} ", "", prompt)
    labels = [name if "`" in name else f"`{name}`" for name in names]
    missing_labels = [label for label in labels if not is_label_told(label, prompt)]
    if missing_labels:
        prompt += f"\n\n{NAMES_HEADING}{', '.join(missing_labels)}."
    missing_texts = [text for text in texts if text not in prompt]
    if missing_texts:
        prompt += f"\n\n{MESSAGES_HEADING}\n" + "\n".join(f"- `{text}`" for text in missing_texts)
    return prompt


def is_label_told(label: str, text: str) -> bool:
    """Whether a text has each name of a label, `load` or `load` of `src/store.ts`, as a word."""
    return all(
        re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text)
        for name in re.findall(r"`([^`]+)`", label)
    )


def remove_form_lines(message: str, forms: Sequence[str]) -> str:
    """A message without what stands in the forms that a project has people fill in.

    Of the usual ones, what is asked is taken out, and sections that tell of the work itself go
    with their answers.
    """
    form_lines = {_form_line(line) for form in forms for line in form.splitlines()} - {""}
    title, *lines = message.split("\n")
    kept, drops = [title], False
    for line in lines:
        heading = _FORM_HEADING.fullmatch(line.strip())
        if heading is not None:
            drops = heading["about_work"] is not None
        elif re.match(r"#{1,6} ", line):
            drops = False
        if heading is None and not drops and _form_line(line) not in form_lines:
            kept.append(line)
    return _FORM_PROSE.sub("", "\n".join(kept)).strip("\n")


def _form_line(line: str) -> str:
    """A line of a form, whatever marks it there."""
    return re.sub(r"[^\w ]", "", line).strip().lower() if len(line.split()) > 1 else ""


def _imperative_sentence(text: str, begins: bool = True) -> str:
    """The beginning of a request: what is to be done."""
    if done := _PAST_VERB.match(text):
        text = f"{done[1]}{'e' if done[2] else ''} {text[done.end() :]}"
    return text[:1].upper() + text[1:] if begins and re.match(r"[a-z]+ ", text) else text


def _unwrap_paragraphs(text: str) -> str:
    """Paragraphs of one line each; lists and code stay as they are."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.split("\n")
        shaped = any(re.match(r"\s{2,}|\s*([-*+>|]|\d+[.)])\s|```", line) for line in lines)
        paragraphs.append(paragraph if shaped else _join_lines(lines))
    return "\n\n".join(filter(str.strip, paragraphs))


def _join_lines(lines: Sequence[str]) -> str:
    """Wrapped lines as one; a short one that another sentence follows was not wrapped."""
    text, last = "", ""
    for line in map(str.strip, lines):
        wrapped = len(last) >= MIN_WRAPPED_CHARS or not line[:1].isupper()
        text += (" " if wrapped else "\n") + line
        last = line
    return text.strip()


def _is_debris(line: str, whole: bool) -> bool:
    """What is left of a line once its reference is gone; a whole one may be a brace of code."""
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
    """Whether a text already has most words of a note."""
    words = {word.lower() for word in re.findall(r"\w{4,}", noted)}
    known = {word.lower() for word in re.findall(r"\w{4,}", text)}
    return len(words - known) <= len(words) / 4
