"""hallucinated-name: every kind of name in every language, wrong by a slip and right."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import inspected

from closeloop.changes import names
from closeloop.records.finding import Finding

SHOP = {
    "shop/__init__.py": "",
    "shop/text.py": "def squeeze(text, width=80):\n    return ' '.join(text.split())[:width]\n",
    "shop/cart.py": (
        "class Cart:\n"
        "    def __init__(self):\n        self.entries = []\n\n"
        "    def total_price(self):\n        return sum(self.entries)\n"
    ),
    "shop/use.py": "import os\n\nfrom shop import text\nfrom shop.cart import Cart\n",
    "lib/money.ts": "export function roundUp(n: number) { return Math.ceil(n) }\n",
    "lib/use.tsx": "",
    "lib/use.ts": "import { roundUp } from './money'\nexport const one = roundUp(1).toFixed(2)\n",
    "go.mod": "module example.org/shop\n",
    "money/money.go": (
        "package money\n\ntype Price struct{ Cents int }\n\n"
        "func RoundUp(cents int) int { return cents }\n"
    ),
    "main.go": (
        "package main\n\n"
        'import (\n\t"fmt"\n\t"example.org/shop/money"\n)\n\n'
        "func main() { fmt.Println(money.RoundUp(1)) }\n"
    ),
    "src/main/java/org/shop/Money.java": (
        "package org.shop;\n\npublic class Money {\n"
        "  public static int roundUp(int cents) { return cents; }\n}\n"
    ),
    "src/main/java/org/shop/Use.java": (
        "package org.shop;\n\nimport java.util.List;\n\npublic class Use {\n"
        "  int total(List<Integer> all) { return Money.roundUp(all.size()); }\n}\n"
    ),
    "src/lib.rs": (
        "pub struct Price { pub cents: u32 }\n\n"
        "pub fn round_up(price: &Price) -> u32 { price.cents }\n\n"
        "pub fn twice(price: &Price) -> u32 { round_up(price) + price.cents }\n"
    ),
    "pyproject.toml": '[project]\nname = "shop"\nrequires-python = ">=3.11"\n\n'
    '[project.scripts]\nshop = "shop.cli:main"\n\n[tool.shop]\nround-up = true\n',
    "shop/cli.py": "import click\n\n\n@click.command()\n@click.option('--dry-run')\n"
    "@click.option('--round-up')\ndef main(dry_run, round_up):\n    print(dry_run, round_up)\n",
    "Makefile": "check:\n\truff check --output-format=github src\n",
}
ADDED = {
    "attribute of a module": ("shop/use.py", "print(text.{})", "squeeze", "squezee"),
    "attribute of a class": ("shop/use.py", "print(Cart().{})", "entries", "entires"),
    "method": ("shop/use.py", "print(Cart().{}())", "total_price", "totalPrice"),
    "set on a class": ("shop/use.py", "print(Cart.{})", "total_price", "total_pirce"),
    "standard library": ("shop/use.py", "print(os.{}())", "getcwd", "getcdw"),
    "in an f-string": ("shop/use.py", 'print(f"{{Cart().{}}}")', "entries", "entrise"),
    "imported name": ("shop/use.py", "from shop.text import {}", "squeeze", "squeezes"),
    "keyword": ("shop/use.py", "print(text.squeeze('a', {}=3))", "width", "witdh"),
    "builtin": ("shop/use.py", "print({}([1]))", "sorted", "sortde"),
    "variable": ("shop/use.py", "carts = []\nprint({})", "carts", "cartes"),
    "ts import": ("lib/use.ts", "import {{ {} as up }} from './money'", "roundUp", "rondUp"),
    "ts call": ("lib/use.ts", "console.log({}(2))", "roundUp", "roundUpp"),
    "ts method": ("lib/use.ts", "console.log(one.{}())", "trim", "tirm"),
    "ts global": ("lib/use.ts", "console.log({}.from([1]))", "Array", "Aray"),
    "go function": ("main.go", "var one = money.{}(2)", "RoundUp", "RuondUp"),
    "go standard library": ("main.go", "var two = fmt.{}(2)", "Sprint", "Sprnit"),
    "go field": ("money/money.go", "var Zero = Price{{{}: 0}}", "Cents", "Cetns"),
    "go type": ("money/money.go", "var Nil *{}", "Price", "Prize"),
    "java import": ("src/main/java/org/shop/Use.java", "import org.shop.{};", "Money", "Monye"),
    "java standard library": (
        "src/main/java/org/shop/Use.java",
        "import java.util.{};",
        "Optional",
        "Optinal",
    ),
    "java method": (
        "src/main/java/org/shop/Use.java",
        "class More {{ int one = Money.{}(1); }}",
        "roundUp",
        "roundpU",
    ),
    "rust function": (
        "src/lib.rs",
        "pub fn a(p: &Price) -> u32 {{ {}(p) }}",
        "round_up",
        "ruond_up",
    ),
    "rust field": ("src/lib.rs", "pub fn a(p: &Price) -> u32 {{ p.{} }}", "cents", "cetns"),
    "own option": ("Makefile", "\tshop --{} .", "dry-run", "dry-rum"),
    "negated option": ("Makefile", "\tshop --{} .", "no-dry-run", "no-dry-rum"),
    "other's option": (
        "Makefile",
        "\truff check --{}=github tests",
        "output-format",
        "ouput-format",
    ),
}


def found(folder: Path, path: str, line: str) -> list[Finding]:
    changed = {path: f"{SHOP[path]}{line}\n"}
    with inspected(folder, SHOP, changed) as inspection:
        return [one for one in names.check(inspection) if isinstance(one, Finding)]


@pytest.mark.parametrize(("path", "line", "right", "wrong"), ADDED.values(), ids=ADDED)
def test_a_slip_is_found_where_it_stands_and_the_real_name_is_told(
    tmp_path: Path, path: str, line: str, right: str, wrong: str
) -> None:
    last = SHOP[path].count("\n") + line.count("\n") + 1
    (finding,) = found(tmp_path, path, line.format(wrong))
    assert finding.places == (f"{path}:{last}",)
    assert f"`{wrong}`" in finding.message.replace("`--", "`")
    assert f"did you mean `{right}`?" in finding.message.replace("`--", "`")
    assert finding.severity in ("error", "warning")


@pytest.mark.parametrize("path", sorted({path for path, *_ in ADDED.values()}))
def test_the_same_lines_with_the_real_names_are_clean(tmp_path: Path, path: str) -> None:
    lines = [line.format(right) for at, line, right, _ in ADDED.values() if at == path]
    assert found(tmp_path, path, "\n".join(lines)) == []


@pytest.mark.parametrize(
    ("key", "real"), [("reqires-python", "requires-python"), ("requires_python", None)]
)
def test_a_key_is_compared_with_what_stood_in_its_table(
    tmp_path: Path, key: str, real: str | None
) -> None:
    changed = SHOP["pyproject.toml"].replace("requires-python", key)
    with inspected(tmp_path, SHOP, {"pyproject.toml": changed}) as inspection:
        told = [one.message for one in names.check(inspection) if isinstance(one, Finding)]
    assert told == (
        [f"`{key}` occurs nowhere else in the repository's settings; did you mean `{real}`?"]
        if real
        else []
    )


CLEAN = {
    "another form of a name": ("shop/use.py", "print(Cart().entries_v2 if False else 1)  # noqa"),
    "a library that is not here": ("shop/use.py", "import numpy\nprint(numpy.arange(3).reshap)"),
    "made by a string": ("shop/use.py", "setattr(Cart, 'entreis', 1)\nprint(Cart.entreis)"),
    "a target in brackets": ("shop/use.py", "with open('a') as (out, oct2):\n    print(out)"),
    "a pattern that captures": (
        "shop/use.py",
        "match os.sep:\n    case {'a': entriess, **others}:\n        print(entriess, others)",
    ),
    "an element of HTML": ("lib/use.tsx", "export const a = <div><b>1</b></div> as JSX.Element"),
    "what only PyPy has": ("shop/use.py", "import sys\nprint(sys.pypy_version_info)"),
    "a key of a format": ("shop/use.py", "print('{colour}'.format(colour=1))\ncolor = 1"),
    "an ambient type": ("lib/use.ts", "export let coding: BufferEncoding = 'utf8'"),
    "generated constants": (
        "src/main/java/org/shop/Use.java",
        "class C { void a(Kind k) { switch (k) { case ROUND_UP: } } }",
    ),
    "get beside set": ("shop/use.py", "def a(x):\n    x.set_colours(1)\n    x.get_colours()"),
    "another first letter": ("shop/cli.py", "def tell():\n    click.echo(1)\n    click.secho(2)"),
    "another letter": ("shop/use.py", "def a(x):\n    x.set_xlabel(1)\n    x.set_ylabel(1)"),
    "a word of what runs a script": ("lib/use.ts", "export const all = browse(1)"),
    "the plural of another's": ("lib/use.ts", "console.log(await build().logs, one.logs)"),
    "a namespace": (
        "lib/use.ts",
        "export let a: Shops.Arg\nexport namespace Shops { export type Arg = 1 }",
    ),
    "passed on": ("lib/use.ts", "export {\n  _up as up,\n} from '@shop/core'\nconst ups = 1"),
    "a crate that needs no import": ("src/lib.rs", "pub fn a() { hasher::fast::start(1) }"),
    "letters more": ("main.go", "func flags(f Flags) { f.Var(1); f.VarP(1) }\ntype Flags any"),
}


@pytest.mark.parametrize(("path", "line"), CLEAN.values(), ids=CLEAN)
def test_what_only_looks_like_a_slip_is_left_alone(tmp_path: Path, path: str, line: str) -> None:
    assert found(tmp_path, path, line) == []


@pytest.mark.parametrize("path", ["test/late/one.js", "test/late/fixtures/two.js"])
def test_what_a_test_runner_brings_is_defined_unless_it_is_a_slip(
    tmp_path: Path, path: str
) -> None:
    content = (
        "before(() => start(1))\nfunction start(n) { return n + 1 }\nsatrt(2)\nprepareAll(1)\n"
    )
    with inspected(tmp_path, {"a.txt": ""}, {path: content}) as inspection:
        told = [one.message for one in names.check(inspection) if isinstance(one, Finding)]
    slip = "`satrt` is not defined; did you mean `start`?"
    assert told == ([] if "fixtures" in path else [slip])


def test_a_name_that_all_files_use_and_none_makes_is_there_when_it_runs(tmp_path: Path) -> None:
    before = {"a/one.js": "export const one = askThePage(1)\n"}
    after = {"b/two.js": "export const two = askThePage(2)\n"}
    with inspected(tmp_path, before, after) as inspection:
        assert list(names.check(inspection)) == []


@pytest.mark.parametrize(
    ("path", "read"),
    [("tests/data/cases/a.py", True), ("tests/data/test_a.py", False), ("data/b.py", False)],
)
def test_sources_that_tests_only_read_need_not_make_sense(
    tmp_path: Path, path: str, read: bool
) -> None:
    content = "def give(items):\n    return itmes\n"
    with inspected(tmp_path, SHOP, {path: content}) as inspection:
        told = [one for one in names.check(inspection) if isinstance(one, Finding)]
    assert (told == []) is read


def test_a_file_that_defines_next_to_nothing_of_what_it_uses_is_a_sample(tmp_path: Path) -> None:
    words = ["apples", "berries", "cherries", "dates", "elders"]
    told = []
    for few in (words[:2], words):
        folder = tmp_path / str(len(few))
        folder.mkdir()
        content = "".join(f"print({word})\n" for word in few)
        with inspected(folder, {"a.txt": ""}, {"sample.py": content}) as inspection:
            told.append(len([one for one in names.check(inspection) if isinstance(one, Finding)]))
    assert told == [2, 0]


def test_a_name_that_the_line_had_before_is_no_news(tmp_path: Path) -> None:
    before = {"use.js": "export function a(t) {\n  t.regex(1)\n  t.regexp(1)\n}\n"}
    after = {"use.js": "export function a(t) {\n  t.regex(2)\n  t.regexp(1)\n}\n"}
    with inspected(tmp_path, before, after) as inspection:
        assert list(names.check(inspection)) == []


def test_an_import_is_held_against_what_the_file_goes_on_to_use(tmp_path: Path) -> None:
    content = "import { expcet } from 'vitest'\n\nexpect(1).toBe(1)\n"
    with inspected(tmp_path, {"a.txt": ""}, {"one.test.ts": content}) as inspection:
        told = [one for one in names.check(inspection) if isinstance(one, Finding)]
    assert "one.test.ts:1" in [place for one in told for place in one.places]
    assert any("did you mean `expect`?" in one.message for one in told)


@pytest.mark.parametrize(("package", "known"), [("", True), ("__path__ = []\n", False)])
def test_a_module_that_is_not_there_is_told_unless_others_may_add_it(
    tmp_path: Path, package: str, known: bool
) -> None:
    before = {"shop/__init__.py": package, "shop/text.py": "squeeze = 1\n"}
    after = {"use.py": "from shop.helpers import squeeze\n\nprint(squeeze)\n"}
    with inspected(tmp_path, before, after) as inspection:
        told = [one for one in names.check(inspection) if isinstance(one, Finding)]
    assert [one.places for one in told] == ([("use.py:1",)] if known else [])
