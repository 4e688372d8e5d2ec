"""Two states of a name, and what callers notice of the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial

import msgspec

from closeloop.changes.risk.api.members import ApiChange, Difference, Member, Parameter, Passing
from closeloop.model.record import Record

_VARIADIC = ("rest", "keywords")
_PLACED = ("position", "either")


class Where(Record):
    """How a name is told, and where it lies after the change (or lay before)."""

    name: str
    path: str
    by_name: bool = True
    """Whether callers may name parameters; else only their order and types count."""


def compare(before: Member, after: Member, where: Where) -> Iterator[ApiChange]:
    """What callers of one name notice; not of what is inside it."""
    if "unknown" in (before.kind, after.kind):
        return
    called = before.parameters is not None and after.parameters is not None
    if before.kind != after.kind and not _alike(before, after):
        yield _told(where, before, after, "type", f"is now a {after.kind}, was a {before.kind}")
    elif called and before.waiting != after.waiting:
        now = "must now be awaited" if after.waiting else "is no longer awaited"
        yield _told(where, before, after, "signature", now)
    elif called and where.by_name:
        yield from _parameters(before, after, where)
    elif called and _types(before) != _types(after):
        told = f"takes ({', '.join(_types(after))}), took ({', '.join(_types(before))})"
        yield _told(where, before, after, "signature", told, breaking=not _fits(before, after))
    elif (
        not where.by_name and before.type != after.type and (called or (before.type and after.type))
    ):
        told = f"is `{after.type or 'nothing'}`, was `{before.type or 'nothing'}`"
        yield _told(where, before, after, "type", told)


def removed(before: Member, where: Where, renamed: str | None = None) -> ApiChange:
    what = {"module": "module ", "class": "class "}.get(before.kind, "")
    told = (
        f"renames {what}`{where.name}` to `{renamed}`"
        if renamed
        else f"removes {what}`{where.name}`"
    )
    return ApiChange(
        kind="renamed" if renamed else "removed",
        name=where.name,
        text=told,
        breaking=True,
        announced=before.deprecated,
        place=f"{where.path}:{before.line}",
    )


def renamed_to(name: str, gone: Member, new: Mapping[str, Member]) -> str | None:
    """The new name that this one most likely got: the same inside, or much the same outside."""
    short = name.rpartition(".")[2]
    for other, member in new.items():
        if member.kind == gone.kind and gone.body and member.body == gone.body:
            return other
    for other, member in new.items():
        near = SequenceMatcher(None, short, other.rpartition(".")[2]).ratio() > 0.7
        if near and gone.parameters and member.parameters == gone.parameters:
            return other
    return None


def _alike(before: Member, after: Member) -> bool:
    """Callers need not care: a function that became a class, a value that became a property."""
    kinds = {before.kind, after.kind}
    return kinds not in ({"function", "property"}, {"class", "property"})


def _types(member: Member) -> list[str]:
    return [
        f"{'...' if one.passing == 'rest' else ''}{one.type}{'' if one.default is None else '?'}"
        for one in member.parameters or ()
    ]


def _fits(before: Member, after: Member) -> bool:
    """Whether what is new at the end need not be given, and the rest takes what it took."""
    old, new = _types(before), _types(after)
    more = (after.parameters or ())[len(old) :]
    optional = all(one.passing == "rest" or one.default is not None for one in more)
    takes = all(now in (was, "any") for was, now in zip(old, new, strict=False))
    return optional and len(old) <= len(new) and takes and before.type == after.type


def _told(
    where: Where,
    before: Member,
    after: Member,
    kind: Difference,
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


def _parameters(before: Member, after: Member, where: Where) -> Iterator[ApiChange]:
    """For each thing that a caller may have written, whether it still works."""
    new = list(after.parameters or ())
    old = [_aligned(one, place, new) for place, one in enumerate(before.parameters or ())]
    names = {one.name: one for one in new}
    told = partial(_told, where, before, after)
    fresh = [one for one in new if one.name not in {each.name for each in old}]
    took_any, takes_any = _variadic(old), _variadic(new)
    replaced = set()
    for place, one in enumerate(old):
        if one.passing in _VARIADIC or one.name.startswith("_"):
            continue
        if one.name in names:
            yield from _kept(one, names[one.name], takes_any, told)
        elif place < len(new) and new[place] in fresh and _plain(new[place], one):
            replaced.add(new[place].name)
            yield told("signature", f"takes `{new[place].name}` where it took `{one.name}`")
        elif not (_needs(one) <= takes_any):
            yield told("signature", f"no longer takes `{one.name}`")
    for one in fresh:
        required = one.default is None and one.passing not in _VARIADIC
        if required and one.name not in replaced and not (_needs(one) & took_any):
            yield told("signature", f"now requires `{one.name}`")
    yield from _narrowed(old, new, fresh, told)
    yield from _moved(old, new, told)


def _narrowed(
    old: Sequence[Parameter],
    new: Sequence[Parameter],
    fresh: Sequence[Parameter],
    told: Callable[..., ApiChange],
) -> Iterator[ApiChange]:
    """A `*args` or `**kwargs` that is gone, where no parameters with names took its place."""
    for one in old:
        if one.passing not in _VARIADIC or one.passing in _variadic(new):
            continue
        places = _PLACED if one.passing == "rest" else ("either", "keyword")
        if not any(other.passing in places for other in fresh):
            how = "by position" if one.passing == "rest" else "by name"
            yield told("signature", f"no longer takes more {how} (`{one.name}`)")


def _aligned(old: Parameter, place: int, new: Sequence[Parameter]) -> Parameter:
    """A parameter that is only passed by position has no name: it takes that of its successor."""
    if old.passing != "position" or place >= len(new) or new[place].passing not in _PLACED:
        return old
    return msgspec.structs.replace(old, name=new[place].name)


def _variadic(parameters: Sequence[Parameter]) -> set[Passing]:
    return {one.passing for one in parameters if one.passing in _VARIADIC}


def _needs(one: Parameter) -> set[Passing]:
    """What takes its place where it is not named: `*args`, `**kwargs` or both."""
    return {
        "position": {"rest"},
        "keyword": {"keywords"},
    }.get(one.passing, {"rest", "keywords"})  # type: ignore[return-value]


def _plain(new: Parameter, old: Parameter) -> bool:
    return new.passing not in _VARIADIC and (new.passing in _PLACED) == (old.passing in _PLACED)


def _kept(
    old: Parameter, new: Parameter, takes_any: set[Passing], told: Callable[..., ApiChange]
) -> Iterator[ApiChange]:
    if new.passing in _VARIADIC:
        return
    if old.default is not None and new.default is None:
        yield told("signature", f"now requires `{old.name}`")
    elif old.passing in _PLACED and new.passing == "keyword":
        yield told("signature", f"takes `{old.name}` by keyword only")
    elif old.passing in ("either", "keyword") and new.passing == "position":
        if "keywords" in takes_any:
            return
        yield told("signature", f"takes `{old.name}` by position only")
    elif old.default is not None and old.default != new.default:
        text = f"defaults `{old.name}` to `{new.default}`, was `{old.default}`"
        yield told("default", text, breaking=False)


def _moved(
    old: Sequence[Parameter], new: Sequence[Parameter], told: Callable[..., ApiChange]
) -> Iterator[ApiChange]:
    """A parameter that callers pass by position, behind one that they do not know of."""
    before = [one.name for one in old if one.passing in _PLACED]
    after = [one.name for one in new if one.passing in _PLACED]
    both = [name for name in before if name in after]
    for name in both:
        known = before.index(name) == after.index(name)
        if not known and all(earlier in after for earlier in before[: before.index(name)]):
            yield told("signature", f"takes `{name}` at another position")
            return
