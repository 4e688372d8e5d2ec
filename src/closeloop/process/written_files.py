"""What a trace itself wrote into files: so that edits and scripts in commands can be told."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from msgspec.structs import replace

from closeloop.process.shell.code_edits import recover_code_edits
from closeloop.process.shell.command_analysis import analyse_command
from closeloop.process.shell.edit_recovery import MAX_EDITS, SCRIPT_ENDINGS, split_patch
from closeloop.records.inspection import CommandEffect, FileEdit, TraceStep
from closeloop.records.trace import Command, Edit

MAX_SCRIPT_CHARS = 100_000
_MAX_KNOWN_CHARS = 50_000
"""The content of longer files is not kept in step with edits."""


class WrittenScripts:
    """Scripts and patches that a trace wrote, by file name: running one changes what it names."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def remember(self, path: str, text: str | None) -> None:
        """Keep a script's text, as it was last written."""
        if text is not None and len(text) < MAX_SCRIPT_CHARS and path.endswith(SCRIPT_ENDINGS):
            self._texts[path.rpartition("/")[2]] = text

    def follow_runs(self, doing: CommandEffect) -> CommandEffect:
        """What a command does, with what the scripts do that it runs."""
        for edit in doing.edits:
            if edit.action == "create":
                self.remember(edit.path, edit.after)
        if not doing.runs or not self._texts or doing.checks:
            return doing
        edits = [edit for name in doing.runs for edit in self._script_edits(name)]
        if not edits:
            return doing
        paths = dict.fromkeys((*doing.written, *(edit.path for edit in edits)))
        return replace(
            doing, writes=True, written=tuple(paths), edits=(*doing.edits, *edits[:MAX_EDITS])
        )

    def _script_edits(self, name: str) -> Iterator[FileEdit]:
        text = self._texts.get(name.rpartition("/")[2])
        if text is None:
            return
        if name.endswith(".py"):
            edits = recover_code_edits(text, only_rewrites=True)
        elif name.endswith(".sh"):
            edits = list(analyse_command(text).edits)
        else:
            edits = list(split_patch(text))
        yield from edits


class KnownFiles:
    """Files that a trace has seen so far, and their text where it is known."""

    def __init__(self) -> None:
        self._texts: dict[str, str | None] = {}

    def build_edits(
        self, event: Command, doing: CommandEffect, written: tuple[str, ...], failed: bool | None
    ) -> tuple[Edit, ...]:
        """A command's edits, numbered as it is."""
        paths = dict(zip(doing.written, written, strict=True))
        ok = None if failed is None else not failed
        edits = []
        for told in doing.edits:
            for path in self._expand_path(told, paths.get(told.path)):
                action, before = told.action, told.before
                if action == "create" and path in self._texts:
                    action, before = "change", self._texts[path]
                edits.append(
                    Edit(
                        number=event.number,
                        lane=event.lane,
                        turn=event.turn,
                        at=event.at,
                        path=path,
                        action=action,
                        before=before,
                        after=told.after,
                        patch=told.patch,
                        ok=ok,
                    )
                )
        return tuple(edits)

    def _expand_path(self, told: FileEdit, path: str | None) -> list[str]:
        if path is not None:
            return [path]
        if told.action != "delete" or "*" not in told.path:
            return []
        return [known for known in self._texts if fnmatchcase(known, told.path)][:MAX_EDITS]

    def note_step(self, step: TraceStep) -> None:
        """What the step showed or changed is known from now on."""
        for path in step.read:
            self._texts.setdefault(path, None)
        if not step.changed:
            return
        known = {path: self._texts.get(path) for path in step.written} if step.edits else {}
        for path in step.written:
            self._texts[path] = None
        paths = step.written if isinstance(step.event, Edit) else ()
        for edit in step.edits:
            path = paths[0] if paths else edit.path
            if edit.action == "delete":
                self._texts.pop(path, None)
            else:
                known[path] = self._texts[path] = _text_after(edit, known.get(path))


def _text_after(edit: Edit, text: str | None) -> str | None:
    """A file's whole text after an edit; without what it replaces, the new text is the file."""
    if edit.before is None or edit.before == text:
        return edit.after
    if text is None or edit.after is None or len(text) > _MAX_KNOWN_CHARS:
        return None
    if not edit.before:
        return text + edit.after
    return text.replace(edit.before, edit.after, 1) if edit.before in text else None
