"""Converts tool calls of any agent and their results to events: commands, edits, reads, …"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from operator import attrgetter
from shlex import join
from typing import Any, Literal, NamedTuple

import msgspec

from closeloop.records.record import Record
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Note,
    Read,
    Thought,
    ToolUse,
)
from closeloop.text.wording import compile_lazily
from closeloop.traces.untrusted_json import as_exit_code, as_mapping, try_decode_json

# Edits and shell lines written as text: SEARCH/REPLACE blocks, fences, patches, prose.


_SEARCH = compile_lazily(r"\A<{5,9} SEARCH>?\s*\Z")
_MIDDLE = compile_lazily(r"\A={5,9}\s*\Z")
_REPLACE = compile_lazily(r"\A>{5,9} REPLACE\s*\Z")
_FENCE = "```"
BEGIN, END = "*** Begin Patch", "*** End Patch"
_ACTION_BY_HEADER: dict[str, Literal["create", "change", "delete"]] = {
    "*** Add File: ": "create",
    "*** Update File: ": "change",
    "*** Delete File: ": "delete",
}
_ACTION_BY_CHANGE_TYPE: dict[str, Literal["create", "change", "delete"]] = {
    "add": "create",
    "delete": "delete",
}
_SHELL_BEFORE_PATCH = compile_lazily(r"\A\s*(?:cd [^\n&|;]+ && )?apply_patch\b[^\n]*\n?\Z")
_SHELL_AFTER_PATCH = compile_lazily(r"\A\s*['\"]?\w*['\")]?\s*\Z")
_PIECE = compile_lazily(
    r"""(?P<plain>[^ \t\r\n\\'"]+)|(?P<space>[ \t\r\n]+)|'(?P<single>[^']*)'|"""
    r""""(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|\\(?P<escaped>.)""",
    re.DOTALL,
)
_ESCAPED = compile_lazily(r'\\(["\\])')


class EditBlock(Record):
    """One replacement of text."""

    path: str
    before: str
    after: str


def parse_edit_blocks(text: str) -> Iterator[EditBlock]:
    """Yield every complete block, with the file named above it or above the one before."""
    path = ""
    lines_above: list[str] = []
    before: list[str] | None = None
    after: list[str] | None = None
    for line in text.split("\n"):
        if before is None:
            if _SEARCH.match(line):
                path, before = _path_above(lines_above) or path, []
                lines_above = []
            else:
                lines_above = [*lines_above[-2:], line]
        elif _REPLACE.match(line) and after is not None:
            yield EditBlock(
                path=path or "unknown", before=_join_lines(before), after=_join_lines(after)
            )
            before = after = None
        elif _MIDDLE.match(line) and after is None:
            after = []
        elif after is None:
            before.append(line)
        else:
            after.append(line)


def _join_lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _path_above(lines_above: list[str]) -> str:
    """Return the file's name: the nearest line above that is neither empty nor a fence."""
    for line in reversed(lines_above):
        plain = line.strip().strip("`*#: ").strip()
        if line.lstrip().startswith(_FENCE):
            # Some formats name the file on the fence itself.
            if "/" in plain or "." in plain:
                return plain
            continue
        if plain:
            match = re.search(r"lines in (\S+)\Z", plain)
            return match[1] if match else plain
    return ""


def parse_fenced_changes(text: str, path: str) -> tuple[str | None, str | None]:
    """Return the new content of a file, and its diff, from the fences of a reply."""
    after: str | None = None
    diffs: list[str] = []
    name, fenced_lines, kind, line_above = path.rpartition("/")[2], [""], "", ""
    is_open = False
    for line in text.split("\n"):
        if not line.startswith(_FENCE):
            if is_open:
                fenced_lines.append(line)
            elif line.strip():
                line_above = line.strip().strip("`*#: ")
            continue
        if not is_open:
            is_open, fenced_lines, kind = True, [], line[3:].strip()
            continue
        is_open = False
        if kind == "diff" and any(
            line[:4] in ("--- ", "+++ ") and name in line for line in fenced_lines[:2]
        ):
            diffs.append(_join_lines(fenced_lines))
        elif line_above in (path, name) or line_above.endswith(f"/{name}"):
            after = _join_lines(fenced_lines)
        line_above = ""
    return after, "".join(diffs) or None


class FilePatch(NamedTuple):
    """The change of a patch to one file."""

    path: str
    action: Literal["create", "change", "delete", "move"]
    after: str | None = None
    patch: str | None = None


def files_in_patch(text: str) -> list[FilePatch]:
    """Return the files of a patch, in order; empty if it is not one."""
    files = []
    for head, path, body in _iter_sections(text):
        if head == "*** Add File: ":
            lines = [line[1:] for line in body if line.startswith("+")]
            files.append(FilePatch(path, "create", after="\n".join(lines) + "\n"))
            continue
        moved = bool(body) and body[0].startswith("*** Move to: ")
        section = "\n".join([head + path, *body])
        files.append(FilePatch(path, "move" if moved else _ACTION_BY_HEADER[head], patch=section))
    return files


def _iter_sections(text: str) -> Iterator[tuple[str, str, list[str]]]:
    section: tuple[str, str] | None = None
    body: list[str] = []
    for line in text.splitlines():
        if not line.startswith("*** ") or line.startswith(("*** Move to: ", "*** End of File")):
            body.append(line)
            continue
        if section is not None:
            yield *section, body
        head = next((head for head in _ACTION_BY_HEADER if line.startswith(head)), None)
        section = (head, line[len(head) :].strip()) if head else None
        body = []
    if section is not None:
        yield *section, body


def files_in_command(command: str) -> list[FilePatch]:
    """Return the files of a patch in a shell line, which Codex applies without a shell."""
    start, end = command.find(BEGIN), command.rfind(END)
    if start < 0 or end < start:
        return []
    before, after = command[:start], command[end + len(END) :]
    if not _SHELL_BEFORE_PATCH.match(before.rstrip("'\"")) or not _SHELL_AFTER_PATCH.match(after):
        return []
    return files_in_patch(command[start:end])


def files_in_changes(changes: Any) -> list[FilePatch]:
    """Return the files of a change, as Codex reports it afterwards."""
    files = []
    # Codex writes them in no fixed order.
    for path, change in sorted(as_mapping(changes).items(), key=lambda item: item[0]):
        change_fields = as_mapping(change)
        kind, content = change_fields.get("type"), change_fields.get("content")
        if kind == "add" and isinstance(content, str):
            files.append(FilePatch(str(path), "create", after=content))
            continue
        diff = change_fields.get("unified_diff")
        action = (
            "move"
            if change_fields.get("move_path")
            else _ACTION_BY_CHANGE_TYPE.get(str(kind), "change")
        )
        patch = diff if isinstance(diff, str) else None
        files.append(FilePatch(str(path), action, patch=patch))
    return files


def split_shell_words(line: str) -> list[str]:
    """ValueError if a quotation does not end."""
    split_words: list[str] = []
    pieces: list[str] = []
    position = 0
    while position < len(line):
        piece = _PIECE.match(line, position)
        if piece is None:
            raise ValueError("no closing quotation")
        position, text = piece.end(), piece[piece.lastgroup or 0]
        if piece.lastgroup != "space":
            pieces.append(_ESCAPED.sub(r"\1", text) if piece.lastgroup == "double" else text)
        elif pieces:
            split_words.append("".join(pieces))
            pieces = []
    return [*split_words, "".join(pieces)] if pieces else split_words


ToolKind = Literal["command", "create", "change", "read", "handoff", "question", "claim", "other"]

TOOL_NAMES: dict[ToolKind, str] = {
    "command": """bash bash_command container.exec exec_command execute_bash execute_command
        local_shell powershell run run_command run_command_in_terminal run_in_terminal
        run_shell_command run_terminal_cmd shell shell_command terminal""",
    "create": "create create_file save_file write write_file write_to_file",
    "change": """apply_diff apply_patch edit edit_file file_editor insert_content multi_edit
        multiedit notebookedit patch replace replace_in_file search_and_replace search_replace
        str_replace str_replace_based_edit_tool str_replace_editor text_editor""",
    "read": "cat notebookread open_file read read_file read_many_files view view_file",
    "handoff": "agent delegate delegate_to_agent invoke_agent new_task spawn_agent subagent task",
    "question": """ask ask_followup_question ask_question ask_user ask_user_question askuserquestion
        question request_user_input""",
    "claim": "attempt_completion complete finish submit task_complete",
}
KIND_BY_TOOL_NAME: dict[str, ToolKind] = {
    name: kind for kind, names in TOOL_NAMES.items() for name in names.split()
}

_COMMAND_KEYS = ("command", "cmd", "script", "input", "code")
_PATH_KEYS = ("file_path", "path", "filePath", "absolute_path", "notebook_path", "filename", "file",
          "target_file", "AbsolutePath", "absolutePath")  # fmt: skip
_OLD_TEXT_KEYS = ("old_string", "old_str", "oldString", "old_text", "search", "oldText")
_NEW_TEXT_KEYS = ("new_string", "new_str", "newString", "new_text", "replace", "newText",
        "new_source")  # fmt: skip
_CONTENT_KEYS = ("content", "contents", "text", "file_text", "code")
_BRIEF_KEYS = ("prompt", "brief", "message", "task", "description", "instructions", "objective")
_QUESTION_KEYS = ("question", "text", "prompt", "message", "query")
_SHELL_FLAG = compile_lazily(r"-[a-z]*c")
_CLAIM_KEYS = ("result", "summary", "message", "output", "answer")
_SPOKEN_TYPES = frozenset({Message, Thought, Note})
_MAX_WRAPPED_CHARS = 1 << 20
_ERROR_PREFIXES = ("Error", "ERROR", "error", "Failed", "failed")
_FAILURE_WORDS = compile_lazily(
    r"\b(?:error|fail|unsuccessful|not found|no replacement)", re.IGNORECASE
)
_SUCCESS_WORDS = compile_lazily(
    r"\bsuccess|\bhas been (?:created|edited|overwritten|replaced|updated|written)\b", re.IGNORECASE
)
_RESULT_FIELDS: dict[type[AnyEvent], Callable[[AnyEvent], tuple[object, ...]]] = {
    Command: attrgetter("output", "exit_code", "stopped"),
    Edit: attrgetter("ok", "error"),
    Read: attrgetter("ok", "text", "error"),
    ToolUse: attrgetter("ok", "output"),
    Handoff: attrgetter("ok", "report"),
}
"""Fields that only a result fills."""
_EXIT_CODE_MARKERS = ("exit code", "exited with code", "[exit_code]", "<returncode>")
_OPENING_EXIT_CODE = compile_lazily(r"(?:Error: )?Exit code:? (-?\d+)")
_EXIT_CODE_PATTERNS = (
    compile_lazily(r"^Process exited with code (-?\d+)", re.MULTILINE),
    compile_lazily(r"^<returncode>(-?\d+)</returncode>", re.MULTILINE),
    compile_lazily(r"\A(?s:.*)(?:completed|exited) with exit code (-?\d+)>"),
    compile_lazily(r"^\[exit_code\] (-?\d+)", re.MULTILINE),
    compile_lazily(r"^Exit Code: (-?\d+)", re.MULTILINE),
    compile_lazily(
        r"^\[(?:The command completed|Command finished) with exit code (-?\d+)\.?\]", re.MULTILINE
    ),
    compile_lazily(r"^exit code:? (-?\d+)$", re.MULTILINE | re.IGNORECASE),
)


class CallOrigin(Record):
    """The position of a call, shared by its events."""

    number: int
    lane: str
    turn: int | None = None
    at: datetime | None = None
    call: str | None = None


def tool_kind(name: str) -> ToolKind:
    """By the tool's name alone; for an MCP server's tool, by the last part."""
    if (kind := KIND_BY_TOOL_NAME.get(name)) is not None:
        return kind
    short_name = name.lower().rpartition("/")[2]
    return (
        KIND_BY_TOOL_NAME.get(short_name)
        or KIND_BY_TOOL_NAME.get(short_name.rpartition("__")[2])
        or "other"
    )


def event_from_call(name: str, arguments: Mapping[str, Any] | None, origin: CallOrigin) -> AnyEvent:
    """Return the event of a call, without its result."""
    fields = arguments if isinstance(arguments, dict) else {}
    base: dict[str, Any] = msgspec.structs.asdict(origin)
    kind = tool_kind(name)
    if name == "exec" and isinstance(fields.get("command"), str):
        # Other agents have a tool of this name that takes a script.
        kind = "command"
    path = text_argument(fields, _PATH_KEYS) if kind in ("create", "change", "read") else None
    if kind == "change" and fields.get("command") in ("view", "create"):
        # One editor tool for all edits: `command` says what it does.
        kind = "read" if fields["command"] == "view" else "create"
    if kind == "command" and (command := command_argument(fields)) is not None:
        directory = text_argument(fields, ("workdir", "cwd", "directory", "dir_path"))
        return Command(**base, command=command, directory=directory)
    if kind == "create" and path is not None:
        return Edit(**base, path=path, action="create", after=text_argument(fields, _CONTENT_KEYS))
    if kind == "change" and path is not None:
        edits = fields.get("edits")
        first = edits[0] if isinstance(edits, list) and edits else None
        replacement = first if isinstance(first, Mapping) else fields
        patch = text_argument(fields, ("patch", "diff", "input"))
        return Edit(
            **base,
            path=path,
            before=text_argument(replacement, _OLD_TEXT_KEYS),
            after=text_argument(replacement, _NEW_TEXT_KEYS),
            patch=patch,
        )
    if kind == "read" and path is not None:
        return Read(**base, path=path)
    if kind == "handoff" and (brief := text_argument(fields, _BRIEF_KEYS)) is not None:
        return Handoff(**base, brief=brief)
    if kind == "question" and (question := question_argument(fields)) is not None:
        return Message(**base, role="agent", text=question, intent="question")
    if kind == "claim" and (claim := text_argument(fields, _CLAIM_KEYS)) is not None:
        return Message(**base, role="agent", text=claim, intent="claim")
    return ToolUse(**base, name=name, arguments=dict(fields) if arguments is not None else None)


def has_result(event: AnyEvent) -> bool | None:
    """Whether the result of a call is known; None if it is not a call."""
    facts_of = _RESULT_FIELDS.get(type(event))
    if facts_of is None:
        return None
    facts = facts_of(event)
    return facts.count(None) < len(facts)


def text_argument(arguments: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the first of these arguments that is text."""
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str):
            return value
    return None


def command_argument(arguments: Mapping[str, Any]) -> str | None:
    """Return a command line, given as text or as a list of words."""
    for name in _COMMAND_KEYS:
        value = arguments.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            # Many agents wrap a line as `bash -lc LINE`.
            shell = len(value) == 3 and value[0].rpartition("/")[2] in ("bash", "sh", "zsh")
            return str(value[2]) if shell and _SHELL_FLAG.fullmatch(value[1]) else join(value)
    return None


def question_argument(arguments: Mapping[str, Any]) -> str | None:
    """Return the question to the user: a text, or the questions of a list."""
    questions = arguments.get("questions")
    if isinstance(questions, list):
        texts = [
            text_argument(question, _QUESTION_KEYS)
            for question in questions
            if isinstance(question, Mapping)
        ]
        return "\n".join(text for text in texts if text) or None
    return text_argument(arguments, _QUESTION_KEYS)


def find_exit_code(text: str | None) -> int | None:
    """Return the exit code that an output states in the known words of agents' tools."""
    if not text:
        return None
    edges = text if len(text) < 4000 else text[:2000] + "\n" + text[-2000:]
    lowered = edges.lower()
    if "exit" not in lowered and "<returncode>" not in lowered:
        return None
    candidate_lines = _lines_with_exit_code(edges, lowered)
    if not candidate_lines:
        return None
    if match := _OPENING_EXIT_CODE.match(edges):
        return as_exit_code(int(match[1]))
    for pattern in _EXIT_CODE_PATTERNS:
        if match := pattern.search(candidate_lines):
            return as_exit_code(int(match[1]))
    return None


def _lines_with_exit_code(text: str, lowered: str) -> str:
    """Return the lines that may state it: outputs are long and many."""
    if len(lowered) != len(text):
        return text  # one letter became two: offsets differ between the texts
    lines: set[tuple[int, str]] = set()
    for marker in _EXIT_CODE_MARKERS:
        position = lowered.find(marker)
        while position >= 0:
            start, end = text.rfind("\n", 0, position) + 1, text.find("\n", position)
            end = end if end >= 0 else len(text)
            lines.add((start, text[start:end]))
            position = lowered.find(marker, end)
    return "\n".join(line for _, line in sorted(lines))


def result_fields(event: AnyEvent, output: str | None, ok: bool | None = None) -> dict[str, object]:
    """Return the fields of an action that its result fills."""
    if output and ok is None and isinstance(event, Edit):
        ok = _edit_success(output)
    failed = output if ok is False else None
    match event:
        case Command():
            code = find_exit_code(output)
            if code is None and output and output.startswith('{"') and '"exit_code"' in output:
                output, code = _unwrap_output(output)
            exit_from = None if code is None else "parsed"
            return {"output": output, "exit_code": code, "exit_from": exit_from}
        case Edit():
            return {"ok": ok, "error": failed}
        case Read():
            return {"ok": ok, "error": failed, "text": None if failed else output}
        case ToolUse():
            return {"output": output, "ok": ok}
        case Handoff():
            return {"report": output, "ok": ok}
    return {}


def _edit_success(output: str) -> bool | None:
    """Whether an edit was made, if the first words of its result say so."""
    if output.startswith('{"success":'):
        return output[11:].lstrip().startswith("true")
    first = output.lstrip().partition("\n")[0][:300]
    if _FAILURE_WORDS.search(first):
        return False if first.startswith(_ERROR_PREFIXES) else None
    return True if _SUCCESS_WORDS.search(first) else None


def _unwrap_output(output: str) -> tuple[str, int | None]:
    """Return a command's output and exit code, if a tool reports both in an object."""
    fields = as_mapping(try_decode_json(output)) if len(output) < _MAX_WRAPPED_CHARS else {}
    code = as_exit_code(
        fields.get("exit_code", as_mapping(fields.get("metadata")).get("exit_code"))
    )
    printed = fields.get("output")
    if code is None or not isinstance(printed, str):
        # It may be what the command itself printed.
        return output, None
    return printed, code


def is_action(event: AnyEvent) -> bool:
    """Whether it is an action, not a message."""
    return type(event) not in _SPOKEN_TYPES
