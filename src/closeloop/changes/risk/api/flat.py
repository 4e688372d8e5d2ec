"""Compare two lists of names, for languages in which a name is found by where it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from closeloop.changes.risk.api.compare import Where, compare, removed, renamed_to
from closeloop.changes.risk.api.members import ApiChange, Member

Names = Mapping[str, tuple[str, Member]]
"""By the name that callers use, the path and what is there."""


def flat_changes(
    before: Names, after: Names, named: Callable[[str], str] = str
) -> Iterator[ApiChange]:
    """What callers notice; of a type that is gone only the type is told."""
    gone = {name for name in before if name not in after}
    new = {name: member for name, (_, member) in after.items() if name not in before}
    for name, (path, member) in before.items():
        if name in after:
            now = after[name]
            yield from compare(member, now[1], Where(name=named(name), path=now[0], by_name=False))
        elif not _inside(name, gone):
            yield _gone(name, path, member, new, named)


def _gone(
    name: str, path: str, member: Member, new: Mapping[str, Member], named: Callable[[str], str]
) -> ApiChange:
    where = Where(name=named(name), path=path)
    stem = name.partition("(")[0]
    # An overload with other types is the same method with another signature.
    other = next((each for each in new if "(" in name and each.partition("(")[0] == stem), None)
    if other is not None:
        return ApiChange(
            kind="signature",
            name=where.name,
            text=f"`{where.name}` is now `{named(other)}`",
            breaking=True,
            announced=member.deprecated,
            place=f"{path}:{new[other].line}",
        )
    beside = {each: one for each, one in new.items() if _owner(each) == _owner(name)}
    renamed = renamed_to(stem, member, beside)
    return removed(member, where, named(renamed) if renamed else None)


def _owner(name: str) -> str:
    return name.partition("(")[0].rpartition(".")[0]


def _inside(name: str, gone: set[str]) -> bool:
    """Whether what it belongs to is gone as well."""
    owner = _owner(name)
    while owner:
        if owner in gone:
            return True
        owner = _owner(owner)
    return False
