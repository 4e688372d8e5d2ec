"""Classify files by their path and by the beginning of their content."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from closeloop.records.change import Language
from closeloop.records.settings import CheckSettings
from closeloop.text.wording import compile_lazily, matches_globs

FileKind = Literal[
    "source",
    "test",
    "docs",
    "config",
    "ci",
    "schema",
    "migration",
    "manifest",
    "lockfile",
    "generated",
    "vendored",
    "data",
    "other",
]

LFS_POINTER_HEAD = b"version https://git-lfs.github.com/spec/v1\n"

_LANGUAGES: dict[str, Language] = {
    **dict.fromkeys(("py", "pyi", "pyw"), "python"),
    **dict.fromkeys(("js", "mjs", "cjs", "jsx"), "javascript"),
    **dict.fromkeys(("ts", "mts", "cts"), "typescript"),
    "tsx": "tsx",
    "go": "go",
    "java": "java",
    "rs": "rust",
}


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OTHER_CODE = _split_words(
    "asm bash bat c cc clj cljs coffee cpp cs css cxx dart elm erl ex exs f90 fish fs fsx groovy h"
    " hh hpp hrl hs htm html hxx jl kt kts less lisp lua m ml mli mm nim pas php pl pm pony ps1 r"
    " rb rkt sass scala scss sh sol svelte swift tcl v vb vhd vue zig zsh ipynb jinja j2 erb ejs"
)
_DOCS = _split_words("md mdx rst adoc asciidoc markdown org tex textile pod rdoc")
_CONFIG = _split_words(
    "toml ini cfg conf yaml yml properties env editorconfig tf tfvars hcl mk cmake nix bzl bazel"
    " plist gradle service props targets config"
)
_SCHEMA = _split_words(
    "sql prisma proto graphql graphqls gql avsc avdl thrift fbs xsd capnp dbml smithy"
)
_DATA = _split_words(
    "csv tsv json jsonl ndjson xml txt parquet arrow npy npz pkl h5 db sqlite bin dat snap po pot"
    " mo png jpg jpeg gif svg ico webp bmp tiff pdf mp3 mp4 wav ogg webm woff woff2 ttf otf eot zip"
    " gz tar bz2 xz zst 7z jar whl log geojson ambr golden out har pem crt key"
)
_LOCKFILES = _split_words(
    "poetry.lock uv.lock pdm.lock pipfile.lock pixi.lock conda-lock.yml pylock.toml"
    " package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml bun.lock bun.lockb deno.lock"
    " go.sum go.work.sum cargo.lock gemfile.lock composer.lock mix.lock pubspec.lock podfile.lock"
    " package.resolved cartfile.resolved packages.lock.json gradle.lockfile flake.lock conan.lock"
    " paket.lock .terraform.lock.hcl stack.yaml.lock rebar.lock manifest.toml.lock"
)
_MANIFESTS = _split_words(
    "pyproject.toml setup.py setup.cfg pipfile environment.yml environment.yaml package.json"
    " pnpm-workspace.yaml deno.json deno.jsonc bower.json go.mod go.work cargo.toml pom.xml"
    " build.gradle build.gradle.kts settings.gradle settings.gradle.kts libs.versions.toml gemfile"
    " composer.json mix.exs package.swift pubspec.yaml podfile conanfile.txt conanfile.py"
    " vcpkg.json packages.config directory.packages.props build.sbt rebar.config project.clj"
)
_REQUIREMENTS = compile_lazily(
    r"(.*/)?([\w.-]*(requirements|constraints)[\w.-]*\.(txt|in)|requirements/[^/]+\.(txt|in))"
    r"|.*\.(gemspec|csproj|fsproj|vbproj|cabal)"
)
_CI_FOLDERS = compile_lazily(
    r"(.*/)?(\.github/(workflows|actions)|\.circleci|\.buildkite|\.gitlab|\.woodpecker|\.tekton"
    r"|\.azure-pipelines)/.*"
)
_CI_NAMES = compile_lazily(
    r"\.gitlab-ci\.ya?ml|\.travis\.yml|jenkinsfile(\..*)?|azure-pipelines.*\.ya?ml|\.drone\.yml"
    r"|bitbucket-pipelines\.yml|\.?appveyor\.ya?ml|cloudbuild\.ya?ml|\.cirrus\.ya?ml|buildspec\.yml"
    r"|\.woodpecker\.ya?ml|codefresh\.yml|\.semaphore\.yml|action\.ya?ml"
)
_VENDORED = compile_lazily(
    r"(^|/)(_?vendor|vendored|node_modules|bower_components|third[_-]?party|site-packages|dist"
    r"|Godeps|Pods|\.venv|venv|\.yarn/(releases|plugins|sdks)|gradle/wrapper|\.mvn/wrapper)/"
    r"|(^|/)(gradlew|mvnw)(\.bat|\.cmd)?$"
)
_GENERATED_NAMES = compile_lazily(
    r".*(\.min\.(m?js|cjs|css)|\.(js|css|mjs|cjs|ts)\.map|_pb2(_grpc)?\.pyi?|\.pb(\.gw|\.validate)?\.go"
    r"|_grpc\.pb\.go|\.pb\.(cc|h|swift)|_pb\.(js|ts|d\.ts|rb)|\.(generated|g|freezed|designer)\.\w+"
    r"|_generated\.\w+|-bundle\.js|\.bundle\.js)|zz_generated\..*|bindata\.go"
)
_MIGRATION_FOLDERS = compile_lazily(r"(^|/)(migrations?|migrate|alembic/versions)/(.*/)?[^/]+$")
_MIGRATION_NAMES = compile_lazily(r"([a-z]{0,2}\d+|[0-9a-f]{8,})[_.-].*|.*\.sql")
_FLYWAY = compile_lazily(r"(^|/)[VUR]\d[\d._]*__\w+\.(sql|java)$")
_API_SCHEMA = compile_lazily(r"(openapi|swagger)[\w.-]*\.(ya?ml|json)|.*\.schema\.json|schema\.rb")
_BUILD_NAMES = compile_lazily(
    r"(gnu)?makefile|dockerfile(\..*)?|.*\.dockerfile|containerfile|docker-compose.*|procfile"
    r"|vagrantfile|rakefile|justfile|cmakelists\.txt|build|workspace|codeowners|noxfile\.py"
    r"|(ts|js)config.*\.json|appsettings[\w.]*\.json|settings\.json|.*\.config\.\w+|.*rc\.(c?js|json)"
)
_DOC_NAMES = compile_lazily(
    r"(readme|changelog|changes|history|news|release-notes|(un)?licen[cs]e|copying|notice|authors"
    r"|contributors|maintainers|contributing|security|code_of_conduct|todo|install)([.-].*)?"
)
_HIDDEN_PATH = compile_lazily(r"(^|/)\.[^/]+(/[^/]+)?$")
_DOC_FOLDERS = compile_lazily(r"(^|/)(docs?|documentation|man|newsfragments|changelog\.d)/")
_TEST_FOLDERS = compile_lazily(
    r"(^|/)(tests|__tests__|__mocks__|__snapshots__|testdata|src/test)/|^(test|e2e|cypress|spec)/"
    r"|(^|/)conftest\.py$"
)
"""Folders and files that tests need.

A folder `test` further down may be a product: `django/test`.
"""
_TEST_FILE_PATTERNS: tuple[tuple[frozenset[str], re.Pattern[str]], ...] = (
    (_split_words("py"), compile_lazily(r"(.*/)?(test_[^/]*|[^/]*_test|tests)\.py")),
    (
        _split_words("js mjs cjs jsx ts mts cts tsx"),
        compile_lazily(
            r"(?!.*\.d\.[mc]?ts$)(.*/)?(([^/]*[._-])?(test|spec)\.\w+|[^/]*\.cy\.\w+|test-[^/]*"
            r"|(__tests__|test)/.*)"
        ),
    ),
    (_split_words("go"), compile_lazily(r"(.*/)?(?![_.])[^/]*_test\.go")),
    (
        _split_words("java kt groovy scala cs"),
        compile_lazily(
            r"(?!(.*/)?src/main/)(.*/)?(Test[A-Z0-9_][^/.]*|[^/.]*(Test|Tests|TestCase|Spec)"
            r"|[^/.]*[a-z0-9](IT|ITCase))\.\w+"
        ),
    ),
    (_split_words("rs"), compile_lazily(r"(.*/)?(tests/([^/]+|[^/]+/main)|src/(.*/)?tests?)\.rs")),
    (_split_words("rb"), compile_lazily(r"(.*/)?(test_[^/]*|[^/]*_(test|spec))\.rb")),
    (_split_words("php swift"), compile_lazily(r"(.*/)?[^/]*Tests?\.\w+")),
    (_split_words("exs dart"), compile_lazily(r"(.*/)?[^/]*_test\.\w+")),
    (_split_words("c cc cpp cxx"), compile_lazily(r"(.*/)?([^/]*_(unit)?tests?|test_[^/]*)\.\w+")),
)

_HEAD_BYTES = 8000
_MINIFIABLE_EXTENSIONS = _split_words("js mjs cjs css")
_COMMENT = compile_lazily(rb"\s*(?:#|//|/?\*|--|<!--|;|%|\"\"\"|'''|$)")
_GENERATED_MARK = compile_lazily(
    rb"@generated\b"
    rb"|\b(?:code|file) generated (?:by|from|automatically)\b"
    rb"|(?:^\W*|\bthis (?:file|code|module) (?:is|was|has been) |\bthis is an? )"
    rb"(?:auto|automatically|machine)[ -]?generated"
    rb"(?= (?:by|from|with|using|via|file|code)|\W*$|[.,;!])"
    rb"|(?:^\W*|\bthis (?:file|code|module) (?:is|was|has been) )generated (?:by|from|file|code)\b"
    rb"|\bdo not (?:edit|modify)(?=\W*$|[.!;]| this file| by hand| manually| directly| -| \*)",
    re.IGNORECASE,
)
_COMMENT_BLOCKS = {b"/*": b"*/", b"<!--": b"-->", b'"""': b'"""', b"'''": b"'''"}
_DEFAULT_SETTINGS = CheckSettings()


def language_of(path: str) -> Language | None:
    """Return the language of a source file; None if it is not supported."""
    return _LANGUAGES.get(_file_extension(path))


def is_lockfile(path: str) -> bool:
    name = _file_name(path)
    return name in _LOCKFILES or re.fullmatch(r"pylock\.[\w-]+\.toml", name) is not None


def is_vendored(path: str, globs: Iterable[str] = ()) -> bool:
    """Return whether the path holds third-party code or build output."""
    return _VENDORED.search(path) is not None or matches_globs(path, globs)


def is_generated(path: str, content: bytes = b"", globs: Iterable[str] = ()) -> bool:
    """Return whether a program wrote the file, by its name, its first lines or line length."""
    if (
        is_lockfile(path)
        or _GENERATED_NAMES.fullmatch(_file_name(path))
        or matches_globs(path, globs)
    ):
        return True
    if _is_migration(path):
        return False
    return _has_generated_mark(content) or (
        _file_extension(path) in _MINIFIABLE_EXTENSIONS and _is_minified(content)
    )


def is_test_file(path: str) -> bool:
    """Return whether a test runner would look for tests in the file."""
    extension = _file_extension(path)
    return any(
        extension in extensions and pattern.fullmatch(path)
        for extensions, pattern in _TEST_FILE_PATTERNS
    )


def is_lfs_pointer(content: bytes) -> bool:
    """Return whether the content is a Git LFS pointer."""
    return (
        len(content) < 1024 and content.startswith(LFS_POINTER_HEAD) and b"\noid sha256:" in content
    )


def classify_file(path: str, settings: CheckSettings | None = None) -> FileKind:
    """Return what a file is for, by its path alone; `is_generated` also uses the content."""
    settings = settings or _DEFAULT_SETTINGS
    tested = _TEST_FOLDERS.search(path) is not None
    if is_vendored(path, settings.vendored):
        return "vendored"
    if is_lockfile(path) and not tested:
        return "lockfile"
    if is_generated(path, globs=settings.generated):
        return "generated"
    if tested or is_test_file(path):
        return "test"
    return _kind_by_place(path) or _kind_by_extension(path)


def _kind_by_place(path: str) -> FileKind | None:
    name, lower = _file_name(path), path.lower()
    if _CI_FOLDERS.fullmatch(lower) or _CI_NAMES.fullmatch(name):
        return "ci"
    if _is_migration(path):
        return "migration"
    if name in _MANIFESTS or _REQUIREMENTS.fullmatch(lower):
        return "manifest"
    if _file_extension(path) in _SCHEMA or _API_SCHEMA.fullmatch(name):
        return "schema"
    if _BUILD_NAMES.fullmatch(name):
        return "config"
    if _DOC_NAMES.fullmatch(name) and language_of(path) is None:
        return "docs"
    return None


def _kind_by_extension(path: str) -> FileKind:
    extension = _file_extension(path)
    if extension in _LANGUAGES or extension in _OTHER_CODE:
        return "source"
    if extension in _DOCS or _DOC_FOLDERS.search(path.lower()):
        return "docs"
    if extension in _CONFIG or _HIDDEN_PATH.search(path):
        return "config"
    return "data" if extension in _DATA else "other"


def _is_migration(path: str) -> bool:
    if _FLYWAY.search(path):
        return True
    name = _file_name(path)
    return (
        _MIGRATION_FOLDERS.search(path.lower()) is not None
        and _MIGRATION_NAMES.fullmatch(name) is not None
    )


def _has_generated_mark(content: bytes) -> bool:
    """Return whether the comments before the first line of code say that it is generated."""
    closing = b""
    for line in content[:_HEAD_BYTES].split(b"\n"):
        if not closing and not _COMMENT.match(line):
            return False
        if _GENERATED_MARK.search(line[:300]):
            return True
        closing = _open_comment_end(line.strip(), closing)
    return False


def _open_comment_end(line: bytes, closing: bytes) -> bytes:
    """Return the delimiter that ends the comment the next line is in."""
    if closing:
        return b"" if closing in line else closing
    for opening, ending in _COMMENT_BLOCKS.items():
        if line.startswith(opening):
            return b"" if ending in line[len(opening) :] else ending
    return b""


def _is_minified(content: bytes) -> bool:
    """Return whether lines are very long, or the last line names a source map."""
    if content.rfind(b"# sourceMappingURL=", -4000) >= 0:
        return True
    return len(content) > 2000 and len(content) / (content.count(b"\n") + 1) > 200


def _file_name(path: str) -> str:
    return path.rpartition("/")[2].lower()


def _file_extension(path: str) -> str:
    stem, _, extension = _file_name(path).rpartition(".")
    return extension if stem else ""
