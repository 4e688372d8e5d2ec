"""Which files count as data that only tests read, and which are the agent's to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from closeloop.grading.integrity.data_readers import is_data_path
from closeloop.grading.integrity.restore import (
    BaseTree,
    Steering,
    read_steering,
    restored_paths,
    why_restored,
)
from closeloop.grading.tool_outcomes import parse_change
from closeloop.records.task import Acceptance, Task

WANT = "data/want.txt"
PRODUCT = {"shop/__init__.py": "", "shop/page.py": "def render():\n    return 'page'\n"}
IMPORT = "from pathlib import Path\nfrom shop.page import render\n\n"
GO = "package shop\n\nfunc TestPage(t *testing.T) {{\n\twant, _ := {}\n}}\n"
Files = dict[str, str]


def steering(folder: Path, files: Files, *, prompt: str = "Mend it.", **given: object) -> Steering:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    reference = given.pop("reference", None)
    acceptance = Acceptance(**{"run": "python -m pytest", **given})
    task = Task(id="x", prompt=prompt, reference=reference, acceptance=acceptance)
    return read_steering(task, BaseTree(root=str(folder)))


def new_file(path: str, text: str) -> str:
    lines = text.splitlines()
    added = "".join(f"+{line}\n" for line in lines)
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1,{len(lines)} @@\n{added}"
    )


def python_test(line: str) -> Files:
    return {"tests/test_page.py": f"{IMPORT}def test_page():\n    want = {line}\n"}


NAMED_FILES: dict[str, Files] = {
    "from the root": python_test("Path('data/want.txt').read_text()"),
    "from the root with a dot": python_test("open('./data/want.txt').read()"),
    "relative to the test": python_test("(Path(__file__).parent / '../data/want.txt')"),
    "in pieces": python_test("(Path('data') / 'want.txt').read_text()"),
    "in pieces from the test": python_test("Path(__file__).parents[1] / 'data' / 'want.txt'"),
    "joined": python_test('open(os.path.join("data", "want.txt"))'),
    "joined by dirname": python_test(
        'open(os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "want.txt"))'
    ),
    "after a placeholder": python_test('open(f"{ROOT}/data/want.txt")'),
    "as a key": python_test("{'want.txt': render()}"),
    "in a line that mentions a temporary folder": python_test(
        '(tmp_path / "out").read_text() == (DATA / "want.txt").read_text()'
    ),
    "by a module beside the tests": {
        **python_test("golden()"),
        "tests/golden.py": "def golden():\n    return open('data/want.txt').read()\n",
        "tests/test_page.py": f"{IMPORT}from golden import golden\n",
    },
    "by conftest.py": {
        **python_test("golden"),
        "conftest.py": "def golden():\n    return open('data/want.txt').read()\n",
    },
    "by JavaScript": {
        "test/page.test.js": "const { render } = require('../shop/page');\n"
        "const want = fs.readFileSync(path.join(__dirname, '..', 'data', 'want.txt'));\n"
    },
    "by TypeScript": {
        "web/page.spec.ts": "import { render } from './page';\n"
        "const want = readFileSync(new URL('../data/want.txt', import.meta.url));\n"
    },
    "by an imported file": {
        "test/page.test.mjs": "import { render } from '../shop/page.js';\n"
        "import want from '../data/want.txt';\n"
    },
    "by Go": {"shop/page_test.go": GO.format('os.ReadFile("../data/want.txt")')},
    "by Go in pieces": {
        "shop/page_test.go": GO.format('os.ReadFile(filepath.Join("..", "data", "want.txt"))')
    },
    "embedded by Go": {
        "page_test.go": "package shop\n\n//go:embed data/want.txt\nvar want string\n"
    },
    "by Rust": {"tests/page.rs": 'let want = include_str!("../data/want.txt");\n'},
    "by Rust from the crate": {
        "tests/page.rs": 'include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/data/want.txt"));\n'
    },
    "by tests inside of Rust code": {
        "src/page.rs": "pub fn render() {}\n\n#[cfg(test)]\nmod tests {\n"
        '    const WANT: &str = include_str!("../data/want.txt");\n}\n'
    },
}


@pytest.mark.parametrize("form", NAMED_FILES)
def test_a_file_that_a_test_names_is_restored(tmp_path: Path, form: str) -> None:
    known = steering(tmp_path, {**PRODUCT, WANT: "page", **NAMED_FILES[form]})
    reason = why_restored(known, WANT)
    assert reason, form
    assert reason.startswith("data that only tests read (")
    assert why_restored(known, "data/other.txt") is None


READ_FOLDERS: dict[str, Files] = {
    "a glob": python_test("Path('data/cases').glob('*.json')"),
    "a glob with its folder": python_test("glob('data/cases/*.json')"),
    "a glob of pieces": python_test("(Path(__file__).parent.parent/'data'/'cases').glob('*.json')"),
    "a glob further up": python_test("Path('data').rglob('*.json')"),
    "a list": python_test("os.listdir('data/cases')"),
    "names put together": python_test("open(f'data/cases/{name}.json')"),
    "names put together from a folder": python_test("(CASES / f'{name}.json', Path('data/cases'))"),
    "a folder that a helper names": {
        "tests/paths.py": "CASES = Path('data') / 'cases'\n",
        "tests/test_page.py": f"{IMPORT}import paths\n\nALL = paths.CASES.glob('*.json')\n",
    },
    "JavaScript": {
        "test/page.test.js": "const { render } = require('../shop/page');\n"
        "fs.readdirSync(path.join(__dirname, '../data/cases'));\n"
    },
    "Go": {"page_test.go": GO.format('filepath.Glob("data/cases/*.json")')},
    "Go by name": {
        "page_test.go": GO.format('os.ReadFile(filepath.Join("data", "cases", name+".json"))')
    },
    "Rust": {"tests/page.rs": 'for case in fs::read_dir("data/cases").unwrap() {}\n'},
}


@pytest.mark.parametrize("form", READ_FOLDERS)
def test_all_data_of_a_folder_that_tests_read_is_restored(tmp_path: Path, form: str) -> None:
    known = steering(tmp_path, {**PRODUCT, "data/cases/a.json": "1", **READ_FOLDERS[form]})
    assert why_restored(known, "data/cases/a.json"), form
    assert why_restored(known, "data/cases/added.json"), form
    assert why_restored(known, "other/cases.json") is None


CASE = "data/one/expected.txt"
COMPUTED_FOLDERS: dict[str, Files] = {
    "a path of pieces": python_test(
        "(Path(__file__).parent.parent / DATA / name / 'expected.txt')"
    ),
    "a variable and a name": python_test("open(DATA + '/expected.txt').read()"),
    "a placeholder and a name": python_test("open(f'{DATA}/{name}/expected.txt').read()"),
    "a name in percent": python_test("open('%s/%s/expected.txt' % (DATA, name)).read()"),
    "the environment": python_test("open(os.environ.get('X', 'data') + '/expected.txt').read()"),
    "a list of folders": python_test("[d / 'expected.txt' for d in Path('data').iterdir()]"),
    "a base folder alone": python_test("Path('data', name, 'expected.txt').read_text()"),
    "JavaScript": {
        "test/page.test.js": "const { render } = require('../shop/page');\n"
        "fs.readFileSync(path.join(__dirname, '..', dir, name, 'expected.txt'));\n"
        "fs.readFileSync(`${dir}/${name}/expected.txt`);\n"
    },
    "Go": {"shop/page_test.go": GO.format('os.ReadFile(filepath.Join(dir, name, "expected.txt"))')},
    "Go by concatenation": {
        "shop/page_test.go": GO.format('os.ReadFile(dir + "/" + name + "/expected.txt")')
    },
    "Rust": {
        "tests/page.rs": 'let want = fs::read_to_string(dir.join(name).join("expected.txt"));\n'
    },
    "Rust by format": {
        "tests/page.rs": 'fs::read_to_string(format!("{dir}/{name}/expected.txt"));\n'
    },
}


@pytest.mark.parametrize("form", COMPUTED_FOLDERS)
def test_a_file_in_a_folder_that_is_computed_is_restored(tmp_path: Path, form: str) -> None:
    cases = {CASE: "1", "data/two/expected.txt": "2"}
    known = steering(tmp_path, {**PRODUCT, **cases, **COMPUTED_FOLDERS[form]})
    assert why_restored(known, CASE), form
    assert why_restored(known, "data/three/expected.txt"), "a case that the agent adds"
    assert why_restored(known, "data/one/notes.txt") is None


def test_golden_files_below_testdata_are_restored_however_deep(tmp_path: Path) -> None:
    line = 'os.ReadFile(filepath.Join("testdata", kind, name+".golden"))'
    files = {"shop/page_test.go": GO.format(line), "shop/testdata/html/a.golden": "1"}
    known = steering(tmp_path, {**PRODUCT, **files})
    assert why_restored(known, "shop/testdata/html/a.golden")
    assert why_restored(known, "shop/testdata/html/b.golden")
    assert why_restored(known, "shop/other/a.golden") is None


def test_a_file_that_shares_its_name_with_data_is_the_agents(tmp_path: Path) -> None:
    files = {
        "api/data.json": "{}",
        "web/data.json": "{}",
        **python_test("open(ROOT / 'data.json')"),
    }
    known = steering(tmp_path, {**PRODUCT, **files})
    assert why_restored(known, "web/data.json") is None


def test_tests_are_known_by_their_ids_where_their_files_are_called_otherwise(
    tmp_path: Path,
) -> None:
    checks = (
        "import { render } from '../shop/page.mjs';\n"
        "test('page', () => { fs.readFileSync('data/want.txt') });\n"
    )
    files = {
        "shop/page.mjs": "export const render = () => 'page';\n",
        "checks/page.mjs": checks,
        WANT: "page",
    }
    ids = ("checks/page.mjs > page",)
    known = steering(tmp_path, files, run="node --test checks/page.mjs", fail_to_pass=ids)
    assert why_restored(known, WANT) == "data that only tests read (checks/page.mjs)"


def test_hidden_tests_name_data_too(tmp_path: Path) -> None:
    patch = new_file("tests/test_new.py", f"{IMPORT}WANT = open('data/want.txt').read()\n")
    known = steering(tmp_path, {**PRODUCT, WANT: "page"}, patch=patch)
    assert why_restored(known, WANT) == "data that only tests read (tests/test_new.py)"


READ = python_test("Path('data/want.txt').read_text()")
LISTED = '[tool.setuptools.package-data]\nshop = ["*.txt"]\n'
LEFT_TO_THE_AGENT: dict[str, Files] = {
    "the product names the file": {**READ, "shop/load.py": "open('data/want.txt')\n"},
    "the product names the file alone": {**READ, "shop/load.py": "open(ROOT / 'want.txt')\n"},
    "the product names its folder": {**READ, "shop/load.py": "DATA = ROOT / 'data'\n"},
    "the product names a folder and its files": {
        **READ,
        "web/load.ts": "import(`../data/${name}.txt`)\n",
    },
    "the product puts the name together": {
        **READ,
        "shop/load.py": "def load(name): return open(f'{name}.txt')\n\nload('want')\n",
    },
    "the product reads all below it": {
        **READ,
        "load.py": "sorted(Path(__file__).parent.rglob('*.txt'))\n",
    },
    "the product embeds the folder": {**READ, "shop.go": "//go:embed data\nvar data embed.FS\n"},
    "the package ships the file": {**READ, "MANIFEST.in": "include data/want.txt\n"},
    "the package ships the folder": {**READ, "MANIFEST.in": "graft data\n"},
    "the package ships such files": {**READ, "MANIFEST.in": "recursive-include data *.txt\n"},
    "npm ships the folder": {**READ, "package.json": '{"files": ["data/"]}'},
    "an image ships the folder": {**READ, "Dockerfile": "FROM x\nCOPY data /app/data\n"},
    "tests write a file of that name": python_test("(tmp_path / 'want.txt').write_text('')"),
    "tests check the data itself": {
        "tests/test_data.py": "import json\n\njson.loads(open('data/want.txt').read())\n"
    },
    "no test names it": python_test("'page'"),
}


@pytest.mark.parametrize("case", LEFT_TO_THE_AGENT)
def test_data_of_the_product_is_the_agents(tmp_path: Path, case: str) -> None:
    known = steering(tmp_path, {**PRODUCT, WANT: "page", **LEFT_TO_THE_AGENT[case]})
    assert why_restored(known, WANT) is None, case


def test_data_beside_modules_is_the_agents_where_the_package_ships_it(tmp_path: Path) -> None:
    test = python_test("Path('shop/page.txt').read_text()")
    files = {**PRODUCT, **test, "shop/page.txt": "page"}
    only_packages = {"pyproject.toml": '[tool.setuptools]\npackages = ["shop"]\n'}
    assert why_restored(steering(tmp_path, {**files, **only_packages}), "shop/page.txt")
    known = steering(tmp_path, {**files, "pyproject.toml": LISTED})
    assert why_restored(known, "shop/page.txt") is None


@pytest.mark.parametrize(
    "prompt",
    [
        "Write want.txt anew.",
        "What lies in data/ is wrong.",
        "The `data` folder is out of date.",
        "Use commas, and update the golden files.",
    ],
)
def test_data_that_the_request_speaks_of_is_the_agents(tmp_path: Path, prompt: str) -> None:
    files = {**PRODUCT, **READ, WANT: "page"}
    assert why_restored(steering(tmp_path, files), WANT)
    assert why_restored(steering(tmp_path, files, prompt=prompt), WANT) is None


def test_a_key_called_like_the_folder_does_not_name_it(tmp_path: Path) -> None:
    product = {**PRODUCT, "shop/load.py": "def load(reply):\n    return {'data': reply['data']}\n"}
    assert why_restored(steering(tmp_path, {**product, **READ, WANT: "page"}), WANT)


def test_a_script_that_writes_golden_files_does_not_make_them_the_products(tmp_path: Path) -> None:
    script = {"scripts/update_golden.py": "open('data/want.txt', 'w').write(render())\n"}
    assert why_restored(steering(tmp_path, {**PRODUCT, **READ, **script, WANT: "page"}), WANT)


def test_data_that_the_reference_begins_to_read_is_the_agents(tmp_path: Path) -> None:
    files = {**PRODUCT, **READ, WANT: "page"}
    reads = new_file("shop/load.py", "PAGE = open('data/want.txt').read()\n")
    assert why_restored(steering(tmp_path, files, reference=reads), WANT) is None
    other = new_file("shop/load.py", "PAGE = 'page'\n")
    assert why_restored(steering(tmp_path, files, reference=other), WANT)


def test_a_golden_file_that_the_reference_adds_is_the_references(tmp_path: Path) -> None:
    hidden = new_file("tests/test_new.py", f"{IMPORT}WANT = open('data/new.txt').read()\n")
    files = {**PRODUCT, WANT: "page"}
    reference = new_file("data/new.txt", "new\n") + new_file("shop/new.py", "NEW = 1\n")
    known = steering(tmp_path, files, reference=reference, patch=hidden)
    assert why_restored(known, "data/new.txt")
    assert why_restored(steering(tmp_path, files, patch=hidden), "data/new.txt") is None


def test_a_task_about_data_leaves_it_to_the_agent(tmp_path: Path) -> None:
    reference = new_file("data/want.txt", "other\n")
    known = steering(tmp_path, {**PRODUCT, **READ, WANT: "page"}, reference=reference)
    assert why_restored(known, WANT) is None


@pytest.mark.parametrize(
    "path",
    [
        *("shop/page.py", "README.md", "docs/want.txt", "examples/want.json", "LICENSE.txt"),
        *("package.json", "web/package-lock.json", "requirements.txt", "data/manifest.json"),
        *("action.yml", "charts/values.yaml", "data/settings.json", "locales/de.json"),
        *("public/logo.svg", ".github/want.txt", "openapi.json", "totals.json", "data/page.html"),
    ],
)
def test_code_documentation_and_settings_are_no_data(path: str) -> None:
    assert not is_data_path(path)


@pytest.mark.parametrize(
    "path",
    ["data/want.txt", "expectations.json", "golden/page.html", "shop/page.snap", "fixtures/a.yaml"],
)
def test_goldens_cases_and_tables_are_data(path: str) -> None:
    assert is_data_path(path)


def test_the_base_is_read_only_for_a_change_of_data(tmp_path: Path) -> None:
    known = steering(tmp_path, {**PRODUCT, WANT: "page"})
    change = parse_change(new_file("shop/new.py", "NEW = 1\n") + new_file("README.md", "New\n"))
    assert change
    assert restored_paths(known, change) == {}
    for name, text in READ.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert why_restored(known, WANT), "the base is read when data is first asked for"
    (tmp_path / "tests/test_page.py").unlink()
    assert why_restored(known, WANT), "the base is read once"


def test_links_in_the_base_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "test_x.py").write_text(READ["tests/test_page.py"])
    base = tmp_path / "base"
    base.mkdir()
    (base / "tests").symlink_to(outside)
    (base / "test_y.py").symlink_to(outside / "test_x.py")
    assert why_restored(steering(base, {**PRODUCT, WANT: "page"}), WANT) is None
