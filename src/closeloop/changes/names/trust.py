"""Which complaints of a type checker to believe: code that makes attributes as it runs fools it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from closeloop.changes.names.builtin import ELSEWHERE
from closeloop.changes.names.near import nearest
from closeloop.changes.names.nowhere import Search
from closeloop.changes.names.suspects import Suspect, Use, is_material
from closeloop.changes.names.typed import Complaint
from closeloop.model.inspection import Type

MOST_BASES = 20
_PLAIN = re.compile(
    r"(?:Literal|LiteralString|list|dict|tuple|set|frozenset|str|bytes|int|float|bool)(?:\[.*)?"
)
"""Types that nothing can be added to."""
_MAGIC = re.compile(rb"metaclass\s*=|setattr\(|__getattr|__dict__|__init_subclass__|__set_name__")
_IGNORED = re.compile(rb"#\s*(?:type|ty|pyright|mypy|pyre)\s*:\s*ignore|#\s*noqa")
_NAME = re.compile(r"[A-Za-z_]\w*")


def trusted(complaints: Iterable[Complaint], search: Search) -> Iterator[Suspect]:
    """Those that hold, with what was probably meant."""
    for one in complaints:
        named = _NAME.fullmatch(one.name.rpartition(".")[2] or one.name.strip(".") or "_")
        told = named and not is_material(one.path) and not _is_ignored(one, search)
        if told and (found := _judged(one, search)):
            yield found


def _is_ignored(one: Complaint, search: Search) -> bool:
    lines = (search.inspection.sides.read("after", one.path) or b"").split(b"\n")
    return one.line <= len(lines) and _IGNORED.search(lines[one.line - 1]) is not None


def _judged(one: Complaint, search: Search) -> Suspect | None:
    use = Use(
        path=one.path,
        line=one.line,
        language="python",
        text=one.name.rpartition(".")[2] or one.name,
        kind=one.kind,
        receiver="" if one.kind == "attribute" else None,
    )
    if one.kind == "name":
        near = nearest(one.name, search.bound(one.path))
        return Suspect(use=use, near=near, certain=near is not None)
    if one.kind == "keyword":
        if one.where is None and search.exists(one.name, use):
            return None
        where = (one.where or "").rpartition(" ")[2]
        if where == "object.__init__":
            # The class has none of its own: a decorator may have made it one as it runs.
            return None
        near = nearest(one.name, _parameters(where, search))
        return Suspect(use=use, near=near, where=where or None, certain=near is not None)
    if one.message.startswith("Module "):
        return _in_module(one, use, search)
    if one.kind == "import":
        around = search.around
        open_ = not one.name.startswith(".") and around.is_open(one.name)
        standard = around.standard_module(one.name.split(".")[0])
        there = around.python_files(one.path, one.name) or (open_ and not standard)
        return None if there else Suspect(use=use)
    return _in_class(one, use, search)


def _in_module(one: Complaint, use: Use, search: Search) -> Suspect | None:
    where = one.where or ""
    around = search.around
    if use.text in ELSEWHERE.get(where, ()) or use.text in around.standard_module(where):
        return None
    names: set[str] = set()
    for path in around.python_files(one.path, where):
        names |= around.words_of(path)
    installed = around.installed.names("python", where.partition(".")[0])
    near = nearest(use.text, names or around.standard_module(where) or installed or set())
    return Suspect(use=use, near=near, where=where, certain=near is not None)


def _in_class(one: Complaint, use: Use, search: Search) -> Suspect | None:
    """An attribute: of a class that adds none as it runs, or one that exists nowhere at all."""
    where = one.where or ""
    if _PLAIN.fullmatch(where):
        plain = where.partition("[")[0]
        return Suspect(use=use, where=plain, near=nearest(use.text, _members(plain)))
    if search.is_made(use.text, use):
        return None
    owner = _owner(one, search)
    found = _family(owner, search) if owner else None
    if found is not None and use.text not in found:
        near = nearest(use.text, found)
        if near or not search.inspection.index.known(use.text):
            return Suspect(use=use, where=owner, near=near, certain=near is not None)
    if search.exists(use.text, use) or search.is_offered(use):
        return None
    near = nearest(use.text, search.around.words_of(one.path))
    return Suspect(use=use, near=near)


def _members(plain: str) -> set[str]:
    kinds = {"Literal": str, "LiteralString": str, **{one.__name__: one for one in _BUILT_IN}}
    return set(dir(kinds[plain]))


_BUILT_IN = (list, dict, tuple, set, frozenset, str, bytes, int, float, bool)


def _owner(one: Complaint, search: Search) -> str | None:
    """The class that was meant; for `self` the one around the line."""
    where = one.where or ""
    if where.startswith("Self@") or where == "Self":
        module = search.module(one.path)
        around = [kind for kind in module.types if kind.first_line <= one.line <= kind.last_line]
        return around[-1].name if around else None
    name = where.removeprefix("<class '").removesuffix("'>").partition("[")[0].rpartition(".")[2]
    return name if _NAME.fullmatch(name) else None


def _family(owner: str, search: Search) -> set[str] | None:
    """Every word of the files that define a class and its bases; None where some are not known."""
    waiting, seen = [owner], set[str]()
    names: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name in ("object", "Generic", "Protocol", "ABC", "Exception", "Enum"):
            continue
        seen.add(name)
        found = _definition(name, search)
        if found is None or len(seen) > MOST_BASES:
            return None
        path, kind = found
        lines = (search.inspection.sides.read("after", path) or b"").split(b"\n")
        if _MAGIC.search(b"\n".join(lines[kind.first_line - 1 : kind.last_line])):
            return None
        names |= search.around.words_of(path)
        waiting += [base.partition("[")[0].rpartition(".")[2] for base in kind.bases]
    return names


def _definition(name: str, search: Search) -> tuple[str, Type] | None:
    """The one class of that name."""
    paths = {path for path, _ in search.inspection.index.defined(name) if path.endswith(".py")}
    if len(paths) != 1:
        return None
    path = paths.pop()
    module = search.inspection.index.module(path)
    kinds = [kind for kind in module.types if kind.name == name] if module else []
    return (path, kinds[0]) if len(kinds) == 1 else None


def _parameters(called: str, search: Search) -> set[str]:
    """Names of the parameters of whatever is called so."""
    name = called.rpartition(".")[2]
    owner = called.rpartition(".")[0].rpartition(".")[2]
    found = set[str]()
    for path, _ in search.inspection.index.defined(owner or name)[:5]:
        module = search.inspection.index.module(path)
        for function in module.functions if module else ():
            wanted = function.name == name or (
                function.name == "__init__" and function.qualified == f"{name}.__init__"
            )
            if wanted:
                found |= {
                    one.split(":")[0].split("=")[0].strip("* ") for one in function.parameters
                }
    return found
