"""Which runner a command starts, and how it is made to report."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.grading.suite_run import detect_runner, instrument_command, simple_commands
from closeloop.grading.tool_outcomes import select_tests

REPORT = "--junitxml=/w/.x/report-1 -o junit_family=xunit1 --verbosity=1"
REPORT += " --continue-on-collection-errors"
ASIDE = ">>/w/.x/output 2>&1"
JEST = "--json --reporters=default --reporters=/w/.x/reporter.cjs --outputFile=/w/.x/report-1"


@pytest.mark.parametrize(
    ("command", "runner"),
    [
        ("pytest", "pytest"),
        ("pytest -q tests", "pytest"),
        (".venv/bin/pytest -q", "pytest"),
        ("python -m pytest", "pytest"),
        ("python3.11 -X dev -m pytest -q", "pytest"),
        ("PYTHONPATH=src A='b c' python -m pytest", "pytest"),
        ("uv run --with pytest-cov pytest -q", "pytest"),
        ("poetry run python -m pytest", "pytest"),
        ("cd sub && pytest 2>&1 | tail -20", "pytest"),
        ("env A=1 timeout 60 pytest", "pytest"),
        ("coverage run -m pytest", "pytest"),
        ("python -m unittest discover -s tests", "unittest"),
        ("npx jest", "jest"),
        ("npx --yes vitest run", "vitest"),
        ("yarn jest --ci", "jest"),
        ("npx mocha --require test/env test/", "mocha"),
        ("node node_modules/.bin/jest", "jest"),
        ("node --test", "node"),
        ("A=1 node --import tsx --no-warnings --test test/*.ts", "node"),
        ("npx tsx --test a.ts", "node"),
        ("/usr/bin/node -r ./env.js --test", "node"),
        ("node run.js --test", None),
        ("node --no-warnings run.js --test", None),
        ("npm install --test", None),
        ("go test ./...", "go"),
        ("CGO_ENABLED=0 go test ./...", "go"),
        ("cargo +nightly test --all", "cargo"),
        ("pip install -e . && pytest", "pytest"),
        ("make test", None),
        ("npm test", None),
        ("npm run jest", None),
        ("echo pytest", None),
        ("go build ./... ", None),
        ("cargo build", None),
        ("python run.py pytest", None),
        ("python unittest", None),
        ("bash -c 'pytest", None),
        ("# pytest", None),
        ("", None),
    ],
)
def test_the_runner_is_recognised(command, runner):
    assert detect_runner(command) == runner


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("pytest", f"pytest {REPORT}"),
        ("cd a && pytest -q 2>&1 | tail", f"cd a && pytest -q 2>&1 {REPORT} | tail"),
        ("pytest tests # all", f"pytest tests {REPORT} # all"),
        ("pytest a -- b", f"pytest a {REPORT} -- b"),
        ("npx -- jest a", f"npx -- jest a {JEST}"),
        ("python -m unittest | tail -3", f"python -m unittest -v {ASIDE} | tail -3"),
        ("go test ./... -run X", f"go test -json ./... -run X {ASIDE}"),
        ("cargo test -- --nocapture", f"cargo test --no-fail-fast -- --nocapture {ASIDE}"),
        ("cargo test --no-fail-fast", f"cargo test --no-fail-fast {ASIDE}"),
        ("pytest a; pytest b", f"pytest a {REPORT}; pytest b {REPORT.replace('-1', '-2')}"),
    ],
)
def test_the_command_is_made_to_report(command, changed):
    assert instrument_command(command, None, "/w/.x").command == changed


def test_a_command_that_hides_pytest_is_asked_through_the_environment():
    plan = instrument_command("make test", "pytest", "/w x/.x")
    assert plan.command == "make test"
    assert "--junitxml=/w x/.x/report-1" in shlex.split(plan.env["PYTEST_ADDOPTS"])


@pytest.mark.parametrize(
    ("command", "start"),
    [
        ("npm test", "npm test -- --json"),
        ("npm test -- --ci", "npm test -- --ci --json"),
        ("yarn test", "yarn test --json"),
        ("cd a && npm ci && npm run test | cat", "cd a && npm ci && npm run test -- --json"),
        ("make test", "make test"),
    ],
)
def test_a_script_is_given_the_arguments_of_the_runner_that_the_task_names(command, start):
    assert instrument_command(command, "jest", "/w/.x").command.startswith(start)


@given(st.text(alphabet=st.sampled_from("pytest go -'\"\\$()|&;<>#\n`="), max_size=60))
def test_any_line_can_be_looked_into(line):
    for words in simple_commands(line):
        for word in words:
            assert line[word.start : word.end].strip()
    instrument_command(line, None, "/w")
    instrument_command(line, "vitest", "/w")


@pytest.mark.parametrize(
    ("command", "test", "expected"),
    [
        ("pytest", "t.py::b", "pytest t.py::b"),
        ("python -m pytest -q tests t.py", "t.py::b", "python -m pytest t.py::b -q  "),
        ("cd x; pytest -x --tb=no | cat", "t.py::b", "cd x; pytest t.py::b -x --tb=no | cat"),
        ("pytest -q -p no:cacheprovider -n4 tests -o addopts=''", "t.py::b",
         "pytest t.py::b -q -p no:cacheprovider -n4  -o addopts=''"),
        ("pytest -m 'not slow' -k label t", "t.py::b", "pytest t.py::b -m 'not slow' -k label "),
        ("pytest --cov src tests", "t.py::b", None),
        ("pytest a && pytest b", "t.py::b", None),
        ("make test", "t.py::b", None),
        ("python -m unittest discover -s t", "a.A.b", "python -m unittest discover -s t -k a.A.b"),
        ("npx jest --ci", "w/a.test.js > a b > c",
         "npx jest --ci -t '^(?:a b(?: > | )c)$' 'w\\/a\\.test\\.js'"),
        ("jest -t sums", "a.js > b", None),
        ("vitest run", "w/a.js > b (1)", "vitest run -t '^\\s*(?:b \\(1\\))$' w/a.js"),
        ("mocha test/", "test/a.js > sums adds", "mocha test/ --grep '^(?:sums adds)$'"),
        ("node --test test/", "a.js > b > c",
         "node --test '--test-name-pattern=^(?:b|c|b c)$' test/"),
        ("go test -race -timeout 9s ./...", "x.io/a/TestB/c_d",
         "go test -race -timeout 9s  -run '^(?:TestB)$' x.io/a"),
        ("go test -run TestA ./...", "x.io/a/TestB", None),
        ("go test ./...", "x.io/a", None),
        ("cargo test --offline", "till::tests::b", "cargo test --offline -- --exact tests::b"),
        ("cargo test -- --nocapture", "till::b", "cargo test -- --nocapture --exact b"),
        ("cargo test", "till::src/lib.rs - add (line 3)", None),
    ],
)  # fmt: skip
def test_a_test_command_is_narrowed_to_some_tests(
    command: str, test: str, expected: str | None
) -> None:
    assert select_tests(command, None, [test]) == expected


def test_a_script_is_narrowed_where_the_task_names_its_runner() -> None:
    assert select_tests("npm test", None, ["a.js > b"]) is None
    assert select_tests("npm test", "mocha", ["a.js > b"]) == "npm test -- --grep '^(?:b)$'"
    assert select_tests("make test", "mocha", ["a.js > b"]) is None


def test_many_tests_are_selected_by_their_files() -> None:
    tests = [f"t/test_{number % 3}.py::test_{number}" for number in range(200)]
    assert select_tests("pytest", None, tests) == "pytest t/test_0.py t/test_1.py t/test_2.py"
    apart = [f"t/test_{number}.py::test_a" for number in range(200)]
    assert select_tests("pytest", None, apart) is None
