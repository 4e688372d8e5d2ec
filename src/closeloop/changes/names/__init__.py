"""hallucinated-name: names that do not exist, neither in the repository nor in its libraries.

nowhere   no file, no library and no line of the change has the name
imported  a package that is neither in the repository, nor installed, nor declared
typed     a type checker cannot find it, and did not report it before
flags     an option that the project's own command line does not have
settings  a key or option of another tool, one edit from what was there before
"""

from __future__ import annotations

import configparser
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from closeloop.changes.file_kinds import classify_file, is_test_file, language_of
from closeloop.changes.names.name_search import MAX_SEARCHES, NameSearch
from closeloop.changes.names.suspect_names import (
    LANGUAGE_NAMES,
    NameUse,
    Suspect,
    find_nearest_name,
    find_slips,
    import_bindings,
    is_other_word,
    is_test_input,
    load_standard_library,
)
from closeloop.changes.names.type_diagnostics import (
    IMPORT_ERRORS,
    TypeCheckerUnusable,
    class_words,
    filter_diagnostics,
    find_classes,
    find_new_diagnostics,
    is_attempted,
    is_silenced,
)
from closeloop.changes.risk.dependencies import normalise_python_name, read_manifest
from closeloop.changes.syntax import extract_words
from closeloop.records.change import Inspection, SourceImport
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.record import Record, content_digest

# Options and settings that do not exist, of the project's own commands and of other tools.


MAX_FILES = 2000
MAX_LINE_CHARS = 2000
_SHELL_FILES = re.compile(
    r"(.*/)?((GNU)?[Mm]akefile|(Docker|Container|just|Just|Proc)file[^/]*|[^/]*\.(sh|bash|mk|ya?ml))"
)
_SETTINGS_FILES = re.compile(r"(.*/)?[^/]*\.(toml|ya?ml|cfg|ini)")
_DEFINED_OPTION = re.compile(rb"--(?:no-)?([a-zA-Z][\w-]*)")
_GIVEN_OPTION = re.compile(r"(?:^|[\s\"'])--([a-zA-Z][\w-]*)")
_COMMAND_END = re.compile(r"\s--\s|[|;&]|\s#")
_KEY = re.compile(r"\s*[\"']?([A-Za-z][\w-]*)[\"']?\s*[=:]")
_TABLE = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_CONSOLE_SCRIPT = re.compile(rb"[\"'\s]([\w.-]+)\s*=\s*[\w.]+:\w+")
_STANDARD_OPTIONS = frozenset({"help", "version"})


def find_unknown_flags(inspection: Inspection) -> Iterator[Suspect]:
    """Yield options on added lines that the project's own commands do not have."""
    project = _ProjectCommands(inspection)
    for file in inspection.files:
        added = inspection.added.get(file.path, frozenset())
        shell = _SHELL_FILES.fullmatch(file.path) is not None
        settings = _SETTINGS_FILES.fullmatch(file.path) is not None
        if not added or not (shell or settings or language_of(file.path)):
            continue
        content = inspection.sides.read("after", file.path) or b""
        lines = content.decode("utf-8", "replace").split("\n")
        table = ""
        for number, line in enumerate(lines, 1):
            if settings and (heading := _TABLE.match(line)):
                table = heading[1]
            if number in added and len(line) <= MAX_LINE_CHARS:
                if shell or language_of(file.path):
                    yield from project.check_options(file.path, number, line, shell)
                if settings:
                    yield from project.check_keys(file.path, number, line, table)


class _ProjectCommands:
    """The names of the project's commands, and the options they accept."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection

    def check_options(self, path: str, number: int, line: str, shell: bool) -> Iterator[Suspect]:
        if "--" not in line:
            return
        for command, arguments in self._find_calls(line, shell):
            for option in _GIVEN_OPTION.findall(arguments):
                # The known ones are without `no-`.
                plain = option.removeprefix("no-")
                if not self._accepts_option(option) and (
                    similar_name := find_nearest_name(plain, self.known_options)
                ):
                    prefix = "--no-" if plain != option else "--"
                    yield _make_option_suspect(
                        path, number, f"--{option}", f"{prefix}{similar_name}", command
                    )

    def check_keys(self, path: str, number: int, line: str, table: str) -> Iterator[Suspect]:
        """Check settings in the project's own table or file."""
        is_own = PurePosixPath(path).stem.lstrip(".") in self.command_names or any(
            re.fullmatch(rf"tool\.{re.escape(name)}(\..*)?", table) for name in self.command_names
        )
        key = _KEY.match(line) if is_own else None
        if key is None or self._is_known_name(key[1]):
            return
        index = self.inspection.index
        near_names = find_slips(key[1].replace("-", "_"), lambda name: bool(index.defined(name)))
        if near_names:
            yield _make_option_suspect(path, number, key[1], near_names[0], None)

    @cached_property
    def command_names(self) -> frozenset[str]:
        read = self.inspection.sides.read
        commands: set[str] = set()
        pyproject = _parse_toml(read("after", "pyproject.toml"))
        for tables in (("project", "scripts"), ("tool", "poetry", "scripts")):
            commands.update(_nested_table(pyproject, *tables))
        package = _parse_json(read("after", "package.json"))
        binaries = package.get("bin")
        commands.update(binaries if isinstance(binaries, dict) else ())
        if isinstance(binaries, str) and isinstance(package.get("name"), str):
            commands.add(package["name"].rpartition("/")[2])
        commands.update(_read_console_scripts(read("after", "setup.cfg")))
        setup = read("after", "setup.py") or b""
        if b"console_scripts" in setup:
            commands.update(
                script.decode("utf-8", "replace") for script in _CONSOLE_SCRIPT.findall(setup)
            )
        commands.update(_cargo_binaries(_parse_toml(read("after", "Cargo.toml"))))
        return frozenset(commands)

    @cached_property
    def known_options(self) -> frozenset[str]:
        """Return every option that a source file of the project contains, without tests."""
        options: set[bytes] = set()
        sides = self.inspection.sides
        source_paths = (path for path in self.inspection.index.paths() if not is_test_file(path))
        for _, path in zip(range(MAX_FILES), source_paths, strict=False):
            content = sides.read("after", path) or b""
            if path not in self.inspection.added:
                options.update(_DEFINED_OPTION.findall(content))
            else:
                added = self.inspection.added[path]
                for number, line in enumerate(content.split(b"\n"), 1):
                    if number not in added or b"subprocess" not in line:
                        options.update(_DEFINED_OPTION.findall(line))
        return frozenset(option.decode("utf-8", "replace") for option in options)

    def _find_calls(self, line: str, shell: bool) -> Iterator[tuple[str, str]]:
        """Yield the project's own commands in a line, each with its arguments."""
        for command in self.command_names:
            quoted = r"[\"']" if not shell else r"(?:^|[\s\"'/`(])"
            after = r"[\"']\s*," if not shell else r"(?=\s)"
            for match in re.finditer(quoted + re.escape(command) + after, line):
                arguments = line[match.end() :]
                end = _COMMAND_END.search(arguments) if shell else None
                yield command, arguments[: end.start()] if end else arguments

    def _accepts_option(self, option: str) -> bool:
        plain = option.removeprefix("no-")
        return (
            plain in self.known_options or option in _STANDARD_OPTIONS or self._is_known_name(plain)
        )

    def _is_known_name(self, name: str) -> bool:
        snake = name.replace("-", "_")
        first, *later_words = snake.split("_")
        camel = first + "".join(word.capitalize() for word in later_words)
        index = self.inspection.index
        return any(
            index.known(spelling) for spelling in (snake, camel, camel[:1].upper() + camel[1:])
        )


def _make_option_suspect(
    path: str, line: int, text: str, similar_name: str, command: str | None
) -> Suspect:
    use = NameUse(path=path, line=line, language="python", text=text, kind="option")
    return Suspect(use=use, near=similar_name, where=command, certain=command is not None)


def _parse_toml(content: bytes | None) -> dict[str, Any]:
    try:
        return tomllib.loads((content or b"").decode("utf-8", "replace"))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _parse_json(content: bytes | None) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _nested_table(table: Any, *names: str) -> dict[str, Any]:
    for name in names:
        table = table.get(name) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


def _read_console_scripts(setup: bytes | None) -> Iterator[str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string((setup or b"").decode("utf-8", "replace"))
        scripts_text = parser.get("options.entry_points", "console_scripts", fallback="")
    except configparser.Error:
        return
    yield from (line.partition("=")[0].strip() for line in scripts_text.splitlines() if "=" in line)


def _cargo_binaries(cargo: dict[str, Any]) -> Iterator[str]:
    binaries = cargo.get("bin")
    for binary in binaries if isinstance(binaries, list) else ():
        if isinstance(binary, dict) and isinstance(binary.get("name"), str):
            yield binary["name"]


# Keys and options of other tools' settings that the repository spelled differently before.
#
# No list has every tool's settings. But a key that occurs nowhere, one edit from one that was
# in the same table, is probably a misspelling of it.

MAX_CONFIG_FILES = 200

_TABLE_FILES = re.compile(r"(.*/)?[^/]*\.(toml|cfg|ini)")
_SCRIPT_FILES = re.compile(r"(.*/)?((GNU)?[Mm]akefile|[^/]*\.(sh|bash|mk|ya?ml|toml|cfg|ini))")

_CONFIG_KEY = re.compile(r"\s*[\"']?([A-Za-z][\w-]{3,80})[\"']?\s*[=:]")
_OPTION = re.compile(r"(?<![\w-])--([a-zA-Z][\w-]{3,80})")
_WORD = re.compile(r"(?<![\w-])[\w.]+(?:-[\w.]+)*")
_WORD_PART = re.compile(rb"[A-Za-z][\w-]*")


def find_unknown_settings(inspection: Inspection) -> Iterator[Suspect]:
    """Yield unknown settings on added lines."""
    past = _OldSettings(inspection)
    for file in inspection.files:
        added = inspection.added.get(file.path, frozenset())
        if not added or not _SCRIPT_FILES.fullmatch(file.path):
            continue
        for number, table, line in _table_lines(inspection.sides.read("after", file.path) or b""):
            if number not in added:
                continue
            if _TABLE_FILES.fullmatch(file.path) and (key := _CONFIG_KEY.match(line)):
                keys = past.keys_by_table.get((PurePosixPath(file.path).name, table), {})
                yield from past.find_misspelling(file.path, number, key[1], keys)
            for option in _OPTION.findall(line):
                line_words = frozenset(_WORD.findall(line))
                yield from past.find_misspelling(
                    file.path, number, option, past.option_contexts, line_words
                )


def _table_lines(content: bytes) -> Iterator[tuple[int, str, str]]:
    """Yield each line with its number and the table that it is in."""
    table = ""
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        if heading := _TABLE.match(line[:MAX_LINE_CHARS]):
            table = heading[1]
        yield number, table, line[:MAX_LINE_CHARS]


class _OldSettings:
    """The settings before the change."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection

    def find_misspelling(
        self,
        path: str,
        line: int,
        name: str,
        known_contexts: Mapping[str, frozenset[str]],
        line_words: frozenset[str] = frozenset(),
    ) -> Iterator[Suspect]:
        """Yield a name one edit from an old one; options count only if their command is the
        same."""
        if name.encode() in self.words_before or self.inspection.index.known(
            name.replace("-", "_")
        ):
            return
        for similar_name in find_slips(name, known_contexts.__contains__):
            if not is_other_word(name, similar_name) and (
                not known_contexts[similar_name] or known_contexts[similar_name] & line_words
            ):
                use = NameUse(path=path, line=line, language="python", text=name, kind="option")
                yield Suspect(use=use, near=similar_name)
                return

    @cached_property
    def texts_before(self) -> Mapping[str, bytes]:
        sides = self.inspection.sides
        config_paths = (
            path
            for path in sides.tree("before")
            if _SCRIPT_FILES.fullmatch(path)
            and classify_file(path) in ("config", "ci", "manifest", "source")
        )
        return {
            path: sides.read("before", path) or b""
            for path, _ in zip(config_paths, range(MAX_CONFIG_FILES), strict=False)
        }

    @cached_property
    def words_before(self) -> frozenset[bytes]:
        known_words: set[bytes] = set()
        for text in self.texts_before.values():
            known_words.update(_WORD_PART.findall(text), extract_words(text))
        return frozenset(known_words)

    @cached_property
    def keys_by_table(self) -> Mapping[tuple[str, str], Mapping[str, frozenset[str]]]:
        """Return keys by file name and table."""
        keys: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
        for path, text in self.texts_before.items():
            if _TABLE_FILES.fullmatch(path):
                for _, table, line in _table_lines(text):
                    if key := _CONFIG_KEY.match(line):
                        table_key = PurePosixPath(path).name, table
                        keys.setdefault(table_key, {})[key[1]] = frozenset()
        return keys

    @cached_property
    def option_contexts(self) -> Mapping[str, frozenset[str]]:
        """Return each option with the other words of its lines."""
        contexts: dict[str, frozenset[str]] = {}
        for text in self.texts_before.values():
            for _, _, line in _table_lines(text):
                for option in _OPTION.findall(line):
                    other_words = frozenset(_WORD.findall(line)) - {option}
                    contexts[option] = contexts.get(option, frozenset()) | other_words
        return contexts


# Packages that added Python lines import and that are neither declared, present nor installed.


MANIFESTS = "the manifests"
"""`where` of a suspect that was looked up in the manifests."""
_PACKAGE_NAME = re.compile(r"[a-z_]\w{2,}", re.IGNORECASE)
_PIP_INSTALL = re.compile(r"\bpip3? install (.+)")
_PACKAGE_MANIFESTS: Mapping[str, re.Pattern[bytes]] = {
    "setup.py": re.compile(rb"^(?:setuptools\.)?setup\(\s*name=", re.MULTILINE),
    "pyproject.toml": re.compile(rb"^dependencies\s*=\s*\[\s*\]", re.MULTILINE),
}
"""How a manifest shows that it is a package's; one without dependencies has none."""
_TOOL_FILES = ("setup.py", "tox.ini", "noxfile.py", "conf.py")
"""Files that name packages, though they are no manifests; the last is Sphinx's."""
_OTHER_DISTRIBUTIONS: Mapping[str, str] = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv",
    "dateutil": "python-dateutil",
    "docutils": "sphinx",
    "git": "gitpython",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "magic": "python-magic",
    "markupsafe": "jinja2",
    "mpl_toolkits": "matplotlib",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "pydantic_core": "pydantic",
    "serial": "pyserial",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "usb": "pyusb",
    "werkzeug": "flask",
    "zmq": "pyzmq",
}
"""Distributions that bring a module whose name they do not contain."""


def find_undeclared_imports(search: NameSearch) -> Iterator[Suspect]:
    """Yield imported modules that are named nowhere: an installer would fetch any package so
    named."""
    unknown = list(_unknown_imports(search))
    declared = _declared_packages(search) if unknown else None
    for use in unknown:
        if declared is None or _is_declared(use.text, declared.names):
            continue
        if declared.has_dependencies or _is_package_module(use.path, search):
            yield Suspect(use=use, where=MANIFESTS)


def _is_package_module(path: str, search: NameSearch) -> bool:
    """Return whether it is installed with the package, unlike tests and tools, which need more."""
    module = PurePosixPath(path)
    read = search.inspection.sides.read
    setup = b"\n".join(read("after", name) or b"" for name in ("setup.py", "setup.cfg"))
    is_named = b"py_modules" in setup and module.stem.encode() in extract_words(setup)
    is_inside = is_named or str(module.parent / "__init__.py") in search.around.tree
    return classify_file(path) == "source" and is_inside


def _unknown_imports(search: NameSearch) -> Iterator[NameUse]:
    for path, added in search.inspection.added.items():
        module = search.inspection.modules.get(("after", path))
        if module is None or module.language != "python" or is_test_input(path):
            continue
        lines = (search.inspection.sides.read("after", path) or b"").split(b"\n")
        for source_import in module.imports:
            is_new = source_import.line in added and _is_unknown(source_import, path, search)
            if is_new and not _is_guarded(lines, source_import.line):
                first = source_import.module.split(".")[0]
                line = _statement_line(lines, source_import)
                yield NameUse(path=path, line=line, language="python", text=first, kind="import")


def _statement_line(lines: list[bytes], target: SourceImport) -> int:
    """Return the line that names the module: each name may be on a line of its own."""
    word = target.module.encode()
    numbers = range(target.line, 0, -1)
    return next((number for number in numbers if word in lines[number - 1]), target.line)


def _is_unknown(target: SourceImport, path: str, search: NameSearch) -> bool:
    """Return whether neither the language, the repository nor installed packages have it."""
    first = target.module.split(".")[0]
    environment = search.around
    if not _PACKAGE_NAME.fullmatch(first) or first in load_standard_library("python"):
        return False
    if search.is_python_2(path, first):
        return False
    folder = PurePosixPath(path).parent
    is_here = first in environment.python_modules or any(
        first in PurePosixPath(module_folder).parts for module_folder in environment.folders
    )
    is_known = search.inspection.index.known(first) or first in search.words_before
    is_sibling = str(folder / f"{first}.py") in environment.tree
    return not (is_here or is_known or is_sibling) and (
        environment.installed.package_names("python", first) is None
    )


def _is_guarded(lines: list[bytes], number: int) -> bool:
    """Return whether the import may fail: inside `try`."""
    line = lines[number - 1] if number <= len(lines) else b""
    indent = len(line) - len(line.lstrip())
    lines_above = (line for line in reversed(lines[: number - 1]) if line.strip())
    block = next((line for line in lines_above if len(line) - len(line.lstrip()) < indent), b"")
    return indent > 0 and block.strip().startswith((b"try:", b"except"))


class _DeclaredPackages(Record):
    """The external packages that a project may import."""

    names: frozenset[str]
    has_dependencies: bool
    """Whether any is declared; a package that declares none needs none, but its tests may."""


def _declared_packages(search: NameSearch) -> _DeclaredPackages | None:
    """Return the words of manifests, lock files, installation scripts and CI, on both sides.

    None if none of them is of a Python package: then dependencies are declared elsewhere.
    """
    names: set[str] = set()
    has_dependencies = is_package = False
    for side in ("before", "after"):
        for path in search.inspection.sides.tree(side):
            kind = classify_file(path)
            if kind == "ci":
                content = search.inspection.sides.read(side, path) or b""
                for line in _PIP_INSTALL.findall(content.decode("utf-8", "replace")):
                    names.update(re.findall(r"[A-Za-z][\w.-]{2,}", line))
            name = PurePosixPath(path).name
            # Requirements of the tests lie with them.
            is_requirements = name.startswith("requirements") and name.endswith(".txt")
            if kind in ("manifest", "lockfile") or name in _TOOL_FILES or is_requirements:
                content = search.inspection.sides.read(side, path) or b""
                names.update(re.findall(r"[A-Za-z][\w.-]{2,}", content.decode("utf-8", "replace")))
                package = _PACKAGE_MANIFESTS.get(path)
                is_package |= package is not None and bool(package.search(content))
                has_dependencies |= b"install_requires" in content
                with suppress(ValueError):
                    manifest = read_manifest(path, content)
                    has_dependencies |= bool(
                        manifest and manifest.ecosystem == "pypi" and manifest.dependencies
                    )
    if not (is_package or has_dependencies):
        return None
    normalised = frozenset(normalise_python_name(name) for name in names)
    return _DeclaredPackages(names=normalised, has_dependencies=has_dependencies)


def _is_declared(module: str, declared: frozenset[str]) -> bool:
    """Return whether a distribution's name equals or contains the module's: `yaml` in `pyyaml`."""
    candidates = normalise_python_name(module), _OTHER_DISTRIBUTIONS.get(module)
    return any(candidate in name for candidate in candidates if candidate for name in declared)


# Members and keywords of the repository's own classes and functions that the type checker cannot
# see: a decorator, `__getattr__` or a missing annotation hides them.


MIN_OTHER_MEMBERS = 2
"""Other members of a value that must belong to one class, to take the value for one of it."""
MAX_DEFINITIONS = 10


_GIVEN_VALUE = re.compile(rb"^\s+(?:return|yield)\s+(?:\w+\.)*(\w+\(?)", re.MULTILINE)
"""What a function gives: a call, if a bracket follows."""


def find_unfit_uses(search: NameSearch) -> Iterator[Suspect]:
    """Yield members and keywords that exist nowhere, if their class or function is known."""
    for use in search.unknown_uses:
        is_examined = use.language == "python" and use.receiver
        if is_examined and not is_silenced(use.path, use.line, search):
            is_keyword = use.kind == "keyword"
            examine = _examine_own_keyword if is_keyword else _examine_own_member
            if suspect := examine(use, search):
                yield suspect


def _examine_own_keyword(use: NameUse, search: NameSearch) -> Suspect | None:
    """Examine a keyword of a function or class that the repository defines once."""
    owner, _, called = (use.receiver or "").rpartition(".")
    sources = [
        source_import
        for source_import in search.read_module(use.path).imports
        if called in (source_import.name, source_import.alias)
    ]
    if owner not in ("", "self", "cls") or any(
        source.alias or search.around.is_foreign("python", source) for source in sources
    ):
        return None
    index = search.inspection.index
    functions = [
        (path, function)
        for path in {path for path, _ in index.defined(called)[:MAX_DEFINITIONS]}
        for function in getattr(index.module(path), "functions", ())
        if function.name == called or function.qualified == f"{called}.__init__"
    ]
    path, function = functions[0] if len(functions) == 1 else ("", None)
    if function is None or not (sources or path == use.path):
        return None
    if any("**" in parameter for parameter in function.parameters) or not all(
        _is_known_decorator(decorator, path, search) for decorator in function.decorators
    ):
        return None
    parameters = {
        parameter.split(":")[0].split("=")[0].strip("* ") for parameter in function.parameters
    }
    return Suspect(use=use, where=called, near=find_nearest_name(use.text, parameters))


def _is_known_decorator(decorator: str, path: str, search: NameSearch) -> bool:
    """Return whether it is standard, installed or of the repository: another may add any
    parameter, and a test that calls a fixture calls what the fixture returns."""
    if "fixture" in decorator:
        return False
    first = decorator.lstrip("@ ").partition("(")[0].partition(".")[0]
    module = search.inspection.index.module(path)
    for source_import in module.imports if module else ():
        if first in import_bindings(source_import, "python"):
            return not search.around.is_foreign("python", source_import)
    return first in LANGUAGE_NAMES["python"] or bool(search.inspection.index.defined(first))


def _examine_own_member(use: NameUse, search: NameSearch) -> Suspect | None:
    """Examine a member of a value whose class is in the repository."""
    owner = _infer_class(use, search) if (use.receiver or "").isidentifier() else None
    path = use.path if use.receiver in ("self", "cls") else None
    words = class_words(owner, path, search, may_delegate=True) if owner else None
    if words is None or is_attempted(use.path, use.line, search):
        return None
    return Suspect(use=use, where=owner, near=find_nearest_name(use.text, words - {use.text}))


def _infer_class(use: NameUse, search: NameSearch) -> str | None:
    """Return the class around `self`, the class that the file assigns to the receiver, or the only
    class that has its other members."""
    module = search.read_module(use.path)
    if use.receiver in ("self", "cls"):
        around = [kind for kind in module.types if kind.first_line <= use.line <= kind.last_line]
        return around[-1].name if around else None
    receiver = re.escape(use.receiver or "").encode()
    content = search.inspection.sides.read("after", use.path) or b""
    values = set(re.findall(rb"\b" + receiver + rb"(?: *:[^=\n]+)? *=(?!=) *([\w.]*\(?)", content))
    if values:
        name = values.pop().rpartition(b".")[2].decode("utf-8", "replace")
        is_class = name.endswith("(") and not values and find_classes(name[:-1], search)
        return name[:-1] if is_class else None
    if made := _find_fixture_class(use.receiver or "", search):
        return made
    others = {name.text for name in module.names if name.receiver == use.receiver} - {use.text}
    owners = [_classes_with(member, search) for member in others]
    shared = set[str].intersection(*owners) if len(owners) >= MIN_OTHER_MEMBERS else set()
    return shared.pop() if len(shared) == 1 else None


def _find_fixture_class(name: str, search: NameSearch) -> str | None:
    """Return the class of what the one pytest fixture of that name returns."""
    index = search.inspection.index
    fixtures = [
        (path, function)
        for path in {path for path, _ in index.defined(name)[:MAX_DEFINITIONS]}
        for function in getattr(index.module(path), "functions", ())
        if function.name == name and any("fixture" in one for one in function.decorators)
    ]
    if len(fixtures) != 1:
        return None
    path, function = fixtures[0]
    lines = (search.inspection.sides.read("after", path) or b"").split(b"\n")
    body = b"\n".join(lines[function.first_line - 1 : function.last_line])
    made = {match.decode("utf-8", "replace") for match in _GIVEN_VALUE.findall(body)}
    given = made.pop() if len(made) == 1 else ""
    return given[:-1] if given.endswith("(") and find_classes(given[:-1], search) else None


def _classes_with(member: str, search: NameSearch) -> set[str]:
    """Return the classes of the repository that define a method."""
    index = search.inspection.index
    return {
        function.qualified.split(".")[-2]
        for path in {path for path, _ in index.defined(member)[:MAX_DEFINITIONS]}
        for function in getattr(index.module(path), "functions", ())
        if function.name == member and "." in function.qualified
    }


rules = (
    Rule(
        name="hallucinated-name",
        version=1,
        about="A name is used that exists neither in the repository nor in its libraries.",
        severity="error",
        mode="hallucinated API",
        gates=True,
    ),
)

MAX_PLACES = 10
MAX_UNDEFINED_NAMES = 4


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Return one finding per name that does not exist, with the places that use it."""
    search = NameSearch(inspection)
    nowhere = [
        suspect
        for suspect in search.find_suspects()
        if suspect.near
        or suspect.use.kind != "import"
        or not is_attempted(suspect.use.path, suspect.use.line, search, IMPORT_ERRORS)
    ]
    nowhere += find_undeclared_imports(search)
    nowhere += find_unfit_uses(search)
    unmeasured: list[Finding | Unmeasured] = []
    typed: list[Suspect] = []
    try:
        # One for each repository: leftovers of another would resolve as its own modules.
        root = content_digest(str(inspection.sides.root.resolve()))[:16]
        folder = Path(inspection.index.parse_cache.path).parent / "types" / root
        typed = list(filter_diagnostics(find_new_diagnostics(inspection, folder), search))
    except TypeCheckerUnusable as why:
        unmeasured.append(Unmeasured(rule=rules[0].name, reason=f"Python's types: {why}"))
    if search.searched > MAX_SEARCHES:
        reason = "too many unknown names: not all of them were searched for"
        unmeasured.append(Unmeasured(rule=rules[0].name, reason=reason))
    flags = [*find_unknown_flags(inspection), *find_unknown_settings(inspection)]
    return [*_build_findings(nowhere, typed, flags, inspection), *unmeasured]


def _broken_files(suspects: Iterable[Suspect]) -> set[str]:
    """Return files with too many undefined names: samples and fragments, which never run."""
    undefined: dict[str, set[str]] = defaultdict(set)
    for suspect in suspects:
        if suspect.near is None and _is_bare_name(suspect):
            undefined[suspect.use.path].add(suspect.use.text)
    return {path for path, texts in undefined.items() if len(texts) > MAX_UNDEFINED_NAMES}


def _is_bare_name(suspect: Suspect) -> bool:
    return (
        suspect.where is None
        and suspect.use.receiver is None
        and suspect.use.kind in ("call", "name")
    )


def _is_unparsed(use: NameUse, inspection: Inspection) -> bool:
    """Return whether a name is on a line that cannot be parsed: its words are no names."""
    module = inspection.modules.get(("after", use.path))
    return module is not None and use.line in module.broken_lines


def _build_findings(
    nowhere: Sequence[Suspect],
    typed: Sequence[Suspect],
    flags: Sequence[Suspect],
    inspection: Inspection,
) -> Iterator[Finding]:
    by_name: dict[tuple[str, str], list[Suspect]] = defaultdict(list)
    broken = _broken_files((*nowhere, *typed))
    entries = (
        entry for entry in (*nowhere, *typed, *flags) if not _is_unparsed(entry.use, inspection)
    )
    for entry in entries:
        if not (entry.use.path in broken and _is_bare_name(entry)):
            by_name[entry.use.path, entry.use.text].append(entry)
    agreed = {_use_key(suspect) for suspect in nowhere} & {_use_key(suspect) for suspect in typed}
    for suspects in by_name.values():
        certain = any(suspect.certain or _use_key(suspect) in agreed for suspect in suspects)
        yield _build_finding(suspects, certain)


def _use_key(suspect: Suspect) -> tuple[str, int, str]:
    return suspect.use.path, suspect.use.line, suspect.use.text


def _build_finding(suspects: Sequence[Suspect], certain: bool) -> Finding:
    rule = rules[0]
    best = max(
        suspects, key=lambda suspect: (bool(suspect.near), bool(suspect.where), suspect.certain)
    )
    places = dict.fromkeys(f"{suspect.use.path}:{suspect.use.line}" for suspect in suspects)
    return Finding(
        rule=rule.name,
        version=rule.version,
        severity="error" if certain else "warning",
        mode=rule.mode,
        message=_describe_suspect(best),
        places=tuple(places)[:MAX_PLACES],
        confidence=0.95 if certain else 0.7,
        source="check",
    )


def _describe_suspect(suspect: Suspect) -> str:
    use = suspect.use
    if suspect.reason:
        text = suspect.reason.rstrip(".")
    elif use.kind == "keyword" and suspect.where:
        text = f"`{suspect.where}` has no parameter `{use.text}`"
    elif use.kind == "import" and suspect.where == MANIFESTS:
        text = f"`{use.text}` is imported, but no manifest declares it"
    elif use.kind == "option" and suspect.where:
        text = f"`{suspect.where}` has no option `{use.text}`"
    elif suspect.where:
        text = f"`{use.text}` does not exist in `{suspect.where}`"
    elif use.receiver is None and use.kind in ("call", "name"):
        text = f"`{use.text}` is not defined"
    elif use.kind == "option":
        text = f"`{use.text}` occurs nowhere else in the repository's settings"
    else:
        text = f"`{use.text}` does not exist in the repository or its libraries"
    return f"{text}; did you mean `{suspect.near}`?" if suspect.near else f"{text}."
