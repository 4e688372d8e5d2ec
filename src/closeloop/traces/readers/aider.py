"""Aider's chat history: Markdown, with any number of sessions one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from closeloop.model.attempt import Exit, Usage
from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.model.trace import Edit, Read, Turn
from closeloop.traces import single
from closeloop.traces.edit_blocks import blocks, changes
from closeloop.traces.telling import Teller, identity
from closeloop.traces.untrusted import moment

name = "aider"
version = 2
parts, owner = single.parts, single.owner

START = "# aider chat started at "
LINE_CHARACTERS = 1 << 20
_YES = re.compile(r"(?:\?|\]:) ?(?:yes|y|a|all)\s*\Z")
_TOKENS = re.compile(
    r"\ATokens: ([\d.,kM]+) sent(?:, ([\d.,kM]+) cache write)?(?:, ([\d.,kM]+) cache hit)?,"
    r" ([\d.,kM]+) received\.(?:\s+Cost: \$([\d.]+) message)?"
)
_OLD_TOKENS = re.compile(
    r"\A([\d,]+) prompt tokens, ([\d,]+) completion tokens(?:, \$([\d.]+) cost)?"
)
_MODEL = re.compile(r"\A(?:Main model|Models?): (\S+?)(?:,| with |\s|\Z)")
_ADDED = re.compile(r"\AAdded (\S.*?) to the chat(?: \(read-only\))?\.?\Z")
_TEST = re.compile(r" --test-cmd (.+?)(?= --|\Z)")
_FAULT = re.compile(r"\A(?:litellm\.|openai\.|The API provider)")
_HAPPENED = ("Commit ", "Running ", "^C KeyboardInterrupt", "Only ")


def recognises(source: Source) -> bool:
    head = source.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return re.match(rb"# aider chat started at \d{4}-\d\d-\d\d \d\d:\d\d", head) is not None


def read(source: Source) -> Iterator[Session]:
    told: _Chat | None = None
    seen: dict[str, int] = {}
    for line in _lines(source):
        if line.startswith(START):
            if told is not None:
                yield from told.session(seen)
            told = _Chat(source, line.removeprefix(START).strip())
        elif told is not None:
            told.line(line)
    if told is not None:
        yield from told.session(seen)


def _lines(source: Source) -> Iterator[str]:
    try:
        with source.path.open(encoding="utf-8-sig", errors="replace", newline="\n") as file:
            while line := file.readline(LINE_CHARACTERS):
                yield line.rstrip("\n").rstrip("\r")
    except OSError:
        why = "a file that cannot be read to its end"
        source.skipped[why] = source.skipped.get(why, 0) + 1


class _Chat:
    """One session, told line by line: `####` is the user, `>` the console, the rest the model."""

    def __init__(self, source: Source, started: str) -> None:
        self.teller = Teller(name, version, source)
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
        self.fault: str | None = None
        self.limit: str | None = None
        self.asked = False
        self.trimmed: bool | None = None
        """Whether an editor took the spaces off the ends of lines: the user's first line tells."""

    def line(self, line: str) -> None:
        line = self._whole(line)
        ends = line.endswith("  ")
        if self.state == "entry" and not (ends and line.startswith("#### ")):
            # An entry of several lines: only its first has the mark, only its last ends in spaces.
            self.text.append(line.removesuffix("  "))
            if ends:
                self._flush()
            return
        if self.in_block and not (ends and self._is_over(line)):
            self.in_block = not line.startswith(">>>>>>> REPLACE")
        elif line.startswith("#### ") and ends:
            self._enter("user")
            self.text.append(line[5:].removesuffix("  "))
            return
        elif line.startswith("> ") and (ends or self._goes_on(line)):
            self._enter("console" if ends else "entry")
            self.text.append(line[2:].removesuffix("  "))
            if ends:
                self._flush(kept="console")
            return
        if self.state != "agent" and not line.strip():
            if self.state == "user" and not self.trimmed:
                self._flush()
            return
        self._enter("agent")
        self.in_block = self.in_block or line.startswith("<<<<<<< SEARCH")
        self.text.append(line)

    def _whole(self, line: str) -> str:
        """A line with the two spaces that mark its end."""
        if self.trimmed is None and line.startswith("#### ") and self.state != "agent":
            self.trimmed = not line.endswith("  ")
            if self.trimmed:
                self._flush()
        if self.trimmed and line.startswith(("#### ", "> ")):
            return f"{line}  "
        return f"{line}   " if self.trimmed and line in ("####", ">") else line

    def _is_over(self, line: str) -> bool:
        """Whether a reply was cut within a block: what comes next stands after an empty line."""
        return line.startswith(("> ", "#### ")) and not self.text[-1].strip()

    def _goes_on(self, line: str) -> bool:
        """Whether a mark without the two spaces begins an entry, and no quotation of the model."""
        return self.state in ("console", "") or line.startswith("> Tokens: ")

    def _enter(self, state: str) -> None:
        if state != self.state:
            self._flush()
            self.state = state

    def _flush(self, kept: str = "") -> None:
        """What was said until here."""
        text, state = "\n".join(self.text), self.state
        self.text, self.state, self.in_block = [], kept, False
        if state == "user":
            self._end_console()
            self._user(text)
        elif state == "agent" and text.strip():
            self._end_console()
            self._agent(text.strip("\n"))
        elif state in ("console", "entry"):
            self._entry(text)
            self.state = "console"

    def _user(self, text: str) -> None:
        self.asked = self.asked or not text.startswith("/")
        self.limit = None
        if self.request is None and not text.startswith(("/add", "/drop", "/ls", "/help")):
            self.request = text
            self.teller.user(text, "request")
        else:
            self.teller.user(text, "correction" if text.startswith("/undo") else None)

    def _agent(self, text: str) -> None:
        self.turns += 1
        self.fault, self.asked = None, False
        # Older versions print the usage before the reply, newer ones after it.
        usage, self.usage = self.usage, None
        turn = Turn(usage=usage or Usage(), model=self.model)
        self.teller.provider(turn, str(self.turns))
        self.teller.agent(text)
        self.last, self.pending = text, []
        for change in blocks(text):
            event = Edit(
                **self.teller.place(),
                path=self.teller.clean(change.path),
                action="change" if change.before else "create",
                before=self.teller.clean(change.before) if change.before else None,
                after=self.teller.clean(change.after),
            )
            self.teller.add(event)
            self.pending.append(event)

    def _entry(self, text: str) -> None:
        """An entry of the console: known ones are told, others kept as a note."""
        if found := _TOKENS.match(text):
            sent, write, hit, received = (_number(part) for part in found.groups()[:4])
            fresh = None if sent is None else max(sent - (write or 0) - (hit or 0), 0)
            cost = _money(found[5])
            self._used(Usage(
                input_tokens=fresh, output_tokens=received, cache_read_tokens=hit,
                cache_write_tokens=write, cost=cost, cost_from="reported" if cost else None,
            ), after=True)  # fmt: skip
        elif found := _OLD_TOKENS.match(text):
            cost = _money(found[3])
            self._used(Usage(
                input_tokens=_number(found[1]), output_tokens=_number(found[2]),
                cost=cost, cost_from="reported" if cost else None,
            ), after=False)  # fmt: skip
        elif text.startswith("Applied edit to "):
            self._applied(text.removeprefix("Applied edit to ").strip())
        elif found := _ADDED.match(text):
            if not re.match(r"\d+ lines? of output", found[1]):
                self._opened(found[1])
            else:
                self.console.append(text)
        else:
            self._aside(text)

    def _aside(self, text: str) -> None:
        if text.startswith(_HAPPENED):
            self._happened(text)
            return
        if text.startswith("Aider v"):
            self.version = text.removeprefix("Aider v").strip()
        elif found := _MODEL.match(text):
            self.model = self.model or self.teller.clean(found[1])
        elif found := _TEST.search(text):
            self.test = found[1]
        elif _FAULT.match(text):
            self.fault = text
        elif text.startswith(("Did not apply edit to ", "Skipping edits to ")):
            self._refused(text.partition(" to ")[2].partition(" ")[0], text)
        elif _YES.search(text):
            self._agreed(text)
        self.console.append(text)

    def _agreed(self, text: str) -> None:
        """A question of the console that was answered with yes."""
        if "files to the chat?" in text or "file to the chat?" in text:
            for path in [line for line in self.console[-40:] if _is_path(line)]:
                self._opened(path)
        elif text.startswith("Attempt to fix test errors?"):
            self._feedback("test")
        elif text.startswith("Attempt to fix lint errors?"):
            self._feedback("lint")

    def _happened(self, text: str) -> None:
        if text.startswith("Commit "):
            self._end_console()
            self.teller.note(text, "commit")
        elif text.startswith("Running ") and any(
            "shell command" in line for line in self.console[-3:]
        ):
            self._end_console()
            self.teller.command(text.removeprefix("Running "))
        elif text.startswith("^C"):
            self._end_console()
            self.teller.user(text, "interrupt")
        elif "reflections allowed" in text:
            self._end_console()
            self.teller.note(text, "limit")
            self.limit = text
        else:
            self.console.append(text)

    def _end_console(self) -> None:
        """What the console said otherwise, as one note; and which edits it says did not match."""
        said, self.console = "\n".join(self.console), []
        if not said.strip():
            return
        if "failed to match!" in said:
            self._missed(said)
        self.teller.note(said, "error" if _FAULT.match(said) else "console")

    def _feedback(self, kind: str) -> None:
        """A check that Aider ran and that failed; newer versions do not keep its output."""
        said, self.console = "\n".join(self.console).strip(), []
        if kind == "test" and self.test:
            event = self.teller.command(self.test)
            self.teller.builder.finish(event, output=self.teller.clean(said))
        else:
            self.teller.result(self.teller.other(kind, None), said, ok=False)

    def _used(self, usage: Usage, *, after: bool) -> None:
        if after and self.turns:
            turn = Turn(usage=usage, model=self.model)
            self.teller.builder.turn(self.teller.lane, turn, str(self.turns))
            return
        self._unanswered()
        self.usage = usage

    def _unanswered(self) -> None:
        """Usage that no reply followed was paid for all the same."""
        if self.usage is not None:
            self.turns += 1
            self.teller.provider(Turn(usage=self.usage, model=self.model), str(self.turns))
            self.usage = None

    def _opened(self, path: str) -> None:
        turn, self.teller.turn = self.teller.turn, None
        self.teller.add(Read(**self.teller.place(), path=self.teller.clean(path.strip()), ok=True))
        self.teller.turn = turn

    def _applied(self, path: str) -> None:
        mine = [edit for edit in self.pending if edit.path == path]
        for edit in mine:
            self.teller.more(edit, ok=True)
        if mine:
            self.pending = [edit for edit in self.pending if edit.path != path]
            return
        # Formats without search blocks: the whole file, or a diff, in a fence.
        after, patch = changes(self.last, path)
        self.teller.add(
            Edit(
                **self.teller.place(),
                path=self.teller.clean(path),
                after=None if after is None else self.teller.clean(after),
                patch=None if patch is None else self.teller.clean(patch),
                ok=True,
            )
        )

    def _refused(self, path: str, why: str) -> None:
        for edit in self.pending:
            if edit.path == path:
                self.teller.more(edit, ok=False, error=self.teller.clean(why))
        self.pending = [edit for edit in self.pending if edit.path != path]

    def _missed(self, said: str) -> None:
        wanted = {_plain(block.before) for block in blocks(said)}
        others = "applied successfully" in said
        for edit in self.pending:
            if _plain(edit.before or "") in wanted:
                self.teller.more(edit, ok=False, error=self.teller.clean(said))
            elif others:
                self.teller.more(edit, ok=True)
        self.pending = []

    def session(self, seen: dict[str, int]) -> Iterator[Session]:
        """The session, where anything was said in it."""
        self._flush()
        self._end_console()
        self._unanswered()
        if self.request is None and not self.turns:
            self.teller.skip("a session without messages")
            return
        known = identity(name, self.started, self.request)
        seen[known] = seen.get(known, 0) + 1
        ended: Exit = "machine" if self.fault else "out_of_budget" if self.limit else "finished"
        cause = self.fault or self.limit
        answered = self.turns and not self.asked and not cause
        summary = self.teller.claim("") if answered else self.teller.known(self.last)
        yield Session(
            id=known if seen[known] == 1 else f"{known}-{seen[known]}",
            agent=name,
            agent_version=self.version and self.teller.clean(self.version),
            model=self.model,
            started=moment(self.started),
            exit=ended,
            cause=cause and self.teller.clean(cause),
            usage=self.teller.builder.usage(),
            summary=summary,
            trace=self.teller.trace(),
        )


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


def _is_path(line: str) -> bool:
    return bool(line) and " " not in line and not line.endswith(("?", ":"))


def _number(text: str | None) -> int | None:
    """`2.4k` is 2400: Aider rounds."""
    if not text:
        return None
    scale = {"k": 1000, "M": 1_000_000}.get(text[-1], 1)
    try:
        return int(float(text.rstrip("kM").replace(",", "")) * scale)
    except (ValueError, OverflowError):
        return None


def _money(text: str | None) -> float | None:
    try:
        return float(text) or None if text else None
    except ValueError:
        return None
