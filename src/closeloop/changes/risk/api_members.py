"""API members and their comparison, in any language: what callers rely on and notice."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Literal

import msgspec
from tree_sitter import Language as CompiledLanguage
from tree_sitter import Node, Parser

from closeloop.records.change import Language
from closeloop.records.record import Record

Passing = Literal["position", "either", "keyword", "rest", "keywords"]
MemberKind = Literal["function", "property", "class", "value", "module", "unknown"]
"""Unknown: it exists, and nothing else is known of it."""
ApiDifference = Literal["removed", "renamed", "signature", "default", "type"]


class Parameter(Record):
    """One parameter as callers see it."""

    name: str
    passing: Passing = "either"
    default: str | None = None
    """As written; None if the parameter is required."""
    type: str = ""


class Member(Record):
    """One name that callers may use."""

    kind: MemberKind
    line: int = 1
    parameters: tuple[Parameter, ...] | None = None
    """None if it cannot be called."""
    type: str = ""
    """Its type or return type, if the language enforces it on callers."""
    deprecated: bool = False
    bases: tuple[str, ...] = ()
    members: Mapping[str, Member] = {}
    waiting: bool = False
    """Whether the result has to be awaited."""
    body: int = 0
    """Fingerprint of its body, by which a renamed member is recognised."""


class ApiChange(Record):
    """One difference in what callers may rely on."""

    kind: ApiDifference
    name: str
    """As callers write it."""
    text: str
    breaking: bool
    announced: bool = False
    """Whether it was deprecated before."""
    place: str
    """Path and line, after the change if it still exists."""


# Syntax trees for reading an API, and lines in them.

_GRAMMAR_LOADERS: dict[Language, tuple[str, str]] = {
    "python": ("tree_sitter_python", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "go": ("tree_sitter_go", "language"),
    "java": ("tree_sitter_java", "language"),
    "rust": ("tree_sitter_rust", "language"),
}


@cache
def _load_parser(language: Language) -> Parser:
    module, name = _GRAMMAR_LOADERS[language]
    return Parser(CompiledLanguage(getattr(import_module(module), name)()))


def parse_syntax_root(language: Language, content: bytes) -> Node:
    return _load_parser(language).parse(content).root_node


@lru_cache(maxsize=4)
def _find_line_ends(content: bytes) -> Sequence[int]:
    return [end.start() for end in re.finditer(b"\n", content)]


def node_line(content: bytes, node: Node) -> int:
    return bisect_left(_find_line_ends(content), node.start_byte) + 1


def node_source(node: Node | None) -> str:
    return "" if node is None or node.text is None else node.text.decode("utf-8", "replace")


def flat_node_source(node: Node | None) -> str:
    """Return a node's source on one line."""
    return " ".join(node_source(node).split())


def child_field(node: Node, name: str) -> Node | None:
    return node.child_by_field_name(name)


def body_fingerprint(node: Node | None) -> int:
    """Return a hash of the text, independent of layout; 0 if there is none or too little."""
    source = flat_node_source(node)
    return hash(source) if len(source) > 60 else 0


def child_nodes(node: Node | None) -> Iterator[Node]:
    if node is not None:
        yield from (child for child in node.named_children if child.type != "comment")


# Compare two states of a name: the differences that callers notice.

_VARIADIC = ("rest", "keywords")
_POSITIONAL = ("position", "either")


class MemberPlace(Record):
    """The name to report, and its place after the change (or before)."""

    name: str
    path: str
    by_name: bool = True
    """Whether callers may pass parameters by name; else only their order and types count."""


def compare_members(before: Member, after: Member, location: MemberPlace) -> Iterator[ApiChange]:
    """Yield the differences that callers of one name notice, without its members."""
    if "unknown" in (before.kind, after.kind):
        return
    called = before.parameters is not None and after.parameters is not None
    if before.kind != after.kind and not _are_interchangeable(before, after):
        yield _make_api_change(
            location, before, after, "type", f"is now a {after.kind}, was a {before.kind}"
        )
    elif called and before.waiting != after.waiting:
        await_text = "must now be awaited" if after.waiting else "is no longer awaited"
        yield _make_api_change(location, before, after, "signature", await_text)
    elif called and location.by_name:
        yield from _compare_parameters(before, after, location)
    elif called and _parameter_types(before) != _parameter_types(after):
        text = (
            f"takes ({', '.join(_parameter_types(after))}), took"
            f" ({', '.join(_parameter_types(before))})"
        )
        yield _make_api_change(
            location,
            before,
            after,
            "signature",
            text,
            breaking=not _accepts_old_calls(before, after),
        )
    elif (
        not location.by_name
        and before.type != after.type
        and (called or (before.type and after.type))
    ):
        text = f"is `{after.type or 'nothing'}`, was `{before.type or 'nothing'}`"
        yield _make_api_change(location, before, after, "type", text)


def describe_removal(
    before: Member, location: MemberPlace, renamed: str | None = None
) -> ApiChange:
    kind_prefix = {"module": "module ", "class": "class "}.get(before.kind, "")
    text = (
        f"renames {kind_prefix}`{location.name}` to `{renamed}`"
        if renamed
        else f"removes {kind_prefix}`{location.name}`"
    )
    return ApiChange(
        kind="renamed" if renamed else "removed",
        name=location.name,
        text=text,
        breaking=True,
        announced=before.deprecated,
        place=f"{location.path}:{before.line}",
    )


def find_new_name(name: str, removed: Member, new: Mapping[str, Member]) -> str | None:
    """Return the most likely new name: the same body, or much the same signature."""
    short = name.rpartition(".")[2]
    for new_name, member in new.items():
        if member.kind == removed.kind and removed.body and member.body == removed.body:
            return new_name
    for candidate, member in new.items():
        is_similar = SequenceMatcher(None, short, candidate.rpartition(".")[2]).ratio() > 0.7
        if is_similar and removed.parameters and member.parameters == removed.parameters:
            return candidate
    return None


def _are_interchangeable(before: Member, after: Member) -> bool:
    """Return whether callers need not care: a function became a class, a value a property."""
    kinds = {before.kind, after.kind}
    return kinds not in ({"function", "property"}, {"class", "property"})


def _parameter_types(member: Member) -> list[str]:
    return [
        f"{'...' if parameter.passing == 'rest' else ''}{parameter.type}"
        f"{'' if parameter.default is None else '?'}"
        for parameter in member.parameters or ()
    ]


def _accepts_old_calls(before: Member, after: Member) -> bool:
    """Return whether new trailing parameters are optional and the rest accepts what it did."""
    old, new = _parameter_types(before), _parameter_types(after)
    added = (after.parameters or ())[len(old) :]
    optional = all(
        parameter.passing == "rest" or parameter.default is not None for parameter in added
    )
    takes = all(new_type in (old_type, "any") for old_type, new_type in zip(old, new, strict=False))
    return optional and len(old) <= len(new) and takes and before.type == after.type


def _make_api_change(
    location: MemberPlace,
    before: Member,
    after: Member,
    kind: ApiDifference,
    text: str,
    *,
    breaking: bool = True,
) -> ApiChange:
    return ApiChange(
        kind=kind,
        name=location.name,
        text=f"`{location.name}` {text}",
        breaking=breaking,
        announced=before.deprecated,
        place=f"{location.path}:{after.line}",
    )


def _compare_parameters(
    before: Member, after: Member, location: MemberPlace
) -> Iterator[ApiChange]:
    """Yield, for each call that a caller may have written, what no longer works."""
    new = list(after.parameters or ())
    old = [
        _align_name(parameter, index, new)
        for index, parameter in enumerate(before.parameters or ())
    ]
    names = {parameter.name: parameter for parameter in new}
    make_change = partial(_make_api_change, location, before, after)
    added = [
        parameter for parameter in new if parameter.name not in {previous.name for previous in old}
    ]
    took_any, takes_any = _variadic_passings(old), _variadic_passings(new)
    replaced = set()
    for position, old_parameter in enumerate(old):
        if old_parameter.passing in _VARIADIC or old_parameter.name.startswith("_"):
            continue
        if old_parameter.name in names:
            yield from _parameter_changes(
                old_parameter, names[old_parameter.name], takes_any, make_change
            )
        elif (
            position < len(new)
            and new[position] in added
            and _is_replacement(new[position], old_parameter)
        ):
            replaced.add(new[position].name)
            yield make_change(
                "signature", f"takes `{new[position].name}` where it took `{old_parameter.name}`"
            )
        elif not (_needed_variadics(old_parameter) <= takes_any):
            yield make_change("signature", f"no longer takes `{old_parameter.name}`")
    for new_parameter in added:
        required = new_parameter.default is None and new_parameter.passing not in _VARIADIC
        if (
            required
            and new_parameter.name not in replaced
            and not (_needed_variadics(new_parameter) & took_any)
        ):
            yield make_change("signature", f"now requires `{new_parameter.name}`")
    yield from _lost_variadics(old, new, added, make_change)
    yield from _moved_parameters(old, new, make_change)


def _lost_variadics(
    old: Sequence[Parameter],
    new: Sequence[Parameter],
    added: Sequence[Parameter],
    make_change: Callable[..., ApiChange],
) -> Iterator[ApiChange]:
    """Yield a removed `*args` or `**kwargs`, unless named parameters replace it."""
    for parameter in old:
        if parameter.passing not in _VARIADIC or parameter.passing in _variadic_passings(new):
            continue
        passings = _POSITIONAL if parameter.passing == "rest" else ("either", "keyword")
        if not any(new_parameter.passing in passings for new_parameter in added):
            manner = "by position" if parameter.passing == "rest" else "by name"
            yield make_change("signature", f"no longer takes more {manner} (`{parameter.name}`)")


def _align_name(old: Parameter, index: int, new: Sequence[Parameter]) -> Parameter:
    """Return a positional-only parameter with its successor's name, since it has none of its
    own."""
    if old.passing != "position" or index >= len(new) or new[index].passing not in _POSITIONAL:
        return old
    return msgspec.structs.replace(old, name=new[index].name)


def _variadic_passings(parameters: Sequence[Parameter]) -> set[Passing]:
    return {parameter.passing for parameter in parameters if parameter.passing in _VARIADIC}


def _needed_variadics(parameter: Parameter) -> set[Passing]:
    """Return what can replace it if it is not named: `*args`, `**kwargs` or both."""
    return {"position": {"rest"}, "keyword": {"keywords"}}.get(
        parameter.passing, {"rest", "keywords"}
    )  # type: ignore[return-value]


def _is_replacement(new: Parameter, old: Parameter) -> bool:
    return new.passing not in _VARIADIC and (new.passing in _POSITIONAL) == (
        old.passing in _POSITIONAL
    )


def _parameter_changes(
    old: Parameter, new: Parameter, takes_any: set[Passing], make_change: Callable[..., ApiChange]
) -> Iterator[ApiChange]:
    if new.passing in _VARIADIC:
        return
    if old.default is not None and new.default is None:
        yield make_change("signature", f"now requires `{old.name}`")
    elif old.passing in _POSITIONAL and new.passing == "keyword":
        yield make_change("signature", f"takes `{old.name}` by keyword only")
    elif old.passing in ("either", "keyword") and new.passing == "position":
        if "keywords" in takes_any:
            return
        yield make_change("signature", f"takes `{old.name}` by position only")
    elif old.default is not None and old.default != new.default:
        text = f"defaults `{old.name}` to `{new.default}`, was `{old.default}`"
        yield make_change("default", text, breaking=False)


def _moved_parameters(
    old: Sequence[Parameter], new: Sequence[Parameter], make_change: Callable[..., ApiChange]
) -> Iterator[ApiChange]:
    """Yield parameters passed by position that now follow one that callers do not know."""
    before = [parameter.name for parameter in old if parameter.passing in _POSITIONAL]
    after = [parameter.name for parameter in new if parameter.passing in _POSITIONAL]
    shared_names = [name for name in before if name in after]
    for name in shared_names:
        kept_position = before.index(name) == after.index(name)
        if not kept_position and all(earlier in after for earlier in before[: before.index(name)]):
            yield make_change("signature", f"takes `{name}` at another position")
            return


# Compare two lists of names, for languages in which a name's place identifies it.

PublicNames = Mapping[str, tuple[str, Member]]
"""Path and member, by the name that callers use."""


def compare_public_names(
    before: PublicNames, after: PublicNames, format_name: Callable[[str], str] = str
) -> Iterator[ApiChange]:
    """Yield what callers notice; of a removed type only the type is reported."""
    removed_names = {name for name in before if name not in after}
    new = {name: member for name, (_, member) in after.items() if name not in before}
    for name, (path, member) in before.items():
        if name in after:
            new_definition = after[name]
            yield from compare_members(
                member,
                new_definition[1],
                MemberPlace(name=format_name(name), path=new_definition[0], by_name=False),
            )
        elif not _is_owner_gone(name, removed_names):
            yield _describe_gone_name(name, path, member, new, format_name)


def _describe_gone_name(
    name: str,
    path: str,
    member: Member,
    new: Mapping[str, Member],
    format_name: Callable[[str], str],
) -> ApiChange:
    location = MemberPlace(name=format_name(name), path=path)
    stem = name.partition("(")[0]
    # An overload with other types is the same method with another signature.
    overload = next(
        (candidate for candidate in new if "(" in name and candidate.partition("(")[0] == stem),
        None,
    )
    if overload is not None:
        return ApiChange(
            kind="signature",
            name=location.name,
            text=f"`{location.name}` is now `{format_name(overload)}`",
            breaking=True,
            announced=member.deprecated,
            place=f"{path}:{new[overload].line}",
        )
    siblings = {
        sibling: sibling_member
        for sibling, sibling_member in new.items()
        if _owner_name(sibling) == _owner_name(name)
    }
    renamed = find_new_name(stem, member, siblings)
    return describe_removal(member, location, format_name(renamed) if renamed else None)


def _owner_name(name: str) -> str:
    return name.partition("(")[0].rpartition(".")[0]


def _is_owner_gone(name: str, removed_names: set[str]) -> bool:
    """Return whether its owner is gone as well."""
    owner = _owner_name(name)
    while owner:
        if owner in removed_names:
            return True
        owner = _owner_name(owner)
    return False
