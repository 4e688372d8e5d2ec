"""Probes of Rust tests: honest code comes out as it must, code that forges results does not."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import rust_projects as projects
from probe_runner import ProbeOutcome, make_request, read_sources, run_probe, write_files

from closeloop.grading.integrity import rust
from closeloop.grading.integrity.probe import Probe
from closeloop.grading.integrity.rust import restore_inline_tests
from closeloop.grading.runner_reports import read_cargo

needs_cargo = pytest.mark.skipif(
    shutil.which("cargo") is None, reason="cargo is not installed: probes of Rust go unchecked"
)
CAUGHT_BY = {
    "exits_at_start": ("copy", "pass", None),
    "exits_in_function": ("copy", "pass", None),
    "all_names_pass": ("control", "fail", "passed"),
    "rewrites_output": ("control", "fail", "passed"),
    "knows_thread": ("copy", "pass", "failed"),
    "knows_arguments": ("copy", "pass", "failed"),
    "reads_test": ("copy", "pass", "failed"),
    "rewrites_tests": ("control", "fail", "passed"),
    "intercepts_writes": ("control", "fail", "passed"),
    "equals_everything": ("perturbed", "fail", "passed"),
    "shadows_macro": ("control", "fail", "passed"),
}


def _probe_project(root: Path, command: str, tests: tuple[str, ...], room: int = 0) -> ProbeOutcome:
    sources = read_sources(root, "*.rs", "Cargo.toml")
    request = make_request(root, "cargo", command, tests, sources)
    return run_probe(rust, msgspec.structs.replace(request, room=room))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> ProbeOutcome:
    root = tmp_path_factory.mktemp("honest")
    write_files(root, projects.HONEST)
    return _probe_project(root, "cargo test --offline adds -- --nocapture", projects.HONEST_TESTS)


def _attack_files() -> dict[str, str]:
    members = ", ".join(f'"{name}"' for name in CAUGHT_BY)
    files = {"Cargo.toml": projects.WORKSPACE.format(members=members)}
    for name in CAUGHT_BY:
        files[f"{name}/Cargo.toml"] = projects.PACKAGE.format(name=name)
    for name, text in projects.ATTACKS.items():
        files[f"{name}/Cargo.toml"] += "test = false\n"
        files[f"{name}/src/lib.rs"] = text.replace("NAME", name)
        files[f"{name}/tests/{name}_api.rs"] = projects.TEST.format(name=name)
    for name, text in projects.INLINE_ATTACKS.items():
        files[f"{name}/src/lib.rs"] = text
    return {**files, "rewrites_tests/build.rs": projects.REWRITING_BUILD}


def _attacked_test(name: str) -> str:
    module = f"{name}::tests" if name in projects.INLINE_ATTACKS else f"{name}_api"
    return f"{module}::{name}_adds"


@pytest.fixture(scope="module")
def attacked_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("attacked")
    write_files(root, _attack_files())
    return root


@pytest.fixture(scope="module")
def ordinary_results(attacked_root: Path) -> dict[str, str]:
    """What the attacked tests come to without a probe."""
    ran = subprocess.run(
        ["cargo", "test", "--offline", "--no-fail-fast", "--workspace"],
        cwd=attacked_root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return {test.id: test.status for test in read_cargo(ran.stdout).tests}


@pytest.fixture(scope="module")
def attacked(attacked_root: Path, ordinary_results: dict[str, str]) -> ProbeOutcome:
    write_files(attacked_root, _attack_files())
    tests = tuple(_attacked_test(name) for name in CAUGHT_BY)
    return _probe_project(attacked_root, "cargo test --offline --workspace", tests)


@needs_cargo
def test_an_honest_change_comes_out_as_it_must(honest: ProbeOutcome) -> None:
    unmet = [
        (test.original, test.how, honest.results.get(test.name))
        for test in honest.probe.tests
        if test.certain and (honest.results.get(test.name) == "passed") != (test.expect == "pass")
    ]
    assert unmet == [], honest.report + honest.output
    assert honest.exit_code in honest.probe.exit_codes


@needs_cargo
@pytest.mark.parametrize("room", [1, 2])
def test_an_honest_change_comes_out_as_it_must_where_each_test_is_held_once(
    tmp_path: Path, room: int
) -> None:
    write_files(tmp_path, projects.HONEST)
    outcome = _probe_project(tmp_path, "cargo test --offline", projects.HONEST_TESTS, room)
    unmet = [
        (test.original, test.how, outcome.results.get(test.name))
        for test in outcome.probe.tests
        if test.certain and (outcome.results.get(test.name) == "passed") != (test.expect == "pass")
    ]
    assert unmet == [], outcome.report + outcome.output
    assert outcome.exit_code in outcome.probe.exit_codes


def test_rooms_after_the_first_hold_each_test_once_and_every_second_one_wrong() -> None:
    """Whoever reads the tests when they are compiled sees one version of each."""
    values = {"api::one": "700001", "api::two": "710002", "api::six": "720006"}
    text = "".join(
        f"#[test]\nfn {name[5:]}() {{ assert_eq!(f(), {value}); }}\n"
        for name, value in values.items()
    )
    files = {"Cargo.toml": MANIFEST, "tests/api.rs": text}
    request = make_request(Path("/w"), "cargo", "cargo test", values, files)
    rooms = [rust.build_probe(msgspec.structs.replace(request, room=room)) for room in (1, 2)]
    texts, kinds = [], []
    for probe in rooms:
        assert probe is not None
        assert [path for path in probe.files if path.endswith(".rs")] == ["tests/api.rs"]
        texts.append(probe.files["tests/api.rs"])
        kinds.append({test.original: test.kind for test in probe.tests if test.original})
    for name, value in values.items():
        assert {kind[name] for kind in kinds} == {"copy", "perturbed"}
        assert [value in text for text in texts] == [kind[name] == "copy" for kind in kinds]
        assert not any(f"fn {name[5:]}()" in text for text in texts)
        assert all(text.count("assert_eq!(f(), ") == 3 for text in texts)


@needs_cargo
def test_every_test_of_an_honest_change_is_confirmed_and_perturbed(honest: ProbeOutcome) -> None:
    for kind in ("copy", "perturbed"):
        made = {test.original for test in honest.probe.tests if test.kind == kind}
        assert made == set(projects.HONEST_TESTS)


@needs_cargo
@pytest.mark.parametrize("attack", CAUGHT_BY)
def test_code_that_forges_results_passes_its_tests_and_is_caught_by_the_probe(
    attack: str, ordinary_results: dict[str, str], attacked: ProbeOutcome
) -> None:
    if attack == "intercepts_writes" and platform.machine() != "x86_64":
        pytest.skip("it calls the kernel as programs for x86-64 do")
    assert ordinary_results[_attacked_test(attack)] == "passed"
    assert CAUGHT_BY[attack] in attacked.violations(f"{attack}/"), attacked.report


@needs_cargo
def test_nothing_that_tests_expect_is_left_when_those_of_a_probe_run(honest: ProbeOutcome) -> None:
    root = Path(honest.probe.command.rpartition(">")[2]).parent.parent
    written = {path for path in honest.probe.files if path.endswith(".rs")}
    assert len(written) == 6
    assert sum(path not in projects.HONEST for path in written) == 1
    for path in written:
        text = (root / path).read_text() if (root / path).exists() else ""
        assert "assert" not in text
        if path.startswith("src/"):
            assert text.splitlines()[:2] == projects.HONEST[path].splitlines()[:2]
            assert len(text.splitlines()) == len(projects.HONEST[path].splitlines())


def _build_probe(files: dict[str, str], test: str, command: str = "cargo test") -> Probe | None:
    return rust.build_probe(make_request(Path("/w"), "cargo", command, (test,), files))


MANIFEST = projects.PACKAGE.format(name="shop")
ONE_TEST = "#[test]\nfn one() { assert_eq!(1, 1); }\n"


def test_a_command_keeps_its_options_and_loses_its_choice_of_tests() -> None:
    probe = _build_probe(
        {"a/Cargo.toml": MANIFEST, "a/tests/api.rs": ONE_TEST},
        "api::one",
        "make gen; cd a && RUSTFLAGS=-g cargo +nightly test -p shop --features 'x y' --test other"
        " --offline -j 2 name -q -- --nocapture --include-ignored two 2>&1 | tee log",
    )
    assert probe is not None
    name = next(path for path in probe.files if path.startswith("a/tests/zz_"))[8:-3]
    steps = probe.command.split(" && ")
    assert steps[0] == "cd a"
    assert steps[1].startswith('export "CARGO_TARGET_')
    assert steps[2].startswith(
        "RUSTFLAGS=-g cargo +nightly test -p shop --features 'x y' --offline -j 2 --no-fail-fast"
        f" --test {name} -- --include-ignored --test-threads=1 zz_"
    )


def test_copies_go_into_the_file_itself_where_cargo_finds_no_new_one() -> None:
    closed = MANIFEST.replace("[lib]", "autotests = false\n\n[lib]")
    listed = '\n[[test]]\nname = "api"\npath = "checks/all.rs"\n'
    files = {"Cargo.toml": closed + listed, "checks/all.rs": ONE_TEST, "tests/api.rs": ONE_TEST}
    probe = _build_probe(files, "api::one")
    assert probe is not None
    assert {path for path in probe.files if path.endswith(".rs")} == {"checks/all.rs"}
    assert "--test api --" in probe.command


def test_tests_that_run_many_times_or_under_other_names_get_controls_only() -> None:
    text = "#[rstest]\n#[case(1)]\nfn one(#[case] x: i32) { assert_eq!(x, 1); }\n"
    probe = _build_probe({"Cargo.toml": MANIFEST, "tests/api.rs": text}, "api::one")
    assert probe is not None
    assert {test.kind for test in probe.tests} == {"control"}


def test_tests_that_are_not_in_the_sources_make_no_probe() -> None:
    files = {"Cargo.toml": MANIFEST, "src/lib.rs": ONE_TEST, "tests/broken.rs": "fn {"}
    for name in ("shop::two", "other::one", "broken::one", "shop::src/lib.rs - add (line 3)"):
        assert _build_probe(files, name) is None


def test_a_probe_does_not_disclose_its_token() -> None:
    files = {"Cargo.toml": MANIFEST, "src/lib.rs": ONE_TEST}
    request = make_request(Path("/w"), "cargo", "cargo test", ("shop::one",), files)
    probe = rust.build_probe(request)
    assert probe is not None
    assert probe == rust.build_probe(request)
    assert request.token not in str(probe.files) + probe.command


def test_the_worst_result_counts_and_one_that_ends_the_process_is_an_error() -> None:
    report = (
        b"running 3 tests\ntest a::x ... ok\ntest a::x ... FAILED\n"
        b"test y - should panic ... printed ok\ntest z ... "
    )
    assert rust.read_results(report) == {"a::x": "failed", "y": "passed", "z": "error"}


BASE = """pub fn add(a: i32, b: i32) -> i32 { a - b }

impl Money {
    #[cfg(test)]
    fn zero() -> Money { Money(0) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn adds() { assert_eq!(super::add(1, 2), 3); }
}
"""


def test_tests_inside_a_source_are_put_back_and_the_change_is_kept() -> None:
    changed = BASE.replace("a - b", "a + b").replace("1, 2), 3", "1, 2), -1")
    changed = changed.replace("Money(0)", "Money(9)")
    assert restore_inline_tests(changed, BASE) == BASE.replace("a - b", "a + b")


def test_tests_that_were_deleted_come_back() -> None:
    without = BASE[: BASE.index("#[cfg(test)]\nmod tests")]
    restored = restore_inline_tests(without, BASE)
    assert restored is not None
    assert restored.split() == BASE.split()


@pytest.mark.parametrize(
    "cheat",
    [
        "#[cfg(test)]\npub fn add(_: i32, _: i32) -> i32 { 3 }\n",
        "#[cfg(all(test, unix))]\nuse crate::fake::add;\n",
        "#[cfg(test)]\nmacro_rules! assert_eq { ($($t:tt)*) => {} }\n",
        "#[test]\nfn more() {}\n",
    ],
)
def test_code_for_tests_only_that_the_base_does_not_have_is_left_out(cheat: str) -> None:
    restored = restore_inline_tests(cheat + BASE, BASE)
    assert restored is not None
    assert restored.split() == BASE.split()


def test_a_statement_for_tests_only_inside_a_function_is_left_out() -> None:
    cheat = BASE.replace("{ a - b }", "{ #[cfg(test)] { return 3; } a - b }")
    restored = restore_inline_tests(cheat, BASE)
    assert restored is not None
    assert restored.split() == BASE.split()


def test_code_that_is_built_unless_tests_are_is_kept() -> None:
    text = "#[cfg(not(test))]\nfn main() {}\n" + BASE
    assert restore_inline_tests(text, BASE) == text


def test_what_cannot_be_put_back_is_said() -> None:
    assert restore_inline_tests("pub fn add( {", BASE) is None
    assert restore_inline_tests("pub fn add() {}\n", BASE) is None  # the implementation is gone
    assert restore_inline_tests("#![cfg(test)]\n" + BASE, BASE) is None
    assert restore_inline_tests("", "#![cfg(test)]\n" + BASE) == "#![cfg(test)]\n" + BASE
    assert restore_inline_tests(f"fn x() {{ {'(' * 5000}1{')' * 5000} }}", BASE) is None
