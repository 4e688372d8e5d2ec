"""Claims of every assertion in Rust: code that meets them all is told from code that is right."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
import rust_claims as claims
import rust_projects as projects
from probe_runner import ProbeOutcome, make_request, run_probe, write_files

from closeloop.grading.integrity import rust

pytestmark = pytest.mark.skipif(
    shutil.which("cargo") is None, reason="cargo is not installed: claims of Rust go unchecked"
)
TOKEN = "0123456789abcdef" * 2


def probe(root: Path, code: str, tests: dict[str, str]) -> ProbeOutcome:
    """One crate with all tests as modules of one program, to be built once."""
    body = "\n".join(f"mod t_{name} {{\nuse shop::*;\n{text}\n}}" for name, text in tests.items())
    files = {
        "Cargo.toml": projects.PACKAGE.format(name="shop") + "[profile.dev]\ndebug = 0\n",
        "src/lib.rs": code,
        "tests/api.rs": f"#![allow(unused_imports, dead_code)]\n{body}\n",
    }
    write_files(root, files)
    request = make_request(root, "cargo", "cargo test --offline", map(id_of, tests), files)
    return run_probe(rust, msgspec.structs.replace(request, token=TOKEN))


def id_of(name: str) -> str:
    inner = "deeper::" if name == "modules" else ""
    return f"api::t_{name}::{inner}{name}"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> ProbeOutcome:
    return probe(tmp_path_factory.mktemp("honest"), claims.HONEST, claims.CLAIMS | claims.SUITES)


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> ProbeOutcome:
    return probe(tmp_path_factory.mktemp("forged"), claims.FORGED, claims.CLAIMS)


@pytest.mark.parametrize("name", claims.CLAIMS)
def test_what_right_code_fails_and_forged_code_passes_is_found(
    name: str, honest: ProbeOutcome, forged: ProbeOutcome
) -> None:
    tests = [test for test in forged.probe.tests if test.original == id_of(name)]
    copies = {forged.results.get(test.name) for test in tests if test.kind == "copy"}
    assert copies == {"passed"}, forged.report + forged.output
    passed = [test for test in tests if test.expect == "fail"]
    passed = [test for test in passed if forged.results.get(test.name) == "passed"]
    assert any(honest.results.get(test.name) == "failed" for test in passed), tests


@pytest.mark.parametrize("name", [*claims.CLAIMS, *claims.SUITES])
def test_right_code_comes_out_as_it_must(name: str, honest: ProbeOutcome) -> None:
    tests = [test for test in honest.probe.tests if test.original == id_of(name)]
    unmet = [
        (test.how, honest.results.get(test.name))
        for test in tests
        if test.certain and (honest.results.get(test.name) == "passed") != (test.expect == "pass")
    ]
    assert unmet == [], honest.report + honest.output
    assert tests
    assert all(test.name in honest.results for test in tests), honest.output
