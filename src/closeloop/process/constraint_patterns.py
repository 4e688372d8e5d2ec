"""How people forbid and demand things, as patterns."""

from __future__ import annotations

import re

QUOTED_LINE = re.compile(r"\n[ \t]*>[^\n]*")
PASTED_BLOCK = re.compile(
    r"<(pr_description|issue|issue_description|problem_statement|files?|code|output|logs?|diff|documents?)>"
    r"(?:[^<]*(?:<(?!/\1>)[^<]*)*</\1>|[ \t]*\n[^<]*(?:<(?!/\1>)[^<]*)*\Z)",
    re.IGNORECASE,
)
"""What stands between two tags; or after one on a line of its own, where it is never closed."""
BULLET_LIST = re.compile(r":(?:[ \t]*\n[ \t]*[-*•][ \t]+[^\n]+)+")
BULLET_ITEM = re.compile(r"\n[ \t]*[-*•][ \t]+")

NEGATION = (
    r"(?:(?:^|[,:(*–—-]\s*|\b(?:please|you|but|and|also|or|then|just|however|remember|important|we"
    r"(?=\s+(?:must|should)))\s+)"
    r"(?:do\s+not|don['’]?t|never|must\s+not|mustn['’]?t|should\s+(?:not|never)|shouldn['’]?t"
    r"|may\s+not|are\s+not\s+(?:allowed|permitted)\s+to|not\s+to)|\byou\s+can(?:not|['’]?t))\s+"
    r"(?:ever\s+|please\s+|try\s+to\s+|attempt\s+to\s+|directly\s+|actually\s+)?"
    r"(?:\w+(?:,\s+\w+)?,?\s+(?:or|and)\s+)?"
)
NEGATIVE_WORDS = (
    "do not", "don't", "don’t", "dont", "never", "must not", "mustn", "should not", "shouldn",
    "may not", "are not", "not to", "cannot", "can't", "can’t", "cant", "avoid", "without",
    "refrain",
)  # fmt: skip
"""Without one of these a sentence forbids nothing."""
WITHOUT = r"\b(?:avoid|without|refrain\s+from)\s+(?:ever\s+)?"
NEGATED = re.compile(rf"{NEGATION}|{WITHOUT}", re.IGNORECASE)
CHANGE_VERB = (
    r"touch|modify|edit|chang|change|alter|overwrite|rewrite|refactor|update|rename|move|reformat"
    r"|write\s+to|mess\s+with|make\s+(?:any\s+|other\s+)*(?:changes?|edits?|modifications?)"
    r"(?:\s+(?:to|in))?"
)
CHANGING_VERB = (
    r"touching|modifying|editing|changing|altering|overwriting|rewriting|refactoring|updating"
    r"|renaming|moving|making\s+(?:any\s+)?changes\s+(?:to|in)"
)
CHANGE_STEMS = (
    "touch", "modif", "edit", "chang", "alter", "writ", "refactor", "updat", "renam", "mov", "mess",
    "format", "mak", "delet",
)  # fmt: skip
CHANGE_FORBIDDEN = re.compile(
    rf"(?:{NEGATION}(?:{CHANGE_VERB})|{WITHOUT}(?:{CHANGING_VERB}))\b:?(?P<object>.*)",
    re.IGNORECASE | re.DOTALL,
)
DELETE_FORBIDDEN = re.compile(
    rf"(?:{NEGATION}(?:delete|remove)|{WITHOUT}(?:deleting|removing))\b(?P<object>.*)",
    re.IGNORECASE | re.DOTALL,
)
LEAVE_ALONE = re.compile(
    r"\b(?:leave|keep)\s+(?P<object>.{1,200}?)\s+(?:alone|untouched|unchanged|unmodified|intact"
    r"|as\s+(?:it|they|is|are)\b)",
    re.IGNORECASE,
)
STAYS_UNCHANGED = re.compile(
    r"\s(?:(?:is|are)\s+off[- ]limits|(?:must|should|has\s+to|have\s+to)\s+(?:stay|remain)\s+"
    r"(?:unchanged|untouched|unmodified|intact|as\s))",
    re.IGNORECASE,
)
ONLY_CHANGE = re.compile(
    r"(?:^|[,:(*–—-]\s*|\b(?:please|you(?:\s+can|\s+may)?|should|must|and|but|so)\s+)"
    r"(?:only\s+(?:touch|modify|edit|change|alter|update|work\s+(?:in|on)|make\s+changes\s+(?:to|in))"
    r"|(?:touch|modify|edit|change|alter|update|make\s+changes\s+(?:to|in))\s+only)\b(?P<object>.*)"
    r"|\b(?:limit|restrict|confine|keep)\s+(?:all\s+|your\s+|the\s+|any\s+)*"
    r"(?:changes|edits|work|yourself)\s+(?:strictly\s+)?(?:to|within|in)\b(?P<within>.*)"
    rf"|(?:{NEGATION}(?:{CHANGE_VERB})|{WITHOUT}(?:{CHANGING_VERB}))\s+(?:any\s*thing|any\s+(?:other\s+)?files?|files|code)"
    r"\s+(?:else\s+)?(?:outside(?:\s+of)?|but|except(?:\s+for)?|other\s+than|beyond)\b(?P<except>.*)",
    re.IGNORECASE | re.DOTALL,
)
MAY_BOUND = re.compile(
    r"only\s+(?:touch|modify|edit|change|alter|update|work|make)"
    r"|(?:touch|modify|edit|change|alter|update|to|in)\s+only"
    r"|(?:limit|restrict|confine|keep)\s+(?:all\s+|your\s+|the\s+|any\s+)*"
    r"(?:changes|edits|work|yourself)",
    re.IGNORECASE,
)
"""Without this or a prohibition with one of those, the pattern above finds nothing."""
EXCEPTION_WORDS = ("outside", "but", "except", "other", "beyond")
NO_EDITS = re.compile(
    rf"(?:{NEGATION}|\bwithout\s+)(?:(?:{CHANGE_VERB}|{CHANGING_VERB}|write|writing|creat(?:e|ing)\s+or\s+edit)\s+"
    r"(?:any\s+|or\s+\w+\s+|the\s+|your\s+)*(?:files?|code|codebase|anything|source\s+code)"
    r"|make\s+(?:any\s+)?(?:changes?|edits?)|(?:edit|code|implement)(?=\s+yet)|implement\s+(?:anything|it)|start\s+(?:coding|implementing))"
    r"(?P<rest>\s*(?:$|[.!;,)]|yet|for\s+now|until|before|at\s+all|just|only).*)",
    re.IGNORECASE | re.DOTALL,
)
NO_FILES = re.compile(
    rf"{NEGATION}(?:create|add|generate)\s+(?:any\s+|new\s+|extra\s+|additional\s+|a\s+)*"
    r"(?P<what>markdown|documentation|docs?|readme|summary)?\s*files?\b(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
NO_PACKAGES = re.compile(
    rf"(?:(?:{NEGATION})(?:add|introduce|install|pull\s+in|bring\s+in)|{WITHOUT}(?:adding|introducing"
    r"|installing)|(?P<no>(?:^|[,:(*-]\s*|\b(?:and|but|with|add)\s+)no))\s+"
    r"(?P<new>(?:any\s+|a\s+|new\s+|extra\s+|more\s+|further\s+|third[- ]party\s+|external\s+"
    r"|additional\s+|runtime\s+)*)(?:dependenc(?:y|ies)|packages?|librar(?:y|ies)|requirements)\b"
    r"(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
NO_START = re.compile(r"(?:^|[,:(*-]\s*|\b(?:and|but|with|add)\s+)no(?=\s)", re.IGNORECASE)
PROGRAMS = (
    "alembic|bun|cargo|conda|curl|docker|gh|git|gradle|helm|kubectl|make|mvn|npm|npx|pip|pip3|pnpm"
    "|poetry|prettier|psql|rm|rsync|scp|sed|ssh|sudo|terraform|uv|wget|yarn|black|pytest|tox|python"
)
RUN_FORBIDDEN = re.compile(
    rf"(?:{NEGATION}(?:run|execute|use)|{WITHOUT}(?:running|executing|using))\s+"
    rf"(?:the\s+|any\s+)*(?:`(?P<quoted>(?:{PROGRAMS})(?: [^`\n]{{1,60}})?)`"
    rf"|(?P<bare>(?:{PROGRAMS})(?:\s+[a-z][a-z-]*)?)(?=\s*(?:$|[.,;:!?)]|here|at\s+all|unless)))"
    r"(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
GIT_FORBIDDEN = re.compile(
    rf"{NEGATION}(?P<verb>git\s+commit|git\s+push|commit|force[- ]?push|push|rebase)"
    r"(?P<rest>\s*(?:$|[.,;:!?()]|(?:any\w*|your|the|my|it|them|this|these|changes|code|commits?|yet"
    r"|until|unless|without|or|and|directly|by|on\s+your"
    r"|to\s+(?:the\s+|a\s+)?`?(?:main|master|origin|remote|github|git|dev\w*|prod\w*|release\w*|repo\w*"
    r"|branch\w*))\b).*)",
    re.IGNORECASE | re.DOTALL,
)
PARTIAL_OBJECT = re.compile(
    r"(?:\s+(?:and|or)\s+(?:push|commit))?\s+(?:the|my|your|this|that|these|those)\s+"
    r"(?!(?:[\w-]+\s+){0,2}(?:changes?|code|work|commits?|branch\w*|edits?|fix\w*|results?|diff|patch"
    r"|repo\w*)\b|(?:yet|until|unless|without|or|and|to|directly|by|for|before|when|if)\b)\w",
    re.IGNORECASE,
)
"""After `do not commit`: something that is not all of the work."""
PURPOSE = re.compile(
    r"(?![^.;!?]*\b(?:because|since|need|have|has|takes?|wants?)\b)"
    r"[^.;!?]*\bto\s+(?!(?:the|an?|my|your|this|that)\b)[a-z]",
    re.IGNORECASE,
)
"""After `do not run X`: what not to run it for, which leaves other uses of it."""
PACKAGE_TOOLS = "bun|npm|pnpm|yarn|pip|uv|poetry|pipenv|conda"
PREFERRED_TOOL = re.compile(
    rf"\buse\s+`?(?P<good>{PACKAGE_TOOLS})`?,?\s+(?:and\s+)?(?:not|never|instead\s+of|rather\s+than)\s+"
    rf"`?(?P<bad>{PACKAGE_TOOLS})\b",
    re.IGNORECASE,
)
SIGNATURE = re.compile(
    rf"(?:(?:{NEGATION})(?:{CHANGE_VERB}|break)|{WITHOUT}(?:{CHANGING_VERB}|breaking)|\b(?:keep|preserve))\s+"
    r"(?:`(?P<owner>\w+)(?:\(\))?`['’]s\s+|the\s+|any\s+|its\s+|their\s+|existing\s+|public\s+|function\s+|method\s+)*"
    r"signatures?\b(?:\s+of\s+(?:the\s+)?`?(?P<name>\w+)(?:\(\))?`?)?",
    re.IGNORECASE,
)
INDENTATION = re.compile(
    r"\b(?:use|indent\s+with)\s+(?P<good>tabs|spaces)(?=\s*(?:$|[.,;!)]|for\s+indent|instead|rather"
    r"|not\b|and\s+not))|\b(?P<first>tabs|spaces),?\s+not\s+(?:tabs|spaces)\b",
    re.IGNORECASE,
)
CLAUSE_END = re.compile(
    r"\b(?:unless|except|if|when|where|while|but|because|since|so that|as they|as it|until|before"
    r"|instead|rather|yet|for now|only|just|without)\b|[;!?]|\.(?=\s|$)| [–—-]+ ",
    re.IGNORECASE,
)
UNLESS_ASKED = re.compile(
    r"\A\W*(?:unless|except|if|when|until|before|without)\b.{0,30}?\b(?:ask|asked|asking|told|tell|say"
    r"|said|request|requested|approv\w*|permission|confirm\w*|instructed)\b",
    re.IGNORECASE | re.DOTALL,
)
CONDITION = re.compile(r"\A\W*(?:unless|except|if|when|where|while|without)\b", re.IGNORECASE)
NAMED_FOLDER = re.compile(r"`?([\w.@-]+(?:/[\w.@-]+)*)/?`?\s+(?:folder|directory|dir)\b")
SLASHED_PATH = re.compile(
    r"(?:\A\W*(?:the\s+)?|,\s*|\b(?:in|inside|within|of|outside|under|below)\s+(?:the\s+)?)"
    r"((?:[\w.@*-]+/)+[\w.@*-]*)"
)
FILLER_WORD = re.compile(
    r"\b(?:the|this|that|these|any|any\s+of|all|my|our|your|existing|current|generated|or|and|files?"
    r"|folders?|director(?:y|ies)|modules?|packages?|scripts?|code|anything|contents?|in|under|inside"
    r"|within|of|at|tests?|cases?|config\w*|source|like|such\s+as|e\.g\.)(?![\w/.])",
    re.IGNORECASE,
)
KNOWN_FILE = re.compile(
    r"(?<![\w./-])(?:Makefile|Dockerfile|Gemfile|Jenkinsfile|\.env|\.github|\.gitignore)(?![\w/-])"
)
WANTS_TESTS = re.compile(
    r"(?:^|[.!,;*-]\s*|\b(?:and|then|please|also|to)\s+)(?:add|write|extend|update|fix|include|create)\s+"
    r"(?:\w+\s+){0,4}?tests?\b",
    re.IGNORECASE | re.MULTILINE,
)
TEST_WORDS = re.compile(
    r"\A\W*(?:the\s+|any\s+|of\s+|existing\s+|unit\s+|your\s+|our\s+|all\s+|other\s+|provided\s+)*"
    r"tests?\b(?!/|\s+(?:data|command|runner|script|plan|logic))",
    re.IGNORECASE,
)

NUMBERED_ITEM = re.compile(r"^[ \t]*(\d{1,2})[.)][ \t]+(\S[^\n]*)", re.MULTILINE)
REPRODUCE_STEP = re.compile(
    r"\breproduc\w+\b|\bconfirm the (?:error|bug|issue|failure|problem)\b|\bfailing test\b",
    re.IGNORECASE,
)
CHANGE_STEP = re.compile(
    r"\W*(?:(?:then|next|now|and|finally)\W+)?"
    r"(?:edit|fix|change|modify|implement|repair|patch|resolve|make the (?:change|fix))\b",
    re.IGNORECASE,
)
LOOSE_STEP = re.compile(
    r"\b(?:optional\w*|recommend\w*|suggest\w*|might|may|could|consider|if (?:possible|needed|you)"
    r"|try to|for example|e\.g|example)\b",
    re.IGNORECASE,
)
"""A step, or a list of them, that leaves the choice."""
REPRODUCE_FIRST = re.compile(
    r"\b(?:first\b,?\s+reproduce|reproduce\b[^.;]{0,80}?(?:\bfirst\b(?!\s+(?:time|place))"
    r"|\bbefore\s+(?:you\s+)?(?:chang|edit|fix|touch|modify)))",
    re.IGNORECASE,
)
