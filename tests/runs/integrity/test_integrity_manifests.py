"""An agent's manifest keeps what it changed, but for what steers the tests."""

from __future__ import annotations

import configparser
import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.grading.integrity.restore import restore_manifest

BASE_PACKAGE = '{\n  "name": "shop",\n  "scripts": {"test": "jest"},\n  "jest": {"bail": 1}\n}\n'


def test_scripts_and_runners_of_a_package_come_from_the_base_in_the_agents_layout() -> None:
    agent = (
        '{\n    "name": "shop",\n    "scripts": {"test": "true"},\n    "mocha": {"spec": "x"},\n'
        '    "dependencies": {"left-pad": "1"}\n}\n'
    )
    text = restore_manifest("web/package.json", agent, BASE_PACKAGE)
    assert json.loads(text) == {
        "name": "shop",
        "scripts": {"test": "jest"},
        "dependencies": {"left-pad": "1"},
        "jest": {"bail": 1},
    }
    assert text.startswith('{\n    "name"')
    assert text.endswith("}\n")


@pytest.mark.parametrize("agent", ["", "{", "[]", "null", '{"scripts": ', "\ufeff{}"])
def test_a_package_that_cannot_be_read_is_the_bases(agent: str) -> None:
    assert restore_manifest("package.json", agent, BASE_PACKAGE) == BASE_PACKAGE


BASE_PYPROJECT = """\
[project]
name = "shop"
dependencies = []

# How tests run.
[tool.pytest.ini_options]
addopts = "-q"
testpaths = [
    "tests",
]

[tool.ruff]
line-length = 100
"""


def test_pytest_and_coverage_of_a_project_come_from_the_base() -> None:
    agent = '''\
[project]
name = "shop"  # as ever
dependencies = [
    "httpx",
]
description = """
[tool.pytest.ini_options]
is only a text here
"""

[tool.pytest.ini_options]
addopts = "-p evil"
[tool.pytest.ini_options.more]
deep = 1

[tool.coverage.run]
plugins = ["evil"]

[tool.ruff]
line-length = 80
'''
    text = restore_manifest("pyproject.toml", agent, BASE_PYPROJECT)
    read = tomllib.loads(text)
    assert read["tool"] == {
        "pytest": {"ini_options": {"addopts": "-q", "testpaths": ["tests"]}},
        "ruff": {"line-length": 80},
    }
    assert read["project"] == tomllib.loads(agent)["project"]
    assert "# as ever" in text
    assert "# How tests run." in text


@pytest.mark.parametrize(
    "agent",
    [
        "[tool]\npytest = { ini_options = { addopts = '-p evil' } }\n",
        "tool.pytest.ini_options.addopts = '-p evil'\n",
        "[tool.'pytest'.ini_options]\naddopts = '-p evil'\n",
        "[[tool.pytest]]\naddopts = '-p evil'\n",
        "[project\n",
        "[project]\nname = 1\nname = 2\n",
    ],
)
def test_no_spelling_brings_other_settings_of_pytest_in(agent: str) -> None:
    text = restore_manifest("pyproject.toml", agent, BASE_PYPROJECT)
    assert tomllib.loads(text)["tool"]["pytest"] == {
        "ini_options": {"addopts": "-q", "testpaths": ["tests"]}
    }
    assert "evil" not in text


def test_what_steers_nothing_is_left_as_it_was_written() -> None:
    agent = BASE_PYPROJECT.replace("100", "80").replace("dependencies = []", "dependencies=['a']")
    assert restore_manifest("pyproject.toml", agent, BASE_PYPROJECT) == agent
    added = "[tool.ruff]\nline-length = 1\n"
    assert restore_manifest("pyproject.toml", added, "[project]\nname = 'a'\n") == added


BASE_SETUP = "[metadata]\nname = shop\n\n[tool:pytest]\naddopts =\n    -q\n    -ra\n"


@pytest.mark.parametrize(
    ("agent", "metadata"),
    [
        ("[metadata]\nname = shop\nversion = 2\n", {"name": "shop", "version": "2"}),
        (
            "[aliases]\ntest = evil\n[metadata]\nname = shop\n[tool:pytest]\naddopts = -p evil\n",
            {"name": "shop"},
        ),
        ("[metadata]\nname = a\nname = b\n[tool:pytest]\naddopts = evil\n", {"name": "shop"}),
        ("no section = evil\n", {"name": "shop"}),
        ("[coverage:run]\nplugins = evil\n[metadata]\nname = shop", {"name": "shop"}),
    ],
)
def test_sections_of_setup_cfg_that_steer_tests_come_from_the_base(
    agent: str, metadata: dict[str, str]
) -> None:
    text = restore_manifest("setup.cfg", agent, BASE_SETUP)
    parser = configparser.ConfigParser()
    parser.read_string(text)
    assert {name: dict(parser[name]) for name in parser.sections()} == {
        "metadata": metadata,
        "tool:pytest": {"addopts": "\n-q\n-ra"},
    }


BASE_CARGO = """\
[package]
name = "shop"
version = "0.1.0"
build = "build.rs"

[lib]
name = "shop"
doctest = false

[[test]]
name = "orders"
path = "tests/orders.rs"
"""


@pytest.mark.parametrize(
    "agent",
    [
        BASE_CARGO.replace("build.rs", "evil.rs"),
        BASE_CARGO.replace('build = "build.rs"\n', "autotests = false\n"),
        BASE_CARGO.replace("doctest = false", "harness = false\ntest = false"),
        BASE_CARGO + "harness = false\n",
        BASE_CARGO + "\n[[test]]\nname = 'evil'\n\n[profile.test]\ndebug-assertions = false\n",
        BASE_CARGO.replace("[[test]]", "[[bench]]"),
        BASE_CARGO + "[[bin]]\nname = 'evil'\nharness = false\n",
        BASE_CARGO.replace("[package]", "package.build = 'evil.rs'\n[package]"),
    ],
)
def test_what_cargo_tests_and_how_comes_from_the_base(agent: str) -> None:
    text = restore_manifest("Cargo.toml", agent, BASE_CARGO)
    assert tomllib.loads(text) == tomllib.loads(BASE_CARGO)


def test_dependencies_of_a_crate_stay_the_agents() -> None:
    agent = BASE_CARGO.replace("doctest = false", "doctest = true\nproc-macro = true")
    agent += '\n[dependencies]\nserde = { version = "1", features = [\n  "derive",\n] }\n'
    read = tomllib.loads(restore_manifest("Cargo.toml", agent, BASE_CARGO))
    assert read["lib"] == {"name": "shop", "doctest": False, "proc-macro": True}
    assert read["dependencies"] == {"serde": {"version": "1", "features": ["derive"]}}


def test_a_file_that_is_no_manifest_we_know_is_the_bases() -> None:
    assert restore_manifest("Makefile", "evil", "good") == "good"


LINES = st.sampled_from(
    [
        *BASE_PYPROJECT.splitlines(),
        *BASE_CARGO.splitlines(),
        *('x = """', '"""', "y = [", "]", "[tool]", "pytest = { a = 1 }", "[tool.pytest.x]", "{"),
    ]
)


@given(st.lists(LINES, max_size=14), st.sampled_from(["pyproject.toml", "Cargo.toml", "setup.cfg"]))
def test_whatever_the_agent_wrote_what_steers_is_the_bases(lines: list[str], name: str) -> None:
    base = BASE_PYPROJECT if name == "pyproject.toml" else BASE_CARGO
    if name == "setup.cfg":
        base = BASE_SETUP
    text = restore_manifest(name, "\n".join(lines), base)
    if name == "setup.cfg":
        parser = configparser.ConfigParser()
        parser.read_string(text)
        assert dict(parser["tool:pytest"]) == {"addopts": "\n-q\n-ra"}
        return
    read, expected = tomllib.loads(text), tomllib.loads(base)
    if name == "pyproject.toml":
        assert read["tool"]["pytest"] == expected["tool"]["pytest"]
    else:
        assert read["test"] == expected["test"]
        assert read["package"]["build"] == "build.rs"
