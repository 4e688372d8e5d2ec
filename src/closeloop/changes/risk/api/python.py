"""Python's public names: what a module defines, imports and lists in `__all__`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from tree_sitter import Node

from closeloop.changes.risk.api.members import Member, Parameter, Passing
from closeloop.changes.risk.api.trees import (
    body_print,
    children,
    field,
    line_of,
    plain,
    root_of,
    text,
)
from closeloop.model.record import Record

_DEPRECATED = re.compile(
    r"DeprecationWarning|\.\. deprecated|deprecated\b.{0,80}(?:removed|version|instead|use )",
    re.IGNORECASE | re.DOTALL,
)
_PATTERNS = ("pattern_list", "tuple_pattern", "list_pattern")
_PLUMBING = re.compile(r"^(?:\w+\.)?(?:TypeVar|ParamSpec|TypeVarTuple|getLogger|NewType)\(")
_HELD = re.compile(r"\bself\.([a-z]\w{0,80})\b(?:\s*:[^=\n]{0,200})?\s*=(?!=)")
_QUOTED = re.compile(r"[\"']([A-Za-z]\w{0,80})[\"']")
_BLOCKS = frozenset(
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
_SPECIAL = frozenset(
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


class Alias(Record):
    """A name that stands for something in another module."""

    module: str
    """As written, with its dots."""
    name: str | None
    """None where the module itself is meant."""
    line: int
    explicit: bool = False
    """`import x as x`: meant for others."""


class Scope(Record):
    """What one module offers."""

    path: str
    defined: dict[str, Member] = {}
    aliases: dict[str, Alias] = {}
    stars: tuple[str, ...] = ()
    """Modules all of whose names it takes over."""
    listed: frozenset[str] | None = None
    """What `__all__` says, where it is there and can be read."""
    late: frozenset[str] = frozenset()
    """Names that a `__getattr__` of the module may give."""

    def public(self) -> Iterator[str]:
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


def read_scope(path: str, content: bytes) -> Scope:
    """All of one module's text, however broken."""
    reading = _Reading(content)
    for node in reading.statements(root_of("python", content)):
        reading.take(node)
    return Scope(
        path=path,
        defined=reading.defined,
        aliases=reading.aliases,
        stars=tuple(reading.stars),
        listed=frozenset(reading.listed) if reading.lists and not reading.open_list else None,
        late=frozenset(reading.late),
    )


class _Reading:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.defined: dict[str, Member] = {}
        self.aliases: dict[str, Alias] = {}
        self.stars: list[str] = []
        self.listed: set[str] = set()
        self.lists = False
        self.open_list = False
        self.late: set[str] = set()

    def statements(self, node: Node) -> Iterator[Node]:
        """Of a block, those inside conditions and tries too."""
        waiting = list(reversed(node.named_children))
        while waiting:
            one = waiting.pop()
            if one.type in _BLOCKS:
                waiting.extend(reversed(one.named_children))
            else:
                yield one

    def take(self, node: Node) -> None:
        if node.type == "import_from_statement":
            self._from(node)
        elif node.type == "import_statement":
            for one in children(node):
                self._import(one)
        elif node.type == "expression_statement":
            for one in children(node):
                self._all_list(one)
        for name, member in self.members(node):
            if name == "__getattr__":
                self._late(node)
            elif not name.startswith("__"):
                self.defined[name] = member

    def members(self, node: Node) -> Iterator[tuple[str, Member]]:
        """What one statement defines."""
        decorators: list[str] = []
        if node.type == "decorated_definition":
            decorators = [text(one) for one in node.named_children if one.type == "decorator"]
            inner = field(node, "definition")
            if inner is None:
                return
            node = inner
        if node.type == "function_definition":
            if not any(re.search(r"\boverload$|\.(setter|deleter)$", one) for one in decorators):
                yield text(field(node, "name")), self._function(node, decorators)
        elif node.type == "class_definition":
            yield text(field(node, "name")), self._class(node, decorators)
        elif node.type == "expression_statement":
            for one in children(node):
                yield from self._value(one)
        elif node.type == "type_alias_statement":
            name = re.match(r"\w+", text(node.named_children[0])) if node.named_children else None
            if name:
                yield name[0], Member(kind="value", line=line_of(self.content, node))

    def _function(self, node: Node, decorators: list[str]) -> Member:
        marks = " ".join(decorators)
        parameters = tuple(_parameters(field(node, "parameters")))
        is_property = bool(re.search(r"property\b", marks))
        body = text(field(node, "body"))
        return Member(
            kind="property" if is_property else "function",
            line=line_of(self.content, node),
            parameters=None if is_property else parameters,
            deprecated="deprecated" in marks.lower() or bool(_DEPRECATED.search(body[:3000])),
            waiting=_is_awaited(node, marks, body),
            body=body_print(field(node, "body")),
        )

    def _class(self, node: Node, decorators: list[str]) -> Member:
        members: dict[str, Member] = {}
        block = field(node, "body")
        for one in self.statements(block) if block is not None else ():
            for name, member in self.members(one):
                if not name.startswith("_") or name in _SPECIAL:
                    members[name] = _bound(member, one)
        for name in _HELD.findall(text(block)):
            members.setdefault(name, Member(kind="unknown"))
        bases = [plain(one) for one in children(field(node, "superclasses"))]
        first = plain(block.named_children[0])[:2000] if block and block.named_children else ""
        return Member(
            kind="class",
            line=line_of(self.content, node),
            deprecated="deprecated" in " ".join(decorators).lower()
            or bool(_DEPRECATED.search(first)),
            bases=tuple(re.sub(r"\[.*", "", base) for base in bases if "=" not in base),
            members=members,
            body=body_print(block),
        )

    def _value(self, node: Node) -> Iterator[tuple[str, Member]]:
        if node.type != "assignment":
            return
        left, right = field(node, "left"), field(node, "right")
        if right is not None and right.type == "assignment":
            yield from self._value(right)
        if left is None or _PLUMBING.match(text(right)):
            return
        # Not `save.alters_data = True`, which defines neither.
        names = list(children(left)) if left.type in _PATTERNS else [left]
        for name in names:
            if name.type == "identifier":
                yield text(name), Member(kind="value", line=line_of(self.content, node))

    def _from(self, node: Node) -> None:
        module = text(field(node, "module_name"))
        line = line_of(self.content, node)
        for one in node.named_children:
            if one.type == "wildcard_import":
                self.stars.append(module)
            elif one.type == "aliased_import":
                name, alias = text(field(one, "name")), text(field(one, "alias"))
                self.aliases[alias] = Alias(
                    module=module, name=name, line=line, explicit=name == alias
                )
            elif one.type == "dotted_name" and one != field(node, "module_name"):
                self.aliases[text(one)] = Alias(module=module, name=text(one), line=line)

    def _import(self, node: Node) -> None:
        line = line_of(self.content, node)
        if node.type == "aliased_import":
            module, name = text(field(node, "name")), text(field(node, "alias"))
            self.aliases[name] = Alias(module=module, name=None, line=line)
        elif node.type == "dotted_name":
            top = text(node).partition(".")[0]
            self.aliases[top] = Alias(module=top, name=None, line=line)

    def _all_list(self, node: Node) -> None:
        if node.type in ("assignment", "augmented_assignment"):
            if text(field(node, "left")) == "__all__":
                right = text(field(node, "right"))
                self.lists = True
                self.listed.update(re.findall(r"[\"'](\w+)[\"']", right))
                self.open_list |= "__all__" in right or not re.search(r"[\"']", right)
        elif node.type == "call" and text(node).startswith("__all__."):
            self.listed.update(re.findall(r"[\"'](\w+)[\"']", text(node)))

    def _late(self, node: Node) -> None:
        """A module's `__getattr__` may give any name that stands in quotes in the module."""
        self.late.update(_QUOTED.findall(self.content.decode("utf-8", "replace")))
        for name in _QUOTED.findall(text(node)):
            late = Member(kind="unknown", line=line_of(self.content, node), deprecated=True)
            self.defined.setdefault(name, late)


def _is_awaited(node: Node, marks: str, body: str) -> bool:
    """Whether callers await the result: not that of a generator, or of a context manager."""
    plainly = "contextmanager" not in marks and not re.search(r"\byield\b", body)
    return plainly and text(node).startswith("async")


def _bound(member: Member, node: Node) -> Member:
    """As seen through the object: without `self`."""
    static = "@staticmethod" in text(node)[:2000].split("def ", 1)[0]
    first = member.parameters[0].passing if member.parameters else "rest"
    if member.kind != "function" or static or not member.parameters or first == "rest":
        return member
    return msgspec.structs.replace(member, parameters=member.parameters[1:])


def _parameters(node: Node | None) -> Iterator[Parameter]:
    found: list[Parameter] = []
    passing: Passing = "either"
    for one in children(node):
        if one.type == "positional_separator":
            found = [Parameter(name=p.name, passing="position", default=p.default) for p in found]
        elif one.type == "keyword_separator":
            passing = "keyword"
        else:
            name = field(one, "name") or (one.named_children[0] if one.named_children else one)
            star = name.type if name.type.endswith("splat_pattern") else one.type
            default = field(one, "value")
            kind: Passing = "position" if text(name).startswith("__") else passing
            if star == "list_splat_pattern":
                kind, passing = "rest", "keyword"
            elif star == "dictionary_splat_pattern":
                kind = "keywords"
            found.append(
                Parameter(
                    name=text(name).lstrip("*"),
                    passing=kind,
                    default=plain(default).replace("'", '"') if default is not None else None,
                )
            )
    yield from found
