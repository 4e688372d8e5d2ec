"""Programs of others: whatever they do, the attempt ends with the right exit and cause."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from program_stage import ASKS, Stage

from closeloop.agents import headless_agent, programs
from closeloop.agents.headless_agent import (
    Adapter,
    AgentCall,
    AgentCallRequest,
    AgentReport,
    HeadlessAgent,
)
from closeloop.records.errors import BadInput, MachineFailed, OutOfBudget
from closeloop.records.protocols import Recording
from closeloop.records.trace import Exchange
from patience import PATIENCE, SCALES

DOES_IT = ASKS + "print(ask('How?'))\nopen('file.txt', 'a').write('two\\n')\n"


def test_a_program_works_through_the_gateway_and_its_change_is_kept(stage: Stage) -> None:
    played = stage.play(DOES_IT)
    assert (played.work.exit, played.work.cause) == ("finished", None)
    assert played.work.summary == "Well done."
    assert "+two" in played.diff
    assert [exchange.path for exchange in played.model_proxy.exchanges] == ["/v1/chat/completions"]
    assert played.work.usage == played.model_proxy.usage


def test_a_program_that_is_not_installed_is_told_before_anything_runs() -> None:
    with pytest.raises(BadInput, match=r"codex is not installed.*npm install -g @openai/codex"):
        programs.codex.with_settings({"program": "/nowhere/codex"})
    assert HeadlessAgent(programs.codex.adapter, {"program": "/nowhere/codex"}).version is None


def test_a_program_in_the_wrong_version_is_told_before_anything_runs(stage: Stage) -> None:
    program = stage.program("echo tool 1.2.3", "versioned")
    assert programs.codex.with_settings({"program": program, "version": "1.2.3"}).version == "1.2.3"
    with pytest.raises(BadInput, match=r"in version 1\.2\.3, but the variant requires 2\.0"):
        programs.codex.with_settings({"program": program, "version": "2.0"})
    old = msgspec.structs.replace(programs.codex.adapter, oldest="1.10")
    with pytest.raises(BadInput, match=r"the oldest supported version is 1\.10: run `npm"):
        HeadlessAgent(old).with_settings({"program": program})


def test_any_program_is_known_by_its_content_and_not_started_for_its_version(stage: Stage) -> None:
    versions = set()
    for text in ("echo 1 > $0.started", "echo 2 > $0.started"):
        program = stage.program(text, "started")
        versions.add(programs.command.with_settings({"program": program}).version)
    assert len(versions) == 2
    assert not (stage.folder / "started.started").exists()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "needs the setting `program`"),
        ({"program": "sh", "prompt": "telepathy"}, "argument, stdin, file"),
        ({"program": "sh", "colour": "red"}, "No setting of the agent command named 'colour'"),
        ({"program": "'unclosed"}, "quotation"),
    ],
)
def test_settings_that_mean_nothing_are_told(settings: dict[str, str], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        programs.command.with_settings(settings)


def test_a_program_that_crashes_at_its_start_has_crashed_with_its_last_words(stage: Stage) -> None:
    work = stage.play("echo starting; echo 'no brain found' >&2; exit 3").work
    assert (work.exit, work.cause) == ("crashed", "exit code 3: no brain found")


def test_a_program_that_dies_of_a_signal_has_crashed(stage: Stage) -> None:
    assert stage.play("kill -SEGV $$").work.cause == "exit code 139: it printed nothing"


def test_a_program_that_hangs_silently_is_idle(stage: Stage) -> None:
    work = stage.play("sleep 60", limits={"idle_seconds": 0.5}).work
    assert work.exit == "idle"
    assert work.cause == "it produced no output and no request for 0.5 seconds"


def test_a_silent_program_that_talks_to_its_model_is_not_idle(stage: Stage) -> None:
    def exit_of(scale: int) -> str:
        talks = f"import time\nfor i in range(8): time.sleep({0.2 * scale}); ask('Go on?')\n"
        return stage.play(ASKS + talks, limits={"idle_seconds": 1.2 * scale}).work.exit

    assert any(exit_of(scale) == "finished" for scale in SCALES)


def test_a_program_whose_model_takes_its_time_is_not_idle(stage: Stage) -> None:
    slow = ASKS + "import time\nask('Go on?')\ntime.sleep(1.5)\n"
    assert stage.play(slow, busy=True, limits={"idle_seconds": 0.5}).work.exit == "finished"


def test_a_program_that_ignores_sigterm_is_out_of_time(stage: Stage) -> None:
    began = time.monotonic()
    work = stage.play("trap '' TERM INT HUP; while :; do echo .; sleep 0.1; done",
                      limits={"seconds": 1.0}).work  # fmt: skip
    assert (work.exit, work.cause) == ("out_of_time", "time limit")
    assert time.monotonic() - began < PATIENCE


def test_a_program_that_prints_megabytes_goes_on_and_its_words_are_bounded(stage: Stage) -> None:
    work = stage.play(ASKS + "ask('?')\nfor i in range(150_000): print('x' * 79)\n").work
    assert work.exit == "finished"
    assert len(work.summary or "") <= 30_000


def test_what_a_program_says_last_is_kept_as_far_as_a_judge_may_answer(stage: Stage) -> None:
    work = stage.play(ASKS + "ask('?')\nprint('{' + 'x' * 29_000 + '}')\n").work
    assert work.summary == "{" + "x" * 29_000 + "}"


def test_what_a_program_leaves_running_dies_with_it(stage: Stage) -> None:
    mark = f"daemon{secrets.token_hex(8)}"
    stage.play(f"setsid sh -c 'sleep 1000; : {mark}' & setsid nohup sh -c 'sleep 1001; : {mark}' &")
    assert not [path for path in Path("/proc").glob("[0-9]*") if mark in _line(path)]


def _line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def test_a_program_that_ends_well_having_asked_nothing_gave_up(stage: Stage) -> None:
    work = stage.play("exit 0").work
    assert (work.exit, work.cause) == ("gave_up", "it ended without a request to its model")


def test_a_program_without_a_model_need_not_ask(stage: Stage) -> None:
    played = stage.play("echo two >> file.txt", modelless=True)
    assert (played.work.exit, "+two" in played.diff) == ("finished", True)


def test_an_agent_that_needs_a_model_says_so(stage: Stage) -> None:
    with pytest.raises(BadInput, match="codex needs a model: give one with --model"):
        stage.let(programs.codex, modelless=True)


def test_a_program_cannot_edit_outside_its_workspace(stage: Stage) -> None:
    outside = stage.folder / "outside"
    played = stage.play(f"echo x > {outside}; echo x > {stage.folder}/repo/file.txt; "
                        f"echo x > /usr/x; echo x > $0; true", modelless=True)  # fmt: skip
    assert (played.work.exit, played.diff) == ("finished", "")
    assert not outside.exists()
    assert (stage.folder / "repo" / "file.txt").read_text() == "one\n"


def test_a_program_that_deletes_its_repository_still_has_a_change(stage: Stage) -> None:
    played = stage.play("rm -rf .git; echo two >> file.txt", modelless=True)
    assert "+two" in played.diff


def test_a_program_that_fills_the_disk_is_stopped(stage: Stage) -> None:
    fills = "i=0; while :; do i=$((i+1)); head -c 4000000 /dev/zero > f$i; sleep 0.01; done"
    work = stage.play(fills, limits={"disk_bytes": 20_000_000}).work
    assert (work.exit, work.cause) == ("crashed", "too much disk")


def test_a_budget_that_is_gone_ends_the_program_at_once(stage: Stage) -> None:
    asks_on = ASKS + "import time\nask('?')\ntime.sleep(60)\n"
    work = stage.play(asks_on, closes_after=1).work
    assert (work.exit, work.cause) == ("out_of_budget", "token limit")


def test_a_budget_that_is_gone_is_the_cause_even_when_the_program_ends_first(stage: Stage) -> None:
    work = stage.play("exit 1", closed=OutOfBudget("turn limit")).work
    assert (work.exit, work.cause) == ("out_of_budget", "turn limit")


def test_a_provider_that_is_gone_is_not_the_programs_failure(stage: Stage) -> None:
    work = stage.play("exit 1", closed=MachineFailed("The provider is gone.")).work
    assert (work.exit, work.cause) == ("machine", "The provider is gone.")


@pytest.mark.parametrize(
    ("statuses", "why"),
    [((), None), ((200,), None), ((400, 200, 400), None), ((400, 404), "status 404")],
)
def test_requests_without_any_answer_are_told(statuses: tuple[int, ...], why: str | None) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    exchanges = [
        Exchange(number=i, at=at, path="/", request=b"", response=b"", status=status, seconds=0.0)
        for i, status in enumerate((200, *statuses))
    ]
    assert headless_agent.find_unanswered_cause(exchanges, 1) == why


@pytest.mark.parametrize(
    ("way", "program"),
    [
        ("argument", 'printf %s "$1" > got; echo "$#" > count'),
        ("stdin", "cat > got; echo 1 > count"),
        ("file", 'cat "$1" > got; echo "$#" > count'),
    ],
)
def test_the_prompt_comes_as_it_is_asked_for(stage: Stage, way: str, program: str) -> None:
    prompt = "--help me, $HOME; 'quoted'\nand a second line é"
    played = stage.play(program, modelless=True, prompt=prompt, settings={"prompt": way})
    assert "+--help me, $HOME; 'quoted'\n+and a second line é\n" in played.diff
    assert "+1\n" in played.diff


def test_a_prompt_that_is_too_long_for_an_argument_is_not_the_programs_failure(
    stage: Stage,
) -> None:
    long = "x" * 200_000
    with pytest.raises(MachineFailed, match="prompt of 200,000 bytes as an argument"):
        stage.play("true", prompt=long, modelless=True)
    assert stage.play('wc -c < "$1"', prompt=long, settings={"prompt": "file"}, modelless=True)


def test_the_system_prompt_and_the_models_name_are_in_the_environment(stage: Stage) -> None:
    tells = 'cat "$AGENT_SYSTEM_PROMPT" > got; echo $AGENT_MODEL >> got'
    played = stage.play(tells, system="Be kind.\n")
    assert "+Be kind.\n+scripted\n" in played.diff


def test_no_variable_of_ours_comes_into_the_cage(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the-real-key")
    monkeypatch.setenv("MY_SECRET", "the-real-secret")
    assert "the-real" not in stage.play("env > seen; cat /proc/*/environ >> seen; true").diff


def test_the_trace_is_what_was_printed_or_lies_where_the_setting_says(stage: Stage) -> None:
    printed = stage.play("echo '{\"a\": 1}'", modelless=True, settings={"trace": "stdout"}).work
    assert printed.recordings == (Recording(path="printed.jsonl", content=b'{"a": 1}\n'),)
    writes = "mkdir -p ~/logs/x; echo one > ~/logs/a.log; echo two > ~/logs/x/b.log; echo 3 > ~/c"
    left = stage.play(writes, modelless=True, settings={"trace": "logs/*.log"}).work
    assert {one.path: one.content for one in left.recordings} == {
        "logs/a.log": b"one\n",
        "logs/x/b.log": b"two\n",
    }


def test_odd_files_among_recordings_are_left_where_they_are(stage: Stage) -> None:
    secret = stage.folder / "secret.log"
    secret.write_text("secret")
    plants = (
        f"mkdir ~/logs; cd ~/logs; ln -s {secret} a.log; ln -s /etc/passwd b.log; mkfifo c.log; "
        "ln -s / d.log; mkdir e.log; ln -s ~/logs loop; truncate -s 80M f.log; echo good > g.log; "
        "ln -s /usr/share elsewhere; chmod 000 ~/logs/e.log; mkdir -p x/y; echo deep > x/y/z.log"
    )
    left = stage.play(plants, modelless=True, settings={"trace": "logs/*.log"}).work
    assert {one.path: one.content for one in left.recordings} == {
        "logs/g.log": b"good\n",
        "logs/x/y/z.log": b"deep\n",
    }


def test_recordings_have_a_limit_in_all(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headless_agent, "MAX_RECORDING_BYTES", 1 << 20)
    plants = "mkdir ~/logs; for i in 1 2 3 4 5; do truncate -s 400K ~/logs/$i.log; done"
    left = stage.play(plants, modelless=True, settings={"trace": "logs/*.log"}).work
    assert sum(len(one.content) for one in left.recordings) == 800 << 10


def fake(stage: Stage, text: str, **changes: object) -> HeadlessAgent:
    """An adapter of our own, as others write them."""

    def call(use: AgentCallRequest) -> AgentCall:
        return AgentCall(arguments=["again" if use.again else "first"], stdin=use.prompt)

    def understand(printed: bytes, recordings: Sequence[Recording]) -> AgentReport:
        return AgentReport(text=printed.decode().strip() or None)

    adapter = Adapter(
        name="fake", program=stage.program(text, "fake"), install="nothing", call=call,
        understand=understand, needs_model=False, **changes,
    )  # fmt: skip
    return HeadlessAgent(adapter)


def test_a_program_that_lingers_after_its_last_word_is_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headless_agent, "LINGER_SECONDS", 0.3)
    agent = fake(stage, 'printf \'{"type":"turn.\'; sleep 0.2; echo \'completed"}\'; sleep 300',
                 done=b'{"type":"turn.completed"')  # fmt: skip
    began = time.monotonic()
    assert stage.let(agent, modelless=True).work.exit == "finished"
    assert time.monotonic() - began < PATIENCE


def test_feedback_goes_on_with_the_session_and_cannot_change_the_workspace(stage: Stage) -> None:
    agent = fake(stage, """
        if [ "$1" = first ]; then echo two >> file.txt; echo kept > ~/session; echo Done.; exit; fi
        echo three >> file.txt 2>/dev/null && echo WROTE
        grep -q 'which information' && echo "The $(cat ~/session) session: a map was missing."
    """)  # fmt: skip
    played = stage.let(agent, modelless=True, feedback=True)
    assert played.work.summary == "Done."
    assert played.work.feedback == "The kept session: a map was missing."
    assert "+two" in played.diff
    assert "three" not in played.diff


def test_feedback_that_fails_is_none_and_costs_the_attempt_nothing(stage: Stage) -> None:
    agent = fake(stage, '[ "$1" = first ] && echo Done. || exit 9')
    work = stage.let(agent, modelless=True, feedback=True).work
    assert (work.exit, work.feedback) == ("finished", None)


def test_a_home_that_the_agent_has_spoiled_costs_only_the_feedback(stage: Stage) -> None:
    def call(use: AgentCallRequest) -> AgentCall:
        return AgentCall(arguments=[], files={"config/file": "x"})

    agent = fake(stage, "rm -rf ~/config; : > ~/config; echo Done.")
    agent.adapter = msgspec.structs.replace(agent.adapter, call=call)
    work = stage.let(agent, modelless=True, feedback=True).work
    assert (work.exit, work.summary, work.feedback) == ("finished", "Done.", None)


def test_nobody_is_asked_who_did_not_finish(stage: Stage) -> None:
    agent = fake(stage, "echo $1; exit 1")
    assert stage.let(agent, modelless=True, feedback=True).work.feedback is None
