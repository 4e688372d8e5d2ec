"""Python modules of one side of a change, joined: what a public name stands for in the end."""

from __future__ import annotations

import builtins
import collections.abc
import re
from collections.abc import Callable, Collection, Iterator
from functools import cached_property

from closeloop.changes.risk.api.members import Member
from closeloop.changes.risk.api.python import Alias, Scope, read_scope
from closeloop.model.record import Record

_DEEP = 8
_APART = re.compile(
    r"(?:^|/)(?:tests|testing|docs?|examples?|benchmarks?|bench|scripts?|tools?|samples?|internal|"
    r"tasks|ci|build|dist)/|^test/|(?:^|/)(?:setup|conftest|noxfile|manage|fabfile|tasks|conf)\.py$"
)
_BARE = frozenset(
    ("ABC", "Generic", "Protocol", "Enum", "IntEnum", "StrEnum", "NamedTuple", "TypedDict")
)
"""Bases that bring nothing that callers would miss."""
_KNOWN = {**vars(collections.abc), **vars(builtins)}
"""Bases of which one can see what they bring."""
_UNKNOWN = Member(kind="unknown")


class Found(Record):
    """What a name stands for, and where that is written."""

    path: str
    name: str
    member: Member


class Library:
    """Modules are read when they are asked for."""

    def __init__(self, read: Callable[[str], bytes | None], paths: Collection[str]) -> None:
        self._read, self._paths = read, paths
        self._scopes: dict[str, Scope | None] = {}

    def scope(self, path: str) -> Scope | None:
        if path not in self._scopes:
            content = self._read(path) if path in self._paths else None
            self._scopes[path] = read_scope(path, content) if content is not None else None
        return self._scopes[path]

    def root(self, path: str) -> str:
        """The folder that imports of this file's package start from, with its slash."""
        folder = path.rpartition("/")[0]
        while folder and f"{folder}/__init__.py" in self._paths:
            folder = folder.rpartition("/")[0]
        return f"{folder}/" if folder else ""

    def dotted(self, path: str) -> str:
        """`click.core` for `src/click/core.py`."""
        inner = path.removeprefix(self.root(path)).removesuffix(".py").removesuffix(".pyi")
        return inner.removesuffix("/__init__").replace("/", ".")

    def file(self, root: str, dotted: str) -> str | None:
        """The file of a module."""
        stem = root + dotted.replace(".", "/")
        choices = (f"{stem}/__init__.py", f"{stem}.py", f"{stem}.pyi")
        return next((path for path in choices if path in self._paths), None)

    def public(self, path: str) -> Iterator[str]:
        """The names of a module meant for others, those that it takes over from others too."""
        scope = self.scope(path)
        if scope is None:
            return
        yield from scope.public()
        if scope.listed is None:
            for module in scope.stars:
                target = self._target(path, module)
                if target and target != path:
                    yield from self.public(target)

    def find(self, path: str, name: str, depth: int = 0) -> Found | None:
        """What a name of a module stands for, through imports; None where it is not there."""
        scope = self.scope(path)
        if scope is None or depth > _DEEP:
            return None
        if name in scope.defined:
            return Found(path=path, name=name, member=scope.defined[name])
        if alias := scope.aliases.get(name):
            return self._behind(path, name, alias, depth)
        for module in scope.stars:
            target = self._target(path, module)
            if target is None:
                return Found(path=path, name=name, member=_UNKNOWN)
            if found := self.find(target, name, depth + 1):
                return found
        if name in scope.late:
            return Found(path=path, name=name, member=_UNKNOWN)
        if path.endswith("__init__.py") and self.file(path[: -len("__init__.py")], name):
            return Found(path=path, name=name, member=Member(kind="module"))
        return None

    def _behind(self, path: str, name: str, alias: Alias, depth: int) -> Found | None:
        """What an import brought, from a module or as one."""
        target = self._target(path, alias.module)
        if target is None or alias.name is None:
            return Found(path=path, name=name, member=_UNKNOWN)
        if found := self.find(target, alias.name, depth + 1):
            return found
        below = self._target(path, _below(alias.module, alias.name))
        return Found(path=below, name="", member=Member(kind="module")) if below else None

    def may_inherit(self, found: Found, name: str) -> bool:
        """Whether a base from elsewhere may bring a member of that name."""
        return any(
            hasattr(_KNOWN[base], name) if base in _KNOWN else base not in _BARE
            for base in self.foreign_bases(found)
        )

    def foreign_bases(self, found: Found, depth: int = 0) -> set[str]:
        """Bases from elsewhere: what they bring cannot be seen."""
        foreign: set[str] = set()
        for base in found.member.bases if depth <= _DEEP else ():
            inner = self.base(found, base)
            if inner is None or inner.member.kind != "class":
                foreign.add(base.rpartition(".")[2])
            else:
                foreign |= self.foreign_bases(inner, depth + 1)
        return foreign

    def generation(self, found: Found | None, depth: int = 0) -> int:
        """How many classes of this repository stand above it, one over the other."""
        above = [self.base(found, base) for base in found.member.bases] if found else []
        heirs = [one for one in above if one] if depth <= _DEEP else []
        return max((1 + self.generation(one, depth + 1) for one in heirs), default=0)

    def members(self, found: Found, depth: int = 0) -> dict[str, Found]:
        """All of a class, inherited ones too."""
        everything: dict[str, Found] = {}
        if depth > _DEEP:
            return everything
        for base in reversed(found.member.bases):
            inner = self.base(found, base)
            if inner is not None and inner.member.kind == "class":
                everything |= self.members(inner, depth + 1)
        for name, member in found.member.members.items():
            everything[name] = Found(path=found.path, name=f"{found.name}.{name}", member=member)
        return everything

    def base(self, found: Found, base: str) -> Found | None:
        """A base class, where it is written in this repository."""
        top, _, rest = base.partition(".")
        scope = self.scope(found.path)
        if rest and scope and (alias := scope.aliases.get(top)):
            target = self._target(found.path, _below(alias.module, alias.name or ""))
            return self.find(target, rest) if target else None
        return self.find(found.path, base) if not rest else None

    def _target(self, path: str, module: str) -> str | None:
        """The file of a module as an import in another names it."""
        dots = len(module) - len(module.lstrip("."))
        if not dots:
            return self.file(self.root(path), module)
        folder = path.rpartition("/")[0]
        for _ in range(dots - 1):
            folder = folder.rpartition("/")[0]
        prefix = f"{folder}/" if folder else ""
        name = module.lstrip(".")
        if not name:
            package = f"{prefix}__init__.py"
            return package if package in self._paths else None
        return self.file(prefix, name)

    def is_public(self, path: str) -> bool:
        """Whether the module may be imported by others, as its path says."""
        if not path.endswith((".py", ".pyi")) or _APART.search(path):
            return False
        parts = self.dotted(path).split(".")
        if any(part.startswith("_") for part in parts):
            return False
        if len(parts) > 1 or path.endswith("__init__.py"):
            return True
        return path.rpartition("/")[0] in ("", "src", "lib") and not self._has_packages

    @cached_property
    def _has_packages(self) -> bool:
        """Beside packages, a lone module is a script."""
        return any(re.match(r"(?:src/|lib/)?\w+/__init__\.py$", path) for path in self._paths)


def _below(module: str, name: str) -> str:
    return f"{module}{'' if module.endswith('.') or not name else '.'}{name}"
