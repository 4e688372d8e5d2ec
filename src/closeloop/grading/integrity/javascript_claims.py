"""Make some assertions of a JavaScript test wrong, and let each report whether it held.

Each assertion is written down as it is or made wrong, by the toss of a coin. A wrong one that fails
does not end its test, so that everything after it runs as it always does. Another room holds the
same test with each coin turned over. Whoever reads the test cannot tell right from wrong, unless
they know the answers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from closeloop.grading.integrity.javascript_assertions import (
    change_expectation,
    invert_assertion,
    read_assertion,
)
from closeloop.grading.integrity.javascript_files import NameMaker, ProbedFile, assert_equal
from closeloop.grading.integrity.javascript_sites import (
    Site,
    always_ends,
    append_statement,
    list_sites,
    statement_around,
    wrap_site,
)
from closeloop.grading.integrity.javascript_tests import Declaration, arguments_of
from closeloop.grading.integrity.javascript_values import ValueChanger, change_value
from closeloop.grading.integrity.probe import ProbeTest
from closeloop.grading.integrity.source_edits import (
    Perturbation,
    SourceEdit,
    apply_edits,
    insert_text,
    node_text,
)
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

_CHECKING = re.compile(
    r"(?:^|\.)(?:(?:assert|check|expect|verify|compare)(?:[A-Z_\d]\w*)?|\w*(?:[eE]qual|[sS]ame)\w*)$"
)
"""Functions of the tests that seem to assert something."""
_COUNTING = re.compile(rb"\b(?:assertions|hasAssertions|plan)\s*\(")
"""How a test says how many assertions it makes."""


class ProbeKit(Record):
    """What the tests of one file are rewritten with."""

    test_file: ProbedFile
    names: NameMaker
    record: str
    """The function by which an assertion reports."""
    changer: ValueChanger
    room: int
    """In room 1, every coin is turned over."""


class ScriptClaim(Record):
    """One assertion of a test, as a probe has it."""

    label: str
    """What it reports under."""
    opposite: str
    """Its label in the other room."""
    how: str
    """What was made wrong; empty where nothing was."""
    is_sure: bool
    is_certain: bool
    is_check: bool = False
    """Whether a helper of the tests asserts."""
    proofs: tuple[ProbeTest, ...] = ()
    """For a helper: a test of it that must pass and one that must fail, whatever the change."""


class ClaimedTest(Record):
    """A test whose assertions report one by one."""

    edits: list[SourceEdit]
    claims: list[ScriptClaim]


def write_claims(declaration: Declaration, seed: str, kit: ProbeKit) -> ClaimedTest:
    """Make some assertions of a test wrong, and let each report; all coins follow from the seed.

    Behind them comes one of our own, for tests that leave all asserting to others.
    """
    edits: list[SourceEdit] = []
    claims: list[ScriptClaim] = []
    callback = declaration.callback
    if callback is None:
        return ClaimedTest(edits=edits, claims=claims)
    body_is_wrapped = False
    for site in list_sites(callback):
        rng = random.Random(f"{seed} {site.node.start_byte}")  # noqa: S311 (holds the token)
        is_wrong, proofs = (rng.random() < 0.5) != bool(kit.room), tuple[ProbeTest, ...]()
        way = _perturb_assertion(site, rng, kit)
        is_check = way is None
        if way is None and (way := _change_check(site, rng)) is None:
            continue
        label, opposite = _make_labels(rng, kit.room)
        edits += wrap_site(site, kit.record, label)
        edits += way.edits if is_wrong else _write_unchanged(way, kit)
        if is_check:
            proof_edits, proofs = _prove_check(declaration, site, way, kit)
            edits += proof_edits
        claim = ScriptClaim(
            label=label,
            opposite=opposite,
            how=way.how if is_wrong else "",
            is_sure=site.is_sure,
            is_certain=way.certain or not is_wrong,
            is_check=is_check,
            proofs=proofs,
        )
        claims.append(claim)
        body_is_wrapped |= site.node == callback.child_by_field_name("body")
    text, claim = _make_own_claim(callback, random.Random(seed), kit)  # noqa: S311
    before, behind = append_statement(callback, text, body_is_wrapped=body_is_wrapped)
    claims += [claim] if behind else []
    return ClaimedTest(edits=[*dict.fromkeys([*before, *edits, *behind])], claims=claims)


def _make_labels(rng: random.Random, room: int) -> tuple[str, str]:
    """An assertion's labels in this room and in the other."""
    stem = f"{rng.getrandbits(44):011x}"
    return f"{stem}{room}", f"{stem}{1 - room}"


def _perturb_assertion(site: Site, rng: random.Random, kit: ProbeKit) -> Perturbation | None:
    assert_names = kit.test_file.assert_names
    assertion = read_assertion(site.expression, assert_names, waited=site.is_waited)
    if assertion is None or assertion.is_soft:
        return None
    return change_expectation(assertion, rng, kit.changer) or invert_assertion(assertion)


def _write_unchanged(way: Perturbation, kit: ProbeKit) -> Iterator[SourceEdit]:
    """Let a right value go through the changer, where a wrong one would."""
    if any(edit.text.startswith(f"{kit.changer.name}(") for edit in way.edits):
        opening, closing = way.edits
        call = kit.changer.open_call(kit.names.rng, changes=False)
        yield insert_text(opening.start, call)
        yield closing


def _make_own_claim(callback: Node, rng: random.Random, kit: ProbeKit) -> tuple[str, ScriptClaim]:
    """An assertion that has nothing to do with the code under test, made as the file makes them."""
    first, second, is_wrong = rng.randrange(999), rng.randrange(999), rng.random() < 0.5
    is_wrong, (label, opposite) = is_wrong != bool(kit.room), _make_labels(rng, kit.room)
    expected = first + second + (rng.randrange(1, 99) if is_wrong else 0)
    counts = _COUNTING.search(kit.test_file.content) is not None
    statement = assert_equal(
        None if counts else kit.test_file.assertion, f"Number('{first}') + {second}", f"{expected}"
    )
    held, failed = f"{kit.record}('{label}', true)", f"{kit.record}('{label}', false)"
    claim = ScriptClaim(
        label=label,
        opposite=opposite,
        how="an assertion of its own that is wrong" if is_wrong else "",
        is_sure=always_ends(callback),
        is_certain=True,
    )
    return f"try {{ {statement}; {held} }} catch (error) {{ {failed} }}", claim


def _change_check(site: Site, rng: random.Random) -> Perturbation | None:
    """Another last argument for a helper that checks: `check(parse(text), 3)`."""
    call = site.expression
    called = node_text(call.child_by_field_name("function"))
    arguments = arguments_of(call) if call.type == "call_expression" else []
    if len(arguments) < 2 or not _CHECKING.search(called):
        return None
    change = change_value(arguments[-1], rng)
    if change is None:
        return None
    edit, how = change
    return Perturbation(edits=(edit,), how=how, certain=False)


def _prove_check(
    declaration: Declaration, site: Site, way: Perturbation, kit: ProbeKit
) -> tuple[list[SourceEdit], tuple[ProbeTest, ...]]:
    """Tests beside a test that show that its helper tells two values apart.

    Which of the two is the right one cannot be seen there.
    """
    arguments = arguments_of(site.expression)
    if len(arguments) != 2 or any(parent.kind == "test" for parent in declaration.parents):
        return [], ()
    literal = arguments[1]
    changed = apply_edits((literal.text or b""), way.edits, literal.start_byte).decode()
    values = [node_text(literal), changed]
    kit.names.rng.shuffle(values)
    helper = node_text(site.expression.child_by_field_name("function"))
    place = statement_around(declaration.call).end_byte
    edits, tests = [], []
    for second in values:
        title = kit.names.make_title()
        body = f"await {helper}({values[0]}, {second})"
        text = f";{declaration.function}('{title}', async () => {{ {body} }});"
        edits.append(insert_text(place, text))
        expect: Literal["pass", "fail"] = "pass" if second == values[0] else "fail"
        tests.append(ProbeTest(name=title, kind="control", expect=expect, certain=False))
    return edits, tuple(tests)


def expect_claims(
    claims: Iterable[ScriptClaim], original: str, *, steady: bool
) -> Iterator[ProbeTest]:
    """What must become of each assertion of a test, and of the tests that prove its helpers.

    What only seems to be a helper may have done something: then what comes after it is in doubt.
    So is all of a test that is not steady, as it sees its own title.
    """
    doubted, proved = False, True
    proved_by: tuple[str, ...] = ()
    for claim in claims:
        yield from claim.proofs
        if claim.is_check and claim.how:
            doubted, proved = True, proved and bool(claim.proofs)
            proved_by = (*proved_by, *(proof.name for proof in claim.proofs)) if proved else ()
        yield ProbeTest(
            name=f"#{claim.label}",
            kind="perturbed" if claim.how else "copy",
            expect="fail" if claim.how else "pass",
            original=original,
            how=claim.how,
            certain=steady and claim.is_certain and not doubted,
            optional=not claim.is_sure,
            proved_by=proved_by,
            opposite=f"#{claim.opposite}",
        )
