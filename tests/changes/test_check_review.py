"""`closeloop check` with `check.model`: a model reviews what tools cannot see, and only advises."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.changes.check_verdict import decide_verdict
from closeloop.judges.change_review import (
    LAST_LINE,
    MAX_CHUNK_CHARS,
    MAX_LINE_CHARS,
    ReviewAnswer,
    ReviewChunk,
    build_review_question,
    read_review_answer,
    split_into_chunks,
)
from closeloop.judges.judge_calibration import FENCE_BREAKING_TEXTS, PLEADING_TEXTS, UNICODE_TEXTS
from closeloop.records.finding import Finding
from closeloop.records.settings import CheckSettings
from closeloop.text.patches import parse_hunk_lines, split_patch_by_file
from command_line import typed

CODE = "def total(prices):\n    return sum(prices)\n"
FLAW = "    return sum(prices) / len(prices)"
NEW = f"{CODE}\n\ndef mean(prices):\n{FLAW}\n"
ASKED = r"with seal (?P<seal>[0-9a-f]{16}) as"
WRONG = {
    "file": "cart.py",
    "quote": FLAW.strip(),
    "line": 99,
    "kind": "missing-edge-case",
    "message": "No prices at all divide by zero:\nreturn None then.",
    "confidence": 0.8,
}


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "cart.py").write_text(CODE)
    (folder / "closeloop.toml").write_text('[sandbox]\nkind = "none"\n')
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Start")
    (folder / "cart.py").write_text(NEW)
    return folder


def script(repo: Path, *findings: dict[str, Any]) -> str:
    value = json.dumps({"seal": "SEAL", "findings": findings})
    return scripted(repo, value.replace("SEAL", r"\g<seal>"))


def scripted(repo: Path, say: str) -> str:
    path = repo.parent / "reviewer.yaml"
    turns = [{"when": ASKED, "repeat": True, "say": say}, {"repeat": True, "say": say}]
    path.write_text(json.dumps({"name": "reviewer", "dialogues": [{"turns": turns}]}))
    return f"scripted:{path}"


def checked(repo: Path, *arguments: str) -> str:
    cache = str(repo.parent / "cache")
    ran = typed(repo, "check", "--tier", "quality", *arguments, XDG_CACHE_HOME=cache)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def reviewed(repo: Path, *arguments: str) -> tuple[list[Any], list[str]]:
    report = json.loads(checked(repo, "--json", *arguments))
    found = [one for one in report["findings"] if one["rule"] == "reviewed"]
    return found, [one["reason"] for one in report["unmeasured"] if one["rule"] == "reviewed"]


def test_a_flaw_lands_on_its_line_in_every_report(repo: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("markdown", "sarif", "json")}
    formats = [f"--format={name}={path}" for name, path in files.items()]
    out = checked(repo, "--set", f"check.model={script(repo, WRONG)}", *formats)
    message = "missing-edge-case: No prices at all divide by zero: return None then."
    assert "cart.py:6" in out
    assert "divide by zero" in out
    assert "cart.py:6" in files["markdown"].read_text()
    (run,) = json.loads(files["sarif"].read_text())["runs"]
    (result,) = [one for one in run["results"] if one["ruleId"] == "reviewed"]
    place = result["locations"][0]["physicalLocation"]
    assert (result["level"], result["message"]["text"]) == ("warning", message)
    assert place == {"artifactLocation": {"uri": "cart.py"}, "region": {"startLine": 6}}
    assert "reviewed" in [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    (found,) = json.loads(files["json"].read_text())["findings"]
    assert (found["source"], found["confidence"]) == ("judge", 0.8)


def test_the_model_may_be_named_in_the_settings_and_what_it_invents_is_counted(repo: Path) -> None:
    on_an_old_line = {**WRONG, "quote": "def total(prices):"}
    elsewhere = {**WRONG, "file": "shop.py"}
    invented = {**WRONG, "quote": "return prices.mean()"}
    name = script(repo, on_an_old_line, elsewhere, invented)
    with (repo / "closeloop.toml").open("a") as settings:
        settings.write(f'[check]\nmodel = "{name}"\n')
    git(repo, "commit", "-qm", "Let a model review", "closeloop.toml")
    found, reasons = reviewed(repo)
    assert found == []
    assert reasons == [
        "3 of the model's findings quote text that is not in any added line: ignored"
    ]


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        ("Looks good to me!", "no valid reply"),
        ('{"seal": "0000000000000000", "findings": []}', "does not contain the seal"),
    ],
)
def test_an_answer_that_is_none_is_told_and_the_other_checks_go_on(
    repo: Path, say: str, reason: str
) -> None:
    (repo / "cart.py").write_text(CODE + "\n\ntry:\n    total([])\nexcept Exception:\n    pass\n")
    report = json.loads(checked(repo, "--json", "--set", f"check.model={scripted(repo, say)}"))
    assert [one["rule"] for one in report["findings"]] == ["suppressed-error"]
    (told,) = [one["reason"] for one in report["unmeasured"] if one["rule"] == "reviewed"]
    assert reason in told


def test_a_model_without_its_key_stops_nothing(repo: Path) -> None:
    found, (reason,) = reviewed(repo, "--set", "check.model=openai/gpt-5")
    assert found == []
    assert "OPENAI_API_KEY" in reason


def test_what_does_not_fit_into_six_questions_is_told_as_not_shown(repo: Path) -> None:
    (repo / "cart.py").write_text("".join(f"x_{n} = {n:060}\n" for n in range(3000)))
    found, (unanswered, unshown) = reviewed(repo, "--set", f"check.model={scripted(repo, 'no')}")
    assert found == []
    assert unanswered.startswith("6 of 6 parts: the model gave no valid reply")
    assert re.fullmatch(r"only \d+ of 3000 added lines were shown to the model: .+", unshown)


def test_without_a_model_nothing_is_said_of_one(repo: Path) -> None:
    assert "reviewed" not in checked(repo, "--format", "sarif")


def test_what_a_model_says_never_blocks() -> None:
    doubt = Finding(rule="reviewed", version=1, severity="warning", message="", source="judge")
    strict = CheckSettings(gate="strict", block_at="warning")
    assert decide_verdict(strict, (), [doubt], None).verdict == "warn"


def chunk_of(*added: str, path: str = "cart.py") -> ReviewChunk:
    (made,) = split_into_chunks(
        (path, "+", number, f"+{text}") for number, text in enumerate(added, 1)
    )
    return made


def answered(chunk: ReviewChunk, *findings: dict[str, Any]) -> ReviewAnswer:
    posed = build_review_question(chunk, (), None)
    made = read_review_answer({"seal": posed.seal, "findings": list(findings)}, posed, chunk)
    assert isinstance(made, ReviewAnswer)
    return made


@pytest.mark.parametrize("name", [*PLEADING_TEXTS, *FENCE_BREAKING_TEXTS, *UNICODE_TEXTS])
def test_text_in_the_change_that_speaks_to_the_reviewer_stays_in_its_fence(name: str) -> None:
    attack = (PLEADING_TEXTS | FENCE_BREAKING_TEXTS | UNICODE_TEXTS)[name]
    path = f"a {attack}.py"
    chunk = chunk_of(*(f"# {line}" for line in attack.split("\n")), FLAW, path=path)
    known = Finding(rule="x", version=1, severity="info", message=attack, places=(f"{path}:1",))
    posed = build_review_question(chunk, [known], attack)
    assert posed.shown.keys() == {"request", "facts", "change"}
    text = posed.request.messages[0].text
    outside = re.sub(rf"BEGIN (\w+) {posed.seal}\n.*?\nEND \1 {posed.seal}\n", "", text, flags=re.S)
    assert outside == LAST_LINE.format(seal=posed.seal)
    plain = build_review_question(chunk_of(FLAW), (), None).request
    assert (posed.request.system, posed.request.schema) == (plain.system, plain.schema)


def test_a_quote_that_stands_twice_is_on_the_line_nearest_to_the_one_named() -> None:
    chunk = chunk_of(FLAW, "x = 1", FLAW)
    for said, line in ((-5, 1), (3, 3), (10**30, 3)):
        (found,) = answered(chunk, {**WRONG, "line": said, "quote": f"+{FLAW}"}).findings
        assert found.places == (f"cart.py:{line}",)


@pytest.mark.parametrize("quote", ["", " ", "+", "x", "x = 1\nx = 2", "return  sum(prices)"])
def test_a_quote_that_shows_nothing_is_none(quote: str) -> None:
    chunk = chunk_of("", "x = 1", "x = 2", FLAW)
    made = answered(chunk, {**WRONG, "quote": quote})
    assert (made.findings, made.dropped) == ((), 1)


@given(st.lists(st.text(max_size=3 * MAX_LINE_CHARS), max_size=200))
def test_chunks_are_bounded_and_hold_every_added_line_once(texts: list[str]) -> None:
    lines = [("a.py", "+", number, f"+{text}") for number, text in enumerate(texts)]
    made = list(split_into_chunks(lines))
    assert all(len(one.text) <= MAX_CHUNK_CHARS + 2 * MAX_LINE_CHARS for one in made)
    numbers = [number for one in made for number in one.added["a.py"]]
    assert numbers == list(range(len(texts)))


def test_lines_of_a_patch_keep_their_numbers_and_parts_that_add_nothing_are_left_out() -> None:
    patch = (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -4,2 +4,2 @@\n one\n-two\n+three\n"
        "\\ No newline at end of file\n"
    )
    ((path, section),) = [one for one in split_patch_by_file(patch) if one[0]]
    lines = [(path, *line) for line in parse_hunk_lines(section)]
    assert [(sign, number) for _, sign, number, _ in lines] == [
        ("@", 4),
        (" ", 4),
        ("-", 5),
        ("+", 5),
    ]
    (made,) = split_into_chunks(lines)
    assert made.added == {"a.py": {5: "three"}}
    assert made.text == "file: a.py\n@@ -4,2 +4,2 @@\n one\n-two\n+three"
    assert list(split_into_chunks(lines[:3])) == []
