"""The command line: parse, call `flow`, print. Commands are imported when they are used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from closeloop import __version__
from closeloop.model.errors import Fault

COMMANDS = {
    "init": ("closeloop.cli.init:init", "Look at a repository and write its closeloop.toml."),
    "mine": ("closeloop.cli.mine:mine", "Turn past work into proved tasks."),
    "run": ("closeloop.cli.run:run", "Run agents on tasks and grade what they change."),
    "orchestrate": (
        "closeloop.cli.orchestrate:orchestrate",
        "Have a request done by sub-agents, judged and tried again.",
    ),
    "plans": ("closeloop.cli.plans:plans", "List orchestrated plans, their tries and rates."),
    "sets": ("closeloop.cli.sets:sets", "List dev and held-out tasks as sets, and split them."),
    "agents": (
        "closeloop.cli.agents:agents",
        "List agents: which are here, and how to get others.",
    ),
    "import": ("closeloop.cli.import_:import_", "Read the sessions that agents recorded."),
    "export": ("closeloop.cli.export:export", "Write attempts in formats that others read."),
    "experiments": ("closeloop.cli.experiments:experiments", "List, pause and resume experiments."),
    "attempts": ("closeloop.cli.attempts:attempts", "List attempts and their outcomes."),
    "check": ("closeloop.cli.check:check", "Say whether a change is safe to merge."),
    "ask": ("closeloop.cli.ask:ask", "Ask one narrow question about every trace."),
    "measure": ("closeloop.cli.measure:measure", "Say how agents worked, with the evidence."),
    "metrics": ("closeloop.cli.metrics:metrics", "All that is known of the work, in numbers."),
    "compare": ("closeloop.cli.compare:compare", "Say which variant is better, and how sure."),
    "trends": ("closeloop.cli.trends:trends", "How metrics went over time, and what got worse."),
    "ab": ("closeloop.cli.ab:ab", "Let variants share the work by lot, and see which is better."),
    "report": ("closeloop.cli.report:report", "Write all numbers on a page, to hand on."),
    "gate": ("closeloop.cli.gate:gate", "Fail when agents work worse than they did."),
    "review": ("closeloop.cli.review:review", "Look at what agents made, and answer for it."),
    "context": ("closeloop.cli.context:context", "What the next agent should know."),
    "insights": ("closeloop.cli.insights:insights", "What agents said they lacked, counted."),
    "encoder": ("closeloop.cli.encoder:encoder", "What finds rules by meaning, and how to get it."),
    "rules": ("closeloop.cli.rules:rules", "List what is looked for in traces."),
    "mcp": ("closeloop.cli.mcp:mcp", "Let agents ask closeloop about their own work."),
    "pulls": ("closeloop.cli.pulls:pulls", "List pull requests, and what became of them."),
    "events": ("closeloop.cli.events:events", "Print what happened, and go on with it."),
    "serve": ("closeloop.cli.serve:serve", "Show the dashboard, and receive agents' traces."),
    "token": ("closeloop.cli.token:token", "Say who may use the dashboard and its API."),
    "script": ("closeloop.cli.script:script", "Serve a scripted model to any agent."),
    "branch": ("closeloop.cli.branch:branch", "Make a git branch of what an attempt changed."),
    "gateway": ("closeloop.cli.gateway:gateway", "Serve a model to agents, and record it."),
    "show": ("closeloop.cli.show:show", "Show what happened in one attempt."),
}
TASK_COMMANDS = {
    "new": ("closeloop.cli.task:new", "Write a new task, filled in as far as can be known."),
    "check": ("closeloop.cli.task:check", "Prove tasks by their controls."),
    "list": ("closeloop.cli.tagging:list_", "List tasks with their tags."),
    "tag": ("closeloop.cli.tagging:tag", "Add tags to a task, or take them away."),
    "stress": ("closeloop.cli.stress:stress", "Make variants that stress one failure mode each."),
    "import": ("closeloop.cli.exchange:import_", "Read tasks of SWE-bench and Harbor."),
    "export": ("closeloop.cli.exchange:export", "Write tasks for SWE-bench or Harbor."),
}

RISK_COMMANDS = {
    "fit": ("closeloop.cli.risk:fit", "Learn from the past which changes go wrong."),
}

MEMORY_COMMANDS = {
    "learn": ("closeloop.cli.memory:learn", "Learn from reviews of agents' work."),
    "list": ("closeloop.cli.memory:list_", "List rules."),
    "show": ("closeloop.cli.memory:show_", "Show a rule with who said it."),
    "repeats": ("closeloop.cli.memory:repeats", "List what had to be said again."),
    "corrections": ("closeloop.cli.memory:corrections", "List what people did to agents' work."),
    "add": ("closeloop.cli.memory_rules:add", "Write a rule down."),
    "accept": ("closeloop.cli.memory_rules:accept", "Let agents be told a rule."),
    "retire": ("closeloop.cli.memory_rules:retire", "Take a rule back."),
    "reword": ("closeloop.cli.memory_rules:reword", "Say a rule in better words."),
    "join": ("closeloop.cli.memory_rules:join", "Make one rule of two."),
    "confirm": ("closeloop.cli.memory_rules:confirm", "Say that a remark restates a rule."),
    "deny": ("closeloop.cli.memory_rules:deny", "Say that a remark restates no rule."),
}

PROMPT_COMMANDS = {
    "log": ("closeloop.cli.prompt:log", "List every prompt with what ran under it."),
    "show": ("closeloop.cli.prompt:show_", "Print a prompt as it was."),
    "diff": ("closeloop.cli.prompt:diff", "Show what differs, and how to test it."),
    "restore": ("closeloop.cli.prompt:restore", "Write a prompt into a file, as it was."),
}

GROUPS = {
    "task": ("Write tasks and prove them.", TASK_COMMANDS),
    "risk": ("How likely changes go wrong here.", RISK_COMMANDS),
    "memory": ("What reviewers taught, and what agents are told of it.", MEMORY_COMMANDS),
    "prompt": ("The prompts that agents ran under.", PROMPT_COMMANDS),
}

JUDGE_COMMANDS = {
    "": ("closeloop.cli.judge:judge", "Score outputs by a rubric, with the facts first."),
    "calibrate": ("closeloop.cli.calibrate:calibrate", "Hold a judge against people."),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code.

    0 fine · 1 the answer is no · 2 your input · 3 a plug-in · 4 the machine
    """
    from cyclopts import App, CycloptsError

    app = App(
        name="closeloop",
        help="Tells a team whether its coding agents work.",
        version=__version__,
        help_format="plaintext",  # Markdown would cost a third of the start-up
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, (target, help_text) in COMMANDS.items():
        app.command(target, name=name, help=help_text)
    for group, (about, commands) in GROUPS.items():
        parent = App(name=group, help=about)
        for name, (target, help_text) in commands.items():
            parent.command(target, name=name, help=help_text)
        app.command(parent)
    # An application of its own, made when it is used: `judge` is a command and has some below it.
    app.command("closeloop.cli.judge:app", name="judge", help=JUDGE_COMMANDS[""][1])
    try:
        result = app(arguments, exit_on_error=False, print_error=True)
    except CycloptsError:
        sys.exit(2)
    except Fault as fault:
        _leave(str(fault), fault.exit_code)
    except KeyboardInterrupt:
        _leave("stopped. Run the same command again to go on.", 130)
    except BrokenPipeError:
        # Somebody like `head` stopped reading: not our failure, and nothing more can be flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(result if isinstance(result, int) else 0)


def _leave(why: str, exit_code: int) -> NoReturn:
    from closeloop.cli.console import warn

    warn(why)
    sys.exit(exit_code)
