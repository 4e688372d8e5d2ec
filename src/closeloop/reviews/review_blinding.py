"""Take the names of agents, models and variants out of what reviewers see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from closeloop.records.record import Record
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Variant
from closeloop.records.trace import AnyEvent, Handoff, Message, Trace

MASK = "[masked]"
MIN_NAME_CHARS = 3
"""Shorter names are words of the text as well, and no agent knows what its variant is called."""
_GENERIC_NAME = re.compile(
    "agent|assistant|beta|chat|cli|code|coder|fast|file|flash|free|high|instruct|json|large|latest"
    "|light|local|low|max|mini|model|nano|open|plus|preview|pro|recorded|scripted|small|swe|test"
    "|text|thinking|toml|tool|turbo|ultra|yaml|yml",
    re.IGNORECASE,
)
"""Words of names that are words of every text, too."""
_NAME_WORD = re.compile(r"[A-Za-z]{3,}")
_VERSION = r"(?:[-_ ]?v?\d[\w.]*)*"
_ADDED_FILE_HEADS = ("diff --git ", "rename to ", "copy to ", "Binary files ")
"""Lines of a patch that name a file as it is afterwards."""
_STRUCTURAL_FIELDS = ("lane", "call", "role", "intent", "action", "exit_from", "child")


class NameMask(Record):
    """What tells who made an attempt."""

    everywhere: tuple[str, ...]
    """Names of agents and models, as they may call themselves."""
    variants: tuple[str, ...] = ()
    """Names that only people give: taken out of words, not out of code."""

    def hide_in_words(self, text: str) -> str:
        """A message or a piece of a trace without any of the names."""
        return _replace_names(text, (*self.everywhere, *self.variants))

    def hide_in_patch(self, patch: str, request: str) -> str:
        """A change without the agents' names in the lines and the files that it adds."""
        names = self._find_foreign_names(patch, request)
        lines = patch.split("\n")
        return "\n".join(_replace_names(line, names) if _is_added(line) else line for line in lines)

    def hide_in_paths(self, paths: Iterable[str], patch: str, request: str) -> tuple[str, ...]:
        """The files of a change, as its patch names them then."""
        names = self._find_foreign_names(patch, request)
        return tuple(_replace_names(path, names) for path in paths)

    def _find_foreign_names(self, patch: str, request: str) -> tuple[str, ...]:
        """A name that the request or the repository uses is part of the subject: it stays."""
        lines = (line for line in patch.split("\n") if line.startswith((" ", "-", "rename from ")))
        subject = "\n".join([request, *lines])
        return tuple(
            name for name in self.everywhere if not _compile_names((name,)).search(subject)
        )


def make_name_mask(variants: Iterable[Variant], models: Mapping[str, ModelSettings]) -> NameMask:
    """The names of some variants; `models` are those that closeloop.toml gives names to."""
    everywhere: dict[str, None] = {}
    own: dict[str, None] = {}
    for variant in variants:
        settings = models.get(variant.model or "")
        configured = f"{settings.provider}/{settings.model}" if settings else ""
        for name in (variant.agent, variant.model or "", configured):
            everywhere |= dict.fromkeys(_name_forms(name))
        own[variant.name] = None
    return NameMask(
        everywhere=tuple(name for name in everywhere if len(name) >= MIN_NAME_CHARS),
        variants=tuple(name for name in own if len(name) >= MIN_NAME_CHARS),
    )


def mask_trace(trace: Trace, mask: NameMask) -> Trace:
    """What happened, without names, and without system prompts: those tell variants apart."""
    events = tuple(
        _mask_event(event, mask)
        for event in trace.events
        if not (isinstance(event, Message) and event.role == "system")
    )
    lanes = tuple(msgspec.structs.replace(lane, agent=None, turns=()) for lane in trace.lanes)
    return msgspec.structs.replace(trace, reader="", lanes=lanes, events=events, skipped={})


def _mask_event(event: AnyEvent, mask: NameMask) -> AnyEvent:
    changed = {
        name: _mask_value(value, mask)
        for name in event.__struct_fields__
        if name not in _STRUCTURAL_FIELDS and isinstance(value := getattr(event, name), str | dict)
    }
    if isinstance(event, Handoff):
        changed["child"] = None
    return msgspec.structs.replace(event, **changed)


def _mask_value(value: Any, mask: NameMask) -> Any:
    if isinstance(value, str):
        return mask.hide_in_words(value)
    if isinstance(value, dict):
        return {key: _mask_value(item, mask) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_value(item, mask) for item in value]
    return value


def _name_forms(name: str) -> list[str]:
    """`anthropic/claude-sonnet-4-5` also as its last part, and by the words it calls itself."""
    last = re.split(r"[/:]", name)[-1]
    spaced = re.sub(r"[-_]+", " ", last)
    forms = (name, last, spaced, *_NAME_WORD.findall(name))
    return [form for form in forms if not _GENERIC_NAME.fullmatch(form)]


def _replace_names(text: str, names: tuple[str, ...]) -> str:
    return _compile_names(names).sub(MASK, text) if names else text


@lru_cache(64)
def _compile_names(names: tuple[str, ...]) -> re.Pattern[str]:
    wanted = sorted({re.escape(name) for name in names}, key=len, reverse=True)
    pattern = rf"(?<![A-Za-z0-9])(?:{'|'.join(wanted)}){_VERSION}(?![A-Za-z])"
    return re.compile(pattern, re.IGNORECASE)


def _is_added(line: str) -> bool:
    return line.startswith(("+", *_ADDED_FILE_HEADS))
