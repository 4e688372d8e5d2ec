"""New and bumped dependencies are found in every common manifest, with what speaks against them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some
from risk_repository import changed

from closeloop.changes.risk.dependencies import (
    DependencyChange,
    find_dependency_changes,
    read_manifest,
)
from closeloop.changes.risk.online_packages import (
    POPULAR,
    imitated_package,
    list_vulnerabilities,
    read_advisories,
    version_key,
)
from closeloop.records.errors import BadInput
from closeloop.records.settings import CheckSettings

MANIFESTS = {
    "pyproject.toml": """
        [project]
        dependencies = [
            "requests[socks]>=2 ; python_version > '3'", "Local_Name @ git+https://host/x.git"]
        [project.optional-dependencies]
        fast = ["orjson"]
        [dependency-groups]
        test = ["pytest==8.0", {include-group = "lint"}]
        [tool.poetry.dependencies]
        python = "^3.11"
        rich = {version = "^13", optional = true}
        """,
    "requirements-dev.txt": """
        # tools
        black==24.1  # pinned
        -r other.txt
        -e git+https://host/pkg.git#egg=pkg
        attrs \\
            --hash=sha256:0
        """,
    "setup.cfg": "[options]\ninstall_requires =\n    six>=1.0\n    attrs\n",
    "package.json": '{"dependencies": {"react": "^18", "far": "github:a/b"}}',
    "go.mod": """
        module example.org/me
        go 1.22
        require github.com/spf13/pflag v1.0.5
        require (
            gopkg.in/yaml.v3 v3.0.1 // indirect
        )
        replace github.com/a/b => ../b
        """,
    "Cargo.toml": """
        [dependencies]
        serde = { version = "1", features = ["derive"] }
        mine = { path = "../mine" }
        """,
    "pom.xml": "<project xmlns='x'><dependencies><dependency><groupId>g</groupId>"
    "<artifactId>a</artifactId><version>1</version></dependency></dependencies></project>",
    "build.gradle.kts": 'dependencies {\n    implementation("com.google.guava:guava:33.0")\n}\n',
    "Gemfile": "gem 'rails', '~> 7.0'\ngem \"mine\", git: 'https://host/mine'\n",
    "composer.json": '{"require": {"php": ">=8", "monolog/monolog": "^3"}}',
}
ASKED = {
    "pyproject.toml": {
        "requests": ">=2",
        "local-name": "git+https://host/x.git",
        "orjson": "",
        "pytest": "==8.0",
        "rich": "^13",
    },
    "requirements-dev.txt": {
        "black": "==24.1",
        "pkg": "git+https://host/pkg.git#egg=pkg",
        "attrs": "",
    },
    "setup.cfg": {"six": ">=1.0", "attrs": ""},
    "package.json": {"react": "^18", "far": "github:a/b"},
    "go.mod": {
        "github.com/spf13/pflag": "v1.0.5",
        "gopkg.in/yaml.v3": "v3.0.1",
        "github.com/a/b (replaced)": "../b",
    },
    "Cargo.toml": {"serde": "1", "mine": "./../mine"},
    "pom.xml": {"g:a": "1"},
    "build.gradle.kts": {"com.google.guava:guava": "33.0"},
    "Gemfile": {"rails": "~> 7.0", "mine": "https://host/mine"},
    "composer.json": {"monolog/monolog": "^3"},
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_manifest_says_what_it_asks_for(name: str) -> None:
    manifest = read_manifest(f"some/{name}", dedent(MANIFESTS[name]).encode())

    assert manifest is not None
    told = {one.name: one.origin or one.version for one in manifest.dependencies.values()}
    assert told == ASKED[name]


@given(name=some.sampled_from(sorted(MANIFESTS)), content=some.binary(max_size=300))
def test_nonsense_in_a_manifest_is_told_and_nothing_else(name: str, content: bytes) -> None:
    with suppress(ValueError):
        read_manifest(name, content)


@given(name=some.sampled_from(("package.json", "pyproject.toml")), data=some.data())
def test_odd_types_in_a_manifest_are_told_and_nothing_else(
    name: str, data: some.DataObject
) -> None:
    odd = data.draw(some.sampled_from(("3", "[1]", '"x"', "true")))
    text = (
        f'{{"dependencies": {odd}, "scripts": {odd}}}'
        if name.endswith("json")
        else f"project = {odd}\ntool = {odd}\ndependency-groups = {odd}\n"
    )
    with suppress(ValueError):
        read_manifest(name, text.encode())


def asked(folder: Path, name: str, before: str, after: str, **more: str) -> list[DependencyChange]:
    with changed(folder, {name: before, **more}, {name: after}) as inspection:
        found, unread = find_dependency_changes(inspection)
    assert not unread
    return found


def test_a_new_dependency_is_told_from_a_bumped_one(tmp_path: Path) -> None:
    old = '{"dependencies": {"react": "^17", "zod": "^3"}}'
    new = '{"dependencies": {"react": "^18", "vue": "^3", "zod": "^3"}}'

    found = asked(tmp_path / "r", "package.json", old, new)

    assert [(one.name, one.new, one.text, one.warnings) for one in found] == [
        ("react", False, "changes `react` to ^18, was ^17", ()),
        ("vue", True, "adds the dependency `vue` ^3", ()),
    ]


def test_a_name_one_slip_from_a_popular_one_is_suspicious(tmp_path: Path) -> None:
    found = asked(tmp_path / "r", "requirements.txt", "six==1\n", "six==1\nreqeusts==2.0\n")

    assert found[0].warnings == ("its name differs by one letter from `requests`",)


def test_no_version_and_no_lock_file_is_told(tmp_path: Path) -> None:
    new = '[project]\ndependencies = ["structlog"]\n'

    loose = asked(tmp_path / "loose", "pyproject.toml", "[project]\n", new)
    locked = asked(tmp_path / "locked", "pyproject.toml", "[project]\n", new, **{"uv.lock": "x"})

    assert loose[0].warnings == ("no version is given, and there is no lock file",)
    assert locked[0].warnings == ()


def test_code_from_elsewhere_and_hooks_are_told(tmp_path: Path) -> None:
    new = (
        '{"dependencies": {"x": "git+https://host/x"}, "scripts": {"postinstall": "node steal.js"}}'
    )

    found = asked(tmp_path / "r", "package.json", "{}", new)

    assert found[0].warnings == ("it comes from git+https://host/x, not from the registry",)
    assert found[1].text == "runs `node steal.js` on postinstall"


def test_a_licence_is_told_where_the_package_is_installed_beside(tmp_path: Path) -> None:
    installed = {
        "node_modules/copyleft/package.json": '{"license": "AGPL-3.0"}',
        ".venv/pyvenv.cfg": "",
        ".venv/lib/python3.11/site-packages/Strict_Pkg-1.0.dist-info/METADATA": "License: GPL v3\n",
    }
    new = '{"dependencies": {"copyleft": "1"}}'

    script = asked(tmp_path / "r", "package.json", "{}", new, **installed)
    python = asked(tmp_path / "p", "requirements.txt", "", "strict-pkg==1\n", **installed)

    assert script[0].warnings == ("its licence is AGPL-3.0",)
    assert python[0].warnings == ("its licence is GPL v3",)


def test_any_licence_is_told_by_the_installed_metadata_or_its_text(tmp_path: Path) -> None:
    packages = ".venv/lib/python3.11/site-packages"
    installed = {
        ".venv/pyvenv.cfg": "",
        f"{packages}/free-1.2.dist-info/METADATA": "Name: free\nLicense-Expression: MIT\n",
        f"{packages}/quiet-2.0.dist-info/METADATA": "Name: quiet\nLicense: UNKNOWN\n",
        f"{packages}/quiet-2.0.dist-info/licenses/LICENSE": "Apache License, Version 2.0\n",
    }

    found = asked(tmp_path / "p", "requirements.txt", "", "free==1.2\nquiet==2\n", **installed)

    assert [one.text for one in found] == [
        "adds the dependency `free` ==1.2 (MIT)",
        "adds the dependency `quiet` ==2 (Apache-2.0)",
    ]


ADVISORIES = """[
    {"id": "PYSEC-1", "affected": [{"package": {"ecosystem": "PyPI", "name": "Some_Pkg"},
     "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.10"}]}]}]},
    {"id": "PYSEC-2", "affected": [{"package": {"ecosystem": "PyPI", "name": "some-pkg"},
     "versions": ["2.11"], "ranges": [{"type": "SEMVER",
     "events": [{"introduced": "3.0"}, {"last_affected": "3.1"}, {"introduced": "4.0"}]}]}]},
    {"id": "OLD", "withdrawn": "2020-01-01T00:00:00Z",
     "affected": [{"package": {"ecosystem": "PyPI", "name": "some-pkg"}, "versions": ["2.12"]}]}
]"""


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2.9", ["PYSEC-1"]),
        ("2.10rc1", ["PYSEC-1"]),
        ("2.10", []),
        ("2.11", ["PYSEC-2"]),
        ("2.12", []),
        ("3.1.0", ["PYSEC-2"]),
        ("3.2", []),
        ("4.5", ["PYSEC-2"]),
        (None, ["PYSEC-2"]),
    ],
)
def test_known_vulnerabilities_of_a_version_are_found(
    tmp_path: Path, version: str | None, known: list[str]
) -> None:
    (tmp_path / "osv.json").write_text(ADVISORIES)
    advisories = read_advisories(tmp_path / "osv.json")

    assert list_vulnerabilities(advisories, "pypi", "some-pkg", version) == known
    assert list_vulnerabilities(advisories, "npm", "some-pkg", version) == []


def test_a_new_dependency_is_looked_up_in_the_advisories_that_the_user_names(
    tmp_path: Path,
) -> None:
    before = {"requirements.txt": "", "osv/all.json": ADVISORIES}
    with changed(tmp_path / "r", before, {"requirements.txt": "some-pkg>=2.5\n"}) as inspection:
        silent, _ = find_dependency_changes(inspection)
        named = msgspec.structs.replace(inspection, settings=CheckSettings(advisories="osv"))
        found, unread = find_dependency_changes(named)
        lost = msgspec.structs.replace(inspection, settings=CheckSettings(advisories="gone.json"))
        _, missing = find_dependency_changes(lost)

    assert silent[0].warnings == ()
    assert found[0].warnings == ("PYSEC-1 affects version 2.5",)
    assert not unread
    assert missing[0].rule == "advisories"


NAMELESS = '{"affected": [{"package": {"ecosystem": "PyPI", "name": "x"}}]}'


@pytest.mark.parametrize("content", ["", "{", "[]", "[1]", '{"id": 1, "affected": 3}', NAMELESS])
def test_advisories_that_cannot_be_read_are_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "osv.json").write_text(content)

    with pytest.raises(BadInput, match=r"osv\.json"):
        read_advisories(tmp_path / "osv.json")


def test_versions_are_ordered_by_their_numbers() -> None:
    ordered = ["0", "1.0a1", "1.0", "1.0.1", "1.2", "1.10", "2.0-rc.1", "v2.0.0"]

    assert sorted(ordered, key=version_key) == ordered
    assert version_key("9" * 5_000) > version_key("9" * 99)


def test_a_manifest_that_cannot_be_parsed_is_said(tmp_path: Path) -> None:
    with changed(
        tmp_path / "r", {"go.mod": "module x\n", "package.json": "{}"}, {"package.json": "{"}
    ) as i:
        found, unread = find_dependency_changes(i)

    assert not found
    assert unread[0].reason.startswith("package.json: it cannot be parsed")


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("reqeusts", "requests"),
        ("request", "requests"),
        ("numpyy", "numpy"),
        ("djago", "django"),
        ("requests", None),
        ("my-own-package", None),
        ("flask", None),
    ],
)
def test_imitations_are_one_slip_away(name: str, like: str | None) -> None:
    assert imitated_package("pypi", name) == like


def test_popular_names_do_not_accuse_each_other() -> None:
    for ecosystem, names in POPULAR.items():
        assert not [name for name in names if imitated_package(ecosystem, name)]
