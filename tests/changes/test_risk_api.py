"""What callers notice of a change: names gone, renamed, or called differently."""

from __future__ import annotations

from pathlib import Path

import pytest
from risk_repository import Files, changed

from closeloop.changes.risk.api_changes import ApiChange, find_api_changes


def differences(folder: Path, before: Files, after: Files) -> list[ApiChange]:
    with changed(folder, before, after) as inspection:
        return find_api_changes(inspection)


def told(folder: Path, before: str, after: str, path: str = "pkg/days.py") -> list[str]:
    """What is said of one module of a package."""
    found = differences(folder / "r", {"pkg/__init__.py": "", path: before}, {path: after})
    return [f"{'' if one.breaking else 'soft: '}{one.text}" for one in found]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("def f(a): pass\nx = 1\n", "x = 1\n", ["removes `pkg.days.f`"]),
        ("def f(a): pass\n", "def f(a, b): pass\n", ["`pkg.days.f` now requires `b`"]),
        ("def f(a): pass\n", "def f(a, b=1, *, c=2): pass\n", []),
        ("def f(a, b): pass\n", "def f(a): pass\n", ["`pkg.days.f` no longer takes `b`"]),
        ("def f(a, b): pass\n", "def f(a, *args, **kw): pass\n", []),
        ("def f(a): pass\n", "def f(z): pass\n", ["`pkg.days.f` takes `z` where it took `a`"]),
        ("def f(a, /): pass\n", "def f(z, /): pass\n", []),
        ("def f(__a): pass\n", "def f(z, /): pass\n", []),
        ("def f(a, b=1): pass\n", "def f(a, b): pass\n", ["`pkg.days.f` now requires `b`"]),
        (
            "def f(a, b=1): pass\n",
            "def f(a, *, b=1): pass\n",
            ["`pkg.days.f` takes `b` by keyword only"],
        ),
        (
            "def f(a, b=1): pass\n",
            "def f(a, n=0, b=1): pass\n",
            ["`pkg.days.f` takes `b` at another position"],
        ),
        (
            "def f(b=1): pass\n",
            "def f(b=2): pass\n",
            ["soft: `pkg.days.f` defaults `b` to `2`, was `1`"],
        ),
        ("def f(b='x'): pass\n", 'def f(b="x"): pass\n', []),
        ("def f(*args): pass\n", "def f(a, *args): pass\n", []),
        ("def f(a: int) -> int: pass\n", "def f(a: str) -> str: pass\n", []),
        ("def f(): pass\n", "async def f(): pass\n", ["`pkg.days.f` must now be awaited"]),
        (
            "class C:\n    def m(self): pass\n    x = 1\n",
            "class C:\n    x = 1\n",
            ["removes `pkg.days.C.m`"],
        ),
        (
            "class C:\n    def m(self): pass\n",
            "class C:\n    @property\n    def m(self): pass\n",
            ["`pkg.days.C.m` is now a property, was a function"],
        ),
        (
            "class C:\n    def __init__(self, a): pass\n",
            "class C:\n    def __init__(self, a, b): pass\n",
            ["`pkg.days.C` now requires `b`"],
        ),
        (
            "class B:\n    pass\nclass C(B):\n    def m(self): pass\n",
            "class B:\n    def m(self): pass\nclass C(B):\n    pass\n",
            [],
        ),
        ("def _f(): pass\nx = 1\n", "x = 1\n", []),
        ("__all__ = ['a']\na = b = 1\n", "__all__ = ['a']\na = 1\n", []),
        ("__all__ = ['a', 'b']\na = b = 1\n", "__all__ = ['a']\na = b = 1\n", []),
        ("T = TypeVar('T')\nx = 1\n", "x = 1\n", []),
        ("def f(): pass\n", "f = made_elsewhere()\n", []),
        ("def f(): pass\n", "from .other import f\n", []),
        ("def f(): pass\n", "def __getattr__(name):\n    if name == 'f': return g\n", []),
        ("def f(a:\n", "x = (\n", []),
    ],
)
def test_python_callers_are_told_what_breaks(
    tmp_path: Path, before: str, after: str, expected: list[str]
) -> None:
    assert told(tmp_path, before, after) == expected


def test_a_removal_that_was_announced_is_told_as_such(tmp_path: Path) -> None:
    before = {
        "pkg/__init__.py": "",
        "pkg/a.py": '''
            def old():
                """.. deprecated:: 2.0"""
            def warned():
                warnings.warn("x", DeprecationWarning)
            def plain(): pass
            ''',
    }

    found = differences(tmp_path / "r", before, {"pkg/a.py": "x = 1\n"})

    assert {one.name: one.announced for one in found} == {
        "pkg.a.old": True,
        "pkg.a.warned": True,
        "pkg.a.plain": False,
    }


def test_a_name_of_a_private_module_is_public_where_the_package_hands_it_on(tmp_path: Path) -> None:
    before = {
        "src/pkg/__init__.py": "from ._client import Client\nfrom ._star import *\n",
        "src/pkg/_client.py": """
            class Base:
                def get(self, url): pass
            class Client(Base): pass
            class Hidden: pass
            """,
        "src/pkg/_star.py": "__all__ = ['shine']\ndef shine(a): pass\ndef dull(a): pass\n",
    }
    after = {
        "src/pkg/_client.py": "class Base: pass\nclass Client(Base): pass\n",
        "src/pkg/_star.py": "__all__ = ['shine']\ndef shine(): pass\n",
    }

    found = differences(tmp_path / "r", before, after)

    assert [one.text for one in found] == [
        "removes `pkg.Client.get`",
        "`pkg.shine` no longer takes `a`",
    ]


def test_a_function_that_moved_but_is_still_there_for_callers_is_no_break(tmp_path: Path) -> None:
    before = {"pkg/__init__.py": "", "pkg/a.py": "def f(x): pass\n", "pkg/b.py": "y = 1\n"}
    after = {"pkg/a.py": "from .b import f\n", "pkg/b.py": "y = 1\ndef f(x): pass\n"}

    assert differences(tmp_path / "r", before, after) == []


def test_a_package_that_moves_to_another_folder_keeps_its_names(tmp_path: Path) -> None:
    code = "".join(f"def name{number}(a, b): return {number}\n" for number in range(20))
    before = {"pkg/__init__.py": "from .a import name1\n", "pkg/a.py": code}
    after: Files = {
        "pkg/__init__.py": None,
        "pkg/a.py": None,
        "src/pkg/__init__.py": "from .a import name1\n",
        "src/pkg/a.py": code,
    }

    assert differences(tmp_path / "r", before, after) == []


def test_a_package_that_is_gone_is_one_break(tmp_path: Path) -> None:
    before = {
        "top.py": "",
        "pkg/__init__.py": "",
        "pkg/a.py": "x = 1\n",
        "pkg/sub/__init__.py": "y = 1\n",
    }
    after: Files = dict.fromkeys(name for name in before if name != "top.py")

    assert [one.text for one in differences(tmp_path / "r", before, after)] == [
        "removes module `pkg`"
    ]


def test_a_renamed_function_is_told_as_renamed(tmp_path: Path) -> None:
    body = "(text, sep):\n    parts = text.split(sep)\n"
    body += "    return [part.strip() for part in parts if part]\n"

    assert told(tmp_path, f"def split_words{body}", f"def words{body}") == [
        "renames `pkg.days.split_words` to `pkg.days.words`"
    ]


@pytest.mark.parametrize(
    "path", ["tests/test_a.py", "pkg/_private.py", "docs/conf.py", "setup.py", "scripts/x.py"]
)
def test_what_nobody_imports_is_no_api(tmp_path: Path, path: str) -> None:
    assert told(tmp_path, "def f(): pass\nx = 1\n", "x = 1\n", path) == []


def test_go_packages_are_compared_as_a_whole(tmp_path: Path) -> None:
    before = {
        "go.mod": "module x\n",
        "text/a.go": """
            package text
            type Item struct { Name string; size int; Count int }
            func Join(a, b string) string { return a }
            func Split(s string) []string { return nil }
            func (i *Item) Show(n int) error { return nil }
            // Deprecated: use Join.
            func Old() {}
            func hidden() {}
            """,
        "text/b.go": "package text\n",
        "internal/c.go": "package internal\nfunc Gone() {}\n",
        "main.go": "package main\nfunc Main() {}\n",
    }
    after = {
        "text/a.go": """
            package text
            type Item struct { Name string; Count int64 }
            func Join(first string, second string, more ...string) string { return first }
            func (i *Item) Show(n string) error { return nil }
            """,
        "text/b.go": "package text\nfunc Split(text string) []string { return nil }\n",
        "internal/c.go": "package internal\n",
        "main.go": "package main\n",
    }

    found = differences(tmp_path / "r", before, after)

    assert [(one.text, one.breaking, one.announced) for one in found] == [
        ("`text.Item.Count` is `int64`, was `int`", True, False),
        ("`text.Join` takes (string, string, ...string), took (string, string)", False, False),
        ("`text.Item.Show` takes (string), took (int)", True, False),
        ("removes `text.Old`", True, True),
    ]


def test_go_aliases_are_the_types_they_stand_for(tmp_path: Path) -> None:
    before = {"a.go": "package a\nfunc F(names []string, f func(n int) error) {}\n"}
    after = {
        "a.go": """
            package a
            type Name = string
            type Call = func(int) error
            func F(names []Name, f Call) {}
            """
    }

    assert differences(tmp_path / "r", before, after) == []


def test_java_overloads_are_told_apart(tmp_path: Path) -> None:
    path = "src/main/java/com/x/Json.java"
    before = """
        package com.x;
        public class Json {
            public static final int MAX = 1;
            public String write(Object value) { return ""; }
            public String write(Object value, int depth) { return ""; }
            @Deprecated public void old() {}
            protected void hook() {}
            void inside() {}
            private int x;
        }
        class Hidden { public void m() {} }
        """
    after = """
        package com.x;
        public class Json {
            public static final int MAX = 1;
            public String write(Object input) { return ""; }
            public String write(Object value, long depth) { return ""; }
        }
        """

    found = differences(tmp_path / "r", {path: before}, {path: after})

    assert [(one.text, one.announced) for one in found] == [
        ("`Json.write(Object, int)` is now `Json.write(Object, long)`", False),
        ("removes `Json.old()`", True),
        ("removes `Json.hook()`", False),
    ]


def test_only_what_entries_export_is_the_api_of_a_script_package(tmp_path: Path) -> None:
    before = {
        "package.json": '{"name": "x", "exports": {"default": "./dist/source/index.js"}}',
        "source/index.ts": """
            export * from './core.js';
            export {default as make} from './make.js';
            export {inner};
            """,
        "source/core.ts": """
            export function parse(text: string, strict = false): number { return 1 }
            export class Client { get(url: string) {} private hidden() {} #secret = 1; limit = 3 }
            export interface Shape { a: number }
            export const twice = (n: number) => n * 2
            """,
        "source/make.ts": "export default function make(a: string) {}\n",
        "source/private.ts": "export function unseen() {}\n",
    }
    after = {
        "source/core.ts": """
            export function parse(text: string, strict: boolean): number { return 1 }
            export class Client { limit = 3 }
            export const twice = (n: number, by = 2) => n * by
            """,
        "source/make.ts": "export default function make(a: string, b: string) {}\n",
        "source/private.ts": "\n",
    }

    found = differences(tmp_path / "r", before, after)

    assert {one.name: (one.kind, one.breaking) for one in found} == {
        "parse": ("signature", True),
        "Client.get": ("removed", True),
        "Shape": ("removed", True),
        "twice": ("signature", False),
        "make": ("signature", True),
    }


def test_rust_names_are_public_by_their_modules_or_by_use(tmp_path: Path) -> None:
    before = {
        "Cargo.toml": '[package]\nname = "x"\n',
        "src/lib.rs": "pub mod open;\nmod closed;\npub use closed::Handed;\n",
        "src/open.rs": """
            pub struct Item { pub name: String, size: u8 }
            impl Item { pub fn new(n: u8) -> Self { todo!() } fn x() {} }
            pub(crate) fn own() {}
            """,
        "src/closed.rs": """
            pub struct Handed;
            impl Handed { pub fn go(&self) {} }
            pub struct Kept;
            """,
        "src/main.rs": "pub fn main() {}\n",
    }
    after = {
        "src/open.rs": """
            pub struct Item { size: u8 }
            impl Item { pub fn new(n: u16) -> Self { todo!() } }
            """,
        "src/closed.rs": "pub struct Handed;\n",
    }

    found = differences(tmp_path / "r", before, after)

    assert [one.text for one in found] == [
        "removes `x::Handed::go`",
        "removes `x::open::Item::name`",
        "`x::open::Item::new` takes (u16), took (u8)",
    ]


@pytest.mark.parametrize(
    "path", ["pkg/a.py", "a.go", "A.java", "src/lib.rs", "index.ts", "index.js"]
)
def test_sources_that_are_no_sources_break_nothing(tmp_path: Path, path: str) -> None:
    before = {
        "pkg/__init__.py": "",
        "package.json": "{}",
        "go.mod": "module x",
        path: b"\xff\xfe def class {",
    }
    after = {path: b"((((" * 4000 + b"\x00"}

    assert isinstance(differences(tmp_path / "r", before, after), list)


def test_a_constant_that_nobody_hands_on_weighs_less(tmp_path: Path) -> None:
    before = {
        "pkg/__init__.py": "from .a import HANDED, LIMIT\nLIMIT = 1\n",
        "pkg/a.py": "HANDED = 1\nLIMIT = 2\nOWN = 3\nx = 1\n",
        "pkg/b.py": "__all__ = ['LISTED']\nLISTED = 1\n",
    }
    after = {
        "pkg/__init__.py": "LIMIT = 1\n",
        "pkg/a.py": "LIMIT = 2\nx = 1\n",
        "pkg/b.py": "__all__ = []\n",
    }

    found = differences(tmp_path / "r", before, after)

    assert {one.name: one.breaking for one in found} == {
        "pkg.HANDED": True,
        "pkg.a.OWN": False,
        "pkg.b.LISTED": True,
    }


def test_context_managers_and_generators_are_not_awaited(tmp_path: Path) -> None:
    before = "def f(): return Managed()\ndef g(): return Items()\n"
    after = "@asynccontextmanager\nasync def f():\n    yield 1\nasync def g():\n    yield 1\n"

    assert told(tmp_path, before, after) == []


def test_what_a_base_from_elsewhere_may_bring_is_not_missed(tmp_path: Path) -> None:
    before = """
        class Plugin(other.Base):
            def hook(self): pass
        class Error(Exception):
            def show(self): pass
            def with_traceback(self, tb): pass
        class Held:
            name: str
        """
    after = """
        class Plugin(other.Base): pass
        class Error(Exception): pass
        class Held:
            def __init__(self):
                self.name = "x"
        """

    assert told(tmp_path, before, after) == ["removes `pkg.days.Error.show`"]


def test_what_a_base_class_loses_is_told_once_and_of_the_base(tmp_path: Path) -> None:
    before = {
        "pkg/__init__.py": "",
        "pkg/base.py": "class Mixin:\n    def key(self): pass\n",
        "pkg/a.py": "from pkg.base import Mixin\nclass Able(Mixin): pass\n"
        "class Baker(Able): pass\n",
    }
    after = {
        "pkg/base.py": "class Mixin: pass\n",
        "pkg/a.py": "from pkg.base import Mixin\nclass Able(Mixin):\n    x = 1\n",
    }

    found = differences(tmp_path / "r", before, after)

    assert [one.text for one in found] == [
        "removes class `pkg.a.Baker`",
        "removes `pkg.base.Mixin.key`",
    ]


def test_a_mark_on_a_method_does_not_hide_it(tmp_path: Path) -> None:
    before = {
        "pkg/__init__.py": "",
        "pkg/a.py": "class A:\n    def save(self, *args, now=1): pass\n    save.alters = True\n",
    }
    after = {"pkg/a.py": "class A:\n    def save(self, *, now=1): pass\n    save.alters = True\n"}

    (found,) = differences(tmp_path / "r", before, after)

    assert found.text == "`pkg.a.A.save` no longer takes more by position (`args`)"


def test_a_member_is_gone_though_the_base_is_a_known_one_from_elsewhere(tmp_path: Path) -> None:
    text = "import typing\nclass H(typing.MutableMapping[str, str]):\n    def items(self): pass\n"
    before = {"pkg/__init__.py": "", "pkg/a.py": text + "    def getlist(self): pass\n"}

    found = differences(
        tmp_path / "r", before, {"pkg/a.py": text.replace("def items", "def other")}
    )

    assert [one.text for one in found] == ["removes `pkg.a.H.getlist`"]


def test_in_go_any_takes_what_was_taken_before_and_is_the_empty_interface(tmp_path: Path) -> None:
    before = {
        "a.go": "package a\nfunc Get(key string) (error) { return nil }\n"
        "var Print func(format string, values ...interface{})\n"
    }
    after = {
        "a.go": "package a\nfunc Get(key any) error { return nil }\n"
        "var Print func(text string, values ...any)\n"
    }

    (found,) = differences(tmp_path / "r", before, after)

    assert found.text == "`Get` takes (any), took (string)"
    assert not found.breaking


def test_a_source_and_its_stub_are_each_compared_with_themselves(tmp_path: Path) -> None:
    """As in attrs: the stub of a class lists what a decorator makes at run time."""
    source = "def define(cls=None, **options):\n    return cls\n"
    stub = "def define(cls: type, *, slots: bool = ...) -> type: ...\ndef extra() -> None: ...\n"
    before = {"pkg/__init__.py": "", "pkg/days.py": source, "pkg/days.pyi": stub}

    assert differences(tmp_path / "a", before, {"pkg/days.pyi": stub + "x: int\n"}) == []
    assert differences(tmp_path / "b", before, {"pkg/days.py": source + "x = 1\n"}) == []
    gone = differences(
        tmp_path / "c",
        before,
        {"pkg/days.pyi": "def extra() -> None: ...\n", "pkg/days.py": "x = 1\n"},
    )
    assert [one.text for one in gone] == ["removes `pkg.days.define`"]


@pytest.mark.parametrize(
    "decorators",
    [
        "@click.command()\n@click.option('--name')\n",
        "@main.command('show')\n",
        "@cli.group()\n",
        "@app.command()\n",
        "@click.pass_context\n",
    ],
)
def test_a_command_of_click_or_typer_is_called_by_nobody(tmp_path: Path, decorators: str) -> None:
    before = f"{decorators}def show(name):\n    pass\n"

    assert told(tmp_path, before, before.replace("(name)", "(name, colour, *, size)")) == []
