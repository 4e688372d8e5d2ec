"""The words that polarity knows: English as reviewers write it."""

from __future__ import annotations

STOP_WORDS = frozenset(
    """
    a about above after again all also an and any anybody are as at be been before being below but
    by came can could did do does doing done down each else even ever every few for from further had
    has have he her here him his how i if ill im in into is it its itself ive just let lets like
    made make makes making may maybe me might more most much must my need needs nit of off on once
    one only or other our out over own per please quite really shall should so some such sure than
    that thats the their them then there theres these they this those to too under until up us very
    via want wants was we well were when where which while who will with would yet you your youre
    """.split()  # noqa: SIM905 - a hundred quotes are hard to read
)
"""Words that are the same in most remarks."""
REQUEST_VERBS = frozenset(
    """
    add allow annotate apply ask assert avoid bind build call cap capitalise capitalize catch change
    check choose clean close comment commit compare compress compute convert copy cover create
    declare default define delete depend deprecate disable discuss document drop edit enable encode
    ensure escape exclude explain export extract fail fake fetch find fix follow forbid format
    freeze generate give guard handle hard-code hardcode have hide hold ignore implement import
    include index initialise initialize inject inline invert keep leave limit link list load lock
    log mark merge migrate mock move name narrow omit open order override parse pass persist pin
    prefer prefix print put query quote raise read redact refactor regenerate release remove rename
    render reorder replace require reset restore retry return reuse revert rotate round run save set
    show simplify skip sleep sort specify split squash stop store strip swallow take tell test throw
    time toggle translate trim type unify update upgrade use validate verify wait wrap write
    """.split()  # noqa: SIM905 - a hundred quotes are hard to read
)
"""What a remark asks for begins with one of these."""
ORDER_WORDS = frozenset(
    """
    above after before below between by calls convert depends extends first from if imports inside
    into over replace replaced than then to under unless when with wrap wraps
    """.split()  # noqa: SIM905 - a hundred quotes are hard to read
)
"""Words around which others must not change places."""
HARMLESS_WORDS = frozenset(
    """
    a again alway an and are be can code could diff do does everywher generally here i is it its
    just let lets must my need needs nit now of our patch please pr pull really request shall should
    so such that the their there these thing this those to us very we will would you your
    """.split()  # noqa: SIM905
)
"""Small words and stems that change nothing about what is wanted."""
ANTONYMS = {
    "immut": "mut", "immutabl": "mut", "mutabl": "mut", "async": "sync", "asynchronou": "sync",
    "synchronou": "sync", "disabl": "enabl", "unsaf": "saf", "implicit": "explicit",
    "privat": "public", "nest": "flat", "deni": "allow", "optional": "requir", "hidden": "shown",
    "unsort": "sort",
}  # fmt: skip
"""Stems by what they are held against."""
NEGATIVE_ANTONYMS = frozenset(
    """
    async asynchronou deni disabl hidden immut immutabl implicit nest optional privat unsaf unsort
    """.split()  # noqa: SIM905 - a hundred quotes are hard to read
)
"""Those among them that mean the contrary of what they are held against."""
