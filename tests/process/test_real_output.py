"""What tools print and how they are called in recorded sessions, where it was once read wrongly."""
# ruff: noqa: E501  (what tools print is quoted as they print it)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed import keys, parsed, verdict
from rules import edit, found

from closeloop.process.check_results import check_from_command
from closeloop.process.command_analysis import analyse_command
from closeloop.process.edit_contents import changes_only_comments
from closeloop.process.failure_collector import SOURCE_PLACE_OUTPUT, FailureCollector
from closeloop.process.test_output import PLAYWRIGHT_OUTPUT
from closeloop.records.trace import Command, Edit
from closeloop.text.code_patterns import find_missing_names
from patience import takes

CHECKS = {
    "rtk test bun run test": "bun run test",
    "ssh -p 2222 ci@host 'cd app && pytest -q'": "pytest",
    "uv tool run ruff check src": "ruff check src",
    "npx cross-env CI=1 jest": "jest",
    "nyc mocha": "mocha",
    "pixi run test": "pixi run test",
    "taskset -c 0 pytest": "pytest",
    "vite build": "vite build",
    "dune build @runtest": "dune build @runtest",
    "bats test/": "bats test",
    "node --check src/a.js": "node --check src/a.js",
    "bash -n run.sh": "bash -n run.sh",
    r".\venv\Scripts\python.exe -m pytest -q": "pytest",
    r"& .\venv\Scripts\pytest.exe tests": "pytest tests",
    r".\gradlew.bat test": "gradle test",
}


@pytest.mark.parametrize(("line", "target"), CHECKS.items())
def test_these_lines_check(line: str, target: str) -> None:
    doing = analyse_command(line)
    assert doing.target == target
    assert analyse_command(target).target == target


@pytest.mark.parametrize(
    "line",
    ["ssh host uptime", "ssh host", "rtk git status", "rtk", "vite", "next dev", "ng serve",
     "node -e '1'", r"grep 'a\b' x.bat", "django runserver", "uv tool run"],
)  # fmt: skip
def test_these_lines_do_not(line: str) -> None:
    assert analyse_command(line).checks == ()


def judged(command: str, output: str, code: int | None = 0) -> bool | None:
    event = Command(number=1, lane="root", command=command, output=output, exit_code=code)
    check = check_from_command(event, analyse_command(command))
    assert check is not None
    return check.passed


@pytest.mark.parametrize(
    ("command", "output", "passed"),
    [
        ("bun run test 2>&1 | tail", " 1309 pass\n 0 fail\n 2849 expect() calls\nRan 1309 tests across 58 files. [785.00ms]", True),
        ("bun run test 2>&1 | tail", " 1308 pass\n 1 fail\n 2849 expect() calls\nRan 1309 tests across 58 files. [785.00ms]", False),
        ("bun run lint | tail -3", "$ biome check\nChecked 274 files in 119ms. No fixes applied.", True),
        ("mise run lint 2>&1 | head", "[lint] $ golangci-lint run ./...\n0 issues.", True),
        ("mise run lint 2>&1 | tail", "[lint:go] 1 issues:\n[lint:go] * unused: 1\n[lint:go] ERROR task failed", False),
        ("npx oxlint a.tsx | tail -2", "Found 0 warnings and 0 errors.\nFinished in 9ms on 1 file.", True),
        ("npx oxlint a.tsx | tail -2", "Found 2 warnings and 10 errors.\nFinished in 9ms on 1 file.", False),
        ("npx tsc --noEmit a.tsx | head", "error TS5112: tsconfig.json is present but will not be loaded.", False),
        ("pytest 2>&1 | tail", "ImportError while loading conftest '/w/tests/conftest.py'.\ntests/conftest.py:6: in <module>\n    import respx\nE   ModuleNotFoundError: No module named 'respx'", None),
        ("pytest 2>&1 | tail", "collecting ...", None),
    ],
)  # fmt: skip
def test_what_a_pipe_hides_is_read_from_the_last_words(
    command: str, output: str, passed: bool | None
) -> None:
    assert judged(command, output) is passed


PLAYWRIGHT = """\
Running 20 tests using 1 worker

  1) [chromium] › tests/share.spec.ts:338:3 › Sharing › 6.1 Alice revokes access ───────────────

    Error: expect(locator).toBeVisible() failed

      at tests/pages/list.page.ts:97:32

    attachment #1: screenshot (image/png) ──────────

  1 failed
    [chromium] › tests/share.spec.ts:338:3 › Sharing › 6.1 Alice revokes access ──────────
  10 did not run
  9 passed (22.3s)
"""


def test_playwright_tells_its_tests_whole_or_cut() -> None:
    test = "[chromium] › tests/share.spec.ts › Sharing › 6.1 Alice revokes access"
    assert parsed("playwright", PLAYWRIGHT).errors == {
        test: "Error: expect(locator).toBeVisible() failed"
    }
    assert keys("playwright", PLAYWRIGHT[-200:]) == [test]
    assert verdict("playwright", PLAYWRIGHT) is False
    assert verdict("playwright", "  9 passed (22.3s)\n") is True


def test_biome_and_oxlint_tell_places() -> None:
    text = (
        "src/a.ts:12:5 lint/style/useConst  FIXABLE  ━━━━━━━━━━\n\n  × This let is never reassigned.\n"
        " at src/tab.tsx format ━━━━━━━━━━\n\n  × Formatter would have printed the following:\n"
        "\n  ! eslint(no-unused-vars): Variable 'x' is declared but never used.\n   ,-[b.tsx:30:8]\n"
        "  × eslint(no-undef): 'y' is not defined.\n   ╭─[c.tsx:3:1]\ncheck ━━━━━━━━━━\n"
    )
    assert keys("places", text) == [
        "src/a.ts: lint/style/useConst", "src/tab.tsx: format", "c.tsx: eslint(no-undef): 'y' is not defined.",
    ]  # fmt: skip


def test_go_names_the_test_that_goes_on_and_the_last_line_that_it_logs() -> None:
    text = (
        "=== RUN   TestA\n=== PAUSE TestA\n=== CONT  TestA\n    a_test.go:9: set up\n"
        "    a_test.go:30: timed out\n--- FAIL: TestA (1.0s)\nFAIL\nFAIL\tx/a\t1.1s\n"
    )
    assert parsed("go", text).errors == {"x/a.TestA": "set up … timed out"}
    glued = "=== RUN   TestA\nno newline    a_test.go:56: sync failed\n--- FAIL: TestA (0.2s)\nFAIL\nFAIL\tx/a\t0.3s\n"
    assert parsed("go", glued).errors == {"x/a.TestA": "sync failed"}


def test_that_a_runner_failed_is_no_reason_where_there_are_other_words() -> None:
    found_lines = FailureCollector()
    SOURCE_PLACE_OUTPUT.collect_failures(
        "Format issues found in above 3 files.\n[ELIFECYCLE] failed", found_lines
    )
    assert found_lines.errors == {}
    texts = [
        f"Format issues found in above {left} files.\n[ELIFECYCLE] failed." for left in (9, 5, 2)
    ]
    rounds = [
        event
        for number, text in enumerate(texts)
        for event in (
            edit(after=f"try {number}"),
            {"run": {"command": "pnpm check 2>&1 | tail -2", "exit": 0, "output": text}},
        )
    ]
    assert found("spiral", rounds) == []


def test_options_are_told_whole_and_made_up_ones_not_at_all() -> None:
    (missing,) = find_missing_names("Error: unknown flag: --no-stat\nunknown flag: --bogus-one")
    assert (missing.name, missing.words) == ("--no-stat", "unknown flag: --no-stat")


def test_an_option_that_only_holds_such_letters_is_not_made_up() -> None:
    assert [one.name for one in find_missing_names("Error: unknown flag: --footer")] == ["--footer"]


@pytest.mark.parametrize("command", ["bash deploy.sh -n", "node server.js -c conf.json"])
def test_a_scripts_own_option_makes_it_no_check(command: str) -> None:
    assert analyse_command(command).checks == ()


def comment_only(before: str, after: str, path: str = "a.go") -> bool:
    return changes_only_comments(Edit(number=1, lane="root", path=path, before=before, after=after))


def test_a_remark_behind_code_is_a_comment_and_a_string_is_not() -> None:
    assert comment_only("x := f() //nolint:all // because", "x := f()")
    assert comment_only("x = f()", "x = f()  # noqa")
    assert not comment_only('x := "a // b"', 'x := "a // c"')
    assert not comment_only("x := f() // a", "x := g() // a")
    assert not comment_only("x = f()\ny = 1  # a", "y = 1  # b")


def test_a_division_and_a_colour_are_no_comments() -> None:
    assert not comment_only("return x // 2", "return x // 3", "a.py")
    assert not comment_only("color: #fff;", "color: #000;", "a.css")
    assert comment_only("return x // 2  #noqa", "return x // 2", "a.py")


def test_a_class_in_brackets_does_not_hide_what_a_linter_says() -> None:
    said = "/src/a.tsx\n  3:5  error  Invalid class 'w-[10px]'  tailwindcss/no-custom\n"
    assert len(parsed("places", said).errors) == 1


@given(st.text(alphabet="━╭─,-[]:1 a.tsx\n×!lint/format(at)", max_size=400))
def test_drawn_lines_never_break_anything(text: str) -> None:
    for parser in (SOURCE_PLACE_OUTPUT, PLAYWRIGHT_OUTPUT):
        parser.collect_failures(text, FailureCollector())
        parser.read_verdict(text)


@pytest.mark.parametrize(
    "piece", ["━", "  1) a:1:1 › ", "    [x] › ", " at a ", ",-[", "a\\b.exe ", "\\", "x #"]
)
def test_much_of_it_takes_no_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))

    def work(number: int) -> None:
        for parser in (SOURCE_PLACE_OUTPUT, PLAYWRIGHT_OUTPUT):
            parser.collect_failures(text, FailureCollector())
            parser.read_verdict(text)
        analyse_command(text[: 3900 + number])
        comment_only(text[: 5000 - number], text[:4900])

    assert takes(work, 2) < 2
