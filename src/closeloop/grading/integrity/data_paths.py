"""Which files may be data for tests, by their path alone: neither code, documentation nor settings.

In doubt a file is none: data that other programs read without being told (settings, translations,
schemas, assets, manifests) is part of the product, whether its code names it or not.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CODE = _words(
    "py pyi pyw js mjs cjs jsx ts mts cts tsx go rs java kt kts groovy scala rb php swift c cc cpp"
    " cxx h hh hpp hxx m mm cs fs fsx vb dart lua pl pm r jl ex exs erl hrl hs ml mli clj cljs elm"
    " nim zig sol sh bash zsh fish ps1 bat asm s f90 v vhd tcl vue svelte astro ipynb coffee"
)
"""Endings of source code: it is read for names of data, and never data itself."""
PAGES = _words("html htm css scss sass less jinja j2 erb ejs hbs mustache tmpl")
"""Endings of what code shows: it may name data."""
_DATA = _words(
    "txt json jsonl ndjson json5 csv tsv xml out log dat bin golden gold snap ambr want expected"
    " approved baseline png jpg jpeg gif svg bmp tiff pdf gz zip npy npz pkl parquet arrow db"
    " sqlite geojson har"
)
_EXPECTATION_WORDS = _words(
    "golden goldens expected expectation expectations want wanted snapshot snapshots snap fixture"
    " fixtures testdata baseline baselines case cases approved"
)
"""In the name of a file or folder they say that it holds what tests compare with."""
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
_DOCUMENTATION = re.compile(
    r"(?:readme|changelog|changes|history|news|(?:un)?licen[cs]e|copying|notice|authors|contributors"
    r"|maintainers|contributing|security|code_of_conduct|todo|install)(?:[.-].*)?"
)
_SETTINGS = re.compile(
    r"(?:gnu)?makefile|dockerfile.*|.*compose\.ya?ml|cmakelists\.txt|.*(?:requirements|constraints)"
    r"[\w.-]*\.(?:txt|in)|.*[.-]lock(?:\.\w+)?|.*lock\.(?:json|yaml)|npm-shrinkwrap\.json|.*rc\.json"
    r"|(?:package|composer|manifest|plugin|extension|marketplace|action|app|server|block|theme|deno"
    r"|project|workspace|strings|translations|services|settings|config|openapi|swagger|robots)"
    r"(?:\.\w+)*\.(?:json5?|jsonc|ya?ml|xml|txt|toml)|(?:ts|js)config.*\.json|.*\.(?:config|schema)"
    r"\.\w+|pom\.xml|pyproject\.toml|cargo\.toml|setup\.cfg|manifest\.in|go\.(?:mod|sum|work)"
)
"""Manifests, lock files, and settings of well-known programs."""


def is_data_path(path: str) -> bool:
    """Whether a file may hold what tests compare with, or are fed with."""
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
    """Whether a path says in so many words that tests compare with what lies there."""
    words = re.split(r"[^a-z]+", re.sub(r"test[-_]data", "testdata", path.lower()))
    return not _EXPECTATION_WORDS.isdisjoint(words)


def ending_of(path: str) -> str:
    """The ending of a file's name without its dot, in lower case."""
    return PurePosixPath(path).suffix.lower().removeprefix(".")
