"""Two states of a name, and what callers notice of the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial

import msgspec

from closeloop.changes.risk.api.api_members import (
    ApiChange,
    ApiDifference,
    Member,
    Parameter,
    Passing,
)
from closeloop.records.record import Record

_VARIADIC = ("rest", "keywords")
_POSITIONAL = ("position", "either")


class MemberPlace(Record):
    """How a name is told, and where it lies after the change (or lay before)."""

    name: str
    path: str
    by_name: bool = True
    """Whether callers may name parameters; else only their order and types count."""


def compare_members(before: Member, after: Member, where: MemberPlace) -> Iterator[ApiChange]:
    """What callers of one name notice; not of what is inside it."""
    if "unknown" in (before.kind, after.kind):
        return
    called = before.parameters is not None and after.parameters is not None
    if before.kind != after.kind and not _are_interchangeable(before, after):
        yield _make_api_change(
            where, before, after, "type", f"is now a {after.kind}, was a {before.kind}"
        )
    elif called and before.waiting != after.waiting:
        now = "must now be awaited" if after.waiting else "is no longer awaited"
        yield _make_api_change(where, before, after, "signature", now)
    elif called and where.by_name:
        yield from _compare_parameters(before, after, where)
    elif called and _parameter_types(before) != _parameter_types(after):
        text = (
            f"takes ({', '.join(_parameter_types(after))}), took"
            f" ({', '.join(_parameter_types(before))})"
        )
        yield _make_api_change(
            where, before, after, "signature", text, breaking=not _accepts_old_calls(before, after)
        )
    elif (
        not where.by_name and before.type != after.type and (called or (before.type and after.type))
    ):
        text = f"is `{after.type or 'nothing'}`, was `{before.type or 'nothing'}`"
        yield _make_api_change(where, before, after, "type", text)


def describe_removal(before: Member, where: MemberPlace, renamed: str | None = None) -> ApiChange:
    kind_prefix = {"module": "module ", "class": "class "}.get(before.kind, "")
    text = (
        f"renames {kind_prefix}`{where.name}` to `{renamed}`"
        if renamed
        else f"removes {kind_prefix}`{where.name}`"
    )
    return ApiChange(
        kind="renamed" if renamed else "removed",
        name=where.name,
        text=text,
        breaking=True,
        announced=before.deprecated,
        place=f"{where.path}:{before.line}",
    )


def find_new_name(name: str, gone: Member, new: Mapping[str, Member]) -> str | None:
    """The new name that this one most likely got: the same inside, or much the same outside."""
    short = name.rpartition(".")[2]
    for other, member in new.items():
        if member.kind == gone.kind and gone.body and member.body == gone.body:
            return other
    for other, member in new.items():
        is_similar = SequenceMatcher(None, short, other.rpartition(".")[2]).ratio() > 0.7
        if is_similar and gone.parameters and member.parameters == gone.parameters:
            return other
    return None


def _are_interchangeable(before: Member, after: Member) -> bool:
    """Callers need not care: a function that became a class, a value that became a property."""
    kinds = {before.kind, after.kind}
    return kinds not in ({"function", "property"}, {"class", "property"})


def _parameter_types(member: Member) -> list[str]:
    return [
        f"{'...' if one.passing == 'rest' else ''}{one.type}{'' if one.default is None else '?'}"
        for one in member.parameters or ()
    ]


def _accepts_old_calls(before: Member, after: Member) -> bool:
    """Whether what is new at the end need not be given, and the rest takes what it took."""
    old, new = _parameter_types(before), _parameter_types(after)
    more = (after.parameters or ())[len(old) :]
    optional = all(one.passing == "rest" or one.default is not None for one in more)
    takes = all(now in (was, "any") for was, now in zip(old, new, strict=False))
    return optional and len(old) <= len(new) and takes and before.type == after.type


def _make_api_change(
    where: MemberPlace,
    before: Member,
    after: Member,
    kind: ApiDifference,
    text: str,
    *,
    breaking: bool = True,
) -> ApiChange:
    return ApiChange(
        kind=kind,
        name=where.name,
        text=f"`{where.name}` {text}",
        breaking=breaking,
        announced=before.deprecated,
        place=f"{where.path}:{after.line}",
    )


def _compare_parameters(before: Member, after: Member, where: MemberPlace) -> Iterator[ApiChange]:
    """For each thing that a caller may have written, whether it still works."""
    new = list(after.parameters or ())
    old = [_align_name(one, place, new) for place, one in enumerate(before.parameters or ())]
    names = {one.name: one for one in new}
    make_change = partial(_make_api_change, where, before, after)
    fresh = [one for one in new if one.name not in {each.name for each in old}]
    took_any, takes_any = _variadic_passings(old), _variadic_passings(new)
    replaced = set()
    for place, one in enumerate(old):
        if one.passing in _VARIADIC or one.name.startswith("_"):
            continue
        if one.name in names:
            yield from _parameter_changes(one, names[one.name], takes_any, make_change)
        elif place < len(new) and new[place] in fresh and _is_replacement(new[place], one):
            replaced.add(new[place].name)
            yield make_change("signature", f"takes `{new[place].name}` where it took `{one.name}`")
        elif not (_needed_variadics(one) <= takes_any):
            yield make_change("signature", f"no longer takes `{one.name}`")
    for one in fresh:
        required = one.default is None and one.passing not in _VARIADIC
        if required and one.name not in replaced and not (_needed_variadics(one) & took_any):
            yield make_change("signature", f"now requires `{one.name}`")
    yield from _lost_variadics(old, new, fresh, make_change)
    yield from _moved_parameters(old, new, make_change)


def _lost_variadics(
    old: Sequence[Parameter],
    new: Sequence[Parameter],
    fresh: Sequence[Parameter],
    told: Callable[..., ApiChange],
) -> Iterator[ApiChange]:
    """A `*args` or `**kwargs` that is gone, where no parameters with names took its place."""
    for one in old:
        if one.passing not in _VARIADIC or one.passing in _variadic_passings(new):
            continue
        places = _POSITIONAL if one.passing == "rest" else ("either", "keyword")
        if not any(other.passing in places for other in fresh):
            how = "by position" if one.passing == "rest" else "by name"
            yield told("signature", f"no longer takes more {how} (`{one.name}`)")


def _align_name(old: Parameter, place: int, new: Sequence[Parameter]) -> Parameter:
    """A parameter that is only passed by position has no name: it takes that of its successor."""
    if old.passing != "position" or place >= len(new) or new[place].passing not in _POSITIONAL:
        return old
    return msgspec.structs.replace(old, name=new[place].name)


def _variadic_passings(parameters: Sequence[Parameter]) -> set[Passing]:
    return {one.passing for one in parameters if one.passing in _VARIADIC}


def _needed_variadics(one: Parameter) -> set[Passing]:
    """What takes its place where it is not named: `*args`, `**kwargs` or both."""
    return {
        "position": {"rest"},
        "keyword": {"keywords"},
    }.get(one.passing, {"rest", "keywords"})  # type: ignore[return-value]


def _is_replacement(new: Parameter, old: Parameter) -> bool:
    return new.passing not in _VARIADIC and (new.passing in _POSITIONAL) == (
        old.passing in _POSITIONAL
    )


def _parameter_changes(
    old: Parameter, new: Parameter, takes_any: set[Passing], told: Callable[..., ApiChange]
) -> Iterator[ApiChange]:
    if new.passing in _VARIADIC:
        return
    if old.default is not None and new.default is None:
        yield told("signature", f"now requires `{old.name}`")
    elif old.passing in _POSITIONAL and new.passing == "keyword":
        yield told("signature", f"takes `{old.name}` by keyword only")
    elif old.passing in ("either", "keyword") and new.passing == "position":
        if "keywords" in takes_any:
            return
        yield told("signature", f"takes `{old.name}` by position only")
    elif old.default is not None and old.default != new.default:
        text = f"defaults `{old.name}` to `{new.default}`, was `{old.default}`"
        yield told("default", text, breaking=False)


def _moved_parameters(
    old: Sequence[Parameter], new: Sequence[Parameter], told: Callable[..., ApiChange]
) -> Iterator[ApiChange]:
    """A parameter that callers pass by position, behind one that they do not know of."""
    before = [one.name for one in old if one.passing in _POSITIONAL]
    after = [one.name for one in new if one.passing in _POSITIONAL]
    both = [name for name in before if name in after]
    for name in both:
        known = before.index(name) == after.index(name)
        if not known and all(earlier in after for earlier in before[: before.index(name)]):
            yield told("signature", f"takes `{name}` at another position")
            return
