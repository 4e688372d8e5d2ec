"""What differs between two prompts, and which runs would tell whether it matters."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from closeloop.records.plural import count_with_noun
from closeloop.records.prompt_uses import PromptProposal, PromptUse
from closeloop.records.variant import PromptVersion

SHORT_ID_CHARS = 12
PROPOSED_REPEATS = 3
"""One try of a task says little of a prompt."""


def diff_prompts(old: PromptVersion, new: PromptVersion) -> Iterator[str]:
    """Lines of a unified diff: of the text, then of tools and settings."""
    for name in ("text", "tools", "settings"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield from difflib.unified_diff(
                before.splitlines(),
                after.splitlines(),
                f"{name} of {old.id[:SHORT_ID_CHARS]}",
                f"{name} of {new.id[:SHORT_ID_CHARS]}",
                lineterm="",
            )


def propose_prompt_runs(old: PromptUse, new: PromptUse) -> PromptProposal:
    """The runs that put the new prompt to the tasks which the old one had."""
    untried = tuple(task for task in old.tasks if task not in new.tasks)
    compare = f"closeloop compare prompt:{old.id[:SHORT_ID_CHARS]} prompt:{new.id[:SHORT_ID_CHARS]}"
    if not old.tasks:
        note = "Nothing ran under the old one: run both on the same tasks."
        commands = (*_commands_for_both(old, new), compare)
    elif not untried:
        note, commands = "Both had the same tasks: compare them.", (compare,)
    else:
        note = (
            f"Only the old one was tried on {len(untried)} of"
            f" {count_with_noun(len(old.tasks), 'task')}."
        )
        named = [f"--variant {name}" for name in new.variants[:1]]
        run = " ".join(["closeloop run", *untried, *named, f"--repeats {PROPOSED_REPEATS}"])
        commands = (run, compare)
    return PromptProposal(old=old.id, new=new.id, tasks=untried, note=note, commands=commands)


def _commands_for_both(old: PromptUse, new: PromptUse) -> tuple[str, ...]:
    names = [one.id[:SHORT_ID_CHARS] for one in (old, new)]
    restore = [f"closeloop prompt restore {name} --to {name}.md" for name in names]
    files = " ".join(f"--prompt {name}.md" for name in names)
    return (*restore, f"closeloop run {files} --repeats {PROPOSED_REPEATS}")
