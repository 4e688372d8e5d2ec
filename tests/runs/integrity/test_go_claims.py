"""Claims of every assertion in Go: code that meets them all is told from code that is right."""

from __future__ import annotations

import shutil
from pathlib import Path

import go_claims as claims
import msgspec
import pytest
from probe_runner import ProbeOutcome, make_request, run_probe, write_files

from closeloop.grading.integrity import golang

pytestmark = pytest.mark.skipif(
    shutil.which("go") is None, reason="go is not installed: claims of Go tests go unchecked"
)
ENVIRONMENT = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
TOKEN = "0123456789abcdef" * 2


def probe(root: Path, code: str, tests: dict[str, str]) -> ProbeOutcome:
    """One module with a package for each test, each with the same code."""
    files = {"go.mod": "module m\n\ngo 1.18\n"}
    for name, text in tests.items():
        files[f"{name}/calc.go"] = code
        files[f"{name}/calc_test.go"] = claims.HEAD + text + "\n"
    write_files(root, files)
    wanted = [f"m/{name}/TestX" for name in tests]
    request = make_request(root, "go", "go test ./...", wanted, files)
    return run_probe(golang, msgspec.structs.replace(request, token=TOKEN), ENVIRONMENT)


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
    tests = [test for test in forged.probe.tests if test.original == f"m/{name}/TestX"]
    copies = {forged.results.get(test.name) for test in tests if test.kind == "copy"}
    assert copies == {"passed"}, forged.report + forged.output
    passed = [test for test in tests if test.expect == "fail"]
    passed = [test for test in passed if forged.results.get(test.name) == "passed"]
    assert any(honest.results.get(test.name) == "failed" for test in passed), tests


@pytest.mark.parametrize("name", [*claims.CLAIMS, *claims.SUITES])
def test_right_code_comes_out_as_it_must(name: str, honest: ProbeOutcome) -> None:
    tests = [test for test in honest.probe.tests if test.original == f"m/{name}/TestX"]
    unmet = [
        (test.how, honest.results.get(test.name))
        for test in tests
        if test.certain and (honest.results.get(test.name) == "passed") != (test.expect == "pass")
    ]
    assert unmet == [], honest.report + honest.output
    assert all(test.name in honest.results for test in tests), honest.output
