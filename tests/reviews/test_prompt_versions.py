"""The version of every agent's prompt: seen at the gateway, in its session, or said elsewhere."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from team import AGENTS, REPO, day

from closeloop.cli import main
from closeloop.metrics.attempt_measuring import project_rulebook
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.records.attempt import Attempt, AttemptFilter
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.pull_request import Fact, PullCommit, PullDescription
from closeloop.records.settings import Settings
from closeloop.records.task import PromptVersion, Variant
from closeloop.records.trace import Exchange, Session, Trace
from closeloop.reviews.agent_context import CONTEXT_TITLE, THEMES_TITLE, build_context, rank_themes
from closeloop.reviews.agent_prompts import (
    PromptIndex,
    add_prompt,
    diff_prompts,
    find_prompt,
    find_prompt_before,
    list_prompt_uses,
)
from closeloop.reviews.pull_lifecycle import save_facts
from closeloop.store import Store, open_store
from closeloop.store.record_bodies import pack_record
from closeloop.store.session_rows import build_packed_session, session_key
from closeloop.text.client_markup import (
    CONTEXT_HEADINGS,
    build_prompt_version,
    normalise_system_prompt,
)
from closeloop.traces.readers.gateway import find_system_prompt
from closeloop.web.page import PageContext
from closeloop.web.pages.pulls import PullsQuery, pulls

CLAUDE = """x-anthropic-billing-header: cc_version=2.0.{build}; cc_entrypoint=cli;

You are Claude Code, an interactive CLI tool. {rule}

<env>
Working directory: /home/{user}/work/{folder}
Is directory a git repo: Yes
Platform: linux
OS Version: Linux 6.1.0-{build}
Today's date: {date}
</env>
You are powered by the model named Sonnet {build}. The exact model ID is claude-sonnet-{build}.

gitStatus: This is the git status at the start of the conversation.
Current branch: {folder}

Recent commits:
{commit} Do a thing
"""
FIRST = {
    "build": "14", "user": "ann", "folder": "tally", "date": "2026-11-16", "rule": "Be brief.",
    "commit": "a1b2c3d4e5f6",
}  # fmt: skip


@pytest.fixture
def store(store_url: str) -> Store:
    return open_store(store_url)


def exchange(number: int, payload: dict[str, Any], path: str = "/v1/messages") -> Exchange:
    return Exchange(
        number=number,
        at=day(0),
        path=path,
        request=msgspec.json.encode(payload),
        response=b"{}",
        status=200,
        seconds=1.0,
    )


# What makes another version


@pytest.mark.parametrize(
    "changes",
    [
        {"date": "Tuesday, November 17, 2026"},
        {"user": "bob", "folder": "shop"},
        {"commit": "0f0f0f0f0f0f0f0f"},
        {"build": "15"},
    ],
)
def test_dates_folders_git_machine_and_model_make_no_other_version(changes: dict[str, str]) -> None:
    one, other = (
        build_prompt_version(CLAUDE.format(**fields), "gateway")
        for fields in (FIRST, FIRST | changes)
    )
    assert one is not None
    assert other is not None
    assert one.id == other.id
    assert one.text != other.text


def test_another_rule_makes_another_version_and_the_diff_shows_it_alone() -> None:
    later = FIRST | {"date": "2026-11-17", "rule": "Be thorough."}
    old, new = (
        build_prompt_version(CLAUDE.format(**fields), "gateway") for fields in (FIRST, later)
    )
    assert old is not None
    assert new is not None
    assert old.id != new.id
    changed = [
        line for line in diff_prompts(old, new) if line[:1] in "+-" and line[1:2] not in "+-"
    ]
    assert changed == [
        "-You are Claude Code, an interactive CLI tool. Be brief.",
        "+You are Claude Code, an interactive CLI tool. Be thorough.",
    ]


def test_what_memory_tells_makes_no_other_version() -> None:
    assert CONTEXT_HEADINGS == (CONTEXT_TITLE, THEMES_TITLE)
    from closeloop.records.team_rules import InsightTheme

    theme = InsightTheme(
        number=1, text="Needs the linter", repo=REPO, count=3, attempts=("a",), texts=(),
        first=day(0), last=day(1),
    )  # fmt: skip
    context = build_context(REPO, (), rank_themes([theme]), 500).text
    assert context
    bare = normalise_system_prompt("Work carefully.")
    told = normalise_system_prompt(f"Work carefully.\n\n{context}")
    assert told == f"{bare}\n\n⟨agent context⟩"


# Where it is seen


def test_of_what_passes_the_gateway_the_prompt_of_the_work_counts_not_that_of_titles() -> None:
    title = {"system": "Summarise the topic.", "messages": []}
    parts = [{"type": "text", "text": "You are Claude."}, {"type": "text", "text": "Be brief."}]
    work = {"system": parts, "tools": [{"name": "Bash"}], "messages": []}
    assert find_system_prompt([exchange(1, title), exchange(2, work)]) == (
        "You are Claude.\nBe brief."
    )
    codex = {"instructions": "You are Codex.", "tools": [{}], "input": []}
    assert find_system_prompt([exchange(1, codex, "/v1/responses")]) == "You are Codex."
    gemini = {"systemInstruction": {"parts": [{"text": "You are Gemini."}]}}
    assert find_system_prompt([exchange(1, gemini, "/v1beta/x:generateContent")]) == (
        "You are Gemini."
    )
    chat = {"messages": [{"role": "system", "content": "You are Qwen."}], "tools": [{}]}
    assert find_system_prompt([exchange(1, chat, "/v1/chat/completions")]) == "You are Qwen."


def wrapped(store: Store, name: str, rule: str, started: datetime) -> str:
    """An attempt of Claude Code through the gateway; the id of its prompt."""
    settings = PromptVersion(id="s" * 64, text="", settings='{"effort":"high"}')
    store.save_prompt(settings)
    store.save_variant(Variant(name="claude", agent="claude-code", prompt=settings.id, digest="v1"))
    text = CLAUDE.format(**(FIRST | {"rule": rule, "date": f"{started:%Y-%m-%d}"}))
    prompt = build_prompt_version(text, "gateway", "claude-code")
    assert prompt is not None
    attempt = Attempt(
        id=name, origin="experiment", task=name, task_digest=f"d-{name}", variant="v1",
        exit="finished", started=started,
    )  # fmt: skip
    store.save_attempt(AttemptResult(attempt=attempt, prompt=prompt))
    return prompt.id


def test_a_wrapped_agent_s_version_is_its_system_prompt_not_its_settings(store: Store) -> None:
    first = wrapped(store, "a1", "Be brief.", day(0))
    assert wrapped(store, "a2", "Be brief.", day(3)) == first
    second = wrapped(store, "a3", "Be thorough.", day(5))
    newest, oldest = list_prompt_uses(store)
    assert (newest.id, newest.attempts, newest.source) == (second, 1, "gateway")
    assert (oldest.id, oldest.attempts, oldest.variants) == (first, 2, ("claude",))
    assert find_prompt_before(store, second) == first
    work = load_attempt_table(store, project_rulebook(Settings()))
    assert work.columns["prompt"].tolist() == [first, first, second]


def save_session(
    store: Store, name: str, started: datetime, repo: str | None = None, **more: Any
) -> None:
    trace = Trace(reader="codex", reader_version=1)
    session = Session(id=name, agent="codex", trace=trace, started=started, **more)
    attempt = Attempt(id=name, origin="production", exit="finished", started=started, repo=repo)
    packed = build_packed_session(
        attempt, session, session_key(session, name), pack_record(session.trace)
    )
    store.save_sessions([packed], [])


def test_a_session_file_that_holds_the_prompt_names_its_version(store: Store) -> None:
    save_session(store, "s1", day(0), system="You are Codex.")
    (use,) = list_prompt_uses(store)
    assert (use.source, use.variants, use.attempts) == ("session", ("codex",), 1)
    assert find_prompt(store, use.id[:12]).text == "You are Codex."


# Where it is only said


def pull(
    store: Store, number: int, *, merged: bool, opened: datetime, message: str = "Add", **more: Any
) -> None:
    known: dict[str, Any] = {
        "title": "T",
        "author": "copilot-swe-agent[bot]",
        "bot": True,
        "branch": f"copilot/{number}",
        "head": f"{number:040x}",
        "opened": opened,
        "closed": opened + timedelta(hours=1),
        "merged": opened + timedelta(hours=1) if merged else None,
        "state": "merged" if merged else "closed",
    }
    whats = (
        PullDescription(**(known | more)),
        PullCommit(sha=f"{number:040x}", at=opened, message=message, author="copilot"),
    )
    facts = [
        Fact(source="github", repo=REPO, pull=number, at=opened, key=f"{number}-{at}", what=what)
        for at, what in enumerate(whats)
    ]
    save_facts(facts, store, AGENTS)


def test_a_label_a_trailer_and_a_rollout_name_the_prompt_of_work_done_elsewhere(
    store: Store,
) -> None:
    old = add_prompt(store, "Be brief.", name="v1", agent="copilot", since=day(0))
    new = add_prompt(store, "Be thorough.", name="v2")
    pull(store, 1, merged=False, opened=day(1))
    pull(store, 2, merged=True, opened=day(2), labels=("prompt:v2",))
    pull(store, 3, merged=True, opened=day(3), message=f"Add\n\nPrompt-Version: {new.id[:12]}")
    pull(store, 4, merged=True, opened=day(4), message="Add\n\nPrompt-Version: v9")
    pull(store, 5, merged=True, opened=day(-1))
    work = load_attempt_table(store, project_rulebook(Settings()))
    prompts = dict(
        zip(work.columns["branch"].tolist(), work.columns["prompt"].tolist(), strict=True)
    )
    assert prompts == {
        "copilot/1": old.id,
        "copilot/2": new.id,
        "copilot/3": new.id,
        "copilot/4": "v9",
        "copilot/5": None,
    }
    filters = {name: PullsQuery(prompt=name) for name in (old.id, new.id, "v9")}
    listed = {name: pulls(PageContext(store), query).pulls for name, query in filters.items()}
    uses = {use.id: use.pulls for use in list_prompt_uses(store)}
    for name, branches in {old.id: [1], new.id: [2, 3], "v9": [4]}.items():
        assert sorted(row.pull.pull for row in listed[name]) == branches
        assert {f"{REPO}#{row.pull.pull}" for row in listed[name]} == set(uses[name])
    figures = compute_metrics(work, ("prompt",), ("merge rate",)).figures
    assert {one.group["prompt"]: (one.value, one.attempts) for one in figures} == {
        old.id: (0.0, 1), new.id: (1.0, 2), "v9": (1.0, 1), "–": (1.0, 1),
    }  # fmt: skip


def test_attempts_are_listed_by_the_prompt_that_they_are_counted_under(store: Store) -> None:
    """Each kind of evidence for a prompt, and what outweighs it."""
    written = PromptVersion(id="a" * 64, text="Be exact.")
    settings = PromptVersion(id="b" * 64, text="", settings="{}")
    for prompt in (written, settings):
        store.save_prompt(prompt)
    for name, prompt_id in (("written", written.id), ("settings", settings.id), ("lost", "c" * 64)):
        store.save_variant(Variant(name=name, agent="codex", prompt=prompt_id, digest=f"v{name}"))
    add_prompt(store, "Be brief.", name="v1", agent="codex", since=day(1))
    add_prompt(store, "Be thorough.", name="v2", agent="codex", repo=REPO.upper(), since=day(2))
    seen = PromptVersion(id="d" * 64, text="You are Codex.", source="gateway")
    for name, variant, at, seen_prompt in (
        ("own", "vwritten", 0, None),
        ("seen", "vwritten", 0, seen),
        ("unnamed", "vsettings", 0, None),
        ("later", "vsettings", 1, None),
        ("unstored", "vlost", 0, None),
    ):
        attempt = Attempt(
            id=name, origin="experiment", variant=variant, exit="finished", started=day(at)
        )
        store.save_attempt(AttemptResult(attempt=attempt, prompt=seen_prompt))
    save_session(store, "early", day(0))
    save_session(store, "rolled-out", day(3))
    save_session(store, "elsewhere", day(3), "https://github.com/ann/other.git")
    save_session(store, "here", day(3), f"git@github.com:{REPO}.git")
    save_session(store, "named", day(3), f"git@github.com:{REPO}.git", branch="copilot/9")
    pull(store, 9, merged=True, opened=day(4), labels=("prompt:v1",))
    work = load_attempt_table(store, project_rulebook(Settings()))
    counted = dict(zip(work.attempts, work.columns["prompt"].tolist(), strict=True))
    v1, v2 = find_prompt(store, "v1").id, find_prompt(store, "v2").id
    assert counted == {
        "own": written.id, "seen": seen.id, "unnamed": None, "later": v1, "unstored": "c" * 64,
        "early": None, "rolled-out": v1, "elsewhere": v1, "here": v2, "named": v1,
    }  # fmt: skip
    uses = {use.id: use for use in list_prompt_uses(store)}
    for prompt_id in {*counted.values()} - {None}:
        rows = store.listing.list_page(AttemptFilter(prompt=prompt_id), 100)
        assert {row.id for row in rows} == {key for key in counted if counted[key] == prompt_id}
        assert store.listing.count_matches(AttemptFilter(prompt=prompt_id)) == len(rows)
        assert prompt_id not in uses or uses[prompt_id].attempts == len(rows)
    assert store.listing.list_page(AttemptFilter(prompt="nothing"), 100) == []


def test_a_name_is_one_prompt_s_and_a_file_says_something(store: Store) -> None:
    add_prompt(store, "Be brief.", name="v1")
    assert add_prompt(store, "Be brief.", name="v1").name == "v1"
    with pytest.raises(BadInput, match="Another prompt has the name 'v1'"):
        add_prompt(store, "Be thorough.", name="v1")
    with pytest.raises(BadInput, match="The file is empty"):
        add_prompt(store, " \n")


def test_the_commands_say_whether_merge_rates_improved_and_bring_a_version_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    (tmp_path / "old.md").write_text("Be brief.\n")
    (tmp_path / "new.md").write_text("Be thorough.\n")

    def closeloop(*arguments: str) -> tuple[int | str | None, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        return left.value.code, capsys.readouterr().out

    with open_store(str(tmp_path / ".closeloop" / "closeloop.db")):
        pass
    day_of = f"{day(0):%Y-%m-%d}"
    closeloop("prompt", "add", "old.md", "--name", "v1", "--agent", "copilot", "--since", day_of)
    closeloop("prompt", "add", "new.md", "--name", "v2")
    with open_store(str(tmp_path / ".closeloop" / "closeloop.db")) as store:
        for number in range(20):
            pull(store, number + 1, merged=number < 6, opened=day(1))
            pull(store, number + 101, merged=number < 18, opened=day(5), labels=("prompt:v2",))
    code, printed = closeloop("prompt", "results", "v2", "--json")
    effect = json.loads(printed)
    assert code == 0
    assert (effect["before"]["value"], effect["after"]["value"]) == (0.3, 0.9)
    assert effect["comparison"]["verdict"] == "better"
    code, printed = closeloop("prompt", "results", "v2", "v1")
    assert "merge rate" in printed
    assert "Observational" in printed
    code, printed = closeloop("prompt", "diff", "v1", "v2")
    assert (code, "+Be thorough." in printed) == (1, True)
    closeloop("prompt", "restore", "v1", "--out", "back.md")
    assert (tmp_path / "back.md").read_text() == "Be brief.\n"


def test_a_beginning_that_several_prompts_share_means_none_of_them(store: Store) -> None:
    for end in "abc":
        store.save_prompt(PromptVersion(id=f"0123456789{end}{'0' * 53}", text=f"Rule {end}."))
    index = PromptIndex(store)
    assert index.resolve_name("0123456789") == "0123456789"
    assert index.resolve_name("0123456789b") == f"0123456789b{'0' * 53}"
    assert index.resolve_name("0123456789d") == "0123456789d"
    assert index.resolve_name("0123456") == "0123456"
