"""How good the rules are: measured on the labelled set, and told as it is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec
import pytest
from story import labelled, story

from closeloop import plugins
from closeloop.process.rulebook import (
    ReadingCounts,
    ReadQuality,
    build_rulebook,
    decide_gate,
    list_gating_rules,
    load_measured_quality,
    quality_by_rule,
    rate_readings,
)
from closeloop.records.errors import BadInput
from closeloop.records.estimate import wilson_rate
from closeloop.records.finding import Rule

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "quality"))
import page  # noqa: E402
from own import Score, scores  # noqa: E402
from people import runs  # noqa: E402
from reading_records import count_readings, load_readings, summarise_readings  # noqa: E402
from repetition import STRINGS, TOGETHER, agreements  # noqa: E402

PAGES = ROOT / "docs" / "rules"
MODEL = (PAGES / "spiral.md").read_text(encoding="utf-8")
RULES = [detector.rule for detector in plugins.load_plugins("detectors")]
VERSIONS = {rule.name: rule.version for rule in RULES}
TESTS = "\n".join(
    path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")
)
SHARED = ROOT.parent / "shared" / "traces" / "labelled_sola_st"
every_rule = pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])


@pytest.fixture(scope="module")
def own() -> dict[str, Score]:
    return {score.rule: score for score in scores()}


def test_the_counts_that_ship_are_those_of_the_labelled_set(own: dict[str, Score]) -> None:
    assert load_measured_quality().rules == page.counts(own.values()), (
        "run `make quality ARGS='--rules --write'`"
    )


def test_the_counts_that_ship_are_those_of_the_readings() -> None:
    lines, measured = load_readings(), load_measured_quality()
    assert measured.readings == count_readings(lines, VERSIONS), (
        "run `make quality ARGS='--rules --write'`"
    )
    assert measured.reading_summary == summarise_readings(lines, VERSIONS)


def test_the_index_of_the_rules_shows_what_was_measured(own: dict[str, Score]) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    measured, scored = load_measured_quality(), list(own.values())
    tables = {
        "rules": page.rules(scored, measured.readings),
        "reading": page.reading(measured.reading_summary),
        "cases": page.cases(scored),
    }
    for name, table in tables.items():
        assert page.between(text, name) == table, "run `make quality ARGS='--rules --write'`"
    assert f"Measured on {load_measured_quality().date}." in text


@every_rule
def test_a_rule_that_may_gate_is_right_nine_times_of_ten(rule: Rule, own: dict[str, Score]) -> None:
    precision = own[rule.name].precision
    assert precision is not None, "nothing was found in any labelled trace"
    assert not rule.gates or precision.value >= 0.9, own[rule.name].wrong


@every_rule
def test_a_rule_has_two_labelled_traces_of_each_kind(rule: Rule, own: dict[str, Score]) -> None:
    score = own[rule.name]
    assert len(score.right) + len(score.missed) >= 2
    assert score.hard >= 2


@every_rule
def test_a_rule_has_tests(rule: Rule) -> None:
    assert re.search(rf"[\"']{rule.name}[\"']|\b{rule.name.replace('-', '_')}\b", TESTS)


@every_rule
def test_a_rule_has_a_page_made_like_the_others(rule: Rule) -> None:
    page_path = PAGES / f"{rule.name}.md"
    assert page_path.is_file(), "run `make docs`"
    text = page_path.read_text(encoding="utf-8")
    assert text.startswith(f"# {rule.name}\n")
    assert _headings(text) == _headings(MODEL)
    for threshold, value in rule.thresholds.items():
        assert f"`{threshold}` ({value:g})" in text, "thresholds are told with their defaults"
    assert f'rule = "{rule.name}"' in text, "the page shows how to silence the rule"
    assert ("It may gate" in text) == rule.gates
    assert ("It is advisory" in text) == (not rule.gates)


def test_every_page_is_that_of_a_rule() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == {rule.name for rule in RULES}


def test_labels_name_rules_and_events_that_exist() -> None:
    names = {rule.name for rule in RULES}
    cases = labelled()
    assert len(cases) >= 60
    for case in cases:
        assert names.issuperset([*case.expect, *case.allow]), case.name
        assert case.name.split("/")[0] in names | {"healthy"}, (
            f"{case.name} belongs to no rule: is it in pyproject.toml, and installed with `make`?"
        )
        numbers = {event.number for event in case.trace.events}
        for events in case.expect.values():
            assert events, case.name
            assert numbers.issuperset(events), case.name


def test_a_finding_at_another_place_is_wrong_and_does_not_count_as_right() -> None:
    (case,) = (case for case in labelled() if case.name == "spiral/six-reworded-fixes")
    last = max(event.number for event in case.trace.events)
    moved = type(case)(
        name=case.name, about="", trace=case.trace, expect={"spiral": [last]}, allow=[],
        task=None, attempt=None,
    )  # fmt: skip
    (spiral,) = (score for score in scores([moved]) if score.rule == "spiral")
    assert spiral.missed == spiral.wrong == (case.name,)
    assert spiral.right == ()


def test_quality_is_told_with_intervals() -> None:
    told = quality_by_rule()
    assert told.keys() == {rule.name for rule in RULES}
    counts = load_measured_quality().rules["spiral"]
    assert told["spiral"].precision == wilson_rate(counts.right, counts.right + counts.wrong)
    assert told["spiral"].labelled > 60


def test_steps_of_the_study_are_read_with_their_labels(tmp_path: Path) -> None:
    fix = (
        "{'name': 'write_fix', 'args': {'changes_dicts': [{'file_name': 'A.java', 'insertions': "
        "[{'line_number': 3, 'new_lines': ['return;']}]}]}}"
    )
    look = "{'name': 'read_range', 'args': {'filepath': 'A.java', 'startline': 1, 'endline': 9}}"
    said = " Command write_fix returned: Error: 'NoneType' object is not iterable\n"
    _write(tmp_path / "repairagent_csv/action_action/Lang_1.csv", "label\nFollow-up\nRepetition\n")
    views = tmp_path / "trajectories/repairagent/parsed"
    actions = [look, fix, fix]
    thoughts = "\n---\n".join(
        f"Iteration {at}: Thought=I think.; Action={action}" for at, action in enumerate(actions)
    )
    results = "\n---\n".join(
        f"Result at iteration {at}: {'Line 1: x' if at == 0 else said}; Next action: END"
        for at in range(3)
    )
    _write(views / "thoughts_actions/experiment_7_Lang_1", thoughts)
    _write(views / "results_actions/experiment_7_Lang_1", results)
    (run,) = runs(tmp_path)
    assert run.labels == {"action_action": ["Follow-up", "Repetition"]}
    assert [len(numbers) for numbers in run.steps] == [1, 1, 1]
    told = {one.way: one for one in agreements([run]) if one.agent == "all"}
    assert (told[TOGETHER].right, told[TOGETHER].wrong, told[TOGETHER].missed) == (1, 0, 0)
    assert told[STRINGS].right == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared labels here")
def test_all_runs_of_the_study_are_aligned_with_their_labels() -> None:
    aligned = [len(run.labels["action_action"]) == len(run.steps) - 1 for run in runs(SHARED)]
    assert len(aligned) > 40
    assert all(aligned)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _headings(text: str) -> list[str]:
    return re.findall(r"^## .*", text, re.MULTILINE)


def test_a_story_is_numbered_from_one() -> None:
    assert [event.number for event in story([{"user": "a"}, {"say": "b"}]).events] == [1, 2]


# Who gates


def read_quality(right: int, of: int, version: int = 3) -> ReadQuality | None:
    return rate_readings(ReadingCounts(version=version, right=right, wrong=of - right))


GATED = Rule(name="r", version=3, about="", severity="error", gates=True)


@pytest.mark.parametrize(
    ("right", "of", "gates", "reason"),
    [
        (19, 20, True, "19 of 20 right, at least 76 %"),
        (27, 30, True, "27 of 30 right, at least 74 %"),
        (36, 40, True, "36 of 40 right, at least 77 %"),
        (18, 20, False, "18 of 20 right: the lower bound 69.9 % is below 70 %"),
        (12, 13, False, "12 of 13 right: 7 more have to be read"),
        (19, 19, False, "19 of 19 right: 1 more has to be read"),
        (7, 35, False, "7 of 35 right: the lower bound 10.0 % is below 70 %"),
        (2, 7, False, "2 of 7 right: the lower bound 8.2 % is below 70 %"),
    ],
)
def test_a_rule_gates_by_what_was_read(right: int, of: int, gates: bool, reason: str) -> None:
    decision = decide_gate(GATED, read_quality(right, of))
    assert (decision.gates, decision.reason) == (gates, reason)


def test_a_rule_that_nobody_read_advises() -> None:
    for read in (None, read_quality(0, 0), read_quality(30, 30, version=2)):
        decision = decide_gate(GATED, read)
        assert not decision.gates
        assert "no finding on real sessions was read yet" in decision.reason


def test_a_rule_that_is_not_meant_to_gate_advises_however_right_it_is() -> None:
    advising = msgspec.structs.replace(GATED, gates=False)
    assert not decide_gate(advising, read_quality(30, 30)).gates


def test_a_team_may_decide_otherwise() -> None:
    detectors = plugins.load_plugins("detectors")
    every = {rule.name: {"gates": True} for rule in RULES}
    assert list_gating_rules(build_rulebook(detectors, every)) == {rule.name for rule in RULES}
    none = {rule.name: {"gates": False} for rule in RULES}
    assert list_gating_rules(build_rulebook(detectors, none)) == frozenset()
    default = build_rulebook(detectors, {})
    assert build_rulebook(detectors, every).identity == default.identity
    read = {name: one.read for name, one in quality_by_rule().items()}
    assert list_gating_rules(default) == {
        rule.name for rule in RULES if decide_gate(rule, read[rule.name]).gates
    }
    with pytest.raises(BadInput, match="true or false"):
        build_rulebook(detectors, {"spiral": {"gates": 1}})
