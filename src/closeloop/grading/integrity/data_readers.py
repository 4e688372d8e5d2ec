"""Find data that only tests read: golden files, expectations and cases outside test folders.

A file is such data if a test names it and the product does not. Both are read as text, by the
string literals of their code, in any language. In doubt a file belongs to the product.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import random
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path, PurePosixPath

from closeloop.grading.integrity.probe import change_text
from closeloop.records.change import Change
from closeloop.records.record import Record
from closeloop.text.patches import parse_hunk_lines, split_patch_by_file
from closeloop.text.wording import compile_lazily, matches_globs

# Which files may be test data, judging by their path alone: neither code, documentation nor
# settings.
#
# In doubt a file is not test data: what other programs read by default (settings,
# translations, schemas, assets, manifests) is part of the product, whether its code names it or
# not.


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CODE = _words(
    "py pyi pyw js mjs cjs jsx ts mts cts tsx go rs java kt kts groovy scala rb php swift c cc cpp"
    " cxx h hh hpp hxx m mm cs fs fsx vb dart lua pl pm r jl ex exs erl hrl hs ml mli clj cljs elm"
    " nim zig sol sh bash zsh fish ps1 bat asm s f90 v vhd tcl vue svelte astro ipynb coffee"
)
"""File extensions of source code, which is searched for names of data and is never data itself."""
PAGES = _words("html htm css scss sass less jinja j2 erb ejs hbs mustache tmpl")
"""File extensions of templates and pages, which may name data."""
_DATA = _words(
    "txt json jsonl ndjson json5 csv tsv xml out log dat bin golden gold snap ambr want expected"
    " approved baseline png jpg jpeg gif svg bmp tiff pdf gz zip npy npz pkl parquet arrow db"
    " sqlite geojson har"
)
_EXPECTATION_WORDS = _words(
    "golden goldens expected expectation expectations want wanted snapshot snapshots snap fixture"
    " fixtures testdata baseline baselines case cases approved"
)
"""Words in a file or folder name which say that tests compare with its content."""
_PRODUCT_FOLDERS = _words(
    "config configs conf settings locale locales translations i18n l10n lang langs messages assets"
    " static public resources res templates schema schemas migrations icons images img fonts"
    " styles themes charts helm deploy deployment k8s terraform infra policies prompts skills"
    " plugins presets manifests vendor third_party"
)
_DOCUMENTATION_FOLDERS = _words(
    "doc docs documentation man example examples sample samples demo demos tutorial tutorials"
    " newsfragments changelog changelog.d"
)
_DOCUMENTATION = compile_lazily(
    r"(?:readme|changelog|changes|history|news|(?:un)?licen[cs]e|copying|notice|authors|contributors"
    r"|maintainers|contributing|security|code_of_conduct|todo|install)(?:[.-].*)?"
)
_SETTINGS = compile_lazily(
    r"(?:gnu)?makefile|dockerfile.*|.*compose\.ya?ml|cmakelists\.txt|.*(?:requirements|constraints)"
    r"[\w.-]*\.(?:txt|in)|.*[.-]lock(?:\.\w+)?|.*lock\.(?:json|yaml)|npm-shrinkwrap\.json|.*rc\.json"
    r"|(?:package|composer|manifest|plugin|extension|marketplace|action|app|server|block|theme|deno"
    r"|project|workspace|strings|translations|services|settings|config|openapi|swagger|robots)"
    r"(?:\.\w+)*\.(?:json5?|jsonc|ya?ml|xml|txt|toml)|(?:ts|js)config.*\.json|.*\.(?:config|schema)"
    r"\.\w+|pom\.xml|pyproject\.toml|cargo\.toml|setup\.cfg|manifest\.in|go\.(?:mod|sum|work)"
)
"""Manifests, lock files and settings of well-known programs."""


def is_data_path(path: str) -> bool:
    """Return whether a file may hold the input or the expected output of tests."""
    *folders, name = path.lower().split("/")
    ending = ending_of(path)
    if ending in CODE or _SETTINGS.fullmatch(name) or _DOCUMENTATION.fullmatch(name):
        return False
    if any(part.startswith(".") for part in (*folders, name)):
        return False
    if _DOCUMENTATION_FOLDERS.intersection(folders):
        return False
    if holds_expectations(path):
        return True
    return ending in _DATA and bool(folders) and not _PRODUCT_FOLDERS.intersection(folders)


def holds_expectations(path: str) -> bool:
    """Return whether a path contains a word which says that tests compare with it."""
    words = re.split(r"[^a-z]+", re.sub(r"test[-_]data", "testdata", path.lower()))
    return not _EXPECTATION_WORDS.isdisjoint(words)


def ending_of(path: str) -> str:
    """Return a file's extension in lower case, without the dot."""
    return PurePosixPath(path).suffix.lower().removeprefix(".")


# Find paths in string literals by text search, in Python, JavaScript, Go, Rust and others.


_LISTING = compile_lazily(
    r"\b(?:iterdir|listdir|scandir|os\.walk|readdir(?:Sync)?|ReadDir|WalkDir|read_dir|Walk)\b"
)
"""Calls that list a folder, whatever its files are called."""
_RECURSIVE = compile_lazily(r"\brglob\b|\*\*|\b(?:os\.walk|WalkDir|Walk)\b|recursive")
OWN_FOLDER = compile_lazily(
    r"\b(?:__file__|__path__|__dirname|import\.meta|CARGO_MANIFEST_DIR|resources|pkgutil"
    r"|pkg_resources|embed|__package__|runtime\.Caller)\b"
)
"""Ways in which code finds its own folder."""
_PATTERN = compile_lazily(r"""["'`/]([^"'`/\s]*(?:[*}]|%[sdv])[^"'`/\s]*|\.\w[\w.]*)(?=["'`])""")
_PLACEHOLDER = compile_lazily(r".*\}|%[sdv]")
_VARIABLE = compile_lazily(r"[*{}%$]")


def find_literals(text: str, segment: str) -> Iterator[re.Match[str]]:
    """Find literals with a path segment: group 1 is the path before it, group 2 the path after
    it."""
    if segment and segment in text:
        expression = r"""(?<=["'`])((?:[^"'`\s]*[/}])?)%s((?:/[^"'`\s]*)?)(?=["'`])"""
        yield from re.finditer(expression % re.escape(segment), text)


def fixed_part(literal: str) -> str:
    """Return the part of a literal path after its last placeholder."""
    return re.split(r"[}*]|%[sdv]", literal)[-1]


def find_folder_literals(text: str, name: str) -> Iterator[re.Match[str]]:
    """Find literals that may mean a folder of this name, or all files in it; mapping keys
    excluded."""
    for literal in find_literals(text, name):
        remainder = literal[2].strip("/")
        named_file = remainder and not _VARIABLE.search(remainder)
        is_key = text[literal.end() + 1 : literal.end() + 2] == ":"
        is_index = re.search(r"[\w)\]]\[$", text[max(0, literal.start() - 3) : literal.start() - 1])
        if not named_file and not is_key and not is_index:
            yield literal


@lru_cache(maxsize=128)
def list_name_patterns(text: str) -> tuple[str, ...]:
    """Return globs of file names that code reads: `*.json`, `f"{name}.txt"`, `name + ".golden"`."""
    globs: dict[str, None] = {}
    for pattern in _PATTERN.findall(text):
        glob = _PLACEHOLDER.sub("*", pattern)
        if "." in glob or "*" in pattern:
            globs[f"*{glob}" if glob.startswith(".") else glob] = None
    return (*globs, *(("*",) if _LISTING.search(text) else ()))


@lru_cache(maxsize=128)
def reads_subfolders(text: str) -> bool:
    """Return whether code reads folders recursively."""
    return _RECURSIVE.search(text) is not None


# The source code of a base: its tests and the product, each file with its text.


MAX_FILES = 50_000
"""Maximum number of files of a base; a larger one is not searched."""
MAX_SOURCE_BYTES = 512 << 10
"""Maximum size of a source file; a larger one was not written by hand."""
MAX_TOTAL_BYTES = 64 << 20
_SKIPPED_FOLDERS = frozenset({"node_modules", "site-packages", "__pycache__", "venv"})
_BUILT_FOLDER_MARKS = frozenset({"CACHEDIR.TAG", "pyvenv.cfg"})
_METADATA = frozenset(
    {"pyproject.toml", "setup.cfg", "MANIFEST.in", "package.json", "Cargo.toml", "composer.json"}
)
_DEPLOYMENT = compile_lazily(
    r"(?:Dockerfile|Containerfile)(?:\..*)?|.*\.dockerfile|.*compose\.ya?ml"
)
_GO_EMBED = compile_lazily(r"^//go:embed[ \t]+(.+)$", re.MULTILINE)
_SHELL_WORD = compile_lazily(r"[\w./*-]+")
_RUST_TESTS = "#[cfg(test)]"


class SourceText(Record):
    """A file and its text, or the lines that a patch adds to it."""

    path: str
    text: str

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


class BaseSources(Record):
    """The files and code of a base, used to find out who reads its data."""

    files: frozenset[str]
    tests: Sequence[SourceText]
    product: Sequence[SourceText]
    metadata: Sequence[SourceText]
    names: Counter[str]
    """Number of files and folders of the base by name."""
    product_folders: frozenset[str]
    """Folders that hold source code of the product, directly or in subfolders."""
    modules: frozenset[str]
    """Names of the product's code files, without extension, and of their folders."""


def read_base_sources(
    root: str, patches: Iterable[Change], is_test: Callable[[str, str], bool]
) -> BaseSources | None:
    """Read the code of a base and the lines that patches add; None if the base is too large.

    `is_test` decides by a file's path and text. Code named like golden files counts as test code
    too: it writes them.
    """
    files = _list_files(root)
    sources = _read_sources(root, files) if files is not None else None
    if files is None or sources is None:
        return None
    tests: list[SourceText] = []
    product: list[SourceText] = []
    added = [source for patch in patches for source in list_added_sources(patch)]
    for source in (*sources, *added):
        if is_test(source.path, source.text) or holds_expectations(source.path):
            tests.append(source)
        elif source.path.endswith(".rs") and _RUST_TESTS in source.text:
            code, _, inline = source.text.partition(_RUST_TESTS)
            product.append(SourceText(path=source.path, text=code))
            tests.append(SourceText(path=source.path, text=inline))
        else:
            product.append(source)
    folders = {folder for path in files for folder in folders_above(path)}
    paths = {source.path for source in product if ending_of(source.path) in CODE}
    product_folders = frozenset(folder for path in paths for folder in folders_above(path))
    modules = (path.rpartition("/")[2].partition(".")[0] for path in (*paths, *product_folders))
    return BaseSources(
        files=frozenset(files),
        tests=tests,
        product=[source for source in product if not _is_metadata(source.path)],
        metadata=[source for source in product if _is_metadata(source.path)],
        names=Counter(path.rpartition("/")[2] for path in (*files, *folders)),
        product_folders=product_folders,
        modules=frozenset(modules),
    )


def folders_above(path: str) -> list[str]:
    """Return the folders above a path, innermost first, without the root."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _list_files(root: str) -> list[str] | None:
    """List files below a folder without hidden, installed and built ones; None if too many."""
    paths: list[str] = []
    for folder, folders, names in os.walk(root):
        relative_folder = os.path.relpath(folder, root).replace(os.sep, "/")
        if relative_folder != "." and not _BUILT_FOLDER_MARKS.isdisjoint(names):
            folders.clear()
            continue
        folders[:] = [name for name in folders if name[0] != "." and name not in _SKIPPED_FOLDERS]
        paths += (
            names if relative_folder == "." else [f"{relative_folder}/{name}" for name in names]
        )
        if len(paths) > MAX_FILES:
            return None
    return paths


def _read_sources(root: str, files: Iterable[str]) -> list[SourceText] | None:
    sources: list[SourceText] = []
    total = 0
    for path in files:
        if not _may_name_data(path):
            continue
        text = _read_text(Path(root, path))
        if text is None:
            continue
        total += len(text)
        if total > MAX_TOTAL_BYTES:
            return None
        sources.append(SourceText(path=path, text=_with_quoted_names(path, text)))
    return sources


def _may_name_data(path: str) -> bool:
    ending, name = ending_of(path), path.rpartition("/")[2]
    return ending in CODE or ending in PAGES or _is_metadata(path) or _is_deployment(name)


def _is_metadata(path: str) -> bool:
    return path.rpartition("/")[2] in _METADATA or path.endswith(".gemspec")


def _is_deployment(name: str) -> bool:
    return _DEPLOYMENT.fullmatch(name) is not None


def _read_text(path: Path) -> str | None:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SOURCE_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _with_quoted_names(path: str, text: str) -> str:
    """Quote file names in languages that do not: Go embeds, shell scripts and Dockerfiles."""
    if path.endswith(".go"):
        return _GO_EMBED.sub(lambda line: " ".join(f'"{word}"' for word in line[1].split()), text)
    if path.endswith((".sh", ".bash")) or _is_deployment(path.rpartition("/")[2]):
        return text + " ".join(f'"{word}"' for word in _SHELL_WORD.findall(text))
    return text


def list_added_sources(change: Change) -> Iterator[SourceText]:
    """Yield the lines that a patch adds to each file of code."""
    for path, section in split_patch_by_file(change.patch):
        added = [line[1:] for sign, _, line in parse_hunk_lines(section) if sign == "+"]
        if added and _may_name_data(path):
            yield SourceText(path=path, text=_with_quoted_names(path, "\n".join(added)))


# Whether a data file is part of the product: its code, its package or the request names it.


_UPDATE_REQUEST = compile_lazily(
    r"\b(?:updat|regenerat|refresh|rewrit|re-?record|bless|adjust|replac)\w*\b[^.\n]{0,60}"
    r"\b(?:goldens?|snapshots?|fixtures?|expectations|expected (?:outputs?|results?|files?)"
    r"|baselines?|test data)\b",
    re.IGNORECASE,
)
_NAME = compile_lazily(r"""["'`]([\w.-]+)(?=["'`])""")
_READING_CALL = compile_lazily(
    r"(?:files|contents|open\w*|read\w*|get_data|resource_\w+|listdir|scandir|walk|glob|Path)"
    r"\(\s*[\"'`]$"
)
_EXCLUDING_LINE = compile_lazily(r"^\s*(?:global-|recursive-)?(?:exclude|prune)\b.*$", re.MULTILINE)
_TOOL_TABLE = compile_lazily(
    r"^\[+tool\.(?!setuptools|poetry|flit|hatch|pdm|uv|scikit-build|maturin|meson-python)"
    r"[^\n]*\n(?:(?!\[)[^\n]*\n?)*",
    re.MULTILINE,
)
"""Tables of pyproject.toml that do not affect packaging."""


def is_requested(prompt: str, path: str) -> bool:
    """Return whether a request names a file or its folder, or asks to update expectations."""
    request = prompt.lower()
    folder, _, name = path.lower().rpartition("/")
    if name in request or (folder and f"{folder}/" in request) or _UPDATE_REQUEST.search(prompt):
        return True
    last = re.escape(folder.rpartition("/")[2])
    folder_mention = rf"(?:`|\b){last}`?/|`{last}`|\b{last}\b`? (?:folder|directory)"
    return bool(folder) and re.search(folder_mention, request) is not None


def make_product_test(sources: BaseSources) -> Callable[[str], bool]:
    """Return a function that tells whether the product's code or package metadata names a file."""
    patterns = cache(lambda folder: set(_patterns_in_folder(sources, folder)))
    names = cache(lambda ending: _list_names(sources, ending))
    literals = cache(lambda: _list_literals(sources))
    adds_ending = cache(lambda ending: _adds_ending(sources, ending))

    def is_product_data(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        stem, dot, ending = name.rpartition(".")
        return (
            any(fnmatch.fnmatch(name, glob) for glob in patterns(folder))
            or re.split(r"[^\w.-]", name)[-1] in names(dot + ending)
            or (stem in literals() and adds_ending(dot + ending))
            or _is_packaged(sources, path)
        )

    return is_product_data


def _list_names(sources: BaseSources, ending: str) -> set[str]:
    """Return all names with this extension in the product's code, comments included."""
    pattern = re.compile(rf"[\w.-]*{re.escape(ending)}(?![\w-])")
    names_by_source = (
        pattern.findall(source.text) for source in sources.product if ending in source.text
    )
    return {name for names in names_by_source for name in names}


def _list_literals(sources: BaseSources) -> set[str]:
    """Return the product's literals that may be a file name without its extension."""
    return {literal for source in sources.product for literal in _NAME.findall(source.text)}


def _adds_ending(sources: BaseSources, ending: str) -> bool:
    """Return whether the product's code appends an extension to names, or searches for it."""
    return any(
        glob.endswith(ending) and glob != ending
        for source in sources.product
        if ending in source.text
        for glob in list_name_patterns(source.text)
    )


def _patterns_in_folder(sources: BaseSources, folder: str) -> Iterator[str]:
    """Yield globs of the names in a folder that the product reads without naming each file."""
    if any(_product_names_folder(sources, source, folder) for source in sources.product):
        yield "*"
        return
    parents = {"", *folders_above(f"{folder}/x")}
    for source in sources.product:
        is_below = source.folder in parents
        is_above = f"{source.folder}/".startswith(f"{folder}/" if folder else "")
        if not is_below and not is_above:
            continue
        is_anchored = OWN_FOLDER.search(source.text) is not None
        reaches = is_above or reads_subfolders(source.text)
        if source.folder == folder or (is_anchored and reaches):
            patterns = list_name_patterns(source.text)
            yield from (glob for glob in patterns if glob != "*" or is_anchored)


def _product_names_folder(sources: BaseSources, source: SourceText, folder: str) -> bool:
    """Return whether a source names a folder or one above it, as a path and not as a package."""
    for named_folder in folders_above(f"{folder}/x") if folder else ():
        parent, _, name = named_folder.rpartition("/")
        alone_is_vague = holds_expectations(parent) and not holds_expectations(name)
        for literal in find_folder_literals(source.text, name):
            before, after = literal.groups()
            parts = [part for part in before.split("/") if part not in ("", ".", "..")]
            shared = min(len(parts), len(parent.split("/"))) if parent else 0
            if shared and parts[-shared:] != parent.split("/")[-shared:] and "}" not in before:
                continue
            if alone_is_vague and not shared:
                continue
            opening = source.text[max(0, literal.start() - 40) : literal.start()]
            if (
                named_folder not in sources.product_folders
                or after
                or _READING_CALL.search(opening)
            ):
                return True
    return False


def _is_packaged(sources: BaseSources, path: str) -> bool:
    """Return whether package metadata lists a file, its folder, or a glob that matches it."""
    packages = sources.product_folders
    folders = folders_above(path)
    in_package = any(folder in packages for folder in folders)
    for metadata in sources.metadata:
        for word in _metadata_words(metadata):
            if "*" in word and ("/" in word or in_package) and matches_globs(path, (f"**/{word}",)):
                return True
            listed_paths = [path, *(folder for folder in folders if folder not in packages)]
            if any(
                listed_path == word or listed_path.endswith(f"/{word}")
                for listed_path in listed_paths
            ):
                return True
    return False


def _metadata_words(metadata: SourceText) -> Iterator[str]:
    text = metadata.text
    if metadata.path.endswith("pyproject.toml"):
        text = _TOOL_TABLE.sub("", text)
    if metadata.path.endswith(("MANIFEST.in", "setup.cfg")):
        words = re.split(r"[\s=,]+", _EXCLUDING_LINE.sub("", text))
    else:
        words = re.findall(r"""["']([^"'\s]+)["']""", text)
    for word in words:
        plain = re.sub(r"(?:/\*+)+$", "", word.removeprefix("./").rstrip("/"))
        if re.search(r"\w", plain):
            yield plain


_TEMPORARY = compile_lazily(r"(?:tmp|temp)[\w.()]*\s*[/,]\s*[rbf]?[\"'`]$", re.IGNORECASE)
_SUBPROCESS = compile_lazily(r"\b(?:subprocess|child_process|execa|CliRunner|runpy|spawn)\b")
_PYTHON_IMPORT = compile_lazily(
    r"^\s*(?:from|import)\s+([\w.]+(?:\s+import\s+\(?[\w, ]+)?)", re.MULTILINE
)
_SCRIPT_IMPORT = compile_lazily(r"""(?:\bfrom|\bimport|\b(?:require|import)\()\s*["'`]([^"'`]+)""")
_SCRIPTS = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")

FolderReader = tuple[str, str]
"""A glob of file names, and the test that reads them."""


def make_data_finder(
    read_sources: Callable[[], BaseSources | None], expected: Collection[str], prompt: str
) -> Callable[[str], str | None]:
    """Return a function from a path to the test that reads it as data; None if the product does.

    The base is read once, when the first path that may be data is looked up. `expected` are paths
    that count as if the base had them.
    """

    @cache
    def finder_in_base() -> Callable[[str], str | None]:
        sources = read_sources()
        return _make_finder(sources, expected) if sources else lambda _: None

    def find_reader(path: str) -> str | None:
        if not is_data_path(path) or is_requested(prompt, path):
            return None
        return finder_in_base()(path)

    return find_reader


def _make_finder(sources: BaseSources, expected: Collection[str]) -> Callable[[str], str | None]:
    folder_readers = cache(lambda folder: list(_readers_of_folder(sources, folder)))
    is_product_data = make_product_test(sources)

    @cache
    def find_reader(path: str) -> str | None:
        folder, _, name = path.rpartition("/")
        readers = folder_readers(folder)
        reader = next((test for glob, test in readers if fnmatch.fnmatch(name, glob)), None)
        # If tests compute the folder, a file that shares its name with others may be one more case.
        if reader is None and (path in expected or sources.names[name]):
            reader = _reader_of_file(sources, path)
        return reader if reader is not None and not is_product_data(path) else None

    return find_reader


def _reader_of_file(sources: BaseSources, path: str) -> str | None:
    """Return a test that names a file and checks the product with it."""
    for test in sources.tests:
        if _names_file(sources, test, path) and _checks_product(sources, test):
            return test.path
    return None


def _names_file(sources: BaseSources, test: SourceText, path: str) -> bool:
    """Return whether a test names a file; if it computes the folder, other clues decide."""
    folder, _, name = path.rpartition("/")
    for literal in find_literals(test.text, name):
        before, after = literal.groups()
        if after or _TEMPORARY.search(test.text[: literal.start()][-80:]):
            continue
        if before and _leads_to(sources, test, before + name, path):
            return True
        if "." not in name or fixed_part(before) not in ("", "/"):
            continue
        only = sources.names[name] <= 1 or folder in (test.folder, "")
        if only or holds_expectations(path) or _shows_folder(test, path):
            return True
    return False


def _shows_folder(test: SourceText, path: str) -> bool:
    """Return whether a test names one of the folders above a path."""
    names = (folder.rpartition("/")[2] for folder in folders_above(path))
    return any(literal for name in names for literal in find_literals(test.text, name))


def _readers_of_folder(sources: BaseSources, folder: str) -> Iterator[FolderReader]:
    """Yield the tests that read files of a folder without naming each, with the globs they read."""
    for named_folder in folders_above(f"{folder}/x") if folder else ():
        for test in sources.tests:
            if not _names_folder(sources, test, named_folder) or not _checks_product(sources, test):
                continue
            for reader in [test] if list_name_patterns(test.text) else _importers(sources, test):
                is_deeper = reads_subfolders(reader.text) or holds_expectations(folder)
                if named_folder == folder or is_deeper:
                    yield from ((glob, test.path) for glob in list_name_patterns(reader.text))


def _names_folder(sources: BaseSources, test: SourceText, folder: str) -> bool:
    if folder == test.folder:
        return OWN_FOLDER.search(test.text) is not None
    parent, _, name = folder.rpartition("/")
    for literal in find_folder_literals(test.text, name):
        before = literal[1]
        if _leads_to(sources, test, before + name, folder):
            return True
        only = sources.names[name] <= 1
        if not before and (only or any(find_literals(test.text, parent.rpartition("/")[2]))):
            return True
    return False


def _leads_to(sources: BaseSources, test: SourceText, literal: str, path: str) -> bool:
    """Return whether a literal path means this path, relative to the test or a folder above it."""
    anchors = (*folders_above(test.path), "")
    targets = {posixpath.normpath(posixpath.join(anchor, literal)) for anchor in anchors}
    if path in targets:
        return True
    if not targets.isdisjoint(sources.files):
        return False
    parts = [part for part in fixed_part(literal).split("/") if part not in ("", ".", "..")]
    tail = "/".join(parts)
    return path == tail or (len(parts) > 1 and path.endswith(f"/{tail}"))


def _importers(sources: BaseSources, helper: SourceText) -> list[SourceText]:
    """Return the tests that may use what a helper module defines."""
    stem = helper.path.rpartition("/")[2].partition(".")[0]
    if stem == "conftest":
        return [test for test in sources.tests if test.path.startswith(helper.folder)]
    pattern = re.compile(rf"\b{re.escape(stem)}\b")
    return [test for test in sources.tests if stem in test.text and pattern.search(test.text)]


def _checks_product(sources: BaseSources, test: SourceText) -> bool:
    """Return whether a test, or one that it helps, runs code of the product.

    A test that looks only at data checks the data itself, which is then the agent's to write.
    """
    return _runs_product(sources, test) or any(
        _runs_product(sources, importer) for importer in _importers(sources, test)
    )


def _runs_product(sources: BaseSources, test: SourceText) -> bool:
    if test.path.endswith(".py"):
        names = _PYTHON_IMPORT.findall(test.text)
    elif test.path.endswith(_SCRIPTS):
        names = _SCRIPT_IMPORT.findall(test.text)
        if any(name.startswith(".") and not is_data_path(name.lstrip("./")) for name in names):
            return True
    else:
        return True
    words = {word for name in names for word in re.findall(r"\w+", name)}
    return not words.isdisjoint(sources.modules) or _SUBPROCESS.search(test.text) is not None


# Data of hidden tests made wrong: code that answers by it, and not by what it computes, still
# passes.


_EXPECTED = compile_lazily(
    r"(?<![a-z])(?:want|wanted|expect|expected|expectation|golden|gold|snap|snapshot|baseline"
    r"|approved)s?(?![a-z])",
    re.IGNORECASE,
)
"""Names of what tests can only compare with; a `result` may be input."""
_KEY_OR_VALUE = compile_lazily(
    r"(?P<text>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')(?P<colon>[ \t]*:)?"
    r"|(?P<key>[A-Za-z_][\w-]*)[ \t]*[:=]"
    r"|(?P<number>(?<![\w.])\d+(?:\.\d+)?(?![\w.]))"
)
_PLAIN_TEXT = _words("txt out log golden gold want expected approved baseline csv tsv xml")
_TABLES = ("csv", "tsv")
_MODULES = _words("py js mjs cjs ts mts cts")


class AlteredData(Record):
    """Hidden tests with other values in their data."""

    patch: str
    paths: tuple[str, ...]
    is_expectation: bool
    """Whether only what the tests compare with is another, so that no right change passes."""
    is_named: bool
    """Whether other files of the hidden tests name one of these."""


def alter_test_data(
    patch: str, is_test: Callable[[str], bool], rng: random.Random
) -> AlteredData | None:
    """Change values in what hidden tests read: data files, and modules without tests.

    Only what is named as an expectation, if anything is. None if there is nothing to change.
    """
    sections = [*split_patch_by_file(patch)]
    for is_expectation in (True, False):
        altered = [
            section
            if not path or is_test(path)
            else _alter_section(path, section, is_expectation, rng)
            for path, section in sections
        ]
        paths = [
            path for (path, section), new in zip(sections, altered, strict=True) if new != section
        ]
        if paths:
            other_text = "".join(section for path, section in sections if path not in paths)
            return AlteredData(
                patch="".join(altered),
                paths=tuple(paths),
                is_expectation=is_expectation,
                is_named=any(PurePosixPath(path).stem in other_text for path in paths),
            )
    return None


def _alter_section(path: str, section: str, is_expectation: bool, rng: random.Random) -> str:
    ending = ending_of(path)
    if not (is_data_path(path) or ending in _MODULES or ending in ("yaml", "yml", "toml")):
        return section
    alter = partial(
        _alter_text if ending in _PLAIN_TEXT else _alter_values,
        by_key=is_expectation and not _EXPECTED.search(path),
        rng=rng,
    )
    head, separator, hunks = section.partition("\n@@ -")
    lines = hunks.split("\n")
    first = 1 + (ending in _TABLES and "--- /dev/null" in head)
    added = [number for number in range(first, len(lines)) if lines[number].startswith("+")]
    altered = alter("\n".join(lines[number][1:] for number in added)).split("\n")
    for number, line in zip(added, altered, strict=True):
        lines[number] = f"+{line}"
    return head + separator + "\n".join(lines)


def _alter_text(text: str, *, by_key: bool, rng: random.Random) -> str:
    lines = text.split("\n")
    if by_key:
        return text
    return "\n".join(
        change_text(line, rng) if re.search(r"[^\W_]", line) else line for line in lines
    )


def _alter_values(text: str, *, by_key: bool, rng: random.Random) -> str:
    """Change texts and numbers, so that the file can still be read; maybe only expected ones."""
    key = ""

    def alter(match: re.Match[str]) -> str:
        nonlocal key
        if match["key"] or match["colon"]:
            key = match["key"] or match["text"]
            return match[0]
        if by_key and not _EXPECTED.search(key):
            return match[0]
        if match["number"]:
            return change_text(match[0], rng)
        return f"{match[0][0]}{change_text(match[0][1:-1], rng)}{match[0][0]}"

    return _KEY_OR_VALUE.sub(alter, text)
