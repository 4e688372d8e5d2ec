"""System prompts as versions: what changes from session to session makes no other version.

Programs write the date, the folder, the state of git, the machine and the model into the prompt
that they send. Two prompts are one version when they are equal after that is taken out; the text
is stored as it was first seen.
"""

from __future__ import annotations

import re

from closeloop.records.record import content_digest
from closeloop.records.task import PromptSource, PromptVersion

CONTEXT_HEADING = "## What this repository's reviewers taught"
"""How the context begins that we add ourselves, which differs from task to task."""
MAX_PROMPT_CHARS = 400_000

_SECTIONS = re.compile(
    r"<(env|environment_context|environment_details|environment|files|git_status|system_info"
    r"|RUNTIME_INFORMATION|project_structure|directories)>.*?</\1>",
    re.DOTALL,
)
_GIT_STATUS = re.compile(r"^gitStatus:.*\Z", re.DOTALL | re.MULTILINE)
_CONTEXT = re.compile(
    rf"{re.escape(CONTEXT_HEADING)}\n"
    r"(?:\n|The lines in quotes [^\n]*\n|- [^\n]*(?:\n|\Z)|What agents said they lacked here:\n)*"
)
_LABELS = (
    r"(?:primary |current )?working directory|(?:current )?directory|cwd"
    r"|workspace(?: root| folder)?"
    r"|is (?:directory |this )?a git repo(?:sitory)?|platform|os version|operating system|os|shell"
    r"|default shell|home directory|user(?:name)?|hostname|(?:today'?s?|the current|current) "
    r"(?:date|time)|date|time|timezone|session(?: id)?|git branch|current branch|main branch"
    r"|git user|x-anthropic-billing-header"
)
_LABELLED = re.compile(
    rf"^([ \t]*[-*]?[ \t]*(?:{_LABELS})[ \t]*(?::|\bis\b)[ \t]*)(\S[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_DIRECTORY_LABEL = re.compile(r"directory|cwd|workspace", re.IGNORECASE)
_MODEL = re.compile(
    r"You are powered by the model[^\n]*|(?:The exact )?model ID is [^\n]*"
    r"|Assistant knowledge cutoff is [^\n]*",
    re.IGNORECASE,
)
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?,?[ ]+)?"
_DATE = re.compile(
    rf"\b(?:\d{{4}}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    rf"|{_DAY}{_MONTH}\.?[ ]+\d{{1,2}}(?:st|nd|rd|th)?,?[ ]+\d{{4}}"
    rf"|{_DAY}\d{{1,2}}[ ]+{_MONTH}\.?,?[ ]+\d{{4}}|\d{{1,2}}/\d{{1,2}}/\d{{4}})"
    r"(?:,?[ ]+\d{1,2}:\d\d(?::\d\d)?(?:[ ]?[ap]m)?)?",
    re.IGNORECASE,
)
_PATH = re.compile(
    r"(?:/(?:home|Users)/[^\s/\"'`<>)]+|/root|/tmp|/private/(?:tmp|var)|/var/folders|/workspaces?"
    r"|[A-Z]:\\Users\\[^\s\\\"'`<>)]+)(?:[/\\][^\s\"'`<>),;:]*)?"
)
_ADDRESS = re.compile(r"\b((?:localhost|127\.0\.0\.1|\[::1\])):\d{2,5}\b")
_IDENTIFIER = re.compile(
    r"\b(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{12,64})\b"
)


def normalise_system_prompt(text: str) -> str:
    """A system prompt with names in the place of what changes from session to session."""
    text = text[:MAX_PROMPT_CHARS].replace("\r\n", "\n")
    for match in _LABELLED.finditer(text):
        directory = match[2].strip().strip("`'\"")
        if _DIRECTORY_LABEL.search(match[1]) and directory.startswith(("/", "~", "C:\\")):
            text = text.replace(directory, "⟨directory⟩") if len(directory) > 1 else text
    text = _SECTIONS.sub(lambda match: f"⟨{match[1].lower()}⟩", text)
    text = _GIT_STATUS.sub("⟨git status⟩", text)
    text = _CONTEXT.sub("⟨agent context⟩\n", text)
    text = _MODEL.sub("⟨model⟩", text)
    text = _LABELLED.sub(lambda match: f"{match[1]}⟨value⟩", text)
    text = _DATE.sub("⟨date⟩", text)
    text = _PATH.sub("⟨path⟩", text)
    text = _ADDRESS.sub(r"\1:⟨port⟩", text)
    text = _IDENTIFIER.sub("⟨id⟩", text)
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))


def build_prompt_version(
    text: str | None,
    source: PromptSource,
    agent: str | None = None,
    name: str | None = None,
) -> PromptVersion | None:
    """The version that a system prompt is, as it was seen or written down; None without a text."""
    if text is None or not text.strip():
        return None
    return PromptVersion(
        id=content_digest("system prompt", normalise_system_prompt(text)),
        text=text,
        source=source,
        agent=agent,
        name=name,
    )
