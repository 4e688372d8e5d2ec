"""Digests of code, the keys of derived data: when the code changes, the data is recomputed.

A digest covers the syntax trees of the modules that some code reaches by imports, without
comments and docstrings. The modules are found and read as files; none of them is imported. Files
whose size and times are those of an earlier digest are not read again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from closeloop.records.record import Record, content_digest

if TYPE_CHECKING:
    import ast

MAX_CACHED_MODULES = 5_000
MAX_CACHED_DIGESTS = 40
Derived = TypeVar("Derived")
FileState = tuple[str, int, int, int]
"""A path, and its file's size, modification time and change time, in nanoseconds."""


class CodeDigest(Record, array_like=True):
    """A digest, and the files that it covers."""

    digest: str
    files: tuple[FileState, ...]


class ParsedModule(Record, array_like=True):
    """The stored facts of a module's source."""

    tree: str
    """The digest of its syntax tree."""
    imports: tuple[str, ...] = ()
    """Its imports, at the top or in functions, as written: relative names keep their dots."""


@cache
def digest_code(*modules: str) -> str:
    """Digest the syntax trees of modules and of all that they reach by imports.

    Imports are followed inside closeloop and inside the top-level packages of the modules.
    `package.*` stands for every module of a package, for modules that are imported by a computed
    name. Of a plug-in without a source file only the name counts.
    """
    roots = [module for name in modules for module in _expand_name(name)]
    key = content_digest(sys.path, roots)[:16]
    known_digest = _known_digests().get(key)
    if known_digest and all(
        _file_state(path) == (path, *state) for path, *state in known_digest.files
    ):
        return known_digest.digest
    known_count = len(_parsed_modules())
    reached_modules = _reach_modules(roots)
    if len(_parsed_modules()) > known_count:
        _save_parsed_modules()
    digest = content_digest(
        sorted((name, parsed and parsed.tree) for name, parsed in reached_modules.items())
    )
    if all(reached_modules.values()):
        paths = [str(path) for name in reached_modules if (path := _find_source(name))]
        files = tuple(state for path in paths if (state := _file_state(path)))
        _known_digests()[key] = CodeDigest(digest=digest, files=files)
        recent_digests = dict(list(_known_digests().items())[-MAX_CACHED_DIGESTS:])
        save_derived("digests", recent_digests)
    return digest


def _reach_modules(roots: Iterable[str]) -> dict[str, ParsedModule | None]:
    """Return the modules by name: the roots and all that they import, transitively."""
    reached_modules: dict[str, ParsedModule | None] = {name: _parse_module(name) for name in roots}
    for name, parsed in reached_modules.items():
        if parsed is None and name.startswith("closeloop."):
            raise ModuleNotFoundError(f"No source file of {name}, which a digest is made of")
    packages = {"closeloop", *(name.partition(".")[0] for name in reached_modules)}
    waiting = list(reached_modules)
    while waiting:
        for name in _imported_names(waiting.pop()):
            if name.partition(".")[0] in packages and name not in reached_modules:
                parsed = _parse_module(name)
                if parsed is not None:  # otherwise it is a class, a function or a constant
                    reached_modules[name] = parsed
                    waiting.append(name)
    return reached_modules


@cache
def _imported_names(module: str) -> tuple[str, ...]:
    """Return the absolute names that a module imports, modules or not."""
    path, parsed = _find_source(module), _parse_module(module)
    if path is None or parsed is None:
        return ()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = []
    for name in parsed.imports:
        with suppress(ImportError):  # outside the package
            names.append(resolve_name(name, package))
    return tuple(names)


def _expand_name(name: str) -> list[str]:
    package = name.removesuffix(".*")
    path = _find_source(package)
    if package == name or path is None:
        return [name]
    stems = (source.stem for source in path.parent.glob("*.py") if source != path)
    return [package, *(f"{package}.{stem}" for stem in sorted(stems))]


@cache
def _find_source(module: str) -> Path | None:
    """Return a module's file; only its top-level package is looked up, as others would be run."""
    top, _, rest = module.partition(".")
    try:
        spec = find_spec(top)
    except ValueError:  # `__main__` and modules created at run time
        return None
    if spec is None:
        return None
    if not rest and spec.has_location and spec.origin and spec.origin.endswith(".py"):
        return Path(spec.origin)
    for folder in spec.submodule_search_locations or () if rest else ():
        base = os.path.join(folder, *rest.split("."))  # noqa: PTH118 - called for every name
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if os.path.isfile(path):  # noqa: PTH113
                return Path(path)
    return None


@cache
def _parse_module(module: str) -> ParsedModule | None:
    """Return the parsed module; None if it does not exist or cannot be read."""
    path = _find_source(module)
    try:
        content = path.read_bytes() if path else None
    except OSError:
        return None
    if content is None:
        return None
    key = sha256(content).hexdigest()
    parsed_modules = _parsed_modules()
    if key not in parsed_modules:
        parsed_modules[key] = parse_source(content)
    return parsed_modules[key]


def parse_source(content: bytes) -> ParsedModule:
    """Digest the syntax tree of a source file, and list what it imports."""
    import ast

    from closeloop.text.code_patterns import parse_python

    try:
        tree = parse_python(content)
        dumped = repr(_dump_node(tree))
    except (SyntaxError, ValueError, RecursionError):
        return ParsedModule(tree=sha256(content).hexdigest())
    imports = dict.fromkeys(name for node in ast.walk(tree) for name in _names_in(node))
    return ParsedModule(tree=sha256(dumped.encode()).hexdigest(), imports=tuple(imports))


def _names_in(node: ast.AST) -> Iterator[str]:
    """Yield what a node imports: in `from package import name`, both may be modules."""
    import ast

    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        yield base
        separator = "" if base.endswith(".") else "."
        yield from (f"{base}{separator}{alias.name}" for alias in node.names if alias.name != "*")


def _dump_node(node: Any) -> Any:
    """Return names, values and structure of a syntax tree, the same on any version of Python.

    Empty fields are left out, as newer versions have more of them.
    """
    import ast

    if isinstance(node, ast.AST):
        fields = (
            (name, _dump_node(value))
            for name in node._fields
            if (value := getattr(node, name, None)) is not None and value != []
        )
        return (type(node).__name__, *fields)
    if isinstance(node, list):
        return [_dump_node(child) for child in node if not _is_docstring(child)]
    return repr(node)


def _is_docstring(node: Any) -> bool:
    """Return whether a node is a docstring, also of a constant or a field."""
    import ast

    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@cache
def _parsed_modules() -> dict[str, ParsedModule]:
    """Return the modules parsed by this process or an earlier one, by the digest of the source."""
    return load_derived("code", dict[str, ParsedModule]) or {}


def _save_parsed_modules() -> None:
    """Save the latest ones for the next process."""
    save_derived("code", dict(list(_parsed_modules().items())[-MAX_CACHED_MODULES:]))


@cache
def _known_digests() -> dict[str, CodeDigest]:
    """Return the stored digests, by the modules that they cover."""
    return load_derived("digests", dict[str, CodeDigest]) or {}


@cache
def _file_state(path: str) -> FileState | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - called for every module
    except OSError:
        return None
    return path, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def load_derived(name: str, kind: type[Derived]) -> Derived | None:
    """Return what an earlier process derived from code; None if missing or unreadable."""
    try:
        return msgspec.msgpack.decode(_cache_file(name).read_bytes(), type=kind)
    except (OSError, RuntimeError, msgspec.MsgspecError):
        return None


def save_derived(name: str, value: object) -> None:
    """Save a value for the next process; best effort."""
    with suppress(OSError, RuntimeError):
        replace_file(_cache_file(name), msgspec.msgpack.encode(value))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


def _cache_file(name: str) -> Path:
    """Return the path in the user's cache folder; each version of this module has its own."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else Path.home() / ".cache") / "closeloop"
    return folder / f"{name}-{_own_digest()}.msgpack"


@cache
def _own_digest() -> str:
    return sha256(Path(__file__).read_bytes()).hexdigest()[:12]
