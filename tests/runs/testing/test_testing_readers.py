"""Reports of real test tools, and of hostile ones."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.grading.runner_reports import (
    ResultCollector,
    SuiteReport,
    read_cargo,
    read_go,
    read_jest,
    read_junit,
    read_mocha,
    read_node,
    read_pytest_report,
    read_pytest_text,
    read_unittest,
)

FIXTURES = Path(__file__).parent / "fixtures"

PYTEST = {
    "mod.py::mod.double": "passed",
    "tests/test_sample.py::Case::test_case": "passed",
    "tests/test_sample.py::TestGroup::TestNested::test_deep": "passed",
    "tests/test_sample.py::TestGroup::test_inherited": "passed",
    "tests/test_sample.py::TestGroup::test_method": "passed",
    "tests/test_sample.py::test_both": "error",
    "tests/test_sample.py::test_expected_failure": "skipped",
    "tests/test_sample.py::test_fails": "failed",
    "tests/test_sample.py::test_parametrised[a/b.py]": "passed",
    "tests/test_sample.py::test_parametrised[a::b]": "passed",
    "tests/test_sample.py::test_parametrised[line\\nbreak]": "passed",
    "tests/test_sample.py::test_parametrised[na\\xefve \\xfc]": "passed",
    "tests/test_sample.py::test_parametrised[sp ace - x]": "passed",
    "tests/test_sample.py::test_parametrised[x[1]]": "passed",
    "tests/test_sample.py::test_passes": "passed",
    "tests/test_sample.py::test_setup_error": "error",
    "tests/test_sample.py::test_skipped": "skipped",
    "tests/test_sample.py::test_strict_unexpected_pass": "failed",
    "tests/test_sample.py::test_subtests": "failed",
    "tests/test_sample.py::test_teardown_error": "error",
    "tests/test_sample.py::test_unexpected_pass": "passed",
    "tests/test_uncollectable.py": "error",
}

UNITTEST = {
    "tests.test_broken": "error",
    "tests.test_sample.TestA.test_described": "passed",
    "tests.test_sample.TestA.test_described_fails": "failed",
    "tests.test_sample.TestA.test_error": "error",
    "tests.test_sample.TestA.test_expected_failure": "skipped",
    "tests.test_sample.TestA.test_fails": "failed",
    "tests.test_sample.TestA.test_passes": "passed",
    "tests.test_sample.TestA.test_prints": "passed",
    "tests.test_sample.TestA.test_skipped": "skipped",
    "tests.test_sample.TestA.test_subtests": "failed",
    "tests.test_sample.TestA.test_subtests_pass": "passed",
    "tests.test_sample.TestA.test_subtests_skip": "skipped",
    "tests.test_sample.TestA.test_unexpected_success": "failed",
    "tests.test_sample.TestB.setUpClass": "error",
    "tests.test_sample.TestC.test_one": "skipped",
}

GO = {
    "example.com/shop/bad": "error",
    "example.com/shop/crash/TestBefore": "passed",
    "example.com/shop/crash/TestPanics": "failed",
    "example.com/shop/pkg/ExampleHello": "passed",
    "example.com/shop/pkg/TestFails": "failed",
    "example.com/shop/pkg/TestPasses": "passed",
    "example.com/shop/pkg/TestSkips": "skipped",
    "example.com/shop/pkg/TestTable": "failed",
    "example.com/shop/pkg/TestTable/a/b": "failed",
    "example.com/shop/pkg/TestTable/one_two": "passed",
}


def fixture(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def statuses(reading: SuiteReport) -> dict[str, str]:
    return {test.id: test.status for test in sorted(reading.tests, key=lambda test: test.id)}


def message(reading: SuiteReport, name: str) -> str:
    return next(test.message or "" for test in reading.tests if test.id == name)


def test_pytest_node_ids_are_rebuilt_from_xml_even_for_inherited_tests():
    reading = read_pytest_report(fixture("pytest.xml"), b"")
    assert statuses(reading) == PYTEST
    assert reading.ran
    assert reading.complete
    assert "arithmetic" in message(reading, "tests/test_sample.py::test_fails")
    assert "missing_module" in message(reading, "tests/test_uncollectable.py")


def test_a_test_with_an_endless_name_is_still_told_from_others():
    names = [f"test_parse[{'[' * 5000}{end}]" for end in "ab"]
    cases = "".join(f'<testcase classname="tests.test_a" name="{name}"/>' for name in names)
    report = f'<testsuite tests="2">{cases}</testsuite>'.encode()
    reading = read_pytest_report(report, b"")
    assert (len(reading.tests), reading.unread) == (2, 0)
    assert all(len(test.id) < 4_001 for test in reading.tests)
    assert reading == read_pytest_report(report, b"")


def test_pytests_terminal_tells_the_same_as_its_xml():
    reading = read_pytest_text(fixture("pytest.txt"))
    assert statuses(reading) == PYTEST
    assert "arithmetic" in message(reading, "tests/test_sample.py::test_fails")


def test_a_pytest_run_that_dies_in_a_test_shows_which():
    reading = read_pytest_text(fixture("pytest_crash.txt"))
    assert statuses(reading) == {
        "test_crash.py::test_exits": "error",
        "test_crash.py::test_first": "passed",
    }
    assert not reading.complete


def test_xdist_lines_are_read():
    reading = read_pytest_text(fixture("pytest_xdist.txt"))
    assert statuses(reading) == {
        "test_crash.py::test_exits": "failed",
        "test_crash.py::test_first": "passed",
        "test_crash.py::test_last": "passed",
    }


@pytest.mark.parametrize("name", ["unittest.txt", "unittest_3_8.txt", "unittest_3_13.txt"])
def test_unittest_is_read_whichever_python_wrote_it(name):
    reading = read_unittest(fixture(name))
    assert statuses(reading) == UNITTEST
    assert reading.ran
    assert reading.complete
    assert "1 != 2" in message(reading, "tests.test_sample.TestA.test_fails")


def test_a_unittest_run_that_exits_with_0_in_a_test_is_not_complete():
    reading = read_unittest(fixture("unittest_crash.txt"))
    assert statuses(reading) == {"test_crash.T.test_a": "passed", "test_crash.T.test_b": "error"}
    assert not reading.complete


def test_no_unittest_test_is_no_evidence():
    reading = read_unittest(b"\n------\nRan 0 tests in 0.000s\n\nOK\n")
    assert not reading.ran
    assert reading.tests == ()


def test_unittest_results_fewer_than_its_count_are_not_complete():
    text = b"test_a (m.T.test_a) ... ok\n" + b"-" * 70 + b"\nRan 2 tests in 0.1s\n\nOK\n"
    assert not read_unittest(text).complete


@pytest.mark.parametrize("name", ["go.jsonl", "go.txt"])
def test_go_is_read_and_a_printed_pass_is_not_believed(name):
    reading = read_go(fixture(name))
    assert statuses(reading) == GO
    assert reading.complete


def test_go_tests_that_never_end_are_errors():
    events = [
        {"Action": "run", "Package": "p", "Test": "TestA"},
        {"Action": "output", "Package": "p", "Test": "TestA", "Output": "exit status 1\n"},
        {"Action": "fail", "Package": "p"},
    ]
    reading = read_go("\n".join(map(json.dumps, events)).encode())
    assert statuses(reading) == {"p": "error", "p/TestA": "error"}


def test_cargo_targets_and_doc_tests_are_read():
    reading = read_cargo(fixture("cargo.txt"))
    assert statuses(reading) == {
        "crash::a_first": "passed",
        "crash::b_exits": "passed",
        "shop::exits_nothing": "passed",
        "shop::sells": "passed",
        "till_roll::src/lib.rs - add (line 3)": "passed",
        "till_roll::src/lib.rs - sub (line 7)": "failed",
        "till_roll::tests::deep::passes": "passed",
        "till_roll::tests::fails": "failed",
        "till_roll::tests::ignored": "skipped",
        "till_roll::tests::panics": "passed",
    }
    assert reading.complete
    assert "arithmetic" in message(reading, "till_roll::tests::fails")


def test_a_rust_test_that_exits_with_0_leaves_an_incomplete_run():
    reading = read_cargo(fixture("cargo_crash.txt"))
    assert statuses(reading) == {"crash::a_first": "passed", "crash::b_exits": "error"}
    assert not reading.complete


def test_rust_that_does_not_compile_is_an_error_and_no_evidence():
    reading = read_cargo(fixture("cargo_compile.txt"))
    assert statuses(reading) == {"till-roll": "error"}
    assert "E0425" in message(reading, "till-roll")
    assert not reading.ran


def test_rust_output_between_the_results_does_not_hide_them():
    assert read_cargo(fixture("cargo_nocapture.txt")).complete


@pytest.mark.parametrize(("name", "end"), [("jest", "j/{}.test.js"), ("vitest", "v/{}.test.ts")])
def test_jest_and_vitest_are_read_alike(name, end):
    reading = read_jest(fixture(f"{name}.json"), "/project")
    file = end.format("sample")
    assert statuses(reading) == {
        end.format("broken"): "error",
        f"{file} > cart > things > inner > adds 1 a": "passed",
        f"{file} > cart > things > inner > adds 2 b": "failed",
        f"{file} > fails": "failed",
        f"{file} > passes": "passed",
        f"{file} > skipped": "skipped",
        f"{file} > to do": "skipped",
    }
    assert not read_jest(fixture("vitest_none.json"), "/project").ran


@pytest.mark.parametrize("printed", [b"", b"listening on 3000\n"])
def test_mocha_is_read_from_its_file_and_from_what_it_prints(printed):
    reading = read_mocha(printed + fixture("mocha.json"), "/project")
    assert statuses(reading) == {
        "test/sum.js > lonely": "passed",
        "test/sum.js > sum adds": "passed",
        "test/sum.js > sum more fails": "failed",
        "test/sum.js > sum more waits": "skipped",
        "test/sum.js > sum more is to be written": "skipped",
        'test/sum.js > hook "before all" hook for "never runs"': "failed",
    }
    assert "2 == 3" in message(reading, "test/sum.js > sum more fails")
    assert reading.complete
    assert not read_mocha(printed, "/project").ran


def test_records_of_a_wrong_type_are_counted_and_skipped():
    document = {
        "testResults": [
            7,
            {"name": None},
            {
                "name": "/r/a.js",
                "assertionResults": [
                    "x",
                    {"status": "passed", "title": 3, "ancestorTitles": []},
                    {"status": "passed", "title": "ok", "ancestorTitles": [], "duration": "?"},
                ],
            },
        ]
    }
    reading = read_jest(json.dumps(document).encode(), "/r")
    assert statuses(reading) == {"a.js > ok": "passed"}
    assert reading.unread == 4


def test_surefire_reports_are_read_without_falling_for_their_output():
    reading = read_junit([fixture("surefire.xml")])
    assert statuses(reading) == {
        "shop.CartTest::breaks": "error",
        "shop.CartTest::fails": "failed",
        "shop.CartTest::ignored": "skipped",
        "shop.CartTest::passes": "passed",
    }
    assert reading.complete


def test_a_report_that_breaks_off_keeps_what_came_before():
    whole = fixture("surefire.xml")
    reading = read_junit([whole[: whole.index(b'<testcase name="breaks"') + 10]])
    assert len(reading.tests) == 2
    assert not reading.complete


def test_entities_are_refused():
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><x><testcase name="&b;"/></x>'
    reading = read_junit([bomb])
    assert reading.tests == ()
    assert not reading.complete


def test_a_name_without_end_is_shortened_alike_each_time_and_stays_its_own():
    sheet = ResultCollector()
    for end in "abb":
        sheet.add_result(f"test_a.py::test[{'document' * 1000}{end}]", "failed")
        sheet.explain_failure(f"test_a.py::test[{'document' * 1000}{end}]", f"not {end}")
    assert [test.message for test in sheet.found.values()] == ["not a", "not b"]
    assert all(len(name) < 4000 and name.partition("[")[0] for name in sheet.found)


def test_of_two_results_of_one_test_the_worse_counts():
    report = (
        b'<s><testcase name="a"/><testcase name="a"><failure/></testcase><testcase name="a"/></s>'
    )
    assert statuses(read_junit([report])) == {"a": "failed"}


WORDS = st.sampled_from(
    [
        *("PASSED", "FAILED", "::", "tests/a.py", " - ", "[", "]", "[gw0] [ 1%] ", " ... ", "ok"),
        *("test_a (m.T)", "Ran 3 tests in 1s", "ERROR: ", "-" * 70, "=" * 70, "\n", "\x1b[31m"),
        *("     Running x (y)", "running 2 tests", "test a ... ", "test result: ok. 1 passed; "),
        *("--- PASS: T (0.1s)", "ok  \tp\t1s", '{"Action":"run","Package":"p","Test":"T"}', "{"),
        *("<testcase name='a' time='x'>", "</testcase>", "<failure>", "<s>", "</s>", "&#0;", "]]>"),
        *(
            '{"type":"test:pass","name":"a","nesting":',
            '1,"file":"/a.js"}',
            "-1}",
            '{"type":"end"}',
        ),
        *('{"testResults":[{"name":"a","assertionResults":', "null", "}]}", "é", "\r\n", " "),
    ]
)
REPORTS = st.one_of(
    st.binary(max_size=400),
    st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")),
    st.lists(WORDS, max_size=40).map(lambda words: "".join(words).encode()),
)


@given(REPORTS, REPORTS)
def test_no_reader_raises_whatever_it_is_given(report, output):
    read_pytest_report(report, output)
    read_pytest_text(report)
    read_unittest(report)
    read_go(report)
    read_cargo(report)
    read_jest(report, "/")
    read_mocha(report, "/")
    read_node(report, "/")
    read_junit([report, output])


@pytest.mark.parametrize("read", [read_pytest_text, read_unittest, read_go, read_cargo])
@pytest.mark.parametrize("part", [b"a::", b" PASSED (", b" - ", b"[", b"a ", b"test a ... ", b"{"])
def test_a_long_hostile_line_does_not_slow_a_reader_down(read, part):
    read((b"FAILED " + part * 20_000 + b"\n") * 3)
