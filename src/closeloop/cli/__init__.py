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
    "run": ("closeloop.cli.run:run", "Run agents on tasks and grade what they change."),
    "import": ("closeloop.cli.import_:import_", "Read the sessions that agents recorded."),
    "export": ("closeloop.cli.export:export", "Write attempts in formats that others read."),
    "attempts": ("closeloop.cli.attempts:attempts", "List attempts and their outcomes."),
    "check": ("closeloop.cli.check:check", "Say whether a change is safe to merge."),
    "measure": ("closeloop.cli.measure:measure", "Say how agents worked, with the evidence."),
    "gate": ("closeloop.cli.gate:gate", "Fail when agents work worse than they did."),
    "rules": ("closeloop.cli.rules:rules", "List what is looked for in traces."),
    "serve": ("closeloop.cli.serve:serve", "Receive OpenTelemetry traces of agents."),
    "script": ("closeloop.cli.script:script", "Serve a scripted model to any agent."),
    "show": ("closeloop.cli.show:show", "Show what happened in one attempt."),
}
TASK_COMMANDS = {
    "new": ("closeloop.cli.task:new", "Write a new task, filled in as far as can be known."),
    "check": ("closeloop.cli.task:check", "Prove tasks by their controls."),
}

RISK_COMMANDS = {
    "fit": ("closeloop.cli.risk:fit", "Learn from the past which changes go wrong."),
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
    task = App(name="task", help="Write tasks and prove them.")
    risk = App(name="risk", help="How likely changes go wrong here.")
    for parent, commands in ((app, COMMANDS), (task, TASK_COMMANDS), (risk, RISK_COMMANDS)):
        for name, (target, help_text) in commands.items():
            parent.command(target, name=name, help=help_text)
    app.command(task)
    app.command(risk)
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
