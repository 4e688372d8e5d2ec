"""Python modules of one side of a change, joined: what a public name stands for in the end."""

from __future__ import annotations

import builtins
import collections.abc
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

import msgspec

from closeloop.changes.risk.api.api_members import (
    ApiChange,
    Member,
    MemberPlace,
    compare_members,
    describe_removal,
    find_new_name,
)
from closeloop.changes.risk.api.python_api import ImportAlias, ModuleApi, read_module_api
from closeloop.records.change import FileChange
from closeloop.records.record import Record

_MAX_DEPTH = 8
_INTERNAL_PATHS = re.compile(
    r"(?:^|/)(?:tests|testing|docs?|examples?|benchmarks?|bench|scripts?|tools?|samples?|internal|"
    r"tasks|ci|build|dist)/|^test/|(?:^|/)(?:setup|conftest|noxfile|manage|fabfile|tasks|conf)\.py$"
)
_EMPTY_BASES = frozenset(
    ("ABC", "Generic", "Protocol", "Enum", "IntEnum", "StrEnum", "NamedTuple", "TypedDict")
)
"""Bases that bring nothing that callers would miss."""
_KNOWN_BASES = {**vars(collections.abc), **vars(builtins)}
"""Bases of which one can see what they bring."""
_UNKNOWN_MEMBER = Member(kind="unknown")


class ResolvedName(Record):
    """What a name stands for, and where that is written."""

    path: str
    name: str
    member: Member


class PythonLibrary:
    """Modules are read when they are asked for."""

    def __init__(self, read: Callable[[str], bytes | None], paths: Collection[str]) -> None:
        self._read, self._paths = read, paths
        self._scopes: dict[str, ModuleApi | None] = {}

    def load_module_api(self, path: str) -> ModuleApi | None:
        if path not in self._scopes:
            content = self._read(path) if path in self._paths else None
            self._scopes[path] = read_module_api(path, content) if content is not None else None
        return self._scopes[path]

    def import_root(self, path: str) -> str:
        """The folder that imports of this file's package start from, with its slash."""
        folder = path.rpartition("/")[0]
        while folder and f"{folder}/__init__.py" in self._paths:
            folder = folder.rpartition("/")[0]
        return f"{folder}/" if folder else ""

    def module_name(self, path: str) -> str:
        """`click.core` for `src/click/core.py`."""
        inner = path.removeprefix(self.import_root(path)).removesuffix(".py").removesuffix(".pyi")
        return inner.removesuffix("/__init__").replace("/", ".")

    def module_file(self, root: str, dotted: str) -> str | None:
        """The file of a module."""
        stem = root + dotted.replace(".", "/")
        choices = (f"{stem}/__init__.py", f"{stem}.py", f"{stem}.pyi")
        return next((path for path in choices if path in self._paths), None)

    def counterpart(self, path: str, root: str, dotted: str) -> str | None:
        """The file that a module's file became: a stub is compared with the stub beside it."""
        if path in self._paths:
            return path
        return self.module_file(root, dotted)

    def public_names(self, path: str) -> Iterator[str]:
        """The names of a module meant for others, those that it takes over from others too."""
        scope = self.load_module_api(path)
        if scope is None:
            return
        yield from scope.public_names()
        if scope.listed is None:
            for module in scope.stars:
                target = self._imported_file(path, module)
                if target and target != path:
                    yield from self.public_names(target)

    def resolve_name(self, path: str, name: str, depth: int = 0) -> ResolvedName | None:
        """What a name of a module stands for, through imports; None where it is not there."""
        scope = self.load_module_api(path)
        if scope is None or depth > _MAX_DEPTH:
            return None
        if name in scope.defined:
            return ResolvedName(path=path, name=name, member=scope.defined[name])
        if alias := scope.aliases.get(name):
            return self._resolve_alias(path, name, alias, depth)
        for module in scope.stars:
            target = self._imported_file(path, module)
            if target is None:
                return ResolvedName(path=path, name=name, member=_UNKNOWN_MEMBER)
            if resolved := self.resolve_name(target, name, depth + 1):
                return resolved
        if name in scope.late:
            return ResolvedName(path=path, name=name, member=_UNKNOWN_MEMBER)
        if path.endswith("__init__.py") and self.module_file(path[: -len("__init__.py")], name):
            return ResolvedName(path=path, name=name, member=Member(kind="module"))
        return None

    def _resolve_alias(
        self, path: str, name: str, alias: ImportAlias, depth: int
    ) -> ResolvedName | None:
        """What an import brought, from a module or as one."""
        target = self._imported_file(path, alias.module)
        if target is None or alias.name is None:
            return ResolvedName(path=path, name=name, member=_UNKNOWN_MEMBER)
        if resolved := self.resolve_name(target, alias.name, depth + 1):
            return resolved
        below = self._imported_file(path, _join_module_name(alias.module, alias.name))
        return ResolvedName(path=below, name="", member=Member(kind="module")) if below else None

    def may_inherit(self, found: ResolvedName, name: str) -> bool:
        """Whether a base from elsewhere may bring a member of that name."""
        return any(
            hasattr(_KNOWN_BASES[base], name) if base in _KNOWN_BASES else base not in _EMPTY_BASES
            for base in self.foreign_bases(found)
        )

    def foreign_bases(self, found: ResolvedName, depth: int = 0) -> set[str]:
        """Bases from elsewhere: what they bring cannot be seen."""
        foreign: set[str] = set()
        for base in found.member.bases if depth <= _MAX_DEPTH else ():
            inner = self.resolve_base(found, base)
            if inner is None or inner.member.kind != "class":
                foreign.add(base.rpartition(".")[2])
            else:
                foreign |= self.foreign_bases(inner, depth + 1)
        return foreign

    def class_depth(self, found: ResolvedName | None, depth: int = 0) -> int:
        """How many classes of this repository stand above it, one over the other."""
        above = [self.resolve_base(found, base) for base in found.member.bases] if found else []
        heirs = [one for one in above if one] if depth <= _MAX_DEPTH else []
        return max((1 + self.class_depth(one, depth + 1) for one in heirs), default=0)

    def all_members(self, found: ResolvedName, depth: int = 0) -> dict[str, ResolvedName]:
        """All of a class, inherited ones too."""
        everything: dict[str, ResolvedName] = {}
        if depth > _MAX_DEPTH:
            return everything
        for base in reversed(found.member.bases):
            inner = self.resolve_base(found, base)
            if inner is not None and inner.member.kind == "class":
                everything |= self.all_members(inner, depth + 1)
        for name, member in found.member.members.items():
            everything[name] = ResolvedName(
                path=found.path, name=f"{found.name}.{name}", member=member
            )
        return everything

    def resolve_base(self, found: ResolvedName, base: str) -> ResolvedName | None:
        """A base class, where it is written in this repository."""
        top, _, rest = base.partition(".")
        scope = self.load_module_api(found.path)
        if rest and scope and (alias := scope.aliases.get(top)):
            target = self._imported_file(
                found.path, _join_module_name(alias.module, alias.name or "")
            )
            return self.resolve_name(target, rest) if target else None
        return self.resolve_name(found.path, base) if not rest else None

    def _imported_file(self, path: str, module: str) -> str | None:
        """The file of a module as an import in another names it."""
        dots = len(module) - len(module.lstrip("."))
        if not dots:
            return self.module_file(self.import_root(path), module)
        folder = path.rpartition("/")[0]
        for _ in range(dots - 1):
            folder = folder.rpartition("/")[0]
        prefix = f"{folder}/" if folder else ""
        name = module.lstrip(".")
        if not name:
            package = f"{prefix}__init__.py"
            return package if package in self._paths else None
        return self.module_file(prefix, name)

    def is_public_module(self, path: str) -> bool:
        """Whether the module may be imported by others, as its path says."""
        if not path.endswith((".py", ".pyi")) or _INTERNAL_PATHS.search(path):
            return False
        parts = self.module_name(path).split(".")
        if any(part.startswith("_") for part in parts):
            return False
        if len(parts) > 1 or path.endswith("__init__.py"):
            return True
        return path.rpartition("/")[0] in ("", "src", "lib") and not self._has_packages

    @cached_property
    def _has_packages(self) -> bool:
        """Beside packages, a lone module is a script."""
        return any(re.match(r"(?:src/|lib/)?\w+/__init__\.py$", path) for path in self._paths)


def _join_module_name(module: str, name: str) -> str:
    return f"{module}{'' if module.endswith('.') or not name else '.'}{name}"


# Python: what callers of a package notice of a change.


def compare_python_libraries(
    before: PythonLibrary, after: PythonLibrary, files: Sequence[FileChange]
) -> Iterator[ApiChange]:
    """Differences in the public names that the changed files define or hand on."""
    changed = {path for file in files for path in (file.path, file.old_path) if path}
    comparison = _LibraryComparison(before, after, changed)
    reported: set[str] = set()
    for module in sorted(
        _affected_modules(before, files), key=lambda path: (path.count("/"), path)
    ):
        for change in comparison.compare_module(module):
            # A source and its stub say the same of one name.
            if change.text not in reported:
                reported.add(change.text)
                yield change


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
        now = self.after.counterpart(path, self.before.import_root(path), dotted)
        now = now or self.moved.get(dotted)
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
