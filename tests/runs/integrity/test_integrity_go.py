"""Probes of Go tests: honest code comes out as it must, code that forges results does not."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import go_projects as projects
import msgspec
import pytest
from probe_runner import ProbeOutcome, make_request, read_sources, run_probe, write_files

from closeloop.grading.integrity import golang
from closeloop.grading.runner_reports import read_go

pytestmark = pytest.mark.skipif(
    shutil.which("go") is None, reason="go is not installed: probes of Go tests go unchecked"
)
ENVIRONMENT = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
CAUGHT_BY = {
    "exit_in_init": ("copy", "pass", None),
    "exit_in_the_function": None,  # by whatever would have run after it
    "all_names_pass": ("control", "fail", "passed"),
    "known_names_on_the_stack": ("copy", "pass", "failed"),
    "right_unless_tests_are_chosen": ("copy", "pass", "failed"),
    "reads_its_test": ("copy", "pass", "failed"),
    "embeds_its_test": ("perturbed", "fail", "passed"),
    "runs_no_test": ("copy", "pass", None),
    "rewrites_its_output": ("control", "fail", "passed"),
    "patches_the_runner": ("control", "fail", "passed"),
    "equals_everything": ("perturbed", "fail", "passed"),
    "replaces_testify": ("perturbed", "fail", "passed"),
}


def _probe_project(root: Path, command: str, tests: tuple[str, ...], room: int = 0) -> ProbeOutcome:
    sources = read_sources(root, "*_test.go", "go.mod")
    request = make_request(root, "go", command, tests, sources)
    return run_probe(golang, msgspec.structs.replace(request, room=room), ENVIRONMENT)


def _probe_file(test_text: str, command: str = "go test ./...") -> tuple[str, list[str]]:
    """The command and the ways in which a file's TestX is made wrong."""
    sources = {"go.mod": "module m\n", "a/a_test.go": test_text}
    request = make_request(Path("/w"), "go", command, ("m/a/TestX",), sources)
    probe = golang.build_probe(request)
    assert probe is not None
    return probe.command, [test.how for test in probe.tests if test.kind == "perturbed"]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> ProbeOutcome:
    root = tmp_path_factory.mktemp("honest")
    write_files(root, {"go.mod": projects.MODULE, **projects.TESTIFY, **projects.HONEST})
    return _probe_project(root, "cd calc && go test -v ./... | tee log", projects.HONEST_TESTS)


@pytest.fixture(scope="module")
def attacked_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("attacked")
    files = {"go.mod": projects.MODULE, **projects.TESTIFY}
    files["third_party/testify/assert/assert.go"] = projects.TESTIFY_ATTACK
    for name, text in projects.ATTACKS.items():
        code = text if "func Add(" in text else text + projects.BROKEN
        files[f"attacks/{name}/calc.go"] = code
        files[f"attacks/{name}/calc_test.go"] = projects.ATTACKED_TEST
    files["attacks/patches_the_runner/empty.s"] = ""
    files["attacks/equals_everything/calc.go"] = projects.EQUAL_ATTACK
    files["attacks/equals_everything/calc_test.go"] = projects.EQUAL_TEST
    files["attacks/replaces_testify/calc.go"] = "package calc\n\n" + projects.BROKEN
    files["attacks/replaces_testify/calc_test.go"] = projects.TESTIFY_TEST
    write_files(root, files)
    return root


@pytest.fixture(scope="module")
def ordinary_results(attacked_root: Path) -> dict[str, str]:
    """What the attacked tests come to without a probe."""
    ran = subprocess.run(
        ["go", "test", "-json", "-vet=off", "-count=1", "./attacks/..."],
        cwd=attacked_root,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        check=False,
    )
    return {test.id: test.status for test in read_go(ran.stdout + ran.stderr).tests}


@pytest.fixture(scope="module")
def attacked(attacked_root: Path, ordinary_results: dict[str, str]) -> ProbeOutcome:
    tests = tuple(f"example.com/shop/attacks/{name}/TestAdd" for name in CAUGHT_BY)
    return _probe_project(attacked_root, "go test ./...", tests)


def test_an_honest_change_comes_out_as_it_must(honest: ProbeOutcome) -> None:
    unmet = [
        (test.original, test.how, honest.results.get(test.name))
        for test in honest.probe.tests
        if test.certain and (honest.results.get(test.name) == "passed") != (test.expect == "pass")
    ]
    assert unmet == [], honest.report + honest.output
    assert honest.exit_code in honest.probe.exit_codes


@pytest.mark.parametrize("room", [1, 2])
def test_an_honest_change_comes_out_as_it_must_where_each_test_is_held_once(
    tmp_path: Path, room: int
) -> None:
    write_files(tmp_path, {"go.mod": projects.MODULE, **projects.TESTIFY, **projects.HONEST})
    outcome = _probe_project(tmp_path, "go test ./...", projects.HONEST_TESTS, room)
    unmet = [
        (test.original, test.how, outcome.results.get(test.name))
        for test in outcome.probe.tests
        if test.certain and (outcome.results.get(test.name) == "passed") != (test.expect == "pass")
    ]
    assert unmet == [], outcome.report + outcome.output
    assert outcome.exit_code in outcome.probe.exit_codes


def test_rooms_after_the_first_hold_each_test_once_and_every_second_one_wrong() -> None:
    """Whoever reads the tests when they are compiled sees one version of each."""
    text = 'package a\n\nimport "testing"\n\n' + "".join(
        f"func Test{name}(t *testing.T) {{ if F() != {value} {{ t.Fatal() }} }}\n"
        for name, value in (("One", 700001), ("Two", 710002), ("Six", 720006))
    )
    tests = ("m/a/TestOne", "m/a/TestTwo", "m/a/TestSix")
    sources = {"go.mod": "module m\n", "a/a_test.go": text}
    request = make_request(Path("/w"), "go", "go test ./...", tests, sources)
    rooms = [golang.build_probe(msgspec.structs.replace(request, room=room)) for room in (1, 2)]
    texts, kinds = [], []
    for probe in rooms:
        assert probe is not None
        assert [path for path in probe.files if path.endswith(".go")] == ["a/a_test.go"]
        texts.append(probe.files["a/a_test.go"])
        kinds.append({test.original: test.kind for test in probe.tests if test.original})
    for name, value in zip(tests, ("700001", "710002", "720006"), strict=True):
        assert {kind[name] for kind in kinds} == {"copy", "perturbed"}
        assert [value in text for text in texts] == [kind[name] == "copy" for kind in kinds]
        assert not any(name.rpartition("/")[2] in text for text in texts)
        assert all(text.count("F()") == 3 for text in texts)


def test_every_test_of_an_honest_change_is_confirmed_and_perturbed(honest: ProbeOutcome) -> None:
    copied = {test.original for test in honest.probe.tests if test.kind == "copy"}
    perturbed = {test.original for test in honest.probe.tests if test.kind == "perturbed"}
    assert copied == set(projects.HONEST_TESTS)
    assert perturbed == copied


def test_nearly_all_values_that_are_likely_to_matter_do(honest: ProbeOutcome) -> None:
    likely = [test for test in honest.probe.tests if not test.certain]
    failed = [test for test in likely if honest.results[test.name] == "failed"]
    assert len(likely) >= 8
    assert len(failed) >= 0.7 * len(likely)


def test_the_sources_of_a_probe_are_gone_before_its_tests_run(honest: ProbeOutcome) -> None:
    root = Path(honest.probe.command.rpartition(">")[2]).parent.parent
    written = {path for path in honest.probe.files if path.endswith("_test.go")}
    assert len(written) == 4
    assert [path for path in written if (root / path).exists()] == ["dotted/dotted_test.go"]
    assert (root / "dotted/dotted_test.go").read_text() == "package dotted_test\n"
    originals = [path for path in projects.HONEST if path.endswith("_test.go")]
    left = {path: (root / path).read_text() for path in originals}
    emptied = [path for path in originals if len(left[path].splitlines()) == 1]
    assert len(emptied) == len(written)


@pytest.mark.parametrize("attack", CAUGHT_BY)
def test_code_that_forges_results_passes_its_tests_and_is_caught_by_the_probe(
    attack: str, ordinary_results: dict[str, str], attacked: ProbeOutcome
) -> None:
    if attack == "patches_the_runner" and platform.machine() != "x86_64":
        pytest.skip("the patch is machine code of x86-64")
    assert ordinary_results[f"example.com/shop/attacks/{attack}/TestAdd"] == "passed"
    found = attacked.violations(f"attacks/{attack}/")
    assert found, attacked.report
    assert CAUGHT_BY[attack] in (None, *found), attacked.report


def test_a_command_keeps_its_options_and_loses_its_choice_of_tests() -> None:
    command, _ = _probe_file(
        'package a\nimport "testing"\nfunc TestX(t *testing.T) {}\n',
        "make gen; cd sub && CGO_ENABLED=0 go test -race -tags 'a b' -run TestY -count 3 -json"
        " -timeout=5m ./a ./b -args -update 2>&1 | tee log; go vet",
    )
    call = command.splitlines()[2]
    assert call.startswith("( cd sub && cd /w && CGO_ENABLED=0 go test -race -tags 'a b' -timeout")
    assert call.endswith("./a -args -update )")
    for dropped in ("TestY", "-count 3", "-json", "./b", "tee", "vet ", "gen"):
        assert dropped not in call


def test_only_what_a_passing_test_surely_reaches_is_inverted() -> None:
    _, ways = _probe_file("""package a
import "testing"
func TestX(t *testing.T) {
	if short { return }
	if F() != 7 { t.Fatal() }
	for _, x := range list { if x != 8 { t.Fatal() } }
}
""")
    assert sorted(re.sub(r"^\d+ ", "", way) for way in ways) == [
        "failure added at the end",
        "for 7 in line 5",
        "for 8 in line 6",
    ]


def test_a_loop_over_a_table_that_is_written_out_is_surely_reached() -> None:
    _, ways = _probe_file("""package a
import "testing"
func TestX(t *testing.T) {
	table := []int{1, 2}
	for _, x := range table {
		if x == 9 { t.Error(); continue }
		if F(x) == 7 { t.Fatal() }
	}
}
""")
    assert any(way.startswith("condition inverted") for way in ways)


def test_a_value_is_changed_once_even_where_two_reasons_are_seen_to_change_it() -> None:
    _, ways = _probe_file("""package a
import "testing"
func TestX(t *testing.T) {
	want := []T{{want: 0}}
	if F(want) { t.Fatal() }
}
""")
    assert sorted(ways) == [
        "1 for 0 in line 4",
        "condition inverted in line 5",
        "failure added at the end",
    ]


def test_tests_that_are_not_in_the_sources_make_no_probe() -> None:
    sources = {"go.mod": "module m\n", "a/a_test.go": "package a\n", "b/b_test.go": "func {"}
    for name in ("m/a/TestX", "m/b/TestX", "other/TestX"):
        request = make_request(Path("/w"), "go", "go test ./...", (name,), sources)
        assert golang.build_probe(request) is None


def test_a_probe_is_the_same_for_the_same_token_and_another_for_another() -> None:
    sources = {"go.mod": "module m\n", "a_test.go": projects.ATTACKED_TEST}
    request = make_request(Path("/w"), "go", "go test", ("m/TestAdd",), sources)
    other = make_request(Path("/w"), "go", "go test", ("m/TestAdd",), sources)
    probe = golang.build_probe(request)
    assert probe == golang.build_probe(request)
    assert probe != golang.build_probe(other)
    assert probe is not None
    assert request.token not in str(probe.files) + probe.command


def test_a_test_that_began_and_did_not_end_has_failed_and_the_worst_result_counts() -> None:
    report = (
        b"=== RUN   TestA\nx--- PASS: TestB (0.00s)\n--- FAIL: TestB (0.00s)\n--- PASS: TestB (1s)"
    )
    assert golang.read_results(report) == {"TestA": "error", "TestB": "failed"}


def test_several_modules_are_probed_each_in_its_own_folder(tmp_path: Path) -> None:
    for name in ("one", "two words"):
        module = f"module m/{name[:3]}\n"
        code = "package calc\n\nfunc Add(a, b int) int { return a + b }\n"
        files = {"go.mod": module, "calc.go": code, "calc_test.go": projects.ATTACKED_TEST}
        write_files(tmp_path / name, files)
    outcome = _probe_project(tmp_path, "make test", ("m/one/TestAdd", "m/two/TestAdd"))
    assert outcome.violations() == [], outcome.report + outcome.output
    assert outcome.exit_code == 1
    assert len({test.original for test in outcome.probe.tests if test.kind == "copy"}) == 2


def test_no_two_copies_of_a_helper_have_one_name_where_a_value_is_changed_twice_alike() -> None:
    # The wrong value is drawn: of 40 tokens, several change `2` for both reasons to the same.
    text = (
        'package a\n\nimport "testing"\n\nfunc check(t *testing.T, got int) {\n'
        "\tif v := got; v != 2 { t.Errorf(`%d`, v) }\n}\n\n"
        "func TestX(t *testing.T) { check(t, Two()) }\n"
    )
    sources = {"go.mod": "module m\n", "a/a_test.go": text}
    for _ in range(40):
        request = make_request(Path("/w"), "go", "go test ./...", ("m/a/TestX",), sources)
        probe = golang.build_probe(request)
        assert probe is not None
        declared = re.findall(r"^func (\w+)", "\n".join(probe.files.values()), re.MULTILINE)
        assert len(declared) == len(set(declared))


def test_subtests_count_as_made_wrong_where_their_function_is() -> None:
    text = (
        'package a\n\nimport "testing"\n\nfunc TestX(t *testing.T) {\n'
        '\tt.Run("one", func(t *testing.T) { if One() != 1 { t.Fatal() } })\n'
        '\tt.Run("two", func(t *testing.T) { if Two() != 2 { t.Fatal() } })\n}\n'
    )
    wanted = ("m/a/TestX", "m/a/TestX/one", "m/a/TestX/two")
    sources = {"go.mod": "module m\n", "a/a_test.go": text}
    probe = golang.build_probe(make_request(Path("/w"), "go", "go test ./...", wanted, sources))
    assert probe is not None
    made_wrong = {test.original for test in probe.tests if test.kind == "perturbed"}
    assert made_wrong == set(wanted)
