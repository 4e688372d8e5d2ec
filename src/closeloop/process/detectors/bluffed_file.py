"""A file could not be read because it is not there, and the agent speaks as if it had read it.

## What it looks for

A read of a file that failed because there is no such file, after which the agent names that file
as its source: `following docs/STYLE.md`, `as specified in api.yaml`, `config.toml says …`, `I
reviewed NOTES.md`; or, where the user asked to work by that file, after which it changes code and
claims success. Nothing else in the lane showed, wrote or searched a file of that name, the user
did not paste it, and no word of the agent, up to the user's next one, says that it is missing.

It keeps quiet where the agent asks, looks for the file and finds one, creates it, or says that it
goes on without it. A file that the agent only guessed at, and that nobody speaks of again, is not
reported; whether the agent looked around after it counts in the process score's rate `recovery`.

## Why it matters

The user believes that a rule was followed or a specification was met. Nobody has read it.

## Bad

```text
#1  user   Add the endpoint, following docs/API_STYLE.md.
#2  read   docs/API_STYLE.md       File does not exist.
#3  edit   api/orders.py
#4  agent  "The endpoint is added, following docs/API_STYLE.md."
```

## Good

```text
#1  user   Add the endpoint, following docs/API_STYLE.md.
#2  read   docs/API_STYLE.md       File does not exist.
#3  run    find . -iname '*style*'
#4  agent  "There is no docs/API_STYLE.md. Which rules shall I follow?"
```

## When it can be measured

When the trace shows what reads answer. The phrases are English.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.bluffed-file]
enabled = false

[[silence]]
rule = "bluffed-file"
task = "offline-*"
reason = "the files are mounted later there"
```

## How sure it is

It advises: it is right on every labelled trace, but no case of it was found in the real sessions
that it was tried on.
"""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.rule_helpers import truncate_line
from closeloop.process.stale_files import list_missing_files
from closeloop.records.change import TraceReading
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding

rule = Rule(
    name="bluffed-file",
    version=1,
    about="A file is not there, and the agent speaks as if it had read it.",
    severity="warning",
    mode="context blindness",
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """One finding for each missing file that is named as a source."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    findings = []
    for name, lane in reading.lanes.items():
        bluffs = (
            {one.path: one for one in list_missing_files(lane) if one.bluff} if lane.failing else {}
        )
        for one in bluffs.values():
            assert one.bluff is not None, one
            findings.append(
                make_finding(
                    rule,
                    f"{truncate_line(one.path)} is not there, and the agent says"
                    f" “{truncate_line(one.bluff.text)}”.",
                    [one.bluff.number, one.step.number],
                    lane=name,
                    confidence=0.8,
                )
            )
    return sorted(findings, key=lambda finding: finding.events)
