"""Python: what callers of a package notice of a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from closeloop.changes.risk.api.compare import Where, compare, removed, renamed_to
from closeloop.changes.risk.api.library import Found, Library
from closeloop.changes.risk.api.members import ApiChange, Member
from closeloop.model.change import FileChange


def python_changes(
    before: Library, after: Library, files: Sequence[FileChange]
) -> Iterator[ApiChange]:
    """Differences in the public names that the changed files define or hand on."""
    changed = {path for file in files for path in (file.path, file.old_path) if path}
    comparison = _Comparison(before, after, changed)
    for module in sorted(_modules(before, files), key=lambda path: (path.count("/"), path)):
        yield from comparison.module(module)


def _modules(before: Library, files: Sequence[FileChange]) -> set[str]:
    """Public modules that were changed, and packages that hand on names of changed ones."""
    found: set[str] = set()
    for file in files:
        path = file.old_path or file.path
        if before.scope(path) is None:
            continue
        found.add(path)
        folder = path.rpartition("/")[0]
        while folder and before.scope(f"{folder}/__init__.py"):
            found.add(f"{folder}/__init__.py")
            folder = folder.rpartition("/")[0]
    return {path for path in found if before.is_public(path)}


class _Comparison:
    def __init__(self, before: Library, after: Library, changed: set[str]) -> None:
        self.before, self.after, self.changed = before, after, changed
        self.moved = {after.dotted(path): path for path in changed if after.scope(path)}
        self.seen: set[tuple[str, str]] = set()
        self.gone: set[str] = set()

    def module(self, path: str) -> Iterator[ApiChange]:
        dotted = self.before.dotted(path)
        now = self.after.file(self.before.root(path), dotted) or self.moved.get(dotted)
        if now is None:
            # A module that is gone is one break, with all that is in it and below it.
            if dotted.rpartition(".")[0] not in self.gone:
                yield removed(Member(kind="module"), Where(name=dotted, path=path))
            self.gone.add(dotted)
            return
        gone: dict[str, Found] = {}
        told: dict[str, list[ApiChange]] = {}
        touched = {name: self._touched(path, name) for name in self.before.public(path)}
        # A base class first: what its heirs have from it is told once, of the base.
        for name in sorted(touched, key=lambda name: self.before.generation(touched[name])):
            was = touched[name]
            if was is None or (was.path, was.name) in self.seen:
                continue
            self.seen.add((was.path, was.name))
            found = self.after.find(now, name)
            if found is None:
                gone[name] = was
            else:
                told[name] = list(self._pair(f"{dotted}.{name}", was, found))
        yield from (change for name in touched for change in told.get(name, ()))
        new = {
            name: found.member
            for name in self.after.public(now)
            if gone and not self.before.find(path, name) and (found := self.after.find(now, name))
        }
        for name, was in gone.items():
            renamed = renamed_to(name, was.member, new)
            where = Where(name=f"{dotted}.{name}", path=was.path)
            change = removed(was.member, where, f"{dotted}.{renamed}" if renamed else None)
            # A constant that nobody lists or hands on is rarely meant for others.
            soft = was.member.kind == "value" and not self._is_named(path, name)
            yield msgspec.structs.replace(change, breaking=False) if soft else change

    def _is_told_there(self, found: Found) -> bool:
        """Whether the class that a member stands in is public itself: then it is told of that."""
        owner = found.name.partition(".")[0]
        return self.before.is_public(found.path) and owner in self.before.public(found.path)

    def _is_named(self, path: str, name: str) -> bool:
        """Whether the module says that the name is for others."""
        scope = self.before.scope(path)
        return path.endswith("__init__.py") or bool(scope and name in (scope.listed or ()))

    def _touched(self, path: str, name: str) -> Found | None:
        """What the name stood for, where the change may have touched that."""
        scope = self.before.scope(path)
        if scope is None:
            return None
        found = self.before.find(path, name)
        if found is None or (path not in self.changed and found.path not in self.changed):
            return None
        return found

    def _pair(self, name: str, was: Found, now: Found) -> Iterator[ApiChange]:
        yield from compare(was.member, now.member, Where(name=name, path=now.path))
        if was.member.kind != "class" or now.member.kind != "class":
            return
        mine, theirs = self.before.members(was), self.after.members(now)
        gone = {each: found for each, found in mine.items() if each not in theirs}
        new = {each: found.member for each, found in theirs.items() if each not in mine}
        for each, found in mine.items():
            key = (found.path, found.name)
            if key in self.seen or (found.path != was.path and self._is_told_there(found)):
                continue
            self.seen.add(key)
            full = f"{name}.{each}".removesuffix(".__init__")
            if each == "__call__" and "Protocol" in now.member.bases:
                # It states how callbacks are called, and calls nothing itself.
                continue
            if each not in gone:
                other = theirs[each]
                yield from compare(found.member, other.member, Where(name=full, path=other.path))
            elif found.member.kind == "unknown" or each.startswith("__"):
                continue
            elif not self.after.may_inherit(now, each):
                renamed = renamed_to(each, found.member, new)
                where = Where(name=full, path=found.path)
                yield removed(found.member, where, f"{name}.{renamed}" if renamed else None)
