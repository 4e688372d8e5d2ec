"""Projects as they really look, and the commands found in them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from closeloop.records.settings import CommandSettings
from closeloop.tasks.other_projects import NPM_INSTALL
from closeloop.tasks.project_discovery import Discovery, discover_commands, use_npm_instead

PACKAGE_LOCKS = {"npm": "package-lock.json", "pnpm": "pnpm-lock.yaml", "yarn": "yarn.lock"}


def look(folder: Path, **files: str) -> Discovery:
    """Names are written with `__` for `/` and `_dot_` for `.`: see `named`."""
    return discover_commands(make(folder, {named(name): text for name, text in files.items()}))


def named(name: str) -> str:
    return name.replace("__", "/").replace("_dot_", ".")


def make(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def package(**fields: object) -> str:
    return json.dumps({"name": "x", **fields})


def test_uv_with_groups(tmp_path: Path) -> None:
    found = look(
        tmp_path,
        uv_dot_lock="",
        pyproject_dot_toml="""
            [project]
            name = "x"
            [build-system]
            requires = ["hatchling>=1.26"]
            [tool.hatch.build.hooks.custom]
            dependencies = ["Babel>=2.6"]
            [dependency-groups]
            dev = ["ruff"]
            random-tests = ["pytest", "pytest-randomly"]
            tests = ["pytest>=8"]
            typing = ["mypy"]
            [tool.pytest.ini_options]
            testpaths = ["tests"]
            [tool.mypy]
            files = ["src"]
            [tool.ruff]
            """,
    )
    uv = "--python .venv/bin/python --no-cache"
    assert found.commands.setup == (
        "python3 -m venv .venv",
        ".venv/bin/pip install uv",
        f".venv/bin/uv sync --frozen --inexact {uv} --group tests --group typing",
        f".venv/bin/uv pip install {uv} 'hatchling>=1.26' 'Babel>=2.6'",
    )
    assert found.commands.test == ".venv/bin/pytest"
    assert found.commands.lint == ".venv/bin/ruff check ."
    assert found.commands.types == ".venv/bin/mypy"
    assert found.commands.build == (
        ".venv/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist ."
    )
    assert found.sources["test"] == "pyproject.toml"
    assert found.sources["setup"] == "uv.lock"


def test_setuptools_with_groups_and_tools_that_are_declared_nowhere(tmp_path: Path) -> None:
    found = look(
        tmp_path,
        pyproject_dot_toml="""
            [project]
            name = "x"
            [project.optional-dependencies]
            socks = ["PySocks"]
            test = ["pytest-cov"]
            [dependency-groups]
            test = ["pytest>=3"]
            [tool.ruff]
            [tool.pyright]
            """,
        tests__test_x_dot_py="def test_x(): pass",
    )
    assert found.commands.setup == (
        "python3 -m venv .venv",
        ".venv/bin/pip install --upgrade pip",
        ".venv/bin/pip install --upgrade -e '.[test]' --group test pyright ruff setuptools wheel",
    )
    assert found.commands.test == ".venv/bin/pytest"
    assert found.commands.lint == ".venv/bin/ruff check ."
    assert found.commands.types == ".venv/bin/pyright"


def test_what_uv_was_not_told_of_is_installed_besides(tmp_path: Path) -> None:
    project = "[project]\nname='x'\n[tool.uv]\n[tool.ruff]"
    found = look(tmp_path, pyproject_dot_toml=project, tests__test_a_dot_py="import pytest")
    uv = "--python .venv/bin/python --no-cache"
    assert found.commands.setup[-2:] == (
        f".venv/bin/uv sync --inexact {uv}",
        f".venv/bin/uv pip install {uv} -P setuptools pytest ruff setuptools wheel",
    )
    assert found.commands.test == ".venv/bin/pytest"


def test_the_hooks_of_pre_commit_are_installed_by_the_setup(tmp_path: Path) -> None:
    config = {
        "_dot_pre-commit-config_dot_yaml": "repos: []",
        "tests__test_a_dot_py": "import pytest",
    }
    found = look(tmp_path / "a", pyproject_dot_toml="[project]\nname='x'", **config)
    assert found.commands.lint == ".venv/bin/pre-commit run --all-files"
    assert found.commands.setup[-1] == ".venv/bin/pre-commit install-hooks || true"
    assert " pre-commit " in found.commands.setup[-2]
    assert look(tmp_path / "b", **config).commands == CommandSettings(test="python3 -m pytest")


def test_poetry(tmp_path: Path) -> None:
    found = look(
        tmp_path,
        poetry_dot_lock="",
        pyproject_dot_toml="""
            [tool.poetry]
            name = "x"
            [tool.poetry.group.test]
            optional = true
            [tool.poetry.group.test.dependencies]
            pytest = "*"
            [tool.poetry.group.dev.dependencies]
            flake8 = "*"
            """,
        _dot_flake8="[flake8]",
    )
    assert found.commands.setup == (
        "python3 -m venv ~/.tools",
        "~/.tools/bin/pip install poetry",
        "~/.tools/bin/poetry install --with test",
    )
    assert found.commands.test == "~/.tools/bin/poetry run pytest"
    assert found.commands.lint == "~/.tools/bin/poetry run flake8 --extend-exclude .venv"
    assert found.commands.build is None


def test_an_old_project_with_setup_cfg_and_requirements(tmp_path: Path) -> None:
    found = look(
        tmp_path,
        setup_dot_py="import setuptools",
        setup_dot_cfg="[tool:pytest]\n[flake8]\n[mypy]\nstrict = true\n",
        **{"requirements-dev_dot_txt": "pytest\nflake8==6\nMyPy\n"},
    )
    assert (
        found.commands.setup[-1]
        == ".venv/bin/pip install --upgrade -e . -r requirements-dev.txt setuptools wheel"
    )
    assert found.commands.test == ".venv/bin/pytest"
    assert found.commands.lint == ".venv/bin/flake8 --extend-exclude .venv"
    assert found.commands.types == ".venv/bin/mypy ."
    assert found.sources["test"] == "setup.cfg"


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"tests/test_a.py": "import unittest"}, "python3 -m unittest discover -s tests"),
        (
            {"tests/test_a.py": "import unittest", "tests/__init__.py": ""},
            "python3 -m unittest discover -s tests -t .",
        ),
        ({"test_a.py": "import unittest", "a.py": ""}, "python3 -m unittest discover"),
        ({"test_a.py": "def test_a(): pass"}, "python3 -m pytest"),
        ({"tests/test_a.py": "import pytest"}, "python3 -m pytest"),
        ({"tests/conftest.py": "", "setup.cfg": ""}, "python3 -m pytest"),
        ({"tox.ini": "[testenv]\ncommands = py.test {posargs}"}, "python3 -m pytest"),
        ({"noxfile.py": "s.run('pytest')"}, "python3 -m pytest"),
        ({"noxfile.py": "s.run('x')"}, "nox"),
        ({"manage.py": ""}, "python3 manage.py test"),
        ({"requirements.txt": "Django", "manage.py": ""}, ".venv/bin/python manage.py test"),
    ],
)
def test_pytest_or_unittest(tmp_path: Path, files: dict[str, str], command: str) -> None:
    assert discover_commands(make(tmp_path, files)).commands.test == command


@pytest.mark.parametrize(
    ("files", "setup", "test"),
    [
        ({"pdm.lock": ""}, "pdm install --dev", "pdm run pytest"),
        ({"Pipfile": "[dev-packages]\npytest='*'"}, "pipenv install --dev", "pipenv run pytest"),
        ({"hatch.toml": ""}, "hatch env create", "hatch run pytest"),
    ],
)
def test_other_environments(tmp_path: Path, files: dict[str, str], setup: str, test: str) -> None:
    project = "[project]\nname='x'\ndependencies=['pytest']"
    found = discover_commands(make(tmp_path, {"pyproject.toml": project, **files}))
    tool = setup.split(maxsplit=1)[0]
    assert found.commands.setup == (
        "python3 -m venv ~/.tools",
        f"~/.tools/bin/pip install {tool}",
        f"~/.tools/bin/{setup}",
    )
    assert found.commands.test == f"~/.tools/bin/{test}"


@pytest.mark.parametrize(
    ("manager", "setup", "test", "lint"),
    [
        ("npm", "npm ci", "npx jest --ci", "npm run lint"),
        ("pnpm", "pnpm install --frozen-lockfile", "pnpm exec jest --ci", "pnpm run lint"),
        ("yarn", "yarn install --frozen-lockfile", "yarn jest --ci", "yarn run lint"),
    ],
)
def test_the_lock_file_names_the_package_manager(
    tmp_path: Path, manager: str, setup: str, test: str, lint: str
) -> None:
    manifest = package(scripts={"test": "jest --ci", "lint": "eslint ."})
    make(tmp_path, {"package.json": manifest, PACKAGE_LOCKS[manager]: ""})
    found = discover_commands(tmp_path)
    assert found.commands.setup == (setup,)
    assert (found.commands.test, found.commands.lint) == (test, lint)


@pytest.mark.parametrize("manager", ["pnpm", "yarn"])
def test_where_the_package_manager_is_missing_npm_does(tmp_path: Path, manager: str) -> None:
    manifest = package(scripts={"test": "jest --ci", "lint": "eslint ."})
    make(tmp_path, {"package.json": manifest, PACKAGE_LOCKS[manager]: ""})
    found = use_npm_instead(discover_commands(tmp_path), manager)
    assert found is not None
    assert (found.commands.test, found.commands.lint) == ("npx jest --ci", "npm run lint")
    assert found.commands.setup == (NPM_INSTALL,)
    assert f"{manager} is not installed" in found.sources["setup"]
    assert use_npm_instead(found, "npm") is None


@pytest.mark.parametrize(
    ("scripts", "command"),
    [
        ({"test": "vitest"}, "npx vitest run"),
        ({"test": "vitest watch --ui"}, "npx vitest run --ui"),
        ({"test": "vitest run --coverage"}, "npx vitest run --coverage"),
        ({"test": "cross-env NODE_ENV=x jest"}, "npx cross-env NODE_ENV=x jest"),
        ({"test": "TZ=UTC A=b jest"}, "TZ=UTC A=b npx jest"),
        ({"test": "npm run test-unit && npm run e2e", "test-unit": "vitest run"}, "npx vitest run"),
        ({"test": "mocha --bail test/"}, "npx mocha --bail test/"),
        ({"test": "nyc --silent mocha"}, "npx mocha"),
        ({"test": "xo && tsc --noEmit && mocha test/ && tsd"}, "npx mocha test/"),
        ({"test": "node --test"}, "node --test"),
        ({"test": "A=1 c8 node --import tsx --test test/"}, "A=1 node --import tsx --test test/"),
        ({"test": "tsx --test a.ts"}, "npx tsx --test a.ts"),
        ({"test": "node test.js"}, "npm test"),
        ({"test": "node --test-only run.js"}, "npm test"),
        ({"test": "tsc && node --test"}, "npx tsc && node --test"),
        ({"test": "jest && echo done"}, "npx jest"),
        ({"test": "jest && tsc"}, "npx jest"),
        ({"test": "npm run only", "only": "jest --ci", "posttest": "npm audit"}, "npx jest --ci"),
        ({"test": "npm run only", "only": "tape x", "posttest": "npm audit"}, "npm run only"),
        ({"test": "npm run only", "only": "tape x", "pretest": "npm run build"}, "npm test"),
        ({"test": "npm run gone"}, "npm test"),
        ({"test": "npm run lint && vitest run && npx tsc -p ."}, "npx vitest run"),
        ({"test": 'echo "Error: no test specified" && exit 1'}, "npx jest"),
        ({}, "npx jest"),
    ],
)
def test_the_runner_of_a_script_is_called_directly(
    tmp_path: Path, scripts: dict[str, str], command: str
) -> None:
    manifest = package(scripts=scripts, devDependencies={"jest": "1"})
    assert look(tmp_path, package_dot_json=manifest).commands.test == command


@pytest.mark.parametrize(
    ("scripts", "lint", "types"),
    [
        ({"test": "jest && tsc"}, None, "npx tsc"),
        ({"test": "xo && mocha && tsd"}, "npx xo", "npx tsd"),
        ({"test": "eslint . && prettier -c . && jest"}, "npx eslint . && npx prettier -c .", None),
        ({"test": "jest && tsc", "types": "tsc -b"}, None, "npm run types"),
        ({"test": "xo && jest", "lint": "xo --fix"}, "npm run lint", None),
        ({"test": "xo && node run.js"}, None, None),
        ({"test": "tsc && node run.js"}, None, None),
    ],
)
def test_what_a_test_script_checks_besides_is_a_command_of_its_own(
    tmp_path: Path, scripts: dict[str, str], lint: str | None, types: str | None
) -> None:
    found = look(tmp_path, package_dot_json=package(scripts=scripts)).commands
    assert (found.lint, found.types) == (lint, types)


def test_compilers_fill_their_caches_in_the_setup_and_run_nothing(tmp_path: Path) -> None:
    found = look(tmp_path, go_dot_mod="module x")
    assert found.commands.setup == (
        "go mod download",
        "go vet ./... || true",
        "go test -exec=true ./... || true",
    )
    found = look(tmp_path / "rust", Cargo_dot_toml="[package]")
    assert found.commands.setup == ("cargo fetch", "cargo test --no-run || true")


def test_typescript_tools_are_found_without_scripts(tmp_path: Path) -> None:
    tools = {"@biomejs/biome": "1", "typescript": "5", "vitest": "3"}
    manifest = package(devDependencies=tools, packageManager="pnpm@10.4.1+sha512.c7")
    found = look(tmp_path, package_dot_json=manifest, tsconfig_dot_json="{}")
    assert found.commands.setup == ("pnpm install",)
    assert found.commands.test == "pnpm exec vitest run"
    assert found.commands.lint == "pnpm exec biome check ."
    assert found.commands.types == "pnpm exec tsc --noEmit"
    assert found.commands.build is None


def test_go_prefers_its_own_command_to_make_and_reads_the_linter(tmp_path: Path) -> None:
    found = look(
        tmp_path,
        go_dot_mod="module x",
        _dot_golangci_dot_yml="",
        Makefile="SRC := x\n.PHONY: lint test\ntest: install\n\tgo test -v ./...\n",
    )
    assert found.commands.test == "go test ./..."
    assert found.commands.lint == "golangci-lint run"
    assert found.commands.build == "go build ./..."
    assert found.sources["lint"] == ".golangci.yml"


def test_a_go_workspace_tests_every_module(tmp_path: Path) -> None:
    found = look(tmp_path, go_dot_work="go 1.22\n\nuse (\n\t./a\n\t./b\n)\n", a__go_dot_mod="")
    assert found.commands.test == "go test ./a/... ./b/..."


def test_a_cargo_workspace_tests_every_member(tmp_path: Path) -> None:
    found = look(tmp_path, Cargo_dot_toml="[package]\nname='x'\n[workspace]\nmembers=['a']")
    assert found.commands.test == "cargo test --workspace"
    assert found.commands.lint == "cargo clippy --workspace --all-targets"


def test_java_uses_the_wrapper_and_the_configured_style_check(tmp_path: Path) -> None:
    pom = "<project><artifactId>maven-checkstyle-plugin</artifactId></project>"
    found = look(tmp_path / "maven", pom_dot_xml=pom, mvnw="")
    assert found.commands.test == "./mvnw -B test"
    assert found.commands.lint == "./mvnw -B checkstyle:check"
    assert look(tmp_path / "plain", pom_dot_xml="").commands.test == "mvn -B test"
    found = look(tmp_path / "gradle", build_dot_gradle_dot_kts="", gradlew="")
    assert found.commands.test == "./gradlew test"


def test_make_is_enough_and_fills_gaps(tmp_path: Path) -> None:
    makefile = "VAR := 1\nall: build\nbuild lint:\n\ttrue\ncheck :\n\ttrue\n\ttypes: no\n"
    found = look(tmp_path / "c", Makefile=makefile)
    assert found.commands.test == "make check"
    assert (found.commands.lint, found.commands.build) == ("make lint", "make build")
    assert found.commands.types is None
    found = look(tmp_path / "py", Makefile=makefile, tests__test_a_dot_py="import pytest")
    assert (found.commands.test, found.commands.lint) == ("python3 -m pytest", "make lint")
    assert found.sources["lint"] == "Makefile"


def test_the_language_with_most_files_leads_and_the_others_are_mentioned(tmp_path: Path) -> None:
    files = {f"src/{n}.py": "" for n in range(5)} | {"pyproject.toml": "[tool.pytest.ini_options]"}
    files |= {"package.json": package(scripts={"test": "jest", "lint": "eslint ."}), "a.js": ""}
    found = discover_commands(make(tmp_path, files))
    assert found.commands.test == "python3 -m pytest"
    assert found.commands.lint is None
    assert found.seen == ("the root (JavaScript)",)


def test_a_manifest_that_only_holds_tools_does_not_lead(tmp_path: Path) -> None:
    files = {f"docs/{n}.js": "" for n in range(9)} | {"package.json": package()}
    files |= {"tests/test_a.py": "import pytest"}
    assert discover_commands(make(tmp_path, files)).commands.test == "python3 -m pytest"


def test_without_a_manifest_at_the_root_the_largest_folder_is_taken(tmp_path: Path) -> None:
    files = {f"my app/{n}.go": "" for n in range(5)} | {"my app/go.mod": ""}
    files |= {"web/package.json": package(scripts={"test": "jest"}), "web/deep/er/pom.xml": ""}
    found = discover_commands(make(tmp_path, files))
    assert found.commands.test == "cd 'my app' && go test ./..."
    assert found.sources["test"] == "my app/go.mod"
    assert found.seen == ("web (JavaScript)", "web/deep/er (Java)")


def test_what_git_ignores_is_not_looked_at(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    make(tmp_path, {".gitignore": "node_modules\n", "go.mod": ""})
    make(tmp_path, {"node_modules/x/package.json": "{}", "tools/package.json": "{}"})
    assert discover_commands(tmp_path).seen == ("tools (JavaScript)",)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"README.md": ""},
        {"pyproject.toml": "[tool\nx = ", "package.json": "{", "setup.cfg": "no section"},
        {"pyproject.toml": "tool = 1\nproject = []\ndependency-groups = 'x'", "package.json": "[]"},
        {"package.json": '{"scripts": [], "devDependencies": 1, "packageManager": {}}'},
        {"pyproject.toml": "[tool.poetry]\ngroup = {a = 1}\n[dependency-groups]\na=[{x='y'}]"},
        {"Cargo.toml": "[", "tests": ""},
    ],
)
def test_broken_manifests_break_nothing(tmp_path: Path, files: dict[str, str]) -> None:
    assert isinstance(discover_commands(make(tmp_path, files)), Discovery)
