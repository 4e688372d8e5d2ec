"""Environments come from the project's own metadata, and serve the commits beside them."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from closeloop.grading.task_proof import limit_timeout_by_reference, make_mutants
from closeloop.records import attempt as records
from closeloop.records.settings import CommandSettings, SandboxSettings
from closeloop.records.task import Acceptance, Limits, Task
from closeloop.sandbox.workspaces import WorkspacePool
from closeloop.sandbox.workspaces.workspace_patches import digest_environment
from closeloop.tasks.candidate_builder import TaskCandidate
from closeloop.tasks.mining_environments import (
    MiningEnvironment,
    acceptance_for_command,
    choose_test_files,
    extract_error_line,
    narrow_to_files,
    narrow_to_tests,
)
from closeloop.tasks.other_projects import ManifestFolder
from closeloop.tasks.project_discovery import detect_project
from closeloop.tasks.setup_recipes import (
    ConfiguredCommands,
    Recipe,
    add_missing_packages,
    describe_optional_modules,
    detect_edited_commands,
    find_addopts_plugins,
    find_extra_packages,
    find_lacking_extras,
    find_named_packages,
    find_python_requirements,
    leave_out_requirement,
    list_recipes,
    package_cutoff_day,
)

AT = datetime(2024, 5, 17, tzinfo=UTC)
NOTHING = ConfiguredCommands(commands=CommandSettings(), edited=False)
PYPROJECT = """[project]
name = "shop"
version = "1"
dependencies = ["rich"]
[project.optional-dependencies]
tests = ["pytest"]
dev = ["tox"]
[tool.ruff]
line-length = 80
"""


def folder(tmp_path: Path, files: dict[str, str]) -> ManifestFolder:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return ManifestFolder(tmp_path, tuple(files))


def git(repo: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    ran = subprocess.run(
        ["git", "-C", str(repo), *who, *arguments], check=True, capture_output=True, text=True
    )
    return ran.stdout.strip()


@pytest.mark.parametrize(
    ("day", "found"),
    [
        (datetime(2024, 5, 17, tzinfo=UTC), "2024-07-01"),
        (datetime(2024, 6, 30, tzinfo=UTC), "2024-07-01"),
        (datetime(2024, 11, 2, tzinfo=UTC), "2025-01-01"),
        (datetime(2015, 1, 1, tzinfo=UTC), "2023-04-01"),
    ],
)
def test_packages_are_those_of_the_quarter_but_never_older_than_python(
    day: datetime, found: str
) -> None:
    assert package_cutoff_day(day, minor=11) == found


def test_tests_are_installed_before_what_developers_like(tmp_path: Path) -> None:
    both = find_python_requirements(folder(tmp_path / "a", {"pyproject.toml": PYPROJECT}))
    assert both.extras == ("tests",)
    less = find_python_requirements(
        folder(tmp_path / "b", {"pyproject.toml": PYPROJECT.replace("tests", "docs")})
    )
    assert less.extras == ("dev",)


def test_plug_ins_of_the_runner_are_left_out_only_where_nothing_else_works(tmp_path: Path) -> None:
    tox = {"setup.py": "", "tox.ini": "[testenv]\ndeps =\n  pytest\n  pytest-old-plug-in"}
    *others, last = list_recipes(folder(tmp_path, tox), NOTHING, AT)
    assert last.last
    assert last.setup[-1].endswith(" -e . pytest")
    assert not any(one.last or "pytest-old-plug-in" not in one.setup[-1] for one in others)


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({"pyproject.toml": PYPROJECT}, "-e '.[tests]' pytest"),
        ({"setup.py": "extras = {'tests': []}", "test_a.py": "import pytest"}, "-e '.[tests]'"),
        ({"setup.py": "EXTRAS['tests'] = []", "test_a.py": "import pytest"}, "-e '.[tests]'"),
        (
            {"setup.py": "", "setup.cfg": "[options.extras_require]\ntest = x\n[tool:pytest]\n"},
            "-e '.[test]'",
        ),
        (
            {"setup.py": "", "requirements/tests.txt": "pytest==8.0", "conftest.py": ""},
            "-e . -r requirements/tests.txt",
        ),
        (
            {"setup.py": "", "tox.ini": "[testenv]\ndeps =\n  pytest\n  py27: mock\n  freezegun"},
            "-e . pytest freezegun",
        ),
        (
            {
                "pyproject.toml": "[build-system]\n[tool.poetry.group.test.dependencies]\nmoto='*'",
                "conftest.py": "",
            },
            "-e . moto pytest",
        ),
    ],
)
def test_each_way_to_name_test_requirements_is_known(
    tmp_path: Path, files: dict[str, str], part: str
) -> None:
    first = list_recipes(folder(tmp_path, files), NOTHING, AT)[0]
    assert part in first.setup[-1]
    assert "--exclude-newer 2024-07-01" in first.setup[-1]
    assert first.test == ".venv/bin/pytest"


def test_tests_that_no_file_names_a_runner_for_are_run_by_pytest(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    old = ManifestFolder(tmp_path, ("setup.py", "shop/tests/test_total.py"))
    assert list_recipes(old, NOTHING, AT)[0].test == ".venv/bin/pytest"
    assert list_recipes(ManifestFolder(tmp_path, ("setup.py", "shop/a.py")), NOTHING, AT) == []


def test_a_lock_of_uv_is_tried_second(tmp_path: Path) -> None:
    ways = list_recipes(folder(tmp_path, {"pyproject.toml": PYPROJECT, "uv.lock": ""}), NOTHING, AT)
    assert [way.how for way in ways][:2] == ["packages as of 2024-07-01", "as uv.lock says"]
    assert "uv sync --frozen --inexact" in ways[1].setup[-1]
    assert ways[1].setup[-1].endswith("--extra tests")


def test_a_version_that_comes_from_tags_is_given(tmp_path: Path) -> None:
    text = PYPROJECT + "[build-system]\nrequires = ['hatch-vcs']\n"
    way = list_recipes(folder(tmp_path, {"pyproject.toml": text}), NOTHING, AT, "v2.3.1")[0]
    assert way.setup[-1].startswith("SETUPTOOLS_SCM_PRETEND_VERSION=2.3.1 ")


@pytest.mark.parametrize(
    ("lock", "script", "ways"),
    [
        ("pnpm-lock.yaml", "pnpm lint && vitest run", ["pnpm exec vitest run", "npx vitest run"]),
        ("yarn.lock", "A=b jest", ["A=b yarn jest", "A=b npx jest"]),
        ("bun.lock", "./all.sh", ["bun run test", "npm run test", "npx vitest run"]),
        ("package-lock.json", "npm run lint && jest", ["npx jest"]),
        ("package-lock.json", "jest --ci && tsd", ["npx jest --ci"]),
        (
            "package-lock.json",
            "tsc -p . && mocha out && eslint .",
            ["npx tsc -p . && npx mocha out"],
        ),
        ("pnpm-lock.yaml", "pnpm lint && pnpm vitest", ["pnpm exec vitest run", "npx vitest run"]),
        ("package-lock.json", "npm run all", ["npm run gen && npx mocha test"]),
        (
            "package-lock.json",
            "node --experimental-vm-modules node_modules/jest/bin/jest.js -i",
            ["NODE_OPTIONS=--experimental-vm-modules npx jest -i"],
        ),
        ("package-lock.json", "strange-tool test", ["npm test", "npx vitest run"]),
    ],
)
def test_npm_does_where_another_manager_of_packages_is_missing(
    tmp_path, lock, script, ways
) -> None:
    scripts = {"test": script, "all": "mocha test && npm run types", "preall": "npm run gen"}
    scripts |= {"gen": "node gen.js", "types": "tsc --noEmit"}
    package = json.dumps({"scripts": scripts, "devDependencies": {"vitest": "1"}})
    made = list_recipes(folder(tmp_path, {"package.json": package, lock: ""}), NOTHING, AT)
    assert [way.test for way in made] == ways


@pytest.mark.parametrize(
    ("options", "plugins"),
    [
        ("--cov=shop --cov-report=xml -n auto -ra", ("pytest-cov", "pytest-xdist")),
        ("-n0 --strict-markers --no-header", ("pytest-xdist",)),
        ("--doctest-modules --import-mode=importlib", ()),
    ],
)
def test_plug_ins_that_pytest_is_configured_with_are_installed(tmp_path, options, plugins) -> None:
    ini = {"setup.py": "", "pytest.ini": f"[pytest]\naddopts =\n  {options}\n"}
    found = folder(tmp_path, ini)
    assert find_addopts_plugins(found) == plugins
    for way in list_recipes(found, NOTHING, AT):
        assert all(name in way.setup[-1] for name in plugins)


MISSING = (
    "× No solution found:\n╰─▶ Because old-thing was not found in the package registry and you"
)


@pytest.mark.parametrize(
    ("files", "install", "kept"),
    [
        ({"tox.ini": ""}, "-e . old_thing==1 rich pytest", "-e . rich pytest"),
        (
            {"dev.txt": "rich>2  # nice\nold.thing\n"},
            "-e . -r dev.txt pytest",
            "-e . 'rich>2' pytest",
        ),
        (
            {"pyproject.toml": "[project.optional-dependencies]\ntest = ['rich', 'old-thing>1']"},
            "-e '.[test]' pytest",
            "-e . rich pytest",
        ),
        (
            {"pyproject.toml": "[dependency-groups]\ndev = ['old-thing', 'rich']"},
            "--group dev pytest",
            "rich pytest",
        ),
        ({"dev.txt": "-r more.txt\n"}, "-e . -r dev.txt pytest", None),
        ({"tox.ini": ""}, "-e . pytest", None),
    ],
)
def test_what_cannot_be_installed_is_left_out_and_said(tmp_path, files, install, kept) -> None:
    recipe = Recipe(setup=("make", f"bin/uv pip install {install}"), test="pytest", how="newest")
    less = leave_out_requirement(recipe, MISSING, folder(tmp_path, files))
    assert (less and less.setup[-1]) == (kept and f"bin/uv pip install {kept}")
    assert less is None or less.how == "newest, without old-thing"


def test_a_project_that_an_old_backend_cannot_link_is_imported_from_its_folder(
    tmp_path: Path,
) -> None:
    """As tinydb in 2020."""
    manifest = (
        "[tool.poetry.dependencies]\npython = '^3.5'\nrich = '^2'\n"
        "tomli = {version = '1', optional = true}\n"
        "[build-system]\nbuild-backend = 'poetry.masonry.api'\n"
    )
    found = folder(tmp_path, {"pyproject.toml": manifest})
    recipe = Recipe(
        setup=(".venv/bin/uv pip install --no-cache -e . pytest",),
        test=".venv/bin/pytest",
        how="so",
    )
    output = "AttributeError: module 'poetry.api' has no attribute 'build_editable'"
    linked = leave_out_requirement(recipe, output, found)
    assert linked is not None
    assert linked.setup == (".venv/bin/uv pip install --no-cache rich pytest",)
    assert linked.test == ".venv/bin/python -m pytest"
    assert leave_out_requirement(linked, output, found) is None


NODE_PACKAGE = {
    "dependencies": {"own": "1"},
    "devDependencies": {
        "gone": "^1",
        "@far/away": "2",
        "lodash.get": "99",
        "by-git": "some-one/by-git#semver:^1",
        "by-address": "https://codeload.example.org/some-one/tar-ball/tar.gz/v1",
        "beside": "workspace:*",
        "builds": "1",
        "mocha": "1",
    },
    "optionalDependencies": {"maybe": "1"},
}


@pytest.mark.parametrize(
    ("output", "left_out"),
    [
        ("npm error 404  'gone@^1' is not in this registry.", "gone"),
        ("npm ERR! 404  'gone@^1' is not in the npm registry.", "gone"),
        ("npm error 404  The requested resource '@far/away@2' could not be found or", "@far/away"),
        ("npm error notarget No matching version found for lodash.get@99.", "lodash.get"),
        ("npm error command git ls-remote ssh://git@example.org/some-one/by-git.git", "by-git"),
        ("npm error request to https://a.example/some-one/tar-ball/tar.gz/v1 failed", "by-address"),
        ('npm error Unsupported URL Type "workspace:": workspace:*', "beside"),
        ("npm error code 1\nnpm error path /w/node_modules/builds\nnpm error command", "builds"),
        ("ERR_PNPM_FETCH_404  GET https://a.example/@far%2Faway: Not Found - 404", "@far/away"),
        ("ERR_PNPM_FETCH_404  GET https://a.example/gone/-/gone-1.tgz: Not Found - 404", "gone"),
        ("ERR_PNPM_NO_MATCHING_VERSION  No matching version found for maybe@1", "maybe"),
        ("Exit code: 128 Arguments: ls-remote ssh://git@a.example/some-one/by-git.git", "by-git"),
        ('error An unexpected error occurred: "https://a.example/gone: Not found".', "gone"),
        ('error Couldn\'t find any versions for "lodash.get" that matches "99"', "lodash.get"),
        ("error /w/node_modules/builds: Command failed.", "builds"),
        ("npm error 404  'own@1' is not in this registry.", None),
        ("npm error 404  'of-another@1' is not in this registry.", None),
        ("npm error 404  'mocha@1' is not in this registry.", None),
        ("npm error path /w/node_modules/other/builds", None),
    ],
)
def test_a_package_that_only_development_needs_is_left_out(tmp_path, output, left_out) -> None:
    found = folder(tmp_path, {"package.json": json.dumps(NODE_PACKAGE)})
    recipe = Recipe(setup=("make", "npm install --no-audit", "true"), test="npx mocha", how="so")
    less = leave_out_requirement(recipe, output, found, list)
    assert (less and less.left_out) == (left_out and (left_out,))
    assert less is None or less.how == f"so, without {left_out}"


def test_packages_that_no_test_uses_are_left_out_where_one_needs_what_cannot_be_installed(
    tmp_path: Path,
) -> None:
    tools = dict.fromkeys(("mocha", "eslint", "gulp-md", "lodash", "@types/node", "ts-node"), "1")
    scripts = {"test": "npm run lint && mocha", "lint": "eslint ."}
    package = json.dumps({"scripts": scripts, "devDependencies": tools})
    found = folder(tmp_path, {"package.json": package})
    recipe = Recipe(setup=("npm install",), test="npx mocha", how="so")
    inner = "npm error command git ls-remote ssh://git@example.org/some-one/far-away.git"
    code = {"lodash"}

    less = leave_out_requirement(recipe, inner, found, code.intersection)
    by_script = leave_out_requirement(
        replace(recipe, test="npm test"), inner, found, code.intersection
    )

    assert less is not None
    assert less.left_out == ("eslint", "gulp-md")
    assert by_script is not None
    assert by_script.left_out == ("gulp-md",)
    assert leave_out_requirement(less, inner, found, code.intersection) is None


@pytest.mark.parametrize(
    ("lock", "line", "install"),
    [
        ("package-lock.json", "npm ci", "npm install"),
        ("pnpm-lock.yaml", "pnpm install --frozen-lockfile", "pnpm install --no-frozen-lockfile"),
        ("yarn.lock", "yarn install --frozen-lockfile", "yarn install"),
    ],
)
def test_manifest_and_lock_are_as_before_once_packages_are_installed(
    tmp_path, lock, line, install
) -> None:
    found = folder(tmp_path, {"package.json": json.dumps(NODE_PACKAGE), lock: ""})
    recipe = Recipe(setup=(line, "npm run build"), test="npx mocha", how="so")
    once = leave_out_requirement(recipe, "'gone@^1' is not in this registry", found)
    less = once and leave_out_requirement(once, "No matching version found for maybe@1", found)
    assert less is not None
    assert less.left_out == ("gone", "maybe")
    assert less.setup == (
        f"cp package.json package.json.whole && cp {lock} {lock}.whole && "
        "npm pkg delete 'devDependencies[gone]' 'optionalDependencies[maybe]'",
        install,
        f"mv package.json.whole package.json && mv {lock}.whole {lock}",
        "npm run build",
    )
    assert leave_out_requirement(less, "'gone@^1' is not in this registry", found, list) is None


def test_neighbours_share_packages_that_were_installed_without_one(repo: Path) -> None:
    package = json.dumps({"name": "shop", "devDependencies": {"gone": "1"}})
    commits = [changed(repo, "package.json", package), changed(repo, "shop.py", "A = 2\n")]
    recipe = Recipe(setup=("npm ci",), test="npm test", how="so")
    found = folder(repo, {"package.json": package})
    less = leave_out_requirement(recipe, "'gone@1' is not in this registry", found)
    assert less is not None
    first, second = (digest_environment(str(repo), each, less.setup, "/") for each in commits)
    assert first is not None
    assert first == second


def test_what_people_wrote_comes_first_and_what_was_found_last(tmp_path: Path) -> None:
    found = folder(tmp_path, {"go.mod": "module shop\n", "a_test.go": ""})
    own = detect_edited_commands(CommandSettings(test="make check"), found)
    assert [way.test for way in list_recipes(found, own, AT)] == ["make check", "go test ./..."]
    setup = tuple(command.line for command in detect_project(found).setup)
    same = detect_edited_commands(CommandSettings(test="go test ./...", setup=setup), found)
    assert [way.how for way in list_recipes(found, same, AT)] == ["as go.mod says"]


WANTING = {
    "setup.py": "setup(extras_require={'reco': ['python-dateutil', 'simplejson>=3']}, name='shop')",
    "tox.ini": "[testenv]\ndeps = PyYAML\nplatform = linux",
    "setup.cfg": "[metadata]\nclassifiers = Typing :: Typed",
    "shop/__init__.py": "",
    "tools.py": "import rich  # not a manifest",
}
PIP = Recipe(setup=("make", "bin/uv pip install -e . pytest"), test="pytest", how="the newest")


@pytest.mark.parametrize(
    ("lacked", "added"),
    [
        (["simplejson"], "simplejson"),
        (["dateutil.tz", "yaml", "simplejson", "yaml"], "python-dateutil pyyaml simplejson"),
        (["shop"], None),
        (["tools"], None),
        (["rich"], None),
        (["numpy"], None),
        (["pytest"], None),
        (["typing", "platform"], None),
        ([], None),
    ],
)
def test_what_tests_lack_is_added_where_the_project_names_it(tmp_path, lacked, added) -> None:
    output = "\n".join(f"E   ModuleNotFoundError: No module named '{name}'" for name in lacked)
    more = add_missing_packages(PIP, output, find_named_packages(folder(tmp_path, WANTING)))
    assert (more and more.setup) == (added and ("make", f"{PIP.setup[-1]} {added}"))
    assert (
        more is None
        or add_missing_packages(more, output, find_named_packages(ManifestFolder(tmp_path, ())))
        is None
    )


def test_what_is_not_installed_by_name_is_left_as_it_is(tmp_path: Path) -> None:
    output, names = "No module named 'simplejson'", find_named_packages(folder(tmp_path, WANTING))
    for setup in ((), ("uv sync --frozen",), ("make",)):
        assert (
            add_missing_packages(Recipe(setup=setup, test="pytest", how="so"), output, names)
            is None
        )


def test_what_tests_skip_themselves_without_is_known_by_their_patch() -> None:
    tests = "+import pytest\n+try:\n+    import trio\n     from rich import x\n-    import gone\n"
    tests += (
        '+    pytest.importorskip("yaml.cyaml")\n+@pytest.mark.skipif(\n+    dev.attr is None,\n'
    )
    tests += "+@pytest.mark.skipif(not HAS_NUMPY, reason='')\n"
    told = [f"No module named '{name}'" for name in ("trio", "rich", "yaml", "attr", "NUMPY")]
    assert describe_optional_modules(tests).split("\n") == told


EXTRAS = "[project.optional-dependencies]\n"
CRYPTO = "Requires cryptography library installed\n/w/tests/test_a.py:3: Requires cryptography"


@pytest.mark.parametrize(
    ("files", "complaint", "wanted"),
    [
        (
            {
                "pyproject.toml": f"{EXTRAS}crypto = ['cryptography>=3.4']\n"
                "docs = ['sphinx']\nrequires = ['-r x', '--index-url=y', '']\n"
            },
            CRYPTO,
            ["cryptography"],
        ),
        (
            {"setup.cfg": "[options.extras_require]\ncrypto =\n  cryptography>=3; os_name == 'a'"},
            CRYPTO,
            ["cryptography"],
        ),
        (
            {"setup.py": "EXTRAS = {'crypto': ['cryptography'], 'all': a + b}\nsetup()"},
            "NotImplementedError: 'RS256' not found. Do you have cryptography installed?",
            ["cryptography"],
        ),
        (
            {"pyproject.toml": "[tool.poetry.extras]\nfast = ['python-rapidjson', 'ujson']"},
            "needs the extra: pip install shop[fast]",
            ["python-rapidjson", "ujson"],
        ),
        (
            {"pyproject.toml": f"{EXTRAS}dev = ['mypy']\nyes = ['shop']"},
            "mypy and shop are not installed",
            [],
        ),
        (
            {"pyproject.toml": f"{EXTRAS}crypto = ['cryptography']"},
            "cryptography on Windows only",
            [],
        ),
    ],
)
def test_extras_that_tests_say_they_lack_are_found(tmp_path, files, complaint, wanted) -> None:
    project = folder(tmp_path, {"shop/__init__.py": "", **files})
    found = find_lacking_extras([complaint], find_extra_packages(project))
    assert found == wanted
    more = add_missing_packages(PIP, "", find_named_packages(project), found)
    assert (more and more.setup[-1]) == (f"{PIP.setup[-1]} {' '.join(wanted)}" if wanted else None)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    place = tmp_path / "repo"
    place.mkdir()
    git(place, "init", "-q")
    (place / "pyproject.toml").write_text(PYPROJECT)
    (place / "shop.py").write_text("A = 1\n")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "one")
    return place


def changed(repo: Path, name: str, text: str) -> str:
    (repo / name).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "more")
    return git(repo, "rev-parse", "HEAD")


INSTALL = ("python3 -m venv .venv", "X=1 .venv/bin/uv pip install --no-cache -e '.[tests]' pytest")


@pytest.mark.parametrize(
    ("name", "text", "same"),
    [
        ("shop.py", "A = 2\n", True),
        ("pyproject.toml", PYPROJECT.replace('version = "1"', 'version = "2"'), True),
        ("pyproject.toml", PYPROJECT.replace("80", "99"), True),
        ("pyproject.toml", PYPROJECT.replace("rich", "poor"), False),
        ("requirements.txt", "rich\n", False),
        ("fast.c", "int a;\n", False),
        ("uv.lock", "version = 1\n", True),
    ],
)
def test_commits_share_an_environment_while_they_ask_for_the_same(
    repo: Path, name: str, text: str, same: bool
) -> None:
    before = digest_environment(str(repo), git(repo, "rev-parse", "HEAD"), INSTALL, "/")
    after = digest_environment(str(repo), changed(repo, name, text), INSTALL, "/")
    assert before is not None
    assert (before == after) is same


@pytest.mark.parametrize(
    "command",
    ["make", "pip install .", "pip install ./lib", "npm ci && npm run build", "pip install $(x)"],
)
def test_what_builds_from_source_is_made_at_each_commit(repo: Path, command: str) -> None:
    assert digest_environment(str(repo), git(repo, "rev-parse", "HEAD"), (command,), "/") is None


def test_an_environment_is_made_once_and_linked_into_its_neighbours(
    repo: Path, tmp_path: Path
) -> None:
    setup = ("python3 -m venv --without-pip .venv",)
    commits = [git(repo, "rev-parse", "HEAD"), changed(repo, "shop.py", "A = 2\n")]

    async def main() -> None:
        async with WorkspacePool(tmp_path / "cache", SandboxSettings()) as workspaces:
            if not workspaces.sandbox.isolated:
                pytest.skip("NOT TESTED HERE: no cage with a file system of its own")
            bases = [await workspaces.prepare_base(str(repo), commit, setup) for commit in commits]
            files = [Path(base.folder, "root/workspace/.venv/pyvenv.cfg") for base in bases]
            assert len({file.stat().st_ino for file in files}) == 1
            async with workspaces.open(bases[1], Limits()) as workspace:
                ran = await workspace.sandbox.run(
                    "cat shop.py; git status --porcelain; .venv/bin/python -c 'print(3)'"
                )
                assert ran.output == "A = 2\n3\n"
                await workspace.sandbox.run("echo spoilt > .venv/pyvenv.cfg")
            assert "spoilt" not in files[0].read_text()

    anyio.run(main)


def test_a_slow_suite_is_selected_from_by_kinship_time_and_presence(repo: Path) -> None:
    for name in ("test_shop.py", "test_shop_tax.py", "test_slow.py", "test_quick.py"):
        commit = changed(repo, name, "def test_a(): ...\n")
    candidate = TaskCandidate(
        commit=commit,
        base=commit,
        at=AT,
        prompt="",
        source="",
        tests="",
        test_files=("test_quick.py",),
        source_files=("shop.py",),
    )
    seconds = {"test_shop_tax.py": 9.0, "test_slow.py": 14.0, "test_shop.py": 2.0, "gone.py": 0.1}
    way = Recipe(setup=(), test="pytest", how="so")
    environment = MiningEnvironment(recipe=way, runner="pytest", seconds=60.0, files=seconds)
    chosen = choose_test_files(repo, environment, candidate, commit)
    assert chosen == ("test_quick.py", "test_shop.py", "test_shop_tax.py")
    assert (
        narrow_to_files(environment, chosen) == "pytest test_quick.py test_shop.py test_shop_tax.py"
    )


def test_only_what_must_pass_is_repeated_where_the_runner_can_be_told() -> None:
    way = Recipe(setup=(), test="pytest", how="so")
    environment = MiningEnvironment(recipe=way, runner="pytest", seconds=60.0, files={})
    tests = ("tests/test_a.py::test_b[1]", "tests/test_a.py::test_b[2]", "tests/test_a.py::C::d")
    line = narrow_to_tests(environment, ("tests/test_a.py",), tests)
    assert line == "pytest tests/test_a.py::test_b tests/test_a.py::C::d"
    many = [f"tests/test_a.py::test_{number}" for number in range(99)]
    assert narrow_to_tests(environment, ("tests/test_a.py",), many) == "pytest tests/test_a.py"


@pytest.mark.parametrize(
    ("runner", "test", "kept"),
    [
        ("mocha", "A=1 npx mocha --require test/env -R dot --bail test/", None),
        ("mocha", "A='b c' npx mocha \"test/*.js\" lib", "A='b c' npx mocha"),
        ("node", "node --import tsx --test --test-reporter tap 'test/**/*.ts'", None),
        ("node", "node --test", "node --test"),
    ],
)
def test_mocha_and_node_are_told_other_files_in_place_of_their_own(runner, test, kept) -> None:
    way = Recipe(setup=(), test=test, how="so")
    environment = MiningEnvironment(recipe=way, runner=runner, seconds=60.0, files={})
    line = narrow_to_files(environment, ("test/an app.js",))
    assert line == f"{kept or test.rpartition(' ')[0]} 'test/an app.js'"


@pytest.mark.parametrize("line", ["mvn -B test", "./mvnw -B test", "./gradlew test"])
def test_the_tools_of_java_are_read_by_their_reports(line: str) -> None:
    wanted = acceptance_for_command(line, 1.0)
    assert wanted.runner == "junit"
    assert (wanted.report or "").endswith("/TEST-*.xml")


@pytest.mark.parametrize(
    ("test", "files", "run"),
    [
        ("python -m unittest discover -s a -t .", ["a/test_b.py"], " -p test_b.py"),
        ("python -m unittest discover", ["a/test_b.py", "a/test_c.py"], ""),
        ("python -m unittest discover -p '*_test.py'", ["a/b_test.py"], ""),
        ("python -m unittest a.test_b", ["a/test_b.py"], ""),
    ],
)
def test_unittest_is_told_a_file_by_its_pattern(test: str, files: list[str], run: str) -> None:
    recipe = Recipe(setup=(), test=test, how="so")
    environment = MiningEnvironment(recipe=recipe, runner="unittest", seconds=1.0, files={})
    assert narrow_to_files(environment, files) == test + run


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "  × No solution\n  ╰─▶ Because x was not found in\n      and y",
            "Because x was not found in",
        ),
        ("error: No solution\n  cause: Because x was not found\n", "Because x was not found"),
        ("Traceback\n\nValueError: no\n", "ValueError: no"),
        ("[\x1b[1;31mERROR\x1b[m] No pom\n[ERROR] Help\n\x1b[0m", "[ERROR] No pom"),
        ("# shop\n./sum_test.go:3:7: undefined: Sum\nFAIL\n", "./sum_test.go:3:7: undefined: Sum"),
        (
            "[ERROR] COMPILATION ERROR :\n[ERROR] /a/B.java:[3,7] no C\n",
            "[ERROR] /a/B.java:[3,7] no C",
        ),
        ("> b\na/b.ts(3,7): error TS2304: no C\nnpm ERR!\n", "a/b.ts(3,7): error TS2304: no C"),
        ("w: file:///a/B.kt:1:1 old\ne: file:///a/B.kt:3:7 no C\n", "e: file:///a/B.kt:3:7 no C"),
        ("    b_test.go:3: 7 is not 8\n    at a.ts:3:7 so\nFAIL\n", "FAIL"),
        ("", "no output"),
        (
            "ERROR: usage: pytest\npytest: error: unrecognized arguments: --cov\n  inifile: a",
            "pytest: error: unrecognized arguments: --cov",
        ),
        ("a\nE   ImportError: b\nE   ImportError: c\n1 error in 1 s\n", "E   ImportError: b"),
        (
            "npm error code 1\nnpm error path /a/b\nnpm error command failed\n"
            "npm error ERROR: Failed to set up chrome\n",
            "npm error ERROR: Failed to set up chrome",
        ),
        ("npm error code E404\nnpm error 404 No x\nnpm error A complete log", "npm error 404 No x"),
        (
            "error: subprocess-exited-with-error\n  × Building wheel did not run\n  ╰─> [2 lines]\n"
            "      Traceback\n      ModuleNotFoundError: No module named 'babel'\n",
            "ModuleNotFoundError: No module named 'babel'",
        ),
        (
            "Error: Jest: Failed to parse it\n  Error: Jest: 'ts-node' is required\n    at a",
            "Error: Jest: 'ts-node' is required",
        ),
    ],
)
def test_of_what_a_broken_setup_says_the_reason_is_told(said: str, reason: str) -> None:
    assert extract_error_line(said) == reason


PATCH = """diff --git a/shop.py b/shop.py
--- a/shop.py
+++ b/shop.py
@@ -1,2 +1,5 @@
 def total(prices):
-    return sum(prices)
+    # more than 3 == many
+    if len(prices) > 3:
+        return sum(prices)
+    return 7
"""


def test_wrong_changes_differ_in_added_lines_only() -> None:
    made = {mutant.how: mutant.patch for mutant in make_mutants(PATCH)}
    assert "+    if len(prices) <= 3:" in made["the fix has its conditions inverted"]
    assert "+    return 8" in made["the fix has its values changed"]
    assert "+        pass\n+    pass" in made["the fix is removed"]
    for patch in made.values():
        assert "-    return sum(prices)" in patch
        assert "# more than 3 == many" in patch
        assert len(patch.split("\n")) == len(PATCH.split("\n"))


def test_a_wrong_change_that_loops_is_stopped_soon() -> None:
    """As in xstrings, where each of several loops took the ten minutes that a grade may take."""
    task = Task(id="a", prompt="p", acceptance=Acceptance(run="go test", timeout=600.0))

    def limit(seconds: float) -> float:
        ran = records.CommandResult(command="go test", exit_code=0, seconds=seconds, output="")
        reference = records.TestRun(when="after", commands=(ran,))
        return limit_timeout_by_reference(task, reference).acceptance.timeout

    assert [limit(0.2), limit(20.0), limit(100.0)] == [30.0, 200.0, 600.0]


def test_a_change_without_logic_has_no_wrong_kin() -> None:
    assert make_mutants("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-one\n+two\n") == []


def test_a_project_that_needs_no_packages_is_first_tried_without_an_environment(
    tmp_path: Path,
) -> None:
    found = folder(tmp_path, {"pytest.ini": "[pytest]\n", "tests/test_a.py": ""})
    known = detect_edited_commands(CommandSettings(test="python3 -m pytest"), found)
    assert not known.edited
    first, second = list_recipes(found, known, AT)
    assert (first.setup, first.test) == ((), "python3 -m pytest")
    assert second.test == ".venv/bin/pytest"
