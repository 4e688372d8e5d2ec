"""hallucinated-name by the compilers of TypeScript, Go and Rust that the project's commands run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
from inspected import git, inspected, write

from closeloop.changes.change_check import CheckRequest
from closeloop.changes.names.compiled_names import add_compiled_names, parse_compiler_errors
from closeloop.changes.tool_comparison import ToolComparison, ToolResult
from closeloop.flow import check_change
from closeloop.records.change import ChangeReport, ToolRun, ToolState
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.settings import CommandSettings, SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool

SAID = {
    # What compilers print, the name that does not exist, and what they propose.
    "src/a.ts(3,5): error TS2551: Property 'lenght' does not exist on type 'string'."
    " Did you mean 'length'?": ("src/a.ts", 3, "lenght", "length"),
    "app/(one)/page.tsx:3:5 - error TS2304: Cannot find name 'frob'.": (
        "app/(one)/page.tsx",
        3,
        "frob",
        None,
    ),
    "\x1b[96ma.ts\x1b[0m:\x1b[93m1\x1b[0m:\x1b[93m10\x1b[0m - \x1b[91merror\x1b[0m\x1b[90m TS2724:"
    " \x1b[0m'\"./b\"' has no exported member named 'Fo'. Did you mean 'Foo'?": (
        "a.ts",
        1,
        "Fo",
        "Foo",
    ),
    "a.ts(2,1): error TS2345: Argument of type '{ a: 1; }' is not assignable.\n"
    "  Object literal may only specify known properties, and 'a' does not exist in type 'O'.": (
        "a.ts",
        2,
        "a",
        None,
    ),
    "a.ts(1,1): error TS2307: Cannot find module './nope' or its types.": (
        "a.ts",
        1,
        "./nope",
        None,
    ),
    "a.ts(7,1): error TS2554: Expected 1 arguments, but got 2.": ("a.ts", 7, None, None),
    "./a.go:11:10: undefined: strings.ToUppr": ("./a.go", 11, "strings.ToUppr", None),
    "a.go:3:4: x.Foo undefined (type T has no field or method Foo, but does have method foo)": (
        "a.go",
        3,
        "Foo",
        "foo",
    ),
    "vet: ./a.go:5:16: ErrorfAll not declared by package fmt": ("./a.go", 5, "ErrorfAll", None),
    "vet: ./a.go:5:22: undeclared name: frob": ("./a.go", 5, "frob", None),
    "vet: ./a.go:10:8: unknown field Nam in struct literal": ("./a.go", 10, "Nam", None),
    "a.go:6:2: no required module provides package github.com/no/such; to add it:": (
        "a.go",
        6,
        "github.com/no/such",
        None,
    ),
    "error[E0599]: no method named `to_uppr` found for struct `String` in the current scope\n"
    " --> src/lib.rs:6:12\n  |\n6 |     t.name.to_uppr();\n  |            ^^^^^^^\n  |\n"
    "help: there is a method `to_uppercase` with a similar name\n": (
        "src/lib.rs",
        6,
        "to_uppr",
        "to_uppercase",
    ),
    "error[E0609]: no field `nme` on type `T`\n --> src/lib.rs:8:15\n  |\n8 |     let x = t.nme;\n"
    "  |               ^^^ unknown field\n  |\nhelp: a field with a similar name exists\n  |\n"
    "8 |     let x = t.name;\n  |                +\n": ("src/lib.rs", 8, "nme", "name"),
}
NOT_INVENTED = (
    "a.ts(1,1): error TS2307: Cannot find module 'left-pad' or its corresponding types.",
    "a.ts(1,1): error TS2582: Cannot find name 'describe'. Do you need to install types?",
    "a.ts(1,1): error TS2345: Argument of type 'string' is not assignable to 'number'.",
    'a.go:3:2: "os" imported and not used',
    "./a.go:3:2: cannot use 1 (untyped int constant) as string value in argument to f",
    "error[E0308]: mismatched types\n --> src/lib.rs:3:4",
    "error[E0425]: cannot find value `x` in this scope",
    "error: aborting due to 2 previous errors",
)


@pytest.mark.parametrize(("output", "told"), SAID.items())
def test_what_a_compiler_cannot_find_is_read(
    output: str, told: tuple[str, int, str | None, str | None]
) -> None:
    (error,) = parse_compiler_errors(f"some words first\n{output}\n\nand last\n")
    assert (error.path, error.line, error.name, error.near) == told


@pytest.mark.parametrize("output", NOT_INVENTED)
def test_other_errors_and_what_is_not_installed_are_no_invented_names(output: str) -> None:
    assert not list(parse_compiler_errors(output))


def compared(before: str, after: str, state: ToolState = "failed") -> ToolComparison:
    """A command that printed this before and after the change."""
    failures = {"something": ""}
    return ToolComparison(
        before=ToolResult(state="failed" if before else "passed", output=before, failures=failures),
        after=ToolResult(state=state, output=after, failures=failures),
        run=ToolRun(name="build", command="go build ./...", after=state),
    )


def compile_change(folder: Path, comparison: ToolComparison) -> list[Finding | Unmeasured]:
    """What is added for a change of lines 3 and 4 of a file in a folder."""
    before = {"part/a.go": "package part\n\n", "part/b.go": "package part\n"}
    after = {"part/a.go": "package part\n\nvar x = frob()\nvar y = 1\n"}
    with inspected(folder, before, after) as inspection:
        return list(add_compiled_names(inspection, (), [comparison]))


def test_a_new_error_on_an_added_line_is_a_finding(tmp_path: Path) -> None:
    after = "# part\npart/a.go:3:9: undefined: frob\npart/a.go:1:9: undefined: grob\n"
    (finding,) = compile_change(tmp_path, compared("", after))
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.places) == ("error", ("part/a.go:3",))
    assert finding.message == "undefined: frob."


def test_what_two_commands_refuse_is_told_once(tmp_path: Path) -> None:
    vetted = "vet: part/a.go:3:9: Frob not declared by package fmt\n"
    after = f"part/a.go:3:9: undefined: fmt.Frob\n{vetted}"
    assert len(compile_change(tmp_path, compared("", after))) == 1


def test_paths_of_a_command_in_a_folder_are_found(tmp_path: Path) -> None:
    (finding,) = compile_change(tmp_path, compared("", "./a.go:3:9: undefined: frob\n"))
    assert isinstance(finding, Finding)
    assert finding.places == ("part/a.go:3",)


@pytest.mark.parametrize(
    "before",
    ["part/b.go:1:1: undefined: frob\n", "part/b.go:1:1: undefined: x\ntoo many errors\n"],
    ids=["said of another file", "not all was said"],
)
def test_what_was_missing_before_is_not_held_against_the_change(
    tmp_path: Path, before: str
) -> None:
    assert not compile_change(tmp_path, compared(before, "part/a.go:3:9: undefined: frob\n"))


def test_a_compiler_that_does_not_run_is_told(tmp_path: Path) -> None:
    (told,) = compile_change(tmp_path, compared("", "go: not found", "inert"))
    assert isinstance(told, Unmeasured)
    assert (
        told.reason
        == "Go's types: `go build ./...` gives no comparable result before and after: inert"
    )


def test_a_language_that_nothing_compiles_is_told(tmp_path: Path) -> None:
    with inspected(tmp_path, {"a.rs": ""}, {"a.rs": "fn f() {}\n"}) as inspection:
        (told,) = add_compiled_names(inspection, (), ())
    assert isinstance(told, Unmeasured)
    assert told.reason.startswith("Rust's types: no command of the project compiles it")


def check_project(
    folder: Path, before: Mapping[str, str], after: Mapping[str, str], build: str
) -> ChangeReport:
    """A check of a change with the project's own command, as people run it."""
    repository = folder / "repository"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    write(repository, before)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "Start")
    write(repository, after)
    order = CheckRequest(
        root=repository,
        cache=folder / "cache",
        tiers=("tools", "quality"),
        commands=CommandSettings(build=build),
    )

    async def check() -> ChangeReport:
        async with WorkspacePool(order.cache, SandboxSettings(kind="none")) as workspaces:
            return await check_change(order, workspaces)

    return anyio.run(check)


def list_invented(report: ChangeReport) -> dict[str, tuple[str, str]]:
    return {
        place: (one.severity, one.message)
        for one in report.findings
        if one.rule == "hallucinated-name"
        for place in one.places
    }


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_an_invented_name_of_go_is_an_error(tmp_path: Path) -> None:
    start = (
        "package shop\n\ntype Cart struct{ Size int }\n\n"
        "func Add(c Cart, n int) int { return c.Size + n }\n"
    )
    more = "\nfunc Use(c Cart) int {\n\tc.TakeAll()\n\treturn Add(c, 1, true)\n}\n"
    before = {"go.mod": "module example.org/shop\n\ngo 1.18\n", "shop.go": start}
    report = check_project(tmp_path, before, {"shop.go": start + more}, "go build ./...")
    told = list_invented(report)
    assert set(told) == {"shop.go:8", "shop.go:9"}, report.tools
    assert "`TakeAll`" in told["shop.go:8"][1] or "TakeAll undefined" in told["shop.go:8"][1]
    assert "too many arguments in call to Add" in told["shop.go:9"][1]
    assert {severity for severity, _ in told.values()} == {"error"}


def runs_cargo() -> bool:
    """Whether there is a cargo that works: a proxy without a toolchain is none."""
    cargo = shutil.which("cargo")
    if cargo is None:
        return False
    return subprocess.run([cargo, "-V"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not runs_cargo(), reason="Rust is not installed")
def test_an_invented_name_of_rust_is_an_error_with_what_was_meant(tmp_path: Path) -> None:
    start = "pub struct Cart {\n    pub size: usize,\n}\n"
    more = "\npub fn count(cart: &Cart) -> usize {\n    cart.sise\n}\n"
    manifest = '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n'
    before = {"Cargo.toml": manifest, "src/lib.rs": start}
    report = check_project(tmp_path, before, {"src/lib.rs": start + more}, "cargo check --offline")
    told = list_invented(report)
    assert set(told) == {"src/lib.rs:6"}, report.tools
    severity, message = told["src/lib.rs:6"]
    assert severity == "error"
    assert "did you mean `size`?" in message
    assert not [one for one in report.unmeasured if one.rule == "hallucinated-name"]


@pytest.mark.skipif(shutil.which("tsc") is None, reason="TypeScript is not installed")
def test_an_invented_name_of_typescript_is_an_error_with_what_was_meant(tmp_path: Path) -> None:
    start = "export interface Cart {\n  size: number;\n}\n"
    more = "\nexport const count = (cart: Cart): number => cart.sizes;\n"
    settings = '{"compilerOptions": {"strict": true, "types": []}, "include": ["src"]}\n'
    before = {"tsconfig.json": settings, "src/cart.ts": start}
    report = check_project(tmp_path, before, {"src/cart.ts": start + more}, "tsc --noEmit")
    told = list_invented(report)
    assert set(told) == {"src/cart.ts:5"}, report.tools
    severity, message = told["src/cart.ts:5"]
    assert severity == "error"
    assert "id you mean" in message
    assert "size" in message
