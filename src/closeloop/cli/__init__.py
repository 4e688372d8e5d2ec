"""The command line: parse, call `flow`, print. Commands are imported when they are used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from closeloop import __version__
from closeloop.records.errors import Fault

if TYPE_CHECKING:
    from cyclopts import App

COMMAND_CHAPTERS = {
    "Your own tasks": {
        "init": ("closeloop.cli.task:init", "Look at a repository and write its closeloop.toml."),
        "mine": ("closeloop.cli.mine:mine", "Turn past work into proved tasks."),
        "task new": (
            "closeloop.cli.task:new",
            "Write a new task, filled in as far as can be known.",
        ),
        "task check": ("closeloop.cli.task:check", "Prove tasks by their controls."),
        "task list": ("closeloop.cli.task:list_", "List tasks with their tags."),
        "task tag": ("closeloop.cli.task:tag", "Add tags to a task, or take them away."),
        "task stress": (
            "closeloop.cli.task:stress",
            "Make variants that stress one failure mode each.",
        ),
        "task import": ("closeloop.cli.exchange:import_", "Read tasks of SWE-bench and Harbor."),
        "task export": ("closeloop.cli.exchange:export", "Write tasks for SWE-bench or Harbor."),
        "sets": ("closeloop.cli.sets:sets", "List dev and held-out tasks as sets, and split them."),
        "due": ("closeloop.cli.due:due", "Say what to run again, and which tasks are stale."),
    },
    "Agents at work": {
        "agents": (
            "closeloop.cli.attempts:agents",
            "List agents: which are here, and how to get others.",
        ),
        "run": ("closeloop.cli.run:run", "Run agents on tasks and grade what they change."),
        "experiments": (
            "closeloop.cli.attempts:experiments",
            "List, pause and resume experiments.",
        ),
        "attempts": ("closeloop.cli.attempts:attempts", "List attempts and their outcomes."),
        "find": ("closeloop.cli.attempts:find", "Find sessions by what was said and done."),
        "show": ("closeloop.cli.show:show", "Show what happened in one attempt."),
        "branch": (
            "closeloop.cli.attempts:branch",
            "Make a git branch of what an attempt changed.",
        ),
        "orchestrate": (
            "closeloop.cli.orchestrate:orchestrate",
            "Have a request done by sub-agents, judged and tried again.",
        ),
        "deliver": (
            "closeloop.cli.deliver:deliver",
            "Bring a request to a checked pull request.",
        ),
        "plans": ("closeloop.cli.plans:plans", "List orchestrated plans, their tries and rates."),
    },
    "How they work": {
        "measure": ("closeloop.cli.measure:measure", "Say how agents worked, with the evidence."),
        "triage": (
            "closeloop.cli.triage:triage",
            "List the sessions to look at first, and why.",
        ),
        "rules": ("closeloop.cli.rules:rules", "List what is looked for in traces."),
        "ask": (
            "closeloop.cli.judge_calibration:ask",
            "Ask one narrow question about every trace.",
        ),
        "compare": ("closeloop.cli.compare:compare", "Say which variant is better, and how sure."),
        "gate": ("closeloop.cli.gate:gate", "Fail when agents work worse than they did."),
        "metrics": ("closeloop.cli.metrics:metrics", "All that is known of the work, in numbers."),
        "trends": (
            "closeloop.cli.metrics:trends",
            "How metrics went over time, and what got worse.",
        ),
        "ab": (
            "closeloop.cli.trials:ab",
            "Let variants share the work by random assignment, and see which is better.",
        ),
        "report": ("closeloop.cli.metrics:report", "Write all numbers on a page, to hand on."),
    },
    "What they made": {
        "check": ("closeloop.cli.check:check", "Say whether a change is safe to merge."),
        "risk fit": ("closeloop.cli.check:fit", "Learn from the past which changes go wrong."),
        "judge": ("closeloop.cli.judge:app", "Score outputs by a rubric, with the facts first."),
        "score": ("closeloop.cli.score:score", "Score attempts yourself, one or many."),
        "scores": ("closeloop.cli.score:scores", "List what attempts are scored by."),
    },
    "Work done elsewhere": {
        "import": ("closeloop.cli.import_:import_", "Read the sessions that agents recorded."),
        "purge": ("closeloop.cli.export:purge", "Remove a secret that got in from the store."),
        "export": ("closeloop.cli.export:export", "Write attempts in formats that others read."),
        "pulls": ("closeloop.cli.pulls:pulls", "List pull requests, and what became of them."),
        "app manifest": (
            "closeloop.cli.app:manifest",
            "Write the page that makes a GitHub App.",
        ),
        "app register": ("closeloop.cli.app:register", "Fetch the keys of a GitHub App, once."),
        "events": ("closeloop.cli.export:events", "Print what happened, and go on with it."),
    },
    "What reviewers teach": {
        "review": ("closeloop.cli.review:review", "Look at what agents made, and answer for it."),
        "memory learn": ("closeloop.cli.memory:learn", "Learn from reviews of agents' work."),
        "memory list": ("closeloop.cli.memory:list_", "List rules."),
        "memory show": ("closeloop.cli.memory:show_", "Show a rule with who said it."),
        "memory repeats": ("closeloop.cli.memory:repeats", "List what had to be said again."),
        "memory corrections": (
            "closeloop.cli.memory:corrections",
            "List what people did to agents' work.",
        ),
        "memory add": ("closeloop.cli.memory:add", "Write a rule down."),
        "memory accept": ("closeloop.cli.memory:accept", "Let agents be told a rule."),
        "memory check": ("closeloop.cli.memory:check", "Prove a check for a rule."),
        "memory retire": ("closeloop.cli.memory:retire", "Take a rule back."),
        "memory reword": ("closeloop.cli.memory:reword", "Say a rule in better words."),
        "memory join": ("closeloop.cli.memory:join", "Make one rule of two."),
        "memory confirm": (
            "closeloop.cli.memory:confirm",
            "Say that a remark restates a rule.",
        ),
        "memory deny": ("closeloop.cli.memory:deny", "Say that a remark restates no rule."),
        "context": ("closeloop.cli.context:context", "What the next agent should know."),
        "insights": ("closeloop.cli.context:insights", "What agents said they lacked, counted."),
        "encoder": (
            "closeloop.cli.context:encoder",
            "What finds rules by meaning, and how to get it.",
        ),
        "prompt log": ("closeloop.cli.prompts:log", "List every prompt with what ran under it."),
        "prompt show": ("closeloop.cli.prompts:show_", "Print a prompt as it was."),
        "prompt diff": ("closeloop.cli.prompts:diff", "Show what differs, and how to test it."),
        "prompt results": (
            "closeloop.cli.prompts:results",
            "Say whether a rate improved after a prompt.",
        ),
        "prompt add": ("closeloop.cli.prompts:add", "Store a prompt that is used elsewhere."),
        "prompt restore": (
            "closeloop.cli.prompts:restore",
            "Write a prompt into a file, as it was.",
        ),
    },
    "Served until stopped": {
        "serve": ("closeloop.cli.serve:serve", "Show the dashboard, and receive agents' traces."),
        "token": ("closeloop.cli.serve:token", "Say who may use the dashboard and its API."),
        "mcp": ("closeloop.cli.mcp:mcp", "Let agents ask closeloop about their own work."),
        "gateway": ("closeloop.cli.serve:gateway", "Serve a model to agents, and record it."),
        "script": ("closeloop.cli.serve:script", "Serve a scripted model to any agent."),
    },
}
"""Every command in the order of use, with where it is and what it does."""

COMMAND_GROUPS = {
    "task": "Write tasks and prove them.",
    "risk": "How likely changes go wrong here.",
    "memory": "What reviewers taught, and what agents are told of it.",
    "prompt": "The prompts that agents ran under.",
    "app": "A GitHub App that asks, reports and hears for your repositories.",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code.

    0 fine · 1 the answer is no · 2 your input · 3 a plug-in · 4 the machine
    """
    from cyclopts import CycloptsError

    argv = sys.argv[1:] if arguments is None else arguments
    try:
        exit_code = _build_app(argv)(argv, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from closeloop.cli.usage_errors import explain_usage_error

        _exit_with_message(explain_usage_error(error), 2)
    except Fault as fault:
        _exit_with_message(str(fault), fault.exit_code)
    except KeyboardInterrupt:
        _exit_with_message("stopped. Run the same command again to go on.", 130)
    except BrokenPipeError:
        # Somebody like `head` stopped reading: not our failure, and nothing more can be flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(exit_code if isinstance(exit_code, int) else 0)


def _build_app(asked: Sequence[str]) -> App:
    """Every command by its name, to be imported when it is used."""
    from cyclopts import App, Group, Parameter

    app = App(
        name="closeloop",
        help="Tells a team whether its coding agents work.",
        version=__version__,
        help_format="plaintext",  # Markdown would cost a third of the start-up
        default_parameter=Parameter(negative=(), show_default=_format_default),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app["--help"].group = app["--version"].group = Group("Options", sort_key=len(COMMAND_CHAPTERS))
    parents = {"": app}
    words = [word for word in asked if word not in ("--help", "-h")]
    for chapter_number, (title, commands) in enumerate(COMMAND_CHAPTERS.items()):
        chapter = Group(title, sort_key=chapter_number)
        for command_number, (name, (target, about)) in enumerate(commands.items()):
            # What the table says is for lists: a command that is asked for tells all it can do.
            help_text = None if name.split() == words[: len(name.split())] else about
            parent_name, _, command_name = name.rpartition(" ")
            if parent_name not in parents:
                parents[parent_name] = App(
                    name=parent_name,
                    help=COMMAND_GROUPS[parent_name],
                    group=chapter,
                    sort_key=command_number,
                )
                app.command(parents[parent_name])
            group = None if parent_name else chapter
            parents[parent_name].command(
                target, name=command_name, help=help_text, group=group, sort_key=command_number
            )
    return app


def _format_default(default: object) -> str | None:
    return None if str(default) in ("None", "False", "") else str(default)


def _exit_with_message(why: str, exit_code: int) -> NoReturn:
    from closeloop.cli.console import print_warning

    print_warning(why)
    sys.exit(exit_code)
