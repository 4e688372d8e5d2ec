"""Make some assertions of a JavaScript test wrong, and let each report whether it held.

Each assertion is written down as it is or made wrong, by the toss of a coin. A wrong one that fails
does not end its test, so that everything after it runs as it always does. Another room holds the
same test with each coin turned over. Whoever reads the test cannot tell right from wrong, unless
they know the answers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from closeloop.grading.integrity.javascript_assertions import (
    Assertion,
    change_expectation,
    invert_assertion,
    read_assertion,
)
from closeloop.grading.integrity.javascript_files import NameMaker, assert_equal
from closeloop.grading.integrity.javascript_parts import SplitAssertion, split_assertion
from closeloop.grading.integrity.javascript_sites import (
    Site,
    SiteFinder,
    always_ends,
    append_statement,
    statement_around,
    wrap_site,
)
from closeloop.grading.integrity.javascript_tests import Declaration, arguments_of
from closeloop.grading.integrity.javascript_values import ValueChanger, change_value
from closeloop.grading.integrity.probe import ProbeKind, ProbeTest
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


class ProbeKit(Record):
    """What the functions of one file are rewritten with."""

    path: str
    """Of the file as it is found."""
    is_counting: bool
    """Whether it says how many assertions there are."""
    assert_names: Mapping[str, str]
    assertion: Assertion | None
    """One as the file makes them."""
    names: NameMaker
    record: str
    """The function by which an assertion reports."""
    changer: ValueChanger
    room: int
    """In room 1, every coin is turned over."""
    token: str
    skipped: frozenset[int | str]
    """Where tests begin that are claimed by themselves, and names of functions that may fail."""
    tests: frozenset[int]
    """Where the function of any test begins."""
    claimed: frozenset[str] = frozenset()
    """Functions beside the tests whose own assertions report: their calls stay as they are."""


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
    is_watched: bool = False
    """Whether something that we do not know may see it fail."""
    is_check: bool = False
    """Whether a helper of the tests asserts."""
    is_own: bool = False
    """Whether it is ours, and has nothing to do with the code under test."""
    met_by_many: bool = False
    """Whether the same value may satisfy it as it was and as it is."""
    proofs: tuple[ProbeTest, ...] = ()
    """For a helper: a test of it that must pass and one that must fail, whatever the change."""


class ClaimedTest(Record):
    """A test whose assertions report one by one."""

    edits: list[SourceEdit]
    claims: list[ScriptClaim]


def write_claims(declaration: Declaration, kit: ProbeKit) -> ClaimedTest:
    """Make some assertions of a test wrong, and let each report; all coins follow from the token.

    Behind them come some of our own, for tests that leave all asserting to others.
    """
    callback = declaration.callback
    if callback is None:
        return ClaimedTest(edits=[], claims=[])
    sites = SiteFinder(callback, kit.skipped).list_sites()
    edits, claims, wrapped = _claim_sites(sites, kit, declaration)
    seed = f"{kit.token} {kit.path} {declaration.call.start_byte}"
    text, own = _make_own_claims(callback, random.Random(seed), kit)  # noqa: S311
    is_wrapped = callback.child_by_field_name("body") in wrapped
    before, behind = append_statement(callback, text, body_is_wrapped=is_wrapped)
    claims += own if behind else []
    return ClaimedTest(edits=[*dict.fromkeys([*before, *edits, *behind])], claims=claims)


def write_shared_claims(function: Node, kit: ProbeKit) -> ClaimedTest:
    """The same for a function that tests call: what it asserts may be meant to fail."""
    finder = SiteFinder(function, kit.skipped | kit.tests)
    edits, claims, _ = _claim_sites(finder.list_sites(sure=False, watched=True), kit, None)
    return ClaimedTest(edits=[*dict.fromkeys(edits)], claims=claims)


def _claim_sites(
    sites: Iterable[Site], kit: ProbeKit, declaration: Declaration | None
) -> tuple[list[SourceEdit], list[ScriptClaim], list[Node]]:
    """Edits and claims of all that can be made wrong, and the nodes that they stand at."""
    edits: list[SourceEdit] = []
    claims: list[ScriptClaim] = []
    wrapped: list[Node] = []
    for site in sites:
        seed = f"{kit.token} {kit.path} {site.node.start_byte} {site.node.end_byte}"
        rng = random.Random(seed)  # noqa: S311 (holds the token)
        is_wrong, proofs = _toss_coin(site, rng, kit), tuple[ProbeTest, ...]()
        assertion, way = _perturb_assertion(site, rng, kit)
        if way is not None and (split := _split_site(site, assertion, rng, kit)) is not None:
            edit, parts = _claim_parts(site, split, rng, kit)
            edits.append(edit)
            claims += parts
            continue
        is_check = way is None
        if way is None and site.is_inline:
            continue
        if way is None and (way := _change_check(site, rng, kit)) is None:
            continue
        label, opposite = _make_labels(rng, kit.room)
        promised = site.is_waited if assertion is None else assertion.is_promised
        behind = "" if assertion is None else assertion.shown_by
        failing = _fail_as_before(site, kit, is_wrong=is_wrong)
        edits += wrap_site(
            site, kit.record, label, promised=promised, behind=behind, failing=failing
        )
        edits += way.edits if is_wrong else _write_unchanged(way, kit)
        edits += assertion.harden() if assertion is not None else ()
        if is_check and declaration is not None:
            proof_edits, proofs = _prove_check(declaration, site, way, kit)
            edits += proof_edits
        claim = ScriptClaim(
            label=label,
            opposite=opposite,
            how=way.how if is_wrong else "",
            is_sure=site.is_sure,
            is_certain=not site.is_watched and (way.certain or not is_wrong),
            is_watched=site.is_watched,
            is_check=is_check,
            met_by_many=is_check or not way.certain,
            proofs=proofs,
        )
        claims.append(claim)
        wrapped.append(site.node)
    return edits, claims, wrapped


def _toss_coin(site: Site, rng: random.Random, kit: ProbeKit) -> bool:
    """Whether to make an assertion wrong in this room.

    In one of the rooms all are right that others may see fail, and fail as they would.
    """
    coin = rng.random() < 0.5
    if site.is_watched:
        coin = random.Random(f"{kit.token} watched").random() < 0.5  # noqa: S311
    return coin != bool(kit.room)


def _fail_as_before(site: Site, kit: ProbeKit, *, is_wrong: bool) -> str:
    """Let a right assertion fail where others see it; nobody can tell it by its looks."""
    if not site.is_watched:
        return ""
    call = kit.changer.open_call(kit.names.rng, changes=is_wrong)
    return f"if ({call}true)) throw error; "


def _split_site(
    site: Site, assertion: Assertion | None, rng: random.Random, kit: ProbeKit
) -> SplitAssertion | None:
    """The parts of an assertion that is a statement, unless assertions are counted."""
    if site.ends_function or site.is_inline or kit.is_counting or assertion is None:
        return None
    return split_assertion(site.node, assertion, rng, kit.changer)


def _claim_parts(
    site: Site, split: SplitAssertion, rng: random.Random, kit: ProbeKit
) -> tuple[SourceEdit, list[ScriptClaim]]:
    """A block in the place of a statement, in which each part reports by itself."""
    texts, claims = [split.before], []
    for part in split.parts:
        is_wrong = _toss_coin(site, rng, kit)
        label, opposite = _make_labels(rng, kit.room)
        held, failed = f"{kit.record}('{label}', true)", f"{kit.record}('{label}', false)"
        statement = part.wrong if is_wrong else part.right
        failed += f"; {_fail_as_before(site, kit, is_wrong=is_wrong)}"
        texts.append(f"try {{ {statement}; {held} }} catch (error) {{ {failed}}}")
        claim = ScriptClaim(
            label=label,
            opposite=opposite,
            how=part.how if is_wrong else "",
            is_sure=site.is_sure,
            is_certain=not site.is_watched,
            is_watched=site.is_watched,
        )
        claims.append(claim)
    text = f"{{ {' '.join(texts)} }}"
    return SourceEdit(start=site.node.start_byte, end=site.node.end_byte, text=text), claims


def _make_labels(rng: random.Random, room: int) -> tuple[str, str]:
    """An assertion's labels in this room and in the other."""
    stem = f"{rng.getrandbits(44):011x}"
    return f"{stem}{room}", f"{stem}{1 - room}"


def _perturb_assertion(
    site: Site, rng: random.Random, kit: ProbeKit
) -> tuple[Assertion | None, Perturbation | None]:
    assertion = read_assertion(site.expression, kit.assert_names, waited=site.is_waited)
    if assertion is None:
        return None, None
    way = change_expectation(assertion, rng, kit.changer) or invert_assertion(assertion)
    return assertion, way


def _write_unchanged(way: Perturbation, kit: ProbeKit) -> Iterator[SourceEdit]:
    """Let a right value go through the changer, where a wrong one would."""
    if any(edit.text.startswith(f"{kit.changer.name}(") for edit in way.edits):
        opening, closing = way.edits
        call = kit.changer.open_call(kit.names.rng, changes=False)
        yield insert_text(opening.start, call)
        yield closing


def _make_own_claims(
    callback: Node, rng: random.Random, kit: ProbeKit
) -> tuple[str, list[ScriptClaim]]:
    """Assertions that have nothing to do with the code under test, made as the file makes them.

    The last of them holds as long as nobody replaced what asserts.
    """
    first, second, is_wrong = rng.randrange(999), rng.randrange(999), rng.random() < 0.5
    is_wrong, (label, opposite) = is_wrong != bool(kit.room), _make_labels(rng, kit.room)
    expected = first + second + (rng.randrange(1, 99) if is_wrong else 0)
    style = None if kit.is_counting else kit.assertion
    statement = assert_equal(style, f"Number('{first}') + {second}", f"{expected}")
    held, failed = f"{kit.record}('{label}', true)", f"{kit.record}('{label}', false)"
    text = f"try {{ {statement}; {held} }} catch (error) {{ {failed} }}"
    claim = ScriptClaim(
        label=label,
        opposite=opposite,
        how="an assertion of its own that is wrong" if is_wrong else "",
        is_sure=always_ends(callback),
        is_certain=True,
        is_own=True,
    )
    label, opposite = _make_labels(rng, kit.room)
    text += f" {kit.record}('{label}', {kit.record}.isIntact())"
    intact = msgspec.structs.replace(claim, label=label, opposite=opposite, how="")
    return text, [claim, intact]


def _change_check(site: Site, rng: random.Random, kit: ProbeKit) -> Perturbation | None:
    """Another last argument for a helper that checks: `check(parse(text), 3)`."""
    call = site.expression
    called = node_text(call.child_by_field_name("function"))
    arguments = arguments_of(call) if call.type == "call_expression" else []
    if (
        len(arguments) < 2
        or not _CHECKING.search(called)
        or called.rpartition(".")[2] in kit.claimed
    ):
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
    So is what comes after a wrong assertion in a function that others call, as they may have looked
    whether it fails, and all of a test that is not steady, as it sees its own title.
    """
    doubted, proved = False, True
    proved_by: tuple[str, ...] = ()
    for claim in claims:
        yield from claim.proofs
        if claim.is_check and claim.how:
            doubted, proved = True, proved and bool(claim.proofs)
            proved_by = (*proved_by, *(proof.name for proof in claim.proofs)) if proved else ()
        if claim.is_own:
            kind: ProbeKind = "control"
        else:
            kind = "perturbed" if claim.how else "copy"
        yield ProbeTest(
            name=f"#{claim.label}",
            kind=kind,
            expect="fail" if claim.how else "pass",
            original=original,
            how=claim.how,
            certain=steady and claim.is_certain and not doubted,
            optional=not claim.is_sure,
            proved_by=proved_by,
            opposite=f"#{claim.opposite}",
            met_by_many=claim.met_by_many,
        )
        if claim.is_watched and claim.how:
            doubted, proved, proved_by = True, False, ()
