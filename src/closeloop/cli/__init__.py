"""The command line: parse, call `flow`, print. Commands are imported when they are used."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from closeloop import __version__
from closeloop.records.errors import Fault

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError
    from cyclopts.help import DefaultFormatter, HelpPanel
    from rich.console import Console, ConsoleOptions


# Shared by all commands: help, shell completion, global flags and usage errors.


_VALUE_NAMES: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    datetime: "a day, such as 2026-11-01",
}


def explain_usage_error(error: CycloptsError) -> str:
    """Describe a usage error in one sentence without Python types, with the help to read."""
    command = " ".join(("closeloop", *(error.command_chain or ())))
    return f"{_describe_error(error)} See `{command} --help`."


def _describe_error(error: CycloptsError) -> str:
    from cyclopts import (
        CoercionError,
        MissingArgumentError,
        UnknownCommandError,
        UnusedCliTokensError,
    )

    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"Unexpected argument {error.unused_tokens[0]!r}."
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        unknown_word = error.unused_tokens[0]
        if unknown_word.startswith("-"):
            return f"Options follow the command, as in `closeloop COMMAND {unknown_word}`."
        if suggestion := _find_turned_command(*(error.command_chain or ()), unknown_word):
            return f'Unknown command "{unknown_word}". Did you mean `closeloop {suggestion}`?'
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        if error.keyword:
            return f"{error.keyword} needs a value."
        name = error.argument.name
        by_place = error.argument.field_info.is_positional
        return f"{name.removeprefix('--').upper() if by_place else name} is missing."
    if isinstance(error, CoercionError) and error.token and error.target_type in _VALUE_NAMES:
        name = error.token.keyword or (error.argument.name if error.argument else "It")
        return f"{name} must be {_VALUE_NAMES[error.target_type]}, not {error.token.value!r}."
    return str(error)


def _find_turned_command(*words: str) -> str | None:
    """Return the command with the same words in another order: `task list` for `list tasks`."""
    names = {name for commands in COMMAND_CHAPTERS.values() for name in commands}
    singular = [word.removesuffix("s") for word in reversed(words)]
    turned = (" ".join(singular), " ".join(reversed(words)))
    return next((name for name in turned if len(words) > 1 and name in names), None)


def help_(*command: str) -> None:
    """Print the help of a command, such as `closeloop help task new`.

    Parameters
    ----------
    command
        The words of the command; the list of all commands when none is given.
    """

    build_app(command)([*command, "--help"], exit_on_error=False, print_error=False)


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a shell script that completes commands and options.

    For bash, add `eval "$(closeloop admin completion bash)"` to ~/.bashrc.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """

    print(build_app((), complete=True).generate_completion(shell=shell))  # noqa: T201


@contextmanager
def run_with_global_flags(words: Sequence[str]) -> Iterator[list[str]]:
    """Apply -q, -v and --set while a command runs; yield the other words.

    Overridden settings are passed in the environment, so that worker processes have them too.
    """
    from closeloop.cli import console
    from closeloop.cli.config import SETTINGS_VARIABLE

    command, overrides, quiet, verbose = _split_global_flags(words)
    before, started_at = os.environ.get(SETTINGS_VARIABLE), time.monotonic()
    console.verbosity = console.QUIET if quiet else console.VERBOSE if verbose else console.NORMAL
    if overrides:
        os.environ[SETTINGS_VARIABLE] = "\n".join([*([before] if before else []), *overrides])
    try:
        yield command
    except Exception:
        if verbose:
            import traceback

            traceback.print_exc()
        raise
    finally:
        console.print_detail(f"took {time.monotonic() - started_at:.1f} s")
        console.verbosity = console.NORMAL
        if overrides and before is None:
            del os.environ[SETTINGS_VARIABLE]
        elif overrides:
            os.environ[SETTINGS_VARIABLE] = before or ""


def _split_global_flags(words: Sequence[str]) -> tuple[list[str], list[str], bool, bool]:
    """Return the command without its global flags, the settings, and whether -q and -v are
    given."""
    from closeloop.records.errors import BadInput

    command: list[str] = []
    overrides: list[str] = []
    quiet = verbose = False
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            command += [word, *remaining]
        elif word in ("-q", "--quiet"):
            quiet = True
        elif word in ("-v", "--verbose"):
            verbose = True
        elif word == "--set" or word.startswith("--set="):
            setting = word.partition("=")[2] if "=" in word else next(remaining, "")
            if not setting.partition("=")[1]:
                raise BadInput("--set needs KEY=VALUE, such as --set run.jobs=4.")
            overrides.append(setting)
        else:
            command.append(word)
    return command, overrides, quiet, verbose


COMMAND_CHAPTERS = {
    "Start": {
        "init": ("closeloop.cli.task:init", "Write closeloop.toml for a repository."),
        "demo": ("closeloop.cli.run:demo", "Build and run the sample project."),
        "import": ("closeloop.cli.import_:import_", "Import sessions or pull requests."),
        "run": ("closeloop.cli.run:run", "Run agents on tasks and grade their changes."),
        "serve": ("closeloop.cli.serve:serve", "Serve the dashboard, API and trace receiver."),
    },
    "Understand": {
        "list attempts": ("closeloop.cli.attempts:attempts", "List attempts and sessions."),
        "list experiments": ("closeloop.cli.attempts:experiments", "List experiments."),
        "list pulls": ("closeloop.cli.attempts:pulls", "List pull requests, riskiest first."),
        "list plans": ("closeloop.cli.orchestrate:plans", "List orchestrated requests."),
        "find": ("closeloop.cli.attempts:find", "Search the text of sessions and attempts."),
        "show": ("closeloop.cli.show:show", "Show one attempt, pull request or plan."),
        "measure": ("closeloop.cli.measure:measure", "Measure how agents worked."),
        "triage": ("closeloop.cli.measure:triage", "List the sessions most likely to have failed."),
        "compare": ("closeloop.cli.compare:compare", "Compare variants, agents or periods."),
        "metrics": ("closeloop.cli.metrics:metrics", "Print metrics of all work."),
        "report": ("closeloop.cli.metrics:report", "Write a report of all metrics to a file."),
        "export": ("closeloop.cli.export:export", "Export attempts, traces and scores."),
    },
    "Tasks": {
        "mine": ("closeloop.cli.mine:mine", "Create tasks from the history of a repository."),
        "task new": ("closeloop.cli.task:new", "Create a task file."),
        "task check": ("closeloop.cli.task:check", "Verify that tasks can be graded."),
        "task list": ("closeloop.cli.task:list_", "List tasks and their tags."),
        "task tag": ("closeloop.cli.task:tag", "Add or remove tags of a task."),
        "task stress": ("closeloop.cli.task:stress", "Create harder versions of a task."),
        "task sets": ("closeloop.cli.task:sets", "List the dev set and the held-out set."),
        "task split": ("closeloop.cli.task:split", "Move some tasks to the held-out set."),
        "task unseal": ("closeloop.cli.run:unseal", "Run the held-out tasks, with a reason."),
        "task unsealed": ("closeloop.cli.task:unsealed", "List runs of held-out tasks."),
        "task due": ("closeloop.cli.task:due", "List stale tasks and overdue runs."),
        "task import": ("closeloop.cli.exchange:import_", "Import SWE-bench or Harbor tasks."),
        "task export": ("closeloop.cli.exchange:export", "Export tasks to SWE-bench or Harbor."),
    },
    "Changes and review": {
        "check": ("closeloop.cli.check:check", "Check whether a change is safe to merge."),
        "check risk": ("closeloop.cli.check:fit", "Fit the risk model to this repository."),
        "deliver": ("closeloop.cli.deliver:deliver", "Turn a request into a checked pull request."),
        "review": ("closeloop.cli.review:review", "Review agents' changes at the keyboard."),
        "score": ("closeloop.cli.metrics:score", "Score attempts by hand or from a file."),
        "score list": ("closeloop.cli.metrics:scores", "List the scores that attempts have."),
        "learn reviews": ("closeloop.cli.learn:learn", "Learn team rules from reviews."),
        "learn list": ("closeloop.cli.learn:list_", "List team rules."),
        "learn show": ("closeloop.cli.learn:show_", "Show a team rule and its sources."),
        "learn repeats": ("closeloop.cli.learn:repeats", "List repeated review comments."),
        "learn corrections": (
            "closeloop.cli.learn:corrections",
            "List corrections of agents' work.",
        ),
        "learn add": ("closeloop.cli.learn:add", "Add a team rule."),
        "learn accept": ("closeloop.cli.learn:accept", "Activate a proposed rule."),
        "learn check": ("closeloop.cli.learn:check", "Find an automatic check for a rule."),
        "learn retire": ("closeloop.cli.learn:retire", "Retire a rule."),
        "learn reword": ("closeloop.cli.learn:reword", "Change the text or paths of a rule."),
        "learn join": ("closeloop.cli.learn:join", "Merge two rules into one."),
        "learn confirm": ("closeloop.cli.learn:confirm", "Confirm that a comment repeats a rule."),
        "learn deny": ("closeloop.cli.learn:deny", "Deny that a comment repeats a rule."),
        "learn context": (
            "closeloop.cli.learn:context",
            "Print or write the rules for the next agent.",
        ),
        "learn insights": ("closeloop.cli.learn:insights", "List what agents said they lacked."),
        "prompt log": ("closeloop.cli.prompts:log", "List prompts and the work done with each."),
        "prompt show": ("closeloop.cli.prompts:show_", "Print a stored prompt."),
        "prompt diff": ("closeloop.cli.prompts:diff", "Compare two prompts."),
        "prompt results": (
            "closeloop.cli.prompts:results",
            "Test whether a rate improved with a prompt.",
        ),
        "prompt add": ("closeloop.cli.prompts:add", "Store a prompt used elsewhere."),
        "prompt restore": ("closeloop.cli.prompts:restore", "Write a stored prompt to a file."),
        "ab start": ("closeloop.cli.prompts:start", "Start an A/B test."),
        "ab assign": ("closeloop.cli.prompts:assign", "Assign a piece of work to a variant."),
        "ab status": ("closeloop.cli.prompts:status", "Print the results of an A/B test."),
        "gate": (
            "closeloop.cli.compare:gate",
            "Fail when an experiment is worse than its baseline.",
        ),
    },
    "Judge and orchestrate": {
        "judge": ("closeloop.cli.judge:judge", "Score outputs with models and a rubric."),
        "judge ask": ("closeloop.cli.judge:ask", "Ask a model one question about each trace."),
        "judge calibrate": (
            "closeloop.cli.judge:calibrate",
            "Compare a judge with people's labels.",
        ),
        "orchestrate": (
            "closeloop.cli.orchestrate:orchestrate",
            "Split a request over several sub-agents.",
        ),
    },
    "Administration": {
        "mcp": ("closeloop.cli.mcp:mcp", "Serve closeloop's tools to agents over MCP."),
        "admin agents": ("closeloop.cli.attempts:agents", "List agents and how to install them."),
        "admin token": ("closeloop.cli.serve:token", "Manage access tokens of the dashboard."),
        "admin app manifest": ("closeloop.cli.serve:manifest", "Create a GitHub App."),
        "admin app register": ("closeloop.cli.serve:register", "Save the keys of a GitHub App."),
        "admin events": ("closeloop.cli.export:events", "Print the log of events."),
        "admin pause": ("closeloop.cli.attempts:pause", "Pause an experiment."),
        "admin resume": ("closeloop.cli.attempts:resume", "Resume a paused experiment."),
        "admin gateway": ("closeloop.cli.serve:gateway", "Serve a model to agents, recorded."),
        "admin script": ("closeloop.cli.serve:script", "Serve a scripted model to agents."),
        "admin encoder": ("closeloop.cli.learn:encoder", "List or install text encoders."),
        "admin purge": ("closeloop.cli.export:purge", "Remove a secret from the store."),
        "admin completion": ("closeloop.cli:completion", "Print a shell completion script."),
        "help": ("closeloop.cli:help_", "Print the help of a command."),
    },
}
"""Every command in the order of use, with its function and a one-line description."""

COMMAND_GROUPS = {
    "list": "List attempts, experiments, pull requests or plans.",
    "task": "Create, verify and list tasks.",
    "learn": "Team rules learned from reviews, and the context given to agents.",
    "prompt": "Versions of the prompts that agents ran with.",
    "ab": "A/B tests of variants in daily work.",
    "admin": "Agents, tokens, models, events and maintenance.",
    "admin app": "A GitHub App for webhooks, checks and pull requests.",
}
"""Commands that only have sub-commands."""

ERROR_KINDS = {2: "input", 3: "plugin", 4: "machine"}


GLOBAL_FLAGS_HELP = """\
Every command also takes:
  -q, --quiet      no progress and no warnings
  -v, --verbose    settings file, store, duration and tracebacks
  --set KEY=VALUE  override a setting of closeloop.toml: --set run.jobs=4"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its exit code. Without arguments, end this process quickly.

    0 success · 1 the answer is no · 2 wrong input · 3 a plug-in failed · 4 the machine failed
    """
    if arguments is not None:
        run_command(list(arguments))
    try:
        run_command(sys.argv[1:])
    except SystemExit as ended:
        end_process(ended.code if isinstance(ended.code, int) else 0)


def end_process(exit_code: int) -> NoReturn:
    """Exit without dismantling the interpreter, which takes a sixth of a short command's time.

    Functions registered with `atexit` are called. While other threads run or a profiler waits for
    its results, and when output cannot be written, Python exits as usual.
    """
    import atexit
    import threading

    if threading.active_count() == 1 and sys.getprofile() is None:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            sys.exit(exit_code)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(exit_code)
    sys.exit(exit_code)


def run_command(command_words: Sequence[str]) -> NoReturn:
    """Run one command and exit with its exit code."""
    from cyclopts import CycloptsError

    try:
        with run_with_global_flags(command_words) as words:
            exit_code = build_app(words)(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _exit_with_error(explain_usage_error(error), 2, command_words)
    except Fault as fault:
        _exit_with_error(str(fault), fault.exit_code, command_words)
    except KeyboardInterrupt:
        _exit_with_error("Stopped. Run the same command again to continue.", 130, command_words)
    except BrokenPipeError:
        # The reader (such as `head`) closed the pipe: no error of ours, and nothing more can be
        # flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(exit_code if isinstance(exit_code, int) else 0)


def build_app(words: Sequence[str], *, complete: bool = False) -> App:
    """Build the command tree. Only the command that the words name is imported.

    With `complete`, every command is imported, as shell completion needs all options.
    """
    from cyclopts import App, Group, Parameter

    app = App(
        name="closeloop",
        help="Find out whether your coding agents work, on your own repositories.",
        help_epilogue=GLOBAL_FLAGS_HELP,
        version=__version__,
        help_format="plaintext",  # Markdown would take a third of the start-up time
        help_formatter=HelpFormatter(),
        default_parameter=Parameter(negative=(), show_default=_format_default),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app["--help"].group = app["--version"].group = Group("Options", sort_key=len(COMMAND_CHAPTERS))
    parents = {"": app}
    command_words = [word for word in words if word not in ("--help", "-h")]
    all_names = {name for commands in COMMAND_CHAPTERS.values() for name in commands}
    parent_names = {name.rpartition(" ")[0] for name in all_names} | {"admin"}
    for chapter_number, (title, commands) in enumerate(COMMAND_CHAPTERS.items()):
        chapter = Group(title, sort_key=chapter_number)
        for command_number, (name, (target, help_text)) in enumerate(commands.items()):
            is_named = name.split() == command_words[: len(name.split())]
            parent_name, _, command_name = name.rpartition(" ")
            for depth in range(1, len(name.split()) + (name in parent_names)):
                parent_group, _, group_word = (group := " ".join(name.split()[:depth])).rpartition(
                    " "
                )
                if group not in parents:
                    parents[group] = App(
                        name=group_word,
                        help=COMMAND_GROUPS.get(group, None if is_named else help_text),
                        group=None if parent_group else chapter,
                        sort_key=command_number,
                    )
                    parents[parent_group].command(parents[group])
            if name not in parent_names:
                parents[parent_name].command(
                    target,
                    name=command_name,
                    help=None if is_named else help_text,
                    group=None if parent_name else chapter,
                    sort_key=command_number,
                )
            elif is_named or complete:
                parents[name].default(_import_function(target))
    return app


class HelpFormatter:
    """Prints help as cyclopts does; lines wrapped in the source are joined, and wrapped to fit."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        for entry in panel.entries:
            _join_wrapped_lines(entry.description)
        self._default(console, options, panel)

    def render_usage(self, console: Console, options: ConsoleOptions, usage: object) -> None:
        self._default.render_usage(console, options, usage)

    def render_description(self, console: Console, options: ConsoleOptions, text: object) -> None:
        _join_wrapped_lines(text)
        self._default.render_description(console, options, text)

    @property
    def _default(self) -> DefaultFormatter:
        from cyclopts.help import DefaultFormatter  # imported for help alone

        return DefaultFormatter()


def _join_wrapped_lines(description: Any) -> None:
    """Join the lines of each paragraph of a description."""
    from rich.text import Text

    text = getattr(description, "primary_renderable", None)
    if isinstance(text, Text):
        paragraphs = (" ".join(part.split("\n")) for part in text.plain.split("\n\n"))
        description.primary_renderable = Text("\n\n".join(paragraphs))


def _import_function(target: str) -> Callable[..., object]:
    from importlib import import_module

    module, _, name = target.partition(":")
    function: Callable[..., object] = getattr(import_module(module), name)
    return function


def _format_default(default: object) -> str | None:
    return None if str(default) in ("None", "False", "") else str(default)


def _exit_with_error(message: str, exit_code: int, words: Sequence[str]) -> NoReturn:
    """Print an error on standard error; under --json also as JSON on standard output."""
    from closeloop.cli.console import print_error, print_json

    print_error(message)
    if "--json" in words:
        kind = ERROR_KINDS.get(exit_code, "stopped")
        print_json({"error": {"kind": kind, "message": message, "exit_code": exit_code}})
    sys.exit(exit_code)
