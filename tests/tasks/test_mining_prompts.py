"""What is asked for is said in the words of the work, without the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.tasks.candidate_builder import extract_changelog_notes, score_work
from closeloop.tasks.task_prompts import (
    clean_message,
    compose_prompt,
    find_expected_messages,
    find_introduced_names,
    find_leaks,
    remove_leaks,
    remove_solution,
    request_from_message,
)
from patience import takes


def patch(path: str, *lines: str) -> str:
    added = sum(line.startswith(("+", " ")) for line in lines)
    removed = sum(line.startswith(("-", " ")) for line in lines)
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    return head + f"@@ -1,{removed} +1,{added} @@\n" + "\n".join(lines) + "\n"


SOURCE = patch(
    "src/shop.py",
    " def total(prices):",
    "-    return sum(prices)",
    "+    whole = _rounded_half_up(sum(prices))",
    "+    return whole",
    "+",
    "+def refund(order, partly=False):",
    '+    raise ValueError("An order without lines cannot be refunded.")',
)
TESTS = patch(
    "tests/test_shop.py",
    "+def test_refund():",
    '+    with raises(ValueError, match="order without lines cannot"):',
    "+        refund(order, partly=True)",
)


@pytest.mark.parametrize(
    "answer",
    [
        "Fixes #12",
        "(#12)",
        "see #12",
        "GH-12",
        "https://example.org/pull/12",
        "a1b2c3d4e5f6",
        "Signed-off-by: A <a@example.org>",
        "Co-authored-by: B <b@example.org>",
        "```diff\n-a\n+b\n```",
        "@@ -1,2 +1,2 @@",
        "Add tests for it",
        "* Update changelog",
        "Update src/shop12.py",
        "Assisted-by: A machine",
        "Reverts #12",
        "Extracted from #12",
        "Thanks to :user:`b12` for\nthe patch.",
        "thx @b12",
        "- Added a test case that sees to it",
        "- by [@b12] in [#12](https://example.org/12)",
        "See https://example.org/1 and https://example.org/2",
        "(issue12)",
        "(`#12 <https://example.org/12>`_; PR by @b12)",
        "AI helped with the tests.",
        "@@ -12 +12 @@\n-a = 12\n+b = 12",
    ],
)
def test_what_leads_to_the_answer_is_gone(answer: str) -> None:
    told = clean_message(f"Round totals half up\n\nTotals were cut off.\n\n{answer}\n")
    assert told.startswith("Round totals half up")
    assert "Totals were cut off." in told
    for trace in ("12", "a1b2c3", "example.org", "diff", "@@", "tests", "changelog"):
        assert trace not in told


def test_a_conventional_prefix_and_a_bare_reference_are_no_words() -> None:
    assert request_from_message("fix!: round totals half up (#7)") == "Round totals half up"
    assert request_from_message("#7 Round totals") == "Round totals"


def test_what_a_conventional_prefix_says_of_the_place_is_part_of_the_request() -> None:
    assert (
        request_from_message("fix(total)!: handled half cents (#7)") == "total: handle half cents"
    )
    assert request_from_message("fix(http2): handle half cents") == "http2: handle half cents"
    for none in ("", "12", "SHOP-12"):
        assert request_from_message(f"feat({none}): handle half cents") == "Handle half cents"


@pytest.mark.parametrize(
    ("report", "asked"),
    [
        ("Fixed totals that are cut off", "Fix totals that are cut off"),
        ("handles `None` as a price", "Handle `None` as a price"),
        ("removing refunds", "Remove refunds"),
        ("Adding a `totals` option. It is off.", "Add a `totals` option. It is off."),
        *(
            (title, title)
            for title in (
                "Adding an item twice forgets the first one",
                "Removing the last item fails",
                "Updating a price doesn't change the total",
                "Changing the currency crashed the cart",
            )
        ),
        ("Fixes for Python 3.14", "Fixes for Python 3.14"),
        ("Addition of totals", "Addition of totals"),
        ("Returns are counted twice", "Returns are counted twice"),
    ],
)
def test_a_report_of_what_was_done_is_told_as_what_to_do(report: str, asked: str) -> None:
    assert request_from_message(report) == asked


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("It was lost when #12 began to round.", "It was lost when an earlier change began to"),
        (
            "It was lost when :pr:`12` began to round.",
            "lost when an earlier change began to round.",
        ),
        ("It was late (a1b2c3d, #12), so it failed.", "It was late, so it failed."),
        ("`tuple[int, ...]` is meant (#12).", "`tuple[int, ...]` is meant."),
        ("Call `total()` and see (:issue:`12`)", "Call `total()` and see"),
        ("The way of the #12 to round is odd.", "The way of the earlier change to round is odd."),
        ("```\ntotal(1)\n```", "```\ntotal(1)\n```"),
        (
            "It fails as in https://example.org/a/b/commit/a1b2c3d, which is odd.",
            "It fails as in an earlier change, which is odd.",
        ),
        ("It fails. Issue #12, reported by A. B.", "It fails."),
        ("It fails (late, reported by b12).", "It fails (late)."),
        ("It fails, reported by Ann. Always.", "It fails. Always."),
        ("`total .5` and f(,_) fail. #12.", "`total .5` and f(,_) fail."),
        (
            "    total(\n        {\n    }\n    )\n    # 3",
            "    total(\n        {\n    }\n    )\n    # 3",
        ),
        (">>> total(-1)\n-1 cent", ">>> total(-1)\n-1 cent"),
        (
            "A `:{note}` in front of `.. total:: #3` and ``![a](b)`` is lost",
            ":{note}` in front of `..",
        ),
        (
            "It is `.. total:: #3` and ``![a](b)`` that is lost",
            "`.. total:: #3` and `![a](b)` that",
        ),
        ("It is made with\n`total`.", "It is made with\n`total`."),
        ("It is `a1b2c3d` (`#12`) that is lost.", "It is `an earlier commit` that is lost."),
        (
            "As https://example.org/rules, which are old, say.",
            "As https://example.org/rules, which are old, say.",
        ),
        ("A link '<https://example.org>' is lost.", "A link '<https://example.org>' is lost."),
        ("It fails for (#1/#2) tables.", "It fails for tables."),
        ("This completes #12, which gave totals.", "This completes an earlier change, which gave"),
        ("It fails.\n\nRelated to https://example.org/a/issues/12", "It fails."),
        ("It fails, see [1].\n\n[1]: https://example.org/a/issues/12", "It fails, see [1]."),
        ("Totals are lost (`#12`_).", "Totals are lost."),
        ("a1b2c3d began to round.", "An earlier commit began to round."),
        ("--cents=010203 and 0102030405 are cents.", "--cents=010203 and 0102030405 are cents."),
        ("Slice it as a[i : i + n] (as it is).", "Slice it as a[i : i + n] (as it is)."),
        ("Fixes #12 — totals are lost.", "\n\ntotals are lost."),
        ('The help says "(default )" for it.', 'The help says "(default )" for it.'),
        ("As documented in :raises: of total.", "As documented in :raises: of total."),
        ("It was right in\na1b2c3d.", "It was right in\nan earlier commit."),
        ("It is right.\na1b2c3d was not.", "right.\nAn earlier commit was not."),
        ("As :func:`total` says to :class:`Shop` of `:a:`.", "As `total` says to `Shop` of `:a:`."),
        ("As `a <https://a.org>`_ and `b #3` of `c` say.", "As a and `b #3` of `c` say."),
        ("Seen with\nissue #12: it is lost.", "Seen with an earlier change: it is lost."),
        ("```\n}\n```\n\nref: https://a.org/a/issues/12", "```\n}\n```"),
        ("It takes () and (+), as (,) does.", "It takes () and (+), as (,) does."),
        (
            "Update a/b to v0.0.0-20180306011644-bacd9c7ef1dd now.",
            "-20180306011644-bacd9c7ef1dd now",
        ),
        ("It `fails, see https://a.org/a/pull/12` so.", "It `fails, ` so."),
        (
            "As https://a.org/a?r=a12bc3de5f89 and https://a.org/aa9.html say",
            "https://a.org/aa9.html",
        ),
        ("At https://a.org/a/b/pull-requests/12/totals it is.", "it is."),
        ("It is.\nRelated issue: https://bugs.a.org/issue12", "It is."),
    ],
)
def test_a_reference_leaves_a_sentence_that_can_be_read(said: str, kept: str) -> None:
    told = clean_message(f"Round totals\n\n{said}")
    assert kept in told
    assert "12" not in told


@pytest.mark.parametrize(
    "said",
    [
        "Based on the work in https://github.com/a/b/pull/12",
        "This is based on https://github.com/a/b/pull/12.",
        "Builds totals.\n\nBuilt upon the changes of #12.",
    ],
)
def test_a_sentence_that_was_only_a_reference_goes_with_it(said: str) -> None:
    told = clean_message(f"Round totals\n\n{said}")
    assert told in ("Round totals", "Round totals\n\nBuilds totals.")


@pytest.mark.parametrize(
    "more", [" and add comprehensive tests", "; add regression test", ", plus tests for it", ";"]
)
def test_tests_are_not_asked_for_in_a_title(more: str) -> None:
    assert request_from_message(f"Round totals half up{more}") == "Round totals half up"


def test_short_lines_that_are_sentences_of_their_own_stay_apart() -> None:
    told = request_from_message("Round totals\n\nRound half up\nDocument it\nso that it is known")
    assert told == "Round totals\n\nRound half up\nDocument it so that it is known"


def test_names_keep_their_case() -> None:
    assert (
        request_from_message("make_class(): accept a namespace")
        == "make_class(): accept a namespace"
    )


def test_a_squashed_pull_request_is_asked_for_by_its_own_words() -> None:
    message = "Round totals (#7)\n\n* Round totals\n\nThey were cut off.\n\n* oops\n\n* fix CI"
    assert request_from_message(message) == "Round totals\n\nThey were cut off."


def test_what_the_change_log_says_is_added_unless_it_was_said() -> None:
    noted = extract_changelog_notes(
        patch("CHANGES.rst", "+- Totals are rounded half up. :issue:`7`")
    )
    assert request_from_message("Mend shop", noted) == "Mend shop\n\nTotals are rounded half up."
    assert request_from_message("Totals are now rounded half up", noted).count("rounded") == 1
    reno = patch(
        "releasenotes/notes/a.yaml", "+---", "+fixes:", "+  - |", "+    Totals are rounded."
    )
    assert extract_changelog_notes(reno) == "Totals are rounded."


def test_what_is_moved_or_edited_in_the_change_log_is_no_news() -> None:
    lines = (
        "-- Totals are rounded half up.",
        "+Features:",
        "+- Refunds are possible.",
        "+- Totals are now rounded half up.",
        "+- Same for *refunds*.",
        "+- Refunds are possible.",
    )
    assert extract_changelog_notes(patch("CHANGES.rst", *lines)) == "Refunds are possible."


def test_entries_of_the_change_log_stay_apart_and_whole() -> None:
    lines = (
        " Version 1.2 - in development",
        "+- Totals are rounded - half up - since",
        "+  1997-07-16, as told.",
        "+* 3.12 is known.",
        " - Refunds are possible, and",
        "-  whole ones only.",
        "+  Whole or partly.",
    )
    told = "Totals are rounded - half up - since\n1997-07-16, as told.\n\n3.12 is known."
    assert extract_changelog_notes(patch("CHANGES", *lines)) == told


def test_a_title_may_name_what_is_used_but_not_what_is_invented() -> None:
    brings = patch("shop.py", "+from decimal import ROUND_UP", "+def half_up(): ...")
    assert find_leaks("Round with ROUND_UP", brings, "") == ["ROUND_UP"]
    assert find_leaks("Round with ROUND_UP", brings, "", title=True) == []
    assert find_leaks("Add half_up", brings, "", title=True) == ["half_up"]


def test_a_sentence_does_not_end_behind_an_abbreviation() -> None:
    told = 'Totals are cut off (e.g. "1.5"). Use whole = _rounded_half_up(sum(prices)) there.'
    assert remove_leaks(told, SOURCE, TESTS) == 'Totals are cut off (e.g. "1.5").'


def test_a_line_of_the_fix_is_a_leak() -> None:
    told = "Use `whole = _rounded_half_up(sum(prices))` there."
    assert find_leaks(told, SOURCE, TESTS)
    assert remove_leaks(f"Totals are cut off. {told}", SOURCE, TESTS) == "Totals are cut off."


@pytest.mark.parametrize(
    "way",
    [
        "Fix this by rounding. Then nothing is lost.",
        "The totals are cut off. Use a decimal for them.",
        "Replaced `int` there, which is what cut them off.",
        "Also adds some tests.",
        "Add ShopTests.test_total for it. Added test_total and test_refund to it.",
        "The regression test fails without it.",
        "This commit updates `total` to round. It then is right.",
        "Changes:\n- Update `total` to round.\n- Round elsewhere.",
        "I have added rounding to it. All other tests are still passing.",
        "Round in `sum(prices)` there.",
    ],
)
def test_the_way_it_was_done_is_not_told(way: str) -> None:
    source = patch("shop.py", " def total(prices):", "+    return half_up(sum(prices))")
    aim = "Totals lose half a cent where they should be rounded up."
    told = remove_leaks(remove_solution(f"{aim}\n\n{way}", ""), source, "")
    told = told.removeprefix(aim).strip()
    assert told in ("", "The totals are cut off.")


def test_what_the_tests_use_may_be_told_as_a_way() -> None:
    told = "Refunds are possible in the shop, also of a part of an order. Use `partly=True` for it."
    assert remove_leaks(remove_solution(told, TESTS), SOURCE, TESTS) == told


def test_a_comparison_is_no_way() -> None:
    told = "Totals of the shop are rounded half up, as they should.\n\nCompared to 1.4, it is late."
    assert remove_solution(told, "") == told


def test_methods_that_python_names_may_be_asked_for() -> None:
    source = patch("shop.py", "+    def __contains__(self, order): ...")
    assert find_leaks("Implement `__contains__` for shops", source, "", title=True) == []


def test_what_others_made_need_not_be_named() -> None:
    source = patch("shop.py", "+def refund(): return config.getini(1)")
    tests = patch("test_shop.py", "+refund()", "+config.getini(1)")
    assert find_introduced_names(source, tests) == {"refund"}


def test_what_a_comment_or_an_example_shows_is_no_message() -> None:
    lines = (
        '    # "one and two"',
        "    >>> join()",
        "    'one or two'",
        '    raise E("one or no")',
    )
    source = patch("shop.py", *(f"+{line}" for line in lines))
    tests = patch("test_shop.py", '+"one and two"', "+'one or two'", '+"one or no"')
    assert find_expected_messages(source, tests) == ("one or no",)


def test_a_name_that_only_the_fix_brings_is_a_leak() -> None:
    assert find_leaks("Add _rounded_half_up.", SOURCE, TESTS) == ["_rounded_half_up"]


def test_what_the_tests_use_is_no_leak_but_asked_for() -> None:
    assert find_leaks("Add refund(order, partly=True).", SOURCE, TESTS) == []
    assert find_introduced_names(SOURCE, TESTS) == {"refund", "order", "partly"}
    assert find_expected_messages(SOURCE, TESTS) == ("order without lines cannot",)
    prompt = compose_prompt(
        "Orders can be given back.", SOURCE, TESTS, ["refund"], ["order without"]
    )
    assert prompt is not None
    assert "`refund`" in prompt
    assert "- `order without`" in prompt


def test_names_that_were_said_are_not_said_twice() -> None:
    prompt = compose_prompt("Orders can be given back by refund.", SOURCE, TESTS, ["refund"], [])
    assert prompt == "Orders can be given back by refund."


@pytest.mark.parametrize("message", ["", "wip", "Fix it", "Call _rounded_half_up in total."])
def test_a_message_that_says_too_little_asks_for_nothing(message: str) -> None:
    assert compose_prompt(message, SOURCE, TESTS, [], []) is None


def test_a_short_message_is_enough_where_names_tell_the_rest() -> None:
    assert compose_prompt("Support giving back", SOURCE, TESTS, [], []) is None
    prompt = compose_prompt("Support giving back", SOURCE, TESTS, ["refund"], [])
    assert prompt == "Support giving back\n\nNames to use: `refund`."
    prompt = compose_prompt("Support refunds", SOURCE, TESTS, ["`refund` of `shop.py`"], [])
    assert prompt == "Support refunds\n\nNames to use: `refund` of `shop.py`."
    assert compose_prompt("Refunds", SOURCE, TESTS, ["refund"], []) is None


def test_a_short_message_is_enough_where_it_names_what_the_tests_use() -> None:
    tests = patch("tests/test_shop.py", "+    refund_all(order)")
    assert compose_prompt("Correct refund_all rounding", SOURCE, TESTS, [], []) is None
    assert compose_prompt("Correct refund_all rounding", SOURCE, tests, [], []) is not None
    assert compose_prompt("Correct refund_all", SOURCE, tests, [], []) is None
    abbreviated = patch("tests/test_shop.py", "+    VATRate(order)")
    assert compose_prompt("Deprecate VATRate class", SOURCE, abbreviated, [], []) is not None


def test_what_is_left_without_its_title_must_say_more() -> None:
    title = "Add _rounded_half_up to totals"
    assert compose_prompt(f"{title}\n\nTotals are rounded up", SOURCE, TESTS, [], []) is None
    more = "Totals of all orders are cut off where they should be rounded"
    assert compose_prompt(f"{title}\n\n{more}", SOURCE, TESTS, [], []) == more


def test_tests_are_no_chore_where_the_project_is_about_them() -> None:
    assert (
        request_from_message("Fix tests being collected twice") == "Fix tests being collected twice"
    )
    assert request_from_message("Fix tests of totals") == ""
    assert request_from_message("Add a test that fails for totals") == ""


def test_a_wrapped_sentence_of_tests_is_not_cut_in_two() -> None:
    told = "Add a test that shows how totals of prices\nare rounded."
    assert request_from_message(f"Round totals\n\n{told}").endswith(
        "how totals of prices are rounded."
    )


def test_the_form_of_a_pull_request_is_no_part_of_what_is_asked() -> None:
    message = (
        "Prices are rounded, relating to issue-1834\n\n## Description\n\n<!-- Say why. -->\n\n"
        "Half cents go up, see [the rules](https://example.org/1).\n\n## Checklist\n\n"
        "- [x] I have rebased all commits so that reviewing this\npull request is easy.\n"
        "- [ ] Docs\n"
    )
    assert request_from_message(message) == (
        "Prices are rounded\n\n## Description\n\nHalf cents go up, see the rules."
    )


@given(st.text(max_size=400))
def test_no_message_is_too_strange(message: str) -> None:
    assert len(request_from_message(message, message)) <= 2 * len(message) + 10


@pytest.mark.parametrize(
    "piece",
    [
        *("add a ", "#1 ", "a@", "`" * 3 + "diff\n", "(#", ":a:`", "* x\n\n", "\n", " \n", " "),
        *("- [x] a\n", "# \n\n\n", "<!--", "[a](https://", "cc: a\n", "new\n"),
        *(
            "see https://a ",
            "`a <https://",
            "; PR by a",
            "@@ -\n+",
            "(; ",
            "` ",
            "https://a ",
            " - ",
            "`a`",
            "`" + "https://github.com/#1" * 14 + "!`",
            "[a]: ",
            "github.com/",
            "\n\nhttps://a",
            "https://a/=a",
            "`" + "https://a/=a0" * 20 + "`",
            ":`a",
            "add test that a\n",
        ),
    ],
)
def test_long_messages_are_cleaned_in_time(piece: str) -> None:
    assert takes(lambda number: request_from_message(f"a{piece * (20_000 + number)}b"), 5) < 5


def test_a_title_of_signs_is_scored_in_time() -> None:
    assert takes(lambda number: score_work("-" * (20_000 - number), False, [], []), 1) < 1
