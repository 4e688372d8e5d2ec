"""What users say against the work, in nine languages, and what only sounds like it."""

from __future__ import annotations

import pytest

from closeloop.process.user_corrections import parse_objection


@pytest.mark.parametrize(
    "text",
    [
        "I told you to create the key. You have full access.",
        "It asks for my password. I thought we found a way to include it in the script.",
        "I absolutely want the write parts. I asked for a complete implementation.",
        "It is exactly what I asked for and you keep saying I didn't.",
        "Why are you still trying to run kubectl when I told you to use the server?",
        "I wouldn't tell you to fix it if I wanted you to stop.",
        "As I said, no tabs.",
        "How many times do I have to say it?",
        "Das habe ich dir doch schon gesagt.",
        "Wie gesagt: keine Tabs.",
        "Je t'ai déjà dit de garder les clés.",
        "Combien de fois faut-il le dire ?",
        "Ya te dije que no uses print.",
        "Eu já falei para não mexer nisso.",
        "Ti ho già detto di non farlo.",
        "Я же просил не трогать тесты.",
        "我已经说过了，不要改这个文件。",
        "さっきも言ったように、タブは使わないでください。",
    ],
)
def test_these_say_that_it_was_said_before(text: str) -> None:
    objection = parse_objection(text)
    assert objection is not None
    assert objection.again


@pytest.mark.parametrize(
    "text",
    [
        "Still doesn't work.",
        "Nope, same error as before.",
        "Das ist nicht, was ich wollte.",
        "Ce n'est pas ce que j'ai demandé.",
        "Eso no es lo que pedí.",
        "Não foi isso que eu pedi.",
        "its still there",
        "[Image 1] even then is not working",
        "u didn't edited it",
        "That's wrong.",
        "It's not fixed",
        "nothing changed",
        "the same error again",
        "integration tests are failing",
        "lint fail",
        "I'm not seeing the change come through...",
        "when merged the videos dont show up",
        "the progressive blur is not working properly",
        "Funktioniert immer noch nicht.",
        "Das ist falsch.",
        "Ça ne marche toujours pas.",
        "C'est toujours la même erreur.",
        "Sigue sin funcionar.",
        "No funciona.",
        "Ainda não funciona, o mesmo erro.",
        "Non funziona.",
        "Всё равно не работает.",
        "还是不行，一样的错误",
        "まだ動きません。",
        "同じエラーが出ます。",
    ],
)
def test_these_say_that_it_is_not_so(text: str) -> None:
    objection = parse_objection(text)
    assert objection is not None
    assert objection.refuted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        "commit and push",
        "can you try again?",
        'Can we add a hint "press up to get the prompt you just typed again"?',
        "If it still fails, let me know.",
        "Is there no test for this?",
        "I still feel this belongs into another package.",
        "That is exactly what I asked for, thanks!",
        "Sorry, what I told you was wrong.",
        "I thought I found a bug in the parser, have a look.",
        "make sure the tests are not failing",
        "works now, thanks",
        "The user doesn't want to proceed with this tool use. It doesn't work.",
        "Operation stopped by hook: this still fails",
        "<system-reminder>The tests are failing.</system-reminder>",
        "```\nFAILED test_a: it still fails\n```",
        "$ pytest\nFAIL tests/test_a.py still fails",
        "Cache is never cleared\n\nMedium Severity\n\nThis fails for renamed files.",
        "sorry wrong chat. ignore last message",
        "Sieht gut aus, danke!",
        "对不对？",
        "这样行不行？",
        "まだですか？",
    ],
)
def test_these_say_nothing_against_the_work(text: str) -> None:
    assert parse_objection(text) is None


def test_of_pasted_text_only_the_edges_are_read() -> None:
    log = "\n".join(f"step {number} did something with a file" for number in range(100))
    assert parse_objection(f"Still fails:\n{log}") is not None
    assert parse_objection(f"Look:\nsee\n{log}\nstill fails\n{log}\nthanks\nbye") is None


def test_hostile_text_is_read_in_time() -> None:
    """Every pattern is linear enough for a message of spaces, signs and half phrases."""
    for text in (" " * 20_000, "!" * 20_000, "no " * 7_000, "i told " * 3_000, "still " * 4_000):
        parse_objection(text)
