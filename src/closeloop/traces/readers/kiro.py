"""Kiro CLI, formerly Amazon Q: conversations in its database, or one document each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Session
from closeloop.sqlite_files import find_journal, open_database, table_columns
from closeloop.traces.file_source import is_database
from closeloop.traces.message_parts import MessageLog, MessagePart
from closeloop.traces.session_builder import SessionBuilder, count_skip, derive_id
from closeloop.traces.untrusted_json import (
    as_exit_code,
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    text_or_json,
    time_from_text,
    try_decode_json,
)

name = "kiro"
version = 1

_TABLES = ("conversations_v2", "conversations")
MAX_PROBED_ROWS = 20
"""Rows examined, because other programs have a table with this name."""
_CALL_NAMES = {"execute_cmd": "bash", "fs_write": "str_replace_editor", "fs_read": "read_file"}


def recognises(source: RecordingSource) -> bool:
    if not is_database(source):
        return b'"conversation_id"' in source.head and _is_conversation(source.document)
    try:
        with open_database(source.path) as base:
            rows = islice(_iter_rows(base), MAX_PROBED_ROWS)
            return any(_is_conversation(document) for _, document in rows)
    except (sqlite3.Error, OSError, ValueError):
        return False


def _iter_rows(base: sqlite3.Connection) -> Iterator[tuple[object, Any]]:
    """Yield the stored value of each folder, from the tables of newer and older versions."""
    for table in _TABLES:
        if {"key", "value"} <= table_columns(base, table):
            for key, value in base.execute(f"SELECT key, value FROM {table} ORDER BY key"):  # noqa: S608
                yield key, try_decode_json(value)


def _is_conversation(document: object) -> bool:
    record = as_mapping(document)
    history = record.get("history")
    if not isinstance(record.get("conversation_id"), str) or not isinstance(history, list):
        return False
    first = as_mapping(next(iter(history), None))
    return "content" in as_mapping(first.get("user")) and "assistant" in first


def parts(source: RecordingSource) -> Sequence[Path]:
    pending = find_journal(source.path) if is_database(source) else None
    return [pending] if pending else ()


def read(source: RecordingSource) -> Iterator[Session]:
    if not is_database(source):
        yield _KiroSession(source.skipped, None).build_session(as_mapping(source.document))
        return
    try:
        with open_database(source.path) as base:
            for key, document in _iter_rows(base):
                if _is_conversation(document):
                    directory = key if isinstance(key, str) else None
                    yield _KiroSession(source.skipped, directory).build_session(document)
                else:
                    count_skip(source.skipped, "a conversation without messages")
    except (sqlite3.Error, OSError, ValueError):
        count_skip(source.skipped, "a database that cannot be read to its end")


class _KiroSession:
    """One conversation: alternating input of the user or tools, and answers."""

    def __init__(self, skipped: dict[str, int], directory: str | None) -> None:
        self.builder = SessionBuilder(name, version, skipped, several=True)
        self.directory = directory
        self._exit_code: int | None = None
        self._log = MessageLog(
            self.builder, change_call=_change_call, parse_exit_code=lambda text: self._exit_code
        )

    def build_session(self, document: Mapping[str, Any]) -> Session:
        for raw_entry in as_list(document.get("history")):
            entry = as_mapping(raw_entry)
            self._add_user(as_mapping(entry.get("user")))
            self._add_assistant(as_mapping(entry.get("assistant")))
        stated_id = self.builder.text_or_none(document.get("conversation_id"))
        model = as_mapping(document.get("model_info")).get("model_id") or document.get("model")
        facts = self._log.session_facts() | {"model": self.builder.text_or_none(model)}
        return self.builder.build_session(
            id=stated_id or derive_id(name, text_or_json(document)),
            agent=name,
            directory=self.builder.text_or_none(self.directory),
            **facts,
        )

    def _add_user(self, user: Mapping[str, Any]) -> None:
        state = as_mapping(as_mapping(user.get("env_context")).get("env_state"))
        self.directory = self.directory or as_text(state.get("current_working_directory"))
        time = time_from_text(user.get("timestamp"))
        for fields in map(as_mapping, as_mapping(user.get("content")).values()):
            for raw_result in as_list(fields.get("tool_use_results")):
                self._add_result(as_mapping(raw_result))
            if prompt := as_text(fields.get("prompt")):
                self._log.add_message({"role": "user", "content": prompt}, time)

    def _add_result(self, result: Mapping[str, Any]) -> None:
        texts: list[str] = []
        self._exit_code = None
        for block in map(as_mapping, as_list(result.get("content"))):
            printed = as_mapping(block.get("Json"))
            if "exit_status" in printed:
                code = as_text(printed["exit_status"]) or ""
                self._exit_code = as_exit_code(int(code)) if code.lstrip("-").isdecimal() else None
                texts += [as_text(printed.get(key)) or "" for key in ("stdout", "stderr")]
            else:
                texts.append(as_text(block.get("Text")) or text_or_json(block.get("Json", "")))
        answer = {
            "type": "tool_result",
            "tool_use_id": result.get("tool_use_id"),
            "content": "\n".join(text for text in texts if text),
        }
        ok = {"Success": True, "Error": False}.get(as_text(result.get("status")) or "")
        self._log.add_message({"role": "user", "content": [answer]}, ok=ok)

    def _add_assistant(self, assistant: Mapping[str, Any]) -> None:
        for kind, record in assistant.items():
            fields = as_mapping(record)
            if kind not in ("Response", "ToolUse"):
                self.builder.add_note(json_excerpt(assistant), f"unknown: {kind}"[:100])
                continue
            calls = [
                {"type": "tool_use", "id": tool_use.get("id"), "name": tool_use.get("name"),
                 "input": tool_use.get("args")}
                for tool_use in map(as_mapping, as_list(fields.get("tool_uses")))
            ]  # fmt: skip
            text = [{"type": "text", "text": as_text(fields.get("content")) or ""}]
            self._log.add_message({"role": "assistant", "content": [*text, *calls]})


def _change_call(part: MessagePart) -> MessagePart:
    """Convert a call to the common form; of several files read, the first stands for all."""
    arguments = as_mapping(part.arguments)
    operations = as_list(arguments.get("operations"))
    if part.name == "fs_read" and operations:
        part = part._replace(arguments={**arguments, **as_mapping(operations[0])})
    return part._replace(name=_CALL_NAMES.get(part.name or "", part.name))
