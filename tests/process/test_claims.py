"""What counts as a claim of success, and what owns up."""

from __future__ import annotations

import pytest
from story import story

from closeloop.process.agent_claims import NO_END, SuccessClaim, list_closings, parse_claim
from closeloop.process.trace_reading import build_reading
from closeloop.records.trace import Message


def said(text: str) -> SuccessClaim | None:
    return parse_claim(Message(number=1, lane="root", role="agent", text=text))


@pytest.mark.parametrize(
    "text",
    [
        "All tests pass.",
        "Done. All 27 tests pass successfully.",
        "All browser tests are now passing.",
        "I ran the unit tests for the cart and they both passed.",
        "Fixed the failing test_total. All tests pass now.",
        "Everything is in place:\n- ✅ **63 tests** pass",
        "The change passes all tests.",
        "Added `--version`. **Tested and working.**",
        "I tested and everything works.",
        "Updated 5 failing tests to the new name. The test suite is green.",
    ],
)
def test_these_say_that_checks_pass(text: str) -> None:
    claim = said(text)
    assert claim is not None
    assert claim.passing


@pytest.mark.parametrize(
    "text",
    [
        "Done!",
        "I've successfully modified the exporter.",
        "The bug has been fixed: dates are parsed as UTC.",
        "THOUGHT: I added the option to the parser. I'll now submit the changes.",
        "I added a test that passing a string to total() raises.",
    ],
)
def test_these_say_only_that_the_work_is_done(text: str) -> None:
    claim = said(text)
    assert claim is not None
    assert not claim.passing


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        ("Fertig, der Fehler ist behoben.", False),
        ("Ich habe den Import korrigiert; alle Tests laufen durch.", True),
        ("C'est corrigé.", False),
        ("Tous les tests passent.", True),
        ("Listo, el error está corregido.", False),
        ("Todas las pruebas pasan.", True),
        ("Pronto! O erro foi corrigido.", False),
        ("Todos os testes passaram.", True),
        ("Fatto. Ho corretto il totale.", False),
        ("Готово, ошибка исправлена.", False),
        ("Все тесты проходят.", True),
        ("已修复该问题。", False),
        ("所有测试都通过了。", True),
        ("バグを修正しました。", False),
        ("テストはすべて通りました。", True),
    ],
)
def test_claims_in_other_languages(text: str, passing: bool) -> None:
    claim = said(text)
    assert claim is not None
    assert claim.passing is passing


@pytest.mark.parametrize(
    "text",
    [
        "Der Fehler sollte behoben sein.",
        "Ich habe den Import korrigiert, aber nicht getestet.",
        "C'est corrigé, mais je n'ai pas pu lancer les tests.",
        "No pude ejecutar las pruebas.",
        "O erro foi corrigido, mas não testei.",
        "Не удалось исправить ошибку.",
        "测试无法运行，已修复。",
        "テストはできませんでした。修正しました。",
    ],
)
def test_reserve_in_other_languages(text: str) -> None:
    assert said(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "It seems it was added specifically for this kind of introspection.",
        "Every blob is the complete file content.",
        "> Done. All tests pass.",
        "| Modified | No overlap | - |",
        "[Command finished successfully]",
        "I'd say we're good to go straight to implementation.",
        "Here is why it was removed and how this addresses the feedback.",
        "The tests will pass once the server is up.",
    ],
)
def test_descriptions_quotations_and_output_claim_nothing(text: str) -> None:
    assert said(text) is None


def test_an_offer_to_do_more_doubts_nothing() -> None:
    offer = "Would you like me to make any additional changes?"
    assert said(f"The issue is now fixed. {offer}") is not None
    assert said("The issue is now fixed. Shall I run the tests?") is None


@pytest.mark.parametrize(
    "text",
    [
        "I fixed the parser, but I could not run the tests.",
        "I couldn’t run the tests here.",
        "Fixed. The tests should pass now.",
        "Implemented, but not tested.",
        "All unit tests pass, but 2 tests still fail in the browser.",
        "Done. Two pre-existing failures remain.",
        "Fixed the parser. Please run the tests to confirm.",
        "The model trained successfully. Let me fix the size next.",
        "I've completed the previous request. What would you like to do next?",
        "I'll add the option once the tests pass.",
        "J'ai tout fait.",
        "",
        "?",
    ],
)
def test_these_claim_nothing_or_not_without_reserve(text: str) -> None:
    assert said(text) is None


def test_words_in_blocks_of_code_are_no_claim() -> None:
    assert said("Here it is:\n```\nprint('all tests pass')\n```") is None


def test_a_very_long_message_is_read_only_at_its_beginning() -> None:
    assert said("x " * 10_000 + "All tests pass.") is None


def test_a_lane_closes_where_the_user_speaks_and_where_it_ends() -> None:
    events = [
        {"user": "One"},
        {"say": "Let me look."},
        {"edit": "a.py"},
        {"say": "Done."},
        {"user": "Two"},
        {"say": "Let me see."},
        {"edit": "a.py"},
        {"user": "Wait", "intent": "interrupt"},
        {"say": "Stopped."},
    ]
    (lane,) = build_reading(story(events)).lanes.values()
    assert [(one.message.number, one.until) for one in list_closings(lane)] == [(4, 5), (9, NO_END)]


def test_questions_close_nothing() -> None:
    (lane,) = build_reading(story([{"user": "One"}, {"ask": "Which one?"}])).lanes.values()
    assert list_closings(lane) == []
