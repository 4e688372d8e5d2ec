"""`closeloop deliver`: from a request to a pull request."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.cli.console import JsonFlag
from closeloop.records.settings import Settings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.orchestration.request_delivery import DeliveryRequest
    from closeloop.records.orchestration import (
        AskedWork,
        DeliveryOrder,
        DeliveryProgress,
        DeliveryResult,
        HostIssue,
    )

MAX_REQUEST_BYTES = 1 << 20


def deliver(  # noqa: PLR0913 - one parameter for each flag
    request: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    issue: str | None = None,
    variant: str | None = None,
    agent: str | None = None,
    model: str | None = None,
    base: str = "HEAD",
    dry_run: bool = False,
    new: bool = False,
    resume: str | None = None,
    json: JsonFlag = False,
) -> int:
    """Run an agent on a request, check and fix its change, and open a pull request.

    Every step is saved: stop at any time, and run the same command again to continue.
    Exit code 0 when the request is delivered, 1 when it is unresolved or waits for a person.

    Parameters
    ----------
    request
        The request: text, a file, or `-` for standard input.
    issue
        The number of an issue at the code host, or a JSON file with one.
    variant
        A variant of closeloop.toml, or an A/B test that assigns one; the first variant by default.
    agent
        An agent, instead of a variant; builtin by default when --model is given.
    model
        The model: a name of closeloop.toml, openai/, anthropic/ or gemini/NAME, or scripted:FILE.
    base
        The branch or commit to start from.
    dry_run
        Create the branch, but open no pull request.
    new
        Start a new delivery, even if the same request was delivered before.
    resume
        Continue a delivery, given its id or the beginning of it.
    """
    from closeloop.cli.config import find_repository_root, load_project
    from closeloop.cli.console import refuse_option
    from closeloop.cli.run import apply_run_flags
    from closeloop.orchestration.request_delivery import DeliveryRequest
    from closeloop.records.errors import BadInput

    refuse_option(request or "-", "deliver")
    if (resume is None) == (request is None and issue is None):
        raise BadInput("Give a REQUEST, --issue or both; or --resume alone.")
    if resume is not None and (variant or agent or model):
        raise BadInput(
            "A resumed delivery keeps its agent and model: leave out --variant, "
            "--agent and --model."
        )
    if variant and (agent or model):
        raise BadInput("Give either --variant, or --agent and --model.")
    project = load_project(Path.cwd())
    repo = find_repository_root(project.root)
    if repo is None:
        raise BadInput(
            f"{project.root} is not in a git repository: change to one, or create it with "
            "`git init`."
        )
    settings = apply_run_flags(
        project.settings, agents=[agent] if agent else None, models=[model] if model else None
    )
    order = load_order(resume, settings, project.root) if resume is not None else None
    asked_work = read_request(request, issue, repo)
    delivery_request = DeliveryRequest(
        settings=settings,
        root=project.root,
        environ=os.environ,
        repo=repo,
        variant=order.variant
        if order
        else choose_variant(settings, variant, asked_work, project.root),
        asked=asked_work,
        base=base,
        budget=settings.deliver.budget,
        dry_run=dry_run,
        again=new,
        order=order,
    )
    return run_and_print_delivery(delivery_request, json=json)


def run_and_print_delivery(delivery_request: DeliveryRequest, *, json: bool) -> int:
    """Deliver a request and print the result; return the exit code."""
    import anyio

    from closeloop import flow
    from closeloop.cli.console import print_json, print_parts, print_warning, show_progress
    from closeloop.cli.orchestrate import warn_of_uncommitted_files
    from closeloop.records.errors import Fault

    if delivery_request.order is None and delivery_request.base == "HEAD":
        warn_of_uncommitted_files(delivery_request.repo)
    delivery_ids: list[str] = []
    try:
        with show_progress("reading the request") as report_stage:
            result = anyio.run(
                flow.deliver_request,
                delivery_request,
                tell_steps(report_stage, delivery_ids.append),
            )
    except (Fault, KeyboardInterrupt):
        if delivery_ids:
            print_warning(f"Continue with `closeloop deliver --resume {delivery_ids[0]}`.")
        raise
    print_json(result) if json else print_parts(*render_delivery(result))
    return 0 if result.state == "delivered" else 1


def tell_steps(
    report_stage: Callable[[str], None], begin: Callable[[str], None]
) -> Callable[[DeliveryProgress], None]:
    """Return a callback that prints a line for each step that starts or was already done."""

    def tell_step(progress: DeliveryProgress) -> None:
        if progress.done:
            begin(progress.delivery)
        if progress.known:
            report_stage(f"{progress.text}: already done")
        elif not progress.done:
            report_stage(progress.text)

    return tell_step


def choose_variant(settings: Settings, name: str | None, asked_work: AskedWork, root: Path) -> str:
    """Return the named variant, or the one that the trial of that name assigns; else the first."""
    from closeloop.records.errors import BadInput, unknown_name_error

    if name is not None and name not in settings.variants:
        name = assign_by_trial(settings, name, asked_work, root)
        if name not in settings.variants:
            raise unknown_name_error("variant", name, settings.variants)
    variant = name or next(iter(settings.variants), None)
    if variant is None:
        raise BadInput(
            "There is no agent to run: choose a model with --model openai/NAME, or "
            "add a [variants.NAME] section to closeloop.toml."
        )
    return variant


def assign_by_trial(settings: Settings, name: str, asked_work: AskedWork, root: Path) -> str:
    """Return the variant that a trial assigns to a request; the name itself if there is no such
    trial."""
    from datetime import UTC, datetime

    from closeloop.metrics.variant_trials import assign_variant
    from closeloop.orchestration.request_delivery import name_request, redact_request
    from closeloop.store.store import open_project_store

    with open_project_store(settings, root) as store:
        trial = store.trials.load_trial(name)
        if trial is None:
            return name
        _, task = name_request(redact_request(asked_work))
        return assign_variant(store, trial, task, datetime.now(UTC)).variant


def load_order(name: str, settings: Settings, root: Path) -> DeliveryOrder:
    from closeloop.orchestration.request_delivery import load_delivery_order
    from closeloop.store.store import open_existing_store

    with open_existing_store(settings, root) as store:
        return load_delivery_order(store, name)


def read_request(request: str | None, issue: str | None, repo: Path) -> AskedWork:
    """Read a request from the argument, a file or standard input, and the issue that it names."""
    from closeloop.cli.config import current_user
    from closeloop.cli.console import read_file_content, require_utf8_text
    from closeloop.records.errors import BadInput
    from closeloop.records.orchestration import AskedWork

    text = request or ""
    if request == "-":
        text = decode_text(sys.stdin.buffer.read(MAX_REQUEST_BYTES), "standard input")
    elif request and "\n" not in request and len(request) < 255 and Path(request).is_file():
        text = decode_text(read_file_content(Path(request), MAX_REQUEST_BYTES), request)
    require_utf8_text(text, "The request")
    if request is not None and not text.strip():
        raise BadInput("The request is empty: describe what the agent should do.")
    known_issue = read_issue(issue, repo) if issue is not None else None
    return AskedWork(text=text, issue=known_issue, user=current_user())


def decode_text(content: bytes, name: str) -> str:
    from closeloop.records.errors import BadInput

    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{name} is not UTF-8 text: save it as UTF-8.") from None


def read_issue(name: str, repo: Path) -> HostIssue:
    """Read an issue by its number at the host, or from JSON of the host's API or `gh issue
    view`."""
    import anyio

    from closeloop.changes.code_host import find_hosted_repository, open_code_host
    from closeloop.changes.report_publishing import fetch_issue, issue_from_map
    from closeloop.cli.console import read_file_content
    from closeloop.records.errors import BadInput
    from closeloop.text.untrusted import parse_json

    number, host = name.removeprefix("#"), find_hosted_repository(repo, os.environ)
    if not number.isdecimal():
        content = read_file_content(Path(name), MAX_REQUEST_BYTES)
        return issue_from_map(parse_json(content, name), name, host)
    opening = open_code_host(host.kind, host.repo, os.environ) if host else None
    if host is None or opening is None:
        raise BadInput(
            "Reading an issue from the host of `origin` needs a token: set "
            "GITHUB_TOKEN or GITLAB_TOKEN, or give a JSON file with --issue."
        )

    async def fetch() -> HostIssue:
        async with opening as code_host:
            return await fetch_issue(code_host, host.repo, int(number[:18]))

    return anyio.run(fetch)


STATE_TEXTS = {
    "delivered": "Delivered",
    "unresolved": "Delivered with unresolved failures",
    "held": "Delivered, but blocked: a person must review it",
    "nothing": "Nothing to deliver",
}


def render_delivery(result: DeliveryResult) -> Iterator[RenderableType]:
    """Render the result in a few lines."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import make_visible
    from closeloop.text.wording import format_dollars

    yield Text(f"{STATE_TEXTS[result.state]}: {make_visible(result.title)}")
    lines = {
        "pull request": result.pull.url if result.pull else None,
        "branch": result.branch.name if result.branch else None,
        "checks": result.verdict,
        "risk": result.risk,
        "fix cycles": str(result.cycles) if result.cycles else None,
        "cost": format_dollars(result.cost) if result.cost is not None else None,
        "attempt": result.attempt,
        "the agent lacked": result.feedback,
    }
    table = Table(box=None, show_header=False)
    for name, value in lines.items():
        if value is not None:
            table.add_row(name, Text(make_visible(value)))
    yield table
    for reason in result.reasons:
        yield Text(f"- {make_visible(reason)}")
    for note in result.notes:
        yield Text(make_visible(note), style="dim")
