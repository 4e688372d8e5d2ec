"""Python: what callers of a package notice of a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from closeloop.changes.risk.api.api_members import ApiChange, Member
from closeloop.changes.risk.api.member_compare import (
    MemberPlace,
    compare_members,
    describe_removal,
    find_new_name,
)
from closeloop.changes.risk.api.python_library import PythonLibrary, ResolvedName
from closeloop.records.change import FileChange


def compare_python_libraries(
    before: PythonLibrary, after: PythonLibrary, files: Sequence[FileChange]
) -> Iterator[ApiChange]:
    """Differences in the public names that the changed files define or hand on."""
    changed = {path for file in files for path in (file.path, file.old_path) if path}
    comparison = _LibraryComparison(before, after, changed)
    for module in sorted(
        _affected_modules(before, files), key=lambda path: (path.count("/"), path)
    ):
        yield from comparison.compare_module(module)


def _affected_modules(before: PythonLibrary, files: Sequence[FileChange]) -> set[str]:
    """Public modules that were changed, and packages that hand on names of changed ones."""
    paths: set[str] = set()
    for file in files:
        path = file.old_path or file.path
        if before.load_module_api(path) is None:
            continue
        paths.add(path)
        folder = path.rpartition("/")[0]
        while folder and before.load_module_api(f"{folder}/__init__.py"):
            paths.add(f"{folder}/__init__.py")
            folder = folder.rpartition("/")[0]
    return {path for path in paths if before.is_public_module(path)}


class _LibraryComparison:
    def __init__(self, before: PythonLibrary, after: PythonLibrary, changed: set[str]) -> None:
        self.before, self.after, self.changed = before, after, changed
        self.moved = {
            after.module_name(path): path for path in changed if after.load_module_api(path)
        }
        self.seen: set[tuple[str, str]] = set()
        self.gone: set[str] = set()

    def compare_module(self, path: str) -> Iterator[ApiChange]:
        dotted = self.before.module_name(path)
        now = self.after.module_file(self.before.import_root(path), dotted) or self.moved.get(
            dotted
        )
        if now is None:
            # A module that is gone is one break, with all that is in it and below it.
            if dotted.rpartition(".")[0] not in self.gone:
                yield describe_removal(Member(kind="module"), MemberPlace(name=dotted, path=path))
            self.gone.add(dotted)
            return
        gone: dict[str, ResolvedName] = {}
        changes_by_name: dict[str, list[ApiChange]] = {}
        touched = {name: self._touched_name(path, name) for name in self.before.public_names(path)}
        # A base class first: what its heirs have from it is told once, of the base.
        for name in sorted(touched, key=lambda name: self.before.class_depth(touched[name])):
            was = touched[name]
            if was is None or (was.path, was.name) in self.seen:
                continue
            self.seen.add((was.path, was.name))
            resolved = self.after.resolve_name(now, name)
            if resolved is None:
                gone[name] = was
            else:
                changes_by_name[name] = list(self._compare_pair(f"{dotted}.{name}", was, resolved))
        yield from (change for name in touched for change in changes_by_name.get(name, ()))
        new = {
            name: resolved.member
            for name in self.after.public_names(now)
            if gone
            and not self.before.resolve_name(path, name)
            and (resolved := self.after.resolve_name(now, name))
        }
        for name, was in gone.items():
            renamed = find_new_name(name, was.member, new)
            where = MemberPlace(name=f"{dotted}.{name}", path=was.path)
            change = describe_removal(was.member, where, f"{dotted}.{renamed}" if renamed else None)
            # A constant that nobody lists or hands on is rarely meant for others.
            soft = was.member.kind == "value" and not self._is_declared_public(path, name)
            yield msgspec.structs.replace(change, breaking=False) if soft else change

    def _is_reported_there(self, found: ResolvedName) -> bool:
        """Whether the class that a member stands in is public itself: then it is told of that."""
        owner = found.name.partition(".")[0]
        return self.before.is_public_module(found.path) and owner in self.before.public_names(
            found.path
        )

    def _is_declared_public(self, path: str, name: str) -> bool:
        """Whether the module says that the name is for others."""
        scope = self.before.load_module_api(path)
        return path.endswith("__init__.py") or bool(scope and name in (scope.listed or ()))

    def _touched_name(self, path: str, name: str) -> ResolvedName | None:
        """What the name stood for, where the change may have touched that."""
        scope = self.before.load_module_api(path)
        if scope is None:
            return None
        resolved = self.before.resolve_name(path, name)
        if resolved is None or (path not in self.changed and resolved.path not in self.changed):
            return None
        return resolved

    def _compare_pair(self, name: str, was: ResolvedName, now: ResolvedName) -> Iterator[ApiChange]:
        yield from compare_members(was.member, now.member, MemberPlace(name=name, path=now.path))
        if was.member.kind != "class" or now.member.kind != "class":
            return
        mine, theirs = self.before.all_members(was), self.after.all_members(now)
        gone = {each: found for each, found in mine.items() if each not in theirs}
        new = {each: found.member for each, found in theirs.items() if each not in mine}
        for each, member in mine.items():
            key = (member.path, member.name)
            if key in self.seen or (member.path != was.path and self._is_reported_there(member)):
                continue
            self.seen.add(key)
            full = f"{name}.{each}".removesuffix(".__init__")
            if each == "__call__" and "Protocol" in now.member.bases:
                # It states how callbacks are called, and calls nothing itself.
                continue
            if each not in gone:
                other = theirs[each]
                yield from compare_members(
                    member.member, other.member, MemberPlace(name=full, path=other.path)
                )
            elif member.member.kind == "unknown" or each.startswith("__"):
                continue
            elif not self.after.may_inherit(now, each):
                renamed = find_new_name(each, member.member, new)
                where = MemberPlace(name=full, path=member.path)
                yield describe_removal(
                    member.member, where, f"{name}.{renamed}" if renamed else None
                )
