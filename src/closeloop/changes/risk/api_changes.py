"""The public API: which differences callers of this repository's code notice."""

from __future__ import annotations

import builtins
import collections.abc
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial

import msgspec
from tree_sitter import Node

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import classify_file, is_test_file, language_of
from closeloop.changes.risk import language_api
from closeloop.changes.risk.api_members import (
    ApiChange,
    Member,
    MemberPlace,
    Parameter,
    Passing,
    PublicNames,
    body_fingerprint,
    child_field,
    child_nodes,
    compare_members,
    compare_public_names,
    describe_removal,
    find_new_name,
    flat_node_source,
    node_line,
    node_source,
    parse_syntax_root,
)
from closeloop.changes.risk.language_api import Crate, ScriptPackage
from closeloop.records.change import ChangeSide, FileChange, Inspection, SourceModule
from closeloop.records.record import Record
from closeloop.text.wording import compile_lazily

# Python's public names: what a module defines, imports and lists in `__all__`.


_DEPRECATION = compile_lazily(
    r"DeprecationWarning|\.\. deprecated|deprecated\b.{0,80}(?:removed|version|instead|use )",
    re.IGNORECASE | re.DOTALL,
)
_COMMAND_DECORATOR = compile_lazily(
    r"@\s*(?:(?:click|rich_click|asyncclick|typer)\.\w+|(?:\w+\.)*(?:command|group|callback))\s*(?:\(|$)"
)
"""Commands of click and typer: nobody calls the function with arguments."""
_PATTERN_NODES = ("pattern_list", "tuple_pattern", "list_pattern")
_TYPING_HELPERS = compile_lazily(
    r"^(?:\w+\.)?(?:TypeVar|ParamSpec|TypeVarTuple|getLogger|NewType)\("
)
_SELF_ATTRIBUTE = compile_lazily(r"\bself\.([a-z]\w{0,80})\b(?:\s*:[^=\n]{0,200})?\s*=(?!=)")
_QUOTED_NAME = compile_lazily(r"[\"']([A-Za-z]\w{0,80})[\"']")
_BLOCK_NODES = frozenset(
    [
        "if_statement",
        "else_clause",
        "elif_clause",
        "try_statement",
        "except_clause",
        "finally_clause",
        "with_statement",
        "block",
        "for_statement",
    ]
)
_PUBLIC_DUNDERS = frozenset(
    [
        "__init__",
        "__call__",
        "__new__",
        "__enter__",
        "__aenter__",
        "__iter__",
        "__len__",
        "__getitem__",
    ]
)


class ImportAlias(Record):
    """A name that refers to something in another module."""

    module: str
    """As written, with its dots."""
    name: str | None
    """None if it refers to the module itself."""
    line: int
    explicit: bool = False
    """`import x as x`: a re-export."""


class ModuleApi(Record):
    """The public API of one module."""

    path: str
    defined: dict[str, Member] = {}
    aliases: dict[str, ImportAlias] = {}
    stars: tuple[str, ...] = ()
    """Modules imported with `*`."""
    listed: frozenset[str] | None = None
    """Content of `__all__`, if present and readable."""
    late: frozenset[str] = frozenset()
    """Names that the module's `__getattr__` may provide."""

    def public_names(self) -> Iterator[str]:
        """Yield public names, without those of star imports."""
        if self.listed is not None:
            yield from sorted(self.listed)
            return
        yield from (name for name in self.defined if not name.startswith("_"))
        package = self.path.endswith("__init__.py")
        for name, alias in self.aliases.items():
            handed_on = alias.explicit or (package and alias.module.startswith("."))
            if handed_on and alias.name is not None and not name.startswith("_"):
                yield name


def read_module_api(path: str, content: bytes) -> ModuleApi:
    """Read one module's text, even if it is broken."""
    reading = _ModuleParser(content)
    for node in reading.list_statements(parse_syntax_root("python", content)):
        reading.read_statement(node)
    return ModuleApi(
        path=path,
        defined=reading.defined,
        aliases=reading.aliases,
        stars=tuple(reading.stars),
        listed=frozenset(reading.listed) if reading.lists and not reading.open_list else None,
        late=frozenset(reading.late),
    )


class _ModuleParser:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.defined: dict[str, Member] = {}
        self.aliases: dict[str, ImportAlias] = {}
        self.stars: list[str] = []
        self.listed: set[str] = set()
        self.lists = False
        self.open_list = False
        self.late: set[str] = set()

    def list_statements(self, node: Node) -> Iterator[Node]:
        """Yield the statements of a block, including those inside conditions and `try`."""
        waiting = list(reversed(node.named_children))
        while waiting:
            statement = waiting.pop()
            if statement.type in _BLOCK_NODES:
                waiting.extend(reversed(statement.named_children))
            else:
                yield statement

    def read_statement(self, node: Node) -> None:
        if node.type == "import_from_statement":
            self._read_from_import(node)
        elif node.type == "import_statement":
            for child_node in child_nodes(node):
                self._read_import(child_node)
        elif node.type == "expression_statement":
            for child in child_nodes(node):
                self._read_all_list(child)
        for name, member in self.list_members(node):
            if name == "__getattr__":
                self._read_getattr(node)
            elif not name.startswith("__"):
                self.defined[name] = member

    def list_members(self, node: Node) -> Iterator[tuple[str, Member]]:
        """Yield what one statement defines."""
        decorators: list[str] = []
        if node.type == "decorated_definition":
            decorators = [
                node_source(named_child)
                for named_child in node.named_children
                if named_child.type == "decorator"
            ]
            inner = child_field(node, "definition")
            if inner is None:
                return
            node = inner
        if node.type == "function_definition":
            if not any(
                re.search(r"\boverload$|\.(setter|deleter)$", decorator) for decorator in decorators
            ):
                yield (
                    node_source(child_field(node, "name")),
                    self._function_member(node, decorators),
                )
        elif node.type == "class_definition":
            yield node_source(child_field(node, "name")), self._class_member(node, decorators)
        elif node.type == "expression_statement":
            for child_node in child_nodes(node):
                yield from self._value_members(child_node)
        elif node.type == "type_alias_statement":
            name = (
                re.match(r"\w+", node_source(node.named_children[0]))
                if node.named_children
                else None
            )
            if name:
                yield name[0], Member(kind="value", line=node_line(self.content, node))

    def _function_member(self, node: Node, decorators: list[str]) -> Member:
        if any(_COMMAND_DECORATOR.match(decorator) for decorator in decorators):
            return Member(kind="value", line=node_line(self.content, node))
        decorator_text = " ".join(decorators)
        parameters = tuple(_read_parameters(child_field(node, "parameters")))
        is_property = bool(re.search(r"property\b", decorator_text))
        body = node_source(child_field(node, "body"))
        return Member(
            kind="property" if is_property else "function",
            line=node_line(self.content, node),
            parameters=None if is_property else parameters,
            deprecated="deprecated" in decorator_text.lower()
            or bool(_DEPRECATION.search(body[:3000])),
            waiting=_is_awaited(node, decorator_text, body),
            body=body_fingerprint(child_field(node, "body")),
        )

    def _class_member(self, node: Node, decorators: list[str]) -> Member:
        members: dict[str, Member] = {}
        block = child_field(node, "body")
        for statement in self.list_statements(block) if block is not None else ():
            for name, member in self.list_members(statement):
                if not name.startswith("_") or name in _PUBLIC_DUNDERS:
                    members[name] = _without_self(member, statement)
        for name in _SELF_ATTRIBUTE.findall(node_source(block)):
            members.setdefault(name, Member(kind="unknown"))
        bases = [
            flat_node_source(child_node)
            for child_node in child_nodes(child_field(node, "superclasses"))
        ]
        first = (
            flat_node_source(block.named_children[0])[:2000]
            if block and block.named_children
            else ""
        )
        return Member(
            kind="class",
            line=node_line(self.content, node),
            deprecated="deprecated" in " ".join(decorators).lower()
            or bool(_DEPRECATION.search(first)),
            bases=tuple(re.sub(r"\[.*", "", base) for base in bases if "=" not in base),
            members=members,
            body=body_fingerprint(block),
        )

    def _value_members(self, node: Node) -> Iterator[tuple[str, Member]]:
        if node.type != "assignment":
            return
        left, right = child_field(node, "left"), child_field(node, "right")
        if right is not None and right.type == "assignment":
            yield from self._value_members(right)
        if left is None or _TYPING_HELPERS.match(node_source(right)):
            return
        # Not `save.alters_data = True`, which defines neither.
        names = list(child_nodes(left)) if left.type in _PATTERN_NODES else [left]
        for name in names:
            if name.type == "identifier":
                yield node_source(name), Member(kind="value", line=node_line(self.content, node))

    def _read_from_import(self, node: Node) -> None:
        module = node_source(child_field(node, "module_name"))
        line = node_line(self.content, node)
        for named_child in node.named_children:
            if named_child.type == "wildcard_import":
                self.stars.append(module)
            elif named_child.type == "aliased_import":
                name, alias = (
                    node_source(child_field(named_child, "name")),
                    node_source(child_field(named_child, "alias")),
                )
                self.aliases[alias] = ImportAlias(
                    module=module, name=name, line=line, explicit=name == alias
                )
            elif named_child.type == "dotted_name" and named_child != child_field(
                node, "module_name"
            ):
                self.aliases[node_source(named_child)] = ImportAlias(
                    module=module, name=node_source(named_child), line=line
                )

    def _read_import(self, node: Node) -> None:
        line = node_line(self.content, node)
        if node.type == "aliased_import":
            module, name = (
                node_source(child_field(node, "name")),
                node_source(child_field(node, "alias")),
            )
            self.aliases[name] = ImportAlias(module=module, name=None, line=line)
        elif node.type == "dotted_name":
            top = node_source(node).partition(".")[0]
            self.aliases[top] = ImportAlias(module=top, name=None, line=line)

    def _read_all_list(self, node: Node) -> None:
        if node.type in ("assignment", "augmented_assignment"):
            if node_source(child_field(node, "left")) == "__all__":
                right = node_source(child_field(node, "right"))
                self.lists = True
                self.listed.update(re.findall(r"[\"'](\w+)[\"']", right))
                self.open_list |= "__all__" in right or not re.search(r"[\"']", right)
        elif node.type == "call" and node_source(node).startswith("__all__."):
            self.listed.update(re.findall(r"[\"'](\w+)[\"']", node_source(node)))

    def _read_getattr(self, node: Node) -> None:
        """Read the module's `__getattr__`, which may provide any name quoted in the module."""
        self.late.update(_QUOTED_NAME.findall(self.content.decode("utf-8", "replace")))
        for name in _QUOTED_NAME.findall(node_source(node)):
            late = Member(kind="unknown", line=node_line(self.content, node), deprecated=True)
            self.defined.setdefault(name, late)


def _is_awaited(node: Node, decorator_text: str, body: str) -> bool:
    """Return whether callers await the result; not for generators and context managers."""
    is_plain = "contextmanager" not in decorator_text and not re.search(r"\byield\b", body)
    return is_plain and node_source(node).startswith("async")


def _without_self(member: Member, node: Node) -> Member:
    """Return the member without `self`, as seen through the object."""
    static = "@staticmethod" in node_source(node)[:2000].split("def ", 1)[0]
    first = member.parameters[0].passing if member.parameters else "rest"
    if member.kind != "function" or static or not member.parameters or first == "rest":
        return member
    return msgspec.structs.replace(member, parameters=member.parameters[1:])


def _read_parameters(node: Node | None) -> Iterator[Parameter]:
    parameters: list[Parameter] = []
    passing: Passing = "either"
    for child_node in child_nodes(node):
        if child_node.type == "positional_separator":
            parameters = [
                Parameter(name=p.name, passing="position", default=p.default) for p in parameters
            ]
        elif child_node.type == "keyword_separator":
            passing = "keyword"
        else:
            name = child_field(child_node, "name") or (
                child_node.named_children[0] if child_node.named_children else child_node
            )
            star = name.type if name.type.endswith("splat_pattern") else child_node.type
            default = child_field(child_node, "value")
            kind: Passing = "position" if node_source(name).startswith("__") else passing
            if star == "list_splat_pattern":
                kind, passing = "rest", "keyword"
            elif star == "dictionary_splat_pattern":
                kind = "keywords"
            parameters.append(
                Parameter(
                    name=node_source(name).lstrip("*"),
                    passing=kind,
                    default=flat_node_source(default).replace("'", '"')
                    if default is not None
                    else None,
                )
            )
    yield from parameters


# Python modules of one side of a change: resolve public names through imports.


_MAX_DEPTH = 8
_INTERNAL_PATHS = compile_lazily(
    r"(?:^|/)(?:tests|testing|docs?|examples?|benchmarks?|bench|scripts?|tools?|samples?|internal|"
    r"tasks|ci|build|dist)/|^test/|(?:^|/)(?:setup|conftest|noxfile|manage|fabfile|tasks|conf)\.py$"
)
_EMPTY_BASES = frozenset(
    ("ABC", "Generic", "Protocol", "Enum", "IntEnum", "StrEnum", "NamedTuple", "TypedDict")
)
"""Bases that provide nothing that callers would miss."""
_KNOWN_BASES = {**vars(collections.abc), **vars(builtins)}
"""Bases whose members are known."""
_UNKNOWN_MEMBER = Member(kind="unknown")


class ResolvedName(Record):
    """What a name refers to, and where that is defined."""

    path: str
    name: str
    member: Member


class PythonLibrary:
    """Python modules of one side, read on demand."""

    def __init__(self, read: Callable[[str], bytes | None], paths: Collection[str]) -> None:
        self._read, self._paths = read, paths
        self._scopes: dict[str, ModuleApi | None] = {}

    def load_module_api(self, path: str) -> ModuleApi | None:
        if path not in self._scopes:
            content = self._read(path) if path in self._paths else None
            self._scopes[path] = read_module_api(path, content) if content is not None else None
        return self._scopes[path]

    def import_root(self, path: str) -> str:
        """Return the folder that imports of this file's package start from, with a trailing
        slash."""
        folder = path.rpartition("/")[0]
        while folder and f"{folder}/__init__.py" in self._paths:
            folder = folder.rpartition("/")[0]
        return f"{folder}/" if folder else ""

    def module_name(self, path: str) -> str:
        """Return `click.core` for `src/click/core.py`."""
        inner = path.removeprefix(self.import_root(path)).removesuffix(".py").removesuffix(".pyi")
        return inner.removesuffix("/__init__").replace("/", ".")

    def module_file(self, root: str, dotted: str) -> str | None:
        """Return the file of a module."""
        stem = root + dotted.replace(".", "/")
        choices = (f"{stem}/__init__.py", f"{stem}.py", f"{stem}.pyi")
        return next((path for path in choices if path in self._paths), None)

    def counterpart(self, path: str, root: str, dotted: str) -> str | None:
        """Return the file that a module's file became; a stub is compared with its stub."""
        if path in self._paths:
            return path
        return self.module_file(root, dotted)

    def public_names(self, path: str) -> Iterator[str]:
        """Yield a module's public names, including re-exported ones."""
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
        """Resolve a name of a module through imports; None if it does not exist."""
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
        """Resolve an import, of a name or of a module."""
        target = self._imported_file(path, alias.module)
        if target is None or alias.name is None:
            return ResolvedName(path=path, name=name, member=_UNKNOWN_MEMBER)
        if resolved := self.resolve_name(target, alias.name, depth + 1):
            return resolved
        submodule_path = self._imported_file(path, _join_module_name(alias.module, alias.name))
        return (
            ResolvedName(path=submodule_path, name="", member=Member(kind="module"))
            if submodule_path
            else None
        )

    def may_inherit(self, owner: ResolvedName, name: str) -> bool:
        """Return whether a foreign base may provide a member of that name."""
        return any(
            hasattr(_KNOWN_BASES[base], name) if base in _KNOWN_BASES else base not in _EMPTY_BASES
            for base in self.foreign_bases(owner)
        )

    def foreign_bases(self, owner: ResolvedName, depth: int = 0) -> set[str]:
        """Return foreign bases, whose members are unknown."""
        foreign: set[str] = set()
        for base in owner.member.bases if depth <= _MAX_DEPTH else ():
            inner = self.resolve_base(owner, base)
            if inner is None or inner.member.kind != "class":
                foreign.add(base.rpartition(".")[2])
            else:
                foreign |= self.foreign_bases(inner, depth + 1)
        return foreign

    def class_depth(self, owner: ResolvedName | None, depth: int = 0) -> int:
        """Return the number of ancestor classes in this repository, along the longest chain."""
        base_classes = (
            [self.resolve_base(owner, base) for base in owner.member.bases] if owner else []
        )
        ancestors = [base for base in base_classes if base] if depth <= _MAX_DEPTH else []
        return max((1 + self.class_depth(ancestor, depth + 1) for ancestor in ancestors), default=0)

    def all_members(self, owner: ResolvedName, depth: int = 0) -> dict[str, ResolvedName]:
        """Return all members of a class, including inherited ones."""
        everything: dict[str, ResolvedName] = {}
        if depth > _MAX_DEPTH:
            return everything
        for base in reversed(owner.member.bases):
            inner = self.resolve_base(owner, base)
            if inner is not None and inner.member.kind == "class":
                everything |= self.all_members(inner, depth + 1)
        for name, member in owner.member.members.items():
            everything[name] = ResolvedName(
                path=owner.path, name=f"{owner.name}.{name}", member=member
            )
        return everything

    def resolve_base(self, owner: ResolvedName, base: str) -> ResolvedName | None:
        """Return a base class, if this repository defines it."""
        top, _, inner_name = base.partition(".")
        scope = self.load_module_api(owner.path)
        if inner_name and scope and (alias := scope.aliases.get(top)):
            target = self._imported_file(
                owner.path, _join_module_name(alias.module, alias.name or "")
            )
            return self.resolve_name(target, inner_name) if target else None
        return self.resolve_name(owner.path, base) if not inner_name else None

    def _imported_file(self, path: str, module: str) -> str | None:
        """Return the file of a module as another file imports it."""
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
        """Return whether others may import the module, by its path."""
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
        """Return whether there are packages; beside them, a lone module is a script."""
        return any(re.match(r"(?:src/|lib/)?\w+/__init__\.py$", path) for path in self._paths)


def _join_module_name(module: str, name: str) -> str:
    return f"{module}{'' if module.endswith('.') or not name else '.'}{name}"


# Python: the changes that callers of a package notice.


def compare_python_libraries(
    before: PythonLibrary, after: PythonLibrary, files: Sequence[FileChange]
) -> Iterator[ApiChange]:
    """Yield differences in the public names that the changed files define or re-export."""
    changed = {path for file in files for path in (file.path, file.old_path) if path}
    comparison = _LibraryComparison(before, after, changed)
    reported: set[str] = set()
    for module in sorted(
        _affected_modules(before, files), key=lambda path: (path.count("/"), path)
    ):
        for change in comparison.compare_module(module):
            # A source and its stub report the same change of a name.
            if change.text not in reported:
                reported.add(change.text)
                yield change


def _affected_modules(before: PythonLibrary, files: Sequence[FileChange]) -> set[str]:
    """Return changed public modules, and packages that re-export names of changed ones."""
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
        new_path = self.after.counterpart(path, self.before.import_root(path), dotted)
        new_path = new_path or self.moved.get(dotted)
        if new_path is None:
            # A removed module is one break, with everything in it and below it.
            if dotted.rpartition(".")[0] not in self.gone:
                yield describe_removal(Member(kind="module"), MemberPlace(name=dotted, path=path))
            self.gone.add(dotted)
            return
        removed_names: dict[str, ResolvedName] = {}
        changes_by_name: dict[str, list[ApiChange]] = {}
        changed_names = {
            name: self._touched_name(path, name) for name in self.before.public_names(path)
        }
        # Base classes first: inherited changes are reported once, for the base.
        for name in sorted(
            changed_names, key=lambda name: self.before.class_depth(changed_names[name])
        ):
            old = changed_names[name]
            if old is None or (old.path, old.name) in self.seen:
                continue
            self.seen.add((old.path, old.name))
            resolved = self.after.resolve_name(new_path, name)
            if resolved is None:
                removed_names[name] = old
            else:
                changes_by_name[name] = list(self._compare_pair(f"{dotted}.{name}", old, resolved))
        yield from (change for name in changed_names for change in changes_by_name.get(name, ()))
        new = {
            name: resolved.member
            for name in self.after.public_names(new_path)
            if removed_names
            and not self.before.resolve_name(path, name)
            and (resolved := self.after.resolve_name(new_path, name))
        }
        for name, old in removed_names.items():
            renamed = find_new_name(name, old.member, new)
            location = MemberPlace(name=f"{dotted}.{name}", path=old.path)
            change = describe_removal(
                old.member, location, f"{dotted}.{renamed}" if renamed else None
            )
            # A constant that is neither listed nor re-exported is rarely meant for others.
            soft = old.member.kind == "value" and not self._is_declared_public(path, name)
            yield msgspec.structs.replace(change, breaking=False) if soft else change

    def _is_reported_there(self, member: ResolvedName) -> bool:
        """Return whether the member's class is public itself: then it is reported there."""
        owner = member.name.partition(".")[0]
        return self.before.is_public_module(member.path) and owner in self.before.public_names(
            member.path
        )

    def _is_declared_public(self, path: str, name: str) -> bool:
        """Return whether the module declares the name public."""
        scope = self.before.load_module_api(path)
        return path.endswith("__init__.py") or bool(scope and name in (scope.listed or ()))

    def _touched_name(self, path: str, name: str) -> ResolvedName | None:
        """Return what the name referred to, if the change may have touched it."""
        scope = self.before.load_module_api(path)
        if scope is None:
            return None
        resolved = self.before.resolve_name(path, name)
        if resolved is None or (path not in self.changed and resolved.path not in self.changed):
            return None
        return resolved

    def _compare_pair(
        self, name: str, old_class: ResolvedName, new_class: ResolvedName
    ) -> Iterator[ApiChange]:
        yield from compare_members(
            old_class.member, new_class.member, MemberPlace(name=name, path=new_class.path)
        )
        if old_class.member.kind != "class" or new_class.member.kind != "class":
            return
        old_members, new_members = (
            self.before.all_members(old_class),
            self.after.all_members(new_class),
        )
        removed = {
            attribute: member
            for attribute, member in old_members.items()
            if attribute not in new_members
        }
        new = {
            attribute: member.member
            for attribute, member in new_members.items()
            if attribute not in old_members
        }
        for member_name, member in old_members.items():
            key = (member.path, member.name)
            if key in self.seen or (
                member.path != old_class.path and self._is_reported_there(member)
            ):
                continue
            self.seen.add(key)
            full = f"{name}.{member_name}".removesuffix(".__init__")
            if member_name == "__call__" and "Protocol" in new_class.member.bases:
                # It states how callbacks are called, and calls nothing itself.
                continue
            if member_name not in removed:
                new_member = new_members[member_name]
                yield from compare_members(
                    member.member, new_member.member, MemberPlace(name=full, path=new_member.path)
                )
            elif member.member.kind == "unknown" or member_name.startswith("__"):
                continue
            elif not self.after.may_inherit(new_class, member_name):
                renamed = find_new_name(member_name, member.member, new)
                location = MemberPlace(name=full, path=member.path)
                yield describe_removal(
                    member.member, location, f"{name}.{renamed}" if renamed else None
                )


# The public API: the changes that callers of this repository's code notice.


__all__ = ["ApiChange", "find_added_names", "find_api_changes"]

_PACKAGE_PREFIX = compile_lazily(r"^(?:[a-z_]\w*\.)+(?=[A-Z])")
_INTERNAL_FOLDERS = compile_lazily(
    r"(?:^|/)(?:tests?|__tests__|docs?|examples?|benchmarks?|bench|fixtures?|internal|scripts?|playground)/"
)


def find_api_changes(inspection: Inspection) -> list[ApiChange]:
    """Return public names removed, renamed, or called differently, by language and file."""
    sides: ChangeSides = inspection.sides
    files: dict[str, list[FileChange]] = {}
    for file in inspection.files:
        language = language_of(file.path)
        if language and file.status != "added" and not is_test_file(file.path):
            family: str = _LANGUAGE_FAMILIES.get(language, language)
            files.setdefault(family, []).append(file)
    added = [file for file in inspection.files if file.status == "added"]
    changes: list[ApiChange] = []
    for family, compare in _COMPARERS.items():
        if family in files:
            changes += compare(sides, files[family], added)
    return changes


def find_added_names(inspection: Inspection) -> dict[str, str]:
    """Return public functions, methods and types new to the changed files, with their places."""
    before: set[str] = set()
    added: dict[str, str] = {}
    for file in inspection.files:
        if not _may_be_public(file.path):
            continue
        old = inspection.modules.get(("before", file.old_path or file.path))
        before |= set(_public_definitions(old)) if old else set()
        new = inspection.modules.get(("after", file.path))
        for name, line in _public_definitions(new).items() if new else ():
            if line in inspection.added.get(file.path, ()):
                added.setdefault(name, f"{file.path}:{line}")
    return {name: place for name, place in added.items() if name not in before}


def _may_be_public(path: str) -> bool:
    private = any(re.match(r"_(?!_init__\.)", part) for part in path.split("/"))
    inner = private or is_test_file(path) or _INTERNAL_FOLDERS.search(path)
    return classify_file(path) == "source" and not inner


def _public_definitions(module: SourceModule) -> dict[str, int]:
    """Return definitions that others can reach, with their lines; none inside functions."""
    types = {type_.qualified: type_.first_line for type_ in module.types if type_.public}
    functions = {
        function.qualified: function.first_line
        for function in module.functions
        if function.public and function.qualified.rpartition(".")[0] in ("", *types)
    }
    return {**types, **functions}


def _compare_python(
    sides: ChangeSides, files: Sequence[FileChange], added: Sequence[FileChange]
) -> Iterator[ApiChange]:
    before, after = (PythonLibrary(_side_reader(sides, side), sides.tree(side)) for side in _SIDES)
    return compare_python_libraries(before, after, [*files, *added])


def _compare_go(sides: ChangeSides, files: Sequence[FileChange], _: object) -> Iterator[ApiChange]:
    changed = {file.old_path or file.path for file in files}
    for folder in sorted({_parent_folder(path) for path in changed}):
        # A name may have moved to any other file of its package, and a type may be an alias.
        before, after = (
            language_api.expand_aliases(
                _read_public_names(
                    sides,
                    side,
                    [path for path in sides.tree(side) if _parent_folder(path) == folder],
                    language_api.is_public_go_file,
                    language_api.read_go_names,
                )
            )
            for side in _SIDES
        )
        changed_names = {
            name: definition for name, definition in before.items() if definition[0] in changed
        }
        yield from compare_public_names(changed_names, after, partial(_go_display_name, folder))


def _go_display_name(folder: str, name: str) -> str:
    return f"{folder.rpartition('/')[2]}.{name}" if folder else name


def _compare_java(
    sides: ChangeSides, files: Sequence[FileChange], added: Sequence[FileChange]
) -> Iterator[ApiChange]:
    old = [file.old_path or file.path for file in files]
    new = [file.path for file in (*files, *added) if file.status != "deleted"]
    before = _read_public_names(
        sides, "before", old, language_api.is_public_java_file, language_api.read_java_names
    )
    after = _read_public_names(
        sides, "after", new, language_api.is_public_java_file, language_api.read_java_names
    )
    yield from compare_public_names(before, after, lambda name: _PACKAGE_PREFIX.sub("", name))


def _compare_rust(
    sides: ChangeSides, files: Sequence[FileChange], added: Sequence[FileChange]
) -> Iterator[ApiChange]:
    before, after = (Crate(_side_reader(sides, side), sides.tree(side)) for side in _SIDES)
    old: dict[str, tuple[str, Member]] = {}
    new: dict[str, tuple[str, Member]] = {}
    for file in files:
        if not _INTERNAL_FOLDERS.search(file.path):
            old |= before.public_names(file.old_path or file.path)
    for file in (*files, *added):
        new |= after.public_names(file.path)
    yield from compare_public_names(old, new, lambda name: name.replace(".", "::"))


def _compare_scripts(
    sides: ChangeSides, files: Sequence[FileChange], _: object
) -> Iterator[ApiChange]:
    before, after = (ScriptPackage(_side_reader(sides, side), sides.tree(side)) for side in _SIDES)
    changed = {path for file in files for path in (file.path, file.old_path or file.path)}
    seen_manifests: set[str] = set()
    for file in files:
        manifest = before.find_manifest(file.old_path or file.path)
        if manifest is None or manifest[0] in seen_manifests or _INTERNAL_FOLDERS.search(file.path):
            continue
        seen_manifests.add(manifest[0])
        for entry in sorted(before.list_entries(*manifest)):
            old = {
                n: definition
                for n, definition in before.exported_names(entry).items()
                if definition[0] in changed or entry in changed
            }
            new_manifest = after.find_manifest(entry)
            new_entry = (
                entry
                if entry in sides.tree("after")
                else next(iter(after.list_entries(*new_manifest)), "")
                if new_manifest
                else ""
            )
            new = after.exported_names(new_entry) if new_entry else {}
            yield from compare_public_names(old, new)


def _read_public_names(
    sides: ChangeSides,
    side: ChangeSide,
    paths: Sequence[str],
    is_public: Callable[[str], bool],
    names_of: Callable[[bytes], Mapping[str, Member]],
) -> PublicNames:
    names: dict[str, tuple[str, Member]] = {}
    for path in paths:
        content = sides.read(side, path) if is_public(path) else None
        if content is not None:
            names |= {name: (path, member) for name, member in names_of(content).items()}
    return names


def _side_reader(sides: ChangeSides, side: ChangeSide) -> Callable[[str], bytes | None]:
    return lambda path: sides.read(side, path)


def _parent_folder(path: str) -> str:
    return path.rpartition("/")[0]


_SIDES: tuple[ChangeSide, ChangeSide] = ("before", "after")
_LANGUAGE_FAMILIES = {"typescript": "javascript", "tsx": "javascript"}
_COMPARERS: dict[str, Callable[..., Iterator[ApiChange]]] = {
    "python": _compare_python,
    "go": _compare_go,
    "java": _compare_java,
    "rust": _compare_rust,
    "javascript": _compare_scripts,
}
