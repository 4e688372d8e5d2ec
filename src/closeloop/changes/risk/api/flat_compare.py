"""Compare two lists of names, for languages in which a name is found by where it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from closeloop.changes.risk.api.api_members import ApiChange, Member
from closeloop.changes.risk.api.member_compare import (
    MemberPlace,
    compare_members,
    describe_removal,
    find_new_name,
)

PublicNames = Mapping[str, tuple[str, Member]]
"""By the name that callers use, the path and what is there."""


def compare_public_names(
    before: PublicNames, after: PublicNames, named: Callable[[str], str] = str
) -> Iterator[ApiChange]:
    """What callers notice; of a type that is gone only the type is told."""
    gone = {name for name in before if name not in after}
    new = {name: member for name, (_, member) in after.items() if name not in before}
    for name, (path, member) in before.items():
        if name in after:
            now = after[name]
            yield from compare_members(
                member, now[1], MemberPlace(name=named(name), path=now[0], by_name=False)
            )
        elif not _is_owner_gone(name, gone):
            yield _describe_gone_name(name, path, member, new, named)


def _describe_gone_name(
    name: str, path: str, member: Member, new: Mapping[str, Member], named: Callable[[str], str]
) -> ApiChange:
    where = MemberPlace(name=named(name), path=path)
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
    beside = {each: one for each, one in new.items() if _owner_name(each) == _owner_name(name)}
    renamed = find_new_name(stem, member, beside)
    return describe_removal(member, where, named(renamed) if renamed else None)


def _owner_name(name: str) -> str:
    return name.partition("(")[0].rpartition(".")[0]


def _is_owner_gone(name: str, gone: set[str]) -> bool:
    """Whether what it belongs to is gone as well."""
    owner = _owner_name(name)
    while owner:
        if owner in gone:
            return True
        owner = _owner_name(owner)
    return False
