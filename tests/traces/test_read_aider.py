from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from read_back import FIXTURES, REAL, recognised_by, sessions, told, written

from closeloop.records.trace import Edit, Message, Session
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import aider

RECORDED = FIXTURES / "aider" / "aider.chat.history.md"
RECORDINGS = sorted((REAL / "aider").glob("*/*.md"))
START = "\n# aider chat started at 2025-03-01 08:00:00\n\n> Aider v0.80.0  \n"
BLOCK = "a.py\n```python\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n```\n"


def chat(text: str, tmp_path: Path) -> Session:
    (session,) = sessions(aider, written(tmp_path / "history", START + text))
    return session


def edits(session: Session) -> list[Any]:
    return [entry for entry in told(session) if entry[0] in ("create", "change")]


def test_a_recorded_history_is_three_sessions_read_event_by_event() -> None:
    first, second, third = sessions(aider, RECORDED)
    assert told(first) == [
        ("read", "sums.py", True),
        ("note", "console", 'Update git name with: git config user.name "Your Name"'),
        ("user", "request", "The sum in sums.py is wrong: make the test pass."),
        ("agent", None, "The slice is the wrong way round."),
        (
            "change",
            "sums.py",
            "    return sum(numbers[1:])\n",
            "    return sum(numbers[:1])\n",
            True,
        ),
        ("note", "commit", "Commit bc01564 fix: Sum all numbers"),
        ("run", "python3 test_sums.py", 1, "parsed", None),
        ("note", "console", "Attempt to fix test errors? (Y)es/(N)o [Yes]: y"),
        ("agent", None, "Now without any slice."),
        ("change", "sums.py", "    return add(numbers)\n", "    return sum(numbers)\n", False),
        ("note", "console", "The LLM did not conform to the edit format."),
        ("agent", "claim", "I looked for another text."),
        ("change", "sums.py", "    return sum(numbers[:1])\n", "    return sum(numbers)\n", True),
        ("note", "commit", "Commit 2a4879b fix: Sum all numbers"),
        ("run", "python3 test_sums.py", 0, "parsed", None),
    ]
    assert (first.agent_version, first.model) == ("0.86.2", "openai/careful")
    assert [turn.usage.input_tokens for turn in first.trace.lanes[0].turns] == [2400, 2700, 2800]
    assert first.usage.cost is None
    assert told(second)[2:] == [
        ("user", "request", "What do the tests need?"),
        ("agent", "claim", "The tests need no change."),
    ]
    assert ("create", "NOTES.md", None, "The sum takes all numbers.\n", True) in told(third)
    assert len({session.id for session in (first, second, third)}) == 3


def test_tokens_and_cost_are_read_in_both_forms(tmp_path: Path) -> None:
    old = "#### Hi  \n> 33,979 prompt tokens, 86 completion tokens, $0.171185 cost  \n\nHello.\n\n"
    new = (
        "#### More  \n\nYes.\n\n"
        "> Tokens: 12k sent, 1.5k cache write, 8k cache hit, 1.2k received.\n"
        "Cost: $0.02 message, $0.19 session.  \n"
    )
    session = chat(old + new, tmp_path)
    before, after = (turn.usage for turn in session.trace.lanes[0].turns)
    assert (before.input_tokens, before.output_tokens, before.cost) == (33979, 86, 0.171185)
    assert (after.input_tokens, after.cache_write_tokens, after.cache_read_tokens) == (
        2500,
        1500,
        8000,
    )
    assert (after.output_tokens, after.cost, after.cost_from) == (1200, 0.02, "reported")


def test_a_block_that_is_reported_as_not_found_is_no_second_edit(tmp_path: Path) -> None:
    report = (
        "> The LLM did not conform to the edit format.  \n"
        "> # 1 SEARCH/REPLACE block failed to match!\n\n"
        "## SearchReplaceNoExactMatch: This SEARCH block failed to exactly match lines in a.py\n"
        "<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n\n"
        "The SEARCH section must exactly match an existing block of lines  \n"
    )
    session = chat(f"#### Go  \n\n{BLOCK}\n{report}", tmp_path)
    assert edits(session) == [("change", "a.py", "x = 1\n", "x = 2\n", False)]


def test_a_reply_that_was_cut_within_a_block_ends_there(tmp_path: Path) -> None:
    text = "#### Go  \n\na.py\n```\n<<<<<<< SEARCH\nx = 1\n\n> Tokens: 1k sent, 2 received.  \n"
    session = chat(f"{text}\n{BLOCK}\n> Applied edit to a.py  \n", tmp_path)
    assert edits(session) == [("change", "a.py", "x = 1\n", "x = 2\n", True)]
    assert session.usage.output_tokens == 2


def test_the_other_blocks_of_a_reply_were_applied_where_it_says_so(tmp_path: Path) -> None:
    other = BLOCK.replace("x", "y")
    report = (
        "> # 1 SEARCH/REPLACE block failed to match!\n\n## SearchReplaceNoExactMatch: in a.py\n"
        "<<<<<<< SEARCH\ny = 1\n=======\ny = 2\n>>>>>>> REPLACE\n\n"
        "# The other 1 SEARCH/REPLACE block were applied successfully.  \n"
    )
    text = f"#### Go  \n\n{BLOCK}\n{other}\n> Tokens: 1k sent, 2 received.  \n{report}"
    assert [edit[-1] for edit in edits(chat(text, tmp_path))] == [True, False]


def test_a_commit_message_of_many_lines_is_no_words_of_the_model(tmp_path: Path) -> None:
    text = f"#### Go  \n\nSure.\n\n> Applied edit to b.py  \n> Commit abc1234 Sure.\n\n{BLOCK}  \n"
    session = chat(text, tmp_path)
    assert [edit[1] for edit in edits(session)] == ["b.py"]
    assert sum(isinstance(event, Message) for event in session.trace.events) == 2


def test_headings_and_quotations_of_the_model_stay_its_own(tmp_path: Path) -> None:
    session = chat("#### Go  \n\nPlan:\n\n#### Step 1\n\n> a quotation\n\nDone.\n", tmp_path)
    assert [event.text for event in session.trace.events if isinstance(event, Message)] == [
        "Go",
        "Plan:\n\n#### Step 1\n\n> a quotation\n\nDone.",
    ]


def test_a_history_without_the_spaces_at_its_ends_of_lines_is_read_too(tmp_path: Path) -> None:
    lines = (
        "> Use /help to see help\n\n#### Fix a.py\n\n####\n\n#### Please.\n\n"
        f"> Added b.py to the chat (read-only).\n\nSo:\n\n{BLOCK}\n"
        "> Tokens: 10 sent, 5 received.\n>\n> Applied edit to a.py\n\n#### Thanks\n"
    )
    session = chat(lines, tmp_path)
    assert [entry[:2] for entry in told(session)] == [
        ("note", "console"),
        ("user", "request"),
        ("read", "b.py"),
        ("agent", None),
        ("change", "a.py"),
        ("user", None),
    ]
    assert edits(session)[0][-1] is True
    assert session.usage.input_tokens == 10


def test_whole_files_and_diffs_are_edits_once_they_are_applied(tmp_path: Path) -> None:
    text = (
        "#### Go  \n\nw.py\n```\nx = 1\n```\n\n```diff\n--- d.py\n+++ d.py\n@@\n-a\n+b\n```\n\n"
        "> Applied edit to w.py  \n> Applied edit to d.py  \n"
    )
    whole, diff = (event for event in chat(text, tmp_path).trace.events if isinstance(event, Edit))
    assert (whole.path, whole.after, whole.ok) == ("w.py", "x = 1\n", True)
    assert (diff.path, diff.patch) == ("d.py", "--- d.py\n+++ d.py\n@@\n-a\n+b\n")


def test_shell_commands_interrupts_undo_and_limits_are_told(tmp_path: Path) -> None:
    text = (
        "#### Go  \n\nRun it.\n\n> python x.py  \n> Run shell command? (Y)es/(N)o [Yes]: y  \n"
        "> Running python x.py  \n> ^C KeyboardInterrupt  \n\n#### /undo  \n\n#### Again  \n\n"
        "No.\n\n> Only 3 reflections allowed, stopping.  \n"
    )
    session = chat(text, tmp_path)
    assert told(session)[2:] == [
        ("agent", None, "Run it."),
        ("note", "console", "python x.py"),
        ("run", "python x.py", None, None, None),
        ("user", "interrupt", "^C KeyboardInterrupt"),
        ("user", "correction", "/undo"),
        ("user", None, "Again"),
        ("agent", None, "No."),
        ("note", "limit", "Only 3 reflections allowed, stopping."),
    ]
    assert (session.exit, session.cause) == (
        "out_of_budget",
        "Only 3 reflections allowed, stopping.",
    )


def test_lint_and_test_output_is_the_result_of_a_check_that_failed(tmp_path: Path) -> None:
    text = (
        "#### Go  \n\nHere.\n\n> FAILED test_a  \n> Attempt to fix test errors? yes  \n\nSo.\n\n"
        "> ## Running: flake8  \n> Attempt to fix lint errors? yes  \n\nNow.\n"
    )
    checks = [entry for entry in told(chat(text, tmp_path)) if entry[0] == "run"]
    assert checks == [("run", "/test", 1, "parsed", None), ("run", "flake8", 1, "parsed", None)]


def test_tests_that_aider_runs_by_itself_are_checks_whether_they_fail_or_not(
    tmp_path: Path,
) -> None:
    start = "> /bin/aider --auto-test --test-cmd pytest -q --message Go a.py  \n\n#### Go  \n\n"
    edit = "a.py\n```\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n```\n\n"
    applied = "> Applied edit to a.py  \n"
    failed = "> Return Code: 2  \n> Attempt to fix test errors? (Y)es/(N)o [Yes]: n  \n"
    text = f"{start}{edit}{applied}{failed}\n#### Again  \n\n{edit}{applied}"
    runs = [entry for entry in told(chat(text, tmp_path)) if entry[0] == "run"]
    assert runs == [
        ("run", "pytest -q", 2, "parsed", None),
        ("run", "pytest -q", 0, "parsed", None),
    ]
    quiet = told(chat(f"{start}{edit}", tmp_path))
    assert not [entry for entry in quiet if entry[0] == "run"], "Nothing was changed."


def test_a_session_in_which_nothing_was_said_is_counted(tmp_path: Path) -> None:
    source = FileSource(written(tmp_path / "history", START + START + "\n#### Hi  \n\nHello.\n"))
    assert len(list(aider.read(source))) == 1
    assert source.skipped == {"a session without messages": 1}


def test_a_provider_that_fails_is_the_machine(tmp_path: Path) -> None:
    session = chat("#### Hi  \n\n> litellm.AuthenticationError: no key  \n", tmp_path)
    assert (session.exit, session.cause) == ("machine", "litellm.AuthenticationError: no key")


@pytest.mark.skipif(not RECORDINGS, reason="no shared recordings")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_real_histories_lose_no_block_no_session_and_no_cent(path: Path) -> None:
    assert recognised_by(path) == ["aider"]
    text, found = path.read_text(), sessions(aider, path)
    assert len(found) == len(re.findall(r"^# aider chat started", text, re.MULTILINE))
    blocks = len(re.findall(r"^>{7} REPLACE", text, re.MULTILINE))
    assert sum(len(edits(session)) for session in found) == blocks
    costs = re.findall(r"^> \d+ prompt tokens.*\$([\d.]+) cost", text, re.MULTILINE)
    assert sum(session.usage.cost or 0 for session in found) == pytest.approx(
        sum(map(float, costs))
    )
    applied = set(re.findall(r"^> Applied edit to (.*?)  $", text, re.MULTILINE))
    done = {edit[1] for session in found for edit in edits(session) if edit[-1]}
    assert done == applied
