"""Which complaints of a type checker to believe: code that makes attributes as it runs fools it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from closeloop.changes.file_kinds import is_test_file
from closeloop.changes.names.name_search import NameSearch
from closeloop.changes.names.suspect_names import (
    BUILD_SPECIFIC_NAMES,
    NameUse,
    Suspect,
    find_nearest_name,
    is_test_input,
    load_standard_library,
)
from closeloop.changes.names.type_diagnostics import TypeDiagnostic
from closeloop.records.inspection import SourceType

MAX_BASES = 20
_PLAIN_TYPE = re.compile(
    r"(?:Literal|LiteralString|list|dict|tuple|set|frozenset|str|bytes|int|float|bool)(?:\[.*)?"
)
"""Types that nothing can be added to."""
_DYNAMIC_CLASS = re.compile(
    rb"metaclass\s*=|setattr\(|__getattr|__dict__|__init_subclass__|__set_name__"
)
_DYNAMIC_MODULE = re.compile(
    rb"(?:globals|vars|locals)\(\)(?:\[|\.update)|sys\.modules\[__name__\]"
)
_IGNORE_COMMENT = re.compile(
    rb"#\s*(?:(?:type|ty|pyright|mypy|pyre)\s*:\s*ignore(?:\[([^\]\n]*)\])?|noqa(?::\s*([\w, ]+))?)"
)
_NAME_CODE = re.compile(
    rb"attr|arg|call|name|import|member|unresolved|undefined|overload|general|misc|F8\d\d|E1\d\d\d",
    re.IGNORECASE,
)
"""Rules of type checkers and linters that such a comment silences, as far as names go."""
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_DYNAMIC_PARAMETERS = ("object.__init__", "replace", "_replace", "__replace__")
"""What takes the fields of a class, which a decorator may have made as it runs."""


def filter_diagnostics(
    complaints: Iterable[TypeDiagnostic], search: NameSearch
) -> Iterator[Suspect]:
    """Those that hold, with what was probably meant."""
    for one in complaints:
        named = _IDENTIFIER.fullmatch(one.name.rpartition(".")[2] or one.name.strip(".") or "_")
        is_examined = named and not is_test_input(one.path) and not _has_ignore_comment(one, search)
        if is_examined and (suspect := _examine_diagnostic(one, search)):
            yield suspect


def _has_ignore_comment(one: TypeDiagnostic, search: NameSearch) -> bool:
    lines = (search.inspection.sides.read("after", one.path) or b"").split(b"\n")
    comments = _IGNORE_COMMENT.finditer(lines[one.line - 1]) if one.line <= len(lines) else ()
    codes = [found[1] or found[2] for found in comments]
    return any(code is None or _NAME_CODE.search(code) for code in codes)


def _examine_diagnostic(one: TypeDiagnostic, search: NameSearch) -> Suspect | None:
    use = NameUse(
        path=one.path,
        line=one.line,
        language="python",
        text=one.name.rpartition(".")[2] or one.name,
        kind=one.kind,
        receiver="" if one.kind == "attribute" else None,
    )
    if one.kind == "name":
        near = find_nearest_name(one.name, search.bound_names(one.path))
        return Suspect(use=use, near=near, certain=near is not None)
    if one.kind == "keyword":
        return _examine_keyword(one, use, search)
    if one.kind == "call":
        return _examine_call(one, use, search)
    if one.message.startswith("Module "):
        return _examine_module_name(one, use, search)
    if one.kind == "import":
        around = search.around
        open_ = not one.name.startswith(".") and around.is_extensible(one.name)
        standard = around.standard_module_names(one.name.split(".")[0])
        is_present = around.find_python_files(one.path, one.name) or (open_ and not standard)
        certain = not search.name_exists(use.text, use)
        return None if is_present else Suspect(use=use, certain=certain)
    return _examine_attribute(one, use, search)


def _examine_keyword(one: TypeDiagnostic, use: NameUse, search: NameSearch) -> Suspect | None:
    known = search.name_exists(one.name, use)
    where = (one.where or "").rpartition(" ")[2]
    if (one.where is None and known) or where in _DYNAMIC_PARAMETERS:
        return None
    near = find_nearest_name(one.name, _parameter_names(where, search))
    certain = near is not None or not known
    return Suspect(use=use, near=near, where=where or None, certain=certain)


def _examine_call(one: TypeDiagnostic, use: NameUse, search: NameSearch) -> Suspect | None:
    """Arguments that do not fit: the keyword that exists nowhere else, or the call as a whole."""
    lines = range(one.line, one.last_line + 1)
    for name in search.read_module(one.path).names:
        if name.kind == "keyword" and name.line in lines:
            keyword = replace(use, text=name.text, kind="keyword", line=name.line)
            if not search.name_exists(name.text, keyword) and not search.is_library_name(keyword):
                where = one.name.rpartition(" ")[2]
                return Suspect(use=keyword, where=where, certain=True)
    # A test may call what must not be called so; beside other bases, `object` is not the next one;
    # and an overload that does not fit without such a keyword is a value of another type.
    is_exempt = is_test_file(one.path) or one.message.startswith("No overload")
    is_exempt = is_exempt or one.name.rpartition(" ")[2] in _DYNAMIC_PARAMETERS
    return None if is_exempt else Suspect(use=use, reason=one.message)


def _examine_module_name(one: TypeDiagnostic, use: NameUse, search: NameSearch) -> Suspect | None:
    where = one.where or ""
    around = search.around
    if use.text in BUILD_SPECIFIC_NAMES.get(where, ()) or use.text in around.standard_module_names(
        where
    ):
        return None
    names: set[str] = set()
    for path in around.find_python_files(one.path, where):
        names |= around.file_words(path)
        content = search.inspection.sides.read("after", path) or b""
        if use.text in around.file_words(path) and _DYNAMIC_MODULE.search(content):
            return None
    installed = around.installed.package_names("python", where.partition(".")[0])
    near = find_nearest_name(
        use.text, names or around.standard_module_names(where) or installed or set()
    )
    certain = near is not None or not search.name_exists(use.text, use)
    return Suspect(use=use, near=near, where=where, certain=certain)


def _examine_attribute(one: TypeDiagnostic, use: NameUse, search: NameSearch) -> Suspect | None:
    """An attribute: of a class that adds none as it runs, or one that exists nowhere at all."""
    where = one.where or ""
    if _PLAIN_TYPE.fullmatch(where):
        plain = where.partition("[")[0]
        return Suspect(use=use, where=plain, near=find_nearest_name(use.text, _type_members(plain)))
    if search.is_defined_by_change(use.text, use):
        return None
    owner = _owner_class(one, search)
    class_words = _class_words(owner, search) if owner else None
    if class_words is not None and use.text not in class_words:
        near = find_nearest_name(use.text, class_words)
        if near or not search.inspection.index.known(use.text):
            return Suspect(use=use, where=owner, near=near, certain=True)
    if search.name_exists(use.text, use) or search.is_library_name(use):
        return None
    near = find_nearest_name(use.text, search.around.file_words(one.path))
    return Suspect(use=use, near=near)


def _type_members(plain: str) -> set[str]:
    kinds = {"Literal": str, "LiteralString": str, **{one.__name__: one for one in _BUILTIN_TYPES}}
    return set(dir(kinds[plain]))


_BUILTIN_TYPES = (list, dict, tuple, set, frozenset, str, bytes, int, float, bool)


def _owner_class(one: TypeDiagnostic, search: NameSearch) -> str | None:
    """The class that was meant; for `self` the one around the line."""
    where = one.where or ""
    if where.startswith("Self@") or where == "Self":
        module = search.read_module(one.path)
        around = [kind for kind in module.types if kind.first_line <= one.line <= kind.last_line]
        return around[-1].name if around else None
    name = where.removeprefix("<class '").removesuffix("'>").partition("[")[0].rpartition(".")[2]
    return name if _IDENTIFIER.fullmatch(name) else None


def _class_words(owner: str, search: NameSearch) -> set[str] | None:
    """Every word of the files that define a class and its bases; None where some are not known."""
    waiting, seen = [owner], set[str]()
    names: set[str] = set()
    standard: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name in ("object", "Generic", "Protocol", "ABC", "Exception", "Enum"):
            continue
        seen.add(name)
        definition = _find_class(name, search)
        if definition is None and name in standard:
            continue
        if definition is None or len(seen) > MAX_BASES:
            return None
        path, kind = definition
        standard |= _standard_imports(path, search)
        lines = (search.inspection.sides.read("after", path) or b"").split(b"\n")
        if _DYNAMIC_CLASS.search(b"\n".join(lines[kind.first_line - 1 : kind.last_line])):
            return None
        names |= search.words_without_uses(path)
        waiting += [base.partition("[")[0].rpartition(".")[2] for base in kind.bases]
    return names


def _standard_imports(path: str, search: NameSearch) -> set[str]:
    """What a file imports from Python's own modules, whose classes the type checker knows."""
    library = load_standard_library("python")
    module = search.inspection.index.module(path)
    return {
        name
        for one in (module.imports if module else ())
        if one.module in library
        for name in ({one.alias or one.name} if one.name else library[one.module])
    }


def _find_class(name: str, search: NameSearch) -> tuple[str, SourceType] | None:
    """The one class of that name."""
    paths = {path for path, _ in search.inspection.index.defined(name) if path.endswith(".py")}
    if len(paths) != 1:
        return None
    path = paths.pop()
    module = search.inspection.index.module(path)
    kinds = [kind for kind in module.types if kind.name == name] if module else []
    return (path, kinds[0]) if len(kinds) == 1 else None


def _parameter_names(called: str, search: NameSearch) -> set[str]:
    """Names of the parameters of whatever is called so."""
    name = called.rpartition(".")[2]
    owner = called.rpartition(".")[0].rpartition(".")[2]
    names = set[str]()
    for path, _ in search.inspection.index.defined(owner or name)[:5]:
        module = search.inspection.index.module(path)
        for function in module.functions if module else ():
            wanted = function.name == name or (
                function.name == "__init__" and function.qualified == f"{name}.__init__"
            )
            if wanted:
                names |= {
                    one.split(":")[0].split("=")[0].strip("* ") for one in function.parameters
                }
    return names
