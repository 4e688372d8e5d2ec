"""A file does not exist, and the agent claims to have read it.

## What it looks for

A read fails because the file does not exist, and the agent then names this file as its source:
`following docs/STYLE.md`, `as specified in api.yaml`, `config.toml says …`, `I reviewed NOTES.md`;
or, if the user asked to follow this file, the agent changes code and claims success. No other event
of the lane shows, writes or searches a file of this name, the user did not paste it, and the agent
does not say until the user's next message that it is missing.

Nothing is reported if the agent asks, searches for the file and finds one, creates it, or says that
it continues without it. A file that the agent only guessed and never mentions again is not reported
either; whether the agent investigated after the failed read counts in the rate `recovery` of the
process score.

## Why it matters

The user believes that a rule was followed or a specification was met, but the agent never read it.

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

If the trace contains the results of reads. The phrases are English.

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

It is advisory: it is right on every labelled trace, but the real sessions it was tested on contain
no case.
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
    about="A file does not exist, and the agent claims to have read it.",
    severity="warning",
    mode="context blindness",
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report each missing file that is named as a source."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    findings = []
    for name, lane in reading.lanes.items():
        bluffs = (
            {
                missing_file.path: missing_file
                for missing_file in list_missing_files(lane)
                if missing_file.bluff
            }
            if lane.failing
            else {}
        )
        for bluff in bluffs.values():
            assert bluff.bluff is not None, bluff
            findings.append(
                make_finding(
                    rule,
                    f"{truncate_line(bluff.path)} does not exist, but the agent says "
                    f"“{truncate_line(bluff.bluff.text)}”.",
                    [bluff.bluff.number, bluff.step.number],
                    lane=name,
                    confidence=0.8,
                )
            )
    return sorted(findings, key=lambda finding: finding.events)
