"""Diagnostics of a fast type checker that are new on added lines."""

from __future__ import annotations

import ast
import fcntl
import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Literal, TypeVar

import msgspec
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
    module_bindings,
)
from closeloop.changes.risk.dependencies import find_environments
from closeloop.changes.syntax import extract_words
from closeloop.records.change import ChangeSide, Inspection, SourceType
from closeloop.records.record import Record, content_digest
from closeloop.text.code_patterns import parse_python
from closeloop.text.wording import INSTALL_CHECK_TOOLS

# Folders with copies of repositories for the type checker: one each, and a limited number.


MAX_FOLDERS = 20
"""Maximum repositories checked out for the type checker; least recently used are removed."""
_REMOVED = "removed-"
_WAIT_SECONDS = 0.05


class TypeCheckerUnusable(Exception):
    """Why the type checker could not run."""


@contextmanager
def lock_folder(folder: Path, patience: float) -> Iterator[None]:
    """Lock a repository's folder for one process; remove the oldest of the others."""
    late = time.monotonic() + patience
    while (lock := _try_lock(folder)) is None:
        if time.monotonic() > late:
            raise TypeCheckerUnusable("another check does not finish")
        time.sleep(_WAIT_SECONDS)
    with lock:
        os.utime(lock.fileno())
        remove_old_folders(folder.parent)
        yield


def remove_old_folders(parent: Path) -> None:
    """Remove the least recently used folders, never one that is in use."""
    folders = sorted((folder for folder in parent.iterdir() if folder.is_dir()), key=_last_use)
    leftovers = [folder for folder in folders if folder.name.startswith(_REMOVED)]
    remaining = [folder for folder in folders if folder not in leftovers]
    for folder in remaining[: max(0, len(remaining) - MAX_FOLDERS)]:
        lock = _try_lock(folder)
        if lock is None:
            continue
        with lock, suppress(OSError):
            # Renamed first: a process that waits for the lock finds no folder and creates a new
            # one.
            leftovers.append(folder.rename(parent / f"{_REMOVED}{folder.name}-{os.getpid()}"))
    for folder in leftovers:
        shutil.rmtree(folder, ignore_errors=True)


def _last_use(folder: Path) -> float:
    for path in (folder / "lock", folder):
        with suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _try_lock(folder: Path) -> IO[bytes] | None:
    """Return the lock, released on close; None if another process has it or removed the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("ab")
    except (FileExistsError, FileNotFoundError):  # it was removed meanwhile
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock.fileno()), (folder / "lock").stat()):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    lock.close()
    return None


DiagnosticKind = Literal["attribute", "import", "name", "keyword", "call"]

TY_SECONDS = 30.0
MAX_FILES = 20_000
"""Maximum modules written for the type checker; a larger repository is not checked."""
MAX_FILE_BYTES = 1_000_000
MAX_REPORT_BYTES = 50_000_000
"""Maximum bytes read of its report."""
_SITE_PACKAGES = "lib/python3*/site-packages"
_SOURCE_ENDINGS = (".py", ".pyi")
_RULE_KINDS: dict[str, DiagnosticKind] = {
    **dict.fromkeys(("missing-attribute", "unresolved-attribute"), "attribute"),
    **dict.fromkeys(("import-not-found", "unresolved-import"), "import"),
    "missing-union-attribute": "attribute",
    "unresolved-reference": "name",
    "unknown-argument": "keyword",
    "positional-only-parameter-as-kwarg": "keyword",
    "unknown-typed-dict-constructor-key": "keyword",
    "no-matching-overload": "call",
    "too-many-positional-arguments": "call",
    "missing-argument": "call",
}
"""Rules about what does not exist or does not fit; some have other names in older versions. Values
of the wrong type are excluded: on 100 clean commits that was reported four times, all others
together once."""
_QUOTED_NAME = re.compile(r"`([^`]+)`")
_TY_SETTINGS = '[src]\nrespect-ignore-files = false\n[environment]\npython-platform = "all"\n'


class TypeDiagnostic(Record):
    """One name that the type checker cannot find."""

    path: str
    line: int
    kind: DiagnosticKind
    name: str
    where: str | None
    """What it was looked up in."""
    message: str
    last_line: int
    """Last line of the underlined range."""


class _CachedDiagnostics(Record):
    """The diagnostics of one state of the files."""

    key: str
    complaints: tuple[TypeDiagnostic, ...]


class _TyPosition(Record):
    line: int


class _TyRange(Record):
    begin: _TyPosition
    end: _TyPosition


class _TyLocation(Record):
    path: str
    positions: _TyRange


class _TyDiagnostic(Record):
    """One entry of its report, in GitLab's format."""

    check_name: str
    description: str
    location: _TyLocation


_Kept = TypeVar("_Kept")


def find_new_diagnostics(inspection: Inspection, folder: Path) -> Sequence[TypeDiagnostic]:
    """Return new diagnostics on added lines; raise TypeCheckerUnusable if it could not run."""
    if not _changed_sources(inspection, "after"):
        return ()
    with lock_folder(folder, TY_SECONDS):
        diagnostics = _load_diagnostics(inspection, "after", folder)
        after = [
            diagnostic
            for diagnostic in diagnostics
            if _is_on_added_line(diagnostic, inspection)
            and _is_repository_fault(diagnostic, folder)
        ]
        if not after:
            return ()
        renamed = {file.old_path: file.path for file in inspection.files if file.old_path}
        old = _load_diagnostics(inspection, "before", folder)
        before = Counter(
            (renamed.get(diagnostic.path, diagnostic.path), diagnostic.message)
            for diagnostic in old
        )
    # A diagnostic that existed before is reported again for a moved or edited line.
    return [diagnostic for diagnostic in after if not before[diagnostic.path, diagnostic.message]]


def _is_on_added_line(diagnostic: TypeDiagnostic, inspection: Inspection) -> bool:
    """Return whether it begins on an added line; for a call with wrong arguments, any of its
    lines."""
    added = inspection.added.get(diagnostic.path, frozenset())
    last = diagnostic.last_line if diagnostic.kind == "call" else diagnostic.line
    return not added.isdisjoint(range(diagnostic.line, last + 1))


def _load_diagnostics(
    inspection: Inspection, side: ChangeSide, folder: Path
) -> Sequence[TypeDiagnostic]:
    """Return all diagnostics of the changed files on that side; cached until a file differs."""
    files = _changed_sources(inspection, side)
    tree = inspection.sides.tree(side)
    blobs_by_path = {
        path: blob
        for path, blob in tree.items()
        if path.endswith(_SOURCE_ENDINGS)
        and not path.startswith("/")
        and ".." not in path.split("/")
    }
    if len(blobs_by_path) > MAX_FILES:
        raise TypeCheckerUnusable(f"the repository has over {MAX_FILES:,} Python modules")
    python = next(find_environments(inspection.installed), None)
    packages = [path.stat().st_mtime_ns for path in python.glob(_SITE_PACKAGES)] if python else []
    key = content_digest(blobs_by_path, files, str(python), packages, _RULE_KINDS)
    cached = _read_json(folder / f"said-{side}", _CachedDiagnostics)
    if cached is None or cached.key != key:
        _write_tree(inspection, blobs_by_path, folder)
        cached = _CachedDiagnostics(key=key, complaints=tuple(_run_ty(folder, files, python)))
        (folder / f"said-{side}").write_bytes(msgspec.json.encode(cached))
    return cached.complaints


def _changed_sources(inspection: Inspection, side: ChangeSide) -> list[str]:
    return [
        path
        for module_side, path in inspection.modules
        if module_side == side and path.endswith(_SOURCE_ENDINGS)
    ]


def _is_repository_fault(diagnostic: TypeDiagnostic, folder: Path) -> bool:
    """Return whether it is the repository's fault: a module not installed is the machine's."""
    if (
        diagnostic.kind != "import"
        or "has no member" in diagnostic.message
        or diagnostic.name.startswith(".")
    ):
        return True
    first = diagnostic.name.split(".")[0]
    return first in load_standard_library("python") or any(
        (folder / "tree" / root / first).is_dir() for root in ("", "src", "lib")
    )


def _write_tree(inspection: Inspection, blobs_by_path: dict[str, str], folder: Path) -> None:
    """Make the folder's files equal to one side's: only differences are written."""
    listing, tree = folder / "listing", folder / "tree"
    _write_file(tree, "ty.toml", _TY_SETTINGS.encode())
    written_blobs = _read_json(listing, dict[str, str]) or {}
    listing.unlink(missing_ok=True)
    for path in written_blobs.keys() - blobs_by_path.keys():
        (tree / path).unlink(missing_ok=True)
        _remove_empty_parents(tree, path)
    for path, blob in blobs_by_path.items():
        if written_blobs.get(path) != blob:
            content = inspection.sides.read_blob(blob)
            fits = content is not None and len(content) <= MAX_FILE_BYTES
            if content and b"no_type_check" in content:
                content = _NO_TYPE_CHECK.sub(rb"\1#\2", content)  # Names must exist there too.
            _write_file(tree, path, content if content and fits else b"")
    listing.write_bytes(msgspec.json.encode(blobs_by_path))


def _remove_empty_parents(tree: Path, path: str) -> None:
    """Remove empty folders: as namespace packages they would hide installed ones of that name."""
    for parent in Path(path).parents[:-1]:
        try:
            (tree / parent).rmdir()
        except OSError:
            return


def _read_json(path: Path, kind: type[_Kept]) -> _Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError, RecursionError):
        return None


def _write_file(tree: Path, path: str, content: bytes) -> None:
    file_path = tree / path
    try:
        file_path.parent.mkdir(parents=True, exist_ok=True)
        file_path.write_bytes(content)
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        # A file became a folder or vice versa: the obstacle is stale.
        if file_path.is_dir():
            shutil.rmtree(file_path)
        for parent in file_path.relative_to(tree).parents:
            if (tree / parent).is_file():
                (tree / parent).unlink()
        file_path.parent.mkdir(parents=True, exist_ok=True)
        file_path.write_bytes(content)


def _run_ty(folder: Path, files: Sequence[str], python: Path | None) -> Iterator[TypeDiagnostic]:
    if not files:
        return
    command = [_find_ty(), "check", "--output-format", "gitlab", "--exit-zero", "--project", "."]
    if python:
        command += ["--python", str(python)]
    clean = {"PATH": os.defpath, "HOME": str(folder), "RAYON_NUM_THREADS": "2"}
    try:
        with (folder / "output").open("w+b") as output:
            process = subprocess.run(
                [*command, "--", *files],
                cwd=folder / "tree",
                env=clean,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=TY_SECONDS,
                check=False,
            )
            if output.seek(0, os.SEEK_END) > MAX_REPORT_BYTES:
                raise TypeCheckerUnusable("the output of ty is too large")
            output.seek(0)
            diagnostics = msgspec.json.decode(output.read(), type=list[_TyDiagnostic])
    except subprocess.TimeoutExpired:
        raise TypeCheckerUnusable(f"ty took more than {TY_SECONDS:.0f} seconds") from None
    except OSError as error:
        raise TypeCheckerUnusable(f"ty cannot be run: {error.strerror}") from None
    except msgspec.DecodeError:
        error_lines = process.stderr.decode("utf-8", "replace").strip().splitlines()
        raise TypeCheckerUnusable(
            f"ty failed: {error_lines[-1][:200] if error_lines else process.returncode}"
        ) from None
    for diagnostic in diagnostics:
        kind = _RULE_KINDS.get(diagnostic.check_name)
        if kind and (complaint := _parse_diagnostic(kind, diagnostic)):
            yield complaint


def _parse_diagnostic(kind: DiagnosticKind, diagnostic: _TyDiagnostic) -> TypeDiagnostic | None:
    message = diagnostic.description.partition(": ")[2]
    quoted = _QUOTED_NAME.findall(message)
    if not quoted:
        return None
    # A looked-up attribute is at the end of the underlined text, any other name at its beginning.
    positions = diagnostic.location.positions
    position = positions.end if kind == "attribute" else positions.begin
    member = kind == "attribute" or "has no member" in message
    if diagnostic.check_name == "missing-union-attribute":
        # Attribute `x` is not defined on `A` in union `A | B`. A value that may be None does not
        # count.
        if "None" in quoted[1:2]:
            return None
        quoted = quoted[1::-1]
    if kind == "attribute" and message.startswith("Unresolved"):
        # There the attribute comes first, followed by its owner.
        quoted.reverse()
    return TypeDiagnostic(
        path=diagnostic.location.path,
        line=position.line,
        kind=kind,
        name=quoted[-1] if member else quoted[0],
        where=quoted[0] if member else quoted[-1] if len(quoted) > 1 else None,
        message=message,
        last_line=positions.end.line,
    )


def _find_ty() -> str:
    try:
        import ty

        return str(ty.find_ty_bin())
    except (ImportError, FileNotFoundError):
        raise TypeCheckerUnusable(f"ty is not installed: {INSTALL_CHECK_TOOLS}") from None


# Filter the type checker's diagnostics: code that creates attributes at run time misleads it.


MAX_BASES = 20
MAX_SAME_CLASSES = 5
_PLAIN_TYPE = re.compile(
    r"(?:Literal|LiteralString|list|dict|tuple|set|frozenset|str|bytes|int|float|bool)(?:\[.*)?"
)
"""Types that attributes cannot be added to."""
_DYNAMIC_CLASS = re.compile(
    rb"metaclass\s*=|setattr\(|__getattr|__dict__|__init_subclass__|__set_name__"
)
_DYNAMIC_MODULE = re.compile(
    rb"(?:globals|vars|locals)\(\)(?:\[|\.update)|sys\.modules\[__name__\]"
)
_DYNAMIC_MEMBERS = re.compile(
    rb"metaclass\s*=|setattr\(|__getattribute__|__dict__\s*(?:\.update\(|\[|=)|__init_subclass__"
    rb"|__set_name__"
)
"""Code of a class that adds members other than by passing on what it lacks."""
_NAME_PARSER = re.compile(rb"\.(?:startswith|endswith|removeprefix|removesuffix|r?split|match)\(")
ERRORS_BY_KIND = {"attribute": ["AttributeError"], "call": ["TypeError"], "keyword": ["TypeError"]}
"""What the use of a name raises that does not exist, or of a call that does not fit."""
_IGNORE_COMMENT = re.compile(
    rb"#\s*(?:(?:type|ty|pyright|mypy|pyre)\s*:\s*ignore(?:\s*\[([^\]\n]*)\])?"
    rb"|noqa(?::\s*([\w, ]+))?)"
)
_NAME_CODE = re.compile(
    rb"attr|arg|call|name|import|member|unresolved|undefined|overload|general|misc|F8\d\d|E1\d\d\d",
    re.IGNORECASE,
)
"""Rules about names, of type checkers and linters, that such a comment silences."""
_VERSION_TEST = re.compile(rb"\bif\b.*\b(?:IS_)?PY(?:THON)?_?(?:VERSION|[23])\b", re.IGNORECASE)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_BACKPORTS = {"unittest2": "unittest"}
"""Packages with the names of a standard module."""
IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")
_NO_TYPE_CHECK = re.compile(rb"^(\s*)@((?:\w+\.)?no_type_check\b)", re.MULTILINE)
_DYNAMIC_PARAMETERS = ("object.__init__", "replace", "_replace", "__replace__")
"""Callables that take the fields of a class, which a decorator may create at run time."""


def filter_diagnostics(
    complaints: Iterable[TypeDiagnostic], search: NameSearch
) -> Iterator[Suspect]:
    """Yield the credible diagnostics, with the name that was probably meant."""
    for complaint in complaints:
        name_match = _IDENTIFIER.fullmatch(
            complaint.name.rpartition(".")[2] or complaint.name.strip(".") or "_"
        )
        is_examined = (
            name_match
            and not is_test_input(complaint.path)
            and not is_silenced(complaint.path, complaint.line, search)
        )
        suspect = _examine_diagnostic(complaint, search) if is_examined else None
        if suspect is None or search.is_python_2(complaint.path, complaint.name):
            continue
        is_module = complaint.kind == "import" or complaint.message.startswith("Module ")
        errors = [*ERRORS_BY_KIND.get(complaint.kind, ())]
        errors += IMPORT_ERRORS if is_module and suspect.near is None else []
        if not is_attempted(complaint.path, complaint.line, search, errors):
            yield suspect


def is_silenced(path: str, line: int, search: NameSearch) -> bool:
    """Return whether a comment or a test of Python's version says not to check a line."""
    return _has_ignore_comment(path, line, search) or _is_version_specific(path, line, search)


def _has_ignore_comment(path: str, line: int, search: NameSearch) -> bool:
    lines = (search.inspection.sides.read("after", path) or b"").split(b"\n")
    comments = _IGNORE_COMMENT.finditer(lines[line - 1]) if line <= len(lines) else ()
    codes = [comment[1] or comment[2] for comment in comments]
    return any(code is None or _NAME_CODE.search(code) for code in codes)


def _is_version_specific(path: str, line: int, search: NameSearch) -> bool:
    """Return whether it is under an `if` on Python's version, by the project's own name.

    The type checker follows `sys.version_info` itself.
    """
    content = search.inspection.sides.read("after", path) or b""
    if not _VERSION_TEST.search(content):
        return False
    try:
        nodes = ast.walk(parse_python(content))
        return any(
            isinstance(node, (ast.If, ast.IfExp))
            and node.lineno <= line <= (node.end_lineno or node.lineno)
            and _VERSION_TEST.search(b"if " + ast.unparse(node.test).encode())
            for node in nodes
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def is_attempted(
    path: str, line: int, search: NameSearch, errors: Sequence[str] = ("AttributeError",)
) -> bool:
    """Return whether a name may be missing: the code around handles or expects one of these
    errors."""
    content = search.inspection.sides.read("after", path) or b""
    if not any(error.encode() in content for error in errors):
        return False
    try:
        nodes = ast.walk(parse_python(content))
        return any(
            isinstance(node, ast.Try | ast.With)
            and node.body[0].lineno <= line <= (node.body[-1].end_lineno or line)
            and any(error in ast.dump(handled) for handled in _handled(node) for error in errors)
            for node in nodes
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _handled(block: ast.Try | ast.With) -> Iterator[ast.expr]:
    """Yield what names the errors that a block handles, or that a test expects of it."""
    if isinstance(block, ast.Try):
        yield from (handler.type for handler in block.handlers if handler.type)
        return
    for item in block.items:
        call = item.context_expr
        if isinstance(call, ast.Call) and "raises" in ast.unparse(call.func).lower():
            yield from call.args


def _examine_diagnostic(diagnostic: TypeDiagnostic, search: NameSearch) -> Suspect | None:
    use = NameUse(
        path=diagnostic.path,
        line=diagnostic.line,
        language="python",
        text=diagnostic.name.rpartition(".")[2] or diagnostic.name,
        kind=diagnostic.kind,
        receiver="" if diagnostic.kind == "attribute" else None,
    )
    if diagnostic.kind == "name":
        if _is_starred_submodule(diagnostic, search):
            return None
        similar_name = find_nearest_name(diagnostic.name, search.bound_names(diagnostic.path))
        return Suspect(use=use, near=similar_name, certain=similar_name is not None)
    if diagnostic.kind == "keyword":
        return _examine_keyword(diagnostic, use, search)
    if diagnostic.kind == "call":
        return _examine_call(diagnostic, use, search)
    if diagnostic.message.startswith("Module "):
        return _examine_module_name(diagnostic, use, search)
    if diagnostic.kind == "import":
        environment = search.around
        open_ = not diagnostic.name.startswith(".") and environment.is_extensible(diagnostic.name)
        standard = environment.standard_module_names(diagnostic.name.split(".")[0])
        is_present = environment.find_python_files(
            diagnostic.path, diagnostic.name
        ) or environment.is_built(diagnostic.name)
        is_present = is_present or (open_ and not standard)
        # Newer versions of Python lack some modules of older ones.
        is_present = is_present or diagnostic.name in load_standard_library("python")
        certain = not search.name_exists(use.text, use)
        return None if is_present else Suspect(use=use, certain=certain)
    return _examine_attribute(diagnostic, use, search)


def _is_starred_submodule(diagnostic: TypeDiagnostic, search: NameSearch) -> bool:
    """Return whether `from package import *` gives it as a module that the package imports, which
    the type checker does not follow."""
    environment = search.around
    return any(
        diagnostic.name in environment.list_submodules(file)
        and diagnostic.name in environment.file_words(file)
        for source_import in search.read_module(diagnostic.path).imports
        if source_import.name == "*"
        for file in environment.find_python_files(diagnostic.path, source_import.module)
    )


def _examine_keyword(
    diagnostic: TypeDiagnostic, use: NameUse, search: NameSearch
) -> Suspect | None:
    exists = search.name_exists(diagnostic.name, use)
    function = (diagnostic.where or "").rpartition(" ")[2]
    if (diagnostic.where is None and exists) or function in _DYNAMIC_PARAMETERS:
        return None
    # An own class may share its name with the standard one that the type checker takes it for.
    if "." in function and diagnostic.name in _parameter_names(function, search, exact=True):
        return None
    similar_name = find_nearest_name(diagnostic.name, _parameter_names(function, search))
    certain = similar_name is not None or not exists
    return Suspect(use=use, near=similar_name, where=function or None, certain=certain)


def _examine_call(diagnostic: TypeDiagnostic, use: NameUse, search: NameSearch) -> Suspect | None:
    """Examine arguments that do not fit: a keyword that exists nowhere else, or the whole call."""
    added = search.inspection.added.get(diagnostic.path, frozenset())
    lines = added.intersection(range(diagnostic.line, diagnostic.last_line + 1))
    for name in search.read_module(diagnostic.path).names:
        if name.kind == "keyword" and name.line in lines:
            keyword = replace(use, text=name.text, kind="keyword", line=name.line)
            if not search.name_exists(name.text, keyword) and not search.is_library_name(keyword):
                function = diagnostic.name.rpartition(" ")[2]
                return Suspect(use=keyword, where=function, certain=True)
    # A test may call what must not be called so; beside other bases, `object` is not the next one;
    # and an overload that does not fit without such a keyword is a value of another type.
    is_exempt = is_test_file(diagnostic.path) or diagnostic.message.startswith("No overload")
    is_exempt = is_exempt or diagnostic.name.rpartition(" ")[2] in _DYNAMIC_PARAMETERS
    is_exempt = is_exempt or diagnostic.line not in added
    # `Point.__new__.__defaults__ = (0, 0)` makes parameters optional.
    is_exempt = is_exempt or (
        diagnostic.message.startswith("No argument") and search.name_exists("__defaults__", use)
    )
    is_exempt = is_exempt or "no_type_check" in search.around.file_words(diagnostic.path)
    return None if is_exempt else Suspect(use=use, reason=diagnostic.message)


def _examine_module_name(
    diagnostic: TypeDiagnostic, use: NameUse, search: NameSearch
) -> Suspect | None:
    module = diagnostic.where or ""
    environment = search.around
    is_known = use.text in BUILD_SPECIFIC_NAMES.get(module, ())
    is_known = is_known or use.text in environment.standard_module_names(module)
    if is_known or environment.is_built(f"{module}.{use.text}"):
        return None
    if _is_left_out_of_stub(diagnostic, use, search):
        return None
    names: set[str] = set()
    for path in environment.find_python_files(diagnostic.path, module):
        names |= environment.file_words(path)
        content = search.inspection.sides.read("after", path) or b""
        if use.text in environment.file_words(path) and _DYNAMIC_MODULE.search(content):
            return None
    installed = environment.installed.package_names("python", module.partition(".")[0])
    similar_name = find_nearest_name(
        use.text, names or environment.standard_module_names(module) or installed or set()
    )
    certain = similar_name is not None or not search.name_exists(use.text, use)
    return Suspect(use=use, near=similar_name, where=module, certain=certain)


def _is_left_out_of_stub(diagnostic: TypeDiagnostic, use: NameUse, search: NameSearch) -> bool:
    """Return whether the type checker read a stub, and the module itself defines the name."""
    environment = search.around
    module = diagnostic.where or ""
    package, _, rest = module.partition(".")
    stubs = f"{package}-stubs.{rest}".rstrip(".")
    files = environment.find_python_files(diagnostic.path, module)
    if not any(path.endswith(".pyi") for path in files) and not environment.find_python_files(
        diagnostic.path, stubs
    ):
        return False
    modules = (search.inspection.index.module(path) for path in files if path.endswith(".py"))
    return any(read is not None and use.text in module_bindings(read) for read in modules)


def _examine_attribute(
    diagnostic: TypeDiagnostic, use: NameUse, search: NameSearch
) -> Suspect | None:
    """Examine an attribute: of a class without dynamic attributes, or one that exists nowhere."""
    if " in union " in diagnostic.message and search.name_exists(use.text, use):
        return None  # Another type of the union has it: a named tuple is a tuple, too.
    type_name = diagnostic.where or ""
    if _PLAIN_TYPE.fullmatch(type_name):
        plain = type_name.partition("[")[0]
        return Suspect(use=use, where=plain, near=find_nearest_name(use.text, _type_members(plain)))
    if search.is_defined_by_change(use.text, use):
        return None
    owner = _owner_class(diagnostic, search)
    if owner and use.text.startswith("_") and _is_in_standard_base(use.text, owner, search):
        return None
    is_self = (diagnostic.where or "").startswith("Self")
    path = diagnostic.path if is_self else None
    owner_words = class_words(owner, path, search) if owner else None
    if owner_words is not None and use.text not in owner_words:
        similar_name = find_nearest_name(use.text, owner_words)
        if similar_name or not search.inspection.index.known(use.text):
            return Suspect(use=use, where=owner, near=similar_name, certain=True)
    if search.name_exists(use.text, use) or search.is_library_name(use):
        return None
    similar_name = find_nearest_name(use.text, search.around.file_words(diagnostic.path))
    return Suspect(use=use, near=similar_name)


def _type_members(plain: str) -> set[str]:
    kinds = {
        "Literal": str,
        "LiteralString": str,
        **{builtin.__name__: builtin for builtin in _BUILTIN_TYPES},
    }
    return set(dir(kinds[plain]))


_BUILTIN_TYPES = (list, dict, tuple, set, frozenset, str, bytes, int, float, bool)


def _owner_class(diagnostic: TypeDiagnostic, search: NameSearch) -> str | None:
    """Return the class that was meant; for `self`, the one around the line."""
    type_name = diagnostic.where or ""
    if type_name.startswith("Self@") or type_name == "Self":
        module = search.read_module(diagnostic.path)
        enclosing_types = [
            kind for kind in module.types if kind.first_line <= diagnostic.line <= kind.last_line
        ]
        return enclosing_types[-1].name if enclosing_types else None
    name = (
        type_name.removeprefix("<class '").removesuffix("'>").partition("[")[0].rpartition(".")[2]
    )
    return name if _IDENTIFIER.fullmatch(name) else None


def class_words(
    owner: str, path: str | None, search: NameSearch, *, may_delegate: bool = False
) -> set[str] | None:
    """Return all words of the files that define a class and its bases; None if some are unknown.

    A class may pass on what it lacks only to values of known packages, or to none. With a path, the
    class is the one of that file; of several classes with one name, all count.
    """
    waiting, seen = [(owner, path)], set[str]()
    names: set[str] = set()
    standard: dict[str, str] = {}
    library = load_standard_library("python")
    while waiting:
        name, path = waiting.pop()
        if name in standard:
            inner = f"{standard[name]}."
            names |= library[standard[name]].union(
                *(library[module] for module in library if module.startswith(inner))
            )
        if name in seen or name in ("object", "Generic", "Protocol", "ABC", "Exception", "Enum"):
            continue
        seen.add(name)
        definitions = find_classes(name, search, path)
        if not definitions and name in standard:
            continue
        if not definitions or len(seen) > MAX_BASES:
            return None
        for path, kind in definitions:
            standard |= _standard_imports(path, search)
            standard |= _passed_on_imports(path, search)
            lines = (search.inspection.sides.read("after", path) or b"").split(b"\n")
            body = b"\n".join(lines[kind.first_line - 1 : kind.last_line])
            if _DYNAMIC_CLASS.search(body) and not (
                may_delegate and _only_delegates(path, kind, lines, search)
            ):
                return None
            names |= search.words_without_uses(path)
            bases = (base.partition("[")[0].rpartition(".") for base in kind.bases)
            waiting += [(base, None if prefix else path) for prefix, _, base in bases]
    return names


def _only_delegates(path: str, kind: SourceType, lines: list[bytes], search: NameSearch) -> bool:
    """Return whether a class adds members only by a `__getattr__` that gives names it stored, or
    that passes on names in a file that imports nothing from elsewhere that could have them."""
    module = search.inspection.index.module(path)
    if module is None:
        return False
    passes_on = False
    remaining = dict(enumerate(lines[kind.first_line - 1 : kind.last_line], kind.first_line))
    for function in module.functions:
        span = range(function.first_line, function.last_line + 1)
        if function.qualified == f"{kind.qualified}.__getattr__":
            body = b"\n".join(lines[number - 1] for number in span[1:])
            if _NAME_PARSER.search(body):
                return False  # It takes names apart, and so may answer to any.
            passes_on |= b"getattr" in body or b"AttributeError" not in body
        elif function.name != "__setstate__":
            continue
        for number in span:
            remaining.pop(number, None)
    if passes_on and any(
        search.around.is_foreign("python", source_import) for source_import in module.imports
    ):
        return False
    return _DYNAMIC_MEMBERS.search(b"\n".join(remaining.values())) is None


def _is_in_standard_base(name: str, owner: str, search: NameSearch) -> bool:
    """Return whether a class derives from a standard-library one whose source has the word.

    The type stubs of the standard library leave out private members.
    """
    definitions = find_classes(owner, search)
    if len(definitions) != 1:
        return False
    path, kind = definitions[0]
    bases = {base.partition("[")[0].rpartition(".")[2] for base in kind.bases}
    return any(
        not bases.isdisjoint(names) and name.encode() in _read_standard_words(module)
        for module, names in _standard_names(path, search)
    )


@lru_cache
def _read_standard_words(module: str) -> frozenset[bytes]:
    """Return every word of a standard-library module; for a package, of all its modules."""
    module_path = Path(sysconfig.get_path("stdlib"), *module.split("."))
    files = (
        module_path.glob("*.py")
        if module_path.is_dir()
        else [module_path.with_name(f"{module_path.name}.py")]
    )
    return frozenset(
        word for file in files if file.is_file() for word in extract_words(file.read_bytes())
    )


def _standard_imports(path: str, search: NameSearch) -> dict[str, str]:
    """Return what a file imports from the standard library, whose classes the type checker
    knows, with its modules."""
    module = search.inspection.index.module(path)
    foreign = {
        source_import.alias or source_import.name
        for source_import in (module.imports if module else ())
        if source_import.module not in _BACKPORTS
        and search.around.is_foreign("python", source_import)
    }
    return {
        name: module_name
        for module_name, names in _standard_names(path, search)
        for name in names
        if name not in foreign
    }


def _passed_on_imports(path: str, search: NameSearch) -> dict[str, str]:
    """Return the standard names that a file imports from another file of the repository, as from a
    module for several versions of Python."""
    module = search.inspection.index.module(path)
    names: dict[str, str] = {}
    for source_import in module.imports if module else ():
        if source_import.name and not source_import.alias:
            for file in search.around.find_python_files(path, source_import.module):
                standard = _standard_imports(file, search)
                if source_import.name in standard:
                    names[source_import.name] = standard[source_import.name]
    return names


def _standard_names(path: str, search: NameSearch) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the standard-library modules that a file imports, each with the names it binds."""
    library = load_standard_library("python")
    module = search.inspection.index.module(path)
    for source_import in module.imports if module else ():
        name = _BACKPORTS.get(source_import.module, source_import.module)
        if name in library:
            bound = source_import.alias or source_import.name
            yield name, {bound} if bound and source_import.name else library[name]


def find_classes(
    name: str, search: NameSearch, path: str | None = None
) -> list[tuple[str, SourceType]]:
    """Return the classes of that name: of the file if it has any, else of the repository."""
    index = search.inspection.index
    paths = {path for path, _ in index.defined(name)[:MAX_SAME_CLASSES] if path.endswith(".py")}
    classes = [
        (class_path, kind)
        for class_path in sorted(paths)
        for kind in getattr(index.module(class_path), "types", ())
        if kind.name == name
    ]
    return [entry for entry in classes if entry[0] == path] or classes


def _parameter_names(called: str, search: NameSearch, *, exact: bool = False) -> set[str]:
    """Return the parameter names of every callable of that name; exact: of that class, too."""
    name = called.rpartition(".")[2]
    owner = called.rpartition(".")[0].rpartition(".")[2]
    names = set[str]()
    for path, _ in search.inspection.index.defined(owner or name)[:5]:
        module = search.inspection.index.module(path)
        for function in module.functions if module else ():
            is_match = function.name == name or (
                function.name == "__init__" and function.qualified == f"{name}.__init__"
            )
            if function.qualified == called if exact else is_match:
                names |= {
                    parameter.split(":")[0].split("=")[0].strip("* ")
                    for parameter in function.parameters
                }
    return names
