"""Python's public names: what a module defines, imports and lists in `__all__`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from tree_sitter import Node

from closeloop.changes.risk.api.api_members import (
    Member,
    Parameter,
    Passing,
    body_fingerprint,
    child_field,
    child_nodes,
    flat_node_source,
    node_line,
    node_source,
    parse_syntax_root,
)
from closeloop.records.record import Record

_DEPRECATION = re.compile(
    r"DeprecationWarning|\.\. deprecated|deprecated\b.{0,80}(?:removed|version|instead|use )",
    re.IGNORECASE | re.DOTALL,
)
_COMMAND_DECORATOR = re.compile(
    r"@\s*(?:(?:click|rich_click|asyncclick|typer)\.\w+|(?:\w+\.)*(?:command|group|callback))\s*(?:\(|$)"
)
"""What click and typer run from a command line: nobody calls the function with arguments."""
_PATTERN_NODES = ("pattern_list", "tuple_pattern", "list_pattern")
_TYPING_HELPERS = re.compile(r"^(?:\w+\.)?(?:TypeVar|ParamSpec|TypeVarTuple|getLogger|NewType)\(")
_SELF_ATTRIBUTE = re.compile(r"\bself\.([a-z]\w{0,80})\b(?:\s*:[^=\n]{0,200})?\s*=(?!=)")
_QUOTED_NAME = re.compile(r"[\"']([A-Za-z]\w{0,80})[\"']")
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
    """A name that stands for something in another module."""

    module: str
    """As written, with its dots."""
    name: str | None
    """None where the module itself is meant."""
    line: int
    explicit: bool = False
    """`import x as x`: meant for others."""


class ModuleApi(Record):
    """What one module offers."""

    path: str
    defined: dict[str, Member] = {}
    aliases: dict[str, ImportAlias] = {}
    stars: tuple[str, ...] = ()
    """Modules all of whose names it takes over."""
    listed: frozenset[str] | None = None
    """What `__all__` says, where it is there and can be read."""
    late: frozenset[str] = frozenset()
    """Names that a `__getattr__` of the module may give."""

    def public_names(self) -> Iterator[str]:
        """Names meant for others, those of star imports left out."""
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
    """All of one module's text, however broken."""
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
        """Of a block, those inside conditions and tries too."""
        waiting = list(reversed(node.named_children))
        while waiting:
            one = waiting.pop()
            if one.type in _BLOCK_NODES:
                waiting.extend(reversed(one.named_children))
            else:
                yield one

    def read_statement(self, node: Node) -> None:
        if node.type == "import_from_statement":
            self._read_from_import(node)
        elif node.type == "import_statement":
            for one in child_nodes(node):
                self._read_import(one)
        elif node.type == "expression_statement":
            for one in child_nodes(node):
                self._read_all_list(one)
        for name, member in self.list_members(node):
            if name == "__getattr__":
                self._read_getattr(node)
            elif not name.startswith("__"):
                self.defined[name] = member

    def list_members(self, node: Node) -> Iterator[tuple[str, Member]]:
        """What one statement defines."""
        decorators: list[str] = []
        if node.type == "decorated_definition":
            decorators = [
                node_source(one) for one in node.named_children if one.type == "decorator"
            ]
            inner = child_field(node, "definition")
            if inner is None:
                return
            node = inner
        if node.type == "function_definition":
            if not any(re.search(r"\boverload$|\.(setter|deleter)$", one) for one in decorators):
                yield (
                    node_source(child_field(node, "name")),
                    self._function_member(node, decorators),
                )
        elif node.type == "class_definition":
            yield node_source(child_field(node, "name")), self._class_member(node, decorators)
        elif node.type == "expression_statement":
            for one in child_nodes(node):
                yield from self._value_members(one)
        elif node.type == "type_alias_statement":
            name = (
                re.match(r"\w+", node_source(node.named_children[0]))
                if node.named_children
                else None
            )
            if name:
                yield name[0], Member(kind="value", line=node_line(self.content, node))

    def _function_member(self, node: Node, decorators: list[str]) -> Member:
        if any(_COMMAND_DECORATOR.match(one) for one in decorators):
            return Member(kind="value", line=node_line(self.content, node))
        marks = " ".join(decorators)
        parameters = tuple(_read_parameters(child_field(node, "parameters")))
        is_property = bool(re.search(r"property\b", marks))
        body = node_source(child_field(node, "body"))
        return Member(
            kind="property" if is_property else "function",
            line=node_line(self.content, node),
            parameters=None if is_property else parameters,
            deprecated="deprecated" in marks.lower() or bool(_DEPRECATION.search(body[:3000])),
            waiting=_is_awaited(node, marks, body),
            body=body_fingerprint(child_field(node, "body")),
        )

    def _class_member(self, node: Node, decorators: list[str]) -> Member:
        members: dict[str, Member] = {}
        block = child_field(node, "body")
        for one in self.list_statements(block) if block is not None else ():
            for name, member in self.list_members(one):
                if not name.startswith("_") or name in _PUBLIC_DUNDERS:
                    members[name] = _without_self(member, one)
        for name in _SELF_ATTRIBUTE.findall(node_source(block)):
            members.setdefault(name, Member(kind="unknown"))
        bases = [flat_node_source(one) for one in child_nodes(child_field(node, "superclasses"))]
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
        for one in node.named_children:
            if one.type == "wildcard_import":
                self.stars.append(module)
            elif one.type == "aliased_import":
                name, alias = (
                    node_source(child_field(one, "name")),
                    node_source(child_field(one, "alias")),
                )
                self.aliases[alias] = ImportAlias(
                    module=module, name=name, line=line, explicit=name == alias
                )
            elif one.type == "dotted_name" and one != child_field(node, "module_name"):
                self.aliases[node_source(one)] = ImportAlias(
                    module=module, name=node_source(one), line=line
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
        """A module's `__getattr__` may give any name that stands in quotes in the module."""
        self.late.update(_QUOTED_NAME.findall(self.content.decode("utf-8", "replace")))
        for name in _QUOTED_NAME.findall(node_source(node)):
            late = Member(kind="unknown", line=node_line(self.content, node), deprecated=True)
            self.defined.setdefault(name, late)


def _is_awaited(node: Node, marks: str, body: str) -> bool:
    """Whether callers await the result: not that of a generator, or of a context manager."""
    plainly = "contextmanager" not in marks and not re.search(r"\byield\b", body)
    return plainly and node_source(node).startswith("async")


def _without_self(member: Member, node: Node) -> Member:
    """As seen through the object: without `self`."""
    static = "@staticmethod" in node_source(node)[:2000].split("def ", 1)[0]
    first = member.parameters[0].passing if member.parameters else "rest"
    if member.kind != "function" or static or not member.parameters or first == "rest":
        return member
    return msgspec.structs.replace(member, parameters=member.parameters[1:])


def _read_parameters(node: Node | None) -> Iterator[Parameter]:
    parameters: list[Parameter] = []
    passing: Passing = "either"
    for one in child_nodes(node):
        if one.type == "positional_separator":
            parameters = [
                Parameter(name=p.name, passing="position", default=p.default) for p in parameters
            ]
        elif one.type == "keyword_separator":
            passing = "keyword"
        else:
            name = child_field(one, "name") or (
                one.named_children[0] if one.named_children else one
            )
            star = name.type if name.type.endswith("splat_pattern") else one.type
            default = child_field(one, "value")
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
