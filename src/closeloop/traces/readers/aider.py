"""Aider's chat history: Markdown with any number of consecutive sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from closeloop.records.attempt import Exit, Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Edit, Read, Session, Turn
from closeloop.traces.session_builder import SessionBuilder, count_skip, derive_id
from closeloop.traces.tool_calls import parse_edit_blocks, parse_fenced_changes
from closeloop.traces.untrusted_json import make_usage, time_from_text

name = "aider"
version = 3

START_MARKER = "# aider chat started at "
MAX_LINE_CHARS = 1 << 20
_ANSWERED_YES = re.compile(r"(?:\?|\]:) ?(?:yes|y|a|all)\s*\Z")
_TOKENS = re.compile(
    r"\ATokens: ([\d.,kM]+) sent(?:, ([\d.,kM]+) cache write)?(?:, ([\d.,kM]+) cache hit)?,"
    r" ([\d.,kM]+) received\.(?:\s+Cost: \$([\d.]+) message)?"
)
_OLD_TOKENS = re.compile(
    r"\A([\d,]+) prompt tokens, ([\d,]+) completion tokens(?:, \$([\d.]+) cost)?"
)
_MODEL = re.compile(r"\A(?:Main model|Models?): (\S+?)(?:,| with |\s|\Z)")
_ADDED_FILE = re.compile(r"\AAdded (\S.*?) to the chat(?: \(read-only\))?\.?\Z")
_TEST_COMMAND = re.compile(r" --test-cmd (.+?)(?= --|\Z)")
_LINT_COMMAND = re.compile(r"^## Running: (.+)$", re.MULTILINE)
_TEST_SCRIPT = re.compile(r"^Test Script: (.+?);?\s*$", re.MULTILINE)
_RETURN_CODE = re.compile(r"\bReturn Code: (-?\d{1,6})\b")
_PROVIDER_ERROR = re.compile(r"\A(?:litellm\.|openai\.|The API provider)")
_CONSOLE_EVENT_PREFIXES = (
    "Attempt to fix ",
    "Commit ",
    "Running ",
    "^C KeyboardInterrupt",
    "Only ",
)


def recognises(source: RecordingSource) -> bool:
    head = source.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return re.match(rb"# aider chat started at \d{4}-\d\d-\d\d \d\d:\d\d", head) is not None


def read(source: RecordingSource) -> Iterator[Session]:
    chat: _AiderChat | None = None
    count_by_id: dict[str, int] = {}
    for line in _iter_lines(source):
        if line.startswith(START_MARKER):
            if chat is not None:
                yield from chat.build_session(count_by_id)
            chat = _AiderChat(source, line.removeprefix(START_MARKER).strip())
        elif chat is not None:
            chat.add_line(line)
    if chat is not None:
        yield from chat.build_session(count_by_id)


def _iter_lines(source: RecordingSource) -> Iterator[str]:
    try:
        with source.path.open(encoding="utf-8-sig", errors="replace", newline="\n") as file:
            while line := file.readline(MAX_LINE_CHARS):
                yield line.rstrip("\n").rstrip("\r")
    except OSError:
        reason = "a file that cannot be read to its end"
        count_skip(source.skipped, reason)


class _AiderChat:
    """One session, read line by line: `####` is the user, `>` the console, the rest the model."""

    def __init__(self, source: RecordingSource, started: str) -> None:
        self.builder = SessionBuilder(name, version, source.skipped, several=True)
        self.started = started
        self.state = ""
        self.text: list[str] = []
        self.in_block = False
        self.usage: Usage | None = None
        self.turns = 0
        self.console: list[str] = []
        self.pending: list[Edit] = []
        self.last = ""
        self.request: str | None = None
        self.version: str | None = None
        self.model: str | None = None
        self.test: str | None = None
        self.tests_itself = False
        """Whether it runs the tests after each reply that changes files."""
        self.untested = False
        """Whether files were changed since without a reported failure of a check."""
        self.fault: str | None = None
        self.limit: str | None = None
        self.asked = False
        self.trimmed: bool | None = None
        """Whether an editor removed trailing spaces; the user's first line shows it."""

    def add_line(self, line: str) -> None:
        line = self._restore_line_end(line)
        ends = line.endswith("  ")
        if self.state == "entry" and not (ends and line.startswith("#### ")):
            # An entry of several lines: only its first has the mark, only its last ends in spaces.
            self.text.append(line.removesuffix("  "))
            if ends:
                self._flush_text()
            return
        if self.in_block and not (ends and self._is_over(line)):
            self.in_block = not line.startswith(">>>>>>> REPLACE")
        elif line.startswith("#### ") and ends:
            self._enter_state("user")
            self.text.append(line[5:].removesuffix("  "))
            return
        elif line.startswith("> ") and (ends or self._begins_entry(line)):
            self._enter_state("console" if ends else "entry")
            self.text.append(line[2:].removesuffix("  "))
            if ends:
                self._flush_text(next_state="console")
            return
        if self.state != "agent" and not line.strip():
            if self.state == "user" and not self.trimmed:
                self._flush_text()
            return
        self._enter_state("agent")
        self.in_block = self.in_block or line.startswith("<<<<<<< SEARCH")
        self.text.append(line)

    def _restore_line_end(self, line: str) -> str:
        """Restore the two spaces that mark the end of a line."""
        if self.trimmed is None and line.startswith("#### ") and self.state != "agent":
            self.trimmed = not line.endswith("  ")
            if self.trimmed:
                self._flush_text()
        if self.trimmed and line.startswith(("#### ", "> ")):
            return f"{line}  "
        return f"{line}   " if self.trimmed and line in ("####", ">") else line

    def _is_over(self, line: str) -> bool:
        """Whether a reply was cut inside a block: the next text follows an empty line."""
        return line.startswith(("> ", "#### ")) and not self.text[-1].strip()

    def _begins_entry(self, line: str) -> bool:
        """Whether a mark without the two spaces begins an entry, and is not a quotation of the
        model."""
        return self.state in ("console", "") or line.startswith("> Tokens: ")

    def _enter_state(self, state: str) -> None:
        if state != self.state:
            self._flush_text()
            self.state = state

    def _flush_text(self, next_state: str = "") -> None:
        """Add the text up to here."""
        text, state = "\n".join(self.text), self.state
        self.text, self.state, self.in_block = [], next_state, False
        if state == "user":
            self._end_console()
            self._add_passed_test()
            self._add_user_message(text)
        elif state == "agent" and text.strip():
            self._end_console()
            self._add_reply(text.strip("\n"))
        elif state in ("console", "entry"):
            self._add_console_entry(text)
            self.state = "console"

    def _add_user_message(self, text: str) -> None:
        self.asked = self.asked or not text.startswith("/")
        self.limit = None
        if self.request is None and not text.startswith(("/add", "/drop", "/ls", "/help")):
            self.request = text
            self.builder.add_user_message(text, "request")
        else:
            self.builder.add_user_message(text, "correction" if text.startswith("/undo") else None)

    def _add_reply(self, text: str) -> None:
        self.turns += 1
        self.fault, self.asked = None, False
        # Older versions print the usage before the reply, newer ones after it.
        usage, self.usage = self.usage, None
        turn = Turn(usage=usage or Usage(), model=self.model)
        self.builder.begin_turn(turn, str(self.turns))
        self.builder.add_agent_message(text)
        self.last, self.pending, self.untested = text, [], False
        for change in parse_edit_blocks(text):
            event = Edit(
                **self.builder.event_fields(),
                path=self.builder.truncate_text(change.path),
                action="change" if change.before else "create",
                before=self.builder.truncate_text(change.before) if change.before else None,
                after=self.builder.truncate_text(change.after),
            )
            self.builder.add(event)
            self.pending.append(event)

    def _add_console_entry(self, text: str) -> None:
        """Add a console entry: known ones as events, others as notes."""
        if match := _TOKENS.match(text):
            sent_tokens, write, cache_hits, received = (
                _parse_count(part) for part in match.groups()[:4]
            )
            uncached_tokens = (
                None
                if sent_tokens is None
                else max(sent_tokens - (write or 0) - (cache_hits or 0), 0)
            )
            cost = _parse_cost(match[5])
            usage = make_usage(uncached_tokens, received, read=cache_hits, write=write, cost=cost)
            self._add_usage(usage, after=True)
        elif match := _OLD_TOKENS.match(text):
            sent_tokens, received, cost = (
                _parse_count(match[1]),
                _parse_count(match[2]),
                _parse_cost(match[3]),
            )
            self._add_usage(make_usage(sent_tokens, received, cost=cost), after=False)
        elif text.startswith("Applied edit to "):
            self._add_edit(text.removeprefix("Applied edit to ").strip())
        elif match := _ADDED_FILE.match(text):
            if not re.match(r"\d+ lines? of output", match[1]):
                self._add_read(match[1])
            else:
                self.console.append(text)
        else:
            self._add_aside(text)

    def _add_aside(self, text: str) -> None:
        if text.startswith(_CONSOLE_EVENT_PREFIXES):
            self._add_console_event(text)
            return
        if text.startswith("Aider v"):
            self.version = text.removeprefix("Aider v").strip()
        elif match := _MODEL.match(text):
            self.model = self.model or self.builder.truncate_text(match[1])
        elif match := _TEST_COMMAND.search(text):
            self.test, self.tests_itself = match[1], " --auto-test" in text
        elif _PROVIDER_ERROR.match(text):
            self.fault = text
        elif text.startswith(("Did not apply edit to ", "Skipping edits to ")):
            self._mark_refusal(text.partition(" to ")[2].partition(" ")[0], text)
        elif _ANSWERED_YES.search(text) and (
            "files to the chat?" in text or "file to the chat?" in text
        ):
            for path in [line for line in self.console[-40:] if _is_path(line)]:
                self._add_read(path)
        self.console.append(text)

    def _add_console_event(self, text: str) -> None:
        if text.startswith("Commit "):
            self._end_console()
            self.builder.add_note(text, "commit")
        elif text.startswith("Running ") and any(
            "shell command" in line for line in self.console[-3:]
        ):
            self._end_console()
            self.builder.add_command(text.removeprefix("Running "))
        elif text.startswith("^C"):
            self._end_console()
            self.builder.add_user_message(text, "interrupt")
        elif "reflections allowed" in text:
            self._end_console()
            self.builder.add_note(text, "limit")
            self.limit = text
        else:
            if text.startswith("Attempt to fix test errors?"):
                self._add_failed_check(_TEST_SCRIPT, self.test or "/test")
            elif text.startswith("Attempt to fix lint errors?"):
                self._add_failed_check(_LINT_COMMAND, "/lint")
            self.console.append(text)

    def _end_console(self) -> None:
        """Add the other console output as one note, and mark edits that did not match."""
        text, self.console = "\n".join(self.console), []
        if not text.strip():
            return
        if "failed to match!" in text:
            self._mark_mismatches(text)
        self.builder.add_note(text, "error" if _PROVIDER_ERROR.match(text) else "console")

    def _add_failed_check(self, command_pattern: re.Pattern[str], default_command: str) -> None:
        """A check that Aider ran and that failed; newer versions do not keep a test's output.

        It only asks whether to fix errors where the exit code was not 0, whatever it was.
        """
        text, self.console, self.untested = "\n".join(self.console).strip(), [], False
        command, code = command_pattern.search(text), _RETURN_CODE.search(text)
        self.builder.finish(
            self.builder.add_command(command[1].strip() if command else default_command),
            output=self.builder.truncate_text(text),
            exit_code=int(code[1]) if code and int(code[1]) else 1,
            exit_from="parsed",
        )

    def _add_passed_test(self) -> None:
        """Add a passed test: Aider prints nothing about those it ran after changing files."""
        if self.untested and self.tests_itself and self.test and not self.fault:
            event = self.builder.add_command(self.test)
            self.builder.finish(event, output="", exit_code=0, exit_from="parsed")
        self.untested = False

    def _add_usage(self, usage: Usage, *, after: bool) -> None:
        if after and self.turns:
            turn = Turn(usage=usage, model=self.model)
            self.builder.add_turn(self.builder.lane, turn, str(self.turns))
            return
        self._add_unanswered_usage()
        self.usage = usage

    def _add_unanswered_usage(self) -> None:
        """Add usage without a following reply, which was paid as well."""
        if self.usage is not None:
            self.turns += 1
            self.builder.begin_turn(Turn(usage=self.usage, model=self.model), str(self.turns))
            self.usage = None

    def _add_read(self, path: str) -> None:
        turn, self.builder.turn = self.builder.turn, None
        self.builder.add(
            Read(
                **self.builder.event_fields(),
                path=self.builder.truncate_text(path.strip()),
                ok=True,
            )
        )
        self.builder.turn = turn

    def _add_edit(self, path: str) -> None:
        self.untested = True
        path_edits = [edit for edit in self.pending if edit.path == path]
        for edit in path_edits:
            self.builder.update_event(edit, ok=True)
        if path_edits:
            self.pending = [edit for edit in self.pending if edit.path != path]
            return
        # Formats without search blocks: the whole file, or a diff, in a fence.
        after, patch = parse_fenced_changes(self.last, path)
        self.builder.add(
            Edit(
                **self.builder.event_fields(),
                path=self.builder.truncate_text(path),
                after=None if after is None else self.builder.truncate_text(after),
                patch=None if patch is None else self.builder.truncate_text(patch),
                ok=True,
            )
        )

    def _mark_refusal(self, path: str, reason: str) -> None:
        for edit in self.pending:
            if edit.path == path:
                self.builder.update_event(edit, ok=False, error=self.builder.truncate_text(reason))
        self.pending = [edit for edit in self.pending if edit.path != path]

    def _mark_mismatches(self, text: str) -> None:
        unmatched_texts = {_strip_line_ends(block.before) for block in parse_edit_blocks(text)}
        others_applied = "applied successfully" in text
        for edit in self.pending:
            if _strip_line_ends(edit.before or "") in unmatched_texts:
                self.builder.update_event(edit, ok=False, error=self.builder.truncate_text(text))
            elif others_applied:
                self.builder.update_event(edit, ok=True)
        self.pending = []

    def build_session(self, count_by_id: dict[str, int]) -> Iterator[Session]:
        """Yield the session if it has any messages."""
        self._flush_text()
        self._end_console()
        self._add_passed_test()
        self._add_unanswered_usage()
        if self.request is None and not self.turns:
            self.builder.count_skip("a session without messages")
            return
        session_id = derive_id(name, self.started, self.request)
        count_by_id[session_id] = count_by_id.get(session_id, 0) + 1
        outcome: Exit = "machine" if self.fault else "out_of_budget" if self.limit else "finished"
        cause = self.fault or self.limit
        answered = self.turns and not self.asked and not cause
        summary = (
            self.builder.claim_last_message("")
            if answered
            else self.builder.text_or_none(self.last)
        )
        yield self.builder.build_session(
            id=session_id
            if count_by_id[session_id] == 1
            else f"{session_id}-{count_by_id[session_id]}",
            agent=name,
            agent_version=self.version and self.builder.truncate_text(self.version),
            model=self.model,
            started=time_from_text(self.started),
            exit=outcome,
            cause=cause and self.builder.truncate_text(cause),
            summary=summary,
        )


def _strip_line_ends(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


def _is_path(line: str) -> bool:
    return bool(line) and " " not in line and not line.endswith(("?", ":"))


def _parse_count(text: str | None) -> int | None:
    """Parse `2.4k` as 2400: Aider rounds."""
    if not text:
        return None
    scale = {"k": 1000, "M": 1_000_000}.get(text[-1], 1)
    try:
        return int(float(text.rstrip("kM").replace(",", "")) * scale)
    except (ValueError, OverflowError):
        return None


def _parse_cost(text: str | None) -> float | None:
    try:
        return float(text) or None if text else None
    except ValueError:
        return None
