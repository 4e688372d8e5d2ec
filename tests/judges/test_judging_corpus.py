"""One question to many traces: cited, counted, asked once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging_models import Asked, opened

from closeloop.cli import main
from closeloop.judges.trace_questions import (
    MAX_WINDOW_CHARS,
    QUESTIONS,
    TraceExcerpt,
    add_judge_finding,
    ask_about_traces,
    build_trace_question,
    describe_event,
    finding_from_answer,
    question_version,
    read_trace_answer,
    select_window_events,
    tally_answers,
)
from closeloop.records.attempt import Attempt
from closeloop.records.errors import MachineFailed
from closeloop.records.evaluation import Analysis, HumanLabel, TraceAnswer, TraceQuestion
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.finding import Finding
from closeloop.records.trace import AnyEvent, Command, Lane, Message, ModelRequest, Trace
from closeloop.store import open_store
from record_strategies import records

ASK = TraceQuestion(name="installs", text="Did it install a package?")


def trace(*commands: str) -> Trace:
    first = Message(number=1, lane="root", role="user", text="Make it work.", intent="request")
    rest = [
        Command(number=number, lane="root", command=text, exit_code=0, output="ok")
        for number, text in enumerate(commands, 2)
    ]
    return Trace(reader="r", reader_version=1, lanes=(Lane(id="root"),), events=(first, *rest))


def says(request: ModelRequest, verdict: str, events: list[int], *quotes: str) -> dict[str, Any]:
    seal = re.findall(r"seal ([0-9a-f]{16})", request.messages[0].text.splitlines()[-1])[0]
    text = "It ran pip."
    return {
        "seal": seal,
        "events": events,
        "evidence": list(quotes),
        "text": text,
        "verdict": verdict,
    }


def fair(request: ModelRequest) -> dict[str, Any]:
    found = re.search(r"\[(\d+)\] runs: (pip install \w+)", request.messages[0].text)
    return says(request, "yes", [int(found[1])], found[2]) if found else says(request, "no", [])


def asked(answer: Any, *traces: Trace) -> list[TraceAnswer]:
    kept: list[TraceAnswer] = []
    cuts = [
        TraceExcerpt(attempt=f"a{n}", events=select_window_events(one))
        for n, one in enumerate(traces)
    ]
    made = anyio.run(ask_about_traces, opened(Asked(answer)), ASK, cuts, 4, kept.append)
    asked.kept = kept  # type: ignore[attr-defined]
    return sorted(made, key=lambda one: one.attempt)


def test_a_yes_cites_events_and_becomes_a_finding_of_the_judge() -> None:
    made = asked(fair, trace("ls", "pip install x"), trace("ls"))
    assert [(one.verdict, one.events) for one in made] == [("yes", (3,)), ("no", ())]
    finding = finding_from_answer(ASK, made[0])
    assert finding is not None
    assert (finding.source, finding.rule, finding.events) == ("judge", "installs", (3,))
    assert finding_from_answer(ASK, made[1]) is None


@pytest.mark.parametrize(
    ("events", "quotes"),
    [([99], ["pip install x"]), ([], ["pip install x"]), ([3], ["pip uninstall"]), ([3], [])],
)
def test_a_yes_without_events_and_quotes_that_were_shown_is_void(
    events: list[int], quotes: list[str]
) -> None:
    (made,) = asked(lambda r: says(r, "yes", events, *quotes), trace("ls", "pip install x"))
    assert made.verdict is None
    assert made.abstained


def test_what_cannot_be_told_is_no_answer_and_not_counted() -> None:
    made = asked(lambda request: says(request, "cannot tell", []), trace("ls"))
    found = tally_answers(Analysis(name="installs", question=ASK), "j", made, [], {"a0": ()})
    assert (found.attempts, found.rate, found.corrected) == (1, None, None)


def test_an_answer_that_the_provider_did_not_give_is_asked_for_again_another_time() -> None:
    def gone(request: ModelRequest) -> Any:
        raise MachineFailed("The provider is gone.")

    (made,) = asked(gone, trace("ls"))
    assert made.abstained == "The provider is gone."
    assert asked.kept == []  # type: ignore[attr-defined]
    asked(lambda request: "prose", trace("ls"))
    assert len(asked.kept) == 1  # type: ignore[attr-defined]


def test_findings_of_rules_come_first_and_none_is_there_twice() -> None:
    rule = Finding(rule="spiral", version=1, severity="warning", message="m", events=(2,))
    new = Finding(
        rule="why-stuck", version=1, severity="warning", message="m", events=(2,), source="judge"
    )
    assert add_judge_finding((rule,), new) == (rule, new)
    assert add_judge_finding((rule, new), new) == (rule, new)
    assert add_judge_finding((rule,), None) == (rule,)


def test_rates_are_corrected_by_what_people_say() -> None:
    answers = [
        TraceAnswer(attempt=f"a{n}", verdict="yes" if n < 50 else "no", events=(1,))
        for n in range(100)
    ]
    analysis = Analysis(name="installs", question=ASK)
    words: list[Any] = ["pass" if n < 45 or n >= 95 else "fail" for n in range(100)]
    labels = [HumanLabel(item=f"a{n}", rubric="x", label=word) for n, word in enumerate(words)]
    findings = {f"a{n}": () for n in range(100)}
    found = tally_answers(analysis, "j", answers, labels, findings)
    assert found.rate is not None
    assert found.rate.value == 0.5
    assert found.corrected is not None
    assert found.corrected.estimate is not None
    assert found.corrected.estimate.value == pytest.approx(0.5)
    coin: list[Any] = ["pass" if n % 2 else "fail" for n in range(100)]
    labels = [HumanLabel(item=f"a{n}", rubric="x", label=word) for n, word in enumerate(coin)]
    refused = tally_answers(analysis, "j", answers, labels, findings).corrected
    assert refused is not None
    assert refused.estimate is None


def test_another_wording_or_model_is_another_judge() -> None:
    other = TraceQuestion(name="installs", text="Did it install anything?")
    judge = opened(Asked(fair))
    assert question_version(judge, ASK) == question_version(opened(Asked(fair)), ASK)
    assert len({question_version(judge, ASK), question_version(judge, other)}) == 2
    assert question_version(opened(Asked(fair, "other")), ASK) != question_version(judge, ASK)


# Windows


def test_a_window_lies_around_what_a_question_is_about() -> None:
    long = trace(*(f"step {n}" for n in range(100)))
    assert list(select_window_events(long, [50])) == [1, *range(44, 57)]


def test_of_a_long_trace_both_ends_are_shown() -> None:
    long = trace(*(f"step {n} " + "x" * 600 for n in range(400)))
    shown = select_window_events(long)
    assert {1, 2, 401} <= shown.keys()
    assert 200 not in shown
    assert sum(map(len, shown.values())) <= MAX_WINDOW_CHARS


@settings(max_examples=100, deadline=None)
@given(event=st.one_of(*(records(kind) for kind in AnyEvent.__args__)))  # type: ignore[attr-defined]
def test_any_event_can_be_told_and_posed(event: Any) -> None:
    events = {event.number: describe_event(event)}
    posed = build_trace_question(ASK, events, 0.1)
    assert ASK.text in (posed.request.system or "")
    value = {"seal": posed.seal, "events": [], "evidence": [], "text": "", "verdict": "no"}
    assert isinstance(read_trace_answer(value, posed, "a", events), TraceAnswer)


# The command


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    value = {"seal": "SEAL", "events": [2], "evidence": ["pip install"], "text": "It did."}
    when = r"pip install.*with seal (?P<seal>[0-9a-f]{16}) as"
    yes = json.dumps({**value, "verdict": "yes"}).replace("SEAL", r"\g<seal>")
    no = json.dumps({**value, "verdict": "no"}).replace("SEAL", r"\g<seal>")
    turns = [{"when": when, "say": yes}, {"when": when.removeprefix("pip install.*"), "say": no}]
    (tmp_path / "judge.yaml").write_text(json.dumps({"dialogues": [{"turns": turns}]}))
    (tmp_path / "closeloop.toml").write_text('[judge]\nmodels = ["scripted:judge.yaml"]\n')
    add(tmp_path, "aaa", "pip install x")
    add(tmp_path, "bbb", "ls")
    return tmp_path


def add(project: Path, name: str, command: str) -> None:
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        attempt = Attempt(id=name, origin="production", exit="finished")
        store.save_attempt(AttemptResult(attempt=attempt, trace=trace(command)))


def typed(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["judge", "ask", *arguments])
    return int(left.value.code or 0)


def test_a_named_question_is_asked_of_new_attempts_only(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("Did it install a package?", "--name", "installs") == 0
    assert "yes for 1 of 2" in capsys.readouterr().out
    add(project, "ccc", "pip install y")
    (project / "people.csv").write_text("item,label\naaa,yes\nbbb,no\n")
    assert typed("--name", "installs", "--labels", "people.csv", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rate"]["hits"], found["rate"]["of"]) == (2, 3)
    assert found["corrected"]["estimate"] is not None
    assert found["findings"]["ccc"][-1]["source"] == "judge"
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        assert set(store.judged.load_answers(found["judge"])) == {"aaa", "bbb", "ccc"}
        assert store.judged.load_analyses()["installs"].question.text == "Did it install a package?"


def test_what_is_asked_again_is_not_paid_again(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "Did it install a package?"
    assert typed(asked, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        kept = store.judged.load_answers(first["judge"])
        assert len(kept) == 2
    assert typed(asked, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rate"] == first["rate"]


def test_a_built_in_question_is_asked_only_where_its_rules_found_something(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("--name", "why-stuck") == 0
    assert "No trace was answered." in capsys.readouterr().out
    assert typed("--name", "root-cause") == 0
    assert "yes for 1 of 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give a question, or --name with one of: why-stuck"),
        (("--name", "root-couse"), "Did you mean 'root-cause'"),
        ((" ",), "The question is empty"),
        (("caf\udce9?",), "The question is not UTF-8"),
        (("x?", "--limit", "0"), "more than 0"),
        (("x?", "--labels", "none.csv"), "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert typed(*arguments) == 2
    assert message in capsys.readouterr().err


def test_the_built_in_questions_have_names_and_end_in_what_to_say() -> None:
    assert set(QUESTIONS) == {"why-stuck", "assumption", "lost-instruction", "root-cause"}
    assert all("If yes" in one.text for one in QUESTIONS.values())
