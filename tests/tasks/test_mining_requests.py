"""A request names all that its hidden tests need, with where it belongs: somebody can fulfil it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from closeloop.grading.task_proof import has_unchanged_code, make_mutants
from closeloop.tasks.candidate_builder import (
    TaskCandidate,
    build_candidate,
    extract_changelog_notes,
)
from closeloop.tasks.change_parts import CollectionRules, find_collection_rules
from closeloop.tasks.other_projects import ManifestFolder
from closeloop.tasks.required_names import RequiredName, find_untold_names
from closeloop.tasks.task_prompts import (
    find_examples,
    find_expected_messages,
    find_introduced_names,
    remove_form_lines,
    request_from_message,
)
from closeloop.tasks.work_history import PastWork, list_past_work

PYTEST_RULES = CollectionRules(names=("test_*.py",), support=("conftest.py",))


def patch(path: str, *lines: str) -> str:
    removed = sum(line.startswith(("-", " ")) for line in lines)
    added = sum(line.startswith(("+", " ")) for line in lines)
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    return head + f"@@ -1,{removed} +1,{added} @@\n" + "\n".join(lines) + "\n"


def make_work(repo: Path, message: str, before: dict[str, str], after: dict[str, str]) -> PastWork:
    """A repository with one piece of work in it."""

    def commit(files: dict[str, str], said: str) -> None:
        for name, text in files.items():
            (repo / name).parent.mkdir(parents=True, exist_ok=True)
            (repo / name).write_text(text)
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        for arguments in (("add", "-A"), (*who, "commit", "-q", "--allow-empty", "-m", said)):
            subprocess.run(["git", "-C", str(repo), *arguments], check=True, capture_output=True)

    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    commit(before, "Start")
    commit(after, message)
    return list_past_work(repo)[0]


def request_of(
    tmp_path: Path,
    before: dict[str, str],
    after: dict[str, str],
    message: str = "Keep bookings on disk",
    rules: CollectionRules = PYTEST_RULES,
) -> TaskCandidate:
    candidate = build_candidate(tmp_path, make_work(tmp_path, message, before, after), rules)
    assert isinstance(candidate, TaskCandidate), candidate
    return candidate


def test_what_the_tests_import_stands_in_the_request_with_its_path(tmp_path: Path) -> None:
    candidate = request_of(
        tmp_path,
        {"ferry/__init__.py": "", "ferry/trips.py": "def load(): ...\n"},
        {
            "ferry/store.py": "def save(trip): ...\ndef load(): ...\n",
            "tests/test_store.py": "from ferry import store\nfrom ferry.store import load, save\n\n"
            "def test_it():\n    assert store.load() == load()\n",
        },
    )
    assert candidate.prompt == (
        "Keep bookings on disk\n\nNames to use: `ferry.store.load`, `ferry.store.save`."
    )
    assert find_untold_names(candidate.prompt, candidate.names) == []
    assert find_untold_names("Keep bookings on disk, use load and save", candidate.names) == [
        "`ferry.store.load`",
        "`ferry.store.save`",
    ]


@pytest.mark.parametrize(
    ("source", "test", "told"),
    [
        (
            "def trips(): ...\n",
            "import ferry\n\ndef test_it():\n    ferry.trips()\n",
            "ferry.trips",
        ),
        (
            "class Boat:\n    def leave(self): ...\n    def arrive(self): ...\n",
            "from ferry import Boat\n\ndef test_it():\n    Boat().arrive()\n",
            "ferry.Boat.arrive",
        ),
        (
            "class Boat:\n    upper = False\n    def __init__(self, upper=False): ...\n",
            "import ferry\n\ndef test_it():\n    ferry.Boat(upper=True)\n",
            "`upper` of `ferry.Boat`",
        ),
        (
            "def book(seat, upper=False): ...\nclass Boat: ...\n",
            "from ferry import book\n\ndef test_it():\n    book(\n      1,\n      upper=True)\n",
            "`upper` of `ferry.book`",
        ),
        ("", "from ferry import Boat\n\ndef test_it():\n    Boat\n", None),
        ("", "import ferry\n\ndef test_it():\n    getattr(ferry, 'deck')\n", None),
        ("", "import os.path\nfrom typing import Any\n", None),
        ("def helper(): ...\n", "def helper():\n    pass\n\ndef test_it():\n    helper()\n", None),
    ],
)
def test_each_use_of_what_the_base_lacks_is_told(
    tmp_path: Path, source: str, test: str, told: str | None
) -> None:
    old = "class Boat:\n    def leave(self): ...\ndef book(seat): ...\n"
    candidate = request_of(
        tmp_path,
        {"src/ferry/__init__.py": old},
        {"src/ferry/__init__.py": f"{source or old}# more\n", "tests/test_ferry.py": test},
    )
    _, _, names = candidate.prompt.partition("Names to use: ")
    assert names == (f"`{told.strip('`')}`." if told else "")


def test_helpers_that_come_with_the_tests_need_not_be_named(tmp_path: Path) -> None:
    candidate = request_of(
        tmp_path,
        {"ferry.py": "A = 1\n", "tests/test_old.py": "def test_old(): ...\n"},
        {
            "ferry.py": "A = 2\n",
            "tests/helpers.py": "def sail(): ...\n",
            "tests/test_ferry.py": "from helpers import sail\nfrom ferry import A\n\n"
            "def test_it():\n    sail()\n",
        },
    )
    assert candidate.prompt == "Keep bookings on disk"


def test_tests_that_cannot_be_parsed_are_read_by_their_words(tmp_path: Path) -> None:
    candidate = request_of(
        tmp_path,
        {"ferry.py": "A = 1\n"},
        {
            "ferry.py": "A = 1\nclass BadSeat(Exception): pass\n",
            "tests/test_ferry.py": "from ferry import BadSeat\n\nprint 'old'\n",
        },
    )
    assert candidate.prompt.endswith("Names to use: `BadSeat` of `ferry.py`.")


def test_names_passed_on_with_a_star_are_had(tmp_path: Path) -> None:
    candidate = request_of(
        tmp_path,
        {"ferry/__init__.py": "from .boats import *\n", "ferry/boats.py": "class Boat: ...\n"},
        {
            "ferry/boats.py": "class Boat: ...\nclass Raft: ...\n",
            "tests/test_ferry.py": "from ferry import Boat, Raft\n\ndef test_it():\n    Boat\n",
        },
    )
    assert candidate.prompt.endswith("Names to use: `ferry.Raft`.")


def test_what_scripts_import_is_told_with_its_file(tmp_path: Path) -> None:
    rules = find_collection_rules(ManifestFolder(tmp_path, ()), "vitest")
    candidate = request_of(
        tmp_path,
        {"src/trips.ts": "export const trips = 1\n", "src/index.ts": "export * from './trips'\n"},
        {
            "src/store.ts": "export function load() {}\nexport function save() {}\n",
            "src/trips.ts": "export const trips = 1\nexport const legs = 2\n",
            "test/store.test.ts": "import { load, type save } from '../src/store.js'\n"
            "import { trips, legs } from '../src'\nimport { it } from 'vitest'\n",
        },
        rules=rules,
    )
    for told in (
        "`load` of `src/store.ts`",
        "`save` of `src/store.ts`",
        "`legs` of `src/index.ts`",
    ):
        assert told in candidate.prompt
    assert "`trips`" not in candidate.prompt


def test_what_scripts_use_of_an_object_is_told_with_its_file(tmp_path: Path) -> None:
    rules = find_collection_rules(ManifestFolder(tmp_path, ()), "jest")
    candidate = request_of(
        tmp_path,
        {"lib/boat.js": "class Boat {}\n", "types/boat.d.ts": "export class Boat {}\n"},
        {
            "lib/boat.js": "class Boat {\n  takeOff() {}\n}\n",
            "types/boat.d.ts": "export class Boat { takeOff(): void }\n",
            "lib/boat.test.js": "const sink = 1;\nboat.takeOff();\nboat.sink();\n",
        },
        rules=rules,
    )
    assert candidate.prompt.endswith("Names to use: `takeOff` of `lib/boat.js`.")


def test_what_tests_of_a_go_package_use_is_told_with_its_type(tmp_path: Path) -> None:
    rules = find_collection_rules(ManifestFolder(tmp_path, ()), "go")
    candidate = request_of(
        tmp_path,
        {"boat.go": "package ferry\n\ntype Boat struct {\n\tName string\n}\n"},
        {
            "boat.go": "package ferry\n\ntype Boat struct {\n\tName string\n\tSeats int\n"
            "\tdeck int\n}\n\n"
            "func (b *Boat) Load() {}\n\nfunc hidden() {}\n",
            "boat_test.go": "package ferry\n\nfunc TestIt(t *testing.T) {\n"
            '\tb := Boat{Name: "hidden", Seats: 2}\n\tb.Load()\n\tdeck := 1\n\t_ = deck\n}\n',
        },
        rules=rules,
    )
    assert candidate.prompt.endswith("Names to use: `ferry.Boat.Load`, `ferry.Boat.Seats`.")


def test_a_request_that_lacks_a_name_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeloop.tasks.candidate_builder.MAX_NAMES", 1)
    work = make_work(
        tmp_path,
        "Keep bookings on disk",
        {"ferry.py": ""},
        {"store.py": "def save(): ...\ndef load(): ...\n", "test_a.py": "from store import *\n"}
        | {"test_b.py": "from store import load, save\n"},
    )
    assert build_candidate(tmp_path, work, PYTEST_RULES) == (
        "its tests need `store.save`, which are neither in the request nor in the base"
    )


def test_a_path_is_told_as_a_whole_word() -> None:
    name = RequiredName(label="`ferry.store.load`", imported=True)
    assert name.is_told("Use `ferry.store.load` for it.")
    assert not name.is_told("Use ferry.store.loader, or old.ferry.store.load")


def test_names_in_strings_and_of_helpers_are_no_names_to_use() -> None:
    source = patch("shop.js", '+function refund(order) { return "cancel(order)" }')
    tests = patch("shop.test.js", "+function order() {}", '+it("cancel(order)", () => refund(1))')
    assert find_introduced_names(source, tests) == {"refund"}


@pytest.mark.parametrize(
    ("fix", "test", "told"),
    [
        (
            'E(f"order {n} cannot be sent")',
            'match="order 3 cannot be sent"',
            "order 3 cannot be sent",
        ),
        ('E("order %d cannot be sent" % n)', '"order 3 cannot be sent"', "order 3 cannot be sent"),
        ('E("no {} here".format(n))', '"Error: no tea here!" in out', "no tea here"),
        ('fmt.Errorf("order %q is late", n)', '"order \\"a\\" is late"', 'order "a" is late'),
        ("throw new E(`order ${n} is late`)", "toThrow('order 3 is late')", "order 3 is late"),
        (
            'E("order cannot "\n+  f"go to {n}")',
            '"order cannot go to Rome"',
            "order cannot go to Rome",
        ),
        ('E("order cannot " +\n+  "be sent")', '"order cannot be sent"', "order cannot be sent"),
        ('E(f"the order {n} cannot be sent")', 'match="order 3 cannot"', "order 3 cannot"),
        ('E(f"the order {n} cannot be sent")', 'match="cannot be sent"', "cannot be sent"),
        ('E(f"order {n} cannot be sent")', '"another message of 3 words"', None),
    ],
)
def test_messages_that_are_put_together_are_told(fix: str, test: str, told: str | None) -> None:
    found = find_expected_messages(patch("shop.py", f"+{fix}"), patch("test.py", f"+{test}"))
    assert found == ((told,) if told else ())


def test_a_message_that_was_there_is_not_told() -> None:
    source = patch("shop.py", '-E(f"order {n} cannot be sent")', '+ E(f"order {n} cannot be sent")')
    assert find_expected_messages(source, patch("t.py", '+"order 3 cannot be sent"')) == ()


def test_a_message_whose_values_are_quoted_now_is_told() -> None:
    source = patch("a.go", '-Errorf("%s is equal to %s", a)', '+Errorf("%q is equal to %q", a)')
    tests = patch("a_test.go", '+`"1.2" is equal to "1.3"`')
    assert find_expected_messages(source, tests) == ('"1.2" is equal to "1.3"',)


def test_wrapped_entries_of_the_change_log_stay_whole() -> None:
    lines = (
        "+- Totals are rounded half up, and so are taxes: see the",
        "+  documentation:",
        "+  fixed.",
        "+  Support",
        "+- Refunds.",
    )
    assert extract_changelog_notes(patch("CHANGES.md", *lines)) == (
        "Totals are rounded half up, and so are taxes: see the\ndocumentation:\nfixed.\nSupport"
        "\n\nRefunds."
    )


def test_what_a_form_asks_is_no_part_of_the_request() -> None:
    form = "### What is new\n\nTell us all about it, friend!\n\n- Be kind to each other\n"
    message = (
        "Round totals\n\n## Description\n\nPlease include a summary of the change.\n\n"
        "Half cents go up.\n\n### What is new\n\nTell us all about it, friend!\n\nTaxes, too.\n\n"
        "- Be kind to each other\n\n## Type of change\n\nBug fix\n\n### How was this tested?\n\n"
        "By hand.\n\n**Describe the bug**\nThey are cut off.\n"
    )
    told = request_from_message(remove_form_lines(message, [form]))
    assert told == "Round totals\n\nHalf cents go up.\n\nTaxes, too.\n\nThey are cut off."


def test_a_mined_task_has_the_scope_of_its_work(tmp_path: Path) -> None:
    after = {
        "src/ferry/trips.py": "A = 2\n",
        "src/ferry/deck/seats.py": "",
        "setup.py": "A = 2\n",
        "tests/test_trips.py": "def test_it(): ...\n",
        "CHANGES.md": "- x\n",
    }
    candidate = request_of(tmp_path, {"src/ferry/trips.py": "A = 1\n"}, after)
    assert candidate.scope == ("setup.py", "src/ferry/**", "tests/**", "CHANGES.md")


def test_code_that_no_mutant_touches_may_be_what_the_tests_are_for() -> None:
    fix = ("+def total():", '+    """Add', "+    all up.", '+    """')
    only = patch("shop.py", *fix, "+    return 1 == 2")
    assert not has_unchanged_code(only, make_mutants(only))
    beside = patch("shop.py", *fix, "+    log(1)", "+    parser.add(", '+        "--x",', "+    )")
    assert has_unchanged_code(beside, make_mutants(beside))


PYTHON_TESTS = """\
class TestFerry:
    @mark.parametrize(
        "seats",
        [
            1,
            2,
        ],
    )
    def test_seats(self, seats):
        assert book(seats)

    def test_text(self):
        assert read() == \'\'\'
old
\'\'\'

    def test_nothing(self):
        book(1)
"""
GO_TESTS = """\
func TestLoad(t *testing.T) {
	tests := []struct {
		path string
		want int
	}{
		{"a", 1},
		{"b", 2},
		{"c", 3},
		{"d", 4},
		{"e", 5},
		{"f", 6},
		{"g", 7},
		{"h", 8},
		{"i", 9},
		{"j", 10},
		{"k", 11},
	}
	for _, test := range tests {
		got := Load(test.path)
		if got != test.want {
			t.Errorf("got %d", got)
		}
	}

	_ = tests
}
"""
SCRIPT_TESTS = """\
describe("ferry", () => {
  it("takes a dog's basket", () => {
    expect(book("basket")).toBe(1)
  })
  it("is late", () => expect(late()).toBe(true))
})
"""


SCRIPT_TABLE = """\
describe("ferry", () => {
  const tests: Seats = {
    cat: 1,
    dog: 2,
  }
  const late = seats({
    dog: 2,
  })
})
"""
GO_TABLE = """\
var loads = []struct {
	path string
}{
	{"a"},
	{"b"},
}

func TestLoads(t *testing.T) {
	t.Run("of a ferry", func(t *testing.T) {
		t.Error(loads)
	})
}
"""


@pytest.mark.parametrize(
    ("text", "added", "names", "shown"),
    [
        (GO_TABLE, {5}, [""], 'var loads = []struct {\n…\n\t{"b"},\n…\n}'),
        (SCRIPT_TABLE, {4}, [""], "const tests: Seats = {\n…\n  dog: 2,\n…\n}"),
        (GO_TABLE, {8, 9, 10}, ["TestLoads"], "of a ferry"),
        (
            GO_TABLE.replace("\tt.Run", "\t_ = 1\n" * 30 + "\tt.Run"),
            {*range(8, 50)},
            ["of_a_ferry"],
            "",
        ),
        (PYTHON_TESTS, {6}, ["test_seats"], "2,"),
        (PYTHON_TESTS, {11, 12, 13, 14, 16, 17}, [], ""),
        (GO_TESTS, {10, 11}, ["TestLoad", ""], '\t{"e", 5},\n'),
        (GO_TESTS, {*range(1, 30)}, [""], '{"k", 11},'),
        (SCRIPT_TESTS, {2, 3, 4}, ["takes a dog's basket"], "expect"),
        (SCRIPT_TESTS, {5}, [], ""),
    ],
    ids=[
        "table",
        "table within a suite",
        "subtest in a short test",
        "subtest",
        "parameters",
        "text further left",
        "rows",
        "too long",
        "script",
        "one line",
    ],
)
def test_short_tests_are_examples_of_what_a_change_is_for(
    text: str, added: set[int], names: list[str], shown: str
) -> None:
    examples = [*find_examples(text, added)]
    assert [example.name for example in examples] == names
    assert all(shown in example.code for example in examples)
    assert all(example.code[0] != " " for example in examples)
