"""The text of a new `closeloop.toml`: what was found, and what can be said besides."""

from __future__ import annotations

import json

from closeloop.tasks.project_discovery import Discovery

MAX_LISTED_PROJECTS = 8

_HEADER_TEXT = """\
# closeloop: which agents to try on this repository, and how.
# A line that begins with '#' is an example, or shows what holds when nothing is said.

# tasks = "tasks"                    # the folder of the task files
# store = ".closeloop/closeloop.db"  # or "postgresql://user@host/name"
# cache = ".closeloop/cache"         # prepared copies of the repository
# retries = 2                        # how often an attempt that the machine failed is begun again
"""

_COMMAND_DESCRIPTIONS = {
    "setup": "prepare a fresh checkout, once; these may use the network",
    "test": "run all tests",
    "lint": "find bad style",
    "types": "check types",
    "build": "build the project",
}

_COMMAND_EXAMPLES = {
    "setup": '["make setup"]',
    "test": '"make test"',
    "lint": '"make lint"',
    "types": '"make types"',
    "build": '"make build"',
}

_SECTIONS_TEXT = """\
# Models. Keys stay where they are: in the environment (OPENAI_API_KEY, ANTHROPIC_API_KEY, or the
# variable that key_env names) or in a file (key_file).
#
# [models.large]
# provider = "anthropic"             # "openai" for every server that speaks its format; "scripted"
# model = "the provider's name of it"
# base_url = "http://localhost:8000/v1"
# key_env = "MY_KEY"
# input_price = 3.0                  # US dollars per million tokens, to know what work costs
# output_price = 15.0

# Variants: what is compared. `closeloop run` runs all of them.
#
# [variants.large]
# agent = "builtin"
# model = "large"                    # a name from above, "openai/NAME", "anthropic/NAME"
# prompt = "prompts/careful.md"      # a system prompt of your own

# What one attempt may use before it is stopped.
#
# [limits]
# seconds = 28800
# idle_seconds = 1800
# command_seconds = 600
# turns = 200
# tokens = 2000000
# money = 5.0                        # US dollars

# How agents are caged.
#
# [sandbox]
# kind = "auto"                      # "bwrap", "landlock", or "none": no cage at all
# read = ["~/.cargo"]                # more paths that commands may read
# env = ["LANG"]                     # environment variables handed on to commands
"""


def render_config(found: Discovery) -> str:
    """A file to start from: it says what was found and where, and explains every section."""
    lines = ["# The project's own commands, run from the root of the repository.", "[commands]"]
    for name, about in _COMMAND_DESCRIPTIONS.items():
        value = getattr(found.commands, name)
        source = found.sources.get(name)
        lines.append(f"# {about}" + (f" (found in {_printable_line(source)})" if source else ""))
        lines.append(
            f"{name} = {_toml_value(value)}" if value else f"# {name} = {_COMMAND_EXAMPLES[name]}"
        )
    if found.seen:
        more = len(found.seen) - MAX_LISTED_PROJECTS
        project_names = ", ".join(
            _printable_line(name) for name in found.seen[:MAX_LISTED_PROJECTS]
        )
        lines.append(
            f"# Also seen here: {project_names}" + (f" and {more} more." if more > 0 else ".")
        )
    return "\n".join([_HEADER_TEXT, *lines, "", _SECTIONS_TEXT])


def _toml_value(value: str | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    # JSON text is TOML text, but for this one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _printable_line(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)
